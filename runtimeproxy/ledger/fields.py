"""What the values of fields are counted from, and how often they are compared."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from runtimeproxy.fields.tables import FIELDS
from runtimeproxy.pods.records import Level
from runtimeproxy.vocabulary import ClaimLevel


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
    """Nothing: it applies at the creation only, has no file there, or is not ours."""


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

CLAIM_LEVELS: Final[Mapping[Level, ClaimLevel]] = {
    Level.NODE: ClaimLevel.HOST_APPLICATION,
    Level.QOS_CLASS: ClaimLevel.QOS_CLASS,
    Level.POD: ClaimLevel.POD,
    Level.CONTAINER: ClaimLevel.CONTAINER,
}
PROCESSES_VERIFY_S: Final = 10.0
"""How often cgroups with values of processes are compared: a runtime gives those that it starts in a running
container the values of that one's creation."""
KUBELET_ON_PODS: Final = frozenset(name for name, each in FIELDS.items() if ClaimLevel.POD in each.kubelet)
"""What the kubelet writes to a pod's cgroup."""
_KUBELET_ON_CLASSES: Final = frozenset(
    name for name, each in FIELDS.items() if ClaimLevel.QOS_CLASS in each.kubelet
)


def is_of_kubelet(level: Level, parameter: str) -> bool:
    """Whether this is a file of a QoS class that the kubelet writes: nothing of ours goes there."""
    return level is Level.QOS_CLASS and parameter in _KUBELET_ON_CLASSES


def base_of(level: Level, parameter: str) -> Base:
    """Return the base of a field.

    `parameter`: a cgroup parameter by its version 1 name, or the name of another field.
    """
    declared = FIELDS.get(parameter)
    if declared is None or is_of_kubelet(level, parameter):
        return Base.NONE
    if declared.processes is not None:
        if CLAIM_LEVELS[level] not in declared.levels:
            return Base.NONE
    elif declared.creation_only:
        return Base.NONE
    if level is Level.CONTAINER and declared.cri:
        return Base.REQUESTED
    if not declared.is_parameter:
        return Base.NONE
    # Processes need not have had one value before.
    has_original = level in (Level.POD, Level.NODE) and declared.processes is None
    return Base.ORIGINAL if has_original else Base.NEUTRAL
