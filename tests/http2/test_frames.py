"""Frames as bytes: what the relay writes, and how it reads padding and priority fields."""

from __future__ import annotations

import pytest

from runtimeproxy.http2 import frames
from runtimeproxy.http2.frames import ErrorCode, PeerError
from tests.peers.wire import PADDED, PRIORITY_FLAG, credit, goaway, ping, ping_ack, reset, settings


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param(frames.window_update(5, 2**31 - 1), "00000408 00 00000005 7fffffff", id="window-update"),
        pytest.param(
            frames.rst_stream(7, ErrorCode.CANCEL), "00000403 00 00000007 00000008", id="rst-stream"
        ),
        pytest.param(
            frames.goaway(9, ErrorCode.ENHANCE_YOUR_CALM, b"!"),
            "00000907 00 00000000 00000009 0000000b 21",
            id="goaway",
        ),
        pytest.param(frames.ping(bytes(range(8))), "00000806 00 00000000 0001020304050607", id="ping"),
        pytest.param(frames.ping_ack(bytes(8)), "00000806 01 00000000 0000000000000000", id="ping-ack"),
        pytest.param(frames.EMPTY_SETTINGS, "00000004 00 00000000", id="empty-settings"),
        pytest.param(frames.SETTINGS_ACK, "00000004 01 00000000", id="settings-ack"),
    ],
)
def test_frames_have_the_bytes_of_the_protocol(written: bytes, expected: str) -> None:
    assert written == bytes.fromhex(expected)


def test_a_length_of_more_than_16_bits_is_written_in_three_bytes() -> None:
    assert frames.frame(0, 0, 1, bytes(0x012345))[:9] == bytes.fromhex("012345 00 00 00000001")


def test_the_builders_of_these_tests_agree_with_the_relays() -> None:
    assert [bytes(item) for item in (credit(3, 5), reset(3), goaway(3), ping(), ping_ack(), settings())] == [
        frames.window_update(3, 5),
        frames.rst_stream(3, 8),
        frames.goaway(3, 0),
        frames.ping(b"12345678"),
        frames.ping_ack(b"12345678"),
        frames.EMPTY_SETTINGS,
    ]


@pytest.mark.parametrize(
    ("payload", "content"),
    [
        pytest.param(b"\x00abc", b"abc", id="padding-of-nothing"),
        pytest.param(b"\x02abc..", b"abc", id="padding"),
        pytest.param(b"\x03...", b"", id="padding-alone"),
        pytest.param(b"\x00", b"", id="empty"),
    ],
)
def test_padding_is_stripped(payload: bytes, content: bytes) -> None:
    assert frames.unpadded(payload, PADDED) == content
    assert frames.unpadded(payload, 0) == payload


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x04abc"], ids=["no-length", "no-room", "one-too-long"])
def test_padding_as_long_as_its_frame_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(PeerError) as raised:
        frames.unpadded(payload, PADDED)
    assert raised.value.code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        pytest.param(0, b"block", id="plain"),
        pytest.param(PADDED, b"\x02block..", id="padded"),
        pytest.param(PRIORITY_FLAG, b"12345block", id="priority"),
        pytest.param(PADDED | PRIORITY_FLAG, b"\x0112345block.", id="both"),
    ],
)
def test_a_header_fragment_stands_behind_priority_and_before_padding(flags: int, payload: bytes) -> None:
    assert frames.header_fragment(payload, flags) == b"block"


def test_priority_fields_that_do_not_fit_are_a_frame_size_error() -> None:
    with pytest.raises(PeerError) as raised:
        frames.header_fragment(b"\x0112345", PADDED | PRIORITY_FLAG)
    assert raised.value.code is ErrorCode.FRAME_SIZE_ERROR
