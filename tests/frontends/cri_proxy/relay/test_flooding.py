"""Peers that send more of something than anybody needs: bounded, and without work that grows faster."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from runtimeproxy.frontends.cri_proxy.relay.flow_control import MAX_WAITING
from runtimeproxy.frontends.cri_proxy.relay.peer_settings import MAX_UNACKNOWLEDGED
from runtimeproxy.frontends.cri_proxy.relay.request import MAX_SPECIAL_STREAMS
from runtimeproxy.http2.frames import PeerError
from tests.frontends.cri_proxy.relay.playbook import (
    DEFAULT_WINDOW,
    HELD,
    Play,
    forward_as_it_came,
    grant,
    opened,
)
from tests.peers.wire import ENHANCE_YOUR_CALM, SETTINGS_ACK, Frame, data, message, reset, settings


def in_debt() -> Play:
    """The runtime's window is used up by the relay's own DATA, and one byte of stream 3 waits."""
    play = opened()
    play.client(play.call(3))
    call = play.hold(51)
    play.client(data(51, end=True))
    call.reply.forward(bytes(DEFAULT_WINDOW))
    play.client(data(3, b"x"))
    play.forget()
    play.interceptor.decide = forward_as_it_came
    return play


def calmed(send: Callable[[], None]) -> None:
    """The connection has to end."""
    with pytest.raises(PeerError) as raised:
        send()
    assert raised.value.code == ENHANCE_YOUR_CALM


@pytest.mark.parametrize("side", ["client", "runtime"])
def test_settings_without_an_answer_are_bounded(side: str) -> None:
    play = opened()
    receive = play.client if side == "client" else play.runtime
    receive(*[settings()] * MAX_UNACKNOWLEDGED)
    calmed(lambda: receive(*[settings()] * 10_000))


@pytest.mark.parametrize("side", ["client", "runtime"])
def test_any_number_of_settings_that_are_answered_pass(side: str) -> None:
    play = opened()
    sender, other = (play.client, play.runtime) if side == "client" else (play.runtime, play.client)
    for _ in range(3 * MAX_UNACKNOWLEDGED):
        sender(settings())
        other(SETTINGS_ACK)
    assert len(play.runtime_got()) == len(play.client_got()) == 3 * MAX_UNACKNOWLEDGED


@pytest.mark.parametrize("frame", [data(3), SETTINGS_ACK], ids=["empty-data", "settings-ack"])
def test_what_waits_for_the_connections_window_is_bounded(frame: Frame) -> None:
    play = in_debt()
    play.client(*[frame] * (MAX_WAITING - 1))
    calmed(lambda: play.client(frame))


def test_held_calls_of_one_connection_are_bounded() -> None:
    play = opened()
    for number in range(MAX_SPECIAL_STREAMS):
        play.client(play.call(3 + 2 * number, HELD))
    last_id = 3 + 2 * MAX_SPECIAL_STREAMS
    calmed(lambda: play.client(play.call(last_id, HELD)))


def test_held_calls_that_have_ended_make_room() -> None:
    play = opened()
    for number in range(MAX_SPECIAL_STREAMS + 10):
        play.client(play.call(3 + 2 * number, HELD), reset(3 + 2 * number))
    assert len(play.relay.special_streams) < 200


def test_a_held_message_whose_call_has_ended_waits_no_more() -> None:
    play = in_debt()
    for stream_id in range(61, 261, 2):
        play.client(play.call(stream_id, HELD), data(stream_id, message(b"y"), end=True), reset(stream_id))
    assert len(play.relay.flow.waiting) == 1
    play.forget()
    grant(play, 0, 1000)
    assert play.runtime_got() == [data(3, b"x")]


def dropping_s(frames: int) -> float:
    """CPU time to forget half of what waits."""
    play = in_debt()
    play.client(play.call(61), play.call(63))
    play.client(*[data(61, b"x")] * (frames // 2), *[data(63, b"x")] * (frames // 2))
    began_s = time.thread_time()
    play.client(reset(63))
    return time.thread_time() - began_s


def test_dropping_the_data_of_a_stream_grows_with_what_waits_and_no_faster() -> None:
    small, large = (min(dropping_s(frames) for _ in range(10)) for frames in (250, 4000))
    # 16 if it is linear, 256 if each frame is searched for.
    assert large / small < 80


def test_dropping_keeps_the_order_of_the_rest() -> None:
    play = in_debt()
    play.client(play.call(61), play.call(63))
    play.client(data(61, b"a"), data(63, b"b"), data(61, b"c"), data(3, b"d"), data(63, b"e"), data(61, b"f"))
    play.client(reset(61))
    play.forget()
    grant(play, 0, 1000)
    assert play.runtime_got() == [data(3, b"x"), data(63, b"b"), data(3, b"d"), data(63, b"e")]
