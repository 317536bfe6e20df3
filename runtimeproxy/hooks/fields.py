"""Fields of changes and views, and merging the changes of several policies. All functions are pure.

A field is the unit of ownership, such as `resources.cpu_shares` or `annotations[key]`. Changes are merged in
the order of (priority, name). What policies give for a value of a cgroup becomes claims, which `algebra`
resolves where they do more than set it. A field that two policies set to different values is a conflict: it
is reported, and the later policy's value counts unless the rule says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from runtimeproxy import qos, units
from runtimeproxy.fields.declaration import Kind
from runtimeproxy.fields.tables import RESOURCE_FIELDS, RESOURCE_PARAMETERS, clamped
from runtimeproxy.hooks.algebra import Claim, FieldValue, Resolved, Role, claims_of, resolve
from runtimeproxy.hooks.changes import (
    CLEAR,
    Add,
    AtMost,
    CgroupChange,
    Change,
    Clear,
    ContainerChange,
    NodeChange,
    PodChange,
    ResourceChange,
    Scale,
    TextEntries,
)
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind, labels_of
from runtimeproxy.hooks.policy import METHOD_HOOKS, Hook
from runtimeproxy.hooks.reasons import NO_REASONS, Reason
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.hooks.views import ClassView, ContainerView, PodView, Resources
from runtimeproxy.katalyst.levels import class_of
from runtimeproxy.node.snapshot import Node

View: TypeAlias = PodView | ContainerView | ClassView | Node
"""The subject of a policy's method; the node itself for `Policy.node`."""
Value: TypeAlias = FieldValue

RESOURCES: Final = "resources"
UNIFIED: Final = "resources.unified"
LABELS: Final = "labels"
ANNOTATIONS: Final = "annotations"
ENV: Final = "env"
MOUNTS: Final = "mounts"
DEVICES: Final = "devices"
CDI_DEVICES: Final = "cdi_devices"
CGROUP: Final = "cgroup"
CGROUP_PARENT: Final = "cgroup_parent"
SYSCTL: Final = "sysctl"
SYSCTL_NAME: Final = re.compile(r"[a-z0-9_-]+(\.[A-Za-z0-9_-]+)+")
"""Its keys: a name without slashes leads to no other folder."""
KERNEL_SETTINGS: Final = "kernel_settings"
"""Its keys are the names in `fields/kernel_settings.py`."""
NODE_CGROUP: Final = "cgroups"
"""Its keys are paths of files: the cgroup's path, a slash and the parameter."""

_CLAIMED: Final = frozenset({RESOURCES, UNIFIED, CGROUP, SYSCTL, KERNEL_SETTINGS, NODE_CGROUP})
"""The groups whose values are claims, which hold as long as the pod or container runs."""
_IDENTITY: Final = frozenset({LABELS, ANNOTATIONS, CGROUP_PARENT})
"""The changes of earlier policies that the next ones see when a sandbox is created."""
_OF_PODS: Final = frozenset({RESOURCES, UNIFIED, LABELS, ANNOTATIONS, CGROUP_PARENT, CGROUP})
_OF_CONTAINERS: Final = frozenset(
    {RESOURCES, UNIFIED, ANNOTATIONS, ENV, MOUNTS, DEVICES, CDI_DEVICES, CGROUP_PARENT, CGROUP}
)
GROUPS: Final[Mapping[Hook, frozenset[str]]] = {
    **dict.fromkeys(Hook, frozenset({CGROUP})),
    **dict.fromkeys(METHOD_HOOKS["pod"], _OF_PODS),
    **dict.fromkeys(METHOD_HOOKS["container"], _OF_CONTAINERS),
    Hook.EVALUATE_NODE: frozenset({SYSCTL, KERNEL_SETTINGS, NODE_CGROUP}),
}
"""The groups of fields that a change may have at a hook; which of them a message carries, the front end says.

What only a creation can give is not applied to what runs, and reported.
"""
_CHANGE_TYPES: Final[Mapping[Hook, type[Change]]] = {
    Hook.PRE_RUN_POD_SANDBOX: PodChange,
    Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES: PodChange,
    Hook.EVALUATE_POD: PodChange,
    Hook.PRE_CREATE_CONTAINER: ContainerChange,
    Hook.PRE_UPDATE_CONTAINER_RESOURCES: ContainerChange,
    Hook.EVALUATE_CONTAINER: ContainerChange,
    Hook.EVALUATE_NODE: NodeChange,
}
"""The type of the merged change at a hook; at all others it is a plain CgroupChange."""
_ROLES: Final = (Scale, Add, AtMost)


class Field(NamedTuple):
    """A unit that a policy can set and own."""

    group: str
    key: str = ""

    def __str__(self) -> str:
        if self.group == RESOURCES:
            return f"{RESOURCES}.{self.key}"
        return f"{self.group}[{self.key}]" if self.key else self.group


