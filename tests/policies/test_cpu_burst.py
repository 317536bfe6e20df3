"""CPU burst by the kernel. Cases Vnnn are those of Koordinator's cpu_burst_test.go (CONTRIBUTING.md)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cpu_burst import MAX_BURST_US, CpuBurst, burst_us
from runtimeproxy.cgroups.order import Key
from runtimeproxy.hooks import ContainerView, PodView, Resources, Scale
from runtimeproxy.hooks.algebra import claims_of, resolve
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.decision import Unmet, evaluate, unmet_for, unmet_on
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.ledger.tree import TreeRules, TreeValue, fit
from runtimeproxy.node.snapshot import Feature, Input, Node
from runtimeproxy.qos import QoSClass
from runtimeproxy.slo.names import CPU_BURST
from runtimeproxy.slo.schema import CpuBurstPolicy
from runtimeproxy.slo.schema import CpuBurstStrategy as Strategy
from runtimeproxy.slo.strategies import Strategies

BURST = "cpu.cfs_burst_us"
AUTO = Strategy(policy=CpuBurstPolicy.AUTO)


def node(strategy: Strategy = AUTO) -> Node:
    return Node(strategies=Strategies(cpu_burst=strategy))


def container(quota_us: int | None, pod: PodView | None = None) -> ContainerView:
    return ContainerView(name="main", pod=pod or PodView(), requested=Resources(cpu_quota_us=quota_us))


@pytest.mark.parametrize(
    ("quota_us", "percent", "expected_us"),
    [
        pytest.param(500_000, 1_000, 5_000_000, id="V094-5-cores"),
        pytest.param(300_000, 1_000, 3_000_000, id="V094-3-cores"),
        pytest.param(800_000, 1_000, 8_000_000, id="V094-pod"),
        pytest.param(500_000, 500, 2_500_000, id="V095-5-cores"),
        pytest.param(300_000, 500, 1_500_000, id="V095-3-cores"),
        pytest.param(800_000, 500, 4_000_000, id="V095-pod"),
        pytest.param(None, 1_000, 0, id="V097"),
        pytest.param(-1, 1_000, 0, id="V097-unlimited"),
        pytest.param(0, 1_000, 0, id="zero"),
        pytest.param(10_000, 1, 100, id="small"),
        pytest.param(10_000_000, 10_000, MAX_BURST_US, id="largest"),
    ],
)
def test_burst(quota_us: int | None, percent: int, expected_us: int) -> None:
    strategy = Strategy(policy=CpuBurstPolicy.AUTO, cpu_burst_percent=percent)
    assert burst_us(quota_us, None, strategy) == expected_us


def test_the_limit_counts_and_not_the_length_of_the_period() -> None:
    assert burst_us(5_000, 10_000, AUTO) == burst_us(50_000, 100_000, AUTO) == 500_000


@pytest.mark.parametrize("policy", CpuBurstPolicy)
def test_two_policies_use_the_kernels_burst(policy: CpuBurstPolicy) -> None:
    """Koordinator writes 0 for the others, every second; here they claim nothing."""
    is_on = policy in (CpuBurstPolicy.AUTO, CpuBurstPolicy.CPU_BURST_ONLY)
    change = CpuBurst().container(container(100_000), node(Strategy(policy=policy)))
    assert (change is not None) is is_on


@given(st.lists(st.integers(-1, 2_000_000), min_size=1, max_size=6), st.integers(1, 10_000))
def test_a_pods_burst_is_the_sum_of_its_containers(quotas_us: list[int], percent: int) -> None:
    """The kubelet's sum of limits leaves containers without a limit out, and so does the sum of bursts."""
    strategy = Strategy(policy=CpuBurstPolicy.AUTO, cpu_burst_percent=percent)
    each_us = [burst_us(quota, None, strategy) for quota in quotas_us]
    pod_us = burst_us(sum(quota for quota in quotas_us if quota > 0), None, strategy)
    # Each container's is rounded down.
    assert min(sum(each_us), MAX_BURST_US) <= pod_us <= sum(each_us) + len(each_us) or pod_us == MAX_BURST_US


