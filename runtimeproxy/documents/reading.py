"""Reads YAML and JSON as Kubernetes' tools print them, and checks the values in it.

Less than YAML: no anchors, aliases and tags, and no key twice. So a text never becomes much more than it is,
and no value depends on a reader's rules for tags.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from runtimeproxy.cgroups.pace import rest
from runtimeproxy.documents import long_json
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.units import parse_cpu_list, quantity_bytes, quantity_millicores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from yaml.events import Event

MAX_SHOWN: Final = 128
"""Longest part of a file's content in a reason."""
MAX_EVENTS: Final = 200_000
"""Values, beginnings and ends in one text: many times those of the largest Node object."""
_EVENTS_PER_PIECE: Final = 64
"""Far less than a millisecond's work."""
MAX_DEPTH: Final = 64
"""Kubernetes' objects have less than 20 levels."""
MAX_NUMBER: Final = 2**64
"""Largest whole number, and smallest if negative: Kubernetes' have 64 bits."""

MAX_DIGITS: Final = 64
"""Of a whole number: what is computed from one takes no long time."""

_TOO_DEEP: Final = f"more than {MAX_DEPTH} levels"
_NO_NUMBER: Final = "has a number that no Kubernetes object can have"

_PREFIX: Final = "tag:yaml.org,2002:"
_CONVERTED: Final = frozenset({"null", "bool", "int", "float"})
"""All else that is not quoted is a text, dates too."""


class InputError(RuntimeProxyError):
    """Input that cannot be used: its place in the file, and the reason."""

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(f"{place}: {reason}" if place else reason)
        self.reason = reason
        self.place = place


@contextmanager
def within(place: str) -> Iterator[None]:
    # Errors of the block are about this place, or one within it; empty for no place of its own.
    try:
        yield
    except InputError as error:
        inner = error.place
        if place and inner and not inner.startswith("["):
            inner = f".{inner}"
        raise InputError(error.reason, place + inner) from None


def parse_documents(data: bytes) -> list[Any]:
    """The documents of a text, without those that are empty.

    Values are None, bool, int, float, str, lists, and mappings from texts.

    Raises:
        InputError: It is not such a text; the place is line and column.
    """
    text = _decoded(data)
    stripped = text.strip()
    found = first_object(stripped)
    if found is not None and found[1] == len(stripped):
        return [found[0]]
    documents = _yaml_documents(text)
    for document in documents:
        rest()
        check_document(document)
    return documents


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start} is not UTF-8") from None


def check_document(document: object) -> None:
    """Refuses what no Kubernetes object holds, and what could neither be saved nor logged.

    Raises:
        InputError: It has such a text or number, or too many levels.
    """
    level, depth = [document], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise InputError(_TOO_DEEP)
        below: list[object] = []
        for value in level:
            if isinstance(value, dict):
                below += value
                below += value.values()
            elif isinstance(value, list):
                below += value
            else:
                _check_scalar(value)
        level = below


def _check_scalar(value: object) -> None:
    if isinstance(value, str):
        if not value.isascii() and not _is_unicode(value):
            raise InputError("has half of a surrogate pair, which is no character")
    elif isinstance(value, int):
        if not -MAX_NUMBER <= value <= MAX_NUMBER:
            raise InputError(_NO_NUMBER)
    elif isinstance(value, float) and not isfinite(value):
        raise InputError(_NO_NUMBER)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise InputError(f"the key {shortened(repr(key))} is there twice")
        mapping[key] = value
    return mapping


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_mapping)


