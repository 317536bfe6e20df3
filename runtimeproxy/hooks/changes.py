"""Changes that a policy may return for a pod or container, field by field.

In every field None (or an empty mapping) means "leave alone", CLEAR means "take the value away", and
a plain value is the value to set. Scale, Add and AtMost say what to do with the value that others set or
ask for; see `runtimeproxy.hooks.algebra`. The CRI's scalars have no presence (0 and absent are the same on
the wire); only `runtimeproxy.frontends.cri_proxy.calls` knows how "set" and "clear" are encoded there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, TypeAlias


class Clear(Enum):
    """The type of CLEAR."""

    CLEAR = "clear"

    def __repr__(self) -> str:
        return "CLEAR"


CLEAR: Final = Clear.CLEAR
"""Take the value away: the runtime then uses its default."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Divides the value, rounded up; an unlimited one stays unlimited. One policy per field."""

    ratio: float
    """The divisor: above 1; with 1 or less nothing changes."""
    value: int | None = None
    """Also sets this value first; None divides what others set, or what the kubelet asked for."""


@dataclass(frozen=True, slots=True)
class Add:
    """Adds to the value that sets and scales lead to; an unlimited one stays unlimited."""

    amount: int
    """Above 0."""
    at_most: int | None = None
    """The largest sum of the value and this amount; None for no ceiling."""


@dataclass(frozen=True, slots=True)
class AtMost:
    """Bounds the value that all others lead to; makes an unlimited one finite."""

    value: int | str
    """The largest value, or for a list of CPUs or NUMA nodes those that it may have."""


IntChange: TypeAlias = int | Literal[Clear.CLEAR] | None
AmountChange: TypeAlias = int | Literal[Clear.CLEAR] | Scale | Add | AtMost | None
"""A plain value sets; Scale, Add and AtMost change the value that others set or ask for."""
TextChange: TypeAlias = str | Literal[Clear.CLEAR] | None
ListChange: TypeAlias = str | Literal[Clear.CLEAR] | AtMost | None
CgroupValue: TypeAlias = int | str | Literal[Clear.CLEAR] | Scale | Add | AtMost
TextEntries: TypeAlias = Mapping[str, str | Literal[Clear.CLEAR]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceChange:
    """A change of the CRI's LinuxContainerResources."""

    cpu_period_us: IntChange = None
    """CFS period, 1,000 to 1,000,000."""
    cpu_quota_us: AmountChange = None
    """CFS quota, at least 1,000; -1 means unlimited, at creation too."""
    cpu_shares: AmountChange = None
    """cpu.shares (unitless weight), 2 to 262,144."""
    memory_limit_bytes: AmountChange = None
    """Memory limit, above 0; -1 means unlimited.

    At creation -1 becomes no value, which every runtime treats as unlimited (CRI-O refuses -1 there); in an
    update, where absent means unchanged, it is sent as -1.
    """
    memory_swap_limit_bytes: AmountChange = None
    """Memory plus swap limit, above 0; -1 means unlimited, written like that of `memory_limit_bytes`."""
    oom_score_adj: IntChange = None
    """-1000 to 1000; 0 is a value like any other."""
    cpuset_cpus: ListChange = None
    """A CPU list such as `0-3,8`."""
    cpuset_mems: ListChange = None
    """A NUMA node list."""
    unified: TextEntries = field(default_factory=dict)
    """cgroup v2 files by name; key by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountSpec:
    """A bind mount that a policy adds to a container."""

    host_path: str
    container_path: str
    readonly: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """A device that a policy adds to a container; `permissions` is a subset of `rwm`."""

    host_path: str
    container_path: str
    permissions: str = "rwm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The fields of all changes."""

    reason: str = ""
    """The reason, for the audit; must not contain secrets."""
    requires: Mapping[str, str] = field(default_factory=dict)
    """Fields that are applied only together with another one, by their names in the audit, such as
    `{"resources.cpu_quota_us": "resources.cpuset_cpus"}`: no unlimited quota without those CPUs."""
    problems: tuple[str, ...] = ()
    """Input that the policy could not read, such as one value of an annotation; must not contain secrets.

    Each is reported with the pod, and the rest of the change is applied. A change with nothing else means
    that the policy cannot decide: what it wanted before stays.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupChange(Change):
    """Values that the CRI cannot carry, written directly to the cgroup of the pod, container or class."""

    cgroup: Mapping[str, CgroupValue] = field(default_factory=dict)
    """By cgroup v1 name (`cpu.shares`, `cpu.cfs_quota_us`, `memory.limit_in_bytes`); -1 means unlimited.

    `runtimeproxy.cgroups` maps names and values to version 2.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange(Change):
    """A change of the node itself."""

    sysctl: Mapping[str, int | str] = field(default_factory=dict)
    """By name, such as `kernel.sched_core`."""
    cgroups: Mapping[str, Mapping[str, CgroupValue]] = field(default_factory=dict)
    """Values of cgroups that are no pod's, such as those of host applications: by path below a controller's
    mount, then by cgroup v1 name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodChange(CgroupChange):
    """A change of a pod sandbox, and of the pod's own cgroup."""

    labels: TextEntries = field(default_factory=dict)
    annotations: TextEntries = field(default_factory=dict)
    cgroup_parent: str | None = None
    """Another cgroup parent for the pod; never empty."""
    resources: ResourceChange | None = None
    """The sandbox's resources in the message (`linux.resources`), for runtimes that use them; values of the
    pod's own cgroup belong into `cgroup`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerChange(CgroupChange):
    """A change of a container; env, mounts, devices and cgroup parent are applied at creation only."""

    resources: ResourceChange | None = None
    annotations: TextEntries = field(default_factory=dict)
    env: TextEntries = field(default_factory=dict)
    """By name: replaces the last variable of that name, or adds one; all others stay as they are."""
    mounts: tuple[MountSpec, ...] = ()
    """Added after the kubelet's."""
    devices: tuple[DeviceSpec, ...] = ()
    """Added after the kubelet's."""
    cgroup_parent: str | None = None
    """Another cgroup parent in the request's sandbox config; never empty."""
