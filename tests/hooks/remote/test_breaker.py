"""When a server is skipped, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from runtimeproxy.hooks.remote.server import Breaker, Prober
from tests.hooks.asking import until


@pytest.fixture
def breaker() -> Breaker:
    """One second passes each time that it looks at its clock."""
    return Breaker(map(float, count(100)).__next__)


def test_three_failures_in_a_row_open_it(breaker: Breaker) -> None:
    assert [breaker.on_failure(cause) for cause in ("a", "b", "c", "d")] == [False, False, True, False]
    assert breaker.is_open
    assert breaker.opened == (100.0, "c")


def test_failures_with_answers_between_them_do_not(breaker: Breaker) -> None:
    for _ in range(5):
        assert not breaker.on_failure("a")
        assert not breaker.on_failure("b")
        assert breaker.on_response() is None
    assert not breaker.is_open


def test_an_answer_closes_it(breaker: Breaker) -> None:
    for _ in range(3):
        breaker.on_failure("a")
    assert breaker.on_response() == 1.0
    assert not breaker.is_open
    assert breaker.on_response() is None
    assert [breaker.on_failure("a") for _ in range(3)] == [False, False, True]


async def test_a_prober_asks_until_it_is_stopped() -> None:
    asked: list[float] = []

    def probe(deadline_s: float, over: Callable[[], None]) -> None:
        asked.append(deadline_s)
        over()

    prober = Prober(probe, frozenset({1.0, 2.0}), 0.01)
    prober.start()
    prober.start()
    assert prober.is_running
    await until(lambda: set(asked) == {1.0, 2.0})
    prober.stop()
    assert not prober.is_running


async def test_a_probe_that_ends_after_the_stop_begins_no_other() -> None:
    under_way: list[Callable[[], None]] = []
    prober = Prober(lambda _, over: under_way.append(over), frozenset({1.0}), 0.01)
    prober.start()
    await until(lambda: bool(under_way))
    prober.stop()
    prober.start()
    under_way[0]()
    await until(lambda: len(under_way) == 2)
    prober.close()
    under_way[1]()
    assert not prober.is_running


async def test_a_closed_prober_does_not_start() -> None:
    prober = Prober(lambda _, over: over(), frozenset({1.0}), 0.01)
    prober.close()
    prober.start()
    assert not prober.is_running
