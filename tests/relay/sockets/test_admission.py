"""Who may connect, and how many."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from runtimeproxy.relay.server import MAX_CONNECTIONS
from runtimeproxy.sdnotify import answers_ping
from tests.peers import wire
from tests.peers.aio import WAIT_S, until
from tests.relay.sockets.stage import Stage

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
    for _ in range(int(line)):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(sys.argv[1])
        held.append(sock)
        try:
            sock.sendall(bytes.fromhex(sys.argv[2]))
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
    """Another process with many connections; each says hello."""

    def __init__(self, path: object) -> None:
        self._path = str(path)
        self._child: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", HOLD, self._path, HELLO.hex()),
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


@pytest.fixture
def many_files() -> Iterator[None]:
    """As many files may be open as a full relay needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * MAX_CONNECTIONS + 300
    if hard < needed:
        pytest.skip(f"only {hard} open files are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_connections_are_bounded_but_for_the_watchdogs_own(stage: Stage, many_files: None) -> None:
    async with Others(stage.path) as others:
        assert await others.connect(MAX_CONNECTIONS) == MAX_CONNECTIONS
        assert await others.connect(2) == 0
        assert stage.server.connection_count == MAX_CONNECTIONS
        assert await answers_ping(str(stage.path), WAIT_S)
    await until(lambda: stage.server.connection_count == 0)
    client = await stage.client()
    client.begin()
    assert await client.frame() == wire.settings()


async def test_one_process_has_its_part_of_the_connections_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Stage(tmp_path, most_per_process=5) as relay:
        async with Others(relay.path) as greedy, Others(relay.path) as other:
            assert await greedy.connect(5) == 5
            assert await greedy.connect(20) == 0
            assert await other.connect(1) == 1
        refusals = [each for each in caplog.messages if each.startswith("connection refused: process ")]
        assert len(refusals) == 1
        assert refusals[0].endswith("has 5 already")
        await until(lambda: relay.server.connection_count == 0)
        async with Others(relay.path) as greedy:
            assert await greedy.connect(5) == 5
        await until(lambda: relay.server.connection_count == 0)
        assert not relay.server._peers
