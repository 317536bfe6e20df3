"""Requests at a fixed rate, whatever the server does: latencies without coordinated omission.

Each request has a time at which it is due. If all connections wait for answers it waits, too, and that
counts: its latency begins when it was due, and not when it could be sent. `python -m tests.effect.load`
runs as a process of its own, so that its CPU time is known.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple

CONNECTIONS: Final = 64
ANSWERS_S: Final = 30.0
"""How long the last answers may take."""
_MOST_TRIES: Final = 20
"""For one connection that is kept so many are tried, until all workers have as many."""
_WORKER: Final = b"X-Worker: "
_READ_BYTES: Final = 1 << 18


class Protocol(NamedTuple):
    """What is sent, and how an answer looks."""

    request: bytes
    begin: bytes
    """Of an answer."""
    end: bytes


BYTE: Final = Protocol(b".", b"", b".")
HTTP: Final = Protocol(
    b"GET /text HTTP/1.1\r\nHost: effect\r\nAccept-Encoding: gzip\r\n\r\n", b"HTTP/1.1 200 ", b"0\r\n\r\n"
)
"""The answer is compressed on the way, so it has chunks and no length."""
PROTOCOLS: Final = {"byte": BYTE, "http": HTTP}


class Sent(NamedTuple):
    """What one run of the load generator has found; times in seconds."""

    latencies_s: list[float]
    """Of each request, in the order in which they were answered."""
    late_s: float
    """How much later than due a request was sent at most although a connection was free: of this program."""
    cpu_s: float
    """CPU time of this program from the first request on."""


class _Connection:
    __slots__ = ("due_s", "is_begun", "socket", "tail")

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), ANSWERS_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.due_s = 0.0
        self.is_begun = False
        self.tail = b""


class Generator:
    """Sends requests to a server.

    Args:
        port: Of the server, at 127.0.0.1.
        rate: Requests per second.
        number: Requests in all.
        connections: Bound on the requests that are on their way. They take turns.
        workers: How many of the server's share the connections, each as many; 0: the server does not say.
        on_all_due: Called when the last request is due.

    Attributes:
        waiting: When those requests were due that wait for a connection.
    """

    def __init__(
        self,
        port: int,
        rate: float,
        number: int,
        *,
        protocol: Protocol = BYTE,
        connections: int = CONNECTIONS,
        workers: int = 0,
        on_all_due: Callable[[], None] = lambda: None,
    ) -> None:
        self._port = port
        self._rate = rate
        self._number = number
        self._protocol = protocol
        self._size = connections
        self._workers = workers
        self._on_all_due = on_all_due
        self._free: deque[_Connection] = deque()
        self._latencies_s: list[float] = []
        self._late_s = 0.0
        self.waiting: deque[float] = deque()

    def run(self) -> Sent:
        """Sends all requests and waits for the answers.

        Raises:
            TimeoutError: They do not come in time.
            ConnectionError: The server ends a connection, or its answer is none.
        """
        with ExitStack() as stack, select.epoll() as poll:
            by_number: dict[int, _Connection] = {}
            for each in self._connect(stack):
                each.socket.setblocking(False)
                by_number[each.socket.fileno()] = each
                poll.register(each.socket, select.EPOLLIN)
                self._free.append(each)
            before_s = time.process_time()
            self._send_all(poll, by_number)
            return Sent(self._latencies_s, self._late_s, time.process_time() - before_s)

    def _send_all(self, poll: select.epoll, by_number: dict[int, _Connection]) -> None:
        number, now, due = self._number, time.monotonic, 0
        begin_s = now() + 0.1
        end_s = begin_s + number / self._rate + ANSWERS_S
        next_s = begin_s
        while len(self._latencies_s) < number:
            left_s = next_s - now()
            # Of epoll itself a timeout is in milliseconds.
            if left_s <= 0 or select.select((poll,), (), (), left_s)[0]:
                for file, _ in poll.poll(0):
                    self._read(by_number[file])
            while due < number and next_s <= now():
                self._on_due(next_s)
                due += 1
                # From the beginning, so that no error adds up; the last request is followed by the end.
                next_s = begin_s + due / self._rate if due < number else end_s
                if due == number:
                    self._on_all_due()
            if now() > end_s:
                raise TimeoutError(f"{number - len(self._latencies_s)} answers are missing")

    def _on_due(self, due_s: float) -> None:
        if self._free:
            self._late_s = max(self._late_s, time.monotonic() - due_s)
            self._send(self._free.popleft(), due_s)
        else:
            self.waiting.append(due_s)

    def _send(self, connection: _Connection, due_s: float) -> None:
        connection.due_s = due_s
        connection.is_begun = False
        connection.socket.send(self._protocol.request)

    def _read(self, connection: _Connection) -> None:
        if not self._has_ended(connection):
            return
        self._latencies_s.append(time.monotonic() - connection.due_s)
        if self.waiting:
            self._send(connection, self.waiting.popleft())
        else:
            self._free.append(connection)

    def _has_ended(self, connection: _Connection) -> bool:
        """Reads what there is; whether the answer is complete."""
        data = connection.socket.recv(_READ_BYTES)
        protocol = self._protocol
        if not data or not (connection.is_begun or data.startswith(protocol.begin)):
            raise ConnectionError(f"not an answer: {data[:100]!r}")
        connection.is_begun = True
        connection.tail = (connection.tail + data[-len(protocol.end) :])[-len(protocol.end) :]
        return connection.tail == protocol.end

    def _connect(self, stack: ExitStack) -> list[_Connection]:
        """Opens the connections; those of the server's workers in turn."""
        if not self._workers:
            return [self._opened(stack) for _ in range(self._size)]
        most = self._size // self._workers
        by_worker: dict[bytes, list[_Connection]] = {}
        for _ in range(self._size * _MOST_TRIES):
            connection = self._opened(stack)
            kept = by_worker.setdefault(self._worker_of(connection), [])
            if len(kept) < most:
                kept.append(connection)
            else:
                connection.socket.close()
            if sum(map(len, by_worker.values())) == most * self._workers:
                return [each for turn in zip(*by_worker.values(), strict=True) for each in turn]
        raise ConnectionError(f"{len(by_worker)} workers answer, not {self._workers}")

    def _opened(self, stack: ExitStack) -> _Connection:
        connection = _Connection(self._port)
        stack.callback(connection.socket.close)
        return connection

    def _worker_of(self, connection: _Connection) -> bytes:
        self._send(connection, 0.0)
        content = connection.socket.recv(_READ_BYTES, socket.MSG_PEEK)
        while not self._has_ended(connection):
            pass
        return content.partition(_WORKER)[2].partition(b"\r")[0]


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


def main(protocol: str, port: str, rate: str, number: str, workers: str) -> None:
    """Sends so many requests, and writes what was found as JSON to standard output."""
    become_real_time()
    gc.disable()
    generator = Generator(
        int(port), float(rate), int(number), protocol=PROTOCOLS[protocol], workers=int(workers)
    )
    print(json.dumps(generator.run()._asdict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
