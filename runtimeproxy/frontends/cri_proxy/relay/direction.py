"""Bytes of one side, cut anywhere, become whole frames: for both directions of a relayed connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runtimeproxy.http2.frames import HEADER_BYTES

if TYPE_CHECKING:
    from runtimeproxy.frontends.cri_proxy.relay.streams import Streams

TURN_FRAMES: Final = range(2000)
"""Frames of one side that are taken in one turn of the loop: a read of 256 KiB may hold 29,000, and other
clients wait meanwhile."""


class Direction:
    """The bytes of one side that are no whole frame yet, or that wait for the next turn.

    Attributes:
        is_behind: whether whole frames wait for the next turn: `receive` goes on with them, even with b"".
        received_bytes: of all frames that were taken.
    """

    def __init__(self, relay: Streams) -> None:
        self._relay = relay
        self._partial: list[bytes] = []
        self._missing_bytes = 0
        self.is_behind = False
        self.received_bytes = 0

    def _completed(self, data: bytes) -> bytes:
        """Returns the kept bytes with the next ones; empty if a frame is still incomplete."""
        self._partial.append(data)
        if len(data) < self._missing_bytes:
            self._missing_bytes -= len(data)
            return b""
        data = b"".join(self._partial)
        self._partial.clear()
        self.is_behind = False
        return data

    def _keep(self, rest: bytes) -> None:
        """Keeps an incomplete frame until its rest is there, or whole frames for the next turn."""
        self._partial.append(rest)
        # They are counted with the rest.
        self.received_bytes -= len(rest)
        length = int.from_bytes(rest[:3], "big") if len(rest) >= HEADER_BYTES else 0
        self._missing_bytes = HEADER_BYTES + length - len(rest)
        if self._missing_bytes <= 0:
            self.is_behind = True
            self._relay.wake()
