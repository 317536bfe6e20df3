"""How connections end: a side that leaves, a peer that breaks the protocol."""

from __future__ import annotations

import asyncio

import pytest

from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.frontends.cri_proxy.relay.connection import LINGER_S
from tests.frontends.cri_proxy.relay.playbook import HELD, PASSING, ScriptedCall, forward_as_it_came
from tests.frontends.cri_proxy.relay.sockets.stage import Stage
from tests.peers.aio import Peer, soon, until
from tests.peers.wire import (
    CANCEL,
    DATA,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    PROTOCOL_ERROR,
    RST_STREAM,
    Frame,
    data,
    goaway,
    headers,
    message,
    ping,
    ping_ack,
    reset,
    settings,
    wire,
)

ROUNDING_S = 0.01
"""Loops round their clocks."""


async def held_on_3(stage: Stage, client: Peer) -> ScriptedCall:
    """An intercepted call whose message has come."""
    client.send(client.call(3, HELD), data(3, message(b"abc"), end=True))
    await until(lambda: bool(stage.held and stage.held[-1].events))
    return stage.held[-1]


async def test_a_client_that_leaves_cancels_everything_at_the_runtime(stage: Stage) -> None:
    client, runtime = await stage.pair()
    client.send(client.call(5))
    await runtime.next_of(HEADERS, stream_id=5)
    await client.close()
    await runtime.ended()
    await until(lambda: stage.server.connection_count == 0)


async def test_a_client_that_leaves_cancels_its_held_calls(stage: Stage) -> None:
    client, runtime = await stage.pair()
    call = await held_on_3(stage, client)
    await client.close()
    await runtime.ended()
    assert call.names == ["message", "cancelled"]
    call.reply.forward(b"late")
    call.reply.refuse(1, "late")


async def test_another_client_is_not_cancelled(stage: Stage) -> None:
    leaving, _ = await stage.pair()
    staying, runtime = await stage.pair()
    await leaving.close()
    await until(lambda: stage.server.connection_count == 1)
    staying.send(ping())
    assert await runtime.next_of(ping().type_) == ping()


async def test_what_was_read_from_a_lost_runtime_reaches_the_client_before_the_end(stage: Stage) -> None:
    client, runtime = await stage.pair()
    client.send(client.call(3, end=True))
    await runtime.next_of(HEADERS, stream_id=3)
    answer = [runtime.response(3), *(data(3, bytes(16_384)) for _ in range(40)), runtime.trailers(3)]
    runtime.send(*answer)
    await runtime.close()
    assert await client.rest() == answer
    await until(lambda: stage.server.connection_count == 0)


