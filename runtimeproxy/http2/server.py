"""A gRPC server for a few small services, whose connections the event loop itself reads.

Its memory is bounded. All calls of all its sockets share one budget of bytes: for each call, for the request
that it announces, for the response that its client has not read yet. If the budget is short, the call that
waits for its client and holds most makes room. A request has a time in which it must come, and a response
one in which it must be read.

Sources: RFC 9113 for frames, gRPC over HTTP/2 (grpc/doc) for calls.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import ClassVar, Final, NamedTuple, NoReturn

from runtimeproxy.errors import RuntimeProxyError, StatusCode
from runtimeproxy.http2 import connection, frames
from runtimeproxy.http2.connection import PREFIX, Stream, literal
from runtimeproxy.http2.frames import ErrorCode, PeerError
from runtimeproxy.http2.header_fields import Fields, percent_encoded, timeout_s
from runtimeproxy.logs import FailureLog

logger = logging.getLogger(__name__)

BUDGET_BYTES: Final = 32 * 1024 * 1024
"""Of all calls together."""
CALL_BYTES: Final = 16 * 1024
"""What a call without a message takes, its task included."""
REQUEST_S: Final = 10.0
"""How long a request may take to come."""
RESPONSE_S: Final = 30.0
"""How long a response may stay unread."""
MOST_STREAMS: Final = 256
"""Calls of one connection at a time; more wait in the client."""
INTERNAL: Final = "an error in the daemon; its log has it"

_MAX_TEXT_BYTES: Final = 4 * 1024
"""Of a status message, percent-encoded: it has to fit into one frame."""
_NO_ROOM: Final = "the calls under way take all the memory that there is for them; call again"
_ABSENT: Final = object()
_REFUSED_STREAM: Final = 0x7
_OPENING: Final = connection.settings(
    {
        connection.MAX_CONCURRENT_STREAMS: MOST_STREAMS,
        connection.MAX_HEADER_LIST_SIZE: connection.MAX_BLOCK_BYTES,
    }
)
_STATUS_200: Final = b"\x88"
"""`:status: 200` is entry 8 of the static table. Source: RFC 7541, appendix A."""
_HEADERS: Final = _STATUS_200 + literal(b"content-type", b"application/grpc")
"""Source: grpc/doc/PROTOCOL-HTTP2.md, "Timeout"."""


class CallAbortedError(RuntimeProxyError):
    """Ends a call with a status."""

    def __init__(self, code: StatusCode, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(text)


class ServedMethod(NamedTuple):
    """A method of a service."""

    handle: Callable[[ServerCall], Awaitable[None]]
    """Answers a call; called when its first message is there."""
    max_request_bytes: int
    """Of one message."""
    refusal: Callable[[], str] = str
    """Why no call is taken at the moment, before its request is read; empty if one is."""


class _RequestHead(NamedTuple):
    """The values that are read of a header block; raw, empty when absent."""

    path: bytes
    content_type: bytes
    timeout: bytes


_FIELDS: Final = Fields(b":path", b"content-type", b"grpc-timeout")


def _head(values: Sequence[bytes]) -> _RequestHead:
    return _RequestHead(*values[: len(_FIELDS.names)])


class EarlyEnd(StrEnum):
    """Why the server has ended a call that its handler would have answered."""

    MADE_ROOM = "made_room"
    """It waited for its client, and others needed its bytes."""
    NO_ROOM = "no_room"
    """There were no bytes for it."""
    REQUEST_LATE = "request_late"
    """Its request did not come in time."""
    RESPONSE_UNREAD = "response_unread"
    """Its response was not read in time."""


class Budget:
    """Bytes of all calls.

    Attributes:
        early_ends: how many calls were ended early.
        was_short_s: when a call was last ended because bytes were short, since the epoch; None for never.
    """

    def __init__(self, limit_bytes: int = BUDGET_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.early_ends: Counter[EarlyEnd] = Counter()
        self.was_short_s: float | None = None
        self.waiting: dict[ServerCall, None] = {}
        """Calls that wait for their clients, oldest first."""

    def reserve(self, call: ServerCall, size_bytes: int) -> bool:
        """Adds to what a call holds; returns False if there is no room, even without those that wait."""
        while self.used_bytes + size_bytes > self.limit_bytes:
            others = [each for each in self.waiting if each is not call]
            # The first of the largest is the oldest of them.
            greediest = max(others, key=lambda each: each.held_bytes, default=None)
            self.was_short_s = time.time()
            if greediest is None:
                self.early_ends[EarlyEnd.NO_ROOM] += 1
                return False
            self.early_ends[EarlyEnd.MADE_ROOM] += 1
            greediest.end(StatusCode.RESOURCE_EXHAUSTED, "makes room for other calls; call again")
        self.used_bytes += size_bytes
        call.held_bytes += size_bytes
        return True

    def release(self, call: ServerCall, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        call.held_bytes -= size_bytes


class GrpcServer:
    """Answers calls on any number of connections. Used in the event loop's thread.

    Args:
        methods: by path, such as `/grpc.health.v1.Health/Check`.
        budget: may be that of other servers, too.
        failures: logs what clients do wrong.
    """

    def __init__(self, methods: Mapping[str, ServedMethod], budget: Budget, failures: FailureLog) -> None:
        self.methods = {path.encode(): method for path, method in methods.items()}
        self.budget = budget
        self.failures = failures
        self.connections: set[_ServerConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()

    def protocol(self) -> asyncio.Protocol:
        return _ServerConnection(self)

    async def stop(self) -> None:
        """Ends all calls and connections, and waits for what served them."""
        for each in tuple(self.connections):
            each.abort()
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)


class ServerCall(Stream):
    """One call.

    Attributes:
        held_bytes: what it takes of the budget.
        credit_bytes: how much the client may still send.
        has_all: whether the client has ended its side.
        has_headers: whether the head of the response has been sent.
    """

    __slots__ = (
        "_connection",
        "_input",
        "_messages",
        "_method",
        "_read",
        "_server",
        "_size_bytes",
        "_taken_bytes",
        "_task",
        "_timers",
        "_wake",
        "credit_bytes",
        "has_all",
        "has_headers",
        "held_bytes",
        "is_over",
        "path",
    )

    def __init__(self, connection: _ServerConnection, stream_id: int, window_bytes: int, path: str) -> None:
        super().__init__(ends_with_output=False)
        self.stream_id = stream_id
        self.window_bytes = window_bytes
        self.path = path
        self.held_bytes = 0
        self.is_over = False
        self.has_all = False
        self.has_headers = False
        self.credit_bytes = frames.DEFAULT_WINDOW_BYTES
        self._connection = connection
        self._server = connection.server
        self._method: ServedMethod | None = None
        self._input = bytearray()
        self._size_bytes = -1
        """Of the message that is coming, with its prefix; -1 before it is known."""
        self._messages: deque[bytes] = deque()
        self._taken_bytes = 0
        """Of the message that the handler has."""
        self._wake: asyncio.Future[None] | None = None
        """Done when there is another message, or none will come."""
        self._read: asyncio.Future[None] | None = None
        """Done when the client has room for more."""
        self._task: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []

    # --- for handlers -------------------------------------------------------------------------------------

    async def message(self) -> bytes | None:
        """The next message of the client, in place of the one before; None after its last."""
        self._server.budget.release(self, self._taken_bytes)
        self._taken_bytes = 0
        if not self._messages and not self.has_all:
            self._wake = asyncio.get_running_loop().create_future()
            with self._waiting():
                await self._wake
        if not self._messages:
            return None
        message = self._messages.popleft()
        self._taken_bytes = len(message)
        self._connection.credit(self, frames.DEFAULT_WINDOW_BYTES // 2, frames.DEFAULT_WINDOW_BYTES)
        return message

    async def send(self, message: bytes) -> None:
        """Sends a message, and returns when the client has room for the next.

        Raises:
            CallAbortedError: it does not read.
        """
        # Once as bytes, and once as what the handler has made them of.
        size_bytes = 2 * len(message)
        if not self._server.budget.reserve(self, size_bytes):
            raise CallAbortedError(StatusCode.RESOURCE_EXHAUSTED, _NO_ROOM)
        self.output, self.sent_bytes = PREFIX.pack(0, len(message)) + message, 0
        # While the client does not read, one copy is enough.
        del message
        self._connection.send(self)
        if self.has_unsent:
            self._read = asyncio.get_running_loop().create_future()
            try:
                with self._waiting():
                    async with asyncio.timeout(RESPONSE_S):
                        await self._read
            except TimeoutError:
                self._server.budget.early_ends[EarlyEnd.RESPONSE_UNREAD] += 1
                text = f"the responses were not read for {RESPONSE_S:g} s; call again"
                raise CallAbortedError(StatusCode.RESOURCE_EXHAUSTED, text) from None
        self.output, self.sent_bytes = b"", 0
        self._server.budget.release(self, size_bytes)

    async def abort(self, code: StatusCode, text: str) -> NoReturn:
        raise CallAbortedError(code, text)

    # --- for the connection -------------------------------------------------------------------------------

    def begin(self, method: ServedMethod, deadline_s: float | None) -> None:
        """Waits for the request; `deadline_s` is that of the client, from now."""
        loop = asyncio.get_running_loop()
        self._method = method
        if not self._server.budget.reserve(self, CALL_BYTES):
            self.end(StatusCode.RESOURCE_EXHAUSTED, _NO_ROOM)
            return
        self._server.budget.waiting[self] = None
        self._timers.append(loop.call_later(REQUEST_S, self._on_late))
        if deadline_s is not None:
            text = "the deadline is over"
            self._timers.append(loop.call_later(deadline_s, self.end, StatusCode.DEADLINE_EXCEEDED, text))

    def take(self, content: bytes, *, ends: bool) -> None:
        self._input += content
        self.has_all = ends
        while not self.is_over and (self._size_bytes >= 0 or len(self._input) >= PREFIX.size):
            if self._size_bytes < 0 and not self._take_prefix():
                return
            if len(self._input) < self._size_bytes:
                break
            self._messages.append(bytes(self._input[PREFIX.size : self._size_bytes]))
            del self._input[: self._size_bytes]
            self._size_bytes = -1
            if self._task is None:
                self._start()
        if ends and (self._input or self._task is None):
            self.end(StatusCode.INTERNAL, "the request has no whole message")
        elif self._wake is not None and not self._wake.done() and (self._messages or ends):
            self._wake.set_result(None)

    def on_read(self) -> None:
        if self._read is not None and not self._read.done():
            self._read.set_result(None)

    def end(self, code: StatusCode, text: str = "") -> None:
        if not self.is_over:
            self._connection.finish(self, code, text)
            self.forget()

    def forget(self) -> None:
        """The call is over, for whatever reason: nothing is kept for it."""
        if self.is_over:
            return
        self.is_over = True
        for timer in self._timers:
            timer.cancel()
        is_idle = self._server.budget.waiting.pop(self, _ABSENT) is None
        self._messages.clear()
        self._input.clear()
        self.output = b""
        task = self._task
        if task is None or is_idle:
            self._server.budget.release(self, self.held_bytes)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _on_late(self) -> None:
        self._server.budget.early_ends[EarlyEnd.REQUEST_LATE] += 1
        self.end(StatusCode.DEADLINE_EXCEEDED, f"the request did not come within {REQUEST_S:g} s")

    def _take_prefix(self) -> bool:
        """Makes room for the message that is announced; returns False if that ends the call."""
        assert self._method is not None  # noqa: S101 - `begin` has been called
        is_compressed, size_bytes = PREFIX.unpack_from(self._input)
        most_bytes = self._method.max_request_bytes
        refusal = "" if self._task is not None else self._method.refusal()
        if refusal:
            self.end(StatusCode.RESOURCE_EXHAUSTED, refusal)
        elif is_compressed:
            self.end(StatusCode.UNIMPLEMENTED, "a compressed request cannot be read")
        elif size_bytes > most_bytes:
            text = f"the request has {size_bytes} bytes, at most {most_bytes} are possible"
            self.end(StatusCode.RESOURCE_EXHAUSTED, text)
        elif not self._server.budget.reserve(self, size_bytes):
            self.end(StatusCode.RESOURCE_EXHAUSTED, _NO_ROOM)
        else:
            self._size_bytes = PREFIX.size + size_bytes
            missing_bytes = self._size_bytes - len(self._input)
            self._connection.credit(self, missing_bytes, missing_bytes)
        return not self.is_over

    def _start(self) -> None:
        self._server.budget.waiting.pop(self, None)
        # The first one is that of the request.
        self._timers[0].cancel()
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._server.tasks.add(self._task)
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._server.tasks.discard(task)
        self.forget()
        self._server.budget.release(self, self.held_bytes)

    async def _run(self) -> None:
        assert self._method is not None  # noqa: S101 - `begin` has been called
        try:
            await self._method.handle(self)
        except CallAbortedError as error:
            self.end(error.code, error.text)
        except Exception:  # a bug costs this call
            logger.exception("%s failed", self.path)
            self.end(StatusCode.INTERNAL, INTERNAL)
        else:
            self.end(StatusCode.OK)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """While the call waits for its client."""
        self._server.budget.waiting[self] = None
        try:
            yield
        finally:
            self._server.budget.waiting.pop(self, None)


class _ServerConnection(connection.Http2Connection[ServerCall, _RequestHead]):
    """One connection of a client."""

    peer: ClassVar[str] = "client"

    def __init__(self, server: GrpcServer) -> None:
        super().__init__(_FIELDS, _head, _OPENING)
        self.server = server
        self._preface = frames.PREFACE

    # --- asyncio.Protocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the server's SETTINGS."""
        super().connection_made(transport)
        self.server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Reads the preface, then frames."""
        if self._preface:
            size_bytes = min(len(self._preface), len(data))
            if not self._preface.startswith(data[:size_bytes]):
                self._give_up(PeerError(ErrorCode.PROTOCOL_ERROR, "no preface of HTTP/2"))
                return
            self._preface, data = self._preface[size_bytes:], data[size_bytes:]
        super().data_received(data)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._on_lost("")

    # --- for calls ----------------------------------------------------------------------------------------

    def send(self, call: ServerCall) -> None:
        """Sends the output of a call, as soon as the client has room."""
        if not call.has_headers:
            call.has_headers = True
            self._write(frames.frame(frames.HEADERS, frames.END_HEADERS, call.stream_id, _HEADERS))
        self._pump_stream(call)

    def credit(self, call: ServerCall, least_bytes: int, wanted_bytes: int) -> None:
        if call.credit_bytes < least_bytes and not call.has_all and not call.is_over:
            self._write(frames.window_update(call.stream_id, wanted_bytes - call.credit_bytes))
            call.credit_bytes = wanted_bytes

    def finish(self, call: ServerCall, code: StatusCode, text: str) -> None:
        del self._streams[call.stream_id]
        block = b"" if call.has_headers else _HEADERS
        block += literal(b"grpc-status", b"%d" % code)
        if text:
            block += literal(b"grpc-message", percent_encoded(text, _MAX_TEXT_BYTES))
        self._write(
            frames.frame(frames.HEADERS, frames.END_STREAM | frames.END_HEADERS, call.stream_id, block)
        )
        if not call.has_all:
            # What the client still sends is not read.
            self._write(frames.rst_stream(call.stream_id, ErrorCode.NO_ERROR))

    # --- what comes ---------------------------------------------------------------------------------------

    def _on_head(self, stream_id: int, head: _RequestHead, *, ends: bool) -> None:
        call = self._streams.get(stream_id)
        if call is not None:
            if ends and not call.has_all:
                call.take(b"", ends=True)
            else:
                self._on_broken_stream(call, "a second head")
            return
        if stream_id <= self._last_id:
            return
        if stream_id % 2 == 0:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "a stream with an even number")
        self._last_id = stream_id
        if self._is_paused:
            # Each is answered.
            self._reply(b"")
        if len(self._streams) >= MOST_STREAMS:
            self._write(frames.rst_stream(stream_id, _REFUSED_STREAM))
            return
        path = head.path.decode("latin-1")
        call = ServerCall(self, stream_id, self._initial_window_bytes, path)
        call.has_all = ends
        self._streams[stream_id] = call
        method = self.server.methods.get(head.path)
        if method is None:
            call.end(StatusCode.UNIMPLEMENTED, "this server has no such method")
        elif not head.content_type.startswith(b"application/grpc"):
            call.end(StatusCode.INVALID_ARGUMENT, "the content type is not gRPC's")
        elif ends:
            call.end(StatusCode.INTERNAL, "the request has no whole message")
        else:
            call.begin(method, timeout_s(head.timeout))

    def _on_data(self, stream: ServerCall, payload_bytes: int, content: bytes, *, ends: bool) -> None:
        stream.credit_bytes -= payload_bytes
        if stream.has_all:
            self._on_broken_stream(stream, "DATA after its end")
        elif stream.credit_bytes < 0:
            self._on_broken_stream(stream, "more DATA than was allowed")
        else:
            if payload_bytes > len(content) and not ends:
                # Padding is gone already.
                self.credit(
                    stream, stream.credit_bytes + 1, stream.credit_bytes + payload_bytes - len(content)
                )
            stream.take(content, ends=ends)

    def _on_reset(self, stream: ServerCall, code: int) -> None:
        stream.forget()

    def _on_goaway(self, last_id: int) -> None:
        """A client that makes no more calls closes the connection itself."""

    def _on_broken_stream(self, stream: ServerCall, reason: str) -> None:
        self.server.failures.report("own services", reason, f"a client sent {reason}")
        del self._streams[stream.stream_id]
        self._write(frames.rst_stream(stream.stream_id, ErrorCode.PROTOCOL_ERROR))
        stream.forget()

    def _on_sent(self, stream: ServerCall) -> None:
        stream.on_read()

    def _give_up(self, error: PeerError) -> None:
        self.server.failures.report("own services", error.code, f"a client broke the protocol: {error}")
        super()._give_up(error)

    def _on_lost(self, reason: str) -> None:
        self.server.connections.discard(self)
        calls, self._streams = self._streams, {}
        for call in calls.values():
            call.forget()
