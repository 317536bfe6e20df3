"""A client for unary gRPC calls on a Unix socket, whose connection the event loop itself reads.

A call costs one write and takes neither a thread nor a task: its end is a callback. Calls share one
connection, which is made when it is needed. One that the server has closed or shuts down is replaced. A call
that the server has certainly not processed (GOAWAY, REFUSED_STREAM) is repeated once, any other never.

Sources: RFC 9113 for frames, gRPC over HTTP/2 (grpc/doc) for calls.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias, cast
from urllib.parse import unquote_to_bytes

from runtimeproxy.errors import RuntimeProxyError, StatusCode
from runtimeproxy.http2 import frames
from runtimeproxy.http2.frames import ErrorCode, PeerError
from runtimeproxy.http2.header_fields import Fields, HeadReader

logger = logging.getLogger(__name__)

MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Of one answer's message; the limit of the kubelet and of containerd."""
MAX_HELD_BYTES: Final = 64 * 1024 * 1024
"""Of the requests and announced answers of all calls under way on one server."""
MAX_BLOCK_BYTES: Final = 64 * 1024
"""Of an encoded header block over all its frames; servers send well below 8 KiB."""

_PREFIX: Final = struct.Struct(">BL")
"""Before each message: whether it is compressed, and its length."""
_SETTING: Final = struct.Struct(">HL")
_ENABLE_PUSH, _MAX_CONCURRENT_STREAMS, _INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE, _MAX_HEADER_LIST_SIZE = (
    2,
    3,
    4,
    5,
    6,
)
_MAX_FRAME_BYTES: Final = 2**24 - 1
_TABLE_BYTES: Final = 4096
"""Of the server's header table: the default (6.5.2)."""
_STREAM_WINDOW_BYTES: Final = MAX_ANSWER_BYTES + 64 * 1024
"""Lets any answer come without an update of its window; the surplus is for padding."""
_CONNECTION_WINDOW_BYTES: Final = 1024 * 1024
_MAX_UNREAD_REPLIES: Final = 1000
"""Answers to PINGs and SETTINGS, and updates of windows, while the server does not read."""
_MAX_WRITE_BYTES: Final = 64 * 1024
"""Of one DATA frame, even if the server allows longer ones: between two, others have a turn."""
_CLOSE_S: Final = 1.0
_FRAMES_A_TURN: Final = 1000
"""Frames of one connection that are read before other work of the loop has its turn."""
_BLOCK_BYTES_A_FRAME: Final = 32
"""So many bytes of a header block count as a frame: to read their fields takes as long."""

_OPENING: Final = b"".join(
    (
        frames.PREFACE,
        frames.frame(
            frames.SETTINGS,
            0,
            0,
            _SETTING.pack(_ENABLE_PUSH, 0)
            + _SETTING.pack(_INITIAL_WINDOW_SIZE, _STREAM_WINDOW_BYTES)
            + _SETTING.pack(_MAX_HEADER_LIST_SIZE, MAX_BLOCK_BYTES),
        ),
        frames.window_update(0, _CONNECTION_WINDOW_BYTES - frames.DEFAULT_WINDOW_BYTES),
    )
)
_NO_TABLE: Final = b"\x20"
"""Before the first header block: no entry is ever put into the server's table, of any size."""

_HTTP_CODES: Final = {
    b"400": StatusCode.INTERNAL,
    b"401": StatusCode.UNAUTHENTICATED,
    b"403": StatusCode.PERMISSION_DENIED,
    b"404": StatusCode.UNIMPLEMENTED,
    b"429": StatusCode.UNAVAILABLE,
    b"502": StatusCode.UNAVAILABLE,
    b"503": StatusCode.UNAVAILABLE,
    b"504": StatusCode.UNAVAILABLE,
}
"""Source: grpc/doc/http-grpc-status-mapping.md; anything else is UNKNOWN."""
_CODES: Final = {b"%d" % code: code for code in StatusCode}
_RESET_CODES: Final = {
    0x7: StatusCode.UNAVAILABLE,
    0x8: StatusCode.CANCELLED,
    0xB: StatusCode.RESOURCE_EXHAUSTED,
    0xC: StatusCode.PERMISSION_DENIED,
}
"""Of RST_STREAM. Source: grpc/doc/PROTOCOL-HTTP2.md, "Errors"; anything else is INTERNAL."""
_REFUSED_STREAM: Final = 0x7


