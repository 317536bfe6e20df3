"""Evictions by conditions: a threshold that is met for some time, then some pods, with bounds.

Source: katalyst-core pkg/agent/evictionmanager/manager.go: a plugin is asked every 5 s; a threshold that is
met has to stay so through a grace period; a soft one is a condition of the node and evicts nothing, a hard
one evicts; a condition is reported for 5 minutes after it was last met; at most 3 pods go at a time. Beyond
Katalyst, the bounds of `eviction.py` apply, and a service is not chosen time after time.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from runtimeproxy.katalyst.eviction_config import (
    PATHS,
    EvictionConfig,
    duration_s,
    is_dry_run,
    is_switched_off,
    of_plugin,
    value_at,
)
from runtimeproxy.katalyst.names import QosLevel
from runtimeproxy.qos import NEVER_EVICTED
from runtimeproxy.qosmanager.eviction import (
    Allowance,
    BoundedEvictPlugin,
    EvictOptions,
    EvictState,
    allowance,
    pods_to_evict,
)
from runtimeproxy.qosmanager.plugin import Decision, Eviction, EvictionResult, Mode, PluginContext
from runtimeproxy.qosmanager.snapshot import Measured, Metric, Pod, Snapshot

SYNC_S: Final = 5.0
"""Between two checks. Source: katalyst-core, eviction-manager-sync-period."""
CONDITION_S: Final = 300.0
"""How long a condition is told after it was last met. Source: there, condition-transition-period."""
GAP_S: Final = 3 * SYNC_S
"""Without a check for so long, as while the daemon was away, all that has to last begins anew."""
FRESH_S: Final = 10.0
"""How old the last sample may be that a plugin decides by: two checks."""
STALE_S: Final = 30.0
"""How long ago what a sample says may have been measured: Malachite's samples are older than the kernel's.
Source: katalyst-core pkg/metaserver/agent/metric/provisioner/malachite/client, UpdateTimeout."""
MOST_NAMED: Final = 5
"""Pods that an explanation names."""
NEAREST: Final = 3
"""Services among which the one goes that was not chosen for the longest time."""
_MOST_SERVICES: Final = 256
"""Whose last eviction is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionState(EvictState):
    """Previous evictions, and how long conditions have been met."""

    configured: EvictOptions = field(default_factory=EvictOptions)
    """Those of the configuration's file; `options` are with what the cluster's configuration sets."""
    ran_s: float | None = None
    """The last check; None: none yet."""
    since_s: Mapping[str, float] = field(default_factory=dict)
    """By scope: since when a hard threshold is met, in each check."""
    seen_s: Mapping[str, float] = field(default_factory=dict)
    """By scope: when a threshold was last met, hard or soft."""
    services: Mapping[str, float] = field(default_factory=dict)
    """By service: when a pod of it was last chosen."""
    there_s: Mapping[str, float] = field(default_factory=dict)
    """By uid of pods that were evicted: when each was last seen."""
    is_dry_run: bool = False
    """Whether the configuration of the cluster had it only compute in the last check."""


_StateT = TypeVar("_StateT", bound=ConditionState)


class Victim(NamedTuple):
    """A pod that may be evicted."""

    pod: Pod
    arithmetic: str = ""
    """What of it counts; empty: what the finding says is all."""


class MetThreshold(NamedTuple):
    """A threshold that is met now."""

    scope: str
    """What is short, such as `pool share`, `NUMA node 1`; the same from check to check."""
    arithmetic: str
    victims: Sequence[Victim] = ()
    """In their order."""
    is_hard: bool = True
    most: int = 1
    """How many of them are evicted in one check."""
    hold_s: float = 0.0
    """How long it has to be met before anything is evicted."""
    measured_s: float | None = None
    """When that was measured by which it is met; None: now."""


