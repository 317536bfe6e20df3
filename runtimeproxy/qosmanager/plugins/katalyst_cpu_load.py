"""Katalyst's CPU load: a pod of `shared_cores` goes while the load of its pool is far above its CPUs.

The load of each share pool is kept in a ring of 10, one number each 30 s. If 8 of them are above 1.8 times
the CPUs of the pool, one pod of it goes, and then none for 5 minutes; above 1.0 times it is a condition only.
Source: katalyst-core pkg/agent/qrm-plugins/cpu/dynamicpolicy/cpueviction/strategy/pressure_load.go.

The load of a pool is that of its pods where the samples have it, else the tasks that run on its CPUs or wait
for them: the kernel has no load of a cgroup. Reclaimed pods on the same CPUs count in the second one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Final, NamedTuple

from runtimeproxy.config.settings import Within
from runtimeproxy.katalyst.names import QosLevel, is_shared_pool
from runtimeproxy.qosmanager.conditions import (
    FRESH_S,
    CheckResult,
    ConditionPlugin,
    ConditionState,
    MetThreshold,
    Setting,
    Victim,
    fresh_value,
    from_duration,
    may_go,
    nearest_in_turn,
)
from runtimeproxy.qosmanager.eviction import Allowance, EvictOptions
from runtimeproxy.qosmanager.plugin import Need
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, Level, Metric, Pod, Snapshot
from runtimeproxy.units import format_cpu_list

LOAD_S: Final = 60.0
"""A load is a mean over so long, as the kernel's load of one minute."""


@dataclass(frozen=True, slots=True)
class LoadOptions(EvictOptions):
    """`[plugins.katalyst-cpu-load.options]`."""

    upper_ratio: Annotated[float, Within(1, 1_000)] = 1.8
    """Load above so many times the CPUs of the pool evicts."""
    lower_ratio: Annotated[float, Within(0, 1_000)] = 1.0
    """Load above so many times is a condition; at most `upper_ratio`."""
    met_percent: Annotated[float, Within(1, 100)] = 80.0
    """How many of the last loads have to be above."""
    ring_size: Annotated[int, Within(1, 1_000)] = 10
    sample_seconds: Annotated[float, Within(5, 3_600)] = 30.0
    """Between two of them."""
    cool_seconds: Annotated[float, Within(0, 86_400)] = 300.0
    """After an eviction."""


class PoolLoad(NamedTuple):
    """The load of a pool at one moment."""

    ratio: float
    """To its CPUs."""
    load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadState(ConditionState):
    """Evictions, and the last loads."""

    rings: Mapping[str, tuple[PoolLoad, ...]] = field(default_factory=dict)
    """By pool, oldest first."""
    sampled_s: float | None = None
    """When the last one was added."""


def is_over(ratios: Sequence[float], bound: float, ring_size: int, met_percent: float) -> bool:
    """Whether enough of the loads in a ring are above a bound. Source: there, ThresholdMet."""
    return sum(ratio > bound for ratio in ratios) * 100 >= ring_size * met_percent


