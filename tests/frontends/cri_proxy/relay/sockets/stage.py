"""A relay server on a socket between raw clients and a raw runtime, all in the test's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from runtimeproxy.frontends.cri_proxy.interception import Interceptor
from runtimeproxy.frontends.cri_proxy.relay.budget import MemoryBudget
from runtimeproxy.frontends.cri_proxy.relay.connection import ConnectionOptions
from runtimeproxy.frontends.cri_proxy.relay.h2_relay import H2Relay
from runtimeproxy.frontends.cri_proxy.relay.server import MANY_CONNECTIONS, MAX_CONNECTIONS, RelayServer
from runtimeproxy.frontends.cri_proxy.relay.streams import RelayOptions
from runtimeproxy.frontends.cri_proxy.relay.upstream import Upstream
from runtimeproxy.listener import Listener, listen
from tests.frontends.cri_proxy.relay.playbook import PASSING, Decide, ScriptedCall, ScriptedInterceptor
from tests.peers.aio import WAIT_S, Peer, RawServer, soon, until
from tests.peers.wire import SETTINGS_ACK, settings


class Stage:
    """Everything together; ends with the block.

    Args:
        folder: for the sockets.
        interceptor: holds paths below `/held` unless something else is given.
        upstream_wait_s: how long the relay waits for the runtime.
        allowed_uids: other users that may connect.
        many_per_process: how often one process may connect when room is short.
        most_connections: how many connections there may be.
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
        many_per_process: int = MANY_CONNECTIONS,
        most_connections: int = MAX_CONNECTIONS,
        first_call_s: float = WAIT_S,
    ) -> None:
        self.scripted = ScriptedInterceptor()
        self.path = folder / "relay.sock"
        self.runtime = RawServer(folder / "runtime.sock")
        self.upstream = Upstream("runtime", str(self.runtime.path), is_intercepted=True)
        self.elsewhere = Upstream("elsewhere", str(folder / "elsewhere.sock"), is_intercepted=False)
        self.budget = MemoryBudget()
        relay = RelayOptions(self._route, interceptor or self.scripted, self.budget)
        options = ConnectionOptions(relay, self.upstream, upstream_wait_s, first_call_s)
        self.server = RelayServer(options, allowed_uids, many_per_process, most_connections)
        self._socket_mode = socket_mode
        self._has_runtime = has_runtime
        self._listener: Listener | None = None
        self._clients: list[Peer] = []

    def _route(self, path: str) -> Upstream:
        return self.elsewhere if path.startswith("/elsewhere") else self.upstream

    def decide(self, decide: Decide) -> None:
        """What is done with each message at once."""
        self.scripted.decide = decide

    async def message(self) -> ScriptedCall:
        """Waits for the first intercepted call whose message is there."""
        await until(lambda: bool(self.held) and bool(self.held[0].events))
        return self.held[0]

    @property
    def held(self) -> list[ScriptedCall]:
        """The intercepted calls."""
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
        client.send(client.call(1, PASSING, end=True))
        runtime = await self.runtime.peer()
        runtime.send(settings(), SETTINGS_ACK)
        await runtime.next_of(1)
        runtime.send(runtime.trailers(1))
        client.headers.read((await client.next_of(1)).payload)
        client.send(SETTINGS_ACK)
        return client, runtime
