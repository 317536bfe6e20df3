"""Which pods to evict: from amounts that have to be released to proposals, with the limits that keep it safe.

Source: Koordinator pkg/koordlet/qosmanager/plugins: cpuevict/cpu_evict.go, memoryevict/memory_evict.go,
util/evict.go. A pod is credited to all that has to be released, with what it uses or requests of it, so that
no pod is evicted for what another one has released already. Beyond Koordinator:

- pods of the classes SYSTEM and LSE are never evicted;
- a pod is not chosen again for some time, whether its containers were restarted or it was refused;
- within an interval only so many pods are evicted;
- a pod that would release nothing of what is still missing is not evicted;
- each proposal carries the arithmetic that led to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar

from runtimeproxy.config.settings import Within
from runtimeproxy.qos import NEVER_EVICTED, PriorityClass, QoSClass
from runtimeproxy.qosmanager.plugin import (
    MOST_GRACE_S,
    Decision,
    Eviction,
    EvictionOutcome,
    EvictionResult,
    Mode,
    Plugin,
    PluginContext,
)
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, Pod, Snapshot

TERMINATION_S: Final = 30.0
"""A pod that was evicted and is still there is taken for released so long. Source: Kubernetes' default of
terminationGracePeriodSeconds."""

Amounts: TypeAlias = Mapping[str, int]
"""Millicores or bytes by kind, such as `used cpu`."""


@dataclass(frozen=True, slots=True)
class EvictOptions:
    """`[plugins.NAME.options]` of the plugins that evict."""

    most_pods: int = 3
    """Evicted at most within `per_seconds`."""
    per_seconds: int = 60
    same_pod_after_seconds: int = 300
    """A pod that was chosen is not chosen again before."""
    grace_seconds: Annotated[float, Within(0, MOST_GRACE_S)] = 0.0
    """How long its containers may take to end, where the runtime stops them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictState:
    """Previous evictions, and the time of the next one."""

    options: EvictOptions = field(default_factory=EvictOptions)
    gates: frozenset[str] = frozenset()
    """The plugin's feature gates that are on."""
    cool_until_s: float | None = None
    """None: nothing was decided yet."""
    evicted: Mapping[str, float] = field(default_factory=dict)
    """By pod uid: when it was proposed."""
    refused: Mapping[str, float] = field(default_factory=dict)
    """By pod uid: when a proposal was not carried out."""
    dry_run: frozenset[str] = frozenset()
    """Uids in `evicted` of pods that stay, as the proposal was a dry run."""


_StateT = TypeVar("_StateT", bound=EvictState)
_DONE: Final = (EvictionOutcome.EVICTED, EvictionOutcome.DRY_RUN)


class ReleaseTask(NamedTuple):
    """The amounts that one feature wants to be released."""

    feature: str
    """The name of its gate, such as `MemoryEvict`."""
    needs: Amounts
    pods: Sequence[Pod]
    """That it may evict, in their order."""
    arithmetic: str
    """How the amounts come about."""


class Choice(NamedTuple):
    """The pods to evict."""

    evictions: tuple[Eviction, ...]
    evicted: Mapping[str, float]
    """See `EvictState.evicted`."""
    explanation: str


class Allowance(NamedTuple):
    """How many pods may be evicted now, and which not."""

    evicted: dict[str, float]
    """See `EvictState.evicted`; without what is too old to count."""
    left: int
    """How many more in this interval."""
    terminating: frozenset[str]
    """Uids of those that were evicted, and are taken for released."""
    excluded: set[str]
    """Uids of these, and of those that were chosen or refused not long ago."""
    proposed: frozenset[str] = frozenset()
    """Uids of those that were chosen in a dry run not long ago: they stay, and are chosen again as long as
    they would have to go, without another proposal."""


def allowance(state: EvictState, now_s: float) -> Allowance:
    """Return what the bounds of a plugin's options leave."""
    options = state.options
    hold_s = max(options.same_pod_after_seconds, options.per_seconds, TERMINATION_S)
    evicted = _since(state.evicted, now_s - hold_s)
    left = max(options.most_pods - len(_since(evicted, now_s - options.per_seconds)), 0)
    terminating = frozenset(_since(evicted, now_s - TERMINATION_S))
    held_since_s = now_s - options.same_pod_after_seconds
    chosen = _since(evicted, held_since_s).keys()
    excluded = {*terminating, *chosen, *_since(state.refused, held_since_s)}
    return Allowance(
        evicted, left, terminating - state.dry_run, excluded - state.dry_run, state.dry_run & chosen
    )


