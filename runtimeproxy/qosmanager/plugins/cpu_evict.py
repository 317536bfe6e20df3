"""CPU evict: BE pods that get too little of what they request, and pods of low priority on a busy node.

Three features, each with a gate of its own (policies spec 3.3):

- `BECPUEvict`: what is left to BE pods is far below what they request, and they use all of it;
- `CPUAllocatableEvict`: pods of low priority request more than a share of what is allocatable;
- `CPUEvict`: the node's CPU usage is above a threshold.

Unlike in Koordinator, requests of native `cpu` are released in millicores, as they are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, NamedTuple

from runtimeproxy.qos import QoSClass
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
from runtimeproxy.slo.schema import CpuEvictPolicy, Threshold

COOL_S: Final = 20.0
"""Between two evictions, and after the start. Source: policies spec 3.0."""
LONGEST_WINDOW_S: Final = 300.0
"""`cpuEvictTimeWindowSeconds` above it counts as this."""
USAGE_PERCENT: Final = 90
"""Of their limit: BE pods that use less are not short of CPU. Source: policies spec 3.3."""
LEAST_LIMIT_MILLICORES: Final = 1_000
"""With less BE pods count as short whatever they use. Source: policies spec 3.3."""
BATCH_CPU: Final = "kubernetes.io/batch-cpu"
USED: Final = "used cpu"


class BeCpu(NamedTuple):
    """CPU of all BE pods together, in millicores."""

    limit: float
    used: float
    request: float


def satisfaction_release(
    cpu: BeCpu, lower_percent: int, upper_percent: int, usage_percent: int = USAGE_PERCENT
) -> int:
    """Return the request to be released, in millicores; 0 for nothing. Source: policies spec 3.3.

    Args:
        cpu: what BE pods may use, use and request.
        lower_percent: of the request: with more of a limit nothing is released.
        upper_percent: of the request: what the limit is to be after that.
        usage_percent: of the limit, from 1,000 millicores on: using less, nothing is released.
    """
    if cpu.limit <= 0 or cpu.request <= 0:
        return 0
    if cpu.limit >= LEAST_LIMIT_MILLICORES and cpu.used * 100 < cpu.limit * usage_percent:
        return 0
    if cpu.limit * 100 > cpu.request * lower_percent:
        return 0
    return max(int(cpu.request * upper_percent / 100 - cpu.limit), 0)


def both_releases(
    average: BeCpu, last: BeCpu, lower_percent: int, upper_percent: int, usage_percent: int = USAGE_PERCENT
) -> int:
    """Return what both the average and the last sample want to be released. Source: policies spec 3.3."""
    release = satisfaction_release(average, lower_percent, upper_percent, usage_percent)
    if (average.limit, average.request) == (last.limit, last.request):
        return release
    return min(release, satisfaction_release(last, lower_percent, upper_percent, usage_percent))


def has_enough_samples(count: int, window_s: float, interval_s: float = 1.0) -> bool:
    """Return whether samples cover a third of the window. Source: policies spec 3.3."""
    return count * interval_s * 3 >= window_s


class BeSample(NamedTuple):
    """What BE pods had in one round."""

    at_s: float
    limit: float
    request: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuEvictState(EvictState):
    """What was evicted, and what BE pods had."""

    samples: tuple[BeSample, ...] = ()
    """Of the window."""


class CpuEvict(Plugin[CpuEvictState]):
    """Evicts pods of low priority that are short of CPU, or leave others short of it."""

    name: ClassVar[str] = "cpu-evict"
    gates: ClassVar[tuple[str, ...]] = ("BECPUEvict", "CPUAllocatableEvict", "CPUEvict")
    default_mode: ClassVar[Mode] = Mode.DRY_RUN
    options_type: ClassVar[type[Any] | None] = EvictOptions
    needs: ClassVar[frozenset[Need]] = frozenset(
        Need(level, Metric.CPU_USAGE, LONGEST_WINDOW_S) for level in (Level.NODE, Level.POD)
    )

    def setup(self, context: PluginContext) -> CpuEvictState:
        """Nothing was evicted yet."""
        gates = frozenset(name for name in self.gates if context.gates.get(name, False))
        return CpuEvictState(options=context.options or EvictOptions(), gates=gates)

    def is_enabled(self, snapshot: Snapshot) -> bool:
        """Whether the strategy wants it."""
        return snapshot.strategies.threshold.enable

    def run(self, snapshot: Snapshot, state: CpuEvictState) -> Decision[CpuEvictState]:
        """Which pods to evict now."""
        now_s = snapshot.now_s
        window_s = window_of(snapshot.strategies.threshold)
        samples = tuple(each for each in state.samples if each.at_s > now_s - window_s)
        samples += (_sample_of(snapshot),)
        cool_until_s = now_s + COOL_S if state.cool_until_s is None else state.cool_until_s
        state = replace(state, samples=samples, cool_until_s=cool_until_s)
        if now_s < cool_until_s:
            return Decision(state, explanation=f"cooling for {cool_until_s - now_s:.0f} s")
        tasks = tuple(self._tasks(snapshot, state, window_s))
        choice = choose(tasks, snapshot, state, lambda pod: _releases(snapshot, pod, window_s), _millicores)
        if choice.evictions:
            cool_until_s = now_s + COOL_S
        after = replace(state, evicted=choice.evicted, cool_until_s=cool_until_s)
        return Decision(after, (), choice.evictions, choice.explanation)

    def on_evictions(
        self, results: Sequence[EvictionResult], snapshot: Snapshot, state: CpuEvictState
    ) -> CpuEvictState:
        """What was not carried out does not count as released."""
        return with_results(state, results, snapshot.now_s)

    def _tasks(self, snapshot: Snapshot, state: CpuEvictState, window_s: float) -> Iterable[Task]:
        threshold = snapshot.strategies.threshold
        found = (
            _by_satisfaction(snapshot, state.samples, window_s),
            allocatable_task(
                snapshot.pods,
                "CPUAllocatableEvict",
                "cpu",
                snapshot.node.allocatable,
                (
                    threshold.cpu_allocatable_evict_threshold_percent,
                    threshold.cpu_allocatable_evict_lower_percent,
                    threshold.allocatable_evict_priority_threshold,
                ),
                _millicores,
            ),
            _by_usage(snapshot, window_s),
        )
        return (task for task in found if task is not None and task.feature in state.gates)


def window_of(threshold: Threshold) -> float:
    """The time over which usage is averaged, in seconds."""
    return float(min(max(threshold.cpu_evict_time_window_seconds or 1, 1), LONGEST_WINDOW_S))


def _millicores(amount: int) -> str:
    return f"{amount}m"


def _be_pods(snapshot: Snapshot) -> list[Pod]:
    return [pod for pod in snapshot.pods if pod.qos is QoSClass.BE]


def _sample_of(snapshot: Snapshot) -> BeSample:
    request = sum(request_of(pod, BATCH_CPU) for pod in _be_pods(snapshot))
    if snapshot.strategies.threshold.cpu_evict_policy is CpuEvictPolicy.ALLOCATABLE:
        limit = float(snapshot.node.allocatable.get(BATCH_CPU, -1))
        # Nothing is allocatable: they are as short as can be.
        return BeSample(snapshot.now_s, limit or 1.0, request)
    cores = len(snapshot.node.cpus) if snapshot.be_limit_cores is None else snapshot.be_limit_cores
    return BeSample(snapshot.now_s, cores * 1_000, request)


def _by_satisfaction(snapshot: Snapshot, samples: Sequence[BeSample], window_s: float) -> Task | None:
    threshold = snapshot.strategies.threshold
    lower = threshold.cpu_evict_be_satisfaction_lower_percent
    upper = threshold.cpu_evict_be_satisfaction_upper_percent
    if lower is None or upper is None or not (0 < lower <= 60 and lower <= upper < 100):
        return None
    pods = _be_pods(snapshot)
    windows = [snapshot.metrics.window(pod.cgroup, Metric.CPU_USAGE, window_s) for pod in pods]
    used = [each for each in windows if each is not None]
    if not used or not has_enough_samples(min(len(samples), max(each.count for each in used)), window_s):
        return None
    percent = threshold.cpu_evict_be_usage_threshold_percent
    count = len(samples)
    average = BeCpu(
        sum(each.limit for each in samples) / count,
        sum(each.avg for each in used) * 1_000,
        sum(each.request for each in samples) / count,
    )
    last = BeCpu(samples[-1].limit, sum(each.last for each in used) * 1_000, samples[-1].request)
    release = both_releases(average, last, lower, upper, USAGE_PERCENT if percent is None else percent)
    if not release:
        return None
    ordered = sorted(
        allowed(snapshot.pods, "BECPUEvict"),
        key=lambda pod: (be_priority(pod), -_used_share(snapshot, pod, window_s), pod.uid),
    )
    arithmetic = (
        f"BE pods have {average.limit:.0f}m and use {average.used:.0f}m of {average.request:.0f}m requested, "
        f"{lower} % to {upper} % wanted"
    )
    return Task("BECPUEvict", {requested_name(BATCH_CPU): release}, ordered, arithmetic)


def _used_millicores(snapshot: Snapshot, pod: Pod, window_s: float) -> int | None:
    window = snapshot.metrics.window(pod.cgroup, Metric.CPU_USAGE, window_s)
    return int(window.avg * 1_000) if window is not None else None


def _used_share(snapshot: Snapshot, pod: Pod, window_s: float) -> float:
    used, request = _used_millicores(snapshot, pod, window_s), request_of(pod, BATCH_CPU)
    return used / request if used is not None and request > 0 else 0.0


def _releases(snapshot: Snapshot, pod: Pod, window_s: float) -> Amounts:
    resource = resource_of(pod, "cpu")
    used = _used_millicores(snapshot, pod, window_s)
    return {USED: used or 0, requested_name(resource): request_of(pod, resource)}


def _by_usage(snapshot: Snapshot, window_s: float) -> Task | None:
    strategy = snapshot.strategies.threshold
    threshold, priority = strategy.cpu_evict_threshold_percent, strategy.evict_enabled_priority_threshold
    capacity = snapshot.node.capacity.get("cpu", 0)
    window = snapshot.metrics.window(NODE_CGROUP, Metric.CPU_USAGE, window_s)
    if threshold is None or priority is None or capacity <= 0 or window is None:
        return None
    lower = threshold - 2 if strategy.cpu_evict_lower_percent is None else strategy.cpu_evict_lower_percent
    if not is_threshold_pair(threshold, lower) or not has_enough_samples(window.count, window_s):
        return None
    release = usage_release(window.avg * 1_000, capacity, threshold, lower)
    if not release:
        return None
    sampled = (
        pod
        for pod in allowed(snapshot.pods, "CPUEvict", priority)
        if _used_millicores(snapshot, pod, window_s) is not None
    )
    ordered = by_priority(sampled, lambda pod: _used_millicores(snapshot, pod, window_s) or 0)
    arithmetic = f"{window.avg * 1_000:.0f}m used of {capacity}m, threshold {threshold} %, down to {lower} %"
    return Task("CPUEvict", {USED: release}, ordered, arithmetic)
