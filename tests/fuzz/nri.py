"""Hostile sessions against ttrpc's sans-io core, and against connections over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from runtimeproxy.errors import StatusCode
from runtimeproxy.frontends.nri import ttrpc
from runtimeproxy.frontends.nri.connection import CallError, ConnectionLostError, NriConnection, connect
from runtimeproxy.frontends.nri.ttrpc import FRAME_HEADER, ProtocolError, Request, Session, Side
from tests.fuzz.sessions import Attack
from tests.fuzz.sessions import Session as HostileSession
from tests.fuzz.ttrpc_sessions import TtrpcSessions
from tests.lab import procfs

MORE_BYTES: Final = 24 << 20
"""That a run may leave behind; the allocator keeps some of what the longest messages took."""
SLOW_S: Final = 1.0
"""For one session at the core, on a machine that does other things, too."""
LATE_S: Final = 10.0
WITNESS: Final = b"what the witness sends"
_WARM_UP: Final = 500


@dataclass
class Findings:
    """What a run has done and found."""

    kinds: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    @property
    def notes(self) -> list[str]:
        return [
            ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.kinds.items())),
            ", ".join(f"{count:,} {what}" for what, count in sorted(self.counts.items())),
            f"the slowest took {self.slowest_s * 1000:.1f} ms",
        ]


def attack_core(seed: int, sessions: int) -> Findings:
    """Hostile sessions against the core, each at a core of its own."""
    found, source = Findings(), TtrpcSessions(seed)
    begin_bytes = 0
    for number in range(sessions):
        if number == _WARM_UP:
            begin_bytes = _own_bytes()
        random, session = Random(number), source.session(number)
        found.kinds[session.kind] += 1
        began_s = time.thread_time()
        try:
            _at_core(Session(source.attacked(number)), session, random, found)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            found.problems.append(f"session {number} ({session.kind}): {type(error).__name__}: {error}")
        took_s = time.thread_time() - began_s
        found.slowest_s = max(found.slowest_s, took_s)
        if took_s > SLOW_S:
            found.problems.append(f"session {number} ({session.kind}) took {took_s:.1f} s")
    if begin_bytes and (more := _own_bytes() - begin_bytes) > MORE_BYTES:
        found.problems.append(f"{more >> 20} MiB more than at the start")
    return found


def _at_core(core: Session, session: HostileSession, random: Random, found: Findings) -> None:
    """One session; what must always hold is looked at after each piece."""
    open_requests: dict[int, Request] = {}
    received_bytes = 0
    for _ in range(random.choice((0, 0, 1, 3))):
        core.send_request("Synchronize", random.randbytes(random.choice((0, 100, 5_000))), 2.0)
    for data in session.writes:
        received_bytes += len(data)
        try:
            received = core.receive(data)
        except ProtocolError:
            found.counts["protocol errors"] += 1
            return
        for each in received:
            if not isinstance(each, Request):
                found.counts["responses"] += 1
                continue
            found.counts["requests"] += 1
            assert each.stream_id not in open_requests
            open_requests[each.stream_id] = each
            if random.random() < 0.7:
                _answer(core, open_requests.pop(each.stream_id), random)
        assert core.open_requests <= ttrpc.MAX_OPEN_REQUESTS
    # A refusal of an empty message is the longest answer, measured by what it answers.
    sent = core.take_output()
    assert len(sent) <= 4 * received_bytes + 20_000, (len(sent), received_bytes)
    assert max(_frame_sizes(sent), default=0) <= ttrpc.SENT_FRAME_BYTES


def _answer(core: Session, request: Request, random: Random) -> None:
    if random.random() < 0.5:
        core.send_response(request, random.randbytes(random.choice((0, 10))))
    else:
        core.send_error(request, random.choice(tuple(StatusCode)), "no")


def _frame_sizes(sent: bytes) -> Iterator[int]:
    at = 0
    while at < len(sent):
        _, length = FRAME_HEADER.unpack_from(sent, at)
        at += FRAME_HEADER.size + length
        yield FRAME_HEADER.size + length
    assert at == len(sent)


class NriServer:
    """Ends of NRI sockets, served in a thread while the `with` block runs; their peers are hostile.

    One socket for each side. A request is answered, refused or left alone as its stream id says; one of the
    witness is answered with what it has sent.

    Args:
        folder: Where the sockets are.
        new_loop: Makes the loop: asyncio's or uvloop's.
    """

    def __init__(self, folder: Path, new_loop: Any = asyncio.new_event_loop) -> None:
        self.paths = {side: folder / f"{side.name.lower()}.sock" for side in Side}
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._loop: asyncio.AbstractEventLoop = new_loop()
        self._loop.set_exception_handler(self._on_error)
        self._thread = threading.Thread(target=self._loop.run_forever, name="nri-server", daemon=True)
        self._open: set[NriConnection] = set()
        self._changed = asyncio.Event()
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> NriServer:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait_until_idle(self, connected: int, deadline_s: float) -> list[str]:
        """Waits until all connections have come and ended; returns what is left.

        `connected`: how many peers have connected since the start; not all may have been accepted yet.
        """
        return asyncio.run_coroutine_threadsafe(self._left(connected, deadline_s), self._loop).result()

    async def _serve(self) -> None:
        for side, path in self.paths.items():
            accept = partial(self._accept, side)
            self._servers.append(await self._loop.create_unix_server(accept, str(path)))

    async def _end(self) -> None:
        for server in self._servers:
            server.close()

    async def _left(self, connected: int, deadline_s: float) -> list[str]:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while self._open or self.counts["connections"] < connected:
                    self._changed.clear()
                    await self._changed.wait()
        # A call learns of the connection's end in a later turn of the loop than the server.
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            _, tasks = await asyncio.wait(tasks, timeout=deadline_s)
        left = [f"{len(self._open)} connections are open"] if self._open else []
        if (accepted := self.counts["connections"]) < connected:
            left.append(f"{accepted} of {connected} connections were accepted")
        return left + [f"{len(tasks)} tasks are left"] * bool(tasks)

    def _accept(self, side: Side) -> NriConnection:
        connection = NriConnection(
            side,
            lambda request: self._on_request(connection, request),
            lambda reason: self._on_closed(connection, reason),
        )
        self._open.add(connection)
        self.counts["connections"] += 1
        self._changed.set()
        # It calls, too: what comes back is hostile.
        self._loop.create_task(self._call(connection))
        return connection

    async def _call(self, connection: NriConnection) -> None:
        await asyncio.sleep(0)
        with contextlib.suppress(CallError, ConnectionLostError, TimeoutError):
            await connection.call("Configure", b"", 1.0)
            self.counts["calls answered"] += 1

    def _on_request(self, connection: NriConnection, request: Request) -> None:
        self.counts["requests"] += 1
        if request.method == "Witness":
            connection.respond(request, request.payload)
        elif request.stream_id % 5 == 0:
            connection.refuse(request, StatusCode.UNIMPLEMENTED, request.method)
        elif request.stream_id % 7:
            connection.respond(request, bytes(request.stream_id % 3_000))

    def _on_closed(self, connection: NriConnection, reason: str) -> None:
        if connection not in self._open:
            self.problems.append(f"closed twice: {reason}")
        self._open.discard(connection)
        self._changed.set()
        if not reason:
            self.problems.append("closed without a reason")
        self.counts["ended by the peer" if connection.peer_closed else "ended here"] += 1

    def _on_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.problems.append(f"{context.get('message')}: {context.get('exception')!r}")


def attack_sockets(folder: Path, seed: int, sessions: int, threads: int, new_loop: Any) -> Findings:
    """Hostile sessions over real sockets, each side half of them, beside a peer that behaves."""
    found = Findings()
    warm_up = min(sessions, _WARM_UP)
    with NriServer(folder, new_loop) as server:
        _portion(server, seed, 0, warm_up, threads, found)
        # What is loaded and opened once is there now.
        files, begin_bytes = procfs.open_files(os.getpid()), _own_bytes()
        _portion(server, seed, warm_up, sessions - warm_up, threads, found)
        if (more := _own_bytes() - begin_bytes) > MORE_BYTES:
            found.problems.append(f"{more >> 20} MiB more than after {warm_up} sessions")
        if (left := procfs.open_files(os.getpid())) > files:
            found.problems.append(f"{left} files open, {files} after {warm_up} sessions")
        found.counts.update(server.counts)
        found.problems += server.problems
    return found


def _portion(server: NriServer, seed: int, first: int, count: int, threads: int, found: Findings) -> None:
    """Runs some sessions against each side, beside a peer that behaves, and waits until all is over."""
    # The witness has one.
    connected = server.counts["connections"] + 1
    with _Witness(server.paths[Side.PLUGIN]) as witness:
        for side in Side:
            attack = Attack(server.paths[side], _OneSide(seed, side, first // 2), threads)
            attack.run(count // 2)
            found.kinds.update(attack.kinds)
            found.counts["not connected"] += attack.refused
            connected += attack.done - attack.refused
    found.slowest_s = max(found.slowest_s, witness.slowest_s)
    found.problems += witness.problems
    found.counts["calls of a peer that behaves"] += witness.calls
    found.problems += server.wait_until_idle(connected, LATE_S)


class _OneSide:
    """The sessions against one side, from a number on."""

    def __init__(self, seed: int, side: Side, first: int) -> None:
        self._sessions = TtrpcSessions(seed)
        self._offset = 2 * first + (side is Side.RUNTIME)

    def session(self, number: int) -> HostileSession:
        return self._sessions.session(2 * number + self._offset)


class _Witness:
    """A runtime that behaves, in a thread with a loop of its own while the `with` block runs."""

    def __init__(self, path: Path) -> None:
        self.calls = 0
        self.slowest_s = 0.0
        self.problems: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=[self._run(path)], name="nri-witness")

    def __enter__(self) -> _Witness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    async def _run(self, path: Path) -> None:
        closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        connection = NriConnection(Side.RUNTIME, lambda _: None, closed.set_result)
        await connect(path, connection)
        while not self._is_over.is_set():
            began_s = time.monotonic()
            try:
                if await connection.call("Witness", WITNESS, LATE_S) != WITNESS:
                    self.problems.append("beside it: another answer")
            except (CallError, ConnectionLostError, TimeoutError) as error:
                self.problems.append(f"beside it: {error!r}")
                break
            self.calls += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
            await asyncio.sleep(0.02)
        connection.close()
        await closed


def _own_bytes() -> int:
    gc.collect()
    return procfs.rss_bytes(os.getpid())
