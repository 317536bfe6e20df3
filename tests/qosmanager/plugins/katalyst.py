"""Pods and pools of Katalyst for tests of its eviction plugins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runtimeproxy.katalyst.names import RECLAIMED_MEMORY, RECLAIMED_MILLICPU, QosLevel
from runtimeproxy.qos import QoSClass
from runtimeproxy.qosmanager.conditions import ConditionPlugin, ConditionState
from runtimeproxy.qosmanager.plugin import Decision, PluginContext
from runtimeproxy.qosmanager.snapshot import (
    CpuPools,
    KatalystTraits,
    Measured,
    Metric,
    Pod,
    PoolAdvice,
    PoolMember,
    Snapshot,
    Window,
)
from tests.qosmanager.snapshots import FixedMetrics, container_of, node_of, pod_of

GIB = 1 << 30
SHARED = "shared_cores"


class KatalystMetrics(FixedMetrics):
    """Samples that do not change, those of NUMA nodes and CPUs, too.

    Attributes:
        numa: By cgroup: memory by NUMA node.
        cpus: Tasks that run or wait, by CPU.
        measured_s: When all of that was measured; None: now.
    """

    def __init__(self, values: Mapping[tuple[str, Metric], float | Window] | None = None) -> None:
        super().__init__(values)
        self.numa: dict[str, Mapping[int, float]] = {}
        self.cpus: Mapping[int, float] = {}
        self.measured_s: float | None = None

    def measured(self, cgroup: str, metric: Metric, length_s: float) -> Measured | None:
        parts = self.numa.get(cgroup) if metric is Metric.MEMORY_NUMA else None
        value = next(iter(parts.values())) if parts else self.last(cgroup, metric, length_s)
        return None if value is None else Measured(value, self.measured_s)

    def numa_windows(self, cgroup: str, length_s: float) -> Mapping[int, Window]:
        return _windows(self.numa.get(cgroup, {}))

    def cpu_windows(self, length_s: float) -> Mapping[int, Window]:
        return _windows(self.cpus)


def _windows(values: Mapping[int, float]) -> dict[int, Window]:
    return {part: Window(value, value, value, value, value, value, 1) for part, value in values.items()}


def reclaimed(
    name: str,
    millicpu: int | None = None,
    memory: int | None = None,
    *,
    tolerance: float | None = None,
    **fields: Any,
) -> Pod:
    """A pod of `reclaimed_cores`; a request that is None is not known."""
    requests = {RECLAIMED_MILLICPU: millicpu, RECLAIMED_MEMORY: memory}
    known = {resource: amount for resource, amount in requests.items() if amount is not None}
    fields.setdefault("katalyst", KatalystTraits(QosLevel.RECLAIMED, suppression_tolerance_rate=tolerance))
    return pod_of(name, QoSClass.BE, containers=(container_of(name, requests=known),), **fields)


def shared(name: str, memory: int | None = None, **fields: Any) -> Pod:
    requests = {} if memory is None else {"memory": memory}
    fields.setdefault("katalyst", KatalystTraits(SHARED))
    return pod_of(name, containers=(container_of(name, requests=requests),), **fields)


def pools_of(
    pools: Mapping[str, int],
    members: Mapping[str, Iterable[Pod]] | None = None,
    headroom: tuple[int, int] | None = None,
    **fields: Any,
) -> CpuPools:
    """Pools of so many CPUs each, one after the other; `members` are pods of `shared_cores` by pool."""
    found: dict[str, frozenset[int]] = {}
    for name, size in pools.items():
        start = sum(map(len, found.values()))
        found[name] = frozenset(range(start, start + size))
    there = {pod.uid: PoolMember(SHARED, pool) for pool, pods in (members or {}).items() for pod in pods}
    advice = {} if headroom is None else {"reclaim": PoolAdvice(None, None, *headroom)}
    return CpuPools(pools=found, members=there, advice=advice, **fields)


class Driver:
    """Runs a plugin check by check."""

    def __init__(self, plugin: ConditionPlugin[Any], **options: Any) -> None:
        self.plugin = plugin
        assert plugin.options_type is not None
        made = plugin.options_type(**options)
        self.state: ConditionState = plugin.setup(PluginContext(gates={}, options=made))
        self.metrics = KatalystMetrics()
        self.pods: list[Pod] = []
        self.node: dict[str, Any] = {}
        self.be_limit_cores: float | None = None

    def at(self, now_s: float) -> Decision[Any]:
        snapshot = Snapshot(
            now_s=now_s,
            pods=tuple(self.pods),
            node=node_of(16, **self.node),
            metrics=self.metrics,
            be_limit_cores=self.be_limit_cores,
        )
        decision = self.plugin.run(snapshot, self.state)
        self.state = decision.state
        return decision

    def through(self, start_s: float, end_s: float, step_s: float = 5.0) -> list[tuple[float, str]]:
        """Checks each few seconds; the evictions with their times, after which the pods are gone."""
        found: list[tuple[float, str]] = []
        for step in range(round((end_s - start_s) / step_s) + 1):
            now_s = start_s + step * step_s
            gone = [each.pod_uid for each in self.at(now_s).evictions]
            found += ((now_s, uid) for uid in gone)
            self.pods = [pod for pod in self.pods if pod.uid not in gone]
        return found