Fields: TypeAlias = Mapping[Field, Value]


_RESOURCE_FIELDS: Final = tuple((name, Field(RESOURCES, name)) for name in RESOURCE_FIELDS)


def fields_of(attributes: Mapping[str, Any], counting: Collection[str]) -> dict[Field, Value]:
    """Return a change's attributes, by name, as flat fields, without those of other groups."""
    fields: dict[Field, Value] = {}
    for group, given in attributes.items():
        if group not in counting:
            continue
        if group == RESOURCES:
            for name, field in _RESOURCE_FIELDS:
                value = getattr(given, name)
                if value is not None:
                    fields[field] = value
            for name, value in given.unified.items():
                fields[Field(UNIFIED, name)] = value
        else:
            for key, value in _entries_of(group, given).items():
                fields[Field(group, key)] = value
    return fields


def _entries_of(group: str, given: Any) -> Mapping[str, Value]:  # noqa: ANN401 - depends on the group
    if group in (MOUNTS, DEVICES):
        return {each.container_path: each for each in given}
    if group == CDI_DEVICES:
        return {name: name for name in given}
    if group == NODE_CGROUP:
        files = ((path, *each) for path, values in given.items() for each in values.items())
        return {f"{path}/{name}": value for path, name, value in files}
    entries: Mapping[str, Value] = {"": given} if group == CGROUP_PARENT else given
    return entries


def change_from(hook: Hook, fields: Fields) -> Change:
    """Return the change that sets these fields, without reasons; the reverse of `fields_of`."""
    groups: dict[str, dict[str, Any]] = {}
    for field, value in fields.items():
        groups.setdefault(field.group, {})[field.key] = value
    arguments: dict[str, Any] = {}
    for group, entries in groups.items():
        if group in (MOUNTS, DEVICES, CDI_DEVICES):
            arguments[group] = tuple(entries.values())
        elif group == CGROUP_PARENT:
            arguments[group] = entries[""]
        elif group == NODE_CGROUP:
            cgroups = arguments[group] = {}
            for place, value in entries.items():
                path, _, name = place.rpartition("/")
                cgroups.setdefault(path, {})[name] = value
        elif group not in (RESOURCES, UNIFIED):
            arguments[group] = entries
    if RESOURCES in groups or UNIFIED in groups:
        arguments[RESOURCES] = ResourceChange(**groups.get(RESOURCES, {}), unified=groups.get(UNIFIED, {}))
    return _CHANGE_TYPES.get(hook, CgroupChange)(**arguments)


def plain_cgroup_values(change: Change) -> Mapping[str, int | str]:
    """Return the cgroup values of a merged change, which are those to be written."""
    if not isinstance(change, CgroupChange):
        return {}
    return {name: value for name, value in change.cgroup.items() if isinstance(value, int | str)}


def current_value(view: View, field: Field) -> Value:
    """Return a view's value of a field; None if there is none, or if views do not have the field."""
    group, key = field
    if isinstance(view, ContainerView):
        container, pod, resources = view, view.pod, view.current
    elif isinstance(view, PodView):
        container, pod, resources = None, view, view.resources
    else:
        return None
    if group == RESOURCES:
        value: Value = getattr(resources, key)
        return value
    if group == CGROUP_PARENT:
        return pod.cgroup_parent or None
    entries: Mapping[str, Value] = {}
    if group == UNIFIED:
        entries = resources.unified
    elif group == ANNOTATIONS:
        entries = pod.annotations if container is None else container.annotations
    elif group == LABELS:
        entries = pod.labels if container is None else container.labels
    elif group == ENV and container is not None:
        entries = container.env
    return entries.get(key)


def pod_of(view: View) -> PodView | None:
    """Return the pod of a view; None for a QoS class or the node."""
    if isinstance(view, ContainerView):
        return view.pod
    return view if isinstance(view, PodView) else None


def is_same(field: Field, old: Value, new: Value) -> bool:
    """Return whether setting a field from `old` to `new` changes nothing.

    No quota and no limit are the same as -1, no OOM score as 0. Fields that views do not have always differ.
    """
    if new is CLEAR:
        return old is None
    if old is None:
        neutral = RESOURCE_FIELDS[field.key].neutral if field.group == RESOURCES else None
        return neutral in (0, units.UNLIMITED) and new == neutral
    if isinstance(old, bytes) and isinstance(new, str):
        return old == new.encode()
    return old == new


# --- merging ---------------------------------------------------------------------------------------------


_QUOTA: Final = Field(RESOURCES, "cpu_quota_us")


NO_FIELDS: Final[Mapping[Field, Resolved]] = MappingProxyType({})
"""The empty mapping that all calls share."""


