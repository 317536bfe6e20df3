"""Reads the JSON of strategies as Go does, against the schema: what is set, and what is wrong with it.

Go matches the keys of a struct in any case and takes null, and an empty text for one of several words, for
absent; the keys of a map match exactly (package encoding/json). What is set is an overlay: the value of each
field that is there, by its path. So merging strategies is merging mappings.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence, Set
from enum import StrEnum
from functools import cache, lru_cache
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    NoReturn,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from runtimeproxy.documents.reading import InputError, json_value, printable
from runtimeproxy.labels import LabelOperator, LabelRequirement, LabelSelector
from runtimeproxy.slo.schema import Bandwidth, Duration, Quantity, Range
from runtimeproxy.spelling import did_you_mean, nearest
from runtimeproxy.units import quantity_bytes

MAX_TEXT_LENGTH: Final = 1 << 20
"""Of a ConfigMap's key, in characters. Source: Kubernetes, the largest ConfigMap (1 MiB)."""
MAX_VALUES: Final = 1 << 15
"""Of a text: its parsing holds up all other threads, and so the relay, for some milliseconds at most."""
MAX_ITEMS: Final = 256
"""Of a list, and of a mapping: many times those that a node can use."""
MAX_PROBLEMS: Final = 50
"""Of one key: more say nothing new."""
_MAX_SHOWN: Final = 64
"""Of a key or value in a problem, in characters."""

Path: TypeAlias = tuple[str, ...]
"""Attribute names from a strategy down to a field; the last one may be the key of a mapping."""
Overlay: TypeAlias = Mapping[Path, object]
"""The values that a text sets; a list is one value, and so is each entry of a mapping."""

_Kind = TypeVar("_Kind")
_Parse: TypeAlias = Callable[[object, "Report", str], object]

_DURATION: Final = re.compile(
    r"[+-]?(?:0|(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|\u00b5s|\u03bcs|ms|s|m|h))+)"
)
"""Source: Go time.ParseDuration."""
_ACRONYMS: Final = {"qos": "QOS", "cpu": "CPU", "be": "BE", "iops": "IOPS", "bps": "BPS", "id": "ID"}


class Problem(NamedTuple):
    """Something in a configuration that cannot be used, or is not used."""

    file: str
    """Path of the file; empty for labels and annotations."""
    key: str
    """Key of the ConfigMap, or of the label or annotation."""
    path: str
    """The place in the key's JSON, such as `nodeStrategies[0].cpuBurstPercent`; empty for the whole key."""
    reason: str
    """The rest of a sentence that begins with the place."""
    is_warning: bool = False
    """The key is used nevertheless."""
    is_unknown_name: bool = False
    """It is a name that neither this program nor Koordinator has; always a warning, as Koordinator, too, goes
    on without the name."""
    guess: str = ""
    """The known name that was probably meant; empty: none is near, and it may be a newer Koordinator's."""

    @property
    def needs_attention(self) -> bool:
        return not self.is_warning or bool(self.guess)

    def __str__(self) -> str:
        place = f"{self.key}: {self.path}" if self.path else self.key
        return printable(": ".join(part for part in (self.file, f"{place} {self.reason}") if part))


class InvalidError(Exception):
    """A value that cannot be used; the problem is in the report already."""


class Report:
    """Collects the problems of one text.

    Args:
        file: path of the file; empty for labels and annotations.
        key: key of the ConfigMap, or of the label or annotation.
        most_guesses: unknown names that are compared with the known ones; each takes up to 0.4 ms.
    """

    def __init__(self, file: str, key: str, most_guesses: int = MAX_PROBLEMS) -> None:
        self.file = file
        self.key = key
        self.guesses_left = most_guesses
        self.has_errors = False
        self._problems: list[Problem] = []

    def error(self, path: str, reason: str) -> None:
        """Adds a problem for which the text cannot be used."""
        self.has_errors = True
        self._problems.append(Problem(self.file, self.key, path, reason))

    def warn(self, path: str, reason: str) -> None:
        self._problems.append(Problem(self.file, self.key, path, reason, is_warning=True))

    def unknown_name(self, path: str, guess: str, hint: str = "") -> None:
        """Adds a field that is not known; `hint` is said where there is no guess."""
        self.warn(path, f"is not a known field, and is not used{did_you_mean(guess) or hint}")
        self._problems[-1] = self._problems[-1]._replace(is_unknown_name=True, guess=guess)

    def fail(self, path: str, reason: str) -> NoReturn:
        """Adds an error, and raises InvalidError."""
        self.error(path, reason)
        raise InvalidError

    def all_problems(self) -> tuple[Problem, ...]:
        """The first problems, errors before misspelled names before notes, and the number of the others."""
        problems = sorted(self._problems, key=_rank)
        if len(problems) <= MAX_PROBLEMS:
            return tuple(problems)
        reason = f"and {len(problems) - MAX_PROBLEMS} more problems"
        more = Problem(self.file, self.key, "", reason, is_warning=not self.has_errors)
        return (*problems[:MAX_PROBLEMS], more)


