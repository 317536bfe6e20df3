"""The service manager's side of sd_notify(3)."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_PACE_S = 0.1
_MESSAGE_BYTES = 4096


class NotifySocket:
    """Receives the states that a service reports, in their order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.received: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.bind(str(path))
        self._socket.settimeout(_PACE_S)

    def wait_for(self, state: str, alive: Callable[[], bool], timeout_s: float) -> None:
        """Waits for an assignment such as `READY=1` among those that come from now on.

        Raises:
            TimeoutError: it did not come in time.
            ChildProcessError: the sender ended first.
        """
        while self.wait_for_start(state, alive, timeout_s) != state:
            continue

    def wait_for_start(self, start: str, alive: Callable[[], bool], timeout_s: float) -> str:
        """Waits for an assignment that begins so among those that come from now on, and returns it.

        Raises:
            TimeoutError: it did not come in time.
            ChildProcessError: the sender ended first.
        """
        end = time.monotonic() + timeout_s
        while True:
            is_over = not alive()
            states = self._receive()
            for state in states:
                if state.startswith(start):
                    return state
            if is_over and not states:
                raise ChildProcessError(f"ended before {start}")
            if time.monotonic() > end:
                raise TimeoutError(f"{start}: not within {timeout_s} s")

    def discard(self) -> None:
        """Receives all that has come already."""
        self._socket.setblocking(False)
        try:
            while True:
                self.received.extend(self._socket.recv(_MESSAGE_BYTES).decode().splitlines())
        except BlockingIOError:
            self._socket.settimeout(_PACE_S)

    def fill(self) -> None:
        """Fills the queue: what is sent from now on is refused, until something is received."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    sender.sendto(b"STATUS=", str(self.path))

    def close(self) -> None:
        """Closes and removes the socket."""
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def _receive(self) -> list[str]:
        try:
            states = self._socket.recv(_MESSAGE_BYTES).decode().splitlines()
        except TimeoutError:
            return []
        self.received.extend(states)
        return states
