"""What the node and its NUMA nodes have, and have left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtimeproxy.qos import QoSClass
from runtimeproxy.qosmanager.reporter.amounts import (
    CPU_STEP,
    NOTHING_REPORTED,
    Amount,
    Place,
    apportioned,
    node_amounts,
    stepped_down,
    stepped_up,
)
from runtimeproxy.qosmanager.snapshot import (
    NODE_CGROUP,
    Cpu,
    Metric,
    PoolAdvice,
    PoolMember,
    Snapshot,
)
from tests.qosmanager.reporter.nodes import (
    GIB,
    HEADROOM,
    USAGE,
    pod,
    pools,
    snapshot,
    with_web,
)

WEB_CGROUP = "/kubepods/burstable/podweb"


def advised(headroom: PoolAdvice, **fields: Any) -> Snapshot:
    """The node with this headroom."""
    return snapshot(cpu_pools=pools(advice={"reclaim": headroom}), **fields)


@pytest.mark.parametrize(
    ("amount", "weights", "parts"),
    [
        (10, [1, 1], [5, 5]),
        (10, [1, 1, 1], [4, 3, 3]),
        (5, [3, 2], [3, 2]),
        (4, [3, 2], [2, 2]),
        (1, [0, 7, 7], [0, 1, 0]),
        (7, [0, 0], [4, 3]),
        (0, [0], [0]),
        (3, [], []),
        (10**15 + 1, [10**15, 10**15 + 2], [5 * 10**14, 5 * 10**14 + 1]),
    ],
)
def test_an_amount_in_proportion(amount: int, weights: list[int], parts: list[int]) -> None:
    assert apportioned(amount, weights) == parts


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=8), st.data())
def test_parts_have_the_sum_and_are_within_their_weights(weights: list[int], data: st.DataObject) -> None:
    amount = data.draw(st.integers(0, sum(weights)))

    parts = apportioned(amount, weights)

    assert sum(parts) == amount
    assert all(0 <= part <= weight for part, weight in zip(parts, weights, strict=True))


@pytest.mark.parametrize(
    ("value", "before", "up", "down"),
    [
        (0, None, 0, 0),
        (250, None, 300, 200),
        (300, None, 300, 300),
        (250, 300, 300, 200),
        (250, 400, 400, 200),
        (250, 500, 300, 200),
        (250, 200, 300, 200),
        (250, 100, 300, 100),
        (250, 0, 300, 200),
    ],
)
def test_values_change_in_steps(value: float, before: int | None, up: int, down: int) -> None:
    assert stepped_up(value, 100, before) == up
    assert stepped_down(value, 100, before) == down


def test_cpu_of_the_node_is_told_apart() -> None:
    cpu = node_amounts(snapshot())[0].node_cpu

    # Reserved are CPUs 0 and 2, 1 and 9 are a pod's alone; web and cache use 3, the system what is reserved.
    assert cpu == Amount(16_000, 2_000, 2_000, 3_000, 6_000, 2_000)
    assert (cpu.capacity, cpu.idle, cpu.free) == (12_000, 9_000, 4_000)


def test_memory_of_the_node_is_told_apart() -> None:
    memory = node_amounts(snapshot())[0].node_memory

    # Web and cache use 5 GiB, the job 2, the system 3, of which 2 are reserved.
    assert memory == Amount(32 * GIB, 2 * GIB, 0, 6 * GIB, 12 * GIB, GIB)
    assert (memory.capacity, memory.idle, memory.free) == (30 * GIB, 24 * GIB, 11 * GIB)


def test_numbers_of_each_numa_node() -> None:
    """Complaint of Katalyst's users, issue 217: reclaimed resources for each NUMA node."""
    amounts = node_amounts(snapshot())[0]

    assert [each.total for each in amounts.cpu.values()] == [4_000] * 4
    assert [each.reserved for each in amounts.cpu.values()] == [1_000, 1_000, 0, 0]
    assert [each.dedicated for each in amounts.cpu.values()] == [2_000, 0, 0, 0]
    # Cache is on NUMA node 1, web on 2.
    assert [each.used for each in amounts.cpu.values()] == [0, 1_000, 2_000, 0]
    assert [each.idle for each in amounts.cpu.values()] == [1_000, 2_000, 2_000, 4_000]
    assert [each.allocatable for each in amounts.cpu.values()] == [667, 1_333, 1_333, 2_667]
    # The job runs on 1 CPU of NUMA node 0, 3 of node 1, and 4 of node 3.
    assert [each.requested for each in amounts.cpu.values()] == [250, 750, 0, 1_000]
    assert sum(each.allocatable or 0 for each in amounts.memory.values()) == 12 * GIB


