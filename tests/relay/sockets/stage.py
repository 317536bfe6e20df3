"""A relay server on a socket between raw clients and a raw runtime, all in the test's loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from runtimeproxy.http2.frames import PREFACE
from runtimeproxy.interception import Interceptor
from runtimeproxy.relay.budget import MemoryBudget
from runtimeproxy.relay.connection import ConnectionOptions
from runtimeproxy.relay.h2_relay import H2Relay, RelayOptions
from runtimeproxy.relay.listener import Listener, listen
from runtimeproxy.relay.server import RelayServer
from runtimeproxy.relay.upstream import Upstream
from tests.relay.playbook import PASSING, Decide, ScriptedCall, ScriptedInterceptor
from tests.relay.wire import SETTINGS_ACK, Frame, Headers, Reader, headers, settings, wire

WAIT_S = 30.0
"""Longer than anything here takes; only a broken test waits for it."""

_Result = TypeVar("_Result")


async def soon(awaitable: Awaitable[_Result]) -> _Result:
    """Waits, but not for ever."""
    async with asyncio.timeout(WAIT_S):
        return await awaitable


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop turn until the condition holds."""
    loop = asyncio.get_running_loop()
    over_s = loop.time() + WAIT_S
    while not condition():
        assert loop.time() < over_s, "the condition never held"
        await asyncio.sleep(0)


class Peer:
    """One end of a connection that speaks frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.headers = Headers()
        self._frames = Reader()
        self._ready: list[Frame] = []

    def send(self, *items: Frame | bytes) -> None:
        """Sends frames."""
        self.writer.write(wire(*items))

    async def frame(self) -> Frame:
        """Waits for the next frame."""
        while not self._ready:
            received = await soon(self.reader.read(1 << 16))
            if not received:
                raise EOFError
            self._ready.extend(self._frames.frames(received))
        return self._ready.pop(0)

    async def next_of(self, *types: int, stream_id: int | None = None) -> Frame:
        """Waits for the next frame of one of these types, and passes over others."""
        while True:
            found = await self.frame()
            if found.type_ in types and stream_id in (None, found.stream_id):
                return found

    async def rest(self) -> list[Frame]:
        """All frames until the other end ends the connection; this end does so then, too."""
        found = []
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                found.append(await self.frame())
        self.writer.close()
        return found

    async def ended(self) -> None:
        """Waits until the other end ends the connection, whatever comes before; this end then does, too."""
        with contextlib.suppress(ConnectionError):
            while await soon(self.reader.read(1 << 16)):
                pass
        self.writer.close()

    async def close(self) -> None:
        """Ends the connection."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await soon(self.writer.wait_closed())

    async def abort(self) -> None:
        """Ends the connection at once, whatever waits to be written."""
        # A transport that has closed after its last write cannot be aborted in asyncio's loop.
        if not self.writer.transport.is_closing():
            self.writer.transport.abort()
        await self.close()

    # --- a client's words --------------------------------------------------------------------------------

    def begin(self) -> None:
        """A client's first bytes."""
        self.send(PREFACE, settings(), SETTINGS_ACK)

    def call(self, stream_id: int, path: str = PASSING, *, end: bool = False) -> Frame:
        """A request's HEADERS."""
        return headers(stream_id, self.headers.request(path), end=end)

    # --- a runtime's words -------------------------------------------------------------------------------

    def response(self, stream_id: int) -> Frame:
        """A response's HEADERS."""
        return headers(stream_id, self.headers.response())

    def trailers(self, stream_id: int, code: int = 0) -> Frame:
        """A response's end."""
        return headers(stream_id, self.headers.trailers(code), end=True)


class RawRuntime:
    """Accepts connections; what they say is the test's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._server: asyncio.Server | None = None
        self._accepted: asyncio.Queue[Peer] = asyncio.Queue()
        self._peers: list[Peer] = []

    @property
    def accepted(self) -> int:
        """How many connections there have been."""
        return len(self._peers)

    async def start(self) -> None:
        """Begins to listen."""
        self._server = await asyncio.start_unix_server(self._accept, str(self.path))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self._peers.append(peer)
        self._accepted.put_nowait(peer)

    async def peer(self) -> Peer:
        """Waits for the next connection."""
        return await soon(self._accepted.get())

    async def stop(self) -> None:
        """Ends everything."""
        if self._server is not None:
            self._server.close()
        for peer in self._peers:
            await peer.abort()


class Stage:
    """Everything together; ends with the block.

    Args:
        folder: for the sockets.
        interceptor: holds paths below `/held` unless something else is given.
        upstream_wait_s: how long the relay waits for the runtime.
        allowed_uids: who else may connect.
        most_per_process: how often one process may.
        first_call_s: how long a client may be connected without a call.
    """

    def __init__(
        self,
        folder: Path,
        interceptor: Interceptor | None = None,
        *,
        upstream_wait_s: float = WAIT_S,
        allowed_uids: Collection[int] = (),
        socket_mode: int = 0o660,
        has_runtime: bool = True,
        most_per_process: int = 10_000,
        first_call_s: float = WAIT_S,
    ) -> None:
        self.scripted = ScriptedInterceptor()
        self.path = folder / "relay.sock"
        self.runtime = RawRuntime(folder / "runtime.sock")
        self.upstream = Upstream("runtime", str(self.runtime.path), is_intercepted=True)
        self.elsewhere = Upstream("elsewhere", str(folder / "elsewhere.sock"), is_intercepted=False)
        self.budget = MemoryBudget()
        relay = RelayOptions(self._route, interceptor or self.scripted, self.budget)
        options = ConnectionOptions(relay, self.upstream, upstream_wait_s, first_call_s)
        self.server = RelayServer(options, allowed_uids, most_per_process)
        self._socket_mode = socket_mode
        self._has_runtime = has_runtime
        self._listener: Listener | None = None
        self._clients: list[Peer] = []

    def _route(self, path: str) -> Upstream:
        return self.elsewhere if path.startswith("/elsewhere") else self.upstream

    def decide(self, decide: Decide) -> None:
        """What is done with each message at once."""
        self.scripted.decide = decide

    @property
    def held(self) -> list[ScriptedCall]:
        """The held calls."""
        return self.scripted.calls

    @property
    def relay(self) -> H2Relay:
        """The HTTP/2 side of the only connection."""
        (connection,) = self.server._connections
        assert connection._relay is not None
        return connection._relay

    async def __aenter__(self) -> Self:
        if self._has_runtime:
            await self.runtime.start()
        self._listener = listen(str(self.path), mode=self._socket_mode)
        await self.server.start(self._listener)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_listening()
        for client in self._clients:
            await client.abort()
        await self.runtime.stop()
        await until(lambda: self.server.connection_count == 0)

    def stop_listening(self) -> None:
        """Takes no more clients."""
        self.server.stop_accepting()
        if self._listener is not None:
            self._listener.release()

    async def client(self) -> Peer:
        """A client that has said nothing."""
        reader, writer = await soon(asyncio.open_unix_connection(str(self.path)))
        peer = Peer(reader, writer)
        self._clients.append(peer)
        return peer

    async def pair(self) -> tuple[Peer, Peer]:
        """A client whose first call, on stream 1, has passed, and the runtime's end of its connection."""
        client = await self.client()
        client.begin()
        client.send(client.call(1, end=True))
        runtime = await self.runtime.peer()
        runtime.send(settings(), SETTINGS_ACK)
        await runtime.next_of(1)
        runtime.send(runtime.trailers(1))
        client.headers.read((await client.next_of(1)).payload)
        client.send(SETTINGS_ACK)
        return client, runtime
