"""Each asynchronous test here runs on asyncio and on uvloop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runtimeproxy.hooks.workers import Workers
from tests.event_loops import pytest_asyncio_loop_factories
from tests.hooks.policy_classes import Hanging

__all__ = ["pytest_asyncio_loop_factories"]


@pytest.fixture
def workers() -> Iterator[Workers]:
    pool = Workers(2, spares=1)
    yield pool
    pool.close()


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    answer = Hanging()
    yield answer
    answer.released.set()
