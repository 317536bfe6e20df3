"""Reads HPACK header blocks for the few fields that the reader needs (RFC 7541).

Of all other fields only the name and the size are read, which keep the dynamic table right: their values
are never decoded. For the kubelet's blocks that takes a fifth of the time of a decoder which makes a list of
all fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, Generic, NamedTuple, TypeVar

from hpack import HPACKDecodingError, HPACKError
from hpack.huffman_table import (
    HUFFMAN_COMPLETE,
    HUFFMAN_EMIT_SYMBOL,
    HUFFMAN_FAIL,
    HUFFMAN_TABLE,
    decode_huffman,
)
from hpack.table import HeaderTable

from runtimeproxy.http2.frames import ErrorCode, PeerError

MAX_LIST_BYTES: Final = 1024 * 1024
"""Of a decoded header list (as RFC 9113, 6.5.2 counts it): a short block can name long table entries."""

_ENTRY_OVERHEAD_BYTES: Final = 32
"""What an entry counts beside its name and value. Source: RFC 7541, 4.1."""
_FIRST_TABLE_BYTES: Final = 4096
"""Source: RFC 9113, 6.5.2, SETTINGS_HEADER_TABLE_SIZE."""
_LONGEST_INTEGER_BITS: Final = 63
"""Source: RFC 7541, 5.1 leaves the limit to the implementation; this is that of Go's decoder."""

_REMEMBERED_BLOCKS: Final = 64
_REMEMBERED_BLOCK_BYTES: Final = 2048
_TIMEOUT: Final = re.compile(rb"(\d{1,8})([HMSmun])\Z")
_TIMEOUT_UNIT_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}

HeadT = TypeVar("HeadT")

_INDEXED: Final = 0x80
_INSERTED: Final = 0x40
_SIZE_UPDATE: Final = 0x20
_HUFFMAN: Final = 0x80


class _Entry(NamedTuple):
    kind: int
    """Index in the names of `Fields`, or their number for any other field."""
    name_bytes: int
    size_bytes: int
    value: bytes
    """Only of a wanted field; empty for others."""


def _entry(kind: int, name_bytes: int, value_bytes: int, value: bytes) -> _Entry:
    return _Entry(kind, name_bytes, name_bytes + value_bytes + _ENTRY_OVERHEAD_BYTES, value)


_STATIC_ENTRIES: Final = len(HeaderTable.STATIC_TABLE)


class Fields:
    """The fields whose values are read; made once for all readers of the same ones.

    Args:
        names: of fields whose values are decoded.
        encoded: of fields whose values are read as they came: `decoded` decodes those that are needed.

    Attributes:
        names: the names of all these fields.
        encoded: the first kind whose value is not decoded.
        other: the kind of all other fields.
    """

    __slots__ = ("encoded", "kind_of", "names", "other", "static")

    def __init__(self, *names: bytes, encoded: tuple[bytes, ...] = ()) -> None:
        self.encoded = len(names)
        names += encoded
        self.names = names
        self.other = len(names)
        self.kind_of = {name: kind for kind, name in enumerate(names)}
        self.static = tuple(
            _entry(self.kind_of.get(name, self.other), len(name), len(value), value)
            for name, value in HeaderTable.STATIC_TABLE
        )


