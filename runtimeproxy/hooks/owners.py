"""Owners of claims outside of this process, such as the plugins of a QoS manager: what each may claim. Pure.

A rule is a text, `FIELD ROLE LEVEL...`: `cpuset.cpus at_most qos-class pod` lets an owner bound the CPUs of
QoS classes and pods.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from runtimeproxy.fields.declaration import ALL_LEVELS, ROLES, Kind
from runtimeproxy.fields.tables import NEUTRAL, PARAMETERS, check_value, unknown_parameter
from runtimeproxy.hooks.algebra import Claim
from runtimeproxy.hooks.changes import CLEAR, Clear
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind
from runtimeproxy.spelling import did_you_mean, nearest
from runtimeproxy.units import MAX_INT64, UNLIMITED, parse_cpu_list, parse_integer
from runtimeproxy.vocabulary import (
    MOST_CLAIM_REASON_BYTES,
    MOST_VALUE,
    POOL_RANGES,
    ClaimLevel,
    Mode,
    PoolField,
    Role,
)

_POOL_FIELDS: Final = frozenset(map(str, PoolField))
_LEVELS: Final = tuple(level for level in ClaimLevel if level in ALL_LEVELS)


class Rule(NamedTuple):
    """The claims on one parameter in one role that an owner may make."""

    field: str
    """Of a cgroup, or a `PoolField`."""
    role: Role
    levels: frozenset[ClaimLevel]


class Owner(NamedTuple):
    """One owner, as configured."""

    name: str
    rules: tuple[Rule, ...] = ()
    priority: int = 80
    """Of its sets, beside those of policies: 0 to 99, and the highest one wins."""
    mode: Mode = Mode.ENFORCE
    """In dry-run its claims are kept and shown, and not applied; off, they are refused."""
    hold_roles: frozenset[Role] = frozenset({Role.AT_MOST})
    """Claims that are held when the lease ends; others are released."""
    hold_s: float = 300.0
    most_claims: int = 2_000
    most_bytes: int = 1 << 20
    may_evict: bool = False

    @property
    def claimant(self) -> Claimant:
        return Claimant(self.name, ClaimantKind.PLUGIN)


class BuiltIn(NamedTuple):
    """The rights of a built-in owner, unless the configuration has others."""

    allow: tuple[str, ...] = ()
    may_evict: bool = False


BUILT_IN: Final[Mapping[str, BuiltIn]] = MappingProxyType(
    {
        "cpu-suppress": BuiltIn(
            ("cpu.cfs_quota_us at_most qos-class", "cpuset.cpus at_most qos-class pod container")
        ),
        "cpu-burst": BuiltIn(
            ("cpu.cfs_quota_us add container", "cpu.cfs_burst_us set container pod"),
        ),
        # Of the daemon itself: `ledger.boosts`.
        "startup-boost": BuiltIn(("cpu.cfs_quota_us add container",)),
        "cpu-evict": BuiltIn(may_evict=True),
        "memory-evict": BuiltIn(may_evict=True),
        "katalyst-advisor": BuiltIn(
            (
                *(f"{each} set {ClaimLevel.POOL}" for each in PoolField),
                "cpu.cfs_quota_us at_most qos-class",
                "memory.high at_most pod",
            )
        ),
        "cpu-guard": BuiltIn(
            (
                "cpu.cfs_quota_us at_most qos-class",
                "cpuset.cpus at_most qos-class",
                "cpu.idle set pod qos-class",
                "cpu.shares set pod",
                "sched_slice_us set pod",
            )
        ),
        "katalyst-cpu-suppression": BuiltIn(may_evict=True),
        "katalyst-cpu-load": BuiltIn(may_evict=True),
        "katalyst-reclaimed-pressure": BuiltIn(may_evict=True),
        "katalyst-memory-pressure": BuiltIn(may_evict=True),
        "katalyst-rss-overuse": BuiltIn(may_evict=True),
    }
)
"""The plugins of `koord-qos-manager`. What each writes: Koordinator pkg/koordlet/qosmanager/plugins, and
katalyst-core pkg/agent/sysadvisor/plugin/qosaware for the advisor."""


def parse_rule(text: str) -> Rule:
    """Return the rule of a text. Raises ValueError if it is none; says why."""
    field, _, rest = text.partition(" ")
    role, _, levels = rest.strip().partition(" ")
    if not role or not levels.split():
        raise ValueError(f"{text!r} is not of the form FIELD ROLE LEVEL...")
    if field in _POOL_FIELDS:
        return _pool_rule(field, role, levels)
    if field not in PARAMETERS:
        raise ValueError(f"{field} {unknown_parameter(field)}{did_you_mean(nearest(field, PoolField))}")
    if not PARAMETERS[field].writable:
        raise ValueError(f"{field} cannot be written")
    if role not in set(Role):
        raise ValueError(f"{role!r} is not a role: {', '.join(Role)}")
    return _cgroup_rule(field, Role(role), levels)


def _pool_rule(field: str, role: str, levels: str) -> Rule:
    if role != Role.SET or levels.split() != [ClaimLevel.POOL]:
        raise ValueError(f"{field} is a value of pools, which can only be set: {field} set pool")
    return Rule(field, Role.SET, frozenset({ClaimLevel.POOL}))


def _cgroup_rule(field: str, role: Role, levels: str) -> Rule:
    unknown = [each for each in levels.split() if each not in _LEVELS]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a level: {', '.join(_LEVELS)}")
    found = frozenset(map(ClaimLevel, levels.split()))
    if never := sorted(found - PARAMETERS[field].levels):
        is_kubelets = PARAMETERS[field].processes is None
        why = "belongs to the kubelet" if is_kubelets else "is no value: only some cgroups' processes have it"
        raise ValueError(f"{field} of a {never[0]} {why}")
    if PARAMETERS[field].processes is not None and role != Role.SET:
        raise ValueError(f"{field} is a value of processes, which can only be set")
    if role not in ROLES[kind := PARAMETERS[field].kind]:
        raise ValueError(f"{field} is a {kind.value}, which has no amount")
    return Rule(field, role, found)


def refusal(rules: Iterable[Rule], field: str, role: Role, level: ClaimLevel) -> str:
    """Return why an owner may not make a claim; empty if it may."""
    of_field = [rule for rule in rules if rule.field == field]
    of_role = [rule for rule in of_field if rule.role is role]
    if not of_field:
        is_known = field in PARAMETERS or field in _POOL_FIELDS
        known = "" if is_known else f", which {unknown_parameter(field)}"
        return f"this owner may not claim {field[:64]}{known}"
    if not of_role:
        return f"this owner may not claim {field} in the role {role}"
    if not any(level in rule.levels for rule in of_role):
        return f"this owner may not claim {field} of a {level}"
    return ""


def claim_of(
    owner: Owner, field: str, role: Role, value: str | None, ceiling: int | None, reason: str
) -> Claim:
    """Return the claim of a request.

    `field`: a parameter that it may claim in this role. `value`: as text; None in a set for the neutral
    value. `ceiling`: of an add.

    Raises:
        ValueError: the value, the ceiling or the reason cannot be used; says why.
    """
    if len(reason.encode("utf-8", "replace")) > MOST_CLAIM_REASON_BYTES:
        raise ValueError(f"the reason has more than {MOST_CLAIM_REASON_BYTES} bytes")
    if ceiling is not None and role is not Role.ADD:
        raise ValueError("only an add has a ceiling")
    if ceiling is not None and not 0 <= ceiling <= MAX_INT64:
        raise ValueError(f"the ceiling {ceiling} is not in 0 to {MAX_INT64}")
    is_of_pool = field in _POOL_FIELDS
    amount = _pool_amount(PoolField(field), value) if is_of_pool else _value(field, role, value)
    printable = "".join(each if each.isprintable() else " " for each in reason)
    return Claim(owner.claimant, role, amount, owner.priority, printable, ceiling)


def _pool_amount(field: PoolField, text: str | None) -> int:
    amount = parse_integer((text or "")[:MOST_VALUE])
    least, most = POOL_RANGES[field]
    if not least <= amount <= most:
        raise ValueError(f"{amount} is not in {least} to {most}")
    return amount


def _value(field: str, role: Role, text: str | None) -> int | float | str | Clear:
    if text is None:
        if role is not Role.SET or field not in NEUTRAL:
            raise ValueError("a value is missing")
        return CLEAR
    if len(text) > MOST_VALUE:
        raise ValueError(f"the value has more than {MOST_VALUE} characters")
    if role is Role.SCALE:
        return _ratio(text)
    value = parse_integer(text) if PARAMETERS[field].kind is Kind.NUMBER else text
    if role is Role.ADD:
        if not isinstance(value, int) or not 0 <= value <= MAX_INT64:
            raise ValueError(f"the amount {value} is not in 0 to {MAX_INT64}")
        return value
    if reason := check_value(field, value):
        raise ValueError(reason)
    if role is Role.AT_MOST and (
        value == UNLIMITED or (isinstance(value, str) and not parse_cpu_list(value))
    ):
        raise ValueError(f"{value!r} is unlimited, which bounds nothing")
    return value


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        raise ValueError(f"{text[:64]!r} is not a number") from None
    if not math.isfinite(ratio) or ratio < 1:
        raise ValueError(f"the ratio {text[:64]} is not a finite number of 1 or more")
    return ratio
