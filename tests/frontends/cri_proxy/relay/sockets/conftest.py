"""Every asynchronous test of this folder runs in asyncio's own loop and in uvloop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from runtimeproxy.frontends.cri_proxy.relay import connection
from tests.event_loops import pytest_asyncio_loop_factories
from tests.frontends.cri_proxy.relay.sockets.stage import Stage

__all__ = ["pytest_asyncio_loop_factories"]


@pytest.fixture
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that are over do not wait a whole second for clients that never close."""
    monkeypatch.setattr(connection, "LINGER_S", 0.1)


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that ends does not wait a whole second for clients that do not answer."""
    monkeypatch.setattr(connection, "GRACE_S", 0.1)


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A relay that listens, and a runtime that does what the test says."""
    async with Stage(tmp_path) as running:
        yield running