class FieldReader:
    """Follows the dynamic table of one sender.

    Attributes:
        version: changes with every insertion and every size update, also one that ends where it began.
        table_bytes: how much the dynamic table may hold.
    """

    __slots__ = ("_dynamic", "_fields", "_used_bytes", "table_bytes", "version")

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self.version = 0
        self.table_bytes = _FIRST_TABLE_BYTES
        self._used_bytes = 0
        self._dynamic: list[_Entry] = []
        """The newest entry is the last one."""

    def read(self, block: bytes, max_table_bytes: int) -> Sequence[bytes]:
        """Reads the next whole block; returns the values of `fields`, the last one if a field repeats.

        A field that is not there is empty. One value more stands at the end, of all other fields.

        `max_table_bytes`: the largest table that a size update may ask for.

        Raises:
            HPACKDecodingError: the block does not decode, and the table is lost.
        """
        try:
            return self._read(block, max_table_bytes)
        except IndexError:
            raise HPACKDecodingError("the block ends within a field") from None

    def _read(self, block: bytes, max_table_bytes: int) -> Sequence[bytes]:
        values = [b""] * (self._fields.other + 1)
        end = len(block)
        position = list_bytes = 0
        while position < end:
            first = block[position]
            if first & _INDEXED:
                index, position = _integer(block, position, 0x7F)
                kind, _, size_bytes, value = self._at(index)
            elif first & (_INSERTED | _SIZE_UPDATE) == _SIZE_UPDATE:
                if list_bytes:
                    raise HPACKDecodingError("a size update after a field")
                table_bytes, position = _integer(block, position, 0x1F)
                self._resize(table_bytes, max_table_bytes)
                continue
            else:
                entry, position = self._literal(block, position, 0x3F if first & _INSERTED else 0x0F)
                kind, _, size_bytes, value = entry
                if first & _INSERTED:
                    self._insert(entry)
            values[kind] = value
            list_bytes += size_bytes
            if list_bytes > MAX_LIST_BYTES:
                raise HPACKDecodingError("the header list is too large")
        return values

    def _literal(self, block: bytes, position: int, mask: int) -> tuple[_Entry, int]:
        index, position = _integer(block, position, mask)
        if index:
            kind, name_bytes, _, _ = self._at(index)
        else:
            name, is_coded, position = _string(block, position)
            name = decode_huffman(name) if is_coded else name
            kind, name_bytes = self._fields.kind_of.get(name, self._fields.other), len(name)
        value, is_coded, position = _string(block, position)
        if kind >= self._fields.encoded:
            value_bytes = huffman_length(value) if is_coded else len(value)
            kept = b"" if kind == self._fields.other else (_CODED if is_coded else _PLAIN) + value
            return _entry(kind, name_bytes, value_bytes, kept), position
        value = decode_huffman(value) if is_coded else value
        return _entry(kind, name_bytes, len(value), value), position

    def _at(self, index: int) -> _Entry:
        age = index - _STATIC_ENTRIES
        if 0 < age <= len(self._dynamic):
            return self._dynamic[-age]
        if 0 < index <= _STATIC_ENTRIES:
            return self._fields.static[index - 1]
        raise HPACKDecodingError(f"no entry {index} in the header table")

    def _insert(self, entry: _Entry) -> None:
        self.version += 1
        self._dynamic.append(entry)
        self._used_bytes += entry.size_bytes
        self._evict()

    def _resize(self, table_bytes: int, max_table_bytes: int) -> None:
        if table_bytes > max_table_bytes:
            raise HPACKDecodingError("a size update over the bound")
        self.version += 1
        self.table_bytes = table_bytes
        self._evict()

    def _evict(self) -> None:
        """Drops the oldest entries; one that is larger than the table empties it and is dropped itself."""
        count = 0
        while self._used_bytes > self.table_bytes:
            self._used_bytes -= self._dynamic[count].size_bytes
            count += 1
        del self._dynamic[:count]


class HeadReader(Generic[HeadT]):
    """Reads every header block of one sender, in order.

    A block is remembered if it changed nothing in the table; the memory lasts until the table changes. Peers
    repeat themselves, so most blocks cost one dictionary look-up.

    Args:
        make: makes the result of their values.

    Attributes:
        remembered: the results of known blocks, which need not be decoded again.
    """

    __slots__ = ("_make", "_reader", "remembered")

    def __init__(self, fields: Fields, make: Callable[[Sequence[bytes]], HeadT]) -> None:
        self._make = make
        self._reader = FieldReader(fields)
        self.remembered: dict[bytes, HeadT] = {}

    def decode(self, block: bytes, max_table_bytes: int) -> HeadT:
        """Returns the result of a whole header block.

        `max_table_bytes`: the largest table that the receiver may have allowed: it only bounds the size
        updates inside blocks, which alone change the table's size.

        Raises:
            PeerError: the block does not decode, and the connection's HPACK state is lost.
        """
        head = self.remembered.get(block)
        if head is not None:
            return head
        reader = self._reader
        version = reader.version
        try:
            head = self._make(reader.read(block, max(max_table_bytes, reader.table_bytes)))
        except HPACKError as error:
            raise PeerError(ErrorCode.COMPRESSION_ERROR, f"header block: {error}") from error
        if reader.version != version:
            self.remembered.clear()
        elif len(block) <= _REMEMBERED_BLOCK_BYTES:
            if len(self.remembered) >= _REMEMBERED_BLOCKS:
                self.remembered.clear()
            self.remembered[block] = head
        return head


