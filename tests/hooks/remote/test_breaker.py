"""When a server is skipped, and for how long."""

from __future__ import annotations

import threading
from itertools import count

import pytest

from runtimeproxy.hooks.remote.breaker import Breaker, Prober
from tests.lab.deadline import wait_until


@pytest.fixture
def breaker() -> Breaker:
    """One second passes each time that it looks at its clock."""
    return Breaker(map(float, count(100)).__next__)


def test_three_failures_in_a_row_open_it(breaker: Breaker) -> None:
    assert [breaker.failed(cause) for cause in ("a", "b", "c", "d")] == [False, False, True, False]
    assert breaker.is_open
    assert breaker.opened == (100.0, "c")


def test_failures_with_answers_between_them_do_not(breaker: Breaker) -> None:
    for _ in range(5):
        assert not breaker.failed("a")
        assert not breaker.failed("b")
        assert breaker.answered() is None
    assert not breaker.is_open


def test_an_answer_closes_it(breaker: Breaker) -> None:
    for _ in range(3):
        breaker.failed("a")
    assert breaker.answered() == 1.0
    assert not breaker.is_open
    assert breaker.answered() is None
    assert [breaker.failed("a") for _ in range(3)] == [False, False, True]


def test_one_of_many_threads_opens_it(breaker: Breaker) -> None:
    opened: list[bool] = []
    start = threading.Barrier(8)

    def fail() -> None:
        start.wait()
        opened.extend(breaker.failed("a") for _ in range(100))

    threads = [threading.Thread(target=fail) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened.count(True) == 1


def test_a_prober_asks_until_it_is_stopped() -> None:
    asked: list[float] = []
    prober = Prober("probe-test", asked.append, frozenset({1.0, 2.0}))
    prober.start()
    prober.start()
    wait_until(lambda: set(asked) == {1.0, 2.0}, "a probe with each deadline")
    prober.stop()
    wait_until(lambda: not _probes(), "the end of the probes' threads")


def test_a_closed_prober_does_not_start() -> None:
    prober = Prober("probe-test", lambda _: None, frozenset({1.0}))
    prober.close()
    prober.start()
    assert not _probes()


def _probes() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "probe-test"]
