"""The pickers of CPUs: Katalyst's own vectors, and what holds for any CPUs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.katalyst.pickers import InsufficientCpusError, core_balance, ht_balance, topo
from runtimeproxy.katalyst.topology import Topology, TopologyCpu
from runtimeproxy.units import format_cpu_list
from tests.katalyst.topologies import ALL, HYBRID, T16, T24, T128, WITHOUT_SMT, adjacent, cpus, dummy

Picker = Callable[[Topology, frozenset[int], int], frozenset[int]]


@pytest.mark.parametrize(
    ("picker", "topology", "available", "count", "expected"),
    [
        pytest.param(ht_balance, T16, "0-15", 2, "0,2", id="A1"),
        pytest.param(ht_balance, T16, "0-15", 4, "0,2,4,6", id="A2"),
        pytest.param(ht_balance, T16, "1,3-15", 4, "1,3-4,6", id="A4"),
        pytest.param(topo, T24, "0-15", 8, "0-5,12-13", id="A5"),
        pytest.param(topo, T128, "0-127", 64, "0-63", id="A7"),
        pytest.param(
            topo, T128, ",".join(map(str, range(0, 128, 3))), 10, "0,3,6,9,12,15,18,24,27,30", id="A8"
        ),
        pytest.param(topo, T16, "0-15", 0, "", id="A10-zero"),
        pytest.param(topo, T16, "0-15", -1, "", id="A10-negative"),
    ],
)
def test_of_katalyst(picker: Picker, topology: Topology, available: str, count: int, expected: str) -> None:
    assert format_cpu_list(picker(topology, cpus(available), count)) == expected


@pytest.mark.parametrize("picker", [ht_balance, core_balance, topo])
def test_more_than_available_is_an_error_a11(picker: Picker) -> None:
    with pytest.raises(InsufficientCpusError, match="insufficient CPUs: requested 4, available 3"):
        picker(T16, cpus("0-2"), 4)


@pytest.mark.parametrize(
    ("picked", "expected"),
    [
        pytest.param(ht_balance(T16, T16.all_cpus, 3, reverse=True), "9,11,13", id="highest-of-each"),
        pytest.param(ht_balance(T16, cpus("0-1,8,15"), 3), "0-1,15", id="one-runs-out"),
        pytest.param(core_balance(T16, T16.all_cpus, 4), "0,2,8,10", id="cores-of-each-in-turn"),
        pytest.param(core_balance(T16, T16.all_cpus, 5), "0-2,8,10", id="and-a-single-one"),
        pytest.param(core_balance(T16, T16.all_cpus, 1), "0", id="less-than-a-core"),
        pytest.param(core_balance(T16, cpus("1,3-15"), 4), "1,3,9,11", id="only-whole-cores"),
        pytest.param(core_balance(T16, T16.all_cpus, 4, reverse=True), "1,3,9,11", id="highest-cores"),
        pytest.param(core_balance(T16, cpus("0-3"), 3), "0-2", id="no-whole-core"),
        pytest.param(core_balance(HYBRID, HYBRID.all_cpus, 11), "0-10", id="cores-of-one-thread"),
        pytest.param(core_balance(WITHOUT_SMT, WITHOUT_SMT.all_cpus, 3), "0-1,4", id="no-threads"),
        pytest.param(topo(T16, T16.all_cpus, 8), "0-3,8-11", id="a-socket"),
        pytest.param(topo(T16, T16.all_cpus - {0}, 8), "4-7,12-15", id="the-free-socket"),
        pytest.param(topo(T16, T16.all_cpus, 4), "0-1,8-9", id="a-cache"),
        pytest.param(topo(T16, T16.all_cpus - {0}, 3), "1,8-9", id="the-cache-of-that-size"),
        pytest.param(topo(T16, T16.all_cpus - {0}, 2), "1,9", id="a-whole-core-of-the-smallest-cache"),
        pytest.param(topo(T16, cpus("1,3-15"), 2, False), "1,9", id="without-caches"),
        pytest.param(topo(T16, T16.all_cpus, 6, False), "0-2,8-10", id="cores-in-order"),
        pytest.param(topo(T16, cpus("0-1,4-5,12"), 1), "0", id="of-the-smaller-cache"),
        pytest.param(topo(WITHOUT_SMT, cpus("1-7"), 3), "1-3", id="cache-not-known"),
    ],
)
def test_picked(picked: frozenset[int], expected: str) -> None:
    assert format_cpu_list(picked) == expected


@pytest.mark.parametrize("picker", [ht_balance, core_balance, topo])
@settings(max_examples=30)
@given(data=st.data())
def test_exactly_that_many_of_the_available_and_always_the_same(picker: Picker, data: st.DataObject) -> None:
    topology = data.draw(st.sampled_from(ALL))
    available = data.draw(st.frozensets(st.sampled_from(sorted(topology.all_cpus))))
    count = data.draw(st.integers(0, len(available)))
    picked = picker(topology, available, count)
    assert len(picked) == count
    assert picked <= available
    again = Topology(tuple(reversed(topology.cpus)))
    assert picker(again, frozenset(sorted(available, reverse=True)), count) == picked


@settings(max_examples=20)
@given(data=st.data())
def test_reverse_and_without_caches(data: st.DataObject) -> None:
    topology = data.draw(st.sampled_from(ALL))
    available = data.draw(st.frozensets(st.sampled_from(sorted(topology.all_cpus))))
    count = data.draw(st.integers(0, len(available)))
    for picked in (
        ht_balance(topology, available, count, reverse=True),
        core_balance(topology, available, count, reverse=True),
        topo(topology, available, count, False),
    ):
        assert len(picked) == count
        assert picked <= available


def test_a_topology_of_a_nodes_cpus() -> None:
    some = [
        SimpleNamespace(id=3, core=0, socket=1, numa_node=1, l3=-1, is_online=True),
        SimpleNamespace(id=0, core=0, socket=0, numa_node=0, l3=7, is_online=True),
        SimpleNamespace(id=1, core=0, socket=0, numa_node=0, l3=7, is_online=False),
        SimpleNamespace(id=2, core=0, socket=1, numa_node=1, l3=-1, is_online=True),
    ]
    topology = Topology.of(some, {0: 10, 1: 20})
    assert topology.all_cpus == {0, 2, 3}
    assert topology.numa_nodes == (0, 1)
    assert topology.cores == {(0, 0): {0}, (1, 0): {2, 3}}
    assert topology.caches == {7: {0}, -2: {2, 3}}
    assert topology.cpus_of((1, 5)) == {2, 3}
    assert topology == Topology.of(reversed(some), {1: 20, 0: 10})
    assert topology != Topology.of(some)
    assert hash(topology) == hash(Topology.of(some))


def test_numa_nodes_and_sockets() -> None:
    assert T16.numas_per_socket == 2
    assert not T16.is_across_sockets((0, 1))
    assert T16.is_across_sockets((1, 2))
    assert adjacent(8, 4, 4).numas_per_socket == dummy(8, 2, 1).numas_per_socket == 1
    # A NUMA node of two sockets is not across them.
    assert not Topology((TopologyCpu(0, 0, 0, 0, 0), TopologyCpu(1, 0, 1, 0, 0))).is_across_sockets((0,))