async def test_a_runtime_that_stops_sending_and_reads_on_is_lost_without_a_word(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    client, runtime = await stage.pair()
    runtime.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.send(bytes(ping()) * 60_000)
    (connection,) = stage.server._connections
    side = connection._client
    await until(lambda: side.transport is not None and not side.transport.is_reading())
    runtime.writer.write_eof()
    await asyncio.sleep(0)
    runtime.writer.transport.resume_reading()  # type: ignore[attr-defined]
    await client.ended()
    await runtime.ended()
    await until(lambda: stage.server.connection_count == 0)
    assert not caplog.records


async def test_a_client_that_does_not_read_is_cut_a_second_after_the_runtime_was_lost(stage: Stage) -> None:
    client, runtime = await stage.pair()
    client.send(client.call(3, end=True))
    await runtime.next_of(HEADERS, stream_id=3)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    # More than fits into the kernel's buffers, less than the relay's mark.
    runtime.send(*(data(3, bytes(16_384)) for _ in range(25)))
    await runtime.close()
    (connection,) = stage.server._connections
    await until(lambda: connection._timer is not None)
    assert ends_in_s(stage) <= LINGER_S + ROUNDING_S
    await until(lambda: stage.server.connection_count == 0)


async def with_a_full_client(stage: Stage) -> tuple[Peer, Peer]:
    """A client that does not read, and its runtime, which is not read for that."""
    client, runtime = await stage.pair()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    runtime.send(*(data(1, bytes(16_384)) for _ in range(128)))
    (connection,) = stage.server._connections
    side = connection._runtime
    await until(lambda: side is not None and side.transport is not None and not side.transport.is_reading())
    return client, runtime


def ends_in_s(stage: Stage) -> float:
    """When the only connection is cut, from now on."""
    (connection,) = stage.server._connections
    assert connection._timer is not None
    return connection._timer.when() - asyncio.get_running_loop().time()


async def test_a_client_that_neither_reads_nor_sends_any_more_ends_within_a_second(stage: Stage) -> None:
    client, runtime = await with_a_full_client(stage)
    client.send(client.call(3, HELD), data(3, message(b"abc")[:5]))
    await until(lambda: bool(stage.held))
    client.writer.write_eof()
    await runtime.ended()
    assert stage.held[0].names == ["cancelled"]
    assert ends_in_s(stage) <= LINGER_S + ROUNDING_S


async def test_a_connection_that_is_closed_twice_ends_no_later(stage: Stage) -> None:
    await with_a_full_client(stage)
    (connection,) = stage.server._connections
    connection.close()
    timer = connection._timer
    loop = asyncio.get_running_loop()
    later_s = loop.time() + 0.01
    await until(lambda: loop.time() > later_s)
    connection.close()
    assert connection._timer is timer is not None
    assert not timer.cancelled()


@pytest.mark.parametrize("is_sent", [True, False])
async def test_a_lost_runtime_ends_held_calls(stage: Stage, is_sent: bool) -> None:
    client, runtime = await stage.pair()
    call = await held_on_3(stage, client)
    if is_sent:
        call.reply.forward(None)
        await runtime.next_of(DATA, stream_id=3)
    await runtime.close()
    await client.ended()
    assert call.events[1:] == ([("responded", Outcome.UNKNOWN, b"")] if is_sent else [("cancelled",)])


async def test_a_runtime_that_hangs_is_the_clients_matter(stage: Stage) -> None:
    client, runtime = await stage.pair()
    client.send(client.call(3, end=True))
    await runtime.next_of(HEADERS, stream_id=3)
    client.send(reset(3, CANCEL), ping())
    assert await runtime.next_of(RST_STREAM) == reset(3, CANCEL)
    runtime.send(ping_ack())
    assert await client.frame() == ping_ack()


BROKEN = {
    "frame-size": (FRAME_SIZE_ERROR, wire(Frame(DATA, 0, 1, bytes(16_385)))),
    "idle-stream": (PROTOCOL_ERROR, wire(data(99, b"x"))),
    "settings-flood": (ENHANCE_YOUR_CALM, wire(*[settings()] * 4000)),
    "garbage": (FRAME_SIZE_ERROR, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
}


@pytest.mark.parametrize(("code", "sent"), BROKEN.values(), ids=BROKEN.keys())
async def test_a_client_that_breaks_the_protocol_ends_its_own_connection_alone(
    stage: Stage, code: int, sent: bytes
) -> None:
    bystander, other_runtime = await stage.pair()
    client, runtime = await stage.pair()
    client.send(sent)
    assert (await client.rest())[-1] == goaway(1, code)
    await runtime.ended()
    bystander.send(ping())
    assert await other_runtime.next_of(ping().type_) == ping()
    assert stage.server.defect_count == 0


async def test_a_runtime_that_breaks_the_protocol_ends_that_connection(stage: Stage) -> None:
    client, runtime = await stage.pair()
    runtime.send(Frame(0xF0, 0, 0, bytes(16_385)))
    assert (await client.rest())[-1] == goaway(1, FRAME_SIZE_ERROR)


async def test_a_second_header_block_on_a_held_call_closes_the_connection(stage: Stage) -> None:
    client, runtime = await stage.pair()
    await held_on_3(stage, client)
    client.send(headers(3, client.headers.block([("x", "y")]), end=True))
    got = [frame for frame in await client.rest() if frame.type_ in (RST_STREAM, GOAWAY)]
    assert got == [reset(3, PROTOCOL_ERROR), goaway(3, PROTOCOL_ERROR)]
    await runtime.ended()


async def test_a_decision_that_cannot_be_carried_out_ends_its_connection(stage: Stage) -> None:
    client, runtime = await stage.pair()
    call = await held_on_3(stage, client)
    outbox = stage.relay.to_client
    outbox.is_writable = False
    for _ in range(1000):
        outbox.send(bytes(ping()))
    call.reply.refuse(9, "no")
    last = (await client.rest())[-1]
    assert last == goaway(3, ENHANCE_YOUR_CALM)
    await runtime.ended()


async def test_many_short_connections_leave_nothing_behind(stage: Stage) -> None:
    stage.decide(forward_as_it_came)
    for _ in range(50):
        client = await stage.client()
        client.begin()
        client.send(client.call(1, PASSING, end=True))
        runtime = await stage.runtime.peer()
        await runtime.next_of(HEADERS)
        await client.close()
        await runtime.ended()
    await until(lambda: stage.server.connection_count == 0)
    assert await soon(asyncio.sleep(0, True))