def _rank(problem: Problem) -> int:
    return problem.is_warning + (problem.is_warning and not problem.guess)


def parse_json(
    text: str, report: Report, limit: int = MAX_TEXT_LENGTH, most_values: int = MAX_VALUES
) -> object:
    """Returns the value of a JSON text. Raises InvalidError."""
    if len(text) > limit:
        report.fail("", f"is longer than {limit} characters")
    if text.count(",") > most_values:
        report.fail("", f"has more than {most_values} values")

    def on_repeated(key: str) -> None:
        report.warn("", f"has the key {shown(key)} twice in one object; the last one is used")

    try:
        return json_value(text, on_repeated)
    except InputError as error:
        report.fail("", f"is not valid JSON: {error.reason}{f' at {error.place}' if error.place else ''}")


def read_overlay(
    kind: type, raw: object, report: Report, path: str = "", *, beside: Set[str] = frozenset()
) -> dict[Path, object]:
    """Returns the valid fields that a JSON object sets; `beside` are keys for others."""
    overlay: dict[Path, object] = {}
    if raw is None:
        return overlay
    if not isinstance(raw, Mapping):
        report.error(path, "is not an object")
        return overlay
    known = _fields_of(kind)
    others = {each.lower() for each in (*beside, *getattr(kind, "unused", ()))}
    seen: set[str] = set()
    for key, value in raw.items():
        folded = str(key).lower()
        if folded in others:
            continue
        place = child(path, key)
        each = known.get(folded)
        if each is None:
            _report_unknown(kind, str(key), frozenset(beside), place, report)
            continue
        if folded in seen:
            report.warn(place, "is there twice; the last one is used")
            overlay = {old: set_to for old, set_to in overlay.items() if old[0] != each.name}
        seen.add(folded)
        if value is not None:
            _read_field(each, value, report, place, overlay)
    return overlay


def read_object(kind: type[_Kind], raw: object, report: Report, path: str) -> _Kind:
    """Returns a schema's dataclass with the fields that a JSON object sets. Raises InvalidError."""
    if not isinstance(raw, Mapping):
        report.fail(path, "is not an object")
    return build(kind(), read_overlay(kind, raw, report, path))


def build(default: _Kind, overlay: Overlay) -> _Kind:
    """Returns a dataclass with the overlay's values in it, at any depth."""
    values: dict[str, Any] = {}
    nested: dict[str, dict[Path, object]] = {}
    for path, value in overlay.items():
        if len(path) == 1:
            values[path[0]] = value
        else:
            nested.setdefault(path[0], {})[path[1:]] = value
    for name, below in nested.items():
        present = getattr(default, name)
        if isinstance(present, Mapping):
            values[name] = {**present, **{path[0]: value for path, value in below.items()}}
        else:
            values[name] = build(present, below)
    return dataclasses.replace(default, **values) if values else default  # type: ignore[type-var]


def json_key(name: str) -> str:
    """Returns Koordinator's JSON key of an attribute: `cpuBurstPercent` for `cpu_burst_percent`."""
    first, *rest = name.split("_")
    return first + "".join(_ACRONYMS.get(word) or word.capitalize() for word in rest)


def child(path: str, key: object) -> str:
    """Returns the path of a member, for problems."""
    text = str(key)
    text = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
    return f"{path}.{text}" if path else text


def shown(value: object) -> str:
    """Returns a value for a problem, shortened."""
    # Only what is shown is made a text: the value may be almost all of the key.
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple) and len(value) > _MAX_SHOWN:
        return f"a list of {len(value)} items"
    if isinstance(value, str):
        value = value[: _MAX_SHOWN + 1]
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def members_of(raw: Mapping[str, object]) -> dict[str, tuple[str, object]]:
    return {str(key).lower(): (str(key), value) for key, value in raw.items()}


