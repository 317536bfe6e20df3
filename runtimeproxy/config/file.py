"""Reads a configuration file in TOML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runtimeproxy.errors import ConfigError


def read_file(path: str, *, is_named: bool) -> dict[str, Any]:
    """The file's table; empty when nobody named the file and it is not there.

    Raises:
        ConfigError: a named file is missing, or the file cannot be read or is no TOML.
    """
    try:
        text = Path(path).read_text("utf-8")
    except FileNotFoundError as error:
        if is_named:
            raise ConfigError(path, "", "there is no such file") from error
        return {}
    except OSError as error:
        raise ConfigError(path, "", f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(path, "", f"is no UTF-8 text: {error}") from error
    return _parsed(path, text)


def _parsed(path: str, text: str) -> dict[str, Any]:
    import tomllib  # start-up time, spent only where there is a file

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Not only TOMLDecodeError: numbers of thousands of digits and thousands of brackets have their own.
        raise ConfigError(path, "", f"is no TOML: {error}") from error
