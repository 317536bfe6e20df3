"""Records as text for the checkpoint, and back: JSON with the fields that differ from their defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final, TypeVar

from runtimeproxy.hooks.views import Resources
from runtimeproxy.pods.long_json import json_text, read_json
from runtimeproxy.pods.records import (
    NO_CHANGES,
    CgroupRecord,
    ContainerRecord,
    Lifecycle,
    ManagedValue,
    PodRecord,
    Record,
    compact,
)
from runtimeproxy.pods.resources import NO_ENTRIES, NO_RESOURCES, SCALARS, frozen

RecordT = TypeVar("RecordT", PodRecord, ContainerRecord)


SHORT_ENTRIES: Final = 5000
"""A record with more labels and annotations is written in Python; one with fewer takes a millisecond."""


class BadRowError(ValueError):
    """A row that this version cannot read."""


class Kind(IntEnum):
    """What a row is about."""

    POD = 1
    CONTAINER = 2
    CGROUP = 3


class Rank(IntEnum):
    """How much the writer of a row knew; a row never gives way to one of less rank."""

    LISTED = 0
    """From a list of the runtime."""
    ASKED = 1
    """From a status answer of the runtime."""
    SEEN = 2
    """From the calls of the kubelet."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be written about one id."""

    kind: Kind
    id: str
    record: Record | None
    """None: there is nothing any more."""
    rank: Rank = Rank.SEEN


@dataclass(frozen=True, slots=True)
class Saved:
    """What a checkpoint holds."""

    pods: tuple[PodRecord, ...] = ()
    containers: tuple[ContainerRecord, ...] = ()
    cgroups: tuple[CgroupRecord, ...] = ()
    unreadable: int = 0
    """Rows that this version cannot read."""


def rank_of(record: Record) -> Rank:
    """How much stands behind a record to which nothing has happened in this process."""
    if isinstance(record, CgroupRecord) or not record.recovered:
        return Rank.SEEN
    return Rank.ASKED if record.detailed else Rank.LISTED


def encode(record: Record) -> str:
    """A record as text."""
    if isinstance(record, CgroupRecord):
        document: dict[str, Any] = {
            name: [value.wanted, value.original, value.reapply] for name, value in record.values.items()
        }
    else:
        document = _document(record)
    return json_text(document, is_long=_is_long(record))


def _is_long(record: Record) -> bool:
    """Whether a record has more entries than most pods."""
    if isinstance(record, CgroupRecord):
        return False
    return len(record.labels) + len(record.annotations) + len(record.applied.unified) > SHORT_ENTRIES


def decode_pod(identity: str, body: str) -> PodRecord:
    """A pod's record.

    Raises:
        BadRowError: the text is no such record.
    """
    return _decoded(PodRecord, identity, body)


def decode_container(identity: str, body: str) -> ContainerRecord:
    """A container's record.

    Raises:
        BadRowError: the text is no such record.
    """
    return _decoded(ContainerRecord, identity, body)


def decode_cgroup(identity: str, body: str) -> CgroupRecord:
    """A cgroup's record.

    Raises:
        BadRowError: the text is no such record.
    """
    values: dict[str, ManagedValue] = {}
    for name, parts in _object(_parsed(body)).items():
        if not isinstance(parts, list) or len(parts) != 3:
            raise BadRowError(f"{name} has no three parts")
        wanted, original, kept = parts
        values[name] = ManagedValue(
            _value(wanted), None if original is None else _value(original), _flag(kept)
        )
    return CgroupRecord(identity, values)


def _document(record: PodRecord | ContainerRecord) -> dict[str, Any]:
    blank = _BLANK_POD if isinstance(record, PodRecord) else _BLANK_CONTAINER
    values = {field.name: getattr(record, field.name) for field in fields(record) if field.name != "id"}
    document = {name: _plain(value) for name, value in values.items() if value != getattr(blank, name)}
    # Mostly nobody has changed anything: then both are one object, here and after the next start.
    if record.applied == record.requested:
        document.pop("applied", None)
        document["same"] = True
    return document


_BLANK_POD: Final = PodRecord(id="")
_BLANK_CONTAINER: Final = ContainerRecord(id="")


def _plain(value: object) -> object:
    if isinstance(value, Resources):
        return _plain_resources(value)
    return dict(value) if isinstance(value, Mapping) else value


def _plain_resources(resources: Resources) -> dict[str, Any]:
    document = {name: value for name in SCALARS if (value := getattr(resources, name)) is not None}
    if resources.hugepage_limits_bytes:
        document["hugepage_limits_bytes"] = dict(resources.hugepage_limits_bytes)
    if resources.unified:
        document["unified"] = dict(resources.unified)
    return document


def _decoded(kind: type[RecordT], identity: str, body: str) -> RecordT:
    document = _object(_parsed(body))
    values = {name: read(document[name]) for name, read in _READERS.items() if name in document}
    if document.get("same") is True and "requested" in values:
        values["applied"] = values["requested"]
    try:
        return kind(id=identity, **values)
    except TypeError as error:
        raise BadRowError(str(error)) from error


def _parsed(body: object) -> object:
    if not isinstance(body, str):
        raise BadRowError("not a text")
    try:
        return read_json(body)
    except (ValueError, RecursionError) as error:
        raise BadRowError("not JSON") from error


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadRowError("not an object")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BadRowError(f"{type(value).__name__} for a text")
    return value


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRowError(f"{type(value).__name__} for a number")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise BadRowError(f"{type(value).__name__} for a truth value")
    return value


def _value(value: object) -> int | str:
    return value if isinstance(value, str) else _integer(value)


def _state(value: object) -> Lifecycle:
    try:
        return Lifecycle(_integer(value))
    except ValueError as error:
        raise BadRowError(str(error)) from error


def _entries(value: object) -> Mapping[str, str]:
    found = _object(value)
    for each in found.values():
        _text(each)
    return compact(found)


def _changes(value: object) -> Mapping[str, str | None]:
    found = _object(value)
    return {key: None if each is None else _text(each) for key, each in found.items()} or NO_CHANGES


def _values(value: object) -> Mapping[str, int | str]:
    return {key: _value(each) for key, each in _object(value).items()} or NO_ENTRIES


def _resources(value: object) -> Resources:
    document = _object(value)
    values: dict[str, Any] = {}
    for name in SCALARS:
        if name in document:
            values[name] = (_text if name.startswith("cpuset") else _integer)(document[name])
    pages = _object(document.get("hugepage_limits_bytes", {}))
    values["hugepage_limits_bytes"] = tuple((size, _integer(limit)) for size, limit in pages.items())
    found = Resources(**values, unified=frozen(_entries(document.get("unified", {}))))
    return NO_RESOURCES if found == NO_RESOURCES else found


_READERS: Final[Mapping[str, Callable[[object], Any]]] = {
    **dict.fromkeys(("pod_id", "name", "namespace", "uid", "runtime_handler", "cgroup_parent"), _text),
    "attempt": _integer,
    **dict.fromkeys(("labels", "annotations", "owners"), _entries),
    **dict.fromkeys(("label_changes", "annotation_changes"), _changes),
    **dict.fromkeys(("overhead", "requested", "applied"), _resources),
    "pending_cgroup": _values,
    "state": _state,
    **dict.fromkeys(("detailed", "recovered"), _flag),
}
"""What reads each field of a record."""
