"""Checks of settings against the node: folders, the node's inputs, registrations, time limits."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtimeproxy.config.settings import Settings
from runtimeproxy.config.validation import CombinedConfigError
from runtimeproxy.errors import ConfigError
from runtimeproxy.kubelet_endpoints import calls_problem

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.config.sources import SourceReading
    from runtimeproxy.hooks.carried import CarriedFields
    from runtimeproxy.hooks.loading import LoadProblem, LoadResult
    from runtimeproxy.offline import Offline

_PERMISSION_DENIED: Final = os.strerror(errno.EACCES)
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(slots=True)
class Findings:
    """A problem: a setting has no effect. A warning: it has less effect than it seems, or may have none."""

    problems: list[ConfigError] = field(default_factory=list)
    warnings: list[ConfigError] = field(default_factory=list)

    def take_denied(self) -> list[ConfigError]:
        """Takes out what is wrong by this user's rights, which are not the daemon's."""
        denied = [each for each in (*self.problems, *self.warnings) if _is_of_user(str(each))]
        self.problems = [each for each in self.problems if each not in denied]
        self.warnings = [each for each in self.warnings if each not in denied]
        return denied


def _is_of_user(text: str) -> bool:
    return _PERMISSION_DENIED in text or f"{_this_user()} cannot" in text


def _this_user() -> str:
    return f"user {os.geteuid()}"


def check_on_node(reading: SourceReading, offline: Offline, carried: CarriedFields) -> Findings:
    """Returns every problem and warning, beginning with those of the reading.

    `carried`: what messages carry in the mode of the settings.
    """
    findings, policies = Findings(list(reading.errors)), offline.policies
    findings.problems += (_policy_problem(reading, each) for each in policies.problems)
    _check_folders(reading, findings)
    _check_mode(reading, policies, carried, findings)
    _check_registrations(reading, offline, findings)
    # The daemon keeps the last good ones.
    findings.warnings += (ConfigError("node", "", problem) for problem in offline.inputs.problems)
    _check_kubernetes(reading, findings)
    findings.warnings += _late(reading, policies)
    # The daemon does without them.
    findings.warnings += _plugin_options(reading)
    return findings


def _plugin_options(reading: SourceReading) -> Iterator[ConfigError]:
    """Options that koord-qos-manager's own plugins cannot use; plugins of others are not imported."""
    if not any(each.options for each in reading.settings.plugins.values()):
        return
    from runtimeproxy.qosmanager.manager import built_in_plugins, configured

    try:
        configured(reading, built_in_plugins())
    except CombinedConfigError as error:
        for each in error.errors:
            if each not in reading.errors and each.key.startswith("plugins."):
                reason = f"koord-qos-manager does not start with it: {each.reason}"
                yield ConfigError(each.source, each.key, reason)


def _policy_problem(reading: SourceReading, problem: LoadProblem) -> ConfigError:
    """Names the source of the policy's settings, if it has any; the text names its file or module."""
    if problem.name in reading.settings.policies:
        return reading.error(("policies", problem.name), str(problem))
    return ConfigError("policies", "", str(problem))


def _check_mode(
    reading: SourceReading, policies: LoadResult, carried: CarriedFields, findings: Findings
) -> None:
    """Finds what ends the daemon's start in this mode, and what the mode leaves undone."""
    from runtimeproxy.doctor.modes import left_undone_of

    settings, key = reading.settings, ("daemon", "mode")
    mode = settings.daemon.mode
    if mode == "proxy":
        return
    if reason := calls_problem(settings.proxy, {settings.proxy.endpoint}):
        findings.problems.append(reading.error(key, reason))
    if undone := left_undone_of(policies.policies, carried):
        what = ", ".join(f"{name} ({', '.join(fields)})" for name, fields in undone.items())
        findings.warnings.append(reading.error(key, f"mode {mode} leaves undone: {what}"))
    has_nri = os.path.exists(settings.nri.socket)  # noqa: PTH110 - nothing is there for whoever may not look
    if mode == "nri" and not has_nri:
        reason = f"{settings.nri.socket} is not there: the runtime does not ask plugins"
        findings.warnings.append(reading.error(("nri", "socket"), reason))
    elif mode == "standalone" and has_nri:
        reason = f"{settings.nri.socket} is there: mode nri would have values from the start of a program on"
        findings.warnings.append(reading.error(key, reason))


