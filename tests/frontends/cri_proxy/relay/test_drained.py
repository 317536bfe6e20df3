"""Design 2, "GOAWAY": when a drained connection has nothing left that a client waits for."""

from __future__ import annotations

import pytest

from runtimeproxy.http2.frames import PeerError
from tests.frontends.cri_proxy.relay.playbook import HELD, Play, opened
from tests.peers.wire import NO_ERROR, PROTOCOL_ERROR, continuation, data, headers, message, reset


def draining(*, held: bool = False) -> Play:
    """Stream 3 is open, and the last GOAWAY was sent."""
    play = opened()
    play.client(play.call(3, HELD), data(3, message(b"abc"), end=True)) if held else play.client(play.call(3))
    play.relay.finish_drain()
    play.forget()
    return play


def test_a_client_that_does_not_answer_is_waited_for_until_nobody_waits_any_more() -> None:
    play = opened()
    assert not play.relay.is_drained
    play.relay.drain()
    assert not play.relay.is_drained
    play.relay.finish_drain()
    assert not play.relay.is_drained
    play.relay.give_up_ping()
    assert play.relay.is_drained


def test_an_open_stream_is_waited_for() -> None:
    play = draining()
    assert not play.relay.is_drained
    play.runtime(play.response(3), data(3, message(b"a")))
    assert not play.relay.is_drained
    play.runtime(play.trailers(3))
    assert play.relay.is_drained


def test_a_last_frame_that_has_passed_in_part_is_waited_for() -> None:
    play = draining()
    last = bytes(data(3, bytes(100), end=True))
    play.runtime(last[:50])
    assert not play.relay.is_drained
    play.runtime(last[50:])
    assert play.relay.is_drained


def test_the_rest_of_the_last_header_block_is_waited_for() -> None:
    play = draining()
    block = play.runtime_headers.trailers()
    play.runtime(headers(3, block[:1], end=True, more=True))
    assert not play.relay.is_drained
    play.runtime(continuation(3, block[1:]))
    assert play.relay.is_drained


def test_a_held_call_is_waited_for_until_it_is_refused_or_answered() -> None:
    play = draining(held=True)
    core = play.relay
    before = core.has_intercepted_calls, core.is_drained
    play.interceptor.calls[0].reply.refuse(9, "no")
    assert (before, (core.has_intercepted_calls, core.is_drained)) == ((True, False), (False, True))


def test_a_stream_that_is_reset_is_not_waited_for() -> None:
    play = draining()
    play.client(reset(3, NO_ERROR))
    assert play.relay.is_drained


def test_a_second_header_block_still_ends_a_held_call_and_the_connection() -> None:
    play = opened()
    play.hold(3)
    play.relay.finish_drain()
    play.forget()
    late = headers(3, play.client_headers.block([("late", "1")]), end=True)
    with pytest.raises(PeerError, match="second header block"):
        play.client(late)
    assert play.runtime_got() == play.client_got() == [reset(3, PROTOCOL_ERROR)]
