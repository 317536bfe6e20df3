"""What the end of one side means for the other, and for held calls."""

from __future__ import annotations

import asyncio

from tests.relay import wire
from tests.relay.live.harness import WAIT_S, LiveRelay, RawPeer, RawServer, eventually
from tests.relay.playbook import HELD, PASSING
from tests.relay.wire import message


async def opened(relay: LiveRelay, runtime: RawServer, path: str = PASSING) -> tuple[RawPeer, RawPeer]:
    """A client and a runtime with stream 1 open between them."""
    client = await relay.client()
    client.send(wire.headers(1, client.headers.request(path)))
    served = await runtime.accept()
    await served.frame(wire.HEADERS, 1)
    served.send(wire.settings(), wire.SETTINGS_ACK)
    return client, served


async def test_a_client_that_goes_ends_its_runtime_connection(relay: LiveRelay, runtime: RawServer) -> None:
    client, served = await opened(relay, runtime)
    await client.close()
    await served.rest()
    await eventually(lambda: relay.server.connection_count == 0, "the connection is forgotten")


async def test_a_client_that_goes_cancels_its_held_call(relay: LiveRelay, runtime: RawServer) -> None:
    client, served = await opened(relay, runtime, HELD)
    client.send(wire.data(1, message(b"abc"), end=True))
    call = await relay.message()
    await client.close()
    assert wire.DATA not in [frame.type_ for frame in await served.rest()]
    assert call.names == ["message", "cancelled"]
    call.reply.forward(None)
    assert relay.budget.used_bytes == 0


async def test_what_was_read_from_a_lost_runtime_is_delivered(relay: LiveRelay, runtime: RawServer) -> None:
    client, served = await opened(relay, runtime)
    async with client:
        sent = [wire.data(1, bytes((number,)) * 16_000) for number in range(200)]
        served.send(wire.headers(1, served.headers.response()), *sent)
        _, received = await asyncio.gather(served.close(), client.rest())
    assert [frame for frame in received if frame.type_ == wire.DATA] == sent


async def test_a_lost_runtime_does_not_wait_long_for_a_client_that_does_not_read(
    relay: LiveRelay, runtime: RawServer
) -> None:
    client, served = await opened(relay, runtime)
    async with client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # the stream's own transport
        served.send(*(wire.data(1, bytes(16_000)) for _ in range(25)))
        await served.close()
        began_s = asyncio.get_running_loop().time()
        await eventually(lambda: relay.server.connection_count == 0, "the connection is closed")
        assert asyncio.get_running_loop().time() - began_s < WAIT_S / 4


async def test_a_runtime_that_dies_in_the_middle_of_a_frame(relay: LiveRelay, runtime: RawServer) -> None:
    client, served = await opened(relay, runtime)
    async with client:
        half = bytes(wire.data(1, b"x" * 1000))[:500]
        served.send(wire.headers(1, served.headers.response()), half)
        await served.close()
        assert [frame.type_ for frame in await client.rest()][-1] == wire.HEADERS


async def test_garbage_ends_that_connection_alone(relay: LiveRelay, runtime: RawServer) -> None:
    good, good_served = await opened(relay, runtime)
    bad, bad_served = await opened(relay, runtime)
    async with good, bad:
        bad.send(b"\xff" * 100)
        assert [frame.type_ for frame in await bad.rest()][-1] == wire.GOAWAY
        await bad_served.rest()
        good.send(wire.data(1, b"still here", end=True))
        assert await good_served.content(1) == b"still here"


async def test_a_runtimes_garbage_ends_that_connection_alone(relay: LiveRelay, runtime: RawServer) -> None:
    good, good_served = await opened(relay, runtime)
    bad, bad_served = await opened(relay, runtime)
    async with good, bad:
        bad_served.send(b"\xff" * 100)
        assert [frame.type_ for frame in await bad.rest()][-1] == wire.GOAWAY
        good.send(wire.data(1, b"still here", end=True))
        assert await good_served.content(1) == b"still here"
