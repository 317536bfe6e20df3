"""Header blocks of one end of a connection: cut into frames on the way out, put together on the way in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpack import HPACKError

from tests.frontends.cri_proxy.relay.properties.streams import Block, RuleBrokenError
from tests.peers import wire
from tests.peers.wire import Frame, Headers


@dataclass(frozen=True)
class ReceivedBlock:
    """A whole header block, decoded."""

    stream_id: int
    is_last: bool
    fields: dict[str, str]


class Blocks:
    """Both header tables of one end, and the block whose END_HEADERS has not come."""

    def __init__(self) -> None:
        self._headers = Headers()
        self._open: Frame | None = None

    @property
    def is_open(self) -> bool:
        """Whether CONTINUATION must come next."""
        return self._open is not None

    def sent(self, stream_id: int, item: Block) -> Iterator[Frame]:
        """The frames of a block to send."""
        block = self._headers.block(item.fields)
        size = -(-len(block) // item.pieces) or 1
        pieces = [block[at : at + size] for at in range(0, len(block), size)]
        yield wire.headers(
            stream_id,
            pieces[0],
            end=item.is_last,
            more=len(pieces) > 1,
            pad=item.pad,
            priority=item.priority,
        )
        for number, piece in enumerate(pieces[1:], 2):
            yield wire.continuation(stream_id, piece, more=number < len(pieces))

    def received(self, frame: Frame) -> ReceivedBlock | None:
        """Takes HEADERS or CONTINUATION; returns the block that is whole with it."""
        first = frame
        if frame.type_ == wire.CONTINUATION:
            if self._open is None or self._open.stream_id != frame.stream_id:
                raise RuleBrokenError(f"CONTINUATION without its HEADERS: {frame!r}")
            first = self._open
        block = frame.content if first is frame else first.payload + frame.payload
        self._open = None
        if not frame.flags & wire.END_HEADERS:
            self._open = Frame(wire.HEADERS, first.flags & wire.END_STREAM, frame.stream_id, block)
            return None
        return ReceivedBlock(frame.stream_id, first.ends_stream, self._decoded(block))

    def _decoded(self, block: bytes) -> dict[str, str]:
        try:
            return self._headers.read(block)
        except HPACKError as error:
            raise RuleBrokenError(f"header blocks decode: {error!r}") from error

    def limit_received(self, table_bytes: int) -> None:
        """The other side has acknowledged this side's table size."""
        self._headers.decoder.max_allowed_table_size = table_bytes

    def limit_sent(self, table_bytes: int) -> None:
        """The next block signals the smallest size since the last one, then the final one (RFC 7541, 4.2)."""
        encoder = self._headers.encoder
        encoder.header_table_size = table_bytes
        changes = encoder.table_size_changes
        if changes:
            encoder.table_size_changes = list(dict.fromkeys((min(changes), changes[-1])))
