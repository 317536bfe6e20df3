"""The connection in the event loop, over real sockets: both ends of this program, or one a bare socket."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cri_api.nri.v1alpha1 import PLUGIN_SERVICE
from cri_api.ttrpc import request_pb2
from runtimeproxy.errors import StatusCode
from runtimeproxy.frontends.nri import connection as connections
from runtimeproxy.frontends.nri.connection import (
    CallError,
    ConnectionLostError,
    InheritedSocketError,
    Launch,
    NriConnection,
    connect,
    launched,
    use_inherited,
)
from runtimeproxy.frontends.nri.ttrpc import FRAME_HEADER, MESSAGE_HEADER, PLUGIN_CONNECTION, Request, Side

WAIT_S = 10.0


class End:
    """One end, with what it has been told."""

    def __init__(self, side: Side) -> None:
        self.requests: asyncio.Queue[Request] = asyncio.Queue()
        self.closed: asyncio.Queue[str] = asyncio.Queue()
        self.connection = NriConnection(side, self.requests.put_nowait, self.closed.put_nowait)

    async def request(self) -> Request:
        return await asyncio.wait_for(self.requests.get(), WAIT_S)

    async def reason(self) -> str:
        """Why the connection has ended; that is told once."""
        reason = await asyncio.wait_for(self.closed.get(), WAIT_S)
        assert self.closed.empty()
        assert not self.connection.is_open
        return reason


@asynccontextmanager
async def both_ends() -> AsyncIterator[tuple[End, End]]:
    plugin, runtime = End(Side.PLUGIN), End(Side.RUNTIME)
    one, other = socket.socketpair()
    await use_inherited(one.detach(), plugin.connection)
    await use_inherited(other.detach(), runtime.connection)
    try:
        yield plugin, runtime
    finally:
        plugin.connection.close()
        runtime.connection.close()


@asynccontextmanager
async def bare_peer() -> AsyncIterator[tuple[End, socket.socket]]:
    """A plugin's end, and the socket of a peer that does what the test says."""
    plugin = End(Side.PLUGIN)
    one, peer = socket.socketpair()
    peer.setblocking(False)
    await use_inherited(one.detach(), plugin.connection)
    with peer:
        yield plugin, peer
    plugin.connection.close()


def requests(count: int, payload: bytes = b"") -> bytes:
    body = request_pb2.Request(service=PLUGIN_SERVICE, method="M", payload=payload).SerializeToString()
    return b"".join(
        FRAME_HEADER.pack(PLUGIN_CONNECTION, MESSAGE_HEADER.size + len(body))
        + MESSAGE_HEADER.pack(len(body), 2 * number + 1, 1, 0)
        + body
        for number in range(count)
    )


async def test_calls_both_ways() -> None:
    async with both_ends() as (plugin, runtime):
        registration = asyncio.ensure_future(plugin.connection.call("RegisterPlugin", b"a", WAIT_S))
        asked = await runtime.request()
        configuration = asyncio.ensure_future(runtime.connection.call("Configure", b"b"))
        runtime.connection.respond(asked, b"x" * 3_000_000)
        assert await registration == b"x" * 3_000_000
        asked = await plugin.request()
        assert (asked.method, asked.payload, asked.timeout_s) == ("Configure", b"b", None)
        plugin.connection.refuse(asked, StatusCode.INTERNAL, "no")
        with pytest.raises(CallError, match="INTERNAL: no") as caught:
            await configuration
        assert (caught.value.code, caught.value.reason) == (13, "no")


async def test_a_call_in_time_and_one_that_is_late() -> None:
    async with both_ends() as (plugin, runtime):
        with pytest.raises(TimeoutError):
            await plugin.connection.call("RegisterPlugin", b"", 0.01)
        late = await runtime.request()
        assert late.timeout_s == 0.01
        runtime.connection.respond(late, b"late")
        call = asyncio.ensure_future(plugin.connection.call("UpdateContainers", b"", WAIT_S))
        runtime.connection.respond(await runtime.request(), b"in time")
        assert await call == b"in time"


async def test_a_request_that_nobody_takes_is_refused_here() -> None:
    async with both_ends() as (plugin, _):
        with pytest.raises(CallError, match="RESOURCE_EXHAUSTED"):
            await plugin.connection.call("UpdateContainers", bytes(4 * 1024 * 1024))
        assert plugin.connection.is_open


async def test_the_end_of_the_peer_ends_calls() -> None:
    async with both_ends() as (plugin, runtime):
        call = asyncio.ensure_future(plugin.connection.call("RegisterPlugin", b""))
        asked = await runtime.request()
        runtime.connection.close("the test is over")
        with pytest.raises(ConnectionLostError, match="closed by the peer"):
            await call
        assert await plugin.reason() == "closed by the peer"
        assert await runtime.reason() == "the test is over"
        assert (plugin.connection.peer_closed, runtime.connection.peer_closed) == (True, False)
        runtime.connection.respond(asked, b"")
        with pytest.raises(ConnectionLostError, match="closed by the peer"):
            await plugin.connection.call("RegisterPlugin", b"")


async def test_calls_before_the_connection_fail() -> None:
    with pytest.raises(ConnectionLostError, match="not connected"):
        await End(Side.PLUGIN).connection.call("RegisterPlugin", b"")


async def test_one_that_is_closed_before_it_is_connected_ends() -> None:
    plugin = End(Side.PLUGIN)
    plugin.connection.close("too late")
    one, peer = socket.socketpair()
    with peer:
        await use_inherited(one.detach(), plugin.connection)
        assert await plugin.reason() == "too late"


