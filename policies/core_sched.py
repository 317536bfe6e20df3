"""Core scheduling: which pods may run on the threads of one core at the same time.

The kernel gives tasks a cookie; two threads of one core never run tasks with different cookies at the same
time. Pods of one group get one cookie. The group is named by labels of the pod, and core scheduling is
switched on for a class by `cpuQOS` in `resource-qos-config`, under the CPU policy `coreSched`. Classes with
`coreExpeller` have groups of their own, which pods of other classes cannot join. Under the same CPU policy
`schedIdle` makes host applications, and best-effort pods, idle.
Source: Koordinator pkg/koordlet/runtimehooks/hooks/coresched (rule.go, helper.go); apis/slo/v1alpha1/pod.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Final, NamedTuple

from policies.host_applications import host_application_values
from runtimeproxy.fields.tables import IDLE
from runtimeproxy.hooks import (
    ContainerChange,
    ContainerView,
    NodeChange,
    PodChange,
    PodSelector,
    PodView,
    Policy,
    Reason,
)
from runtimeproxy.hooks.sources import strategy_source
from runtimeproxy.node.snapshot import Feature, Input, Node
from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.slo.names import CPU_QOS
from runtimeproxy.slo.schema import CpuPolicy, CpuQoS, QoSStrategy
from runtimeproxy.slo.strategies import Strategies

GROUP_LABEL: Final = "koordinator.sh/core-sched-group-id"
POLICY_LABEL: Final = "koordinator.sh/core-sched-policy"
EXCLUSIVE: Final = "exclusive"
"""A group of the pod's own."""
NONE: Final = "none"
"""No core scheduling for this pod."""

GROUP: Final = "core_sched_group"
GROUP_IDENTITY_SYSCTL: Final = "kernel.sched_group_identity_enabled"
CORE_SCHED_SYSCTL: Final = "kernel.sched_core"
CORE_SCHED_FEATURE: Final = "sched_features.CORE_SCHED"

_EXPELLER: Final = ":expeller"
"""Koordinator's suffix is `-expeller`, with which a label may end, too."""
_LABEL_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
"""Source: Kubernetes, labels and selectors, syntax."""
_UID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_MAX_SHOWN: Final = 64
_NO_POD: Final = PodSelector(namespaces=frozenset())
_REASON: Final = "core scheduling of the class"
_IS_EXPELLER: Final = "cpu_qos.core_expeller"
_SCHED_IDLE: Final = "cpu_qos.sched_idle"


class PodGroup(NamedTuple):
    """The group of a pod."""

    name: str = ""
    """The value of the field; empty: the pod is in none."""
    reason: str = ""
    problem: str = ""
    """Why the pod's group is not known; then it stays as it is."""


NO_GROUP: Final = PodGroup()


def is_on(strategies: Strategies) -> bool:
    """Return whether core scheduling is switched on for any class. Source: parseRuleForNodeSLO."""
    qos = strategies.qos
    if qos.policies.cpu_policy is not CpuPolicy.CORE_SCHED:
        return False
    classes = (qos.lsr_class, qos.ls_class, qos.be_class)
    return any(each.cpu_qos.enable for each in classes) or "cpu_qos" in strategies.pod_parts


def pod_group(labels: Mapping[str, str], uid: str, qos_class: QoSClass, cpu_qos: CpuQoS) -> PodGroup:
    """Return the group of a pod. Source: getPodEnabledAndGroup.

    Pods whose label names no group are in one together.

    Args:
        labels: Of the pod.
        uid: Of the pod.
        qos_class: By the raw label.
        cpu_qos: Of the class; see `runtimeproxy.slo.strategies.cpu_class`.
    """
    if qos_class is QoSClass.SYSTEM or not cpu_qos.enable:
        return NO_GROUP
    policy, label = labels.get(POLICY_LABEL, ""), labels.get(GROUP_LABEL, "")
    if policy == NONE:
        return NO_GROUP
    if policy not in ("", EXCLUSIVE):
        return PodGroup(problem=f"label {POLICY_LABEL} is {_shown(policy)}, not none or exclusive")
    if policy == EXCLUSIVE:
        if not _UID.fullmatch(uid):
            return PodGroup(problem=f"the pod's uid {_shown(uid)} is none")
        name, reason = f"pod:{uid}", f"label {POLICY_LABEL} {EXCLUSIVE}"
    elif not _LABEL_VALUE.fullmatch(label):
        return PodGroup(problem=f"label {GROUP_LABEL} is {_shown(label)}, no value of a label")
    else:
        name = f"group:{label}"
        reason = f"label {GROUP_LABEL} {label}" if label else f"no label {GROUP_LABEL}"
    return PodGroup(name + (_EXPELLER if cpu_qos.core_expeller else ""), reason)


