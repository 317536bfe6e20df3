"""Memory evict: pods that have to go before the node runs out of memory.

Three features (Koordinator pkg/koordlet/qosmanager/plugins/memoryevict), each with a gate of its own:

- `BEMemoryEvict`: memory usage of the node is above a threshold; BE pods go;
- `MemoryEvict`: the same; pods up to a priority go that allow it;
- `MemoryAllocatableEvict`: pods of low priority request more than a share of what is allocatable.

Unlike in Koordinator, what a pod releases is counted in bytes as it is, not a thousand times, and a pod that
would release less than 1 MiB stays: evicting it would not help.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from runtimeproxy.qosmanager.eviction import EvictPlugin, EvictState, ReleaseTask
from runtimeproxy.qosmanager.plugin import Need
from runtimeproxy.qosmanager.snapshot import LOOK_BACK_S, Level, Metric, Snapshot
from runtimeproxy.slo.dynamic import GATES

COOL_S: Final = 4.0
"""Between two evictions, and after the start. Source: Koordinator pkg/koordlet/qosmanager/framework."""
_MIB: Final = 1 << 20


class MemoryEvict(EvictPlugin[EvictState]):
    """Evicts pods of low priority while memory is short."""

    name: ClassVar[str] = "memory-evict"
    gates: ClassVar[tuple[str, ...]] = GATES["memory-evict"]
    resource: ClassVar[str] = "memory"
    cool_s: ClassVar[float] = COOL_S
    least: ClassVar[int] = _MIB
    state_type = EvictState
    needs: ClassVar[frozenset[Need]] = frozenset(
        Need(level, Metric.MEMORY_USAGE, LOOK_BACK_S) for level in (Level.NODE, Level.POD)
    )

    def usage(self, snapshot: Snapshot, cgroup: str) -> float | None:
        return snapshot.metrics.last(cgroup, Metric.MEMORY_USAGE, LOOK_BACK_S)

    def text_of(self, amount: float) -> str:
        return f"{amount / _MIB:.0f} MiB"

    def tasks(self, snapshot: Snapshot, state: EvictState) -> Iterator[ReleaseTask | None]:
        strategy = snapshot.strategies.threshold
        threshold, lower = strategy.memory_evict_threshold_percent, strategy.memory_evict_lower_percent
        yield self.usage_task(snapshot, "BEMemoryEvict", threshold, lower, None)
        yield self.allocatable_task(
            snapshot,
            "MemoryAllocatableEvict",
            strategy.memory_allocatable_evict_threshold_percent,
            strategy.memory_allocatable_evict_lower_percent,
        )
        # Without a highest priority this feature has no pods.
        if (priority := strategy.evict_enabled_priority_threshold) is not None:
            yield self.usage_task(snapshot, "MemoryEvict", threshold, lower, priority)
