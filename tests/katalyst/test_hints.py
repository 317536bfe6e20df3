"""NUMA hints: Katalyst's own vectors, and what CPU and memory agree to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.katalyst.hints import (
    HintPolicy,
    HintRequest,
    InvalidRequestError,
    NoRoomError,
    NumaBooking,
    check_unbound,
    choose,
    cpu_hints,
)
from runtimeproxy.katalyst.levels import KatalystQos
from runtimeproxy.katalyst.names import QosLevel
from runtimeproxy.katalyst.topology import Topology, TopologyCpu
from runtimeproxy.units import format_cpu_list, parse_cpu_list
from tests.katalyst.topologies import ALL, GIB, T16, WITH_HOLES, cpus

RESERVED = cpus("0,2")


def free(topology: Topology = T16, taken: frozenset[int] = RESERVED, **of_all: Any) -> list[NumaBooking]:
    return [
        NumaBooking(numa_node=node, free_cpus=own - taken, **of_all) for node, own in topology.by_numa.items()
    ]


def with_booking(bookings: Sequence[NumaBooking], numa_node: int, **changes: Any) -> list[NumaBooking]:
    return [replace(each, **changes) if each.numa_node == numa_node else each for each in bookings]


def dedicated(**flags: Any) -> KatalystQos:
    return KatalystQos(level=QosLevel.DEDICATED, pool="dedicated", numa_binding=True, **flags)


def exclusive(**flags: Any) -> KatalystQos:
    return dedicated(numa_exclusive=True, **flags)


def shared(**flags: Any) -> KatalystQos:
    return KatalystQos(numa_binding=True, **flags)


RECLAIMED = KatalystQos(level=QosLevel.RECLAIMED, pool="reclaim", numa_binding=True)
FREE = free()
CPU_9_TAKEN = with_booking(FREE, 0, free_cpus=cpus("1,8"), bound=(dedicated(),))
BESIDE_DEDICATED = with_booking(
    with_booking(FREE, 0, bound=(dedicated(numa_share=False),), free_cpus=cpus("8-9")),
    1,
    bound=(shared(),),
    held_millicpu=1_000,
)


def text(bookings: Sequence[NumaBooking], request: HintRequest, topology: Topology = T16) -> str:
    """Hints in the notation of Katalyst's vectors."""
    hints = cpu_hints(topology, bookings, request)
    return " ".join(f"{format_cpu_list(nodes)}{'T' if preferred else 'F'}" for nodes, preferred in hints)


@pytest.mark.parametrize(
    ("qos", "cores", "bookings", "expected"),
    [
        pytest.param(exclusive(), 2, FREE, "0T 1T 2T 3T 0-1F 2-3F 0-2F 0-1,3F 0,2-3F 1-3F 0-3F", id="C2"),
        pytest.param(dedicated(), 2, FREE, "0T 1T 2T 3T", id="C3"),
        pytest.param(exclusive(align_by_socket=True), 9, FREE, "0-2T 0-1,3T 0,2-3T 1-3T 0-3F", id="C6"),
        pytest.param(
            dedicated(distribute_evenly=True, full_pcpus=True, numa_number=2), 8, FREE, "2-3T", id="C12"
        ),
        pytest.param(
            dedicated(distribute_evenly=True, full_pcpus=True, numa_number=3),
            6,
            CPU_9_TAKEN,
            "1-3T",
            id="C14",
        ),
        pytest.param(exclusive(numa_number=2), 2, FREE, "0-1T 2-3T", id="C15"),
        pytest.param(exclusive(numa_ids=parse_cpu_list("1-3")), 2, FREE, "1-3T", id="C17"),
        pytest.param(exclusive(numa_ids=parse_cpu_list("0-2"), numa_number=2), 2, FREE, "0-2T", id="C18"),
        pytest.param(dedicated(full_pcpus=True), 2, FREE, "0T 1T 2T 3T", id="whole-cores"),
        pytest.param(dedicated(full_pcpus=True), 4, FREE, "2T 3T", id="two-whole-cores"),
        pytest.param(dedicated(numa_number=0), 2, FREE, "0T 1T 2T 3T", id="numa-number-0-says-nothing"),
        pytest.param(
            dedicated(distribute_evenly=True, numa_number=2), 7, free(taken=cpus("")), None, id="7-over-2"
        ),
        pytest.param(
            dedicated(distribute_evenly=True, numa_number=2), 6, CPU_9_TAKEN, "2-3T", id="three-on-each"
        ),
        pytest.param(exclusive(), 5, CPU_9_TAKEN, "2-3T 1-3F", id="exclusive-evades-bound-pods"),
        pytest.param(
            exclusive(),
            14,
            with_booking(FREE, 2, is_taken=True),
            None,
            id="exclusive-evades-pods-that-have-cpus-alone",
        ),
    ],
)
def test_dedicated(qos: KatalystQos, cores: int, bookings: list[NumaBooking], expected: str | None) -> None:
    request = HintRequest(qos=qos, millicpu=1_000 * cores)
    if expected is None:
        with pytest.raises(NoRoomError, match=f"^no available cpu hints: {cores}000m of CPU requested"):
            text(bookings, request)
    else:
        assert text(bookings, request) == expected


