"""What changes the pools of a node: pure functions from a state to the next.

What containers have meanwhile, and in which order they change, is in `transition`.

None knows a clock: times are arguments, of any one clock that goes on while pods live.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

from runtimeproxy.katalyst.levels import KatalystQos
from runtimeproxy.katalyst.names import QosLevel
from runtimeproxy.katalyst.pickers import ht_balance
from runtimeproxy.katalyst.placement import (
    PodFacts,
    as_shared,
    fitted,
    lacks_room,
    place,
    unplaced,
    waits_for_request,
)
from runtimeproxy.katalyst.pools import (
    NO_CPUS,
    AdvisedSizes,
    PoolContainer,
    PoolPod,
    PoolSettings,
    PoolState,
    Refusal,
    RefusalKind,
)
from runtimeproxy.katalyst.rebuild import settled
from runtimeproxy.katalyst.topology import Topology

_MAX_AGAIN: Final = 16
"""How many pods that have no place of their own are placed anew at a time; others come next time."""

Outcome: TypeAlias = PoolState | Refusal


class ContainerFacts(NamedTuple):
    """A container that is about to be created."""

    pod: PodFacts
    name: str
    millicpu: int | None = None
    """Its request; None: not known."""


class LiveContainer(NamedTuple):
    """A container that exists, created or running."""

    name: str
    id: str
    millicpu: int | None = None
    cpus: frozenset[int] = frozenset()
    """What it has in the kernel; empty: not known. A pod that has CPUs alone keeps them if it can."""


class ObservedPod(NamedTuple):
    """A pod whose sandbox exists."""

    facts: PodFacts
    containers: tuple[LiveContainer, ...] = ()
    """In the order in which they were created."""
    is_sure: bool = True
    """Whether its level is known: annotations of a pod that has too many are not kept."""


def initial(topology: Topology, settings: PoolSettings) -> PoolState:
    """Return the state of a node without pods."""
    reserved = reserved_cpus(topology, settings)
    return settled(PoolState(topology=topology, settings=settings, reserved=reserved), {}, is_new=True)


def admit(state: PoolState, pod: PodFacts, *, is_forced: bool = False) -> Outcome:
    """Places a pod before its sandbox is created.

    A bound pod has its NUMA nodes from now on, one of `dedicated_cores` its CPUs, too: `SHRINK` makes the
    others leave them. A pod that is admitted already, or is not handled, changes nothing. A pod whose request
    is not known is placed with its main container.

    `is_forced`: it is never refused; if it does not fit, it is not bound, and its `problem` says why.
    """
    if not pod.is_handled or pod.uid in state.pods:
        return state
    admitted = unplaced(pod)
    if not waits_for_request(admitted):
        placed = place(state, admitted, pod)
        if isinstance(placed, Refusal):
            if not is_forced:
                return placed
            placed = as_shared(admitted, placed.reason)
        admitted = placed
    return settled(state, {**state.pods, pod.uid: admitted})


def create(state: PoolState, container: ContainerFacts, now_s: float, *, is_forced: bool = False) -> Outcome:
    """Adds a container before it is created; admits its pod if that was not.

    The `cpus` and `mems` of its pod in the new state are for the request. A container of that name that is
    there already (it restarts) keeps its place. A pod that is not in the new state is not handled.
    """
    admitted = admit(state, container.pod, is_forced=is_forced)
    if isinstance(admitted, Refusal) or container.pod.uid not in admitted.pods:
        return admitted
    known = admitted.pods[container.pod.uid]
    added = PoolContainer("", container.millicpu)
    pod = _with_container(known, container.name, added)
    if pod.main_container is added:
        if waits_for_request(pod) and container.name not in known.containers:
            placed = place(_without(admitted, pod.uid), pod, container.pod)
            if isinstance(placed, Refusal):
                if not is_forced:
                    return placed
                placed = as_shared(pod, placed.reason)
            pod = placed
        if pod.is_waiting:
            pod = replace(pod, ramp_up_since_s=now_s)
    return settled(state, {**admitted.pods, pod.uid: pod})


def created(state: PoolState, uid: str, container: str, container_id: str) -> PoolState:
    """Notes the runtime's id of a container that `create` has added."""
    pod = state.pods.get(uid)
    known = pod.containers.get(container) if pod is not None else None
    if pod is None or known is None or known.id == container_id:
        return state
    after = _with_container(pod, container, known._replace(id=container_id))
    return replace(state, pods={**state.pods, uid: after}, generation=state.generation + 1)


