"""CPU burst by a pod's level: what `cpu_burst_policy` and `cpu_burst_percent` make of the node's strategy.

Source: katalyst-core pkg/agent/qrm-plugins/util, GetPodCPUBurstPolicy; pkg/util/qos/cpu_enhancement.go.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from runtimeproxy.katalyst.levels import CPU_ENHANCEMENT, BurstPolicy, KatalystQos
from runtimeproxy.slo.schema import CpuBurstPolicy, CpuBurstStrategy
from runtimeproxy.slo.strategies import Layer, PodStrategy, Provenance

USUAL_PERCENT: Final = 100
"""Of the quota, where neither the pod nor a strategy that is on says it."""

_BY_ENHANCEMENT: Final = Provenance(Layer.ANNOTATION, key=CPU_ENHANCEMENT)


def burst_of_level(node: CpuBurstStrategy, qos: KatalystQos) -> CpuBurstStrategy:
    """Return the strategy of one pod.

    `static` is burst without larger quotas, whatever the node has; `closed` is none, and so is `dynamic`,
    which Katalyst does not support either; `default` is what the node has.
    """
    policy = qos.burst_policy
    if policy in (BurstPolicy.CLOSED, BurstPolicy.DYNAMIC):
        return replace(node, policy=CpuBurstPolicy.NONE)
    is_on, percent = node.policy is not CpuBurstPolicy.NONE, qos.burst_percent
    if policy is BurstPolicy.STATIC:
        usual = node.cpu_burst_percent if is_on else USUAL_PERCENT
        return replace(
            node,
            policy=CpuBurstPolicy.CPU_BURST_ONLY,
            cpu_burst_percent=usual if percent is None else int(percent),
        )
    return node if percent is None or not is_on else replace(node, cpu_burst_percent=int(percent))


def with_level(strategy: PodStrategy, qos: KatalystQos) -> PodStrategy:
    """Return a pod's strategy with the burst that its level asks for."""
    before = strategy.cpu_burst
    burst = burst_of_level(before, qos)
    if burst == before:
        return strategy
    changed: dict[str, Any] = {
        f"cpu_burst.{name}": _BY_ENHANCEMENT
        for name in ("policy", "cpu_burst_percent")
        if getattr(burst, name) != getattr(before, name)
    }
    return replace(strategy, cpu_burst=burst, provenance={**strategy.provenance, **changed})
