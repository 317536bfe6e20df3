"""Design 2, "GOAWAY": the graceful end, and the runtime's own GOAWAYs."""

from __future__ import annotations

import struct

import pytest

from tests.frontends.cri_proxy.relay.playbook import ELSEWHERE, HELD, Play, opened
from tests.peers.wire import (
    CANCEL,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    LAST_ID,
    NO_ERROR,
    PING,
    continuation,
    credit,
    data,
    goaway,
    headers,
    message,
    ping_ack,
    reset,
)


def drained(play: Play) -> bytes:
    """Begins the end; returns the PING's payload."""
    play.relay.drain()
    first, question = play.client_got()
    assert first == goaway(LAST_ID)
    assert (question.type_, question.flags, len(question.payload)) == (PING, 0, 8)
    return question.payload


def test_a_drain_begins_with_goaway_for_all_ids_and_a_ping() -> None:
    play = opened()
    drained(play)
    play.client(call := play.call(3, end=True))
    assert play.runtime_got() == [call]


def test_at_the_pings_ack_goaway_names_the_highest_forwarded_id() -> None:
    play = opened()
    opaque = drained(play)
    play.client(play.call(3), play.call(5), ping_ack(opaque))
    assert play.client_got() == [goaway(5)]


def test_the_ack_is_swallowed_and_other_acks_pass() -> None:
    play = opened()
    opaque = drained(play)
    play.client(ping_ack(b"whatever"), ping_ack(opaque), ping_ack(opaque))
    assert play.runtime_got() == [ping_ack(b"whatever"), ping_ack(opaque)]


def test_without_an_ack_it_is_sent_when_the_time_is_over() -> None:
    play = opened()
    drained(play)
    play.relay.finish_drain()
    assert play.client_got() == [goaway(1)]


def test_a_client_that_has_not_answered_may_be_writing_a_call() -> None:
    play = opened()
    opaque = drained(play)
    play.relay.finish_drain()
    before = play.relay.is_drained
    play.client(play.call(3, end=True), ping_ack(opaque))
    assert (before, play.relay.is_drained) == (False, True)
    assert play.runtime_got() == []


def test_it_is_sent_once() -> None:
    play = opened()
    opaque = drained(play)
    play.relay.finish_drain()
    play.client(ping_ack(opaque))
    play.relay.finish_drain()
    assert play.client_got() == [goaway(1)]


def test_after_it_no_headers_are_forwarded() -> None:
    play = opened()
    play.client(play.call(3, end=True))
    play.client(ping_ack(drained_after(play)))
    play.forget()
    play.client(play.call(5, end=True), play.call(7, HELD), data(7, message(b"x"), end=True), credit(7, 5))
    assert play.runtime_got() == []
    assert play.client_got() == [credit(0, 6)]
    assert play.interceptor.calls == []


def drained_after(play: Play) -> bytes:
    play.forget()
    return drained(play)


def test_streams_that_were_taken_finish() -> None:
    play = opened()
    call = play.hold(3)
    play.client(play.call(5))
    play.client(ping_ack(drained_after(play)))
    play.forget()
    play.client(data(3, message(b"abc"), end=True), data(5, b"x", end=True))
    call.reply.forward(None)
    assert play.runtime_got() == [data(5, b"x", end=True), data(3, message(b"abc"), end=True)]
    assert play.relay.has_intercepted_calls
    play.forget()
    play.runtime(
        answer := play.response(3),
        whole := data(3, message(b"y")),
        trailers := play.trailers(3),
        credit(5, 1),
    )
    assert play.client_got() == [answer, whole, trailers, credit(5, 1)]
    assert not play.relay.has_intercepted_calls


def test_the_runtimes_goaway_is_clamped_to_the_lowest_id_sent() -> None:
    play = opened()
    play.client(play.call(3))
    play.client(ping_ack(drained_after(play)))
    play.forget()
    play.runtime(goaway(LAST_ID, NO_ERROR, b"bye"))
    assert play.client_got() == [goaway(3, NO_ERROR, b"bye")]
    play.runtime(goaway(1, ENHANCE_YOUR_CALM, b"calm"))
    assert play.client_got() == [goaway(1, ENHANCE_YOUR_CALM, b"calm")]
    play.runtime(goaway(3))
    assert play.client_got() == [goaway(1)]


