"""Design 2, "Credit": what waits for the runtime's connection window, and what ends the waiting."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.frontends.cri_proxy.relay.playbook import DEFAULT_WINDOW, Play, ScriptedCall, grant, opened, spend
from tests.peers.wire import CANCEL, Frame, credit, data, goaway, message, reset


def indebted(debt: int, *passing: int) -> tuple[Play, ScriptedCall]:
    """The window is spent, `debt` bytes of it by held stream 5; the `passing` streams are open."""
    play = opened()
    spend(play, debt)
    call = play.hold(5)
    play.client(data(5, message(b"abc"), end=True), *(play.call(stream_id) for stream_id in passing))
    call.reply.forward(bytes(debt))
    play.forget()
    return play, call


Step = Callable[[Play], None]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda play: play.client(reset(7)), id="by-the-client"),
        pytest.param(lambda play: play.runtime(reset(7)), id="by-the-runtime"),
    ],
)
def test_an_empty_end_behind_dropped_data_needs_no_window(end: Step) -> None:
    play, _ = indebted(10, 7, 9)
    play.client(data(7, b"waits"), data(9, end=True))
    assert play.runtime_got() == []
    end(play)
    assert data(9, end=True) in play.runtime_got()
    assert play.client_got()[0] == credit(0, 5)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda play: play.client(reset(11)), id="reset-by-the-client"),
        pytest.param(lambda play: play.runtime(reset(11)), id="reset-by-the-runtime"),
        pytest.param(lambda play: play.runtime(goaway(9)), id="disowned"),
        pytest.param(lambda play: play.runtime(play.error(11, 12)), id="answered-early"),
    ],
)
def test_an_empty_end_behind_a_held_message_that_is_over_needs_no_window(end: Step) -> None:
    play, _ = indebted(10, 9)
    call = play.hold(11)
    play.client(data(11, message(b"abc"), end=True))
    call.reply.forward(None)
    play.client(data(9, end=True))
    play.forget()
    end(play)
    assert data(9, end=True) in play.runtime_got()
    assert call.names == ["message", "cancelled"]


def test_a_dropped_stream_does_not_change_the_order_of_the_others() -> None:
    play, _ = indebted(20, 7, 9, 11)
    play.client(data(7, b"7"), data(9, b"9"), data(11, b"11"), data(9, b"99"), reset(9, CANCEL))
    play.forget()
    grant(play, 0, 20 + 3)
    assert play.runtime_got() == [data(7, b"7"), data(11, b"11")]


def test_nothing_is_lost_or_given_twice_when_waiting_data_is_dropped() -> None:
    play, _ = indebted(20, 7, 9)
    play.client(data(7, bytes(15)), data(9, bytes(5)), reset(7, CANCEL))
    assert play.client_got() == [credit(0, 15)]
    grant(play, 0, DEFAULT_WINDOW)
    sender, window = play.relay.flow, play.relay.flow
    assert not sender.waiting
    assert play.client_got() == [credit(0, DEFAULT_WINDOW - 20)]
    assert (window.window_bytes, window.debt_bytes) == (DEFAULT_WINDOW - 5, 0)


def test_other_frames_overtake_data_that_waits() -> None:
    play, _ = indebted(10, 7)
    others = [credit(7, 1), Frame(2, 0, 7, bytes(5)), Frame(6, 0, 0, bytes(8)), play.call(9)]
    play.client(data(7, b"waits"), *others)
    assert play.runtime_got() == others


def test_own_messages_wait_behind_passing_data_and_in_their_own_order() -> None:
    play, _ = indebted(10, 7)
    second, third = play.hold(9), play.hold(11)
    for stream_id in (9, 11):
        play.client(data(stream_id, message(b"abc"), end=True))
    play.client(data(7, b"first"))
    third.reply.forward(b"third")
    second.reply.forward(b"second")
    play.forget()
    grant(play, 0, 100)
    assert play.runtime_got() == [
        data(7, b"first"),
        data(11, b"third", end=True),
        data(9, b"second", end=True),
    ]


def test_a_sent_message_gives_its_memory_to_a_call_that_is_refused_at_once() -> None:
    play = opened(runtime_settings={4: 1 << 20}, budget_bytes=80_000, small_bytes=100)
    first, second = play.hold(3), play.hold(5)
    for stream_id, size in (3, 70_000), (5, 20_000):
        whole = message(bytes(size))
        play.client(*(data(stream_id, whole[at : at + 16_000]) for at in range(0, len(whole), 16_000)))
        play.client(data(stream_id, end=True))
    first.reply.forward(None)
    second.decide = lambda call, _: call.reply.refuse(3, "no")
    play.client(play.call(7), data(7, b"abc", end=True))
    play.forget()
    grant(play, 0, 10_000)
    frames = play.runtime_got()
    assert reset(5, CANCEL) in frames
    assert data(7, b"abc", end=True) in frames
    assert [frame.stream_id for frame in frames if frame.ends_stream] == [3, 7]
