"""The switch and the breaker together: whose word counts."""

from dataclasses import dataclass, field

import pytest

from runtimeproxy.service.breaker import MOST_FAILURES
from runtimeproxy.service.bypass import Bypass
from runtimeproxy.service.gate import Gate


@dataclass
class Stand:
    """A gate with its bypass, and a count of errors that the test moves."""

    errors: int = 0
    held_again: int = 0
    gate: Gate = field(default_factory=lambda: Gate(1.0))
    bypass: Bypass = field(init=False)

    def __post_init__(self) -> None:
        self.bypass = Bypass(self.gate, lambda: self.errors, False, self._note)

    def fail(self) -> bool:
        """Whether calls pass after as many errors as open the breaker."""
        self.errors += MOST_FAILURES
        self.bypass.look()
        return self.gate.bypass

    def _note(self) -> None:
        self.held_again += 1


@pytest.fixture
def stand() -> Stand:
    return Stand()


def test_the_switch(stand: Stand) -> None:
    stand.bypass.switch(True)
    assert stand.gate.bypass
    stand.bypass.switch(False)
    assert (stand.gate.bypass, stand.held_again) == (False, 1)


def test_an_operator_ends_what_the_breaker_began(stand: Stand) -> None:
    assert stand.fail()
    stand.bypass.switch(False)
    assert (stand.gate.bypass, stand.held_again) == (False, 1)
    assert stand.fail(), "errors that go on open it again"


@pytest.mark.parametrize(
    ("configured", "words", "told"),
    [
        pytest.param(False, (True,), True, id="off-in-spite-of-the-configuration"),
        pytest.param(True, (False,), False, id="on-in-spite-of-the-configuration"),
        pytest.param(False, (True, False), None, id="as-configured-again"),
    ],
)
def test_a_successor_hears_what_its_configuration_does_not_say(
    stand: Stand, configured: bool, words: tuple[bool, ...], told: bool | None
) -> None:
    stand.bypass.configure(configured)
    for passes in words:
        stand.bypass.switch(passes)
    assert stand.bypass.switched is told


def test_a_change_of_the_configuration_counts_more_than_an_earlier_word(stand: Stand) -> None:
    stand.bypass.switch(True)
    stand.bypass.configure(False)
    assert (stand.gate.bypass, stand.bypass.switched) == (False, None)
