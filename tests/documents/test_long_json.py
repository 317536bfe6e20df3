"""Long documents are read and written as the standard library does it."""

from __future__ import annotations

import json

import pytest

from runtimeproxy.documents import long_json
from runtimeproxy.documents.long_json import json_text
from runtimeproxy.documents.reading import InputError, json_value

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
    assert json_value(text, interruptible=True) == document
    for wrong, reason in {f"{text} x": "Extra data", "[" * 100_000: "too deeply", "NaN": "NaN"}.items():
        with pytest.raises(InputError, match=reason):
            json_value(wrong, interruptible=True)
