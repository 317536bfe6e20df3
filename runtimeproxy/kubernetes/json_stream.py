"""Takes lists and watches apart while they arrive, so that one object at a time is in memory; no I/O."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from runtimeproxy.cgroups.pace import rest
from runtimeproxy.documents.reading import InputError, first_object, mapping_of, parse_object

MAX_OBJECT_BYTES: Final = 4 * 1024 * 1024
"""More than any object has. Source: etcd, --max-request-bytes (1.5 MiB); the API server's limit of 3 MiB."""
MAX_OBJECTS: Final = 4096
"""In one list: many times the pods of the largest node."""

_ITEMS: Final = re.compile(r'"items"\s*:\s*(\[|null)')


class ListReader:
    """Reads a list object, whose items come before or after its metadata."""

    def __init__(self) -> None:
        self.resource_version = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._outer = ""
        """The list up to its items."""
        self._is_inside = False
        """Whether the text begins within the items."""
        self._count = 0
        self._next_try = 0

    def read(self, pieces: Iterable[bytes]) -> Iterator[Any]:
        """The items, each as soon as it is there. Raises InputError."""
        for piece in pieces:
            self._text += self._decode(piece, is_last=False)
            yield from self._items(is_last=False)
        self._text += self._decode(b"", is_last=True)
        yield from self._items(is_last=True)
        if self._is_inside or not self._outer:
            raise InputError("is cut off, or is not a list")
        outer = mapping_of(parse_object(self._outer + self._text))
        version = mapping_of(outer.get("metadata")).get("resourceVersion")
        if not isinstance(version, str) or not version:
            raise InputError("has no resourceVersion", "metadata")
        self.resource_version = version

    def _decode(self, piece: bytes, *, is_last: bool) -> str:
        try:
            return self._decoder.decode(piece, is_last)
        except UnicodeDecodeError:
            raise InputError("is not UTF-8") from None

    def _items(self, *, is_last: bool) -> Iterator[Any]:
        if not self._outer and (match := _ITEMS.search(self._text)) is not None:
            self._is_inside = match[1] == "["
            self._outer, self._text = self._text[: match.end()].lstrip(), self._text[match.end() :]
        while self._is_inside:
            self._text = self._text.lstrip(" \t\r\n,")
            if self._text[:1] == "]":
                self._is_inside = False
            elif (item := self._item(is_last=is_last)) is None:
                break
            else:
                yield item
                rest()
        if len(self._text) > MAX_OBJECT_BYTES:
            raise InputError(f"has an object of more than {MAX_OBJECT_BYTES} bytes")

    def _item(self, *, is_last: bool) -> Any:  # noqa: ANN401 - JSON
        """The first item of the text; None as long as its end is not there."""
        if self._text[:1] not in ("{", ""):
            raise InputError("has an item that is not an object")
        if len(self._text) <= self._next_try and not is_last:
            return None
        found = first_object(self._text)
        if found is None:
            # Each try costs as much as all of the text: so the next one is at twice as much.
            self._next_try = 2 * len(self._text)
            return None
        item, end = found
        self._text, self._next_try = self._text[end:], 0
        self._count += 1
        if self._count > MAX_OBJECTS:
            raise InputError(f"has more than {MAX_OBJECTS} objects")
        return item


def read_events(pieces: Iterable[bytes]) -> Iterator[Any]:
    """The events of a watch: one JSON object a line. Raises InputError."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        if b"\n" in piece:
            *lines, last = bytes(buffer).split(b"\n")
            buffer = bytearray(last)
            for line in lines:
                if line.strip():
                    yield parse_object(line)
        if len(buffer) > MAX_OBJECT_BYTES:
            raise InputError(f"has a line of more than {MAX_OBJECT_BYTES} bytes")
    if buffer.strip():
        raise InputError("is cut off within a line")
