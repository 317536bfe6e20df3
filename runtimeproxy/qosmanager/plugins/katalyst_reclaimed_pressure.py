"""Katalyst's pressure of reclaimed resources: pods of `reclaimed_cores` request far more than is allocatable.

Above 5 times what is allocatable of reclaimed CPU or memory, for a minute, one pod goes, the largest request
first; above 1.5 times (CPU) or 1.2 times (memory) it is a condition only.
Source: katalyst-core pkg/agent/evictionmanager/plugin/resource/resources.go, reclaimed_resources.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, NamedTuple

from runtimeproxy.config.settings import Within
from runtimeproxy.katalyst.eviction_config import EvictionConfig
from runtimeproxy.katalyst.names import RECLAIM, RECLAIMED_MEMORY, RECLAIMED_MILLICPU
from runtimeproxy.qosmanager.conditions import (
    UNKNOWN_REQUEST,
    CheckResult,
    ConditionPlugin,
    ConditionState,
    MetThreshold,
    Setting,
    Victim,
    may_go,
    reclaimed_pods,
    requests_by_pod,
)
from runtimeproxy.qosmanager.eviction import Allowance, EvictOptions
from runtimeproxy.qosmanager.snapshot import Pod, Snapshot

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ReclaimedOptions(EvictOptions):
    """`[plugins.katalyst-reclaimed-pressure.options]`."""

    cpu_threshold: Annotated[float, Within(0, 1_000)] = 5.0
    """Of what is allocatable."""
    memory_threshold: Annotated[float, Within(0, 1_000)] = 5.0
    cpu_soft_threshold: Annotated[float, Within(0, 1_000)] = 1.5
    """At most `cpu_threshold`; so is that of memory."""
    memory_soft_threshold: Annotated[float, Within(0, 1_000)] = 1.2
    hold_seconds: Annotated[float, Within(0, 86_400)] = 60.0
    """How long requests have to be above the threshold."""


class Allocatable(NamedTuple):
    """What of one resource is for pods of `reclaimed_cores`, in millicores or bytes."""

    amount: int
    source: str


def is_above(requested: int, allocatable: int, threshold: float) -> bool:
    return requested > allocatable * threshold


def allocatable_of(snapshot: Snapshot, resource: str) -> Allocatable | None:
    """Return what is allocatable: by an advisor, else by the Node object, else the pool; None: not known."""
    pools = snapshot.node.cpu_pools
    is_cpu = resource == RECLAIMED_MILLICPU
    if pools is not None and (headroom := pools.headroom) is not None:
        return Allocatable(headroom.cpu_millicores if is_cpu else headroom.memory_bytes, "headroom")
    if resource in snapshot.node.allocatable:
        return Allocatable(snapshot.node.allocatable[resource], "of the Node object")
    if is_cpu and pools is not None and (cpus := pools.pools.get(RECLAIM)):
        return Allocatable(len(cpus) * 1_000, "the pool reclaim")
    return None


class KatalystReclaimedPressure(ConditionPlugin[ConditionState]):
    """Evicts pods of `reclaimed_cores` while they request far more than there is."""

    name: ClassVar[str] = "katalyst-reclaimed-pressure"
    options_type: ClassVar[type[Any] | None] = ReclaimedOptions
    state_type = ConditionState
    soft_options: ClassVar[Mapping[str, str]] = {
        f"{resource}_soft_threshold": f"{resource}_threshold" for resource in ("cpu", "memory")
    }
    settings: ClassVar[Mapping[str, Setting]] = {
        "reclaimed_resources_eviction_config.threshold_met_tolerance_duration": Setting(
            "hold_seconds", float
        ),
    }

    def set_options(self, config: EvictionConfig, configured: EvictOptions) -> dict[str, float | bool]:
        found = super().set_options(config, configured)
        own = config.reclaimed_resources_eviction_config
        for infix, thresholds in (("", own.eviction_threshold), ("_soft", own.soft_eviction_threshold)):
            for resource, name in ((RECLAIMED_MILLICPU, "cpu"), (RECLAIMED_MEMORY, "memory")):
                if resource in thresholds:
                    found[f"{name}{infix}_threshold"] = thresholds[resource]
        return found

    def find(self, snapshot: Snapshot, state: ConditionState, free: Allowance) -> CheckResult[ConditionState]:
        options = state.options
        assert isinstance(options, ReclaimedOptions)  # noqa: S101 - see `options_type`
        pods = reclaimed_pods(snapshot.pods)
        findings: list[MetThreshold] = []
        notes: list[str] = []
        left_out: dict[str, list[Pod]] = {}
        for resource, hard, soft in (
            (RECLAIMED_MILLICPU, options.cpu_threshold, options.cpu_soft_threshold),
            (RECLAIMED_MEMORY, options.memory_threshold, options.memory_soft_threshold),
        ):
            short = resource.rpartition("/")[2]
            allocatable = allocatable_of(snapshot, resource)
            if allocatable is None:
                notes.append(f"{short}: what is allocatable is not known: no advisor, no Node object tells")
                continue
            requests, unknown = requests_by_pod(pods, resource)
            if unknown:
                left_out[f"its {short} is not known: {UNKNOWN_REQUEST}"] = unknown
            total = sum(amount for uid, amount in requests.items() if uid not in free.terminating)
            figures = f"{text_of(resource, total)} requested of {text_of(resource, allocatable.amount)}"
            figures = f"{figures} allocatable ({allocatable.source})"
            # Without any request nothing would be released, though nothing is allocatable.
            if is_above(total, allocatable.amount, hard):
                there = [pod for pod in pods if requests.get(pod.uid) and may_go(pod, self.name, free)]
                there.sort(key=lambda pod: (-requests[pod.uid], pod.priority_value, pod.uid))
                victims = [Victim(pod, f"this pod {text_of(resource, requests[pod.uid])}") for pod in there]
                arithmetic = f"{figures}, above {hard:g} times"
                findings.append(MetThreshold(short, arithmetic, victims, hold_s=options.hold_seconds))
            elif is_above(total, allocatable.amount, soft):
                findings.append(MetThreshold(short, f"{figures}, above {soft:g} times", is_hard=False))
            else:
                notes.append(f"{short}: {figures}")
        return CheckResult(state, findings, notes, left_out)


def text_of(resource: str, amount: int) -> str:
    return f"{amount}m" if resource == RECLAIMED_MILLICPU else f"{amount / _MIB:.0f} MiB"
