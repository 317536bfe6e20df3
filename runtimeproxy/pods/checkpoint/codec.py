"""Records as text for the checkpoint, and back: JSON with the fields that differ from their defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

from runtimeproxy.documents.long_json import json_text
from runtimeproxy.documents.reading import InputError, check_document, json_value
from runtimeproxy.errors import UNLIKE_OURS
from runtimeproxy.fields.declaration import Kind
from runtimeproxy.fields.tables import RESOURCE_FIELDS, saved_value
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.changes import CLEAR, Clear
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind, Owners, labels_of, parse_claimant
from runtimeproxy.hooks.remote.registrations import SUFFIX
from runtimeproxy.hooks.views import Resources
from runtimeproxy.pods.records import (
    MOST_ADDRESSES,
    NO_CHANGES,
    Book,
    CgroupRecord,
    ContainerRecord,
    Entry,
    Level,
    Lifecycle,
    ManagedValue,
    Original,
    PodRecord,
    Record,
    as_saved,
)
from runtimeproxy.pods.resources import (
    NO_ENTRIES,
    NO_RESOURCES,
    bounded,
    compact,
    frozen,
    kept_annotations,
)
from runtimeproxy.units import MAX_INT64, checked_time_s

ValueT = TypeVar("ValueT")


SHORT_ENTRIES: Final = 5000
"""A record with more labels and annotations is encoded in Python, so that other threads run meanwhile."""


BOOK_VERSION: Final = 1
"""Of the form of books; one of another version cannot be read."""


class BadRowError(ValueError):
    """A row that this version cannot read."""


class RowKind(IntEnum):
    """The kind of a row."""

    POD = 1
    CONTAINER = 2
    CGROUP = 3
    """Of version 0.1: a book takes its place."""
    BOOK = 4


class Rank(IntEnum):
    """The source of a row; a row is never replaced by one of lower rank."""

    LISTED = 0
    """From a list of the runtime."""
    ASKED = 1
    """From a status answer of the runtime."""
    SEEN = 2
    """From the calls of the kubelet."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row to write."""

    kind: RowKind
    id: str
    record: Record | None
    """None: the row is deleted."""
    rank: Rank = Rank.SEEN


@dataclass(frozen=True, slots=True)
class Saved:
    """The content of a checkpoint."""

    pods: tuple[PodRecord, ...] = ()
    containers: tuple[ContainerRecord, ...] = ()
    cgroups: tuple[CgroupRecord, ...] = ()
    """Of version 0.1."""
    books: tuple[Book, ...] = ()
    unreadable: int = 0
    """Rows that this version cannot read."""


def rank_of(record: Record) -> Rank:
    """The rank of a record without an event in this process."""
    if isinstance(record, CgroupRecord | Book) or not record.recovered:
        return Rank.SEEN
    return Rank.ASKED if record.detailed else Rank.LISTED


def encode(record: Record) -> str:
    if isinstance(record, CgroupRecord):
        values = {name: [each.wanted, each.original, each.reapply] for name, each in record.values.items()}
        return json_text(values, is_long=False)
    if isinstance(record, Book):
        return json_text(_book_document(record), is_long=False)
    blank: Record = _BLANK_POD if isinstance(record, PodRecord) else _BLANK_CONTAINER
    document: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name not in _NOT_IN_BODY and value != getattr(blank, field.name):
            document[_KEYS.get(field.name, field.name)] = _plain(field.name, value)
    # Mostly no policy has changed anything: then both are one object, here and after the next start.
    if record.booked == record.requested:
        document.pop(_KEYS["booked"], None)
        document["same"] = True
    entries = len(record.labels) + len(record.annotations) + len(record.booked.unified)
    return json_text(document, is_long=entries > SHORT_ENTRIES)


_NOT_IN_BODY: Final = frozenset({"id", "evaluation", "katalyst"})
_KEYS: Final[Mapping[str, str]] = {"booked": "applied"}
"""Fields with another name in the file: version 0.1 reads it too, after a failed upgrade or a downgrade."""

_BLANK_POD: Final = PodRecord(id="")
_BLANK_CONTAINER: Final = ContainerRecord(id="")


def _book_document(book: Book) -> dict[str, Any]:
    return {
        "version": BOOK_VERSION,
        "level": int(book.level),
        "boot": book.boot_id,
        "originals": {file: list(original) for file, original in book.originals.items()},
        "entries": {
            name: [
                [_claim_document(claim) for claim in entry.claims],
                *entry[1:],
            ]
            for name, entry in ((name, as_saved(each)) for name, each in book.entries.items())
        },
    }


def _claim_document(claim: Claim) -> list[object]:
    owner, role, value, priority, reason, *others = claim
    return [str(owner), role, _claimed(value), priority, str(reason), *others]


def _claimed(value: object) -> object:
    return None if isinstance(value, Clear) else value


def _plain(name: str, value: Any) -> object:  # noqa: ANN401 - any field
    if name == "owners":
        return {field: labels_of(owners) for field, owners in value.items()}
    if not isinstance(value, Resources):
        return dict(value) if isinstance(value, Mapping) else value
    document = {name: found for name in RESOURCE_FIELDS if (found := getattr(value, name)) is not None}
    if value.hugepage_limits_bytes:
        document["hugepage_limits_bytes"] = dict(value.hugepage_limits_bytes)
    if value.unified:
        document["unified"] = dict(value.unified)
    return document