def test_a_cpu_allocated_on_one_of_all_numa_nodes_c5() -> None:
    request = HintRequest(qos=exclusive(), millicpu=13_000)
    assert text(FREE, request) == "0-3T"
    with pytest.raises(NoRoomError):
        text(with_booking(FREE, 2, bound=(dedicated(),), free_cpus=cpus("5,12-13")), request)


@pytest.mark.parametrize(
    ("qos", "cores", "reason"),
    [
        pytest.param(exclusive(full_pcpus=True), 2, "full_pcpus_pairing does not go", id="C8"),
        pytest.param(dedicated(full_pcpus=True), 13, "13000m of CPU need 4 NUMA nodes", id="C9"),
        pytest.param(dedicated(distribute_evenly=True), 12, "12000m of CPU need 3 NUMA nodes", id="C11"),
        pytest.param(exclusive(distribute_evenly=True), 2, "distribute_evenly_across_numa does", id="1.4"),
        pytest.param(exclusive(numa_number=5), 2, "5, and the node has 4 NUMA nodes", id="numa-number"),
        pytest.param(exclusive(numa_ids=frozenset({1, 7})), 2, "no NUMA node 7", id="numa-ids"),
        pytest.param(exclusive(), 17, "17000m of CPU need 5 NUMA nodes of 4", id="more-than-the-node"),
        pytest.param(
            KatalystQos(level=QosLevel.DEDICATED), 2, "without numa_binding have no", id="not-bound"
        ),
        pytest.param(shared(), 5, "need 2 NUMA nodes, and bound pods of shared_cores", id="shared-of-two"),
        pytest.param(shared(), 17, "need 5 NUMA nodes of 4 CPUs, there are 4", id="shared-of-five"),
        pytest.param(shared(numa_ids=frozenset({4})), 1, "no NUMA node 4", id="shared-numa-ids"),
        pytest.param(KatalystQos(level=QosLevel.SYSTEM), 1, "system_cores are bound to no", id="system"),
    ],
)
def test_requests_that_no_state_of_the_node_satisfies(qos: KatalystQos, cores: int, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        choose(T16, FREE, HintRequest(qos=qos, millicpu=1_000 * cores))


def test_as_many_as_numa_nodes_are_left_for_pods_that_are_not_bound() -> None:
    # 14 CPUs of no bound pod; 5 are requested, so 9 can be taken.
    request = HintRequest(qos=exclusive(), millicpu=2_000, unbound_millicpu=4_500)
    assert text(FREE, request) == "0T 1T 2T 3T 0-1F 2-3F"
    with pytest.raises(NoRoomError, match="4500m are of pods that are not bound"):
        text(FREE, replace(request, millicpu=9_500))
    assert text(FREE, replace(request, unbound_millicpu=11_000)) == "0T 1T"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param(HintPolicy.SPREADING, "1F 2T 3T", id="C20"),
        pytest.param(HintPolicy.PACKING, "1T 2F 3F", id="C21"),
        pytest.param(HintPolicy.DYNAMIC_PACKING, "1T 2T 3T", id="C23"),
        pytest.param(HintPolicy.NONE, "1T 2T 3T", id="none"),
    ],
)
def test_shared(policy: HintPolicy, expected: str) -> None:
    request = HintRequest(qos=shared(), millicpu=1_000, policy=policy, least_free=0.8)
    assert text(BESIDE_DEDICATED, request) == expected


