"""The response direction: frames of the runtime on their way to the client."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from runtimeproxy.frontends.cri_proxy.relay.direction import TURN_FRAMES, Direction
from runtimeproxy.http2 import frames
from runtimeproxy.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADER_BYTES,
    HEADERS,
    MAX_WINDOW_BYTES,
    PADDED,
    PING,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_ID_MASK,
    WINDOW_UPDATE,
    ErrorCode,
    PeerError,
    unpack_header,
)

if TYPE_CHECKING:
    from runtimeproxy.frontends.cri_proxy.relay.streams import Streams

_COPY_BELOW_BYTES: Final = 4096
"""Shorter pieces of a read are copied: a slice of bytes costs less than a view and its bookkeeping."""


class ResponseDirection(Direction):
    """Parses the runtime's bytes; nothing is decoded, and DATA that just passes is not even waited for.

    A DATA frame of a passing stream is forwarded as its bytes come (cut through); all other frames are
    forwarded whole.
    """

    def __init__(self, relay: Streams) -> None:
        super().__init__(relay)
        self._passing_bytes = 0
        """The rest of a DATA frame whose beginning was forwarded."""
        self._block_stream_id = 0
        """The stream of a header block that is not at its end; 0 for none."""

    def receive(self, data: bytes) -> None:  # noqa: C901  # one loop over frames: the hot path
        """Takes the next bytes of the runtime, cut anywhere.

        Raises:
            PeerError: the runtime broke the protocol.
        """
        relay = self._relay
        output = relay.to_client
        start = position = 0
        if self._passing_bytes:
            if len(data) < self._passing_bytes:
                self._passing_bytes -= len(data)
                self.received_bytes += len(data)
                output.chunks.append(data)
                return
            position, self._passing_bytes = self._passing_bytes, 0
            if output.has_own:
                # Own frames that wait go in here; else the rest and what follows are forwarded as one piece.
                start = self._forward(data, 0, position)
                self._reach_boundary()
        elif self._partial:
            data = self._completed(data)
            if not data:
                return
        flow = relay.flow
        special = relay.special_streams
        max_frame_bytes = relay.client_settings.longest_frame_bytes
        size = len(data)
        self.received_bytes += size
        for _ in TURN_FRAMES:
            if position + HEADER_BYTES > size:
                break
            high, length, type_, flags, stream_id = unpack_header(data, position)
            if high:
                length |= high << 16
            if length > max_frame_bytes:
                raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "frame is longer than the client allows")
            end = position + HEADER_BYTES + length
            if type_ == DATA and stream_id not in special:
                if flags & END_STREAM:
                    relay.open_streams.discard(stream_id)
                if end > size:
                    self._passing_bytes = end - size
                    break
            elif end > size:
                break
            elif type_ == HEADERS and stream_id not in special:
                self._block_stream_id = 0 if flags & END_HEADERS else stream_id
                relay.table_updates.lowest_bytes = None
                if flags & END_STREAM:
                    relay.open_streams.discard(stream_id)
            elif type_ == PING:
                pass
            elif type_ == WINDOW_UPDATE and not (
                stream_id or flow.debt_bytes or flow.waiting or flow.blocked
            ):
                flow.window_bytes += (
                    int.from_bytes(data[position + HEADER_BYTES : end], "big") & MAX_WINDOW_BYTES
                )
            else:
                self._forward(data, start, position)
                output.at_boundary = not self._block_stream_id
                passes = self._handle(type_, flags, stream_id & STREAM_ID_MASK, data[position:end])
                start = position if passes else end
                max_frame_bytes = relay.client_settings.longest_frame_bytes
            position = end
        if self._passing_bytes:
            if output.has_own:
                start = self._forward(data, start, position)
                self._reach_boundary()
            self._forward(data, start, size)
            output.at_boundary = False
            return
        if position == size and not start:
            # Nearly always all of it passes.
            output.chunks.append(data)
        else:
            self._forward(data, start, position)
        output.at_boundary = not self._block_stream_id
        if output.has_own:
            output.flush_own()
        if position < size:
            self._keep(data[position:])

    def _forward(self, data: bytes, start: int, end: int) -> int:
        """Forwards a part of a read; returns its end."""
        size = end - start
        if size:
            chunks = self._relay.to_client.chunks
            if size == len(data):
                chunks.append(data)
            else:
                chunks.append(data[start:end] if size < _COPY_BELOW_BYTES else memoryview(data)[start:end])
        return end

    def _reach_boundary(self) -> None:
        """All that was forwarded ends with a whole frame: own frames may follow, outside of header blocks."""
        output = self._relay.to_client
        output.at_boundary = not self._block_stream_id
        if output.has_own:
            output.flush_own()

    def _handle(  # noqa: C901  # one branch for each type
        self, type_: int, flags: int, stream_id: int, raw: bytes
    ) -> bool:
        """Handles a frame that does not always pass as it is; returns whether it does."""
        relay = self._relay
        stream = relay.special_streams.get(stream_id)
        is_last = bool(flags & END_STREAM)
        if type_ in (HEADERS, PUSH_PROMISE):
            if type_ == HEADERS:
                # The stream first: an own frame that it sends stands before this block.
                if stream is not None:
                    stream.on_runtime_headers(is_last)
                if is_last:
                    relay.open_streams.discard(stream_id)
            self._block_stream_id = 0 if flags & END_HEADERS else stream_id
            relay.table_updates.lowest_bytes = None
            return True
        if type_ == DATA:
            content = raw[HEADER_BYTES:]
            if flags & PADDED:
                content = frames.unpadded(content, flags)
            if is_last:
                relay.open_streams.discard(stream_id)
            return stream is None or stream.on_runtime_data(content, len(raw) - HEADER_BYTES, is_last)
        if type_ == RST_STREAM:
            relay.open_streams.discard(stream_id)
            # The stream's waiting DATA is dropped; its connection credit goes back to the client.
            relay.to_client.credit(0, relay.flow.drop(stream_id))
            return stream is None or stream.on_runtime_reset()
        if type_ == WINDOW_UPDATE:
            increment_bytes = int.from_bytes(raw[HEADER_BYTES:], "big") & MAX_WINDOW_BYTES
            if not stream_id:
                return relay.flow.on_window_update(increment_bytes)
            if stream is not None:
                stream.on_runtime_window_update(increment_bytes)
            return stream is None
        if type_ == SETTINGS:
            return self._on_settings(flags, raw)
        if type_ == GOAWAY:
            return self._on_goaway(raw)
        if type_ == CONTINUATION and flags & END_HEADERS:
            self._block_stream_id = 0
        return True

    def _on_settings(self, flags: int, raw: bytes) -> bool:
        relay = self._relay
        if not flags & ACK:
            relay.runtime_settings.announce(raw[HEADER_BYTES:])
            for stream in list(relay.special_streams.values()):
                stream.on_runtime_settings()
            return True
        if relay.own_acks:
            relay.own_acks -= 1
            return False
        relay.on_client_settings_acknowledged()
        return True

    def _on_goaway(self, raw: bytes) -> bool:
        """Ends the intercepted calls that the runtime disowns; promises no more than the relay's GOAWAY."""
        relay = self._relay
        if len(raw) < HEADER_BYTES + 8:
            return True
        last_id, code = struct.unpack_from(">LL", raw, HEADER_BYTES)
        last_id &= STREAM_ID_MASK
        for stream_id, stream in list(relay.special_streams.items()):
            if stream_id > last_id:
                stream.on_not_processed()
        relay.open_streams.difference_update([each for each in relay.open_streams if each > last_id])
        if last_id <= relay.promised_id:
            relay.promised_id = last_id
            return True
        relay.to_client.chunks.append(relay.goaway(last_id, code, raw[HEADER_BYTES + 8 :]))
        return False
