"""One end of an HTTP/2 connection that the event loop reads: frames, header blocks and windows.

Client and server (`client.py`, `server.py`) say what becomes of streams. A peer that breaks the protocol
loses its connection, and one that does not read is not answered without bound.

Source: RFC 9113.
"""

from __future__ import annotations

import asyncio
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, Generic, TypeVar, cast

from runtimeproxy.http2 import frames
from runtimeproxy.http2.frames import ErrorCode, PeerError
from runtimeproxy.http2.header_fields import Fields, HeadReader

MAX_BLOCK_BYTES: Final = 64 * 1024
"""Of an encoded header block over all its frames; peers send well below 8 KiB."""
CONNECTION_WINDOW_BYTES: Final = 1024 * 1024
"""That the peer may send on all streams together."""

ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

PREFIX: Final = struct.Struct(">BL")
"""Before each gRPC message: whether it is compressed, and its length."""

_SETTING: Final = struct.Struct(">HL")
_MAX_FRAME_BYTES: Final = 2**24 - 1
_TABLE_BYTES: Final = 4096
"""Of the peer's header table: the default (6.5.2)."""
_MAX_UNREAD_REPLIES: Final = 1000
"""Answers to PINGs and SETTINGS, and updates of windows, while the peer does not read."""
_MAX_WRITE_BYTES: Final = 64 * 1024
"""Of one DATA frame, even if the peer allows longer ones: between two, others have a turn."""
_CLOSE_S: Final = 1.0
_FRAMES_A_TURN: Final = 1000
"""Frames of one connection that are read before other work of the loop has its turn."""
_BLOCK_BYTES_A_FRAME: Final = 32
"""So many bytes of a header block count as a frame: to read their fields takes as long."""


def settings(values: dict[int, int]) -> bytes:
    """Returns SETTINGS with these values, and the update that widens the connection's window."""
    payload = b"".join(_SETTING.pack(key, value) for key, value in values.items())
    return frames.frame(frames.SETTINGS, 0, 0, payload) + frames.window_update(
        0, CONNECTION_WINDOW_BYTES - frames.DEFAULT_WINDOW_BYTES
    )


def integer(value: int, prefix_bits: int = 7, first: int = 0) -> bytes:
    """Encodes an integer after the high bits of its first octet (RFC 7541, 5.1).

    The defaults are for the length of a string that is not Huffman-coded.
    """
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes((first | value,))
    encoded, rest = bytearray((first | limit,)), value - limit
    while rest >= 0x80:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*encoded, rest))


def literal(name: bytes, value: bytes) -> bytes:
    # Goes into no table (RFC 7541, 6.2.2).
    return b"\x00" + integer(len(name)) + name + integer(len(value)) + value


class Stream:
    """What is sent on one stream.

    Attributes:
        stream_id: 0 while it is on none.
        output: the bytes that are being sent; `sent_bytes` of them have been.
        ends_with_output: whether the last of these bytes ends this side of the stream.
        window_bytes: how much the peer takes on this stream.
    """

    __slots__ = ("ends_with_output", "output", "sent_bytes", "stream_id", "window_bytes")

    def __init__(self, *, ends_with_output: bool) -> None:
        self.ends_with_output = ends_with_output
        self.output: bytes = b""
        self.sent_bytes = 0
        self.stream_id = 0
        self.window_bytes = 0

    @property
    def has_unsent(self) -> bool:
        return self.sent_bytes < len(self.output)


StreamT = TypeVar("StreamT", bound=Stream)
HeadT = TypeVar("HeadT")


