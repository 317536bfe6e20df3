"""Values of processes: real ones in cgroups of this machine's version 1, and folders like those of procfs."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from runtimeproxy.cgroups import processes
from runtimeproxy.cgroups.writer import CgroupWriter, WriteOutcome
from runtimeproxy.fields.formats import Members, ProcessFormat
from tests.cgroups.boxes import CAP_SYS_RESOURCE, SCORE, Box, has_right, real_box, score_of
from tests.lab.deadline import wait_until
from tests.lab.programs import need_controllers_of_v1


@pytest.fixture
def box() -> Iterator[Box]:
    with real_box() as made:
        yield made


def test_all_processes_get_a_value_and_those_with_it_give_it_back(box: Box) -> None:
    one, other, below = box.start(), box.start(), box.start("systemd", "unit")
    assert box.text() == "0\n"
    assert (box.writer.read(box.cgroup, SCORE), box.writer.decode(SCORE, "0\n")) == (0, 0)
    result = box.write(300)
    assert (result.outcome, result.old) == (WriteOutcome.WRITTEN, 0)
    assert [score_of(each) for each in (one, other, below)] == [300] * 3
    assert box.write(300).outcome is WriteOutcome.UNCHANGED
    Path(f"/proc/{other}/oom_score_adj").write_text("500")
    assert box.text() == "300 500\n"
    assert box.writer.read(box.cgroup, SCORE) is None
    assert box.writer.parts(SCORE, box.text()) == ("300", "500")
    assert not box.writer.matches(SCORE, 300, box.text())
    assert box.write(7, 300).outcome is WriteOutcome.WRITTEN
    assert [score_of(each) for each in (one, other, below)] == [7, 500, 7]
    assert box.write(8, 300).outcome is WriteOutcome.UNCHANGED


def test_a_cgroup_without_a_process_has_what_is_wanted(box: Box) -> None:
    assert box.text() == "\n"
    assert box.writer.matches(SCORE, 300, box.text())
    assert box.writer.parts(SCORE, box.text()) == ()
    assert box.write(300).outcome is WriteOutcome.UNCHANGED


def test_a_cgroup_that_is_gone() -> None:
    need_controllers_of_v1("pids")
    (result,) = CgroupWriter().write("/gone-or-never-there", {SCORE: 5})
    assert (result.outcome, result.error) == (
        WriteOutcome.MISSING,
        "ENOENT: No such file or directory",
    )


FORKS = """
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    # Each generation forks the next one, and a child that lives for a moment.
    for _ in range(3):
        if os.fork() == 0:
            os.execvp("true", ["true"])
    if os.fork():
        os._exit(0)
"""


def test_processes_that_fork_while_they_are_written_to(box: Box) -> None:
    for _ in range(4):
        box.start(program=(sys.executable, "-c", FORKS))
    for score in (100, 200, 300):
        assert box.write(score).outcome in (WriteOutcome.WRITTEN, WriteOutcome.FAILED)
        # One that is being forked in that moment is found by the next comparison.
        wait_until(partial(has_all, box, score), f"all have {score}")


def has_all(box: Box, score: int) -> bool:
    return box.write(score).outcome is WriteOutcome.UNCHANGED and box.text() == f"{score}\n"


def test_a_process_that_ends_meanwhile_is_no_failure(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = box.start(), box.start()
    write = processes.ProcFile.write

    def write_to_dead(self: processes.ProcFile, pid: int, folder: int, text: str) -> None:
        if pid == one:
            os.kill(one, signal.SIGKILL)
            box.started[0].wait()
        write(self, pid, folder, text)

    monkeypatch.setattr(processes.ProcFile, "write", write_to_dead)
    result = box.write(300)
    assert (result.outcome, result.error) == (WriteOutcome.WRITTEN, "")
    assert score_of(other) == 300


def test_no_other_process_gets_the_value_of_one_whose_number_it_has(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a process had ended, and this number were that of another one in another cgroup by then."""
    mine = box.start()
    with subprocess.Popen(["sleep", "600"]) as stranger:
        before = score_of(stranger.pid)
        add = processes._add_members

        def add_stranger(found: processes._Found, file: str, cgroup: int) -> None:
            add(found, file, cgroup)
            found.pids[stranger.pid] = None

        monkeypatch.setattr(processes, "_add_members", add_stranger)
        assert box.write(before + 100).outcome is WriteOutcome.WRITTEN
        assert (score_of(mine), score_of(stranger.pid)) == (before + 100, before)
        stranger.kill()


