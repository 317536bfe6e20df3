"""Ends after which another process serves: no client loses a call that it may repeat."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from runtimeproxy.http2.frames import PREFACE
from tests.frontends.cri_proxy.relay.playbook import HELD
from tests.frontends.cri_proxy.relay.sockets.stage import Stage
from tests.peers.aio import Peer, soon, until
from tests.peers.wire import (
    DATA,
    GOAWAY,
    HEADERS,
    LAST_ID,
    PING,
    SETTINGS,
    data,
    goaway,
    message,
    ping,
    ping_ack,
    settings,
)

# The clients here never close.
pytestmark = pytest.mark.usefixtures("short_linger")


async def beginning(stage: Stage) -> Peer:
    """A client that is connected and has said nothing."""
    client = await stage.client()
    await until(lambda: stage.server.connection_count == 1 and not stage.server._adopting)
    return client


async def test_a_client_that_begins_during_the_drain_hears_that_nothing_was_processed(stage: Stage) -> None:
    client = await beginning(stage)
    draining = asyncio.ensure_future(stage.server.drain(10))
    await asyncio.sleep(0)
    client.send(PREFACE, settings(), client.call(1, end=True))
    assert (await client.frame()).type_ == SETTINGS
    assert await client.next_of(GOAWAY) == goaway(0)
    client.send(ping_ack((await client.next_of(PING)).payload))
    await soon(draining)
    assert not [frame for frame in await client.rest() if frame.type_ == HEADERS]
    assert len(stage.runtime.peers) == 0


async def test_a_client_in_the_middle_of_its_preface(stage: Stage) -> None:
    client = await beginning(stage)
    client.send(PREFACE[:5])
    draining = asyncio.ensure_future(stage.server.drain(10))
    await asyncio.sleep(0)
    client.send(PREFACE[5:], settings())
    assert await client.next_of(GOAWAY) == goaway(0)
    client.send(ping_ack((await client.next_of(PING)).payload))
    await soon(draining)


@pytest.mark.parametrize("path", ["/passing", HELD], ids=["passing", "held"])
@pytest.mark.parametrize("ends", ["drain", "retire"])
async def test_calls_that_wait_for_the_runtime_are_given_back(tmp_path: Path, path: str, ends: str) -> None:
    async with Stage(tmp_path, has_runtime=False) as stage:
        client = await stage.client()
        client.begin()
        client.send(client.call(1, path), data(1, message(b"abc"), end=True))
        await until(lambda: bool(stage.server.connection_count))
        await client.next_of(SETTINGS)
        ending = asyncio.ensure_future(getattr(stage.server, ends)(10))
        assert await client.next_of(GOAWAY) == goaway(0)
        client.send(client.call(3, end=True), data(1, b"late"))
        question = await client.next_of(PING)
        await stage.runtime.start()
        client.send(ping_ack(question.payload))
        await soon(ending)
        assert not [frame for frame in await client.rest() if frame.type_ == HEADERS]
        assert len(stage.runtime.peers) == 0
        assert [call.names[-1:] for call in stage.held] in ([], [["cancelled"]])


async def test_a_runtime_that_comes_just_then_gets_nothing(tmp_path: Path) -> None:
    async with Stage(tmp_path, has_runtime=False) as stage:
        client = await stage.client()
        client.begin()
        client.send(client.call(1, end=True))
        await client.next_of(SETTINGS)
        await stage.runtime.start()
        ending = asyncio.ensure_future(stage.server.drain(10))
        client.send(ping_ack((await client.next_of(PING)).payload))
        await soon(ending)
        if stage.runtime.peers:
            assert await (await stage.runtime.peer()).rest() == []


async def test_long_calls_go_on_while_new_ones_are_not_taken(stage: Stage) -> None:
    client, runtime = await stage.pair()
    client.send(client.call(3, end=True))
    await runtime.next_of(HEADERS)
    retiring = asyncio.ensure_future(stage.server.retire(60))
    assert await client.next_of(GOAWAY) == goaway(LAST_ID)
    client.send(ping_ack((await client.next_of(PING)).payload))
    assert await client.next_of(GOAWAY) == goaway(3)
    client.send(client.call(5, end=True))
    # Longer than a stop waits for a call that passes.
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(retiring), 1.5)
    runtime.send(runtime.response(3), data(3, message(b"event")))
    await client.next_of(DATA)
    runtime.send(runtime.trailers(3))
    await client.next_of(HEADERS)
    await soon(retiring)
    await client.ended()
    assert not [frame for frame in await runtime.rest() if frame.stream_id == 5]


async def test_a_client_that_is_slow_to_answer_can_still_write(stage: Stage) -> None:
    client, runtime = await stage.pair()
    retiring = asyncio.ensure_future(stage.server.retire(60))
    question = await client.next_of(PING)
    assert await client.next_of(GOAWAY) == goaway(1)
    client.send(client.call(3, end=True), ping(b"are you?"))
    assert await soon(runtime.next_of(PING)) == ping(b"are you?")
    client.send(ping_ack(question.payload))
    await soon(retiring)
    assert await client.rest() == []
    assert not [frame for frame in await runtime.rest() if frame.type_ == HEADERS]


async def test_what_takes_too_long_is_cut(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    client, runtime = await stage.pair()
    client.send(client.call(3, end=True))
    await runtime.next_of(HEADERS)
    await soon(stage.server.retire(0.1))
    await client.ended()
    await runtime.ended()
    assert "connections cut after" in caplog.text


async def test_a_client_without_http2_goes_on_too(stage: Stage) -> None:
    client = await stage.client()
    client.send(b"GET / HTTP/1.1\r\n")
    runtime = await stage.runtime.peer()
    await soon(runtime.reader.readexactly(16))
    retiring = asyncio.ensure_future(stage.server.retire(60))
    await asyncio.sleep(0)
    runtime.writer.write(b"HTTP/1.1 200 OK\r\n")
    assert await soon(client.reader.readexactly(17))
    assert not retiring.done()
    await client.close()
    await soon(retiring)


async def test_clients_that_come_later_stay(stage: Stage) -> None:
    client, _ = await stage.pair()
    retiring = asyncio.ensure_future(stage.server.retire(60))
    question = await client.next_of(PING)
    later, runtime = await stage.pair()
    client.send(ping_ack(question.payload))
    await soon(retiring)
    later.send(later.call(3, end=True))
    await runtime.next_of(HEADERS)


async def test_clients_wait_while_nobody_accepts(stage: Stage) -> None:
    stage.server.stop_accepting()
    client = await stage.client()
    client.begin()
    client.send(client.call(1, end=True))
    await asyncio.sleep(0)
    assert stage.server.connection_count == 0
    stage.server.accept()
    await (await stage.runtime.peer()).next_of(HEADERS)