class Http2Connection(asyncio.Protocol, ABC, Generic[StreamT, HeadT]):
    """One connection.

    Args:
        fields: the header fields that are read.
        make_head: makes a head of their values.
        opening: what is sent first.
    """

    peer: ClassVar[str]
    """What the other end is."""

    def __init__(self, fields: Fields, make_head: Callable[[Sequence[bytes]], HeadT], opening: bytes) -> None:
        self._opening = opening
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, StreamT] = {}
        self._last_id = -1
        """Of the newest stream."""
        self._is_paused = False
        self._unread_replies = 0
        self._abort: asyncio.TimerHandle | None = None
        # Limits of the peer.
        self._window_bytes = frames.DEFAULT_WINDOW_BYTES
        self._initial_window_bytes = frames.DEFAULT_WINDOW_BYTES
        self._max_frame_bytes = frames.DEFAULT_MAX_FRAME_BYTES
        # State of the frames from the peer.
        self._reader = HeadReader(fields, make_head)
        self._rest = b""
        self._uncredited_bytes = 0
        self._block_of: tuple[int, int] | None = None
        self._fragments: list[bytes] = []
        self._block_bytes = 0
        self._takers: dict[int, Callable[[int, int, bytes], None]] = {
            frames.DATA: self._take_data,
            frames.HEADERS: self._take_headers,
            frames.RST_STREAM: self._take_reset,
            frames.SETTINGS: self._take_settings,
            frames.PUSH_PROMISE: self._take_push,
            frames.PING: self._take_ping,
            frames.GOAWAY: self._take_goaway,
            frames.WINDOW_UPDATE: self._take_window_update,
            frames.CONTINUATION: self._take_continuation,
        }

    # --- what client and server say -----------------------------------------------------------------------

    @abstractmethod
    def _on_data(self, stream: StreamT, payload_bytes: int, content: bytes, *, ends: bool) -> None:
        """DATA has come.

        Args:
            stream: a stream that is not over.
            payload_bytes: what counts for its window.
            content: without padding.
            ends: whether it ends the peer's side.
        """

    @abstractmethod
    def _on_head(self, stream_id: int, head: HeadT, *, ends: bool) -> None:
        """A whole header block has come; raises PeerError if there can be none on this stream."""

    @abstractmethod
    def _on_reset(self, stream: StreamT, code: int) -> None:
        """The peer has reset a stream, which is no longer one of the connection's."""

    @abstractmethod
    def _on_goaway(self, last_id: int) -> None:
        """The peer shuts down; it does not process streams above this one."""

    @abstractmethod
    def _on_broken_stream(self, stream: StreamT, reason: str) -> None:
        """The peer breaks the protocol on one stream."""

    @abstractmethod
    def _on_lost(self, reason: str) -> None:
        """The connection is gone; its streams have to end."""

    def _on_sent(self, stream: StreamT) -> None:
        """All output of a stream has been handed to the transport."""

    def _on_writable(self) -> None:
        """Limits of the peer may have changed."""

    def _on_max_streams(self, count: int) -> None:
        """How many streams the peer takes at a time."""

    # --- asyncio.Protocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an instance of it with uvloop.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._opening)

    def connection_lost(self, error: Exception | None) -> None:
        if self._abort is not None:
            self._abort.cancel()
        self._drop(f"the connection broke: {error}" if error else f"the {self.peer} closed the connection")

    def pause_writing(self) -> None:
        """The peer does not read: output waits."""
        self._is_paused = True
        self._on_writable()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._is_paused = False
        self._unread_replies = 0
        self._pump()
        self._on_writable()

    def data_received(self, data: bytes) -> None:
        self._read(self._rest + data if self._rest else data)

    # --- output -------------------------------------------------------------------------------------------

    @property
    def _is_writable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _next_data(self, stream: StreamT) -> bytes:
        """The next DATA frame of a stream, as large as the windows allow; empty if they allow none."""
        output, sent_bytes = stream.output, stream.sent_bytes
        left_bytes = len(output) - sent_bytes
        size_bytes = min(left_bytes, stream.window_bytes, self._window_bytes, self._max_frame_bytes)
        if size_bytes <= 0:
            return b""
        stream.sent_bytes += size_bytes
        stream.window_bytes -= size_bytes
        self._window_bytes -= size_bytes
        flags = frames.END_STREAM if stream.ends_with_output and size_bytes == left_bytes else 0
        payload = output if size_bytes == len(output) else output[sent_bytes : sent_bytes + size_bytes]
        header = frames.FRAME_HEADER.pack(
            size_bytes >> 16, size_bytes & 0xFFFF, frames.DATA, flags, stream.stream_id
        )
        return header + payload

    def _pump_stream(self, stream: StreamT) -> None:
        """Sends as much of a stream's output as the windows allow."""
        while not self._is_paused and self._transport is not None and (data := self._next_data(stream)):
            self._transport.write(data)
        if not stream.has_unsent:
            self._on_sent(stream)

    def _pump(self) -> None:
        for stream in tuple(self._streams.values()):
            if stream.has_unsent:
                self._pump_stream(stream)

    def _reply(self, frame: bytes) -> None:
        if not self._is_writable:
            return
        if self._is_paused:
            self._unread_replies += 1
            if self._unread_replies > _MAX_UNREAD_REPLIES:
                raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "answers that are not read")
        self._write(frame)

    def _close(self) -> None:
        # Once everything is written, or after a short time.
        if self._transport is not None and self._abort is None:
            self._transport.close()
            self._abort = asyncio.get_running_loop().call_later(_CLOSE_S, self._transport.abort)

    # --- frames -------------------------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        position, end, count = 0, len(data), 0
        self._rest = b""
        try:
            while end - position >= frames.HEADER_BYTES:
                high, low, kind, flags, stream_id = frames.unpack_header(data, position)
                start, size_bytes = position + frames.HEADER_BYTES, high << 16 | low
                stop = start + size_bytes
                if size_bytes > frames.DEFAULT_MAX_FRAME_BYTES:
                    self._give_up(PeerError(ErrorCode.FRAME_SIZE_ERROR, "a frame is longer than was allowed"))
                    return
                if stop > end:
                    break
                if count >= _FRAMES_A_TURN:
                    self._yield(data[position:])
                    return
                count, position = count + 1, stop
                if kind == frames.HEADERS or kind == frames.CONTINUATION:
                    count += size_bytes // _BLOCK_BYTES_A_FRAME
                self._take(kind, flags, stream_id & frames.STREAM_ID_MASK, data[start:stop])
        except PeerError as error:
            self._give_up(error)
            return
        self._rest = data[position:]

    def _yield(self, rest: bytes) -> None:
        # The loop does other work before the rest is read.
        if self._transport is not None:
            self._rest = rest
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._read(self._rest)

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block_of is not None and (kind != frames.CONTINUATION or stream_id != self._block_of[0]):
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
        take = self._takers.get(kind)
        if take is not None:
            take(flags, stream_id, payload)

    def _take_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._expect_stream(stream_id)
        self._credit(len(payload))
        content = frames.unpadded(payload, flags)
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._on_data(stream, len(payload), content, ends=bool(flags & frames.END_STREAM))

    def _take_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        fragment = frames.header_fragment(payload, flags)
        if flags & frames.END_HEADERS:
            self._take_block(flags, stream_id, fragment)
        else:
            self._block_of, self._fragments = (stream_id, flags), [fragment]
            self._block_bytes = len(fragment)

    def _take_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block_of is None:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of no header block")
        self._fragments.append(payload)
        # Empty frames count, too.
        self._block_bytes += frames.HEADER_BYTES + len(payload)
        if self._block_bytes > MAX_BLOCK_BYTES:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "a header block without end")
        if flags & frames.END_HEADERS:
            (_, first_flags), block = self._block_of, b"".join(self._fragments)
            self._block_of, self._fragments = None, []
            self._take_block(first_flags, stream_id, block)

    def _take_block(self, flags: int, stream_id: int, block: bytes) -> None:
        head = self._reader.decode(block, _TABLE_BYTES)
        self._on_head(stream_id, head, ends=bool(flags & frames.END_STREAM))

    def _take_reset(self, _: int, stream_id: int, payload: bytes) -> None:
        self._expect_stream(stream_id)
        if len(payload) != 4:
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM of another size")
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            self._on_reset(stream, int.from_bytes(payload, "big"))

    def _take_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if len(payload) % _SETTING.size or (flags & frames.ACK and payload):
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of another size")
        if flags & frames.ACK:
            return
        for key, value in _SETTING.iter_unpack(payload):
            if key == MAX_CONCURRENT_STREAMS:
                self._on_max_streams(value)
            elif key == MAX_FRAME_SIZE:
                if not frames.DEFAULT_MAX_FRAME_BYTES <= value <= _MAX_FRAME_BYTES:
                    raise PeerError(ErrorCode.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE out of range")
                self._max_frame_bytes = min(value, _MAX_WRITE_BYTES)
            elif key == INITIAL_WINDOW_SIZE:
                self._resize_windows(value)
        self._reply(frames.SETTINGS_ACK)
        self._pump()
        self._on_writable()

    def _resize_windows(self, size_bytes: int) -> None:
        if size_bytes > frames.MAX_WINDOW_BYTES:
            raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE out of range")
        difference_bytes = size_bytes - self._initial_window_bytes
        self._initial_window_bytes = size_bytes
        for stream in self._streams.values():
            stream.window_bytes += difference_bytes
            if stream.window_bytes > frames.MAX_WINDOW_BYTES:
                raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")

    def _take_push(self, _: int, __: int, ___: bytes) -> None:
        raise PeerError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE, which was not allowed")

    def _take_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "PING of another size")
        if not flags & frames.ACK:
            self._reply(frames.ping_ack(payload))

    def _take_goaway(self, _: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY of another size")
        # Of any error code: none changes what is to be done.
        self._on_goaway(int.from_bytes(payload[:4], "big") & frames.STREAM_ID_MASK)

    def _take_window_update(self, _: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE of another size")
        increment_bytes = int.from_bytes(payload, "big") & frames.MAX_WINDOW_BYTES
        if not stream_id:
            self._window_bytes += increment_bytes
            if not increment_bytes or self._window_bytes > frames.MAX_WINDOW_BYTES:
                raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is too large")
            self._pump()
            return
        self._expect_stream(stream_id)
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        stream.window_bytes += increment_bytes
        if not increment_bytes or stream.window_bytes > frames.MAX_WINDOW_BYTES:
            self._on_broken_stream(stream, "a window update out of range")
        elif stream.has_unsent:
            self._pump_stream(stream)

    def _expect_stream(self, stream_id: int) -> None:
        if stream_id % 2 == 0 or stream_id > self._last_id:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "a frame on a stream that was never opened")

    def _credit(self, size_bytes: int) -> None:
        self._uncredited_bytes += size_bytes
        if self._uncredited_bytes >= CONNECTION_WINDOW_BYTES // 2:
            self._reply(frames.window_update(0, self._uncredited_bytes))
            self._uncredited_bytes = 0

    # --- its end ------------------------------------------------------------------------------------------

    def _give_up(self, error: PeerError) -> None:
        """The peer breaks the protocol."""
        if self._transport is not None:
            self._transport.write(frames.goaway(0, error.code))
            self._close()
        self._drop(f"the {self.peer} broke the protocol: {error}")

    def _drop(self, reason: str) -> None:
        self._transport, self._rest = None, b""
        self._on_lost(reason)
