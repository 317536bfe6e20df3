"""Which processes are a container's program."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from runtimeproxy.frontends.processes import runs_program
from tests.lab.deadline import wait_until

CLONED = 0x40
SUPERUSER = 0x100
RUNC = b"runc\0init\0"
SLEEP = b"/bin/sleep\x001000\0"


def add(proc: Path, pid: int, flags: int, arguments: bytes, *, name: str = "x", state: str = "S") -> None:
    """A process that began when its number says."""
    (proc / str(pid)).mkdir(parents=True)
    fields = [state, *["0"] * 5, str(flags), *["0"] * 12, str(pid), "0"]
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    (proc / str(pid) / "cmdline").write_bytes(arguments)


@pytest.mark.parametrize(
    ("processes", "is_program"),
    [
        ([], False),
        # As seen with runc 1.1.5: a helper that has executed `runc init`, then two clones of it.
        ([(1, 0, RUNC)], False),
        ([(1, 0, RUNC), (2, CLONED, RUNC)], False),
        ([(2, CLONED, RUNC)], False),
        ([(1, 0, b"/usr/local/sbin/runc.real\0init\0")], False),
        # The arguments are those of the program just before execve ends.
        ([(2, CLONED, SLEEP)], False),
        ([(2, SUPERUSER, SLEEP)], True),
        # Children of the program are clones of it; a hook of the runtime has executed, and is no first one.
        ([(2, SUPERUSER, SLEEP), (3, CLONED, SLEEP)], True),
        ([(2, CLONED, RUNC), (3, 0, b"/opt/hook\0")], False),
        ([(2, SUPERUSER, b"/sbin/init\0")], True),
        ([(2, SUPERUSER, b"/bin/runcible\0init\0more\0")], True),
        # One that has just ended has no arguments.
        ([(2, SUPERUSER, b"")], False),
    ],
)
def test_programs(tmp_path: Path, processes: list[tuple[int, int, bytes]], is_program: bool) -> None:
    for pid, flags, arguments in processes:
        add(tmp_path, pid, flags, arguments)
    # The kernel's order is any.
    pids = [str(pid) for pid, *_ in reversed(processes)]
    (tmp_path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    assert runs_program(tmp_path, tmp_path) is is_program


def test_processes_that_have_ended(tmp_path: Path) -> None:
    add(tmp_path, 1, 0, b"", state="Z")
    add(tmp_path, 2, CLONED, RUNC, name="a) S (b")
    (tmp_path / "cgroup.procs").write_text("1\n2\n3\n")
    assert runs_program(tmp_path, tmp_path) is False


def test_processes_of_another_namespace(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("0\n0\n")
    assert runs_program(tmp_path, tmp_path) is None
    with pytest.raises(OSError, match=r"cgroup\.procs"):
        runs_program(tmp_path / "gone", tmp_path)


def test_a_clone_that_executes(tmp_path: Path) -> None:
    go_on, start = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(start)
        os.read(go_on, 1)
        os.execv("/bin/sleep", ["sleep", "1000"])  # noqa: S606 - the test is about execve
    try:
        (tmp_path / "cgroup.procs").write_text(f"{pid}\n")
        assert runs_program(tmp_path, Path("/proc")) is False
        os.write(start, b"x")
        wait_until(lambda: runs_program(tmp_path, Path("/proc")) is True, "the program")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(go_on)
        os.close(start)
