"""Callers as processes of their own, and what they have reported so far."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.lab.programs import REPOSITORY, tools_folder
from tests.restarts.caller import CALL_TIMEOUT_S
from tests.restarts.lines import Begun, Call, Created, Event, Line, parsed
from tests.restarts.orders import Order

CREATE = "CreateContainer"

_END_TIMEOUT_S = 30.0


class LoadError(Exception):
    """A caller ended by itself, or calls did not come back."""


@dataclass(frozen=True)
class Client:
    """A gRPC implementation with which the load can be made."""

    name: str
    command: tuple[str, ...]
    socket_prefix: str = ""
    socket_suffix: tuple[str, ...] = ()

    def command_for(self, socket: Path) -> list[str]:
        """The command that calls this socket."""
        return [*self.command, f"{self.socket_prefix}{socket}", *self.socket_suffix]


C_CORE = Client("C-core", (sys.executable, "-m", "tests.restarts.caller"))
"""grpcio, for which most node agents outside of Go stand."""


def kubelet() -> Client | None:
    """grpc-go as the kubelet uses it; None where it is not built."""
    program = tools_folder() / "kubelet-client"
    if not program.is_file():
        return None
    timeout = ("-timeout", f"{CALL_TIMEOUT_S:.0f}s")
    return Client("kubelet", (str(program), *timeout, "-endpoint"), "unix://", ("load",))


def clients() -> list[Client]:
    """All that this machine has."""
    return [client for client in (kubelet(), C_CORE) if client is not None]


class Load:
    """One caller's process from `with` to the end of its block; the last calls end by themselves."""

    def __init__(self, client: Client, socket: Path, order: Order) -> None:
        self.client = client
        self.order = order
        self._command = client.command_for(socket)
        self._lines: list[Line] = []
        self._begun: dict[str, float] = {}
        self._answered: dict[str, float] = {}
        self._in_flight: dict[str, str] = {}
        self._last_event_at = 0.0
        self._changed = threading.Condition()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed at the end of the block

    @property
    def calls(self) -> list[Call]:
        """All calls that have ended."""
        return [line for line in self._copy() if isinstance(line, Call)]

    @property
    def created(self) -> list[Created]:
        """All containers that were asked for."""
        return [line for line in self._copy() if isinstance(line, Created)]

    @property
    def events(self) -> list[Event]:
        """All events that came."""
        return [line for line in self._copy() if isinstance(line, Event)]

    def wait_for_turns(self, after: float, timeout_s: float = 30.0) -> None:
        """Waits until each worker has begun a call after this moment that succeeded.

        Raises:
            LoadError: that did not happen in time, or the caller has ended.
        """
        self._wait_for_workers(lambda name: self._answered.get(name, 0.0) > after, timeout_s)

    def wait_for_tries(self, after: float, timeout_s: float = 30.0) -> None:
        """Waits until each worker has a call on its way after this moment; raises LoadError if not."""
        self._wait_for_workers(
            lambda name: name in self._in_flight or self._begun.get(name, 0.0) > after, timeout_s
        )

    def wait_for_create(self, timeout_s: float = 30.0) -> None:
        """Waits until a CreateContainer is on its way. Raises LoadError when that does not happen in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: CREATE in self._in_flight.values(), timeout_s):
                raise LoadError(f"{self.client.name}: no {CREATE} in {timeout_s:.0f} s: {self._said()}")

    def has_event(self, after: float) -> bool:
        """Whether an event has come after this moment."""
        return self._last_event_at > after

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._reader.start()
        stdin = self._process.stdin
        if stdin is None:
            raise LoadError("no pipe")
        stdin.write(self.order.line())
        stdin.flush()
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(_END_TIMEOUT_S)
        finally:
            process.kill()
            self._reader.join()
            if process.stdout is not None:
                process.stdout.close()
            self._errors.close()

    def _said(self) -> str:
        """The end of what it wrote for people."""
        self._errors.seek(0)
        return self._errors.read()[-2000:].decode(errors="replace")

    def _read(self) -> None:
        if self._process.stdout is not None:
            for text in self._process.stdout:
                self._add(parsed(text))
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _add(self, line: Line) -> None:
        with self._changed:
            if isinstance(line, Begun):
                self._begun[line.worker] = line.at
                self._in_flight[line.worker] = line.method
            else:
                self._lines.append(line)
            if isinstance(line, Event):
                self._last_event_at = line.at
            if isinstance(line, Call):
                self._in_flight.pop(line.worker, None)
                self._answered[line.worker] = line.begun if line.is_ok else 0.0
            self._changed.notify_all()

    def _copy(self) -> list[Line]:
        with self._changed:
            return list(self._lines)

    def _wait_for_workers(self, is_there: Callable[[str], bool], timeout_s: float) -> None:
        def late() -> list[str]:
            return [name for name in self.order.workers.names if not is_there(name)]

        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or not late(), timeout_s)
            if names := late():
                reason = "ended" if self._has_ended else f"nothing of {', '.join(names)} in {timeout_s:.0f} s"
                raise LoadError(f"{self.client.name}: {reason}: {self._said()}")
