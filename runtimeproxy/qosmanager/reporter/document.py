"""From the fields of several reporters to one CustomNodeResource. Pure functions.

Source of the shapes: katalyst-api pkg/apis/node/v1alpha1/types.go, the fields that mean the same since its
version 0.5.0; of the merge: katalyst-core pkg/util/cnr.go, MergeTopologyZone: what was there stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from runtimeproxy.qosmanager.reporter.fields import ObjectSection, ReportedField
from runtimeproxy.units import MAX_INT64, quantity_millicores

_DIGITS: Final = "0123456789"
API_VERSION: Final = "node.katalyst.kubewharf.io/v1alpha1"
KIND: Final = "CustomNodeResource"
NO_TOPOLOGY_POLICY: Final = "None"

MOST_VALUES: Final = 20_000
"""Texts and numbers in one field of one reporter."""
MOST_TEXT: Final = 16_384
"""Characters of one text; an annotation may hold JSON."""
MOST_DEPTH: Final = 8
"""Of zones in zones."""


class FieldError(Exception):
    """A field that cannot be used; the text says where and why."""


class Scalar(NamedTuple):
    """A text, a whole number or a quantity."""

    kind: str = "text"


class Mapped(NamedTuple):
    """A mapping with free keys."""

    values: Scalar


@dataclass(frozen=True, slots=True)
class Record:
    """A mapping with known keys."""

    members: dict[str, Shape]
    required: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Listed:
    """A list. Entries of two lists with the same key are one; without keys the list is one value."""

    entries: Scalar | Record
    keys: tuple[str, ...] = ()


Shape: TypeAlias = "Scalar | Mapped | Record | Listed"

_TEXT: Final = Scalar()
_QUANTITY: Final = Scalar("quantity")
_NUMBER: Final = Scalar("number")
_RESOURCES: Final = Record({"allocatable": Mapped(_QUANTITY), "capacity": Mapped(_QUANTITY)})
_ATTRIBUTES: Final = Listed(Record({"name": _TEXT, "value": _TEXT}, ("name", "value")), ("name",))
_ZONE: Final = Record(
    {
        "type": _TEXT,
        "name": _TEXT,
        "resources": _RESOURCES,
        "attributes": _ATTRIBUTES,
        "allocations": Listed(
            Record({"consumer": _TEXT, "requests": Mapped(_QUANTITY)}, ("consumer",)), ("consumer",)
        ),
        "siblings": Listed(
            Record({"type": _TEXT, "name": _TEXT, "attributes": _ATTRIBUTES}, ("type", "name")),
            ("type", "name"),
        ),
    },
    ("type", "name"),
)
_ZONES: Final = Listed(_ZONE, ("type", "name"))
_ZONE.members["children"] = _ZONES
_METRIC: Final = Record({"cpu": _QUANTITY, "memory": _QUANTITY})
_USAGE: Final[dict[str, Shape]] = {
    "numaUsage": Listed(Record({"numaId": _NUMBER, "usage": _METRIC}, ("numaId",)), ("numaId",)),
    "genericUsage": _METRIC,
}

FIELDS: Final[Mapping[tuple[ObjectSection, str], Shape]] = {
    (ObjectSection.METADATA, "annotations"): Mapped(_TEXT),
    (ObjectSection.METADATA, "labels"): Mapped(_TEXT),
    (ObjectSection.SPEC, "nodeResourceProperties"): Listed(
        Record(
            {"propertyName": _TEXT, "propertyValues": Listed(_TEXT), "propertyQuantity": _QUANTITY},
            ("propertyName",),
        ),
        ("propertyName",),
    ),
    (ObjectSection.STATUS, "resources"): _RESOURCES,
    (ObjectSection.STATUS, "topologyZone"): _ZONES,
    (ObjectSection.STATUS, "topologyPolicy"): _TEXT,
    (ObjectSection.STATUS, "conditions"): Listed(
        Record(
            {"type": _TEXT, "status": _TEXT, "lastHeartbeatTime": _TEXT, "reason": _TEXT, "message": _TEXT},
            ("type", "status"),
        ),
        ("type",),
    ),
    (ObjectSection.STATUS, "nodeMetricStatus"): Record(
        {
            "updateTime": _TEXT,
            "nodeMetric": Record(_USAGE),
            "groupMetric": Listed(
                Record({"QoSLevel": _TEXT, **_USAGE, "podList": Listed(_TEXT)}, ("QoSLevel",)), ("QoSLevel",)
            ),
        },
        ("updateTime",),
    ),
}
"""All fields that a reporter may give. Not taints: their shape differs between versions of the API."""


@dataclass(slots=True)
class _Reading:
    """The place in a field while it is read, and how much of it was."""

    place: str
    values: int = 0
    depth: int = 0
    path: list[str] = field(default_factory=list)

    def error(self, reason: str) -> FieldError:
        return FieldError(f"{self.place}{''.join(self.path)}: {reason}")


def read_field(given: object) -> ReportedField:
    """A field of a reporter with a copy of its value, lists in order. Raises FieldError."""
    if not isinstance(given, ReportedField):
        raise FieldError(f"it has given {type(given).__name__}, not ReportedField")
    key: Any = (given.section, given.name)
    try:
        shape = FIELDS.get(key)
    except TypeError:
        shape = None
    if shape is None:
        raise FieldError(f"{given.section!s:.100}.{given.name!s:.100}: there is no such field")
    return given._replace(
        section=ObjectSection(given.section), value=_read(given.value, shape, _Reading(given.place))
    )


def _read(value: object, shape: Shape, reading: _Reading) -> Any:  # noqa: ANN401 - what JSON has
    if isinstance(shape, Scalar):
        return _read_text(value, shape, reading)
    if isinstance(shape, Listed):
        if not isinstance(value, list | tuple):
            raise reading.error(f"is {type(value).__name__}, not a list")
        return _read_list(value, shape, reading)
    if not isinstance(value, Mapping):
        raise reading.error(f"is {type(value).__name__}, not a mapping")
    found: dict[str, Any] = {}
    for name in value:
        if not _is_text(name) or not name:
            raise reading.error(f"the key {name!r:.100} is not a printable text")
    for name in sorted(value):
        reading.path.append(f".{name:.100}")
        inner = shape.values if isinstance(shape, Mapped) else shape.members.get(name)
        if inner is None:
            raise reading.error("there is no such field")
        found[name] = _read(value[name], inner, reading)
        reading.path.pop()
    if isinstance(shape, Record) and (missing := [each for each in shape.required if each not in found]):
        raise reading.error(f"{' and '.join(missing)} is missing")
    return found


def _read_list(entries: Iterable[object], shape: Listed, reading: _Reading) -> list[Any]:
    if reading.depth == MOST_DEPTH:
        raise reading.error(f"more than {MOST_DEPTH} lists in each other")
    reading.depth += 1
    found: dict[tuple[str, ...], Any] = {}
    read: list[Any] = []
    for number, entry in enumerate(entries):
        reading.path.append(f"[{number}]")
        read.append(_read(entry, shape.entries, reading))
        key = _key(read[-1], shape)
        if shape.keys and key in found:
            raise reading.error(f"{' '.join(key)} is there twice")
        found[key] = read[-1]
        reading.path.pop()
    reading.depth -= 1
    return _in_order(found.values(), shape) if shape.keys else read


def _read_text(value: object, shape: Scalar, reading: _Reading) -> str | int:
    reading.values += 1
    if reading.values > MOST_VALUES:
        raise FieldError(f"{reading.place}: more than {MOST_VALUES} values")
    if shape is _NUMBER:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31:
            return value
        raise reading.error(f"{value!r:.100} is not a whole number of 0 or more")
    if not isinstance(value, str) or not _is_text(value):
        raise reading.error(f"{value!r:.100} is not a printable text of at most {MOST_TEXT} characters")
    if shape is _QUANTITY:
        try:
            amount = quantity_millicores(value)
        except ValueError as error:
            raise reading.error(str(error)) from None
        if not 0 <= amount < MAX_INT64:
            raise reading.error(f"{value} is below 0, or too large")
    return value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MOST_TEXT and value.isprintable()


def _key(entry: Any, shape: Listed) -> tuple[str, ...]:  # noqa: ANN401 - what JSON has
    return tuple(str(entry[name]) for name in shape.keys)


def _in_order(entries: Iterable[Any], shape: Listed) -> list[Any]:
    return sorted(entries, key=lambda entry: [_natural(text) for text in _key(entry, shape)])


def _natural(text: str) -> list[tuple[bool, int, str]]:
    """For an order in which `10` comes after `9`."""
    parts = filter(None, re.split("([0-9]{1,18})", text))
    return [(part[0] in _DIGITS, int(part) if part[0] in _DIGITS else 0, part) for part in parts]


class Conflict(NamedTuple):
    """A value that two reporters give, and not the same; the first one's stays."""

    place: str
    first: str
    """Name of the reporter; of several that have given the field, the last one."""
    second: str
    kept: Any
    left: Any

    def __str__(self) -> str:
        values = f"{self.kept!s:.60} of {self.first} stays, not {self.left!s:.60} of {self.second}"
        return f"{self.place}: {values}"


