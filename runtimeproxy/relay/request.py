"""The request direction: frames of the client on their way to the runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runtimeproxy.relay import frames
from runtimeproxy.relay.early import check_early
from runtimeproxy.relay.frames import (
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
from runtimeproxy.relay.headers import MAX_BLOCK_BYTES, HeaderTracker
from runtimeproxy.relay.held import HeldStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimeproxy.relay.headers import RequestHead
    from runtimeproxy.relay.state import ConnectionState, Upstream


@dataclass(slots=True)
class _OpenBlock:
    """A header block whose END_HEADERS has not come yet; forwarded as a whole."""

    stream_id: int
    flags: int
    raw: list[bytes] = field(default_factory=list)
    fragments: list[bytes] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, raw: bytes, fragment: bytes) -> None:
        self.size_bytes += len(raw)
        if self.size_bytes > MAX_BLOCK_BYTES:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "header block without end")
        self.raw.append(raw)
        self.fragments.append(fragment)


class RequestDirection:
    """Parses the client's bytes; runs of frames that just pass are forwarded without a copy.

    Args:
        state: shared with the response direction.
        on_upstream: called when the first call's path has chosen the upstream.
        on_ping_ack: asked for each PING ACK of the client whether it answers the relay's own PING.
    """

    __slots__ = (
        "_block",
        "_early_data",
        "_missing_bytes",
        "_on_ping_ack",
        "_on_upstream",
        "_own_settings_acks",
        "_partial",
        "_state",
        "_tracker",
        "early_bytes",
    )

    def __init__(
        self,
        state: ConnectionState,
        on_upstream: Callable[[Upstream], None],
        on_ping_ack: Callable[[bytes], bool],
    ) -> None:
        self._state = state
        self._on_upstream = on_upstream
        self._on_ping_ack = on_ping_ack
        self._tracker = HeaderTracker()
        self._partial: list[bytes] = []
        self._missing_bytes = 0
        self._block: _OpenBlock | None = None
        self._own_settings_acks = 1
        self._early_data: dict[int, list[int]] = {}
        self.early_bytes = 0

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

    def opened(self) -> None:
        """The runtime connection is there: nothing is early any more."""
        self._early_data.clear()
        self.early_bytes = 0

    def _walk(self, data: bytes) -> None:  # noqa: C901  # one loop over frames: this is the hot path
        state = self._state
        size = len(data)
        start = position = 0
        max_frame_bytes = state.runtime_settings.largest.max_frame_bytes
        special = state.special
        credit = state.credit
        waiting = state.sender.waiting
        is_early = not state.is_open
        while size - position >= HEADER_BYTES:
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
        """Keeps an incomplete frame until its rest is there."""
        rest = data[position:]
        self._partial.append(rest)
        if len(rest) < HEADER_BYTES:
            self._missing_bytes = HEADER_BYTES - len(rest)
        else:
            length = int.from_bytes(rest[:3], "big")
            self._missing_bytes = HEADER_BYTES + length - len(rest)

    def _forward(self, data: bytes, start: int, end: int) -> None:
        if start == end:
            return
        chunk = data if end - start == len(data) else data[start:end]
        self._state.to_runtime.chunks.append(chunk)
        if not self._state.is_open:
            self.early_bytes += len(chunk)

    def _special_frame(self, type_: int, flags: int, stream_id: int, raw: bytes) -> None:
        """Handles a frame that does not, or not always, pass as it is."""
        if self._block is not None or type_ == CONTINUATION:
            self._continuation(type_, flags, stream_id, raw)
        elif type_ == DATA:
            self._data(flags, stream_id, raw)
        elif type_ == HEADERS:
            if not flags & END_HEADERS:
                self._block = _OpenBlock(stream_id, flags)
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

    def _header_block(self, stream_id: int, flags: int, block: bytes) -> bool:
        """Reads a whole header block; returns whether it is forwarded."""
        state = self._state
        is_last = bool(flags & END_STREAM)
        if state.goaway_id is not None:
            self._check_second_block(stream_id, is_last)
            return False
        head = self._tracker.decode(block, state.runtime_settings.largest.header_table_bytes)
        if stream_id > state.highest_id:
            return self._open_stream(stream_id, head, is_last)
        if stream_id == 0:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")
        self._check_second_block(stream_id, is_last)
        return True

    def _check_second_block(self, stream_id: int, is_last: bool) -> None:
        """Ends a held or waiting stream, and the connection with it, if it gets another header block."""
        state = self._state
        stream = state.special.get(stream_id)
        is_blocked = stream is not None and not stream.client_header_block(is_last)
        if is_blocked or state.sender.has_waiting(stream_id):
            for outbox in (state.to_runtime, state.to_client):
                outbox.own(frames.rst_stream(stream_id, ErrorCode.PROTOCOL_ERROR))
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "second header block on a held or waiting stream")

    def _open_stream(self, stream_id: int, head: RequestHead, is_last: bool) -> bool:
        """A new call: chooses the upstream if it is the first, holds it if it may be changed."""
        state = self._state
        upstream = state.options.route(head.path)
        if state.upstream is None:
            state.upstream = upstream
            self._on_upstream(upstream)
        elif upstream.name != state.upstream.name:
            state.goaway_id = state.highest_id
            state.to_client.own(state.goaway(state.highest_id, ErrorCode.NO_ERROR))
            return False
        state.highest_id = stream_id
        state.open_streams.add(stream_id)
        if upstream.is_intercepted and not is_last and state.options.interceptor.holds(head.path):
            state.special[stream_id] = HeldStream(state, stream_id, head)
        return True

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
            stream.client_data(content, flow_bytes, is_last)
        elif not state.is_open and flow_bytes <= state.credit.window_bytes:
            state.credit.window_bytes -= flow_bytes
            self._early_data.setdefault(stream_id, []).append(len(state.to_runtime.chunks))
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
            state.to_client.credit(0, state.sender.drop(stream_id) + self._drop_early(stream_id))
        self._forward(raw, 0, len(raw))

    def _drop_early(self, stream_id: int) -> int:
        """Forgets DATA that waits for the upstream; returns its flow-controlled bytes."""
        state = self._state
        dropped = 0
        for index in self._early_data.pop(stream_id, ()):
            dropped += len(state.to_runtime.chunks[index]) - HEADER_BYTES
            state.to_runtime.chunks[index] = b""
        state.credit.window_bytes += dropped
        return dropped

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
