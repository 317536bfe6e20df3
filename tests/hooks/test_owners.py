"""What owners of claims may claim, and what their values are."""

from __future__ import annotations

import pytest

from runtimeproxy.hooks.changes import CLEAR
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind
from runtimeproxy.hooks.owners import BUILT_IN, Owner, Rule, claim_of, parse_rule, refusal
from runtimeproxy.ledger.boosts import OWNER as BOOSTS
from runtimeproxy.qosmanager.manager import built_in_plugins
from runtimeproxy.vocabulary import ClaimLevel, Role

QUOTA = "cpu.cfs_quota_us"
OWNER = Owner("mine", priority=70)


def test_the_built_in_rules_are_rules() -> None:
    for each in BUILT_IN.values():
        assert [parse_rule(text).field for text in each.allow] == [text.split()[0] for text in each.allow]
        assert bool(each.allow) != each.may_evict


def test_every_plugin_with_claims_or_evictions_is_an_owner() -> None:
    of_plugins = {plugin.name for plugin in built_in_plugins() if plugin.has_claims}
    # One is the daemon's own.
    assert BUILT_IN.keys() == of_plugins | {BOOSTS}


def test_a_rule() -> None:
    levels = frozenset({ClaimLevel.QOS_CLASS, ClaimLevel.POD})
    assert parse_rule("cpuset.cpus  at_most qos-class  pod") == Rule("cpuset.cpus", Role.AT_MOST, levels)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not of the form"),
        ("cpuset.cpus at_most", "is not of the form"),
        ("cpu.max at_most pod", "parameters have their names of cgroup version 1"),
        ("no.such at_most pod", "is not a known cgroup parameter"),
        ("pool.requird_cpus set pool", "did you mean pool.required_cpus?"),
        ("memory.usage_in_bytes set pod", "cannot be written"),
        ("cpuset.cpus below pod", "'below' is not a role"),
        ("cpuset.cpus at_most pods", "'pods' is not a level"),
        ("cpu.shares set qos-class", "belongs to the kubelet"),
        ("cpu.idle set container", "belongs to the kubelet"),
        ("cpuset.cpus add pod", "has no amount"),
        ("oom_score_adj set pod", "only some cgroups' processes have it"),
        ("oom_score_adj at_most container", "can only be set"),
    ],
)
def test_what_is_no_rule(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_rule(text)


@pytest.mark.parametrize(
    ("field", "role", "level", "reason"),
    [
        (QUOTA, Role.AT_MOST, ClaimLevel.QOS_CLASS, ""),
        ("cpuset.cpus", Role.AT_MOST, ClaimLevel.CONTAINER, ""),
        (QUOTA, Role.AT_MOST, ClaimLevel.POD, f"this owner may not claim {QUOTA} of a pod"),
        (QUOTA, Role.SET, ClaimLevel.QOS_CLASS, f"this owner may not claim {QUOTA} in the role set"),
        ("memory.min", Role.SET, ClaimLevel.POD, "this owner may not claim memory.min"),
        ("x", Role.SET, ClaimLevel.POD, "this owner may not claim x, which is not a known cgroup parameter"),
    ],
)
def test_what_the_suppression_may_claim(field: str, role: Role, level: ClaimLevel, reason: str) -> None:
    rules = [parse_rule(text) for text in BUILT_IN["cpu-suppress"].allow]
    assert refusal(rules, field, role, level) == reason


@pytest.mark.parametrize(
    ("field", "role", "value", "claimed"),
    [
        (QUOTA, Role.AT_MOST, "20000", 20_000),
        (QUOTA, Role.ADD, "0", 0),
        (QUOTA, Role.SET, "-1", -1),
        (QUOTA, Role.SET, None, CLEAR),
        (QUOTA, Role.SCALE, "1.25", 1.25),
        ("cpuset.cpus", Role.AT_MOST, "0-3,8", "0-3,8"),
        ("cpuset.cpus", Role.SET, "", ""),
    ],
)
def test_values(field: str, role: Role, value: str | None, claimed: object) -> None:
    claim = claim_of(OWNER, field, role, value, None, "why")
    assert claim[:5] == (Claimant("mine", ClaimantKind.PLUGIN), role, claimed, 70, "why")


def test_a_ceiling_and_a_reason() -> None:
    claim = claim_of(OWNER, QUOTA, Role.ADD, "5", 100, "two\nlines")
    assert (claim.ceiling, claim.reason) == (100, "two lines")


@pytest.mark.parametrize(
    ("field", "role", "value", "ceiling", "reason", "problem"),
    [
        (QUOTA, Role.AT_MOST, None, None, "", "a value is missing"),
        (QUOTA, Role.AT_MOST, "-1", None, "", "bounds nothing"),
        (QUOTA, Role.AT_MOST, "1", None, "", "not in"),
        (QUOTA, Role.AT_MOST, "1_000", None, "", "not a whole number"),
        (QUOTA, Role.AT_MOST, " 2000", None, "", "not a whole number"),
        (QUOTA, Role.AT_MOST, "9" * 30, None, "", "not a whole number"),
        (QUOTA, Role.ADD, "-5", None, "", "not in 0 to"),
        (QUOTA, Role.ADD, "5", -1, "", "ceiling"),
        (QUOTA, Role.SET, "50000", 5, "", "only an add has a ceiling"),
        (QUOTA, Role.SCALE, "nan", None, "", "not a finite number"),
        (QUOTA, Role.SCALE, "0.5", None, "", "not a finite number"),
        (QUOTA, Role.SCALE, "x", None, "", "not a number"),
        ("cpuset.cpus", Role.AT_MOST, "", None, "", "bounds nothing"),
        ("cpuset.cpus", Role.AT_MOST, "3-1", None, "", "3-1"),
        ("cpuset.cpus", Role.AT_MOST, "0," * 3000, None, "", "characters"),
        (QUOTA, Role.AT_MOST, "20000", None, "x" * 257, "the reason has more than 256 bytes"),
    ],
)
def test_what_is_no_value(
    field: str, role: Role, value: str | None, ceiling: int | None, reason: str, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        claim_of(OWNER, field, role, value, ceiling, reason)
