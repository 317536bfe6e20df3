"""Checks tables of settings with pydantic's validator, and describes each problem.

Loaded only where a file or the environment sets something. The `pydantic` package itself would build the
schema from the same dataclasses, but importing it for that costs 120 ms and 12 MB on each node for the life
of the daemon; its validator alone, `pydantic_core`, costs 30 ms and 4 MB.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic_core import CoreSchema, SchemaValidator, ValidationError, core_schema

from runtimeproxy.config.settings import GROUPS, Settings, Within
from runtimeproxy.config.validation import Problem
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.labels import LabelRequirement, LabelSelector

_REASONS = {
    "extra_forbidden": "unknown key",
    "dict_type": "must be a table",
    "json_invalid": "is nested too deeply",
}

_POLICY_TABLES: Mapping[tuple[str, ...], type] = {
    (): PolicySettings,
    ("selector",): LabelSelector,
    ("selector", "match_expressions"): LabelRequirement,
}
"""The tables below `policies.<name>`."""


def validate(table: Mapping[str, Any]) -> tuple[Settings, list[Problem]]:
    """Makes settings of a table; a table with problems gives the defaults, and each problem once."""
    try:
        # As JSON, because strict Python input would want enum members instead of their names.
        settings: Settings = _validator().validate_json(json.dumps(table, default=str), strict=True)
    except ValidationError as error:
        return Settings(), sorted(_problems(error))
    except (ValueError, RecursionError) as error:
        return Settings(), [((), f"cannot be checked: {error}")]
    return settings, []


def schema_of(hint: Any) -> CoreSchema:  # noqa: ANN401 - types of all kinds
    """The schema of a type that settings use; dataclasses refuse unknown keys and keep their defaults.

    Raises:
        TypeError: a type that settings do not use.
    """
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _dataclass(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return core_schema.enum_schema(hint, list(hint), sub_type="str")
    plain = _PLAIN.get(hint)
    return plain if plain is not None else _generic(hint)


_PLAIN: dict[Any, CoreSchema] = {
    str: core_schema.str_schema(),
    int: core_schema.int_schema(),
    float: core_schema.float_schema(),
    bool: core_schema.bool_schema(),
    object: core_schema.any_schema(),
}


def _dataclass(kind: type) -> CoreSchema:
    hints = get_type_hints(kind, include_extras=True)
    fields = {
        each.name: core_schema.typed_dict_field(schema_of(hints[each.name]), required=False)
        for each in dataclasses.fields(kind)
    }
    table = core_schema.typed_dict_schema(fields, extra_behavior="forbid")
    return core_schema.no_info_after_validator_function(lambda values: kind(**values), table)


def _generic(hint: Any) -> CoreSchema:  # noqa: ANN401 - types of all kinds
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _bounded(schema_of(arguments[0]), arguments[1:])
    if origin is Literal:
        return core_schema.literal_schema(list(arguments))
    if origin is tuple and arguments[1:] == (...,):
        return core_schema.tuple_schema([schema_of(arguments[0])], variadic_item_index=0)
    if origin is Mapping:
        return core_schema.dict_schema(*map(schema_of, arguments))
    if origin in (Union, types.UnionType) and len(arguments) == 2 and arguments[1] is types.NoneType:
        return core_schema.nullable_schema(schema_of(arguments[0]))
    raise TypeError(f"settings have no type {hint!r}")


def _bounded(schema: CoreSchema, marks: tuple[object, ...]) -> CoreSchema:
    bounded: dict[str, Any] = dict(schema)
    for mark in marks:
        if isinstance(mark, Within):
            bounded |= {"ge": mark.minimum, "le": mark.maximum}
    return bounded


@cache
def _validator() -> SchemaValidator:
    return SchemaValidator(schema_of(Settings))


def _problems(error: ValidationError) -> Iterator[Problem]:
    for each in error.errors(include_url=False, include_input=False, include_context=False):
        key = tuple(map(str, each["loc"]))
        message = each["msg"].replace("Input should", "must")
        reason = _REASONS.get(each["type"]) or message[:1].lower() + message[1:]
        if each["type"] == "extra_forbidden":
            reason += _suggestion(key)
        yield key, reason


def _suggestion(key: tuple[str, ...]) -> str:
    import difflib

    known = _known_keys(key[:-1])
    guess = difflib.get_close_matches(key[-1], known, n=1)
    return f"; did you mean {guess[0]}?" if guess else f"; known keys: {', '.join(known)}"


def _known_keys(path: tuple[str, ...]) -> list[str]:
    """The keys of the table at this path."""
    kind = (
        Settings if not path else _POLICY_TABLES.get(path[2:4]) if path[0] == "policies" else GROUPS[path[0]]
    )
    return [each.name for each in dataclasses.fields(kind)] if kind is not None else []
