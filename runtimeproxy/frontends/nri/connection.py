"""One end of an NRI socket in the event loop: calls with their responses, and requests of the peer.

A peer that does not read is not read from either, and loses its connection after a while. Imports protobuf.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from runtimeproxy.errors import RuntimeProxyError, StatusCode
from runtimeproxy.frontends.nri.ttrpc import (
    MessageTooLongError,
    ProtocolError,
    Request,
    Response,
    Session,
    Side,
)

logger = logging.getLogger(__name__)

SOCKET_VARIABLE: Final = "NRI_PLUGIN_SOCKET"
NAME_VARIABLE: Final = "NRI_PLUGIN_NAME"
INDEX_VARIABLE: Final = "NRI_PLUGIN_IDX"

MAX_WAITING_REQUESTS: Final = 32
"""Requests without a response at which the socket is not read any more."""
UNREAD_S: Final = 10.0
"""How long a peer may take nothing of what is written. A runtime gives up on a plugin after 2 s."""
_CLOSE_S: Final = 1.0
"""How long the last bytes may take."""


class CallError(RuntimeProxyError):
    """The peer has refused a call. `code`: the status code, `reason`: its text."""

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        self.reason = reason
        super().__init__(f"{_code_name(code)}: {reason}")


class ConnectionLostError(RuntimeProxyError):
    """The connection has ended, and the call with it; the text says why."""


class InheritedSocketError(RuntimeProxyError):
    """The runtime has started this process as its plugin, and the variables that say so are of no use."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What a runtime says to a plugin that it has started. `index`: two digits."""

    name: str
    index: str
    descriptor: int


