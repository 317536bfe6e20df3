"""HTTP/2 frames as bytes: constants, the frame header, and the few frames that are written here.

Source of all numbers: RFC 9113, sections 4.1, 6 and 7.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first 24 bytes of every HTTP/2 client (3.4)."""

HEADER_BYTES: Final = 9
"""Length of a frame header."""

FRAME_HEADER: Final = struct.Struct(">BHBBL")
"""Length (its high 8 bits, nearly always 0, then the low 16), type, flags, stream id (top bit reserved)."""

_FOUR_BYTES: Final = struct.Struct(">BHBBLL")
"""A frame whose payload is one number."""

unpack_header: Final = FRAME_HEADER.unpack_from
"""Returns the five parts of the frame header in a buffer at a position. A constant because the loops over
frames are the hot path: the interpreter would look the method up for each frame."""

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20

STREAM_ID_MASK: Final = 0x7FFFFFFF
MAX_STREAM_ID: Final = 0x7FFFFFFF
MAX_WINDOW_BYTES: Final = 0x7FFFFFFF
DEFAULT_WINDOW_BYTES: Final = 65_535
"""Of a connection always, of a stream until SETTINGS_INITIAL_WINDOW_SIZE says otherwise (6.9.2)."""
DEFAULT_MAX_FRAME_BYTES: Final = 16_384
"""SETTINGS_MAX_FRAME_SIZE before a peer raises it; every peer accepts frames of this size (4.2)."""

EMPTY_SETTINGS: Final = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
SETTINGS_ACK: Final = b"\x00\x00\x00\x04\x01\x00\x00\x00\x00"


class ErrorCode(IntEnum):
    """HTTP/2 error codes (7) that are sent."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    FRAME_SIZE_ERROR = 0x6
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class PeerError(Exception):
    """A peer broke the protocol: its connection ends with this code. `code`: the GOAWAY's error code."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        self.code = code
        super().__init__(reason)


def frame(type_: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return FRAME_HEADER.pack(size >> 16, size & 0xFFFF, type_, flags, stream_id) + payload


def window_update(stream_id: int, increment_bytes: int) -> bytes:
    # Section 6.9; `increment_bytes` is 1 to 2^31-1.
    return _FOUR_BYTES.pack(0, 4, WINDOW_UPDATE, 0, stream_id, increment_bytes)


def rst_stream(stream_id: int, code: int) -> bytes:
    # Section 6.4.
    return _FOUR_BYTES.pack(0, 4, RST_STREAM, 0, stream_id, code)


def goaway(last_stream_id: int, code: int, debug: bytes = b"") -> bytes:
    # Section 6.8.
    return frame(GOAWAY, 0, 0, struct.pack(">LL", last_stream_id, code) + debug)


def ping(opaque: bytes) -> bytes:
    # Section 6.7; `opaque` has 8 bytes.
    return frame(PING, 0, 0, opaque)


def ping_ack(opaque: bytes) -> bytes:
    return frame(PING, ACK, 0, opaque)


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, int, int, bytes]:
    """Reads the next frame; returns its type, flags, stream id and payload."""
    high, length, type_, flags, stream_id = FRAME_HEADER.unpack(await reader.readexactly(HEADER_BYTES))
    return type_, flags, stream_id, await reader.readexactly(high << 16 | length)


def unpadded(payload: bytes, flags: int) -> bytes:
    """Returns the content of a DATA or HEADERS payload without its padding (6.1).

    Raises:
        PeerError: the padding is as long as the payload or longer.
    """
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise PeerError(ErrorCode.PROTOCOL_ERROR, "padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def header_fragment(payload: bytes, flags: int) -> bytes:
    """Returns the header block fragment of a HEADERS payload (6.2).

    Raises:
        PeerError: padding or priority fields do not fit into the frame.
    """
    content = unpadded(payload, flags)
    if not flags & PRIORITY_FLAG:
        return content
    if len(content) < 5:
        raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS frame is shorter than its priority fields")
    return content[5:]