class CheckResult(NamedTuple, Generic[_StateT]):
    """The result of one check."""

    state: _StateT
    findings: Sequence[MetThreshold] = ()
    notes: Sequence[str] = ()
    """Figures, and what is not known, for the explanation."""
    left_out: Mapping[str, Sequence[Pod]] = {}
    """By reason: pods that the plugin is off for."""


class Setting(NamedTuple):
    """An option that the configuration of the cluster may set."""

    option: str
    convert: Callable[[Any], float | bool] = lambda value: value
    """From the value there."""


def from_duration(option: str) -> Setting:
    return Setting(option, duration_s)


class ConditionPlugin(BoundedEvictPlugin[_StateT]):
    """Base class of Katalyst's eviction plugins; off until the configuration says otherwise."""

    default_mode: ClassVar[Mode] = Mode.OFF
    interval_s: ClassVar[float] = SYNC_S
    options_type: ClassVar[type[Any] | None] = EvictOptions
    state_type: type[_StateT]
    settings: ClassVar[Mapping[str, Setting]] = {}
    """By the path of `EvictionConfig`; but for the grace period, which all have."""
    soft_options: ClassVar[Mapping[str, str]] = {}
    """By the option that is a soft threshold: that of the hard one, which is not below it."""
    is_one_in_a_check: ClassVar[bool] = False
    """Whether thresholds are about the same, so that a pod that goes for one may be enough for others."""

    def option_problems(self, options: Any) -> Sequence[tuple[str, str]]:  # noqa: ANN401 - of `options_type`
        problems: list[tuple[str, str]] = []
        for soft, hard in self.soft_options.items():
            below, above = getattr(options, soft), getattr(options, hard)
            if below > above and below != getattr(type(options)(), soft):
                problems.append((soft, f"is {below:g}, which is above {hard}, {above:g}"))
            elif below > above:
                problems.append((hard, f"is {above:g}, which is below {soft}, {below:g}"))
        return problems

    def setup(self, context: PluginContext) -> _StateT:
        assert self.options_type is not None  # noqa: S101 - each of them has options
        options = context.options or self.options_type()
        return self.state_type(options=options, configured=options)

    def is_enabled(self, snapshot: Snapshot) -> bool:
        return True

    @abstractmethod
    def find(self, snapshot: Snapshot, state: _StateT, free: Allowance) -> CheckResult[_StateT]:
        """Which thresholds are met; pure. `free` has the pods that go already, and those that may not."""

    def cool_s(self, state: _StateT) -> float:
        """How long nothing is evicted after an eviction."""
        return 0.0

    def begun_anew(self, state: _StateT) -> _StateT:
        """The state without what has to last."""
        return replace(state, since_s={})

    def set_options(self, config: EvictionConfig, configured: EvictOptions) -> dict[str, float | bool]:
        """Options that the configuration of the cluster sets."""
        found: dict[str, float | bool] = {}
        for path, setting in self.settings.items():
            value = value_at(config, path)
            if value is not None:
                found[setting.option] = setting.convert(value)
        grace = of_plugin(self.name).grace
        grace_s = value_at(config, grace) if grace else None
        if grace_s is not None and grace_s > 0:
            found["grace_seconds"] = float(grace_s)
        return found

    def on_evictions(self, results: Sequence[EvictionResult], snapshot: Snapshot, state: _StateT) -> _StateT:
        state = super().on_evictions(results, snapshot, state)
        # A service keeps its turn: none of its pods has gone.
        kept = {service_of(pod) for pod in snapshot.pods if pod.uid in state.dry_run}
        return replace(state, services=_without(state.services, kept))

    def run(self, snapshot: Snapshot, state: _StateT) -> Decision[_StateT]:
        now_s, config = snapshot.now_s, snapshot.node.eviction
        if state.ran_s is not None and now_s - state.ran_s > GAP_S:
            state = self.begun_anew(state)
        if is_switched_off(config, self.name):
            paths = ", ".join(PATHS[path] for path in of_plugin(self.name).switches)
            reason = f"switched off by {paths} of {snapshot.node.eviction_target}"
            return Decision(self.begun_anew(replace(state, ran_s=now_s)), explanation=reason)
        if snapshot.node.is_eviction_unknown:
            # Its thresholds may be far above those of this node's file.
            reason = "waits until it is known which AdminQoSConfiguration applies"
            return Decision(self.begun_anew(replace(state, ran_s=now_s)), explanation=reason)
        state = _as_dry_run(state, is_dry_run(config, self.name))
        changed = self.set_options(config, state.configured)
        options, bounded = self._bounded(replace(state.configured, **changed))  # type: ignore[arg-type]
        state = replace(state, options=options, ran_s=now_s)
        free = allowance(state, now_s)
        state, findings, notes, left_out = self.find(snapshot, state, free)
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
        uids = {pod.uid for pod in snapshot.pods}
        there_s = {
            uid: now_s if uid in uids else state.there_s.get(uid, at_s) for uid, at_s in free.evicted.items()
        }
        # A pod that is still there is credited; what was measured before one has gone does not know of it.
        gone = there_s.keys() - state.dry_run
        settled_s = max((free.evicted[uid] if uid in uids else there_s[uid] for uid in gone), default=None)
        state = replace(state, there_s=there_s)
        excluded_before = len(free.excluded)
        for each in findings:
            said.append(self._waits(each, state, now_s, settled_s))
            if not said[-1] and len(free.excluded) > excluded_before and self.is_one_in_a_check:
                said[-1] = f"{each.scope}: {each.arithmetic}: waits for the pod that goes"
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
        named = (text for reason, pods in left_out.items() for text in _named(pods, reason))
        of_target = [*(f"{name} {value:g}" for name, value in changed.items()), *bounded]
        if state.is_dry_run:
            of_target.insert(0, f"dry-run by {PATHS['dry_run']}")
        if of_target:
            of_target = [f"by {snapshot.node.eviction_target}: {', '.join(of_target)}"]
        explanation = "; ".join((*said, *notes, *named, *of_target)) or "no threshold is met"
        off_for = {reason: [pod.uid for pod in pods] for reason, pods in left_out.items()}
        return Decision(state, (), evictions, explanation, left_out=off_for, is_dry_run=state.is_dry_run)

    def _bounded(self, options: EvictOptions) -> tuple[EvictOptions, list[str]]:
        """The options with soft thresholds that are not above the hard ones, and what is said of it.

        One of the two may be the cluster's, and the other one of the configuration's file.
        """
        said: list[str] = []
        for soft, hard in self.soft_options.items():
            below, above = getattr(options, soft), getattr(options, hard)
            if below > above:
                options = replace(options, **{soft: above})
                said.append(f"{soft} {above:g}, as {below:g} is above {hard}")
        return options, said

    def _waits(self, finding: MetThreshold, state: _StateT, now_s: float, settled_s: float | None) -> str:
        """Why nothing is evicted for it yet; empty if something may be."""
        place = f"{finding.scope}: {finding.arithmetic}"
        if not finding.is_hard:
            return f"{place}: soft threshold, nothing is evicted"
        held_s = now_s - state.since_s[finding.scope]
        if held_s < finding.hold_s:
            return f"{place}: met for {held_s:.0f} s of {finding.hold_s:.0f} s"
        if state.cool_until_s is not None and now_s < state.cool_until_s:
            return f"{place}: cooling for {state.cool_until_s - now_s:.0f} s"
        measured_s = finding.measured_s
        if settled_s is not None and measured_s is not None and measured_s <= settled_s:
            return f"{place}: measured {now_s - measured_s:.0f} s ago, before the last pod had gone"
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
        taken = again = 0
        for pod, arithmetic in finding.victims:
            if taken == finding.most or not may_go(pod, self.name, free):
                continue
            if pod.uid in free.proposed:
                taken, again = taken + 1, again + 1
                free.excluded.add(pod.uid)
                continue
            if len(evictions) >= free.left:
                return f"{place}: no more than {options.most_pods} pods in {options.per_seconds} s"
            taken += 1
            free.excluded.add(pod.uid)
            services[service_of(pod)] = now_s
            reason = "; ".join(filter(None, (place, arithmetic)))
            evictions.append(Eviction(pod.uid, reason, options.grace_seconds))
        if not taken:
            return f"{place}: no pod that may be evicted"
        return f"{place}: {pods_to_evict(taken - again, again)}"


