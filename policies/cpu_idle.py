"""Idle groups: the nearest of the mainline kernel to group identity, for pods that are to yield.

Where the kernel lacks `cpu.bvt_warp_ns`, pods whose group identity is below 0 (`BE` by default) get

- `cpu.idle` 1, if they are BestEffort in Kubernetes and no other owner sets their weight: their processes
  run when no other process of the CPU wants to, but for a small share, and yield at once;
- else the least weight, `cpu.shares` 2, if batch resources do not set another one.

Host applications of such a class get `cpu.idle`, too. Only cgroups of pods are made idle. The kernel refuses
weights of an idle cgroup, and the runtime writes those of containers, the kubelet those of QoS classes and of
pods that it resizes, which have CPU requests. Strategies are those of `group-identity`.

It cannot prefer `LS` pods to each other (identities 1 and 2 do nothing), and takes no hyper-thread's core
from others as group identity does. Source: Linux kernel/sched/fair.c, sched_group_set_idle, WEIGHT_IDLEPRIO.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from policies.annotations import EXTENDED_RESOURCE_SPEC
from policies.group_identity import host_identity, is_on
from policies.host_applications import host_application_values
from runtimeproxy.fields.tables import IDLE, SHARES
from runtimeproxy.hooks import NodeChange, PodChange, PodSelector, PodView, Policy, Reason
from runtimeproxy.hooks.sources import strategy_source
from runtimeproxy.node.snapshot import Feature, Input, Node
from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.units import MIN_CPU_SHARES

_NO_POD: Final = PodSelector(namespaces=frozenset())
_REASON: Final = "the pod yields by its group identity"
_PATH: Final = "cpu_qos.group_identity"


class CpuIdle(Policy):
    """Sets `cpu.idle`, or the least weight, of pods and host applications that are to yield."""

    name: ClassVar[str] = "cpu-idle"
    selector_without: ClassVar[Mapping[Input, PodSelector]] = {Input.STRATEGIES: _NO_POD}
    inputs: ClassVar[frozenset[Input]] = frozenset({Input.STRATEGIES})
    strategy_parts: ClassVar[frozenset[str]] = frozenset({"cpu_qos"})
    features: ClassVar[frozenset[str]] = frozenset({Feature.IDLE})
    needless_features: ClassVar[frozenset[str]] = frozenset({Feature.BVT})
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {
        "pod": frozenset({IDLE, SHARES}),
        "node": frozenset({IDLE}),
    }
    # Below `batch-resource`, whose weights are those that were asked for.
    priority: ClassVar[int] = 15
    is_default: ClassVar[bool] = False

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Return the values of the pod's own cgroup; its containers share what it has."""
        if not is_on(node.strategies):
            return None
        strategy = node.strategy_for(pod)
        identity = strategy.cpu_qos.group_identity
        if identity is None or identity >= 0:
            return None
        source = strategy_source(strategy.provenance, _PATH, "cpu_qos.enable")
        name = f"{pod.qos} pods" if pod.qos else "pods without a QoS class"
        reason = Reason("group identity of ", name, " ", *source, " = ", identity, "; the kernel has none")
        if pod.kube_qos is KubeQoSClass.BEST_EFFORT:
            return _change(IDLE, 1, reason.then(", so they are idle = ", 1))
        if pod.qos is QoSClass.BE and EXTENDED_RESOURCE_SPEC in pod.annotations:
            return None
        why = reason.then(", so they have the least weight (the pod has CPU requests) = ", MIN_CPU_SHARES)
        return _change(SHARES, MIN_CPU_SHARES, why)

    def node(self, node: Node) -> NodeChange | None:
        """Return the values of host applications."""
        strategies = node.strategies
        if not is_on(strategies):
            return None

        def values_of(qos_class: QoSClass) -> Mapping[str, int | str]:
            identity = host_identity(qos_class, strategies.qos)
            return {IDLE: 1} if identity is not None and identity < 0 else {}

        cgroups, problems = host_application_values(
            strategies.host_applications, node.cgroup_driver, values_of
        )
        if not cgroups and not problems:
            return None
        reasons = {f"{path}/{IDLE}": Reason("host application that yields = ", 1) for path in cgroups}
        return NodeChange(cgroups=cgroups, reason=_REASON, reasons=reasons, problems=problems)


def _change(name: str, value: int, reason: Reason) -> PodChange:
    return PodChange(cgroup={name: value}, reason=_REASON, reasons={name: reason})
