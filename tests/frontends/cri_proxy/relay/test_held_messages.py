"""Design 2, "DATA of a held stream": how the relay takes a message."""

from __future__ import annotations

import pytest

from runtimeproxy.frontends.cri_proxy.interception import CallHead
from runtimeproxy.frontends.cri_proxy.relay.budget import MemoryBudget
from runtimeproxy.http2.frames import PeerError
from tests.frontends.cri_proxy.relay.playbook import (
    DEFAULT_WINDOW,
    HELD,
    Play,
    forward_as_it_came,
    grant,
    opened,
    opened_with,
)
from tests.peers.wire import (
    CANCEL,
    HEADERS,
    INITIAL_WINDOW,
    NO_ERROR,
    SETTINGS_ACK,
    WINDOW_UPDATE,
    Frame,
    credit,
    data,
    message,
    reset,
    settings,
)

PREFIX = 5


def test_the_headers_pass_at_once_and_unchanged() -> None:
    play = opened()
    play.client(call := play.call(3, HELD))
    assert play.runtime_got() == [call]
    assert play.client_got() == []


def test_the_handler_is_told_path_deadline_and_encoding() -> None:
    play = opened()
    play.client(play.call(3, HELD, timeout="2500m"))
    expected = CallHead(HELD, 2.5, "identity", connection=play.relay)
    assert play.interceptor.calls[0].head == expected


def test_data_is_not_forwarded_and_its_connection_credit_goes_back_at_once() -> None:
    play = opened()
    call = play.hold(3)
    play.client(data(3, message(b"abc")[:6]))
    assert play.client_got() == [credit(0, 6)]
    play.client(data(3, message(b"abc")[6:], end=True))
    assert play.client_got() == [credit(0, 2)]
    assert play.runtime_got() == []
    assert call.events == [("message", message(b"abc"))]


def test_padding_is_stripped_and_credited() -> None:
    play = opened()
    call = play.hold(3)
    play.client(data(3, message(b"abc"), pad=10, end=True))
    assert play.client_got() == [credit(0, 8 + 11)]
    assert call.events == [("message", message(b"abc"))]


def test_padding_alone_is_credited_on_the_stream_too() -> None:
    play = opened()
    play.hold(3)
    for _ in range(600):
        play.client(data(3, b"", pad=255))
    given = sum(frame.number for frame in play.client_got() if frame.stream_id == 3)
    assert given >= 600 * 256 - (DEFAULT_WINDOW - PREFIX)


@pytest.mark.parametrize("split", [1, 4, 5, 6])
def test_the_message_is_whole_however_its_frames_are_cut(split: int) -> None:
    play = opened()
    call = play.hold(3)
    whole = message(bytes(range(50)))
    play.client(*(data(3, whole[i : i + split]) for i in range(0, len(whole), split)), data(3, end=True))
    assert call.events == [("message", whole)]


def test_an_empty_body_is_a_message_too() -> None:
    play = opened(forward_as_it_came)
    play.hold(3)
    play.client(data(3, end=True))
    assert play.interceptor.calls[0].events == [("message", b"")]
    assert play.runtime_got() == [data(3, end=True)]


def test_a_call_that_ends_with_its_headers_is_not_held() -> None:
    play = opened()
    play.client(play.call(3, HELD, end=True))
    assert play.interceptor.calls == []


def test_stream_credit_is_given_for_the_rest_of_the_declared_message() -> None:
    play = opened()
    play.hold(3)
    size = 1_000_000
    play.client(data(3, message(bytes(size))[:1000]))
    assert play.client_got() == [credit(0, 1000), credit(3, size + PREFIX - DEFAULT_WINDOW)]
    play.client(data(3, bytes(16_384)))
    assert play.client_got() == [credit(0, 16_384)]


def test_a_message_that_fits_into_the_window_needs_no_stream_credit() -> None:
    play = opened()
    play.hold(3)
    play.client(data(3, message(bytes(60_000))[:1000]))
    assert play.client_got() == [credit(0, 1000)]


def test_credit_waits_for_its_share_of_the_global_budget_first_come_first_served() -> None:
    budget = MemoryBudget(100_000)
    plays = [Play(budget=budget) for _ in range(3)]
    for play in plays:
        play.client(play.call(1, HELD))
        play.open()
        play.forget()
    for play in plays:
        play.client(data(1, message(bytes(80_000))[:10]))
    expected = 80_000 + PREFIX - DEFAULT_WINDOW
    assert [play.client_got() for play in plays] == [
        [credit(0, 10), credit(1, expected)],
        [credit(0, 10)],
        [credit(0, 10)],
    ]
    plays[0].client(reset(1))
    assert plays[1].client_got() == [credit(1, expected)]
    assert plays[1].wakes
    assert plays[2].client_got() == []


