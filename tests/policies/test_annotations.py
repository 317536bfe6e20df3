"""Annotations are read as Go reads them, and malformed ones are errors that name the place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.annotations import AnnotationError, Place, read

NAME = "example.com/spec"


def place(text: str) -> Place:
    found = read({NAME: text}, NAME)
    assert found is not None
    return found


def test_an_absent_annotation_is_none() -> None:
    assert read({}, NAME) is None


@pytest.mark.parametrize(
    "text", ["", "{", "nan", "NaN", '{"a": Infinity}', "[" * 10_000, "{'a': 1}", "1" * 5_000]
)
def test_what_is_no_json_is_an_error_that_names_the_annotation(text: str) -> None:
    with pytest.raises(AnnotationError, match=r"example\.com/spec is not valid JSON"):
        read({NAME: text}, NAME)


@pytest.mark.parametrize("key", ["cpuset", "CPUSET", "cpuSet", "CpuSet"])
def test_struct_members_match_in_any_case(key: str) -> None:
    assert place(f'{{"{key}": "0-3"}}').member("cpuset").text() == "0-3"


def test_the_last_of_two_spellings_counts() -> None:
    assert place('{"cpuset": "0", "CPUSET": "1"}').member("cpuset").text() == "1"


def test_map_keys_are_kept_as_they_are() -> None:
    assert set(place('{"Main": 1, "main": 2}').entries()) == {"Main", "main"}


def test_map_keys_are_printable_in_problems() -> None:
    with pytest.raises(AnnotationError, match=r"spec\[\\x1b\[2J\] is not a whole number"):
        place('{"\\u001b[2J": "x"}').entries()["\x1b[2J"].integer()


def test_null_and_absent_are_the_zero_value() -> None:
    for empty in (place("null").member("a"), place("{}").member("a"), place('{"a": null}').member("a")):
        assert (empty.text(), empty.integer(), empty.quantity()) == ("", 0, 0)
        assert empty.items() == []
        assert empty.entries() == {}


@pytest.mark.parametrize(
    ("text", "reader", "reason"),
    [
        ("1", Place.text, "not a string"),
        ('"1"', Place.integer, "not a whole number"),
        ("1.5", Place.integer, "not a whole number"),
        ("true", Place.integer, "not a whole number"),
        ("true", Place.quantity, "not a quantity"),
        ('"2Gb"', Place.quantity, "not a quantity"),
        ("{}", Place.quantity, "not a quantity"),
        ('"2 Gi"', Place.quantity, "not a quantity"),
        ('"2Gi\\n"', Place.quantity, "not a quantity"),
        ("{}", Place.items, "not a list"),
        ("[]", Place.entries, "not an object"),
    ],
)
def test_values_of_another_type_are_errors(text: str, reader: Callable[[Place], object], reason: str) -> None:
    with pytest.raises(AnnotationError, match=rf"example.com/spec\.a is {reason}"):
        reader(place(f'{{"a": {text}}}').member("a"))


@pytest.mark.parametrize(
    ("text", "value"),
    [('"2Gi"', 2 << 30), ('" 2Gi "', 2 << 30), ("500", 500), ("1.5", 2), ('"1.5"', 2), ("1e3", 1_000)],
)
def test_quantities_may_be_strings_or_numbers(text: str, value: int) -> None:
    assert place(text).quantity() == value


def test_a_place_in_a_list_of_a_map_is_named() -> None:
    with pytest.raises(AnnotationError, match=r"spec\[gpu\]\[1\]\.minor is not a whole number"):
        place('{"gpu": [{}, {"minor": "x"}]}').entries()["gpu"].items()[1].member("minor").integer()


@given(st.text(max_size=60))
def test_any_text_is_json_or_an_annotation_error(text: str) -> None:
    with suppress(AnnotationError):
        assert isinstance(read({NAME: text}, NAME), Place)
