"""The predecessor's side, with successors that do what the test says."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimeproxy.background import BackgroundThreads
from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallInterceptor, CallSettings
from runtimeproxy.frontends.cri_proxy.handover.predecessor import Predecessor
from runtimeproxy.frontends.cri_proxy.handover.protocol import Channel
from runtimeproxy.frontends.cri_proxy.handover.upgrade import Program, Serving, Upgrade
from runtimeproxy.frontends.cri_proxy.relay.budget import MemoryBudget
from runtimeproxy.frontends.cri_proxy.relay.connection import ConnectionOptions
from runtimeproxy.frontends.cri_proxy.relay.server import RelayServer
from runtimeproxy.frontends.cri_proxy.relay.streams import RelayOptions
from runtimeproxy.frontends.cri_proxy.wiring import Routes
from runtimeproxy.listener import Listener, listen, lock_path, read_lock
from runtimeproxy.sdnotify import Notifier, answers_ping
from tests.peers.aio import until

SUCCESSOR = """\
import json, os, socket, sys, time
given = json.loads(os.environ["KOORD_RUNTIME_PROXY_HANDOVER"])
control = socket.socket(fileno=given["control_fd"])
words = control.makefile()
def say(word):
    control.sendall(word.encode() + b"\\n")
def hear():
    return words.readline().strip()
exec(sys.argv[1])
"""
SERVES = "say('loaded'); assert hear() == 'go'; say('serving'); assert hear() == 'main'"


class Old:
    """A process that serves, as far as an upgrade is concerned."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "s")
        self.listener: Listener = listen(self.path)
        self.threads = BackgroundThreads(2, "test")
        self.said = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.said.bind(str(folder / "n"))
        self.said.setblocking(False)
        self.notifier = Notifier(str(folder / "n"))
        routes = Routes(runtime_socket=str(folder / "nobody"))
        options = RelayOptions(
            routes, CallInterceptor(CallSettings(budget_s=2.0)), MemoryBudget(1 << 20), 1 << 20
        )
        self.server = RelayServer(ConnectionOptions(options, routes.runtime, 0.1))
        self.finished = asyncio.Event()
        self.flushing = asyncio.Event()
        self.flushing.set()
        self.defect: Exception | None = None
        self.resumed = 0
        self.resuming = asyncio.Event()
        self.resuming.set()
        self.changing = asyncio.Lock()
        self.folder = folder

    async def flush(self) -> None:
        await self.flushing.wait()
        if self.defect is not None:
            raise self.defect

    def upgrade(
        self, script: str, *command: str, start_s: float = 30.0, serve_s: float = 30.0, flush_s: float = 30.0
    ) -> Upgrade:
        """An upgrade to a program that runs the script."""
        program = command or (sys.executable, "-c", SUCCESSOR, script)
        serving = Serving(
            self.listener,
            self.server,
            self.notifier,
            self.threads,
            flush=self.flush,
            finish=self.finished.set,
            resume=self._resume,
            start_s=start_s,
            drain_s=30.0,
            serve_s=serve_s,
            flush_s=flush_s,
        )
        return Upgrade(Program(program, str(self.folder), dict(os.environ)), serving)

    async def run(self, upgrade: Upgrade) -> None:
        await upgrade.run(self.changing)

    async def part(self, upgrade: Upgrade) -> None:
        """The end of this process, which the successor's would outlive."""
        assert upgrade._successor is not None
        await upgrade.send_drained()
        await asyncio.to_thread(upgrade._successor._process.wait, 30)

    async def _resume(self) -> None:
        self.resumed += 1
        await self.resuming.wait()
        if self.defect is not None:
            raise self.defect

    @property
    def note(self) -> str:
        return read_lock(lock_path(self.path))[1].partition(" ")[2]

    async def close(self) -> None:
        self.server.stop_accepting()
        await self.server.drain(0)
        self.listener.release()
        self.threads.shutdown()
        self.said.close()