def ramp_done(state: PoolState, now_s: float) -> PoolState:
    """Makes the pods join their pools whose ramp-up is over."""
    over = {
        uid: replace(pod, is_ramping_up=False, ramp_up_since_s=None)
        for uid, pod in state.pods.items()
        if pod.ramp_up_since_s is not None and pod.ramp_up_since_s + state.settings.ramp_up_s <= now_s
    }
    return settled(state, {**state.pods, **over}) if over else state


def ramp_due_s(state: PoolState) -> float | None:
    """When `ramp_done` has something to do; None: never."""
    since_s = [pod.ramp_up_since_s for pod in state.pods.values() if pod.ramp_up_since_s is not None]
    return min(since_s) + state.settings.ramp_up_s if since_s else None


def resize(
    state: PoolState, uid: str, container: str, millicpu: int, qos: KatalystQos | None = None
) -> Outcome:
    """Notes another request of a container, from the kubelet's update.

    Refused for `dedicated_cores`, while ramping up, if the pod is bound and was not, or the other way
    around, and if it has no room.
    """
    pod = state.pods.get(uid)
    known = pod.containers.get(container) if pod is not None else None
    if pod is None or known is None or known.millicpu == millicpu:
        return state
    if known.millicpu is None:
        # It is no resize: its request is told for the first time.
        return settled(state, {**state.pods, uid: _with_request(pod, container, millicpu)})
    if qos is not None and qos.numa_binding != pod.numa_binding and not pod.problem:
        return Refusal(RefusalKind.RESIZE, "a resize cannot bind a pod to a NUMA node, or unbind it")
    if pod.level is QosLevel.DEDICATED:
        return Refusal(RefusalKind.RESIZE, "a pod of dedicated_cores cannot be resized while it runs")
    if pod.is_ramping_up and pod.level is QosLevel.SHARED:
        return Refusal(RefusalKind.RESIZE, "a pod cannot be resized while it ramps up")
    after = _with_request(pod, container, millicpu)
    if pod.millicpu is not None:
        after = replace(after, millicpu=max(0, pod.millicpu + millicpu - known.millicpu))
    if after.request > pod.request and pod.level is QosLevel.SHARED and not pod.problem:
        problem = lacks_room(_without(state, uid), after)
        if problem:
            return Refusal(RefusalKind.RESIZE, problem)
    return settled(state, {**state.pods, uid: after})


def remove(state: PoolState, uid: str, container: str = "", container_id: str | None = None) -> PoolState:
    """Removes a container, or the whole pod if none is named; the others have its CPUs at once.

    `container_id`: only if it is that one, not an old one of a container that has restarted; None: whichever
    it is, such as one whose creation has failed.
    """
    pod = state.pods.get(uid)
    if pod is None:
        return state
    if not container:
        return settled(state, _without(state, uid).pods)
    known = pod.containers.get(container)
    if known is None or container_id not in (None, known.id):
        return state
    left = {name: each for name, each in pod.containers.items() if name != container}
    return settled(state, {**state.pods, uid: replace(pod, containers=left)})


def is_same_place(pod: PoolPod, other: PoolPod) -> bool:
    """Return whether a pod has the same level, NUMA nodes, own CPUs and memory.

    They were chosen when it came; all else follows from them, and from what exists.
    """
    return (
        (pod.level, pod.pool, pod.problem) == (other.level, other.pool, other.problem)
        and (pod.numa_ids, pod.dedicated) == (other.numa_ids, other.dedicated)
        and pod.booked_bytes == other.booked_bytes
    )