def test_dynamic_packing_packs_where_enough_stays_free() -> None:
    request = HintRequest(qos=shared(), millicpu=1_000, policy=HintPolicy.DYNAMIC_PACKING, least_free=0.5)
    assert text(BESIDE_DEDICATED, request) == "1F 2T 3T"
    assert text(FREE, request) == "0T 1T 2F 3F"


@pytest.mark.parametrize(
    ("qos", "expected"),
    [
        pytest.param(shared(pool="batch"), "0T 1F 2T 3T", id="another-pool-shares"),
        pytest.param(shared(pool="batch", numa_share=False), "0F 2T 3T", id="another-pool-does-not"),
        pytest.param(shared(numa_share=False), "0F 1F 2T 3T", id="the-same-pool"),
        pytest.param(shared(numa_ids=frozenset({1, 2})), "1F 2T", id="numa-ids"),
        pytest.param(dedicated(numa_share=False), "0T 2T 3T", id="dedicated-does-not"),
    ],
)
def test_who_shares_a_numa_node(qos: KatalystQos, expected: str) -> None:
    bookings = with_booking(FREE, 1, bound=(shared(),), held_millicpu=1_000)
    if expected == "0T 1F 2T 3T":
        bookings = with_booking(bookings, 0, free_cpus=cpus("0-1,8-9"))
    assert text(bookings, HintRequest(qos=qos, millicpu=1_000)) == expected


def test_the_schedulers_choice_is_the_only_one_preferred() -> None:
    request = HintRequest(qos=shared(), millicpu=1_000, bind_result=frozenset({1}))
    assert text(FREE, request) == "0F 1T 2F 3F"
    assert choose(T16, FREE, request).numa_nodes == {1}
    # One that is none of the hints changes nothing.
    assert text(FREE, replace(request, bind_result=frozenset({0, 1}))) == "0F 1F 2T 3T"
    chosen = choose(T16, FREE, replace(request, qos=exclusive(), bind_result=frozenset({2, 3})))
    assert chosen.numa_nodes == {2, 3}
    assert chosen.reason == "with 8 CPUs free for 1000m, the scheduler's choice"


HEADROOM = [
    replace(each, headroom_millicpu=millicpu)
    for each, millicpu in zip(FREE, (2_000, 1_000, 2_500, 3_000), strict=True)
]


@pytest.mark.parametrize(
    ("bookings", "expected"),
    [
        pytest.param(HEADROOM, "3T 2T 0T 1T", id="C24"),
        pytest.param(with_booking(HEADROOM, 0, reclaimed_millicpu=2_000), "3T 2T 1T 0F", id="C26"),
        pytest.param(with_booking(HEADROOM, 3, headroom_millicpu=0), "2T 0T 1T", id="no-headroom"),
        pytest.param(
            with_booking(with_booking(HEADROOM, 3, headroom_millicpu=2_500), 3, bound=(shared(),)),
            "3T 2T 0T 1T",
            id="bound-pods-first-where-equal",
        ),
    ],
)
def test_reclaimed(bookings: list[NumaBooking], expected: str) -> None:
    assert text(bookings, HintRequest(qos=RECLAIMED, millicpu=1_000)) == expected


def test_the_last_numa_node_stays_to_reclaimed_pods_that_are_not_bound() -> None:
    bookings = [replace(each, reclaimed_millicpu=0) for each in HEADROOM[:3]] + HEADROOM[3:]
    request = HintRequest(qos=RECLAIMED, millicpu=1_000)
    assert text(bookings, request) == "3T 2T 0T 1T"
    assert text(bookings, replace(request, unbound_millicpu=1)) == "2T 0T 1T"