class CallError(RuntimeProxyError):
    """A call that failed; the type says how.

    Attributes:
        code: the status code.
        text: why; of a server's own status in its words, at most `MAX_BLOCK_BYTES` long.
    """

    def __init__(self, code: StatusCode, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(f"{code.name}: {text}")


class AnsweredError(CallError):
    """The server's own status."""


class UnreachableError(CallError):
    """No connection, or it broke, or the stream was reset."""


class LateError(CallError):
    """No answer in time."""


class UnusableError(CallError):
    """An unusable answer: not gRPC's, compressed, or too long."""


Done: TypeAlias = "Callable[[bytes | CallError], None]"
"""Takes the answer's message, or the error; called once, in the loop's thread."""


class _Head(NamedTuple):
    """The values that are read of a header block; raw, empty when absent."""

    status: bytes
    content_type: bytes
    grpc_status: bytes
    grpc_message: bytes


_FIELDS: Final = Fields(b":status", b"content-type", b"grpc-status", b"grpc-message")


def _head(values: Sequence[bytes]) -> _Head:
    return _Head(*values[: len(_FIELDS.names)])


def request_block(path: str) -> bytes:
    """Returns the header block of all calls of a method, but for the deadline at its end.

    Nothing in it goes into the server's header table. Its numbers are the static table's (RFC 7541, A).
    """

    def value(text: bytes) -> bytes:
        return _length(len(text)) + text

    return b"".join(
        (
            b"\x83\x86",  # :method POST, :scheme http
            b"\x04" + value(path.encode()),
            b"\x01" + value(b"localhost"),
            b"\x00" + value(b"te") + value(b"trailers"),
            b"\x0f\x10" + value(b"application/grpc"),
            b"\x0f\x2b" + value(b"koord-runtime-proxy"),
            b"\x00" + value(b"grpc-timeout"),
        )
    )


def _length(size_bytes: int) -> bytes:
    """The length of a string that is not Huffman-coded (RFC 7541, 5.1 and 5.2)."""
    if size_bytes < 0x7F:
        return bytes((size_bytes,))
    encoded, rest = bytearray((0x7F,)), size_bytes - 0x7F
    while rest >= 0x80:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*encoded, rest))


def _timeout(left_s: float) -> bytes:
    """The value of `grpc-timeout`, which has at most eight digits."""
    value = b"%dm" % min(max(int(left_s * 1000), 1), 99_999_999)
    return bytes((len(value),)) + value


class UnaryCall:
    """One call in progress."""

    __slots__ = (
        "_client",
        "answer",
        "block",
        "connection",
        "deadline_s",
        "done",
        "head",
        "held_bytes",
        "is_over",
        "is_repeated",
        "request",
        "sent_bytes",
        "size_bytes",
        "stream_id",
        "timeout_s",
        "timer",
        "window_bytes",
    )

    def __init__(
        self, client: UnaryClient, block: bytes, request: bytes, timeout_s: float, done: Done
    ) -> None:
        self._client = client
        self.block = block
        self.request = _PREFIX.pack(0, len(request)) + request
        self.timeout_s = timeout_s
        self.done: Done | None = done
        self.held_bytes = len(self.request)
        self.is_over = False
        self.is_repeated = False
        self.timer: asyncio.TimerHandle | None = None
        self.deadline_s = 0.0
        self.connection: _Connection | None = None
        self.begin(None, 0, 0)

    def begin(self, connection: _Connection | None, stream_id: int, window_bytes: int) -> None:
        """The call is on a stream now, or on none."""
        self.connection = connection
        self.stream_id = stream_id
        self.window_bytes = window_bytes
        self.sent_bytes = 0
        self.head: _Head | None = None
        self.answer: bytes | bytearray = b""
        """What has come of the answer's DATA: nearly always that of one frame."""
        self.size_bytes = -1
        """The announced length of the answer with its prefix; -1 before it is known."""

    def cancel(self) -> None:
        """Ends the call without calling `done`."""
        self.done = None
        self.end(b"")

    def end(self, outcome: bytes | CallError) -> None:
        """Ends the call, unless it has ended, and cancels it at the server."""
        if self.is_over:
            return
        self.is_over = True
        if self.timer is not None:
            self.timer.cancel()
        self._client.on_ended(self)
        done, self.done, self.request, self.answer = self.done, None, b"", b""
        if done is not None:
            try:
                done(outcome)
            except Exception:  # a bug in one caller must not cost the other calls
                logger.exception("callback of a finished call failed")

    def expire(self) -> None:
        """The time is up."""
        connection = self.connection
        text = f"no answer within {self.timeout_s:g} s"
        self.end(LateError(StatusCode.DEADLINE_EXCEEDED, text))
        if connection is not None:
            connection.on_late_call(self.deadline_s - self.timeout_s)


