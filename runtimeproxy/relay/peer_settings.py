"""What a peer's SETTINGS say, and from when on they count."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from runtimeproxy.http2.frames import DEFAULT_MAX_FRAME_BYTES, DEFAULT_WINDOW_BYTES, ErrorCode, PeerError

HEADER_TABLE_SIZE: Final = 0x1
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
DEFAULT_HEADER_TABLE_BYTES: Final = 4096
"""Source: RFC 9113, 6.5.2."""

MAX_UNACKNOWLEDGED: Final = 100
"""SETTINGS frames of one peer that the other has not answered; real peers have one or two."""

_ENTRY = struct.Struct(">HL")


@dataclass(frozen=True, slots=True)
class Settings:
    """The three settings that the relay needs; the defaults are those before any SETTINGS frame."""

    header_table_bytes: int = DEFAULT_HEADER_TABLE_BYTES
    initial_window_bytes: int = DEFAULT_WINDOW_BYTES
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES

    def updated(self, payload: bytes) -> Settings:
        """Returns these settings changed by a SETTINGS payload; what does not fit is left out.

        The receiver of the frame judges it: the relay forwards malformed SETTINGS as they are.
        """
        changes: dict[str, int] = {}
        for key, value in _ENTRY.iter_unpack(payload[: len(payload) - len(payload) % _ENTRY.size]):
            if key == HEADER_TABLE_SIZE:
                changes["header_table_bytes"] = value
            elif key == INITIAL_WINDOW_SIZE:
                changes["initial_window_bytes"] = value
            elif key == MAX_FRAME_SIZE:
                changes["max_frame_bytes"] = value
        return replace(self, **changes) if changes else self


class PeerSettings:
    """The settings that one peer has announced, with those that the other side has not acknowledged yet.

    A peer's frames are checked against the larger of the acknowledged and the announced values, and own
    frames keep to the smaller: until the ACK passes nobody knows which of them counts.
    """

    __slots__ = ("_acked", "_pending", "largest", "smallest")

    def __init__(self) -> None:
        self._acked = Settings()
        self._pending: deque[Settings] = deque()
        self.largest = self._acked
        self.smallest = self._acked

    @property
    def announced(self) -> Settings:
        """The newest values, acknowledged or not."""
        return self._pending[-1] if self._pending else self._acked

    def announce(self, payload: bytes) -> None:
        """The peer sent SETTINGS.

        Raises:
            PeerError: too many are not acknowledged.
        """
        if len(self._pending) >= MAX_UNACKNOWLEDGED:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "too many SETTINGS without an answer")
        self._pending.append(self.announced.updated(payload))
        self._bound()

    def acknowledge(self) -> Settings | None:
        """The other side's ACK passed; returns the settings it acknowledges, None if there are none."""
        if not self._pending:
            return None
        self._acked = self._pending.popleft()
        self._bound()
        return self._acked

    def _bound(self) -> None:
        every = (self._acked, *self._pending)
        self.largest, self.smallest = (
            Settings(
                pick(s.header_table_bytes for s in every),
                pick(s.initial_window_bytes for s in every),
                pick(s.max_frame_bytes for s in every),
            )
            for pick in (max, min)
        )
