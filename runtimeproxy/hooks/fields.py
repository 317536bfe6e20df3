"""Flat fields of changes and views, the units of ownership: `resources.cpu_shares`, `annotations[key]`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from runtimeproxy.hooks.changes import (
    CLEAR,
    CgroupChange,
    Clear,
    ContainerChange,
    DeviceSpec,
    MountSpec,
    PodChange,
    ResourceChange,
)
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.views import ContainerView, PodView
from runtimeproxy.units import UNLIMITED

View: TypeAlias = PodView | ContainerView
Value: TypeAlias = int | str | bytes | Clear | MountSpec | DeviceSpec | None
"""A field's value; None if a view has none."""

RESOURCES: Final = "resources"
UNIFIED: Final = "resources.unified"
LABELS: Final = "labels"
ANNOTATIONS: Final = "annotations"
ENV: Final = "env"
MOUNTS: Final = "mounts"
DEVICES: Final = "devices"
CGROUP: Final = "cgroup"
CGROUP_PARENT: Final = "cgroup_parent"

RESOURCE_NAMES: Final = tuple(
    field.name for field in dataclasses.fields(ResourceChange) if field.name != "unified"
)
RESOURCE_PARAMETERS: Final[Mapping[str, str]] = {
    "cpu_period_us": "cpu.cfs_period_us",
    "cpu_quota_us": "cpu.cfs_quota_us",
    "cpu_shares": "cpu.shares",
    "memory_limit_bytes": "memory.limit_in_bytes",
    "cpuset_cpus": "cpuset.cpus",
    "cpuset_mems": "cpuset.mems",
}
"""The cgroup parameters behind the fields of `ResourceChange`, by version 1 name."""

_SAME_AS_ABSENT: Final[Mapping[str, Value]] = {
    "cpu_quota_us": UNLIMITED,
    "memory_limit_bytes": UNLIMITED,
    "memory_swap_limit_bytes": UNLIMITED,
    "oom_score_adj": 0,
}
_POD_GROUPS: Final = frozenset({RESOURCES, UNIFIED, LABELS, ANNOTATIONS, CGROUP_PARENT, CGROUP})
_CREATE_GROUPS: Final = frozenset(
    {RESOURCES, UNIFIED, ANNOTATIONS, ENV, MOUNTS, DEVICES, CGROUP_PARENT, CGROUP}
)
_GROUPS: Final[Mapping[Hook, frozenset[str]]] = {
    Hook.PRE_RUN_POD_SANDBOX: _POD_GROUPS,
    Hook.PRE_CREATE_CONTAINER: _CREATE_GROUPS,
    Hook.PRE_UPDATE_CONTAINER_RESOURCES: frozenset({RESOURCES, UNIFIED, ANNOTATIONS, CGROUP}),
    Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES: frozenset({RESOURCES, UNIFIED, CGROUP}),
}
"""The groups of fields that count at a hook; at all others only cgroup values do."""
_CGROUP_ONLY: Final = frozenset({CGROUP})
_CHANGE_TYPES: Final[Mapping[Hook, type[CgroupChange]]] = {
    Hook.PRE_RUN_POD_SANDBOX: PodChange,
    Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES: PodChange,
    Hook.PRE_CREATE_CONTAINER: ContainerChange,
    Hook.PRE_UPDATE_CONTAINER_RESOURCES: ContainerChange,
}
"""The type of the merged change at a hook; at all others it is a plain CgroupChange."""


class Field(NamedTuple):
    """A unit that a policy can set and own."""

    group: str
    key: str = ""

    def __str__(self) -> str:
        if self.group == RESOURCES:
            return f"{RESOURCES}.{self.key}"
        return f"{self.group}[{self.key}]" if self.key else self.group


Fields: TypeAlias = Mapping[Field, Value]


def fields_of(change: CgroupChange, hook: Hook) -> dict[Field, Value]:
    """Return a copy of a change as flat fields, without those that do not count at the hook."""
    counting = _GROUPS.get(hook, _CGROUP_ONLY)
    fields: dict[Field, Value] = {}
    for group, entries in _entries_by_group(change):
        if group in counting:
            for key, value in entries.items():
                fields[Field(group, key)] = value
    return fields


def _entries_by_group(change: CgroupChange) -> list[tuple[str, Mapping[str, Value]]]:
    groups: list[tuple[str, Mapping[str, Value]]] = []
    if isinstance(change, PodChange | ContainerChange):
        resources = change.resources
        if resources is not None:
            given: dict[str, Value] = {}
            for name in RESOURCE_NAMES:
                value = getattr(resources, name)
                if value is not None:
                    given[name] = value
            groups.append((RESOURCES, given))
            groups.append((UNIFIED, resources.unified))
        groups.append((ANNOTATIONS, change.annotations))
        if change.cgroup_parent is not None:
            groups.append((CGROUP_PARENT, {"": change.cgroup_parent}))
    if isinstance(change, PodChange):
        groups.append((LABELS, change.labels))
    if isinstance(change, ContainerChange):
        groups.append((ENV, change.env))
        groups.append((MOUNTS, {mount.container_path: mount for mount in change.mounts}))
        groups.append((DEVICES, {device.container_path: device for device in change.devices}))
    groups.append((CGROUP, change.cgroup))
    return groups


def change_from(hook: Hook, fields: Fields, reason: str) -> CgroupChange:
    """Return the change that sets these fields; the reverse of `fields_of`."""
    groups: dict[str, dict[str, Any]] = {}
    for field, value in fields.items():
        groups.setdefault(field.group, {})[field.key] = value
    arguments: dict[str, Any] = {"reason": reason}
    for group, entries in groups.items():
        if group in (MOUNTS, DEVICES):
            arguments[group] = tuple(entries.values())
        elif group == CGROUP_PARENT:
            arguments[group] = entries[""]
        elif group not in (RESOURCES, UNIFIED):
            arguments[group] = entries
    if RESOURCES in groups or UNIFIED in groups:
        arguments[RESOURCES] = ResourceChange(**groups.get(RESOURCES, {}), unified=groups.get(UNIFIED, {}))
    return _CHANGE_TYPES.get(hook, CgroupChange)(**arguments)


def current_value(view: View, field: Field) -> Value:
    """Return a view's value of a field; None if there is none, or if views do not have the field."""
    group, key = field
    pod = view if isinstance(view, PodView) else view.pod
    resources = view.resources if isinstance(view, PodView) else view.current
    if group == RESOURCES:
        value: Value = getattr(resources, key)
        return value
    if group == CGROUP_PARENT:
        return pod.cgroup_parent or None
    entries: Mapping[str, Value] = {}
    if group == UNIFIED:
        entries = resources.unified
    elif group == ANNOTATIONS:
        entries = view.annotations
    elif group == LABELS:
        entries = view.labels
    elif group == ENV and isinstance(view, ContainerView):
        entries = view.env
    return entries.get(key)


def is_same(field: Field, old: Value, new: Value) -> bool:
    """Return whether setting a field from `old` to `new` changes nothing.

    No quota and no limit are the same as -1, no OOM score as 0. Fields that views do not have always differ.
    """
    if new is CLEAR:
        return old is None
    if old is None:
        return field.group == RESOURCES and new == _SAME_AS_ABSENT.get(field.key, CLEAR)
    if isinstance(old, bytes) and isinstance(new, str):
        return old == new.encode()
    return old == new
