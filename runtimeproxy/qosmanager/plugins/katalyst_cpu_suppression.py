"""Katalyst's CPU suppression: pods of `reclaimed_cores` that tolerate less than they are suppressed.

All of them together request more CPU than there is for them; the ratio is the suppression rate. A pod goes if
the rate has been above what it tolerates for some minutes: the larger request first, then the lower priority.
Source: katalyst-core pkg/agent/qrm-plugins/cpu/dynamicpolicy/cpueviction/strategy/pressure_suppression.go.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated, Any, ClassVar, NamedTuple

from runtimeproxy.config.settings import Within
from runtimeproxy.katalyst.names import RECLAIM, RECLAIMED_MILLICPU
from runtimeproxy.qosmanager.conditions import (
    UNKNOWN_REQUEST,
    CheckResult,
    ConditionPlugin,
    ConditionState,
    MetThreshold,
    Setting,
    Victim,
    from_duration,
    may_go,
    reclaimed_pods,
    requests_by_pod,
)
from runtimeproxy.qosmanager.eviction import Allowance, EvictOptions
from runtimeproxy.qosmanager.snapshot import Pod, Snapshot


@dataclass(frozen=True, slots=True)
class SuppressionOptions(EvictOptions):
    """`[plugins.katalyst-cpu-suppression.options]`."""

    max_tolerance_rate: Annotated[float, Within(0, 1_000)] = 5.0
    """What any pod tolerates at most, and one that says nothing."""
    hold_seconds: Annotated[float, Within(0, 86_400)] = 300.0
    """How long the rate has to be above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuppressionState(ConditionState):
    """Evictions, and since when pods are suppressed."""

    suppressed_s: Mapping[str, float] = field(default_factory=dict)
    """By uid: since when the rate is above what the pod tolerates."""


class Reclaimed(NamedTuple):
    """A pod of `reclaimed_cores`."""

    uid: str
    millicpu: int
    """Its request."""
    tolerance_rate: float
    priority: int = 0
    is_victim: bool = True
    """Whether it may be evicted."""


class Suppressed(NamedTuple):
    """What the rate leads to."""

    since_s: Mapping[str, float]
    """See `SuppressionState.suppressed_s`."""
    victims: Mapping[str, float]
    """The pods to evict, by uid in their order: the rate at which each is chosen."""


def suppressed(
    pods: Sequence[Reclaimed],
    supply_millicpu: float,
    since_s: Mapping[str, float],
    now_s: float,
    hold_s: float,
    going: Collection[str] = (),
) -> Suppressed:
    """Return which pods to evict; each one that goes lowers the rate for those after it.

    Args:
        pods: All of `reclaimed_cores`.
        supply_millicpu: What there is for them, above 0.
        since_s: Of the check before.
        now_s: The present.
        hold_s: How long the rate has to be above a pod's tolerance; it has to be longer.
        going: Those that terminate: their requests are free already.
    """
    staying = [pod for pod in pods if pod.uid not in going]
    total = sum(pod.millicpu for pod in staying)
    found: dict[str, float] = {}
    victims: dict[str, float] = {}
    for pod in sorted(staying, key=lambda pod: (-pod.millicpu, pod.priority, pod.uid)):
        rate = total / supply_millicpu
        if rate <= pod.tolerance_rate:
            continue
        found[pod.uid] = since_s.get(pod.uid, now_s)
        if now_s - found[pod.uid] > hold_s and pod.is_victim:
            victims[pod.uid] = rate
            total -= pod.millicpu
    return Suppressed(found, victims)


class Supply(NamedTuple):
    """CPU for all pods of `reclaimed_cores`."""

    millicpu: float
    reason: str


