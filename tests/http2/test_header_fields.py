"""Reading of HPACK blocks, beside a decoder that makes a list of all fields."""

from __future__ import annotations

import pytest
from hpack import Decoder, Encoder, HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_FAIL, HUFFMAN_TABLE, decode_huffman
from hypothesis import assume, given
from hypothesis import strategies as st

from runtimeproxy.http2.header_fields import MAX_LIST_BYTES, FieldReader, Fields, decoded, huffman_length

KEPT = b"traceparent"
WANTED = Fields(b":path", b"grpc-timeout", b"grpc-encoding", encoded=(KEPT,))
TABLE = 4096
LARGEST_TABLE = 10_000

_HUFFMAN = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)

names = st.sampled_from((*WANTED.names, b":method", b"baggage", b"x")) | st.binary(max_size=6)
values = st.sampled_from((b"", b"POST", b"/a/B", b"3S")) | st.binary(max_size=300)
fields = st.tuples(names, values, st.booleans())
blocks = st.tuples(
    st.none() | st.integers(0, LARGEST_TABLE),
    st.lists(fields, max_size=8),
    st.booleans(),
)


def reference() -> Decoder:
    decoder = Decoder(max_header_list_size=MAX_LIST_BYTES)
    decoder.max_allowed_table_size = LARGEST_TABLE
    return decoder


def wanted(decoder: Decoder, block: bytes) -> list[bytes]:
    found = dict(decoder.decode(block, raw=True))
    return [found.get(name, b"") for name in WANTED.names]


def read(reader: FieldReader, block: bytes) -> list[bytes]:
    *plain, kept, _ = reader.read(block, LARGEST_TABLE)
    return [*plain, decoded(kept)]


def sizes(decoder: Decoder) -> list[int]:
    return [32 + len(name) + len(value) for name, value in decoder.header_table.dynamic_entries]


def assert_same_table(reader: FieldReader, decoder: Decoder) -> None:
    assert reader.table_bytes == decoder.header_table.maxsize
    assert [entry.size_bytes for entry in reversed(reader._dynamic)] == sizes(decoder)
    assert reader._used_bytes == sum(sizes(decoder))


@given(st.lists(blocks, max_size=12))
def test_blocks_of_an_encoder_mean_what_a_decoder_says(
    sent: list[tuple[int | None, list[tuple[bytes, bytes, bool]], bool]],
) -> None:
    encoder, decoder, reader = Encoder(), reference(), FieldReader(WANTED)
    for table_bytes, headers, is_coded in sent:
        if table_bytes is not None:
            encoder.header_table_size = table_bytes
        block = encoder.encode(headers, huffman=is_coded)
        assert read(reader, block) == wanted(decoder, block)
        assert_same_table(reader, decoder)


@given(st.lists(blocks, min_size=1, max_size=4), st.integers(min_value=0), st.binary(min_size=1, max_size=6))
def test_broken_blocks_end_as_with_a_decoder(
    sent: list[tuple[int | None, list[tuple[bytes, bytes, bool]], bool]], place: int, damage: bytes
) -> None:
    encoder, decoder, reader = Encoder(), reference(), FieldReader(WANTED)
    for number, (_, headers, is_coded) in enumerate(sent):
        block = encoder.encode(headers, huffman=is_coded)
        if number == len(sent) - 1:
            at = place % (len(block) + 1)
            block = block[:at] + damage + block[at + len(damage) :]
        assert_same_outcome(reader, decoder, block)


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_garbage_ends_as_with_a_decoder(sent: list[bytes]) -> None:
    decoder, reader = reference(), FieldReader(WANTED)
    for block in sent:
        if not assert_same_outcome(reader, decoder, block):
            return


def assert_same_outcome(reader: FieldReader, decoder: Decoder, block: bytes) -> bool:
    """Returns whether both could read the block."""
    try:
        expected = wanted(decoder, block)
    except HPACKDecodingError as error:
        # Go's decoder takes integers with more leading zeros than this one.
        assume("too long" not in str(error))
        with pytest.raises(HPACKDecodingError):
            reader.read(block, LARGEST_TABLE)
        return False
    assert read(reader, block) == expected
    assert_same_table(reader, decoder)
    return True


@given(st.binary(max_size=200))
def test_a_coded_string_has_the_length_of_what_it_stands_for(value: bytes) -> None:
    assert huffman_length(_HUFFMAN.encode(value)) == len(value)


@given(st.binary(max_size=40))
def test_a_string_that_does_not_decode_has_no_length(encoded: bytes) -> None:
    try:
        expected = len(decode_huffman(encoded))
    except HPACKDecodingError:
        with pytest.raises(HPACKDecodingError, match="Huffman"):
            huffman_length(encoded)
    else:
        assert huffman_length(encoded) == expected


def test_whether_a_string_may_end_depends_on_the_state_alone() -> None:
    reached = {
        (state, bool(flags & HUFFMAN_COMPLETE))
        for state, flags, _ in HUFFMAN_TABLE
        if not flags & HUFFMAN_FAIL
    }
    assert len({state for state, _ in reached}) == len(reached)


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",
        b"\xbe",
        b"\xff\x80",
        b"\xff" + b"\x80" * 9 + b"\x01",
        b"\x44",
        b"\x44\x05/a",
        b"\x82\x20",
        b"\x3f\xe2\x4e",
        b"\x00\x81",
        b"\x00\x01x\x81\x00",
    ],
    ids=[
        "index-0",
        "index-beyond-the-table",
        "integer-cut",
        "integer-without-end",
        "value-missing",
        "value-cut",
        "size-update-after-a-field",
        "size-update-over-the-bound",
        "name-cut",
        "huffman-padding-of-zeros",
    ],
)
def test_what_is_no_block(block: bytes) -> None:
    with pytest.raises(HPACKDecodingError):
        FieldReader(WANTED).read(block, LARGEST_TABLE)


def test_an_integer_may_have_leading_zeros_as_in_go() -> None:
    assert FieldReader(WANTED).read(b"\x0f\x83\x80\x80\x80\x80\x80\x80\x00\x00", TABLE)[0] == b""


def test_values_of_other_fields_are_not_kept() -> None:
    reader = FieldReader(WANTED)
    reader.read(Encoder().encode([(b"baggage", b"00-" + b"a" * 100)]), TABLE)
    assert [entry.value for entry in reader._dynamic] == [b""]
    assert reader._used_bytes == 32 + len("baggage") + 103
