"""Evictions by conditions: a threshold that is met for some time, then some pods, with bounds.

Source: katalyst-core pkg/agent/evictionmanager/manager.go: a plugin is asked every 5 s; a threshold that is
met has to stay so through a grace period; a soft one is a condition of the node and evicts nothing, a hard
one evicts; a condition is reported for 5 minutes after it was last met; at most 3 pods go at a time. Beyond
Katalyst, the bounds of `eviction.py` apply, and a service is not chosen time after time.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from runtimeproxy.katalyst.names import QosLevel
from runtimeproxy.qos import NEVER_EVICTED
from runtimeproxy.qosmanager.eviction import (
    Allowance,
    BoundedEvictPlugin,
    EvictOptions,
    EvictState,
    allowance,
    request_of,
)
from runtimeproxy.qosmanager.plugin import Decision, Eviction, Mode, PluginContext
from runtimeproxy.qosmanager.snapshot import Pod, Snapshot

SYNC_S: Final = 5.0
"""Between two looks. Source: katalyst-core, eviction-manager-sync-period."""
CONDITION_S: Final = 300.0
"""How long a condition is told after it was last met. Source: there, condition-transition-period."""
GAP_S: Final = 3 * SYNC_S
"""Without a look for so long, as while the daemon was away, all that has to last begins anew."""
FRESH_S: Final = 10.0
"""How old the last sample may be that a plugin decides by: two looks."""
MOST_NAMED: Final = 5
"""Pods that an explanation names."""
NEAREST: Final = 3
"""Services among which the one goes that was not chosen for the longest time."""
_MOST_SERVICES: Final = 256
"""Whose last eviction is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionState(EvictState):
    """Previous evictions, and how long conditions have been met."""

    ran_s: float | None = None
    """The last look; None: none yet."""
    since_s: Mapping[str, float] = field(default_factory=dict)
    """By scope: since when a hard threshold is met, in each look."""
    seen_s: Mapping[str, float] = field(default_factory=dict)
    """By scope: when a threshold was last met, hard or soft."""
    services: Mapping[str, float] = field(default_factory=dict)
    """By service: when a pod of it was last chosen."""


_StateT = TypeVar("_StateT", bound=ConditionState)


class Victim(NamedTuple):
    """A pod that may be evicted."""

    pod: Pod
    arithmetic: str = ""
    """What of it counts; empty: what the finding says is all."""


class MetThreshold(NamedTuple):
    """A threshold that is met now."""

    scope: str
    """What is short, such as `pool share`, `NUMA node 1`; the same from look to look."""
    arithmetic: str
    victims: Sequence[Victim] = ()
    """In their order."""
    is_hard: bool = True
    most: int = 1
    """How many of them are evicted in one look."""
    hold_s: float = 0.0
    """How long it has to be met before anything is evicted."""


class LookResult(NamedTuple, Generic[_StateT]):
    """The result of one look."""

    state: _StateT
    findings: Sequence[MetThreshold] = ()
    notes: Sequence[str] = ()
    """Figures, and what is not known, for the explanation."""


class ConditionPlugin(BoundedEvictPlugin[_StateT]):
    """Base class of Katalyst's eviction plugins; off until the configuration says otherwise."""

    default_mode: ClassVar[Mode] = Mode.OFF
    interval_s: ClassVar[float] = SYNC_S
    options_type: ClassVar[type[Any] | None] = EvictOptions
    state_type: type[_StateT]

    def setup(self, context: PluginContext) -> _StateT:
        assert self.options_type is not None  # noqa: S101 - each of them has options
        return self.state_type(options=context.options or self.options_type())

    def is_enabled(self, snapshot: Snapshot) -> bool:
        return True

    @abstractmethod
    def find(self, snapshot: Snapshot, state: _StateT, free: Allowance) -> LookResult[_StateT]:
        """Which thresholds are met; pure. `free` has the pods that go already, and those that may not."""

    def cool_s(self, state: _StateT) -> float:
        """How long nothing is evicted after an eviction."""
        return 0.0

    def begun_anew(self, state: _StateT) -> _StateT:
        """The state without what has to last."""
        return replace(state, since_s={})

    def run(self, snapshot: Snapshot, state: _StateT) -> Decision[_StateT]:
        now_s = snapshot.now_s
        if state.ran_s is not None and now_s - state.ran_s > GAP_S:
            state = self.begun_anew(state)
        free = allowance(state, now_s)
        state, findings, notes = self.find(snapshot, replace(state, ran_s=now_s), free)
        since_s = {each.scope: state.since_s.get(each.scope, now_s) for each in findings if each.is_hard}
        seen_s = {**state.seen_s, **{each.scope: now_s for each in findings}}
        state = replace(
            state,
            evicted=free.evicted,
            since_s=since_s,
            seen_s={scope: at_s for scope, at_s in seen_s.items() if at_s > now_s - CONDITION_S},
        )
        evictions: list[Eviction] = []
        said: list[str] = []
        services = dict(state.services)
        for each in findings:
            said.append(self._waits(each, state, now_s))
            if not said[-1]:
                said[-1] = self._take(each, free, state.options, evictions, services, now_s)
        if evictions:
            state = replace(
                state,
                evicted={**free.evicted, **{each.pod_uid: now_s for each in evictions}},
                services=dict(sorted(services.items(), key=lambda each: -each[1])[:_MOST_SERVICES]),
                cool_until_s=now_s + self.cool_s(state),
            )
        said += (
            f"{scope}: condition, last met {now_s - at_s:.0f} s ago"
            for scope, at_s in state.seen_s.items()
            if at_s < now_s
        )
        explanation = "; ".join((*said, *notes)) or "no threshold is met"
        return Decision(state, (), evictions, explanation)

    def _waits(self, finding: MetThreshold, state: _StateT, now_s: float) -> str:
        """Why nothing is evicted for it yet; empty if something may be."""
        place = f"{finding.scope}: {finding.arithmetic}"
        if not finding.is_hard:
            return f"{place}: soft threshold, nothing is evicted"
        held_s = now_s - state.since_s[finding.scope]
        if held_s < finding.hold_s:
            return f"{place}: met for {held_s:.0f} s of {finding.hold_s:.0f} s"
        if state.cool_until_s is not None and now_s < state.cool_until_s:
            return f"{place}: cooling for {state.cool_until_s - now_s:.0f} s"
        return ""

    def _take(
        self,
        finding: MetThreshold,
        free: Allowance,
        options: EvictOptions,
        evictions: list[Eviction],
        services: dict[str, float],
        now_s: float,
    ) -> str:
        """Adds evictions; what is said of it."""
        place = f"{finding.scope}: {finding.arithmetic}"
        taken = 0
        for pod, arithmetic in finding.victims:
            if taken == finding.most or not may_go(pod, self.name, free):
                continue
            if len(evictions) >= free.left:
                return f"{place}: no more than {options.most_pods} pods in {options.per_seconds} s"
            taken += 1
            free.excluded.add(pod.uid)
            services[service_of(pod)] = now_s
            reason = "; ".join(filter(None, (place, arithmetic)))
            evictions.append(Eviction(pod.uid, reason))
        if not taken:
            return f"{place}: no pod that may be evicted"
        return f"{place}: pods to evict: {taken}"


