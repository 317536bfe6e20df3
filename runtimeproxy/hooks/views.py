"""The input of policies: frozen views of pods and containers in the vocabulary of the CRI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runtimeproxy.qos import KubeQoSClass, PriorityClass, QoSClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Linux resources of a container or sandbox; None (or empty) means that no value is set."""

    cpu_period_us: int | None = None
    cpu_quota_us: int | None = None
    """-1 means unlimited."""
    cpu_shares: int | None = None
    """Unitless weight, 2 to 262,144."""
    memory_limit_bytes: int | None = None
    memory_swap_limit_bytes: int | None = None
    oom_score_adj: int | None = None
    """None also stands for 0, which is the same on the wire."""
    cpuset_cpus: str | None = None
    cpuset_mems: str | None = None
    hugepage_limits_bytes: tuple[tuple[str, int], ...] = ()
    """Pairs of page size (`2MB`) and limit."""
    unified: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """A pod as the kubelet described it, with the changes of earlier policies in the chain."""

    id: str = ""
    """The sandbox's id; empty before the runtime has given one."""
    name: str = ""
    namespace: str = ""
    uid: str = ""
    attempt: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    runtime_handler: str = ""
    cgroup_parent: str = ""
    """Path or systemd slice; empty if the kubelet sends none."""
    overhead: Resources = field(default_factory=Resources)
    resources: Resources = field(default_factory=Resources)
    """The sandbox's resources as requested, with earlier policies' changes."""
    qos: QoSClass = QoSClass.NONE
    """The raw label."""
    kube_qos: KubeQoSClass = KubeQoSClass.GUARANTEED
    """Derived from the cgroup parent."""
    priority: PriorityClass = PriorityClass.NONE
    """From the priority-class label: the CRI does not carry a pod's priority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerView:
    """A container as the kubelet described it, with the changes of earlier policies in the chain."""

    id: str = ""
    """Empty before the runtime has given one."""
    name: str = ""
    attempt: int = 0
    pod: PodView = field(default_factory=PodView)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, bytes] = field(default_factory=dict)
    """Last value of each name, in bytes, since it need not be UTF-8. Empty after creation: not stored."""
    requested: Resources = field(default_factory=Resources)
    """The kubelet's request; on an update, its accumulated requests."""
    current: Resources = field(default_factory=Resources)
    """The values in force if no later policy changes them.

    On an update: the applied values, overlaid by this call's fields, then by earlier policies' changes. So a
    policy that returns an applied value changes nothing, and the value is not sent again.
    """
    updated: Resources | None = None
    """On an update: only the fields that this call of the kubelet carries; None otherwise."""
