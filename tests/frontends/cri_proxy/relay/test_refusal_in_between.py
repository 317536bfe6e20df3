"""A refusal that one call's answer sets off on the same connection: its place, and what it signals."""

from __future__ import annotations

from hpack import Decoder

from tests.frontends.cri_proxy.relay.playbook import Play, ScriptedCall, opened
from tests.peers.wire import HEADERS, RST_STREAM, SETTINGS_ACK, TABLE_SIZE, Frame, data, message, settings


def one_answers_the_other(**options: dict[int, int]) -> Play:
    """Call 3 waits for its answer, which makes the handler refuse call 5."""
    play = opened(**options)  # type: ignore[arg-type]  # only SETTINGS are given
    first, second = play.hold(3), play.hold(5)
    for stream_id in (3, 5):
        play.client(data(stream_id, message(b"abc"), end=True))
    first.reply.forward(None)
    first.before_response = lambda: refuse(second)
    play.forget()
    return play


def refuse(call: ScriptedCall) -> None:
    """As a policy would."""
    call.reply.refuse(9, "no")


def test_it_stands_before_the_answer_that_set_it_off() -> None:
    play = one_answers_the_other()
    answer = [play.response(3), data(3, message(b"ok")), play.trailers(3)]
    play.runtime(*answer)
    got = play.client_got()
    assert [frame for frame in got if frame.stream_id == 3] == answer
    assert [frame.stream_id for frame in got] == [3, 3, 5, 3]
    assert [(frame.type_, frame.stream_id) for frame in play.runtime_got()] == [(RST_STREAM, 5)]


def test_it_signals_the_table_size_update_that_the_answer_behind_it_signals_too() -> None:
    play = one_answers_the_other()
    play.client(settings({TABLE_SIZE: 100}))
    play.runtime(SETTINGS_ACK)
    play.runtime_headers.encoder.header_table_size = 100
    play.forget()
    play.runtime(play.error(3, 5))
    refusal, answer = (frame for frame in play.client_got() if frame.type_ == HEADERS)
    assert (refusal.stream_id, answer.stream_id) == (5, 3)
    assert status_of(refusal, play) == "9"
    assert status_of(answer, play) == "5"


def status_of(frame: Frame, play: Play) -> str:
    """Reads a block as a client does that insists on the update (RFC 7541, 4.2)."""
    decoder: Decoder = play.client_headers.decoder
    decoder.max_allowed_table_size = 100
    return play.client_headers.read(frame.payload)["grpc-status"]