class NriConnection(asyncio.Protocol):
    """A connection, from either side.

    Args:
        side: Which end this is.
        on_request: Called with each request of the peer, which then is to be answered with `respond` or
            `refuse`, at any time.
        on_closed: Called once, with the reason, when the connection has ended for whatever cause.

    Attributes:
        peer_closed: Whether it was the peer that has ended the connection.
    """

    def __init__(
        self, side: Side, on_request: Callable[[Request], None], on_closed: Callable[[str], None]
    ) -> None:
        self.peer_closed = False
        self._session = Session(side)
        self._on_request = on_request
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, asyncio.Future[Response]] = {}
        self._reason: str | None = None
        # While the peer does not read: to end the connection; while it ends: to end it at once.
        self._timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        self._is_reading = True

    @property
    def is_open(self) -> bool:
        return self._transport is not None and self._reason is None

    async def call(self, method: str, payload: bytes, timeout_s: float | None = None) -> bytes:
        """Calls a method of the peer; returns its response message.

        Raises:
            CallError: The peer refused, or the request is longer than any peer takes.
            ConnectionLostError: The connection has ended before the response; the call may have had effect.
            TimeoutError: No response came in time. The connection lasts.
        """
        if not self.is_open:
            raise ConnectionLostError(self._reason or "not connected")
        try:
            stream_id = self._session.send_request(method, payload, timeout_s)
        except MessageTooLongError as error:
            raise CallError(StatusCode.RESOURCE_EXHAUSTED, str(error)) from None
        except ProtocolError as error:
            self._end(str(error))
            raise ConnectionLostError(str(error)) from None
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._calls[stream_id] = answer
        self._write()
        try:
            async with asyncio.timeout(timeout_s):
                response = await answer
        finally:
            del self._calls[stream_id]
            self._session.abandon(stream_id)
        if response.code != StatusCode.OK:
            raise CallError(response.code, response.message)
        return response.payload

    def respond(self, request: Request, payload: bytes) -> None:
        """Answers a request; does nothing if it has been answered, or the connection has ended."""
        self._session.send_response(request, payload)
        self._write()

    def refuse(self, request: Request, code: int, message: str) -> None:
        """Fails a request with a status; does nothing where `respond` would not."""
        self._session.send_error(request, code, message)
        self._write()

    def close(self, reason: str = "closed by this side") -> None:
        """Ends the connection after what has been written; `on_closed` is called later."""
        self._end(reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._reason is not None:
            # Closed before it was connected. Not at once: uvloop would not close the socket.
            asyncio.get_running_loop().call_soon(self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._reason is not None:
            return
        try:
            received = self._session.receive(data)
        except ProtocolError as error:
            self._end(f"the peer broke the protocol: {error}")
            return
        for each in received:
            if isinstance(each, Response):
                answer = self._calls.get(each.stream_id)
                if answer is not None and not answer.done():
                    answer.set_result(each)
            elif self._reason is None:
                self._on_request(each)
        self._write()

    def eof_received(self) -> bool:
        # A runtime does not close one direction only: its side of the socket is gone.
        self.peer_closed = self._reason is None
        place = " within a message" if self._session.is_within_message else ""
        self._end(f"closed by the peer{place}")
        return False

    def pause_writing(self) -> None:
        if self._reason is None:
            self._watch_unread()
            self._update_reading()

    def resume_writing(self) -> None:
        if self._reason is None:
            self._cancel_timer()
            self._update_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._reason is None:
            # Other errors are those of `on_request`.
            self.peer_closed = exc is None or isinstance(exc, OSError)
            self._reason = str(exc) if exc else "closed by the peer"
        self._transport = None
        self._cancel_timer()
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(ConnectionLostError(self._reason))
        self._on_closed(self._reason)

    def _write(self) -> None:
        output = self._session.take_output()
        # A transport that is closing by itself would only log that it takes nothing.
        if self._transport is not None and self._reason is None and not self._transport.is_closing():
            if output:
                self._transport.write(output)
            self._update_reading()

    def _update_reading(self) -> None:
        """Reads unless the peer has to take something, or wait for its answers, first."""
        if self._transport is None or self._reason is not None:
            return
        wanted = self._timer is None and self._session.open_requests < MAX_WAITING_REQUESTS
        if wanted != self._is_reading:
            self._is_reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _watch_unread(self) -> None:
        """Ends the connection if the peer takes nothing from now on."""
        if self._transport is not None:
            self._unread_bytes = self._transport.get_write_buffer_size()
            self._timer = asyncio.get_running_loop().call_later(UNREAD_S, self._on_unread)

    def _on_unread(self) -> None:
        transport = self._transport
        if transport is None:
            return
        if transport.get_write_buffer_size() < self._unread_bytes:
            self._watch_unread()
            return
        self._end(f"the peer has read nothing for {UNREAD_S:g} s")
        transport.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, reason: str) -> None:
        """Ends the connection; the first reason stays."""
        if self._reason is not None:
            return
        self._reason = reason
        self._cancel_timer()
        transport = self._transport
        if transport is not None:
            output = self._session.take_output()
            if output:
                transport.write(output)
            transport.close()
            # A peer that does not read would keep the transport.
            self._timer = asyncio.get_running_loop().call_later(_CLOSE_S, transport.abort)


async def connect(path: Path, connection: NriConnection) -> None:
    """Connects to the socket of a runtime.

    Raises:
        OSError: No process listens there.
    """
    await asyncio.get_running_loop().create_unix_connection(lambda: connection, str(path))


async def use_inherited(descriptor: int, connection: NriConnection) -> None:
    """Takes a connected socket that this process has inherited; programs that it starts do not get it.

    Raises:
        InheritedSocketError: The descriptor is no connected Unix stream socket.
    """
    try:
        os.set_inheritable(descriptor, False)
        sock = socket.socket(fileno=descriptor)
    except OSError as error:
        raise InheritedSocketError(f"{SOCKET_VARIABLE}: descriptor {descriptor}: {error.strerror}") from None
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM:
        sock.detach()
        raise InheritedSocketError(f"{SOCKET_VARIABLE}: descriptor {descriptor} is no Unix stream socket")
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=sock)
    except OSError as error:
        sock.close()
        raise InheritedSocketError(f"{SOCKET_VARIABLE}: descriptor {descriptor}: {error.strerror}") from None


def launched(environ: Mapping[str, str]) -> Launch | None:
    """What the runtime that has started this process says in the environment; None if none has.

    Source: github.com/containerd/nri v0.12.5, pkg/api/plugin.go.

    Raises:
        InheritedSocketError: The environment's descriptor is not a number.
    """
    text = environ.get(SOCKET_VARIABLE, "")
    if not text:
        return None
    descriptor = -1
    with suppress(ValueError):
        descriptor = int(text)
    if descriptor < 0:
        raise InheritedSocketError(f"{SOCKET_VARIABLE}: {text[:40]!r} is no descriptor")
    return Launch(environ.get(NAME_VARIABLE, ""), environ.get(INDEX_VARIABLE, ""), descriptor)


def _code_name(code: int) -> str:
    try:
        return StatusCode(code).name
    except ValueError:
        return f"code {code}"
