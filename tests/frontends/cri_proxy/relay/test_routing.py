"""Design 2, "Which upstream": a stream whose path belongs to another upstream than the connection's."""

from __future__ import annotations

import pytest

from runtimeproxy.http2.frames import PeerError
from tests.frontends.cri_proxy.relay.playbook import ELSEWHERE, HELD, PASSING, opened
from tests.peers.wire import CANCEL, credit, data, goaway, message, ping, priority, reset


def test_a_misrouted_stream_is_answered_by_goaway_with_the_highest_forwarded_id() -> None:
    play = opened()
    play.client(play.call(3))
    play.forget()
    play.client(play.call(5, ELSEWHERE))
    assert play.client_got() == [goaway(3)]
    assert play.runtime_got() == []


def test_later_frames_of_it_are_dropped_and_its_data_credited() -> None:
    play = opened()
    play.client(play.call(5, ELSEWHERE))
    play.forget()
    play.client(data(5, b"abc", pad=2), data(5, b"", end=True), credit(5, 10), reset(5, CANCEL), credit(7, 1))
    assert play.runtime_got() == []
    assert play.client_got() == [credit(0, 3 + 3)]


def test_streams_that_were_open_finish() -> None:
    play = opened()
    play.client(play.call(3))
    play.client(play.call(5, ELSEWHERE))
    play.forget()
    play.client(data(3, b"abc"), credit(3, 7), ping(), priority(3), data(3, b"", end=True))
    assert play.runtime_got() == [
        data(3, b"abc"),
        credit(3, 7),
        ping(),
        priority(3),
        data(3, b"", end=True),
    ]
    play.runtime(response := play.response(3), trailers := play.trailers(3))
    assert play.client_got() == [response, trailers]


def test_a_held_stream_that_was_open_finishes() -> None:
    play = opened()
    call = play.hold(3)
    play.client(play.call(5, ELSEWHERE), data(3, message(b"abc"), end=True))
    play.forget()
    call.reply.forward(None)
    assert play.runtime_got() == [data(3, message(b"abc"), end=True)]


@pytest.mark.parametrize("path", [ELSEWHERE, PASSING, HELD])
def test_no_stream_after_it_is_taken_and_goaway_is_sent_once(path: str) -> None:
    play = opened()
    play.client(play.call(5, ELSEWHERE))
    play.forget()
    play.client(play.call(7, path), data(7, message(b"a"), end=True))
    assert play.runtime_got() == []
    assert [frame for frame in play.client_got() if frame.type_ != credit(0, 1).type_] == []
    assert play.interceptor.calls == []


def test_goaway_never_promises_more_than_the_runtime_did() -> None:
    play = opened()
    play.client(play.call(3), play.call(5))
    play.runtime(goaway(3))
    play.forget()
    play.client(play.call(7, ELSEWHERE))
    assert play.client_got() == [goaway(3)]


def test_without_a_goaway_data_of_a_stream_that_was_never_opened_is_an_error() -> None:
    play = opened()
    with pytest.raises(PeerError, match="never opened"):
        play.client(data(5, b"abc"))


def test_a_path_without_its_first_slash_is_held_and_routed_like_one_with_it() -> None:
    play = opened()
    play.client(call := play.call(3, HELD[1:]), data(3, message(b"abc"), end=True))
    assert play.interceptor.calls[0].head.path == HELD
    assert play.runtime_got() == [call]
    play.client(play.call(5, ELSEWHERE[1:], end=True))
    assert play.client_got()[-1] == goaway(3)
