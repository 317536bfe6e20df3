"""Ends of an intercepted call from outside, and its outcome by the response."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.http2.frames import PeerError
from tests.frontends.cri_proxy.relay.playbook import HELD, Play, ScriptedCall, opened, spend
from tests.peers.wire import (
    CANCEL,
    INTERNAL_ERROR,
    NO_ERROR,
    PROTOCOL_ERROR,
    credit,
    data,
    goaway,
    headers,
    message,
    reset,
)

Cause = Callable[[Play], None]

ENDS: dict[str, Cause] = {
    "client-reset": lambda play: play.client(reset(3)),
    "runtime-reset": lambda play: play.runtime(reset(3, INTERNAL_ERROR)),
    "goaway-below": lambda play: play.runtime(goaway(1)),
    "connection-lost": lambda play: play.relay.on_lost(),
    "runtime-ends-early": lambda play: play.runtime(play.error(3, 12)),
}


def with_part(play: Play) -> ScriptedCall:
    """Held, with half a message."""
    call = play.hold(3)
    play.client(data(3, message(b"abc")[:6]))
    return call


def with_message(play: Play) -> ScriptedCall:
    """Held, waiting for the decision."""
    call = play.hold(3)
    play.client(data(3, message(b"abc"), end=True))
    return call


def with_part_sent(play: Play) -> ScriptedCall:
    """Decided, one byte sent, the rest waiting for the runtime's window."""
    spend(play, 1, stream_id=2)
    call = with_message(play)
    call.reply.forward(None)
    return call


def with_all_sent(play: Play) -> ScriptedCall:
    """Decided and sent."""
    call = with_message(play)
    call.reply.forward(None)
    return call


@pytest.mark.parametrize("begin", [with_part, with_message, with_part_sent])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_every_end_before_the_message_was_sent_cancels(
    begin: Callable[[Play], ScriptedCall], end: Cause
) -> None:
    play = opened()
    call = begin(play)
    play.forget()
    end(play)
    assert call.names[-1] == "cancelled"
    assert call.names.count("cancelled") == 1
    assert not play.budget.used_bytes
    assert not play.budget.has_waiting
    assert not play.relay.has_intercepted_calls
    play.forget()
    call.reply.forward(b"late")
    call.reply.refuse(1, "late")
    play.relay.flow.pump()
    assert (play.client_got(), play.runtime_got()) == ([], [])


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (ENDS["client-reset"], Outcome.UNKNOWN),
        (ENDS["runtime-reset"], Outcome.UNKNOWN),
        (ENDS["connection-lost"], Outcome.UNKNOWN),
        (ENDS["goaway-below"], Outcome.FAILED),
        (ENDS["runtime-ends-early"], Outcome.FAILED),
    ],
    ids=["client-reset", "runtime-reset", "connection-lost", "goaway-below", "trailers-only"],
)
def test_an_end_after_the_message_was_sent_tells_an_outcome(end: Cause, outcome: Outcome) -> None:
    play = opened()
    call = with_all_sent(play)
    end(play)
    assert call.events[1:] == [("responded", outcome, b"")]
    assert not play.relay.has_intercepted_calls


def test_a_goaway_at_or_above_its_id_does_not_end_it() -> None:
    play = opened()
    call = with_message(play)
    play.forget()
    play.runtime(goaway(3))
    assert call.names == ["message"]
    call.reply.forward(None)
    assert play.runtime_got() == [data(3, message(b"abc"), end=True)]


@pytest.mark.parametrize("code", [CANCEL, NO_ERROR])
def test_resets_pass_to_the_other_side(code: int) -> None:
    play = opened()
    with_message(play)
    play.forget()
    play.client(reset(3, code))
    assert play.runtime_got() == [reset(3, code)]
    play = opened()
    with_message(play)
    play.forget()
    play.runtime(reset(3, code))
    assert play.client_got() == [reset(3, code)]


def test_if_the_runtime_ends_the_stream_early_the_rest_is_swallowed_and_credited() -> None:
    play = opened()
    with_part(play)
    play.forget()
    play.runtime(answer := play.error(3, 12))
    assert play.client_got() == [credit(3, 6), answer]
    assert play.runtime_got() == [reset(3, CANCEL)]
    play.client(data(3, b"bc", pad=1, end=True), reset(3, NO_ERROR))
    assert play.client_got() == [credit(0, 4)]
    assert play.runtime_got() == []


def test_an_early_end_by_reset_is_not_answered_by_one() -> None:
    play = opened()
    with_part(play)
    play.forget()
    play.runtime(reset(3, NO_ERROR))
    assert play.runtime_got() == []
    play.client(data(3, b"bc", end=True))
    assert play.client_got() == [reset(3, NO_ERROR), credit(0, 2)]
    assert play.runtime_got() == []


def test_a_reset_after_an_early_answer_passes_once() -> None:
    play = opened()
    with_part(play)
    play.forget()
    play.runtime(answer := play.error(3, 12), reset(3, NO_ERROR))
    assert play.client_got() == [credit(3, 6), answer, reset(3, NO_ERROR)]
    assert play.runtime_got() == [reset(3, CANCEL)]


def test_an_early_response_is_not_an_end() -> None:
    play = opened()
    call = with_part(play)
    play.forget()
    play.runtime(first := play.response(3), early := data(3, message(b"early")))
    assert play.client_got() == [first, early]
    play.client(data(3, b"bc", end=True))
    call.reply.forward(None)
    play.runtime(play.trailers(3))
    assert call.events[-1] == ("responded", Outcome.SUCCEEDED, message(b"early"))


@pytest.mark.parametrize("begin", [with_part, with_message, with_part_sent, with_all_sent])
def test_a_second_header_block_ends_the_call_and_the_connection(
    begin: Callable[[Play], ScriptedCall],
) -> None:
    play = opened()
    begin(play)
    play.forget()
    with pytest.raises(PeerError, match="second header block") as raised:
        play.client(headers(3, play.client_headers.block([("x", "y")]), end=True))
    assert raised.value.code == PROTOCOL_ERROR
    assert play.runtime_got() == [reset(3, PROTOCOL_ERROR)]
    assert play.client_got() == [reset(3, PROTOCOL_ERROR)]


def test_a_second_header_block_on_a_stream_whose_data_waits_does_too() -> None:
    play = opened()
    play.client(play.call(3), play.call(5, HELD), data(5, b"", end=True))
    play.interceptor.calls[0].reply.forward(bytes(65_535))
    play.client(data(3, b"waits"))
    play.forget()
    with pytest.raises(PeerError, match="second header block"):
        play.client(headers(3, play.client_headers.block([("x", "y")]), end=True))
    assert play.runtime_got() == [reset(3, PROTOCOL_ERROR)]


def test_a_second_header_block_on_a_passing_stream_passes() -> None:
    play = opened()
    play.client(play.call(3), data(3, b"x"))
    play.forget()
    trailers = headers(3, play.client_headers.block([("x", "y")]), end=True)
    play.client(trailers)
    assert play.runtime_got() == [trailers]
