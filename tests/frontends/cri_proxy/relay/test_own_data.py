"""Design 2: what the interceptor gave back is sent within the runtime's windows; the debt; the queue."""

from __future__ import annotations

import pytest

from runtimeproxy.http2.frames import PeerError
from tests.frontends.cri_proxy.relay.playbook import DEFAULT_WINDOW, Play, ScriptedCall, grant, opened, spend
from tests.peers.wire import (
    INITIAL_WINDOW,
    MAX_FRAME,
    Frame,
    credit,
    data,
    message,
    priority,
    reset,
    settings,
)

LARGEST = 16_384


def decided(play: Play, stream_id: int, content: bytes) -> ScriptedCall:
    """An intercepted call of which the interceptor makes `content`."""
    call = play.hold(stream_id)
    play.client(data(stream_id, b"", end=True))
    play.client_got()
    call.reply.forward(content)
    return call


def sizes(frames: list[Frame], stream_id: int) -> list[int]:
    """Lengths of the DATA frames of one stream."""
    return [len(frame.payload) for frame in frames if frame.type_ == 0 and frame.stream_id == stream_id]


def test_the_original_bytes_are_sent_if_nothing_changed() -> None:
    play = opened()
    call = play.hold(3)
    play.client(data(3, message(b"abc"), pad=3), data(3, b"", end=True))
    call.reply.forward(None)
    assert play.runtime_got() == [data(3, message(b"abc"), end=True)]
    assert play.wakes


def test_a_changed_message_is_sent_in_its_place() -> None:
    play = opened()
    decided(play, 3, b"changed")
    assert play.runtime_got() == [data(3, b"changed", end=True)]


def test_frames_have_at_most_16384_bytes_whatever_the_runtime_allows() -> None:
    play = opened(runtime_settings={MAX_FRAME: 1 << 20})
    decided(play, 3, bytes(40_000))
    frames = play.runtime_got()
    assert sizes(frames, 3) == [LARGEST, LARGEST, 40_000 - 2 * LARGEST]
    assert [frame.ends_stream for frame in frames] == [False, False, True]


def test_own_data_stays_within_the_streams_window() -> None:
    play = opened(runtime_settings={INITIAL_WINDOW: 1000})
    decided(play, 3, bytes(2500))
    assert sizes(play.runtime_got(), 3) == [1000]
    grant(play, 3, 700)
    assert sizes(play.runtime_got(), 3) == [700]
    grant(play, 3, 5000)
    assert play.runtime_got() == [data(3, bytes(800), end=True)]


def test_stream_credit_of_a_held_stream_is_the_relays_own() -> None:
    play = opened()
    play.hold(3)
    grant(play, 3, 700)
    assert play.client_got() == []
    decided(play, 5, bytes(70_000))
    grant(play, 5, 700)
    assert play.client_got() == []


def test_stream_credit_that_came_before_the_message_counts() -> None:
    play = opened(runtime_settings={INITIAL_WINDOW: 0})
    call = play.hold(3)
    grant(play, 3, 8)
    play.client(data(3, b"", end=True))
    call.reply.forward(bytes(10))
    assert sizes(play.runtime_got(), 3) == [8]


def test_own_data_stays_within_the_connections_window() -> None:
    play = opened()
    spend(play, 1000)
    decided(play, 5, bytes(1500))
    assert sizes(play.runtime_got(), 5) == [1000]
    grant(play, 0, 200)
    assert sizes(play.runtime_got(), 5) == [200]
    grant(play, 0, 10_000)
    assert play.runtime_got() == [data(5, bytes(300), end=True)]


def test_the_debt_is_taken_out_of_the_runtimes_next_credit() -> None:
    play = opened()
    decided(play, 3, bytes(1000))
    grant(play, 0, 400)
    assert play.client_got() == []
    grant(play, 0, 600)
    assert play.client_got() == []
    decided(play, 5, bytes(600))
    grant(play, 0, 700)
    assert play.client_got() == [credit(0, 100)]
    grant(play, 0, 50)
    assert play.client_got() == [credit(0, 50)]


def test_credit_of_the_connection_passes_when_there_is_no_debt() -> None:
    play = opened()
    play.client(play.call(3), data(3, b"abc"))
    play.forget()
    grant(play, 0, 3)
    assert play.client_got() == [credit(0, 3)]


def in_debt(play: Play, stream_id: int = 51) -> None:
    """The relay's own DATA has used the runtime's window up, and the client does not know."""
    decided(play, stream_id, bytes(DEFAULT_WINDOW))
    play.forget()


def test_passing_data_waits_for_the_connections_window_and_is_split_at_it() -> None:
    play = opened()
    play.client(play.call(5))
    in_debt(play)
    play.client(data(5, b"abcdef"))
    assert play.runtime_got() == []
    grant(play, 0, 4)
    assert play.runtime_got() == [data(5, b"abcd")]
    grant(play, 0, 1)
    assert play.runtime_got() == [data(5, b"e")]
    grant(play, 0, 100)
    assert play.runtime_got() == [data(5, b"f")]
    assert play.client_got() == []


def test_end_stream_stands_on_the_last_part_only() -> None:
    play = opened()
    play.client(play.call(5))
    in_debt(play)
    play.client(data(5, b"abcdef", end=True))
    grant(play, 0, 4)
    grant(play, 0, 4)
    assert play.runtime_got() == [data(5, b"abcd"), data(5, b"ef", end=True)]


