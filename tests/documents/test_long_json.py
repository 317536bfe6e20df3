"""Long documents are read and written as the standard library does it."""

from __future__ import annotations

import json

import pytest

from runtimeproxy.documents import long_json
from runtimeproxy.documents.long_json import json_text, read_json

MANY = {f"key-{number}": "v" * (number % 50) for number in range(20_000)}


@pytest.mark.parametrize(
    "document",
    [MANY, {"a": [1, -2.5, None, True, {"b": 'ü\n"'}]}, [], "text"],
    ids=["long", "mixed", "[]", "text"],
)
def test_long_json_is_json(document: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert json_text(document, is_long=True) == json_text(document, is_long=False)
    text = json.dumps(document)
    monkeypatch.setattr(long_json, "SHORT_CHARS", 0)
    assert read_json(text) == document
    with pytest.raises(ValueError, match="Extra data"):
        read_json(f"{text} x")
    with pytest.raises(RecursionError):
        read_json("[" * 100_000)
