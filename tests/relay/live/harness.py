"""A relay on the test's own event loop, and peers that speak frames."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from runtimeproxy.http2.frames import PREFACE
from runtimeproxy.relay.budget import MemoryBudget
from runtimeproxy.relay.connection import ConnectionOptions
from runtimeproxy.relay.h2_relay import RelayOptions
from runtimeproxy.relay.listener import Listener, listen
from runtimeproxy.relay.server import RelayServer
from runtimeproxy.relay.upstream import Upstream
from tests.lab.deadline import wait_until
from tests.relay import wire
from tests.relay.playbook import Decide, ScriptedCall, ScriptedInterceptor
from tests.relay.wire import Frame, Headers, Reader

WAIT_S = 30.0
"""How long a test waits for what must happen, before it fails."""
READ_BYTES = 1 << 16


async def eventually(condition: Callable[[], bool], what: str) -> None:
    """Waits for something in this process that tells nobody when it happens."""
    await asyncio.to_thread(wait_until, condition, what, WAIT_S)


class RawPeer:
    """One end of a connection that speaks frames and keeps no rules.

    Attributes:
        headers: encodes this side's header blocks and decodes the other's.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.headers = Headers()
        self._frames = self._read()

    def send(self, *items: Frame | bytes) -> None:
        """Sends frames, or any bytes."""
        self.writer.write(wire.wire(*items))

    async def _read(self) -> AsyncIterator[Frame]:
        frames = Reader()
        while received := await self.reader.read(READ_BYTES):
            for frame in frames.frames(received):
                yield frame

    async def frame(self, type_: int, stream_id: int | None = None, *, ack: bool = False) -> Frame:
        """Waits for a frame of a type, and passes over all others."""
        async with asyncio.timeout(WAIT_S):
            async for frame in self._frames:
                if frame.type_ != type_ or (stream_id is not None and frame.stream_id != stream_id):
                    continue
                if type_ in (wire.SETTINGS, wire.PING) and bool(frame.flags & wire.ACK) != ack:
                    continue
                return frame
        raise EOFError(f"the connection ended before a {wire.NAMES[type_]}")

    async def rest(self) -> list[Frame]:
        """Waits for the end of the connection and returns all frames until then."""
        found: list[Frame] = []
        async with asyncio.timeout(WAIT_S):
            with contextlib.suppress(ConnectionError):
                async for frame in self._frames:
                    found.append(frame)  # noqa: PERF401  # what came before a reset counts too
        return found

    async def content(self, stream_id: int) -> bytes:
        """Waits for END_STREAM and returns what came in DATA."""
        found = b""
        while True:
            frame = await self.frame(wire.DATA, stream_id)
            found += frame.payload
            if frame.ends_stream:
                return found

    async def close(self) -> None:
        """Ends the connection after what was sent, if the other side takes it."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            try:
                async with asyncio.timeout(WAIT_S / 2):
                    await asyncio.shield(self.writer.wait_closed())
            except TimeoutError:
                self.writer.transport.abort()
                await self.writer.wait_closed()
                raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class RawServer:
    """Accepts connections and leaves them to the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._accepted: asyncio.Queue[RawPeer] = asyncio.Queue()
        self._all: list[RawPeer] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listens."""
        self._server = await asyncio.start_unix_server(self._connected, self.path)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = RawPeer(reader, writer)
        self._all.append(peer)
        self._accepted.put_nowait(peer)

    async def accept(self) -> RawPeer:
        """Waits for the next connection."""
        async with asyncio.timeout(WAIT_S):
            return await self._accepted.get()

    async def stop(self) -> None:
        """Closes everything."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for peer in self._all:
            await peer.close()
        self._all.clear()
        self.path.unlink(missing_ok=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class LiveRelay:
    """Relays from `async with` to the end of its block."""

    def __init__(
        self,
        path: Path,
        runtime: Path,
        *,
        decide: Decide | None = None,
        upstream_wait_s: float = WAIT_S,
        mode: int = 0o660,
        allowed_uids: Collection[int] = (),
        most_per_process: int = 10_000,
    ) -> None:
        self.path = path
        self.interceptor = ScriptedInterceptor(self._decided)
        self.budget = MemoryBudget()
        self._decide = decide
        self._mode = mode
        self._listener: Listener | None = None
        self._messages: asyncio.Queue[ScriptedCall] = asyncio.Queue()
        upstream = Upstream("runtime", str(runtime), is_intercepted=True)
        options = RelayOptions(lambda _: upstream, self.interceptor, self.budget)
        connections = ConnectionOptions(options, upstream, upstream_wait_s)
        self.server = RelayServer(connections, allowed_uids, most_per_process)

    def _decided(self, call: ScriptedCall, data: bytes) -> None:
        self._messages.put_nowait(call)
        if self._decide is not None:
            self._decide(call, data)

    async def message(self) -> ScriptedCall:
        """Waits for the message of the next held call."""
        async with asyncio.timeout(WAIT_S):
            return await self._messages.get()

    async def __aenter__(self) -> Self:
        self._listener = listen(str(self.path), mode=self._mode)
        await self.server.start(self._listener)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.stop_accepting()
        if self._listener is not None:
            self._listener.release()
        await self.server.drain(0)

    async def connect(self) -> RawPeer:
        """A client that has said nothing yet."""
        return RawPeer(*await asyncio.open_unix_connection(self.path))

    async def client(self) -> RawPeer:
        """A client that has sent its preface and SETTINGS, and has acknowledged the relay's."""
        peer = await self.connect()
        peer.send(PREFACE, wire.settings(), wire.SETTINGS_ACK)
        return peer


class StartRelay(Protocol):
    """Starts a relay with options of `LiveRelay`."""

    async def __call__(
        self,
        *,
        decide: Decide | None = None,
        upstream_wait_s: float = WAIT_S,
        mode: int = 0o660,
        allowed_uids: Collection[int] = (),
        most_per_process: int = 10_000,
    ) -> LiveRelay:
        """Returns when clients can connect."""
