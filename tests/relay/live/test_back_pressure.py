"""A side that does not read holds the other one up: memory is bounded, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator

from tests.relay import wire
from tests.relay.live.harness import WAIT_S, LiveRelay, RawPeer, RawServer
from tests.relay.live.test_ends import opened
from tests.relay.playbook import HELD
from tests.relay.wire import Frame, message

FRAME_BYTES = 16_384
STALL_S = 0.4
MOST_BYTES = 4 * 1024 * 1024
"""Of the buffers between two ends: four of sockets, one of the relay, two of the streams of this test."""
GOAL_BYTES = 32 * 1024 * 1024


def numbered(number: int) -> Frame:
    """DATA that can be told from all other."""
    return wire.data(1, number.to_bytes(4, "big") * (FRAME_BYTES // 4))


async def send_until_stalled(peer: RawPeer) -> int:
    """Sends until nothing goes on, or a lot is on its way; returns how many frames."""
    for number in itertools.count():
        peer.send(numbered(number))
        try:
            async with asyncio.timeout(STALL_S):
                await peer.writer.drain()
        except TimeoutError:
            return number + 1
        if number * FRAME_BYTES > GOAL_BYTES:
            break
    raise AssertionError("nothing holds the sender up")


async def check_arrival(peer: RawPeer, count: int) -> None:
    """All that was sent arrives, in order."""
    for number in range(count):
        assert await peer.frame(wire.DATA, 1) == numbered(number)


async def test_a_client_that_does_not_read(relay: LiveRelay, runtime: RawServer) -> None:
    client, served = await opened(relay, runtime)
    async with client:
        count = await send_until_stalled(served)
        assert count * FRAME_BYTES < MOST_BYTES
        await check_arrival(client, count)


async def test_a_runtime_that_does_not_read(relay: LiveRelay, runtime: RawServer) -> None:
    client, served = await opened(relay, runtime)
    async with client:
        served.send(wire.credit(0, 1 << 30))
        await client.frame(wire.WINDOW_UPDATE, 0)
        count = await send_until_stalled(client)
        assert count * FRAME_BYTES < MOST_BYTES
        await check_arrival(served, count)


async def test_the_other_direction_goes_on(relay: LiveRelay, runtime: RawServer) -> None:
    client, served = await opened(relay, runtime)
    async with client:
        count = await send_until_stalled(served)
        client.send(wire.ping())
        assert await served.frame(wire.PING) == wire.ping()
        await check_arrival(client, count)


async def test_a_held_message_waits_for_a_runtime_that_does_not_read(
    relay: LiveRelay, runtime: RawServer
) -> None:
    client, served = await opened(relay, runtime, HELD)
    async with client, dripping(client):
        served.send(wire.credit(0, 1 << 30), wire.credit(1, 1 << 30))
        content = message(bytes(8 * 1024 * 1024))
        client.send(*pieces(content))
        call = await relay.message()
        call.reply.forward(None)
        assert relay.budget.used_bytes == len(content), "what cannot be written yet stays accounted for"
        assert await served.content(1) == content
        assert relay.budget.used_bytes == 0


def pieces(content: bytes) -> list[Frame]:
    """A message as frames."""
    last = (len(content) - 1) // FRAME_BYTES
    return [
        wire.data(1, content[at * FRAME_BYTES : (at + 1) * FRAME_BYTES], end=at == last)
        for at in range(last + 1)
    ]


@contextlib.asynccontextmanager
async def dripping(peer: RawPeer) -> AsyncIterator[None]:
    """Reads all that comes and looks at none of it."""

    async def read() -> None:
        async with asyncio.timeout(WAIT_S):
            while await peer.reader.read(1 << 16):
                pass

    async with asyncio.TaskGroup() as group:
        task = group.create_task(read())
        yield
        task.cancel()
