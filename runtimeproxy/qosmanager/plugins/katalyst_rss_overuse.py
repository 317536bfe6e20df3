"""Katalyst's RSS overuse: a pod uses more memory, without page cache, than a share of what it requests.

The share is the pod's own `rss_overuse_threshold`, else 1.05. It leaves memory to the page cache of others.
Source: katalyst-core pkg/agent/evictionmanager/plugin/memory/rss_overuse.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

from runtimeproxy.config.settings import Within
from runtimeproxy.qosmanager.conditions import (
    FRESH_S,
    UNKNOWN_REQUEST,
    CheckResult,
    ConditionPlugin,
    ConditionState,
    MetThreshold,
    Setting,
    Victim,
    fresh_value,
    known_request,
    may_go,
)
from runtimeproxy.qosmanager.eviction import Allowance, EvictOptions
from runtimeproxy.qosmanager.plugin import Need
from runtimeproxy.qosmanager.snapshot import Level, Metric, Pod, Snapshot

_MIB: Final = 1 << 20
_MEMORY: Final = "memory"


@dataclass(frozen=True, slots=True)
class RssOptions(EvictOptions):
    """`[plugins.katalyst-rss-overuse.options]`."""

    threshold: Annotated[float, Within(0.01, 1_000)] = 1.05
    """Of the memory requests, for pods that say nothing."""


def is_overuse(rss: float, request: int, threshold: float) -> bool:
    return rss > request * threshold


def request_or_reason(pod: Pod) -> int | str:
    """Return the memory request of a pod, or why it is left out."""
    if pod.katalyst is not None and pod.katalyst.rss_overuse_problem:
        return "the annotation rss_overuse_threshold cannot be used"
    if pod.has_known_requests:
        for container in pod.containers:
            if not container.requests.get(_MEMORY):
                return "a container has no memory request"
    return known_request(pod, _MEMORY) or f"the memory request is not known: {UNKNOWN_REQUEST}"


class KatalystRssOveruse(ConditionPlugin[ConditionState]):
    """Evicts pods that use more memory than they request."""

    name: ClassVar[str] = "katalyst-rss-overuse"
    options_type: ClassVar[type[Any] | None] = RssOptions
    state_type = ConditionState
    settings: ClassVar[Mapping[str, Setting]] = {
        "memory_pressure_eviction_config.rss_overuse_rate_threshold": Setting("threshold"),
    }
    needs: ClassVar[frozenset[Need]] = frozenset({Need(Level.POD, Metric.MEMORY_USAGE, FRESH_S)})

    def find(self, snapshot: Snapshot, state: ConditionState, free: Allowance) -> CheckResult[ConditionState]:
        options = state.options
        assert isinstance(options, RssOptions)  # noqa: S101 - see `options_type`
        victims: list[tuple[float, Victim]] = []
        skipped: dict[str, list[Pod]] = {}
        for pod in snapshot.pods:
            if pod.katalyst is None or not pod.containers:
                continue
            request = request_or_reason(pod)
            if isinstance(request, str):
                skipped.setdefault(request, []).append(pod)
                continue
            rss = fresh_value(snapshot, pod.cgroup, Metric.MEMORY_USAGE)
            if rss is None:
                skipped.setdefault("there is no fresh sample", []).append(pod)
                continue
            own = pod.katalyst.rss_overuse_threshold
            threshold = options.threshold if own is None else own
            if is_overuse(rss, request, threshold) and may_go(pod, self.name, free):
                text = f"{rss / _MIB:.0f} MiB used, above {threshold:g} times {request / _MIB:.0f} requested"
                victims.append((rss / request, Victim(pod, text)))
        victims.sort(key=lambda each: (-each[0], each[1].pod.uid))
        if not victims:
            return CheckResult(state, (), (), skipped)
        arithmetic = f"pods above their threshold: {len(victims)}"
        pods = [victim for _, victim in victims]
        finding = MetThreshold("RSS", arithmetic, pods, most=len(pods))
        return CheckResult(state, (finding,), (), skipped)
