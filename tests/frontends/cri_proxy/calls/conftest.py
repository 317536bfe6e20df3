"""Held calls on both event loops."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.event_loops import pytest_asyncio_loop_factories
from tests.frontends.cri_proxy.calls.scripted import Surroundings

__all__ = ["pytest_asyncio_loop_factories"]


@pytest.fixture
async def desk() -> AsyncIterator[Surroundings]:
    surroundings = Surroundings()
    yield surroundings
    await surroundings.close()
