"""A server that answers in frames, as each call's script says: for all that no gRPC library sends."""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from runtimeproxy.http2.frames import PREFACE, ErrorCode
from tests.peers import wire
from tests.peers.blocking import LARGEST_WINDOW, Fields, Http2End, Stream
from tests.peers.bytes_client import WAIT_S
from tests.peers.threaded_server import ThreadedServer
from tests.peers.wire import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW,
    Frame,
    credit,
    goaway,
    settings,
)

Script = Callable[["ServerEnd", int], None]
"""Gets the connection and the stream's id, in the connection's thread."""

RESPONSE: Fields = ((":status", "200"), ("content-type", "application/grpc"))
UNIMPLEMENTED: Fields = (*RESPONSE, ("grpc-status", "12"), ("grpc-message", "not scripted"))


class ServerEnd(Http2End):
    """One accepted connection."""

    def __init__(self, sock: socket.socket, server: ScriptedServer) -> None:
        super().__init__(sock)
        self._server = server

    def serve(self) -> None:
        """Runs until the client goes."""
        if self._read(len(PREFACE)) != PREFACE:
            return
        windows = settings({INITIAL_WINDOW: LARGEST_WINDOW})
        self.send(windows, credit(0, LARGEST_WINDOW - 65_535))
        self.credits = False
        self.until_closed()

    def on_ping(self, opaque: bytes) -> None:
        """Answers it as long as there are not too many."""
        limit = self._server.ping_limit
        if limit is None or len(self.pings) <= limit:
            super().on_ping(opaque)
        else:
            self.send(goaway(0, ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings"))
            self.sock.shutdown(socket.SHUT_RDWR)

    def on_headers(self, stream_id: int) -> None:
        """Runs the script if it acts before the message."""
        script = self._server.early.get(self._script(stream_id))
        if script is not None:
            script(self, stream_id)

    def on_end(self, stream_id: int) -> None:
        """Runs the script."""
        name = self._script(stream_id)
        if name:
            self._server.requests.put(self.stream(stream_id))
        if name not in self._server.early:
            self._server.scripts.get(name, unimplemented)(self, stream_id)

    def _script(self, stream_id: int) -> str:
        return dict(self.stream(stream_id).headers[0]).get("script", "")

    def headers(self, stream_id: int, fields: Fields, *, end: bool = False) -> None:
        """Sends a header block."""
        flags = END_HEADERS | (END_STREAM if end else 0)
        self.send(Frame(HEADERS, flags, stream_id, self.encoded(fields)))

    def data(self, stream_id: int, message: bytes, *, end: bool = False, compressed: bool = False) -> None:
        """Sends a response message of at most 16 KiB."""
        flags = END_STREAM if end else 0
        self.send(Frame(DATA, flags, stream_id, wire.message(message, compressed)))

    def answer(self, stream_id: int, message: bytes = b"", *trailers: tuple[str, str]) -> None:
        """Sends a whole successful answer."""
        self.headers(stream_id, RESPONSE)
        self.data(stream_id, message)
        self.headers(stream_id, (("grpc-status", "0"), *trailers), end=True)


class ScriptedServer(ThreadedServer):
    """Listens from `with` to the end of its block.

    Attributes:
        scripts: Run when a whole request is there, by the request's header field `script`.
        early: The same, run when the request's headers are there.
        ping_limit: How many PINGs of one connection are answered before it is ended, as gRPC's servers do.
        requests: The requests with a script that have arrived, whole.
        connections: All connections that were accepted.
    """

    def __init__(
        self, path: Path, scripts: Mapping[str, Script], early: Mapping[str, Script] | None = None
    ) -> None:
        super().__init__(path)
        self.scripts = scripts
        self.early = early or {}
        self.ping_limit: int | None = None
        self.requests: queue.Queue[Stream] = queue.Queue()
        self.connections: list[ServerEnd] = []

    def serve(self, sock: socket.socket, number: int) -> None:
        """Reads frames and runs the scripts that they name."""
        connection = ServerEnd(sock, self)
        self.connections.append(connection)
        connection.serve()

    def request(self) -> Stream:
        """Waits for the next request."""
        return self.requests.get(timeout=WAIT_S)


def unimplemented(connection: ServerEnd, stream_id: int) -> None:
    """The answer to calls without a script: those of the daemon itself."""
    connection.headers(stream_id, UNIMPLEMENTED, end=True)


def silent(connection: ServerEnd, stream_id: int) -> None:
    """No answer at all."""