def test_a_waiting_frame_is_split_at_the_runtimes_frame_size() -> None:
    play = opened(runtime_settings={MAX_FRAME: 20_000})
    play.client(play.call(5))
    in_debt(play)
    play.client(data(5, bytes(20_000)))
    play.runtime(settings({MAX_FRAME: LARGEST}), credit(0, 30_000))
    assert sizes(play.runtime_got(), 5) == [LARGEST, 20_000 - LARGEST]


def test_all_later_data_queues_behind_in_order_and_only_other_frames_overtake() -> None:
    play = opened()
    call = play.hold(9)
    play.client(data(9, b"", end=True), play.call(5), play.call(7))
    in_debt(play)
    play.client(data(5, b"aaaa"), priority(5), data(7, b"bb"), credit(7, 1))
    call.reply.forward(b"own!")
    play.client(data(5, b"cc"), data(7, end=True), called := play.call(61))
    assert play.runtime_got() == [priority(5), credit(7, 1), called]
    grant(play, 0, 5)
    assert play.runtime_got() == [data(5, b"aaaa"), data(7, b"b")]
    grant(play, 0, 100)
    assert play.runtime_got() == [
        data(7, b"b"),
        data(9, b"own!", end=True),
        data(5, b"cc"),
        data(7, end=True),
    ]


def test_an_empty_data_frame_needs_no_window() -> None:
    play = opened()
    play.client(play.call(5))
    in_debt(play)
    play.client(data(5, end=True))
    assert play.runtime_got() == [data(5, end=True)]


def test_an_empty_message_needs_no_window() -> None:
    play = opened()
    in_debt(play)
    decided(play, 53, b"")
    assert play.runtime_got() == [data(53, end=True)]


def test_an_empty_data_frame_queues_behind_what_waits() -> None:
    play = opened()
    play.client(play.call(5), play.call(7))
    in_debt(play)
    play.client(data(5, b"a"), data(7, end=True))
    assert play.runtime_got() == []
    grant(play, 0, 1)
    assert play.runtime_got() == [data(5, b"a"), data(7, end=True)]


def test_padding_of_a_waiting_frame_is_credited_at_once() -> None:
    play = opened()
    play.client(play.call(5))
    in_debt(play)
    play.client(data(5, b"abc", pad=6))
    assert play.client_got() == [credit(0, 7), credit(5, 7)]
    grant(play, 0, 10)
    assert play.runtime_got() == [data(5, b"abc")]


def test_waiting_bytes_never_exceed_the_debt() -> None:
    play = opened()
    spend(play, 1000)
    decided(play, 5, bytes(1000))
    play.client(data(3, bytes(1000)))
    with pytest.raises(PeerError, match="beyond the connection's window") as raised:
        play.client(data(3, b"x"))
    assert raised.value.code == 3


def test_data_beyond_the_window_without_any_debt_is_a_flow_control_error() -> None:
    play = opened()
    spend(play, 10)
    with pytest.raises(PeerError, match="beyond the connection's window"):
        play.client(data(3, bytes(11)))


@pytest.mark.parametrize("by", ["client", "runtime"])
def test_waiting_data_of_a_stream_that_is_reset_is_dropped_and_credited(by: str) -> None:
    play = opened()
    play.client(play.call(5), play.call(7))
    in_debt(play)
    play.client(data(5, b"abcdef"), data(7, b"zz"), data(5, b"gh"))
    grant(play, 0, 1)
    play.forget()
    if by == "client":
        play.client(reset(5))
        assert play.runtime_got() == [reset(5)]
        assert play.client_got() == [credit(0, 7)]
    else:
        play.runtime(reset(5))
        assert play.client_got() == [credit(0, 7), reset(5)]
    grant(play, 0, 100)
    assert play.runtime_got() == [data(7, b"zz")]


@pytest.mark.parametrize("by", ["client", "runtime"])
def test_nothing_more_of_a_held_message_is_sent_once_its_stream_is_reset(by: str) -> None:
    play = opened()
    spend(play, 10)
    call = decided(play, 5, bytes(100))
    assert sizes(play.runtime_got(), 5) == [10]
    (play.client if by == "client" else play.runtime)(reset(5))
    play.forget()
    grant(play, 0, 1000)
    assert play.runtime_got() == []
    # The debt is the ten bytes that were sent.
    assert play.client_got() == [credit(0, 990)]
    assert call.names == ["message", "cancelled"]


def test_a_held_message_that_waits_for_stream_credit_keeps_nobody_waiting() -> None:
    play = opened(runtime_settings={INITIAL_WINDOW: 4})
    play.client(play.call(5))
    decided(play, 7, bytes(10))
    assert sizes(play.runtime_got(), 7) == [4]
    play.client(data(5, b"abc"))
    assert play.runtime_got() == [data(5, b"abc")]


def test_data_passes_again_when_the_debt_is_paid() -> None:
    play = opened()
    play.client(play.call(5))
    in_debt(play)
    play.client(data(5, b"abc"))
    grant(play, 0, 70_000)
    play.forget()
    play.client(whole := data(5, b"de", pad=5))
    assert play.runtime_got() == [whole]


def test_lowered_settings_may_make_the_streams_window_negative() -> None:
    play = opened(runtime_settings={INITIAL_WINDOW: 1000})
    decided(play, 3, bytes(2000))
    play.runtime(settings({INITIAL_WINDOW: 100}))
    play.forget()
    grant(play, 3, 900)
    assert play.runtime_got() == []
    grant(play, 3, 1)
    assert sizes(play.runtime_got(), 3) == [1]
