"""Who may connect, and how many."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys

import pytest

from runtimeproxy.relay.server import MAX_CONNECTIONS
from tests.relay import wire
from tests.relay.live.harness import WAIT_S, StartRelay, eventually

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
async def test_another_user(start_relay: StartRelay, allowed: tuple[int, ...], answer_bytes: int) -> None:
    relay = await start_relay(mode=0o666, allowed_uids=allowed)
    assert await ask_as(STRANGER, relay.path) == answer_bytes
    assert await ask_as(0, relay.path) == 9


async def test_connections_are_bounded(start_relay: StartRelay) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * MAX_CONNECTIONS + 200
    if hard < needed:
        pytest.skip(f"only {hard} open files are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    relay = await start_relay()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(MAX_CONNECTIONS):
            await stack.enter_async_context(await relay.connect())
        await eventually(lambda: relay.server.connection_count == MAX_CONNECTIONS, "all are accepted")
        async with await relay.connect() as one_more:
            assert await one_more.rest() == []
        assert relay.server.connection_count == MAX_CONNECTIONS
    await eventually(lambda: relay.server.connection_count == 0, "all are forgotten")
    async with await relay.client() as client:
        assert await client.frame(wire.SETTINGS) == wire.settings()
