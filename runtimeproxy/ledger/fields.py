"""The classes of fields: what a value is counted from, how it is applied, and how often it is compared."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from runtimeproxy.fields.tables import FIELDS, RESOURCE_PARAMETERS
from runtimeproxy.pods.records import Level
from runtimeproxy.vocabulary import Level as ClaimLevel


class Base(StrEnum):
    """What the claims on a field are counted from, and what it goes back to without any."""

    REQUESTED = "requested"
    """What the kubelet asked for, else the neutral value. Of a container that was recovered without a
    checkpoint that is not known: it is left as it is, and reported."""
    ORIGINAL = "original"
    """The raw text of the file before the first write."""
    NEUTRAL = "neutral"
    """The value without any effect. What the kubelet gives a container in `unified` takes its place."""
    NONE = "none"
    """Nothing: it applies at the creation only, or is not ours."""


class Application(StrEnum):
    """How a value is applied."""

    MESSAGE = "message"
    """In the message that creates the container. A running one is changed by file, and the runtime's
    specification with the kubelet's next update."""
    FILE = "file"
    CREATION = "creation"
    """In the message that creates the container; the next container has another value."""
    NEVER = "never"


class FieldClass(NamedTuple):
    """Fields that are treated alike."""

    base: Base
    application: Application
    verify_s: float | None
    """How often it is compared with the file; None for never."""


VERIFY_S: Final[Mapping[Level, float]] = {
    # systemd sets whole units again, and all pods below one depend on it.
    Level.QOS_CLASS: 1.0,
    # Also at each start of a container: systemd then resets the pod's slice.
    Level.POD: 10.0,
    # Also after each call that may have changed it.
    Level.CONTAINER: 60.0,
    Level.NODE: 60.0,
}
"""How often the cgroups of a level are compared."""

CLASS_KUBELET: Final = FieldClass(Base.NONE, Application.NEVER, None)
"""A file of a QoS class that the kubelet writes."""
_CREATION: Final = FieldClass(Base.NONE, Application.CREATION, None)
"""Environment, mounts, devices, labels, annotations, the cgroup parent, and CRI scalars without a file."""
_IN_MESSAGES: Final = FieldClass(Base.REQUESTED, Application.MESSAGE, VERIFY_S[Level.CONTAINER])
_FILES: Final = {
    level: FieldClass(
        Base.ORIGINAL if level in (Level.POD, Level.NODE) else Base.NEUTRAL, Application.FILE, verify_s
    )
    for level, verify_s in VERIFY_S.items()
}

KUBELET_ON_PODS: Final = frozenset(name for name, each in FIELDS.items() if ClaimLevel.POD in each.kubelet)
"""What the kubelet writes to a pod's cgroup."""
_KUBELET_ON_CLASSES: Final = frozenset(
    name for name, each in FIELDS.items() if ClaimLevel.QOS_CLASS in each.kubelet
)


def field_class(level: Level, parameter: str) -> FieldClass:
    """Return the class of a field.

    `parameter`: a cgroup parameter by its version 1 name, or the name of another field.
    """
    if "." not in parameter:
        return _CREATION
    if level is Level.CONTAINER and parameter in RESOURCE_PARAMETERS.values():
        return _IN_MESSAGES
    if level is Level.QOS_CLASS and parameter in _KUBELET_ON_CLASSES:
        return CLASS_KUBELET
    return _FILES[level]