def merged(
    given: Iterable[tuple[str, ReportedField]], node_name: str
) -> tuple[dict[str, Any], list[Conflict]]:
    """One CustomNodeResource, and what contradicted each other.

    Args:
        given: Names of reporters, and fields of `read_field`; of two values for one place the earlier stays.
        node_name: Name of the object.
    """
    found: dict[ObjectSection, dict[str, Any]] = {section: {} for section in ObjectSection}
    reporters: dict[str, str] = {}
    conflicts: list[Conflict] = []
    for reporter, each in given:
        section = found[each.section]
        if each.name not in section:
            section[each.name] = each.value
        else:
            shape = FIELDS[each.section, each.name]

            def on_conflict(
                place: str, kept: object, left: object, each: ReportedField = each, reporter: str = reporter
            ) -> None:
                conflicts.append(Conflict(place, reporters[each.place], reporter, kept, left))

            section[each.name] = _merge(section[each.name], each.value, shape, each.place, on_conflict)
        reporters[each.place] = reporter
    status = {"resources": {}, "topologyPolicy": NO_TOPOLOGY_POLICY, **found[ObjectSection.STATUS]}
    if zones := status.get("topologyZone"):
        status["topologyZone"] = _complete(zones)
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": node_name, **_sorted(found[ObjectSection.METADATA])},
        "spec": _sorted(found[ObjectSection.SPEC]),
        "status": _sorted(status),
    }
    return document, conflicts


