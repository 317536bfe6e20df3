"""The classes of fields: what a value is counted from, how it is applied, and how often it is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from runtimeproxy.hooks.fields import RESOURCE_PARAMETERS
from runtimeproxy.pods.records import Level


class Base(StrEnum):
    """What the claims on a field are counted from, and what it goes back to without any."""

    REQUESTED = "requested"
    """What the kubelet asked for, else the neutral value. Of a container that was recovered without a
    checkpoint that is not known: it is left as it is, and reported."""
    ORIGINAL = "original"
    """The raw text of the file before the first write."""
    NEUTRAL = "neutral"
    """The value without any effect."""
    NONE = "none"
    """Nothing: it applies at the creation only, or is not ours."""


class Application(StrEnum):
    """How a value gets to where it counts."""

    MESSAGE = "message"
    """In the message that creates the container. A running one is changed by file, and the runtime's
    specification with the kubelet's next update."""
    FILE = "file"
    CREATION = "creation"
    """In the message that creates the container; the next container has another value."""
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class FieldClass:
    """Fields that are treated alike."""

    name: str
    base: Base
    application: Application
    verify_s: float | None
    """How often it is compared with the file; None for never."""


CONTAINER_CRI: Final = FieldClass("CRI field of a container", Base.REQUESTED, Application.MESSAGE, 60.0)
"""It is also compared after each call that may have changed it."""
CONTAINER_FILE: Final = FieldClass("other file of a container", Base.NEUTRAL, Application.FILE, 60.0)
"""What the kubelet gives in `unified` of its message counts in place of the neutral value."""
POD_FILE: Final = FieldClass("file of a pod", Base.ORIGINAL, Application.FILE, 10.0)
"""It is also compared at each start of a container: systemd then resets the pod's slice."""
CLASS_KUBELET: Final = FieldClass("the kubelet's file of a QoS class", Base.NONE, Application.NEVER, None)
CLASS_FILE: Final = FieldClass("other file of a QoS class", Base.NEUTRAL, Application.FILE, 1.0)
"""systemd sets whole units again, and all pods below one depend on it."""
NODE_FILE: Final = FieldClass("file of a host application", Base.ORIGINAL, Application.FILE, 60.0)
CREATION: Final = FieldClass("field of the creation", Base.NONE, Application.CREATION, None)
"""Environment, mounts, devices, labels, annotations, the cgroup parent; the OOM score, until it is written to
the processes themselves."""

CRI_PARAMETERS: Final = frozenset(RESOURCE_PARAMETERS.values())
"""What the kubelet and the runtime write for a container, by cgroup parameter."""

_KUBELET_ON_CLASSES: Final = frozenset({"cpu.shares"})
"""Source: kubelet pkg/kubelet/cm/qos_container_manager_linux.go, UpdateCgroups. What its feature MemoryQoS
writes there depends on its version (`node/kubelet.py`): the policy `memory-qos` leaves it out."""

KUBELET_ON_PODS: Final = frozenset(
    {
        "cpu.cfs_period_us",
        "cpu.cfs_quota_us",
        "cpu.shares",
        "memory.high",
        "memory.limit_in_bytes",
        "memory.low",
        "memory.min",
    }
)
"""What the kubelet writes to a pod's cgroup. Source: kubelet pkg/kubelet/cm/helpers_linux.go,
ResourceConfigForPod; from 1.36 on memory.low of Burstable pods, from 1.37 on memory.high
(ApplyPodLevelMemoryHigh)."""


def field_class(level: Level, parameter: str) -> FieldClass:
    """Return the class of a field.

    Args:
        level: whose cgroup it is.
        parameter: a cgroup parameter by its version 1 name, or the name of another field.
    """
    if "." not in parameter:
        return CREATION
    if level is Level.CONTAINER:
        return CONTAINER_CRI if parameter in CRI_PARAMETERS else CONTAINER_FILE
    if level is Level.POD:
        return POD_FILE
    if level is Level.NODE:
        return NODE_FILE
    return CLASS_KUBELET if parameter in _KUBELET_ON_CLASSES else CLASS_FILE


VERIFY_S: Final[Mapping[Level, float]] = MappingProxyType(
    {
        level: min(each.verify_s for each in classes if each.verify_s is not None)
        for level, classes in {
            Level.QOS_CLASS: (CLASS_KUBELET, CLASS_FILE),
            Level.POD: (POD_FILE,),
            Level.CONTAINER: (CONTAINER_CRI, CONTAINER_FILE),
            Level.NODE: (NODE_FILE,),
        }.items()
    }
)
"""How often the cgroups of a level are compared."""
