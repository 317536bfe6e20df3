"""The sampler on this machine's own cgroups of version 1, with a process that works."""

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtimeproxy.cgroups.mounts import DEFAULT_ROOT, find_mounts
from runtimeproxy.qosmanager.plugin import Need
from runtimeproxy.qosmanager.samples.kernel_files import UNIFIED, cgroup_sources, hybrid_mount
from runtimeproxy.qosmanager.samples.malachite_answers import Reading, cgroup_readings
from runtimeproxy.qosmanager.samples.reader import Loss
from runtimeproxy.qosmanager.samples.sampler import Sampler
from runtimeproxy.qosmanager.samples.waits import SWITCHED_OFF
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, Level, Metric, Window
from tests.lab.programs import need_controllers_of_v1
from tests.qosmanager.samples.malachite_server import Files

CONTROLLERS = ("cpu", "cpuacct", "memory")
NEEDS = [Need(level, metric, 30) for level in (Level.NODE, Level.POD) for metric in Metric]
WORK = "import sys\npages = bytearray(32 << 20)\nprint(flush=True)\nwhile True: pass"
DEADLINE_S = 60.0
MALACHITES = (Metric.CPU_USAGE, Metric.CPU_THROTTLED, Metric.MEMORY_WITH_CACHE, Metric.MEMORY_NUMA)
"""Of version 1."""

pytestmark = pytest.mark.slow


@pytest.fixture
def pod() -> Iterator[str]:
    need_controllers_of_v1(*CONTROLLERS)
    name = f"koord-test-{uuid.uuid4().hex[:12]}"
    folders = [DEFAULT_ROOT / each / name for each in CONTROLLERS]
    try:
        for folder in folders:
            folder.mkdir()
        yield f"/{name}"
    finally:
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()


@contextlib.contextmanager
def working(pod: str) -> Iterator[None]:
    """A process of the pod that uses 32 MiB and as much CPU as it gets."""
    with subprocess.Popen([sys.executable, "-c", "input()\n" + WORK], stdin=-1, stdout=-1) as process:
        try:
            for each in CONTROLLERS:
                (DEFAULT_ROOT / each / pod[1:] / "cgroup.procs").write_text(str(process.pid))
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
            yield
        finally:
            process.kill()


def passes_until(
    sampler: Sampler, pod: str, metric: Metric, is_enough: Callable[[Window], bool], cgroup: str = ""
) -> Window:
    """Makes a pass each tenth of a second until a window of a second is as wanted."""
    deadline_s = time.monotonic() + DEADLINE_S
    window = None
    while time.monotonic() < deadline_s:
        sampler.read({pod: Level.POD}, NEEDS)
        window = sampler.window(cgroup or pod, metric, 1.0)
        if window is not None and is_enough(window):
            return window
        time.sleep(0.1)
    raise TimeoutError(f"{metric} of {pod}: {window}")


def test_a_working_pod_and_its_end(pod: str) -> None:
    (DEFAULT_ROOT / "cpu" / pod[1:] / "cpu.cfs_quota_us").write_text("10000")
    sampler = Sampler(find_mounts(), most_cpus=os.cpu_count() or 1)
    with working(pod):
        passes_until(sampler, pod, Metric.CPU_USAGE, lambda window: window.last > 0.02)
        passes_until(sampler, pod, Metric.CPU_THROTTLED, lambda window: window.last > 0.1)
        usage = passes_until(sampler, pod, Metric.MEMORY_USAGE, lambda window: window.last > 32 << 20)
        assert usage.last < 256 << 20
        with_cache = passes_until(sampler, pod, Metric.MEMORY_WITH_CACHE, lambda window: window.count > 1)
        assert with_cache.last > 32 << 20
        assert sum(each.last for each in sampler.numa_windows(pod, 30).values()) > 32 << 20
        passes_until(sampler, pod, Metric.CPU_USAGE, lambda window: window.last > 0, NODE_CGROUP)
    for each in CONTROLLERS:
        (DEFAULT_ROOT / each / pod[1:]).rmdir()
    assert sampler.read({pod: Level.POD}, NEEDS).losses[Loss.GONE] >= 4
    for each in CONTROLLERS:
        (DEFAULT_ROOT / each / pod[1:]).mkdir()
    # The cgroup of this name is another one: its counters begin at 0, and its windows are empty.
    passes_until(sampler, pod, Metric.CPU_USAGE, lambda window: window.p99 == 0)
    window = sampler.window(pod, Metric.CPU_USAGE, 30)
    assert window is not None
    assert window.p99 == 0
    sampler.close()


