"""Design 2, "Errors": what ends this one connection, and with which code."""

from __future__ import annotations

import pytest

from runtimeproxy.frontends.cri_proxy.interception import CallHandler, CallHead, Reply
from runtimeproxy.frontends.cri_proxy.relay.request import MAX_BLOCK_BYTES
from runtimeproxy.http2.frames import ErrorCode, PeerError
from runtimeproxy.http2.header_fields import MAX_LIST_BYTES
from tests.frontends.cri_proxy.relay.playbook import HELD, Play, opened
from tests.peers.wire import (
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_ERROR,
    INTERNAL_ERROR,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    Frame,
    continuation,
    data,
    goaway,
    headers,
    message,
    ping,
    reset,
    wire,
)

FRAME_BOUND = 16_384

BROKEN: dict[str, tuple[int, bytes]] = {
    "frame-too-long": (FRAME_SIZE_ERROR, wire(Frame(0xF0, 0, 0, bytes(FRAME_BOUND + 1)))),
    "frame-too-long-seen-by-its-header": (FRAME_SIZE_ERROR, wire(data(1, bytes(FRAME_BOUND + 1)))[:9]),
    "block-that-does-not-decode": (COMPRESSION_ERROR, wire(headers(3, b"\xff\xff\xff\xff\xff\xff\xff\xff"))),
    "block-with-an-unknown-index": (COMPRESSION_ERROR, wire(headers(3, b"\xfe"))),
    "block-that-is-cut": (COMPRESSION_ERROR, wire(headers(3, b"\x00\x0aabc"))),
    "block-interrupted": (PROTOCOL_ERROR, wire(headers(3, b"\x88", more=True), ping())),
    "block-interrupted-by-another": (
        PROTOCOL_ERROR,
        wire(headers(3, b"\x88", more=True), headers(5, b"\x88")),
    ),
    "continuation-of-another-stream": (
        PROTOCOL_ERROR,
        wire(headers(3, b"\x88", more=True), continuation(5, b"\x88")),
    ),
    "continuation-alone": (PROTOCOL_ERROR, wire(continuation(3, b"\x88"))),
    "data-on-an-idle-stream": (PROTOCOL_ERROR, wire(data(3, b"x"))),
    "data-on-stream-0": (PROTOCOL_ERROR, wire(data(0, b"x"))),
    "headers-on-stream-0": (PROTOCOL_ERROR, wire(headers(0, b"\x88"))),
    "push-promise": (PROTOCOL_ERROR, wire(Frame(PUSH_PROMISE, 4, 3, b"\0\0\0\2\x88"))),
    "padding-longer-than-data": (PROTOCOL_ERROR, wire(Frame(0, 8, 1, b"\x04abc"))),
    "padding-longer-than-headers": (PROTOCOL_ERROR, wire(Frame(1, 0xC, 3, b"\x04abc"))),
    "padding-without-length": (PROTOCOL_ERROR, wire(Frame(1, 0xC, 3, b""))),
    "priority-fields-missing": (FRAME_SIZE_ERROR, wire(Frame(1, 0x24, 3, b"abcd"))),
}


def fed(play: Play, sent: bytes, step: int) -> None:
    """The client's bytes, a few at a time."""
    for start in range(0, len(sent), step):
        play.client(sent[start : start + step])


