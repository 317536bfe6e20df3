"""Hostile HTTP/2 clients: what each session sends follows from the seed and its number alone.

Frames, header blocks and messages are made once; a session only picks, cuts and spoils them, so that one core
makes some thousand sessions a second.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, Protocol

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.frontends.cri_proxy.calls.methods import BY_PATH
from runtimeproxy.http2.frames import PREFACE
from runtimeproxy.testing.builders import container_config, create_container_request, pod_sandbox_config
from tests.fuzz.header_blocks import literal, random_block
from tests.peers import wire
from tests.peers.wire import END_HEADERS, END_STREAM, HEADERS, Headers, frame_bytes

KEPT_OPEN: Final = 8
"""Connections that one thread leaves open behind it; the oldest ends when there are more."""
SEND_S: Final = 0.2
"""How long a session waits for a daemon that does not read."""
ANSWER_S: Final = 2.0
"""How long a session that reads waits for an answer."""
FLOOD_FRAMES: Final = (50, 500, 5_000)

_PASSING: Final = (
    "/runtime.v1.RuntimeService/Version",
    "/runtime.v1.RuntimeService/Status",
    "/runtime.v1.RuntimeService/ListContainers",
    "/runtime.v1.RuntimeService/ListPodSandbox",
    "/runtime.v1.RuntimeService/GetContainerEvents",
    "/runtime.v1.ImageService/ListImages",
    "/runtime.v1alpha2.RuntimeService/Version",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)
_STRANGE: Final = (
    "",
    "/",
    "*",
    "//",
    "runtime.v1.RuntimeService/CreateContainer",
    "/runtime.v1.RuntimeService/CreateContainer/",
    "/runtime.v1.RuntimeService/Nothing",
    "/runtime.v1.RuntimeService/" + "x" * 900,
    "/runtime.v1.RuntimeService/Create\xe9",
)
_EXTRA: Final[tuple[tuple[tuple[str, str], ...], ...]] = (
    (),
    (),
    (),
    (("grpc-timeout", "1n"),),
    (("grpc-timeout", "99999999H"), ("grpc-encoding", "gzip")),
    (("grpc-encoding", "nothing"),),
    (("x", "y" * 20_000),),
    (("te", "trailers"),) * 100,
)


class End(enum.Enum):
    """How a session ends its connection."""

    CLOSE = "closes at once"
    HALF_CLOSE = "ends its own direction, then closes"
    READ = "reads what comes first, then closes"
    KEEP = "stays open beside later sessions"


@dataclass(frozen=True, slots=True)
class Session:
    """What one connection sends, write by write, and how it ends."""

    kind: str
    writes: tuple[bytes, ...]
    end: End


Make = Callable[[Random], bytes]


class Sessions:
    """All sessions of one seed.

    Args:
        seed: what they follow from, each with its number.
        kinds: which ones; None for all.
    """

    def __init__(self, seed: int, kinds: Collection[str] | None = None) -> None:
        self.seed = seed
        random = Random(seed)
        self._blocks = [random_block(random) for _ in range(300)]
        self._requests = list(_requests())
        self._messages = list(_messages(random))
        self._noise = random.randbytes(1 << 16)
        every: list[tuple[str, Make]] = [
            ("valid", self._valid),
            ("spoiled", self._spoiled),
            ("spoiled", self._spoiled),
            ("cut", self._cut),
            ("frames", self._frames),
            ("frames", self._frames),
            ("blocks", self._broken_blocks),
            ("blocks", self._broken_blocks),
            ("bodies", self._bodies),
            ("resets", self._resets),
            ("noise", self._noise_only),
            ("flood", self._flood),
        ]
        self._kinds = [each for each in every if kinds is None or each[0] in kinds]

    def session(self, number: int) -> Session:
        """One session; the same for the same seed and number."""
        random = Random(self.seed << 40 | number)
        kind, make = self._kinds[random.randrange(len(self._kinds))]
        # A flood costs as much as fifty other sessions.
        if kind == "flood" and random.random() < 0.8:
            kind, make = "bodies", self._bodies
        data = make(random)
        cut = random.randrange(len(data) + 1) if random.random() < 0.3 else 0
        writes = (data[:cut], data[cut:]) if cut else (data,)
        end = random.choices((End.CLOSE, End.HALF_CLOSE, End.READ, End.KEEP), (5, 2, 2, 2))[0]
        return Session(kind, writes, end)

    # --- kinds of sessions -------------------------------------------------------------------------------

    def _opening(self, random: Random) -> bytes:
        """The preface and SETTINGS, now and then strange ones."""
        if random.random() < 0.8:
            return _OPENINGS[0]
        return random.choice(_OPENINGS)

    def _calls(self, random: Random) -> list[bytes]:
        """Whole calls, each two frames or more."""
        parts: list[bytes] = []
        for number in range(random.choice((1, 1, 2, 5))):
            stream = 2 * number + 1
            parts.append(frame_bytes(HEADERS, END_HEADERS, stream, random.choice(self._requests)))
            body = random.choice(self._messages)
            size = random.choice((16_384, 16_384, 100))
            for at in range(0, len(body) or 1, size):
                flags = END_STREAM if at + size >= len(body) else 0
                parts.append(frame_bytes(wire.DATA, flags, stream, body[at : at + size]))
        return parts

    def _valid(self, random: Random) -> bytes:
        return self._opening(random) + b"".join(self._calls(random))

    def _spoiled(self, random: Random) -> bytes:
        """Whole calls with bytes that are changed, doubled, left out or put in."""
        data = bytearray(self._opening(random) + b"".join(self._calls(random)))
        first = 0 if random.random() < 0.1 else len(PREFACE)
        for _ in range(random.choice((1, 1, 2, 4, 16))):
            at = random.randrange(first, max(len(data), first + 1))
            size = random.choice((1, 1, 2, 9, 100))
            change = random.randrange(4)
            if change == 0 and at < len(data):
                data[at] ^= 1 << random.randrange(8)
            elif change == 1:
                del data[at : at + size]
            elif change == 2:
                data[at:at] = data[at : at + size]
            else:
                data[at:at] = self._some_noise(random, size)
        return bytes(data)

    def _cut(self, random: Random) -> bytes:
        data = self._opening(random) + b"".join(self._calls(random))
        return data[: random.randrange(len(data))]

    def _frames(self, random: Random) -> bytes:
        """Any frames, most of them of known types, on few streams."""
        parts = [self._opening(random)]
        for _ in range(random.choice((1, 3, 10, 40))):
            if random.random() < 0.3:
                parts.extend(self._calls(random)[:2])
            payload = random.choice((b"", *_PAYLOADS, self._some_noise(random, random.randrange(64))))
            if random.random() < 0.02:
                payload = self._some_noise(random, random.choice((16_384, 16_385, 40_000)))
            flags = random.choice((0, 1, 4, 5, 8, 9, 0x0C, 0x0D, 0x20, 0x2D, 0xFF))
            stream = random.choice((0, 1, 1, 1, 3, 3, 5, 7, 2, 0x7FFFFFFF, 0x80000001))
            parts.append(frame_bytes(random.choice(_TYPES), flags, stream, payload))
        return b"".join(parts)

    def _broken_blocks(self, random: Random) -> bytes:
        """Header blocks of all kinds, in one frame or in several, padded or not."""
        parts = [self._opening(random)]
        for number in range(random.choice((1, 2, 6))):
            stream = 2 * number + 1
            block = random.choice(self._blocks)
            pieces = random.choice((1, 1, 1, 2, 9))
            size = -(-len(block) // pieces) or 1
            cuts = [block[at : at + size] for at in range(0, len(block), size)] or [b""]
            for index, piece in enumerate(cuts):
                is_last = index + 1 == len(cuts)
                if index:
                    parts.append(bytes(wire.continuation(stream, piece, more=not is_last)))
                else:
                    pad = random.choice((None, None, None, 0, 7, 255))
                    end, priority = random.random() < 0.5, random.random() < 0.1
                    frame = wire.headers(stream, piece, end=end, more=not is_last, pad=pad, priority=priority)
                    parts.append(bytes(frame))
                if random.random() < 0.02:
                    parts.append(bytes(random.choice(_CONTROL)))
        return b"".join(parts)

    def _bodies(self, random: Random) -> bytes:
        """A request whose message is no message, too long, too short or compressed in a strange way."""
        parts = [self._opening(random)]
        for number in range(random.choice((1, 1, 3))):
            stream = 2 * number + 1
            parts.append(frame_bytes(HEADERS, END_HEADERS, stream, random.choice(self._requests)))
            body = random.choice(_BODIES) + self._some_noise(random, random.choice((0, 0, 5, 300)))
            parts.append(bytes(wire.data(stream, body, end=random.random() < 0.7)))
            if random.random() < 0.3:
                parts.append(bytes(wire.data(stream, body[:3], end=True, pad=random.choice((None, 0, 200)))))
        return b"".join(parts)

    def _resets(self, random: Random) -> bytes:
        """Calls that are reset as soon as they have begun."""
        parts = [self._opening(random)]
        for number in range(random.choice((1, 10, 100))):
            stream = 2 * number + 1
            parts.append(frame_bytes(HEADERS, END_HEADERS, stream, random.choice(self._requests)))
            if random.random() < 0.5:
                parts.append(bytes(wire.data(stream, random.choice(self._messages)[:16_384], end=True)))
            parts.append(bytes(wire.reset(stream, random.randrange(16))))
        return b"".join(parts)

    def _noise_only(self, random: Random) -> bytes:
        """Bytes that are no HTTP/2 from the start, or soon."""
        known = random.choice((b"", PREFACE[:5], PREFACE[:23], b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", PREFACE))
        return known + self._some_noise(random, random.choice((1, 10, 1000)))

    def _flood(self, random: Random) -> bytes:
        """Thousands of small frames of one kind."""
        count = random.choice(FLOOD_FRAMES)
        return self._opening(random) + bytes(random.choice(_CONTROL)) * count

    def _some_noise(self, random: Random, size: int) -> bytes:
        at = random.randrange(len(self._noise) - size) if size < len(self._noise) else 0
        return self._noise[at : at + size]


_TYPES: Final = (*range(10), *range(10), 0x0A, 0xF0, 0xFF)
_PAYLOADS: Final = (
    bytes(4),
    bytes(5),
    bytes(6),
    bytes(8),
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x01",
    b"\x00\x04\x7f\xff\xff\xff",
    b"\x00\x04\xff\xff\xff\xff",
    b"\x00\x04\x00\x00\x00\x00",
    b"\x00\x05\x00\xff\xff\xff",
    b"\x00\x01\x00\x00\x00\x00",
    b"\x00\x01\xff\xff\xff\xff",
    b"\x00\x03\x00\x00\x00\x00",
    bytes(16_384),
)
_OPENINGS: Final = (
    wire.wire(PREFACE, wire.settings(), wire.SETTINGS_ACK),
    wire.wire(PREFACE, wire.settings({wire.INITIAL_WINDOW: 2**31 - 1}), wire.credit(0, 2**30)),
    wire.wire(PREFACE, wire.settings({wire.INITIAL_WINDOW: 0})),
    wire.wire(PREFACE, wire.settings({wire.TABLE_SIZE: 0, wire.MAX_FRAME: 2**24 - 1})),
    wire.wire(PREFACE, wire.settings({wire.TABLE_SIZE: 2**32 - 1})),
    wire.wire(PREFACE),
)
_CONTROL: Final = (
    wire.ping(),
    wire.settings(),
    wire.settings({wire.INITIAL_WINDOW: 1}),
    wire.SETTINGS_ACK,
    wire.credit(0, 1),
    wire.credit(1, 1),
    wire.reset(1),
    wire.priority(1),
    wire.goaway(0),
    wire.unknown(),
    wire.data(1),
    wire.data(1, b"\0"),
)
_BODIES: Final = (
    b"",
    b"\0",
    b"\0\0\0\0",
    bytes(5),
    bytes(10),
    wire.message(b"\xff" * 20),
    wire.message(b"\x0a\x05hello"),
    wire.message(b"x" * 16_000),
    b"\0\x01\0\0\0",
    b"\0\xff\xff\xff\xff",
    b"\x01\0\0\0\x05hello",
    b"\x02\0\0\0\x05hello",
    # An empty member of gzip, eight hundred times.
    wire.message(bytes.fromhex("1f8b08000000000002ff03000000000000000000") * 800, 1),
)


def _requests() -> Iterator[bytes]:
    """Header blocks of requests; none needs an entry that another block has made."""
    for path in (*BY_PATH, *BY_PATH, *_PASSING, *_PASSING, *_STRANGE):
        for extra in _EXTRA:
            yield Headers().request(path) + b"".join(literal(name, value) for name, value in extra)


def _messages(random: Random) -> Iterator[bytes]:
    """Requests as the kubelet sends them, of pods that the runtime does not know, with the gRPC prefix."""
    yield wire.message(b"")
    for pod in ("one", "two"):
        notes = {"a": "b" * random.choice((1, 9000))}
        config = pod_sandbox_config(f"fuzz-{pod}", uid=pod, qos="BE", annotations=notes)
        container = container_config("main", pod=config, envs={"A": "b"})
        yield wire.message(
            create_container_request(f"sandbox-{pod}", container, config).SerializeToString(
                deterministic=True
            )
        )
        linux = api_pb2.LinuxContainerResources(cpu_shares=2, memory_limit_in_bytes=1 << 30)
        update = api_pb2.UpdateContainerResourcesRequest(container_id=f"container-{pod}", linux=linux)
        yield wire.message(update.SerializeToString(deterministic=True))
        # One id in the first field: the shape of six of the intercepted calls.
        yield wire.message(
            api_pb2.StopContainerRequest(container_id=f"container-{pod}").SerializeToString(
                deterministic=True
            )
        )
    config = pod_sandbox_config("fuzz", uid="fuzz")
    long = create_container_request("s" * 40_000, container_config("main", pod=config), config)
    yield wire.message(long.SerializeToString(deterministic=True))


class SessionSource(Protocol):
    """Where sessions come from."""

    def session(self, number: int) -> Session:
        """One session; the same for the same number."""
        ...


class Attack:
    """Threads that run sessions from `with` to the end of its block.

    Args:
        socket_path: where the daemon listens.
        sessions: what they send.
        threads: how many connections at a time, besides those that stay open.

    Attributes:
        done: how many sessions have run.
        kinds: how many of each kind.
        refused: how many could not connect.
        answered: how many of those that read have read something.
    """

    def __init__(self, socket_path: Path, sessions: SessionSource, threads: int = 4) -> None:
        self.kinds: Counter[str] = Counter()
        self.refused = 0
        self.answered = 0
        self.done = 0
        self._address = str(socket_path)
        self._sessions = sessions
        self._most = 0
        self._lock = threading.Lock()
        self._threads_count = threads

    def run(self, count: int, is_over: Callable[[], bool] = lambda: False) -> float:
        """Runs the next `count` sessions, fewer if it is over before; returns how many seconds it took."""
        self._most += count
        began_s = time.monotonic()
        threads = [
            threading.Thread(target=self._work, args=(is_over,), name=f"attack-{number}")
            for number in range(self._threads_count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.monotonic() - began_s

    def _next(self) -> int | None:
        with self._lock:
            if self.done >= self._most:
                return None
            self.done += 1
            return self.done - 1

    def _work(self, is_over: Callable[[], bool]) -> None:
        kept: deque[socket.socket] = deque()
        kinds: Counter[str] = Counter()
        answered = refused = 0
        while not is_over() and (number := self._next()) is not None:
            session = self._sessions.session(number)
            kinds[session.kind] += 1
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.connect(self._address)
            except OSError:
                refused += 1
                sock.close()
                continue
            answered += self._send(sock, session)
            if session.end is End.KEEP:
                kept.append(sock)
                if len(kept) > KEPT_OPEN:
                    kept.popleft().close()
            else:
                sock.close()
        for sock in kept:
            sock.close()
        with self._lock:
            self.kinds.update(kinds)
            self.answered += answered
            self.refused += refused

    def _send(self, sock: socket.socket, session: Session) -> bool:
        """Sends a session; whether something was read."""
        # The daemon may end the connection at any time; that is what it should do with most of them.
        with contextlib.suppress(OSError):
            sock.settimeout(SEND_S)
            for data in session.writes:
                sock.sendall(data)
            if session.end is End.HALF_CLOSE:
                sock.shutdown(socket.SHUT_WR)
            elif session.end is End.READ:
                sock.settimeout(ANSWER_S)
                return bool(sock.recv(65_536))
        return False