def is_idle(kube_qos: KubeQoSClass, qos_class: QoSClass, cpu_qos: CpuQoS) -> bool:
    """Return whether a pod's own cgroup is to be idle.

    Kubelet and runtime write weights of others, which the kernel refuses of an idle cgroup.
    """
    is_best_effort = kube_qos is KubeQoSClass.BEST_EFFORT and qos_class is not QoSClass.SYSTEM
    return is_best_effort and cpu_qos.sched_idle == 1


class CoreSched(Policy):
    """Sets the core scheduling group of containers, and `cpu.idle` of host applications and BE pods."""

    name: ClassVar[str] = "core-sched"
    is_default: ClassVar[bool] = False
    selector_without: ClassVar[Mapping[Input, PodSelector]] = {Input.STRATEGIES: _NO_POD}
    inputs: ClassVar[frozenset[Input]] = frozenset({Input.STRATEGIES})
    strategy_parts: ClassVar[frozenset[str]] = frozenset({"cpu_qos"})
    features: ClassVar[frozenset[str]] = frozenset({Feature.CORE_SCHED})
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {
        "pod": frozenset({IDLE}),
        "container": frozenset({GROUP}),
        "node": frozenset({IDLE, "sysctl", "kernel_settings"}),
    }
    priority: ClassVar[int] = 46

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Return whether the pod's own cgroup is idle."""
        if node.strategies.qos.policies.cpu_policy is not CpuPolicy.CORE_SCHED:
            return None
        strategy = node.strategy_for(pod)
        if not is_idle(pod.kube_qos, pod.qos, strategy.cpu_qos):
            return None
        source = strategy_source(strategy.provenance, _SCHED_IDLE, "cpu_qos.enable")
        reasons = {IDLE: Reason("schedIdle of ", _class_of(pod), " ", *source, " = ", 1)}
        return PodChange(cgroup={IDLE: 1}, reason=_REASON, reasons=reasons)

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the group of the container's pod."""
        if not is_on(node.strategies):
            return None
        pod = container.pod
        strategy = node.strategy_for(pod)
        group = pod_group(pod.labels, pod.uid, pod.qos, strategy.cpu_qos)
        problems = strategy.problems_of(CPU_QOS)
        if group.problem:
            return ContainerChange(problems=(*problems, group.problem))
        if not group.name:
            return ContainerChange(problems=problems) if problems else None
        source = strategy_source(strategy.provenance, "cpu_qos.enable", _IS_EXPELLER)
        why = Reason(
            "core scheduling of ", _class_of(pod), " ", *source, ", ", group.reason, " = ", group.name
        )
        return ContainerChange(
            cgroup={GROUP: group.name}, problems=problems, reason=_REASON, reasons={GROUP: why}
        )

    def node(self, node: Node) -> NodeChange | None:
        """Return the kernel's switches, group identity's first, and what makes host applications idle."""
        strategies = node.strategies
        if not is_on(strategies):
            return None
        reasons = {
            GROUP_IDENTITY_SYSCTL: Reason("group identity excludes core scheduling = ", 0),
            CORE_SCHED_SYSCTL: Reason("a class has core scheduling = ", 1),
            CORE_SCHED_FEATURE: Reason("a class has core scheduling = ", 1),
        }
        # Mainline kernels have neither, and core scheduling is on while there are cookies.
        sysctl: dict[str, int | str] = {}
        if Feature.GROUP_IDENTITY_SYSCTL in node.features:
            sysctl[GROUP_IDENTITY_SYSCTL] = 0
        kernel_settings: dict[str, int | str] = {}
        if Feature.CORE_SCHED_SYSCTL in node.features:
            sysctl[CORE_SCHED_SYSCTL] = 1
        elif Feature.CORE_SCHED_FEATURE in node.features:
            kernel_settings[CORE_SCHED_FEATURE] = 1

        def values_of(qos_class: QoSClass) -> Mapping[str, int | str]:
            return {IDLE: 1} if is_host_application_idle(qos_class, strategies.qos) else {}

        cgroups, problems = host_application_values(
            strategies.host_applications, node.cgroup_driver, values_of
        )
        for path, values in cgroups.items():
            reasons[f"{path}/{IDLE}"] = Reason("schedIdle of the host application's class = ", values[IDLE])
        return NodeChange(
            sysctl=sysctl,
            kernel_settings=kernel_settings,
            cgroups=cgroups,
            reason=_REASON,
            reasons=reasons,
            problems=problems,
        )


def is_host_application_idle(qos_class: QoSClass, qos: QoSStrategy) -> bool:
    """Return whether a host application's cgroup is to be idle, by its class."""
    if qos_class in (QoSClass.LSE, QoSClass.LSR):
        return qos.lsr_class.cpu_qos.sched_idle == 1
    if qos_class is QoSClass.LS:
        return qos.ls_class.cpu_qos.sched_idle == 1
    return qos_class is QoSClass.BE and qos.be_class.cpu_qos.sched_idle == 1


def _class_of(pod: PodView) -> str:
    return f"{pod.qos} pods" if pod.qos else "pods without a QoS class"


def _shown(text: str) -> str:
    return repr(text[:_MAX_SHOWN])