def read_selector(raw: object, report: Report, place: str) -> LabelSelector:
    """Returns a label selector of Kubernetes. Raises InvalidError."""
    if not isinstance(raw, Mapping):
        report.fail(place, "is not an object")
    labels: dict[str, str] = {}
    expressions: list[LabelRequirement] = []
    for folded, (key, value) in members_of(raw).items():
        where = child(place, key)
        if folded == "matchlabels" and (value is None or isinstance(value, Mapping)):
            labels = {
                str(label): _text(text, report, child(where, label)) for label, text in (value or {}).items()
            }
        elif folded == "matchexpressions" and (value is None or isinstance(value, list | tuple)):
            expressions = [
                _requirement(each, report, f"{where}[{number}]") for number, each in enumerate(value or ())
            ]
        elif folded in ("matchlabels", "matchexpressions"):
            report.fail(where, f"is not {'an object' if folded == 'matchlabels' else 'a list'}")
        else:
            report.fail(where, "is not a field of a label selector")
    return LabelSelector(match_labels=labels, match_expressions=tuple(expressions))


def selector_path(where: Sequence[str]) -> str:
    """The path of a place in a selector, as `label_problems` names it."""
    kind, member, *rest = where
    if kind == "match_labels":
        return child("matchLabels", member)
    return ".".join((f"matchExpressions[{member}]", *rest))


_OPERATORS: Final = {str(each): each for each in LabelOperator}


def _requirement(raw: object, report: Report, place: str) -> LabelRequirement:
    if not isinstance(raw, Mapping):
        report.fail(place, "is not an object")
    members = members_of(raw)
    if unknown := members.keys() - {"key", "operator", "values"}:
        report.fail(child(place, members[min(unknown)][0]), "is not a field of a label selector")
    operator = _text(members.get("operator", ("", None))[1], report, child(place, "operator"))
    if operator not in _OPERATORS:
        report.fail(
            child(place, "operator"), f"is {shown(operator)}, which is not one of {', '.join(_OPERATORS)}"
        )
    values = members.get("values", ("", None))[1]
    if values is not None and not isinstance(values, list | tuple):
        report.fail(child(place, "values"), "is not a list")
    return LabelRequirement(
        key=_text(members.get("key", ("", None))[1], report, child(place, "key")),
        operator=_OPERATORS[operator],
        values=tuple(_text(each, report, child(place, "values")) for each in values or ()),
    )


class _Field(NamedTuple):
    name: str
    kind: type | None
    """The dataclass of a nested object that is always there; None for a value."""
    parse: _Parse
    is_mapping: bool = False


