"""The one header block that the relay writes: an error response, literal and without indexing.

Nothing in it touches the client's dynamic table, so the runtime's own blocks still decode after it.
"""

from __future__ import annotations

from typing import Final

from runtimeproxy.frontends.cri_proxy.relay.peer_settings import DEFAULT_HEADER_TABLE_BYTES
from runtimeproxy.http2.connection import integer, literal
from runtimeproxy.http2.frames import END_HEADERS, END_STREAM, HEADERS, frame
from runtimeproxy.http2.header_fields import percent_encoded

MAX_MESSAGE_BYTES: Final = 6 * 1024
"""Of the percent-encoded message: with it the whole block stays under 8 KiB."""

_STATUS_200: Final = b"\x88"
"""`:status: 200` is entry 8 of the static table. Source: RFC 7541, appendix A."""


class TableSizeUpdates:
    """The dynamic table size updates that the next header block to the client must begin with.

    Source: RFC 7541, 4.2: after a reduced SETTINGS_HEADER_TABLE_SIZE is acknowledged, the next block
    signals the smallest size since the last block and then the final one.

    Attributes:
        lowest_bytes: the smallest size since the last block, if an update is due; a block of the runtime
            begins with the update that is due, so passing one sets this to None.
    """

    def __init__(self) -> None:
        self._limit_bytes = DEFAULT_HEADER_TABLE_BYTES
        self.lowest_bytes: int | None = None

    def on_acknowledged(self, limit_bytes: int) -> None:
        """The ACK of the client's SETTINGS passed to it."""
        if limit_bytes < self._limit_bytes:
            lowest_bytes = self.lowest_bytes
            self.lowest_bytes = limit_bytes if lowest_bytes is None else min(lowest_bytes, limit_bytes)
        self._limit_bytes = limit_bytes

    def take(self) -> tuple[int, ...]:
        """Returns the sizes that are due, for a block of the relay's own that signals them."""
        lowest_bytes = self.lowest_bytes
        if lowest_bytes is None:
            return ()
        self.lowest_bytes = None
        # Never below the lowest: the runtime's encoder may still use as much as that.
        final_bytes = max(lowest_bytes, min(self._limit_bytes, DEFAULT_HEADER_TABLE_BYTES))
        return (lowest_bytes,) if lowest_bytes == final_bytes else (lowest_bytes, final_bytes)


def error_response(
    stream_id: int,
    code: int,
    text: str,
    table_updates: tuple[int, ...] = (),
    *,
    is_trailers: bool = False,
) -> bytes:
    """Returns the HEADERS frame that ends a stream with a gRPC status and no message.

    `table_updates`: dynamic table sizes to signal first, where updates are due (RFC 7541, 4.2).
    `is_trailers`: whether response headers have passed on this stream already.
    """
    block = b"".join(integer(size, 5, 0x20) for size in table_updates)
    if not is_trailers:
        block += _STATUS_200 + literal(b"content-type", b"application/grpc")
    block += literal(b"grpc-status", b"%d" % code)
    block += literal(b"grpc-message", percent_encoded(text, MAX_MESSAGE_BYTES))
    return frame(HEADERS, END_STREAM | END_HEADERS, stream_id, block)
