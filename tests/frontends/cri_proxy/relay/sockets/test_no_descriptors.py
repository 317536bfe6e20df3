"""A process that is out of file descriptors: clients wait, and none is lost."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.sdnotify import answers_ping
from tests.frontends.cri_proxy.relay.playbook import HELD
from tests.frontends.cri_proxy.relay.sockets.stage import Stage
from tests.peers.aio import WAIT_S, soon, until
from tests.peers.wire import GOAWAY, HEADERS, data, goaway, message

CONNECT = """
import socket, sys
sys.stdin.readline()
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect(sys.argv[1])
    print("served" if sock.recv(1) else "refused", end="")
"""


@contextlib.contextmanager
def left(count: int) -> Iterator[None]:
    """So many files can be opened for the length of a block, with the highest numbers that are allowed."""
    # What earlier tests left behind would be closed in the middle of this one.
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 50, hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_clients_wait(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        with left(0):
            client.connect(str(stage.path))
            await until(lambda: "clients have to wait" in caplog.text)
        await until(lambda: stage.server.connection_count == 1)


async def test_who_is_connected_needs_none(stage: Stage) -> None:
    client = await stage.client()
    client.begin()
    await client.frame()
    (connection,) = stage.server._connections
    with left(0):
        client.send(client.call(1, end=True))
        # The runtime is in this process, too, and cannot accept.
        await until(lambda: connection._adopting is not None)
    assert stage.server.defect_count == 0


async def test_clients_whose_upstream_could_not_be_connected_to_are_refused(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """The daemon's own watchdog is not, although it connects like all others."""
    await stage.pair()
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", CONNECT, str(stage.path)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    # The daemon leaves four to itself; its watchdog's question needs two of them.
    with left(4):
        output, _ = await soon(child.communicate(b"now\n"))
        assert output == b"refused"
        assert await answers_ping(str(stage.path), WAIT_S)
    assert "connection refused: the last file descriptors are reserved for the daemon" in caplog.messages
    await stage.pair()


async def test_calls_are_refused_when_their_time_is_over(tmp_path: Path) -> None:
    async with Stage(tmp_path, has_runtime=False, upstream_wait_s=0.05) as stage:
        client = await stage.client()
        client.begin()
        await client.frame()
        client.send(client.call(1), client.call(3, HELD), data(3, message(b"x"), end=True))
        await until(lambda: bool(stage.held and stage.held[0].events))
        with left(0):
            *answers, last = [frame for frame in await client.rest() if frame.type_ in (HEADERS, GOAWAY)]
        assert ([frame.stream_id for frame in answers], last) == ([1, 3], goaway(3))
        fields = client.headers.read(answers[0].payload)
        assert fields["grpc-status"] == "14"
        assert fields["grpc-message"].endswith("is not reachable: No such file or directory")
        assert stage.held[0].names == ["message", "cancelled"]
