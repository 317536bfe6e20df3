"""What several policies want of one value: sets, scales, adds and bounds, in any order."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.hooks import (
    CLEAR,
    Add,
    AtMost,
    ContainerChange,
    ContainerView,
    Hook,
    Mode,
    PodChange,
    PodView,
    ResourceChange,
    Resources,
    Scale,
)
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.hooks.chain import Chain
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.decision import Decision, evaluate
from runtimeproxy.hooks.fields import Field
from runtimeproxy.hooks.loaded import LoadedPolicy
from runtimeproxy.hooks.policy import Policy
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.hooks.workers import Workers
from runtimeproxy.node.snapshot import Node
from runtimeproxy.units import MAX_CPU_QUOTA_US, MAX_CPU_SHARES, MAX_INT64
from tests.hooks.asking import decide, shares_of
from tests.hooks.policy_classes import scripted, shares

QUOTA = Field("resources", "cpu_quota_us")
REQUESTED = ContainerView(
    requested=Resources(cpu_quota_us=50_000, cpuset_cpus="0-3"),
    current=Resources(cpu_quota_us=50_000, cpuset_cpus="0-3"),
)


def wanting(
    name: str, priority: int = 50, mode: Literal[Mode.ENFORCE, Mode.DRY_RUN] = Mode.ENFORCE, **values: Any
) -> LoadedPolicy:
    change = ContainerChange(resources=ResourceChange(**values), reason=f"{name}'s")
    return scripted(name, lambda _: change, priority=priority, mode=mode)


def decided(*policies: LoadedPolicy, view: ContainerView = REQUESTED, **options: Any) -> Decision:
    ordered = sorted(policies, key=lambda policy: (policy.priority, policy.name))
    return evaluate(ordered, view, Node(), hook=Hook.PRE_CREATE_CONTAINER, **options)


def resources(decision: Decision) -> ResourceChange | None:
    change = decision.change
    assert isinstance(change, ContainerChange | None)
    return None if change is None else change.resources


def audited(decision: Decision) -> list[tuple[str, AuditKind, str, str]]:
    return [(entry.policy, entry.kind, entry.old, entry.new) for entry in decision.audit]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([Scale(1.25)], 40_000, id="scale-of-the-request"),
        pytest.param([20_000, Scale(1.25)], 16_000, id="scale-of-a-set"),
        pytest.param([Scale(1.25, 30_000)], 24_000, id="scale-of-its-own-set"),
        pytest.param([Scale(1.25), 20_000], 16_000, id="a-set-of-higher-priority"),
        pytest.param([Add(10_000), Add(5_000)], 65_000, id="adds"),
        pytest.param([Add(30_000, at_most=60_000)], 60_000, id="ceiling"),
        pytest.param([AtMost(20_000), AtMost(30_000)], 20_000, id="bounds"),
        pytest.param([20_000, Scale(1.25), Add(4_000), AtMost(18_000)], 18_000, id="all"),
        pytest.param([-1, AtMost(18_000)], 18_000, id="a-bound-makes-unlimited-finite"),
        pytest.param([-1, Scale(1.25), Add(4_000)], -1, id="nothing-of-unlimited"),
    ],
)
def test_what_policies_want_of_a_quota(values: list[Any], expected: int) -> None:
    policies = [wanting(f"p{number}", cpu_quota_us=value) for number, value in enumerate(values)]
    decision = decided(*policies)
    assert resources(decision) == ResourceChange(cpu_quota_us=expected)
    merged = decision.merged.fields[QUOTA]
    assert merged.value == expected
    assert {claim.owner.name for claim in merged.claims} == {policy.name for policy in policies}
    assert decision.owners == {"resources.cpu_quota_us": merged.owners}


@pytest.mark.parametrize(
    ("field", "values", "expected"),
    [
        ("cpu_quota_us", [Add(10**30)], MAX_CPU_QUOTA_US),
        ("cpu_quota_us", [20_000, Add(MAX_INT64), Add(MAX_INT64)], MAX_CPU_QUOTA_US),
        ("cpu_shares", [1024, Add(300_000)], MAX_CPU_SHARES),
        ("memory_limit_bytes", [1 << 30, Add(MAX_INT64)], MAX_INT64),
    ],
)
def test_what_amounts_lead_to_is_in_range(field: str, values: list[Any], expected: int) -> None:
    """A message could not hold it, and no policy's change would count."""
    decision = decided(*(wanting(f"p{number}", **{field: value}) for number, value in enumerate(values)))
    wanted: dict[str, Any] = {field: expected}
    assert resources(decision) == ResourceChange(**wanted)