@pytest.mark.skipif(has_right(CAP_SYS_RESOURCE), reason="this process may lower every score")
def test_what_the_kernel_refuses_is_said_with_the_missing_right(box: Box) -> None:
    box.start()
    box.start()
    result = box.write(-300)
    assert (result.outcome, result.left) == (WriteOutcome.FAILED, None)
    assert result.error == "EACCES: such a value needs CAP_SYS_RESOURCE (2 of 2 processes)"


@pytest.mark.skipif(has_right(CAP_SYS_RESOURCE), reason="this process may lower every score")
def test_what_only_some_processes_may_have_is_there_for_these(box: Box) -> None:
    low = box.start()
    high = box.start(score=500)
    # Its least is 0, as that of its parent was: the other one may go there, and no lower.
    assert box.write(200).outcome is WriteOutcome.WRITTEN
    assert (score_of(low), score_of(high)) == (200, 200)


# --- folders like procfs's ----------------------------------------------------------------------------------


class Plain:
    """A cgroup tree and a procfs of plain files."""

    def __init__(self, folder: Path, version: int) -> None:
        self.root, self.procfs = folder / "cgroup", folder / "proc"
        self.top = self.root if version == 2 else self.root / "pids"
        self.top.mkdir(parents=True)
        if version == 2:
            (self.root / "cgroup.controllers").write_text("cpu memory pids\n")
        self.writer = CgroupWriter(self.root, self.procfs)

    def put(self, cgroup: str, *pids: int, file: str = "cgroup.procs") -> None:
        folder = self.top / cgroup
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("".join(f"{pid}\n" for pid in pids))

    def make(self, pid: int, cgroup: str, score: object = 0) -> Path:
        folder = self.procfs / str(pid)
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(f"0::/{cgroup}\n")
        (folder / SCORE).write_text(f"{score}\n")
        return folder / SCORE


@pytest.fixture(params=[1, 2])
def plain(tmp_path: Path, request: pytest.FixtureRequest) -> Plain:
    return Plain(tmp_path, request.param)


def test_plain_files(plain: Plain) -> None:
    plain.put("pod/box", 11, 12)
    plain.put("pod/box/inner", 13)
    files = [
        plain.make(11, "pod/box"),
        plain.make(12, "../../other/box/deep", 4),
        plain.make(13, "pod/box/inner", 5),
    ]
    assert plain.writer.look(("pod", "box"), (SCORE,))[SCORE].text == "0 4 5\n"
    (result,) = plain.writer.write("/pod/box", {SCORE: 9})
    assert (result.outcome, result.error) == (WriteOutcome.WRITTEN, "")
    assert [file.read_text().strip() for file in files] == ["9", "9", "9"]


@pytest.mark.parametrize("cgroup", ["pod/other", "", "pod/box-2", "boxes/box2"])
def test_a_process_of_another_cgroup_is_left_alone(plain: Plain, cgroup: str) -> None:
    plain.put("pod/box", 11)
    file = plain.make(11, cgroup)
    (result,) = plain.writer.write("/pod/box", {SCORE: 9})
    assert (result.outcome, file.read_text()) == (WriteOutcome.UNCHANGED, "0\n")


def test_processes_of_another_pid_namespace(tmp_path: Path) -> None:
    plain = Plain(tmp_path, 2)
    plain.put("pod/box", 0, 0)
    assert plain.writer.look(("pod", "box"), (SCORE,)) == {}
    (result,) = plain.writer.write("/pod/box", {SCORE: 9})
    assert result.outcome is WriteOutcome.FAILED
    assert result.error == f"ESRCH: {processes.NOT_VISIBLE}"


def test_a_procfs_that_hides_processes(plain: Plain) -> None:
    plain.put("pod/box", 11)
    (result,) = plain.writer.write("/pod/box", {SCORE: 9})
    assert (result.outcome, result.error) == (WriteOutcome.FAILED, f"ESRCH: {processes.NOT_VISIBLE}")


@pytest.mark.parametrize(
    ("namespace", "outcome"),
    [("pid:[4026531836]", WriteOutcome.UNCHANGED), ("pid:[4026532001]", WriteOutcome.FAILED)],
)
def test_version_1_does_not_list_processes_of_another_pid_namespace(
    tmp_path: Path, namespace: str, outcome: WriteOutcome
) -> None:
    plain = Plain(tmp_path, 1)
    plain.put("pod/box")
    (plain.top / "pod/box/pids.current").write_text("3\n")
    folder = plain.procfs / "self/ns"
    folder.mkdir(parents=True)
    (folder / "pid").symlink_to(namespace)
    (result,) = plain.writer.write("/pod/box", {SCORE: 9})
    assert result.outcome is outcome


