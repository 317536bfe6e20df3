"""The bypass: by an operator's choice, by the configuration, or because the proxy keeps failing."""

from dataclasses import dataclass, field

import pytest

from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallInterceptor, CallSettings
from runtimeproxy.service.bypass import COOL_DOWN_S, MOST_FAILURES, WINDOW_S, Bypass, Cause


@dataclass
class Stand:
    """An interceptor with its bypass, and a clock and a count of errors that the test moves."""

    errors: int = 0
    now_s: float = 1000.0
    ended: int = 0
    turned: list[tuple[bool, Cause, str]] = field(default_factory=list)
    interceptor: CallInterceptor = field(default_factory=lambda: CallInterceptor(CallSettings(budget_s=2.0)))
    bypass: Bypass = field(init=False)

    def __post_init__(self) -> None:
        self.bypass = Bypass(self.interceptor, lambda: self.errors, False, self._note, lambda: self.now_s)

    def after(self, seconds: float, errors: int = 0) -> bool:
        """Whether the bypass is on when some time has gone by with some errors."""
        self.now_s += seconds
        self.errors += errors
        self.bypass.update()
        return self.interceptor.bypass

    def fail(self) -> bool:
        """Whether it is on after as many errors as open the breaker."""
        return self.after(0, MOST_FAILURES)

    def _note(self, is_on: bool, by: Cause, reason: str) -> None:
        self.turned.append((is_on, by, reason))
        self.ended += not is_on


@pytest.fixture
def stand() -> Stand:
    return Stand()


def test_what_has_turned_it_is_told(stand: Stand) -> None:
    stand.bypass.choose(True, Cause.COMMAND, "a test")
    stand.bypass.choose(True, Cause.SIGNAL)
    stand.bypass.configure(False)
    stand.fail()
    stand.after(COOL_DOWN_S + 1)
    assert stand.turned == [
        (True, Cause.COMMAND, "a test"),
        (False, Cause.CONFIGURATION, ""),
        (True, Cause.BREAKER, ""),
        (False, Cause.BREAKER, ""),
    ]


def test_an_operators_choice(stand: Stand) -> None:
    stand.bypass.choose(True)
    assert stand.interceptor.bypass
    stand.bypass.choose(False)
    assert (stand.interceptor.bypass, stand.ended) == (False, 1)


def test_an_operator_ends_what_the_breaker_began(stand: Stand) -> None:
    assert stand.fail()
    stand.bypass.choose(False)
    assert (stand.interceptor.bypass, stand.ended) == (False, 1)
    assert stand.fail(), "errors that go on open it again"


@pytest.mark.parametrize(
    ("configured", "choices", "chosen"),
    [
        pytest.param(False, (True,), True, id="off-in-spite-of-the-configuration"),
        pytest.param(True, (False,), False, id="on-in-spite-of-the-configuration"),
        pytest.param(False, (True, False), None, id="as-configured-again"),
    ],
)
def test_a_successor_hears_what_its_configuration_does_not_say(
    stand: Stand, configured: bool, choices: tuple[bool, ...], chosen: bool | None
) -> None:
    stand.bypass.configure(configured)
    for is_on in choices:
        stand.bypass.choose(is_on)
    assert stand.bypass.chosen is chosen


def test_a_change_of_the_configuration_counts_more_than_an_earlier_word(stand: Stand) -> None:
    stand.bypass.choose(True)
    stand.bypass.configure(False)
    assert (stand.interceptor.bypass, stand.bypass.chosen) == (False, None)


def test_few_errors_change_nothing(stand: Stand) -> None:
    assert not stand.after(1, MOST_FAILURES - 1)


def test_many_errors_within_the_window_turn_it_on_for_a_while(stand: Stand) -> None:
    assert stand.after(1, MOST_FAILURES)
    assert stand.after(COOL_DOWN_S - 1)
    assert not stand.after(2)
    assert stand.ended == 1


def test_errors_over_a_long_time_do_not_turn_it_on(stand: Stand) -> None:
    for _ in range(10):
        assert not stand.after(WINDOW_S / 2, MOST_FAILURES // 3)


def test_it_is_on_again_when_the_errors_go_on(stand: Stand) -> None:
    assert stand.after(1, MOST_FAILURES)
    assert not stand.after(COOL_DOWN_S + 1)
    assert stand.after(1, MOST_FAILURES)


def test_errors_before_the_cool_down_do_not_count_after_it(stand: Stand) -> None:
    stand.after(1, MOST_FAILURES)
    stand.after(1, MOST_FAILURES)
    assert not stand.after(COOL_DOWN_S + 1)
    assert not stand.after(1, 1)
