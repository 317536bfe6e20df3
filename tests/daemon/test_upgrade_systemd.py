"""Upgrades under a service manager: which process notifies it, and the socket that it has passed."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.conftest import Daemons
from tests.daemon.load import Load
from tests.daemon.test_systemd_socket import activated, passed
from tests.daemon.upgrading import Family
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

__all__ = ["passed"]

BOTH_LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
_OVER = b"over"
_CREDENTIALS = struct.Struct("iII")


class Manager:
    """The service manager's end with `NotifyAccess=main`: it knows the main process and hears no other.

    Attributes:
        main_pid: the main process.
        heard: what it has told, with its process id.
        unheard: what others have told.
    """

    def __init__(self, path: Path) -> None:
        self.main_pid = 0
        self.heard: list[tuple[int, str]] = []
        self.unheard: list[tuple[int, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(str(path))
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            data, control, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
            if data == _OVER:
                return
            pid = next(
                _CREDENTIALS.unpack(raw)[0] for _, kind, raw in control if kind == socket.SCM_CREDENTIALS
            )
            for state in data.decode().splitlines():
                self._take(pid, state)

    def _take(self, pid: int, state: str) -> None:
        # The manager has started it, and so is the first to know its number.
        self.main_pid = self.main_pid or pid
        if pid != self.main_pid:
            self.unheard.append((pid, state))
            return
        self.heard.append((pid, state))
        if state.startswith("MAINPID="):
            self.main_pid = int(state.removeprefix("MAINPID="))

    def has(self, pid: int, state: str) -> bool:
        """Whether a process has told this while it was the main one."""
        return (pid, state) in self.heard

    def wait_for(self, pid: int, state: str) -> None:
        wait_until(lambda: self.has(pid, state), f"{state} of {pid}", 90)

    def forget(self) -> None:
        """Takes what was told for read."""
        self.heard.clear()

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(_OVER, self._socket.getsockname())
        self._thread.join()
        self._socket.close()


@pytest.fixture
def manager(socket_folder: Path, daemons: Daemons) -> Iterator[Manager]:
    made = Manager(socket_folder / "manager.sock")
    daemons.environment["NOTIFY_SOCKET"] = str(socket_folder / "manager.sock")
    yield made
    made.close()


def started(manager: Manager, daemon: ProxyProcess) -> ProxyProcess:
    daemon.spawn()
    manager.wait_for(daemon.pid, "READY=1")
    return daemon


@BOTH_LOOPS
def test_the_main_process_moves(manager: Manager, daemons: Daemons) -> None:
    daemons.environment["WATCHDOG_USEC"] = "2000000"
    daemon = started(manager, daemons.prepare())
    daemons.environment["WATCHDOG_PID"] = str(daemon.pid)
    with Family(daemon) as family:
        manager.wait_for(daemon.pid, "WATCHDOG=1")
        second = family.upgrade()
        manager.wait_for(daemon.pid, f"MAINPID={second}")
        manager.wait_for(second, "READY=1")
        assert daemon.wait() == 0
        manager.forget()
        manager.wait_for(second, "WATCHDOG=1")
        third = family.upgrade()
        manager.wait_for(third, "READY=1")
        family.wait_until_ended(second)
        assert manager.main_pid == third
        assert manager.unheard == []
        assert not any(state == "STOPPING=1" for _, state in manager.heard)
        family.signal(signal.SIGTERM)
        manager.wait_for(third, "STOPPING=1")


def test_a_successor_that_fails_tells_nothing(manager: Manager, daemons: Daemons) -> None:
    daemon = started(manager, daemons.prepare())
    with Family(daemon) as family:
        (daemon.folder / "config.toml").write_text("[proxy]\nnonsense = 1\n")
        assert "exit code 2" in family.refused()
        assert manager.unheard == []
        assert manager.main_pid == daemon.pid


@pytest.mark.slow
@BOTH_LOOPS
def test_a_socket_that_was_passed(daemons: Daemons, passed: socket.socket) -> None:
    path = Path(passed.getsockname())
    before = path.stat()
    daemon = activated(daemons, passed)
    daemon.start()
    with Family(daemon, str(path)) as family, Load(path) as load:
        load.wait_for_more()
        for _ in range(2):
            ending = family.serving
            family.upgrade()
            load.wait_for_more()
            family.wait_until_ended(ending)
        last = family.serving
        family.signal(signal.SIGTERM)
        family.wait_until_ended(last)
        again = activated(daemons, passed)
        again.start()
        load.wait_for_more()
    assert load.failed == []
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.slow
def test_restarts_with_a_socket_that_was_passed_fail_no_call(daemons: Daemons, passed: socket.socket) -> None:
    path = Path(passed.getsockname())
    daemon = activated(daemons, passed)
    daemon.start()
    with Load(path) as load:
        for _ in range(3):
            load.wait_for_more()
            assert daemon.terminate() == 0
            daemon.start()
        load.wait_for_more()
    assert load.failed == []


def test_as_another_user(daemons: Daemons, socket_folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else; whoever runs this is somebody else already")
    # The capability is for reading the interpreter, wherever it lies.
    capability = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    wrapper = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *capability)
    daemon = daemons.prepare(wrapper=wrapper, environment=daemons.environment)
    sockets = (socket_folder / "runtime.sock", daemon.folder / "notify.sock")
    for path in (socket_folder, socket_folder / "tmp", daemon.folder, *sockets):
        path.chmod(0o777)
    daemon.start()
    with Family(daemon) as family:
        family.upgrade()
        with CriClient(daemon.socket) as client:
            client.wait_until_serving(30)