def test_a_reclaimed_pod_without_headroom_has_all_numa_nodes_of_no_bound_one() -> None:
    bookings = with_booking(HEADROOM, 1, reclaimed_millicpu=500)
    request = HintRequest(qos=RECLAIMED, millicpu=3_500)
    assert choose(T16, bookings, request).numa_nodes == {0, 2, 3}
    with pytest.raises(NoRoomError):
        choose(T16, [replace(each, reclaimed_millicpu=0) for each in bookings], request)


def test_unbound_pods_need_cpus_of_numa_nodes_without_bound_ones() -> None:
    check_unbound(BESIDE_DEDICATED, 8_000)
    with pytest.raises(NoRoomError, match="have 8 CPUs, and pods of shared_cores request 8001m"):
        check_unbound(BESIDE_DEDICATED, 8_001)


WITH_MEMORY = free(free_bytes=7 * GIB)


@pytest.mark.parametrize(
    ("qos", "cores", "memory_bytes", "bookings", "expected"),
    [
        pytest.param(exclusive(), 2, None, WITH_MEMORY, "0", id="memory-not-requested"),
        pytest.param(exclusive(), 2, 2 * GIB, FREE, "0", id="memory-not-known"),
        pytest.param(exclusive(), 2, 2 * GIB, WITH_MEMORY, "0", id="both-prefer-one"),
        # CPU prefers one NUMA node, memory two of them: only those of memory are both's.
        pytest.param(exclusive(), 2, 9 * GIB, WITH_MEMORY, "0-1", id="memory-prefers-two"),
        pytest.param(exclusive(), 5, 2 * GIB, WITH_MEMORY, "0-1", id="cpu-prefers-two"),
        pytest.param(exclusive(), 5, 9 * GIB, WITH_MEMORY, "0-1", id="both-prefer-two"),
        pytest.param(
            dedicated(), 2, 2 * GIB, with_booking(WITH_MEMORY, 0, free_bytes=GIB), "1", id="not-on-0"
        ),
        pytest.param(exclusive(), 2, 15 * GIB, WITH_MEMORY, "0-2", id="memory-needs-three"),
        pytest.param(
            exclusive(), 2, 29 * GIB, WITH_MEMORY, "no available memory hints", id="all-is-too-little"
        ),
        pytest.param(dedicated(), 2, 8 * GIB, WITH_MEMORY, "no available memory hints", id="no-memory"),
        pytest.param(exclusive(), 2, 33 * GIB, WITH_MEMORY, "the node has", id="never"),
        pytest.param(shared(), 1, 2 * GIB, WITH_MEMORY, "2", id="shared-spreads"),
        # The emptiest NUMA nodes have no memory left: another one, as memory prefers it.
        pytest.param(
            shared(),
            1,
            2 * GIB,
            with_booking(with_booking(WITH_MEMORY, 2, free_bytes=0), 3, free_bytes=GIB),
            "0",
            id="shared-goes-where-memory-is",
        ),
        pytest.param(shared(), 1, 8 * GIB, WITH_MEMORY, "no available memory hints", id="shared-no-memory"),
    ],
)
def test_cpu_and_memory_together(
    qos: KatalystQos, cores: int, memory_bytes: int | None, bookings: list[NumaBooking], expected: str
) -> None:
    request = HintRequest(qos=qos, millicpu=1_000 * cores, memory_bytes=memory_bytes)
    if expected[0].isdigit():
        assert format_cpu_list(choose(T16, bookings, request).numa_nodes) == expected
    else:
        with pytest.raises((NoRoomError, InvalidRequestError), match=expected):
            choose(T16, bookings, request)


def test_reasons() -> None:
    assert choose(T16, FREE, HintRequest(qos=dedicated(), millicpu=2_000)).reason == (
        "with 3 CPUs free for 2000m"
    )
    assert choose(T16, FREE, HintRequest(qos=shared(), millicpu=1_000)).reason == (
        "with 4000m free for 1000m (spreading)"
    )
    with pytest.raises(NoRoomError) as error:
        choose(T16, CPU_9_TAKEN, HintRequest(qos=dedicated(full_pcpus=True, numa_number=2), millicpu=8_500))
    assert str(error.value) == (
        "no available cpu hints: 8500m of CPU requested; by NUMA node: 0: 2000m free beside 1 bound pods, "
        "1: 3000m free, 2: 4000m free, 3: 4000m free"
    )


