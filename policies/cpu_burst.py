"""CPU burst: containers may save up CPU time below their quota, and use it in short peaks.

The kernel keeps the saved time, up to `cpu.cfs_burst_us` (`cpu.max.burst` in version 2). This policy sets it
for containers in percent of their CPU limit, and for pods in percent of the sum of these limits, by the
strategy in `cpu-burst-config`, and by the enhancements of a pod with a level of Katalyst's. The other part of
CPU burst, larger quotas for throttled containers, needs samples of CPU usage: a plugin of the QoS manager has
it.
Source: Koordinator pkg/koordlet/qosmanager/plugins/cpuburst/cpu_burst.go.

The kernel refuses a burst above the quota. So the ledger bounds it by the resolved quota (`ledger/tree.py`),
and lowers it before the quota; an unlimited container needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from runtimeproxy.hooks import (
    ContainerChange,
    ContainerView,
    PodChange,
    PodSelector,
    PodView,
    Policy,
    Reason,
    Resources,
)
from runtimeproxy.hooks.sources import strategy_source
from runtimeproxy.node.snapshot import Feature, Input, Node
from runtimeproxy.qos import QoSClass
from runtimeproxy.slo.names import CPU_BURST
from runtimeproxy.slo.schema import CpuBurstPolicy
from runtimeproxy.slo.schema import CpuBurstStrategy as Strategy
from runtimeproxy.units import CPU_PERIOD_US

BURST: Final = "cpu.cfs_burst_us"
MAX_BURST_US: Final = 100_000_000
"""The largest burst of cgroup version 1. Source: Koordinator pkg/koordlet/util/system, CPUBurstValidator."""

_POLICIES: Final = (CpuBurstPolicy.AUTO, CpuBurstPolicy.CPU_BURST_ONLY)
_CLASSES: Final = frozenset({QoSClass.LS, QoSClass.SYSTEM, QoSClass.NONE})
_REASON: Final = "CPU burst strategy"
_PERCENT: Final = "cpu_burst.cpu_burst_percent"


def burst_us(quota_us: int | None, period_us: int | None, strategy: Strategy) -> int:
    """Return the burst of a container or pod; 0 for none. Source: applyCPUBurst.

    The CFS quota stands for the CPU limit; None, 0 and -1 are no limit. Without a period it is 100 ms.
    """
    if strategy.policy not in _POLICIES or quota_us is None or quota_us <= 0:
        return 0
    # Koordinator's formula has the limit in CPUs: so many for a period of 100 ms, times the percentage.
    burst = quota_us * CPU_PERIOD_US * strategy.cpu_burst_percent // ((period_us or CPU_PERIOD_US) * 100)
    return min(burst, MAX_BURST_US)


class CpuBurst(Policy):
    """Sets `cpu.cfs_burst_us` of containers and pods in percent of their CPU limits."""

    name: ClassVar[str] = "cpu-burst"
    selector: ClassVar[PodSelector] = PodSelector(qos_classes=_CLASSES)
    selector_without: ClassVar[Mapping[Input, PodSelector]] = {
        Input.STRATEGIES: PodSelector(qos_classes=_CLASSES, annotations=(CPU_BURST,))
    }
    inputs: ClassVar[frozenset[Input]] = frozenset({Input.STRATEGIES})
    strategy_parts: ClassVar[frozenset[str]] = frozenset({"cpu_burst"})
    features: ClassVar[frozenset[str]] = frozenset({Feature.BURST})
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {
        "pod": frozenset({BURST}),
        "container": frozenset({BURST}),
    }
    priority: ClassVar[int] = 50

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Return the burst of the pod's own cgroup."""
        # From version 1.23 on the kubelet sends the sum of the containers' limits with the sandbox.
        values, reasons, problems = _values(pod, pod.resources, node)
        if not values and not problems:
            return None
        return PodChange(cgroup=values, problems=problems, reason=_REASON, reasons=reasons)

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the burst of the container."""
        values, reasons, _ = _values(container.pod, container.requested, node)
        return ContainerChange(cgroup=values, reason=_REASON, reasons=reasons) if values else None


def _values(
    pod: PodView, requested: Resources, node: Node
) -> tuple[dict[str, int | str], dict[str, str | Reason], tuple[str, ...]]:
    """Return the burst and its reason by cgroup parameter, empty for none, and the annotation's problems."""
    strategy = node.strategy_for(pod)
    burst = burst_us(requested.cpu_quota_us, requested.cpu_period_us, strategy.cpu_burst)
    problems = strategy.problems_of(CPU_BURST)
    if not burst:
        return {}, {}, problems
    reason = Reason("CPU quota ", requested.cpu_quota_us or 0)
    if requested.cpu_period_us not in (None, 0, CPU_PERIOD_US):
        reason = reason.then(" per ", requested.cpu_period_us or 0, " us x ", CPU_PERIOD_US)
    source = strategy_source(strategy.provenance, _PERCENT, "cpu_burst.policy")
    reason = reason.then(" x ", strategy.cpu_burst.cpu_burst_percent, " % ", *source)
    if burst == MAX_BURST_US:
        reason = reason.then(", at most ", MAX_BURST_US)
    return {BURST: burst}, {BURST: reason.then(" = ", burst)}, problems
