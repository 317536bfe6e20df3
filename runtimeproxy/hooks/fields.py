"""Fields of changes and views, and merging the changes of several policies. All functions are pure.

A field is the unit of ownership, such as `resources.cpu_shares` or `annotations[key]`. Changes are merged in
the policies' order: each policy sees what the earlier ones changed, and every changed field has one owner. A
field that two policies set to different values is a conflict: it is reported, and the later policy's value
counts unless the rule says otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from runtimeproxy import qos
from runtimeproxy.hooks.changes import (
    CLEAR,
    Add,
    AtMost,
    CgroupChange,
    Clear,
    ContainerChange,
    DeviceSpec,
    MountSpec,
    PodChange,
    ResourceChange,
    Scale,
)
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.hooks.views import ContainerView, PodView, Resources
from runtimeproxy.units import UNLIMITED

View: TypeAlias = PodView | ContainerView
Value: TypeAlias = int | str | bytes | Clear | Scale | Add | AtMost | MountSpec | DeviceSpec | None
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


def plain_cgroup_values(change: CgroupChange) -> Mapping[str, int | str]:
    """Return the cgroup values of a merged change, which are those to be written."""
    return {name: value for name, value in change.cgroup.items() if isinstance(value, int | str)}


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


# --- merging ---------------------------------------------------------------------------------------------

_NO_CLAIMS: Final[Mapping[Field, Claim]] = MappingProxyType({})


class Claim(NamedTuple):
    """The owner of a field, and its value."""

    policy: str
    value: Value
    original: Value
    """What the field held before any policy."""
    is_remote: bool = False
    """Whether the owner is a hook server."""


class FieldUpdate(NamedTuple):
    """What merging did with one field of a change."""

    field: Field
    old: Value
    """What the policy saw there."""
    new: Value
    other: str = ""
    """The earlier owner of the field, if this is a conflict."""


class Merged(NamedTuple):
    """The changes of the policies so far."""

    start: View
    """Before any policy."""
    claims: Mapping[Field, Claim] = _NO_CLAIMS
    reasons: tuple[str, ...] = ()

    @property
    def view(self) -> View:
        """With these changes; made anew each time, since most calls end without using it."""
        if not self.claims:
            return self.start
        return apply_fields(self.start, {key: claim.value for key, claim in self.claims.items()})

    @property
    def pod(self) -> PodView:
        """The pod that selectors look at; no change of a container touches that."""
        view = self.start if isinstance(self.start, ContainerView) else self.view
        return view.pod if isinstance(view, ContainerView) else view


def merge(
    merged: Merged,
    policy: str,
    change: Fields,
    *,
    reason: str = "",
    rule: ConflictRule = ConflictRule.LATER,
    is_remote: bool = False,
) -> tuple[Merged, tuple[FieldUpdate, ...]]:
    """Merge one policy's change into those of the earlier policies.

    Returns:
        The merged changes and the updates, for the audit. A value that is already there is not an update, but
        the policy owns the field.
    """
    accepted: dict[Field, Claim] = {}
    updates: list[FieldUpdate] = []
    for key, value in change.items():
        claim = merged.claims.get(key)
        if claim is None:
            old = current_value(merged.start, key)
            accepted[key] = Claim(policy, value, old, is_remote)
            if not is_same(key, old, value):
                updates.append(FieldUpdate(key, old, value))
        elif claim.value != value:
            updates.append(FieldUpdate(key, claim.value, value, claim.policy))
            if rule is ConflictRule.LATER:
                accepted[key] = Claim(policy, value, claim.original, is_remote)
    if not accepted:
        return merged, tuple(updates)
    reasons = (*merged.reasons, f"{policy}: {reason}") if reason else merged.reasons
    return Merged(merged.start, MappingProxyType({**merged.claims, **accepted}), reasons), tuple(updates)


def apply_fields(view: View, change: Fields) -> View:
    """Return the view with these fields set; cgroup values, mounts and devices are not part of views."""
    groups: dict[str, dict[str, Value]] = {}
    for (group, key), value in change.items():
        groups.setdefault(group, {})[key] = value
    return _changed_pod(view, groups) if isinstance(view, PodView) else _changed_container(view, groups)


def _changed_pod(pod: PodView, groups: Mapping[str, Mapping[str, Value]]) -> PodView:
    changed: dict[str, Any] = {}
    if RESOURCES in groups or UNIFIED in groups:
        changed["resources"] = _changed_resources(pod.resources, groups)
    if ANNOTATIONS in groups:
        changed["annotations"] = _overlaid(pod.annotations, groups[ANNOTATIONS])
    if LABELS in groups:
        labels = _overlaid(pod.labels, groups[LABELS])
        changed |= {"labels": labels, "qos": qos.qos_class(labels), "priority": qos.priority_class(labels)}
    if CGROUP_PARENT in groups:
        parent = str(groups[CGROUP_PARENT][""])
        changed |= {"cgroup_parent": parent, "kube_qos": qos.kube_qos_class(parent)}
    return replace(pod, **changed) if changed else pod


def _changed_container(container: ContainerView, groups: Mapping[str, Mapping[str, Value]]) -> ContainerView:
    changed: dict[str, Any] = {}
    if RESOURCES in groups or UNIFIED in groups:
        changed["current"] = _changed_resources(container.current, groups)
    if ANNOTATIONS in groups:
        changed["annotations"] = _overlaid(container.annotations, groups[ANNOTATIONS])
    if ENV in groups:
        env = {key: str(value).encode() for key, value in groups[ENV].items() if value is not CLEAR}
        kept = {key: value for key, value in container.env.items() if key not in groups[ENV]}
        changed["env"] = MappingProxyType(kept | env)
    if CGROUP_PARENT in groups:
        changed["pod"] = _changed_pod(container.pod, {CGROUP_PARENT: groups[CGROUP_PARENT]})
    return replace(container, **changed) if changed else container


def _changed_resources(resources: Resources, groups: Mapping[str, Mapping[str, Value]]) -> Resources:
    changed: dict[str, Any] = {
        key: None if value is CLEAR else value for key, value in groups.get(RESOURCES, {}).items()
    }
    if UNIFIED in groups:
        changed["unified"] = _overlaid(resources.unified, groups[UNIFIED])
    return replace(resources, **changed)


def _overlaid(entries: Mapping[str, str], changes: Mapping[str, Value]) -> Mapping[str, str]:
    kept = {key: value for key, value in entries.items() if changes.get(key) is not CLEAR}
    kept |= {key: str(value) for key, value in changes.items() if value is not CLEAR}
    return MappingProxyType(kept)