class UnaryClient:
    """Calls the methods of one server. Used in one event loop's thread.

    Args:
        path: the server's socket.
        max_answer_bytes: of an answer's message; a longer one is not taken.
    """

    def __init__(self, path: str, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        self.max_answer_bytes = max_answer_bytes
        self._path = path
        self._connection: _Connection | None = None
        self._waiting: dict[UnaryCall, None] = {}
        """Calls that are on no stream yet, oldest first."""
        self._calls = 0
        self._held_bytes = 0
        self._is_closed = False

    def call(self, block: bytes, request: bytes, timeout_s: float, done: Done) -> UnaryCall:
        """Begins a call.

        Args:
            block: from `request_block`, for the method.
            request: the message.
            timeout_s: above 0; also the server's deadline.
            done: takes the outcome, never before this returns.
        """
        loop = asyncio.get_running_loop()
        call = UnaryCall(self, block, request, timeout_s, done)
        self._calls += 1
        self._held_bytes += call.held_bytes
        call.deadline_s = loop.time() + timeout_s
        call.timer = loop.call_later(timeout_s, call.expire)
        if self._held_bytes > MAX_HELD_BYTES:
            loop.call_soon(call.end, _exhausted("too many bytes of calls are in progress on this server"))
        else:
            self.start(call)
        return call

    def close(self) -> None:
        """Closes the connection once no call is in progress; a later call opens another one."""
        self._is_closed = True
        self._let_go()

    def start(self, call: UnaryCall) -> None:
        """Puts a call on a stream, as soon as there can be one."""
        connection = self._connection
        if connection is not None and connection.is_free and not self._waiting:
            connection.send(call)
            return
        self._waiting[call] = None
        if connection is None:
            self._connect()

    def send_waiting(self) -> None:
        """Puts calls that wait on streams, as many as there can be now."""
        while self._waiting and self._connection is not None and self._connection.is_free:
            call = next(iter(self._waiting))
            del self._waiting[call]
            self._connection.send(call)
        if self._waiting and self._connection is None:
            self._connect()

    def repeat(self, call: UnaryCall, error: CallError) -> None:
        """Repeats a call that the server has not processed, once."""
        if call.is_over:
            return
        if call.is_repeated:
            call.end(error)
            return
        call.is_repeated = True
        call.begin(None, 0, 0)
        self.start(call)

    def reserve(self, call: UnaryCall, size_bytes: int) -> bool:
        """Accounts for an announced answer; returns False if it is too long, or too much is under way."""
        if size_bytes > self.max_answer_bytes or self._held_bytes + size_bytes > MAX_HELD_BYTES:
            return False
        self._held_bytes += size_bytes
        call.held_bytes += size_bytes
        return True

    def on_ended(self, call: UnaryCall) -> None:
        """A call is over."""
        self._calls -= 1
        self._held_bytes -= call.held_bytes
        if call.connection is not None:
            call.connection.release(call)
        else:
            self._waiting.pop(call, None)
        if self._is_closed:
            self._let_go()

    def retire(self, connection: _Connection) -> None:
        """Takes no more calls on a connection."""
        if self._connection is connection:
            self._connection = None

    def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self._connection = connection = _Connection(self)
        try:
            sock = socket.socket(
                socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            )
            try:
                sock.connect(self._path)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            loop.call_soon(self._unreachable, connection, error)
            return
        connection.opening = loop.create_task(self._open(connection, sock), name="connect-unary")

    async def _open(self, connection: _Connection, sock: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=sock)
        except OSError as error:
            sock.close()
            self._unreachable(connection, error)

    def _unreachable(self, connection: _Connection, error: OSError) -> None:
        if self._connection is not connection:
            # Given up before it was there: calls that wait now wait for another one.
            return
        self.retire(connection)
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            call.end(_unreachable(f"cannot connect: {error.strerror or error}"))

    def _let_go(self) -> None:
        if not self._calls and self._connection is not None:
            self._connection.retire()


class _Connection(asyncio.Protocol):
    """One connection to the server.

    Attributes:
        opening: the task that opens it.
        is_free: whether a call can have a stream now.
    """

    def __init__(self, client: UnaryClient) -> None:
        self.opening: asyncio.Task[None] | None = None
        self.is_free = False
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, UnaryCall] = {}
        self._next_id = 1
        self._first = _NO_TABLE
        self._is_paused = False
        self._unread_replies = 0
        self._is_retired = False
        self._abort: asyncio.TimerHandle | None = None
        self._heard_s = 0.0
        # Limits of the server.
        self._window_bytes = frames.DEFAULT_WINDOW_BYTES
        self._initial_window_bytes = frames.DEFAULT_WINDOW_BYTES
        self._max_frame_bytes = frames.DEFAULT_MAX_FRAME_BYTES
        self._max_streams = frames.MAX_STREAM_ID
        # State of the frames from the server.
        self._reader = HeadReader(_FIELDS, _head)
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

    # --- asyncio.Protocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the client's preface, then the calls that wait."""
        # Not an instance of it with uvloop.
        self._transport = transport = cast("asyncio.Transport", transport)
        if self._is_retired:
            transport.abort()
            return
        transport.write(_OPENING)
        self._update_is_free()
        self._client.send_waiting()

    def connection_lost(self, error: Exception | None) -> None:
        """Ends the calls that are on it."""
        if self._abort is not None:
            self._abort.cancel()
        self._drop(f"the connection broke: {error}" if error else "the server closed the connection")

    def pause_writing(self) -> None:
        """The server does not read: calls wait."""
        self._is_paused = True
        self._update_is_free()

    def resume_writing(self) -> None:
        """The server reads again."""
        self._is_paused = False
        self._unread_replies = 0
        self._update_is_free()
        self._pump()
        self._client.send_waiting()

    def data_received(self, data: bytes) -> None:
        """Reads frames."""
        self._heard_s = asyncio.get_running_loop().time()
        self._read(self._rest + data if self._rest else data)

    # --- calls --------------------------------------------------------------------------------------------

    def send(self, call: UnaryCall) -> None:
        """Puts a call on a stream; only while the connection is free."""
        transport = cast("asyncio.Transport", self._transport)
        stream_id = self._next_id
        self._next_id += 2
        call.begin(self, stream_id, self._initial_window_bytes)
        self._calls[stream_id] = call
        self._update_is_free()
        left_s = call.deadline_s - asyncio.get_running_loop().time()
        block = self._first + call.block + _timeout(left_s)
        self._first = b""
        transport.write(
            frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, block) + self._next_data(call)
        )
        if self._next_id > frames.MAX_STREAM_ID:
            self.retire()
        if call.sent_bytes < len(call.request):
            self._pump_call(call)

    def release(self, call: UnaryCall) -> None:
        """A call has ended, by itself or for the server's answer."""
        if self._calls.pop(call.stream_id, None) is None:
            return
        # Whatever has ended the call: the server may still work on it.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frames.rst_stream(call.stream_id, ErrorCode.CANCEL))
        self._on_stream_ended()

    def on_late_call(self, begun_s: float) -> None:
        """A call is late. If nothing has come since it began, the next calls need not have the same fate."""
        if self._heard_s <= begun_s:
            self.retire()

    def retire(self) -> None:
        """Takes no more calls; ends with the last one that is on it."""
        self._is_retired = True
        self._update_is_free()
        self._client.retire(self)
        self._close_unused()

    def _close_unused(self) -> None:
        if self._is_retired and not self._calls:
            self._close()

    def _close(self) -> None:
        """Closes the connection once everything is written, or after a short time."""
        if self._transport is not None and self._abort is None:
            self._transport.close()
            self._abort = asyncio.get_running_loop().call_later(_CLOSE_S, self._transport.abort)

    def _update_is_free(self) -> None:
        self.is_free = (
            self._transport is not None
            and not self._is_paused
            and not self._is_retired
            and len(self._calls) < self._max_streams
        )

    def _on_stream_ended(self) -> None:
        self._update_is_free()
        self._close_unused()
        self._client.send_waiting()

    def _next_data(self, call: UnaryCall) -> bytes:
        """The next DATA frame of a request, as large as the windows allow; empty if they allow none."""
        request, sent_bytes = call.request, call.sent_bytes
        left_bytes = len(request) - sent_bytes
        size_bytes = min(left_bytes, call.window_bytes, self._window_bytes, self._max_frame_bytes)
        if size_bytes <= 0:
            return b""
        call.sent_bytes += size_bytes
        call.window_bytes -= size_bytes
        self._window_bytes -= size_bytes
        flags = frames.END_STREAM if size_bytes == left_bytes else 0
        payload = request if size_bytes == len(request) else request[sent_bytes : sent_bytes + size_bytes]
        header = frames.FRAME_HEADER.pack(
            size_bytes >> 16, size_bytes & 0xFFFF, frames.DATA, flags, call.stream_id
        )
        return header + payload

    def _pump_call(self, call: UnaryCall) -> None:
        """Sends as much of a long request as the windows allow."""
        while not self._is_paused and self._transport is not None and (data := self._next_data(call)):
            self._transport.write(data)

    def _pump(self) -> None:
        for call in tuple(self._calls.values()):
            if call.sent_bytes < len(call.request):
                self._pump_call(call)

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
        """Lets the loop do other work before the rest is read."""
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
        call = self._calls.get(stream_id)
        if call is None:
            return
        if call.head is None:
            self._fail(call, "DATA before headers")
            return
        if content:
            call.answer += content
            if not self._has_room(call):
                return
        if flags & frames.END_STREAM:
            self._done(call, call.head)

    def _has_room(self, call: UnaryCall) -> bool:
        """Checks the announced length before the message is there; if it is refused the call has ended."""
        if call.size_bytes < 0 and len(call.answer) >= _PREFIX.size:
            is_compressed, size_bytes = _PREFIX.unpack_from(call.answer)
            if is_compressed:
                call.end(
                    _unusable(StatusCode.UNIMPLEMENTED, "the answer is compressed, which was not allowed")
                )
                return False
            if not self._client.reserve(call, size_bytes):
                call.end(_exhausted(f"the answer has {size_bytes} bytes, which are too many"))
                return False
            call.size_bytes = _PREFIX.size + size_bytes
            if size_bytes > frames.DEFAULT_MAX_FRAME_BYTES:
                call.answer = bytearray(call.answer)
        if 0 <= call.size_bytes < len(call.answer):
            self._fail(call, "more than one message")
            return False
        return True

    def _take_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._expect_stream(stream_id)
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
        call = self._calls.get(stream_id)
        if call is None:
            return
        if flags & frames.END_STREAM:
            self._done(call, head)
        elif call.head is not None:
            self._fail(call, "headers that are not trailers")
        elif not head.status.startswith(b"1"):
            call.head = head
            if not _is_grpc(head):
                call.end(_not_grpc(head))

    def _done(self, call: UnaryCall, trailers: _Head) -> None:
        """The server has ended the stream."""
        head = call.head or trailers
        outcome: bytes | CallError
        if not _is_grpc(head):
            outcome = _not_grpc(head)
        elif not trailers.grpc_status:
            outcome = _unusable(StatusCode.UNKNOWN, "the answer has no status")
        elif trailers.grpc_status != b"0":
            outcome = _status(trailers)
        elif len(call.answer) != call.size_bytes:
            outcome = _unusable(StatusCode.INTERNAL, "the answer has no whole message")
        else:
            outcome = bytes(call.answer[_PREFIX.size :])
        del self._calls[call.stream_id]
        if call.sent_bytes < len(call.request) and self._transport is not None:
            # The server did not need the whole request.
            self._transport.write(frames.rst_stream(call.stream_id, ErrorCode.CANCEL))
        call.end(outcome)
        self._on_stream_ended()

    def _fail(self, call: UnaryCall, reason: str) -> None:
        """A call whose stream breaks the protocol; the others go on."""
        call.end(_unusable(StatusCode.INTERNAL, f"the server sent {reason}"))

    def _take_reset(self, _: int, stream_id: int, payload: bytes) -> None:
        self._expect_stream(stream_id)
        if len(payload) != 4:
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM of another size")
        call = self._calls.pop(stream_id, None)
        if call is None:
            return
        code = int.from_bytes(payload, "big")
        error = UnreachableError(
            _RESET_CODES.get(code, StatusCode.INTERNAL),
            f"the server reset the stream with code {code}",
        )
        if code == _REFUSED_STREAM:
            self._client.repeat(call, error)
        else:
            call.end(error)
        self._on_stream_ended()

    def _take_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if len(payload) % _SETTING.size or (flags & frames.ACK and payload):
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of another size")
        if flags & frames.ACK:
            return
        for key, value in _SETTING.iter_unpack(payload):
            if key == _MAX_CONCURRENT_STREAMS:
                self._max_streams = value
            elif key == _MAX_FRAME_SIZE:
                if not frames.DEFAULT_MAX_FRAME_BYTES <= value <= _MAX_FRAME_BYTES:
                    raise PeerError(ErrorCode.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE out of range")
                self._max_frame_bytes = min(value, _MAX_WRITE_BYTES)
            elif key == _INITIAL_WINDOW_SIZE:
                self._resize_windows(value)
        self._reply(frames.SETTINGS_ACK)
        self._update_is_free()
        self._pump()
        self._client.send_waiting()

    def _resize_windows(self, size_bytes: int) -> None:
        if size_bytes > frames.MAX_WINDOW_BYTES:
            raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE out of range")
        difference_bytes = size_bytes - self._initial_window_bytes
        self._initial_window_bytes = size_bytes
        for call in self._calls.values():
            call.window_bytes += difference_bytes
            if call.window_bytes > frames.MAX_WINDOW_BYTES:
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
        last_id = int.from_bytes(payload[:4], "big") & frames.STREAM_ID_MASK
        error = _unreachable("the server shuts down")
        self.retire()
        for call in [call for call in self._calls.values() if call.stream_id > last_id]:
            # The end of one may have cancelled another.
            if self._calls.pop(call.stream_id, None) is not None:
                self._client.repeat(call, error)
        self._on_stream_ended()

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
        call = self._calls.get(stream_id)
        if call is None:
            return
        call.window_bytes += increment_bytes
        if not increment_bytes or call.window_bytes > frames.MAX_WINDOW_BYTES:
            self._fail(call, "a window update out of range")
        elif call.sent_bytes < len(call.request):
            self._pump_call(call)

    def _expect_stream(self, stream_id: int) -> None:
        if stream_id % 2 == 0 or stream_id >= self._next_id:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "a frame on a stream that was never opened")

    def _credit(self, size_bytes: int) -> None:
        """Gives the server credit for the bytes that were read."""
        self._uncredited_bytes += size_bytes
        if self._uncredited_bytes >= _CONNECTION_WINDOW_BYTES // 2:
            self._reply(frames.window_update(0, self._uncredited_bytes))
            self._uncredited_bytes = 0

    def _reply(self, frame: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._is_paused:
            self._unread_replies += 1
            if self._unread_replies > _MAX_UNREAD_REPLIES:
                raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "answers that are not read")
        transport.write(frame)

    # --- its end ------------------------------------------------------------------------------------------

    def _give_up(self, error: PeerError) -> None:
        """The server breaks the protocol."""
        if self._transport is not None:
            self._transport.write(frames.goaway(0, error.code))
            self._close()
        self._drop(f"the server broke the protocol: {error}")

    def _drop(self, reason: str) -> None:
        """Ends the calls: the connection is gone."""
        self._transport, self._rest = None, b""
        self._is_retired = True
        self._update_is_free()
        self._client.retire(self)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.end(_unreachable(reason))
        self._client.send_waiting()


def _is_grpc(head: _Head) -> bool:
    return head.status == b"200" and head.content_type.startswith(b"application/grpc")


def _status(trailers: _Head) -> CallError:
    """The server's own status; its text is percent-encoded. Source: grpc/doc/PROTOCOL-HTTP2.md."""
    text = unquote_to_bytes(trailers.grpc_message).decode("utf-8", "replace")
    code = _CODES.get(trailers.grpc_status, StatusCode.UNKNOWN)
    return AnsweredError(code, text)


def _not_grpc(head: _Head) -> CallError:
    """The error for another HTTP status than 200, or another content type than gRPC's."""
    code = _HTTP_CODES.get(head.status, StatusCode.UNKNOWN)
    status, content_type = head.status.decode("latin-1")[:3], head.content_type.decode("latin-1")[:64]
    text = f"not a response of a gRPC server: HTTP status {status!r}, content type {content_type!r}"
    return _unusable(code, text)


def _unreachable(text: str) -> CallError:
    return UnreachableError(StatusCode.UNAVAILABLE, text)


def _unusable(code: StatusCode, text: str) -> CallError:
    return UnusableError(code, text)


def _exhausted(text: str) -> CallError:
    return _unusable(StatusCode.RESOURCE_EXHAUSTED, text)
