"""A client for gRPC calls with one request, by Unix socket or TCP; the event loop reads its connection.

A call costs one write and takes neither a thread nor a task: its messages and its end are callbacks. Calls
share one connection, which is made when it is needed. One that the server has closed or shuts down is
replaced. A call that the server has certainly not processed (GOAWAY, REFUSED_STREAM) is repeated once, any
other never.

All calls of this program's own go by it, and not by the gRPC library: its core ends the process at a GOAWAY
with the error code HTTP_1_1_REQUIRED or one that it does not know (grpcio 1.85.1, http2_status.h).
`runtimeproxy/stubs.py` has the methods of a service, for tasks and for threads.

Sources: RFC 9113 for frames, gRPC over HTTP/2 (grpc/doc) for calls.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes

from runtimeproxy.errors import RuntimeProxyError, StatusCode
from runtimeproxy.http2 import connection, frames
from runtimeproxy.http2.connection import MAX_BLOCK_BYTES, PREFIX, Stream, integer, literal
from runtimeproxy.http2.frames import ErrorCode
from runtimeproxy.http2.header_fields import Fields

if TYPE_CHECKING:
    import ssl

logger = logging.getLogger(__name__)

MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Of one answer's message; the limit of the kubelet and of containerd."""
MAX_HELD_BYTES: Final = 64 * 1024 * 1024
"""Of the requests and announced answers of all calls under way on one server."""

_STREAM_WINDOW_BYTES: Final = MAX_ANSWER_BYTES + 64 * 1024
"""Lets any answer come without an update of its window; the surplus is for padding."""
_NO_TABLE: Final = b"\x20"
"""Before the first header block: no entry is ever put into the server's table, of any size."""
_OPENING: Final = frames.PREFACE + connection.settings(
    {
        connection.ENABLE_PUSH: 0,
        connection.INITIAL_WINDOW_SIZE: _STREAM_WINDOW_BYTES,
        connection.MAX_HEADER_LIST_SIZE: MAX_BLOCK_BYTES,
    }
)

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


