"""Values of the node's snapshot as JSON, and back. Pure.

What JSON has stands for itself; a tuple is a list. An object with one key stands for all else:
`{"set": [...]}`, `{"map": [[key, value], ...]}`, and by the name of its class a member of an enumeration, a
NamedTuple or a frozen dataclass: `{"Cpu": {"id": 0, ...}}`. Fields with their default may be missing. Only
the classes of `CLASSES` are made.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import ModuleType
from typing import Any, Final

from runtimeproxy import labels, qos
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.katalyst import dynamic_config, eviction_config, levels
from runtimeproxy.node import devices, facts, snapshot
from runtimeproxy.node.snapshot import Node
from runtimeproxy.slo import reading, schema, strategies

_SET, _MAP, _FLOAT = "set", "map", "float"


class BadValueError(RuntimeProxyError):
    """A value that this version cannot read; the text says why."""


def _fields(kind: type) -> tuple[str, ...] | None:
    """The names of what such an object is made of; None if it is not plain data."""
    if dataclasses.is_dataclass(kind):
        return tuple(each.name for each in dataclasses.fields(kind) if each.init)
    return getattr(kind, "_fields", None)


def _plain_classes(*modules: ModuleType) -> Iterator[type]:
    for module in modules:
        for each in vars(module).values():
            is_here = isinstance(each, type) and each.__module__ == module.__name__
            if is_here and (issubclass(each, Enum) or _fields(each) is not None):
                yield each


CLASSES: Final[Mapping[str, type]] = {
    each.__name__: each
    for each in _plain_classes(
        *(snapshot, facts, devices, labels, qos, schema, strategies, reading, levels, dynamic_config),
        eviction_config,
    )
}
"""All classes of the snapshot's values, by name."""


def encode(value: object) -> Any:  # noqa: ANN401 - a value of JSON
    """Returns the value of JSON's types that stands for this one. Raises TypeError if there is none."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: str(value)}
    if isinstance(value, Enum):
        return {_name(kind): value.value}
    if isinstance(value, Mapping):
        return {_MAP: [[encode(key), encode(each)] for key, each in value.items()]}
    if isinstance(value, frozenset | set):
        return {_SET: sorted(map(encode, value), key=str)}
    names = _fields(kind)
    if names is not None:
        return {_name(kind): {name: encode(getattr(value, name)) for name in names}}
    if isinstance(value, tuple | list):
        return [encode(each) for each in value]
    raise TypeError(f"no form in a recording for {kind.__name__}")


def _name(kind: type) -> str:
    if CLASSES.get(kind.__name__) is not kind:
        raise TypeError(f"no form in a recording for {kind.__name__}")
    return kind.__name__


def decode(document: object) -> Any:  # noqa: ANN401 - whatever was encoded
    """Returns the value that this stands for.

    Raises:
        BadValueError: It stands for none, or for one of a newer version.
    """
    if isinstance(document, list):
        return tuple(decode(each) for each in document)
    if not isinstance(document, dict):
        return document
    if len(document) != 1:
        raise BadValueError("an object of a snapshot has not exactly one key")
    ((name, body),) = document.items()
    try:
        return _made(name, body)
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise BadValueError(f"{name} of a snapshot cannot be read: {error}") from error


def _made(name: str, body: Any) -> object:  # noqa: ANN401 - a value of JSON
    if name in _BUILT_IN:
        return _BUILT_IN[name](body)
    kind = CLASSES.get(name)
    if kind is None:
        raise BadValueError(f"a snapshot has {name!r}, which this version does not know")
    if issubclass(kind, Enum):
        return kind(body)
    names = _fields(kind) or ()
    return kind(**{key: decode(each) for key, each in body.items() if key in names})


_BUILT_IN: Final[Mapping[str, Callable[[Any], object]]] = {
    _SET: lambda body: frozenset(map(decode, body)),
    _MAP: lambda body: {decode(key): decode(each) for key, each in body},
    _FLOAT: float,
}


def changed_fields(node: Node, before: Node | None) -> dict[str, Any]:
    """Returns the encoded fields of a node that differ from those of another one; None: from the defaults."""
    base = Node() if before is None else before
    found: dict[str, Any] = {}
    for name in _fields(Node) or ():
        value, old = getattr(node, name), getattr(base, name)
        # Comparing strategies ignores some parts, and `NO_STRATEGIES` is known by identity.
        is_same = value is old or (name != "strategies" and value == old)
        if not is_same:
            found[name] = encode(value)
    return found


def with_fields(node: Node, changed: Mapping[str, Any]) -> Node:
    """Returns a node with these fields; see `changed_fields`. Raises BadValueError if one cannot be read."""
    names = _fields(Node) or ()
    values = {name: decode(each) for name, each in changed.items() if name in names}
    try:
        return dataclasses.replace(node, **values)
    except (TypeError, ValueError, AttributeError) as error:
        raise BadValueError(f"a snapshot cannot be read: {error}") from error
