"""The settings of a command: flags, environment and file."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from runtimeproxy.config.settings import Settings
from runtimeproxy.config.sources import Reading, read
from runtimeproxy.config.validation import CombinedConfigError
from runtimeproxy.errors import ConfigError

if TYPE_CHECKING:
    from runtimeproxy.hooks.loading import LoadResult

_DOCKER: Final = (
    "Docker is not supported: run cri-dockerd in front of it, and give its socket as "
    "--remote-runtime-service-endpoint (usually /run/cri-dockerd.sock)"
)


def load_settings(arguments: Namespace) -> Settings:
    """Reads flags, environment and file.

    Raises:
        CombinedConfigError: every problem.
    """
    reading = read_settings(arguments)
    if reading.errors:
        raise CombinedConfigError(reading.errors)
    return reading.settings


def read_settings(arguments: Namespace) -> Reading:
    """Reads flags, environment and file; problems are in the result."""
    reading = read(arguments, os.environ)
    mode = getattr(arguments, "backend_runtime_mode", "Containerd")
    if mode == "Containerd":
        return reading
    reason = _DOCKER if mode == "Docker" else f"{mode!r} is not a mode: only Containerd is"
    wrong_mode = ConfigError("flag", "--backend-runtime-mode", reason)
    return replace(reading, errors=(wrong_mode, *reading.errors))


def load_policies(settings: Settings) -> LoadResult:
    """Loads all policies, as the daemon does at its start."""
    from runtimeproxy.hooks.loading import PolicyLoader, PolicySources

    hooks = settings.hooks
    sources = PolicySources(hooks.third_party, hooks.policies_dir, hooks.load_timeout_s)
    return PolicyLoader().load(sources, settings.policies)
