"""The watchdog's question through the own socket."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallInterceptor, CallSettings
from runtimeproxy.frontends.cri_proxy.relay.budget import MemoryBudget
from runtimeproxy.frontends.cri_proxy.relay.connection import ConnectionOptions
from runtimeproxy.frontends.cri_proxy.relay.server import RelayServer
from runtimeproxy.frontends.cri_proxy.relay.streams import RelayOptions
from runtimeproxy.frontends.cri_proxy.wiring import Routes
from runtimeproxy.listener import listen
from runtimeproxy.sdnotify import Notifier, answers_ping, feed_watchdog
from tests.peers.aio import until

SHORT_S = 0.3


class Relaying:
    """A relay on a loop in a thread of its own, whose loop can be blocked."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._loop = asyncio.new_event_loop()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._is_up.wait(30)

    def block(self) -> threading.Event:
        """Lets the loop hang until the event is set."""
        free, hangs = threading.Event(), threading.Event()
        self._loop.call_soon_threadsafe(hangs.set)
        self._loop.call_soon_threadsafe(free.wait, 30)
        hangs.wait(30)
        return free

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        # There is no runtime: its absence is none of the watchdog's business.
        routes = Routes(runtime_socket=f"{self.path}.nobody")
        options = RelayOptions(
            routes, CallInterceptor(CallSettings(budget_s=2.0)), MemoryBudget(1 << 20), 1 << 20
        )
        listener = listen(self.path)
        server: list[RelayServer] = []

        async def start() -> None:
            server.append(RelayServer(ConnectionOptions(options, routes.runtime, 0.1)))
            await server[0].start(listener)
            self._is_up.set()

        self._loop.run_until_complete(start())
        self._loop.run_forever()
        server[0].stop_accepting()
        self._loop.run_until_complete(server[0].drain(0.1))
        listener.release()
        self._loop.close()


@pytest.fixture
async def relaying(socket_folder: Path) -> AsyncIterator[Relaying]:
    made = Relaying(socket_folder / "own.sock")
    yield made
    await asyncio.to_thread(made.close)


async def test_a_relay_answers(relaying: Relaying) -> None:
    assert await answers_ping(relaying.path, 30)


async def test_a_relay_whose_loop_hangs_does_not(relaying: Relaying) -> None:
    free = relaying.block()
    assert not await answers_ping(relaying.path, SHORT_S)
    free.set()
    assert await answers_ping(relaying.path, 30)


async def test_a_socket_that_nobody_serves(socket_folder: Path) -> None:
    assert not await answers_ping(str(socket_folder / "missing"), SHORT_S)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
        deaf.bind(str(socket_folder / "deaf"))
        assert not await answers_ping(str(socket_folder / "deaf"), SHORT_S)
        deaf.listen()
        assert not await answers_ping(str(socket_folder / "deaf"), SHORT_S)


async def test_somebody_who_speaks_no_http2(socket_folder: Path) -> None:
    async def hangs_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"go away")
        writer.close()

    async with await asyncio.start_unix_server(hangs_up, socket_folder / "rude"):
        assert not await answers_ping(str(socket_folder / "rude"), SHORT_S)


async def test_it_is_fed_while_the_socket_answers(
    relaying: Relaying, socket_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(socket_folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.setblocking(False)
        loop = asyncio.get_running_loop()
        feeding = asyncio.ensure_future(feed_watchdog(SHORT_S, relaying.path, Notifier(path)))
        assert await asyncio.wait_for(loop.sock_recv(manager, 100), 30) == b"WATCHDOG=1"
        free = relaying.block()
        await until(lambda: bool(caplog.records))
        free.set()
        feeding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await feeding
    assert f"no answer on the proxy's own socket {relaying.path}" in caplog.text
