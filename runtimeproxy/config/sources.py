"""Where settings come from: flag over environment over file over default.

`read` puts the sources together and returns every problem with the source that it comes from.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, get_origin, get_type_hints

from runtimeproxy.config.settings import DEFAULT_CONFIG_PATH, GROUPS, Settings
from runtimeproxy.config.validation import CombinedConfigError, checked
from runtimeproxy.errors import ConfigError
from runtimeproxy.spelling import did_you_mean, nearest_key

Key = tuple[str, ...]
"""The parts of a dotted key."""
Table = Mapping[str, Any]

PREFIX: Final = "KOORD_RUNTIMEPROXY_"
"""Begins the names of environment variables: `KOORD_RUNTIMEPROXY_<GROUP>_<KEY>`."""
CONFIG_VARIABLE: Final = PREFIX + "CONFIG"
"""Path of the configuration file."""
_NO_SETTINGS: Final = frozenset((CONFIG_VARIABLE, PREFIX + "LOOP", PREFIX + "TOOLS"))
"""Names with the prefix that are read elsewhere: the file, the event loop, the tests' tool folder."""
# Kubernetes sets such variables in each pod for a service that has the proxy's name.
_SERVICE_VARIABLE: Final = re.compile(r"(SERVICE|PORT)(_|$)")


class Flag(NamedTuple):
    """A command line flag that overrides one key of the configuration."""

    option: str
    name: str
    """`<group>.<key>`."""
    metavar: str
    help: str
    choices: tuple[str, ...] = ()

    @property
    def destination(self) -> str:
        return self.name.replace(".", "_")

    @property
    def default(self) -> str:
        group, _, key = self.name.partition(".")
        return str(getattr(getattr(Settings(), group), key))


_LEVELS: Final = ("debug", "info", "warning", "error")
_FORMATS: Final = ("auto", "text", "json")

FLAGS: Final = (
    Flag("--koord-runtimeproxy-endpoint", "proxy.endpoint", "SOCKET", "socket that the kubelet connects to"),
    Flag(
        *("--remote-runtime-service-endpoint", "proxy.runtime_endpoint", "SOCKET"),
        "the container runtime's socket",
    ),
    Flag(
        *("--remote-image-service-endpoint", "proxy.image_endpoint", "SOCKET"),
        "the image service's socket, if it is not the runtime's",
    ),
    Flag(
        "--runtime-hook-server-key", "hooks.skip_label_key", "KEY", "label of pods that policies leave alone"
    ),
    Flag("--runtime-hook-server-val", "hooks.skip_label_value", "VALUE", "value of that label"),
    Flag("--hook-config-dir", "hooks.server_config_dir", "DIR", "folder in which hook servers register"),
    Flag("--policies-dir", "hooks.policies_dir", "DIR", "folder with policies in files (*.py)"),
    Flag("--node-objects-dir", "node.objects_dir", "DIR", "folder with Kubernetes objects of this node"),
    Flag("--tracing-endpoint", "tracing.endpoint", "URL", "collector that spans are sent to by OTLP"),
    Flag("--state-dir", "state.dir", "DIR", "folder of the checkpoint, which keeps records over restarts"),
    Flag("--log-level", "log.level", "LEVEL", f"lowest level that is logged: {', '.join(_LEVELS)}", _LEVELS),
    Flag(
        "--log-format", "log.format", "FORMAT", "auto (text on a terminal, else JSON), text, json", _FORMATS
    ),
)


@dataclasses.dataclass(frozen=True, slots=True)
class SourceReading:
    """The result of reading all sources."""

    settings: Settings
    """The valid ones; defaults in place of the others."""
    errors: tuple[ConfigError, ...]
    error: Callable[[Key, str], ConfigError]
    """Makes an error of a key and a reason, with the source that the key's value comes from."""

    def valid_settings(self) -> Settings:
        """Returns the settings if all are valid. Raises CombinedConfigError with every problem."""
        if self.errors:
            raise CombinedConfigError(self.errors)
        return self.settings


@dataclasses.dataclass(frozen=True, slots=True)
class _Layer:
    """One source of settings: the file, the environment or the flags."""

    source: str
    table: Table
    name_of: Callable[[Key], str] = ".".join

    def error(self, key: Key, reason: str) -> ConfigError:
        return ConfigError(self.source, self.name_of(key), reason)


def read(arguments: argparse.Namespace, environ: Mapping[str, str]) -> SourceReading:
    """Reads, checks and merges all settings, and goes on without the invalid ones.

    `arguments`: the parsed command line; flags that were not given are absent or None.
    """
    path, is_named = config_path(arguments, environ)
    variables, wrong_variables = _environment_table(environ)
    errors = list(wrong_variables)
    layers = [
        _valid_layer(path, partial(_read_file, path, is_named=is_named), ".".join, errors),
        _valid_layer("environment", lambda: variables, _variable_of, errors),
        _Layer("flag", _flag_table(arguments), _option_of),
    ]

    def error(key: Key, reason: str) -> ConfigError:
        return _origin(layers, key).error(key, reason)

    settings, problems = checked(_merged(layers))
    errors += (error(key, reason) for key, reason in problems)
    if problems:
        # Checks that follow do not report the same values again.
        wrong = [key for key, _ in problems]
        valid = [dataclasses.replace(layer, table=_without(layer.table, wrong)) for layer in layers]
        settings, _ = checked(_merged(valid))
    return SourceReading(settings, tuple(errors), error)


