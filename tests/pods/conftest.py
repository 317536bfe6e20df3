"""A client of the fake runtime, and a checkpoint that does not wait long."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from runtimeproxy.pods.checkpoint import file
from runtimeproxy.pods.runtime_client import ClientSettings, GrpcRuntimeClient
from runtimeproxy.testing import FakeRuntime


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the wait for a locked file."""
    monkeypatch.setattr(file, "BUSY_TIMEOUT_S", 0.05)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
async def client(fake_runtime: FakeRuntime, executor: ThreadPoolExecutor) -> AsyncIterator[GrpcRuntimeClient]:
    settings = ClientSettings(fake_runtime.endpoint, list_timeout_s=30, status_timeout_s=30)
    found = GrpcRuntimeClient(settings, executor)
    yield found
    await found.close()
