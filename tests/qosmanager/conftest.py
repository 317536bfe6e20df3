"""A fake daemon, and what is connected to it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.logs import FailureLog
from runtimeproxy.qosmanager import client as client_module
from runtimeproxy.qosmanager.client import DaemonClient
from tests.qosmanager.fake_daemon import WAIT_S, FakeDaemon


@pytest.fixture
async def daemon(socket_folder: Path) -> AsyncIterator[FakeDaemon]:
    async with FakeDaemon(socket_folder / "api.sock") as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections and polls without long pauses."""
    monkeypatch.setattr(client_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(client_module, "POLL_S", 0.02)


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """A manager sets the level of the whole process."""
    root = logging.getLogger()
    before = root.level
    yield
    root.setLevel(before)


class Client:
    """A client that runs."""

    def __init__(self, path: Path) -> None:
        self.client = DaemonClient(str(path), FailureLog())

    async def wait_for(self, is_true: Callable[[], object]) -> None:
        """Waits until something that the client knows is so."""
        async with asyncio.timeout(WAIT_S):
            while not is_true():
                self.client.changed.clear()
                await self.client.changed.wait()


@pytest.fixture
async def client(daemon: FakeDaemon) -> AsyncIterator[Client]:
    made = Client(daemon.path)
    work: Coroutine[Any, Any, None] = made.client.run()
    task = asyncio.get_running_loop().create_task(work)
    yield made
    task.cancel()
    await asyncio.wait({task})
