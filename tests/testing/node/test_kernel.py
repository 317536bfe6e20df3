"""The simulated kernel: how CPU time and memory are shared out."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.cgroups.writer import CgroupWriter
from runtimeproxy.testing.node.kernel import (
    BURST,
    CPUS,
    MEMORY_LIMIT,
    PERIOD,
    QUOTA,
    SHARES,
    Kernel,
    Workload,
    constant,
)

A, B, C = ("pods", "a"), ("pods", "b"), ("pods", "c")
VERSIONS: tuple[Literal[1, 2], ...] = (1, 2)


def busy(cores: float, **fields: object) -> Workload:
    return Workload(cores=constant(cores), **fields)  # type: ignore[arg-type]


def used(kernel: Kernel, *paths: tuple[str, ...]) -> list[float]:
    kernel.advance(1)
    return [kernel.cgroups[path].used_cores for path in paths]


@pytest.mark.parametrize("version", VERSIONS)
def test_all_get_what_they_want_while_there_is_enough(version: Literal[1, 2]) -> None:
    kernel = Kernel(range(4), version=version)
    kernel.make(A, busy(1.0))
    kernel.make(B, busy(2.5))
    assert used(kernel, A, B, ("pods",)) == pytest.approx([1.0, 2.5, 3.5])
    assert kernel.cgroups[A].usage_us == pytest.approx(1_000_000)


@pytest.mark.parametrize("version", VERSIONS)
def test_weights_share_out_what_is_not_enough(version: Literal[1, 2]) -> None:
    kernel = Kernel(range(4), version=version)
    for path, shares in ((A, 1_024), (B, 3_072)):
        kernel.make(path, busy(8.0))
        kernel.write(path, SHARES, shares)
    assert used(kernel, A, B) == pytest.approx([1.0, 3.0], rel=0.05)


def test_what_one_does_not_want_goes_to_the_others() -> None:
    kernel = Kernel(range(4))
    for path, wanted in ((A, 0.5), (B, 8.0), (C, 8.0)):
        kernel.make(path, busy(wanted))
    assert used(kernel, A, B, C) == pytest.approx([0.5, 1.75, 1.75])


def test_weights_count_among_brothers() -> None:
    """A class of little weight with many pods has no more than one with few."""
    kernel = Kernel(range(4))
    kernel.make(("class", "one"), busy(8.0))
    for name in ("x", "y", "z"):
        kernel.make(("other", name), busy(8.0))
    assert used(kernel, ("class",), ("other",), ("other", "x")) == pytest.approx([2.0, 2.0, 2 / 3])


@pytest.mark.parametrize("version", VERSIONS)
def test_quotas_bound_a_workload_and_all_below(version: Literal[1, 2]) -> None:
    kernel = Kernel(range(4), version=version)
    kernel.make(A, busy(3.0))
    kernel.make(B, busy(3.0))
    kernel.write(A, QUOTA, 50_000)
    assert used(kernel, A, B) == pytest.approx([0.5, 3.0])
    kernel.write(("pods",), QUOTA, 100_000)
    assert used(kernel, A, B) == pytest.approx([0.5, 0.5])
    kernel.write(("pods",), PERIOD, 50_000)
    assert kernel.value(("pods",), QUOTA) == 100_000
    assert used(kernel, ("pods",)) == pytest.approx([2.0])


def test_throttled_periods_are_counted() -> None:
    kernel = Kernel(range(4))
    cgroup = kernel.make(A, busy(0.9))
    kernel.write(A, QUOTA, 100_000)
    kernel.advance(1)
    # Its peaks go beyond the quota, its average does not.
    assert [cgroup.periods, cgroup.used_cores] == pytest.approx([10.0, 0.9])
    assert 0 < cgroup.throttled_periods < 2
    kernel.make(A, busy(2.0))
    before = cgroup.throttled_periods
    kernel.advance(1)
    assert cgroup.throttled_periods - before > 5
    kernel.make(A, busy(0.5))
    before = cgroup.throttled_periods
    kernel.advance(1)
    assert cgroup.throttled_periods == before


def test_what_was_not_used_may_be_used_later_up_to_the_burst() -> None:
    kernel = Kernel(range(4))
    kernel.make(A, busy(0.5))
    kernel.write(A, QUOTA, 100_000)
    kernel.write(A, BURST, 80_000)
    kernel.advance(5)
    kernel.make(A, busy(3.0))
    assert used(kernel, A) == pytest.approx([1.08])
    assert used(kernel, A) == pytest.approx([1.0])


@pytest.mark.parametrize("version", VERSIONS)
def test_lists_of_cpus(version: Literal[1, 2]) -> None:
    kernel = Kernel(range(4), version=version)
    kernel.make(A, busy(8.0))
    kernel.make(B, busy(8.0))
    kernel.write(A, CPUS, "0-1")
    assert kernel.effective_cpus(A) == {0, 1}
    # B has CPUs 2 and 3 for itself, and half of the others.
    a, b = used(kernel, A, B)
    assert [a, b] == pytest.approx([1.33, 2.67], abs=0.35)
    assert a + b == pytest.approx(4.0)
    kernel.write(A, CPUS, "1")
    kernel.write(("pods",), CPUS, "1-2")
    assert kernel.effective_cpus(B) == {1, 2}
    assert sum(used(kernel, A, B)) == pytest.approx(2.0)


def test_work_waits_as_long_as_it_may() -> None:
    kernel = Kernel(range(4))
    cgroup = kernel.make(A, busy(2.0, backlog_s=3.0))
    kernel.write(A, QUOTA, 100_000)
    kernel.advance(1)
    assert (cgroup.backlog_cores, cgroup.waiting_s) == (1.0, 1.0)
    for _ in range(10):
        kernel.advance(1)
    assert cgroup.backlog_cores == 6.0
    kernel.write(A, QUOTA, -1)
    kernel.advance(1)
    assert cgroup.used_cores == 4.0
    for _ in range(3):
        kernel.advance(1)
    assert (cgroup.used_cores, cgroup.backlog_cores, cgroup.waiting_s) == (2.0, 0.0, 0.0)


def test_threads_bound_a_workload() -> None:
    kernel = Kernel(range(4))
    kernel.make(A, busy(3.0, threads=1))
    assert used(kernel, A) == [1.0]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_workload_beyond_its_memory_is_killed(version: Literal[1, 2]) -> None:
    kernel = Kernel(range(4), version=version)
    growing = Workload(memory_bytes=lambda at_s: 1_000.0 * at_s, cache_bytes=constant(10_000.0))
    cgroup = kernel.make(A, growing)
    kernel.write(A, MEMORY_LIMIT, 8_192)
    for _ in range(8):
        kernel.advance(1)
    # Page cache gives way before that.
    assert (cgroup.oom_kills, cgroup.memory_bytes, cgroup.cache_bytes) == (0, 8_000, 192)
    kernel.advance(1)
    assert (cgroup.oom_kills, cgroup.memory_bytes) == (1, 0)
    kernel.advance(1)
    assert kernel.cgroups["pods",].memory_bytes == 1_000


def test_refusals_of_a_real_kernel_are_noted() -> None:
    kernel = Kernel(range(4), version=1)
    kernel.make(A)
    kernel.write(A, QUOTA, 100_000)
    kernel.write(A, BURST, 100_001)
    kernel.write(A, CPUS, "0-2")
    kernel.write(("pods",), QUOTA, 50_000)
    kernel.write(("pods",), CPUS, "0-1")
    kernel.advance(1)
    assert kernel.violations == [
        "/pods/a: burst 100001 above quota 100000",
        "/pods/a: quota 100000 above that of /pods",
        "/pods/a: CPUs 0-2 beyond /pods",
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_files_in_a_folder_are_those_of_a_node(version: Literal[1, 2], tmp_path: Path) -> None:
    """The product's own writer changes limits there, and its reader finds counters."""
    kernel = Kernel(range(4), version=version, folder=tmp_path)
    kernel.make(
        A, Workload(cores=constant(2.0), memory_bytes=constant(4_096.0), cache_bytes=constant(8_192.0))
    )
    root = tmp_path / "sys/fs/cgroup"
    writer = CgroupWriter(root)
    (result,) = writer.write("/pods/a", {QUOTA: 50_000})
    assert result.outcome.value == "written"
    kernel.advance(2)
    assert kernel.cgroups[A].used_cores == 0.5
    stat, usage, folder = ("cpu.stat", "memory.current", root / "pods" / "a")
    if version == 1:
        assert (root / "cpuacct/pods/a/cpuacct.usage").read_text() == "1000000000\n"
        usage, folder = "memory.usage_in_bytes", root / "memory" / "pods" / "a"
        lines = (root / "cpu/pods/a" / stat).read_text().splitlines()
    else:
        lines = (folder / stat).read_text().splitlines()
        assert lines[0] == "usage_usec 1000000"
    assert "nr_periods 20" in lines
    assert (folder / usage).read_text() == "12288\n"
    kernel.remove(A)
    assert not folder.exists()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_nothing_is_given_that_is_not_there(data: st.DataObject) -> None:
    """Sums stay within demand, quotas and CPUs, and no CPU is idle while somebody who may use it waits."""
    kernel = Kernel(range(4))
    loads = data.draw(st.lists(st.floats(0, 6), min_size=1, max_size=6))
    paths = [("k", f"class{n % 2}", f"c{n}") for n in range(len(loads))]
    for path, load in zip(paths, loads, strict=True):
        kernel.make(path, busy(load))
        kernel.write(path, SHARES, data.draw(st.sampled_from([2, 100, 1_024, 8_192])))
        kernel.write(path, QUOTA, data.draw(st.sampled_from([-1, 1_000, 50_000, 400_000])))
        kernel.write(path, CPUS, data.draw(st.sampled_from(["", "0", "1-2", "0-3"])))
    kernel.write(("k", "class0"), QUOTA, data.draw(st.sampled_from([-1, 150_000])))
    kernel.advance(1)
    by_cpus: dict[frozenset[int], float] = {}
    for path, load in zip(paths, loads, strict=True):
        cgroup, cpus = kernel.cgroups[path], kernel.effective_cpus(path)
        assert -1e-9 <= cgroup.used_cores <= min(load, cgroup.bound_cores, len(cpus)) + 1e-6
        by_cpus[cpus] = by_cpus.get(cpus, 0.0) + cgroup.used_cores
    for cpus in by_cpus:
        assert sum(amount for each, amount in by_cpus.items() if each <= cpus) <= len(cpus) + 1e-6
    assert kernel.cgroups["k", "class0"].used_cores <= kernel.cgroups["k", "class0"].bound_cores + 1e-6
    if all(kernel.value(path, CPUS) in ("", "0-3") for path in paths):
        hungry = [
            path
            for path, load in zip(paths, loads, strict=True)
            if kernel.cgroups[path].used_cores < min(load, 4.0) - 1e-6
        ]
        parts = [[kernel.cgroups[path[:depth]] for depth in (2, 3)] for path in hungry]
        unbounded = [
            each for each in parts if all(part.bound_cores > part.used_cores + 1e-6 for part in each)
        ]
        if unbounded:
            assert kernel.cgroups["k",].used_cores == pytest.approx(4.0, abs=1e-5)
