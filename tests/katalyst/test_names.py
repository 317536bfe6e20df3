"""Names of pools: which are of `shared_cores`, and which are of one NUMA node."""

from __future__ import annotations

import pytest

from runtimeproxy.katalyst.names import is_shared_pool, numa_pool, pool_and_numa_node


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(("share", True), ("batch", True), ("share-NUMA0", True), ("reclaim", False), ("reserve", False)),
        *(("reclaim-NUMA1", False), ("dedicated", False), ("isolation-a", False), ("system-x", False)),
        *(("interrupt", False), ("fallback", False), ("", False), ("share-NUMA", True)),
    ],
)
def test_shared_pools(name: str, expected: bool) -> None:
    assert is_shared_pool(name) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (numa_pool("share", 12), ("share", 12)),
        ("share", ("share", None)),
        ("share-NUMA", ("share-NUMA", None)),
        ("share-NUMA1x", ("share-NUMA1x", None)),
        ("share-NUMA\u0663", ("share-NUMA\u0663", None)),
        ("a-NUMA1-NUMA2", ("a-NUMA1", 2)),
        ("share-NUMA" + "1" * 5_000, ("share-NUMA" + "1" * 5_000, None)),
    ],
    ids=["made", "whole", "no number", "no digits", "other digits", "twice", "endless"],
)
def test_numa_node_of_a_pool(name: str, expected: tuple[str, int | None]) -> None:
    assert pool_and_numa_node(name) == expected
