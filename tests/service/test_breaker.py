"""The breaker: errors in the proxy's own code let calls pass unheld."""

from dataclasses import dataclass, field

import pytest

from runtimeproxy.service.breaker import COOL_DOWN_S, MOST_FAILURES, WINDOW_S, PassBreaker


@dataclass
class Bench:
    """A breaker with a clock and a count that the test moves."""

    now_s: float = 1000.0
    errors: int = 0
    breaker: PassBreaker = field(init=False)

    def __post_init__(self) -> None:
        self.breaker = PassBreaker(lambda: self.errors, lambda: self.now_s)
        self.breaker.passes()

    def after(self, seconds: float, errors: int = 0) -> bool:
        """Whether calls pass when some time has gone by with some errors."""
        self.now_s += seconds
        self.errors += errors
        return self.breaker.passes()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_few_errors_change_nothing(bench: Bench) -> None:
    assert not bench.after(1, MOST_FAILURES - 1)


def test_many_errors_in_the_window_open_it_for_a_while(bench: Bench) -> None:
    assert bench.after(1, MOST_FAILURES)
    assert bench.breaker.is_open
    assert bench.after(COOL_DOWN_S - 1)
    assert not bench.after(2)


def test_errors_over_a_long_time_do_not_open_it(bench: Bench) -> None:
    for _ in range(10):
        assert not bench.after(WINDOW_S / 2, MOST_FAILURES // 3)


def test_it_opens_again_when_the_errors_go_on(bench: Bench) -> None:
    assert bench.after(1, MOST_FAILURES)
    assert not bench.after(COOL_DOWN_S + 1)
    assert bench.after(1, MOST_FAILURES)


def test_errors_before_the_cool_down_do_not_count_after_it(bench: Bench) -> None:
    bench.after(1, MOST_FAILURES)
    bench.after(1, MOST_FAILURES)
    assert not bench.after(COOL_DOWN_S + 1)
    assert not bench.after(1, 1)


def test_the_operators_word_counts_more(bench: Bench) -> None:
    bench.breaker.forced = True
    assert bench.after(1)
    bench.breaker.forced = False
    assert not bench.after(1)
