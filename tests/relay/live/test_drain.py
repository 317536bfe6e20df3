"""A graceful stop: GOAWAY, held calls finish, then everything ends."""

from __future__ import annotations

import asyncio

from runtimeproxy.interception import Outcome
from tests.relay import wire
from tests.relay.live.harness import WAIT_S, LiveRelay, RawServer, eventually
from tests.relay.live.test_ends import opened
from tests.relay.playbook import HELD, PASSING
from tests.relay.wire import message


async def test_a_held_call_finishes(relay: LiveRelay, runtime: RawServer) -> None:
    client, served = await opened(relay, runtime, HELD)
    async with client, asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        client.send(wire.data(1, message(b"abc"), end=True))
        call = await relay.message()
        relay.server.stop_accepting()
        drained = group.create_task(relay.server.drain(WAIT_S))
        assert await client.frame(wire.GOAWAY) == wire.goaway(wire.LAST_ID)
        ping = await client.frame(wire.PING)
        client.send(wire.ping_ack(ping.payload))
        assert await client.frame(wire.GOAWAY) == wire.goaway(1)
        assert not drained.done()
        call.reply.forward(None)
        assert await served.content(1) == message(b"abc")
        served.send(
            wire.headers(1, served.headers.response()),
            wire.data(1, message(b"ok")),
            wire.headers(1, served.headers.trailers(), end=True),
        )
        assert (await client.frame(wire.HEADERS, 1)).flags == wire.END_HEADERS
        assert (await client.frame(wire.HEADERS, 1)).ends_stream
        await client.rest()
        await drained
    assert call.events[-1] == ("responded", Outcome.SUCCEEDED, message(b"ok"))
    assert relay.server.connection_count == 0


async def test_a_call_that_comes_with_the_first_goaway_is_still_served(
    relay: LiveRelay, runtime: RawServer
) -> None:
    client, served = await opened(relay, runtime, HELD)
    async with client, asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        client.send(wire.data(1, message(b"abc"), end=True))
        await relay.message()
        group.create_task(relay.server.drain(WAIT_S))
        ping = await client.frame(wire.PING)
        client.send(wire.headers(3, client.headers.request(PASSING), end=True))
        await served.frame(wire.HEADERS, 3)
        client.send(wire.ping_ack(ping.payload))
        assert await client.frame(wire.GOAWAY) == wire.goaway(3)
        client.send(wire.headers(5, client.headers.request(PASSING), end=True), wire.reset(1), wire.ping())
        assert [frame.stream_id for frame in await served.rest() if frame.type_ == wire.HEADERS] == []


async def test_a_held_call_has_its_time(relay: LiveRelay, runtime: RawServer) -> None:
    client, _ = await opened(relay, runtime, HELD)
    async with client, asyncio.timeout(WAIT_S):
        client.send(wire.data(1, message(b"abc"), end=True))
        call = await relay.message()
        await asyncio.gather(relay.server.drain(0.05), client.rest())
    assert call.names == ["message", "cancelled"]
    assert relay.server.connection_count == 0


async def test_clients_that_have_said_nothing_end_at_once(relay: LiveRelay) -> None:
    async with await relay.connect() as client, asyncio.timeout(WAIT_S):
        client.send(b"PRI")
        await client.writer.drain()
        await eventually(lambda: relay.server.connection_count == 1, "the client is accepted")
        await asyncio.gather(relay.server.drain(WAIT_S), client.rest())
    assert relay.server.connection_count == 0