class FieldUpdate(NamedTuple):
    """The result of merging one field of a change."""

    field: Field
    old: Value
    """The value before."""
    new: Value
    other: str = ""
    """The earlier owner of the field, if this is a conflict."""


class Merged(NamedTuple):
    """The changes of the policies so far."""

    start: View
    """Before any policy."""
    fields: Mapping[Field, Resolved] = NO_FIELDS
    reasons: Mapping[str, str] = MappingProxyType({})
    """Of the whole change, by policy."""
    changed_pod: PodView | None = None
    """A pod to be created with labels, annotations and cgroup parent of these changes; None without any."""

    @property
    def view(self) -> View:
        # Made anew each time: hook servers see these changes.
        changed = {key: each.value for key, each in self.fields.items() if each.owners}
        return apply_fields(self.start, changed) if changed else self.start

    @property
    def new_pod(self) -> PodView:
        # What a container's change has does not concern the pod that its policies see.
        return self.changed_pod or pod_of(self.start) or PodView()


def merge(
    merged: Merged,
    policy: str,
    change: Fields,
    *,
    priority: int = 0,
    reason: str = "",
    reasons: Mapping[str, str | Reason] = NO_REASONS,
    rule: ConflictRule = ConflictRule.LATER,
    is_remote: bool = False,
) -> tuple[Merged, tuple[FieldUpdate, ...]]:
    """Merge one policy's change into those of policies that come before it by (priority, name).

    Returns:
        The merged changes and the updates, for the audit. A value that is already there is not an update, but
        the policy owns the field.
    """
    accepted: dict[Field, Resolved] = {}
    updates: list[FieldUpdate] = []
    claimant = Claimant(policy, ClaimantKind.SERVER if is_remote else ClaimantKind.POLICY)
    owners = (claimant,)
    for key, value in change.items():
        before = merged.fields.get(key)
        if before is None:
            original = current_value(merged.start, key)
            before = Resolved(original, (), original)
        claims, why = before.claims, reasons.get(key.key, reason)
        has_role = isinstance(value, _ROLES)
        if has_role:
            claims += claims_of(claimant, value, priority=priority, reason=why)  # type: ignore[arg-type]
        elif key.group in _CLAIMED:
            claims += (Claim(claimant, Role.SET, value, priority, why),)  # type: ignore[arg-type]
        if has_role or before.steps or (value is CLEAR and _is_file(key)):
            after = _resolved(merged.start, key, before.original, claims, rule)
            rival = _rival(before, value)
        else:
            rival = labels_of(before.owners) if before.owners and before.value != value else ""
            if before.owners and (not rival or rule is ConflictRule.EARLIER):
                after = before._replace(claims=claims)
            else:
                after = Resolved(value, owners, before.original, claims)
        accepted[key] = after
        if rival:
            shown = after.value if has_role else value
            updates.append(FieldUpdate(key, before.value, shown, rival))
        elif after.value != before.value and not is_same(
            key, before.value, value := rounded_for_systemd(merged.start, key, after.value)
        ):
            updates.append(FieldUpdate(key, before.value, value))
    if not accepted:
        return merged, ()
    by_policy = {**merged.reasons, policy: reason} if reason else merged.reasons
    fields = MappingProxyType({**merged.fields, **accepted})
    pod = _pod_with(merged.start, fields) if isinstance(merged.start, PodView) else None
    return Merged(merged.start, fields, by_policy, pod), tuple(updates)


def _pod_with(start: PodView, fields: Mapping[Field, Resolved]) -> PodView | None:
    """See `Merged.changed_pod`."""
    identity = {key: each.value for key, each in fields.items() if key.group in _IDENTITY}
    return _changed_pod(start, _by_group(identity)) if identity else None


def _is_file(field: Field) -> bool:
    # Taking the value of a file away means writing the neutral one.
    return field.group in (CGROUP, NODE_CGROUP)


def _resolved(
    start: View, field: Field, original: Value, claims: tuple[Claim, ...], rule: ConflictRule
) -> Resolved:
    """Resolve claims of which some do more than set the value."""
    base: Value = None
    # What the file of a cgroup held before is for the ledger to know.
    is_known = False
    if field.group == RESOURCES and isinstance(start, PodView | ContainerView):
        resources = start.resources if isinstance(start, PodView) else start.requested
        base, is_known = getattr(resources, field.key), not start.is_recovered
    parameter = parameter_of(field)
    resolved = resolve(
        parameter,
        base if isinstance(base, int | str) else None,
        claims,
        rule=rule,
        is_base_known=is_known,
    )
    value = resolved.value if resolved.used else original
    if resolved.is_clear and not _is_file(field):
        value = CLEAR
    elif resolved.used and isinstance(value, int | str):
        # Valid amounts may add up to one that is not.
        value = clamped(parameter, value)
    return resolved._replace(value=value, original=original, claims=claims)


