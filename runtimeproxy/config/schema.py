"""Checks tables of settings with pydantic's validator, and describes each problem.

Loaded only where a file or the environment sets something. The `pydantic` package itself would build the
schema from the same dataclasses, but importing it for that costs 120 ms and 17 MiB on each node for the life
of the daemon: dropping its modules afterwards gives 0.1 MiB back. The compiled module of `pydantic_core`
alone costs 11 ms and 4 MiB.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from importlib.machinery import PathFinder
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from runtimeproxy.config.settings import GROUPS, TABLES, Settings, Within
from runtimeproxy.config.validation import Problem
from runtimeproxy.labels import LabelRequirement, LabelSelector
from runtimeproxy.spelling import did_you_mean, nearest_key

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator, ValidationError

Schema: TypeAlias = dict[str, Any]
"""Of a value. Source: pydantic_core's `core_schema`, whose functions make such mappings."""

Kind = TypeVar("Kind")

_CORE: Final = "pydantic_core._pydantic_core"

_REASONS = {
    "extra_forbidden": "unknown key",
    "dict_type": "must be a table",
    "json_invalid": "is nested too deeply",
}

_INNER_TABLES: Mapping[tuple[str, ...], type] = {
    **{(name,): kind for name, kind in TABLES.items()},
    ("policies", "selector"): LabelSelector,
    ("policies", "selector", "match_expressions"): LabelRequirement,
}
"""The tables below `<group>.<name>`, by group and place."""


def validate(table: Mapping[str, Any]) -> tuple[Settings, list[Problem]]:
    return make(Settings, table, _known_keys)


def make(
    kind: Callable[[], Kind],
    table: Mapping[str, Any],
    known_keys: Callable[[tuple[str, ...]], list[str]] | None = None,
) -> tuple[Kind, list[Problem]]:
    """Makes a dataclass of a table; a table with problems gives the defaults, and each problem once."""
    try:
        # As JSON, because strict Python input would want enum members instead of their names.
        made: Kind = validator_of(kind).validate_json(json.dumps(table, default=str), strict=True)
    except _core().ValidationError as error:
        keys = [each.name for each in dataclasses.fields(kind)]  # type: ignore[arg-type]  # a class is callable
        return kind(), sorted(_problems(error, known_keys or (lambda _: keys)))
    except (ValueError, RecursionError) as error:
        return kind(), [((), f"cannot be checked: {error}")]
    return made, []


@cache
def validator_of(hint: Any) -> SchemaValidator:  # noqa: ANN401 - types of all kinds
    validator: SchemaValidator = _core().SchemaValidator(schema_of(hint))
    return validator


def schema_of(hint: Any) -> Schema:  # noqa: ANN401 - types of all kinds
    """The schema of a type that settings use; dataclasses refuse unknown keys and keep their defaults.

    Raises:
        TypeError: a type that settings do not use.
    """
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _dataclass(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _members(hint)
    plain = _PLAIN.get(hint)
    return {"type": plain} if plain is not None else _generic(hint)


_PLAIN: dict[Any, str] = {str: "str", int: "int", float: "float", bool: "bool", object: "any"}


def _dataclass(kind: type) -> Schema:
    hints = get_type_hints(kind, include_extras=True)
    fields = {
        each.name: {"type": "typed-dict-field", "schema": schema_of(hints[each.name]), "required": False}
        for each in dataclasses.fields(kind)
    }
    table = {"type": "typed-dict", "fields": fields, "extra_behavior": "forbid"}
    make = {"type": "no-info", "function": lambda values: kind(**values)}
    return {"type": "function-after", "function": make, "schema": table}


def _generic(hint: Any) -> Schema:  # noqa: ANN401 - types of all kinds
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _bounded(schema_of(arguments[0]), arguments[1:])
    if origin is Literal and isinstance(arguments[0], Enum):
        return _members(arguments)
    if origin is Literal:
        return {"type": "literal", "expected": list(arguments)}
    if origin is tuple and arguments[1:] == (...,):
        return {"type": "tuple", "items_schema": [schema_of(arguments[0])], "variadic_item_index": 0}
    if origin is frozenset:
        return {"type": "frozenset", "items_schema": schema_of(arguments[0])}
    if origin is Mapping:
        key, value = map(schema_of, arguments)
        return {"type": "dict", "keys_schema": key, "values_schema": value}
    if origin in (Union, types.UnionType) and len(arguments) == 2 and arguments[1] is types.NoneType:
        return {"type": "nullable", "schema": schema_of(arguments[0])}
    raise TypeError(f"settings have no type {hint!r}")


def _members(members: Iterable[Enum]) -> Schema:
    found = list(members)
    return {"type": "enum", "cls": type(found[0]), "members": found, "sub_type": "str"}


def _bounded(schema: Schema, marks: tuple[object, ...]) -> Schema:
    bounded = dict(schema)
    for mark in marks:
        if isinstance(mark, Within):
            bounded |= {"ge": mark.minimum, "le": mark.maximum}
    return bounded


def _core() -> Any:  # noqa: ANN401 - a module
    """The compiled module, without its package, whose types for type checkers take 15 ms and 1 MB more."""
    module = sys.modules.get(_CORE)
    if module is None:
        package = importlib.util.find_spec(_CORE.partition(".")[0])
        spec = PathFinder.find_spec(
            _CORE, package.submodule_search_locations if package is not None else None
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"no module {_CORE}")
        module = sys.modules[_CORE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def _problems(
    error: ValidationError, known_keys: Callable[[tuple[str, ...]], list[str]]
) -> Iterator[Problem]:
    for each in error.errors(include_url=False, include_input=False, include_context=False):
        key = tuple(map(str, each["loc"]))
        message = each["msg"].replace("Input should", "must")
        reason = _REASONS.get(each["type"]) or message[:1].lower() + message[1:]
        if each["type"] == "extra_forbidden":
            known = known_keys(key[:-1])
            reason += did_you_mean(nearest_key(key[-1], known)) or f"; known keys: {', '.join(known)}"
        yield key, reason


def _known_keys(path: tuple[str, ...]) -> list[str]:
    if not path:
        kind: type | None = Settings
    else:
        kind = GROUPS.get(path[0]) or _INNER_TABLES.get((path[0], *path[2:4]))
    return [each.name for each in dataclasses.fields(kind)] if kind is not None else []