def adopt(state: PoolState, pods: Iterable[ObservedPod]) -> PoolState:
    """Places pods that exist and are not known, without ramp-up.

    None is refused: as `admit` with `is_forced`. The order of `pods` does not matter.
    """
    return settled(state, _adopted(state, pods).pods)


def configure(
    state: PoolState,
    settings: PoolSettings,
    topology: Topology,
    advice: AdvisedSizes | None = None,
) -> PoolState:
    """Takes other settings, another topology (CPUs go on- and offline), other advice into use.

    Whoever has CPUs alone keeps those that are left, and gets others for those that are not.
    """
    reserved = reserved_cpus(topology, settings)
    # What reclaimed_cores have of a pool by an advisor says nothing once that pool has none.
    lost = _advised(state.advice) - _advised(advice)
    after = replace(
        state,
        settings=settings,
        topology=topology,
        reserved=reserved,
        advice=advice,
        pools={name: cpus for name, cpus in state.pools.items() if name not in lost} if lost else state.pools,
    )
    is_same_place = reserved == state.reserved and topology == state.topology
    if is_same_place and settings == state.settings and advice == state.advice:
        return state
    if is_same_place:
        return settled(after, after.pods, is_new=True)
    pods = dict(after.pods)
    for uid in sorted(pods, key=lambda uid: (not pods[uid].numa_exclusive, uid)):
        if pods[uid].dedicated:
            pods[uid] = fitted(replace(after, pods=pods), pods[uid])
    return settled(after, pods, is_new=True)


def _advised(advice: AdvisedSizes | None) -> frozenset[str]:
    """The pools whose sizes an advisor says."""
    return frozenset() if advice is None else frozenset(advice.sizes) | frozenset(advice.overlap)


def reconcile(state: PoolState, pods: Iterable[ObservedPod], in_flight: Collection[str] = ()) -> PoolState:
    """Makes the state that of what exists: drops what is gone, adopts what is missing.

    A pod that is in `share` since it had no other place gets its own as soon as there is one. One whose level
    or pool is another by now is placed anew.

    `pods`: all that exist. `in_flight`: uids of pods that have calls under way; they are left as they are.
    """
    live = {each.facts.uid: each for each in pods}
    return reconcile_changed(state, live, state.pods.keys() | live.keys(), in_flight)


def reconcile_changed(
    state: PoolState,
    live: Mapping[str, ObservedPod],
    changed: Collection[str],
    in_flight: Collection[str] = (),
) -> PoolState:
    """The same if all pods but some are as they were at the last time.

    `live`: all that exist, by uid. `changed`: uids of those that may have changed, come or gone.
    """
    known = dict(state.pods)
    missing: list[ObservedPod] = []
    for uid in sorted(changed):
        pod, found = known.get(uid), live.get(uid)
        if uid in in_flight:
            continue
        if found is None:
            known.pop(uid, None)
            continue
        if pod is not None and not _is_elsewhere(pod, found):
            known[uid] = after = _with_containers_of(found, pod)
            if not (after.is_waiting and after.main_container is not None):
                continue
            # Its container was created while calls passed by.
        known.pop(uid, None)
        missing.append(found)
    there = _adopted(replace(state, pods=known), missing) if missing else replace(state, pods=known)
    waiting = [uid for uid, pod in there.pods.items() if pod.problem and uid in live and uid not in in_flight]
    if waiting:
        there = _placed_again(there, [live[uid].facts for uid in sorted(waiting)])
    return settled(state, there.pods)


def _is_elsewhere(pod: PoolPod, live: ObservedPod) -> bool:
    """Whether a pod has the place of another level or pool than it has by now.

    Its annotations stay, but what they mean is configured.
    """
    qos = live.facts.qos
    is_same = (qos.level, qos.pool, qos.numa_binding) == (pod.level, pod.pool, pod.numa_binding)
    return live.is_sure and not pod.problem and not is_same


def reserved_cpus(topology: Topology, settings: PoolSettings) -> frozenset[int]:
    """Return the reserved CPUs that are online."""
    if settings.reserved_cpus:
        return settings.reserved_cpus & topology.all_cpus
    return ht_balance(topology, topology.all_cpus, min(settings.reserved_count, len(topology.all_cpus)))


