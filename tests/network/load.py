"""Greedy TCP flows between network namespaces, and the rate of each at its receiver.

One thread serves all sockets: it sends as much as they take and reads as much as they have. Rates are those
on the wire, with the headers of TCP, IP and Ethernet, as HTB counts them.
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.network.namespaces import Addresses, Family, Namespace
from tests.network.sender import BLOCK, BUFFER_BYTES, favour

_FRAME_BYTES: Final = 1514
_PAYLOAD_BYTES: Final[dict[Family, int]] = {4: 1448, 6: 1428}
"""Of a full frame with an MTU of 1500: less the headers of IP and TCP with timestamps."""
_RECEIVE_BUFFER_BYTES: Final = 4 << 20
"""Holds what comes while a busy machine gives this process no CPU."""
_SO_RCVBUFFORCE: Final = 33
"""Source: kernel, asm-generic/socket.h; Python has no name for it."""
_SENDER: Final = str(Path(__file__).with_name("sender.py"))
_MOST_BYTES: Final = 1 << 20
_CONNECT_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 0.1
_WINDOW_S: Final = 1.0
_MOST_S: Final = 60.0
"""As long as a busy machine may keep rates from what is wanted."""
TOLERANCE: Final = 0.1
_STEADY: Final = 0.08
"""Smaller changes from window to window are those of TCP."""


@dataclass
class _End:
    socket: socket.socket
    sends: bool
    received_bytes: int = 0

    def go_on(self) -> None:
        """Sends or receives what the socket takes or has."""
        if self.sends:
            self.socket.send(BLOCK)
            return
        data = self.socket.recv(_MOST_BYTES)
        if not data:
            raise ConnectionResetError("the sender has closed the connection")
        self.received_bytes += len(data)


class Flow:
    """One connection from `sender` to an address of `receiver`, which sends as fast as it can.

    Args:
        sender: None is the namespace of this process.
        procs: `cgroup.procs` of the cgroup that a process of its own sends from; None: this process sends.
    """

    def __init__(
        self,
        sender: Namespace | None,
        receiver: Namespace,
        address: str,
        family: Family,
        procs: Path | None = None,
    ) -> None:
        kind = socket.AF_INET if family == 4 else socket.AF_INET6
        self.family: Family = family
        self.sending: _End | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._server: socket.socket | None = None
        with ExitStack() as undo:
            undo.callback(self.close)
            with receiver.entered():
                listener = undo.enter_context(socket.socket(kind, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
            listener.settimeout(_CONNECT_TIMEOUT_S)
            listener.bind((address, 0))
            listener.listen(1)
            port = listener.getsockname()[1]
            if procs is not None:
                wrapper = sender.wrapper if sender is not None else ()
                command = (*wrapper, sys.executable, _SENDER, str(procs), address, str(port))
                self._process = subprocess.Popen(command)
            else:
                with sender.entered() if sender is not None else nullcontext():
                    client = socket.socket(kind, socket.SOCK_STREAM)
                self.sending = _End(client, sends=True)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
                client.settimeout(_CONNECT_TIMEOUT_S)
                client.connect((address, port))
                client.setblocking(False)
            self._server, _ = listener.accept()
            self._server.setblocking(False)
            self.receiving = _End(self._server, sends=False)
            listener.close()
            undo.pop_all()

    @property
    def ends(self) -> list[_End]:
        """The sockets of this process."""
        return [self.receiving, *([self.sending] if self.sending is not None else [])]

    @property
    def wire_bytes(self) -> float:
        """What has arrived so far, with all headers."""
        return self.receiving.received_bytes * _FRAME_BYTES / _PAYLOAD_BYTES[self.family]

    def close(self) -> None:
        """Ends the connection."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self.sending is not None:
            self.sending.socket.close()
        if self._server is not None:
            self._server.close()


def greedy(
    sender: Namespace, receiver: Namespace, addresses: Addresses, families: Iterable[Family]
) -> tuple[Flow, ...]:
    """A flow of each family from `sender` to `receiver`, which has the addresses."""
    return tuple(Flow(sender, receiver, addresses.of(family), family) for family in families)


class Load:
    """Flows that run from `with` to the end of its block.

    Args:
        groups: flows whose rates are added.
    """

    def __init__(self, groups: Iterable[Sequence[Flow]]) -> None:
        self._groups = tuple(groups)
        self._flows = [flow for group in self._groups for flow in group]
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="load")
        self._errors: list[OSError] = []
        self.longest_gap_s = 0.0
        """Without a byte at any receiver, while this thread was ready to read it."""

    def mbit_per_second(self, over_s: float) -> list[float]:
        """The rate of each group during the next `over_s` seconds."""
        began_s, before = time.monotonic(), self.wire_bytes()
        self._ends.wait(over_s)
        elapsed_s = time.monotonic() - began_s
        return [8e-6 * (now - then) / elapsed_s for now, then in zip(self.wire_bytes(), before, strict=True)]

    def wire_bytes(self) -> list[float]:
        """What each group has received so far. Raises the error that has ended a connection."""
        if self._errors:
            raise self._errors[0]
        return [sum(flow.wire_bytes for flow in group) for group in self._groups]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()
        for flow in self._flows:
            flow.close()

    def _serve(self) -> None:
        favour()
        gap_s = 0.0
        with selectors.DefaultSelector() as selector:
            for flow in self._flows:
                for end in flow.ends:
                    events = selectors.EVENT_WRITE if end.sends else selectors.EVENT_READ
                    selector.register(end.socket, events, end)
            while not self._ends.is_set():
                # A thread that had no CPU meanwhile is given what has arrived.
                ready = [key.data for key, _ in selector.select(_PAUSE_S)]
                for end in ready:
                    try:
                        end.go_on()
                    except OSError as error:
                        self._errors.append(error)
                        return
                if not ready:
                    gap_s += _PAUSE_S
                elif not all(end.sends for end in ready):
                    gap_s = 0.0
                self.longest_gap_s = max(self.longest_gap_s, gap_s)


def steady_mbit(
    load: Load, window_s: float = _WINDOW_S, is_wanted: Callable[[list[float]], bool] = lambda _: True
) -> list[float]:
    """The rate of each group when senders have found theirs: slow start and filling queues are no part of it.

    Measures windows until one has the rates of the one before, and they are as wanted: on a busy machine
    some windows are short of CPU time. When they never are, the last ones are returned.
    """
    before = load.mbit_per_second(window_s)
    mean = before
    for _ in range(int(_MOST_S / window_s)):
        now = load.mbit_per_second(window_s)
        mean = [(one + other) / 2 for one, other in zip(now, before, strict=True)]
        pairs = zip(now, before, strict=True)
        if all(abs(one - other) < _STEADY * max(one, other) for one, other in pairs) and is_wanted(mean):
            break
        before = now
    return mean


def near_mbit(load: Load, wanted: Sequence[float], window_s: float = _WINDOW_S) -> list[float]:
    """The steady rates of all groups, as soon as each is within a tenth of what is wanted."""

    def is_near(rates: list[float]) -> bool:
        return all(abs(seen - each) <= TOLERANCE * each for seen, each in zip(rates, wanted, strict=True))

    return steady_mbit(load, window_s, is_near)
