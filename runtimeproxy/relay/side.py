"""One of the two transports of a relayed connection, as an asyncio protocol."""

from __future__ import annotations

import asyncio
import contextlib
from enum import Flag, auto
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable

WRITE_HIGH_WATER_BYTES: Final = 256 * 1024
"""Of a transport's buffer; above it reading of the other side pauses."""


def _drop(data: bytes) -> None:
    """Takes what nobody needs any more."""


class Pause(Flag):
    """Why a side is not read."""

    PEER_FULL = auto()
    """What is read from it cannot be written to the other side."""
    EARLY_FULL = auto()
    """Enough waits for the upstream."""
    MEMORY_FULL = auto()
    """Enough of it waits for memory that others have."""
    BEHIND = auto()
    """What was read is not taken yet."""


class Side(asyncio.BaseProtocol):
    """The client's or the runtime's transport; everything is decided by those who are called.

    Args:
        on_data: takes what was read.
        on_writable: told when the transport's buffer goes over its high-water mark, and below it again.
        on_lost: told once, when the transport is gone.
        on_eof: told when the peer has ended its direction.

    Attributes:
        transport: None before the connection is made, and after it is lost: some loops take no word then.
        data_received: takes what was read. Event loops remember it when the protocol is set, so a change
            goes through `receive_with`.
    """

    def __init__(
        self,
        on_data: Callable[[bytes], None],
        on_writable: Callable[[bool], None],
        on_lost: Callable[[], None],
        on_eof: Callable[[], None] | None = None,
    ) -> None:
        self.transport: asyncio.Transport | None = None
        self.data_received = on_data
        self._paused = Pause(0)
        self._on_eof = on_eof
        self._on_writable = on_writable
        self._on_lost = on_lost

    # --- what the connection wants -----------------------------------------------------------------------

    def receive_with(self, on_data: Callable[[bytes], None]) -> None:
        """What takes the bytes from now on."""
        self.data_received = on_data
        if self.transport is not None:
            self.transport.set_protocol(self)

    def write(self, chunks: list[bytes | memoryview]) -> None:
        """Writes and empties a list of chunks."""
        if self.transport is not None:
            if len(chunks) == 1:
                self.transport.write(chunks[0])
            else:
                self.transport.writelines(chunks)
        chunks.clear()

    def pause(self, why: Pause) -> None:
        """Stops reading; a transport that is closing needs no word."""
        self._paused |= why
        if self.transport is not None:
            with contextlib.suppress(RuntimeError):
                self.transport.pause_reading()

    def resume(self, why: Pause) -> None:
        """Reads again, if there is no other reason not to."""
        if not self._paused & why:
            return
        self._paused &= ~why
        if not self._paused and self.transport is not None:
            with contextlib.suppress(RuntimeError):
                self.transport.resume_reading()

    def end(self) -> None:
        """Ends the own direction after what is written; what comes is dropped until the peer ends its own.

        A peer that writes to a socket which is closed gets an error, and then gRPC gives up answers that it
        has not read yet.
        """
        self.receive_with(_drop)
        self.resume(self._paused)
        if self.transport is not None:
            with contextlib.suppress(RuntimeError):
                self.transport.write_eof()

    def abort(self) -> None:
        """Ends the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    # --- what the event loop tells -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is there."""
        stream = cast("asyncio.Transport", transport)
        self.transport = stream
        stream.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        if self._paused:
            stream.pause_reading()

    def eof_received(self) -> None:
        """The transport closes itself then, as soon as all is written, which may be never."""
        if self._on_eof is not None:
            self._on_eof()

    def pause_writing(self) -> None:
        """The transport's buffer is above its high-water mark."""
        self._on_writable(False)

    def resume_writing(self) -> None:
        """The transport's buffer is low again."""
        self._on_writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is gone."""
        self.transport = None
        self._on_lost()
