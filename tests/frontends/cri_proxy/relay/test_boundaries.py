"""Design 2, "Own frames": only at frame boundaries, never inside a header block, in either direction."""

from __future__ import annotations

from runtimeproxy.frontends.cri_proxy.interception import Outcome
from tests.frontends.cri_proxy.relay.playbook import HELD, Play, ScriptedCall, opened
from tests.peers.wire import (
    CANCEL,
    PUSH_PROMISE,
    Frame,
    continuation,
    credit,
    data,
    headers,
    message,
    ping,
    reset,
)


def waiting_for_a_decision(play: Play, stream_id: int = 3) -> ScriptedCall:
    """An intercepted call with its whole message."""
    call = play.hold(stream_id)
    play.client(data(stream_id, message(b"abc"), end=True))
    play.forget()
    return call


def test_own_frames_for_the_client_wait_for_the_end_of_a_data_frame() -> None:
    play = opened()
    call = waiting_for_a_decision(play)
    whole = bytes(data(1, bytes(range(100))))
    play.runtime(whole[:50])
    call.reply.refuse(9, "no")
    assert play.client_bytes() == whole[:50]
    play.runtime(whole[50:] + bytes(ping()))
    written = play.client_bytes()
    assert written.startswith(whole[50:] + b"\0\0")
    assert written.endswith(bytes(ping()))
    assert len(written) > 50 + 9 + 17


def test_own_frames_for_the_client_wait_while_a_frames_rest_comes_in_many_pieces() -> None:
    play = opened()
    call = waiting_for_a_decision(play)
    whole = bytes(data(1, bytes(range(20))))
    play.runtime(whole[:9])
    call.reply.refuse(9, "no")
    for octet in whole[9:-1]:
        play.runtime(bytes((octet,)))
    assert play.client_bytes() == whole[:-1]
    play.runtime(whole[-1:])
    written = play.client_bytes()
    assert written[:1] == whole[-1:]
    assert written[4:5] == b"\x01"


def test_own_frames_for_the_client_do_not_wait_for_a_frame_that_is_held_back_until_it_is_whole() -> None:
    play = opened()
    call = waiting_for_a_decision(play)
    whole = bytes(play.response(1))
    play.runtime(whole[:12])
    call.reply.refuse(9, "no")
    (refusal,) = play.client_got()
    assert refusal.stream_id == 3
    play.runtime(whole[12:])
    assert play.client_bytes() == whole


def test_own_frames_for_the_client_wait_for_the_end_of_a_header_block() -> None:
    play = opened()
    call = waiting_for_a_decision(play)
    block = play.runtime_headers.response()
    first, middle, last = (
        headers(1, block[:1], more=True),
        continuation(1, block[1:2], more=True),
        continuation(1, block[2:]),
    )
    play.runtime(first)
    call.reply.refuse(9, "no")
    assert play.client_got() == [first]
    play.runtime(middle)
    assert play.client_got() == [middle]
    play.runtime(last, ping())
    frames = play.client_got()
    assert frames[0] == last
    assert sorted(frame.type_ for frame in frames[1:]) == [1, 6]


def test_own_frames_for_the_client_wait_for_the_end_of_a_promise() -> None:
    play = opened()
    call = waiting_for_a_decision(play)
    first = Frame(PUSH_PROMISE, 0, 1, b"\0\0\0\2\x88")
    play.runtime(first)
    call.reply.refuse(9, "no")
    assert play.client_got() == [first]
    play.runtime(last := continuation(1, b"\x88"))
    assert [frame.type_ for frame in play.client_got()] == [last.type_, 1]


def test_credit_for_the_client_waits_for_the_boundary_and_is_summed() -> None:
    play = opened()
    play.hold(3)
    whole = bytes(data(1, bytes(100)))
    play.runtime(whole[:50])
    play.client(data(3, message(bytes(50))[:20]), data(3, bytes(10)))
    assert play.client_bytes() == whole[:50]
    play.runtime(whole[50:])
    assert play.client_bytes() == whole[50:] + bytes(credit(0, 30))


def test_a_header_block_of_the_client_passes_as_a_whole() -> None:
    play = opened()
    call = waiting_for_a_decision(play)
    block = play.client_headers.request(HELD)
    parts = [
        headers(5, block[:3], more=True, pad=3, priority=True),
        continuation(5, block[3:5], more=True),
        continuation(5, b"", more=True),
        continuation(5, block[5:]),
    ]
    for part in parts[:-1]:
        play.client(part)
    assert play.runtime_got() == []
    call.reply.forward(b"changed")
    assert play.runtime_got() == [data(3, b"changed", end=True)]
    play.client(parts[-1])
    assert play.runtime_got() == parts
    assert play.interceptor.calls[-1].head.path == HELD


def test_own_frames_for_the_runtime_stand_between_whole_frames() -> None:
    play = opened()
    call = waiting_for_a_decision(play)
    play.client(play.call(5))
    play.forget()
    whole = bytes(data(5, bytes(range(100))))
    play.client(whole[:50])
    call.reply.refuse(9, "no")
    assert play.runtime_got() == [reset(3, CANCEL)]
    play.client(whole[50:])
    assert play.runtime_bytes() == whole


def test_frames_of_one_read_keep_their_order_around_own_frames() -> None:
    play = opened(lambda call, _: call.reply.forward(b"own"))
    play.client(play.call(3), play.call(5, HELD))
    play.forget()
    play.client(data(3, b"a"), data(5, message(b"x"), end=True), data(3, b"b"), ping())
    assert play.runtime_got() == [data(3, b"a"), data(5, b"own", end=True), data(3, b"b"), ping()]


def test_data_of_a_stream_that_nothing_is_held_of_passes_before_its_frame_is_whole() -> None:
    play = opened()
    whole = bytes(data(1, bytes(range(100))))
    for piece in (whole[:9], whole[9:20], whole[20:]):
        play.runtime(piece)
        assert play.client_bytes() == piece


def test_data_of_a_held_stream_passes_when_its_frame_is_whole() -> None:
    play = opened(lambda call, _: call.reply.forward(None))
    call = play.hold(3)
    play.client(data(3, message(b""), end=True))
    play.runtime(play.response(3))
    play.forget()
    whole = bytes(data(3, message(b"answer"), end=True))
    play.runtime(whole[:12])
    assert play.client_bytes() == b""
    play.runtime(whole[12:])
    assert play.client_bytes() == whole
    assert call.events[-1] == ("responded", Outcome.SUCCEEDED, message(b"answer"))


def test_a_runtimes_credit_that_is_reduced_stands_in_its_frames_place() -> None:
    play = opened(lambda call, _: call.reply.forward(bytes(10)))
    play.hold(3)
    play.client(data(3, end=True))
    play.forget()
    play.runtime(ping(b"aaaaaaaa"), credit(0, 15), ping(b"bbbbbbbb"))
    assert play.client_got() == [ping(b"aaaaaaaa"), credit(0, 5), ping(b"bbbbbbbb")]


def test_unknown_frames_pass_in_both_directions() -> None:
    play = opened()
    strange = Frame(0x42, 0xFF, 77, b"payload")
    play.client(strange)
    play.runtime(strange)
    assert (play.runtime_got(), play.client_got()) == ([strange], [strange])
