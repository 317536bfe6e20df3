"""Katalyst's memory pressure: the free memory of the node or of a NUMA node is below the watermark.

Below the watermark a pod of `reclaimed_cores` goes; of a NUMA node that is below it four times in a row, and
while kswapd reclaims more than 2,000 pages a second for two minutes, any pod: those of `reclaimed_cores`
first, then by priority, then the one that uses about as much as is missing. Pods without a level of
Katalyst's are left alone.
Source: katalyst-core pkg/agent/evictionmanager/plugin/memory: system_pressure.go, numa_pressure.go,
helper.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated, Any, ClassVar, Final

from runtimeproxy.config.settings import Within
from runtimeproxy.katalyst.names import QosLevel
from runtimeproxy.qosmanager.conditions import (
    FRESH_S,
    SYNC_S,
    CheckResult,
    ConditionPlugin,
    ConditionState,
    MetThreshold,
    Setting,
    Victim,
    fresh,
    fresh_value,
    may_go,
    nearest_in_turn,
)
from runtimeproxy.qosmanager.eviction import Allowance, EvictOptions
from runtimeproxy.qosmanager.plugin import Need
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, Level, Metric, Pod, Snapshot

_MIB: Final = 1 << 20
_WHOLE_SCALE: Final = 10_000
"""Source: Linux Documentation/admin-guide/sysctl/vm.rst, watermark_scale_factor."""


@dataclass(frozen=True, slots=True)
class MemoryPressureOptions(EvictOptions):
    """`[plugins.katalyst-memory-pressure.options]`."""

    system: bool = True
    """Whether the whole node is checked."""
    numa: bool = True
    """Whether each NUMA node is."""
    least_free_bytes: Annotated[int, Within(0, 1 << 50)] = 0
    """The watermark of the node is at least so much."""
    numa_times: Annotated[int, Within(1, 1_000)] = 4
    """Measurements in a row, at most one in a check, at which a NUMA node has to be below its watermark
    before any pod goes."""
    numa_least_share: Annotated[float, Within(0, 1)] = 0.001
    """A pod that uses less of a NUMA node's memory stays. Source: katalyst-core,
    DefaultNumaVictimMinimumUtilizationThreshold."""
    kswapd_pages_per_second: Annotated[float, Within(0, 1e9)] = 2_000.0
    kswapd_seconds: Annotated[float, Within(0, 86_400)] = 120.0
    """How long kswapd has to reclaim as much before any pod goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPressureState(ConditionState):
    """Evictions, and how often NUMA nodes were below their watermark."""

    below: Mapping[int, int] = field(default_factory=dict)
    """By NUMA node: how often in a row."""
    numa_measured_s: float = -inf
    """When that was measured by which they were counted last."""


def watermark_bytes(total: float, scale: float, least: float = 0.0) -> float:
    """Return below which free memory is short. Source: there, detectSystemWatermarkPressure."""
    return max(total * scale / _WHOLE_SCALE, least)