def test_claims_keep_all_that_the_ledger_needs() -> None:
    decision = decided(
        wanting("a", 10, cpu_quota_us=Scale(1.25, 20_000)), wanting("b", cpu_quota_us=Add(1, 5))
    )
    assert decision.merged.fields[QUOTA].claims == (
        Claim(Claimant("a"), Role.SET, 20_000, 10, "a's"),
        Claim(Claimant("a"), Role.SCALE, 1.25, 10, "a's"),
        Claim(Claimant("b"), Role.ADD, 1, 50, "b's", 5),
    )


def test_a_scale_of_what_is_not_limited_is_void_and_the_audit_says_so() -> None:
    decision = decided(wanting("norm", cpu_quota_us=Scale(1.2)), view=ContainerView())
    assert (decision.change, decision.owners) == (None, {})
    assert [(entry.policy, entry.kind, entry.reason) for entry in decision.audit] == [
        ("norm", AuditKind.VOID, "scale 1.2: the value is unlimited")
    ]


def test_each_step_is_audited_with_its_owner() -> None:
    decision = decided(
        wanting("batch", 10, cpu_quota_us=20_000),
        wanting("norm", 20, cpu_quota_us=Scale(1.25)),
        wanting("burst", 30, cpu_quota_us=Add(4_000)),
        wanting("other", 40, cpu_quota_us=10_000),
    )
    assert audited(decision) == [
        ("batch", AuditKind.CHANGED, "50000", "20000"),
        ("norm", AuditKind.CHANGED, "20000", "16000"),
        ("burst", AuditKind.CHANGED, "16000", "20000"),
        ("other", AuditKind.CONFLICT, "20000", "10000"),
        ("other", AuditKind.CHANGED, "20000", "10000"),
    ]
    assert resources(decision) == ResourceChange(cpu_quota_us=12_000)


def test_a_scale_on_an_update_is_of_the_request_not_of_what_the_runtime_has() -> None:
    running = ContainerView(requested=Resources(cpu_quota_us=50_000), current=Resources(cpu_quota_us=40_000))
    decision = decided(wanting("norm", cpu_quota_us=Scale(1.25)), view=running)
    assert decision.change is None
    assert decision.owners == {"resources.cpu_quota_us": (Claimant("norm"),)}


@pytest.mark.parametrize(
    ("parent", "expected"), [("kubepods-podu1.slice", 84_000), ("/kubepods/podu1", 83_334)]
)
def test_a_quota_is_as_systemd_rounds_it_where_the_container_is_a_unit(parent: str, expected: int) -> None:
    view = ContainerView(
        pod=PodView(cgroup_parent=parent),
        requested=Resources(cpu_quota_us=100_000),
        current=Resources(cpu_quota_us=100_000),
    )
    policy = wanting("norm", cpu_quota_us=Scale(1.2))
    decision = decided(policy, wanting("other", cpu_shares=7), view=view)
    assert resources(decision) == ResourceChange(cpu_quota_us=expected, cpu_shares=7)
    assert ("norm", AuditKind.CHANGED, "100000", str(expected)) in audited(decision)
    updated = replace(view, current=Resources(cpu_quota_us=expected))
    again = decided(policy, view=updated)
    assert (again.change, again.audit) == (None, ())
    assert again.owners == {"resources.cpu_quota_us": (Claimant("norm"),)}


def test_a_bound_on_a_list_of_cpus() -> None:
    decision = decided(wanting("suppress", cpuset_cpus=AtMost("2-5")))
    assert resources(decision) == ResourceChange(cpuset_cpus="2-3")


def test_lists_that_share_nothing_are_reported() -> None:
    decision = decided(wanting("a", cpuset_cpus="0-1"), wanting("b", cpuset_cpus=AtMost("4-5")))
    assert resources(decision) == ResourceChange(cpuset_cpus="4-5")
    assert any("shares no member" in entry.reason for entry in decision.audit)


def test_what_a_claim_takes_away() -> None:
    decision = decided(wanting("a", cpu_quota_us=CLEAR), wanting("b", cpu_quota_us=Scale(1.25)))
    assert resources(decision) == ResourceChange(cpu_quota_us=CLEAR)


@pytest.mark.parametrize(
    "value",
    [
        *(Scale(0), Scale(float("nan")), Scale(2.0, 0), Add(-1), AtMost("x"), AtMost(0)),
        *(Add("x"), Scale("2"), Scale(2.0, AtMost(5_000)), AtMost(AtMost(5_000))),  # type: ignore[arg-type]
    ],
)
def test_numbers_that_mean_nothing_are_left_out(value: Any) -> None:
    decision = decided(wanting("a", cpu_quota_us=value, cpu_shares=7))
    assert resources(decision) == ResourceChange(cpu_shares=7)
    (lost,) = (entry for entry in decision.audit if entry.kind is AuditKind.LEFT_OUT)
    assert lost.field == "resources.cpu_quota_us"


