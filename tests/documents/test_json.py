"""Texts of JSON, and what is refused of them."""

from __future__ import annotations

import pytest

from runtimeproxy.documents.reading import InputError, parse_json


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9" * 64, 10**64 - 1),
        ("-" + "9" * 63, 1 - 10**63),
        ("1." + "0" * 100, 1.0),
        (f'"{"7" * 100}\\ud800"', "7" * 100 + "\ud800"),
        ("[1, -2, 0.5, 1e3]", [1, -2, 0.5, 1_000.0]),
    ],
)
def test_whole_numbers_of_json(text: str, value: object) -> None:
    assert parse_json(text) == parse_json(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("9" * 65, "a number has 65 digits"),
        ("[" + "-" + "9" * 64 + "]", "a number has 65 digits"),
        ("1" * 5_000, "a number has 5000 digits"),
        ("[1, NaN]", "NaN is not a number of JSON"),
        ("-Infinity", "-Infinity is not a number of JSON"),
        (" \n", "is empty"),
        ("", "is empty"),
    ],
)
def test_what_parse_json_refuses(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        parse_json(text)
