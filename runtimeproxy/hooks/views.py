"""The input of policies: frozen views of pods and containers in the vocabulary of the CRI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runtimeproxy.cgroups.paths import has_container_cgroups
from runtimeproxy.fields.resources import Resources as Resources
from runtimeproxy.qos import KubeQoSClass, PriorityClass, QoSClass

if TYPE_CHECKING:
    from runtimeproxy.katalyst.levels import KatalystQos


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """A pod as the kubelet described it.

    Labels, annotations and cgroup parent have the changes that policies made when the sandbox was created.
    `kubectl.kubernetes.io/last-applied-configuration` is among the annotations in the calls that create pods
    and containers only: it is never kept.
    """

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
    """The sandbox's resources as requested."""
    qos: QoSClass = QoSClass.NONE
    """The raw label's, or that of `katalyst`."""
    kube_qos: KubeQoSClass = KubeQoSClass.GUARANTEED
    """Derived from the cgroup parent."""
    priority: PriorityClass = PriorityClass.NONE
    """From the priority-class label; without one from `spec.priority` if the API server has told it, as the
    CRI does not carry it."""
    katalyst: KatalystQos | None = None
    """Its level in Katalyst's terms; None: it has none, or the policy `katalyst-qos` is not in force."""
    is_recovered: bool = False
    """Whether only the runtime knows it, as after a loss of the state folder: its values may be those of
    policies, so a `Scale` or an `Add` has nothing to count on and no effect."""

    @property
    def has_container_cgroups(self) -> bool:
        """Whether its containers have cgroups of their own on the node: not if they run in a VM.

        The messages about them apply in any case; what only files hold applies to the pod alone.
        """
        return has_container_cgroups(self.runtime_handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerView:
    """A container as the kubelet described it."""

    id: str = ""
    """Empty before it is created, also where the runtime tells the id by then (NRI): policies see the same in
    every mode."""
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
    """The runtime's values if no policy changes them: on an update the values of all requests to
    the runtime, overlaid by this call's fields. An answer that depends on it is not the same each time:
    compute from `requested`."""
    updated: Resources | None = None
    """On an update: only the fields that this call of the kubelet carries; None otherwise."""
    cpu_claims: tuple[str, ...] = ()
    """CDI devices of the kubelet's request that stand for DRA claims on CPUs, such as
    `dra.k8s.io/cpu=claim-UID`; their CPUs are in `Node.claimed_cpus`."""
    is_recovered: bool = False
    """As `PodView.is_recovered`, until the kubelet resizes the container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPod:
    """A running pod with the values of its own cgroup."""

    pod: PodView
    cgroup: Mapping[str, int | str] = field(default_factory=dict)
    """By cgroup v1 name, such as `memory.min`: what policies want there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassView:
    """The directory of a Kubernetes QoS class; that of all pods for GUARANTEED."""

    qos: KubeQoSClass
    pods: tuple[ResolvedPod, ...] = ()
    """The pods below the directory."""
