"""Design 2, "Refusal": which frames, in which order, byte for byte; and the stream afterwards."""

from __future__ import annotations

import pytest

from runtimeproxy.frontends.cri_proxy.relay.error_response import (
    MAX_MESSAGE_BYTES,
    error_response,
)
from runtimeproxy.http2.header_fields import percent_encoded
from tests.frontends.cri_proxy.relay.playbook import HELD, Play, ScriptedCall, opened
from tests.peers.wire import (
    CANCEL,
    END_HEADERS,
    END_STREAM,
    INITIAL_WINDOW,
    NO_ERROR,
    SETTINGS_ACK,
    TABLE_SIZE,
    Frame,
    Headers,
    credit,
    data,
    frames_of,
    headers,
    message,
    reset,
    settings,
)


def refused(play: Play, stream_id: int = 3, code: int = 9, text: str = "no") -> ScriptedCall:
    """An intercepted call with its whole message, refused."""
    call = play.hold(stream_id)
    play.client(data(stream_id, message(b"abc"), end=True))
    play.client_got()
    call.reply.refuse(code, text)
    return call


def test_the_runtime_gets_a_reset_and_the_client_one_headers_frame() -> None:
    play = opened()
    refused(play)
    assert play.runtime_got() == [reset(3, CANCEL)]
    (answer,) = play.client_got()
    assert (answer.type_, answer.flags, answer.stream_id) == (1, END_STREAM | END_HEADERS, 3)
    assert play.read_refusal(answer) == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "9",
        "grpc-message": "no",
    }
    assert play.wakes


def test_a_client_that_has_not_half_closed_gets_no_error_after_it() -> None:
    play = opened(max_message_bytes=10)
    play.hold(3)
    play.client(data(3, message(bytes(11))[:5]))
    update, answer, ending = play.client_got()
    assert (update.type_, answer.type_, ending) == (8, 1, reset(3, NO_ERROR))


def test_all_fields_are_literal_without_indexing() -> None:
    play = opened()
    play.runtime(play.response(1))
    (known,) = play.client_got()
    play.client_headers.read(known.payload)
    entries = list(play.client_headers.decoder.header_table.dynamic_entries)
    assert entries
    refused(play)
    (answer,) = play.client_got()
    block = answer.payload
    # Indexed static entry 8, then literals "0000 0000" with a new name.
    assert block[:2] == b"\x88\x00"
    play.read_refusal(answer)
    assert list(play.client_headers.decoder.header_table.dynamic_entries) == entries


def test_response_headers_that_have_passed_are_not_repeated() -> None:
    play = opened()
    call = play.hold(3)
    play.runtime(play.response(3))
    play.client(data(3, message(b"abc"), end=True))
    play.forget()
    call.reply.refuse(7, "no")
    (answer,) = play.client_got()
    assert Headers().read(answer.payload) == {"grpc-status": "7", "grpc-message": "no"}


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("plain ~text!", b"plain ~text!"),
        ("100%", b"100%25"),
        ("a\nb\tc", b"a%0Ab%09c"),
        ("Größe", b"Gr%C3%B6%C3%9Fe"),
        ("\U0001f600", b"%F0%9F%98%80"),
        ("\x7f", b"%7F"),
        ("\udc80", b"?"),
        ("", b""),
    ],
    ids=["ascii", "percent", "control", "latin", "astral", "delete", "surrogate", "empty"],
)
def test_the_message_is_percent_encoded(text: str, encoded: bytes) -> None:
    assert percent_encoded(text, MAX_MESSAGE_BYTES) == encoded


@pytest.mark.parametrize("text", ["x" * 100_000, "ö" * 100_000, "%" * 100_000])
def test_the_frame_stays_under_8_kib(text: str) -> None:
    frame = error_response(3, 9, text, (100, 4096))
    assert len(frame) < 8 * 1024
    encoded = Headers().read(frames_of(frame)[0].payload)["grpc-message"]
    assert len(encoded) > MAX_MESSAGE_BYTES - 6
    assert not encoded.endswith(("%", "%C", "%C3", "%2"))


@pytest.mark.parametrize(
    ("sizes", "updates"),
    [
        ([100], [100]),
        ([0], [0]),
        ([0, 4096], [0, 4096]),
        ([500, 100, 200], [100, 200]),
        ([100, 1 << 20], [100, 4096]),
        ([1 << 16, 8192], [8192]),
        ([1 << 16, 8192, 1 << 16], [8192]),
        ([8192], []),
    ],
    ids=[
        "less",
        "none",
        "less-more",
        "smallest-last",
        "bounded",
        "over-default",
        "over-default-more",
        "more",
    ],
)
def test_it_begins_with_a_table_size_update_if_one_is_due(sizes: list[int], updates: list[int]) -> None:
    play = opened()
    for size in sizes:
        play.client(settings({TABLE_SIZE: size}))
        play.runtime(SETTINGS_ACK)
    play.forget()
    refused(play)
    (answer,) = play.client_got()
    assert table_updates(answer.payload) == updates