def may_go(pod: Pod, plugin: str, free: Allowance) -> bool:
    """Whether a pod may be evicted: by its class, its own annotation, and what was chosen before."""
    return pod.qos not in NEVER_EVICTED and pod.eviction.allows(plugin) and pod.uid not in free.excluded


def fresh(snapshot: Snapshot, cgroup: str, metric: Metric) -> Measured | None:
    """Return the last sample if it, and what it says, is fresh; with the time of measurement, never None."""
    found = snapshot.metrics.measured(cgroup, metric, FRESH_S)
    if found is None or found.at_s is None:
        return None if found is None else Measured(found.value, snapshot.now_s)
    return found if snapshot.now_s - found.at_s <= STALE_S else None


def fresh_value(snapshot: Snapshot, cgroup: str, metric: Metric) -> float | None:
    found = fresh(snapshot, cgroup, metric)
    return None if found is None else found.value


# --- pods ---------------------------------------------------------------------------------------------------


def reclaimed_pods(pods: Iterable[Pod]) -> list[Pod]:
    return [pod for pod in pods if pod.katalyst is not None and pod.katalyst.level == QosLevel.RECLAIMED]


def known_request(pod: Pod, resource: str) -> int | None:
    """Return what a pod requests of a resource; None: not known."""
    # Called for each pod in each check: one pass, no generators.
    total: int | None = None
    for container in pod.containers:
        amount = container.requests.get(resource)
        if amount is not None:
            total = amount if total is None else total + amount
    if total is not None:
        return total
    if pod.has_known_requests:
        return 0
    return pod.requests.get(resource)


