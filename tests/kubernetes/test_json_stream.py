"""Lists and watches are read object by object, however they arrive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.documents.reading import InputError
from runtimeproxy.kubernetes import json_stream
from runtimeproxy.kubernetes.json_stream import ListReader, read_events

ITEMS: list[dict[str, Any]] = [
    {
        "metadata": {"name": 'ä"items":[ ]},', "annotations": {"a": "\\", "b": '{"x": [1]}'}},
        "n": [1, 2.5, None],
    },
    {"metadata": {"name": "b"}},
    {},
]


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[first : first + size] for first in range(0, len(data), size))


def _list(items: object = ITEMS, **metadata: str) -> dict[str, Any]:
    return {"kind": "PodList", "metadata": {"resourceVersion": "7", **metadata}, "items": items}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
@pytest.mark.parametrize("order", [("kind", "metadata", "items"), ("items", "kind", "metadata")])
@pytest.mark.parametrize("indent", [None, 2])
def test_the_items_are_those_of_the_list_in_any_order_and_pieces(
    size: int, order: tuple[str, ...], indent: int | None
) -> None:
    document = _list()
    data = json.dumps({key: document[key] for key in order}, indent=indent, ensure_ascii=False).encode()
    reader = ListReader()
    assert list(reader.read(_pieces(data, size))) == ITEMS
    assert reader.resource_version == "7"


@pytest.mark.parametrize("items", [[], None])
def test_a_list_may_be_empty(items: object) -> None:
    reader = ListReader()
    assert list(reader.read([json.dumps(_list(items)).encode()])) == []
    assert reader.resource_version == "7"


@given(cut=st.integers(0, 400), size=st.integers(1, 64))
def test_a_list_that_is_cut_off_is_never_taken_for_a_whole_one(cut: int, size: int) -> None:
    data = json.dumps(_list()).encode()
    cut %= len(data)
    with pytest.raises(InputError):
        list(ListReader().read(_pieces(data[:cut], size)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>",
        b'{"kind": "Status", "metadata": {}}',
        b'{"kind": "PodList", "items": [1], "metadata": {"resourceVersion": "7"}}',
        b'{"kind": "PodList", "items": [], "metadata": {}}',
        b'{"kind": "PodList", "items": [], "metadata": {"resourceVersion": 7}}',
        b'{"kind": "PodList", "items": [{"a": 1, "a": 2}], "metadata": {"resourceVersion": "7"}}',
        b'{"kind": "PodList", "items": [{"a": NaN}], "metadata": {"resourceVersion": "7"}}',
        b'{"kind": "PodList", "items": [{"a": ' + b"[" * 100 + b"]" * 100 + b'}], "metadata": {}}',
        b'{"kind": "PodList", "items": [{"a": "\xff"}], "metadata": {"resourceVersion": "7"}}',
        b'{"kind": "PodList", "items": []} {}',
    ],
)
def test_what_is_no_list_is_refused(data: bytes) -> None:
    with pytest.raises(InputError):
        list(ListReader().read([data]))


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "MAX_OBJECT_BYTES", 1000)
    endless = (b'{"items": [{"a": "' if first else b"x" * 100 for first in [True, *[False] * 10_000])
    with pytest.raises(InputError, match="more than 1000 bytes"):
        list(ListReader().read(endless))
    assert next(endless)  # it did not read on

    lines = (b'{"a": "' if first else b"x" * 100 for first in [True, *[False] * 10_000])
    with pytest.raises(InputError, match="a line of more than 1000 bytes"):
        list(read_events(lines))
    assert next(lines)


def test_the_number_of_objects_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "MAX_OBJECTS", 2)
    with pytest.raises(InputError, match="more than 2 objects"):
        list(ListReader().read([json.dumps(_list()).encode()]))


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_events_are_lines(size: int) -> None:
    data = b"\n".join(json.dumps(each, ensure_ascii=False).encode() for each in ITEMS) + b"\n\n"
    assert list(read_events(_pieces(data, size))) == ITEMS


@pytest.mark.parametrize(
    "data", [b'{"a": 1}\n{"a"', b"nonsense\n", b"[1]\n", b'{"a": 1} {}\n', b'{"a":\xff}\n']
)
def test_what_is_no_event_is_refused(data: bytes) -> None:
    with pytest.raises(InputError):
        list(read_events([data]))
