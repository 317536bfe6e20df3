"""Quantities and sizes of pools: Katalyst's own vectors, and sums that hold for any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtimeproxy.katalyst.sizes import (
    ImpossibleSizesError,
    IsolatedSize,
    Requirements,
    assemble,
    is_sufficient,
    normalise,
    numa_count,
    overlap_ratio,
    overlapped,
    precise_ceil,
    proportion,
    quantity,
    regulate,
    reserved_for_reclaim,
)
from runtimeproxy.katalyst.topology import Topology, TopologyCpu
from tests.katalyst.topologies import T16, cpus

FIVE_CPUS = Topology(tuple(TopologyCpu(cpu, cpu, 0, cpu % 3, -1) for cpu in range(5)))
FOUR_NUMA_NODES = Topology(tuple(TopologyCpu(cpu, cpu, 0, cpu // 2, -1) for cpu in range(8)))
ONE_NUMA_NODE = Topology(tuple(TopologyCpu(cpu, cpu, 0, 0, -1) for cpu in range(4)))

quantities = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 50), min_size=1)


@pytest.mark.parametrize(
    ("exact", "expected"),
    [
        pytest.param(117.97, 118, id="D2"),
        pytest.param(117.9999, 118, id="below"),
        pytest.param(118.00049, 118, id="noise-of-floats"),
        pytest.param(118.002, 119, id="above"),
        pytest.param(0.0, 0, id="zero"),
    ],
)
def test_precise_ceil(exact: float, expected: int) -> None:
    assert precise_ceil(exact) == expected


def test_quantities_of_pools_d3() -> None:
    assert quantity(1_100 + 1_100, ratio=2.0) == 5
    assert quantity(3_100) == 4


@settings(max_examples=40)
@example(1001)
@given(st.integers(0, 10**6))
def test_whole_millicores_lose_nothing(millicpu: int) -> None:
    assert quantity(millicpu) == -(-millicpu // 1_000)


def test_sufficient_within_a_tenth_of_a_millicore() -> None:
    assert is_sufficient(2.00005, 2)
    assert not is_sufficient(2.0002, 2)


@pytest.mark.parametrize(
    ("topology", "millicpu", "expected"),
    [
        pytest.param(FIVE_CPUS, 1_000, (1, 1), id="C27"),
        pytest.param(FOUR_NUMA_NODES, 3_000, (2, 2), id="C29-3"),
        pytest.param(FOUR_NUMA_NODES, 100, (1, 1), id="C29-0.1"),
        pytest.param(ONE_NUMA_NODE, 0, (1, 0), id="C30"),
        pytest.param(T16, 16_000, (4, 4), id="all"),
    ],
)
def test_numa_count(topology: Topology, millicpu: int, expected: tuple[int, int]) -> None:
    assert numa_count(topology, millicpu) == expected


def test_more_than_all_numa_nodes_have() -> None:
    with pytest.raises(ImpossibleSizesError, match="16001m of CPU need 5 NUMA nodes of 4 CPUs, there are 4"):
        numa_count(T16, 16_001)


@pytest.mark.parametrize(
    ("asked", "total", "expected"),
    [
        ({"a": 1, "b": 1}, 3, {"a": 1, "b": 2}),
        ({"b": 1, "a": 9}, 10, {"a": 9, "b": 1}),
        ({"a": 1, "b": 99}, 4, {"a": 1, "b": 3}),
        ({"a": 7}, 5, {"a": 5}),
        ({"a": 1, "b": 1, "c": 1}, 2, {"a": 2, "b": 2, "c": 2}),
    ],
)
def test_proportion(asked: dict[str, int], total: int, expected: dict[str, int]) -> None:
    assert proportion(asked, total) == expected


@pytest.mark.parametrize("rule", [proportion, normalise])
@settings(max_examples=40)
@given(asked=quantities, total=st.integers(0, 300))
def test_all_is_shared_out_one_at_least_to_each(
    rule: Callable[[Mapping[str, int], int], dict[str, int]], asked: dict[str, int], total: int
) -> None:
    sizes = rule(asked, total)
    assert rule(dict(reversed(asked.items())), total) == sizes
    assert sizes.keys() == asked.keys()
    if len(asked) > total:
        assert set(sizes.values()) == {total}
    else:
        assert sum(sizes.values()) == total
        assert min(sizes.values()) >= 1
        # None has more than its part, rounded up.
        assert all(sizes[name] <= max(1, -(-asked[name] * total // sum(asked.values()))) for name in asked)


@pytest.mark.parametrize(
    ("available", "enable_reclaim", "expected"),
    [
        pytest.param(12, False, (2, 4, 6), id="D5"),
        pytest.param(12, True, (1, 2, 3), id="D6"),
        pytest.param(5, True, (1, 2, 2), id="D8"),
        pytest.param(4, True, (1, 1, 2), id="D9"),
        pytest.param(2, True, (2, 2, 2), id="D11"),
    ],
)
def test_regulate(available: int, enable_reclaim: bool, expected: tuple[int, ...]) -> None:
    base = {"share": 1, "batch": 2, "flink": 3}
    sizes, is_throttled = regulate(base, {}, available, expands=not enable_reclaim)
    assert tuple(sizes[name] for name in base) == expected
    assert is_throttled == (available < 6)


def test_regulate_with_fixed_sizes_d12() -> None:
    sizes, is_throttled = regulate({"share": 1, "batch": 2, "flink": 3}, {"i1": 2, "i2": 2}, 24, expands=True)
    assert sizes == {"share": 3, "batch": 7, "flink": 10, "i1": 2, "i2": 2}
    assert not is_throttled


def test_more_overlap_than_pools_have_d14() -> None:
    with pytest.raises(ImpossibleSizesError, match="30 CPUs to share, the pools have 24"):
        overlapped({"share": 9, "bmq": 8, "flink": 7}, 30)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        pytest.param(2, {"share": 1, "bmq": 1}, id="D15-2"),
        pytest.param(4, {"share": 2, "bmq": 2}, id="D15-4"),
        pytest.param(8, {"share": 3, "bmq": 3, "flink": 2}, id="D15-8"),
        pytest.param(0, {}, id="none"),
        pytest.param(24, {"share": 9, "bmq": 8, "flink": 7}, id="all"),
    ],
)
def test_overlapped(count: int, expected: dict[str, int]) -> None:
    assert overlapped({"share": 9, "bmq": 8, "flink": 7}, count) == expected


@settings(max_examples=40)
@given(sizes=quantities, data=st.data())
def test_overlap_is_shared_out_within_each_pool(sizes: dict[str, int], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, sum(sizes.values())))
    found = overlapped(sizes, count)
    assert sum(found.values()) == count
    assert all(0 < found[name] <= sizes[name] for name in found)


def test_no_pool_reclaim_d17() -> None:
    with pytest.raises(LookupError, match="no pool reclaim"):
        overlap_ratio(cpus("0-7"), None)


def test_overlap_ratio_d18() -> None:
    assert overlap_ratio(cpus("0-7"), cpus("0-3")) == Fraction(1, 2)


ISO = IsolatedSize(8, 4)


@pytest.mark.parametrize(
    ("enable_reclaim", "overlap", "share", "isolated", "sizes", "reclaim", "common"),
    [
        pytest.param(True, False, {"share": 6}, [], [6], 18, {}, id="D20"),
        pytest.param(True, False, {"share": 8}, [], [8], 16, {}, id="D21"),
        pytest.param(True, False, {"share": 8}, [ISO], [8, 8], 8, {}, id="D23"),
        pytest.param(False, False, {"share": 8}, [ISO], [12, 8], 4, {}, id="D24"),
        pytest.param(True, False, {"share": 15}, [ISO], [15, 4], 5, {}, id="D26"),
        pytest.param(True, False, {"share": 4}, [ISO, ISO], [4, 8, 8], 4, {}, id="D27"),
        pytest.param(False, False, {"share": 8}, [ISO, ISO], [12, 4, 4], 4, {}, id="D29"),
        pytest.param(True, True, {"share": 6}, [], [24], 0, {"share": 18}, id="D30"),
        pytest.param(False, True, {"share": 6}, [], [24], 0, {"share": 4}, id="D32"),
        pytest.param(True, True, {}, [ISO, ISO], [8, 8], 8, {}, id="D33"),
    ],
)
def test_assemble(
    enable_reclaim: bool,
    overlap: bool,
    share: dict[str, int],
    isolated: list[IsolatedSize],
    sizes: list[int],
    reclaim: int,
    common: dict[str, int],
) -> None:
    of_pods = {f"isolation-{number}": size for number, size in enumerate(isolated)}
    found = assemble(
        Requirements(usable=24, reserved_for_reclaim=4, share=share, isolated=of_pods),
        enable_reclaim=enable_reclaim,
        overlap=overlap,
    )
    assert found.sizes == dict(zip([*share, *of_pods], sizes, strict=True))
    assert (found.reclaim, found.overlap, found.is_throttled) == (reclaim, common, False)


def test_assemble_two_pools_of_both_numa_nodes_d35() -> None:
    found = assemble(
        Requirements(usable=48, reserved_for_reclaim=8, share={"a": 6, "b": 8}),
        enable_reclaim=True,
        overlap=True,
    )
    assert found == ({"a": 24, "b": 24}, 0, {"a": 18, "b": 16}, False)


@settings(max_examples=40)
@given(
    usable=st.integers(8, 64),
    share=st.dictionaries(st.sampled_from("abc"), st.integers(0, 20)),
    requests=st.dictionaries(st.sampled_from("abc"), st.floats(0, 20)),
    isolated=st.lists(st.tuples(st.integers(4, 8), st.integers(1, 4)), max_size=2),
    dedicated=st.integers(0, 4),
    enable_reclaim=st.booleans(),
    overlap=st.booleans(),
)
def test_no_more_cpus_are_given_than_there_are(
    usable: int,
    share: dict[str, int],
    requests: dict[str, float],
    isolated: list[tuple[int, int]],
    dedicated: int,
    enable_reclaim: bool,
    overlap: bool,
) -> None:
    least = 2
    required = Requirements(
        usable=usable,
        reserved_for_reclaim=least,
        share=share,
        requests=requests,
        isolated={str(number): IsolatedSize(*size) for number, size in enumerate(isolated)},
        dedicated={"d": dedicated} if dedicated else {},
    )
    found = assemble(required, enable_reclaim=enable_reclaim, overlap=overlap)
    assert found.reclaim + sum(found.overlap.values()) >= least
    assert all(0 < found.overlap[name] <= found.sizes[name] for name in found.overlap)
    if not overlap and len(found.sizes) <= usable - least:
        assert sum(found.sizes.values()) + found.reclaim <= usable
        assert enable_reclaim is False or sum(found.sizes.values()) + found.reclaim == usable
    if not found.is_throttled and not enable_reclaim:
        assert all(found.sizes[name] >= max(1, precise_ceil(requests.get(name, 0))) for name in share)


@pytest.mark.parametrize(("size", "numa_nodes", "expected"), [(4, 2, 2), (4, 8, 1), (10, 4, 2), (0, 1, 1)])
def test_reserved_for_reclaim(size: int, numa_nodes: int, expected: int) -> None:
    assert reserved_for_reclaim(size, numa_nodes) == expected
