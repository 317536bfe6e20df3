"""Service managers for one proxy: each restarts it in a way of its own."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from runtimeproxy.signals import UPGRADE
from tests.daemon.test_systemd_socket import PASSES
from tests.lab import procfs
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyOptions, ProxyProcess
from tests.restarts.figures import Window

_BACKLOG = 128
_END_TIMEOUT_S = 30.0
_MAIN_PID = "MAINPID="
_ERROR = '"level":"error"'


class Kind(StrEnum):
    """How the proxy is restarted."""

    UPGRADE = "upgrade"
    SIGTERM = "sigterm"
    KILL = "kill"
    KILL_UNHELD = "kill-unheld"


MEANINGS = {
    Kind.UPGRADE: "the daemon starts its successor, hands it the listening socket and drains",
    Kind.SIGTERM: "SIGTERM and a new process; the listening socket is the service manager's",
    Kind.KILL: "kill -9 and a new process; the listening socket is the service manager's",
    Kind.KILL_UNHELD: "kill -9 and a new process that makes the socket anew",
}


class Supervisor(Protocol):
    """Keeps one proxy."""

    @property
    def socket(self) -> Path:
        """Where the proxy's clients connect."""
        ...

    def restart(self) -> Window:
        """Restarts the proxy and returns when that was."""
        ...

    def complaints(self) -> list[str]:
        """The errors in the log of all its processes, and what is no record, such as a traceback."""
        ...


class _Kept:
    """A proxy and where its clients connect."""

    def __init__(self, proxy: ProxyProcess, path: Path) -> None:
        self.socket = path
        self._proxy = proxy

    def complaints(self) -> list[str]:
        """Lines of the log that are no records, and records of errors."""
        return [line for line in self._proxy.log if not line.startswith("{") or _ERROR in line]


class _Starter(_Kept):
    """A proxy that is ended by a signal and started again."""

    def __init__(self, proxy: ProxyProcess, path: Path, *, is_gentle: bool) -> None:
        super().__init__(proxy, path)
        self._is_gentle = is_gentle

    def restart(self) -> Window:
        """Ends the proxy, starts it at once and waits until it is ready."""
        begun = time.monotonic()
        if not self._is_gentle:
            self._proxy.kill()
        elif (code := self._proxy.terminate()) != 0:
            raise ChildProcessError(f"exit code {code} after SIGTERM")
        self._proxy.forget_states()
        self._proxy.start()
        return Window(begun, time.monotonic())


class _Successors(ProxyProcess):
    """A proxy that upgrades itself: the process that serves is another one each time."""

    _successor: int | None = None

    def alive(self) -> bool:
        """Whether the process that serves runs."""
        return super().alive() if self._successor is None else procfs.runs(self._successor)

    def upgrade(self) -> Window:
        """Has the daemon start its successor and waits until the old process has ended."""
        self.forget_states()
        old = self._successor or self.pid
        begun = time.monotonic()
        os.kill(old, UPGRADE)
        told = self.wait_for_state(_MAIN_PID, _END_TIMEOUT_S)
        self._successor = int(told.removeprefix(_MAIN_PID))
        wait_until(lambda: not procfs.runs(old), f"process {old} has drained", _END_TIMEOUT_S)
        # Only the first one is a child of this process.
        if (code := self.wait()) != 0:
            raise ChildProcessError(f"exit code {code} after the first upgrade")
        return Window(begun, time.monotonic())

    def close(self) -> None:
        """Ends the process that serves."""
        if self._successor is not None and self.alive():
            os.kill(self._successor, signal.SIGKILL)
            wait_until(lambda: not self.alive(), "the successor has ended", _END_TIMEOUT_S)
        super().close()


class _Upgrader(_Kept):
    """A proxy that is upgraded again and again."""

    def __init__(self, proxy: _Successors) -> None:
        super().__init__(proxy, proxy.socket)
        self._successors = proxy

    def restart(self) -> Window:
        """Upgrades once."""
        return self._successors.upgrade()


@contextmanager
def supervised(kind: Kind, folder: Path, options: ProxyOptions) -> Iterator[Supervisor]:
    """Starts a proxy in a folder of its own and ends it."""
    own = folder / kind
    own.mkdir()
    if kind is Kind.UPGRADE:
        with _Successors(own, options) as upgraded:
            yield _Upgrader(upgraded)
        return
    if kind is Kind.KILL_UNHELD:
        with ProxyProcess(own, options) as proxy:
            yield _Starter(proxy, proxy.socket, is_gentle=False)
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        path = own / "unit.sock"
        listening.bind(str(path))
        listening.listen(_BACKLOG)
        with ProxyProcess(own, _activated(options, listening)) as proxy:
            yield _Starter(proxy, path, is_gentle=kind is Kind.SIGTERM)


def _activated(options: ProxyOptions, listening: socket.socket) -> ProxyOptions:
    """What a process gets that a socket unit starts."""
    wrapper = (sys.executable, "-c", PASSES, str(listening.fileno()))
    return replace(options, wrapper=wrapper, inherited=(listening.fileno(),))
