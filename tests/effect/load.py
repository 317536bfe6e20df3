"""Requests at a fixed rate, whatever the server does: latencies without coordinated omission.

Each request has a time at which it is due. If all connections wait for answers it waits, too, and that
counts: its latency begins when it was due, and not when it could be sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections import deque
from contextlib import suppress
from typing import Final, NamedTuple

CONNECTIONS: Final = 64
ANSWERS_S: Final = 30.0
"""How long the last answers may take."""


class Load(NamedTuple):
    """What one run has found."""

    latencies_s: list[float]
    """Of each request, in the order in which they were answered."""
    late_s: float
    """How much later than due a request was sent at most although a connection was free: of this program."""


class _Connection(asyncio.Protocol):
    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self.due_s = 0.0
        self.transport: asyncio.Transport | None = None
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, _error: Exception | None) -> None:
        self.lost.set()

    def send(self, due_s: float) -> None:
        assert self.transport is not None
        self.due_s = due_s
        self.transport.write(b".")

    def data_received(self, data: bytes) -> None:
        self._generator.on_answer(self)


class Generator:
    """Sends requests to a server.

    Args:
        port: Of the server, at 127.0.0.1.
        rate: Requests per second.
        number: Requests in all.
        connections: Bound on the requests that are on their way.

    Attributes:
        waiting: When those requests were due that wait for a connection.
        all_due: Set when the last request is due.
    """

    def __init__(self, port: int, rate: float, number: int, connections: int = CONNECTIONS) -> None:
        self._port = port
        self._rate = rate
        self._number = number
        self._size = connections
        self._free: list[_Connection] = []
        self._latencies_s: list[float] = []
        self._late_s = 0.0
        self._done = asyncio.Event()
        self.waiting: deque[float] = deque()
        self.all_due = asyncio.Event()

    async def run(self) -> Load:
        """Sends all requests and waits for the answers.

        Raises:
            TimeoutError: They do not come in time.
        """
        loop = asyncio.get_running_loop()
        for _ in range(self._size):
            _, connection = await loop.create_connection(lambda: _Connection(self), "127.0.0.1", self._port)
            self._free.append(connection)
        connections = tuple(self._free)
        start_s = loop.time() + 0.1
        try:
            for index in range(self._number):
                loop.call_at(start_s + index / self._rate, self._on_due, start_s + index / self._rate)
            loop.call_at(start_s + self._number / self._rate, self.all_due.set)
            async with asyncio.timeout(self._number / self._rate + ANSWERS_S):
                await self._done.wait()
        finally:
            for each in connections:
                if each.transport is not None:
                    each.transport.close()
                    await each.lost.wait()
        return Load(self._latencies_s, self._late_s)

    def _on_due(self, due_s: float) -> None:
        if self._free:
            self._late_s = max(self._late_s, asyncio.get_running_loop().time() - due_s)
            self._free.pop().send(due_s)
        else:
            self.waiting.append(due_s)

    def on_answer(self, connection: _Connection) -> None:
        self._latencies_s.append(asyncio.get_running_loop().time() - connection.due_s)
        if self.waiting:
            connection.send(self.waiting.popleft())
        else:
            self._free.append(connection)
        if len(self._latencies_s) == self._number:
            self._done.set()


def is_served(port: int) -> bool:
    """Whether a server listens there."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def become_real_time() -> bool:
    """Lets this process run before all others, so that its own waits are not measured; whether it may."""
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    return os.sched_getscheduler(0) == os.SCHED_RR


def main(port: str, rate: str, number: str) -> None:
    """Sends so many requests, and writes what was found as JSON to standard output."""
    become_real_time()
    print(json.dumps(asyncio.run(Generator(int(port), float(rate), int(number)).run())._asdict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
