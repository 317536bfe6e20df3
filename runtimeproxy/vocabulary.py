"""What policies, daemon and QoS manager share: the words of claims, modes and reports, and their limits."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

MOST_CLAIM_REASON_BYTES: Final = 256
MOST_EVICTION_REASON_BYTES: Final = 1_024
MOST_VALUE: Final = 4_096
"""Characters of a claim's value: more than a list of all CPUs of the largest node."""
MOST_TARGET: Final = 253
"""Characters of a claim's target: the longest name of an object of Kubernetes."""


class Role(StrEnum):
    """The effect of a claim on the value: see the ledger's algebra in `runtimeproxy/hooks/algebra.py`."""

    SET = "set"
    SCALE = "scale"
    """Divides the value; one owner per field. Not for plugins of the QoS manager."""
    ADD = "add"
    """Adds to the value that policies lead to; an unlimited one stays unlimited."""
    AT_MOST = "at_most"
    """Bounds the value; makes an unlimited one finite."""


def claimed_text(role: str, value: object) -> str:
    """The value of a claim for people; None clears the field."""
    forms: dict[str, str] = {Role.SCALE: "divided by {}", Role.ADD: "{} more", Role.AT_MOST: "at most {}"}
    return "cleared" if value is None else forms.get(role, "{}").format(value)


class ClaimLevel(StrEnum):
    """The kind of cgroup that a claim with a lease, or a sample, is of."""

    CONTAINER = "container"
    POD = "pod"
    QOS_CLASS = "qos-class"
    """A QoS class of Kubernetes."""
    HOST_APPLICATION = "host-application"
    """A program of the host that takes part in QoS."""
    NODE = "node"
    """Of samples only."""


RESCTRL_MOUNT_COMMAND: Final = "mount -t resctrl resctrl /sys/fs/resctrl"


class Mode(StrEnum):
    """Whether what a policy or a plugin decides is applied."""

    ENFORCE = "enforce"
    DRY_RUN = "dry-run"
    """It is computed and explained only: no value is written, nothing is claimed, no pod evicted."""
    OFF = "off"
    """It does not run. Operators and the configuration say so; a policy that the chain runs never has it."""


class ClaimKey(NamedTuple):
    """The place of a claim: an owner has at most one claim per key."""

    level: ClaimLevel
    target: str
    """Id of a container, uid of a pod, a QoS class of Kubernetes, or the name of a host application."""
    field: str
    role: Role


class PluginReport(NamedTuple):
    """What a QoS manager tells the daemon of one plugin."""

    name: str
    mode: Mode
    is_wanted: bool
    """Whether the strategies want it; False as long as that is not known."""
    claims: int
    """How many the daemon has."""
    problem: str = ""
    explanation: str = ""
