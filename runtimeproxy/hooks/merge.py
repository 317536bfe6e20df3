"""Merging the changes of several policies. All functions are pure.

Changes are merged in the policies' order: each policy sees what the earlier ones changed, and every changed
field has one owner. A field that two policies set to different values is a conflict: it is reported, and
the later policy's value counts unless the rule says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from runtimeproxy import qos
from runtimeproxy.hooks import fields as flat
from runtimeproxy.hooks.changes import CLEAR
from runtimeproxy.hooks.fields import Field, Fields, Value, View
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.hooks.views import ContainerView, PodView, Resources

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
        The merged changes and the updates, for the audit. A value that is there already is no update, but
        the policy owns the field.
    """
    accepted: dict[Field, Claim] = {}
    updates: list[FieldUpdate] = []
    for key, value in change.items():
        claim = merged.claims.get(key)
        if claim is None:
            old = flat.current_value(merged.start, key)
            accepted[key] = Claim(policy, value, old, is_remote)
            if not flat.is_same(key, old, value):
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
    if flat.RESOURCES in groups or flat.UNIFIED in groups:
        changed["resources"] = _changed_resources(pod.resources, groups)
    if flat.ANNOTATIONS in groups:
        changed["annotations"] = _overlaid(pod.annotations, groups[flat.ANNOTATIONS])
    if flat.LABELS in groups:
        labels = _overlaid(pod.labels, groups[flat.LABELS])
        changed |= {"labels": labels, "qos": qos.qos_class(labels), "priority": qos.priority_class(labels)}
    if flat.CGROUP_PARENT in groups:
        parent = str(groups[flat.CGROUP_PARENT][""])
        changed |= {"cgroup_parent": parent, "kube_qos": qos.kube_qos_class(parent)}
    return replace(pod, **changed) if changed else pod


def _changed_container(container: ContainerView, groups: Mapping[str, Mapping[str, Value]]) -> ContainerView:
    changed: dict[str, Any] = {}
    if flat.RESOURCES in groups or flat.UNIFIED in groups:
        changed["current"] = _changed_resources(container.current, groups)
    if flat.ANNOTATIONS in groups:
        changed["annotations"] = _overlaid(container.annotations, groups[flat.ANNOTATIONS])
    if flat.ENV in groups:
        env = {key: str(value).encode() for key, value in groups[flat.ENV].items() if value is not CLEAR}
        kept = {key: value for key, value in container.env.items() if key not in groups[flat.ENV]}
        changed["env"] = MappingProxyType(kept | env)
    if flat.CGROUP_PARENT in groups:
        changed["pod"] = _changed_pod(container.pod, {flat.CGROUP_PARENT: groups[flat.CGROUP_PARENT]})
    return replace(container, **changed) if changed else container


def _changed_resources(resources: Resources, groups: Mapping[str, Mapping[str, Value]]) -> Resources:
    changed: dict[str, Any] = {
        key: None if value is CLEAR else value for key, value in groups.get(flat.RESOURCES, {}).items()
    }
    if flat.UNIFIED in groups:
        changed["unified"] = _overlaid(resources.unified, groups[flat.UNIFIED])
    return replace(resources, **changed)


def _overlaid(entries: Mapping[str, str], changes: Mapping[str, Value]) -> Mapping[str, str]:
    kept = {key: value for key, value in entries.items() if changes.get(key) is not CLEAR}
    kept |= {key: str(value) for key, value in changes.items() if value is not CLEAR}
    return MappingProxyType(kept)
