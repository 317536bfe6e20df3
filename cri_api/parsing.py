"""Reading long protobuf messages in pieces, so that no piece keeps the interpreter for long.

A parse in C lets no other thread run until it is done: one of 4 MiB of tiny annotations takes 700 ms. A piece
of 16 KiB takes a few milliseconds at most. Imports protobuf: load it where it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from google._upb._message import FieldDescriptor as FieldOfC
    from google.protobuf.descriptor import FieldDescriptor as FieldOfPython

    FieldDescriptor = FieldOfC | FieldOfPython

MessageT = TypeVar("MessageT", bound=Message)

SHORT_BYTES: Final = 64 * 1024
"""What is shorter is parsed at once; that takes about a millisecond."""

PIECE_BYTES: Final = 16 * 1024
"""Bytes that are parsed at a time; single strings may be longer, for those are only copied."""

BLOB_BYTES: Final = 64 * 1024
"""A text, an entry of a map or an unknown field that is longer does not count: it is copied as a whole."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types. Source: protobuf.dev, "Encoding". Groups are not used by any message in proto3."""


class TooManyPartsError(DecodeError):
    """A message with more annotations, variables, mounts and the like than is read."""


def parse(
    kind: type[MessageT],
    body: bytes | bytearray | memoryview,
    *,
    max_parts_bytes: int | None = None,
    max_fields: int | None = None,
    on_piece: Callable[[], None] | None = None,
) -> MessageT:
    """The message in these bytes, equal to `kind.FromString(body)`.

    Pieces of a message may be merged one after the other: that is how protobuf defines concatenation.

    Args:
        kind: The type of the message.
        body: Its bytes.
        max_parts_bytes: Bound on all that is parsed. Single long texts and unknown fields are not counted.
        max_fields: Bound on the fields of a long message itself, such as the entries of its lists. An empty
            one has two bytes, and takes some forty times that once it is parsed.
        on_piece: Called after each piece of a long message; what it raises ends the parsing.

    Raises:
        TooManyPartsError: There is more than `max_parts_bytes` or `max_fields`; nothing is parsed then.
        DecodeError: These are not the bytes of such a message.
    """
    if len(body) <= SHORT_BYTES:
        return kind.FromString(bytes(body))
    if max_parts_bytes is not None and len(body) > max_parts_bytes:
        _Pieces(body, on_piece, max_parts_bytes).walk(kind(), 0, len(body))
    if max_fields is not None:
        _Pieces(body, on_piece).count(max_fields)
    message = kind()
    _Pieces(body, on_piece).walk(message, 0, len(body))
    return message


class _Pieces:
    """Walks over the fields of one message; merges them piece by piece, or only counts them."""

    def __init__(
        self,
        body: bytes | bytearray | memoryview,
        on_piece: Callable[[], None] | None,
        max_parts_bytes: int | None = None,
    ) -> None:
        self._body = memoryview(body)
        self._on_piece = on_piece
        self._left_bytes = max_parts_bytes

    def walk(self, message: Message, start: int, end: int) -> None:
        """Takes the fields between two places of the body as those of `message`."""
        known = message.DESCRIPTOR.fields_by_number
        piece = at = start
        while at < end:
            field_start = at
            number, content, at = self._field(at, end)
            if at - content > PIECE_BYTES:
                field = known.get(number)
                has_parts = field is not None and _has_parts(field)
                if has_parts or (self._left_bytes is not None and at - content > BLOB_BYTES):
                    self._take(message, piece, field_start)
                    piece = at
                    if field is not None and has_parts:
                        self.walk(_part(message, field), content, at)
                    continue
            if at - piece >= PIECE_BYTES:
                self._take(message, piece, at)
                piece = at
        self._take(message, piece, end)

    def count(self, most: int) -> None:
        """Raises TooManyPartsError if the body has more than so many fields."""
        at, end = 0, len(self._body)
        while at < end:
            if most == 0:
                raise TooManyPartsError("the message has too many fields")
            most -= 1
            _, _, at = self._field(at, end)

    def _field(self, at: int, end: int) -> tuple[int, int, int]:
        """The number of the field at a place, and where its content begins and ends."""
        body = self._body
        tag = body[at]
        if tag & 0x80:
            tag, at = _varint(body, at, end)
        else:
            at += 1
        wire_type = tag & 7
        content = at
        if wire_type == _BYTES:
            length, content = _varint(body, at, end)
            at = content + length
        elif wire_type == _VARINT:
            _, at = _varint(body, at, end)
        elif wire_type == _FIXED64:
            at += 8
        elif wire_type == _FIXED32:
            at += 4
        else:
            raise DecodeError("a group, or no field at all")
        if at > end:
            raise DecodeError("a field ends too late")
        return tag >> 3, content, at

    def _take(self, message: Message, start: int, end: int) -> None:
        if start == end:
            return
        if self._left_bytes is None:
            message.MergeFromString(bytes(self._body[start:end]))
        else:
            self._left_bytes -= end - start
            if self._left_bytes < 0:
                raise TooManyPartsError("the message has too many parts")
        if self._on_piece is not None:
            self._on_piece()


def _part(message: Message, field: FieldDescriptor) -> Message:
    """The message of a field, which is there from now on; the next one if the field is a list."""
    found: Any = getattr(message, field.name)
    if field.is_repeated:
        added: Message = found.add()
        return added
    found.SetInParent()
    part: Message = found
    return part


def _has_parts(field: FieldDescriptor) -> bool:
    """Whether a field is a message of fields; an entry of a map has to stay whole."""
    kind = field.message_type
    return kind is not None and not kind.GetOptions().map_entry


def _varint(body: memoryview, at: int, end: int) -> tuple[int, int]:
    """A number and the place after it."""
    number = shift = 0
    while at < end and shift < 70:
        byte = body[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise DecodeError("a number without an end")