class KatalystCpuLoad(ConditionPlugin[LoadState]):
    """Evicts one pod of an overloaded share pool."""

    name: ClassVar[str] = "katalyst-cpu-load"
    options_type: ClassVar[type[Any] | None] = LoadOptions
    state_type = LoadState
    settings: ClassVar[Mapping[str, Setting]] = {
        f"cpu_pressure_eviction_config.{name}": setting
        for name, setting in (
            ("load_upper_bound_ratio", Setting("upper_ratio")),
            ("load_lower_bound_ratio", Setting("lower_ratio")),
            ("load_threshold_met_percentage", Setting("met_percent", lambda share: share * 100)),
            ("load_metric_ring_size", Setting("ring_size")),
            ("load_eviction_cool_down_time", from_duration("cool_seconds")),
        )
    }
    soft_options: ClassVar[Mapping[str, str]] = {"lower_ratio": "upper_ratio"}
    needs: ClassVar[frozenset[Need]] = frozenset(
        {
            Need(Level.NODE, Metric.CPU_RUNNABLE, LOAD_S),
            Need(Level.POD, Metric.CPU_LOAD, LOAD_S),
            Need(Level.POD, Metric.CPU_USAGE, LOAD_S),
        }
    )

    def begun_anew(self, state: LoadState) -> LoadState:
        return replace(super().begun_anew(state), rings={}, sampled_s=None)

    def cool_s(self, state: LoadState) -> float:
        return _options(state).cool_seconds

    def find(self, snapshot: Snapshot, state: LoadState, free: Allowance) -> CheckResult[LoadState]:
        options, pools = _options(state), snapshot.node.cpu_pools
        if pools is None:
            return CheckResult(self.begun_anew(state), (), ("the policy katalyst-pools is off",))
        shared = {name: cpus for name, cpus in sorted(pools.pools.items()) if is_shared_pool(name) and cpus}
        members = {name: _members(snapshot, name) for name in shared}
        loads = {name: load_of(snapshot, members[name], cpus) for name, cpus in shared.items()}
        unknown: dict[str, list[str]] = {}
        known: dict[str, PoolLoad] = {}
        for name, load in loads.items():
            if isinstance(load, str):
                unknown.setdefault(load, []).append(name)
            else:
                known[name] = PoolLoad(load / len(shared[name]), load)
        notes = [
            f"the load of {', '.join(names)} is not known: {reason}" for reason, names in unknown.items()
        ]
        is_due = state.sampled_s is None or snapshot.now_s - state.sampled_s >= options.sample_seconds - 0.5
        # A pool whose load is not known any more begins anew.
        rings = {name: state.rings.get(name, ()) for name in known}
        if is_due:
            rings = {name: (*ring, known[name])[-options.ring_size :] for name, ring in rings.items()}
            state = replace(state, sampled_s=snapshot.now_s)
        findings = list(self._findings(snapshot, options, rings, members, state, free))
        notes += (f"{name}: load {load:.1f} of {len(shared[name])} CPUs" for name, (_, load) in known.items())
        return CheckResult(replace(state, rings=rings), findings, notes)

    def _findings(
        self,
        snapshot: Snapshot,
        options: LoadOptions,
        rings: Mapping[str, tuple[PoolLoad, ...]],
        members: Mapping[str, Sequence[Pod]],
        state: LoadState,
        free: Allowance,
    ) -> Iterator[MetThreshold]:
        for name, ring in rings.items():
            ratios = [each.ratio for each in ring]
            bounds = ((options.upper_ratio, True), (options.lower_ratio, False))
            met = (
                each for each in bounds if is_over(ratios, each[0], options.ring_size, options.met_percent)
            )
            bound, is_hard = next(met, (0.0, False))
            if not bound:
                continue
            above = [each for each in ring if each.ratio > bound]
            arithmetic = (
                f"load above {bound:g} times its CPUs in {len(above)} of {options.ring_size} samples, "
                f"last {ratios[-1]:.2f} times"
            )
            scope = f"pool {name}"
            if not is_hard:
                yield MetThreshold(scope, arithmetic, is_hard=False)
                continue
            # What is above the bound, on the average of these samples.
            excess = sum(each.load * (1 - bound / each.ratio) for each in above) / len(above)
            amounts = {
                pod.uid: load for pod in members[name] if (load := pod_load(snapshot, pod)) is not None
            }
            pods = nearest_in_turn(
                (pod for pod in members[name] if pod.uid in amounts and may_go(pod, self.name, free)),
                lambda pod, amounts=amounts: amounts[pod.uid],  # type: ignore[misc]  # of this loop
                excess,
                state.services,
                lambda pod: (pod.priority_value,),
            )
            victims = [Victim(pod, f"{excess:.2f} too much, this pod {amounts[pod.uid]:.2f}") for pod in pods]
            yield MetThreshold(scope, arithmetic, victims)


def _options(state: LoadState) -> LoadOptions:
    assert isinstance(state.options, LoadOptions)  # noqa: S101 - see `options_type`
    return state.options


def _members(snapshot: Snapshot, pool: str) -> list[Pod]:
    pools = snapshot.node.cpu_pools
    assert pools is not None  # noqa: S101 - see the caller
    found = (pools.members.get(pod.uid) for pod in snapshot.pods)
    return [
        pod
        for pod, member in zip(snapshot.pods, found, strict=True)
        if member is not None and member.pool == pool and member.level == QosLevel.SHARED
    ]


def load_of(snapshot: Snapshot, members: Sequence[Pod], cpus: frozenset[int]) -> float | str:
    """Return the load of a pool, in tasks, or why it is not known: there are no samples, or too old ones."""
    metrics = snapshot.metrics
    of_pods = [fresh_value(snapshot, pod.cgroup, Metric.CPU_LOAD) for pod in members]
    if of_pods and None not in of_pods:
        return sum(load for load in of_pods if load is not None)
    if not metrics.cpu_windows(FRESH_S):
        return metrics.missing_reason(NODE_CGROUP, Metric.CPU_RUNNABLE)
    by_cpu = metrics.cpu_windows(LOAD_S)
    if missing := cpus - by_cpu.keys():
        return f"/proc/schedstat has no CPU {format_cpu_list(missing)}"
    return sum(by_cpu[cpu].avg for cpu in cpus)


def pod_load(snapshot: Snapshot, pod: Pod) -> float | None:
    """Return the load of a pod, else the CPUs that it uses: it waits in proportion to them."""
    load = fresh_value(snapshot, pod.cgroup, Metric.CPU_LOAD)
    if load is not None or fresh_value(snapshot, pod.cgroup, Metric.CPU_USAGE) is None:
        return load
    return snapshot.metrics.mean(pod.cgroup, Metric.CPU_USAGE, LOAD_S)
