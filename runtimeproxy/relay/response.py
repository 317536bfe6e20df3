"""The response direction: frames of the runtime on their way to the client."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from runtimeproxy.http2 import frames
from runtimeproxy.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    GOAWAY,
    HEADER_BYTES,
    HEADERS,
    MAX_WINDOW_BYTES,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_ID_MASK,
    WINDOW_UPDATE,
    ErrorCode,
    PeerError,
)
from runtimeproxy.relay.state import TURN_FRAMES

if TYPE_CHECKING:
    from runtimeproxy.relay.state import ConnectionState

_COPY_BELOW_BYTES: Final = 4096
"""Shorter pieces of a read are copied: a slice of bytes costs less than a view and its bookkeeping."""


class ResponseDirection:
    """Parses the runtime's bytes; nothing is decoded, and DATA that just passes is not even waited for.

    A DATA frame of a passing stream is forwarded as its bytes come (cut through); all other frames are
    forwarded whole.
    """

    __slots__ = ("_block_stream_id", "_missing_bytes", "_partial", "_passing_bytes", "_state")

    def __init__(self, state: ConnectionState) -> None:
        self._state = state
        self._partial: list[bytes] = []
        self._missing_bytes = 0
        self._passing_bytes = 0
        self._block_stream_id = 0

    def receive(self, data: bytes) -> None:
        """Takes the next bytes of the runtime, cut anywhere.

        Raises:
            PeerError: the runtime broke the protocol.
        """
        position = 0
        if self._passing_bytes:
            position = self._pass_rest(data)
            if self._passing_bytes:
                return
        elif self._partial:
            if len(data) < self._missing_bytes:
                self._partial.append(data)
                self._missing_bytes -= len(data)
                return
            self._partial.append(data)
            data = b"".join(self._partial)
            self._partial.clear()
        self._walk(data, position)

    def _pass_rest(self, data: bytes) -> int:
        """Forwards the rest of a DATA frame that passes; returns where the next frame begins.

        When own frames wait they go in here, at the boundary; else the rest stays in front of what
        follows it, so that the whole read is forwarded as one piece.
        """
        outbox = self._state.to_client
        if len(data) < self._passing_bytes:
            self._passing_bytes -= len(data)
            outbox.chunks.append(data)
            return 0
        end = self._passing_bytes
        self._passing_bytes = 0
        return end

    def _walk(self, data: bytes, position: int) -> None:  # noqa: C901  # one loop over frames: the hot path
        state = self._state
        outbox = state.to_client
        size = len(data)
        special = state.special
        max_frame_bytes = state.client_settings.largest.max_frame_bytes
        start = 0
        if position and outbox.has_own:
            self._forward(data, 0, position)
            start = position
            self._at_boundary()
        for _ in TURN_FRAMES:
            if size - position < HEADER_BYTES:
                break
            high, low, type_, flags, stream_id = FRAME_HEADER.unpack_from(data, position)
            length = high << 8 | low
            if length > max_frame_bytes:
                raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "frame is longer than the client allows")
            end = position + HEADER_BYTES + length
            if type_ == DATA and stream_id not in special:
                if flags & END_STREAM:
                    state.open_streams.discard(stream_id)
                if end > size:
                    self._passing_bytes = end - size
                    break
            elif end > size:
                break
            elif type_ == HEADERS and stream_id not in special:
                self._headers(flags, stream_id)
            else:
                self._forward(data, start, position)
                start = end
                outbox.at_boundary = not self._block_stream_id
                if self._special_frame(type_, flags, stream_id & STREAM_ID_MASK, data[position:end]):
                    start = position
                max_frame_bytes = state.client_settings.largest.max_frame_bytes
            position = end
        self._finish(data, start, position)

    def _finish(self, data: bytes, start: int, position: int) -> None:
        """Forwards the run that passes, own frames at its last boundary, and keeps what is left."""
        size = len(data)
        if self._passing_bytes:
            if self._state.to_client.has_own:
                self._forward(data, start, position)
                start = position
                self._at_boundary()
            self._forward(data, start, size)
            self._state.to_client.at_boundary = False
            return
        self._forward(data, start, position)
        self._at_boundary()
        if position < size:
            rest = data[position:]
            self._partial.append(rest)
            length = int.from_bytes(rest[:3], "big") if len(rest) >= HEADER_BYTES else 0
            self._missing_bytes = HEADER_BYTES + length - len(rest)
            if self.is_behind:
                self._state.wake()

    @property
    def is_behind(self) -> bool:
        """Whether whole frames wait for the next turn: `receive` goes on with them, also with no bytes."""
        return bool(self._partial) and self._missing_bytes <= 0

    def _at_boundary(self) -> None:
        outbox = self._state.to_client
        outbox.at_boundary = not self._block_stream_id
        if outbox.has_own:
            outbox.flush_own()

    def _forward(self, data: bytes, start: int, end: int) -> None:
        size = end - start
        if size == 0:
            return
        if size == len(data):
            self._state.to_client.chunks.append(data)
        elif size < _COPY_BELOW_BYTES:
            self._state.to_client.chunks.append(data[start:end])
        else:
            self._state.to_client.chunks.append(memoryview(data)[start:end])

    def _headers(self, flags: int, stream_id: int) -> None:
        """A header block begins, or continues."""
        self._block_stream_id = 0 if flags & END_HEADERS else stream_id
        self._state.table_updates.block_passed()
        if flags & END_STREAM:
            self._state.open_streams.discard(stream_id)

    def _special_frame(self, type_: int, flags: int, stream_id: int, raw: bytes) -> bool:
        """Handles a frame that does not always pass as it is; returns whether it does."""
        state = self._state
        stream = state.special.get(stream_id)
        if type_ == HEADERS:
            # The stream first: what it sets off stands before this block, which signals no update for it.
            if stream is not None:
                stream.runtime_headers(bool(flags & END_STREAM))
            self._headers(flags, stream_id)
            return True
        if type_ == DATA:
            content = frames.unpadded(raw[HEADER_BYTES:], flags)
            flow_bytes = len(raw) - HEADER_BYTES
            is_last = bool(flags & END_STREAM)
            if is_last:
                state.open_streams.discard(stream_id)
            return stream is None or stream.runtime_data(content, flow_bytes, is_last)
        if type_ == RST_STREAM:
            state.open_streams.discard(stream_id)
            self._credit_dropped(stream_id)
            return stream is None or stream.runtime_reset()
        if type_ == WINDOW_UPDATE:
            return self._window_update(stream_id, raw)
        return self._connection_frame(type_, flags, stream_id, raw)

    def _credit_dropped(self, stream_id: int) -> None:
        """A reset stream's waiting DATA is dropped; its connection credit goes back to the client."""
        self._state.to_client.credit(0, self._state.sender.drop(stream_id))

    def _window_update(self, stream_id: int, raw: bytes) -> bool:
        state = self._state
        increment = int.from_bytes(raw[HEADER_BYTES:], "big") & MAX_WINDOW_BYTES
        if stream_id:
            stream = state.special.get(stream_id)
            if stream is None:
                return True
            stream.runtime_window_update(increment)
            return False
        passed = state.credit.receive(increment)
        if passed and passed != increment:
            state.to_client.chunks.append(frames.window_update(0, passed))
        state.sender.pump()
        return passed == increment

    def _connection_frame(self, type_: int, flags: int, stream_id: int, raw: bytes) -> bool:
        state = self._state
        if type_ == SETTINGS:
            return self._settings(flags, raw)
        if type_ == GOAWAY:
            return self._goaway(raw)
        if type_ == PUSH_PROMISE:
            self._block_stream_id = 0 if flags & END_HEADERS else stream_id
            state.table_updates.block_passed()
        elif type_ == CONTINUATION and flags & END_HEADERS:
            self._block_stream_id = 0
        return True

    def _settings(self, flags: int, raw: bytes) -> bool:
        state = self._state
        if not flags & ACK:
            state.runtime_settings.announce(raw[HEADER_BYTES:])
            for stream in list(state.special.values()):
                stream.runtime_settings_changed()
            return True
        if state.own_acks:
            state.own_acks -= 1
            return False
        state.client_settings_acknowledged()
        return True

    def _goaway(self, raw: bytes) -> bool:
        """Ends the held calls that the runtime disowns; never promises more than the relay's own GOAWAY."""
        state = self._state
        if len(raw) < HEADER_BYTES + 8:
            return True
        last_id, code = struct.unpack_from(">LL", raw, HEADER_BYTES)
        last_id &= STREAM_ID_MASK
        for stream_id, stream in list(state.special.items()):
            if stream_id > last_id:
                stream.disowned()
        state.open_streams.difference_update([each for each in state.open_streams if each > last_id])
        if last_id <= state.promised_id:
            state.promised_id = last_id
            return True
        state.to_client.chunks.append(state.goaway(last_id, code, raw[HEADER_BYTES + 8 :]))
        return False