class KatalystMemoryPressure(ConditionPlugin[MemoryPressureState]):
    """Evicts a pod while memory is short."""

    name: ClassVar[str] = "katalyst-memory-pressure"
    options_type: ClassVar[type[Any] | None] = MemoryPressureOptions
    state_type = MemoryPressureState
    is_one_in_a_check: ClassVar[bool] = True
    settings: ClassVar[Mapping[str, Setting]] = {
        f"memory_pressure_eviction_config.{name}": Setting(option)
        for name, option in (
            ("enable_system_level_eviction", "system"),
            ("enable_numa_level_eviction", "numa"),
            ("numa_victim_minimum_utilization_threshold", "numa_least_share"),
            ("numa_free_below_watermark_times_threshold", "numa_times"),
            ("system_kswapd_rate_threshold", "kswapd_pages_per_second"),
            ("system_kswapd_rate_exceed_duration_threshold", "kswapd_seconds"),
            ("system_free_memory_threshold_minimum", "least_free_bytes"),
        )
    }
    needs: ClassVar[frozenset[Need]] = frozenset(
        {
            *(
                Need(Level.NODE, metric, FRESH_S)
                for metric in (
                    Metric.MEMORY_FREE,
                    Metric.MEMORY_TOTAL,
                    Metric.WATERMARK_SCALE,
                    Metric.KSWAPD_STEAL,
                    Metric.MEMORY_NUMA,
                )
            ),
            Need(Level.POD, Metric.MEMORY_USAGE, FRESH_S),
            # It orders pods only, and the files are long.
            Need(Level.POD, Metric.MEMORY_NUMA, FRESH_S, every_s=SYNC_S),
        }
    )

    def begun_anew(self, state: MemoryPressureState) -> MemoryPressureState:
        return replace(super().begun_anew(state), below={}, numa_measured_s=-inf)

    def find(
        self, snapshot: Snapshot, state: MemoryPressureState, free: Allowance
    ) -> CheckResult[MemoryPressureState]:
        options = state.options
        assert isinstance(options, MemoryPressureOptions)  # noqa: S101 - see `options_type`
        findings: list[MetThreshold] = []
        notes: list[str] = []
        if options.system:
            self._check_node(snapshot, options, state, free, findings, notes)
        state = replace(state, below=state.below if options.numa else {})
        if options.numa:
            state = self._check_numa_nodes(snapshot, options, state, free, findings, notes)
        return CheckResult(state, findings, notes)

    def _check_node(
        self,
        snapshot: Snapshot,
        options: MemoryPressureOptions,
        state: MemoryPressureState,
        free: Allowance,
        findings: list[MetThreshold],
        notes: list[str],
    ) -> None:
        known: dict[str, float | None] = {}

        def usage_of(pod: Pod) -> float | None:
            # Of the watermark and of kswapd.
            if pod.uid not in known:
                known[pod.uid] = fresh_value(snapshot, pod.cgroup, Metric.MEMORY_USAGE)
            return known[pod.uid]

        there, total, scale, steal = (
            fresh(snapshot, NODE_CGROUP, metric)
            for metric in (
                Metric.MEMORY_FREE,
                Metric.MEMORY_TOTAL,
                Metric.WATERMARK_SCALE,
                Metric.KSWAPD_STEAL,
            )
        )
        if there is None or total is None or scale is None:
            notes.append("the node's free memory or watermark has no fresh sample")
        else:
            mark = watermark_bytes(total.value, scale.value, options.least_free_bytes)
            figures = (
                f"{there.value / _MIB:.0f} MiB free of {total.value / _MIB:.0f}, watermark {mark / _MIB:.0f}"
            )
            if there.value < mark:
                missing = mark - there.value
                victims = self._victims(snapshot, state, free, usage_of, missing, is_any=False)
                findings.append(MetThreshold("memory of the node", figures, victims, measured_s=there.at_s))
            else:
                notes.append(figures)
        if steal is None:
            notes.append("what kswapd reclaims has no fresh sample")
        elif steal.value >= options.kswapd_pages_per_second:
            arithmetic = f"{steal.value:.0f} pages a second, threshold {options.kswapd_pages_per_second:g}"
            victims = self._victims(snapshot, state, free, usage_of, inf, is_any=True)
            findings.append(
                MetThreshold(
                    "kswapd",
                    arithmetic,
                    victims,
                    hold_s=options.kswapd_seconds,
                    measured_s=steal.at_s,
                )
            )

    def _check_numa_nodes(
        self,
        snapshot: Snapshot,
        options: MemoryPressureOptions,
        state: MemoryPressureState,
        free: Allowance,
        findings: list[MetThreshold],
        notes: list[str],
    ) -> MemoryPressureState:
        """Adds findings and notes; counts how often each NUMA node was below its watermark.

        One measurement counts once, in however many checks it is the last one.
        """
        metrics, totals = snapshot.metrics, snapshot.node.memory_bytes
        scale = fresh_value(snapshot, NODE_CGROUP, Metric.WATERMARK_SCALE)
        measured = fresh(snapshot, NODE_CGROUP, Metric.MEMORY_NUMA)
        used = metrics.numa_windows(NODE_CGROUP, FRESH_S) if measured is not None else {}
        numa_nodes = sorted(totals.keys() & used.keys())
        if scale is None or measured is None or measured.at_s is None or not numa_nodes:
            notes.append("the NUMA nodes' free memory or watermark has no fresh sample")
            return replace(state, below={})
        is_new = measured.at_s > state.numa_measured_s
        below: dict[int, int] = {}
        for numa_node in numa_nodes:
            there, mark = totals[numa_node] - used[numa_node].last, watermark_bytes(totals[numa_node], scale)
            if there >= mark:
                continue
            below[numa_node] = max(state.below.get(numa_node, 0) + is_new, 1)
            is_any = below[numa_node] >= options.numa_times

            least = totals[numa_node] * options.numa_least_share

            def usage_of(pod: Pod, numa_node: int = numa_node, least: float = least) -> float | None:
                window = metrics.numa_windows(pod.cgroup, FRESH_S).get(numa_node)
                return None if window is None or window.last < least else window.last

            victims = self._victims(snapshot, state, free, usage_of, mark - there, is_any=is_any)
            scope = f"memory of NUMA node {numa_node}"
            arithmetic = (
                f"{there / _MIB:.0f} MiB free of {totals[numa_node] / _MIB:.0f}, watermark "
                f"{mark / _MIB:.0f}, {below[numa_node]} times in a row of {options.numa_times}"
            )
            findings.append(MetThreshold(scope, arithmetic, victims, measured_s=measured.at_s))
        return replace(state, below=below, numa_measured_s=measured.at_s)

    def _victims(
        self,
        snapshot: Snapshot,
        state: MemoryPressureState,
        free: Allowance,
        usage_of: Callable[[Pod], float | None],
        missing: float,
        *,
        is_any: bool,
    ) -> list[Victim]:
        """The pods that may go, in their order, with what each uses; none while enough terminates."""
        used = {pod.uid: amount for pod in snapshot.pods if (amount := usage_of(pod))}
        ending = sum(used.get(uid, 0.0) for uid in free.terminating)
        if ending >= missing or (missing == inf and free.terminating):
            return []
        pods = [
            pod
            for pod in snapshot.pods
            if pod.katalyst is not None
            and pod.uid in used
            and (is_any or pod.katalyst.level == QosLevel.RECLAIMED)
            and may_go(pod, self.name, free)
        ]
        # Of kswapd it is not known how much is missing: the largest one.
        wanted = missing - ending if missing < inf else max((used[pod.uid] for pod in pods), default=0.0)
        ordered = nearest_in_turn(pods, lambda pod: used[pod.uid], wanted, state.services, _rank)
        return [Victim(pod, f"this pod uses {used[pod.uid] / _MIB:.0f} MiB") for pod in ordered]


def _rank(pod: Pod) -> tuple[int, ...]:
    """Source: there, DefaultSystemEvictionRankingMetrics: level, then priority."""
    is_reclaimed = pod.katalyst is not None and pod.katalyst.level == QosLevel.RECLAIMED
    return 0 if is_reclaimed else 1, pod.priority_value
