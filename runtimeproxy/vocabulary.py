"""What policies, daemon and QoS manager share: the words of claims, modes and reports, and their limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

MOST_CLAIM_REASON_BYTES: Final = 256
MOST_EXPLANATION_BYTES: Final = 1_024
"""Of a plugin's explanation in a report."""
MOST_LEFT_OUT_REASONS: Final = 16
MOST_LEFT_OUT_PODS: Final = 1_024
"""Of one plugin in a report."""
MOST_POD_NOTES: Final = 512
MOST_POD_NOTE_BYTES: Final = 384
"""What one plugin says of single pods in a report."""
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
    """What a claim with a lease, or a sample, is of: a kind of cgroup, but for `POOL`."""

    CONTAINER = "container"
    POD = "pod"
    QOS_CLASS = "qos-class"
    """A QoS class of Kubernetes."""
    HOST_APPLICATION = "host-application"
    """A program of the host that takes part in QoS."""
    NODE = "node"
    """Of samples only."""
    POOL = "pool"
    """One of Katalyst's CPU pools; of claims of an advisor only, on a `PoolField`."""


class PoolField(StrEnum):
    """What an advisor claims of Katalyst's pools, by the role set. Whole numbers."""

    REQUIRED_CPUS = "pool.required_cpus"
    """Of a pool of `shared_cores`: how many CPUs it needs, 1 at least."""
    OVERLAP_CPUS = "pool.overlap_cpus"
    """Of such a pool, where `reclaimed_cores` overlap: how many of its CPUs they have, too."""
    HEADROOM_MILLICPU = "pool.headroom_millicpu"
    """Of `reclaim`, or `reclaim-NUMA0`: the CPU that pods of `reclaimed_cores` can use in all."""
    HEADROOM_BYTES = "pool.headroom_bytes"
    """The same of memory."""


_MOST_CPUS: Final = 8_192
"""Source: Linux arch/x86/Kconfig, NR_CPUS."""
MOST_BYTES: Final = 1 << 53
"""No machine has as much memory."""
POOL_RANGES: Final[Mapping[PoolField, tuple[int, int]]] = MappingProxyType(
    {
        PoolField.REQUIRED_CPUS: (1, _MOST_CPUS),
        PoolField.OVERLAP_CPUS: (0, _MOST_CPUS),
        PoolField.HEADROOM_MILLICPU: (0, 1_000 * _MOST_CPUS),
        PoolField.HEADROOM_BYTES: (0, MOST_BYTES),
    }
)
"""What a claim may say on any node."""

RESCTRL_MOUNT_COMMAND: Final = "mount -t resctrl resctrl /sys/fs/resctrl"


class Mode(StrEnum):
    """Whether what a policy or a plugin decides is applied."""

    ENFORCE = "enforce"
    DRY_RUN = "dry-run"
    """It is computed and explained only: no value is written, nothing is claimed, no pod evicted."""
    OFF = "off"
    """It does not run. Operators and the configuration say so; a policy that the chain runs never has it."""


class MetricsSource(StrEnum):
    """Where the QoS manager's samples come from."""

    KERNEL = "kernel"
    """The kernel's files."""
    MALACHITE = "malachite"
    """Katalyst's metrics daemon; what it does not have, or not in time, comes from the kernel's files."""


class ClaimKey(NamedTuple):
    """The place of a claim: an owner has at most one claim per key."""

    level: ClaimLevel
    target: str
    """Id of a container, uid of a pod, a QoS class of Kubernetes, the name of a host application or pool."""
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
    left_out: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """By reason: uids of the pods that it leaves out."""
    pod_notes: Mapping[str, Sequence[str]] = MappingProxyType({})
    """By text: uids of the pods that it says this of."""
