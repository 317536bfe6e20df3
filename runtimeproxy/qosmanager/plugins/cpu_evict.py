"""CPU evict: BE pods that get too little of what they request, and pods of low priority on a busy node.

Three features (Koordinator pkg/koordlet/qosmanager/plugins/cpuevict), each with a gate of its own:

- `BECPUEvict`: what is left to BE pods is far below what they request, and they use all of it;
- `CPUAllocatableEvict`: pods of low priority request more than a share of what is allocatable;
- `CPUEvict`: the node's CPU usage is above a threshold.

Unlike in Koordinator, requests of native `cpu` are released in millicores, as they are computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, NamedTuple

from runtimeproxy.qos import QoSClass
from runtimeproxy.qosmanager.eviction import (
    EvictPlugin,
    EvictState,
    ReleaseTask,
    allowed,
    request_of,
    requested_name,
)
from runtimeproxy.qosmanager.plugin import Need
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, Level, Metric, Pod, Snapshot, Window
from runtimeproxy.slo.dynamic import GATES
from runtimeproxy.slo.schema import CpuEvictPolicy, Threshold

COOL_S: Final = 20.0
"""Between two evictions, and after the start. Source: Koordinator pkg/koordlet/qosmanager/framework."""
LONGEST_WINDOW_S: Final = 300.0
"""Bounds `cpuEvictTimeWindowSeconds`."""
USAGE_PERCENT: Final = 90
"""Of their limit: BE pods that use less are not short of CPU. Source: isBECPUUsageHighEnough."""
LEAST_LIMIT_MILLICORES: Final = 1_000
"""With less BE pods are short of CPU whatever they use. Source: the same."""
BATCH_CPU: Final = "kubernetes.io/batch-cpu"


class BeCpu(NamedTuple):
    """CPU of all BE pods together, in millicores."""

    limit: float
    used: float
    request: float


def satisfaction_release(
    cpu: BeCpu, lower_percent: int, upper_percent: int, usage_percent: int = USAGE_PERCENT
) -> int:
    """Return the request to be released, in millicores; 0 for nothing.

    Source: calculateResourceMilliToReleaseBySatisfaction.

    Args:
        cpu: limit, usage and request of all BE pods.
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
    """Return what both the average and the last sample want to be released. Source: cpu_evict.go."""
    release = satisfaction_release(average, lower_percent, upper_percent, usage_percent)
    if (average.limit, average.request) == (last.limit, last.request):
        return release
    return min(release, satisfaction_release(last, lower_percent, upper_percent, usage_percent))


def has_enough_samples(count: int, window_s: float) -> bool:
    # There is a sample each second.
    return count * 3 >= window_s


class BeSample(NamedTuple):
    """Limit and request of BE pods in one round."""

    at_s: float
    limit: float
    request: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuEvictState(EvictState):
    """Evictions, and the samples of BE pods."""

    samples: tuple[BeSample, ...] = ()


class CpuEvict(EvictPlugin[CpuEvictState]):
    """Evicts pods of low priority that are short of CPU, or leave others short of it."""

    name: ClassVar[str] = "cpu-evict"
    gates: ClassVar[tuple[str, ...]] = GATES["cpu-evict"]
    resource: ClassVar[str] = "cpu"
    cool_s: ClassVar[float] = COOL_S
    state_type = CpuEvictState
    needs: ClassVar[frozenset[Need]] = frozenset(
        Need(level, Metric.CPU_USAGE, LONGEST_WINDOW_S) for level in (Level.NODE, Level.POD)
    )

    def usage(self, snapshot: Snapshot, cgroup: str) -> float | None:
        window = _window(snapshot, cgroup)
        return None if window is None else window.avg * 1_000

    def text_of(self, amount: float) -> str:
        return f"{amount:.0f}m"

    def observed(self, snapshot: Snapshot, state: CpuEvictState) -> CpuEvictState:
        """The state with what BE pods have now."""
        start_s = snapshot.now_s - window_of(snapshot.strategies.threshold)
        samples = (each for each in state.samples if each.at_s > start_s)
        return replace(state, samples=(*samples, _sample_of(snapshot)))

    def tasks(self, snapshot: Snapshot, state: CpuEvictState) -> Iterator[ReleaseTask | None]:
        strategy = snapshot.strategies.threshold
        yield _by_satisfaction(snapshot, state.samples)
        yield self.allocatable_task(
            snapshot,
            "CPUAllocatableEvict",
            strategy.cpu_allocatable_evict_threshold_percent,
            strategy.cpu_allocatable_evict_lower_percent,
        )
        threshold, priority = strategy.cpu_evict_threshold_percent, strategy.evict_enabled_priority_threshold
        window = _window(snapshot, NODE_CGROUP)
        if threshold is None or priority is None or window is None:
            return
        if has_enough_samples(window.count, window_of(strategy)):
            lower = strategy.cpu_evict_lower_percent
            yield self.usage_task(snapshot, "CPUEvict", threshold, lower, priority)


def window_of(threshold: Threshold) -> float:
    return float(min(max(threshold.cpu_evict_time_window_seconds or 1, 1), LONGEST_WINDOW_S))


def _window(snapshot: Snapshot, cgroup: str) -> Window | None:
    window_s = window_of(snapshot.strategies.threshold)
    return snapshot.metrics.window(cgroup, Metric.CPU_USAGE, window_s)


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


def _by_satisfaction(snapshot: Snapshot, samples: Sequence[BeSample]) -> ReleaseTask | None:
    threshold = snapshot.strategies.threshold
    lower = threshold.cpu_evict_be_satisfaction_lower_percent
    upper = threshold.cpu_evict_be_satisfaction_upper_percent
    if lower is None or upper is None or not (0 < lower <= 60 and lower <= upper < 100):
        return None
    pods = _be_pods(snapshot)
    windows = [_window(snapshot, pod.cgroup) for pod in pods]
    used = [each for each in windows if each is not None]
    most = max((each.count for each in used), default=0)
    if not used or not has_enough_samples(min(len(samples), most), window_of(threshold)):
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
        key=lambda pod: (pod.priority_value, -_used_share(snapshot, pod), pod.uid),
    )
    arithmetic = (
        f"BE pods have {average.limit:.0f}m and use {average.used:.0f}m of {average.request:.0f}m requested, "
        f"{lower} % to {upper} % wanted"
    )
    return ReleaseTask("BECPUEvict", {requested_name(BATCH_CPU): release}, ordered, arithmetic)


def _used_share(snapshot: Snapshot, pod: Pod) -> float:
    window, request = _window(snapshot, pod.cgroup), request_of(pod, BATCH_CPU)
    return int(window.avg * 1_000) / request if window is not None and request > 0 else 0.0
