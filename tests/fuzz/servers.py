"""Hostile servers: of HTTP/2, runtimes and hook servers alike, and runtimes at their socket of NRI."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

from runtimeproxy.frontends.nri import ttrpc
from tests.fuzz.header_blocks import random_block
from tests.fuzz.sessions import End
from tests.fuzz.ttrpc_sessions import TtrpcSessions
from tests.peers import wire
from tests.peers.threaded_server import ThreadedServer
from tests.peers.wire import Frame, Headers, Reader

HOLD_S: Final = 0.1
"""How long a connection waits for more, and so how long an answer can be missing before it ends."""

TAKE_S: Final = 2.0
"""How long a plugin may take to register, and to answer."""

_OPENINGS: Final = (
    *[wire.wire(wire.settings({wire.INITIAL_WINDOW: 2**31 - 1}), wire.credit(0, 2**30))] * 12,
    b"",
    wire.wire(wire.settings(), wire.settings(), wire.SETTINGS_ACK, wire.ping()),
    wire.wire(wire.settings({wire.INITIAL_WINDOW: 0})),
    wire.wire(wire.settings({wire.INITIAL_WINDOW: 2**31})),
    wire.wire(wire.settings({wire.MAX_FRAME: 1})),
    wire.wire(wire.settings({wire.TABLE_SIZE: 0, 0x3: 0})),
    wire.wire(Frame(wire.SETTINGS, 0, 1, b"")),
    wire.wire(Frame(wire.SETTINGS, 0, 0, b"12345")),
    wire.wire(wire.data(1, b"x")),
    wire.wire(wire.goaway(0)),
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    bytes(100),
)

Answer = Callable[[Random, int], bytes]


class HostileServer(ThreadedServer):
    """Serves from `with` to the end of its block.

    Args:
        path: of its socket.
        seed: with the number of a connection, all that is sent follows from it.
        messages: what right answers hold: encoded responses, of which one is picked.
        right: which part of the answers is right.

    Attributes:
        answers: how many requests were answered, in whatever way.
    """

    def __init__(self, path: Path, seed: int, messages: Sequence[bytes] = (b"",), right: float = 0.5) -> None:
        super().__init__(path)
        self.answers = 0
        self._seed = seed
        self._right = right
        self._good = [_good(message) for message in messages]
        random = Random(seed)
        self._blocks = [random_block(random) for _ in range(200)]
        self._noise = random.randbytes(1 << 17)
        self._wrong: list[Answer] = [
            self._spoiled,
            self._spoiled,
            self._cut,
            self._status,
            self._prefix,
            self._control,
            self._order,
            self._much,
            self._header_block,
            lambda random, stream: self._some_noise(random),
            lambda random, stream: b"",
        ]

    def serve(self, sock: socket.socket, number: int) -> None:
        """Answers each request, right or wrong."""
        random = Random(self._seed << 40 | number)
        sock.settimeout(HOLD_S)
        sock.sendall(random.choice(_OPENINGS) if random.random() > self._right else _OPENINGS[0])
        reader = Reader()
        while data := sock.recv(65_536):
            for frame in reader.frames(data):
                if not self._took(sock, random, frame):
                    return

    def _took(self, sock: socket.socket, random: Random, frame: Frame) -> bool:
        """Answers a frame; whether the connection goes on."""
        if frame.ends_stream:
            self.answers += 1
            is_right = random.random() < self._right
            make = self._right_answer if is_right else random.choice(self._wrong)
            sock.sendall(make(random, frame.stream_id))
            return is_right or random.random() < 0.7
        if frame.type_ in (wire.PING, wire.SETTINGS) and not frame.flags & wire.ACK:
            sock.sendall(
                bytes(Frame(frame.type_, wire.ACK, 0, frame.payload if frame.type_ == wire.PING else b""))
            )
        return True

    # --- answers -----------------------------------------------------------------------------------------

    def _right_answer(self, random: Random, stream: int) -> bytes:
        response, message, trailers = random.choice(self._good)
        return wire.wire(
            wire.headers(stream, response),
            wire.data(stream, message),
            wire.headers(stream, trailers, end=True),
        )

    def _spoiled(self, random: Random, stream: int) -> bytes:
        data = bytearray(self._right_answer(random, stream))
        for _ in range(random.choice((1, 2, 8))):
            # The message's own bytes stay: they might become another good answer.
            at = random.choice((*range(40), *range(-60, 0)))
            data[at % len(data)] ^= 1 << random.randrange(8)
        return bytes(data)

    def _cut(self, random: Random, stream: int) -> bytes:
        data = self._right_answer(random, stream)
        return data[: random.randrange(len(data))]

    def _status(self, random: Random, stream: int) -> bytes:
        """Only trailers, with whatever status."""
        status = random.choice(("0", "1", "4", "14", "16", "99", "-1", "x", "", "0" * 5_000))
        text = random.choice(("", "no", "%", "%zz", "\xe9", "t" * 10_000))
        fields = [
            (":status", random.choice(("200", "503", "100", "0", "x"))),
            ("content-type", "application/grpc"),
        ]
        block = Headers().block([*fields, ("grpc-status", status), ("grpc-message", text)])
        return bytes(wire.headers(stream, block, end=random.random() < 0.9))

    def _prefix(self, random: Random, stream: int) -> bytes:
        """A message that is none."""
        response, message, trailers = random.choice(self._good)
        bad = random.choice(
            (
                b"",
                b"\0",
                b"\0\xff\xff\xff\xff",
                b"\x01" + message[1:],
                b"\xff" + message[1:],
                message * 2,
                message[:-1],
            )
        )
        return wire.wire(
            wire.headers(stream, response), wire.data(stream, bad), wire.headers(stream, trailers, end=True)
        )

    def _control(self, random: Random, stream: int) -> bytes:
        """Frames that end or stop something, before or after a right answer."""
        frame = random.choice(
            (
                wire.reset(stream, random.randrange(16)),
                wire.reset(0),
                wire.goaway(random.choice((0, stream, 2**31 - 1)), random.randrange(16), b"x" * 100),
                wire.credit(stream, 0),
                wire.credit(0, 2**31 - 1),
                wire.settings({wire.INITIAL_WINDOW: 0}),
                wire.settings({wire.INITIAL_WINDOW: 2**32 - 1}),
                Frame(wire.PUSH_PROMISE, wire.END_HEADERS, stream, bytes(4)),
                Frame(wire.CONTINUATION, wire.END_HEADERS, stream, b""),
                Frame(wire.PING, 0, 0, b"short"),
                wire.unknown(stream),
            )
        )
        count = random.choice((1, 1, 1, 500))
        answer = self._right_answer(random, stream)
        return bytes(frame) * count + answer if random.random() < 0.5 else answer + bytes(frame) * count

    def _order(self, random: Random, stream: int) -> bytes:
        """The frames of a right answer in another order, twice, or on another stream."""
        other = stream + random.choice((0, 0, 0, 2, -1, 1000))
        response, message, trailers = random.choice(self._good)
        frames = [
            wire.headers(stream, response, end=random.random() < 0.2),
            wire.data(other, message, end=random.random() < 0.2),
            wire.headers(stream, trailers, end=random.random() < 0.8),
        ]
        return wire.wire(*(random.choice(frames) for _ in range(random.choice((1, 2, 3, 6)))))

    def _much(self, random: Random, stream: int) -> bytes:
        """More than any window allows, in frames of a size that is allowed, or that is not."""
        response, _, _ = random.choice(self._good)
        size = random.choice((1, 16_384, 16_385, 100_000))
        count = random.choice((1, 20))
        return bytes(wire.headers(stream, response)) + bytes(wire.data(stream, self._noise[:size])) * count

    def _header_block(self, random: Random, stream: int) -> bytes:
        return bytes(wire.headers(stream, random.choice(self._blocks), end=random.random() < 0.5))

    def _some_noise(self, random: Random) -> bytes:
        size = random.choice((1, 9, 100, 5_000))
        at = random.randrange(len(self._noise) - size)
        return self._noise[at : at + size]


def _good(message: bytes) -> tuple[bytes, bytes, bytes]:
    """Headers, message and trailers of a right answer; the blocks need nothing of each other."""
    return Headers().response(), wire.message(message), Headers().trailers()


class HostileNriRuntime(ThreadedServer):
    """A runtime at its NRI socket, from `with` to the end of its block.

    Most plugins that connect are taken as they should be; what is sent then is hostile.

    Args:
        path: of its socket.
        seed: with the number of a connection, all that is sent follows from it.

    Attributes:
        taken: how many times the plugin was registered, configured and synchronized.
    """

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__(path)
        self.taken = 0
        self._seed = seed
        self._sessions = TtrpcSessions(seed, first_id=5)

    def serve(self, sock: socket.socket, number: int) -> None:
        """Takes the plugin, then sends a session of a runtime."""
        sock.settimeout(TAKE_S)
        if Random(self._seed << 40 | number).random() < 0.9:
            self._take(sock)
            self.taken += 1
        session = self._sessions.session(2 * number)
        for data in session.writes:
            sock.sendall(data)
        if session.end is End.HALF_CLOSE:
            sock.shutdown(socket.SHUT_WR)
        sock.settimeout(HOLD_S)
        while sock.recv(65_536):
            pass

    @staticmethod
    def _take(sock: socket.socket) -> None:
        core, calls = ttrpc.Session(ttrpc.Side.RUNTIME), ["Configure", "Synchronize"]
        while True:
            data = sock.recv(65_536)
            if not data:
                raise ConnectionResetError
            for each in core.receive(data):
                if isinstance(each, ttrpc.Request):
                    core.send_response(each, b"")
                elif not calls:
                    return
                if calls:
                    core.send_request(calls.pop(0), b"", 2.0)
            sock.sendall(core.take_output())
