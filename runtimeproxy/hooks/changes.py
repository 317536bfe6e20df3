"""Changes that a policy may return for a pod or container, field by field.

In every field None (or an empty mapping) means "leave alone", CLEAR means "take the value away", and
a plain value is the value to set. Scale, Add and AtMost say what to do with the value that others set or
ask for; see `runtimeproxy.hooks.algebra`. The CRI's scalars have no presence (0 and absent are the same on
the wire); only `runtimeproxy.frontends.cri_proxy.calls` knows how "set" and "clear" are encoded there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from posixpath import normpath

from runtimeproxy.fields.resources import CLEAR as CLEAR
from runtimeproxy.fields.resources import Add as Add
from runtimeproxy.fields.resources import AtMost as AtMost
from runtimeproxy.fields.resources import CgroupValue as CgroupValue
from runtimeproxy.fields.resources import Clear as Clear
from runtimeproxy.fields.resources import ResourceChange as ResourceChange
from runtimeproxy.fields.resources import Scale as Scale
from runtimeproxy.fields.resources import TextEntries as TextEntries
from runtimeproxy.hooks.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class MountSpec:
    """A bind mount that a policy adds to a container."""

    host_path: str
    container_path: str
    readonly: bool = True


def plain_path(path: str) -> str:
    """A path in a container in one spelling: of mounts at the same place one is on top."""
    # Two slashes in front would stay two.
    return normpath(f"/{path.lstrip('/')}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """A device that a policy adds to a container; `permissions` is a subset of `rwm`."""

    host_path: str
    container_path: str
    permissions: str = "rwm"
    numbers: tuple[int, int] | None = None
    """Major and minor number of a character device, where the node itself may be out of the daemon's sight;
    None: those of `host_path`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The fields of all changes."""

    reason: str = ""
    """The reason, for the audit; must not contain secrets."""
    reasons: Mapping[str, str | Reason] = field(default_factory=dict)
    """Of single fields, in place of `reason`: by the name of the resource, of the file, of the sysctl, label,
    annotation or variable. A file of `NodeChange.cgroups` is PATH/NAME."""
    requires: Mapping[str, str] = field(default_factory=dict)
    """Fields that are applied only together with another one, by their names in the audit, such as
    `{"resources.cpu_quota_us": "resources.cpuset_cpus"}`: no unlimited quota without those CPUs."""
    problems: tuple[str, ...] = ()
    """Input that the policy could not read, such as one value of an annotation; must not contain secrets.

    Each is reported with the pod, and the rest of the change is applied. A change with nothing else means
    that the policy cannot decide: what it wanted before stays.
    """
    missing: tuple[str, ...] = ()
    """What the pod or container is to have and this node cannot give, with the reason; no secrets.

    Each is reported as one of `problems`. With `failure_policy = "fail"` the pod or container is not created.
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
    kernel_settings: Mapping[str, int | str] = field(default_factory=dict)
    """Of the kernel, and no sysctls: by a name of `runtimeproxy/fields/kernel_settings.py`, such as
    `sched_features.NEXT_BUDDY`."""
    cgroups: Mapping[str, Mapping[str, CgroupValue]] = field(default_factory=dict)
    """Values of cgroups that are no pod's, such as those of host applications: by path below a controller's
    mount, then by cgroup v1 name. The root is `ROOT_CGROUP` of `runtimeproxy.cgroups.paths`, for the files
    that no other cgroup has."""


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
    """A change of a container.

    Env, mounts, devices, cgroup parent, and of the resources classes are applied at creation only.
    """

    resources: ResourceChange | None = None
    annotations: TextEntries = field(default_factory=dict)
    env: TextEntries = field(default_factory=dict)
    """By name: replaces the last variable of that name, or adds one; all others stay as they are."""
    mounts: tuple[MountSpec, ...] = ()
    """Added after the kubelet's; one at the same path replaces the kubelet's."""
    devices: tuple[DeviceSpec, ...] = ()
    """Added after the kubelet's."""
    cdi_devices: tuple[str, ...] = ()
    """Devices of the Container Device Interface, such as `vendor.com/class=name`, added after the kubelet's.
    A runtime that does not know one of them refuses the container."""
    cgroup_parent: str | None = None
    """Another cgroup parent in the request's sandbox config; never empty."""
