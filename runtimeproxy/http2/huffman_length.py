"""How long a Huffman-coded string is when it is decoded, without decoding it."""

from __future__ import annotations

from typing import Final

from hpack import HPACKDecodingError
from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE

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
"""States in which a string may end: what came after its last symbol is padding."""