def test_the_share_is_given_back_when_the_message_is_sent() -> None:
    play = opened(forward_as_it_came)
    play.hold(3)
    whole = message(bytes(100_000))
    for at in range(0, len(whole) - 5, 20_000):
        play.client(Frame(0, 0, 3, whole[at : at + 16_000]), Frame(0, 0, 3, whole[at + 16_000 : at + 20_000]))
        assert play.budget.used_bytes == len(whole)
    grant(play, 0, 100_000)
    play.client(data(3, whole[-5:], end=True))
    assert play.budget.used_bytes == len(whole)
    grant(play, 3, 100_000)
    assert play.interceptor.calls[0].names == ["message"]
    assert play.budget.used_bytes == 0


def test_small_messages_need_no_reservation_and_are_not_refused_for_those_of_others() -> None:
    budget = MemoryBudget(100_000)
    other = Play(budget=budget)
    other.client(other.call(1, HELD), data(1, message(bytes(100_000))[:10]))
    play = opened_with(budget)
    for stream_id in range(3, 203, 2):
        play.client(play.call(stream_id, HELD), data(stream_id, message(bytes(16_000)), end=True))
    assert [call.names for call in play.interceptor.calls] == [["message"]] * 100
    assert budget.used_bytes == 100_005


def test_messages_that_never_end_are_bounded() -> None:
    budget = MemoryBudget(unreserved_bytes=100_000)
    play, other = opened_with(budget), opened_with(budget)
    for stream_id in range(3, 31, 2):
        play.client(play.call(stream_id, HELD), data(stream_id, message(bytes(16_000))[:-1]))
    refused = [frame for frame in play.client_got() if frame.type_ == HEADERS]
    assert len(refused) == 14 - 100_000 // 16_004
    fields = [play.read_refusal(frame) for frame in refused]
    assert {each["grpc-status"] for each in fields} == {"8"}
    assert {each["grpc-message"] for each in fields} == {
        "koord-runtime-proxy: too many requests wait on this connection"
    }
    other.hold(3)
    other.client(data(3, message(bytes(16_000)), end=True))
    assert other.interceptor.calls[-1].names == ["message"]
    # What is cancelled takes no room, and what is whole is never refused.
    play.client(reset(3))
    play.client(play.call(31, HELD), data(31, message(bytes(16_000))[:-1]))
    play.client(play.call(33, HELD), data(33, message(bytes(16_000)), end=True))
    assert [call.names for call in play.interceptor.calls[-2:]] == [[], ["message"]]


def test_messages_that_never_end_are_bounded_over_all_connections() -> None:
    """One client with 40 connections, of which each has less than it may have alone."""
    budget = MemoryBudget(unreserved_total_bytes=4 * 1024 * 1024)
    plays = [opened_with(budget) for _ in range(40)]
    for play in plays:
        for stream_id in range(3, 63, 2):
            play.client(play.call(stream_id, HELD), data(stream_id, message(bytes(16_000))[:-1]))
    held_bytes = [play.relay.memory.unreserved_bytes for play in plays]
    assert sum(held_bytes) == budget.unreserved_used_bytes < (4 * 1024 + 40 * 256) * 1024
    # Each has its least, the first ones what was left then.
    assert max(held_bytes) == 30 * 16_004
    assert 256 * 1024 - 16_004 < min(held_bytes) <= 256 * 1024
    other = opened_with(budget)
    other.hold(3)
    other.client(data(3, message(bytes(16_000)), end=True))
    assert other.interceptor.calls[-1].names == ["message"]
    assert not other.relay.memory.must_pause
    for play in (*plays, other):
        play.relay.on_lost()
    assert budget.unreserved_used_bytes == 0


def test_a_client_whose_small_messages_are_many_is_not_read_until_some_have_left() -> None:
    play = opened_with(MemoryBudget(unreserved_bytes=100_000))
    memory, pauses = play.relay.memory, []
    for stream_id in range(3, 31, 2):
        play.client(play.call(stream_id, HELD), data(stream_id, message(bytes(16_000)), end=True))
        pauses.append(memory.must_pause)
    assert pauses == [False] * 6 + [True] * 8
    assert [call.names for call in play.interceptor.calls] == [["message"]] * 14
    wakes, pauses = play.wakes, []
    for call in play.interceptor.calls[:9]:
        call.reply.refuse(9, "no")
        pauses.append(memory.must_pause)
    assert pauses == [True] * 7 + [False] * 2
    assert play.wakes >= wakes + 8


@pytest.mark.parametrize("is_in_turn", [False, True])
def test_small_messages_of_500_calls_at_once_are_not_refused(is_in_turn: bool) -> None:
    """A kubelet's, after a node was drained; clients in Go send one frame of each in turn."""
    play = opened_with(MemoryBudget())
    streams, size = range(3, 1003, 2), 16_384
    play.client(*(play.call(stream_id, HELD) for stream_id in streams))
    whole = message(bytes(4 * size - 5))
    pieces = [
        (at, data(stream_id, whole[at : at + size], end=at == 3 * size))
        for stream_id in streams
        for at in range(0, 4 * size, size)
    ]
    if is_in_turn:
        pieces.sort(key=lambda piece: piece[0])
    for _, piece in pieces:
        play.client(piece)
    assert [call.names for call in play.interceptor.calls] == [["message"]] * 500