class RpcError(RuntimeProxyError):
    """A call that failed; the type says how.

    Attributes:
        text: why; of a server's own status in its words, at most `MAX_BLOCK_BYTES` long.
    """

    def __init__(self, code: StatusCode, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(f"{code.name}: {text}")


class AnsweredError(RpcError):
    """The server's own status."""


class UnreachableError(RpcError):
    """No connection, or it broke, or the stream was reset."""


class LateError(RpcError):
    """No answer in time."""


class UnusableError(RpcError):
    """An unusable answer: not gRPC's, compressed, or too long."""


Done: TypeAlias = "Callable[[bytes | RpcError], None]"
"""Takes the answer's message, or the error; called once, in the loop's thread."""
OnMessage: TypeAlias = "Callable[[bytes], None]"
"""Takes each message of a stream, in the loop's thread."""


class _Head(NamedTuple):
    """The values that are read of a header block; raw, empty when absent."""

    status: bytes
    content_type: bytes
    grpc_status: bytes
    grpc_message: bytes


_FIELDS: Final = Fields(b":status", b"content-type", b"grpc-status", b"grpc-message")


def _head(values: Sequence[bytes]) -> _Head:
    return _Head(*values[: len(_FIELDS.names)])


class Server(NamedTuple):
    """A server's address, and what all calls to it have in common."""

    path: str = ""
    """Of its Unix socket; empty for a TCP port."""
    host: str = "localhost"
    port: int = 0
    tls: ssl.SSLContext | None = None
    """With which the TCP connection is secured; it must offer `h2` by ALPN. None for plaintext."""
    fields: tuple[tuple[bytes, bytes], ...] = ()
    """Further header fields of each call."""
    is_compressed: bool = False
    """Whether requests are sent compressed with gzip; answers never are."""

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else host


def request_block(path: str, server: Server = Server()) -> bytes:  # noqa: B008 - immutable
    """Returns the header block of all calls of a method, but for the deadline at its end.

    Nothing in it goes into the server's header table. Its numbers are the static table's (RFC 7541, A).
    """

    def value(text: bytes) -> bytes:
        return integer(len(text)) + text

    fields = (*server.fields, (b"grpc-encoding", b"gzip")) if server.is_compressed else server.fields
    return b"".join(
        (
            b"\x83",  # :method POST
            b"\x86" if server.tls is None else b"\x87",  # :scheme http or https
            b"\x04" + value(path.encode()),
            b"\x01" + value(server.authority.encode()),
            literal(b"te", b"trailers"),
            b"\x0f\x10" + value(b"application/grpc"),
            b"\x0f\x2b" + value(b"koord-runtime-proxy"),
            *(literal(name, text) for name, text in fields),
        )
    )


def _framed(request: bytes, *, is_compressed: bool) -> bytes:
    if is_compressed:
        import gzip

        request = gzip.compress(request)
    return PREFIX.pack(is_compressed, len(request)) + request


def _timeout(left_s: float) -> bytes:
    # The value has at most eight digits.
    return literal(b"grpc-timeout", b"%dm" % min(max(int(left_s * 1000), 1), 99_999_999))


class GrpcCall(Stream):
    """One call in progress."""

    __slots__ = (
        "_client",
        "answer",
        "begun_s",
        "block",
        "connection",
        "deadline_s",
        "done",
        "head",
        "held_bytes",
        "is_over",
        "is_repeated",
        "on_message",
        "size_bytes",
        "timer",
        "uncredited_bytes",
    )

    def __init__(
        self, client: GrpcClient, block: bytes, request: bytes, done: Done, on_message: OnMessage | None
    ) -> None:
        super().__init__(ends_with_output=True)
        self._client = client
        self.block = block
        self.output = _framed(request, is_compressed=client.server.is_compressed)
        self.done: Done | None = done
        self.on_message = on_message
        """None for a call with one answer, whose message `done` takes."""
        self.held_bytes = len(self.output)
        self.is_over = False
        self.is_repeated = False
        self.timer: asyncio.TimerHandle | None = None
        self.begun_s = asyncio.get_running_loop().time()
        self.deadline_s: float | None = None
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
        """The announced length of the message with its prefix; -1 before it is known."""
        self.uncredited_bytes = 0
        """What the stream's window is to be widened by; only where there are many messages."""

    def credit(self, message: bytes) -> None:
        # A message of a stream is no longer held: the server may send more.
        if not self.is_over:
            self._client.release(self, len(message))
            self.uncredited_bytes += PREFIX.size + len(message)
            if self.connection is not None:
                self.connection.credit(self)

    def cancel(self) -> None:
        """Ends the call without calling `done`."""
        self.done = None
        self.end(b"")

    def end(self, outcome: bytes | RpcError) -> None:
        """Ends the call, unless it has ended, and cancels it at the server."""
        if self.is_over:
            return
        self.is_over = True
        if self.timer is not None:
            self.timer.cancel()
        self._client.on_ended(self)
        done, self.done, self.output, self.answer = self.done, None, b"", b""
        if done is not None:
            try:
                done(outcome)
            except Exception:  # a bug in one caller must not cost the other calls
                logger.exception("callback of a finished call failed")

    def expire(self) -> None:
        connection = self.connection
        timeout_s = (self.deadline_s or 0.0) - self.begun_s
        self.end(LateError(StatusCode.DEADLINE_EXCEEDED, f"no answer within {timeout_s:g} s"))
        if connection is not None:
            connection.on_late_call(self.begun_s)


class GrpcClient:
    """Calls the methods of one server. Used in one event loop's thread.

    Args:
        server: its address; a text is the path of a socket.
        max_answer_bytes: of an answer's message; a longer one is not taken.
        reconnects: whether there may be another connection after the first; for servers that know something
            of their client as long as it is connected, there may not.
    """

    def __init__(
        self, server: str | Server, max_answer_bytes: int = MAX_ANSWER_BYTES, *, reconnects: bool = True
    ) -> None:
        self.server = Server(server) if isinstance(server, str) else server
        self.max_answer_bytes = max_answer_bytes
        self._may_connect = True
        self._reconnects = reconnects
        self._connection: _Connection | None = None
        self._waiting: dict[GrpcCall, None] = {}
        """Calls that are on no stream yet, oldest first."""
        self._calls: dict[GrpcCall, None] = {}
        self._held_bytes = 0
        self._is_closed = False

    def call(
        self,
        block: bytes,
        request: bytes,
        timeout_s: float | None,
        done: Done,
        on_message: OnMessage | None = None,
    ) -> GrpcCall:
        """Begins a call.

        Args:
            block: from `request_block`, for the method.
            request: the message.
            timeout_s: above 0; also the server's deadline. None for no bound.
            done: takes the outcome, never before this returns; of a stream that has ended well `b""`.
            on_message: for a method with a stream of answers. The server sends on when `credit` of the call
                has been told that messages are no longer held.
        """
        loop = asyncio.get_running_loop()
        call = GrpcCall(self, block, request, done, on_message)
        self._calls[call] = None
        self._held_bytes += call.held_bytes
        if timeout_s is not None:
            call.deadline_s = call.begun_s + timeout_s
            call.timer = loop.call_later(timeout_s, call.expire)
        if self._held_bytes > MAX_HELD_BYTES:
            loop.call_soon(call.end, _exhausted("too many bytes of calls are in progress on this server"))
        else:
            self.start(call)
        return call

    async def unary(self, block: bytes, request: bytes, timeout_s: float | None) -> bytes | RpcError:
        """Calls a method and returns the outcome; arguments as those of `call`."""
        outcome: asyncio.Future[bytes | RpcError] = asyncio.get_running_loop().create_future()

        def on_done(found: bytes | RpcError) -> None:
            # The call may end after the task that waits was cancelled, and before it knows that.
            if not outcome.done():
                outcome.set_result(found)

        call = self.call(block, request, timeout_s, on_done)
        try:
            return await outcome
        finally:
            call.cancel()

    def abort(self) -> None:
        """Ends all calls in progress, and the connection with them."""
        for call in tuple(self._calls):
            call.end(RpcError(StatusCode.CANCELLED, "the connection is closed"))
        connection = self._connection
        self.close()
        if connection is not None:
            connection.abort()

    def close(self) -> None:
        """Closes the connection once no call is in progress; a later call opens another one."""
        self._is_closed = True
        self._let_go()

    def start(self, call: GrpcCall) -> None:
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

    def repeat(self, call: GrpcCall, error: RpcError) -> None:
        """Repeats a call that the server has not processed, once."""
        if call.is_over:
            return
        if call.is_repeated:
            call.end(error)
            return
        call.is_repeated = True
        call.begin(None, 0, 0)
        self.start(call)

    def reserve(self, call: GrpcCall, size_bytes: int) -> bool:
        """Accounts for an announced answer; returns False if it is too long, or too much is under way."""
        if size_bytes > self.max_answer_bytes or self._held_bytes + size_bytes > MAX_HELD_BYTES:
            return False
        self._held_bytes += size_bytes
        call.held_bytes += size_bytes
        return True

    def release(self, call: GrpcCall, size_bytes: int) -> None:
        """An answer that was accounted for is no longer held."""
        self._held_bytes -= size_bytes
        call.held_bytes -= size_bytes

    def on_ended(self, call: GrpcCall) -> None:
        del self._calls[call]
        self._held_bytes -= call.held_bytes
        if call.connection is not None:
            call.connection.release(call)
        else:
            self._waiting.pop(call, None)
        if self._is_closed:
            self._let_go()

    def retire(self, connection: _Connection) -> None:
        if self._connection is connection:
            self._connection = None

    def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._may_connect:
            waiting, self._waiting = self._waiting, {}
            for call in waiting:
                loop.call_soon(call.end, _unreachable("the connection has ended"))
            return
        self._may_connect = self._reconnects
        self._connection = connection = _Connection(self)
        sock = None
        if self.server.path:
            try:
                sock = _connected(self.server.path)
            except OSError as error:
                loop.call_soon(self._unreachable, connection, error)
                return
        connection.opening = loop.create_task(self._open(connection, sock), name="connect-grpc")

    async def _open(self, connection: _Connection, sock: socket.socket | None) -> None:
        loop, server = asyncio.get_running_loop(), self.server
        try:
            if sock is not None:
                await loop.create_unix_connection(lambda: connection, sock=sock)
            else:
                await loop.create_connection(lambda: connection, server.host, server.port, ssl=server.tls)
        except OSError as error:
            if sock is not None:
                sock.close()
            self._unreachable(connection, error)
        else:
            if sock is not None and connection.is_lost:
                # Lost as it sent its first bytes: uvloop has closed the descriptor before it was told that
                # the socket goes with it. The socket must not close that number again, whoever has it now.
                sock.detach()
            connection.on_open()

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


class _Connection(connection.Http2Connection[GrpcCall, _Head]):
    """One connection to the server.

    Attributes:
        opening: the task that opens it.
        is_free: whether a call can have a stream now.
        is_lost: whether its transport is gone.
    """

    peer: ClassVar[str] = "server"

    def __init__(self, client: GrpcClient) -> None:
        super().__init__(_FIELDS, _head, _OPENING)
        self.opening: asyncio.Task[None] | None = None
        self.is_free = False
        self.is_lost = False
        self._client = client
        self._first = _NO_TABLE
        self._is_retired = False
        self._heard_s = 0.0
        self._max_streams = frames.MAX_STREAM_ID

    # --- asyncio.Protocol ---------------------------------------------------------------------------------

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        super().connection_lost(error)

    def on_open(self) -> None:
        """Sends the calls that wait; ends a connection that was given up before."""
        if self._is_retired:
            self.abort()
        else:
            self._on_writable()

    def data_received(self, data: bytes) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        super().data_received(data)

    # --- calls --------------------------------------------------------------------------------------------

    def send(self, call: GrpcCall) -> None:
        """Puts a call on a stream; only while the connection is free."""
        self._last_id = stream_id = self._last_id + 2
        call.begin(self, stream_id, self._initial_window_bytes)
        self._streams[stream_id] = call
        self._update_is_free()
        block = self._first + call.block
        self._first = b""
        if call.deadline_s is not None:
            block += _timeout(call.deadline_s - asyncio.get_running_loop().time())
        self._write(
            frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, block) + self._next_data(call)
        )
        if stream_id + 2 > frames.MAX_STREAM_ID:
            self.retire()
        if call.has_unsent:
            self._pump_stream(call)

    def credit(self, call: GrpcCall) -> None:
        if call.uncredited_bytes >= _STREAM_WINDOW_BYTES // 2:
            self._write(frames.window_update(call.stream_id, call.uncredited_bytes))
            call.uncredited_bytes = 0

    def release(self, call: GrpcCall) -> None:
        """A call has ended, by itself or for the server's answer."""
        if self._streams.pop(call.stream_id, None) is None:
            return
        # Whatever has ended the call: the server may still work on it.
        self._write(frames.rst_stream(call.stream_id, ErrorCode.CANCEL))
        self._on_stream_ended()

    def on_late_call(self, begun_s: float) -> None:
        # If nothing has come since the call began, the next calls need not have the same fate.
        if self._heard_s <= begun_s:
            self.retire()

    def retire(self) -> None:
        """Takes no more calls; ends with the last one that is on it."""
        self._is_retired = True
        self._update_is_free()
        self._client.retire(self)
        self._close_unused()

    def abort(self) -> None:
        # At once: TLS would wait for the server.
        if self._transport is not None:
            self._transport.abort()

    def _close_unused(self) -> None:
        if self._is_retired and not self._streams:
            self._close()

    def _update_is_free(self) -> None:
        self.is_free = (
            self._transport is not None
            and not self._is_paused
            and not self._is_retired
            and len(self._streams) < self._max_streams
        )

    def _on_stream_ended(self) -> None:
        self._close_unused()
        self._on_writable()

    def _on_writable(self) -> None:
        self._update_is_free()
        self._client.send_waiting()

    def _on_max_streams(self, count: int) -> None:
        self._max_streams = count

    # --- what comes ---------------------------------------------------------------------------------------

    def _on_data(self, stream: GrpcCall, payload_bytes: int, content: bytes, *, ends: bool) -> None:
        if stream.head is None:
            self._fail(stream, "DATA before headers")
            return
        stream.uncredited_bytes += payload_bytes - len(content)
        if content:
            stream.answer += content
            if not self._take_messages(stream):
                return
        if ends:
            self._done(stream, stream.head)

    def _take_messages(self, call: GrpcCall) -> bool:
        """Takes what has come; returns False if that has ended the call."""
        while call.size_bytes >= 0 or len(call.answer) >= PREFIX.size:
            if call.size_bytes < 0 and not self._take_prefix(call):
                return False
            if call.on_message is None or len(call.answer) < call.size_bytes:
                break
            message = bytes(call.answer[PREFIX.size : call.size_bytes])
            call.answer, call.size_bytes = bytes(call.answer[call.size_bytes :]), -1
            call.on_message(message)
            if call.is_over:
                return False
        if call.on_message is None and 0 <= call.size_bytes < len(call.answer):
            self._fail(call, "more than one message")
            return False
        return True

    def _take_prefix(self, call: GrpcCall) -> bool:
        """Checks the announced length before the message is there; returns False if that ends the call."""
        is_compressed, size_bytes = PREFIX.unpack_from(call.answer)
        if is_compressed:
            call.end(_unusable(StatusCode.UNIMPLEMENTED, "the answer is compressed, which was not allowed"))
            return False
        if not self._client.reserve(call, size_bytes):
            call.end(_exhausted(f"the answer has {size_bytes} bytes, which are too many"))
            return False
        call.size_bytes = PREFIX.size + size_bytes
        if size_bytes > frames.DEFAULT_MAX_FRAME_BYTES:
            call.answer = bytearray(call.answer)
        if size_bytes > MAX_ANSWER_BYTES:
            self._write(frames.window_update(call.stream_id, size_bytes))
        return True

    def _on_head(self, stream_id: int, head: _Head, *, ends: bool) -> None:
        self._expect_stream(stream_id)
        call = self._streams.get(stream_id)
        if call is None:
            return
        if ends:
            self._done(call, head)
        elif call.head is not None:
            self._fail(call, "headers that are not trailers")
        elif not head.status.startswith(b"1"):
            call.head = head
            if not _is_grpc(head):
                call.end(_not_grpc(head))

    def _done(self, call: GrpcCall, trailers: _Head) -> None:
        """The server has ended the stream."""
        head = call.head or trailers
        outcome: bytes | RpcError
        if not _is_grpc(head):
            outcome = _not_grpc(head)
        elif not trailers.grpc_status:
            outcome = _unusable(StatusCode.UNKNOWN, "the answer has no status")
        elif trailers.grpc_status != b"0":
            outcome = _status(trailers)
        elif call.on_message is not None and not call.answer:
            outcome = b""
        elif len(call.answer) != call.size_bytes:
            outcome = _unusable(StatusCode.INTERNAL, "the answer has no whole message")
        else:
            outcome = bytes(call.answer[PREFIX.size :])
        del self._streams[call.stream_id]
        if call.has_unsent:
            # The server did not need the whole request.
            self._write(frames.rst_stream(call.stream_id, ErrorCode.CANCEL))
        call.end(outcome)
        self._on_stream_ended()

    def _fail(self, call: GrpcCall, reason: str) -> None:
        call.end(_unusable(StatusCode.INTERNAL, f"the server sent {reason}"))

    def _on_broken_stream(self, stream: GrpcCall, reason: str) -> None:
        self._fail(stream, reason)

    def _on_reset(self, stream: GrpcCall, code: int) -> None:
        error = UnreachableError(
            _RESET_CODES.get(code, StatusCode.INTERNAL),
            f"the server reset the stream with code {code}",
        )
        if code == _REFUSED_STREAM:
            self._client.repeat(stream, error)
        else:
            stream.end(error)
        self._on_stream_ended()

    def _on_goaway(self, last_id: int) -> None:
        error = _unreachable("the server shuts down")
        self.retire()
        for call in [call for call in self._streams.values() if call.stream_id > last_id]:
            # The end of one may have cancelled another.
            if self._streams.pop(call.stream_id, None) is not None:
                self._client.repeat(call, error)
        self._on_stream_ended()

    def _on_lost(self, reason: str) -> None:
        self._is_retired = True
        self._update_is_free()
        self._client.retire(self)
        calls, self._streams = self._streams, {}
        for call in calls.values():
            call.end(_unreachable(reason))
        self._client.send_waiting()


