"""Records of pods, containers and cgroups. Values of environment variables are never recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from runtimeproxy.hooks.views import Resources
from runtimeproxy.pods.resources import NO_ENTRIES, NO_RESOURCES

NO_CHANGES: Final[Mapping[str, str | None]] = MappingProxyType({})
"""The one empty mapping of changes that all records share."""


def _no_entries() -> Mapping[str, Any]:
    return NO_ENTRIES


def _no_changes() -> Mapping[str, str | None]:
    return NO_CHANGES


class Lifecycle(IntEnum):
    """The state of a sandbox or container; a sandbox is never CREATED."""

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
    """As sent to the runtime, with the changes of policies."""
    annotations: Mapping[str, str] = field(default_factory=_no_entries)
    """As sent to the runtime, with the changes of policies."""
    label_changes: Mapping[str, str | None] = field(default_factory=_no_changes)
    """Changes of policies; None removes a label."""
    annotation_changes: Mapping[str, str | None] = field(default_factory=_no_changes)
    """Changes of policies; None removes an annotation."""
    runtime_handler: str = ""
    cgroup_parent: str = ""
    """The sandbox's cgroup; empty when it is not known."""
    overhead: Resources = NO_RESOURCES
    requested: Resources = NO_RESOURCES
    """The values of all requests of the kubelet."""
    booked: Resources = NO_RESOURCES
    """What the specification in the runtime holds: the values of all requests to it."""
    owners: Mapping[str, str] = field(default_factory=_no_entries)
    """Changed field to the policy that changed it."""
    state: Lifecycle = Lifecycle.RUNNING
    detailed: bool = True
    """Whether cgroup parent and resources are known; a list of the runtime has neither."""
    recovered: bool = False
    """Whether it comes from the runtime itself: then the changes of policies are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRecord:
    """A container that the runtime has."""

    id: str
    pod_id: str = ""
    name: str = ""
    attempt: int = 0
    labels: Mapping[str, str] = field(default_factory=_no_entries)
    annotations: Mapping[str, str] = field(default_factory=_no_entries)
    """As sent to the runtime, with the changes of policies."""
    requested: Resources = NO_RESOURCES
    """The values of all requests of the kubelet; after a restart those that the runtime reports."""
    booked: Resources = NO_RESOURCES
    """What the specification in the runtime holds: the values of all requests to it."""
    owners: Mapping[str, str] = field(default_factory=_no_entries)
    """Changed field to the policy that changed it."""
    pending_cgroup: Mapping[str, int | str] = field(default_factory=_no_entries)
    """Cgroup values to be written when the container is started, because its cgroup exists only then."""
    state: Lifecycle = Lifecycle.CREATED
    detailed: bool = True
    """Whether the resources are known; a list of the runtime has none."""
    recovered: bool = False
    """Whether it comes from the runtime itself: then the changes of policies are not known."""


@dataclass(frozen=True, slots=True)
class ManagedValue:
    """A value that policies have written to a file of a cgroup."""

    wanted: int | str
    original: int | str | None = None
    """The content of the file before, or a foreign value written since; None if it is not known."""
    reapply: bool = True
    """Whether it is written again when it has changed: no longer once other policies are in use."""


@dataclass(frozen=True, slots=True)
class CgroupRecord:
    """The values that policies have written to the files of a cgroup."""

    id: str
    """The cgroup's path below a controller's mount, with a slash in front."""
    values: Mapping[str, ManagedValue]
    """By parameter."""


Record: TypeAlias = PodRecord | ContainerRecord | CgroupRecord
