"""Waits for CPUs: run delay of threads, pressure beside version 1, and why there is none."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.cgroups.mounts import Mount
from runtimeproxy.qosmanager.plugin import Need
from runtimeproxy.qosmanager.samples import waits
from runtimeproxy.qosmanager.samples.kernel_files import UNIFIED, hybrid_mount
from runtimeproxy.qosmanager.samples.sampler import Sampler
from runtimeproxy.qosmanager.samples.waits import RunDelays, pressure_problem
from runtimeproxy.qosmanager.snapshot import Level, Metric
from tests.qosmanager.samples.trees import Tree, pressure

POD = "/kubepods/pod1"
OTHER = "/kubepods/pod2"
DELAY = Need(Level.POD, Metric.CPU_RUN_DELAY, 10)
FULL = Need(Level.POD, Metric.CPU_PRESSURE_FULL, 10)


@pytest.fixture(params=[1, 2])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tree]:
    made = Tree(tmp_path, request.param)
    yield made
    made.sampler.close()


def put_threads(tree: Tree, process: int, threads: dict[int, tuple[int, int]]) -> None:
    """Gives a process exactly these threads; run and wait time in ns."""
    folder = tree.root / "proc" / str(process) / "task"
    for thread, (ran_ns, waited_ns) in threads.items():
        (folder / str(thread)).mkdir(parents=True, exist_ok=True)
        (folder / str(thread) / "schedstat").write_text(f"{ran_ns} {waited_ns} 7\n")


def put_processes(tree: Tree, cgroup: str, *processes: int) -> None:
    folder = tree.mounts["cpu"].folder / cgroup.strip("/")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text("".join(f"{each}\n" for each in processes))


def delays(tree: Tree, cgroup: str = POD) -> list[tuple[float, float]]:
    return [(at_s - 1_000.0, value) for at_s, value in tree.sampler.timed(cgroup, Metric.CPU_RUN_DELAY, 10)]


def test_the_run_delay_of_all_threads(tree: Tree) -> None:
    tree.cgroup(POD)
    put_processes(tree, POD, 1)
    put_processes(tree, f"{POD}/c1", 5)
    put_threads(tree, 1, {1: (0, 0)})
    put_threads(tree, 5, {5: (0, 0), 6: (1_000, 0)})
    tree.sampler.follow_threads([POD])
    tree.tick(DELAY)
    assert delays(tree) == []
    put_threads(tree, 1, {1: (60, 20)})
    put_threads(tree, 5, {6: (1_010, 10)})
    tree.tick(DELAY)
    assert delays(tree) == [(2.0, 0.3)]
    put_threads(tree, 1, {1: (160, 20)})
    put_threads(tree, 5, {6: (1_010, 9)})
    tree.tick(DELAY)
    assert delays(tree) == [(2.0, 0.3), (3.0, -1.0)]


def test_a_new_thread_counts_from_the_pass_after_its_listing(tree: Tree) -> None:
    tree.cgroup(POD)
    put_processes(tree, POD, 1)
    put_threads(tree, 1, {1: (0, 0)})
    tree.sampler.follow_threads([POD])
    tree.tick(DELAY)
    put_threads(tree, 1, {2: (5_000, 5_000)})
    # Listed within these.
    tree.tick(DELAY, passes=10)
    put_threads(tree, 1, {2: (5_030, 5_010)})
    tree.tick(DELAY)
    assert delays(tree) == [(12.0, 0.25)]


@pytest.mark.parametrize("kept_files", [0, 1_000])
def test_a_thread_that_has_ended_has_the_others_listed_anew(kept_files: int, tmp_path: Path) -> None:
    tree = Tree(tmp_path, 2)
    procfs, now = tmp_path / "proc", iter(range(1_000))
    reader = RunDelays(
        tree.mounts["cpu"].folder, procfs, lambda: float(next(now)), most_kept_files=kept_files
    )
    put_processes(tree, POD, 1)
    put_threads(tree, 1, {1: (0, 0), 2: (0, 0)})
    reader.read([POD])
    ended = procfs / "1/task/2"
    # As the kernel ends an open file of a thread.
    os.close(reader._followed[POD].descriptors.pop(2)) if kept_files else None
    shutil.rmtree(ended)
    put_threads(tree, 1, {1: (10, 0), 3: (0, 0)})
    assert [each.share for each in reader.read([POD])] == [0.0]
    put_threads(tree, 1, {1: (20, 0), 3: (0, 0)})
    reader.read([POD])
    put_threads(tree, 1, {1: (20, 0), 3: (0, 10)})
    assert [each.share for each in reader.read([POD])] == [1.0]
    reader.close()


def test_only_the_pods_that_are_named(tree: Tree) -> None:
    for cgroup, process in ((POD, 1), (OTHER, 2)):
        tree.cgroup(cgroup)
        put_processes(tree, cgroup, process)
        put_threads(tree, process, {process: (0, 0)})
    tree.sampler.follow_threads([OTHER])
    tree.tick(DELAY)
    put_threads(tree, 1, {1: (5, 5)})
    put_threads(tree, 2, {2: (5, 5)})
    tree.tick(DELAY)
    assert (delays(tree), delays(tree, OTHER)) == ([], [(2.0, 0.5)])
    tree.sampler.follow_threads([])
    tree.tick(DELAY, passes=12)
    assert delays(tree, OTHER) == []


def test_the_first_pods_have_all_the_threads_that_may_be_read(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 2)
    now = iter(range(1_000))
    reader = RunDelays(tree.mounts["cpu"].folder, tmp_path / "proc", lambda: float(next(now)), most_threads=3)
    for cgroup, process in ((POD, 10), (OTHER, 20)):
        put_processes(tree, cgroup, process)
        put_threads(tree, process, {process + number: (0, 0) for number in range(2)})
    reader.read([OTHER, POD])
    for process in (10, 20):
        put_threads(tree, process, {process: (50, 50), process + 1: (50, 50)})
    found = {each.cgroup: each.share for each in reader.read([OTHER, POD, "/gone"])}
    assert found == {OTHER: 0.5, POD: 0.5}
    assert len(reader._followed[OTHER].threads) == 2
    assert len(reader._followed[POD].threads) == 1


def test_a_pod_with_many_threads_leaves_others_their_share(tmp_path: Path) -> None:
    """Its author could hide the waits of all others, and CPU suppress is off as long as one pod is seen."""
    tree = Tree(tmp_path, 2)
    folder, now = tree.mounts["cpu"].folder, iter(range(1_000))
    reader = RunDelays(folder, tmp_path / "proc", lambda: float(next(now)), most_threads=10)
    pods = {"/hog": (100, 30), POD: (200, 2), OTHER: (300, 5)}
    for cgroup, (process, _) in pods.items():
        put_processes(tree, cgroup, process)
    found = set[str]()
    for number in range(4):
        for process, count in pods.values():
            put_threads(tree, process, dict.fromkeys(range(process, process + count), (50 * number, 0)))
        found = {each.cgroup for each in reader.read(list(pods))}
        assert sum(len(each.threads) for each in reader._followed.values()) <= 10
    assert found == set(pods)
    # A third of ten each, and what one does not need goes to the first.
    assert [len(reader._followed[each].threads) for each in pods] == [5, 2, 3]
    reader.close()


@pytest.mark.parametrize(
    ("content", "problem"),
    [("0 0 0\n", waits.ZERO_SCHEDSTAT), ("nonsense\n", ""), ("-5 1 2\n", ""), ("", "")],
)
def test_other_schedstats(tree: Tree, content: str, problem: str) -> None:
    tree.cgroup(POD)
    put_processes(tree, POD, 1)
    folder = tree.root / "proc/1/task/1"
    folder.mkdir(parents=True)
    (folder / "schedstat").write_text(content)
    tree.sampler.follow_threads([POD])
    tree.tick(DELAY, passes=3)
    assert delays(tree) == []
    assert tree.sampler.absence(POD, Metric.CPU_RUN_DELAY) == problem


def test_threads_that_procfs_hides(tree: Tree) -> None:
    tree.cgroup(POD)
    # 0: of another PID namespace.
    put_processes(tree, POD, 0, 11)
    tree.sampler.follow_threads([POD])
    tree.tick(DELAY)
    assert tree.sampler.absence(POD, Metric.CPU_RUN_DELAY) == waits.HIDDEN
    # One that has ended is no reason.
    put_processes(tree, POD, 11, 12)
    put_threads(tree, 12, {12: (1_000, 0)})
    tree.tick(DELAY, passes=10)
    put_threads(tree, 12, {12: (2_000, 1_000)})
    tree.tick(DELAY)
    assert len(delays(tree)) == 1
    assert tree.sampler.absence(POD, Metric.CPU_RUN_DELAY) == ""


def test_a_kernel_without_schedstat(tree: Tree) -> None:
    tree.cgroup(POD)
    put_processes(tree, POD, 1)
    (tree.root / "proc/1/task/1").mkdir(parents=True)
    (tree.root / "proc/1/task/1/stat").write_text("1 (x) S\n")
    tree.sampler.follow_threads([POD])
    tree.tick(DELAY)
    assert tree.sampler.absence(POD, Metric.CPU_RUN_DELAY) == waits.NO_SCHEDSTAT


def test_times_of_samples(tree: Tree) -> None:
    pod = tree.cgroup(POD)
    for number in range(4):
        pod.set_pressure(0, number * 100_000)
        tree.tick(FULL, after_s=1.5 if number == 2 else 1.0)
    found = tree.sampler.timed(POD, Metric.CPU_PRESSURE_FULL, 10)
    assert [at_s for at_s, _ in found] == [1_002.0, 1_003.5, 1_004.5]
    assert [value for _, value in found] == pytest.approx([0.1, 0.1 / 1.5, 0.1])
    assert len(tree.sampler.timed(POD, Metric.CPU_PRESSURE_FULL, 1.1)) == 2
    assert tree.sampler.timed(OTHER, Metric.CPU_PRESSURE_FULL, 10) == ()


# --- pressure -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({"pod/cpu.pressure": pressure(1, 1)}, "", id="there"),
        pytest.param({"pod/cpu.pressure": "some avg10=0.00 total=1\n"}, waits.NO_FULL, id="before-5.13"),
        pytest.param(
            {"pod/cgroup.pressure": "0\n", "proc/pressure/cpu": pressure(1, 0)},
            waits.SWITCHED_OFF,
            id="switched-off",
        ),
        pytest.param({"pod/cgroup.procs": ""}, waits.PSI_IS_OFF, id="psi=0"),
        pytest.param({}, "", id="gone"),
        pytest.param(
            {"pod/cgroup.pressure": "1\n", "proc/pressure/cpu": pressure(1, 0)},
            f"cpu.pressure: {os.strerror(errno.ENOENT)}",
            id="not-known",
        ),
    ],
)
def test_why_there_is_no_pressure(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert pressure_problem(tmp_path / "pod", tmp_path / "proc") == expected


def test_a_kernel_that_answers_that_it_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pod").mkdir()

    def read_bytes(path: Path) -> bytes:
        raise OSError(errno.EOPNOTSUPP, "not supported", str(path))

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert pressure_problem(tmp_path / "pod", tmp_path / "proc") == waits.PSI_IS_OFF


def test_pressure_beside_version_1_counts_where_the_processes_are(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 1)
    root = tmp_path / "cgroup"
    assert hybrid_mount(root) == {}
    (root / "unified").mkdir(parents=True)
    (root / "unified/cpu.pressure").write_text(pressure(0, 0))
    mounts = {**tree.mounts, **hybrid_mount(root)}
    assert mounts[UNIFIED] == Mount(2, root / "unified")
    tree.sampler.close()
    tree.sampler = Sampler(
        mounts, most_cpus=4, procfs=tmp_path / "proc", sysfs=tmp_path / "sys", reader=tree.reader
    )
    for cgroup, populated in ((POD, 1), (OTHER, 0)):
        tree.cgroup(cgroup)
        folder = root / "unified" / cgroup.strip("/")
        folder.mkdir(parents=True)
        (folder / "cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")
        for resource in ("cpu", "memory", "io"):
            (folder / f"{resource}.pressure").write_text(pressure(0, 0))
    tree.tick(FULL)
    for cgroup in (POD, OTHER):
        (root / "unified" / cgroup.strip("/") / "cpu.pressure").write_text(pressure(0, 40_000))
    tree.tick(FULL)
    assert tree.sampler.last(POD, Metric.CPU_PRESSURE_FULL, 1.0) == pytest.approx(0.04)
    assert tree.sampler.last(OTHER, Metric.CPU_PRESSURE_FULL, 1.0) is None
    tree.sampler.close()


# --- this machine -------------------------------------------------------------------------------------------


def test_threads_of_this_machine(tmp_path: Path) -> None:
    """A real procfs: a process with two threads, one of which works."""
    if not Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").exists():
        pytest.skip("this kernel has no schedstat")
    code = (
        "import sys, threading\n"
        "waiter = threading.Event()\n"
        "threading.Thread(target=waiter.wait, daemon=True).start()\n"
        "for _ in sys.stdin:\n"
        "    sum(range(400_000)); print(flush=True)\n"
    )
    folder = tmp_path / "pod"
    folder.mkdir()
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        (folder / "cgroup.procs").write_text(f"{process.pid}\n")
        now = iter(range(10))
        reader = RunDelays(tmp_path, Path("/proc"), lambda: float(next(now)))
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert reader.read(["/pod"]) == []
        threads = reader._followed["/pod"].threads
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        found = reader.read(["/pod"])
        process.stdin.close()
    assert len(threads) == 2
    assert [each.cgroup for each in found] == ["/pod"]
    assert 0.0 <= found[0].share < 1.0
    assert reader.problem == ""


def test_pressure_of_this_machine() -> None:
    """The files of a real version 2, where it has pressure: some of its cgroups have a line `full`."""
    roots = [Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")]
    root = next((each for each in roots if (each / "cpu.pressure").exists()), None)
    if root is None:
        pytest.skip("no hierarchy of version 2 with pressure")
    assert pressure_problem(root, Path("/proc")) == ""