def test_of_many_values_the_text_has_some(tmp_path: Path) -> None:
    plain = Plain(tmp_path, 2)
    plain.put("box", *range(1, 13))
    for pid in range(1, 13):
        plain.make(pid, "box", pid)
    text = plain.writer.look(("box",), (SCORE,))[SCORE].text
    assert len(text.split()) == processes.MOST_VALUES + 1
    assert text.endswith(f"{processes.MORE}\n")
    assert plain.writer.decode(SCORE, text) is None
    assert not plain.writer.matches(SCORE, 1, text)


def test_there_is_a_bound_and_what_is_beyond_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MOST_PROCESSES", 3)
    plain = Plain(tmp_path, 2)
    plain.put("box", 1, 2, 3, 4)
    files = [plain.make(pid, "box") for pid in range(1, 5)]
    (result,) = plain.writer.write("/box", {SCORE: 9})
    assert (result.outcome, result.error, result.left) == (WriteOutcome.FAILED, processes.CUT, 9)
    assert [file.read_text().strip() for file in files] == ["9", "9", "9", "0"]


def test_cgroups_below_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MOST_CGROUPS", 2)
    plain = Plain(tmp_path, 2)
    plain.put("box", 1)
    for pid in (2, 3, 4):
        plain.put(f"box/{pid}", pid)
    for pid in range(1, 5):
        plain.make(pid, f"box/{pid}")
    (result,) = plain.writer.write("/box", {SCORE: 9})
    assert (result.outcome, result.error) == (WriteOutcome.FAILED, processes.CUT)


def test_processes_that_fork_faster_than_they_are_written_to(tmp_path: Path) -> None:
    """What the kernel refuses to no process, and each write makes one more that is without it."""
    plain, made = Plain(tmp_path, 2), [1]

    class Forking:
        def refresh(self) -> None:
            return

        def read(self, pid: int, folder: int) -> str:
            return "0" if pid == made[-1] else "9"

        def write(self, pid: int, folder: int, text: str) -> None:
            made.append(pid + 1)
            plain.make(pid + 1, "box")
            plain.put("box", *made)

    writer = CgroupWriter(plain.root, plain.procfs, {SCORE: Forking()})
    plain.put("box", 1)
    plain.make(1, "box")
    (result,) = writer.write("/box", {SCORE: 9})
    assert (result.outcome, result.error, result.left) == (WriteOutcome.FAILED, processes.FORKING, 9)
    assert len(made) == processes.MOST_PASSES + 1


@pytest.mark.parametrize(
    ("version", "members", "file"),
    [
        (1, Members.PROCESSES, "cgroup.procs"),
        (2, Members.PROCESSES, "cgroup.procs"),
        (1, Members.THREADS, "tasks"),
        (2, Members.THREADS, "cgroup.threads"),
    ],
)
def test_threads_have_values_of_their_own(tmp_path: Path, version: int, members: Members, file: str) -> None:
    """What is no file of procfs has an access of its own."""
    plain = Plain(tmp_path, version)
    plain.put("box", 1, 2, file=file)
    for pid in (1, 2):
        plain.make(pid, "box")
    values = {1: "none", 2: "shop"}

    class Names:
        def refresh(self) -> None:
            return

        def read(self, pid: int, folder: int) -> str:
            return values[pid]

        def write(self, pid: int, folder: int, text: str) -> None:
            values[pid] = text

    form = ProcessFormat("name", str, str.strip, lambda value, text: text.split() == [value], members=members)
    of_all = processes.ProcessValues(plain.procfs, {"name": Names()})
    cgroup = os.open(plain.top / "box", os.O_PATH)
    try:
        assert of_all.text(form, cgroup, version) == "none shop\n"
        done = of_all.write(form, cgroup, version, "box", "shop", lambda text: text != "shop")
    finally:
        os.close(cgroup)
    assert (done.written, done.had, done.problem) == (1, 2, "")
    assert values == {1: "shop", 2: "shop"}


def test_an_error_of_the_node_is_no_process_that_has_ended(tmp_path: Path) -> None:
    plain = Plain(tmp_path, 2)
    plain.put("box", 1)
    plain.make(1, "box")

    class Exhausted:
        def refresh(self) -> None:
            return

        def read(self, pid: int, folder: int) -> str:
            raise OSError(errno.EMFILE, "Too many open files")

        def write(self, pid: int, folder: int, text: str) -> None:
            raise AssertionError

    writer = CgroupWriter(plain.root, plain.procfs, {SCORE: Exhausted()})
    with pytest.raises(OSError, match="Too many"):
        writer.look(("box",), (SCORE,))
