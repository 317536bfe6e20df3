"""A daemon and the processes that follow it."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from runtimeproxy.frontends.cri_proxy.handover.protocol import VARIABLE
from runtimeproxy.listener import lock_path, read_lock
from runtimeproxy.signals import UPGRADE
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

WAIT_S = 90.0
"""A start takes a second, and much longer where all of the machine's disk and CPU are others'."""


class Family:
    """Follows the lock of one socket from process to process, and ends them all at the end of its block."""

    def __init__(self, daemon: ProxyProcess, socket_path: str = "") -> None:
        self.daemon = daemon
        self._lock = lock_path(socket_path or str(daemon.socket))
        self._processes: dict[int, int] = {}

    @property
    def serving(self) -> int:
        """The process that serves now."""
        pid, _ = read_lock(self._lock)
        if pid not in self._processes:
            self._processes[pid] = os.pidfd_open(pid)
        return pid

    @property
    def note(self) -> str:
        """The note in the lock file about the last upgrade."""
        return read_lock(self._lock)[1].partition(" ")[2]

    def signal(self, number: int, pid: int | None = None) -> None:
        """Sends a signal to a process, the serving one by default."""
        chosen = self.serving if pid is None else pid
        signal.pidfd_send_signal(self._processes[chosen], number)

    def upgrade(self) -> int:
        """Has the serving process replaced, and returns the new one when it serves."""
        before = self.serving
        self.signal(UPGRADE)
        self.wait_for(lambda: self.serving != before, "the successor")
        return self.serving

    def refused(self) -> str:
        """Asks for an upgrade that does not come about, and returns why."""
        before = read_lock(self._lock)
        self.signal(UPGRADE)
        wait_until(lambda: read_lock(self._lock) != before, "the refusal", WAIT_S)
        assert read_lock(self._lock)[0] == before[0]
        return self.note

    def starting(self) -> int:
        """The successor that was started last, when it is there; it may not serve yet."""

        def found() -> int:
            # The daemon runs other programs, too.
            return next(
                (pid for pid in children(self.serving) - set(self._processes) if _is_successor(pid)), 0
            )

        pid = wait_until(found, "a successor", WAIT_S)
        self._processes[pid] = os.pidfd_open(pid)
        return pid

    def wait_until_ended(self, pid: int, timeout_s: float = WAIT_S) -> None:
        """Waits for the end of a process."""
        wait_until(lambda: self.has_ended(pid), f"the end of {pid}", timeout_s)

    def has_ended(self, pid: int) -> bool:
        """Whether a process has ended; its parent may not have reaped it yet."""
        return bool(select.select([self._processes[pid]], [], [], 0)[0])

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for something that may take as long as a start."""
        try:
            wait_until(condition, what, WAIT_S)
        except TimeoutError as error:
            lines = "\n".join(self.daemon.log[-60:])
            error.add_note(f"the note in the lock file is {self.note!r}; the log:\n{lines}")
            raise

    def logs(self, text: str) -> bool:
        """Whether the text is in the log, which all processes share."""
        return text in "\n".join(self.daemon.log)

    def __enter__(self) -> Self:
        _ = self.serving
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print("\n".join(self.daemon.log[-60:]))
        _ = self.serving
        for process in self._processes.values():
            if not select.select([process], [], [], 0)[0]:
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)


def children(pid: int) -> set[int]:
    """The processes that one has started."""
    numbers = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return {number for number in numbers if _parent(number) == pid}


def _is_successor(pid: int) -> bool:
    try:
        return f"{VARIABLE}=".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0
