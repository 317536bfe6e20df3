"""A held message of one frame that is sent on at once, as it came: its frame passes and nothing is owed."""

from __future__ import annotations

import pytest

from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.frontends.cri_proxy.relay.intercepted_stream import InterceptedStream
from tests.frontends.cri_proxy.relay.playbook import (
    DEFAULT_WINDOW,
    HELD,
    Play,
    ScriptedCall,
    forward_as_it_came,
    opened,
    spend,
)
from tests.peers.wire import CANCEL, DATA, INITIAL_WINDOW, credit, data, message, reset

MESSAGE = message(b"abc")


def responded(play: Play, stream_id: int) -> list[object]:
    """The runtime answers; returns what the handler of that call was told."""
    play.runtime(play.response(stream_id), data(stream_id, message(b"yes")), play.trailers(stream_id))
    return play.interceptor.calls[-1].names


@pytest.mark.parametrize("pad", [None, 10], ids=["plain", "padded"])
def test_the_frame_passes_as_it_came(pad: int | None) -> None:
    play = opened(forward_as_it_came)
    frame = data(3, MESSAGE, pad=pad, end=True)
    play.client(call := play.call(3, HELD), frame)
    assert play.runtime_got() == [call, frame]
    assert play.client_got() == []
    assert play.interceptor.calls[-1].events == [("message", MESSAGE)]


def test_its_credit_is_the_runtimes_to_give() -> None:
    play = opened(forward_as_it_came)
    play.client(play.call(3, HELD), data(3, MESSAGE, end=True))
    state = play.relay.flow
    assert (state.window_bytes, state.debt_bytes) == (DEFAULT_WINDOW - len(MESSAGE), 0)
    play.forget()
    play.runtime(credit(0, len(MESSAGE)))
    assert play.client_got() == [credit(0, len(MESSAGE))]


def test_the_answer_is_observed_and_the_memory_free() -> None:
    play = opened(forward_as_it_came)
    play.client(play.call(3, HELD), data(3, MESSAGE, end=True))
    held = play.relay.special_streams[3]
    assert isinstance(held, InterceptedStream)
    assert (play.budget.used_bytes, held._body.content) == (0, b"")
    assert responded(play, 3) == ["message", "responded"]
    assert play.interceptor.calls[-1].events[-1] == ("responded", Outcome.SUCCEEDED, message(b"yes"))
    assert not play.relay.has_intercepted_calls


def test_of_an_empty_message_the_end_is_sent() -> None:
    play = opened(forward_as_it_came)
    play.client(play.call(3, HELD), data(3, b"", end=True))
    assert play.runtime_got()[1:] == [data(3, b"", end=True)]
    assert play.client_got() == []


def test_a_message_in_two_frames_is_taken() -> None:
    play = opened(forward_as_it_came)
    play.client(play.call(3, HELD), data(3, MESSAGE[:4]), data(3, MESSAGE[4:], end=True))
    assert play.runtime_got()[1:] == [data(3, MESSAGE, end=True)]
    assert sum(int.from_bytes(update.payload, "big") for update in play.client_got()) == len(MESSAGE)


def test_a_decision_that_comes_later_finds_the_message_taken() -> None:
    play = opened()
    call = play.hold(3)
    play.client(data(3, MESSAGE, end=True))
    assert play.client_got() == [credit(0, len(MESSAGE))]
    call.reply.forward(None)
    assert play.runtime_got() == [data(3, MESSAGE, end=True)]
    assert play.relay.flow.debt_bytes == len(MESSAGE)


def test_of_a_longer_message_in_its_place_the_difference_is_owed() -> None:
    changed = message(b"longer than before")
    play = opened(lambda call, _: call.reply.forward(changed))
    play.client(play.call(3, HELD), data(3, MESSAGE, end=True))
    assert play.runtime_got()[1:] == [data(3, changed, end=True)]
    assert play.client_got() == []
    assert play.relay.flow.debt_bytes == len(changed) - len(MESSAGE)
    assert play.relay.flow.window_bytes == DEFAULT_WINDOW - len(changed)
    play.runtime(credit(0, len(changed)))
    assert play.client_got() == [credit(0, len(MESSAGE))]
    assert responded(play, 3) == ["message", "responded"]


