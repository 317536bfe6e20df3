"""HTTP/2 frames for tests: builders with the names of RFC 9113, and a reader that shows bytes as frames."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hpack import Decoder, Encoder

from runtimeproxy.http2.frames import PREFACE

NAMES = (
    "DATA",
    "HEADERS",
    "PRIORITY",
    "RST_STREAM",
    "SETTINGS",
    "PUSH_PROMISE",
    "PING",
    "GOAWAY",
    "WINDOW_UPDATE",
    "CONTINUATION",
)
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)

ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0x0, 0x1, 0x2, 0x3
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 0x6, 0x7, 0x8, 0x9, 0xB

TABLE_SIZE, INITIAL_WINDOW, MAX_FRAME = 0x1, 0x4, 0x5
LAST_ID = 0x7FFFFFFF


HEADER_BYTES = 9


def frame_bytes(type_: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """The bytes of one frame."""
    size = len(payload)
    return struct.pack(">HBBBL", size >> 8, size & 0xFF, type_, flags, stream_id) + payload


def frame_head(head: bytes) -> tuple[int, int, int, int]:
    """Payload size, type, flags and stream id at the beginning of `head`."""
    high, low, type_, flags, stream_id = struct.unpack_from(">HBBBL", head)
    return high << 8 | low, type_, flags, stream_id


class Frame(NamedTuple):
    """One frame; compared by value, shown readably."""

    type_: int
    flags: int
    stream_id: int
    payload: bytes

    def __bytes__(self) -> bytes:
        return frame_bytes(*self)

    def __repr__(self) -> str:
        name = NAMES[self.type_] if self.type_ < len(NAMES) else f"TYPE_{self.type_:#x}"
        payload = self.payload if len(self.payload) <= 40 else self.payload[:40] + b"..%d" % len(self.payload)
        return f"{name}({self.stream_id}, flags={self.flags:#x}, {payload!r})"

    @property
    def ends_stream(self) -> bool:
        """Whether this is the last frame that its sender sends on the stream."""
        return self.type_ in (DATA, HEADERS) and bool(self.flags & END_STREAM)

    @property
    def content(self) -> bytes:
        """The payload of DATA without its padding, of HEADERS also without priority fields."""
        content = self.payload
        if self.type_ in (DATA, HEADERS) and self.flags & PADDED:
            content = content[1 : len(content) - content[0]]
        return content[5:] if self.type_ == HEADERS and self.flags & PRIORITY_FLAG else content

    @property
    def number(self) -> int:
        """The payload as a number: an increment, an error code."""
        return int.from_bytes(self.payload, "big")


def data(stream_id: int, content: bytes = b"", *, end: bool = False, pad: int | None = None) -> Frame:
    """DATA; `pad` bytes of padding and their length before the content."""
    flags = (END_STREAM if end else 0) | (0 if pad is None else PADDED)
    return Frame(DATA, flags, stream_id, _padded(content, pad))


def headers(
    stream_id: int,
    block: bytes,
    *,
    end: bool = False,
    more: bool = False,
    pad: int | None = None,
    priority: bool = False,
) -> Frame:
    """HEADERS with a block, or with its first fragment when there is `more`."""
    flags = (END_STREAM if end else 0) | (0 if more else END_HEADERS) | (0 if pad is None else PADDED)
    if priority:
        return Frame(
            HEADERS, flags | PRIORITY_FLAG, stream_id, _padded(struct.pack(">LB", 0, 15) + block, pad)
        )
    return Frame(HEADERS, flags, stream_id, _padded(block, pad))


def _padded(content: bytes, pad: int | None) -> bytes:
    return content if pad is None else bytes((pad,)) + content + bytes(pad)


def continuation(stream_id: int, fragment: bytes, *, more: bool = False) -> Frame:
    """CONTINUATION, the last one unless there is `more`."""
    return Frame(CONTINUATION, 0 if more else END_HEADERS, stream_id, fragment)


def priority(stream_id: int) -> Frame:
    """PRIORITY."""
    return Frame(PRIORITY, 0, stream_id, struct.pack(">LB", 0, 7))


def reset(stream_id: int, code: int = CANCEL) -> Frame:
    """RST_STREAM."""
    return Frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def settings(values: dict[int, int] | None = None) -> Frame:
    """SETTINGS."""
    payload = b"".join(struct.pack(">HL", key, value) for key, value in (values or {}).items())
    return Frame(SETTINGS, 0, 0, payload)


SETTINGS_ACK = Frame(SETTINGS, ACK, 0, b"")


def ping(opaque: bytes = b"12345678") -> Frame:
    """PING."""
    return Frame(PING, 0, 0, opaque)


def ping_ack(opaque: bytes = b"12345678") -> Frame:
    """The answer to a PING."""
    return Frame(PING, ACK, 0, opaque)


def goaway(last_id: int, code: int = NO_ERROR, debug: bytes = b"") -> Frame:
    """GOAWAY."""
    return Frame(GOAWAY, 0, 0, struct.pack(">LL", last_id, code) + debug)


def credit(stream_id: int, increment: int) -> Frame:
    """WINDOW_UPDATE."""
    return Frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def unknown(stream_id: int = 0, payload: bytes = b"?", type_: int = 0xF0) -> Frame:
    """A frame of an unknown type."""
    return Frame(type_, 0x55, stream_id, payload)


def wire(*items: Frame | bytes) -> bytes:
    """The bytes of frames in a row."""
    return b"".join(bytes(item) for item in items)


def message(content: bytes, flag: int = 0) -> bytes:
    """A gRPC message with its prefix."""
    return bytes((flag,)) + len(content).to_bytes(4, "big") + content


class Reader:
    """Turns bytes, cut anywhere, into frames."""

    def __init__(self) -> None:
        self._rest = b""
        self.has_preface = False

    @property
    def rest(self) -> bytes:
        """Bytes of a frame that is not complete."""
        return self._rest

    def frames(self, received: bytes) -> Iterator[Frame]:
        """Yields the frames that are complete; a client's preface at the beginning is left out."""
        self._rest += received
        if self._rest.startswith(PREFACE):
            self._rest = self._rest[len(PREFACE) :]
            self.has_preface = True
        while len(self._rest) >= HEADER_BYTES:
            size, type_, flags, stream_id = frame_head(self._rest)
            end = HEADER_BYTES + size
            if len(self._rest) < end:
                return
            yield Frame(type_, flags, stream_id, self._rest[HEADER_BYTES:end])
            self._rest = self._rest[end:]