def config_path(arguments: argparse.Namespace, environ: Mapping[str, str]) -> tuple[str, bool]:
    """The configuration file's path, and whether a flag or a variable named it (then it must exist)."""
    named = getattr(arguments, "config", None) or environ.get(CONFIG_VARIABLE, "")
    return (named, True) if named else (DEFAULT_CONFIG_PATH, False)


def variable(group: str, key: str) -> str:
    return f"{PREFIX}{group}_{key}".upper()


def _read_file(path: str, *, is_named: bool) -> Table:
    """The file's table; empty when the default file does not exist.

    Raises:
        ConfigError: a named file is missing, or the file cannot be read or is not valid TOML.
    """
    try:
        text = Path(path).read_text("utf-8")
    except FileNotFoundError as error:
        if is_named:
            raise ConfigError(path, "", "no such file") from error
        return {}
    except OSError as error:
        raise ConfigError(path, "", f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(path, "", f"is not valid UTF-8: {error}") from error
    import tomllib  # start-up time, spent only where there is a file

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Not only TOMLDecodeError: numbers of thousands of digits and thousands of brackets have their own.
        raise ConfigError(path, "", f"is not valid TOML: {error}") from error


def _environment_table(environ: Mapping[str, str]) -> tuple[Table, list[ConfigError]]:
    """The table that the environment's variables make, and problems with their names.

    Values are checked later, as a file's are. Numbers, booleans and lists are written as in TOML; the
    brackets of a list may be left out.
    """
    prefixed = (name for name in sorted(environ) if name.startswith(PREFIX) and name not in _NO_SETTINGS)
    names = [name for name in prefixed if not _SERVICE_VARIABLE.match(name, len(PREFIX))]
    if not names:
        return {}, []
    hints = _hints()
    table: dict[str, dict[str, Any]] = {}
    errors: list[ConfigError] = []
    for name in names:
        if problem := _variable_problem(name, environ[name], hints):
            errors.append(ConfigError("environment", name, problem))
            continue
        group, key, hint = hints[name]
        table.setdefault(group, {})[key] = _variable_value(environ[name], hint)
    return table, errors


def _variable_problem(name: str, text: str, hints: Mapping[str, object]) -> str:
    if name not in hints:
        # Without the common prefix, or else every name is near to every other.
        known = [each.removeprefix(PREFIX) for each in hints]
        guess = nearest_key(name.removeprefix(PREFIX), known)
        return "no setting has this name" + did_you_mean(guess and PREFIX + guess)
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is not valid UTF-8"
    return ""


def _hints() -> dict[str, tuple[str, str, Any]]:
    """Group, key and type by the variable's name."""
    hints: dict[str, tuple[str, str, Any]] = {}
    for group, kind in GROUPS.items():
        for key, hint in get_type_hints(kind).items():
            hints[variable(group, key)] = group, key, hint
    return hints


def _variable_value(text: str, hint: Any) -> Any:  # noqa: ANN401 - types and values of all kinds
    if hint not in (int, float, bool) and get_origin(hint) is not tuple:
        return text
    import tomllib  # start-up time, spent only where such a variable is set

    if get_origin(hint) is tuple and not text.lstrip().startswith("["):
        text = f"[{text}]"
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _flag_table(arguments: argparse.Namespace) -> Table:
    table: dict[str, dict[str, Any]] = {}
    for flag in FLAGS:
        value = getattr(arguments, flag.destination, None)
        if value is not None:
            group, _, key = flag.name.partition(".")
            table.setdefault(group, {})[key] = value
    return table


def _valid_layer(
    source: str, read: Callable[[], Table], name_of: Callable[[Key], str], errors: list[ConfigError]
) -> _Layer:
    """A source without its invalid values, so that the checks that follow see the rest."""
    try:
        table = read()
    except ConfigError as error:
        errors.append(error)
        return _Layer(source, {}, name_of)
    layer = _Layer(source, table, name_of)
    if not table:
        return layer
    from runtimeproxy.config.schema import validate

    problems = validate(table)[1]
    errors += (layer.error(key, reason) for key, reason in problems)
    return _Layer(source, _without(table, (key for key, _ in problems)), name_of)


def _without(table: Table, keys: Iterable[Key]) -> Table:
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


def _merged(layers: Iterable[_Layer]) -> Settings:
    *checkable, flags = layers
    merged: Table = {}
    for layer in checkable:
        merged = _overlaid(merged, layer.table)
    settings = Settings()
    if merged:
        from runtimeproxy.config.schema import validate

        settings = validate(merged)[0]
    # All flags are texts, checked by the parser or later, so they do not need the import of pydantic.
    groups = {
        name: dataclasses.replace(getattr(settings, name), **keys) for name, keys in flags.table.items()
    }
    return dataclasses.replace(settings, **groups)


def _overlaid(below: Table, above: Table) -> Table:
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        is_table = isinstance(value, Mapping) and isinstance(inner, Mapping)
        merged[key] = _overlaid(inner, value) if is_table and inner is not None else value
    return merged


def _origin(layers: list[_Layer], key: Key) -> _Layer:
    """The source that a key's value comes from: the last one that sets it."""
    for layer in reversed(layers):
        inner: Any = layer.table
        for part in key:
            if isinstance(inner, list):
                break  # a list comes from one layer as a whole
            inner = inner.get(part) if isinstance(inner, Mapping) else None
        if inner is not None:
            return layer
    return _Layer("default", {})


def _variable_of(key: Key) -> str:
    return variable(key[0], key[1]) if len(key) >= 2 else ".".join(key)


def _option_of(key: Key) -> str:
    name = ".".join(key)
    return next((flag.option for flag in FLAGS if flag.name == name), name)
