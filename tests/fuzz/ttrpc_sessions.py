"""Hostile peers of an NRI socket, for either end: a session follows from the seed and its number.

Sessions with even numbers are runtimes, those with odd numbers plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from cri_api.nri.v1alpha1 import api_pb2 as nri
from cri_api.ttrpc import request_pb2
from runtimeproxy.frontends.nri import ttrpc
from runtimeproxy.frontends.nri.ttrpc import FRAME_HEADER, MESSAGE_HEADER, Side
from tests.fuzz.sessions import End, Session

FLOOD_FRAMES: Final = (50, 500, 5_000)
LONG_SHARE: Final = 0.02
"""Of the sessions; each sends megabytes."""

_IDS: Final = (0, 1, 1, 2, 2, 3, 255, 2**31, 2**32 - 1)
_STREAMS: Final = (0, 1, 1, 2, 3, 5, 7, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)
_TYPES: Final = (0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 127, 255)
_FLAGS: Final = (0, 0, 0, 1, 2, 3, 4, 5, 7, 255)
_LENGTHS: Final = (0, 1, 9, 10, 4096, 2**22, 2**22 + 10, 2**22 + 11, 2**31, 2**32 - 1)
_BODIES: Final = (
    b"",
    b"\0",
    b"\x0a",
    b"\x0a\x7f",
    b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x0b\x0c",
    b"\x0f" * 20,
    b"\x0a\x02\xff\xfe",
    b"\x2a\x00" * 20_000,
    b"\x2a\x04\x0a\x02\xff\xff",
    b"\x20" + b"\xff" * 9 + b"\x01",
    b"\x1a\x00" * 5_000,
    b"\x08\x01" * 5_000,
    b"\x0a\x00" * 40_000,
)

Make = Callable[[Random, Side], bytes]


class TtrpcSessions:
    """All sessions of one seed.

    Args:
        seed: What they follow from, each with its number.
        first_id: Of the streams of calls that are right.
    """

    def __init__(self, seed: int, first_id: int = 1) -> None:
        self.seed = seed
        self._first_id = first_id
        random = Random(seed)
        self._noise = random.randbytes(1 << 16)
        self._calls = {side: list(_calls(side)) for side in Side}
        self._kinds: tuple[tuple[str, Make], ...] = (
            ("valid", self._valid),
            ("spoiled", self._spoiled),
            ("spoiled", self._spoiled),
            ("cut", self._cut),
            ("frames", self._frames),
            ("messages", self._messages),
            ("messages", self._messages),
            ("bodies", self._bodies),
            ("bodies", self._bodies),
            ("many", self._many),
            ("noise", self._noise_only),
            ("flood", self._flood),
        )

    @staticmethod
    def attacked(number: int) -> Side:
        """The end that a session attacks."""
        return Side.RUNTIME if number % 2 else Side.PLUGIN

    def session(self, number: int) -> Session:
        """One session; the same for the same seed and number."""
        random = Random(self.seed << 40 | number)
        kind, make = random.choice(self._kinds)
        if random.random() < LONG_SHARE:
            kind, make = "long", self._long
        elif kind == "flood" and random.random() < 0.8:
            kind, make = "bodies", self._bodies
        data = make(random, self.attacked(number))
        end = random.choices((End.CLOSE, End.HALF_CLOSE, End.READ, End.KEEP), (5, 2, 2, 2))[0]
        return Session(kind, tuple(self._pieces(random, data)), end)

    @staticmethod
    def _pieces(random: Random, data: bytes) -> Iterator[bytes]:
        """The writes: mostly one, at times one for each byte of a short session."""
        if len(data) < 300 and random.random() < 0.2:
            yield from (data[at : at + 1] for at in range(len(data)))
            return
        at = random.randrange(len(data) + 1) if random.random() < 0.3 else 0
        yield from (piece for piece in (data[:at], data[at:]) if piece)

    # --- kinds of sessions -------------------------------------------------------------------------------

    def _valid(self, random: Random, side: Side) -> bytes:
        """Whole calls in their order, in frames of any size, and answers to calls of the other end."""
        parts = []
        for number in range(random.choice((1, 1, 2, 10))):
            stream_id = self._first_id + 2 * number
            message = _message(stream_id, ttrpc.REQUEST, 0, random.choice(self._calls[side]))
            parts += _framed(random, side.value[0], message)
            if random.random() < 0.5:
                answer = request_pb2.Response(
                    payload=b"", status=request_pb2.Status(code=random.randrange(20))
                )
                body = _message(2 * number + 1, ttrpc.RESPONSE, 0, answer.SerializeToString())
                parts += _framed(random, side.value[2], body)
        return b"".join(parts)

    def _spoiled(self, random: Random, side: Side) -> bytes:
        """Whole calls with bytes that are changed, doubled, left out or put in."""
        data = bytearray(self._valid(random, side))
        for _ in range(random.choice((1, 1, 2, 4, 16))):
            at = random.randrange(max(len(data), 1))
            size = random.choice((1, 1, 2, 8, 10, 100))
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

    def _cut(self, random: Random, side: Side) -> bytes:
        data = self._valid(random, side)
        return data[: random.randrange(len(data))]

    def _frames(self, random: Random, side: Side) -> bytes:
        """Headers of frames with any connection and length, and bytes that may be too few for it."""
        parts = []
        for _ in range(random.choice((1, 3, 20))):
            payload = self._some_noise(random, random.randrange(200))
            length = random.choice((len(payload),) * 8 + _LENGTHS)
            parts.append(FRAME_HEADER.pack(random.choice(_IDS), length) + payload)
        return b"".join(parts)

    def _messages(self, random: Random, side: Side) -> bytes:
        """Messages of any stream, type and flags, mostly of a length that is right."""
        parts = []
        for _ in range(random.choice((1, 3, 20, 100))):
            body = random.choice((*self._calls[side], *_BODIES, self._some_noise(random, 30)))[:5_000]
            length = random.choice((len(body),) * 30 + _LENGTHS)
            message = MESSAGE_HEADER.pack(
                length, random.choice(_STREAMS), random.choice(_TYPES), random.choice(_FLAGS)
            )
            parts += _framed(random, random.choice((1, 1, 1, 2)), message + body)
        return b"".join(parts)

    def _bodies(self, random: Random, side: Side) -> bytes:
        """Requests and responses that are no messages, or empty ones with many fields."""
        parts = []
        for number in range(random.choice((1, 2, 5))):
            body = random.choice((*_BODIES, self._some_noise(random, random.randrange(100))))
            type_ = random.choice((ttrpc.REQUEST, ttrpc.REQUEST, ttrpc.RESPONSE))
            connection_id = side.value[0] if type_ == ttrpc.REQUEST else side.value[2]
            message = _message(self._first_id + 2 * number, type_, 0, body)
            parts += _framed(random, connection_id, message)
        return b"".join(parts)

    def _many(self, random: Random, side: Side) -> bytes:
        """More calls than anyone answers."""
        call = random.choice(self._calls[side])[:500]
        most = random.choice((100, 300, 1000))
        ids = range(self._first_id, self._first_id + 2 * most, 2)
        return b"".join(_frame(side.value[0], _message(each, ttrpc.REQUEST, 0, call)) for each in ids)

    def _noise_only(self, random: Random, side: Side) -> bytes:
        known = random.choice(
            (b"", b"PRI * HTTP/2.0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(8))
        )
        return known + self._some_noise(random, random.choice((1, 10, 1000)))

    def _flood(self, random: Random, side: Side) -> bytes:
        """Thousands of small frames or messages of one kind."""
        piece = random.choice(
            (
                _frame(1, b""),
                _frame(9, b"x"),
                _frame(side.value[0], _message(1, ttrpc.DATA, 0, b"x")),
                _frame(side.value[0], _message(2, ttrpc.REQUEST, 0, b"")),
                _frame(side.value[0], _message(1, 99, 0, b"")),
                _frame(side.value[2], _message(1, ttrpc.RESPONSE, 0, b"")),
            )
        )
        return piece * random.choice(FLOOD_FRAMES)

    def _long(self, random: Random, side: Side) -> bytes:
        """A message as long as is allowed, or nearly, of a kind that costs most."""
        body = random.choice((b"\x2a\x00", b"\x1a\x00", b"\0", b"\xff")) * (ttrpc.MAX_MESSAGE_BYTES // 2)
        if random.random() < 0.5:
            body = request_pb2.Request(
                service=side.value[1], method="Synchronize", payload=body[: 3 << 20]
            ).SerializeToString()
        message = _message(
            1, ttrpc.REQUEST, 0, body[: ttrpc.MAX_MESSAGE_BYTES - random.choice((0, 1, 5_000))]
        )
        return b"".join(_framed(random, side.value[0], message))

    def _some_noise(self, random: Random, size: int) -> bytes:
        at = random.randrange(len(self._noise) - size) if size < len(self._noise) else 0
        return self._noise[at : at + size]


def _frame(connection_id: int, payload: bytes) -> bytes:
    return FRAME_HEADER.pack(connection_id, len(payload)) + payload


def _message(stream_id: int, type_: int, flags: int, body: bytes) -> bytes:
    return MESSAGE_HEADER.pack(len(body), stream_id, type_, flags) + body


def _framed(random: Random, connection_id: int, message: bytes) -> list[bytes]:
    """A message in frames of one size."""
    size = random.choice((10, 100, 4088, 65_536, 1 << 23)) if len(message) < 20_000 else 65_536
    return [_frame(connection_id, message[at : at + size]) for at in range(0, len(message), size)]


def _calls(side: Side) -> Iterator[bytes]:
    """Requests that the end serves, and some that it does not."""
    service = nri.DESCRIPTOR.services_by_name["Plugin" if side is Side.PLUGIN else "Runtime"]
    pod = nri.PodSandbox(id="pod", name="web", uid="uid", namespace="default", labels={"a": "b"})
    pod.linux.cgroup_parent = "/kubepods/poduid"
    container = nri.Container(id="one", pod_sandbox_id="pod", name="main", env=[b"A=\xff"])
    for method in service.methods:
        message = getattr(nri, method.input_type.name)()
        for field in message.DESCRIPTOR.fields:
            if field.name == "pod":
                message.pod.CopyFrom(pod)
            elif field.name == "container":
                message.container.CopyFrom(container)
            elif field.name == "plugin_name":
                message.plugin_name, message.plugin_idx = "fuzz", "42"
        for payload in (message.SerializeToString(), b"", b"\xff" * 20):
            yield request_pb2.Request(
                service=service.full_name, method=method.name, payload=payload, timeout_nano=2 * 10**9
            ).SerializeToString()
    for name, call in ((service.full_name, "Nothing"), ("", ""), ("x" * 5_000, "y" * 5_000)):
        yield request_pb2.Request(service=name, method=call, timeout_nano=-1).SerializeToString()
