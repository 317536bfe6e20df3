"""Group identity: which pods the kernel's scheduler prefers, and which yield on a shared core.

Kernels with group identity (Anolis, Alibaba Cloud Linux) have a file `cpu.bvt_warp_ns` in each cgroup: 2 and
1 are latency-sensitive, -1 yields to them, 0 is neutral. This policy sets it for pods, their containers,
the directories of Kubernetes' QoS classes and host applications, from `cpuQOS` of the classes in
`resource-qos-config`. `runtimeproxy.slo` finds the class of a pod, and merges pod strategies and the
annotation `koordinator.sh/cpuQOS`. Source: Koordinator pkg/koordlet/runtimehooks/hooks/groupidentity/rule.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from policies.host_applications import host_application_values
from runtimeproxy.hooks import (
    CgroupChange,
    ContainerChange,
    ContainerView,
    NodeChange,
    PodChange,
    PodSelector,
    PodView,
    Policy,
    Reason,
    ResolvedPod,
)
from runtimeproxy.hooks.sources import strategy_source
from runtimeproxy.node.snapshot import Feature, Input, Node
from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.slo.names import CPU_QOS
from runtimeproxy.slo.schema import CpuPolicy, QoSStrategy
from runtimeproxy.slo.strategies import Strategies

BVT: Final = "cpu.bvt_warp_ns"
GROUP_IDENTITY_SYSCTL: Final = "kernel.sched_group_identity_enabled"
CORE_SCHED_SYSCTL: Final = "kernel.sched_core"
CORE_SCHED_FEATURE: Final = "sched_features.CORE_SCHED"

_NEUTRAL: Final = 0
_NO_POD: Final = PodSelector(namespaces=frozenset())
_REASON: Final = "group identity of the class"
_PATH: Final = "cpu_qos.group_identity"


def is_on(strategies: Strategies) -> bool:
    """Return whether any class or pod strategy has a group identity. Source: parseRule."""
    qos = strategies.qos
    if qos.policies.cpu_policy is not CpuPolicy.GROUP_IDENTITY:
        return False
    classes = (qos.lsr_class, qos.ls_class, qos.be_class)
    return any(each.cpu_qos.enable for each in classes) or "cpu_qos" in strategies.pod_parts


def directory_identity(directory: KubeQoSClass, qos: QoSStrategy) -> int | None:
    """Return the identity of a Kubernetes QoS class's directory. Source: getKubeQOSDirBvtValue."""
    if directory is KubeQoSClass.GUARANTEED:
        return _NEUTRAL
    of_class = qos.ls_class if directory is KubeQoSClass.BURSTABLE else qos.be_class
    return of_class.cpu_qos.group_identity


def host_identity(qos_class: QoSClass, qos: QoSStrategy) -> int | None:
    """Return the identity of a host application; 0 without a class. Source: getHostQOSBvtValue."""
    if qos_class in (QoSClass.LSE, QoSClass.LSR):
        return qos.lsr_class.cpu_qos.group_identity
    if qos_class is QoSClass.LS:
        return qos.ls_class.cpu_qos.group_identity
    return qos.be_class.cpu_qos.group_identity if qos_class is QoSClass.BE else _NEUTRAL