@pytest.fixture
async def old(socket_folder: Path) -> AsyncIterator[Old]:
    made = Old(socket_folder)
    await made.server.start(made.listener)
    yield made
    await made.close()


async def test_a_successor_that_serves(old: Old) -> None:
    upgrade = old.upgrade(f"{SERVES}; assert hear() == 'drained'; hear()")
    await old.run(upgrade)
    assert old.finished.is_set()
    assert upgrade.has_moved
    assert not old.listener.is_owner
    assert old.said.recv(100).startswith(b"MAINPID=")
    assert not old.notifier.stopping()
    await upgrade.stop()
    await old.part(upgrade)
    assert old.resumed == 0


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("sys.exit(3)", "it ended with exit code 3 before it was loaded"),
        ("os.kill(os.getpid(), 9)", "it was ended by SIGKILL before it was loaded"),
        ("say('nonsense'); hear()", "it sent 'nonsense' before it was loaded"),
        ("say('serving'); hear()", "it sent 'serving' before it was loaded"),
        ("say('loaded'); hear(); sys.exit(0)", "it ended with exit code 0 before it was serving"),
        ("say('loaded'); hear(); os.kill(os.getpid(), 9)", "it was ended by SIGKILL before it was serving"),
        (f"{SERVES}; os.kill(os.getpid(), 9)", "the successor ended after it had taken over"),
    ],
    ids=["exits", "dies", "talks nonsense", "hurries", "exits after go", "dies after go", "dies after main"],
)
async def test_all_is_as_before(old: Old, script: str, reason: str) -> None:
    upgrade = old.upgrade(script)
    client = await asyncio.open_unix_connection(old.path)
    await old.run(upgrade)
    assert not old.finished.is_set() or "taken over" in reason
    assert old.note == f"upgrade failed: {reason}"
    assert old.listener.is_owner
    assert old.resumed == 1
    assert not upgrade.has_moved
    assert await answers_ping(old.path, 30)
    client[1].close()


async def test_clients_wait_until_it_is_known_what_the_successor_did(old: Old) -> None:
    old.resuming.clear()
    upgrade = old.upgrade(f"{SERVES}; os.kill(os.getpid(), 9)")
    _, kept = await asyncio.open_unix_connection(old.path)
    running = asyncio.ensure_future(old.run(upgrade))
    await until(lambda: old.resumed == 1)
    moved = [upgrade.has_moved]
    _, waiting = await asyncio.open_unix_connection(old.path)
    before = old.server.connection_count
    old.resuming.set()
    await running
    moved.append(upgrade.has_moved)
    assert moved == [True, False]
    await until(lambda: old.server.connection_count > before)
    for writer in (kept, waiting):
        writer.close()


async def test_who_has_read_of_a_failure_may_ask_again_at_once(old: Old) -> None:
    """The state may still be taken back then."""
    upgrade = old.upgrade(
        f"os.path.exists('fails') and sys.exit(1); {SERVES}; assert hear() == 'drained'; hear()"
    )
    mark = old.folder / "fails"
    mark.touch()
    old.resuming.clear()
    first = asyncio.ensure_future(old.run(upgrade))
    await until(lambda: old.note == "upgrade failed: it ended with exit code 1 before it was loaded")
    mark.unlink()
    second = asyncio.ensure_future(old.run(upgrade))
    await until(lambda: old.resumed == 1)
    assert not first.done()
    assert not second.done()
    old.resuming.set()
    await asyncio.wait((first, second))
    assert upgrade.has_moved
    await old.part(upgrade)


async def test_a_process_that_ends_starts_none_after_a_failure(old: Old) -> None:
    upgrade = old.upgrade("sys.exit(1)")
    old.resuming.clear()
    first = asyncio.ensure_future(old.run(upgrade))
    await until(lambda: old.resumed == 1)
    second = asyncio.ensure_future(old.run(upgrade))
    await asyncio.sleep(0)
    await upgrade.stop()
    await asyncio.wait((first, second))
    assert upgrade.failures == 1
    assert second.exception() is None