@pytest.mark.parametrize(("code", "sent"), BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("step", [1, 7, 1 << 20], ids=["by-octet", "by-7", "at-once"])
def test_a_client_that_breaks_the_protocol_ends_its_connection(code: int, sent: bytes, step: int) -> None:
    play = opened()
    if sent[3] == 0 and sent[4] & 8:
        play.hold(3)
        sent = sent[:8] + b"\x03" + sent[9:]
    with pytest.raises(PeerError) as raised:
        fed(play, sent, step)
    assert raised.value.code == code


def test_a_header_block_without_end_ends_the_connection() -> None:
    play = opened()
    play.client(headers(3, b"\x88", more=True))
    with pytest.raises(PeerError, match="without end") as raised:
        fed(play, wire(continuation(3, b"", more=True)) * (MAX_BLOCK_BYTES // 9 + 1), 9)
    assert raised.value.code == ENHANCE_YOUR_CALM


def test_a_short_block_with_an_endless_list_ends_the_connection() -> None:
    play = opened()
    play.client(headers(3, play.client_headers.block([(":path", "/x"), ("big", "x" * 3000)]), end=True))
    # Index 62 is the newest entry of the table.
    block = b"\xbe" * (MAX_LIST_BYTES // 3000 + 1)
    with pytest.raises(PeerError) as raised:
        play.client(headers(5, block, end=True))
    assert raised.value.code == COMPRESSION_ERROR


def test_a_frame_of_the_runtime_that_the_client_does_not_allow_ends_the_connection() -> None:
    play = opened()
    with pytest.raises(PeerError, match="longer than the client allows") as raised:
        play.runtime(data(1, bytes(FRAME_BOUND + 1)))
    assert raised.value.code == FRAME_SIZE_ERROR


def test_padding_of_the_runtime_that_does_not_fit_ends_the_connection_of_a_held_call() -> None:
    play = opened(lambda call, _: call.reply.forward(None))
    play.hold(3)
    play.client(data(3, message(b""), end=True))
    with pytest.raises(PeerError, match="padding"):
        play.runtime(play.response(3), Frame(0, 8, 3, b"\x04abc"))


@pytest.mark.parametrize("code", [ErrorCode.FRAME_SIZE_ERROR, ErrorCode.INTERNAL_ERROR])
def test_the_client_gets_the_goaway_that_the_runtime_would_have_sent(code: ErrorCode) -> None:
    play = opened()
    call = play.hold(3)
    play.relay.fail(code)
    assert play.client_got() == [goaway(3, code)]
    assert call.names == ["cancelled"]


def test_no_goaway_is_written_into_the_middle_of_a_frame() -> None:
    play = opened()
    whole = bytes(data(1, bytes(10)))
    play.runtime(whole[:12])
    play.relay.fail(ErrorCode.PROTOCOL_ERROR)
    assert play.client_bytes() == whole[:12]


def test_a_handler_that_raises_at_the_end_of_a_connection_does_not_keep_others_from_hearing_of_it() -> None:
    play = opened()
    first, second = play.hold(3), play.hold(5)

    class Broken:
        def append(self, _: object) -> None:
            raise RuntimeError("broken")

    first.events = Broken()  # type: ignore[assignment]  # raises on use
    play.relay.on_lost()
    assert second.names == ["cancelled"]


class BrokenInterceptor:
    """Raises when a call is opened."""

    def intercepts(self, path: str) -> bool:
        return path == HELD

    def open(self, head: CallHead, reply: Reply) -> CallHandler:
        raise RuntimeError("a defect")


def test_an_exception_in_own_code_comes_out_for_the_connections_guard() -> None:
    play = opened()
    object.__setattr__(play.relay.options, "interceptor", BrokenInterceptor())
    with pytest.raises(RuntimeError, match="a defect"):
        play.client(play.call(3, HELD))
    play.relay.fail(ErrorCode.INTERNAL_ERROR)
    assert play.client_got()[-1].payload[4:] == INTERNAL_ERROR.to_bytes(4, "big")


def test_unknown_resets_and_credit_are_the_runtimes_to_judge() -> None:
    play = opened()
    odd = [reset(99), Frame(8, 0, 99, b"\0\0\0\0"), Frame(8, 0, 0, b"\0"), Frame(3, 0, 0, b"")]
    play.client(*odd)
    assert play.runtime_got() == odd


def test_nothing_of_a_play_is_left_open() -> None:
    assert not Play().relay.has_intercepted_calls
