"""Design 2, "Credit": the arithmetic of the debt, and the limits of what the client is given."""

from __future__ import annotations

import pytest

from tests.frontends.cri_proxy.relay.playbook import DEFAULT_WINDOW, opened
from tests.peers.wire import INITIAL_WINDOW, SETTINGS_ACK, credit, data, message, settings

MOST = (1 << 31) - 1


@pytest.mark.parametrize(
    ("debt", "increment", "passed", "left"),
    [
        pytest.param(0, 10, 10, 0, id="no-debt"),
        pytest.param(4, 10, 6, 0, id="debt-is-taken-out"),
        pytest.param(10, 10, 0, 0, id="just-paid"),
        pytest.param(25, 10, 0, 15, id="not-enough"),
    ],
)
def test_the_debt_is_paid_out_of_the_runtimes_credit(
    debt: int, increment: int, passed: int, left: int
) -> None:
    play = opened()
    flow = play.relay.flow
    flow.window_bytes, flow.debt_bytes = DEFAULT_WINDOW - debt, debt
    play.runtime(credit(0, increment))
    assert play.client_got() == ([credit(0, passed)] if passed else [])
    assert (flow.window_bytes, flow.debt_bytes) == (DEFAULT_WINDOW - debt + increment, left)


def test_a_call_costs_the_client_nothing_in_the_end() -> None:
    play = opened()
    call = play.hold(3)
    request = message(bytes(1000))
    play.client(data(3, request, end=True))
    call.reply.forward(bytes(1500))
    play.forget()
    play.runtime(credit(0, 700), credit(0, 700), credit(0, 700))
    assert play.client_got() == [credit(0, 600)]


def test_a_window_that_the_client_may_count_with_already_is_never_overrun() -> None:
    play = opened()
    play.runtime(settings({INITIAL_WINDOW: MOST}))
    play.hold(3)
    play.client(data(3, message(bytes(200_000))[:100]))
    assert play.client_got() == [credit(0, 100), credit(3, 100)]


def test_credit_that_was_kept_back_follows_when_the_window_turns_out_smaller() -> None:
    play = opened()
    play.runtime(settings({INITIAL_WINDOW: MOST}), settings({INITIAL_WINDOW: 0}))
    play.hold(3)
    play.client(data(3, message(bytes(200_000))[:100]))
    play.forget()
    play.client(SETTINGS_ACK, SETTINGS_ACK)
    assert sum(frame.number for frame in play.client_got()) == 200_005 - 100


def test_credit_of_nothing_is_the_clients_to_judge() -> None:
    play = opened()
    play.runtime(credit(0, 0), credit(1, 0))
    assert play.client_got() == [credit(0, 0), credit(1, 0)]
