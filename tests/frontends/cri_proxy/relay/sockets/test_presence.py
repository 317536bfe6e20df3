"""An upstream that accepts connections before it answers."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from tests.frontends.cri_proxy.relay.sockets.stage import Stage
from tests.peers.aio import until
from tests.peers.wire import GOAWAY, HEADERS, data, settings


class Readiness:
    """Answers what it is told to, and counts how often it was asked."""

    def __init__(self) -> None:
        self.is_ready = False
        self.asked = 0

    async def __call__(self) -> bool:
        self.asked += 1
        return self.is_ready


def given(stage: Stage, readiness: Readiness) -> None:
    stage.upstream.probe = readiness


async def test_one_that_was_never_away_is_not_asked(stage: Stage) -> None:
    readiness = Readiness()
    given(stage, readiness)
    await stage.pair()
    assert readiness.asked == 0


async def test_one_that_was_away_is_asked_before_calls_reach_it(tmp_path: Path) -> None:
    async with Stage(tmp_path, has_runtime=False) as stage:
        readiness = Readiness()
        given(stage, readiness)
        client = await stage.client()
        client.begin()
        client.send(call := client.call(1), data(1, b"abc", end=True))
        assert await client.frame() == settings()
        await stage.runtime.start()
        await until(lambda: readiness.asked > 1)
        readiness.is_ready = True
        runtime = await stage.runtime.peer()
        assert [await runtime.frame() for _ in range(3)] == [settings(), call, data(1, b"abc", end=True)]
        asked = readiness.asked
        await stage.pair()
        assert readiness.asked == asked


async def test_one_whose_connection_was_lost_is_asked(stage: Stage) -> None:
    readiness = Readiness()
    given(stage, readiness)
    client, runtime = await stage.pair()
    await runtime.close()
    await client.ended()
    readiness.is_ready = True
    await stage.pair()
    assert readiness.asked == 1


async def test_one_that_never_answers_gets_the_calls_when_the_time_is_over(tmp_path: Path) -> None:
    async with Stage(tmp_path, upstream_wait_s=0.2) as stage:
        readiness = Readiness()
        given(stage, readiness)
        stage.upstream.on_lost()
        client = await stage.client()
        client.begin()
        client.send(client.call(1, end=True))
        runtime = await stage.runtime.peer()
        assert (await runtime.next_of(HEADERS)).stream_id == 1
        asked = readiness.asked
        assert asked > 0
        # Others have waited with it.
        await stage.pair()
        assert readiness.asked == asked


async def test_one_with_a_full_backlog_is_not_away(tmp_path: Path) -> None:
    async with Stage(tmp_path, has_runtime=False, upstream_wait_s=0.05) as stage:
        readiness = Readiness()
        given(stage, readiness)
        with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as in_the_way:
            busy.bind(str(stage.runtime.path))
            busy.listen(0)
            in_the_way.connect(str(stage.runtime.path))
            client = await stage.client()
            client.begin()
            client.send(client.call(1, end=True))
            assert [frame.type_ for frame in await client.rest()][-2:] == [HEADERS, GOAWAY]
        assert readiness.asked == 0
        assert not stage.upstream.needs_probe


async def test_a_client_that_leaves_meanwhile_is_forgotten(stage: Stage) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def hangs() -> bool:
        asked.set()
        await never.wait()
        return True

    stage.upstream.probe = hangs
    stage.upstream.on_lost()
    client = await stage.client()
    client.begin()
    client.send(client.call(1, end=True))
    await asked.wait()
    await client.close()
    await until(lambda: stage.server.connection_count == 0)
