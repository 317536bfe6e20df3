"""JSON of any length, read and written so that other threads run meanwhile.

The standard library's fast code reads or writes a whole document before it lets another thread run: 200 ms
for a pod with 4 MiB of tiny annotations. Its code in Python takes longer, and others get between.
"""

from __future__ import annotations

import json
from json import decoder, scanner
from typing import Any, Final

SHORT_CHARS: Final = 256 * 1024
"""Shorter documents are read at once, in up to 5 ms."""


class InterruptibleDecoder(json.JSONDecoder):
    """Reads objects and lists in Python; only their strings and numbers are read in C."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - as those of `json.loads`
        super().__init__(**options)
        self.parse_object = decoder.JSONObject  # type: ignore[attr-defined]  # typeshed lacks the parts
        self.parse_array = decoder.JSONArray  # type: ignore[attr-defined]
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]


def json_text(document: object, *, is_long: bool) -> str:
    if not is_long:
        return json.dumps(document, separators=(",", ":"))
    return "".join(json.JSONEncoder(separators=(",", ":")).iterencode(document))