def rounded_for_systemd(start: View, field: Field, value: Value) -> Value:
    """Return a container's value as systemd has it if the container is a unit: quotas in whole percents.

    Otherwise systemd would change it when it reloads.
    """
    if field != _QUOTA or not (isinstance(value, int) and isinstance(start, ContainerView)):
        return value
    if not start.pod.cgroup_parent.endswith(".slice"):
        return value
    return units.rounded_quota(value, start.requested.cpu_period_us or units.CPU_PERIOD_US)


def parameter_of(field: Field) -> str:
    """Return the cgroup parameter of a claimed field by its version 1 name; its own name if there is none."""
    if field.group == RESOURCES:
        return RESOURCE_PARAMETERS.get(field.key, field.key)
    return field.key.rpartition("/")[2] if field.group == NODE_CGROUP else field.key


def _rival(before: Resolved, value: Value) -> str:
    """Return the policy that sets a field to another value; empty if none does, or `value` sets nothing."""
    wanted = value.value if isinstance(value, Scale) else value
    if wanted is None or isinstance(wanted, _ROLES):
        return ""
    if not before.steps:
        return labels_of(before.owners) if before.value != wanted else ""
    used = before.used[:1]
    return next((str(each.owner) for each in used if each.role is Role.SET and each.value != wanted), "")


def apply_fields(view: View, change: Fields) -> View:
    """Return the view with these fields set; cgroup values, mounts and devices are no part of views."""
    if isinstance(view, PodView):
        return _changed_pod(view, _by_group(change))
    return _changed_container(view, _by_group(change)) if isinstance(view, ContainerView) else view


def _by_group(change: Fields) -> Mapping[str, Mapping[str, Value]]:
    groups: dict[str, dict[str, Value]] = {}
    for (group, key), value in change.items():
        groups.setdefault(group, {})[key] = value
    return groups


def _changed_pod(pod: PodView, groups: Mapping[str, Mapping[str, Value]]) -> PodView:
    changed: dict[str, Any] = {}
    if RESOURCES in groups or UNIFIED in groups:
        changed["resources"] = _changed_resources(pod.resources, groups)
    if ANNOTATIONS in groups:
        changed["annotations"] = _overlaid(pod.annotations, groups[ANNOTATIONS])
    if LABELS in groups:
        labels = _overlaid(pod.labels, groups[LABELS])
        of_pod = qos.qos_class(labels) if pod.katalyst is None else class_of(labels, pod.katalyst)
        changed |= {"labels": labels, "qos": of_pod, "priority": qos.priority_class(labels)}
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


def written_value(name: str, value: int | str | Clear, *, update: bool) -> int | str:
    """The value in a message for "set" or "clear" of a scalar; 0 or "" empty the field.

    "No limit" is an absent field where a container is created: CRI-O refuses a limit of -1 there.
    """
    field = RESOURCE_FIELDS[name]
    if not update and value == units.UNLIMITED and field.unlimited_is_absent:
        return 0
    if not isinstance(value, Clear):
        return value
    empty = 0 if field.kind is Kind.NUMBER else ""
    return field.neutral if update and field.neutral is not None else empty


def scalar_edits(
    change: ResourceChange, in_force: Resources | None, sent: Resources, *, update: bool
) -> dict[str, int | str]:
    """The values to send so that a change is made, by their names in `Resources`, and only those that differ.

    `in_force`: what the runtime has; None where that is nothing or not known. A field that the kubelet does
    not send and that has the wanted value already is not sent again.
    """
    edits: dict[str, int | str] = {}
    for name in RESOURCE_FIELDS:
        wanted = getattr(change, name)
        if wanted is None:
            continue
        value = written_value(name, wanted, update=update)
        present = getattr(sent, name)
        if value == (present or (0 if isinstance(value, int) else "")):
            continue
        if present is None and in_force is not None:
            current: int | str | None = getattr(in_force, name)
            # A value that the runtime never got need not be cleared.
            if current == value or (current is None and isinstance(wanted, Clear)):
                continue
        edits[name] = value
    return edits


def entry_edits(
    changes: TextEntries, present: Mapping[str, str], in_force: Mapping[str, str] | None = None
) -> dict[str, str | None]:
    """The map entries to set (or, with None, to take away), and only those that really differ.

    `in_force`: what the runtime has; an entry that the message does not give is not sent again.
    """
    known = in_force or {}
    edits: dict[str, str | None] = {}
    for key, wanted in changes.items():
        value = None if isinstance(wanted, Clear) else wanted
        before = present.get(key)
        if before == value or (before is None and known.get(key) == value):
            continue
        edits[key] = value
    return edits
