"""SETTINGS that change in the middle of a held message, and SETTINGS that just pass."""

from __future__ import annotations

import pytest

from tests.frontends.cri_proxy.relay.playbook import Play, opened
from tests.peers.wire import (
    INITIAL_WINDOW,
    MAX_FRAME,
    SETTINGS,
    SETTINGS_ACK,
    Frame,
    data,
    message,
    settings,
    unknown,
)


def sent_of(play: Play, size: int) -> int:
    """How much of a held message of `size` bytes goes to the runtime now."""
    call = play.hold(3)
    play.client(data(3, message(b"abc"), end=True))
    play.forget()
    call.reply.forward(bytes(size))
    return sum(len(frame.payload) for frame in play.runtime_got())


def test_the_ack_stands_before_the_own_data_that_it_allows() -> None:
    play = opened(runtime_settings={INITIAL_WINDOW: 100})
    play.runtime(settings({INITIAL_WINDOW: 200}))
    assert sent_of(play, 300) == 100
    play.client(SETTINGS_ACK)
    assert play.runtime_got() == [SETTINGS_ACK, data(3, bytes(100))]


def test_a_window_lowered_in_mid_message_stops_it_until_credit_makes_up_for_it() -> None:
    play = opened(runtime_settings={INITIAL_WINDOW: 200})
    assert sent_of(play, 300) == 200
    play.runtime(settings({INITIAL_WINDOW: 150}), Frame(8, 0, 3, (60).to_bytes(4, "big")))
    assert play.runtime_got() == [data(3, bytes(10))]


def test_a_window_raised_in_mid_message_lets_it_go_on() -> None:
    play = opened(runtime_settings={INITIAL_WINDOW: 200})
    assert sent_of(play, 300) == 200
    play.runtime(settings({INITIAL_WINDOW: 400}))
    assert play.runtime_got() == []
    play.client(SETTINGS_ACK)
    assert data(3, bytes(100), end=True) in play.runtime_got()


def test_a_client_may_still_use_a_window_whose_lowering_it_has_not_acknowledged() -> None:
    play = opened(runtime_settings={INITIAL_WINDOW: 100})
    call = play.hold(3)
    play.runtime(settings({INITIAL_WINDOW: 10}))
    play.client(data(3, message(bytes(95)), end=True))
    assert call.events == [("message", message(bytes(95)))]


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(settings({0x7777: 1}), id="unknown-setting"),
        pytest.param(Frame(SETTINGS, 0, 0, bytes(7)), id="of-an-odd-length"),
        pytest.param(settings({MAX_FRAME: 0, INITIAL_WINDOW: 0xFFFFFFFF}), id="values-out-of-range"),
    ],
)
def test_settings_pass_as_they_came_in_both_directions(frame: Frame) -> None:
    play = opened()
    play.client(frame)
    play.runtime(frame)
    assert play.runtime_got() == play.client_got() == [frame]


def test_acks_that_nothing_waits_for_pass() -> None:
    play = opened()
    play.client(SETTINGS_ACK, unknown())
    play.runtime(SETTINGS_ACK, unknown())
    assert play.runtime_got() == play.client_got() == [SETTINGS_ACK, unknown()]