def _sorted(members: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(members.items()))


def _complete(zones: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The zones with resources, which the API's types write always. Copies: what was given may be kept."""
    return [
        _sorted({"resources": {}, **zone, **({"children": _complete(children)} if children else {})})
        for zone in zones
        for children in [zone.get("children")]
    ]


def _merge(
    old: Any,  # noqa: ANN401 - what JSON has
    new: Any,  # noqa: ANN401
    shape: Shape,
    place: str,
    on_conflict: Callable[[str, object, object], None],
) -> Any:  # noqa: ANN401
    if isinstance(shape, Record | Mapped):
        both = dict(old)
        for name, value in new.items():
            inner = shape.values if isinstance(shape, Mapped) else shape.members[name]
            there = f"{place}.{name}"
            both[name] = _merge(old[name], value, inner, there, on_conflict) if name in old else value
        return _sorted(both)
    if isinstance(shape, Listed) and shape.keys:
        entries = {_key(entry, shape): entry for entry in old}
        for entry in new:
            key = _key(entry, shape)
            there = f"{place}[{' '.join(key)}]"
            known = entries.get(key)
            entries[key] = entry if known is None else _merge(known, entry, shape.entries, there, on_conflict)
        return _in_order(entries.values(), shape)
    is_same = quantity_millicores(old) == quantity_millicores(new) if shape is _QUANTITY else old == new
    if not is_same:
        on_conflict(place, old, new)
    return old
