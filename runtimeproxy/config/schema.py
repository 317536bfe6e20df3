"""The settings' types as a schema of pydantic's validator.

The `pydantic` package itself would build it from the same dataclasses, but importing it for that costs 120 ms
and 12 MB on each node for the life of the daemon; its validator alone, `pydantic_core`, costs 30 ms and 4 MB.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic_core import CoreSchema, core_schema

from runtimeproxy.config.settings import Within


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
