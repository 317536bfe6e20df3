"""Checks tables of a configuration file with pydantic, and says for people what is wrong with each key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from runtimeproxy.config.settings import Settings

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator, ValidationError

Table: TypeAlias = Mapping[str, Any]
Problem: TypeAlias = tuple[tuple[str, ...], str]
"""Where (the key's parts; none for the whole table) and what is wrong."""

_REASONS = {
    "extra_forbidden": "unknown key",
    "dict_type": "must be a table",
    "json_invalid": "is nested too deeply",
}


@cache
def _validator() -> SchemaValidator:
    # Imported late: it costs start-up time and memory, and only a file or the environment needs it.
    from pydantic_core import SchemaValidator

    from runtimeproxy.config.schema import schema_of

    return SchemaValidator(schema_of(Settings))


def validate(table: Table) -> tuple[Settings, list[Problem]]:
    """Makes settings of a table; a table with problems gives the defaults, and each problem once."""
    import json

    from pydantic_core import ValidationError

    try:
        # As JSON, because strict Python input would want enum members instead of their names.
        settings: Settings = _validator().validate_json(json.dumps(table, default=str), strict=True)
    except ValidationError as error:
        return Settings(), sorted(_problems(error))
    except (ValueError, RecursionError) as error:
        return Settings(), [((), f"cannot be checked: {error}")]
    return settings, []


def without(table: Table, keys: Iterable[tuple[str, ...]]) -> Table:
    """A copy of the table that lacks these keys; a key inside a list takes the whole list away."""
    import json

    gone = tuple(keys)
    if () in gone:
        return {}
    copy: dict[str, Any] = json.loads(json.dumps(table, default=str))
    for key in gone:
        inner: Any = copy
        for part in key[:-1]:
            if not isinstance(inner.get(part), dict):
                inner.pop(part, None)
                break
            inner = inner[part]
        else:
            inner.pop(key[-1], None)
    return copy


def _problems(error: ValidationError) -> Iterator[Problem]:
    for each in error.errors(include_url=False, include_input=False, include_context=False):
        location = tuple(map(str, each["loc"]))
        reason = _REASONS.get(each["type"]) or _lower_first(each["msg"].replace("Input should", "must"))
        if each["type"] == "extra_forbidden":
            reason += _suggestion(location)
        yield location, reason


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _suggestion(location: tuple[str, ...]) -> str:
    import difflib

    known = known_keys(location[:-1])
    guess = difflib.get_close_matches(location[-1], known, n=1)
    return f"; did you mean {guess[0]}?" if guess else f"; there are: {', '.join(known)}"


def known_keys(path: tuple[str, ...]) -> list[str]:
    """The keys that may stand in the table at this path; empty when it is none."""
    from dataclasses import fields

    from runtimeproxy.hooks.selector import LabelRequirement, LabelSelector
    from runtimeproxy.hooks.settings import PolicySettings

    if path[:1] == ("policies",):
        kinds = {
            (): PolicySettings,
            ("selector",): LabelSelector,
            ("selector", "match_expressions"): LabelRequirement,
        }
        kind = kinds.get(path[2:4]) if len(path) > 1 else None
        return [each.name for each in fields(kind)] if kind is not None else []
    if not path:
        return [each.name for each in fields(Settings)]
    group = getattr(Settings(), path[0], None)
    return [each.name for each in fields(group)] if len(path) == 1 and group is not None else []
