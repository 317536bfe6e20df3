"""Header blocks of all kinds, and whether the relay reads them as the `hpack` library does."""

from __future__ import annotations

import functools
from random import Random
from typing import Final

from hpack import Decoder, HPACKError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from runtimeproxy.frontends.cri_proxy.relay.request import FIELDS
from runtimeproxy.http2.header_fields import MAX_LIST_BYTES, FieldReader, decoded

_HUFFMAN = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
_NAMES: Final = (
    *FIELDS.names,
    *FIELDS.names,
    b":method",
    b":authority",
    b"content-type",
    b"te",
    b"x",
    b"",
    b"x" * 200,
)
_VALUES: Final = (b"", b"/a/B", b"1S", b"gzip", b"POST", b"y" * 50, b"\xff\0", b"z" * 5_000)


@functools.cache
def _coded(content: bytes) -> bytes:
    encoded: bytes = _HUFFMAN.encode(content)
    return encoded


def integer(number: int, prefix_bits: int, first: int = 0, *, zeros: int = 0) -> bytes:
    """An integer with a prefix of so many bits (RFC 7541, 5.1), and `zeros` bytes more than it needs."""
    most = (1 << prefix_bits) - 1
    if number < most:
        return bytes((first | number,))
    rest, out = number - most, bytearray((first | most,))
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    if zeros:
        return bytes(out) + bytes((rest | 0x80,)) + b"\x80" * (zeros - 1) + b"\0"
    out.append(rest)
    return bytes(out)


def literal(name: str, value: str) -> bytes:
    """A field that enters no table, with plain strings."""
    return b"\0" + b"".join(integer(len(each), 7) + each.encode() for each in (name, value))


def string(random: Random, content: bytes) -> bytes:
    """A string, plain or coded, now and then with a wrong length or bad padding."""
    is_coded = random.random() < 0.4
    encoded = _coded(content) if is_coded else content
    size = len(encoded)
    if random.random() < 0.01:
        encoded += random.choice((b"\xff", b"\0", b"\xff\xff\xff\xff"))
        size = len(encoded)
    if random.random() < 0.01:
        size += random.choice((-1, 1, 100, 1 << 20))
    return (
        integer(max(size, 0), 7, 0x80 if is_coded else 0, zeros=random.choice((0,) * 50 + (1, 9))) + encoded
    )


def instruction(random: Random) -> bytes:
    """One field or size update."""
    kind = random.random()
    # Mostly entries that are there: the static table's, and the newest dynamic ones.
    index = random.choice((random.randrange(1, 62), random.randrange(1, 62), random.randrange(62, 66), 2, 4))
    if random.random() < 0.01:
        index = random.choice((0, 70, 200, 1 << 31, 1 << 70))
    if kind < 0.3:
        return integer(index, 7, 0x80)
    if kind < 0.35:
        return integer(random.choice((0, 100, 4096, 4096, 4097)), 5, 0x20)
    first, prefix_bits = random.choice(((0x40, 6), (0x40, 6), (0x00, 4), (0x10, 4)))
    if random.random() < 0.5:
        name = integer(index, prefix_bits, first)
    else:
        name = integer(0, prefix_bits, first) + string(random, random.choice(_NAMES))
    return name + string(random, random.choice(_VALUES))


def random_block(random: Random) -> bytes:
    """A block of some fields; about half of them decode on a fresh connection."""
    block = b"".join(instruction(random) for _ in range(random.choice((1, 3, 8, 20))))
    if random.random() < 0.1:
        block = block[: random.randrange(len(block) + 1)]
    if random.random() < 0.05:
        at = random.randrange(len(block) + 1)
        block = block[:at] + random.randbytes(random.randrange(1, 5)) + block[at:]
    return block


class Difference(AssertionError):  # noqa: N818  # what was found, not what failed
    """The two readers took a block for different things."""


def compare(random: Random, blocks: int) -> int:
    """Reads up to so many blocks of one connection with both; returns how many decoded.

    Raises:
        Difference: one reads what the other refuses, or other values.
    """
    reader, decoder = FieldReader(FIELDS), Decoder(max_header_list_size=MAX_LIST_BYTES)
    for count in range(blocks):
        block = random_block(random)
        expected, found = _read_by_hpack(decoder, block), _read_by_relay(reader, block)
        if expected != found:
            raise Difference(f"block {block.hex()}: hpack {expected}, relay {found}")
        if found is None:
            return count
        if reader.table_bytes != decoder.header_table_size:
            raise Difference(f"block {block.hex()}: {reader.table_bytes} bytes of table")
    return blocks


def _read_by_relay(reader: FieldReader, block: bytes) -> list[bytes] | None:
    try:
        values = list(reader.read(block, 4096)[: len(FIELDS.names)])
        # What an intercepted call makes of the others.
        return [*values[: FIELDS.encoded], *map(decoded, values[FIELDS.encoded :])]
    except HPACKError:
        return None


def _read_by_hpack(decoder: Decoder, block: bytes) -> list[bytes] | None:
    try:
        fields = dict(decoder.decode(block, raw=True))
    except HPACKError:
        return None
    return [fields.get(name, b"") for name in FIELDS.names]
