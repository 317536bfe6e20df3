"""Commands that check files without a daemon: configuration, strategies, policies."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtimeproxy.commands.arguments import PROGRAM
from runtimeproxy.commands.configuration import load_settings, read_settings
from runtimeproxy.commands.exit_codes import CommandError, ExitCode
from runtimeproxy.commands.output import print_value
from runtimeproxy.config.sources import config_path
from runtimeproxy.config.validation import CombinedConfigError
from runtimeproxy.doctor.configuration import check_on_node
from runtimeproxy.frontends.modes import carried_in
from runtimeproxy.offline import Offline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtimeproxy.errors import ConfigError
    from runtimeproxy.hooks.carried import CarriedFields
    from runtimeproxy.hooks.policy import Policy
    from runtimeproxy.hooks.settings import PolicySettings


def check_config(arguments: Namespace) -> int:
    reading = read_settings(arguments)
    path, is_named = config_path(arguments, os.environ)
    findings = check_on_node(reading, Offline(reading.settings), carried_in(reading.settings.daemon.mode))
    has_file = is_named or Path(path).exists()
    if arguments.output != "text":
        found = {
            "file": path if has_file else None,
            "valid": not findings.problems,
            "problems": list(map(_as_json, findings.problems)),
            "warnings": list(map(_as_json, findings.warnings)),
        }
        print_value(found, arguments.output)
        return ExitCode.USAGE if findings.problems else ExitCode.OK
    for warning in findings.warnings:
        print(f"{PROGRAM}: warning: {warning}", file=sys.stderr)
    if findings.problems:
        raise CombinedConfigError(findings.problems)
    source = path if has_file else "no file, defaults"
    print(f"{source}: the configuration is valid")
    return ExitCode.OK


def _as_json(error: ConfigError) -> dict[str, str]:
    return {"source": error.source, "key": error.key, "reason": error.reason}


def check_slo(arguments: Namespace) -> int:
    settings = load_settings(arguments)
    from runtimeproxy.commands.check_slo import check
    from runtimeproxy.simulate.files import UnusableInputError

    try:
        text, is_good = check(arguments, settings)
    except UnusableInputError as error:
        raise CommandError(str(error), ExitCode.USAGE) from error
    print(text)
    return ExitCode.OK if is_good else ExitCode.FAILED


def list_policies(arguments: Namespace) -> int:
    settings = load_settings(arguments)
    from runtimeproxy.hooks.loading import is_enabled
    from runtimeproxy.hooks.settings import PolicySettings

    result = Offline(settings).policies
    shown = {policy.name for policy in result.policies}
    unset = PolicySettings()
    shown |= {
        policy.name
        for policy in result.classes
        if not is_enabled(policy, settings.policies.get(policy.name, unset))
    }
    policies = [
        _policy(policy, settings.policies.get(policy.name))
        for policy in result.classes
        if policy.name in shown
    ]
    if arguments.output == "name":
        print("\n".join(each["name"] for each in policies))
        return ExitCode.FAILED if result.problems else ExitCode.OK
    if arguments.output != "text":
        problems = [{"name": each.name, "text": each.text} for each in result.problems]
        print_value({"policies": policies, "problems": problems}, arguments.output)
        return ExitCode.FAILED if result.problems else ExitCode.OK
    rows: list[tuple[str, ...]] = [("NAME", "PRIORITY", "MODE", "ON FAILURE", "METHODS")]
    carried = carried_in(settings.daemon.mode)
    rows += (_policy_row(each, carried) for each in policies)
    rows += ((each.name, "-", "not loaded", "-", "-", each.text) for each in result.problems)
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        *columns, methods = row[:5]
        cells = (cell.ljust(width) for cell, width in zip(columns, widths, strict=True))
        print("  ".join((*cells, methods)))
        for line in filter(None, row[5:]):
            print(f"    {line}")
    return ExitCode.FAILED if result.problems else ExitCode.OK


def _policy_row(policy: Mapping[str, Any], carried: CarriedFields) -> tuple[str, ...]:
    columns = (str(policy[key]) for key in ("name", "priority", "mode", "failurePolicy"))
    never = f" (never called in mode {carried.mode})"
    methods = ", ".join(each if carried.asks_by(each) else each + never for each in policy["methods"])
    return *columns, methods, policy["description"], f"from {policy['origin']}"


def _policy(policy: type[Policy], settings: PolicySettings | None) -> dict[str, Any]:
    from runtimeproxy.hooks.loaded import origin_of, overridden_methods
    from runtimeproxy.hooks.loading import is_enabled
    from runtimeproxy.hooks.settings import PolicySettings

    chosen = settings or PolicySettings()
    priority = policy.priority if chosen.priority is None else chosen.priority
    mode = chosen.mode.value if is_enabled(policy, chosen) else "disabled"
    return {
        "name": policy.name,
        "priority": priority,
        "mode": mode,
        "failurePolicy": chosen.failure_policy.value,
        "methods": list(overridden_methods(policy)),
        "description": str(policy.__doc__ or "").strip().split("\n")[0],
        "origin": origin_of(policy),
    }