def requests_by_pod(pods: Iterable[Pod], resource: str) -> tuple[dict[str, int], list[Pod]]:
    """Return the requests by uid, and pods that are left out as theirs is not known."""
    found: dict[str, int] = {}
    unknown: list[Pod] = []
    for pod in pods:
        amount = known_request(pod, resource)
        if amount is not None:
            found[pod.uid] = amount
        elif pod.containers:
            unknown.append(pod)
    return found, unknown


UNKNOWN_REQUEST: Final = "neither the API server, nor the kubelet's state, nor an annotation tells"


def _as_dry_run(state: _StateT, is_dry_run: bool) -> _StateT:
    """The state of a check that only computes, or not; after a dry run no pod of it is gone."""
    if state.is_dry_run and not is_dry_run:
        state = replace(state, evicted=_without(state.evicted, state.dry_run), dry_run=frozenset())
    return replace(state, is_dry_run=is_dry_run)


def _without(times_s: Mapping[str, float], names: Set[str]) -> dict[str, float]:
    return {name: at_s for name, at_s in times_s.items() if name not in names}


def _named(pods: Sequence[Pod], reason: str) -> list[str]:
    """The note about pods that a plugin is off for; none without pods."""
    if not pods:
        return []
    names = sorted(pod.full_name for pod in pods)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return [f"left out: {', '.join(names[:MOST_NAMED])}{more}: {reason}"]


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
            if len(firsts) == NEAREST:
                break
        # Sorts are stable: of those that were never chosen the nearest one is first.
        turns = [firsts[each] for each in sorted(firsts, key=lambda each: services.get(each, float("-inf")))]
        ordered += turns
        chosen = {pod.uid for pod in turns}
        ordered += (pod for pod in equals if pod.uid not in chosen)
    return ordered