@cache
def _fields_of(kind: type) -> Mapping[str, _Field]:
    """The fields of a dataclass by their JSON keys in lower case."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        each.name.replace("_", ""): _field(each.name, hints[each.name]) for each in dataclasses.fields(kind)
    }


def _field(name: str, hint: Any) -> _Field:  # noqa: ANN401 - types of all kinds
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _Field(name, hint, _object_parser(hint))
    if get_origin(hint) is Mapping:
        return _Field(name, None, _parser(get_args(hint)[1]), is_mapping=True)
    return _Field(name, None, _parser(hint))


def _not_none(hint: Any) -> Any:  # noqa: ANN401 - types of all kinds
    if get_origin(hint) in (Union, types.UnionType):
        rest = [each for each in get_args(hint) if each is not types.NoneType]
        return rest[0] if len(rest) == 1 else hint
    return hint


def _read_field(each: _Field, value: object, report: Report, place: str, overlay: dict[Path, object]) -> None:
    if each.is_mapping:
        if not isinstance(value, Mapping):
            report.error(place, "is not an object")
            return
        if len(value) > MAX_ITEMS:
            report.error(place, f"has {len(value)} entries, more than {MAX_ITEMS}")
            return
        for key, entry in value.items():
            if entry is not None:
                _set(overlay, (each.name, str(key)), each.parse, entry, report, child(place, key))
    elif each.kind is not None:
        below = read_overlay(each.kind, value, report, place)
        overlay.update({(each.name, *path): inner for path, inner in below.items()})
    else:
        _set(overlay, (each.name,), each.parse, value, report, place)


def _set(
    overlay: dict[Path, object], path: Path, parse: _Parse, value: object, report: Report, place: str
) -> None:
    try:
        parsed = parse(value, report, place)
    except InvalidError:
        return
    if parsed is not None:
        overlay[path] = parsed


def _report_unknown(kind: type, key: str, beside: frozenset[str], place: str, report: Report) -> None:
    refused: Mapping[str, str] = getattr(kind, "refused", {})
    for name, reason in refused.items():
        if name.replace("_", "") == key.lower():
            report.error(place, reason)
            return
    guess = _guess(kind, beside, key) if report.guesses_left > 0 else ""
    report.guesses_left -= 1
    report.unknown_name(place, guess)


@lru_cache(maxsize=256)
def _guess(kind: type, beside: frozenset[str], key: str) -> str:
    fields = (*(each.name for each in dataclasses.fields(kind)), *getattr(kind, "refused", ()))
    return nearest(key, sorted({*map(json_key, fields), *getattr(kind, "unused", ()), *beside}))


@cache
def _parser(hint: Any) -> _Parse:  # noqa: ANN401 - types of all kinds
    hint = _not_none(hint)
    marks: tuple[object, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        marks = tuple(rest)
    if get_origin(hint) is tuple:
        return _list_parser(_parser(get_args(hint)[0]))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _object_parser(hint)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _enum_parser(hint)
    within = next((mark for mark in marks if isinstance(mark, Range)), Range())
    if any(isinstance(mark, Quantity) for mark in marks):
        return _bounded(_quantity, within)
    if any(isinstance(mark, Bandwidth) for mark in marks):
        return _bandwidth
    if any(isinstance(mark, Duration) for mark in marks):
        return _duration
    plain: dict[object, _Parse] = {bool: _bool, int: _int, float: _float, str: _text}
    return _bounded(plain[hint], within)


def _object_parser(kind: type) -> _Parse:
    return lambda value, report, place: read_object(kind, value, report, place)


def _list_parser(parse: _Parse) -> _Parse:
    def parse_list(value: object, report: Report, place: str) -> tuple[object, ...]:
        if not isinstance(value, list | tuple):
            report.fail(place, "is not a list")
        if len(value) > MAX_ITEMS:
            report.fail(place, f"has {len(value)} items, more than {MAX_ITEMS}")
        items = []
        for index, item in enumerate(value):
            if item is None:
                report.fail(f"{place}[{index}]", "is null")
            items.append(parse(item, report, f"{place}[{index}]"))
        return tuple(items)

    return parse_list


def _enum_parser(kind: type[StrEnum]) -> _Parse:
    members = {str(each): each for each in kind}
    words = ", ".join(word for word in members if word)

    def parse_enum(value: object, report: Report, place: str) -> StrEnum | None:
        if not isinstance(value, str):
            report.fail(place, "is not a text")
        if value not in members and value:
            report.fail(place, f"is {shown(value)}, which is not one of {words}")
        return members.get(value)

    return parse_enum


def _bounded(parse: _Parse, within: Range) -> _Parse:
    def parse_bounded(value: object, report: Report, place: str) -> object:
        number = parse(value, report, place)
        low, high, is_above = within
        if isinstance(number, int | float):
            if number < low or (is_above and number == low):
                report.fail(
                    place, f"is {shown(value)}, which is {'not above' if is_above else 'below'} {low}"
                )
            if number > high:
                report.fail(place, f"is {shown(value)}, which is above {high}")
        return number

    return parse if within == Range() else parse_bounded


def _bool(value: object, report: Report, place: str) -> bool:
    if not isinstance(value, bool):
        report.fail(place, f"is {shown(value)}, not true or false")
    return value


def _int(value: object, report: Report, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        report.fail(place, f"is {shown(value)}, not a whole number")
    return value


def _float(value: object, report: Report, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        report.fail(place, f"is {shown(value)}, not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        report.fail(place, "is not a finite number")
    return number


def _text(value: object, report: Report, place: str) -> str:
    if not isinstance(value, str):
        report.fail(place, f"is {shown(value)}, not a text")
    return value


def _quantity(value: object, report: Report, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        report.fail(place, f"is {shown(value)}, not a quantity")
    try:
        return quantity_bytes(str(value).strip(" "))
    except ValueError:
        report.fail(place, f"is {shown(value)}, not a quantity")


def _bandwidth(value: object, report: Report, place: str) -> int | str:
    if isinstance(value, str):
        if _quantity(value, report, place) < 0:
            report.fail(place, f"is {shown(value)}, which is negative")
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        report.fail(place, f"is {shown(value)}, neither a percentage nor a quantity")
    if not 0 <= value <= 100:
        report.fail(place, f"is {shown(value)}, which is not in 0 to 100 percent")
    return value


def _duration(value: object, report: Report, place: str) -> str:
    text = _text(value, report, place)
    if len(text) > _MAX_SHOWN or not _DURATION.fullmatch(text):
        report.fail(place, f"is {shown(value)}, not a duration such as 5m")
    return text
