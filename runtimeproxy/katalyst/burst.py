"""CPU burst by a pod's level: what `cpu_burst_policy` and `cpu_burst_percent` make of the node's strategy.

Source: katalyst-core pkg/agent/qrm-plugins/util, GetPodCPUBurstPolicy; pkg/util/qos/cpu_enhancement.go.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from runtimeproxy.katalyst.dynamic_config import NO_CONFIG, KatalystConfig
from runtimeproxy.katalyst.levels import CPU_ENHANCEMENT, BurstPolicy, KatalystQos
from runtimeproxy.katalyst.names import QosLevel
from runtimeproxy.slo.schema import CpuBurstPolicy, CpuBurstStrategy
from runtimeproxy.slo.strategies import Layer, PodStrategy, Provenance

USUAL_PERCENT: Final = 100
"""Of the quota, of `static` without a percentage."""

_BY_ENHANCEMENT: Final = Provenance(Layer.ANNOTATION, key=CPU_ENHANCEMENT)


def wanted_burst(qos: KatalystQos, config: KatalystConfig) -> tuple[BurstPolicy, float | None]:
    """Return policy and percent of a pod: its own, else those of the dynamic configuration; None: neither's.

    Source: enableDedicatedCoresDefaultCPUBurst and defaultCPUBurstPercent, which are for that level alone.
    """
    policy, percent = qos.burst_policy, qos.burst_percent
    if policy is BurstPolicy.DEFAULT and qos.level is QosLevel.DEDICATED:
        if config.cpu_burst_enable is not None:
            policy = BurstPolicy.STATIC if config.cpu_burst_enable else BurstPolicy.CLOSED
        percent = config.cpu_burst_percent if percent is None else percent
    return policy, percent


def burst_of_level(
    node: CpuBurstStrategy, qos: KatalystQos, config: KatalystConfig = NO_CONFIG
) -> CpuBurstStrategy:
    """Return the strategy of one pod.

    `static` is burst without larger quotas, whatever the node has; `closed` is none, and so is `dynamic`,
    which Katalyst does not support either; `default` is what the node has, of `dedicated_cores` what the
    dynamic configuration has.
    """
    policy, percent = wanted_burst(qos, config)
    if policy in (BurstPolicy.CLOSED, BurstPolicy.DYNAMIC):
        return replace(node, policy=CpuBurstPolicy.NONE)
    if policy is BurstPolicy.STATIC:
        used = USUAL_PERCENT if percent is None else int(percent)
        return replace(node, policy=CpuBurstPolicy.CPU_BURST_ONLY, cpu_burst_percent=used)
    if percent is None or node.policy is CpuBurstPolicy.NONE:
        return node
    return replace(node, cpu_burst_percent=int(percent))


def with_level(strategy: PodStrategy, qos: KatalystQos, config: KatalystConfig = NO_CONFIG) -> PodStrategy:
    """Return a pod's strategy with the burst that its level asks for."""
    before = strategy.cpu_burst
    burst = burst_of_level(before, qos, config)
    if burst == before:
        return strategy
    changed: dict[str, Any] = {
        f"cpu_burst.{name}": _BY_ENHANCEMENT
        for name in ("policy", "cpu_burst_percent")
        if getattr(burst, name) != getattr(before, name)
    }
    return replace(strategy, cpu_burst=burst, provenance={**strategy.provenance, **changed})