def decode(kind: RowKind, identity: str, body: object) -> Record:
    # Raises BadRowError if the body is not the JSON of such a record.
    try:
        document = _object(json_value(_text(body), interruptible=True))
        check_document(document)
        if kind is RowKind.CGROUP:
            return CgroupRecord(identity, {name: _managed(each) for name, each in document.items()})
        if kind is RowKind.BOOK:
            return _book(identity, document)
        values = {
            name: read(document[key])
            for name, read in _READERS.items()
            if (key := _KEYS.get(name, name)) in document
        }
        if document.get("same") is True and "requested" in values:
            values["booked"] = values["requested"]
        return (PodRecord if kind is RowKind.POD else ContainerRecord)(id=identity, **values)
    except (*UNLIKE_OURS, InputError) as error:
        raise BadRowError(str(error)) from error


def _checked(kind: type[ValueT], value: object) -> ValueT:
    # Not `isinstance`, for which a truth value is a number.
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} in place of {kind.__name__}")
    return value


_text: Final = partial(_checked, str)
_flag: Final = partial(_checked, bool)
_object: Final[Callable[[object], dict[str, Any]]] = partial(_checked, dict)


def _integer(value: object, least: int = -MAX_INT64 - 1, most: int = MAX_INT64) -> int:
    number = _checked(int, value)
    if not least <= number <= most:
        raise ValueError(f"{number} is not in {least} to {most}")
    return number


def _value(value: object) -> int | str:
    return value if isinstance(value, str) else _integer(value)


def _managed(value: object) -> ManagedValue:
    wanted, original, reapply = _checked(list, value)
    return ManagedValue(_value(wanted), None if original is None else _value(original), _flag(reapply))


def _book(identity: str, document: Mapping[str, Any]) -> Book:
    if document["version"] != BOOK_VERSION:
        raise ValueError(f"a book of version {document['version']}, this program knows {BOOK_VERSION}")
    return Book(
        identity,
        Level(_integer(document["level"])),
        {name: _entry(name, each) for name, each in _object(document["entries"]).items()},
        {file: _original(each) for file, each in _object(document["originals"]).items()},
        _text(document["boot"]),
    )


def _original(value: object) -> Original:
    text, inode = _checked(list, value)
    return Original(None if text is None else _text(text), _checked(int, inode))


def _entry(name: str, value: object) -> Entry:
    claims, resolved, requested, booked, is_once, is_settling = _checked(list, value)
    value_of = partial(saved_value, name)
    return Entry(
        tuple(_claim(each, value_of) for each in _checked(list, claims)),
        None if resolved is None else value_of(resolved),
        None if requested is None else value_of(requested),
        None if booked is None else value_of(booked),
        _flag(is_once),
        _flag(is_settling),
    )


def _claim(value: object, value_of: Callable[[object], int | str]) -> Claim:
    owner, role, amount, priority, reason, ceiling = _checked(list, value)
    claimant = parse_claimant(_text(owner))
    if claimant.kind is ClaimantKind.PLUGIN:
        return Claim(claimant, Role(_text(role)), None, _integer(priority))
    return Claim(
        claimant,
        Role(_text(role)),
        CLEAR if amount is None else amount if isinstance(amount, float) else value_of(amount),
        _integer(priority),
        _text(reason),
        None if ceiling is None else _integer(ceiling),
    )


def _entries(value: object) -> Mapping[str, str]:
    found = _object(value)
    for each in found.values():
        _text(each)
    return compact(found)


def _owners(value: object) -> Owners:
    return {field: owners_in(text) for field, text in _entries(value).items()} or NO_ENTRIES


@lru_cache
def owners_in(text: str) -> tuple[Claimant, ...]:
    """The owners in a text of `labels_of`: a hook server is named by its file, a policy has no dot."""
    return tuple(
        Claimant(each, ClaimantKind.SERVER) if each.endswith(SUFFIX) else parse_claimant(each)
        for each in text.split("+")
    )


def _changes(value: object) -> Mapping[str, str | None]:
    found = _object(value)
    return {key: None if each is None else _text(each) for key, each in found.items()} or NO_CHANGES


def _values(value: object) -> Mapping[str, int | str]:
    return {key: _value(each) for key, each in _object(value).items()} or NO_ENTRIES


def _resources(value: object) -> Resources:
    document = _object(value)
    values: dict[str, Any] = {
        name: (_integer if RESOURCE_FIELDS[name].kind is Kind.NUMBER else _text)(document[name])
        for name in RESOURCE_FIELDS.keys() & document.keys()
    }
    pages = _object(document.get("hugepage_limits_bytes", {}))
    values["hugepage_limits_bytes"] = tuple((size, _integer(limit)) for size, limit in pages.items())
    found = Resources(**values, unified=frozen(_entries(document.get("unified", {}))))
    return NO_RESOURCES if found == NO_RESOURCES else found


_READERS: Final[Mapping[str, Callable[[object], Any]]] = {
    **dict.fromkeys(("pod_id", "name", "namespace", "uid", "runtime_handler", "cgroup_parent"), _text),
    "attempt": partial(_integer, least=0, most=2**32 - 1),
    "priority": lambda value: None if value is None else _integer(value),
    "labels": _entries,
    "owners": _owners,
    "annotations": lambda value: kept_annotations(bounded(_entries(value))),
    **dict.fromkeys(("label_changes", "annotation_changes"), _changes),
    **dict.fromkeys(("overhead", "requested", "booked"), _resources),
    "cpu_claims": lambda value: tuple(map(_text, _checked(list, value))),
    "pending_cgroup": _values,
    "state": lambda value: Lifecycle(_integer(value)),
    **dict.fromkeys(("detailed", "recovered", "trimmed", "is_host_network"), _flag),
    "addresses": lambda value: tuple(map(_text, _checked(list, value)[:MOST_ADDRESSES])),
    "created_s": lambda value: checked_time_s(_checked(float, value)),
}
"""The reader of each field."""
