"""Checks of what a policy answers: a change that a runtime or kernel would choke on goes no further."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, TypeGuard

from runtimeproxy import units
from runtimeproxy.hooks.changes import (
    CLEAR,
    CgroupChange,
    ContainerChange,
    DeviceSpec,
    MountSpec,
    PodChange,
    ResourceChange,
)
from runtimeproxy.hooks.fields import RESOURCE_NAMES
from runtimeproxy.hooks.policy import Hook

_Check: TypeAlias = Callable[[object], bool]

_FILE_NAME: Final = re.compile(r"[a-z0-9_]+(\.[A-Za-z0-9_]+)+")
_ANSWERS_NOTHING: Final = frozenset(
    {
        Hook.POST_STOP_CONTAINER,
        Hook.POST_STOP_POD_SANDBOX,
        Hook.PRE_REMOVE_CONTAINER,
        Hook.POST_REMOVE_CONTAINER,
        Hook.PRE_REMOVE_POD_SANDBOX,
        Hook.POST_REMOVE_POD_SANDBOX,
    }
)


def answers_nothing(hook: Hook) -> bool:
    """Return whether a hook has no answer: there is nothing left to change."""
    return hook in _ANSWERS_NOTHING


def problem_of(hook: Hook, answer: object) -> str | None:
    """Return why a policy's answer at a hook cannot be used; None when it can.

    The text names the field and what is wrong, never a value of an environment variable.
    """
    if answers_nothing(hook):
        return f"{hook} answers nothing"
    if not isinstance(answer, CgroupChange):
        return f"answered a {type(answer).__name__}, not a change"
    other = ContainerChange if hook.endswith("_pod_sandbox") or "_pod_sandbox_" in hook else PodChange
    if isinstance(answer, other):
        return f"answered a {other.__name__}"
    return _problem(answer)


def _problem(change: CgroupChange) -> str | None:
    reason: object = change.reason
    return (
        _cgroup_problem(change.cgroup)
        or _unless(isinstance(reason, str), "reason is no text")
        or (_request_problem(change) if isinstance(change, PodChange | ContainerChange) else None)
    )


def _request_problem(change: PodChange | ContainerChange) -> str | None:
    parent = change.cgroup_parent
    return (
        _resource_problem(change.resources)
        or _entry_problem("annotations", change.annotations)
        or _unless(parent is None or _is_cgroup_path(parent), "cgroup_parent is empty or no path")
        or (_container_problem(change) if isinstance(change, ContainerChange) else None)
        or (_entry_problem("labels", change.labels) if isinstance(change, PodChange) else None)
    )


def _container_problem(change: ContainerChange) -> str | None:
    return (
        _entry_problem("env", change.env, may_hold_equals=False)
        or _unless(_are_mounts(change.mounts), "mounts is not a tuple of mounts with absolute paths")
        or _unless(
            _are_devices(change.devices),
            "devices is not a tuple of devices with absolute paths and permissions out of rwm",
        )
    )


def _unless(is_right: bool, problem: str) -> str | None:
    return None if is_right else problem


def _resource_problem(resources: object) -> str | None:
    if resources is None:
        return None
    if not isinstance(resources, ResourceChange):
        return f"resources is a {type(resources).__name__}"
    for name in RESOURCE_NAMES:
        value = getattr(resources, name)
        if value is not None and value is not CLEAR and not _RESOURCE_CHECKS[name](value):
            return f"resources.{name}: {_shown(value)} is out of range"
    return _entry_problem("resources.unified", resources.unified) or _file_problem(resources.unified)


def _file_problem(files: Mapping[str, object]) -> str | None:
    strange = next((key for key in files if not _FILE_NAME.fullmatch(key)), None)
    return None if strange is None else f"resources.unified: {_shown(strange)} is no cgroup file"


def _entry_problem(name: str, entries: object, *, may_hold_equals: bool = True) -> str | None:
    if not _is_mapping(entries):
        return f"{name} is a {type(entries).__name__}"
    for key, value in entries.items():
        if not isinstance(key, str) or not key or not _is_text(key) or ("=" in key and not may_hold_equals):
            return f"{name}: {_shown(key)} is no name"
        if value is not CLEAR and not _is_text(value):
            return f"{name}[{key}]: a {type(value).__name__}, or not UTF-8, or holds NUL"
    return None


def _cgroup_problem(entries: object) -> str | None:
    if not _is_mapping(entries):
        return f"cgroup is a {type(entries).__name__}"
    for key, value in entries.items():
        if not isinstance(key, str) or not _FILE_NAME.fullmatch(key):
            return f"cgroup: {_shown(key)} is no cgroup file"
        if not _CGROUP_CHECKS.get(key, _is_file_value)(value):
            return f"cgroup[{key}]: {_shown(value)} is out of range"
    return None


def _is_mapping(entries: object) -> TypeGuard[Mapping[object, object]]:
    # Nearly always it is a dictionary, and asking an abstract class takes several times as long.
    return type(entries) is dict or isinstance(entries, Mapping)


def _are_mounts(mounts: object) -> bool:
    return isinstance(mounts, tuple) and all(
        isinstance(mount, MountSpec)
        and _is_absolute_path(mount.host_path)
        and _is_absolute_path(mount.container_path)
        and type(mount.readonly) is bool
        for mount in mounts
    )


def _are_devices(devices: object) -> bool:
    return isinstance(devices, tuple) and all(
        isinstance(device, DeviceSpec)
        and _is_absolute_path(device.host_path)
        and _is_absolute_path(device.container_path)
        and _are_permissions(device.permissions)
        for device in devices
    )


def _are_permissions(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) == len(set(value) & set("rwm"))


def _is_integer(value: object, low: int, high: int = units.MAX_INT64) -> bool:
    return type(value) is int and low <= value <= high


def _is_text(value: object) -> bool:
    """Return whether protobuf can carry the text and a C string too."""
    return isinstance(value, str) and "\0" not in value and (value.isascii() or _encodes(value))


def _encodes(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_absolute_path(value: object) -> bool:
    return isinstance(value, str) and _is_text(value) and value.startswith("/")


def _is_cgroup_path(value: object) -> bool:
    return (
        isinstance(value, str) and _is_text(value) and value.strip("/") != "" and ".." not in value.split("/")
    )


def _is_unlimited(value: object) -> bool:
    return _is_integer(value, units.UNLIMITED, units.UNLIMITED)


def _is_quota(value: object) -> bool:
    return _is_unlimited(value) or _is_integer(value, units.MIN_CPU_QUOTA_US, units.MAX_CPU_QUOTA_US)


def _is_limit(value: object) -> bool:
    return _is_unlimited(value) or _is_integer(value, 1)


def _is_cpu_list(value: object) -> bool:
    return isinstance(value, str) and units.is_cpu_list(value)


def _is_file_value(value: object) -> bool:
    if isinstance(value, str):
        return _is_text(value) and "\n" not in value
    return _is_integer(value, -units.MAX_INT64)


def _within(low: int, high: int = units.MAX_INT64) -> _Check:
    return lambda value: _is_integer(value, low, high)


_is_shares: Final = _within(units.MIN_CPU_SHARES, units.MAX_CPU_SHARES)
_is_period: Final = _within(units.MIN_CPU_PERIOD_US, units.MAX_CPU_PERIOD_US)

_RESOURCE_CHECKS: Final[Mapping[str, _Check]] = {
    "cpu_period_us": _is_period,
    "cpu_quota_us": _is_quota,
    "cpu_shares": _is_shares,
    "memory_limit_bytes": _is_limit,
    "memory_swap_limit_bytes": _is_limit,
    "oom_score_adj": _within(-1_000, 1_000),
    "cpuset_cpus": _is_cpu_list,
    "cpuset_mems": _is_cpu_list,
}
"""Ranges of the CRI's LinuxContainerResources, as `ResourceChange` states them."""

_CGROUP_CHECKS: Final[Mapping[str, _Check]] = {
    "cpu.shares": _is_shares,
    "cpu.cfs_quota_us": _is_quota,
    "cpu.cfs_period_us": _is_period,
    "cpu.cfs_burst_us": _within(0),
    "cpu.bvt_warp_ns": _within(-1, 2),
    "cpu.idle": _within(0, 1),
    "cpuset.cpus": _is_cpu_list,
    "cpuset.mems": _is_cpu_list,
    "memory.limit_in_bytes": _is_limit,
    "memory.min": _within(0),
    "memory.low": _within(0),
    "memory.high": _within(-1),
}
"""Source: policies spec 5.5; a memory limit of 0 would kill the pod, so it is refused."""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 64 else text[:64] + "..."
