"""The small parts of the laboratory that need no runtime."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import procfs
from tests.lab.deadline import wait_until
from tests.lab.notify_socket import NotifySocket
from tests.lab.programs import REPOSITORY, run

INSTALL_PYTHON = ("sh", REPOSITORY / "tests" / "lab" / "install_python.sh")


@pytest.fixture
def notify() -> Iterator[NotifySocket]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        opened = NotifySocket(Path(folder) / "notify.sock")
        yield opened
        opened.close()


def test_notification_is_awaited_and_kept(notify: NotifySocket) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service:
        service.sendto(b"STATUS=starting\n", str(notify.path))
        service.sendto(b"READY=1\nSTATUS=serving", str(notify.path))
    notify.wait_for("READY=1", lambda: True, 5)

    assert notify.received == ["STATUS=starting", "READY=1", "STATUS=serving"]


def test_notification_of_a_service_that_has_ended(notify: NotifySocket) -> None:
    with pytest.raises(ChildProcessError):
        notify.wait_for("READY=1", lambda: False, 5)


def test_deadline_ends_the_wait() -> None:
    with pytest.raises(TimeoutError, match="the moon"):
        wait_until(lambda: None, "the moon", timeout_s=0.05)


def test_process_readings_of_this_process() -> None:
    own = os.getpid()

    assert procfs.runs(own)
    assert procfs.cpu_seconds(own) > 0
    assert procfs.rss_bytes(own) > 1024 * 1024
    assert procfs.open_files(own) > 2
    assert procfs.start_ticks(own) > 0
    assert Path(procfs.command_line(own)[0]).name.startswith("python")


def test_run_keeps_output_and_exit_code() -> None:
    ended = run([sys.executable, "-c", "import sys; print(input()); sys.exit(3)"], stdin="text")

    assert (ended.returncode, ended.stdout) == (3, "text\n")


@pytest.mark.parametrize("is_of_pyenv", [False, True])
def test_a_python_of_a_version_is_on_path_or_of_pyenv(tmp_path: Path, is_of_pyenv: bool) -> None:
    """One that is named so and is none, such as a shim of pyenv, does not count."""
    version = f"3.{sys.version_info.minor}"
    shims, pyenv = tmp_path / "shims", tmp_path / "pyenv"
    found = pyenv / "versions" / f"{version}.1" / "bin" if is_of_pyenv else shims
    for folder in (shims, found):
        folder.mkdir(parents=True, exist_ok=True)
    shim = shims / f"python{version}"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    program = found / f"python{version}"
    program.unlink(missing_ok=True)
    program.symlink_to(sys.executable)
    environment = {"PATH": f"{shims}:/usr/bin:/bin", "PYENV_ROOT": str(pyenv)}
    done = run([*INSTALL_PYTHON, version], environment=environment)
    assert (done.stdout, done.stderr) == (f"{program}\n", "")


def test_a_python_that_is_nowhere_is_said() -> None:
    done = run([*INSTALL_PYTHON, "3.99"], environment={"CI": "true"})
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no Python 3.99" in done.stderr