def test_an_advisors_headroom_of_numa_nodes() -> None:
    advice = {
        "reclaim": HEADROOM,
        "reclaim-NUMA1": PoolAdvice(headroom_millicpu=500, headroom_bytes=GIB),
        "reclaim-NUMA3": PoolAdvice(headroom_millicpu=9_000, headroom_bytes=20 * GIB),
    }
    amounts = node_amounts(snapshot(cpu_pools=pools(advice=advice)))[0]

    # Bounds are 1, 0.5, 2 and 4 CPUs: 7.5 in all, of which the node has 6.
    assert [each.allocatable for each in amounts.cpu.values()] == [800, 400, 1_600, 3_200]


def test_capacity_stays_while_allocatable_follows_the_headroom() -> None:
    """Complaint of Katalyst's users, issue 609: both were always equal, and shrank together."""
    found = [
        node_amounts(advised(HEADROOM._replace(headroom_millicpu=headroom)))[0]
        for headroom in (8_000, 4_000, 0)
    ]

    assert [each.node_cpu.allocatable for each in found] == [8_000, 4_000, 0]
    assert [each.node_cpu.capacity for each in found] == [12_000, 12_000, 12_000]
    assert [each.node_cpu.free for each in found] == [6_000, 2_000, 0]


def test_headroom_above_what_is_idle_is_not_reported() -> None:
    usage = {**USAGE, (NODE_CGROUP, Metric.CPU_USAGE): 16.0, (WEB_CGROUP, Metric.CPU_USAGE): 4.0}
    amounts = node_amounts(advised(HEADROOM._replace(headroom_millicpu=99_000), usage=usage))[0]

    # The system uses 7 CPUs, 5 more than it has; web and cache use 5.
    assert (amounts.node_cpu.used, amounts.node_cpu.allocatable) == (10_100, 1_900)


@pytest.mark.parametrize(
    ("change", "problem", "allocatable"),
    [
        pytest.param({"cpu_pools": None}, "katalyst-pools is off", None, id="no-pools"),
        pytest.param({"cpu_pools": pools(advice={})}, "no advisor", None, id="no-advisor"),
        pytest.param(
            {"cpu_pools": pools(advice={"reclaim": HEADROOM._replace(headroom_bytes=None)})},
            "the advisor does not say what the headroom of memory is",
            None,
            id="no-memory",
        ),
        pytest.param({"usage": {}}, "no samples of the node's CPUs", None, id="no-samples"),
        pytest.param({"cpu_pools": pools(enable_reclaim=False)}, "", 0, id="reclaim-is-off"),
    ],
)
def test_what_is_not_known_is_left_out_with_the_reason(
    change: dict[str, Any], problem: str, allocatable: int | None
) -> None:
    """Also of complaint 240: without metrics only what follows from them is missing."""
    amounts = node_amounts(snapshot(**change))[0]

    assert problem in amounts.problem
    assert bool(problem) == bool(amounts.problem)
    assert amounts.node_cpu.allocatable == allocatable
    assert amounts.node_cpu.total == 16_000


def test_a_node_without_known_cpus_or_memory_nodes() -> None:
    unknown = replace(snapshot(memory_bytes={}).node, cpus=(), capacity={"cpu": 8_000, "memory": 32 * GIB})
    amounts = node_amounts(replace(snapshot(), node=unknown))[0]

    assert list(amounts.cpu) == [None] == list(amounts.memory)
    assert (amounts.node_cpu.total, amounts.node_memory.total) == (8_000, 32 * GIB)
    assert amounts.node_cpu.reserved == 2_000

    nothing = node_amounts(replace(snapshot(), node=replace(unknown, capacity={})))[0]
    assert (nothing.cpu, nothing.memory) == ({}, {})
    assert nothing.problem == "the CPUs of the node are not known"


def test_small_changes_change_nothing_and_larger_ones_do() -> None:
    def used(cores: float, held: Any) -> tuple[Mapping[Place, Amount], Any]:
        usage = with_web(cores)
        amounts, held = node_amounts(snapshot(usage=usage), held)
        return amounts.cpu, held

    first, held = used(2.05, NOTHING_REPORTED)
    assert first[2].used == 2_100
    for cores in (2.09, 2.01, 2.1):
        again, held = used(cores, held)
        assert again == first
    # More than before is at once, less from two steps on.
    more, held = used(2.11, held)
    assert more[2].used == 2_200
    less, held = used(1.9, held)
    assert less[2].used == 1_900


