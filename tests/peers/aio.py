"""HTTP/2 peers in the test's own event loop: one end of a connection, and a server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Self, TypeAlias, TypeVar

from runtimeproxy.http2.frames import PREFACE
from tests.peers.wire import (
    DATA,
    GOAWAY,
    RST_STREAM,
    SETTINGS_ACK,
    Frame,
    Headers,
    Reader,
    headers,
    message,
    settings,
    wire,
)

WAIT_S = 30.0
"""Longer than anything takes; only a broken test waits for it."""

_Result = TypeVar("_Result")


async def soon(awaitable: Awaitable[_Result]) -> _Result:
    """Waits for at most `WAIT_S`."""
    async with asyncio.timeout(WAIT_S):
        return await awaitable


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition that no event announces."""
    loop = asyncio.get_running_loop()
    over_s = loop.time() + WAIT_S
    while not condition():
        assert loop.time() < over_s, "the condition never held"
        await asyncio.sleep(0.001)


class Peer:
    """One end of a connection that speaks frames; it sends what the test says, allowed or not.

    Attributes:
        headers: encodes this end's header blocks and decodes the other's.
        seen: the types of all frames that were read.
        resets: the streams that the other end has reset, with the code.
        goaway: the payload of its last GOAWAY.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.headers = Headers()
        self.seen: list[int] = []
        self.resets: dict[int, int] = {}
        self.goaway: bytes | None = None
        self._frames = Reader()
        self._ready: list[Frame] = []
        self._bodies: dict[int, bytes] = {}

    def send(self, *items: Frame | bytes) -> None:
        self.writer.write(wire(*items))

    async def frame(self) -> Frame:
        """Waits for the next frame.

        Raises:
            EOFError: the connection has ended.
        """
        while not self._ready:
            received = await soon(self.reader.read(1 << 16))
            if not received:
                raise EOFError
            self._ready.extend(self._frames.frames(received))
        found = self._ready.pop(0)
        self.seen.append(found.type_)
        if found.type_ == RST_STREAM:
            self.resets[found.stream_id] = found.number
        elif found.type_ == GOAWAY:
            self.goaway = found.payload
        return found

    async def next_of(self, *types: int, stream_id: int | None = None) -> Frame:
        """Waits for the next frame of one of these types, and skips others."""
        while True:
            found = await self.frame()
            if found.type_ in types and stream_id in (None, found.stream_id):
                return found

    async def request(self) -> tuple[int, bytes]:
        """Waits for the next whole request; returns its stream and its message."""
        while True:
            found = await self.frame()
            if found.type_ == DATA:
                stream_id = found.stream_id
                self._bodies[stream_id] = self._bodies.get(stream_id, b"") + found.payload
                if found.ends_stream:
                    return stream_id, self._bodies.pop(stream_id)[5:]

    async def rest(self) -> list[Frame]:
        """Reads all frames until the other end closes; then closes this end."""
        found = []
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                found.append(await self.frame())
        self.writer.close()
        return found

    async def ended(self) -> None:
        """Reads any bytes until the other end closes; then closes this end."""
        with contextlib.suppress(ConnectionError):
            while await soon(self.reader.read(1 << 16)):
                pass
        self.writer.close()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await soon(self.writer.wait_closed())

    async def abort(self) -> None:
        """Closes at once and drops what waits to be written."""
        # A transport that has closed after its last write cannot be aborted in asyncio's loop.
        if not self.writer.transport.is_closing():
            self.writer.transport.abort()
        await self.close()

    # --- of a client -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Sends a client's preface and SETTINGS, and acknowledges the server's."""
        self.send(PREFACE, settings(), SETTINGS_ACK)

    def call(self, stream_id: int, path: str = "/passing.Service/Call", *, end: bool = False) -> Frame:
        """HEADERS of a request."""
        return headers(stream_id, self.headers.request(path), end=end)

    # --- of a server -------------------------------------------------------------------------------------

    def block(self, stream_id: int, fields: Iterable[tuple[str, str]], *, end: bool = False) -> Frame:
        """HEADERS of any fields."""
        return headers(stream_id, self.headers.block(fields), end=end)

    def response(self, stream_id: int) -> Frame:
        """HEADERS of a response."""
        return headers(stream_id, self.headers.response())

    def trailers(self, stream_id: int, code: int = 0) -> Frame:
        """HEADERS that end a response."""
        return headers(stream_id, self.headers.trailers(code), end=True)

    def answer(self, stream_id: int, content: bytes = b"") -> bytes:
        """All frames of a successful response."""
        body = message(content)
        parts = (Frame(DATA, 0, stream_id, body[at : at + 16_384]) for at in range(0, len(body), 16_384))
        return wire(self.response(stream_id), *parts, self.trailers(stream_id))


Script: TypeAlias = Callable[[Peer], Awaitable[None]]


class RawServer:
    """Accepts connections, from `start` to `stop` or to the end of its `async with`.

    Without scripts `peer()` gives each connection to the test. Otherwise the next script serves it, after the
    server's SETTINGS; the last script serves all that follow.
    It accepts by itself: asyncio's own server leaves a socket open that it has accepted in the very turn in
    which it is closed.
    """

    def __init__(self, path: Path, *scripts: Script) -> None:
        self.path = path
        self.peers: list[Peer] = []
        self._scripts = list(scripts)
        self._new: asyncio.Queue[Peer] = asyncio.Queue()
        self._listener: socket.socket | None = None
        self._served: list[tuple[socket.socket, asyncio.Task[None]]] = []

    async def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        self._listener.bind(str(self.path))
        self._listener.listen()
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    async def stop(self) -> None:
        """Stops listening and ends all connections."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for peer in self.peers:
            await peer.abort()
        for _, task in self._served:
            task.cancel()
        await asyncio.gather(*(task for _, task in self._served), return_exceptions=True)
        for accepted, _ in self._served:
            accepted.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def peer(self) -> Peer:
        """Waits for the next connection."""
        return await soon(self._new.get())

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(BlockingIOError):
            accepted, _ = self._listener.accept()
            self._served.append((accepted, asyncio.ensure_future(self._serve(accepted))))

    async def _serve(self, accepted: socket.socket) -> None:
        peer = Peer(*await asyncio.open_unix_connection(sock=accepted))
        self.peers.append(peer)
        if not self._scripts:
            self._new.put_nowait(peer)
            return
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        try:
            peer.send(settings())
            await script(peer)
        except (EOFError, ConnectionError):
            pass
        finally:
            await peer.close()
