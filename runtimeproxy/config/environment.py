"""Settings from environment variables: `KOORD_RUNTIMEPROXY_<GROUP>_<KEY>`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, get_origin, get_type_hints

from runtimeproxy.config.settings import Settings
from runtimeproxy.errors import ConfigError

PREFIX: Final = "KOORD_RUNTIMEPROXY_"
CONFIG_VARIABLE: Final = PREFIX + "CONFIG"
"""Path of the configuration file."""
_NO_SETTINGS: Final = frozenset((CONFIG_VARIABLE, PREFIX + "LOOP", PREFIX + "TOOLS"))
"""Names with the prefix that are read elsewhere: the file, the event loop, the tests' tool folder."""

_GROUPS: Final = ("proxy", "hooks", "cgroups", "node", "state", "log")
# Kubernetes sets such variables in each pod for a service that has the proxy's name.
_SERVICE_VARIABLE: Final = re.compile(r"(SERVICE|PORT)(_|$)")


def variable(group: str, key: str) -> str:
    """The name of the variable that sets a key."""
    return f"{PREFIX}{group}_{key}".upper()


def environment_table(environ: Mapping[str, str]) -> tuple[dict[str, dict[str, Any]], list[ConfigError]]:
    """The table that the environment's variables make, and what is wrong with their names.

    Values are checked later, as a file's are. Numbers, booleans and lists are written as in TOML; a list may
    stand without its brackets.
    """
    names = [name for name in sorted(environ) if _is_setting(name)]
    if not names:
        return {}, []
    hints = _hints()
    table: dict[str, dict[str, Any]] = {}
    errors: list[ConfigError] = []
    for name in names:
        if problem := _problem(name, environ[name], hints):
            errors.append(ConfigError("environment", name, problem))
            continue
        group, key, hint = hints[name]
        table.setdefault(group, {})[key] = _value(environ[name], hint)
    return table, errors


def _is_setting(name: str) -> bool:
    rest = name.removeprefix(PREFIX)
    return rest != name and name not in _NO_SETTINGS and not _SERVICE_VARIABLE.match(rest)


def _problem(name: str, text: str, hints: Mapping[str, object]) -> str:
    if name not in hints:
        import difflib  # only where a name is wrong

        # Without what all have in common, or else every name is near to every other.
        there = [known.removeprefix(PREFIX) for known in hints]
        guess = difflib.get_close_matches(name.removeprefix(PREFIX), there, n=1)
        return "no setting has this name" + (f"; did you mean {PREFIX}{guess[0]}?" if guess else "")
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is no UTF-8 text"
    return ""


def _hints() -> dict[str, tuple[str, str, Any]]:
    """Group, key and type by the variable's name."""
    hints: dict[str, tuple[str, str, Any]] = {}
    for group in _GROUPS:
        settings = type(getattr(Settings(), group))
        types = get_type_hints(settings)
        for each in fields(settings):
            hints[variable(group, each.name)] = group, each.name, types[each.name]
    return hints


def _value(text: str, hint: Any) -> Any:  # noqa: ANN401 - types and values of all kinds
    if hint not in (int, float, bool) and get_origin(hint) is not tuple:
        return text
    import tomllib  # start-up time, spent only where such a variable is set

    if get_origin(hint) is tuple and not text.lstrip().startswith("["):
        text = f"[{text}]"
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