async def test_what_was_answered_before_the_end_is_sent() -> None:
    async with bare_peer() as (plugin, peer):
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(peer, requests(1))
        plugin.connection.respond(await plugin.request(), b"x" * 100_000)
        plugin.connection.close()
        received = b""
        while piece := await loop.sock_recv(peer, 65_536):
            received += piece
        assert b"x" * 4000 in received
        assert len(received) > 100_000


async def test_a_peer_that_breaks_the_protocol_loses_its_connection() -> None:
    async with bare_peer() as (plugin, peer):
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(peer, b"\0" * 100)
        assert "the reserved connection" in await plugin.reason()
        assert not plugin.connection.peer_closed


async def test_half_a_message_is_said() -> None:
    async with bare_peer() as (plugin, peer):
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(peer, requests(2)[:-1])
        await plugin.request()
        peer.shutdown(socket.SHUT_WR)
        assert await plugin.reason() == "closed by the peer within a message"
        assert plugin.requests.empty()


async def test_requests_wait_in_the_socket_while_many_have_no_answer() -> None:
    async with bare_peer() as (plugin, peer):
        loop = asyncio.get_running_loop()
        payload = bytes(200_000)
        sending = asyncio.ensure_future(loop.sock_sendall(peer, requests(200, payload)))
        drain = asyncio.ensure_future(_read_all(peer))
        for number in range(200):
            request = await plugin.request()
            # 33 and what had come in the same piece: 40 MB do not wait here.
            assert plugin.requests.qsize() < connections.MAX_WAITING_REQUESTS + 8
            assert request.stream_id == 2 * number + 1
            plugin.connection.respond(request, b"")
        await sending
        peer.shutdown(socket.SHUT_WR)
        await plugin.reason()
        await drain


async def _read_all(peer: socket.socket) -> None:
    while await asyncio.get_running_loop().sock_recv(peer, 65_536):
        pass


async def test_a_peer_that_reads_nothing_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 0.05)
    async with bare_peer() as (plugin, peer):
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(peer, requests(1))
        plugin.connection.respond(await plugin.request(), bytes(4_000_000))
        assert "has read nothing" in await plugin.reason()


async def test_a_peer_that_reads_slowly_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 1.0)
    async with bare_peer() as (plugin, peer):
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(peer, requests(1))
        plugin.connection.respond(await plugin.request(), bytes(2_000_000))
        left = 2_000_000
        paced = asyncio.Event()
        while left > 0:
            left -= len(await loop.sock_recv(peer, 20_000))
            loop.call_later(0.015, paced.set)
            await paced.wait()
            paced.clear()
        assert plugin.connection.is_open


async def test_an_error_of_the_callback_ends_the_connection_and_says_so() -> None:
    def fail(request: Request) -> None:
        raise ValueError(request.method)

    closed: asyncio.Queue[str] = asyncio.Queue()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    connection = NriConnection(Side.PLUGIN, fail, closed.put_nowait)
    one, peer = socket.socketpair()
    await use_inherited(one.detach(), connection)
    with peer:
        peer.sendall(requests(1))
        assert await asyncio.wait_for(closed.get(), WAIT_S) == "M"
    assert not connection.peer_closed


async def test_connecting_to_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "nri.sock"
    runtime, plugin = End(Side.RUNTIME), End(Side.PLUGIN)
    with pytest.raises(FileNotFoundError):
        await connect(path, plugin.connection)
    server = await asyncio.get_running_loop().create_unix_server(lambda: runtime.connection, str(path))
    await connect(path, plugin.connection)
    call = asyncio.ensure_future(plugin.connection.call("RegisterPlugin", b"", WAIT_S))
    runtime.connection.respond(await runtime.request(), b"")
    assert await call == b""
    plugin.connection.close()
    await runtime.reason()
    server.close()


async def test_programs_do_not_inherit_an_adopted_socket() -> None:
    one, peer = socket.socketpair()
    one.set_inheritable(True)
    descriptor = one.detach()
    plugin = End(Side.PLUGIN)
    with peer:
        await use_inherited(descriptor, plugin.connection)
        assert not os.get_inheritable(descriptor)
    await plugin.reason()


async def test_what_is_no_socket_is_not_adopted(tmp_path: Path) -> None:
    with (
        (tmp_path / "file").open("w") as file,
        pytest.raises(InheritedSocketError, match="NRI_PLUGIN_SOCKET"),
    ):
        await use_inherited(file.fileno(), End(Side.PLUGIN).connection)
    with socket.socket(socket.AF_INET) as tcp, pytest.raises(InheritedSocketError, match="no Unix stream"):
        await use_inherited(tcp.fileno(), End(Side.PLUGIN).connection)
    with pytest.raises(InheritedSocketError, match="Bad file descriptor"):
        await use_inherited(tcp.fileno() if tcp.fileno() >= 0 else 1_000_000, End(Side.PLUGIN).connection)


def test_what_the_runtime_says_to_a_plugin_that_it_starts() -> None:
    said = {"NRI_PLUGIN_SOCKET": "3", "NRI_PLUGIN_NAME": "koord", "NRI_PLUGIN_IDX": "50"}
    assert launched(said) == Launch("koord", "50", 3)
    assert launched({}) is None
    assert launched({"NRI_PLUGIN_SOCKET": ""}) is None


@pytest.mark.parametrize("text", ["three", "-1", "3.0"])
def test_a_descriptor_that_is_none_is_said(text: str) -> None:
    with pytest.raises(InheritedSocketError, match="is no descriptor"):
        launched({"NRI_PLUGIN_SOCKET": text})