def choose(
    tasks: Sequence[ReleaseTask],
    snapshot: Snapshot,
    state: EvictState,
    releases_of: Callable[[Pod], Amounts],
    unit: Callable[[int], str] = str,
    least: int = 1,
) -> Choice:
    """Return the pods to evict for all tasks together. Source: KillAndEvictPods.

    What two tasks want is released once. `releases_of` has all kinds of amounts that the eviction of a pod
    releases; `unit` writes an amount for people. A pod that releases less than `least` of all is not evicted.
    """
    options, now_s = state.options, snapshot.now_s
    evicted, left, terminating, excluded, proposed = allowance(state, now_s)
    missing = _missing(tasks, (releases_of(pod) for pod in snapshot.pods if pod.uid in terminating))
    evictions: list[Eviction] = []
    again = 0
    for task, pod in ((each, pod) for each in tasks for pod in each.pods):
        wanted = {name: missing[name] for name in task.needs if missing[name] > 0}
        is_new = pod.uid not in proposed
        if not wanted or pod.uid in excluded or pod.qos in NEVER_EVICTED:
            continue
        if is_new and len(evictions) == left:
            continue
        releases = releases_of(pod)
        if released := {name: amount for name in wanted if (amount := releases.get(name, 0)) >= least}:
            excluded.add(pod.uid)
            if not is_new:
                _subtract(missing, releases)
                again += 1
                continue
            evicted[pod.uid] = now_s
            _subtract(missing, releases)
            amounts = (
                f"{name}: {unit(wanted[name])} to release, this pod {unit(amount)}, "
                f"then {unit(missing[name])}"
                for name, amount in released.items()
            )
            reason = "; ".join((f"{task.feature}: {task.arithmetic}", *amounts))
            evictions.append(Eviction(pod.uid, reason, options.grace_seconds))
    said = [f"{task.feature}: {task.arithmetic}" for task in tasks]
    if any(missing.values()) and len(evictions) == left:
        said.append(f"no more than {options.most_pods} pods in {options.per_seconds} s")
    if tasks:
        said.append(pods_to_evict(len(evictions), again))
    return Choice(tuple(evictions), evicted, "; ".join(said))


def pods_to_evict(new: int, again: int) -> str:
    """The sentence about how many pods are to go; `again`: those that a dry run has proposed before."""
    before = f", {again} of them proposed before in dry-run" if again else ""
    return f"pods to evict: {new + again}{before}"


def _since(times_s: Mapping[str, float], since_s: float) -> dict[str, float]:
    return {uid: at_s for uid, at_s in times_s.items() if at_s > since_s}


def _missing(tasks: Iterable[ReleaseTask], ending: Iterable[Amounts]) -> dict[str, int]:
    """The amounts that have to be released, without those of pods that terminate."""
    missing: dict[str, int] = {}
    for task in tasks:
        for name, amount in task.needs.items():
            missing[name] = max(missing.get(name, 0), amount)
    for amounts in ending:
        _subtract(missing, amounts)
    return missing


def _subtract(missing: dict[str, int], amounts: Amounts) -> None:
    for name in missing.keys() & amounts.keys():
        missing[name] = max(missing[name] - amounts[name], 0)


def allowed(pods: Iterable[Pod], feature: str, priority_threshold: int | None = None) -> list[Pod]:
    """Return the pods that a feature may evict: up to a priority if they allow it, without one BE pods."""
    found = [pod for pod in pods if pod.qos not in NEVER_EVICTED and pod.eviction.allows(feature)]
    if priority_threshold is None:
        return [pod for pod in found if pod.qos is QoSClass.BE]
    return [pod for pod in found if pod.eviction.is_enabled and pod.priority_value <= priority_threshold]


def by_priority(pods: Iterable[Pod], amount_of: Callable[[Pod], float]) -> list[Pod]:
    """Return the order of evictions; of equal priority the largest first. Source: cpu_evict.go."""

    def rank(pod: Pod) -> tuple[int, int, int, float, str]:
        priority = pod.priority_value
        sub_priority = priority if pod.sub_priority is None else pod.sub_priority
        return pod.eviction.priority, priority, sub_priority, -amount_of(pod), pod.uid

    return sorted(pods, key=rank)