def frames_of(received: bytes) -> list[Frame]:
    """The frames of bytes that end with a whole frame."""
    reader = Reader()
    found = list(reader.frames(received))
    assert not reader.rest, f"incomplete frame at the end: {reader.rest!r}"
    return found


class Headers:
    """One side's header state: encodes its own blocks and decodes the other's."""

    def __init__(self) -> None:
        self.encoder = Encoder()
        self.decoder = Decoder()

    def request(self, path: str, extra: Iterable[tuple[str, str]] = ()) -> bytes:
        """The block of a gRPC request."""
        return self.block(
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", "localhost"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                *extra,
            ]
        )

    def response(self, extra: Iterable[tuple[str, str]] = ()) -> bytes:
        """The block that begins a gRPC response."""
        return self.block([(":status", "200"), ("content-type", "application/grpc"), *extra])

    def trailers(self, code: int = 0, text: str = "") -> bytes:
        """The block that ends one."""
        return self.block([("grpc-status", str(code)), ("grpc-message", text)])

    def block(self, fields: Iterable[tuple[str, str]]) -> bytes:
        """Encodes any fields."""
        encoded: bytes = self.encoder.encode(list(fields))
        return encoded

    def read(self, block: bytes) -> dict[str, str]:
        """Decodes a block of the other side."""
        return {str(name): str(value) for name, value in self.decoder.decode(block)}