@pytest.mark.parametrize("pad", [None, 10], ids=["plain", "padded"])
def test_of_a_shorter_message_in_its_place_the_difference_is_credited(pad: int | None) -> None:
    changed, frame = message(b""), data(3, MESSAGE, pad=pad, end=True)
    play = opened(lambda call, _: call.reply.forward(changed))
    play.client(play.call(3, HELD), frame)
    assert play.runtime_got()[1:] == [data(3, changed, end=True)]
    assert play.client_got() == [credit(0, len(frame.payload) - len(changed))]
    assert play.relay.flow.debt_bytes == 0
    play.runtime(credit(0, len(changed)))
    assert play.client_got() == [credit(0, len(changed))]


def test_a_longer_message_over_the_runtimes_connection_window_is_taken() -> None:
    changed = message(b"longer than before")
    play = opened(lambda call, _: call.reply.forward(changed))
    spend(play, leave_bytes=len(changed) - 1, stream_id=3)
    play.forget()
    play.client(play.call(5, HELD), data(5, MESSAGE, end=True))
    sent = [frame for frame in play.runtime_got() if frame.type_ == DATA]
    assert [len(frame.payload) for frame in sent] == [len(changed) - 1]
    assert credit(0, len(MESSAGE)) in play.client_got()


def test_a_refused_message_is_credited() -> None:
    play = opened(lambda call, _: call.reply.refuse(9, "no"))
    play.client(play.call(3, HELD), data(3, MESSAGE, end=True))
    assert play.runtime_got()[1:] == [reset(3, CANCEL)]
    assert credit(0, len(MESSAGE)) in play.client_got()


def test_a_message_over_the_runtimes_connection_window_is_taken() -> None:
    play = opened(forward_as_it_came)
    spend(play, leave_bytes=len(MESSAGE) - 1, stream_id=3)
    play.forget()
    play.client(play.call(5, HELD), data(5, MESSAGE, end=True))
    sent = [frame for frame in play.runtime_got() if frame.type_ == DATA]
    assert [len(frame.payload) for frame in sent] == [len(MESSAGE) - 1]
    assert credit(0, len(MESSAGE)) in play.client_got()


def test_an_empty_message_does_not_overtake_data_that_waits() -> None:
    play = opened(lambda call, asked: call.reply.forward(asked if len(asked) > 1000 else None))
    spend(play, leave_bytes=1000, stream_id=3)
    play.client(play.call(5, HELD), data(5, bytes(1500), end=True))
    play.forget()
    play.client(play.call(7, HELD), data(7, b"", end=True))
    assert [frame for frame in play.runtime_got() if frame.type_ == DATA] == []
    play.runtime(credit(0, 5000))
    assert [frame.stream_id for frame in play.runtime_got() if frame.type_ == DATA] == [5, 7]


def test_a_message_for_which_the_relay_gave_stream_credit_is_taken() -> None:
    """The runtime knows nothing of that credit, and would call the frame an error."""
    play = opened(forward_as_it_came, runtime_settings={INITIAL_WINDOW: 2})
    play.client(play.call(3, HELD))
    play.forget()
    play.client(data(3, message(b""), end=True))
    assert [len(frame.payload) for frame in play.runtime_got()] == [2]
    assert credit(0, len(message(b""))) in play.client_got()


def test_what_another_call_sends_meanwhile_counts() -> None:
    """The window is looked at when the frame passes, and not only before."""
    earlier: list[ScriptedCall] = []

    def decide(call: ScriptedCall, _: bytes) -> None:
        if earlier:
            earlier[0].reply.forward(None)
            call.reply.forward(None)
        earlier.append(call)

    play = opened(decide)
    spend(play, leave_bytes=200, stream_id=3)
    play.client(play.call(5, HELD), data(5, bytes(100), end=True))
    play.client(play.call(7, HELD), data(7, bytes(150), end=True))
    assert play.relay.flow.window_bytes == 0
    sent = [(frame.stream_id, len(frame.payload)) for frame in play.runtime_got() if frame.type_ == DATA]
    assert sent == [(5, 100), (7, 100)]


def test_before_the_runtime_is_there_a_message_is_taken() -> None:
    play = Play(forward_as_it_came)
    play.client(play.call(1, HELD), data(1, MESSAGE, end=True))
    assert credit(0, len(MESSAGE)) in play.client_got()
    play.open()
    assert play.runtime_got()[-1] == data(1, MESSAGE, end=True)


def test_a_late_second_answer_changes_nothing() -> None:
    def twice(call: ScriptedCall, _: bytes) -> None:
        call.reply.forward(None)
        call.reply.forward(b"other")
        call.reply.refuse(9, "no")

    play = opened(twice)
    play.client(call := play.call(3, HELD), frame := data(3, MESSAGE, end=True))
    assert play.runtime_got() == [call, frame]
    assert play.client_got() == []