def supply_of(snapshot: Snapshot) -> Supply | str:
    """Return what there is for them, or why that is not known.

    The pool `reclaim`, or less: what a quota bounds, and where it overlaps with pools of `shared_cores`, the
    headroom that an advisor leaves (katalyst-core PR #660: the rate was too low with overlap).
    """
    pools = snapshot.node.cpu_pools
    cpus = len(pools.pools.get(RECLAIM, ())) if pools is not None else 0
    if pools is None or not cpus:
        return "the pool reclaim is not known: the policy katalyst-pools is off"
    supply = Supply(cpus * 1_000.0, f"{cpus} CPUs in the pool reclaim")
    limit, headroom = snapshot.be_limit_cores, pools.headroom
    if limit is not None and limit * 1_000 < supply.millicpu:
        supply = Supply(limit * 1_000, f"{limit:g} CPUs by the bound on all BE pods")
    if pools.overlap and headroom is not None and headroom.cpu_millicores < supply.millicpu:
        supply = Supply(float(headroom.cpu_millicores), f"{headroom.cpu_millicores}m headroom")
    return supply if supply.millicpu > 0 else f"there is nothing for them: {supply.reason}"


class KatalystCpuSuppression(ConditionPlugin[SuppressionState]):
    """Evicts pods that are suppressed more, for longer, than they tolerate."""

    name: ClassVar[str] = "katalyst-cpu-suppression"
    options_type: ClassVar[type[Any] | None] = SuppressionOptions
    state_type = SuppressionState
    settings: ClassVar[Mapping[str, Setting]] = {
        "cpu_pressure_eviction_config.max_suppression_tolerance_rate": Setting("max_tolerance_rate"),
        "cpu_pressure_eviction_config.min_suppression_tolerance_duration": from_duration("hold_seconds"),
    }

    def begun_anew(self, state: SuppressionState) -> SuppressionState:
        return replace(super().begun_anew(state), suppressed_s={})

    def find(
        self, snapshot: Snapshot, state: SuppressionState, free: Allowance
    ) -> CheckResult[SuppressionState]:
        options = state.options
        assert isinstance(options, SuppressionOptions)  # noqa: S101 - see `options_type`
        supply = supply_of(snapshot)
        if isinstance(supply, str):
            return CheckResult(replace(state, suppressed_s={}), (), (supply,))
        there = reclaimed_pods(snapshot.pods)
        requests, unknown = requests_by_pod(there, RECLAIMED_MILLICPU)
        left_out = {f"its {RECLAIMED_MILLICPU} is not known: {UNKNOWN_REQUEST}": unknown} if unknown else {}
        by_uid = {pod.uid: pod for pod in there if pod.uid in requests}
        pods = [
            Reclaimed(
                uid,
                requests[uid],
                tolerance_of(pod, options.max_tolerance_rate),
                pod.priority_value,
                may_go(pod, self.name, free),
            )
            for uid, pod in by_uid.items()
        ]
        result = suppressed(
            pods, supply.millicpu, state.suppressed_s, snapshot.now_s, options.hold_seconds, free.terminating
        )
        total = sum(amount for uid, amount in requests.items() if uid not in free.terminating)
        figures = (
            f"reclaimed_cores request {total}m of {supply.millicpu:.0f}m ({supply.reason}), "
            f"rate {total / supply.millicpu:.2f}"
        )
        state = replace(state, suppressed_s=result.since_s)
        if not result.since_s:
            return CheckResult(state, (), (figures,), left_out)
        longest_s = snapshot.now_s - min(result.since_s.values())
        if not result.victims:
            waiting = (
                f"{figures}: above what {len(result.since_s)} pods tolerate, for {longest_s:.0f} s of "
                f"{options.hold_seconds:.0f} s"
            )
            return CheckResult(state, (), (waiting,), left_out)
        tolerances = {pod.uid: pod.tolerance_rate for pod in pods}
        victims = [
            Victim(
                by_uid[uid],
                f"rate {rate:.2f} above its tolerance {tolerances[uid]:g} for "
                f"{snapshot.now_s - result.since_s[uid]:.0f} s, this pod requests {requests[uid]}m",
            )
            for uid, rate in result.victims.items()
        ]
        return CheckResult(
            state, (MetThreshold("CPU suppression", figures, victims, most=len(victims)),), (), left_out
        )


def tolerance_of(pod: Pod, most: float) -> float:
    """Return the rate that a pod tolerates. Source: there, getPodToleranceRate."""
    rate = pod.katalyst.suppression_tolerance_rate if pod.katalyst is not None else None
    return min(inf if rate is None else rate, most)
