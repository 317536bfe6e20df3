"""Each asynchronous test here runs on asyncio and on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop

from runtimeproxy.hooks.workers import Workers
from tests.hooks.policy_classes import Hanging


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


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
