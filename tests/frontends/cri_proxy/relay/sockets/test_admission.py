"""Who may connect, and how many."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from runtimeproxy.frontends.cri_proxy.relay.server import Peer, idle_of_the_greediest
from runtimeproxy.sdnotify import answers_ping
from tests.frontends.cri_proxy.relay.playbook import PASSING
from tests.frontends.cri_proxy.relay.sockets.stage import Stage
from tests.peers import wire
from tests.peers.aio import WAIT_S, until
from tests.peers.wire import ACK, GOAWAY, HEADERS, PING, Frame, Headers

STRANGER = 65_534
ASK = """
import os, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect(sys.argv[1])
    try:
        sock.sendall(bytes.fromhex(sys.argv[3]))
        print(len(sock.recv(9)))
    except ConnectionError:
        print(0)
"""
HOLD = """
import socket, sys
held = []
for line in sys.stdin:
    answered = 0
    says = bytes.fromhex(sys.argv[2])
    for _ in range(int(line)):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(sys.argv[1])
        held.append(sock)
        try:
            sock.sendall(says)
            answered += bool(sock.recv(9))
        except ConnectionError:
            pass
    print(answered, flush=True)
"""
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(wire.settings())

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


async def ask_as(uid: int, path: object) -> int:
    """Says hello as another user; returns how much of the relay's SETTINGS came back."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", ASK, str(path), str(uid), HELLO.hex(), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(WAIT_S):
        out, _ = await child.communicate()
    assert child.returncode == 0
    return int(out)


@as_root
@pytest.mark.parametrize(
    ("allowed", "answer_bytes"),
    [pytest.param((), 0, id="refused"), pytest.param((STRANGER,), 9, id="allowed")],
)
async def test_another_user(public_folder: Path, allowed: tuple[int, ...], answer_bytes: int) -> None:
    async with Stage(public_folder, socket_mode=0o666, allowed_uids=allowed) as relay:
        assert await ask_as(STRANGER, relay.path) == answer_bytes
        assert await ask_as(0, relay.path) == 9


class Others:
    """Another process with many connections; each says hello, and reads nothing but its answer.

    Args:
        path: of the relay's socket.
        in_use: whether each of them begins a call, which does not end.
    """

    def __init__(self, path: object, *, in_use: bool = False) -> None:
        self._path = str(path)
        call = bytes(wire.headers(1, Headers().request(PASSING)))
        self._says = HELLO + call if in_use else HELLO
        self._child: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", HOLD, self._path, self._says.hex()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child is not None
        await self._child.communicate(b"")

    async def connect(self, count: int) -> int:
        """Connects so often more; returns how many of those the relay has answered."""
        assert self._child is not None
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(b"%d\n" % count)
        async with asyncio.timeout(WAIT_S):
            return int(await self._child.stdout.readline())


async def test_connections_are_bounded_but_for_the_watchdogs_own(tmp_path: Path) -> None:
    async with Stage(tmp_path, many_per_process=100, most_connections=40) as relay:
        async with Others(relay.path, in_use=True) as some, Others(relay.path, in_use=True) as others:
            assert await some.connect(34) == 34
            # What is kept for processes that have few is for them, and no more.
            assert await some.connect(2) == 1
            assert await others.connect(7) == 5
            assert relay.server.connection_count == 40
            assert await answers_ping(str(relay.path), WAIT_S)
        await until(lambda: relay.server.connection_count == 0)
        assert relay.server.counts.refused == {"process": 3}


@pytest.mark.parametrize("in_use", [True, False])
async def test_a_process_that_takes_all_connections_keeps_no_other_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, in_use: bool
) -> None:
    """It answers no GOAWAY, and its connections have calls that do not end, or no call at all."""
    async with Stage(tmp_path, many_per_process=5, most_connections=40) as relay:
        async with Others(relay.path, in_use=in_use) as greedy:
            assert await greedy.connect(60) == 35
            async with Others(relay.path, in_use=in_use) as kubelet:
                assert await kubelet.connect(3) == 3
        refusals = [each for each in caplog.messages if each.startswith("connection refused: process ")]
        assert len(refusals) == 1
        assert refusals[0].endswith("has 35, and there is room for 40 in all")
        await until(lambda: relay.server.connection_count == 0)
        assert not relay.server._peers
        async with Others(relay.path) as greedy:
            assert await greedy.connect(5) == 5


async def test_idle_connections_end_when_room_is_short_and_calls_in_progress_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The test's own connections are not those of the daemon's process, which are always taken.
    monkeypatch.setattr(os, "getpid", lambda: 1)
    async with Stage(tmp_path, most_connections=8) as relay:
        client, runtime = await relay.pair()
        client.send(client.call(3))
        await runtime.next_of(HEADERS, stream_id=3)
        idle = [(await relay.pair())[0] for _ in range(5)]
        assert [each.goaway for each in (client, *idle)] == [None] * 6
        await relay.pair()
        # The second, as the first is in use: GOAWAY, and with the answer to the PING the last stream.
        ping = await idle[0].next_of(PING)
        assert idle[0].goaway is not None
        idle[0].send(Frame(PING, ACK, 0, ping.payload))
        assert [(frame.type_, frame.payload) for frame in await idle[0].rest()] == [
            (GOAWAY, (1).to_bytes(4, "big") + bytes(4))
        ]
        await until(lambda: relay.server.connection_count == 6)
        runtime.send(runtime.answer(3))
        await client.next_of(HEADERS, stream_id=3)
        assert relay.server.counts.ended == {"no_room": 1}


@contextmanager
def few_descriptors(count: int) -> Iterator[None]:
    """About so many files can be opened for the length of a block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + count, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_with_few_descriptors_there_is_room_for_few_connections(tmp_path: Path) -> None:
    """As in a container whose limit is low: what the greedy one leaves is enough for others."""
    async with Stage(tmp_path) as relay:
        with few_descriptors(160):
            async with Others(relay.path, in_use=True) as greedy:
                taken = await greedy.connect(100)
                assert 20 < taken < 80
                async with Others(relay.path, in_use=True) as kubelet:
                    assert await kubelet.connect(2) == 2
            await until(lambda: relay.server.connection_count == 0)


KUBELET, SUITE, AGENT = Peer(1, 0), Peer(2, 0), Peer(3, 0)


@pytest.mark.parametrize(
    ("idle", "held", "count", "ended"),
    [
        pytest.param({}, {}, 3, "", id="none is idle"),
        pytest.param({SUITE: "abc"}, {SUITE: 9}, 2, "ab", id="the oldest of one"),
        pytest.param({SUITE: "abc", AGENT: "xyz"}, {SUITE: 7, AGENT: 6}, 3, "abx", id="in turn"),
        pytest.param({KUBELET: "k", SUITE: "ab"}, {KUBELET: 3, SUITE: 8}, 9, "ab", id="few are kept"),
        pytest.param({AGENT: "xy"}, {SUITE: 50, AGENT: 6}, 9, "xy", id="the greediest has no idle one"),
        pytest.param({SUITE: "abc"}, {SUITE: 6}, 9, "ab", id="down to a few"),
    ],
)
def test_which_idle_connections_are_ended(
    idle: dict[Peer, str], held: dict[Peer, int], count: int, ended: str
) -> None:
    found = idle_of_the_greediest({peer: deque(each) for peer, each in idle.items()}, held, count)
    assert "".join(each for _, each in found) == ended