@st.composite
def nodes(draw: st.DrawFn) -> Snapshot:
    """Any node with any pods, also with numbers that contradict each other."""
    numa_nodes = draw(st.integers(1, 4))
    cpus = tuple(
        Cpu(n, n // 2, n % numa_nodes // 2, n % numa_nodes, n // 4) for n in range(draw(st.integers(0, 24)))
    )
    some_cpus = st.frozensets(st.integers(0, 25), max_size=8)
    amount = st.one_of(st.just(0), st.integers(0, 40_000))
    of_pods, members, usage = [], {}, {}
    for index in range(draw(st.integers(0, 6))):
        qos = draw(st.sampled_from((QoSClass.LS, QoSClass.BE, QoSClass.LSR)))
        made = replace(
            pod(f"p{index}", qos, {"cpu": draw(amount), "memory": draw(amount) << 20}),
            cpus=draw(some_cpus) if qos is QoSClass.LSR else frozenset(),
        )
        of_pods.append(made)
        usage[made.cgroup, Metric.CPU_USAGE] = draw(st.floats(0, 30))
        usage[made.cgroup, Metric.MEMORY_USAGE] = draw(st.floats(0, 1e11))
        if draw(st.booleans()):
            level = draw(st.sampled_from(("shared_cores", "dedicated_cores", "reclaimed_cores", "")))
            own = draw(some_cpus) if level == "dedicated_cores" else frozenset()
            numa = draw(st.frozensets(st.integers(0, 4), max_size=3))
            members[made.uid] = PoolMember(level, "", draw(some_cpus) | own, own, numa)
    if draw(st.booleans()):
        usage[NODE_CGROUP, Metric.CPU_USAGE] = draw(st.floats(0, 60))
        usage[NODE_CGROUP, Metric.MEMORY_USAGE] = draw(st.floats(0, 1e12))
    names = draw(st.sets(st.sampled_from(("reclaim", "reclaim-NUMA0", "reclaim-NUMA1", "share"))))
    advice = {
        name: PoolAdvice(headroom_millicpu=draw(amount), headroom_bytes=draw(amount) << 20) for name in names
    }
    cpu_pools = pools(
        pools={"reserve": draw(some_cpus), "share": draw(some_cpus)},
        members=members,
        enable_reclaim=draw(st.booleans()),
        advice=advice,
    )
    memory_bytes = draw(st.dictionaries(st.integers(0, 4), st.integers(0, 1 << 36), max_size=4))
    base = snapshot(
        of_pods=tuple(of_pods),
        usage=usage,
        memory_bytes=memory_bytes,
        reserved={"cpu": draw(amount), "memory": draw(amount) << 20},
        reserved_cpus=draw(some_cpus),
        claimed_cpus=draw(some_cpus),
        cpu_pools=draw(st.sampled_from((cpu_pools, cpu_pools, None))),
    )
    return replace(base, node=replace(base.node, cpus=cpus))


def check(amounts: Mapping[Place, Amount]) -> None:
    """Each number is within the others."""
    for each in amounts.values():
        assert min(each.total, each.reserved, each.dedicated, each.capacity, each.requested) >= 0
        assert each.reserved + each.dedicated + each.capacity == each.total
        if each.used is not None:
            assert each.idle is not None
            assert 0 <= each.used <= each.capacity
            assert each.idle == each.capacity - each.used
        if each.allocatable:
            assert each.idle is not None
            assert 0 <= each.allocatable <= each.idle


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(nodes(), nodes())
def test_of_any_node_sums_are_right_and_headroom_is_idle(first: Snapshot, then: Snapshot) -> None:
    held = node_amounts(first)[1]
    # What was reported of another node before never makes more allocatable than is idle.
    for of_node, before in ((first, NOTHING_REPORTED), (then, held)):
        amounts, _ = node_amounts(of_node, before)
        check(amounts.cpu)
        check(amounts.memory)
        node = of_node.node
        if node.cpus:
            assert amounts.node_cpu.total == len(node.cpus) * 1_000
        headroom = node.cpu_pools.headroom if node.cpu_pools is not None else None
        if headroom is not None:
            assert (amounts.node_cpu.allocatable or 0) <= headroom.cpu_millicores
            assert (amounts.node_memory.allocatable or 0) <= headroom.memory_bytes
        assert node_amounts(of_node, before)[0] == amounts


def test_real_use_is_never_more_than_what_is_reported_as_used() -> None:
    """Over a day of ups and downs: the idle part that is reported is there."""
    held = NOTHING_REPORTED
    for minute in range(100):
        cores = 4.0 * abs((minute * 37 % 100) / 50 - 1)
        usage = with_web(cores)
        amounts, held = node_amounts(snapshot(usage=usage), held)
        real = (cores + 1.0) * 1_000
        assert amounts.node_cpu.idle is not None
        assert amounts.node_cpu.idle <= 12_000 - real
        assert amounts.node_cpu.idle >= 12_000 - real - 3 * 4 * CPU_STEP
