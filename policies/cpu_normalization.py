"""CPU normalization: smaller CPU quotas on a node whose CPUs are faster than those that limits are meant for.

With a limit of two CPUs, a container gets more done on fast CPUs than on slow ones. This policy divides the
CFS quota of pods that share CPUs, and of all their containers, by the node's ratio.
Quotas of `BE` pods are divided by `batch-resource`, which sets them; pods with CPUs of their own have none.
Source: Koordinator pkg/koordlet/runtimehooks/hooks/cpunormalization/cpu_normalization.go.

Its claims are of the role `scale` only: the kubelet's quota stays the base, and comes back when the ratio is
withdrawn. Init containers and sidecars count like other containers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Final

from policies.annotations import AnnotationError, resource_status
from runtimeproxy.fields.tables import QUOTA
from runtimeproxy.hooks import (
    ContainerChange,
    ContainerView,
    PodChange,
    PodSelector,
    PodView,
    Policy,
    Reason,
    ResourceChange,
    Resources,
    Scale,
)
from runtimeproxy.hooks.algebra import divided
from runtimeproxy.hooks.sources import ratio_source
from runtimeproxy.node.snapshot import Input, Node
from runtimeproxy.qos import QoSClass
from runtimeproxy.units import MIN_CPU_QUOTA_US

_REASON: Final = "this node's CPUs are faster than those that limits are meant for"
_SHARING: Final = frozenset({QoSClass.LS, QoSClass.NONE})


def quota_scale(ratio: float | None) -> Scale | None:
    """Return the division of quotas by a node's ratio; None: none. Source: adjustContainerCFSQuota."""
    # Quotas are never raised.
    if ratio is None or not math.isfinite(ratio) or ratio <= 1:
        return None
    return Scale(ratio)


def shares_cpus(qos: QoSClass, *, has_cpuset: bool) -> bool:
    """Return whether a pod runs on CPUs that it shares. Source: isPodCPUShare."""
    return qos is QoSClass.LS or (qos is QoSClass.NONE and not has_cpuset)


class CpuNormalization(Policy):
    """Divides the CPU quotas of pods that share CPUs by the node's normalization ratio."""

    name: ClassVar[str] = "cpu-normalization"
    selector: ClassVar[PodSelector] = PodSelector(qos_classes=_SHARING)
    inputs: ClassVar[frozenset[Input]] = frozenset({Input.NORMALIZATION})
    strategy_parts: ClassVar[frozenset[str]] = frozenset({"cpu_normalization"})
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {
        "pod": frozenset({QUOTA}),
        "container": frozenset({QUOTA}),
    }
    priority: ClassVar[int] = 30
    is_default: ClassVar[bool] = False

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Return the division of the pod's quota, which the kubelet computes from all containers."""
        scale, problem = _scale(pod, node)
        if scale is None:
            return PodChange(problems=(problem,)) if problem else None
        why = _reason(pod.resources, scale.ratio, node)
        return PodChange(cgroup={QUOTA: scale}, reason=_REASON, reasons={QUOTA: why})

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the division of the container's quota."""
        if (container.requested.cpu_quota_us or 0) <= 0:
            return None
        scale, problem = _scale(container.pod, node)
        if scale is None:
            return ContainerChange(problems=(problem,)) if problem else None
        reasons = {"cpu_quota_us": _reason(container.requested, scale.ratio, node)}
        resources = ResourceChange(cpu_quota_us=scale)
        return ContainerChange(resources=resources, reason=_REASON, reasons=reasons)


def _scale(pod: PodView, node: Node) -> tuple[Scale | None, str]:
    """Return the division for a pod; without one the problem, which may be empty."""
    scale = quota_scale(node.normalization_ratio)
    if scale is None or pod.qos not in _SHARING:
        return None, ""
    try:
        # The CPUs of `LS` pods do not matter, and so neither does an annotation that cannot be read.
        has_cpuset = pod.qos is QoSClass.NONE and resource_status(pod.annotations).cpus is not None
    except AnnotationError as error:
        return None, str(error)
    if not shares_cpus(pod.qos, has_cpuset=has_cpuset):
        return None, ""
    return scale, ""


def _reason(requested: Resources, ratio: float, node: Node) -> Reason:
    source, quota_us = ratio_source(node), requested.cpu_quota_us or 0
    if quota_us <= 0:
        return Reason("normalization ratio ", source, " = ", ratio)
    scaled_us = divided(quota_us, ratio)
    reason = Reason("CPU quota ", quota_us, " / ", ratio, " normalization ratio ", source)
    if scaled_us < MIN_CPU_QUOTA_US:
        reason = reason.then(" = ", scaled_us, ", at least ", MIN_CPU_QUOTA_US)
    return reason.then(" = ", max(scaled_us, MIN_CPU_QUOTA_US))