def table_updates(block: bytes) -> list[int]:
    """The sizes that a block begins with. Source: RFC 7541, 6.3 and 5.1."""
    found = []
    while block[0] & 0xE0 == 0x20:
        value, used, shift = block[0] & 0x1F, 1, 0
        if value == 0x1F:
            while True:
                octet = block[used]
                value += (octet & 0x7F) << shift
                used, shift = used + 1, shift + 7
                if not octet & 0x80:
                    break
        found.append(value)
        block = block[used:]
    return found


def test_an_update_is_due_only_once_the_ack_has_passed() -> None:
    play = opened()
    play.client(settings({TABLE_SIZE: 100}))
    refused(play)
    assert table_updates(play.client_got()[0].payload) == []


def test_an_update_is_signalled_once() -> None:
    play = opened()
    play.client(settings({TABLE_SIZE: 100}))
    play.runtime(SETTINGS_ACK)
    play.forget()
    refused(play, 3)
    assert table_updates(play.client_got()[0].payload) == [100]
    refused(play, 5)
    assert table_updates(play.client_got()[0].payload) == []


def test_an_update_that_the_runtime_has_signalled_is_not_due() -> None:
    play = opened()
    play.client(settings({TABLE_SIZE: 100}))
    play.runtime_headers.encoder.header_table_size = 100
    play.runtime(SETTINGS_ACK, play.response(1))
    play.forget()
    refused(play)
    assert table_updates(play.client_got()[0].payload) == []


def test_an_update_that_becomes_due_while_the_refusal_waits_leads_it() -> None:
    play = opened()
    play.client(settings({TABLE_SIZE: 100}))
    play.relay.on_client_writable(False)
    refused(play)
    play.runtime(SETTINGS_ACK)
    assert play.client_got() == [SETTINGS_ACK]
    play.relay.on_client_writable(True)
    assert table_updates(play.client_got()[-1].payload) == [100]


def test_an_update_that_the_runtime_signals_while_the_refusal_waits_does_not() -> None:
    play = opened()
    play.client(settings({TABLE_SIZE: 100}))
    play.runtime(SETTINGS_ACK)
    play.relay.on_client_writable(False)
    refused(play)
    play.runtime(play.response(1))
    play.relay.on_client_writable(True)
    assert table_updates(play.client_got()[-1].payload) == []


def test_data_of_a_refused_stream_is_swallowed_and_credited() -> None:
    play = opened(max_message_bytes=10)
    play.hold(3)
    play.client(data(3, message(bytes(11))[:5]))
    play.forget()
    play.client(data(3, b"abc", pad=1), data(3, b"", end=True))
    assert play.client_got() == [credit(0, 5)]
    assert play.runtime_got() == []


def test_its_reset_and_window_updates_are_dropped() -> None:
    play = opened()
    refused(play)
    play.forget()
    play.client(credit(3, 100), reset(3, NO_ERROR), credit(0, 5))
    assert play.runtime_got() == [credit(0, 5)]


def test_header_blocks_of_both_sides_still_pass() -> None:
    play = opened()
    refused(play)
    play.forget()
    late = headers(3, play.client_headers.block([("late", "1")]), end=True)
    play.client(late)
    assert play.runtime_got() == [late]
    play.runtime(answer := play.trailers(3, 1))
    assert play.client_got() == [answer]


def test_what_the_runtime_still_sends_on_it_goes_no_further() -> None:
    play = opened()
    refused(play)
    play.forget()
    play.runtime(data(3, b"abc"), credit(3, 10), reset(3, NO_ERROR))
    assert play.client_got() == []
    assert play.runtime_got() == [credit(0, 3)]


def test_a_call_is_decided_once() -> None:
    play = opened()
    call = refused(play)
    play.forget()
    call.reply.forward(b"late")
    call.reply.refuse(1, "again")
    assert (play.client_got(), play.runtime_got()) == ([], [])
    assert call.names == ["message"]


def test_a_refusal_after_the_end_of_the_call_does_nothing() -> None:
    play = opened()
    call = play.hold(3)
    play.client(data(3, message(b"abc"), end=True), reset(3))
    play.forget()
    call.reply.refuse(1, "late")
    assert (play.client_got(), play.runtime_got()) == ([], [])


def test_the_number_of_streams_that_are_remembered_is_bounded() -> None:
    play = opened(lambda call, _: call.reply.refuse(9, "no"))
    for stream_id in range(3, 2003, 2):
        play.client(play.call(stream_id, HELD), data(stream_id, message(b""), end=True))
    assert len(play.relay.special_streams) <= 128
    assert not play.relay.open_streams


def test_windows_of_a_refused_stream_do_not_matter_any_more() -> None:
    play = opened()
    refused(play)
    play.forget()
    play.runtime(settings({INITIAL_WINDOW: 5}))
    assert play.client_got() == [settings({INITIAL_WINDOW: 5})]
    assert Frame(0, 0, 3, b"") == data(3)
