"""The request direction: frames of the client on their way to the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from runtimeproxy.frontends.cri_proxy.interception import CallHead
from runtimeproxy.frontends.cri_proxy.relay.direction import TURN_FRAMES, Direction
from runtimeproxy.frontends.cri_proxy.relay.intercepted_stream import InterceptedStream
from runtimeproxy.frontends.cri_proxy.relay.preconnect import check_early
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
    PADDED,
    PING,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    STREAM_ID_MASK,
    WINDOW_UPDATE,
    ErrorCode,
    PeerError,
    rst_stream,
    unpack_header,
)
from runtimeproxy.http2.header_fields import Fields, HeadReader, timeout_s

if TYPE_CHECKING:
    from runtimeproxy.frontends.cri_proxy.relay.counts import MethodCounts
    from runtimeproxy.frontends.cri_proxy.relay.streams import Streams
    from runtimeproxy.frontends.cri_proxy.relay.upstream import Upstream

MAX_SPECIAL_STREAMS: Final = 2000
"""Intercepted and refused calls of one connection; a kubelet has some dozens, and each costs some KiB."""
MAX_BLOCK_BYTES: Final = 128 * 1024
"""Of an encoded header block over all its frames; gRPC clients send well below 16 KiB."""

FIELDS: Final = Fields(b":path", b"grpc-timeout", b"grpc-encoding", encoded=(b"traceparent",))
"""The header fields of a request that the relay reads."""

_PADDED_OR_PRIORITY: Final = PADDED | PRIORITY_FLAG


@dataclass(slots=True)
class RequestHead:
    """The meaning of a request's header block; remembered with the block, so that repeated ones cost little.

    A client that traces sends another one in each call: so it is not frozen, which takes longer to make, and
    what only intercepted calls need is as it came.
    """

    upstream: Upstream
    path: str
    counts: MethodCounts
    timeout: bytes
    encoding: bytes
    traceparent: bytes

    def call(self, relay: Streams) -> CallHead:
        return CallHead(
            self.path,
            timeout_s(self.timeout),
            self.encoding.decode("latin-1") or "identity",
            connection=relay,
            encoded_traceparent=self.traceparent,
        )


def served_path(path: bytes) -> str:
    """Returns a `:path` as its runtime reads it: servers in Go serve it without its first slash, too.

    Source: the server of grpc-go takes off one slash, if there is one, and splits at the last; containerd
    1.6 and 2.2 serve no other spelling (`tests/e2e/test_path_spellings.py`).
    """
    text = path.decode("latin-1")
    return text if path[:1] == b"/" or not path else "/" + text


def request_head(relay: Streams, values: Sequence[bytes]) -> RequestHead:
    """Makes the head of the values of `FIELDS`."""
    raw_path, timeout, encoding, traceparent, _ = values
    path, options = served_path(raw_path), relay.options
    return RequestHead(options.route(path), path, options.counts.of(path), timeout, encoding, traceparent)


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


class RequestDirection(Direction):
    """Parses the client's bytes; runs of frames that just pass are forwarded without a copy.

    Every header block is read, in order: its call is intercepted if the interceptor says so.
    """

    def __init__(self, relay: Streams) -> None:
        super().__init__(relay)
        self._heads = HeadReader(FIELDS, partial(request_head, relay))
        self._block: _OpenBlock | None = None
        self._own_settings_acks = 1

    def receive(self, data: bytes) -> None:  # noqa: C901  # one loop over frames: the hot path
        """Takes the next bytes of the client, cut anywhere.

        Raises:
            PeerError: the client broke the protocol.
        """
        if self._partial:
            data = self._completed(data)
            if not data:
                return
        relay = self._relay
        flow = relay.flow
        special = relay.special_streams
        is_open = relay.to_runtime.is_open
        block = self._block
        max_frame_bytes = relay.runtime_settings.longest_frame_bytes
        size = len(data)
        self.received_bytes += size
        start = position = 0
        for _ in TURN_FRAMES:
            if position + HEADER_BYTES > size:
                break
            high, length, type_, flags, stream_id = unpack_header(data, position)
            if high:
                length |= high << 16
            if length > max_frame_bytes:
                raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "frame is longer than the runtime allows")
            end = position + HEADER_BYTES + length
            if end > size:
                break
            if not is_open:
                check_early(type_, flags, stream_id & STREAM_ID_MASK, data[position + HEADER_BYTES : end])
            passes = False
            if block is not None:
                pass
            elif type_ == DATA:
                if (
                    length <= flow.window_bytes
                    and 0 < stream_id <= relay.highest_id
                    and stream_id not in special
                    and is_open
                    and not flow.waiting
                ):
                    flow.window_bytes -= length
                    passes = True
            elif type_ == HEADERS:
                if flags & END_HEADERS:
                    fragment = data[position + HEADER_BYTES : end]
                    if flags & _PADDED_OR_PRIORITY:
                        fragment = frames.header_fragment(fragment, flags)
                    passes = self._read_block(stream_id & STREAM_ID_MASK, flags, fragment)
            elif type_ == WINDOW_UPDATE:
                if stream_id in special:
                    passes = special[stream_id].on_client_window_update()
                else:
                    passes = stream_id <= relay.highest_id or relay.goaway_id is None
            elif type_ == PING:
                passes = is_open and not relay.drain_ping
            elif type_ == PRIORITY or type_ > CONTINUATION:
                passes = True
            if not passes:
                self._forward(data, start, position)
                self._handle(type_, flags, stream_id & STREAM_ID_MASK, data[position:end])
                start = end
                block = self._block
                max_frame_bytes = relay.runtime_settings.longest_frame_bytes
            position = end
        if position == size and not start and is_open:
            # Nearly always all of it passes.
            relay.to_runtime.chunks.append(data)
            return
        self._forward(data, start, position)
        if position < size:
            self._keep(data[position:])

    def _forward(self, data: bytes, start: int, end: int) -> None:
        if start == end:
            return
        chunk = data if end - start == len(data) else data[start:end]
        self._relay.to_runtime.chunks.append(chunk)
        if not self._relay.to_runtime.is_open:
            self._relay.early.add(len(chunk))

    def _handle(self, type_: int, flags: int, stream_id: int, raw: bytes) -> None:
        if self._block is not None or type_ == CONTINUATION:
            self._continue_block(type_, flags, stream_id, raw)
        elif type_ == DATA:
            self._on_data(flags, stream_id, raw)
        elif type_ == HEADERS:
            if not flags & END_HEADERS:
                self._block = _OpenBlock(stream_id, flags)
                self._block.add(raw, frames.header_fragment(raw[HEADER_BYTES:], flags))
        elif type_ == RST_STREAM:
            self._on_reset(stream_id, raw)
        elif type_ == SETTINGS:
            self._on_settings(flags, raw)
        elif type_ == PING:
            self._on_ping(flags, raw)
        elif type_ == PUSH_PROMISE:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "a client cannot push")
        elif type_ == GOAWAY:
            self._forward(raw, 0, len(raw))

    # --- header blocks -----------------------------------------------------------------------------------

    def _read_block(self, stream_id: int, flags: int, block: bytes) -> bool:
        """Reads a whole header block, which opens a call or ends one; returns whether it is forwarded.

        The first call chooses the upstream; later ones that belong elsewhere need another connection.
        """
        relay = self._relay
        if relay.goaway_id is not None:
            self._check_second_block(stream_id)
            return False
        # Nearly always a block that is known.
        head = self._heads.remembered.get(block) or self._heads.decode(
            block, relay.runtime_settings.largest.header_table_bytes
        )
        if stream_id <= relay.highest_id:
            if stream_id == 0:
                raise PeerError(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")
            self._check_second_block(stream_id)
            return True
        upstream = head.upstream
        if upstream is not relay.upstream:
            if relay.upstream is not None:
                relay.stop_taking_streams()
                return False
            relay.upstream = upstream
            relay.open_upstream(upstream)
        relay.highest_id = stream_id
        if stream_id > relay.promised_id:
            # The client has not read a GOAWAY yet that says of this call that it is never processed.
            return True
        relay.open_streams.add(stream_id)
        head.counts.begun += 1
        has_message = not flags & END_STREAM
        if upstream.is_intercepted and has_message and relay.options.interceptor.intercepts(head.path):
            if len(relay.special_streams) >= MAX_SPECIAL_STREAMS:
                raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "too many intercepted calls on one connection")
            relay.special_streams[stream_id] = InterceptedStream(
                relay, stream_id, head.call(relay), head.counts
            )
        return True

    def _check_second_block(self, stream_id: int) -> None:
        """Ends an intercepted or waiting stream, and the connection, if it gets another header block."""
        relay = self._relay
        stream = relay.special_streams.get(stream_id)
        is_wrong = stream is not None and not stream.on_client_headers()
        if is_wrong or relay.flow.has_waiting(stream_id):
            for output in (relay.to_runtime, relay.to_client):
                output.send(rst_stream(stream_id, ErrorCode.PROTOCOL_ERROR))
            reason = "second header block on an intercepted or waiting stream"
            raise PeerError(ErrorCode.PROTOCOL_ERROR, reason)

    def _continue_block(self, type_: int, flags: int, stream_id: int, raw: bytes) -> None:
        block = self._block
        if block is None or type_ != CONTINUATION or stream_id != block.stream_id:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "header block interrupted, or CONTINUATION alone")
        block.add(raw, raw[HEADER_BYTES:])
        if not flags & END_HEADERS:
            return
        self._block = None
        if self._read_block(block.stream_id, block.flags, b"".join(block.fragments)):
            for piece in block.raw:
                self._forward(piece, 0, len(piece))

    # --- streams -----------------------------------------------------------------------------------------

    def _on_data(self, flags: int, stream_id: int, raw: bytes) -> None:
        relay = self._relay
        flow_bytes = len(raw) - HEADER_BYTES
        is_last = bool(flags & END_STREAM)
        if stream_id == 0:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
        if stream_id > relay.highest_id:
            if relay.goaway_id is None:
                raise PeerError(ErrorCode.PROTOCOL_ERROR, "DATA on a stream that was never opened")
            relay.to_client.credit(0, flow_bytes)
            return
        content = raw[HEADER_BYTES:]
        if flags & PADDED:
            content = frames.unpadded(content, flags)
        stream = relay.special_streams.get(stream_id)
        if stream is not None:
            if stream.on_client_data(content, flow_bytes, is_last):
                self._forward(raw, 0, len(raw))
        elif not relay.to_runtime.is_open and flow_bytes <= relay.flow.window_bytes:
            relay.flow.window_bytes -= flow_bytes
            relay.early.on_data_follows(stream_id)
            self._forward(raw, 0, len(raw))
        else:
            padding_bytes = flow_bytes - len(content)
            relay.to_client.credit(0, padding_bytes)
            relay.to_client.credit(stream_id, padding_bytes)
            relay.flow.pass_or_wait(stream_id, content, is_last)

    def _on_reset(self, stream_id: int, raw: bytes) -> None:
        relay = self._relay
        if stream_id > relay.highest_id and relay.goaway_id is not None:
            return
        stream = relay.special_streams.get(stream_id)
        if stream is not None:
            if not stream.on_client_reset():
                return
        else:
            relay.open_streams.discard(stream_id)
            relay.to_client.credit(0, relay.flow.drop(stream_id) + relay.early.drop(stream_id))
        self._forward(raw, 0, len(raw))

    # --- the connection ----------------------------------------------------------------------------------

    def _on_settings(self, flags: int, raw: bytes) -> None:
        relay = self._relay
        if flags & ACK:
            if self._own_settings_acks:
                self._own_settings_acks -= 1
            else:
                # Behind waiting DATA, which the client sent within the earlier window.
                relay.flow.after_passing(lambda: self._acknowledge_settings(raw))
            return
        relay.client_settings.announce(raw[HEADER_BYTES:])
        if not relay.to_runtime.is_open:
            relay.own_acks += 1
            relay.to_client.send(SETTINGS_ACK)
            relay.on_client_settings_acknowledged()
        self._forward(raw, 0, len(raw))

    def _acknowledge_settings(self, raw: bytes) -> None:
        # First the ACK: until the runtime has it, it may hold own DATA to the earlier window.
        self._forward(raw, 0, len(raw))
        self._relay.runtime_settings.acknowledge()
        for stream in list(self._relay.special_streams.values()):
            stream.on_runtime_settings()

    def _on_ping(self, flags: int, raw: bytes) -> None:
        relay = self._relay
        opaque = raw[HEADER_BYTES:]
        if flags & ACK and relay.drain_ping and opaque == relay.drain_ping:
            relay.drain_ping = b""
            relay.finish_drain()
        elif relay.to_runtime.is_open or flags & ACK:
            self._forward(raw, 0, len(raw))
        else:
            relay.to_client.send(frames.ping_ack(opaque))