@pytest.mark.parametrize(
    ("script", "reason"),
    [("hear()", "it was not loaded"), ("say('loaded'); hear(); hear()", "it was not serving")],
)
async def test_one_that_hangs_is_killed(old: Old, script: str, reason: str) -> None:
    # One that is to be loaded has the time that a start takes on a busy machine.
    limits = {"start_s": 2.0} if "loaded" in reason else {"serve_s": 0.2}
    await old.run(old.upgrade(script, **limits))
    assert old.note == f"upgrade failed: {reason} within {max(limits.values()):g} s"
    assert await answers_ping(old.path, 30)


async def test_a_program_that_is_gone(old: Old) -> None:
    await old.run(old.upgrade("", "/nowhere/python"))
    assert old.note.startswith("upgrade failed: it cannot be started: ")


async def test_records_that_cannot_be_written_in_time(old: Old, caplog: pytest.LogCaptureFixture) -> None:
    old.flushing.clear()
    upgrade = old.upgrade(f"{SERVES}; hear()", flush_s=0.1)
    await old.run(upgrade)
    assert old.finished.is_set()
    assert "not written in time" in caplog.text
    await old.part(upgrade)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        pytest.param(SERVES, "internal error", id="while it writes records"),
        pytest.param("sys.exit(3)", "it ended with exit code 3 before it was loaded", id="while it resumes"),
    ],
)
async def test_an_own_error_keeps_nobody_out(
    old: Old, script: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    old.defect = RuntimeError("a bug")
    upgrade = old.upgrade(script)
    await old.run(upgrade)
    assert old.note == f"upgrade failed: {reason}"
    assert "a bug" in caplog.text
    assert not upgrade.has_moved
    assert await answers_ping(old.path, 30)


async def test_a_successor_that_ended_is_not_the_main_process(old: Old) -> None:
    _, kept = await asyncio.open_unix_connection(old.path)
    await old.run(old.upgrade(f"{SERVES}; os.kill(os.getpid(), 9)"))
    kept.close()
    assert old.said.recv(100) != f"MAINPID={os.getpid()}".encode()
    assert old.said.recv(100) == f"MAINPID={os.getpid()}".encode()
    assert old.notifier.watchdog()


async def test_a_stop_meanwhile_ends_the_successor(old: Old) -> None:
    upgrade = old.upgrade("say('loaded'); hear(); hear()")
    running = asyncio.ensure_future(old.run(upgrade))
    await until(lambda: not old.listener.is_owner)
    await upgrade.stop()
    assert running.cancelled()
    assert old.listener.is_owner


async def test_a_stop_while_the_process_is_started(old: Old) -> None:
    upgrade = old.upgrade("hear()")
    running = asyncio.ensure_future(old.run(upgrade))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await upgrade.stop()
    assert running.cancelled()
    assert old.listener.is_owner


async def test_refusals(old: Old) -> None:
    here, there = socket.socketpair()
    upgrade = old.upgrade("hear()")
    upgrade._predecessor = predecessor = Predecessor(Channel(here), old.listener)
    await old.run(upgrade)
    there.close()
    assert old.note == "upgrade refused: the process before this one still drains"
    await predecessor.report_loaded()
    await predecessor.wait_until_drained()
    running = asyncio.ensure_future(old.run(upgrade))
    await asyncio.sleep(0)
    await old.run(upgrade)
    assert old.note == "upgrade refused: one is in progress"
    await upgrade.stop()
    assert running.cancelled()


async def test_a_successor_that_is_told_to_end_ends_both(old: Old) -> None:
    _, writer = await asyncio.open_unix_connection(old.path)
    await until(lambda: old.server.connection_count == 1)
    upgrade = old.upgrade(f"{SERVES}; say('stopping'); hear()")
    await old.run(upgrade)
    assert old.finished.is_set()
    writer.close()
    await old.part(upgrade)