@pytest.mark.parametrize("value", [Scale(2.0), Add(1), AtMost(5)])
@pytest.mark.parametrize("name", ["cpu_period_us", "oom_score_adj"])
def test_fields_that_take_a_value_only(name: str, value: Any) -> None:
    decision = decided(wanting("a", **{name: value}))
    assert decision.change is None
    assert [entry.kind for entry in decision.audit] == [AuditKind.LEFT_OUT]


def test_the_limits_of_two_policies_suit_each_other() -> None:
    """The runtime would fail the call if the limit of memory and swap were below that of memory."""
    decision = decided(
        wanting("a", memory_limit_bytes=1 << 30), wanting("b", memory_swap_limit_bytes=1 << 20)
    )
    assert resources(decision) == ResourceChange(memory_limit_bytes=1 << 30)
    assert [(entry.policy, entry.kind) for entry in decision.audit][-1] == ("b", AuditKind.LEFT_OUT)


class Pods(Policy):
    name = "pods"

    def __init__(self, change: PodChange) -> None:
        self.change = change

    def pod(self, pod: PodView, node: Node) -> PodChange:
        return self.change


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(CLEAR, {"cpu.cfs_quota_us": -1}, id="neutral"),
        pytest.param(Scale(1.25, 20_000), {"cpu.cfs_quota_us": 16_000}, id="its-own-set"),
        pytest.param(Scale(1.25), {}, id="of-a-file-that-is-not-known"),
        pytest.param(AtMost(5_000), {}, id="bound-of-a-file-that-is-not-known"),
    ],
)
def test_values_of_a_pods_cgroup(value: Any, expected: dict[str, int]) -> None:
    from runtimeproxy.hooks.loaded import bind

    policy = bind(Pods(PodChange(cgroup={"cpu.cfs_quota_us": value})))
    decision = evaluate([policy], PodView(), Node(), hook=Hook.PRE_RUN_POD_SANDBOX)
    change = decision.change
    assert isinstance(change, PodChange | None)
    assert (dict(change.cgroup) if change is not None else {}) == expected
    # The ledger knows the file, and resolves the claims with what is in it.
    assert decision.merged.fields[Field("cgroup", "cpu.cfs_quota_us")].claims


def test_a_dry_run_shows_the_whole_and_changes_nothing() -> None:
    decision = decided(
        wanting("a", cpu_quota_us=20_000),
        wanting("b", cpu_quota_us=Scale(1.25), mode=Mode.DRY_RUN),
        wanting("c", cpu_quota_us=Add(1_000), mode=Mode.DRY_RUN),
    )
    assert resources(decision) == ResourceChange(cpu_quota_us=20_000)
    assert audited(decision)[1:] == [
        ("b", AuditKind.WOULD_CHANGE, "20000", "16000"),
        ("c", AuditKind.WOULD_CHANGE, "16000", "17000"),
    ]


VALUES = st.sampled_from(
    [
        None,
        -1,
        10_000,
        20_000,
        CLEAR,
        Scale(1.25),
        Scale(2.0, 30_000),
        Add(1_000),
        Add(9_000, 20_000),
        AtMost(15_000),
    ]
)


@given(
    st.lists(st.tuples(VALUES, st.integers(0, 3)), max_size=5),
    st.sampled_from(ConflictRule),
    st.permutations(range(5)),
)
def test_the_order_in_which_policies_are_given_to_the_chain_does_not_count(
    wanted: list[tuple[Any, int]], rule: ConflictRule, order: list[int]
) -> None:
    policies = [
        wanting(f"p{number}", priority, cpu_quota_us=value) for number, (value, priority) in enumerate(wanted)
    ]
    shuffled = [policies[number] for number in order if number < len(policies)]
    found = [
        evaluate(Chain(each, Workers()).policies, REQUESTED, Node(), rule=rule)
        for each in (policies, shuffled)
    ]
    assert found[0].change == found[1].change
    assert found[0].owners == found[1].owners
    assert audited(found[0]) == audited(found[1])


async def test_priority_decides_whatever_the_order(workers: Workers) -> None:
    low, high = scripted("z", shares(5), priority=10), scripted("a", shares(7), priority=20)
    for policies in itertools.permutations([low, high]):
        assert shares_of(await decide(Chain(policies, workers))) == 7
        earlier = Chain(policies, workers, rule=ConflictRule.EARLIER)
        assert shares_of(await decide(earlier)) == 5
