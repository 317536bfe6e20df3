"""A peer's SETTINGS, and from when on they apply."""

from __future__ import annotations

import struct
from collections import deque
from typing import Final, NamedTuple

from runtimeproxy.http2.frames import DEFAULT_MAX_FRAME_BYTES, DEFAULT_WINDOW_BYTES, ErrorCode, PeerError

HEADER_TABLE_SIZE: Final = 0x1
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
DEFAULT_HEADER_TABLE_BYTES: Final = 4096
"""Source: RFC 9113, 6.5.2."""

MAX_UNACKNOWLEDGED: Final = 100
"""SETTINGS frames of one peer that the other has not answered; real peers have one or two."""

_ENTRY = struct.Struct(">HL")
_FIELDS: Final = {
    HEADER_TABLE_SIZE: "header_table_bytes",
    INITIAL_WINDOW_SIZE: "initial_window_bytes",
    MAX_FRAME_SIZE: "max_frame_bytes",
}


class Http2Settings(NamedTuple):
    """The three settings that the relay needs; the defaults are those before any SETTINGS frame."""

    header_table_bytes: int = DEFAULT_HEADER_TABLE_BYTES
    initial_window_bytes: int = DEFAULT_WINDOW_BYTES
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES

    def updated(self, payload: bytes) -> Http2Settings:
        """Returns these settings changed by a SETTINGS payload; an incomplete entry is ignored.

        The receiver of the frame judges it: the relay forwards malformed SETTINGS as they are.
        """
        changes: dict[str, int] = {}
        for key, value in _ENTRY.iter_unpack(payload[: len(payload) - len(payload) % _ENTRY.size]):
            if key in _FIELDS:
                changes[_FIELDS[key]] = value
        return self._replace(**changes)


class PeerSettings:
    """The settings that one peer has announced, acknowledged by the other side or not.

    A peer's frames are checked against the larger of the acknowledged and the announced values, and own
    frames keep to the smaller: until the ACK passes it is not known which of them applies.
    """

    def __init__(self) -> None:
        self._acked = Http2Settings()
        self._pending: deque[Http2Settings] = deque()
        self.largest = self.smallest = self._acked
        self.longest_frame_bytes = self.largest.max_frame_bytes

    @property
    def announced(self) -> Http2Settings:
        return self._pending[-1] if self._pending else self._acked

    def announce(self, payload: bytes) -> None:
        """The peer sent SETTINGS. Raises PeerError if too many are not acknowledged."""
        if len(self._pending) >= MAX_UNACKNOWLEDGED:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "too many SETTINGS without an answer")
        self._pending.append(self.announced.updated(payload))
        self._bound()

    def acknowledge(self) -> Http2Settings | None:
        """The other side's ACK passed; returns the settings it acknowledges, None if there are none."""
        if not self._pending:
            return None
        self._acked = self._pending.popleft()
        self._bound()
        return self._acked

    def _bound(self) -> None:
        values = tuple(zip(self._acked, *self._pending, strict=True))
        self.largest = Http2Settings(*map(max, values))
        self.smallest = Http2Settings(*map(min, values))
        self.longest_frame_bytes = self.largest.max_frame_bytes
