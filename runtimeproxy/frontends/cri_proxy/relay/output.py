"""The bytes for one side of a relayed connection, until they are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runtimeproxy.http2.frames import MAX_WINDOW_BYTES, ErrorCode, PeerError, window_update

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_OWN_FRAMES: Final = 1000
"""Own frames that may wait for a side that does not read; above it the connection is closed."""


class Output:
    """Collects the bytes for one side until the connection writes them.

    The relay's own frames go out at frame boundaries only, and never inside a header block. While the
    transport is over its high-water mark they wait, WINDOW_UPDATEs summed per stream; passing bytes never
    wait here.

    Attributes:
        chunks: bytes to write, in order; always the same list, emptied by the connection that writes it.
        has_own: whether own frames wait for a boundary or for the transport.
        at_boundary: whether the passing bytes so far end at a frame's end, outside of header blocks.
        is_open: whether the connection to that side is there; until then its bytes stay in `chunks`.
        is_writable: whether the transport is below its high-water mark.
    """

    def __init__(self, first: bytes, *, is_open: bool) -> None:
        self.chunks: list[bytes | memoryview] = [first]
        self.at_boundary = True
        self.has_own = False
        self.is_open = is_open
        self.is_writable = True
        self._own: list[bytes | Callable[[], bytes]] = []
        self._updates: dict[int, int] = {}

    def send(self, frame: bytes | Callable[[], bytes]) -> None:
        """Sends an own frame as soon as the rules allow; a callable makes it then.

        Raises:
            PeerError: too many wait already.
        """
        if self.at_boundary and self.is_writable and not self._own:
            self.chunks.append(frame if isinstance(frame, bytes) else frame())
            return
        if len(self._own) >= MAX_OWN_FRAMES:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames wait for a peer that does not read")
        self._own.append(frame)
        self.has_own = True

    def credit(self, stream_id: int, increment_bytes: int) -> None:
        """Sends a WINDOW_UPDATE, summed with one that waits; 0 bytes send nothing.

        Raises:
            PeerError: credit for too many streams waits already.
        """
        if increment_bytes <= 0:
            return
        if self.at_boundary and self.is_writable:
            self.chunks.append(window_update(stream_id, increment_bytes))
            return
        if stream_id not in self._updates and len(self._updates) >= MAX_OWN_FRAMES:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "credit for too many streams waits")
        total_bytes = self._updates.get(stream_id, 0) + increment_bytes
        self._updates[stream_id] = min(total_bytes, MAX_WINDOW_BYTES)
        self.has_own = True

    def flush_own(self) -> None:
        """Sends the own frames that wait, if the rules allow it now."""
        if not (self.at_boundary and self.is_writable):
            return
        self.chunks.extend(window_update(key, value) for key, value in self._updates.items())
        self._updates.clear()
        self.chunks.extend(frame if isinstance(frame, bytes) else frame() for frame in self._own)
        self._own.clear()
        self.has_own = False
