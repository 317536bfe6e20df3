"""YAML and JSON as Kubernetes' tools print them, and what is refused of YAML."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.documents import reading
from runtimeproxy.documents.reading import MAX_DEPTH, MAX_NUMBER, InputError, parse_documents


@pytest.fixture(params=["C", "Python"], autouse=True)
def _loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both readers of PyYAML: the one in C is not everywhere."""
    if request.param == "Python":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ("", []),
        ("# nothing\n---\n---\n", []),
        ("a: 1\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
        ('{"a": [1, 2.5, true, null, "x"]}', [{"a": [1, 2.5, True, None, "x"]}]),
        (
            'text: |\n  {\n    "a": 1\n  }\nfolded: >-\n  one\n  two\n',
            [{"text": '{\n  "a": 1\n}\n', "folded": "one two"}],
        ),
        (
            'quoted: "2026-11-22T10:00:00Z"\nplain: 2026-11-22T10:00:00Z\n',
            [dict.fromkeys(("quoted", "plain"), "2026-11-22T10:00:00Z")],
        ),
        ('"true": "1"\ntrue: 1\n1: a\n', None),
        ("1: a\nnull: b\ntrue: c\n", [{"1": "a", "null": "b", "true": "c"}]),
        (
            "a: yes\nb: ~\nc:\nd: 'yes'\ne: 0x1F\nf: 1e3\n",
            [{"a": True, "b": None, "c": None, "d": "yes", "e": 31, "f": "1e3"}],
        ),
        ("\ufeffa: 1\n", [{"a": 1}]),
        ("- - 1\n  - [2, {b: c}]\n", [[[1, [2, {"b": "c"}]]]]),
        ("a: <<\n<<: {b: 1}\n", [{"a": "<<", "<<": {"b": 1}}]),
    ],
)
def test_documents(text: str, documents: list[Any] | None) -> None:
    if documents is None:
        with pytest.raises(InputError, match="line 2 column 1: the key 'true' is there twice"):
            parse_documents(text.encode())
    else:
        assert parse_documents(text.encode()) == documents


def bomb(levels: int) -> str:
    """Ten times as many values with each level."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (bomb(9), "line 1 column 5: anchors are not allowed"),
        ("a: *b\n", "line 1 column 4: aliases are not allowed"),
        ("&a {b: 1}", "line 1 column 1: anchors are not allowed"),
        ("a: !!python/object/apply:os.system [x]", "line 1 column 4: tags are not allowed"),
        ("a: !!str 5", "line 1 column 4: tags are not allowed"),
        ("!x a: 1", "line 1 column 1: tags are not allowed"),
        ("a: 1\nb: 2\na: 3\n", "line 3 column 1: the key 'a' is there twice"),
        ('{"a": {"b": 1, "b": 2}}', "the key 'b' is there twice"),
        ("? {a: b}\n: c\n", "line 1 column 3: a key is not a text"),
        ("[" * 100_000, f"line 1 column {MAX_DEPTH + 1}: more than {MAX_DEPTH} levels"),
        ("- " * 1_000, f"line 1 column {2 * MAX_DEPTH + 1}: more than {MAX_DEPTH} levels"),
        ("a: " + "9" * 5_000, "line 1 column 4: is not a number that can be read"),
    ],
)
def test_what_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError) as error:
        parse_documents(text.encode())
    assert str(error.value) == problem


def test_many_keys_are_compared_once_each() -> None:
    keys = "".join(f'"k{number}": 1, ' for number in range(60_000))
    begun_s = time.thread_time()
    with pytest.raises(InputError, match="the key 'k59999' is there twice"):
        parse_documents(f'{{{keys}"k59999": 2}}'.encode())
    # Comparing each with all others takes minutes.
    assert time.thread_time() - begun_s < 20


@pytest.mark.parametrize(
    "text", ["a: [1", "a: 'x", "a:\n\tb: 1", "a: b: c", "%YAML 9\n---\n", "}", "a: \x00"]
)
def test_what_is_not_yaml(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_documents(text.encode())
    assert (
        error.value.place.startswith("line 1 column")
        or error.value.place.startswith("line 2")
        or text == "a: \x00"
    )


def test_what_is_not_utf_8() -> None:
    with pytest.raises(InputError, match="byte 3 is not UTF-8"):
        parse_documents(b"a: \xff")


def test_too_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_EVENTS", 100)
    assert parse_documents(b"[" + b"1," * 90 + b"]")
    with pytest.raises(InputError, match="more than 100 values"):
        parse_documents(b"[" + b"1," * 100 + b"]")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_NUMBER, MAX_NUMBER) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_json_is_read_as_json(value: dict[str, Any]) -> None:
    assert parse_documents(json.dumps(value).encode()) == [value]


@settings(max_examples=40)
@given(st.dictionaries(st.text(), JSON, max_size=4), st.dictionaries(st.text(), JSON, max_size=4))
def test_yaml_is_read_as_it_was_printed(first: dict[str, Any], second: dict[str, Any]) -> None:
    printed = yaml.dump_all([first, second], Dumper=_WithoutAliases)
    assert parse_documents(printed.encode()) == [first, second]


class _WithoutAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(InputError):
        parse_documents(data)


@given(st.text(alphabet="{}[]:,&*!|>-?%@`'\"# \n\tab1", max_size=60))
def test_any_yaml_is_read_or_refused(text: str) -> None:
    with suppress(InputError):
        parse_documents(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        *(f'{{"a": [{number}]}}' for number in ("9" * 5000, "-1" + "0" * 20, "1e400", "NaN", "-Infinity")),
        *(f"a: [{number}]" for number in ("9" * 5000, "0x" + "f" * 9000, ".nan", "-.inf")),
    ],
)
def test_a_number_that_could_not_be_saved_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="number that"):
        parse_documents(text.encode())


def test_what_could_not_be_written_as_utf_8_is_refused() -> None:
    for text in (r'{"\ud800": 1}', r'{"a": ["x\udfff"]}'):
        with pytest.raises(InputError, match="half of a surrogate pair"):
            parse_documents(text.encode())
    assert parse_documents(rb'{"a": "\ud83d\ude00"}') == [{"a": "\N{GRINNING FACE}"}]


@pytest.mark.parametrize("text", ["%s1%s", '{"a": %s1%s}'])
def test_levels_are_counted_in_json_too(text: str) -> None:
    deepest = MAX_DEPTH - text.count("{")
    parse_documents((text % ("[" * deepest, "]" * deepest)).encode())
    for depth in (deepest + 1, 900, 100_000):
        with pytest.raises(InputError, match="levels"):
            parse_documents((text % ("[" * depth, "]" * depth)).encode())
