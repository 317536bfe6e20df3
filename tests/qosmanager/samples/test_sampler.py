"""The sampler on trees of plain files of both versions: values, windows, turns, and all that goes wrong."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from runtimeproxy.qosmanager.plugin import Need
from runtimeproxy.qosmanager.samples import reader
from runtimeproxy.qosmanager.samples.cycles import CycleCounters
from runtimeproxy.qosmanager.samples.reader import Loss, PassReader
from runtimeproxy.qosmanager.samples.sampler import REST_PASSES, Sampler
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, Level, Metric
from tests.lab.procfs import open_below
from tests.qosmanager.samples.trees import PAGE_BYTES, Tree, hanging_reads

POD = "/kubepods/pod1"
OTHER = "/kubepods/pod2"
CPU = Need(Level.POD, Metric.CPU_USAGE, 30)
THROTTLED = Need(Level.POD, Metric.CPU_THROTTLED, 30)
MEMORY = Need(Level.POD, Metric.MEMORY_USAGE, 30)
WITH_CACHE = Need(Level.POD, Metric.MEMORY_WITH_CACHE, 30)
PRESSURE = Need(Level.POD, Metric.MEMORY_PRESSURE, 30)


@pytest.fixture(params=[1, 2])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tree]:
    made = Tree(tmp_path, request.param)
    yield made
    made.sampler.close()


def last(tree: Tree, metric: Metric, cgroup: str = POD) -> float | None:
    window = tree.sampler.window(cgroup, metric, 1.0)
    return None if window is None else window.last


def test_cpu_and_throttling_over_the_time_that_passed(tree: Tree) -> None:
    pod = tree.cgroup(POD)
    tree.tick(CPU, THROTTLED)
    assert last(tree, Metric.CPU_USAGE) is None
    pod.set_cpu(1.0, periods=10, throttled=4)
    tree.tick(CPU, THROTTLED, after_s=2.0)
    assert last(tree, Metric.CPU_USAGE) == pytest.approx(0.5)
    assert last(tree, Metric.CPU_THROTTLED) == pytest.approx(0.4)
    pod.set_cpu(3.0, periods=10, throttled=4)
    tree.tick(CPU, THROTTLED)
    assert last(tree, Metric.CPU_USAGE) == pytest.approx(2.0)
    assert last(tree, Metric.CPU_THROTTLED) == 0
    window = tree.sampler.window(POD, Metric.CPU_USAGE, 30)
    assert window is not None
    assert window.avg == pytest.approx(1.25)
    assert window.count == 2
    assert tree.sampler.mean(POD, Metric.CPU_USAGE, 30) == window.avg
    assert tree.sampler.mean(OTHER, Metric.CPU_USAGE, 30) is None


def test_memory_pressure_and_numa_nodes(tree: Tree) -> None:
    pod = tree.cgroup(POD)
    needs = [Need(Level.POD, metric, 30) for metric in Metric]
    tree.tick(*needs)
    pod.set_memory(8 * PAGE_BYTES, inactive_file=4 * PAGE_BYTES, active_file=PAGE_BYTES)
    pod.set_pressure(500_000, 250_000)
    tree.tick(*needs)
    assert last(tree, Metric.MEMORY_USAGE) == 8 * PAGE_BYTES
    assert last(tree, Metric.MEMORY_WITH_CACHE) == 13 * PAGE_BYTES
    assert last(tree, Metric.MEMORY_WORKING_SET) == 9 * PAGE_BYTES
    for some, full in (
        (Metric.CPU_PRESSURE, Metric.CPU_PRESSURE_FULL),
        (Metric.MEMORY_PRESSURE, Metric.MEMORY_PRESSURE_FULL),
        (Metric.IO_PRESSURE, Metric.IO_PRESSURE_FULL),
    ):
        assert last(tree, some) == pytest.approx(0.5)
        assert last(tree, full) == pytest.approx(0.25)
    windows = tree.sampler.numa_windows(POD, 1.0)
    assert {node: window.last for node, window in windows.items()} == {0: 0, 1: 13 * PAGE_BYTES}


def test_the_node(tree: Tree) -> None:
    needs = [Need(Level.NODE, metric, 30) for metric in Metric]
    tree.tick(*needs)
    tree.set_node(2.0, 1 << 30, some_us=100_000)
    tree.tick(*needs)
    assert last(tree, Metric.CPU_USAGE, NODE_CGROUP) == pytest.approx(2.0)
    assert last(tree, Metric.MEMORY_WITH_CACHE, NODE_CGROUP) == 1 << 30
    assert last(tree, Metric.MEMORY_USAGE, NODE_CGROUP) == 1 << 29
    assert last(tree, Metric.MEMORY_WORKING_SET, NODE_CGROUP) == 1 << 29
    assert last(tree, Metric.CPU_LOAD, NODE_CGROUP) == pytest.approx(2.0)
    assert last(tree, Metric.IO_PRESSURE, NODE_CGROUP) == pytest.approx(0.1)
    windows = tree.sampler.numa_windows(NODE_CGROUP, 1.0)
    assert {node: window.last for node, window in windows.items()} == {0: 0, 1: 1 << 30}


@pytest.mark.parametrize(("later_s", "loss"), [(0.1, Loss.COUNTER_BACK), (1e9, Loss.IMPLAUSIBLE)])
def test_what_the_hypervisor_takes_costs_no_sample_of_usage(tree: Tree, later_s: float, loss: Loss) -> None:
    needs = [Need(Level.NODE, metric, 30) for metric in (Metric.CPU_USAGE, Metric.CPU_STEAL)]
    tree.set_node(0.0, 0, steal_s=1.0)
    tree.tick(*needs)
    tree.set_node(2.0, 0, steal_s=1.5)
    tree.tick(*needs)
    assert last(tree, Metric.CPU_STEAL, NODE_CGROUP) == pytest.approx(0.5)
    tree.set_node(3.0, 0, steal_s=later_s)
    assert tree.tick(*needs).losses == {loss: 1}
    assert last(tree, Metric.CPU_USAGE, NODE_CGROUP) == pytest.approx(1.0)


def test_what_is_needed_in_each_pass_and_the_rest_in_turns(tree: Tree) -> None:
    for number in range(30):
        tree.cgroup(f"/kubepods/pod{number}")
    sources = tree.tick(CPU, passes=REST_PASSES).files
    reports = [tree.tick(CPU) for _ in range(REST_PASSES)]
    # What is not needed of one of the 30 pods, or of that and the node, whose CPU usage is not needed either.
    per_pod = 6 if tree.version == 1 else 5
    assert {report.files for report in reports} == {30 + per_pod, 30 + per_pod + 7}
    assert sources in {report.files for report in reports}
    assert not any(report.losses for report in reports)
    windows = [
        tree.sampler.window(f"/kubepods/pod{number}", Metric.MEMORY_USAGE, 300) for number in range(30)
    ]
    assert [window.count for window in windows if window is not None] == [2] * 30


def test_what_is_needed_less_often_is_read_in_turns(tree: Tree) -> None:
    for number in range(10):
        tree.cgroup(f"/kubepods/pod{number}")
    seldom = Need(Level.POD, Metric.MEMORY_NUMA, 10, every_s=5)

    def counts(*needs: Need) -> list[int]:
        tree.tick(*needs, passes=REST_PASSES)
        windows = (tree.sampler.numa_windows(f"/kubepods/pod{number}", 9.5) for number in range(10))
        return [window[0].count for window in windows]

    assert counts(seldom) == [2] * 10
    # As often as the plugin that needs it most often.
    assert counts(seldom, Need(Level.POD, Metric.MEMORY_NUMA, 10)) == [10] * 10
    # 7 s is no period of the turns.
    assert set(counts(seldom._replace(every_s=7))) == {1, 2}


def test_a_window_ends_now_and_is_no_longer_than_asked(tree: Tree) -> None:
    pod = tree.cgroup(POD)
    for value in range(1, 41):
        pod.set_memory(value * PAGE_BYTES)
        tree.tick(WITH_CACHE)
    for length_s, count in ((1, 1), (5, 5), (30, 30)):
        window = tree.sampler.window(POD, Metric.MEMORY_WITH_CACHE, length_s)
        assert window is not None
        assert (window.count, window.last) == (count, 40 * PAGE_BYTES)
    tree.now_s += 60
    assert tree.sampler.window(POD, Metric.MEMORY_WITH_CACHE, 30) is None


def test_a_need_that_comes_and_goes_keeps_samples_and_counters(tree: Tree) -> None:
    pod = tree.cgroup(POD)
    for second in range(20):
        pod.set_cpu(second * 0.5)
        tree.tick(*([CPU] if second % 2 else [CPU, THROTTLED, MEMORY]))
    window = tree.sampler.window(POD, Metric.CPU_USAGE, 30)
    assert window is not None
    assert window.count == 19
    assert window.p50 == pytest.approx(0.5)
    tree.tick(Need(Level.POD, Metric.CPU_USAGE, 5))
    shorter = tree.sampler.window(POD, Metric.CPU_USAGE, 300)
    assert shorter is not None
    assert shorter.count == 7


def test_a_counter_that_goes_back_makes_no_rate(tree: Tree) -> None:
    pod = tree.cgroup(POD)
    for used_s in (5.0, 6.0):
        pod.set_cpu(used_s)
        tree.tick(CPU)
    pod.set_cpu(1.0)
    assert tree.tick(CPU).losses[Loss.COUNTER_BACK] == 1
    assert last(tree, Metric.CPU_USAGE) is None
    pod.set_cpu(1.5)
    tree.tick(CPU)
    assert last(tree, Metric.CPU_USAGE) == pytest.approx(0.5)


def test_a_counter_that_cannot_be_makes_no_rate(tree: Tree) -> None:
    pod = tree.cgroup(POD)
    for used_s in (0.0, 1.0):
        pod.set_cpu(used_s)
        tree.tick(CPU)
    pod.set_cpu(1_000_000.0)
    assert tree.tick(CPU).losses == {Loss.IMPLAUSIBLE: 1}
    pod.set_cpu(2.0)
    tree.tick(CPU)
    assert last(tree, Metric.CPU_USAGE) is None
    pod.set_cpu(2.5)
    tree.tick(CPU)
    assert last(tree, Metric.CPU_USAGE) == pytest.approx(0.5)


def test_a_container_that_vanishes_costs_its_samples_only(tree: Tree) -> None:
    pod, other = tree.cgroup(POD), tree.cgroup(OTHER)
    tree.tick(CPU, MEMORY, passes=2)
    pod.remove()
    # Plain files do not say that they were removed; within ten reads it is looked for.
    reports = [tree.tick(CPU, MEMORY) for _ in range(REST_PASSES)]
    assert any(report.losses[Loss.GONE] for report in reports)
    assert last(tree, Metric.CPU_USAGE) is None
    other.set_cpu(0.5)
    tree.tick(CPU, MEMORY)
    assert last(tree, Metric.CPU_USAGE, OTHER) == pytest.approx(0.5)
    losses = tree.sampler.losses()
    assert losses[Loss.GONE][1].startswith(str(tree.root))
    del tree.targets[POD]
    tree.tick(CPU, MEMORY)
    assert tree.sampler.window(POD, Metric.MEMORY_USAGE, 300) is None


def test_a_cgroup_made_anew_under_its_name_starts_from_nothing(tree: Tree) -> None:
    pod = tree.cgroup(POD)
    for used_s in (1.0, 2.0):
        pod.set_cpu(used_s)
        tree.tick(CPU)
    pod.remove()
    again = tree.cgroup(POD)
    again.set_cpu(3.9)
    tree.tick(CPU, passes=REST_PASSES)
    again.set_cpu(4.0)
    tree.tick(CPU)
    window = tree.sampler.window(POD, Metric.CPU_USAGE, 30)
    assert window is not None
    assert window.p99 == pytest.approx(0.1)


def test_a_cgroup_that_comes_later_is_sampled_soon(tree: Tree) -> None:
    tree.targets[POD] = Level.POD
    assert tree.tick(CPU).losses == {Loss.GONE: 1}
    pod = tree.cgroup(POD)
    tree.tick(CPU)
    pod.set_cpu(0.5)
    tree.tick(CPU)
    assert last(tree, Metric.CPU_USAGE) == pytest.approx(0.5)
    pod.remove()
    tree.tick(CPU, passes=1_000)
    tree.cgroup(POD)
    tree.tick(CPU, passes=REST_PASSES + 1)
    assert last(tree, Metric.CPU_USAGE) == 0


def cpu_file(tree: Tree) -> str:
    return "cpuacct.usage" if tree.version == 1 else "cpu.stat"


def replace_by_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def replace_by_link(file: Path) -> None:
    file.rename(file.with_suffix(".real"))
    file.symlink_to(file.with_suffix(".real"))


@pytest.mark.parametrize(
    ("spoil", "loss"),
    [
        (lambda file: file.write_bytes(b"\x00\xff" * 20_000), Loss.GARBAGE),
        (lambda file: file.write_bytes(b""), Loss.GARBAGE),
        (replace_by_fifo, Loss.GARBAGE),
        (replace_by_link, Loss.UNREADABLE),
        (lambda file: (file.unlink(), file.mkdir()), Loss.GARBAGE),
    ],
)
def test_a_file_that_cannot_be_used(tree: Tree, spoil: Callable[[Path], object], loss: Loss) -> None:
    pod, other = tree.cgroup(POD), tree.cgroup(OTHER)
    spoil(pod.file("cpuacct" if tree.version == 1 else "cpu", cpu_file(tree)))
    assert tree.tick(CPU).losses == {loss: 1}
    other.set_cpu(0.5)
    tree.tick(CPU)
    assert last(tree, Metric.CPU_USAGE) is None
    assert last(tree, Metric.CPU_USAGE, OTHER) == pytest.approx(0.5)


def end_of(threads: Iterable[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_read_that_hangs_costs_that_file_only(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    pod, other = tree.cgroup(POD), tree.cgroup(OTHER)
    stuck = str(pod.file("cpuacct" if tree.version == 1 else "cpu", cpu_file(tree)))
    tree.tick(CPU)
    with hanging_reads(monkeypatch, lambda path: path == stuck) as released:
        monkeypatch.setattr(tree.reader, "_stuck_after_s", 1.0)
        assert tree.tick(CPU).losses == {Loss.STUCK: 1}
        # What is only slow on a busy machine does not hang.
        monkeypatch.setattr(tree.reader, "_stuck_after_s", 30.0)
        other.set_cpu(1.0)
        report = tree.tick(CPU, after_s=2.0)
        assert not report.losses
        assert tree.sampler.hanging_threads == 1
        assert last(tree, Metric.CPU_USAGE, OTHER) == pytest.approx(0.5)
        first, second = tree.reader._hanging[0], tree.reader._thread
        assert second is not None
        assert first is not second
        released.set()
        end_of([first])
    assert tree.sampler.hanging_threads == 0
    pod.set_cpu(3.0)
    tree.tick(CPU)
    pod.set_cpu(3.5)
    tree.tick(CPU)
    assert last(tree, Metric.CPU_USAGE) == pytest.approx(0.5)
    assert tree.reader._thread is second


def test_many_reads_that_hang_end_the_pass(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        tree.cgroup(f"/kubepods/pod{number}")
    tree.reader._stuck_after_s = 0.3
    monkeypatch.setattr(reader, "MOST_HANGING", 4)
    with hanging_reads(monkeypatch, lambda path: "/kubepods/" in path):
        reports = [tree.tick(CPU) for _ in range(3)]
        assert [report.losses[Loss.STUCK] for report in reports] == [2, 2, 0]
        assert reports[0].losses[Loss.NOT_READ] > 0
        assert tree.sampler.hanging_threads == 4
        assert reports[-1].losses[Loss.NOT_READ] == reports[-1].files
        hanging = [*tree.reader._hanging]
    end_of(hanging)
    assert tree.tick(CPU).losses[Loss.NOT_READ] == 0


def test_the_reason_of_a_missing_sample(tree: Tree) -> None:
    runnable = Need(Level.NODE, Metric.CPU_RUNNABLE, 30)
    schedstat = tree.root / "proc/schedstat"

    def reason() -> str:
        return tree.sampler.missing_reason(NODE_CGROUP, Metric.CPU_RUNNABLE)

    tree.tick(runnable)
    assert reason() == f"the kernel has no {schedstat} (CONFIG_SCHEDSTATS)"
    schedstat.write_text("version 15\n")
    tree.tick(runnable)
    assert reason() == f"{schedstat}: its content is not that of such a file"
    schedstat.write_text("cpu0 0 0 0 0 0 0 500 70 0\n")
    # It is looked for less often after failures.
    tree.tick(runnable, passes=2)
    assert reason() == f"{schedstat} has not been read twice yet"
    tree.tick(runnable)
    assert tree.sampler.cpu_windows(10)
    # Nothing has been read since.
    assert reason() == "there is no fresh sample"
    assert tree.sampler.missing_reason("/none", Metric.CPU_USAGE) == "there is no fresh sample"


def test_descriptors_are_kept_within_their_number_and_closed(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 2)
    before = open_below(tmp_path)
    sampler = Sampler(
        tree.mounts,
        most_cpus=4,
        procfs=tmp_path / "proc",
        sysfs=tmp_path / "sys",
        most_kept_files=5,
        reader=PassReader(stuck_after_s=30),
    )
    targets = {f"/kubepods/pod{number}": Level.POD for number in range(20)}
    for path in targets:
        tree.cgroup(path)
    for _ in range(2 * REST_PASSES):
        assert not sampler.read(targets, [CPU]).losses
        assert open_below(tmp_path) <= before + 5
    sampler.close()
    assert open_below(tmp_path) == before
    tree.sampler.close()


def test_cycles_of_the_levels_that_need_them(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 2)
    seen: list[list[str]] = []

    class Cycles(CycleCounters):
        def step(self, cgroups: object) -> list[tuple[str, float]]:
            assert isinstance(cgroups, list)
            seen.append(cgroups)
            return [(POD, 1.5), (OTHER, 2.5)]

    sampler = Sampler(
        tree.mounts,
        most_cpus=4,
        procfs=tmp_path / "proc",
        sysfs=tmp_path / "sys",
        cycles=Cycles(tmp_path, 4),
    )
    need = Need(Level.POD, Metric.CYCLES_PER_INSTRUCTION, 300)
    sampler.read({POD: Level.POD, OTHER: Level.CONTAINER}, [])
    sampler.read({POD: Level.POD, OTHER: Level.CONTAINER}, [need])
    assert seen == [[], [POD]]
    window = sampler.window(POD, Metric.CYCLES_PER_INSTRUCTION, 300)
    assert window is not None
    assert (window.last, window.count) == (1.5, 1)
    assert sampler.window(OTHER, Metric.CYCLES_PER_INSTRUCTION, 300) is None
    sampler.close()
    tree.sampler.close()
