"""Start-up boost: a larger CPU quota for containers that start, as many need more CPU then than ever after.

By the strategy in `startup-boost-config` or the annotation `koordinator.sh/startupBoost` a container with a
CPU limit has `limitPercent` of it, for `maxSeconds` at most. This policy says how much; when it begins and
ends, and how much of it the node can give, is decided with the container's start (`ledger/boost_rules.py`).
What is added is a claim of the role `add` with a lease, beside those of CPU burst: the kubelet's quota stays
the base, in the runtime's book, too, and is divided by CPU normalization without it.
Koordinator has nothing like it: keys and annotation are this project's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from runtimeproxy.hooks import ContainerChange, ContainerView, PodSelector, Policy, Reason
from runtimeproxy.hooks.boost import WantedBoost
from runtimeproxy.hooks.sources import strategy_source
from runtimeproxy.node.snapshot import Input, Node
from runtimeproxy.qos import QoSClass
from runtimeproxy.slo.names import STARTUP_BOOST
from runtimeproxy.units import CPU_PERIOD_US

_CLASSES: Final = frozenset({QoSClass.LS, QoSClass.SYSTEM, QoSClass.NONE})
"""LSE and LSR pods have CPUs of their own and no quota; BE pods get what others leave."""
_PERCENT: Final = "startup_boost.limit_percent"
_IN_VM: Final = "a container in a VM (Kata Containers) has no quota on the node that could be added to"


def amount_us(quota_us: int, limit_percent: int) -> int:
    """Return what is added to a quota of this many microseconds; 0 for 100 percent."""
    return quota_us * (limit_percent - 100) // 100


def wanted_boost(container: ContainerView, node: Node) -> WantedBoost | None:
    """Return the boost of a container that starts; None without a CPU limit, or without a strategy.

    None, too, for one in a VM, which has no quota on the node.
    """
    if container.pod.qos not in _CLASSES or not container.pod.has_container_cgroups:
        return None
    strategy = node.strategy_for(container.pod)
    boost, quota_us = strategy.startup_boost, container.requested.cpu_quota_us or 0
    added_us = amount_us(quota_us, boost.limit_percent)
    if quota_us <= 0 or added_us <= 0:
        return None
    source = strategy_source(strategy.provenance, _PERCENT, _PERCENT)
    reason = Reason("CPU quota ", quota_us, " x ", boost.limit_percent, " % ", *source, " - ", quota_us)
    period_us = container.requested.cpu_period_us or CPU_PERIOD_US
    return WantedBoost(quota_us, period_us, added_us, float(boost.max_seconds), reason.then(" = ", added_us))


class StartupBoost(Policy):
    """Says how much is added to the quotas of containers that start."""

    name: ClassVar[str] = "startup-boost"
    selector: ClassVar[PodSelector] = PodSelector(qos_classes=_CLASSES)
    selector_without: ClassVar[Mapping[Input, PodSelector]] = {
        Input.STRATEGIES: PodSelector(qos_classes=_CLASSES, annotations=(STARTUP_BOOST,))
    }
    inputs: ClassVar[frozenset[Input]] = frozenset({Input.STRATEGIES})
    strategy_parts: ClassVar[frozenset[str]] = frozenset({"startup_boost"})
    priority: ClassVar[int] = 52
    is_default: ClassVar[bool] = False

    def __init__(self) -> None:
        self.wanted_boost = wanted_boost

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the problems of the annotation; the boost itself is no value of the container."""
        if STARTUP_BOOST not in container.pod.annotations:
            return None
        problems = node.strategy_for(container.pod).problems_of(STARTUP_BOOST)
        if not container.pod.has_container_cgroups:
            problems = (*problems, f"{STARTUP_BOOST}: {_IN_VM}")
        return ContainerChange(problems=problems) if problems else None
