"""Design 2: what the relay observes of a response, and when the handler learns of it."""

from __future__ import annotations

import pytest

from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.frontends.cri_proxy.relay.intercepted_stream import MAX_OBSERVED_BYTES
from tests.frontends.cri_proxy.relay.playbook import HELD, Play, ScriptedCall, opened
from tests.peers.wire import INTERNAL_ERROR, Frame, continuation, credit, data, headers, message, reset


def with_all_sent(play: Play) -> ScriptedCall:
    """An intercepted call whose message was sent on."""
    call = play.hold(3)
    play.client(data(3, message(b"abc"), end=True))
    call.reply.forward(None)
    return call


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
    assert not play.relay.special_streams
    assert not play.relay.open_streams
    assert play.budget.used_bytes == 0
