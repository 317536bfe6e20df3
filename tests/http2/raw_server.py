"""A server that speaks HTTP/2 frames as a test scripts them, right or wrong."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from hpack import Encoder

from runtimeproxy.http2 import frames

OK = [(b":status", b"200"), (b"content-type", b"application/grpc")]
DONE = [(b"grpc-status", b"0")]


class Peer:
    """One client of the server.

    Attributes:
        requests: what has come whole on each stream, without the prefix of the message.
        resets: streams that the client has reset, with the code.
        seen: types of the frames that have come, oldest first.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._encoder = Encoder()
        self._bodies: dict[int, bytes] = {}
        self.resets: dict[int, int] = {}
        self.seen: list[int] = []
        self.goaway: bytes | None = None

    def send(self, *raw: bytes) -> None:
        """Writes frames."""
        self._writer.write(b"".join(raw))

    def abort(self) -> None:
        """Ends the connection, whatever has not been sent."""
        self._writer.transport.abort()

    def headers(self, stream_id: int, fields: list[tuple[bytes, bytes]], *, end: bool = False) -> bytes:
        """A HEADERS frame."""
        flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
        return frames.frame(frames.HEADERS, flags, stream_id, self._encoder.encode(fields))

    def answer(self, stream_id: int, message: bytes = b"") -> bytes:
        """All frames of an answer; the message is cut into frames."""
        data = bytes(1) + len(message).to_bytes(4, "big") + message
        cut = [data[at : at + 16384] for at in range(0, len(data), 16384)]
        body = b"".join(frames.frame(frames.DATA, 0, stream_id, part) for part in cut)
        return self.headers(stream_id, OK) + body + self.headers(stream_id, DONE, end=True)

    async def frame(self) -> tuple[int, int, int, bytes]:
        """The next frame: type, flags, stream, payload."""
        kind, flags, stream_id, payload = await frames.read_frame(self._reader)
        self.seen.append(kind)
        if kind == frames.RST_STREAM:
            self.resets[stream_id] = int.from_bytes(payload, "big")
        elif kind == frames.GOAWAY:
            self.goaway = payload
        return kind, flags, stream_id, payload

    async def request(self) -> tuple[int, bytes]:
        """The next whole request: its stream and message."""
        while True:
            kind, flags, stream_id, payload = await self.frame()
            if kind == frames.DATA:
                self._bodies[stream_id] = self._bodies.get(stream_id, b"") + payload
                if flags & frames.END_STREAM:
                    return stream_id, self._bodies.pop(stream_id)[5:]

    async def until_frame(self, wanted: int) -> tuple[int, int, int, bytes]:
        """The next frame of a type."""
        while (frame := await self.frame())[0] != wanted:
            pass
        return frame

    async def preface(self) -> None:
        """Reads the client's preface, and sends the server's."""
        assert await self._reader.readexactly(len(frames.PREFACE)) == frames.PREFACE
        self.send(frames.EMPTY_SETTINGS)


Script: TypeAlias = Callable[[Peer], Awaitable[None]]


class RawServer:
    """Serves each connection by the next script; the last one serves all that follow.

    It accepts by itself: asyncio's own server leaves a socket open that it has accepted in the very turn in
    which it is closed.
    """

    def __init__(self, path: Path, *scripts: Script) -> None:
        self.path = path
        self._scripts = list(scripts)
        self.peers: list[Peer] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._served: list[tuple[socket.socket, asyncio.Task[None]]] = []

    async def __aenter__(self) -> RawServer:
        self._listener.setblocking(False)
        self._listener.bind(str(self.path))
        self._listener.listen()
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        return self

    async def __aexit__(self, *exception: object) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for peer in self.peers:
            peer.abort()
        for _, task in self._served:
            task.cancel()
        await asyncio.gather(*(task for _, task in self._served), return_exceptions=True)
        for accepted, _ in self._served:
            accepted.close()

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            accepted, _ = self._listener.accept()
            self._served.append((accepted, asyncio.ensure_future(self._serve(accepted))))

    async def _serve(self, accepted: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=accepted)
        peer = Peer(reader, writer)
        self.peers.append(peer)
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        try:
            await peer.preface()
            await script(peer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