@given(
    st.lists(st.integers(1_000, 2_000_000), min_size=1, max_size=4),
    st.integers(1, 10_000),
    st.floats(1.0, 5.0),
)
def test_a_burst_is_never_above_the_quota(quotas_us: list[int], percent: int, ratio: float) -> None:
    """#2326, #2778: version 2 refuses a burst above the quota, and so koordlet's burst of ten times the limit
    (the default), each time. Here the tree bounds it by the quota that all policies lead to."""
    strategy = Strategy(policy=CpuBurstPolicy.AUTO, cpu_burst_percent=percent)
    levels = {("pod",): sum(quotas_us)} | {("pod", f"c{n}"): each for n, each in enumerate(quotas_us)}
    values = {}
    for path, quota_us in levels.items():
        divided = resolve(
            "cpu.cfs_quota_us", quota_us, claims_of(Claimant("cpu-normalization"), Scale(ratio))
        ).value
        assert isinstance(divided, int)
        values[Key(path, "cpu.cfs_quota_us")] = TreeValue(divided)
        values[Key(path, BURST)] = TreeValue(burst_us(quota_us, None, strategy))
    fitted = fit(values, TreeRules()).values
    for path in levels:
        assert int(fitted[Key(path, BURST)]) <= int(fitted[Key(path, "cpu.cfs_quota_us")])


def test_containers_and_pods_get_it() -> None:
    """V094."""
    pod = PodView(qos=QoSClass.LS, resources=Resources(cpu_quota_us=800_000))
    change = CpuBurst().pod(pod, node())
    assert change is not None
    assert change.cgroup == {BURST: 8_000_000}
    changed = CpuBurst().container(container(500_000, pod), node())
    assert changed is not None
    assert changed.cgroup == {BURST: 5_000_000}


def test_nothing_is_asked_for_without_a_limit_or_a_strategy() -> None:
    assert CpuBurst().pod(PodView(), node()) is None
    assert CpuBurst().container(container(None), node()) is None
    assert CpuBurst().container(container(100_000), node(Strategy())) is None


@pytest.mark.parametrize("qos", QoSClass)
def test_pods_with_cpus_of_their_own_and_best_effort_pods_get_none(qos: QoSClass) -> None:
    selected = CpuBurst.selector.matches(PodView(qos=qos))
    assert selected is (qos in (QoSClass.LS, QoSClass.SYSTEM, QoSClass.NONE))


ANNOTATED = PodView(
    annotations={CPU_BURST: '{"policy": "cpuBurstOnly", "cpuBurstPercent": 500}'},
    resources=Resources(cpu_quota_us=100_000),
)


@pytest.mark.parametrize(
    ("of_node", "expected"),
    [
        pytest.param((CpuBurstPolicy.AUTO, 1_000, 300, 600), (500, 300, 600), id="V098"),
        pytest.param((CpuBurstPolicy.NONE, 1_000, 300, -1), (500, 300, -1), id="V100"),
    ],
)
def test_of_an_annotation_the_fields_that_it_has_replace_the_nodes(
    of_node: tuple[CpuBurstPolicy, int, int, int], expected: tuple[int, int, int]
) -> None:
    on = node(_strategy(*of_node))
    assert on.strategy_for(ANNOTATED).cpu_burst == _strategy(CpuBurstPolicy.CPU_BURST_ONLY, *expected)
    change = CpuBurst().pod(ANNOTATED, on)
    assert change is not None
    assert change.cgroup == {BURST: 500_000}


def _strategy(policy: CpuBurstPolicy, burst: int, quota_burst: int, period_s: int) -> Strategy:
    return Strategy(
        policy=policy,
        cpu_burst_percent=burst,
        cfs_quota_burst_percent=quota_burst,
        cfs_quota_burst_period_seconds=period_s,
    )


def test_an_unreadable_annotation_is_reported_and_the_nodes_strategy_counts() -> None:
    broken = PodView(annotations={CPU_BURST: "{"}, resources=Resources(cpu_quota_us=100_000))
    change = CpuBurst().pod(broken, node())
    assert change is not None
    assert change.cgroup == {BURST: 1_000_000}
    assert CPU_BURST in change.problems[0]


def test_without_strategies_it_is_for_annotated_pods_only() -> None:
    selector = CpuBurst.selector_without[Input.STRATEGIES]
    assert not selector.matches(PodView())
    assert selector.matches(ANNOTATED)
    assert not selector.matches(replace(ANNOTATED, qos=QoSClass.BE))


def test_what_it_needs() -> None:
    """Koordinator's gate CPUBurst is on; the strategy's policy is `none`."""
    assert CpuBurst.is_default
    assert CpuBurst.features == {Feature.BURST}
    assert CpuBurst.inputs == {Input.STRATEGIES}


def test_a_kernel_without_bursts_is_named_in_the_status() -> None:
    policy, view = bind(CpuBurst()), container(100_000)
    without = replace(node(), features=frozenset({Feature.BVT}))
    assert unmet_for(policy, view, without) == Unmet(features=("burst",))
    assert evaluate([policy], view, without).audit == ()
    assert unmet_on(policy, without) == Unmet(features=("burst",))
    assert unmet_on(policy, replace(node(), features=frozenset({Feature.BURST}))) is None
