"""Changes and views as flat fields, the unit of ownership: `resources.cpu_shares`, `annotations[key]`."""

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
from runtimeproxy.hooks.views import ContainerView, PodView, Resources
from runtimeproxy.units import UNLIMITED

View: TypeAlias = PodView | ContainerView
Value: TypeAlias = int | str | bytes | Clear | MountSpec | DeviceSpec | None
"""A field's value; None where a view has none."""

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
_CGROUP_ONLY: Final = frozenset({CGROUP})


class Field(NamedTuple):
    """One thing that a policy can set and own."""

    group: str
    key: str = ""

    def __str__(self) -> str:
        if self.group == RESOURCES:
            return f"{RESOURCES}.{self.key}"
        return f"{self.group}[{self.key}]" if self.key else self.group


Fields: TypeAlias = Mapping[Field, Value]

_RESOURCE_FIELDS: Final = tuple(Field(RESOURCES, name) for name in RESOURCE_NAMES)


def counting_groups(hook: Hook) -> frozenset[str]:
    """Return the groups of fields that count at a hook; the others of an answer are left out."""
    return _GROUPS.get(hook, _CGROUP_ONLY)


def change_type(hook: Hook) -> type[CgroupChange]:
    """Return the type of the merged change at a hook."""
    if hook in (Hook.PRE_RUN_POD_SANDBOX, Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES):
        return PodChange
    if hook in (Hook.PRE_CREATE_CONTAINER, Hook.PRE_UPDATE_CONTAINER_RESOURCES):
        return ContainerChange
    return CgroupChange


def fields_of(change: CgroupChange, groups: frozenset[str]) -> dict[Field, Value]:
    """Return what a change sets, in these groups, as flat fields. It is a copy."""
    fields: dict[Field, Value] = {}
    if isinstance(change, PodChange | ContainerChange):
        if change.resources is not None:
            _add_resources(fields, groups, change.resources)
        _add(fields, groups, ANNOTATIONS, change.annotations)
        if change.cgroup_parent is not None and CGROUP_PARENT in groups:
            fields[Field(CGROUP_PARENT)] = change.cgroup_parent
    if isinstance(change, PodChange):
        _add(fields, groups, LABELS, change.labels)
    if isinstance(change, ContainerChange):
        _add(fields, groups, ENV, change.env)
        _add(fields, groups, MOUNTS, {mount.container_path: mount for mount in change.mounts})
        _add(fields, groups, DEVICES, {device.container_path: device for device in change.devices})
    _add(fields, groups, CGROUP, change.cgroup)
    return fields


def _add(
    fields: dict[Field, Value], groups: frozenset[str], group: str, entries: Mapping[str, Value]
) -> None:
    if group in groups:
        for key, value in entries.items():
            fields[Field(group, key)] = value


def _add_resources(fields: dict[Field, Value], groups: frozenset[str], resources: ResourceChange) -> None:
    if RESOURCES in groups:
        for field in _RESOURCE_FIELDS:
            value = getattr(resources, field.key)
            if value is not None:
                fields[field] = value
    _add(fields, groups, UNIFIED, resources.unified)


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
    return change_type(hook)(**arguments)


def current_value(view: View, field: Field) -> Value:
    """Return what a view shows for a field; None for nothing, and for what views do not show."""
    group, key = field
    if group == RESOURCES:
        value: Value = getattr(_resources(view), key)
        return value
    if group == CGROUP_PARENT:
        return _pod(view).cgroup_parent or None
    entries: Mapping[str, Value] = {}
    if group == UNIFIED:
        entries = _resources(view).unified
    elif group == ANNOTATIONS:
        entries = view.annotations
    elif group == LABELS:
        entries = view.labels
    elif group == ENV and isinstance(view, ContainerView):
        entries = view.env
    return entries.get(key)


def is_same(field: Field, old: Value, new: Value) -> bool:
    """Return whether setting a field from `old` to `new` changes nothing.

    No quota and no limit are the same as -1, no OOM score as 0. What views do not show is never the same.
    """
    if new is CLEAR:
        return old is None
    if old is None:
        return field.group == RESOURCES and new == _SAME_AS_ABSENT.get(field.key, CLEAR)
    if isinstance(old, bytes) and isinstance(new, str):
        return old == new.encode()
    return old == new


def _resources(view: View) -> Resources:
    return view.resources if isinstance(view, PodView) else view.current


def _pod(view: View) -> PodView:
    return view if isinstance(view, PodView) else view.pod