def _placed_again(state: PoolState, pods: Sequence[PodFacts]) -> PoolState:
    """Returns the state with pods where they asked to be, as far as there is room now."""
    # All that are not bound have room, or none has.
    loose = [each for each in pods if each.qos.level is QosLevel.SHARED and not each.qos.numa_binding]
    if loose and not lacks_room(_without(state, loose[0].uid), state.pods[loose[0].uid]):
        roomy = {each.uid: replace(state.pods[each.uid], problem="") for each in loose}
        state = replace(state, pods={**state.pods, **roomy})
    # One that lacks CPUs that are offline stays where it is.
    others = [each for each in pods if each not in loose and not state.pods[each.uid].dedicated]
    first = state.generation % len(others) if others else 0
    for facts in (others[first:] + others[:first])[:_MAX_AGAIN]:
        pod = state.pods[facts.uid]
        asked = replace(unplaced(facts), containers=pod.containers)
        placed = place(_without(state, facts.uid), asked, facts)
        if not isinstance(placed, Refusal):
            state = replace(state, pods={**state.pods, facts.uid: placed})
    return state


def _adopted(state: PoolState, pods: Iterable[ObservedPod]) -> PoolState:
    """Return the state with pods that were not known, by which of them others must leave room for."""
    found = dict(state.pods)
    handled = [each for each in pods if each.facts.is_handled and each.facts.uid not in found]
    for live in sorted(handled, key=lambda each: _adoption_order(each.facts)):
        pod = _with_containers_of(live, unplaced(live.facts))
        if not waits_for_request(pod) or pod.main_container is not None:
            placed = place(replace(state, pods=found), pod, live.facts, kept=_cpus_of([live])[pod.uid])
            pod = as_shared(pod, placed.reason) if isinstance(placed, Refusal) else placed
        found[pod.uid] = replace(pod, is_ramping_up=pod.is_ramping_up and pod.main_container is None)
    return replace(state, pods=found)


def _cpus_of(pods: Iterable[ObservedPod]) -> dict[str, frozenset[int]]:
    """Returns what adopted pods run on, by uid."""
    return {live.facts.uid: NO_CPUS.union(*(each.cpus for each in live.containers)) for live in pods}


def _adoption_order(facts: PodFacts) -> tuple[bool, bool, bool, str]:
    qos = facts.qos
    is_dedicated = qos.level is QosLevel.DEDICATED
    return not is_dedicated, not (is_dedicated and qos.numa_exclusive), not qos.numa_binding, facts.uid


def _with_containers_of(live: ObservedPod, pod: PoolPod) -> PoolPod:
    if len(live.containers) == len(pod.containers) and all(
        map(_is_as, live.containers, pod.containers.items())
    ):
        return pod
    containers = {}
    for each in live.containers:
        known = pod.containers.get(each.name)
        # Another request of the same container is for `resize`, which may refuse it.
        is_same = known is not None and known.id in ("", each.id) and known.millicpu is not None
        is_kept = known is not None and (is_same or each.millicpu is None)
        millicpu = known.millicpu if known is not None and is_kept else each.millicpu
        containers[each.name] = PoolContainer(each.id, millicpu)
    if containers == pod.containers and list(containers) == list(pod.containers):
        return pod
    return replace(pod, containers=containers)


def _is_as(live: LiveContainer, known: tuple[str, PoolContainer]) -> bool:
    name, container = known
    is_same = live.name == name and live.id == container.id
    is_known = live.millicpu is None or container.millicpu is not None
    return is_same and is_known


def _without(state: PoolState, uid: str) -> PoolState:
    return replace(state, pods={other: each for other, each in state.pods.items() if other != uid})


def _with_request(pod: PoolPod, container: str, millicpu: int) -> PoolPod:
    return _with_container(pod, container, pod.containers[container]._replace(millicpu=millicpu))


def _with_container(pod: PoolPod, name: str, container: PoolContainer) -> PoolPod:
    return replace(pod, containers={**pod.containers, name: container})