def _connected(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


def _is_grpc(head: _Head) -> bool:
    return head.status == b"200" and head.content_type.startswith(b"application/grpc")


def _status(trailers: _Head) -> RpcError:
    """The server's own status; its text is percent-encoded. Source: grpc/doc/PROTOCOL-HTTP2.md."""
    text = unquote_to_bytes(trailers.grpc_message).decode("utf-8", "replace")
    code = _CODES.get(trailers.grpc_status, StatusCode.UNKNOWN)
    return AnsweredError(code, text)


def _not_grpc(head: _Head) -> RpcError:
    """The error for another HTTP status than 200, or another content type than gRPC's."""
    code = _HTTP_CODES.get(head.status, StatusCode.UNKNOWN)
    status, content_type = head.status.decode("latin-1")[:3], head.content_type.decode("latin-1")[:64]
    text = f"not a response of a gRPC server: HTTP status {status!r}, content type {content_type!r}"
    return _unusable(code, text)


def _unreachable(text: str) -> RpcError:
    return UnreachableError(StatusCode.UNAVAILABLE, text)


def _unusable(code: StatusCode, text: str) -> RpcError:
    return UnusableError(code, text)


def _exhausted(text: str) -> RpcError:
    return _unusable(StatusCode.RESOURCE_EXHAUSTED, text)
