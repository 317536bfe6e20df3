"""Reads settings in tests."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.config.settings import Settings
from runtimeproxy.config.sources import read
from runtimeproxy.config.validation import CombinedConfigError

PREFIX = "KOORD_RUNTIMEPROXY_"


def load(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    return read(arguments, environ).valid_settings()


def loaded(text: str = "", tmp_path: Path | None = None, /, **more: Any) -> Settings:
    """Settings of a file with this text; `environ` and flags by destination in `more`."""
    environ = more.pop("environ", {})
    arguments = argparse.Namespace(**more)
    if tmp_path is not None:
        file = tmp_path / "config.toml"
        file.write_text(text)
        arguments.config = str(file)
    return load(arguments, environ)


def problems(text: str, tmp_path: Path, **more: Any) -> list[tuple[str, str]]:
    with pytest.raises(CombinedConfigError) as raised:
        loaded(text, tmp_path, **more)
    return [(error.key, error.reason) for error in raised.value.errors]
