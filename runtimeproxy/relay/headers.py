"""Follows the HPACK state of a client and reads what the relay must know of its requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from runtimeproxy.http2.frames import ErrorCode, PeerError
from runtimeproxy.http2.header_fields import Fields, HeadReader

MAX_BLOCK_BYTES: Final = 128 * 1024
"""Of an encoded header block over all its frames; gRPC clients send well below 16 KiB."""

FIELDS: Final = Fields(b":path", b"grpc-timeout", b"grpc-encoding")
"""What the relay reads of a request's headers."""

_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])\Z")
_TIMEOUT_UNIT_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class RequestHead(NamedTuple):
    """What the relay reads of a request's headers; empty when absent. The path is `served_path`'s."""

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


def served_path(path: bytes) -> str:
    """Returns a `:path` as its runtime reads it: servers in Go serve it without its first slash, too.

    Source: the server of grpc-go takes off one slash, if there is one, and splits at the last; containerd
    1.6 and 2.2 serve no other spelling (`tests/e2e/test_path_spellings.py`).
    """
    text = path.decode("latin-1")
    return text if path[:1] == b"/" or not path else "/" + text


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


class HeaderTracker(HeadReader[RequestHead]):
    """Reads every request header block of one connection, in order; the kubelet's repeat."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(FIELDS, _request_head)


def _request_head(values: Sequence[bytes]) -> RequestHead:
    path, timeout, encoding, _ = values
    return RequestHead(served_path(path), timeout, encoding.decode("latin-1"))