_CODED: Final = b"h"
_PLAIN: Final = b"p"
"""Before a value that is kept as it came: whether it is Huffman-coded."""


def decoded(value: bytes) -> bytes:
    # Empty for a field that was not there.
    return decode_huffman(value[1:]) if value.startswith(_CODED) else value[1:]


def _integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    """The integer whose prefix stands at `position`, and where it ends (RFC 7541, 5.1)."""
    number = block[position] & mask
    position += 1
    if number < mask:
        return number, position
    for shift in range(0, _LONGEST_INTEGER_BITS, 7):
        byte = block[position]
        position += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise HPACKDecodingError("an integer without end")


def _string(block: bytes, position: int) -> tuple[bytes, bool, int]:
    """The string at `position`, whether it is Huffman-coded, and where it ends (RFC 7541, 5.2)."""
    is_coded = bool(block[position] & _HUFFMAN)
    length, position = _integer(block, position, 0x7F)
    end = position + length
    if end > len(block):
        raise HPACKDecodingError("a string is longer than the block")
    return block[position:end], is_coded, end


# --- the length of a Huffman-coded string ------------------------------------------------------------

_NIBBLES: Final = 16
_FAILED: Final = len(HUFFMAN_TABLE) // _NIBBLES
"""A state beyond those of the table, which is never left."""

_Row = tuple[tuple[int, ...], bytes]


def huffman_length(encoded: bytes) -> int:
    """Returns how many bytes a Huffman-coded string stands for.

    A header table's accounts need no more of most values, and this takes a quarter of the time of decoding.

    Raises:
        HPACKDecodingError: the string does not decode.
    """
    state = length = 0
    for byte in encoded:
        following, symbols = _rows[state]
        length += symbols[byte]
        state = following[byte]
    if state not in _ENDS:
        raise HPACKDecodingError("invalid Huffman string")
    return length


class _Rows(dict[int, _Row]):
    """For each state and byte: the next state, and how many symbols end. Made when first needed.

    Of the 257 rows, 2.3 KB each, header values need some fifty.
    """

    def __missing__(self, state: int) -> _Row:
        steps = [_byte_step(state, byte) for byte in range(256)]
        row = self[state] = tuple(end for end, _ in steps), bytes(symbols for _, symbols in steps)
        return row


def _byte_step(state: int, byte: int) -> tuple[int, int]:
    middle, first = _nibble_step(state, byte >> 4)
    end, second = _nibble_step(middle, byte & 0xF)
    return end, first + second


def _nibble_step(state: int, nibble: int) -> tuple[int, int]:
    if state == _FAILED:
        return _FAILED, 0
    following, flags, _ = HUFFMAN_TABLE[state * _NIBBLES + nibble]
    if flags & HUFFMAN_FAIL:
        return _FAILED, 0
    return following, bool(flags & HUFFMAN_EMIT_SYMBOL)


_rows: Final = _Rows()
_ENDS: Final = {0} | {state for state, flags, _ in HUFFMAN_TABLE if flags & HUFFMAN_COMPLETE}
"""States in which a string may end: the bits after its last symbol are padding."""


@lru_cache(maxsize=256)  # a client has some few
def timeout_s(value: bytes) -> float | None:
    """Returns a `grpc-timeout` in seconds; None when it is absent or malformed.

    Source: gRPC over HTTP/2, "Timeout": up to eight digits and a unit.
    """
    match = _TIMEOUT.match(value)
    return int(match[1]) * _TIMEOUT_UNIT_S[match[2]] if match else None


def percent_encoded(text: str, limit_bytes: int) -> bytes:
    """Returns a status message as `grpc-message` carries it, cut to `limit_bytes` between characters.

    Source: gRPC over HTTP/2, "Percent-Encoded": printable ASCII but `%` stands for itself.
    """
    encoded = bytearray()
    for character in text:
        raw = character.encode("utf-8", "replace")
        piece = b"".join(
            bytes((octet,)) if 0x20 <= octet <= 0x7E and octet != 0x25 else b"%%%02X" % octet for octet in raw
        )
        if len(encoded) + len(piece) > limit_bytes:
            break
        encoded += piece
    return bytes(encoded)
