"""Servers that do what the rules allow and few expect, and some that do not."""

from __future__ import annotations

import asyncio

from runtimeproxy.interception import Outcome
from tests.relay import wire
from tests.relay.live.harness import LiveRelay, RawPeer, RawServer
from tests.relay.live.test_ends import opened
from tests.relay.playbook import HELD, PASSING
from tests.relay.wire import Frame, message

CONTENT = message(bytes(range(250)) * 800)
DEFAULT_WINDOW = 65_535
FRAME_BYTES = 16_384


async def give(client: RawPeer, content: bytes) -> None:
    """Sends a request's message as a client that keeps to the stream's window."""
    window = DEFAULT_WINDOW
    while content:
        size = min(window, FRAME_BYTES, len(content))
        client.send(wire.data(1, content[:size], end=size == len(content)))
        content = content[size:]
        window -= size
        if content and not window:
            window += (await client.frame(wire.WINDOW_UPDATE, 1)).number


def answer(served: RawPeer, stream_id: int = 1) -> list[Frame]:
    """A whole response."""
    return [
        wire.headers(stream_id, served.headers.response()),
        wire.data(stream_id, message(b"ok")),
        wire.headers(stream_id, served.headers.trailers(), end=True),
    ]


async def hold_and_forward(relay: LiveRelay, client: RawPeer) -> None:
    """The client's message is taken and sent on as it came."""
    await give(client, CONTENT)
    (await relay.message()).reply.forward(None)


async def take(served: RawPeer, most_bytes: int, stream_id: int = 1) -> bytes:
    """Waits for exactly so many bytes of DATA."""
    found = b""
    while len(found) < most_bytes:
        found += (await served.frame(wire.DATA, stream_id)).payload
    assert len(found) == most_bytes
    return found


async def test_credit_that_comes_late_and_in_crumbs(relay: LiveRelay, runtime: RawServer) -> None:
    client, served = await opened(relay, runtime, HELD)
    async with client:
        await hold_and_forward(relay, client)
        found = await take(served, DEFAULT_WINDOW)
        served.send(wire.credit(1, 1 << 20), wire.credit(0, 10))
        found += await take(served, 10)
        served.send(wire.credit(0, 1 << 20))
        found += await take(served, len(CONTENT) - len(found))
    assert found == CONTENT


async def test_a_window_that_is_lowered_in_mid_stream(relay: LiveRelay, runtime: RawServer) -> None:
    client, served = await opened(relay, runtime, HELD)
    async with client:
        await hold_and_forward(relay, client)
        found = await take(served, DEFAULT_WINDOW)
        served.send(wire.settings({wire.INITIAL_WINDOW: 1_000}), wire.credit(0, 1 << 20), wire.ping())
        await client.frame(wire.PING)
        client.send(wire.SETTINGS_ACK, wire.SETTINGS_ACK)
        await served.frame(wire.SETTINGS, ack=True)
        served.send(wire.credit(1, DEFAULT_WINDOW - 1_000 + 5))
        found += await take(served, 5)
        served.send(wire.credit(1, 1 << 20))
        found += await take(served, len(CONTENT) - len(found))
    assert found == CONTENT


async def test_a_window_that_is_raised_in_mid_stream(relay: LiveRelay, runtime: RawServer) -> None:
    client, served = await opened(relay, runtime, HELD)
    async with client:
        await hold_and_forward(relay, client)
        found = await take(served, DEFAULT_WINDOW)
        served.send(wire.credit(0, 1 << 20), wire.settings({wire.INITIAL_WINDOW: 1 << 20}), wire.ping())
        await client.frame(wire.PING)
        client.send(wire.SETTINGS_ACK, wire.SETTINGS_ACK)
        await served.frame(wire.SETTINGS, ack=True)
        found += await take(served, len(CONTENT) - len(found))
    assert found == CONTENT


async def test_frames_that_become_larger_and_smaller(relay: LiveRelay, runtime: RawServer) -> None:
    client, served = await opened(relay, runtime)
    async with client:
        served.send(wire.settings({wire.MAX_FRAME: 40_000}), wire.ping())
        await client.frame(wire.PING)
        client.send(wire.SETTINGS_ACK, wire.SETTINGS_ACK, wire.data(1, bytes(40_000)))
        assert len((await served.frame(wire.DATA, 1)).payload) == 40_000
        served.send(wire.settings({wire.MAX_FRAME: 16_384}), wire.ping())
        await client.frame(wire.PING)
        client.send(wire.SETTINGS_ACK)
        await served.frame(wire.SETTINGS, ack=True)
        client.send(wire.data(1, bytes(16_384)))
        assert len((await served.frame(wire.DATA, 1)).payload) == 16_384
        client.send(wire.data(1, bytes(16_385)))
        assert (await client.rest())[-1].payload[4:8] == wire.FRAME_SIZE_ERROR.to_bytes(4, "big")


async def test_an_answer_before_the_message(relay: LiveRelay, runtime: RawServer) -> None:
    client, served = await opened(relay, runtime, HELD)
    async with client:
        client.send(wire.data(1, CONTENT[:1000]))
        served.send(*answer(served))
        while not (await client.frame(wire.HEADERS, 1)).ends_stream:
            pass
        await served.frame(wire.RST_STREAM, 1)
        await give(client, CONTENT[1000:])
        client.send(wire.headers(3, client.headers.request(PASSING), end=True))
        assert (await served.frame(wire.HEADERS, 3)).ends_stream
    assert relay.interceptor.calls[0].names == ["cancelled"]


async def test_an_answer_that_is_never_followed_by_a_reset(relay: LiveRelay, runtime: RawServer) -> None:
    client, served = await opened(relay, runtime, HELD)
    async with client:
        await give(client, message(b"abc"))
        call = await relay.message()
        call.reply.forward(None)
        assert await served.content(1) == message(b"abc")
        served.send(*answer(served))
        assert (await client.frame(wire.DATA, 1)).payload == message(b"ok")
        assert (await client.frame(wire.HEADERS, 1)).ends_stream
    assert call.events[-1] == ("responded", Outcome.SUCCEEDED, message(b"ok"))


async def test_a_server_that_hangs_is_the_clients_to_give_up(relay: LiveRelay, runtime: RawServer) -> None:
    client, served = await opened(relay, runtime, HELD)
    async with client:
        await give(client, message(b"abc"))
        call = await relay.message()
        call.reply.forward(None)
        await served.content(1)
        client.send(wire.reset(1))
        assert await served.frame(wire.RST_STREAM, 1) == wire.reset(1)
    assert call.events[-1] == ("responded", Outcome.UNKNOWN, b"")


async def test_a_server_that_dies_in_the_middle_of_an_answer(relay: LiveRelay, runtime: RawServer) -> None:
    client, served = await opened(relay, runtime, HELD)
    async with client:
        await give(client, message(b"abc"))
        call = await relay.message()
        call.reply.forward(None)
        await served.content(1)
        first, second, _ = answer(served)
        served.send(first, bytes(second)[:11])
        await asyncio.gather(served.close(), client.rest())
    assert call.events[-1] == ("responded", Outcome.UNKNOWN, b"")
