"""Greedy TCP flows between network namespaces, and the rate of each at its receiver.

One thread serves all sockets: it sends as much as they take and reads as much as they have. Rates are those
on the wire, with the headers of TCP, IP and Ethernet, as HTB counts them.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tests.network.namespaces import Addresses, Family, Namespace

_FRAME_BYTES: Final = 1514
_PAYLOAD_BYTES: Final[dict[Family, int]] = {4: 1448, 6: 1428}
"""Of a full frame with an MTU of 1500: less the headers of IP and TCP with timestamps."""
_SEND_BUFFER_BYTES: Final = 256 << 10
"""What waits in a queue of the node at most: 40 ms at 50 Mbit/s, 400 ms at 5 Mbit/s."""
_RECEIVE_BUFFER_BYTES: Final = 4 << 20
"""Holds what comes while a busy machine gives this process no CPU."""
_SO_RCVBUFFORCE: Final = 33
"""Source: kernel, asm-generic/socket.h; Python has no name for it."""
_BLOCK: Final = bytes(64 << 10)
_MOST_BYTES: Final = 1 << 20
_CONNECT_TIMEOUT_S: Final = 10.0
_WINDOW_S: Final = 1.0
_MOST_WINDOWS: Final = 8
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
            self.socket.send(_BLOCK)
            return
        data = self.socket.recv(_MOST_BYTES)
        if not data:
            raise ConnectionResetError("the sender has closed the connection")
        self.received_bytes += len(data)


class Flow:
    """One connection from `sender` to an address of `receiver`, which sends as fast as it can."""

    def __init__(self, sender: Namespace, receiver: Namespace, address: str, family: Family) -> None:
        kind = socket.AF_INET if family == 4 else socket.AF_INET6
        with ExitStack() as undo:
            with receiver.entered():
                listener = undo.enter_context(socket.socket(kind, socket.SOCK_STREAM))
            with sender.entered():
                client = undo.enter_context(socket.socket(kind, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
            listener.bind((address, 0))
            listener.listen(1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            client.settimeout(_CONNECT_TIMEOUT_S)
            client.connect((address, listener.getsockname()[1]))
            server, _ = listener.accept()
            undo.pop_all()
        listener.close()
        client.setblocking(False)
        server.setblocking(False)
        self.family: Family = family
        self.sending = _End(client, sends=True)
        self.receiving = _End(server, sends=False)

    @property
    def wire_bytes(self) -> float:
        """What has arrived so far, with all headers."""
        return self.receiving.received_bytes * _FRAME_BYTES / _PAYLOAD_BYTES[self.family]


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
            flow.sending.socket.close()
            flow.receiving.socket.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            for flow in self._flows:
                selector.register(flow.sending.socket, selectors.EVENT_WRITE, flow.sending)
                selector.register(flow.receiving.socket, selectors.EVENT_READ, flow.receiving)
            while not self._ends.is_set():
                for key, _ in selector.select(0.1):
                    end: _End = key.data
                    try:
                        end.go_on()
                    except OSError as error:
                        self._errors.append(error)
                        return


def steady_mbit(load: Load) -> list[float]:
    """The rate of each group when senders have found theirs: slow start and filling queues are no part of it.

    Measures windows until one has the rates of the one before, as far as a window can tell: on a busy machine
    some are short of CPU time.
    """
    before = load.mbit_per_second(_WINDOW_S)
    for _ in range(_MOST_WINDOWS):
        now = load.mbit_per_second(_WINDOW_S)
        if all(abs(one - other) < _STEADY * max(one, other) for one, other in zip(now, before, strict=True)):
            return [(one + other) / 2 for one, other in zip(now, before, strict=True)]
        before = now
    return before
