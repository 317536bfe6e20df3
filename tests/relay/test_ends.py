"""Design 2: what ends a held call from outside, and what the response says about its outcome."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runtimeproxy.interception import Outcome
from runtimeproxy.relay.frames import PeerError
from runtimeproxy.relay.held import MAX_OBSERVED_BYTES
from tests.relay.playbook import HELD, Play, ScriptedCall, opened, spend
from tests.relay.wire import (
    CANCEL,
    INTERNAL_ERROR,
    NO_ERROR,
    PROTOCOL_ERROR,
    Frame,
    continuation,
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
    "connection-lost": lambda play: play.core.lost(),
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
    assert play.budget.used_bytes == play.budget.waiting_bytes == 0
    assert not play.core.has_held_calls
    play.forget()
    call.reply.forward(b"late")
    call.reply.refuse(1, "late")
    play.core.turn()
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
    assert not play.core.has_held_calls


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


def answered(play: Play, *items: Frame) -> tuple[object, ...]:
    """What the handler learns of a response."""
    call = with_all_sent(play)
    play.forget()
    play.runtime(*items)
    assert play.client_got() == list(items)
    return call.events[-1]


def test_one_complete_message_and_then_the_end_is_a_success() -> None:
    play = opened()
    whole = message(b"the answer")
    items = [play.response(3), data(3, whole), play.trailers(3)]
    assert answered(play, *items) == ("responded", Outcome.SUCCEEDED, whole)


def test_a_message_may_come_in_pieces_with_padding() -> None:
    play = opened()
    whole = message(b"the answer")
    items = [play.response(3), data(3, whole[:3], pad=2), data(3, whole[3:]), data(3), play.trailers(3)]
    assert answered(play, *items) == ("responded", Outcome.SUCCEEDED, whole)


def test_end_stream_may_stand_on_the_data() -> None:
    play = opened()
    items = [play.response(3), data(3, message(b"x"), end=True)]
    assert answered(play, *items) == ("responded", Outcome.SUCCEEDED, message(b"x"))


def test_an_empty_message_is_a_message() -> None:
    play = opened()
    items = [play.response(3), data(3, message(b"")), play.trailers(3)]
    assert answered(play, *items) == ("responded", Outcome.SUCCEEDED, message(b""))


def test_no_message_is_a_failure_whatever_its_code() -> None:
    play = opened()
    assert answered(play, play.response(3), play.trailers(3, 0)) == ("responded", Outcome.FAILED, b"")


@pytest.mark.parametrize(
    "content",
    [message(b"abc")[:-1], message(b"abc") + b"x", message(b"abc") * 2, b"\0\0"],
    ids=["short", "surplus", "two", "no-prefix"],
)
def test_anything_but_one_complete_message_is_unknown(content: bytes) -> None:
    play = opened()
    items = [play.response(3), data(3, content), play.trailers(3)]
    assert answered(play, *items) == ("responded", Outcome.UNKNOWN, b"")


def test_a_message_without_the_end_of_the_stream_is_unknown() -> None:
    play = opened()
    call = with_all_sent(play)
    play.runtime(play.response(3), data(3, message(b"abc")))
    assert call.names == ["message"]
    play.runtime(reset(3, INTERNAL_ERROR))
    assert call.events[-1] == ("responded", Outcome.UNKNOWN, b"")


def test_a_response_larger_than_what_is_observed_is_unknown() -> None:
    play = opened()
    call = with_all_sent(play)
    play.runtime(play.response(3), data(3, message(bytes(MAX_OBSERVED_BYTES))[:16_384]))
    play.runtime(*(data(3, bytes(16_384)) for _ in range(70)))
    play.runtime(play.trailers(3))
    assert call.events[-1] == ("responded", Outcome.UNKNOWN, b"")


def test_the_handler_learns_of_the_end_before_the_client_does() -> None:
    play = opened()
    call = with_all_sent(play)
    play.forget()
    seen: list[list[Frame]] = []
    call.before_response = lambda: seen.append(play.client_got())
    play.runtime(first := play.response(3), answer := data(3, message(b"x")), trailers := play.trailers(3))
    assert seen == [[first, answer]]
    assert play.client_got() == [trailers]


def test_trailers_in_several_frames_end_the_stream_too() -> None:
    play = opened()
    call = with_all_sent(play)
    block = play.runtime_headers.trailers()
    play.runtime(play.response(3), data(3, message(b"x")))
    play.runtime(headers(3, block[:2], end=True, more=True), continuation(3, block[2:]))
    assert call.events[-1] == ("responded", Outcome.SUCCEEDED, message(b"x"))


def test_a_finished_call_leaves_nothing_behind() -> None:
    play = opened(lambda call, _: call.reply.forward(None))
    for stream_id in range(3, 103, 2):
        play.client(play.call(stream_id, HELD), data(stream_id, message(b"x"), end=True))
        play.runtime(play.response(stream_id), data(stream_id, message(b"y")), play.trailers(stream_id))
        play.runtime(credit(0, 6))
    assert not play.core.state.special
    assert not play.core.state.open_streams
    assert play.budget.used_bytes == 0
