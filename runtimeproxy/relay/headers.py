"""Follows the HPACK state of a client and reads what the relay must know of its requests."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from hpack import HPACKError

from runtimeproxy.http2.frames import ErrorCode, PeerError
from runtimeproxy.http2.header_fields import FieldReader, Fields

MAX_BLOCK_BYTES: Final = 128 * 1024
"""Of an encoded header block over all its frames; gRPC clients send well below 16 KiB."""

FIELDS: Final = Fields(b":path", b"grpc-timeout", b"grpc-encoding")
"""What the relay reads of a request's headers."""

_REMEMBERED_BLOCKS: Final = 64
_REMEMBERED_BLOCK_BYTES: Final = 2048

_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])\Z")
_TIMEOUT_UNIT_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class RequestHead(NamedTuple):
    """What the relay reads of a request's headers; raw values, empty when absent."""

    path: str
    timeout: bytes
    encoding: str

    @property
    def timeout_s(self) -> float | None:
        """The caller's `grpc-timeout`; None when there is none, or none that can be read."""
        return parse_timeout(self.timeout)


def parse_timeout(value: bytes) -> float | None:
    """Returns a `grpc-timeout` in seconds; None when it is absent or malformed.

    Source: gRPC over HTTP/2, "Timeout": up to eight digits and a unit.
    """
    match = _TIMEOUT.match(value)
    return int(match[1]) * _TIMEOUT_UNIT_S[match[2]] if match else None


@dataclass(slots=True)
class OpenBlock:
    """A header block whose END_HEADERS has not come yet; forwarded as a whole.

    Attributes:
        flags: those of its HEADERS frame.
        raw: its frames as they came.
        fragments: what they hold of the block.
    """

    stream_id: int
    flags: int
    raw: list[bytes] = field(default_factory=list)
    fragments: list[bytes] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, raw: bytes, fragment: bytes) -> None:
        """Takes its next frame.

        Raises:
            PeerError: the block grows without end.
        """
        self.size_bytes += len(raw)
        if self.size_bytes > MAX_BLOCK_BYTES:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "header block without end")
        self.raw.append(raw)
        self.fragments.append(fragment)


class HeaderTracker:
    """Reads every request header block of one connection, in order.

    A block is remembered if it changed nothing in the table; the memory lasts until the table changes.
    The kubelet's blocks repeat (`grpc-timeout: 120000m`), so most calls cost one dictionary look-up.
    """

    __slots__ = ("_reader", "_remembered")

    def __init__(self) -> None:
        self._reader = FieldReader(FIELDS)
        self._remembered: dict[bytes, RequestHead] = {}

    def decode(self, block: bytes, max_table_bytes: int) -> RequestHead:
        """Returns the head that a whole header block encodes.

        Args:
            block: all fragments of the block.
            max_table_bytes: the largest table that the receiver may have allowed: it only bounds the
                size updates inside blocks, which alone change the table's size.

        Raises:
            PeerError: the block does not decode, and the connection's HPACK state is lost.
        """
        head = self._remembered.get(block)
        if head is not None:
            return head
        reader = self._reader
        version = reader.version
        try:
            path, timeout, encoding, _ = reader.read(block, max(max_table_bytes, reader.table_bytes))
        except HPACKError as error:
            raise PeerError(ErrorCode.COMPRESSION_ERROR, f"header block: {error}") from error
        head = RequestHead(path.decode("latin-1"), timeout, encoding.decode("latin-1"))
        if reader.version != version:
            self._remembered.clear()
        elif len(block) <= _REMEMBERED_BLOCK_BYTES:
            if len(self._remembered) >= _REMEMBERED_BLOCKS:
                self._remembered.clear()
            self._remembered[block] = head
        return head
