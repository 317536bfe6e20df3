"""CPU suppress. Cases Vnnn are those of Koordinator's cpu_suppress_test.go (CONTRIBUTING.md)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.qosmanager.plugin import (
    BE_CLASS,
    CPUS,
    QUOTA,
    Claim,
    Decision,
    PluginContext,
    Role,
    Target,
)
from runtimeproxy.qosmanager.plugins.cpu_suppress import (
    CpuSuppress,
    SuppressState,
    Used,
    be_cpus,
    be_millicores,
    next_cpu_count,
    next_quota_us,
    select_cpus,
    spread_cpus,
)
from runtimeproxy.qosmanager.snapshot import (
    NODE_CGROUP,
    Cpu,
    HostApplication,
    Level,
    Metric,
    Node,
    Pod,
    Snapshot,
    Strategies,
)
from runtimeproxy.slo.schema import CgroupBase, CpuSuppressPolicy, Threshold
from runtimeproxy.units import format_cpu_list, parse_cpu_list
from tests.qosmanager.snapshots import FixedMetrics, cpus_of, node_of, pod_of, values_of

PLUGIN = CpuSuppress()
USAGE = Metric.CPU_USAGE

LS_8 = Used(8.0, is_be=False)
BE_2 = Used(2.0, is_be=True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param({"node_used_cores": 12.0, "pods": [LS_8, BE_2]}, 4_000, id="V118"),
        pytest.param(
            {"node_used_cores": 11.0, "pods": [LS_8, Used(4.0, is_be=True)]}, 6_000, id="V119-pods-above-node"
        ),
        pytest.param(
            {"node_used_cores": 12.0, "pods": [LS_8, BE_2], "host_applications": [Used(1.0, is_be=True)]},
            5_000,
            id="V121",
        ),
        pytest.param(
            {"node_used_cores": 12.0, "pods": [LS_8, BE_2], "host_applications": [Used(1.0, is_be=False)]},
            4_000,
            id="V121-host-application-of-another-class",
        ),
        pytest.param({"node_used_cores": 12.0, "pods": [LS_8, BE_2], "min_percent": 60}, 12_000, id="V122"),
        pytest.param(
            {"node_used_cores": 12.0, "pods": [LS_8, BE_2], "min_percent": 20}, 4_000, id="floor-not-reached"
        ),
        pytest.param(
            {"node_used_cores": 12.0, "pods": [LS_8, BE_2], "min_percent": 21}, 4_200, id="floor-reached"
        ),
        pytest.param(
            {"node_used_cores": 12.0, "pods": [LS_8, BE_2], "reserved_millicores": 3_000},
            3_000,
            id="reserved",
        ),
        pytest.param(
            {"node_used_cores": 12.0, "pods": [LS_8, BE_2], "reserved_millicores": 2_000},
            4_000,
            id="reserved-is-used",
        ),
        pytest.param({"node_used_cores": 20.0, "pods": [Used(18.0, is_be=False)]}, 0, id="not-negative"),
        pytest.param({"node_used_cores": 0.0, "pods": []}, 14_000, id="idle"),
        pytest.param(
            {"node_used_cores": 1.0009, "pods": [Used(1.0009, is_be=False)]}, 13_000, id="whole-millicores"
        ),
        pytest.param({"node_used_cores": 0.0, "pods": [], "threshold_percent": 0}, 0, id="threshold-0"),
    ],
)
def test_amount(arguments: Mapping[str, Any], expected: int) -> None:
    given_: dict[str, Any] = {"capacity_millicores": 20_000, "threshold_percent": 70, "min_percent": None}
    assert be_millicores(**{**given_, **arguments}) == expected


@pytest.mark.parametrize(
    ("target", "current_us", "expected_us"),
    [
        pytest.param(20_000, 1_000_000, 1_800_000, id="V124"),
        pytest.param(20_000, 1_900_000, 2_000_000, id="V125"),
        pytest.param(20_000, 2_400_000, 2_000_000, id="falls-at-once"),
        pytest.param(20_000, 1_980_000, 1_980_000, id="V127"),
        pytest.param(20_000, 1_920_001, 1_920_001, id="V127-just-below"),
        pytest.param(20_000, 1_920_000, 2_000_000, id="V127-just-not"),
        pytest.param(20_000, 2_079_999, 2_079_999, id="V127-above"),
        pytest.param(1, 80_000, 2_000, id="V128"),
        pytest.param(1, 30_000, 2_000, id="V128-in-the-deadband"),
        pytest.param(0, 80_000, 2_000, id="nothing-left"),
        pytest.param(20_000, -1, 2_000_000, id="first"),
        pytest.param(300, -1, 30_000, id="first-and-small"),
        pytest.param(20_000, 1_200_000, 2_000_000, id="whole-step"),
        pytest.param(20_000, 1_199_999, 1_999_999, id="above-a-step"),
    ],
)
def test_quota(target: int, current_us: int, expected_us: int) -> None:
    assert next_quota_us(target, current_us, 80_000) == expected_us


def test_a_floor_does_not_wait_for_steps() -> None:
    assert next_quota_us(48_000, 2_000, 80_000, min_percent=60) == 4_800_000
    assert next_cpu_count(48_000, 2, 80, 80_000, min_percent=60) == 48


@pytest.mark.parametrize(
    ("target", "current", "total", "expected"),
    [
        pytest.param(3_000, 2, 8, 3, id="V136"),
        pytest.param(3_001, 4, 8, 4, id="rounded-up"),
        pytest.param(0, 8, 8, 2, id="floor"),
        pytest.param(2_000, 8, 8, 2, id="floor-exact"),
        pytest.param(8_000, 2, 8, 3, id="step"),
        pytest.param(20_000, 2, 20, 4, id="step-of-20"),
        pytest.param(21_000, 2, 21, 5, id="step-rounded-up"),
        pytest.param(1_000, 16, 16, 2, id="falls-at-once"),
        pytest.param(4_250, 4, 16, 4, id="deadband"),
        pytest.param(4_251, 4, 16, 5, id="above-the-deadband"),
        pytest.param(3_999, 5, 16, 4, id="no-deadband-downwards"),
        pytest.param(5_001, 4, 16, 6, id="deadband-of-one-cpu-only"),
    ],
)
def test_cpu_count(target: int, current: int, total: int, expected: int) -> None:
    assert next_cpu_count(target, current, total) == expected


PAIRS_APART = tuple(
    Cpu(id=cpu, core=cpu % 4, socket=(cpu % 4) // 2, numa_node=(cpu % 4) // 2) for cpu in range(8)
)
"""Threads (0,4) (1,5) on node 0 and (2,6) (3,7) on node 1."""
TWO_SOCKETS = cpus_of(8, per_socket=4)
FOUR_SOCKETS = tuple(Cpu(id=n, core=n // 2, socket=n // 4, numa_node=n // 8) for n in range(16))
SINGLE_THREADS = (*(Cpu(n, max(n - 1, 0), 0, 0) for n in range(4)), *(Cpu(n, n, 1, 1) for n in range(4, 7)))
"""One core with two threads and two with one on node 0; three with one on node 1."""
SHUFFLED = tuple(random.Random(7).sample(FOUR_SOCKETS, 16))


@pytest.mark.parametrize(
    ("cpus", "count", "expected"),
    [
        pytest.param(PAIRS_APART, 3, (0, 4, 2), id="V130"),
        pytest.param(TWO_SOCKETS, 3, (0, 1, 4), id="V131"),
        pytest.param(FOUR_SOCKETS, 5, (0, 1, 4, 5, 8), id="V133-in-order"),
        pytest.param(SHUFFLED, 5, (0, 1, 4, 5, 8), id="V133"),
        pytest.param((), 0, (), id="V134"),
        pytest.param(TWO_SOCKETS, 0, (), id="none"),
        pytest.param(TWO_SOCKETS, 1, (0,), id="one"),
        pytest.param(TWO_SOCKETS, 8, (0, 1, 4, 5, 2, 3, 6, 7), id="all"),
        pytest.param(TWO_SOCKETS, 9, (), id="more-than-there-are"),
        pytest.param((TWO_SOCKETS[0], TWO_SOCKETS[2], TWO_SOCKETS[4]), 3, (0, 4, 2), id="no-whole-core"),
        pytest.param((TWO_SOCKETS[0], *TWO_SOCKETS[4:8]), 3, (4, 5, 0), id="larger-part-first"),
        pytest.param(SINGLE_THREADS, 2, (0, 1), id="whole-core"),
        pytest.param(SINGLE_THREADS, 3, (0, 1, 4), id="the-next-part-after-a-whole-core"),
        pytest.param(SINGLE_THREADS, 4, (0, 1, 2, 4), id="from-the-first-part-after-a-round-without-one"),
        pytest.param(SINGLE_THREADS, 5, (0, 1, 2, 4, 3), id="more-of-the-first-part"),
    ],
)
def test_spread(cpus: tuple[Cpu, ...], count: int, expected: tuple[int, ...]) -> None:
    assert spread_cpus(cpus, count) == expected


def test_cores_of_several_sockets_are_not_one_core() -> None:
    """Cores are counted anew in each socket."""
    cpus = (Cpu(0, 0, 0, 0), Cpu(1, 0, 1, 0))
    assert spread_cpus(cpus, 2) == (0, 1)


@settings(max_examples=40)
@given(st.data())
def test_selection(data: st.DataObject) -> None:
    """So many as wanted, of those that may be had, of both kinds by their share; all if there are fewer."""
    cpus = data.draw(st.lists(st.sampled_from(FOUR_SOCKETS), unique=True))
    count = data.draw(st.integers(0, 18))
    lsr = data.draw(st.frozensets(st.integers(0, 15)))
    chosen = select_cpus(cpus, count, lsr)
    ids = frozenset(cpu.id for cpu in cpus)
    assert chosen <= ids
    assert len(chosen) == min(count, len(ids))
    if chosen:
        assert len(chosen & lsr) == len(chosen) * len(ids & lsr) // len(ids)


LSR = pod_of("lsr", QoSClass.LSR, cpus=frozenset({0, 6}))
LSE = pod_of("lse", QoSClass.LSE, cpus=frozenset({7}))


def suppressed(
    policy: CpuSuppressPolicy,
    *,
    node: Node,
    pods: tuple[Pod, ...] = (),
    used: float = 0.0,
    usage: Mapping[str, float] | None = None,
    state: SuppressState | None = None,
    threshold_percent: int = 70,
    host_applications: tuple[HostApplication, ...] = (),
    **threshold: Any,
) -> Decision[SuppressState]:
    """A decision for a node with this usage in cores, and that of pods by name and others by cgroup."""
    by_name = {pod.name: pod.cgroup for pod in pods}
    values = {(by_name.get(name, name), USAGE): cores for name, cores in (usage or {}).items()}
    snapshot = Snapshot(
        now_s=0.0,
        pods=pods,
        node=node,
        strategies=Strategies(
            threshold=Threshold(
                enable=True,
                cpu_suppress_policy=policy,
                cpu_suppress_threshold_percent=threshold_percent,
                **threshold,
            ),
            host_applications=host_applications,
        ),
        metrics=FixedMetrics({(NODE_CGROUP, USAGE): used, **values}),
    )
    assert PLUGIN.is_enabled(snapshot)
    return PLUGIN.run(snapshot, state or SuppressState())


@pytest.mark.parametrize(
    ("old", "fields", "expected"),
    [
        pytest.param("7,6", {}, "2-4", id="V136"),
        pytest.param("7,6,3,2", {"reserved_cpus": parse_cpu_list("3")}, "0,4-5", id="V137"),
        pytest.param("7,6,3,2", {"reserved_cpus": parse_cpu_list("0-1,5-6")}, "2-4", id="V139"),
        pytest.param(
            "7,6,3,2",
            {"system_cpus": frozenset({1, 2, 3, 4, 5, 6}), "is_system_exclusive": False},
            "2-4",
            id="V140",
        ),
        pytest.param("7,6,3,2", {"system_cpus": frozenset({3})}, "0,4-5", id="exclusive-system-cpus"),
        # Koordinator leaves 7,6,3,2 there, of which none may be used by BE pods any more.
        pytest.param("7,6,3,2", {"reserved_cpus": parse_cpu_list("1-6")}, "0", id="too-few-left"),
        pytest.param("0,2-5", {"reserved_cpus": parse_cpu_list("1-4")}, "0,5-6", id="just-enough"),
        pytest.param("0,2", {"static_cpus": {("uid", "c"): frozenset({2, 3})}}, "0,4-5", id="static-cpus"),
        pytest.param("0,2", {"claimed_cpus": frozenset({2, 3})}, "0,4-5", id="claimed-cpus"),
    ],
)
def test_cpuset(old: str, fields: Mapping[str, Any], expected: str) -> None:
    """3 cores are left on 8 CPUs, of which an LSR pod has 0 and 6, an LSE pod 7."""
    decision = suppressed(
        CpuSuppressPolicy.CPUSET,
        node=node_of(TWO_SOCKETS, **fields),
        pods=(LSR, LSE),
        used=2.6,
        usage={"lsr": 2.6},
        state=SuppressState(cpus=parse_cpu_list(old)),
    )
    assert values_of(decision.claims, CPUS, Role.AT_MOST) == {tuple(BE_CLASS): expected}
    assert not values_of(decision.claims, QUOTA, Role.AT_MOST)


def test_under_the_static_policy_class_and_pods_have_all_cpus_and_containers_fewer() -> None:
    best_effort = pod_of("be", QoSClass.BE)
    unlabelled = pod_of("plain", QoSClass.NONE, kube_qos=KubeQoSClass.BEST_EFFORT)
    decision = suppressed(
        CpuSuppressPolicy.CPUSET,
        node=node_of(16, cpu_manager_policy="static"),
        pods=(best_effort, unlabelled, pod_of("ls")),
        used=7.2,
        usage={"ls": 7.2},
    )
    assert values_of(decision.claims, CPUS, Role.AT_MOST) == {
        tuple(BE_CLASS): "0-15",
        (Level.POD, "be"): "0-15",
        (Level.POD, "plain"): "0-15",
        (Level.CONTAINER, "c-be"): "0-3",
        (Level.CONTAINER, "c-plain"): "0-3",
    }


@pytest.mark.parametrize(
    ("usage", "used", "expected"),
    [
        pytest.param({"ls": 8.0, "be": 2.0}, 12.0, 120_000, id="V142"),
        # What no pod has counts to the system: usage of the LS pod beyond the node's leaves nothing of it.
        pytest.param({"ls": 8.0}, 8.0, 320_000, id="V143"),
        pytest.param({"/lost": 8.0, "be": 0.0}, 8.0, 320_000, id="V143-not-a-pod"),
        pytest.param({"ls": 16.0, "be": 2.0}, 16.0, 2_000, id="nothing-left"),
    ],
)
def test_cfs_quota(usage: Mapping[str, float], used: float, expected: int) -> None:
    decision = suppressed(
        CpuSuppressPolicy.CFS_QUOTA,
        node=node_of(16),
        pods=(pod_of("be", QoSClass.BE), pod_of("ls")),
        used=used,
        usage=usage,
    )
    assert values_of(decision.claims, QUOTA, Role.AT_MOST) == {tuple(BE_CLASS): expected}
    assert not values_of(decision.claims, CPUS, Role.AT_MOST)


def test_under_the_quota_policy_exclusive_cpus_stay_exclusive() -> None:
    decision = suppressed(CpuSuppressPolicy.CFS_QUOTA, node=node_of(TWO_SOCKETS), pods=(LSR, LSE), used=1.0)
    assert values_of(decision.claims, CPUS, Role.AT_MOST) == {tuple(BE_CLASS): "0-6"}


@pytest.mark.parametrize(
    ("qos", "base", "expected"),
    [
        pytest.param(QoSClass.BE, CgroupBase.KUBEPODS_BEST_EFFORT, 500_000, id="V121"),
        pytest.param(QoSClass.BE, CgroupBase.CGROUP_ROOT, 400_000, id="elsewhere"),
        pytest.param(QoSClass.LS, CgroupBase.KUBEPODS_BEST_EFFORT, 400_000, id="LS"),
    ],
)
def test_host_applications(qos: QoSClass, base: CgroupBase, expected: int) -> None:
    decision = suppressed(
        CpuSuppressPolicy.CFS_QUOTA,
        node=node_of(20),
        pods=(pod_of("be", QoSClass.BE), pod_of("ls")),
        used=12.0,
        usage={"ls": 8.0, "be": 2.0, "/app": 1.0},
        host_applications=(
            HostApplication("app", qos, cgroup="/app", base=base),
            HostApplication("gone", cgroup="/gone"),
        ),
    )
    assert values_of(decision.claims, QUOTA, Role.AT_MOST) == {tuple(BE_CLASS): expected}


def test_reserved() -> None:
    """The system uses one core; three are reserved for it."""
    decision = suppressed(
        CpuSuppressPolicy.CFS_QUOTA,
        node=node_of(16, reserved={"cpu": 3_000}),
        pods=(pod_of("be", QoSClass.BE), pod_of("ls")),
        used=9.2,
        usage={"ls": 7.2, "be": 1.0},
    )
    assert values_of(decision.claims, QUOTA, Role.AT_MOST) == {tuple(BE_CLASS): 100_000}


def quota_decision(**arguments: Any) -> Decision[SuppressState]:
    fields: dict[str, Any] = {
        "node": node_of(16),
        "pods": (pod_of("be", QoSClass.BE), pod_of("ls")),
        "used": 12.0,
        "usage": {"ls": 8.0, "be": 2.0},
    }
    return suppressed(CpuSuppressPolicy.CFS_QUOTA, **{**fields, **arguments})


def test_the_other_policy_takes_its_place_at_once() -> None:
    first = quota_decision()
    second = suppressed(
        CpuSuppressPolicy.CPUSET,
        node=node_of(16),
        pods=(pod_of("be", QoSClass.BE), pod_of("ls")),
        used=8.0,
        usage={"ls": 8.0},
        state=first.state,
    )
    assert values_of(second.claims, CPUS, Role.AT_MOST) == {tuple(BE_CLASS): "0-3"}
    assert not values_of(second.claims, QUOTA, Role.AT_MOST)
    third = quota_decision(state=second.state)
    assert [claim.field for claim in third.claims] == [QUOTA]


def snapshot_without(**fields: Any) -> Snapshot:
    strategies = Strategies(threshold=Threshold(enable=True))
    metrics = FixedMetrics({(NODE_CGROUP, USAGE): 1.0})
    given_: dict[str, Any] = {
        "now_s": 0.0,
        "pods": (LSR, LSE),
        "node": node_of(8),
        "strategies": strategies,
        "metrics": metrics,
    }
    return Snapshot(**{**given_, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"metrics": FixedMetrics()}, id="no-samples"),
        pytest.param({"pods": ()}, id="no-pods"),
        pytest.param({"node": Node()}, id="no-node"),
        pytest.param({"node": Node(capacity={"cpu": 8_000})}, id="no-cpus"),
    ],
)
def test_bounds_stay_while_something_is_not_known(fields: Mapping[str, Any]) -> None:
    state = SuppressState(quota_us=50_000, cpus=frozenset({1, 2}))
    decision = PLUGIN.run(snapshot_without(**fields), state)
    assert decision.state == state
    assert values_of(decision.claims, QUOTA, Role.AT_MOST) == {tuple(BE_CLASS): 50_000}
    assert values_of(decision.claims, CPUS, Role.AT_MOST) == {tuple(BE_CLASS): "1-2"}


def test_a_cpu_that_became_exclusive_is_taken_without_samples_too() -> None:
    state = SuppressState(cpus=frozenset({6, 7}))
    decision = PLUGIN.run(snapshot_without(metrics=FixedMetrics()), state)
    assert values_of(decision.claims, CPUS, Role.AT_MOST) == {tuple(BE_CLASS): "6"}


def test_no_cpu_left_for_best_effort_pods_is_said() -> None:
    pods = (pod_of("lse", QoSClass.LSE, cpus=frozenset(range(8))),)
    decision = PLUGIN.run(snapshot_without(pods=pods), SuppressState(cpus=frozenset({6, 7})))
    assert not decision.claims
    assert decision.explanation.endswith("no CPU is left for BE pods")


def test_the_strategy_switches_it() -> None:
    assert PLUGIN.is_enabled(snapshot_without())
    assert not PLUGIN.is_enabled(snapshot_without(strategies=Strategies()))


def test_fewer_cpus_than_a_step_or_the_floor_gives_are_all_given() -> None:
    """Koordinator leaves the bound of before, until more CPUs are free."""
    cpus = frozenset({0, 1})
    for min_percent in (None, 90):
        decision = suppressed(
            CpuSuppressPolicy.CPUSET,
            node=node_of(16),
            pods=(pod_of("lse", QoSClass.LSE, cpus=frozenset(range(3, 16))),),
            state=SuppressState(cpus=cpus),
            cpu_suppress_min_percent=min_percent,
        )
        assert values_of(decision.claims, CPUS, Role.AT_MOST) == {tuple(BE_CLASS): "0-2"}


def test_with_a_cpu_manager_nothing_is_suppressed() -> None:
    state = PLUGIN.setup(PluginContext(gates={"BECPUSuppress": True, "BECPUManager": True}))
    decision = PLUGIN.run(snapshot_without(), state)
    assert not decision.claims
    assert decision.state == state


@pytest.mark.parametrize("policy", ["none", "static"])
def test_a_restart_goes_on_from_the_claims_that_count(policy: str) -> None:
    """As if the process had not been away: growth stays within its step."""
    arguments: dict[str, Any] = {
        "node": node_of(16, cpu_manager_policy=policy),
        "pods": (pod_of("be", QoSClass.BE), pod_of("ls")),
    }
    busy = suppressed(CpuSuppressPolicy.CPUSET, used=9.0, usage={"ls": 9.0}, **arguments)
    assert len(busy.state.cpus) == 3
    resumed = PLUGIN.setup(PluginContext(gates={}, held=busy.claims))
    assert resumed == busy.state
    later = suppressed(CpuSuppressPolicy.CPUSET, used=1.0, usage={"ls": 1.0}, state=resumed, **arguments)
    assert len(later.state.cpus) == 5

    quota = quota_decision()
    assert PLUGIN.setup(PluginContext(gates={}, held=quota.claims)) == quota.state


def test_claims_of_other_kinds_are_not_taken_for_bounds() -> None:
    held = [
        Claim(BE_CLASS, QUOTA, Role.SET, 5_000),
        Claim(BE_CLASS, "cpu.shares", Role.AT_MOST, 2),
        Claim(Target(Level.CONTAINER, "c"), CPUS, Role.SET, "1"),
    ]
    assert PLUGIN.setup(PluginContext(gates={}, held=held)) == SuppressState()


loads = st.floats(0, 40, allow_nan=False)
cpu_sets = st.frozensets(st.integers(0, 15))


@settings(max_examples=40)
@given(
    policy=st.sampled_from(CpuSuppressPolicy),
    cpu_manager=st.sampled_from(["", "none", "static"]),
    exclusive=cpu_sets,
    bound=cpu_sets,
    rounds=st.lists(st.tuples(loads, loads, loads), min_size=1, max_size=8),
    min_percent=st.none() | st.integers(0, 100),
)
def test_bounds_hold_at_any_load(
    policy: CpuSuppressPolicy,
    cpu_manager: str,
    exclusive: frozenset[int],
    bound: frozenset[int],
    rounds: list[tuple[float, float, float]],
    min_percent: int | None,
) -> None:
    """BE pods never get an exclusive CPU, keep their floor, and get back a tenth of the node at most."""
    pods = (
        pod_of("be", QoSClass.BE),
        pod_of("ls"),
        pod_of("lse", QoSClass.LSE, cpus=exclusive),
        pod_of("lsr", QoSClass.LSR, cpus=bound - exclusive),
    )
    node = node_of(FOUR_SOCKETS, cpu_manager_policy=cpu_manager)
    allowed = frozenset(cpu.id for cpu in be_cpus(node, pods))
    floor = 16_000 * (min_percent or 0) // 100
    state = SuppressState()
    for used, of_ls, of_be in rounds:
        decision = suppressed(
            policy,
            node=node,
            pods=pods,
            used=used,
            usage={"ls": of_ls, "be": of_be},
            state=state,
            cpu_suppress_min_percent=min_percent,
        )
        for claim in decision.claims:
            assert claim.role is Role.AT_MOST
            if claim.field == CPUS:
                assert parse_cpu_list(str(claim.value)) <= allowed
                assert parse_cpu_list(str(claim.value))
            else:
                assert isinstance(claim.value, int)
                assert claim.value >= max(2_000, floor * 100)
        if policy is CpuSuppressPolicy.CPUSET:
            least = max(2, -(-floor // 1_000))
            assert len(decision.state.cpus) >= min(least, len(allowed))
            if state.cpus:
                assert len(decision.state.cpus) <= max(len(state.cpus) + 2, least)
        elif state.quota_us != -1:
            assert decision.state.quota_us <= max(state.quota_us + 160_000, floor * 100)
        state = decision.state


def test_texts_name_the_numbers() -> None:
    (claim,) = quota_decision().claims
    assert claim.reason == (
        "1200 of 16000 millicores are left for BE pods: the node uses 12.00 cores, other pods and host "
        "applications 8.00, threshold 70 %"
    )
    assert format_cpu_list(SuppressState().cpus) == ""
