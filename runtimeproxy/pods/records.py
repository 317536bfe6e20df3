"""What the proxy remembers of a pod and of a container. Values of environment variables are never kept."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from runtimeproxy.hooks.views import Resources
from runtimeproxy.pods.resources import NO_ENTRIES, NO_RESOURCES

INTERNED_CHARS: Final = 128
"""Longer texts are not interned: they are rarely the same in two pods."""

NO_CHANGES: Final[Mapping[str, str | None]] = MappingProxyType({})
"""The one empty mapping of changes that all records share."""


def _no_entries() -> Mapping[str, Any]:
    return NO_ENTRIES


def _no_changes() -> Mapping[str, str | None]:
    return NO_CHANGES


class Lifecycle(IntEnum):
    """How far a sandbox or container has come; a sandbox is never CREATED."""

    CREATED = 0
    RUNNING = 1
    STOPPED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """A pod sandbox that the runtime has."""

    id: str
    name: str = ""
    namespace: str = ""
    uid: str = ""
    attempt: int = 0
    labels: Mapping[str, str] = field(default_factory=_no_entries)
    """As the runtime got them, so with the changes of policies."""
    annotations: Mapping[str, str] = field(default_factory=_no_entries)
    """As the runtime got them, so with the changes of policies."""
    label_changes: Mapping[str, str | None] = field(default_factory=_no_changes)
    """What policies changed in the labels; None stands for "taken away"."""
    annotation_changes: Mapping[str, str | None] = field(default_factory=_no_changes)
    """What policies changed in the annotations; None stands for "taken away"."""
    runtime_handler: str = ""
    cgroup_parent: str = ""
    """Where the sandbox lives; empty when it is not known."""
    overhead: Resources = NO_RESOURCES
    requested: Resources = NO_RESOURCES
    """What the kubelet asked for, all its calls together."""
    applied: Resources = NO_RESOURCES
    """What the runtime got, all calls together."""
    owners: Mapping[str, str] = field(default_factory=_no_entries)
    """Changed field to the policy that changed it."""
    state: Lifecycle = Lifecycle.RUNNING
    detailed: bool = True
    """Whether cgroup parent and resources are known; a list of the runtime has neither."""
    recovered: bool = False
    """Whether it comes from the runtime itself: then nobody knows what policies have changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRecord:
    """A container that the runtime has."""

    id: str
    pod_id: str = ""
    name: str = ""
    attempt: int = 0
    labels: Mapping[str, str] = field(default_factory=_no_entries)
    annotations: Mapping[str, str] = field(default_factory=_no_entries)
    """As the runtime got them, so with the changes of policies."""
    requested: Resources = NO_RESOURCES
    """What the kubelet asked for, all its calls together; after a restart what the runtime reports."""
    applied: Resources = NO_RESOURCES
    """What the runtime got, all calls together."""
    owners: Mapping[str, str] = field(default_factory=_no_entries)
    """Changed field to the policy that changed it."""
    pending_cgroup: Mapping[str, int | str] = field(default_factory=_no_entries)
    """Cgroup values that wait for the container's cgroup, which exists only once it is started."""
    state: Lifecycle = Lifecycle.CREATED
    detailed: bool = True
    """Whether the resources are known; a list of the runtime has none."""
    recovered: bool = False
    """Whether it comes from the runtime itself: then nobody knows what policies have changed."""


@dataclass(frozen=True, slots=True)
class ManagedValue:
    """A value that policies have put into a file of a cgroup."""

    wanted: int | str
    original: int | str | None = None
    """What the file held before, or what somebody else has put there since; None if that is not known."""
    reapply: bool = True
    """Whether it is written again when it has changed: no longer once other policies count."""


@dataclass(frozen=True, slots=True)
class CgroupRecord:
    """What policies have put into the files of a cgroup."""

    id: str
    """The cgroup's path below a controller's mount, with a slash in front."""
    values: Mapping[str, ManagedValue]
    """By parameter."""


Record: TypeAlias = PodRecord | ContainerRecord | CgroupRecord


def compact(entries: Mapping[str, str]) -> Mapping[str, str]:
    """A copy for a record: equal keys and short values of many pods are one object in memory."""
    if not entries:
        return NO_ENTRIES
    copy: dict[str, str] = {}
    for key in entries:
        value = entries[key]
        copy[sys.intern(key) if len(key) <= INTERNED_CHARS else key] = (
            sys.intern(value) if len(value) <= INTERNED_CHARS else value
        )
    return copy