def _yaml_documents(text: str) -> list[Any]:
    import yaml  # takes 50 ms and 3 MB: only where there is something to read

    try:
        return list(_documents(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(part for part in (error.context, error.problem) if part)
        raise InputError(shortened(reason), _place(mark)) from None
    except yaml.YAMLError as error:
        raise InputError(shortened(" ".join(str(error).split()))) from None


class _Builder:
    """Makes values of events, without recursion, so that no nesting can exhaust the stack."""

    def __init__(self) -> None:
        from yaml.constructor import SafeConstructor
        from yaml.resolver import Resolver

        self._resolver = Resolver()
        self._constructor = SafeConstructor()
        self._open: list[tuple[list[Any] | dict[str, Any], str | None]] = []
        """Lists and mappings that have begun, each with the key that waits for its value."""
        self.document: Any = None

    def add(self, event: Event) -> None:
        import yaml

        if isinstance(event, yaml.AliasEvent):
            _fail(event, "aliases are not allowed")
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            _fail(event, "anchors are not allowed")
        if isinstance(event, yaml.ScalarEvent):
            self._add_scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            self._begin(event)
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            self._open.pop()

    def _begin(self, event: Any) -> None:  # noqa: ANN401 - untyped in PyYAML
        import yaml

        if event.tag is not None:
            _fail(event, "tags are not allowed")
        if len(self._open) == MAX_DEPTH:
            _fail(event, _TOO_DEEP)
        value: list[Any] | dict[str, Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self._add_value(event, value)
        self._open.append((value, None))

    def _add_scalar(self, event: Any) -> None:  # noqa: ANN401 - untyped in PyYAML
        if event.tag is not None:
            _fail(event, "tags are not allowed")
        if self._open and isinstance(self._open[-1][0], dict) and self._open[-1][1] is None:
            mapping = self._open[-1][0]
            if event.value in mapping:
                _fail(event, f"the key {shortened(repr(event.value))} is there twice")
            self._open[-1] = (mapping, event.value)
            return
        self._add_value(event, self._value(event))

    def _value(self, event: Any) -> Any:  # noqa: ANN401 - any scalar
        import yaml

        text: str = event.value
        if not event.implicit[0]:
            return text
        tag = self._resolver.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        if tag.removeprefix(_PREFIX) not in _CONVERTED:
            return text
        try:
            return self._constructor.construct_object(yaml.ScalarNode(tag, text))
        except ValueError:
            _fail(event, "is not a number that can be read")

    def _add_value(self, event: Event, value: Any) -> None:  # noqa: ANN401 - any value
        if not self._open:
            self.document = value
            return
        container, key = self._open[-1]
        if isinstance(container, list):
            container.append(value)
        elif key is None:
            _fail(event, "a key is not a text")
        else:
            container[key] = value
            self._open[-1] = (container, None)


def _documents(events: Iterator[Event]) -> Iterator[Any]:
    import yaml

    builder = _Builder()
    for count, event in enumerate(events):
        if count % _EVENTS_PER_PIECE == 0:
            rest()
        if count == MAX_EVENTS:
            _fail(event, f"more than {MAX_EVENTS} values")
        if isinstance(event, yaml.DocumentStartEvent):
            builder = _Builder()
        elif isinstance(event, yaml.DocumentEndEvent):
            if builder.document is not None:
                yield builder.document
        else:
            builder.add(event)


def _place(mark: Any) -> str:  # noqa: ANN401 - one of two classes
    return f"line {mark.line + 1} column {mark.column + 1}" if mark is not None else ""


def _fail(event: Event, reason: str) -> NoReturn:
    raise InputError(reason, _place(event.start_mark))


def json_value(
    text: str,
    on_repeated: Callable[[str], None] | None = None,
    *,
    takes_nan: bool = False,
    interruptible: bool = False,
) -> Any:  # noqa: ANN401 - JSON
    """The value of a JSON text as Go reads it: of a key that is there twice the last one counts.

    `on_repeated`: gets such a key of each object that has one. `takes_nan`: whether NaN and Infinity are
    numbers, for a reader that says of each which ones it takes. `interruptible`: whether other threads run
    while a long text is read, which takes longer then.

    Raises:
        InputError: It is not JSON, which is what the reason says about it; the place is line and column.
    """

    def as_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if on_repeated is not None and len(members) < len(pairs):
            on_repeated(Counter(name for name, _ in pairs).most_common(1)[0][0])
        return members

    is_long = interruptible and len(text) > long_json.SHORT_CHARS
    try:
        if not (is_long or takes_nan or on_repeated is not None or _may_have_long_number(text)):
            return _SHORT_NUMBERS.decode(text)
        decoder = long_json.InterruptibleDecoder if is_long else json.JSONDecoder
        return decoder(
            parse_constant=None if takes_nan else _refuse_constant,
            parse_int=_whole_number,
            object_pairs_hook=None if on_repeated is None else as_dict,
        ).decode(text)
    except json.JSONDecodeError as error:
        raise InputError(error.msg, f"line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise InputError("it is nested too deeply") from None


def parse_json(data: bytes | str) -> Any:  # noqa: ANN401 - JSON
    """The JSON value of a text, as `json_value`. Raises InputError if it is empty or not JSON."""
    text = data.decode("utf-8-sig", "surrogateescape") if isinstance(data, bytes) else data
    if not text or text.isspace():
        raise InputError("is empty")
    try:
        return json_value(text)
    except InputError as error:
        # Not a place in the text that may hold this one.
        raise InputError(str(error)) from None


def parse_object(data: bytes | str) -> Any:  # noqa: ANN401 - JSON
    """The one JSON object of a text, with the bounds of `parse_documents`.

    Raises:
        InputError: It is not such a text.
    """
    text = _decoded(data) if isinstance(data, bytes) else data
    found = first_object(text)
    if found is None or text[found[1] :].strip():
        raise InputError("is not a JSON object")
    return found[0]


def first_object(text: str) -> tuple[Any, int] | None:
    """The JSON object at the beginning of a text, and its length; None if its end is not there.

    Raises:
        InputError: It holds what no Kubernetes object holds.
    """
    if text[:1] != "{":
        return None
    try:
        document, end = _DECODER.raw_decode(text)
    except RecursionError:
        raise InputError(_TOO_DEEP) from None
    except json.JSONDecodeError:
        return None
    except ValueError:  # thousands of digits
        raise InputError(_NO_NUMBER) from None
    rest()
    check_document(document)
    return document, end


def _refuse_constant(name: str) -> NoReturn:
    raise InputError(f"{name} is not a number of JSON")


def _whole_number(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise InputError(f"a number has {len(text)} digits")
    return int(text)


def _may_have_long_number(text: str) -> bool:
    # A few microseconds for a whole text; `_whole_number` takes a fifth of one for each number.
    return _LONG_NUMBER in text.encode("utf-8", "surrogatepass").translate(_DIGITS_AS_0)


_DIGITS_AS_0: Final = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER: Final = b"0" * MAX_DIGITS
"""One less than is refused: a sign counts as a digit."""
_SHORT_NUMBERS: Final = json.JSONDecoder(parse_constant=_refuse_constant)
"""Quick: numbers are read in C."""


# Checked values


def mapping_of(value: object) -> Mapping[str, Any]:
    """The value as a mapping; None is an empty one. Raises InputError if it is something else."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"is {kind_of(value)}, not a mapping")
    return value


def list_of(value: object) -> list[Any]:
    """The value as a list; None is an empty one. Raises InputError if it is something else."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise InputError(f"is {kind_of(value)}, not a list")
    return value


def text_of(value: object) -> str:
    """The value as a text; None is an empty one. Raises InputError if it is something else."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"is {kind_of(value)}, not a text")
    return value


def cpus_of(value: object, last: int | None = None) -> frozenset[int]:
    """The CPUs of a list such as `0-3,8`; None is an empty one. `last` is as in `parse_cpu_list`.

    Raises:
        InputError: It is no such list.
    """
    # YAML reads a single CPU without quotes as a number.
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise InputError(f"is {kind_of(value)}, not a CPU list")
    try:
        return parse_cpu_list("" if value is None else str(value), last)
    except ValueError as error:
        raise InputError(shortened(str(error))) from None


def quantity_of(resource: str, value: object) -> int:
    """A quantity as Kubernetes objects have it, a text or a number; of `cpu` in millicores.

    Raises:
        InputError: It is not a quantity.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"is {kind_of(value)}, not a quantity")
    parse = quantity_millicores if resource == "cpu" else quantity_bytes
    try:
        amount = parse(str(value).strip())
    except ValueError:
        raise InputError(f"is not a quantity: {shortened(repr(value))}") from None
    if amount < 0:
        raise InputError(f"is below 0: {shortened(repr(value))}")
    return amount


def quantities_of(values: object) -> dict[str, int]:
    """Quantities by resource; None is an empty mapping.

    Raises:
        InputError: One of them is not a quantity.
    """
    found: dict[str, int] = {}
    for name, value in mapping_of(values).items():
        with within(shortened(str(name))):
            found[str(name)] = quantity_of(name, value)
    return found


def member(values: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - JSON
    """A member of a struct as Go's JSON reads it: its key in any case, the last one wins; None if absent."""
    found = values.get(name)
    lowered = name.lower()
    for key, value in values.items():
        if key.lower() == lowered:
            found = value
    return found


def shortened(text: str) -> str:
    """The text on one line, cut when it is long."""
    text = printable(text)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def printable(text: Path | str) -> str:
    """A text or path on one line: what cannot be printed is escaped."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def kind_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return f"a {type(value).__name__}"
