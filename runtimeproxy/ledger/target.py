"""The cgroups that claims are for, and where policies are asked about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from runtimeproxy.hooks.policy import Hook
from runtimeproxy.pods.records import Level

EVALUATIONS: Final[Mapping[Level, Hook]] = {
    Level.NODE: Hook.EVALUATE_NODE,
    Level.QOS_CLASS: Hook.EVALUATE_QOS_CLASS,
    Level.POD: Hook.EVALUATE_POD,
    Level.CONTAINER: Hook.EVALUATE_CONTAINER,
}
"""The hook of the audit's entries about values of what runs."""


class CgroupTarget(NamedTuple):
    """A cgroup and whose it is."""

    level: Level
    cgroup: str
    """As the CRI gives it, or its path."""
    name: str = ""
    """Namespace and name of the pod, and the name of the container, for people."""
    uid: str = ""
    """Of the pod."""
