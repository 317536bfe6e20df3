"""A client of the fake runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from runtimeproxy.pods.runtime_client import ClientSettings, GrpcRuntimeClient
from runtimeproxy.testing import FakeRuntime


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
