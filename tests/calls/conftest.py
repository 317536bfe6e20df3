"""Held calls on both event loops."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.calls.scripted import Surroundings
from tests.event_loops import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]


@pytest.fixture
async def desk() -> AsyncIterator[Surroundings]:
    surroundings = Surroundings()
    yield surroundings
    await surroundings.close()
