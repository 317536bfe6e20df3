"""gRPC frames: prefix, compression, bounds."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.frontends.cri_proxy.calls.grpc_framing import (
    MAX_GZIP_MEMBERS,
    MAX_RESPONSE_BYTES,
    SLICE_BYTES,
    Decompressor,
    MessageTooLargeError,
    UnreadableMessageError,
    frame_message,
    open_response,
)
from runtimeproxy.frontends.cri_proxy.interception import DEFAULT_MAX_MESSAGE_BYTES


def open_frame(frame: bytes, encoding: str, max_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> bytes:
    message = Decompressor(frame, encoding, max_bytes)
    message.run()
    return bytes(message.take())


def compressed(body: bytes) -> bytes:
    return b"\1" + len(body).to_bytes(4) + body


@pytest.mark.parametrize(
    ("frame", "encoding", "expected"),
    [
        pytest.param(b"\0\0\0\0\0", "identity", b"", id="empty"),
        pytest.param(b"\0\0\0\0\3abc", "identity", b"abc", id="plain"),
        pytest.param(b"\0\0\0\0\3abc", "snappy", b"abc", id="plain-in-a-call-with-compression"),
        pytest.param(compressed(gzip.compress(b"abc")), "gzip", b"abc", id="gzip"),
        pytest.param(
            compressed(gzip.compress(b"ab") + gzip.compress(b"c")), "gzip", b"abc", id="two-members"
        ),
        pytest.param(compressed(zlib.compress(b"abc")), "deflate", b"abc", id="deflate"),
    ],
)
def test_open_frame(frame: bytes, encoding: str, expected: bytes) -> None:
    assert open_frame(frame, encoding) == expected


@pytest.mark.parametrize(
    ("frame", "encoding"),
    [
        pytest.param(b"", "identity", id="nothing"),
        pytest.param(b"\0\0\0\0", "identity", id="half-a-prefix"),
        pytest.param(b"\0\0\0\0\3ab", "identity", id="too-short"),
        pytest.param(b"\0\0\0\0\3abc\0\0\0\0\0", "identity", id="two-messages"),
        pytest.param(b"\2\0\0\0\3abc", "identity", id="unknown-flags"),
        pytest.param(compressed(b"abc"), "identity", id="compressed-without-encoding"),
        pytest.param(compressed(b"abc"), "snappy", id="unknown-compression"),
        pytest.param(compressed(b"abc"), "gzip", id="no-gzip"),
        pytest.param(compressed(gzip.compress(b"abc")[:-9]), "gzip", id="cut-gzip"),
        pytest.param(compressed(gzip.compress(b"abc") + b"tail"), "gzip", id="garbage-after-gzip"),
    ],
)
def test_frames_that_cannot_be_read(frame: bytes, encoding: str) -> None:
    with pytest.raises(UnreadableMessageError):
        open_frame(frame, encoding)


@pytest.mark.parametrize(
    ("frame", "encoding"),
    [
        pytest.param(frame_message(b"x" * 11), "identity", id="plain"),
        pytest.param(compressed(gzip.compress(b"x" * 11)), "gzip", id="gzip"),
        pytest.param(compressed(gzip.compress(b"x" * 100_000_000)), "gzip", id="bomb"),
        pytest.param(compressed(gzip.compress(b"x" * 6) * 2), "gzip", id="two-members"),
    ],
)
def test_messages_over_the_bound(frame: bytes, encoding: str) -> None:
    with pytest.raises(MessageTooLargeError):
        open_frame(frame, encoding, max_bytes=10)


def test_a_message_at_the_bound_is_taken() -> None:
    assert open_frame(frame_message(b"x" * 10), "identity", max_bytes=10) == b"x" * 10
    assert open_frame(compressed(gzip.compress(b"x" * 10)), "gzip", max_bytes=10) == b"x" * 10


def test_a_response_is_opened_by_what_it_begins_with() -> None:
    assert open_response(frame_message(b"abc")) == b"abc"
    assert open_response(compressed(gzip.compress(b"abc"))) == b"abc"
    with pytest.raises(UnreadableMessageError):
        open_response(compressed(b"abc"))


@given(st.binary(max_size=64), st.sampled_from(["identity", "gzip", "deflate", "br"]))
def test_garbage_is_never_more_than_unreadable(frame: bytes, encoding: str) -> None:
    try:
        open_frame(frame, encoding, max_bytes=32)
    except (UnreadableMessageError, MessageTooLargeError):
        return


@given(st.binary(max_size=200))
def test_a_frame_is_opened_again(body: bytes) -> None:
    assert open_frame(frame_message(body), "gzip") == body


def test_a_message_of_many_members_is_not_read() -> None:
    """gRPC sends one; empty ones are 20 bytes each, and each needs a decompressor."""
    few = compressed(gzip.compress(b"") * (MAX_GZIP_MEMBERS - 1) + gzip.compress(b"abc"))
    assert open_frame(few, "gzip") == b"abc"
    many = compressed(gzip.compress(b"") * 750_000)
    opening = Decompressor(many, "gzip")
    slices: list[None] = []
    with pytest.raises(UnreadableMessageError, match="more than 16 members"):
        opening.run(lambda: slices.append(None))
    assert len(slices) == MAX_GZIP_MEMBERS + 1


@pytest.mark.parametrize(
    ("body", "most"),
    [
        pytest.param(gzip.compress(b"x" * 1_000_000), 40, id="short and opened long"),
        pytest.param(gzip.compress(bytes(range(256)) * 4000, 0), 40, id="hardly compressed"),
        pytest.param(gzip.compress(b"x" * 100_000) * 10, 40, id="members"),
    ],
)
def test_compressed_data_is_opened_in_slices(body: bytes, most: int) -> None:
    """The work can stop between two, and takes as many as the data is long."""
    opening = Decompressor(compressed(body), "gzip")
    opening.run(slices=1)
    assert not opening.is_done
    assert 0 < opening.size_bytes <= SLICE_BYTES
    slices: list[None] = []
    opening.run(lambda: slices.append(None))
    assert bytes(opening.take()) == gzip.decompress(body)
    assert 10 < len(slices) <= most


def test_the_opening_stops_when_it_is_told() -> None:
    def stop() -> None:
        raise InterruptedError

    opening = Decompressor(compressed(gzip.compress(b"x" * 1_000_000)), "gzip")
    opening.run(slices=1)
    with pytest.raises(InterruptedError):
        opening.run(stop)
    assert opening.size_bytes <= SLICE_BYTES


def test_a_long_response_is_not_read() -> None:
    """Opened in the loop's thread, it must be short: the runtime is asked instead."""
    assert open_response(compressed(gzip.compress(b"x" * MAX_RESPONSE_BYTES)))
    with pytest.raises(MessageTooLargeError):
        open_response(compressed(gzip.compress(b"x" * (MAX_RESPONSE_BYTES + 1))))
