"""Puts the settings together: flag over environment over file over default."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from runtimeproxy.config.checks import checked
from runtimeproxy.config.environment import CONFIG_VARIABLE, environment_table, variable
from runtimeproxy.config.errors import CombinedConfigError
from runtimeproxy.config.file import read_file
from runtimeproxy.config.flags import FLAGS
from runtimeproxy.config.settings import DEFAULT_CONFIG_PATH, Settings
from runtimeproxy.config.validation import Table, validate, without
from runtimeproxy.errors import ConfigError


@dataclasses.dataclass(frozen=True, slots=True)
class _Layer:
    """One source of settings: the file, the environment or the flags."""

    source: str
    table: Table
    name_of: Callable[[tuple[str, ...]], str] = ".".join

    def error(self, key: tuple[str, ...], reason: str) -> ConfigError:
        return ConfigError(self.source, self.name_of(key), reason)


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What the sources say.

    Attributes:
        settings: those that are right; defaults where something is wrong.
        errors: whatever is wrong, all of it.
        error: makes an error of a key and a reason: it names the source that the key's value comes from.
    """

    settings: Settings
    errors: tuple[ConfigError, ...]
    error: Callable[[tuple[str, ...], str], ConfigError]


def load(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Reads, checks and merges all settings; called again to reload.

    Args:
        arguments: the parsed command line; flags that were not given are absent or None.
        environ: the environment.

    Raises:
        CombinedConfigError: whatever is wrong, all of it.
    """
    reading = read(arguments, environ)
    if reading.errors:
        raise CombinedConfigError(reading.errors)
    return reading.settings


def read(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Reading:
    """Reads, checks and merges all settings, and goes on without those that are wrong."""
    errors: list[ConfigError] = []
    path, is_named = config_path(arguments, environ)
    variables, wrong_variables = environment_table(environ)
    errors += wrong_variables
    layers = [
        _checked_layer(path, partial(read_file, path, is_named=is_named), ".".join, errors),
        _checked_layer("environment", lambda: variables, _variable, errors),
        _Layer("flag", _flag_table(arguments), _option),
    ]
    settings, problems = checked(_settings(layers))
    errors += (_origin(layers, key).error(key, reason) for key, reason in problems)
    if problems:
        # Checks that follow do not name the same values again.
        gone = [key for key, _ in problems]
        right = [dataclasses.replace(layer, table=without(layer.table, gone)) for layer in layers]
        settings, _ = checked(_settings(right))
    return Reading(settings, tuple(errors), lambda key, reason: _origin(layers, key).error(key, reason))


def config_path(arguments: argparse.Namespace, environ: Mapping[str, str]) -> tuple[str, bool]:
    """The configuration file's path, and whether somebody named it (then it must exist)."""
    named = getattr(arguments, "config", None) or environ.get(CONFIG_VARIABLE, "")
    return (named, True) if named else (DEFAULT_CONFIG_PATH, False)


def _checked_layer(
    source: str,
    read: Callable[[], Table],
    name_of: Callable[[tuple[str, ...]], str],
    errors: list[ConfigError],
) -> _Layer:
    """A source without what is wrong in it, so that the checks that follow see the rest."""
    try:
        table = read()
    except ConfigError as error:
        errors.append(error)
        return _Layer(source, {}, name_of)
    layer = _Layer(source, table, name_of)
    if not table:
        return layer
    problems = validate(table)[1]
    errors += (layer.error(key, reason) for key, reason in problems)
    return _Layer(source, without(table, (key for key, _ in problems)), name_of)


def _settings(layers: Iterable[_Layer]) -> Settings:
    *checkable, flags = layers
    merged: Table = {}
    for layer in checkable:
        merged = _overlaid(merged, layer.table)
    return _with_flags(validate(merged)[0] if merged else Settings(), flags.table)


def _with_flags(settings: Settings, table: Table) -> Settings:
    """All flags are texts, checked by the parser or after this, so pydantic stays out."""
    groups = {name: dataclasses.replace(getattr(settings, name), **keys) for name, keys in table.items()}
    return dataclasses.replace(settings, **groups)


def _overlaid(below: Table, above: Table) -> Table:
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        is_table = isinstance(value, Mapping) and isinstance(inner, Mapping)
        merged[key] = _overlaid(inner, value) if is_table and inner is not None else value
    return merged


def _flag_table(arguments: argparse.Namespace) -> Table:
    table: dict[str, dict[str, Any]] = {}
    for flag in FLAGS:
        value = getattr(arguments, flag.destination, None)
        if value is not None:
            table.setdefault(flag.group, {})[flag.key] = value
    return table


def _origin(layers: list[_Layer], key: tuple[str, ...]) -> _Layer:
    """The source that a key's value comes from: the last one that sets it."""
    for layer in reversed(layers):
        inner: Any = layer.table
        for part in key:
            inner = inner.get(part) if isinstance(inner, Mapping) else None
        if inner is not None:
            return layer
    return _Layer("default", {})


def _variable(key: tuple[str, ...]) -> str:
    # The environment's own errors name the variable already.
    return variable(key[0], key[1]) if len(key) >= 2 else ".".join(key)


def _option(key: tuple[str, ...]) -> str:
    return next((flag.option for flag in FLAGS if (flag.group, flag.key) == key), ".".join(key))