def test_a_whole_message_that_waits_for_memory_is_decided_on_when_there_is_some() -> None:
    budget = MemoryBudget(100_000)
    other = opened_with(budget)
    other.hold(3)
    other.client(data(3, message(bytes(90_000))[:10]))
    # The runtime's windows let the whole message come without any credit of the relay's.
    play = opened_with(budget, {INITIAL_WINDOW: 200_000})
    call = play.hold(3)
    whole = message(bytes(80_000))
    play.client(*(Frame(0, 0, 3, whole[at : at + 16_000]) for at in range(0, len(whole), 16_000)))
    play.client(data(3, end=True))
    assert call.names == []
    other.client(reset(3))
    assert call.events == [("message", whole)]
    play.client(reset(3))
    assert budget.used_bytes == 0


def test_a_client_whose_messages_come_without_memory_is_not_read() -> None:
    budget = MemoryBudget(100_000)
    other = opened_with(budget)
    other.hold(3)
    other.client(data(3, message(bytes(90_000))[:10]))
    play = opened_with(budget, {INITIAL_WINDOW: 1 << 24})
    call = play.hold(3)

    def is_paused() -> bool:
        return play.relay.memory.must_pause

    whole = message(bytes(2_000_000))
    pieces = [Frame(0, 0, 3, whole[at : at + 16_000]) for at in range(0, len(whole), 16_000)]
    play.client(*pieces[:60])
    assert not is_paused()
    wakes = play.wakes
    play.client(*pieces[60:80])
    assert is_paused()
    assert play.wakes > wakes
    wakes = play.wakes
    other.client(reset(3))
    assert not is_paused()
    assert play.wakes > wakes
    play.client(*pieces[80:], data(3, end=True))
    assert call.events == [("message", whole)]


def test_a_call_over_the_bound_is_refused_when_its_prefix_is_read() -> None:
    play = opened(max_message_bytes=1000)
    call = play.hold(3)
    play.client(data(3, message(bytes(1001))[:PREFIX]))
    update, refusal, ending = play.client_got()
    assert (update, ending) == (credit(0, PREFIX), reset(3, NO_ERROR))
    fields = play.read_refusal(refusal)
    assert fields["grpc-status"] == "8"
    assert fields["grpc-message"] == "koord-runtime-proxy: request message is larger than 1000 bytes"
    assert play.runtime_got() == [reset(3, CANCEL)]
    assert call.events == [("cancelled",)]


def test_a_message_of_just_the_bound_is_taken() -> None:
    play = opened(max_message_bytes=1000)
    call = play.hold(3)
    play.client(data(3, message(bytes(1000)), end=True))
    assert call.names == ["message"]


@pytest.mark.parametrize("is_whole", [True, False])
def test_bytes_beyond_the_declared_message_are_bounded_too(is_whole: bool) -> None:
    play = opened(max_message_bytes=1000)
    call = play.hold(3)
    play.client(data(3, message(b"abc") + bytes(2000), end=is_whole))
    assert {frame.type_ for frame in play.client_got()} >= {WINDOW_UPDATE, HEADERS}
    assert call.names == ["cancelled"]


def test_two_messages_are_taken_as_they_come() -> None:
    play = opened(forward_as_it_came)
    play.hold(3)
    both = message(b"abc") + message(b"def")
    play.client(data(3, both[:9]), data(3, both[9:], end=True))
    assert play.interceptor.calls[0].events == [("message", both)]
    assert play.runtime_got() == [data(3, both, end=True)]


def test_tiny_windows_of_the_runtime_do_not_keep_the_prefix_from_coming() -> None:
    play = opened(runtime_settings={INITIAL_WINDOW: 0})
    play.client(play.call(3, HELD))
    assert play.client_got() == [credit(3, PREFIX)]
    play.client(data(3, message(bytes(100))[:PREFIX]))
    assert play.client_got() == [credit(0, PREFIX), credit(3, 100)]


def test_a_window_lowered_in_mid_message_is_topped_up() -> None:
    play = opened()
    play.hold(3)
    play.client(data(3, message(bytes(40_000))[:1000]))
    play.forget()
    play.runtime(settings({INITIAL_WINDOW: 100}))
    # Afterwards the client's window is just what is left of the message.
    assert play.client_got() == [credit(3, 40_005 - 100), settings({INITIAL_WINDOW: 100})]
    play.client(SETTINGS_ACK, *(data(3, bytes(13_000)) for _ in range(3)), data(3, bytes(5), end=True))
    assert play.interceptor.calls[0].names == ["message"]


def test_more_than_the_streams_window_is_a_flow_control_error() -> None:
    play = opened()
    play.hold(3)
    first = data(3, message(bytes(60_000))[:16_384])
    more = Frame(0, 0, 3, bytes(16_384))
    with pytest.raises(PeerError, match="beyond a stream's window") as raised:
        play.client(first, more, more, more)
    assert raised.value.code == 3


def test_data_after_the_end_of_the_stream_is_an_error() -> None:
    play = opened()
    play.hold(3)
    play.client(data(3, message(b"abc"), end=True))
    with pytest.raises(PeerError, match="after END_STREAM"):
        play.client(data(3, b"x"))