def may_go(pod: Pod, plugin: str, free: Allowance) -> bool:
    """Whether a pod may be evicted: by its class, its own annotation, and what was chosen before."""
    return pod.qos not in NEVER_EVICTED and pod.eviction.allows(plugin) and pod.uid not in free.excluded


# --- pods ---------------------------------------------------------------------------------------------------


def reclaimed_pods(pods: Iterable[Pod]) -> list[Pod]:
    return [pod for pod in pods if pod.katalyst is not None and pod.katalyst.level == QosLevel.RECLAIMED]


def known_request(pod: Pod, resource: str) -> int | None:
    """Return what a pod requests of a resource; None: not known."""
    if any(resource in container.requests for container in pod.containers):
        return request_of(pod, resource)
    if pod.has_known_requests:
        return 0
    return pod.requests.get(resource)


def requests_by_pod(pods: Iterable[Pod], resource: str) -> tuple[dict[str, int], list[str]]:
    """Return the requests by uid, and the names of pods that are left out as theirs is not known."""
    found: dict[str, int] = {}
    unknown: list[str] = []
    for pod in pods:
        amount = known_request(pod, resource)
        if amount is not None:
            found[pod.uid] = amount
        elif pod.containers:
            unknown.append(pod.full_name)
    return found, unknown


UNKNOWN_REQUEST: Final = "neither the API server, nor the kubelet's state, nor an annotation tells"


def left_out(names: Sequence[str], reason: str) -> list[str]:
    """Return the note about pods that a plugin is off for; none without pods."""
    if not names:
        return []
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return [f"left out: {', '.join(sorted(names)[:MOST_NAMED])}{more}: {reason}"]


_GENERATED: Final = re.compile(
    r"(-[bcdfghjklmnpqrstvwxz2456789]{6,10})?-[bcdfghjklmnpqrstvwxz2456789]{5}$|-[0-9]{1,6}$"
)
"""What a controller adds to a pod's name. Source: Kubernetes apimachinery pkg/util/rand, alphanums."""


def service_of(pod: Pod) -> str:
    """Return what a pod is one of: its name without what a Deployment, DaemonSet or StatefulSet adds.

    The CRI does not carry owner references.
    """
    return f"{pod.namespace}/{_GENERATED.sub('', pod.name)}"


def nearest_in_turn(
    pods: Iterable[Pod],
    amount_of: Callable[[Pod], float],
    wanted: float,
    services: Mapping[str, float],
    rank_of: Callable[[Pod], tuple[int, ...]] = lambda _pod: (),
) -> list[Pod]:
    """Return pods in the order in which they are to go.

    Of equal rank the one whose amount is nearest to the wanted one, but of the `NEAREST` services that have
    such pods the one first that was not chosen for the longest time: the largest pod first would hit the same
    service time after time. Katalyst draws one of the nearest by lot. Source: katalyst-core
    pkg/agent/qrm-plugins/cpu/dynamicpolicy/cpueviction/strategy/pressure_usage_numa.go.

    Args:
        pods: Those that may go.
        amount_of: What the eviction of a pod releases.
        wanted: What is to be released.
        services: By service, when a pod of it was last chosen.
        rank_of: Lower ones go first, whatever they release.
    """
    by_rank: dict[tuple[int, ...], list[Pod]] = {}
    for pod in sorted(pods, key=lambda pod: (rank_of(pod), abs(amount_of(pod) - wanted), pod.uid)):
        by_rank.setdefault(rank_of(pod), []).append(pod)
    ordered: list[Pod] = []
    for equals in by_rank.values():
        firsts: dict[str, Pod] = {}
        for pod in equals:
            firsts.setdefault(service_of(pod), pod)
        nearest = list(firsts)[:NEAREST]
        # Sorts are stable: of those that were never chosen the nearest one is first.
        turns = [firsts[each] for each in sorted(nearest, key=lambda each: services.get(each, float("-inf")))]
        ordered += turns
        ordered += (pod for pod in equals if pod not in turns)
    return ordered
