"""The request direction: frames of the client on their way to the runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    STREAM_ID_MASK,
    WINDOW_UPDATE,
    ErrorCode,
    PeerError,
)
from runtimeproxy.relay.early import EarlyBytes, check_early
from runtimeproxy.relay.headers import OpenBlock
from runtimeproxy.relay.request_headers import RequestHeaders
from runtimeproxy.relay.state import TURN_FRAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimeproxy.relay.state import ConnectionState, Upstream


class RequestDirection:
    """Parses the client's bytes; runs of frames that just pass are forwarded without a copy.

    Args:
        state: shared with the response direction.
        on_upstream: called when the first call's path has chosen the upstream.
        on_ping_ack: asked for each PING ACK of the client whether it answers the relay's own PING.
    """

    __slots__ = (
        "_block",
        "_early",
        "_header_block",
        "_missing_bytes",
        "_on_ping_ack",
        "_own_settings_acks",
        "_partial",
        "_state",
    )

    def __init__(
        self,
        state: ConnectionState,
        on_upstream: Callable[[Upstream], None],
        on_ping_ack: Callable[[bytes], bool],
    ) -> None:
        self._state = state
        self._on_ping_ack = on_ping_ack
        self._partial: list[bytes] = []
        self._missing_bytes = 0
        self._header_block = RequestHeaders(state, on_upstream).take
        self._block: OpenBlock | None = None
        self._own_settings_acks = 1
        self._early = EarlyBytes(state)

    def receive(self, data: bytes) -> None:
        """Takes the next bytes of the client, cut anywhere.

        Raises:
            PeerError: the client broke the protocol.
        """
        if self._partial:
            if len(data) < self._missing_bytes:
                self._partial.append(data)
                self._missing_bytes -= len(data)
                return
            self._partial.append(data)
            data = b"".join(self._partial)
            self._partial.clear()
        self._walk(data)

    def forget_early(self) -> None:
        """The runtime connection is there, or the client's is gone: nothing is early any more."""
        self._early.clear()

    @property
    def is_early_full(self) -> bool:
        """Whether so much waits for the upstream that reading from the client must pause."""
        return self._early.is_full

    def _walk(self, data: bytes) -> None:  # noqa: C901  # one loop over frames: this is the hot path
        state = self._state
        size = len(data)
        start = position = 0
        max_frame_bytes = state.runtime_settings.largest.max_frame_bytes
        special = state.special
        credit = state.credit
        waiting = state.sender.waiting
        is_early = not state.is_open
        for _ in TURN_FRAMES:
            if size - position < HEADER_BYTES:
                break
            high, low, type_, flags, stream_id = FRAME_HEADER.unpack_from(data, position)
            length = high << 8 | low
            if length > max_frame_bytes:
                raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "frame is longer than the runtime allows")
            end = position + HEADER_BYTES + length
            if end > size:
                break
            if is_early:
                check_early(type_, flags, stream_id & STREAM_ID_MASK, data[position + HEADER_BYTES : end])
            passes = False
            if self._block is not None:
                pass
            elif type_ == DATA:
                if (
                    stream_id not in special
                    and 0 < stream_id <= state.highest_id
                    and length <= credit.window_bytes
                    and state.is_open
                    and not waiting
                ):
                    credit.window_bytes -= length
                    passes = True
            elif type_ == HEADERS:
                if flags & END_HEADERS:
                    content = frames.header_fragment(data[position + HEADER_BYTES : end], flags)
                    passes = self._header_block(stream_id & STREAM_ID_MASK, flags, content)
            elif type_ == WINDOW_UPDATE:
                if stream_id in special:
                    passes = special[stream_id].client_window_update()
                else:
                    passes = stream_id <= state.highest_id or state.goaway_id is None
            elif type_ == PRIORITY or type_ > CONTINUATION:
                passes = True
            if not passes:
                self._forward(data, start, position)
                self._special_frame(type_, flags, stream_id & STREAM_ID_MASK, data[position:end])
                start = end
                max_frame_bytes = state.runtime_settings.largest.max_frame_bytes
            position = end
        self._forward(data, start, position)
        if position < size:
            self._keep(data, position)

    def _keep(self, data: bytes, position: int) -> None:
        """Keeps an incomplete frame until its rest is there, or what is left for the next turn."""
        rest = data[position:]
        self._partial.append(rest)
        if len(rest) < HEADER_BYTES:
            self._missing_bytes = HEADER_BYTES - len(rest)
        else:
            length = int.from_bytes(rest[:3], "big")
            self._missing_bytes = HEADER_BYTES + length - len(rest)
            if self.is_behind:
                self._state.wake()

    @property
    def is_behind(self) -> bool:
        """Whether whole frames wait for the next turn: `receive` goes on with them, also with no bytes."""
        return bool(self._partial) and self._missing_bytes <= 0

    def _forward(self, data: bytes, start: int, end: int) -> None:
        if start == end:
            return
        chunk = data if end - start == len(data) else data[start:end]
        self._state.to_runtime.chunks.append(chunk)
        if not self._state.is_open:
            self._early.add(len(chunk))

    def _special_frame(self, type_: int, flags: int, stream_id: int, raw: bytes) -> None:
        """Handles a frame that does not, or not always, pass as it is."""
        if self._block is not None or type_ == CONTINUATION:
            self._continuation(type_, flags, stream_id, raw)
        elif type_ == DATA:
            self._data(flags, stream_id, raw)
        elif type_ == HEADERS:
            if not flags & END_HEADERS:
                self._block = OpenBlock(stream_id, flags)
                self._block.add(raw, frames.header_fragment(raw[HEADER_BYTES:], flags))
        elif type_ == RST_STREAM:
            self._reset(stream_id, raw)
        elif type_ == SETTINGS:
            self._settings(flags, raw)
        elif type_ == PING:
            self._ping(flags, raw)
        elif type_ == PUSH_PROMISE:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "a client cannot push")
        elif type_ == GOAWAY:
            self._forward(raw, 0, len(raw))

    # --- header blocks -----------------------------------------------------------------------------------

    def _continuation(self, type_: int, flags: int, stream_id: int, raw: bytes) -> None:
        block = self._block
        if block is None or type_ != CONTINUATION or stream_id != block.stream_id:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "header block interrupted, or CONTINUATION alone")
        block.add(raw, raw[HEADER_BYTES:])
        if not flags & END_HEADERS:
            return
        self._block = None
        if self._header_block(block.stream_id, block.flags, b"".join(block.fragments)):
            for piece in block.raw:
                self._forward(piece, 0, len(piece))

    # --- DATA --------------------------------------------------------------------------------------------

    def _data(self, flags: int, stream_id: int, raw: bytes) -> None:
        state = self._state
        flow_bytes = len(raw) - HEADER_BYTES
        is_last = bool(flags & END_STREAM)
        if stream_id == 0:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
        if stream_id > state.highest_id:
            if state.goaway_id is None:
                raise PeerError(ErrorCode.PROTOCOL_ERROR, "DATA on a stream that was never opened")
            state.to_client.credit(0, flow_bytes)
            return
        content = frames.unpadded(raw[HEADER_BYTES:], flags)
        stream = state.special.get(stream_id)
        if stream is not None:
            if stream.client_data(content, flow_bytes, is_last):
                self._forward(raw, 0, len(raw))
        elif not state.is_open and flow_bytes <= state.credit.window_bytes:
            state.credit.window_bytes -= flow_bytes
            self._early.data_follows(stream_id)
            self._forward(raw, 0, len(raw))
        else:
            padding_bytes = flow_bytes - len(content)
            state.to_client.credit(0, padding_bytes)
            state.to_client.credit(stream_id, padding_bytes)
            state.sender.pass_or_wait(stream_id, content, is_last)

    def _reset(self, stream_id: int, raw: bytes) -> None:
        state = self._state
        if stream_id > state.highest_id and state.goaway_id is not None:
            return
        stream = state.special.get(stream_id)
        if stream is not None:
            if not stream.client_reset():
                return
        else:
            state.open_streams.discard(stream_id)
            state.to_client.credit(0, state.sender.drop(stream_id) + self._early.drop(stream_id))
        self._forward(raw, 0, len(raw))

    # --- the connection ----------------------------------------------------------------------------------

    def _settings(self, flags: int, raw: bytes) -> None:
        state = self._state
        if flags & ACK:
            if self._own_settings_acks:
                self._own_settings_acks -= 1
                return
            # Behind waiting DATA, which the client sent within the earlier window.
            state.sender.after_passing(lambda: self._settings_acknowledged(raw))
            return
        state.client_settings.announce(raw[HEADER_BYTES:])
        if not state.is_open:
            state.own_acks += 1
            state.to_client.own(SETTINGS_ACK)
            state.client_settings_acknowledged()
        self._forward(raw, 0, len(raw))

    def _settings_acknowledged(self, raw: bytes) -> None:
        state = self._state
        # First the ACK: until the runtime has it, it may hold own DATA to the earlier window.
        self._forward(raw, 0, len(raw))
        state.runtime_settings.acknowledge()
        for stream in list(state.special.values()):
            stream.runtime_settings_changed()

    def _ping(self, flags: int, raw: bytes) -> None:
        opaque = raw[HEADER_BYTES:]
        if flags & ACK and self._on_ping_ack(opaque):
            return
        if self._state.is_open or flags & ACK:
            self._forward(raw, 0, len(raw))
        else:
            self._state.to_client.own(frames.ping_ack(opaque))
