"""The settings of a command: flags, environment and file."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from runtimeproxy.commands.arguments import PROGRAM
from runtimeproxy.config.settings import Settings
from runtimeproxy.config.sources import SourceReading, read
from runtimeproxy.errors import ConfigError

if TYPE_CHECKING:
    from runtimeproxy.hooks.loaded import LoadedPolicy

_DOCKER: Final = (
    "Docker is not supported: run cri-dockerd in front of it, and give its socket as "
    "--remote-runtime-service-endpoint (usually /run/cri-dockerd.sock)"
)


def load_settings(arguments: Namespace) -> Settings:
    # Raises CombinedConfigError with every problem.
    return read_settings(arguments).valid_settings()


def read_settings(arguments: Namespace) -> SourceReading:
    """Reads flags, environment and file; problems are in the result."""
    reading = read(arguments, os.environ)
    mode = getattr(arguments, "backend_runtime_mode", "Containerd")
    if mode == "Containerd":
        return reading
    reason = _DOCKER if mode == "Docker" else f"{mode!r} is not a mode: only Containerd is"
    wrong_mode = ConfigError("flag", "--backend-runtime-mode", reason)
    return replace(reading, errors=(wrong_mode, *reading.errors))


def loaded_policies(settings: Settings) -> tuple[LoadedPolicy, ...]:
    """The policies of a daemon with these settings; with a warning for each that cannot be loaded."""
    from runtimeproxy.offline import Offline

    loaded = Offline(settings).policies
    for problem in loaded.problems:
        print(f"{PROGRAM}: warning: policy not loaded: {problem}", file=sys.stderr)
    return loaded.policies