def test_a_small_set_is_of_one_socket() -> None:
    # Only NUMA nodes 1 and 2 are free, on two sockets: two would do, and three are not preferred.
    bookings = [each if each.numa_node in (1, 2) else replace(each, is_taken=True) for each in FREE]
    request = HintRequest(qos=exclusive(), millicpu=5_000)
    with pytest.raises(NoRoomError):
        choose(T16, bookings, request)
    bookings = with_booking(bookings, 3, is_taken=False)
    assert text(bookings, request) == "2-3T 1-3F"


def test_numa_nodes_with_gaps_in_their_numbers() -> None:
    bookings = free(WITH_HOLES, cpus(""))
    assert text(bookings, HintRequest(qos=exclusive(), millicpu=2_000), WITH_HOLES) == "0T 3T 0,3F"


def machine(numa_nodes: int) -> Topology:
    return Topology(tuple(TopologyCpu(cpu, cpu, 0, cpu // 2, -1) for cpu in range(2 * numa_nodes)))


def test_of_many_numa_nodes_few_sets_are_looked_at() -> None:
    topology = machine(64)
    bookings = free(topology, cpus(""))
    request = HintRequest(qos=exclusive(), millicpu=39_000)
    assert choose(topology, bookings, request).numa_nodes == set(range(20))
    hints = list(cpu_hints(topology, bookings, request))
    assert {len(nodes) for nodes, _ in hints} == {20, 21}
    assert len(hints) <= 2 * 4_097
    # The first sets have too few CPUs; the one with the most is looked at, too.
    some = [
        replace(each, free_cpus=frozenset(list(each.free_cpus)[: 1 + each.numa_node // 40]))
        for each in bookings
    ]
    assert choose(topology, some, request).numa_nodes >= set(range(40, 56))


@settings(max_examples=50)
@given(data=st.data())
def test_a_choice_has_what_was_asked_for(data: st.DataObject) -> None:
    topology = data.draw(st.sampled_from(ALL))
    bookings = [
        NumaBooking(
            numa_node=node,
            free_cpus=data.draw(st.frozensets(st.sampled_from(sorted(own)))),
            bound=data.draw(st.sampled_from([(), (), (shared(),), (dedicated(numa_share=False),)])),
            is_taken=data.draw(st.booleans()),
            free_bytes=data.draw(st.integers(0, 8)),
        )
        for node, own in topology.by_numa.items()
    ]
    flags = data.draw(st.sampled_from([exclusive(), dedicated(), dedicated(numa_number=2), shared()]))
    request = HintRequest(
        qos=flags,
        millicpu=data.draw(st.integers(0, 20_000)),
        memory_bytes=data.draw(st.one_of(st.none(), st.integers(0, 20))),
        unbound_millicpu=data.draw(st.sampled_from([0, 0, 1_000, 4_000])),
        policy=data.draw(st.sampled_from(HintPolicy)),
    )
    sized = Topology(topology.cpus, dict.fromkeys(topology.numa_nodes, 8))
    try:
        chosen = choose(sized, bookings, request).numa_nodes
    except (NoRoomError, InvalidRequestError):
        return
    assert choose(sized, list(reversed(bookings)), request).numa_nodes == chosen
    some = [each for each in bookings if each.numa_node in chosen]
    others = [each for each in bookings if each.numa_node not in chosen]
    assert sum(each.free_millicpu for each in some) >= request.millicpu
    assert sum(each.free_bytes or 0 for each in some) >= (request.memory_bytes or 0)
    if any(not each.bound for each in some):
        check_unbound(others, request.unbound_millicpu)
    if flags.numa_exclusive:
        assert not any(each.bound or each.is_taken for each in some)
    else:
        assert len(chosen) == (flags.numa_number or 1)