class GroupIdentity(Policy):
    """Sets `cpu.bvt_warp_ns` of pods, containers, QoS class directories and host applications."""

    name: ClassVar[str] = "group-identity"
    selector_without: ClassVar[Mapping[Input, PodSelector]] = {Input.STRATEGIES: _NO_POD}
    inputs: ClassVar[frozenset[Input]] = frozenset({Input.STRATEGIES})
    strategy_parts: ClassVar[frozenset[str]] = frozenset({"cpu_qos"})
    features: ClassVar[frozenset[str]] = frozenset({Feature.BVT})
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {
        **dict.fromkeys(("pod", "container", "qos_class"), frozenset({BVT})),
        "node": frozenset({BVT, "sysctl", "kernel_settings"}),
    }
    priority: ClassVar[int] = 45

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Return the identity of the pod's own cgroup."""
        values, reasons, problems = _values(pod, node)
        if not values and not problems:
            return None
        return PodChange(cgroup=values, problems=problems, reason=_REASON, reasons=reasons)

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the same identity: a new cgroup has its parent's, but a running one does not follow it."""
        values, reasons, _ = _values(container.pod, node)
        return ContainerChange(cgroup=values, reason=_REASON, reasons=reasons) if values else None

    def qos_class(self, qos: KubeQoSClass, pods: Sequence[ResolvedPod], node: Node) -> CgroupChange | None:
        """Return the identity of a directory of pods, which new cgroups in it start with."""
        if not is_on(node.strategies):
            return None
        identity = directory_identity(qos, node.strategies.qos)
        if identity is None:
            return None
        if qos is KubeQoSClass.GUARANTEED:
            why = Reason("the directory of all classes is neutral = ", identity)
        else:
            name = "ls" if qos is KubeQoSClass.BURSTABLE else "be"
            why = _class_reason(name, identity, node.strategies)
        return CgroupChange(cgroup={BVT: identity}, reason=_REASON, reasons={BVT: why})

    def node(self, node: Node) -> NodeChange | None:
        """Return the kernel's switches, core scheduling's first, and the identities of host applications."""
        strategies = node.strategies
        if not is_on(strategies):
            return None
        # The two exclude each other. Where the sysctl does not exist group identity is always on.
        sysctl: dict[str, int | str] = {}
        kernel_settings: dict[str, int | str] = {}
        reasons = {
            CORE_SCHED_SYSCTL: Reason("core scheduling excludes group identity = ", 0),
            CORE_SCHED_FEATURE: Reason("core scheduling excludes group identity = ", 0),
            GROUP_IDENTITY_SYSCTL: Reason("a strategy has a group identity = ", 1),
        }
        if Feature.GROUP_IDENTITY_SYSCTL in node.features:
            if Feature.CORE_SCHED_SYSCTL in node.features:
                sysctl[CORE_SCHED_SYSCTL] = 0
            elif Feature.CORE_SCHED_FEATURE in node.features:
                kernel_settings[CORE_SCHED_FEATURE] = 0
            sysctl[GROUP_IDENTITY_SYSCTL] = 1

        def values_of(qos_class: QoSClass) -> Mapping[str, int | str]:
            identity = host_identity(qos_class, strategies.qos)
            return {} if identity is None else {BVT: identity}

        cgroups, problems = host_application_values(
            strategies.host_applications, node.cgroup_driver, values_of
        )
        for path, values in cgroups.items():
            reasons[f"{path}/{BVT}"] = Reason("host application = ", values[BVT])
        return NodeChange(
            sysctl=sysctl,
            kernel_settings=kernel_settings,
            cgroups=cgroups,
            reason=_REASON,
            reasons=reasons,
            problems=problems,
        )


def _class_reason(name: str, identity: int, strategies: Strategies) -> Reason:
    path = f"qos.{name}_class.{_PATH}"
    source = strategy_source(strategies.provenance, path, f"qos.{name}_class.cpu_qos.enable")
    return Reason("group identity of ", name.upper(), " pods ", *source, " = ", identity)


def _values(
    pod: PodView, node: Node
) -> tuple[dict[str, int | str], dict[str, str | Reason], tuple[str, ...]]:
    """Return the pod's identity and its reason by cgroup parameter, empty if it is left alone.

    Also the problems with it.
    """
    if not is_on(node.strategies):
        return {}, {}, ()
    strategy = node.strategy_for(pod)
    identity, problems = strategy.cpu_qos.group_identity, strategy.problems_of(CPU_QOS)
    if identity is None:
        return {}, {}, problems
    source = strategy_source(strategy.provenance, _PATH, "cpu_qos.enable")
    name = f"{pod.qos} pods" if pod.qos else "pods without a QoS class"
    reason = Reason("group identity of ", name, " ", *source, " = ", identity)
    return {BVT: identity}, {BVT: reason}, problems
