"""How connections begin: the preface, other protocols, a runtime that is away."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from runtimeproxy.http2.frames import PREFACE
from tests.frontends.cri_proxy.relay.playbook import ELSEWHERE, HELD
from tests.frontends.cri_proxy.relay.sockets.stage import Stage
from tests.peers.aio import Peer, soon, until
from tests.peers.wire import GOAWAY, HEADERS, SETTINGS_ACK, data, goaway, message, settings, unknown, wire

MEBIBYTE = 1 << 20


async def test_settings_come_before_any_call(stage: Stage) -> None:
    client = await stage.client()
    client.send(PREFACE)
    assert await client.frame() == settings()


@pytest.mark.parametrize("size", [1, 23, 25])
async def test_the_preface_may_come_in_pieces(stage: Stage, size: int) -> None:
    client = await stage.client()
    sent = wire(PREFACE, settings(), SETTINGS_ACK, call := client.call(1, end=True))
    for start in range(0, len(sent), size):
        client.send(sent[start : start + size])
        await client.writer.drain()
        await asyncio.sleep(0)
    runtime = await stage.runtime.peer()
    assert await runtime.frame() == settings()
    assert await runtime.frame() == call


async def test_no_connection_to_the_runtime_is_made_before_the_first_call(stage: Stage) -> None:
    idle = await stage.client()
    idle.begin()
    await idle.frame()
    client, _ = await stage.pair()
    assert len(stage.runtime.peers) == 1
    assert client is not idle


@pytest.mark.parametrize(
    "first",
    [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", b"\x16\x03\x01"],
    ids=["1.1", "2-no", "tls"],
)
async def test_anything_but_the_preface_is_spliced(stage: Stage, first: bytes) -> None:
    client = await stage.client()
    client.send(first)
    runtime = await stage.runtime.peer()
    assert await soon(runtime.reader.readexactly(len(first))) == first
    runtime.send(b"HTTP/1.1 200 OK\r\n\r\n")
    assert await soon(client.reader.readexactly(19)) == b"HTTP/1.1 200 OK\r\n\r\n"
    client.send(b"more")
    assert await soon(runtime.reader.readexactly(4)) == b"more"


async def test_a_splice_begins_with_all_that_came_before_the_runtime_was_there(stage: Stage) -> None:
    client = await stage.client()
    first = b"GET / HTTP/1.1\r\n" + b"x" * MEBIBYTE
    client.send(first)
    runtime = await stage.runtime.peer()
    assert await soon(runtime.reader.readexactly(len(first))) == first


@pytest.mark.parametrize("by", ["client", "runtime"])
async def test_a_splice_ends_on_both_sides(stage: Stage, by: str) -> None:
    client = await stage.client()
    client.send(b"GET")
    runtime = await stage.runtime.peer()
    first, second = (client, runtime) if by == "client" else (runtime, client)
    await soon(second.reader.readexactly(3)) if by == "client" else None
    first.send(b"last words")
    await first.close()
    received = await soon(second.reader.read())
    assert received.endswith(b"last words")


async def test_a_splice_holds_its_breath_while_the_runtime_does_not_read(stage: Stage) -> None:
    client = await stage.client()
    client.send(b"GET")
    runtime = await stage.runtime.peer()
    await soon(runtime.reader.readexactly(3))
    total = 16 * MEBIBYTE
    client.send(bytes(total))
    (connection,) = stage.server._connections
    side = connection._client
    await until(lambda: side.transport is not None and not side.transport.is_reading())
    assert connection._runtime is not None
    assert connection._runtime.transport is not None
    assert connection._runtime.transport.get_write_buffer_size() < 2 * MEBIBYTE
    assert len(await soon(runtime.reader.readexactly(total))) == total


async def test_a_runtime_that_comes_back_in_time_gets_the_calls_that_waited(tmp_path: Path) -> None:
    async with Stage(tmp_path, has_runtime=False) as stage:
        client = await stage.client()
        client.begin()
        client.send(call := client.call(1), data(1, b"abc", end=True))
        assert await client.frame() == settings()
        assert await client.frame() == SETTINGS_ACK
        await stage.runtime.start()
        runtime = await stage.runtime.peer()
        assert [await runtime.frame() for _ in range(3)] == [settings(), call, data(1, b"abc", end=True)]
        runtime.send(settings(), SETTINGS_ACK, answer := runtime.trailers(1))
        assert [await client.frame() for _ in range(2)] == [settings(), answer]


async def test_a_runtime_that_stays_away_means_unavailable_then_goaway_then_the_end(tmp_path: Path) -> None:
    async with Stage(tmp_path, has_runtime=False, upstream_wait_s=0.05) as stage:
        client = await stage.client()
        client.begin()
        client.send(client.call(1, end=True), client.call(3, HELD), data(3, message(b"x"), end=True))
        first, second, last = [frame for frame in await client.rest() if frame.type_ in (HEADERS, GOAWAY)]
        assert (first.stream_id, second.stream_id) == (1, 3)
        fields = client.headers.read(first.payload)
        assert fields["grpc-status"] == "14"
        assert fields["grpc-message"].startswith("koord-runtime-proxy: runtime is not reachable: ")
        assert last == goaway(3)
        assert stage.held[0].names == ["message", "cancelled"]


async def test_an_endpoint_that_can_never_be_reached_is_not_waited_for(stage: Stage) -> None:
    object.__setattr__(stage.upstream, "socket_path", "/" + "x" * 200)
    client = await stage.client()
    client.begin()
    client.send(client.call(1, end=True))
    assert [frame.type_ for frame in await client.rest()][-2:] == [HEADERS, GOAWAY]


async def test_a_splice_to_a_runtime_that_stays_away_is_closed(tmp_path: Path) -> None:
    async with Stage(tmp_path, has_runtime=False, upstream_wait_s=0.0) as stage:
        client = await stage.client()
        client.send(b"GET")
        await client.ended()


async def test_a_full_backlog_is_waited_for(tmp_path: Path) -> None:
    async with Stage(tmp_path, has_runtime=False) as stage:
        with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as in_the_way:
            busy.bind(str(stage.runtime.path))
            busy.listen(0)
            busy.setblocking(False)
            in_the_way.connect(str(stage.runtime.path))
            client = await stage.client()
            client.begin()
            client.send(client.call(1, end=True))
            await client.frame()
            loop = asyncio.get_running_loop()
            first, _ = await soon(loop.sock_accept(busy))
            first.close()
            accepted, _ = await soon(loop.sock_accept(busy))
            runtime = Peer(*await asyncio.open_unix_connection(sock=accepted))
            assert (await runtime.next_of(HEADERS)).stream_id == 1
            await runtime.close()


async def test_a_client_that_leaves_while_the_runtime_is_away_is_forgotten(tmp_path: Path) -> None:
    async with Stage(tmp_path, has_runtime=False) as stage:
        client = await stage.client()
        client.begin()
        client.send(client.call(1, HELD), data(1, message(b"x"), end=True))
        await until(lambda: bool(stage.held and stage.held[0].events))
        await client.close()
        await until(lambda: stage.server.connection_count == 0)
        assert stage.held[0].names == ["message", "cancelled"]


async def test_early_bytes_are_bounded_by_not_reading(tmp_path: Path) -> None:
    async with Stage(tmp_path, has_runtime=False) as stage:
        client = await stage.client()
        client.begin()
        await client.frame()
        client.send(client.call(1))
        client.send(*(unknown(1, bytes(16_000)) for _ in range(4 * MEBIBYTE // 16_000)))
        (connection,) = stage.server._connections
        side = connection._client
        await until(lambda: side.transport is not None and not side.transport.is_reading())
        assert sum(len(chunk) for chunk in stage.relay.to_runtime.chunks) < 2 * MEBIBYTE
        await stage.runtime.start()
        runtime = await stage.runtime.peer()
        client.send(data(1, b"last", end=True))
        while await runtime.next_of(0) != data(1, b"last", end=True):
            pass


async def test_the_first_path_decides_and_a_stream_of_another_upstream_gets_goaway(stage: Stage) -> None:
    client, runtime = await stage.pair()
    client.send(client.call(3, ELSEWHERE, end=True))
    assert await client.next_of(GOAWAY) == goaway(1)
    runtime.send(data(1, b"still"))
    assert await client.frame() == data(1, b"still")
