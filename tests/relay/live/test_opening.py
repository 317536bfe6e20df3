"""How a connection begins: any client, an upstream that is away, or busy."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from runtimeproxy.relay.frames import PREFACE
from tests.relay import wire
from tests.relay.live.harness import WAIT_S, LiveRelay, RawServer, StartRelay
from tests.relay.playbook import PASSING

REQUEST = b"GET /info HTTP/1.1\r\nHost: runtime\r\n\r\n"
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
UNAVAILABLE = "14"


async def test_http_1_is_spliced_both_ways(relay: LiveRelay, runtime: RawServer) -> None:
    async with await relay.connect() as client:
        client.send(REQUEST)
        served = await runtime.accept()
        assert await served.reader.readexactly(len(REQUEST)) == REQUEST
        served.send(RESPONSE)
        assert await client.reader.readexactly(len(RESPONSE)) == RESPONSE
        client.send(REQUEST)
        assert await served.reader.readexactly(len(REQUEST)) == REQUEST
        await served.close()
        assert await client.reader.read() == b""


async def test_a_splice_carries_much_both_ways_at_once(relay: LiveRelay, runtime: RawServer) -> None:
    much = b"0123456789abcdef" * (1 << 17)
    async with await relay.connect() as client:
        client.send(REQUEST, much)
        served = await runtime.accept()
        served.send(much)
        there, back = await asyncio.gather(
            served.reader.readexactly(len(REQUEST) + len(much)), client.reader.readexactly(len(much))
        )
    assert there == REQUEST + much
    assert back == much


async def test_what_begins_like_the_preface_is_spliced_when_it_differs(
    relay: LiveRelay, runtime: RawServer
) -> None:
    async with await relay.connect() as client:
        client.send(PREFACE[:20])
        client.send(b"else")
        served = await runtime.accept()
        assert await served.reader.readexactly(24) == PREFACE[:20] + b"else"


async def test_a_preface_in_pieces(relay: LiveRelay, runtime: RawServer) -> None:
    async with await relay.connect() as client:
        for at in range(len(PREFACE)):
            client.send(PREFACE[at : at + 1])
            await client.writer.drain()
        assert await client.frame(wire.SETTINGS) == wire.settings()
        client.send(wire.settings(), wire.headers(1, client.headers.request(PASSING), end=True))
        served = await runtime.accept()
        assert (await served.frame(wire.HEADERS, 1)).ends_stream


async def test_settings_come_before_any_upstream(relay: LiveRelay) -> None:
    async with await relay.client() as client:
        assert await client.frame(wire.SETTINGS) == wire.settings()
        client.send(wire.ping())
        assert await client.frame(wire.PING, ack=True) == wire.ping_ack()


async def test_an_upstream_that_comes_back_in_time(start_relay: StartRelay, folder: Path) -> None:
    relay = await start_relay()
    async with await relay.client() as client:
        client.send(wire.headers(1, client.headers.request(PASSING), end=True), wire.ping())
        await client.frame(wire.PING, ack=True)
        async with RawServer(folder / "runtime.sock") as runtime:
            served = await runtime.accept()
            assert (await served.frame(wire.HEADERS, 1)).ends_stream
            served.send(wire.settings(), wire.headers(1, served.headers.trailers(), end=True))
            assert (await client.frame(wire.HEADERS, 1)).ends_stream


async def test_an_upstream_that_stays_away(start_relay: StartRelay) -> None:
    relay = await start_relay(upstream_wait_s=0.05)
    async with await relay.client() as client:
        client.send(*(wire.headers(n, client.headers.request(PASSING), end=True) for n in (1, 3)))
        for stream_id in (1, 3):
            answer = await client.frame(wire.HEADERS, stream_id)
            fields = client.headers.read(answer.payload)
            assert fields["grpc-status"] == UNAVAILABLE
            assert fields["grpc-message"].startswith("koord-runtime-proxy: ")
        assert await client.rest() == [wire.goaway(3)]


async def test_a_spliced_client_of_an_upstream_that_stays_away(start_relay: StartRelay) -> None:
    relay = await start_relay(upstream_wait_s=0.05)
    async with await relay.connect() as client:
        client.send(REQUEST)
        assert await client.rest() == []


async def test_a_full_backlog_is_waited_for(start_relay: StartRelay, folder: Path) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as first:
        listening.bind(str(folder / "runtime.sock"))
        listening.listen(0)
        listening.setblocking(False)
        first.connect(str(folder / "runtime.sock"))
        relay = await start_relay()
        async with await relay.client() as client:
            client.send(wire.headers(1, client.headers.request(PASSING), end=True), wire.ping())
            await client.frame(wire.PING, ack=True)
            async with asyncio.timeout(WAIT_S):
                (await loop.sock_accept(listening))[0].close()
                sock, _ = await loop.sock_accept(listening)
            with sock:
                async with asyncio.timeout(WAIT_S):
                    received = b""
                    while len(received) < len(PREFACE):
                        received += await loop.sock_recv(sock, 1000)
                assert received.startswith(PREFACE)