def _check_folders(reading: SourceReading, findings: Findings) -> None:
    settings, defaults = reading.settings, Settings()
    endpoint = Path(settings.proxy.endpoint)
    if reason := _folder_problem(endpoint.parent, os.X_OK) or _socket_problem(endpoint):
        findings.problems.append(reading.error(("proxy", "endpoint"), reason))
    if settings.cgroups.enabled and not Path(settings.cgroups.root).is_dir():
        reason = f"{settings.cgroups.root} is not a folder: no cgroup value can be written"
        findings.warnings.append(reading.error(("cgroups", "root"), reason))
    for key, access, what, is_trusted in _FOLDERS:
        group, name = key
        path = getattr(getattr(settings, group), name)
        if not path:
            continue
        if access is not None and (reason := _folder_problem(Path(path), access)):
            findings.problems.append(reading.error(key, reason))
        if what and path != getattr(getattr(defaults, group), name) and not os.path.lexists(path):
            reason = f"{path} does not exist: {what} is loaded from it"
            findings.warnings.append(reading.error(key, reason))
        if is_trusted and (reason := _others_write(Path(path))):
            findings.warnings.append(reading.error(key, reason))


_FOLDERS: Final = (
    (("state", "dir"), os.R_OK | os.W_OK | os.X_OK, "", True),
    (("hooks", "server_config_dir"), os.R_OK | os.X_OK, "no hook server", True),
    # Its files are checked when they are loaded.
    (("hooks", "policies_dir"), None, "no policy", False),
    (("node", "sysfs_root"), 0, "", False),
    (("node", "procfs_root"), 0, "", False),
    (("node", "objects_dir"), 0, "no object", True),
    (("node", "kubelet_dir"), 0, "nothing", False),
    (("node", "cdi_dir"), 0, "no claim", True),
)
"""Keys, the access that the daemon needs, what it loads, and whether who may write there may change pods."""


def _folder_problem(folder: Path, access: int) -> str:
    """Why a folder cannot be used; empty if it can, or can be made when it is needed."""
    there = folder
    try:
        while not there.exists() and there != there.parent:
            there = there.parent
        if not there.is_dir():
            return f"{there} is not a folder"
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}"
    if there == folder and not os.access(folder, access):
        missing = [name for name, bit in (("read", os.R_OK), ("write", os.W_OK)) if access & bit]
        return f"{_this_user()} cannot {' and '.join(missing) or 'enter'} {folder}"
    return ""


def _socket_problem(path: Path) -> str:
    try:
        is_other = path.exists() and not path.is_socket()
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return f"{path} exists and is not a socket" if is_other else ""


def _others_write(folder: Path) -> str:
    """Why a folder is not safe; empty if only the proxy's user or root may write to it."""
    try:
        status = folder.stat()
    except OSError:
        return ""
    if status.st_uid not in (0, os.geteuid()):
        return f"{folder} belongs to user {status.st_uid}, who can thus change pods of this node"
    if status.st_mode & _OTHERS_WRITE:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        return f"{folder} has mode {mode}: everyone who can write to it can change pods of this node"
    return ""


def _check_kubernetes(reading: SourceReading, findings: Findings) -> None:
    """Reads the kubeconfig; a problem is a warning, as the daemon serves without the API server."""
    kubernetes = reading.settings.kubernetes
    if not kubernetes.enabled or not kubernetes.kubeconfig:
        return
    from runtimeproxy.kubernetes.access import AccessError, load_access

    try:
        load_access(Path(kubernetes.kubeconfig)).token()
    except AccessError as error:
        findings.warnings.append(reading.error(("kubernetes", "kubeconfig"), str(error)))


def _check_registrations(reading: SourceReading, offline: Offline, findings: Findings) -> None:
    hooks = reading.settings.hooks
    for name, parsed in offline.registrations.items():
        source = str(Path(hooks.server_config_dir, name))
        # A file that is used nevertheless has only unknown keys.
        into = findings.problems if parsed.registration is None else findings.warnings
        into += (ConfigError(source, "", problem) for problem in parsed.problems)
        if parsed.registration is not None and parsed.registration.timeout_s > hooks.budget_s:
            reason = _more_than_budget(parsed.registration.timeout_s, hooks.budget_s)
            findings.warnings.append(ConfigError(source, "timeout-seconds", reason))


def _late(reading: SourceReading, policies: LoadResult) -> Iterator[ConfigError]:
    """Time limits that are never reached, because another one comes first."""
    settings = reading.settings
    budget_s = settings.hooks.budget_s
    if settings.hooks.server_timeout_s > budget_s:
        reason = _more_than_budget(settings.hooks.server_timeout_s, budget_s)
        yield reading.error(("hooks", "server_timeout_s"), reason)
    for policy in policies.policies:
        if policy.timeout_s > budget_s:
            reason = _more_than_budget(policy.timeout_s, budget_s)
            yield reading.error(("policies", policy.name, "timeout_s"), reason)
    if settings.hooks.load_timeout_s > settings.proxy.upgrade_start_s:
        reason = (
            f"{settings.hooks.load_timeout_s:g} s is more than proxy.upgrade_start_s has for all policies"
        )
        yield reading.error(("hooks", "load_timeout_s"), reason)


def _more_than_budget(timeout_s: float, budget_s: float) -> str:
    return f"{timeout_s:g} s is more than hooks.budget_s ({budget_s:g} s), after which the call goes on"
