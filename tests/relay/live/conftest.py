"""Each asynchronous test here runs on asyncio and on uvloop."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.event_loops import pytest_asyncio_loop_factories
from tests.relay.live.harness import LiveRelay, RawServer, StartRelay

__all__ = ["pytest_asyncio_loop_factories"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for sockets, which every user can enter."""
    with tempfile.TemporaryDirectory(prefix="relay-", dir="/tmp") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture
async def runtime(folder: Path) -> AsyncIterator[RawServer]:
    """A server that does only what the test tells it."""
    async with RawServer(folder / "runtime.sock") as server:
        yield server


@pytest.fixture
async def start_relay(folder: Path) -> AsyncIterator[StartRelay]:
    """Starts relays in front of `runtime.sock`; they end with the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(**options: object) -> LiveRelay:
            relay = LiveRelay(folder / "relay.sock", folder / "runtime.sock", **options)  # type: ignore[arg-type]
            return await stack.enter_async_context(relay)

        yield start


@pytest.fixture
async def relay(start_relay: StartRelay) -> LiveRelay:
    return await start_relay()
