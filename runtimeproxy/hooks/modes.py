"""Modes of policies that operators set while the daemon runs, for all pods or some of them. Pure.

A policy whose mode differs between pods runs as several entries of the chain, each for its pods: what is set
costs a call nothing, but for the match of one more selector.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from runtimeproxy.hooks.claimants import ClaimantKind, parse_claimant
from runtimeproxy.hooks.owners import Owner
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.selector import EVERY_POD, PodSelector, PodTraits
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.labels import LabelOperator, LabelRequirement, LabelSelector
from runtimeproxy.units import checked_time_s
from runtimeproxy.vocabulary import Mode

if TYPE_CHECKING:
    from runtimeproxy.hooks.loaded import LoadedPolicy

MOST_OVERRIDES: Final = 100

_OF_NO_POD: Final = frozenset({Hook.EVALUATE_QOS_CLASS, Hook.EVALUATE_NODE})


class Override(NamedTuple):
    """The mode of a policy for some pods, as an operator has set it."""

    policy: str
    """Its name; or of an owner of claims, as it is called in the ledger: `plugin:NAME`."""
    mode: Mode
    selector: PodSelector = EVERY_POD
    """Namespaces and labels only."""
    set_s: float = 0.0
    """When it was set, in seconds since the epoch."""
    until_s: float | None = None
    """When it ends; None: when it is taken back."""
    reason: str = ""

    @property
    def is_for_all(self) -> bool:
        return self.selector == EVERY_POD


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part(PodSelector):
    """The pods of a policy with one of its modes."""

    base: PodSelector
    within: PodSelector
    without: tuple[PodSelector, ...]

    def matches(self, pod: PodTraits) -> bool:
        if not self.base.matches(pod) or not self.within.matches(pod):
            return False
        return not any(each.matches(pod) for each in self.without)


def with_override(overrides: Iterable[Override], new: Override) -> tuple[Override, ...]:
    # The new one goes before all others of its policy.
    return (*without(overrides, new.policy, new.selector), new)


def without(
    overrides: Iterable[Override], policy: str, selector: PodSelector | None = None
) -> tuple[Override, ...]:
    return tuple(
        each
        for each in overrides
        if each.policy != policy or (selector is not None and each.selector != selector)
    )


def present(overrides: Iterable[Override], now_s: float) -> tuple[Override, ...]:
    return tuple(each for each in overrides if now_s < (math.inf if each.until_s is None else each.until_s))


def needed(
    settings: Mapping[str, PolicySettings], overrides: Iterable[Override]
) -> dict[str, PolicySettings]:
    """The settings with which policies are loaded that an operator uses, whatever the configuration says."""
    found = dict(settings)
    for each in overrides:
        if each.mode is not Mode.OFF and parse_claimant(each.policy).kind is not ClaimantKind.PLUGIN:
            found[each.policy] = replace(found.get(each.policy, PolicySettings()), enabled=True)
    return found


def with_owner_modes(owners: Mapping[str, Owner], overrides: Iterable[Override]) -> dict[str, Owner]:
    """The owners of claims, in the modes that operators have set, the oldest first."""
    modes = {each.policy: each.mode for each in overrides}
    return {
        name: owner._replace(mode=modes.get(str(owner.claimant), owner.mode))
        for name, owner in owners.items()
    }


def with_modes(
    policies: Iterable[LoadedPolicy], overrides: Iterable[Override], disabled: Collection[str] = ()
) -> Iterator[LoadedPolicy]:
    """The policies as the chain runs them.

    Args:
        policies: As loaded, with the modes of the configuration.
        overrides: The oldest first.
        disabled: Policies that the configuration disables: loaded for the pods of overrides only.
    """
    by_policy: dict[str, list[Override]] = {}
    for each in overrides:
        by_policy.setdefault(each.policy, []).append(each)
    for policy in policies:
        chosen = by_policy.get(policy.name, ())
        parts = list(_parts(policy, chosen, is_disabled=policy.name in disabled))
        policy.policy.dry_run = bool(parts) and all(each.mode is Mode.DRY_RUN for each in parts)
        yield from parts


def _parts(policy: LoadedPolicy, chosen: Iterable[Override], *, is_disabled: bool) -> Iterator[LoadedPolicy]:
    earlier: tuple[PodSelector, ...] = ()
    for each in reversed(list(chosen)):
        if each.mode is not Mode.OFF:
            part = replace(policy, mode=each.mode)
            yield _narrowed(part, each.selector, earlier)
        if each.is_for_all:
            return
        earlier = (*earlier, each.selector)
    if not is_disabled:
        yield _narrowed(policy, EVERY_POD, earlier)


def _narrowed(policy: LoadedPolicy, within: PodSelector, without: tuple[PodSelector, ...]) -> LoadedPolicy:
    if within == EVERY_POD and not without:
        return policy

    def part(base: PodSelector) -> PodSelector:
        return _Part(
            qos_classes=base.qos_classes,
            annotations=base.annotations,
            base=base,
            within=within,
            without=without,
        )

    methods = policy.methods
    if within != EVERY_POD:
        # What is no pod's has the mode of the pods that are not selected.
        methods = MappingProxyType({hook: each for hook, each in methods.items() if hook not in _OF_NO_POD})
    return replace(
        policy,
        methods=methods,
        selector=part(policy.selector),
        selector_without={key: part(each) for key, each in policy.selector_without.items()},
    )


# --- as JSON -----------------------------------------------------------------------------------------------


def as_json(override: Override) -> dict[str, Any]:
    labels = override.selector.labels
    return {
        "policy": override.policy,
        "mode": str(override.mode),
        "namespaces": sorted(override.selector.namespaces or ()),
        "match_labels": dict(labels.match_labels),
        "match_expressions": [
            {**dataclasses.asdict(each), "operator": str(each.operator)} for each in labels.match_expressions
        ],
        "set_s": override.set_s,
        "until_s": override.until_s,
        "reason": override.reason,
    }


def from_json(saved: Mapping[str, Any]) -> Override:
    """The override in what `as_json` gave.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: It is something else.
    """
    expressions = tuple(
        LabelRequirement(
            key=str(each["key"]),
            operator=LabelOperator(each["operator"]),
            values=tuple(map(str, each["values"])),
        )
        for each in saved["match_expressions"]
    )
    labels = {str(key): str(value) for key, value in saved["match_labels"].items()}
    until_s = saved["until_s"]
    return Override(
        str(saved["policy"]),
        Mode(saved["mode"]),
        selector_of(
            map(str, saved["namespaces"]), LabelSelector(match_labels=labels, match_expressions=expressions)
        ),
        checked_time_s(saved["set_s"]),
        None if until_s is None else checked_time_s(until_s),
        str(saved["reason"]),
    )


def selector_of(namespaces: Iterable[str], labels: LabelSelector) -> PodSelector:
    """The pods of these namespaces, or of any without one, with these labels."""
    selector = PodSelector(namespaces=frozenset(namespaces) or None)
    return selector if labels == LabelSelector() else replace(selector, labels=labels)