def is_threshold_pair(threshold: int, lower: int) -> bool:
    return threshold >= 0 and lower < threshold


def usage_release(used: float, capacity: int, threshold: int, lower: int) -> int:
    """Return the usage to be released, in millicores or bytes; 0 for nothing. Source: cpu_evict.go.

    Nothing is released below `threshold`, in percent of the capacity; `lower`, to which usage falls, may be
    negative.
    """
    percent = int(used) * 100 // capacity
    return max(capacity * (percent - lower) // 100, 0) if percent >= threshold else 0


_RESOURCES: Final = {PriorityClass.BATCH: "kubernetes.io/batch-", PriorityClass.MID: "kubernetes.io/mid-"}


def resource_of(pod: Pod, name: str) -> str:
    # Source: Koordinator apis/extension/resource.go, ResourceNameMap.
    return f"{_RESOURCES.get(pod.priority_class, '')}{name}"


def requested_name(resource: str) -> str:
    return f"requested {resource}"


def request_of(pod: Pod, resource: str) -> int:
    return sum(container.requests.get(resource, 0) for container in pod.containers)


MAX_ALLOCATABLE_PRIORITY: Final = 7_999
"""Evictions by requests end below koord-prod. Source: cpu_evict.go."""


def beyond_allocatable(requested: int, allocatable: int, threshold_percent: int, lower_percent: int) -> int:
    """Return how much of the requests has to be released; 0 for nothing. Source: cpu_evict.go.

    Requests are of one resource. Nothing is released up to the threshold, in percent of the allocatable; all
    of them if the node has nothing allocatable.
    """
    if allocatable <= 0:
        return requested
    if requested * 100 <= allocatable * threshold_percent:
        return 0
    return requested - allocatable * lower_percent // 100


class BoundedEvictPlugin(Plugin[_StateT]):
    """Base class of all plugins that evict pods: what they have proposed, and what became of it."""

    def on_evictions(self, results: Sequence[EvictionResult], snapshot: Snapshot, state: _StateT) -> _StateT:
        now_s = snapshot.now_s
        failed = {each.eviction.pod_uid for each in results if each.outcome not in _DONE}
        stay = {each.eviction.pod_uid for each in results if each.outcome is EvictionOutcome.DRY_RUN}
        gone = {each.eviction.pod_uid for each in results} - stay
        refused = _since(state.refused, now_s - state.options.same_pod_after_seconds)
        return replace(
            state,
            # A failed proposal releases nothing, and if all fail, the plugin does not cool.
            evicted={uid: at_s for uid, at_s in state.evicted.items() if uid not in failed},
            refused={**refused, **dict.fromkeys(failed, now_s)},
            dry_run=(state.dry_run & state.evicted.keys() | stay) - gone,
            cool_until_s=now_s if len(failed) == len(results) > 0 else state.cool_until_s,
        )


class EvictPlugin(BoundedEvictPlugin[_StateT]):
    """Base class of the plugins that evict pods while a resource is short."""

    default_mode: ClassVar[Mode] = Mode.DRY_RUN
    options_type: ClassVar[type[Any] | None] = EvictOptions
    resource: ClassVar[str]
    """`cpu` or `memory`."""
    cool_s: ClassVar[float]
    """Between two evictions, and after the start."""
    least: ClassVar[int] = 1
    """A pod that releases less, in millicores or bytes, is not evicted."""
    state_type: type[_StateT]

    def setup(self, context: PluginContext) -> _StateT:
        gates = frozenset(name for name in self.gates if context.gates.get(name, False))
        return self.state_type(options=context.options or EvictOptions(), gates=gates)

    def is_enabled(self, snapshot: Snapshot) -> bool:
        return snapshot.asks_for(self.name)

    def run(self, snapshot: Snapshot, state: _StateT) -> Decision[_StateT]:
        now_s = snapshot.now_s
        cool_until_s = now_s + self.cool_s if state.cool_until_s is None else state.cool_until_s
        state = replace(self.observed(snapshot, state), cool_until_s=cool_until_s)
        if now_s < cool_until_s:
            return Decision(state, explanation=f"cooling for {cool_until_s - now_s:.0f} s")
        found = (task for task in self.tasks(snapshot, state) if task is not None)
        tasks = tuple(task for task in found if task.feature in state.gates)
        choice = choose(
            tasks, snapshot, state, lambda pod: self._releases(snapshot, pod), self.text_of, self.least
        )
        if choice.evictions:
            cool_until_s = now_s + self.cool_s
        after = replace(state, evicted=choice.evicted, cool_until_s=cool_until_s)
        return Decision(after, (), choice.evictions, choice.explanation)

    def observed(self, snapshot: Snapshot, state: _StateT) -> _StateT:
        """The state after each round, also of those that cool; by default unchanged."""
        return state

    def tasks(self, snapshot: Snapshot, state: _StateT) -> Iterable[ReleaseTask | None]:
        """The task of each feature, whether its gate is on or not; None for nothing."""
        raise NotImplementedError

    def usage(self, snapshot: Snapshot, cgroup: str) -> float | None:
        """Usage of a pod or the node, in millicores or bytes; None: not known."""
        raise NotImplementedError

    def text_of(self, amount: float) -> str:
        raise NotImplementedError

    def _releases(self, snapshot: Snapshot, pod: Pod) -> Amounts:
        resource = resource_of(pod, self.resource)
        used = self.usage(snapshot, pod.cgroup) or 0
        return {f"used {self.resource}": int(used), requested_name(resource): request_of(pod, resource)}

    def usage_task(
        self, snapshot: Snapshot, feature: str, threshold: int, lower: int | None, priority: int | None
    ) -> ReleaseTask | None:
        """Return the task of a feature that goes by the node's usage. Source: cpu_evict.go, memory_evict.go.

        Percentages are of the capacity; without `lower` it is 2 below `threshold`. `priority`: see `allowed`.
        """
        lower = threshold - 2 if lower is None else lower
        capacity = snapshot.node.capacity.get(self.resource, 0)
        used = self.usage(snapshot, NODE_CGROUP)
        if used is None or capacity <= 0 or not is_threshold_pair(threshold, lower):
            return None
        release = usage_release(used, capacity, threshold, lower)
        if not release:
            return None
        usage = {
            pod.uid: int(amount)
            for pod in allowed(snapshot.pods, feature, priority)
            if (amount := self.usage(snapshot, pod.cgroup)) is not None
        }
        pods = [pod for pod in snapshot.pods if pod.uid in usage]
        if priority is not None:
            pods = by_priority(pods, lambda pod: usage[pod.uid])
        else:
            # Sorts are stable: of equal pods the last name comes first.
            pods.sort(key=lambda pod: pod.name, reverse=True)
            pods.sort(key=lambda pod: (pod.priority_value, -usage[pod.uid]))
        arithmetic = (
            f"{self.text_of(used)} used of {self.text_of(capacity)} ({int(used) * 100 // capacity} %), "
            f"threshold {threshold} %, down to {lower} %"
        )
        return ReleaseTask(feature, {f"used {self.resource}": release}, pods, arithmetic)

    def allocatable_task(
        self, snapshot: Snapshot, feature: str, threshold: int | None, lower: int | None
    ) -> ReleaseTask | None:
        """Return the task of a feature that goes by requests. Source: cpu_evict.go, memory_evict.go.

        Percentages are of the allocatable; without both nothing is released.
        """
        priority = snapshot.strategies.threshold.allocatable_evict_priority_threshold
        if threshold is None or lower is None or priority is None:
            return None
        if priority > MAX_ALLOCATABLE_PRIORITY or not is_threshold_pair(threshold, lower):
            return None
        requested: Counter[str] = Counter()
        for pod in snapshot.pods:
            if pod.priority_value <= priority:
                resource = resource_of(pod, self.resource)
                requested[resource] += request_of(pod, resource)
        needs: dict[str, int] = {}
        said: list[str] = []
        for resource, amount in sorted(requested.items()):
            there = snapshot.node.allocatable.get(resource, 0)
            release = beyond_allocatable(amount, there, threshold, lower)
            if release > 0:
                needs[requested_name(resource)] = release
                said.append(f"{self.text_of(amount)} {resource} requested of {self.text_of(there)}")
        if not needs:
            return None
        ordered = by_priority(
            allowed(snapshot.pods, feature, priority),
            lambda pod: request_of(pod, resource_of(pod, self.resource)),
        )
        arithmetic = f"{', '.join(said)}, threshold {threshold} %, down to {lower} %"
        return ReleaseTask(feature, needs, ordered, arithmetic)
