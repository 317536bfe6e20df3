"""The subcommands of `koord-runtime-proxy`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy import __version__
from runtimeproxy.config.sources import config_path, read
from runtimeproxy.config.validation import CombinedConfigError
from runtimeproxy.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from runtimeproxy.config.settings import Settings
    from runtimeproxy.config.sources import Reading
    from runtimeproxy.hooks.loading import LoadResult
    from runtimeproxy.hooks.policy import Policy
    from runtimeproxy.hooks.settings import PolicySettings

PROGRAM: Final = "koord-runtime-proxy"

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
"""A wrong flag, variable or configuration file. Source: argparse's own."""

_DOCKER: Final = (
    "Docker is not supported: run cri-dockerd in front of it, and give its socket as "
    "--remote-runtime-service-endpoint (usually /run/cri-dockerd.sock)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A subcommand.

    Attributes:
        text: description in the list of commands and, as a sentence, in its own help.
        run: runs it; returns the exit code.
        more: the rest of its own help.
        usage: its own arguments, before the flags that all commands have.
        arguments: these arguments, with keyword arguments of `add_argument`.
    """

    name: str
    text: str
    run: Callable[[argparse.Namespace], int]
    more: str = "."
    usage: str = ""
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def load_settings(arguments: argparse.Namespace) -> Settings:
    """Reads flags, environment and file.

    Raises:
        CombinedConfigError: every problem.
    """
    reading = read_settings(arguments)
    if reading.errors:
        raise CombinedConfigError(reading.errors)
    return reading.settings


def read_settings(arguments: argparse.Namespace) -> Reading:
    """Reads flags, environment and file; problems are in the result."""
    reading = read(arguments, os.environ)
    mode = getattr(arguments, "backend_runtime_mode", "Containerd")
    if mode == "Containerd":
        return reading
    reason = _DOCKER if mode == "Docker" else f"{mode!r} is not a mode: only Containerd is"
    wrong_mode = ConfigError("flag", "--backend-runtime-mode", reason)
    return replace(reading, errors=(wrong_mode, *reading.errors))


def serve(arguments: argparse.Namespace) -> int:
    """Serves until a signal ends it; runs without a command."""
    settings = load_settings(arguments)
    from runtimeproxy import logs
    from runtimeproxy.service.daemon import run

    handler = logs.configure(settings.log.level, settings.log.format)
    try:
        return run(settings, partial(load_settings, arguments))
    finally:
        handler.flush()


def _check_config(arguments: argparse.Namespace) -> int:
    from runtimeproxy.config.node_checks import check_on_node

    reading = read_settings(arguments)
    path, is_named = config_path(arguments, os.environ)
    findings = check_on_node(reading, load_policies(reading.settings))
    for warning in findings.warnings:
        print(f"{PROGRAM}: warning: {warning}", file=sys.stderr)
    if findings.problems:
        raise CombinedConfigError(findings.problems)
    source = path if is_named or Path(path).exists() else "no file, defaults"
    print(f"{source}: the configuration is valid")
    return EXIT_OK


def _list_policies(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments)
    result = load_policies(settings)
    running = {policy.name for policy in result.policies}
    running |= {name for name, chosen in settings.policies.items() if not chosen.enabled}
    rows: list[tuple[str, ...]] = [("NAME", "PRIORITY", "MODE", "ON FAILURE", "HOOKS")]
    rows += (
        _policy_row(policy, settings.policies.get(policy.name))
        for policy in result.classes
        if policy.name in running
    )
    rows += ((each.name, "-", "not loaded", "-", "-", each.text) for each in result.problems)
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        *columns, hooks = row[:5]
        cells = (cell.ljust(width) for cell, width in zip(columns, widths, strict=True))
        print("  ".join((*cells, hooks)))
        for line in filter(None, row[5:]):
            print(f"    {line}")
    return EXIT_FAILED if result.problems else EXIT_OK


def load_policies(settings: Settings) -> LoadResult:
    """Loads all policies, as the daemon does at its start."""
    from runtimeproxy.hooks.loading import PolicyLoader, Sources

    hooks = settings.hooks
    sources = Sources(hooks.third_party, hooks.policies_dir, hooks.load_timeout_s)
    return PolicyLoader().load(sources, settings.policies)


def _policy_row(policy: type[Policy], settings: PolicySettings | None) -> tuple[str, ...]:
    from runtimeproxy.hooks.loaded import origin_of, overridden_hooks
    from runtimeproxy.hooks.settings import PolicySettings

    chosen = settings or PolicySettings()
    priority = policy.priority if chosen.priority is None else chosen.priority
    mode = chosen.mode.value if chosen.enabled else "disabled"
    hooks = ", ".join(overridden_hooks(policy))
    summary = str(policy.__doc__ or "").strip().split("\n")[0]
    origin = f"from {origin_of(policy)}"
    return policy.name, str(priority), mode, chosen.failure_policy.value, hooks, summary, origin


def _bypass(arguments: argparse.Namespace) -> int:
    endpoint = load_settings(arguments).proxy.endpoint
    from runtimeproxy.service.signals import BYPASS_OFF, BYPASS_ON, signal_instance

    is_on = arguments.state == "on"
    pid = signal_instance(endpoint, BYPASS_ON if is_on else BYPASS_OFF)
    print(f"process {pid}: bypass is {'on' if is_on else 'off'}")
    return EXIT_OK


def _upgrade(arguments: argparse.Namespace) -> int:
    proxy = load_settings(arguments).proxy
    from runtimeproxy.service.handover.command import upgrade

    old, new = upgrade(proxy.endpoint, proxy.upgrade_start_s)
    print(f"process {new} serves; process {old} ends after its last call")
    return EXIT_OK


def _restore(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments)
    from runtimeproxy.restore.command import is_complete, restore, table
    from runtimeproxy.service.kubelet import kubelet_settings
    from runtimeproxy.service.signals import is_served

    proxy = settings.proxy
    for each in () if is_served(proxy.endpoint) else kubelet_settings(proxy.endpoint):
        print(f"{PROGRAM}: warning: {each.advice(proxy)}", file=sys.stderr)
    lines = restore(settings, dry_run=arguments.dry_run)
    print("\n".join(table(lines)) if lines else "nothing to restore")
    return EXIT_OK if is_complete(lines) else EXIT_FAILED


def _version(_: argparse.Namespace) -> int:
    print(f"{PROGRAM} {__version__}")
    return EXIT_OK


def _demo(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments)
    from runtimeproxy.demo import run_demo

    return run_demo(settings)


COMMANDS: Final = (
    Command(
        name="check-config",
        text="check flags, environment, file, policies and hook servers' registrations",
        more=". Prints every problem, and the exit code is 2 then; warnings leave it 0.",
        run=_check_config,
    ),
    Command(
        name="list-policies",
        text="list all policies with their hooks and settings",
        more=". Also those that cannot be loaded, with the reason; the exit code is 1 then.",
        run=_list_policies,
    ),
    Command(name="version", text="show the version", run=_version),
    Command(
        name="demo",
        text="drive a pod of each QoS class through the proxy and show what changes",
        run=_demo,
    ),
    Command(
        name="bypass",
        text="let all calls pass without policies (on), or end that (off)",
        more=". Signals the instance that serves on the proxy's socket.",
        run=_bypass,
        usage="(on | off) ",
        arguments={
            "state": {
                "choices": ("on", "off"),
                "help": "kept by an upgrade, not by a restart",
            }
        },
    ),
    Command(
        name="upgrade",
        text="replace the serving instance by a new process, without a failed call",
        more=". If the new one does not come up, the old one goes on.",
        run=_upgrade,
    ),
    Command(
        name="restore",
        text="give running containers and pod cgroups the values that the kubelet requested",
        more=", from the checkpoint in the state folder: to remove the proxy from a node, after it has "
        "ended. Values that another program has changed since are left alone.",
        run=_restore,
        usage="[--dry-run] ",
        arguments={"--dry-run": {"action": "store_true", "help": "only show the changes"}},
    ),
)
"""In the order of the help."""
