"""The server: admission of clients, and the graceful end."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.frontends.cri_proxy.relay import server
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
    SETTINGS_ACK,
    Frame,
    credit,
    data,
    goaway,
    message,
    ping,
    ping_ack,
    settings,
    wire,
)

NOBODY = 65534
AT_ONCE_S = 0.9

ASK = """
import os, socket, sys
os.setgroups([])
os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect(sys.argv[1])
    try:
        sock.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n")
        print(len(sock.recv(9)))
    except ConnectionError:
        print(0)
"""


async def bytes_for_nobody(path: Path) -> int:
    """How much of its SETTINGS the relay sends to another user's process."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ASK, str(path), str(NOBODY), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await soon(child.communicate())
    return int(output)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(("allowed", "received"), [((), 0), ((NOBODY,), 9)], ids=["others", "allowed"])
async def test_other_users_are_refused_unless_they_are_allowed(
    public_folder: Path, allowed: tuple[int, ...], received: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with Stage(public_folder, allowed_uids=allowed, socket_mode=0o666) as stage:
        assert await bytes_for_nobody(stage.path) == received
    refusals = [record for record in caplog.records if f"user {NOBODY} " in record.getMessage()]
    assert len(refusals) == (0 if allowed else 1)


async def test_no_more_clients_are_taken_and_those_that_are_there_go_on(stage: Stage) -> None:
    client, runtime = await stage.pair()
    stage.stop_listening()
    with pytest.raises(OSError, match=r"No such file|refused"):
        await asyncio.open_unix_connection(str(stage.path))
    client.send(client.call(3, end=True))
    assert (await runtime.next_of(HEADERS)).stream_id == 3


async def test_the_backlog_is_as_long_as_the_listener_made_it(stage: Stage) -> None:
    waiting = [socket.socket(socket.AF_UNIX) for _ in range(500)]
    try:
        # The loop does not turn meanwhile, so that no client is accepted.
        for sock in waiting:
            sock.setblocking(False)
            sock.connect(str(stage.path))
    finally:
        for sock in waiting:
            sock.close()
    await stage.pair()
    await until(lambda: stage.server.connection_count == 1)


async def test_messages_that_do_not_come_are_looked_for_every_few_seconds(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LATE_S", 0.05)
    stage.budget.limit_bytes, stage.budget.small_bytes = 1000, 0
    late, _ = await stage.pair()
    late.send(late.call(3, HELD), data(3, message(bytes(900))[:10]))
    await until(lambda: bool(stage.budget.used_bytes))
    waiting, _ = await stage.pair()
    waiting.send(waiting.call(3, HELD), data(3, message(bytes(900))[:10]))
    await until(lambda: stage.budget.has_waiting)
    stage.server._expire_reservations()
    assert stage.held[0].names == []
    assert (await late.next_of(HEADERS)).ends_stream
    assert [call.names for call in stage.held] == [["cancelled"], []]


async def test_an_error_does_not_end_the_search_for_messages_that_do_not_come(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LATE_S", 0.0)
    searches = 0

    def expire() -> None:
        nonlocal searches
        searches += 1
        if searches == 1:
            raise ValueError("a defect")

    monkeypatch.setattr(stage.budget, "expire", expire)
    assert stage.server._expiry is not None
    stage.server._expiry.cancel()
    with pytest.raises(ValueError, match="defect"):
        stage.server._expire_reservations()
    await until(lambda: searches > 2)
    await stage.server.drain(1.0)
    searches = 0
    await asyncio.sleep(0.05)
    assert searches == 0


class Draining:
    """A drain that is under way, for the length of a block."""

    def __init__(self, stage: Stage, held_s: float = 10.0) -> None:
        self._drain = asyncio.ensure_future(stage.server.drain(held_s))

    async def __aenter__(self) -> Draining:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.over()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._drain.done()

    async def over(self) -> None:
        """Waits for its end."""
        await soon(self._drain)


async def told(client: Peer) -> Frame:
    """The client hears of the drain; returns the relay's PING."""
    assert await client.next_of(GOAWAY) == goaway(LAST_ID)
    return await client.next_of(PING)


async def least_s(folder: Path, measured_s: Callable[[Stage], Awaitable[float]]) -> float:
    """How long something takes, each time on a stage of its own, in the best of a few tries.

    A second is what a client has that does not answer; a busy machine may take that for itself.
    """
    least = AT_ONCE_S
    for number in range(5):
        own = folder / str(number)
        own.mkdir()
        async with Stage(own) as stage:
            least = await measured_s(stage)
        if least < AT_ONCE_S:
            break
    return least


async def test_an_idle_client_is_told_and_let_go_as_soon_as_it_knows(tmp_path: Path) -> None:
    async def drain_s(stage: Stage) -> float:
        client, runtime = await stage.pair()
        began_s = asyncio.get_running_loop().time()
        async with Draining(stage):
            client.send(ping_ack((await told(client)).payload))
            assert await client.rest() == [goaway(1)]
            await runtime.ended()
        assert stage.server.connection_count == 0
        return asyncio.get_running_loop().time() - began_s

    assert await least_s(tmp_path, drain_s) < AT_ONCE_S


async def test_without_any_client_it_is_over_at_once(stage: Stage) -> None:
    await soon(stage.server.drain(10))


@pytest.mark.usefixtures("short_grace")
async def test_a_client_that_does_not_answer_is_let_go(stage: Stage) -> None:
    client, _ = await stage.pair()
    async with Draining(stage):
        await told(client)
        assert await client.rest() == [goaway(1)]


async def test_held_calls_finish(stage: Stage) -> None:
    client, runtime = await stage.pair()
    client.send(client.call(3, HELD), data(3, message(b"abc"), end=True))
    await until(lambda: bool(stage.held and stage.held[0].events))
    async with Draining(stage) as draining:
        client.send(ping_ack((await told(client)).payload))
        assert await client.next_of(GOAWAY) == goaway(3)
        stage.held[0].reply.forward(None)
        await runtime.next_of(DATA)
        assert not draining.is_over
        answer = [runtime.response(3), data(3, message(b"x")), runtime.trailers(3)]
        runtime.send(*answer)
        assert await client.rest() == answer
    assert stage.held[0].events[-1] == ("responded", Outcome.SUCCEEDED, message(b"x"))


async def test_held_calls_that_do_not_finish_are_cut(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    client, _ = await stage.pair()
    client.send(client.call(3, HELD), data(3, message(b"abc"), end=True))
    await until(lambda: bool(stage.held and stage.held[0].events))
    async with Draining(stage, 0.05):
        await client.ended()
    assert stage.held[0].names == ["message", "cancelled"]
    assert "did not end within" in caplog.text


async def test_a_short_call_that_passes_may_finish(stage: Stage) -> None:
    client, runtime = await stage.pair()
    client.send(client.call(3, end=True))
    await runtime.next_of(HEADERS)
    async with Draining(stage):
        client.send(ping_ack((await told(client)).payload))
        assert await client.next_of(GOAWAY) == goaway(3)
        runtime.send(answer := runtime.trailers(3))
        assert await client.rest() == [answer]


async def test_a_client_may_still_write_when_its_last_answer_is_on_its_way(stage: Stage) -> None:
    """As gRPC does, with credit or a PING: an error there would cost it the answer."""
    client, runtime = await stage.pair()
    client.send(client.call(3, end=True))
    await runtime.next_of(HEADERS)
    async with Draining(stage):
        client.send(ping_ack((await told(client)).payload))
        await client.next_of(GOAWAY)
        runtime.send(runtime.trailers(3))
        await runtime.ended()
        os.write(client.writer.get_extra_info("socket").fileno(), wire(credit(0, 1), ping()))
        await client.next_of(HEADERS)
        await client.ended()


@pytest.mark.usefixtures("short_grace")
async def test_a_long_call_that_passes_is_cut(stage: Stage) -> None:
    client, runtime = await stage.pair()
    client.send(client.call(3, end=True))
    await runtime.next_of(HEADERS)
    async with Draining(stage):
        client.send(ping_ack((await told(client)).payload))
        await client.ended()
        await runtime.ended()


@pytest.mark.parametrize("by", ["client", "runtime"])
async def test_a_side_that_is_lost_meanwhile_is_not_waited_for(tmp_path: Path, by: str) -> None:
    async def drain_s(stage: Stage) -> float:
        client, runtime = await stage.pair()
        client.send(client.call(3, HELD), data(3, message(b"abc"), end=True))
        await until(lambda: bool(stage.held and stage.held[0].events))
        began_s = asyncio.get_running_loop().time()
        async with Draining(stage):
            await told(client)
            await (client if by == "client" else runtime).close()
            if by == "runtime":
                await client.ended()
        return asyncio.get_running_loop().time() - began_s

    assert await least_s(tmp_path, drain_s) < AT_ONCE_S


async def test_streams_that_come_after_the_last_goaway_are_not_taken(stage: Stage) -> None:
    client, runtime = await stage.pair()
    client.send(client.call(3, HELD), data(3, message(b"abc"), end=True))
    await until(lambda: bool(stage.held and stage.held[0].events))
    async with Draining(stage):
        client.send(ping_ack((await told(client)).payload))
        await client.next_of(GOAWAY)
        client.send(client.call(5, end=True))
        stage.held[0].reply.forward(None)
        await runtime.next_of(DATA)
        runtime.send(runtime.trailers(3))
        await client.ended()
    assert not [frame for frame in await runtime.rest() if frame.stream_id == 5]


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize(
    "first", [b"", b"PRI", b"GET / HTTP/1.1\r\n"], ids=["silent", "beginning", "spliced"]
)
async def test_connections_without_http2_end_too(stage: Stage, first: bytes) -> None:
    client = await stage.client()
    client.send(first)
    await until(lambda: stage.server.connection_count == 1)
    if first.startswith(b"GET"):
        await (await stage.runtime.peer()).reader.readexactly(len(first))
    await soon(stage.server.drain(10))
    await client.ended()


@pytest.mark.parametrize(
    ("first", "last_words"),
    [(b"", []), (b"PRI", []), (PREFACE + wire(settings(), SETTINGS_ACK), [goaway(0)])],
    ids=["silent", "beginning", "without calls"],
)
async def test_a_client_that_never_calls_is_let_go(
    tmp_path: Path, first: bytes, last_words: list[Frame]
) -> None:
    async with Stage(tmp_path, first_call_s=0.05) as stage:
        client = await stage.client()
        client.send(first)
        assert [frame for frame in await client.rest() if frame.type_ == GOAWAY][-1:] == last_words
        await until(lambda: stage.server.connection_count == 0)
        assert len(stage.runtime.peers) == 0


async def test_a_client_that_has_called_may_be_silent_for_as_long_as_it_likes(stage: Stage) -> None:
    await stage.client()
    await until(lambda: stage.server.connection_count == 1)
    (silent,) = stage.server._connections
    await stage.pair()
    (calling,) = stage.server._connections.keys() - {silent}
    assert silent._timer is not None
    assert calling._timer is None
