"""The configuration reference, made of the settings: `python -m tests.config.reference` prints it."""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from runtimeproxy.config.settings import DEFAULT_CONFIG_PATH, GROUPS, TABLES, Settings, needs_restart
from runtimeproxy.config.sources import FLAGS, variable

WIDTH: Final = 120
_UNITS: Final = {"_per_s": "number per second", "_s": "seconds", "_bytes": "bytes"}
"""By the end of a key's name; the first one counts."""
_TYPES: Final = {str: "text", int: "integer", float: "number", bool: "boolean"}

_HEAD: Final = f"""\
# Configuration reference

Every key of `{DEFAULT_CONFIG_PATH}` with its default; its type (or unit) and range; the
environment variable and the flag that set it; whether a reload applies a change of it, or only a restart. A
flag wins over an environment variable, that over the file, that over the default. [config.toml](config.toml)
is a file to start from; `koord-runtime-proxy check-config` checks one. Strategies of the
cluster have files of their own: [STRATEGIES.md](../policies/STRATEGIES.md).

Made by `python -m tests.config.reference` from the settings in `runtimeproxy/config`.
"""


def reference() -> str:
    """The whole page, in Markdown."""
    return "\n".join((_HEAD, *(line for group in fields(Settings) for line in _group(group.name))))


def _group(group: str) -> Iterator[str]:
    kind = GROUPS.get(group) or TABLES[group]
    about = inspect.cleandoc(kind.__doc__ or "")
    title = about.partition(":")[0] if group in GROUPS else f"`[{group}.<name>]`"
    yield f"## {title}\n"
    yield f"{_sentence(about.partition(': ')[2] if group in GROUPS else about)}\n"
    texts = _attribute_texts(kind)
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        yield f"### `{each.name} = {_toml(_default(each))}`\n"
        yield " · ".join(_facts(group, each.name, hints[each.name])) + "\n"
        yield textwrap.fill(texts[each.name], WIDTH, break_on_hyphens=False, break_long_words=False) + "\n"


def _facts(group: str, key: str, hint: object) -> Iterator[str]:
    text = _type(hint)
    unit = next((unit for end, unit in _UNITS.items() if key.endswith(end)), "")
    if unit:
        text = text.replace(_type(float), unit).replace(_type(int), unit)
    yield text[:1].upper() + text[1:]
    if group in GROUPS:
        yield f"`{variable(group, key)}`"
    yield from (f"`{flag.option}`" for flag in FLAGS if flag.name == f"{group}.{key}")
    yield "restart" if needs_restart(group, key) else "reload"


def _type(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        ranges = [f", {_toml(mark.minimum)} to {_toml(mark.maximum)}" for mark in arguments[1:]]
        return "".join((_type(arguments[0]), *ranges))
    if origin is Literal:
        return " or ".join(f"`{_toml(value)}`" for value in arguments)
    if origin is tuple:
        item, comma, bounds = _type(arguments[0]).partition(", ")
        return f"list of {item}s{comma}{bounds}"
    if origin in (Union, types.UnionType):
        return _type(arguments[0])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(f"`{_toml(each)}`" for each in hint)
    return _TYPES.get(hint, "table")


def _default(each: Field[Any]) -> object:
    return each.default_factory() if each.default_factory is not MISSING else each.default


def _toml(value: object) -> str:
    if value is None:
        return "(unset)"
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:_}"
    return json.dumps(value)


def _attribute_texts(kind: type) -> dict[str, str]:
    """The text below each field of a class, as one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    texts: dict[str, str] = {}
    name = ""
    for node in body.body if isinstance(body, ast.ClassDef) else ():
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)):
                pass
            case ast.Expr(value=ast.Constant(value=str(text))) if name:
                texts[name] = _sentence(" ".join(text.split()))
    return texts


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    sys.stdout.write(reference())