def test_the_runtimes_goaway_passes_otherwise() -> None:
    play = opened()
    play.client(play.call(3))
    for each in (goaway(LAST_ID), goaway(3, NO_ERROR, b"x"), goaway(3), goaway(1)):
        play.runtime(each)
        assert play.client_got() == [each]


def test_a_drain_never_promises_more_than_the_runtime_did() -> None:
    play = opened()
    play.client(play.call(3), play.call(5))
    play.runtime(goaway(3))
    play.forget()
    play.relay.drain()
    first, _ = play.client_got()
    assert first == goaway(3)
    play.relay.finish_drain()
    assert play.client_got() == [goaway(3)]


def test_the_runtimes_goaway_ends_only_held_calls_above_its_id() -> None:
    play = opened()
    first, second = play.hold(3), play.hold(5)
    play.runtime(goaway(3))
    assert (first.names, second.names) == ([], ["cancelled"])


def test_data_of_a_call_that_the_runtime_disowned_is_swallowed_and_credited() -> None:
    play = opened()
    play.hold(5)
    play.runtime(goaway(3))
    play.forget()
    play.client(data(5, b"abc"), reset(5, CANCEL))
    assert play.client_got() == [credit(0, 3)]
    assert play.runtime_got() == []


def test_a_clients_goaway_passes() -> None:
    play = opened()
    play.client(goaway(0, NO_ERROR, b"bye"))
    assert play.runtime_got() == [goaway(0, NO_ERROR, b"bye")]


def test_a_goaway_that_is_too_short_is_the_clients_to_judge() -> None:
    play = opened()
    odd = goaway(1)._replace(payload=b"\0\0")
    play.runtime(odd)
    assert play.client_got() == [odd]


def test_a_misrouted_stream_and_a_drain_send_one_last_goaway() -> None:
    play = opened()
    play.client(play.call(3, ELSEWHERE))
    play.forget()
    play.relay.drain()
    play.relay.finish_drain()
    assert next(iter(play.client_got())) == goaway(1)


def test_own_goaways_wait_for_a_boundary() -> None:
    play = opened()
    whole = bytes(data(1, bytes(10)))
    play.runtime(whole[:12])
    play.relay.drain()
    assert play.client_bytes() == whole[:12]
    play.runtime(whole[12:])
    assert play.client_bytes().startswith(whole[12:] + bytes(goaway(LAST_ID)))


def test_a_call_that_crosses_the_runtimes_goaway_is_not_held() -> None:
    play = opened()
    play.runtime(goaway(1))
    play.forget()
    play.client(call := play.call(3, HELD), whole := data(3, message(b"abc"), end=True))
    # Its header block still counts for the runtime's table.
    assert play.runtime_got() == [call, whole]
    assert play.interceptor.calls == []
    assert not play.relay.has_intercepted_calls


def test_calls_that_the_runtime_disowned_are_not_waited_for() -> None:
    play = opened()
    play.client(play.call(3, end=True), play.call(5, end=True))
    play.client(ping_ack(drained_after(play)))
    play.runtime(goaway(3))
    assert not play.relay.is_drained
    play.runtime(play.trailers(3))
    assert play.relay.is_drained


@pytest.mark.parametrize("begins", ["drain", "finish_drain", "misrouted"])
def test_ids_never_rise_though_an_own_goaway_waits_for_a_boundary(begins: str) -> None:
    play = opened()
    play.client(play.call(3), play.call(5))
    play.forget()
    play.runtime(headers(3, play.runtime_headers.response(), more=True))
    if begins == "misrouted":
        play.client(play.call(7, ELSEWHERE))
    else:
        getattr(play.relay, begins)()
    play.runtime(continuation(3, b""), goaway(3))
    ids = [struct.unpack(">LL", found.payload)[0] for found in play.client_got() if found.type_ == GOAWAY]
    assert ids == [3, 3]


def test_a_refusal_that_waits_for_the_client_is_part_of_the_drain() -> None:
    play = opened()
    call = play.hold(3)
    play.client(data(3, message(b"x"), end=True))
    opaque = drained_after(play)
    play.relay.on_client_writable(False)
    play.client(ping_ack(opaque))
    call.reply.refuse(9, "no")
    assert not play.relay.is_drained
    play.relay.on_client_writable(True)
    assert [found.stream_id for found in play.client_got() if found.type_ == HEADERS] == [3]
    assert play.relay.is_drained
