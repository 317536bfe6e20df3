"""Memory evict: pods that have to go before the node runs out of memory.

Three features, each with a gate of its own (policies spec 3.4):

- `BEMemoryEvict`: memory usage of the node is above a threshold; BE pods go;
- `MemoryEvict`: the same; pods up to a priority go that allow it;
- `MemoryAllocatableEvict`: pods of low priority request more than a share of what is allocatable.

Unlike in Koordinator, what a pod releases is counted in bytes as it is, not a thousand times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from runtimeproxy.qosmanager.eviction import (
    Amounts,
    EvictOptions,
    EvictState,
    Task,
    allocatable_task,
    allowed,
    be_priority,
    by_priority,
    choose,
    is_threshold_pair,
    request_of,
    requested_name,
    resource_of,
    usage_release,
    with_results,
)
from runtimeproxy.qosmanager.plugin import Decision, EvictionResult, Mode, Need, Plugin, PluginContext
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, Level, Metric, Pod, Snapshot

COOL_S: Final = 4.0
"""Between two evictions, and after the start. Source: policies spec 3.0."""
LOOK_BACK_S: Final = 3.0
"""How old the last sample may be."""
USED: Final = "used memory"
_MIB: Final = 1 << 20


class MemoryEvict(Plugin[EvictState]):
    """Evicts pods of low priority while memory is short."""

    name: ClassVar[str] = "memory-evict"
    gates: ClassVar[tuple[str, ...]] = ("BEMemoryEvict", "MemoryEvict", "MemoryAllocatableEvict")
    default_mode: ClassVar[Mode] = Mode.DRY_RUN
    options_type: ClassVar[type[Any] | None] = EvictOptions
    needs: ClassVar[frozenset[Need]] = frozenset(
        Need(level, Metric.MEMORY_USAGE, LOOK_BACK_S) for level in (Level.NODE, Level.POD)
    )

    def setup(self, context: PluginContext) -> EvictState:
        """Nothing was evicted yet."""
        gates = frozenset(name for name in self.gates if context.gates.get(name, False))
        return EvictState(options=context.options or EvictOptions(), gates=gates)

    def is_enabled(self, snapshot: Snapshot) -> bool:
        """Whether the strategy wants it."""
        return snapshot.strategies.threshold.enable

    def run(self, snapshot: Snapshot, state: EvictState) -> Decision[EvictState]:
        """Which pods to evict now."""
        now_s = snapshot.now_s
        cool_until_s = now_s + COOL_S if state.cool_until_s is None else state.cool_until_s
        state = replace(state, cool_until_s=cool_until_s)
        if now_s < cool_until_s:
            return Decision(state, explanation=f"cooling for {cool_until_s - now_s:.0f} s")
        tasks = tuple(self._tasks(snapshot, state))
        choice = choose(tasks, snapshot, state, lambda pod: _releases(snapshot, pod), _mebibytes)
        if choice.evictions:
            cool_until_s = now_s + COOL_S
        after = replace(state, evicted=choice.evicted, cool_until_s=cool_until_s)
        return Decision(after, (), choice.evictions, choice.explanation)

    def on_evictions(
        self, results: Sequence[EvictionResult], snapshot: Snapshot, state: EvictState
    ) -> EvictState:
        """What was not carried out does not count as released."""
        return with_results(state, results, snapshot.now_s)

    def _tasks(self, snapshot: Snapshot, state: EvictState) -> Iterable[Task]:
        threshold = snapshot.strategies.threshold
        found = (
            _by_usage(snapshot, "BEMemoryEvict", None),
            allocatable_task(
                snapshot.pods,
                "MemoryAllocatableEvict",
                "memory",
                snapshot.node.allocatable,
                (
                    threshold.memory_allocatable_evict_threshold_percent,
                    threshold.memory_allocatable_evict_lower_percent,
                    threshold.allocatable_evict_priority_threshold,
                ),
                _mebibytes,
            ),
            # Without a highest priority this feature has no pods.
            _by_usage(snapshot, "MemoryEvict", threshold.evict_enabled_priority_threshold)
            if threshold.evict_enabled_priority_threshold is not None
            else None,
        )
        return (task for task in found if task is not None and task.feature in state.gates)


def _mebibytes(amount: int) -> str:
    return f"{amount / _MIB:.0f} MiB"


def _by_usage(snapshot: Snapshot, feature: str, priority: int | None) -> Task | None:
    """The task of `BEMemoryEvict`, for which `priority` is None, or of `MemoryEvict`."""
    strategy = snapshot.strategies.threshold
    threshold, lower = strategy.memory_evict_threshold_percent, strategy.memory_evict_lower_percent
    lower = threshold - 2 if lower is None else lower
    capacity = snapshot.node.capacity.get("memory", 0)
    used = snapshot.metrics.last(NODE_CGROUP, Metric.MEMORY_USAGE, LOOK_BACK_S)
    if used is None or capacity <= 0 or not is_threshold_pair(threshold, lower):
        return None
    release = usage_release(used, capacity, threshold, lower)
    if not release:
        return None
    usage = {
        pod.uid: amount
        for pod in allowed(snapshot.pods, feature, priority)
        if (amount := snapshot.metrics.last(pod.cgroup, Metric.MEMORY_USAGE, LOOK_BACK_S)) is not None
    }
    pods = [pod for pod in snapshot.pods if pod.uid in usage]
    if priority is not None:
        pods = by_priority(pods, lambda pod: usage[pod.uid])
    else:
        pods.sort(key=lambda pod: pod.name, reverse=True)
        pods.sort(key=lambda pod: (be_priority(pod), -usage[pod.uid]))
    arithmetic = (
        f"{_mebibytes(int(used))} used of {_mebibytes(capacity)} ({int(used) * 100 // capacity} %), "
        f"threshold {threshold} %, down to {lower} %"
    )
    return Task(feature, {USED: release}, pods, arithmetic)


def _releases(snapshot: Snapshot, pod: Pod) -> Amounts:
    resource = resource_of(pod, "memory")
    used = snapshot.metrics.last(pod.cgroup, Metric.MEMORY_USAGE, LOOK_BACK_S)
    return {USED: int(used or 0), requested_name(resource): request_of(pod, resource)}