def test_cycles_are_counted_or_it_is_said_why_not(pod: str) -> None:
    sampler = Sampler(find_mounts(), most_cpus=os.cpu_count() or 1)
    window = None
    with working(pod):
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            sampler.read({pod: Level.POD}, NEEDS)
            window = sampler.window(pod, Metric.CYCLES_PER_INSTRUCTION, 300)
            if sampler.cycles_problem or window is not None:
                break
            time.sleep(0.05)
    assert bool(sampler.cycles_problem) != (window is not None)
    sampler.close()


def test_malachite_and_the_files_have_the_same_numbers(pod: str) -> None:
    (DEFAULT_ROOT / "cpu" / pod[1:] / "cpu.cfs_quota_us").write_text("10000")
    mounts = find_mounts()
    groups = {each.metrics[0]: each for each in cgroup_sources(mounts) if each.metrics[0] in MALACHITES}
    sampler = Sampler(mounts, most_cpus=os.cpu_count() or 1)
    with working(pod):
        passes_until(sampler, pod, Metric.CPU_THROTTLED, lambda window: window.last > 0.1)
        passes_until(sampler, pod, Metric.MEMORY_USAGE, lambda window: window.last > 32 << 20)

        def of_files(metric: Metric) -> tuple[int, ...]:
            files = groups[metric].files
            return groups[metric].decode(
                [(mounts[name].folder / pod[1:] / file).read_bytes() for name, file in files]
            )

        before = {metric: of_files(metric) for metric in groups}
        numa_nodes = len(before[Metric.MEMORY_NUMA])
        document = Files(mounts).cgroup(pod, 1)
        found = cgroup_readings(document, pod, dict.fromkeys(groups, 1), numa_nodes)
        after = {metric: of_files(metric) for metric in groups}
    sampler.close()
    for metric in (Metric.CPU_USAGE, Metric.CPU_THROTTLED):
        reading = found[metric]
        assert isinstance(reading, Reading), reading
        between = zip(before[metric], reading.numbers, after[metric], strict=True)
        assert all(first <= number <= last for first, number, last in between)
        assert reading.numbers[0] > 0
    for metric in (Metric.MEMORY_WITH_CACHE, Metric.MEMORY_NUMA):
        reading = found[metric]
        assert isinstance(reading, Reading), reading
        # The kernel counts pages in batches of each CPU.
        assert reading.numbers == pytest.approx(after[metric], abs=4 << 20)
        assert max(reading.numbers) > 32 << 20


def test_waits_beside_other_work(pod: str) -> None:
    """Pressure of the hierarchy of version 2 beside, if there is one, and run delay of the threads."""
    unified = DEFAULT_ROOT / "unified" / pod[1:]
    mounts = {**find_mounts(), **hybrid_mount(DEFAULT_ROOT)}
    metrics = [Metric.CPU_RUN_DELAY]
    if UNIFIED in mounts:
        metrics.append(Metric.CPU_PRESSURE_FULL)
        unified.mkdir()
    sampler = Sampler(mounts, most_cpus=os.cpu_count() or 1)
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(2 * (os.cpu_count() or 1)):
                stack.enter_context(working(pod))
            if UNIFIED in mounts:
                for process in (DEFAULT_ROOT / "cpu" / pod[1:] / "cgroup.procs").read_text().split():
                    (unified / "cgroup.procs").write_text(process)
            sampler.follow_threads([pod])
            # They wait for each other: not all of them have a CPU at any time.
            passes_until(sampler, pod, Metric.CPU_RUN_DELAY, lambda window: window.last > 0.01)
            if UNIFIED in mounts:
                passes_until(sampler, pod, Metric.CPU_PRESSURE_FULL, lambda window: window.last >= 0.0)
                switch = unified / "cgroup.pressure"
                assert sampler.absence(pod, Metric.CPU_PRESSURE_FULL) == ""
                if switch.exists():
                    switch.write_text("0")
                    assert sampler.absence(pod, Metric.CPU_PRESSURE_FULL) == SWITCHED_OFF
    finally:
        sampler.close()
        if UNIFIED in mounts:
            remove(unified)


def remove(folder: Path) -> None:
    """Removes a cgroup whose processes are about to end."""
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        try:
            folder.rmdir()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError(f"{folder} has processes")
