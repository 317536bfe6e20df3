"""Where a new pod goes: its NUMA nodes, its CPUs, the memory that it books; or why it goes nowhere. Pure.

A pod is bound by its hint, of CPUs and memory together (`hints`). CPUs that it has alone are picked at once.

Source: katalyst-core pkg/agent/qrm-plugins/cpu/dynamicpolicy/policy_allocation_handlers.go, and
pkg/agent/qrm-plugins/memory/dynamicpolicy/policy_allocation_handlers.go.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import NamedTuple

from runtimeproxy.katalyst.hints import (
    Choice,
    HintRequest,
    InvalidRequestError,
    NoRoomError,
    NumaBooking,
    check_unbound,
    choose,
)
from runtimeproxy.katalyst.levels import KatalystQos, keeps_away
from runtimeproxy.katalyst.names import RECLAIM, SHARE, QosLevel
from runtimeproxy.katalyst.pickers import InsufficientCpusError, topo
from runtimeproxy.katalyst.pools import NO_CPUS, PoolPod, PoolState, Refusal, RefusalKind
from runtimeproxy.katalyst.rebuild import Demand, available_cpus, demand
from runtimeproxy.katalyst.sizes import ImpossibleSizesError, numa_count
from runtimeproxy.katalyst.topology import Topology
from runtimeproxy.units import format_cpu_list


class PodFacts(NamedTuple):
    """A pod, as far as pools depend on it."""

    uid: str
    qos: KatalystQos
    namespace: str = ""
    name: str = ""
    millicpu: int | None = None
    """Request of the whole pod (`linux.resources` of the sandbox); None: not known."""
    reclaimed_millicpu: int | None = None
    """In place of it for `reclaimed_cores`; None: none is known."""
    memory_bytes: int | None = None
    """Request of the whole pod; None: not known, then no memory is booked."""
    bind_result: frozenset[int] = NO_CPUS
    """The NUMA nodes that a scheduler has chosen (`katalyst.kubewharf.io/numa_bind_result`)."""
    main_container: str = ""
    """`kubernetes.io/main-container-name`; empty: the first that is created."""
    is_handled: bool = True
    """False: pools leave it alone (`katalyst.kubewharf.io/skip_qrm_admit`)."""


def unplaced(facts: PodFacts) -> PoolPod:
    """Return the pod without a place."""
    qos = facts.qos
    is_reclaimed = qos.level is QosLevel.RECLAIMED
    return PoolPod(
        uid=facts.uid,
        namespace=facts.namespace,
        name=facts.name,
        level=qos.level,
        pool=qos.pool,
        numa_binding=qos.numa_binding,
        numa_exclusive=qos.numa_exclusive,
        numa_share=qos.numa_share,
        millicpu=facts.reclaimed_millicpu or 0 if is_reclaimed else facts.millicpu,
        main=facts.main_container,
        is_ramping_up=qos.level in (QosLevel.SHARED, QosLevel.DEDICATED),
    )


def waits_for_request(pod: PoolPod) -> bool:
    """Return whether a pod is placed once the request of its main container is known."""
    return pod.millicpu is None and pod.level in (QosLevel.SHARED, QosLevel.DEDICATED)


def as_shared(pod: PoolPod, problem: str) -> PoolPod:
    """Return the pod as one of `shared_cores` that is not bound, since it has no other place."""
    return replace(
        pod,
        level=QosLevel.SHARED,
        pool=pod.pool if pod.level is QosLevel.SHARED else SHARE,
        numa_binding=False,
        numa_exclusive=False,
        numa_ids=NO_CPUS,
        dedicated=NO_CPUS,
        booked_bytes={},
        is_ramping_up=True,
        reason="",
        problem=problem,
    )


def place(
    state: PoolState, pod: PoolPod, facts: PodFacts, kept: frozenset[int] = NO_CPUS
) -> PoolPod | Refusal:
    """Return the pod with NUMA nodes, CPUs of its own and booked memory.

    `pod` is not in the state, or without a place there. `kept`: what it runs on already; it stays there if it
    can.
    """
    try:
        match pod.level:
            case QosLevel.DEDICATED if pod.numa_binding:
                return _bound_dedicated(state, pod, facts, kept)
            case QosLevel.DEDICATED:
                return _unbound_dedicated(state, pod, kept)
            case QosLevel.SHARED if pod.numa_binding:
                return _bound_share(state, pod, facts, kept)
            case QosLevel.SHARED:
                check_unbound(bookings(state), unbound_millicpu(state) + pod.request)
            case QosLevel.RECLAIMED if pod.numa_binding and state.settings.enable_reclaim_numa_binding:
                return _bound_reclaimed(state, pod, facts, kept)
            case QosLevel.SYSTEM if pod.numa_binding:
                return replace(pod, numa_ids=facts.qos.numa_ids & frozenset(state.topology.numa_nodes))
    except InvalidRequestError as error:
        return Refusal(RefusalKind.INVALID, str(error))
    except (NoRoomError, InsufficientCpusError) as error:
        return Refusal(RefusalKind.NO_ROOM, str(error))
    return pod


def lacks_room(state: PoolState, pod: PoolPod) -> str:
    """Return why a pod of `shared_cores` does not fit beside the pods of the state; empty if it does."""
    try:
        if pod.numa_ids:
            _check_bound_share(state, pod)
        else:
            check_unbound(bookings(state), unbound_millicpu(state) + pod.request)
    except NoRoomError as error:
        return str(error)
    return ""


def bookings(state: PoolState) -> tuple[NumaBooking, ...]:
    """Return what each NUMA node has left, and who is bound there."""
    topology, of = state.topology, demand(state.pods.values(), state.advice)
    free = available_cpus(topology, state.reserved, of)
    free_bytes = free_memory_bytes(state)
    bound: dict[int, list[PoolPod]] = {node: [] for node in topology.numa_nodes}
    taken: set[int] = set()
    reclaimed: dict[int, int] = {}
    for pod in state.pods.values():
        if pod.level is QosLevel.RECLAIMED and pod.numa_ids:
            node = min(pod.numa_ids)
            reclaimed[node] = reclaimed.get(node, 0) + pod.request
        elif pod.level in (QosLevel.SHARED, QosLevel.DEDICATED) and pod.numa_ids:
            # A NUMA node may have lost all its CPUs since.
            for node in pod.numa_ids & bound.keys():
                bound[node].append(pod)
        elif pod.dedicated:
            taken |= _numa_nodes_of(topology, pod.dedicated)
    reclaim = state.pools.get(RECLAIM, NO_CPUS)
    return tuple(
        NumaBooking(
            numa_node=node,
            free_cpus=free & cpus,
            held_millicpu=sum(of.bound.get(node, {}).values()),
            bound=tuple(bound[node]),
            is_taken=node in taken,
            free_bytes=free_bytes.get(node),
            headroom_millicpu=1_000 * len(reclaim & cpus),
            reclaimed_millicpu=reclaimed.get(node),
        )
        for node, cpus in topology.by_numa.items()
    )


def may_be_bound(state: PoolState, pod: PoolPod, numa_nodes: frozenset[int]) -> bool:
    """Return whether the pods that are bound to NUMA nodes let this one be bound there, too."""
    for other in state.pods.values():
        is_bound = other.level in (QosLevel.SHARED, QosLevel.DEDICATED) and other.numa_ids & numa_nodes
        if pod.numa_exclusive and other.dedicated & state.topology.cpus_of(numa_nodes):
            return False
        if is_bound and (pod.numa_exclusive or other.numa_exclusive or keeps_away(other, pod)):
            return False
    return True


def unbound_cpus(state: PoolState, of: Demand) -> frozenset[int]:
    """Return the CPUs that pods of `shared_cores` without NUMA nodes of their own can have."""
    free = available_cpus(state.topology, state.reserved, of)
    return free - state.topology.cpus_of(of.bound_numas)


def unbound_millicpu(state: PoolState) -> int:
    """Return what these pods request."""
    pods = state.pods.values()
    return sum(pod.request for pod in pods if pod.level is QosLevel.SHARED and not pod.numa_ids)


def _check_bound_share(state: PoolState, pod: PoolPod) -> None:
    # One is all that a pod of `shared_cores` is bound to.
    numa_node, of = min(pod.numa_ids), demand(state.pods.values(), state.advice)
    cpus = available_cpus(state.topology, state.reserved, of) & state.topology.cpus_of(pod.numa_ids)
    free = 1_000 * len(cpus) - sum(of.bound.get(numa_node, {}).values())
    if pod.request > free or free <= 0:
        raise NoRoomError(
            f"{pod.request}m of CPU requested, NUMA node {numa_node} has {free}m left for bound pods"
        )


def _hint(state: PoolState, facts: PodFacts, millicpu: int, unbound_millicpu: int) -> Choice:
    request = HintRequest(
        qos=facts.qos,
        millicpu=millicpu,
        memory_bytes=facts.memory_bytes,
        unbound_millicpu=unbound_millicpu,
        bind_result=facts.bind_result,
        policy=state.settings.numa_hint_policy,
    )
    return choose(state.topology, bookings(state), request)


def _bound_dedicated(state: PoolState, pod: PoolPod, facts: PodFacts, kept: frozenset[int]) -> PoolPod:
    topology, of = state.topology, demand(state.pods.values(), state.advice)
    free, count = available_cpus(topology, state.reserved, of), ceil(pod.request / 1_000)
    if count == 0 and not pod.numa_exclusive:
        raise InvalidRequestError("it has no CPU request: CPUs that it has alone are as many")
    numa_ids, hint, how = _numa_nodes_of(topology, kept), "where it was", "which it had"
    cpus = topology.cpus_of(numa_ids) & free if pod.numa_exclusive else kept
    if not (_fits(topology, facts.qos, pod, cpus) and kept <= free and may_be_bound(state, pod, numa_ids)):
        numa_ids, hint = _hint(state, facts, pod.request, unbound_millicpu(state))
        cpus, how = topology.cpus_of(numa_ids) & free, "all that are free"
        if not pod.numa_exclusive:
            cpus, how = _picked(topology, facts.qos, cpus, numa_ids, count)
    if not cpus:
        raise NoRoomError(f"NUMA nodes {format_cpu_list(numa_ids)} have no free CPU")
    for numa_node in sorted(numa_ids & of.bound.keys()):
        left = (topology.cpus_of((numa_node,)) & free) - cpus
        if not left or 1_000 * len(left) < sum(of.bound[numa_node].values()):
            raise NoRoomError(f"NUMA node {numa_node} has too few CPUs beside its pods of shared_cores")
    reason = f"NUMA nodes {format_cpu_list(numa_ids)} {hint}; CPUs {format_cpu_list(cpus)} {how}"
    placed = replace(_settled(pod), numa_ids=numa_ids, dedicated=cpus, reason=reason)
    return _booked(state, placed, facts)


def _fits(topology: Topology, qos: KatalystQos, pod: PoolPod, cpus: frozenset[int]) -> bool:
    """Return whether CPUs that a pod has are as many as it gets, on as many NUMA nodes."""
    numa_ids = _numa_nodes_of(topology, cpus)
    if qos.numa_ids:
        return numa_ids == qos.numa_ids
    try:
        numbers = qos.numa_number or numa_count(topology, pod.request).numa_nodes
    except ImpossibleSizesError:
        return False
    return len(numa_ids) == numbers and (pod.numa_exclusive or len(cpus) == ceil(pod.request / 1_000))


def _picked(
    topology: Topology, qos: KatalystQos, local: frozenset[int], numa_ids: frozenset[int], count: int
) -> tuple[frozenset[int], str]:
    """Return CPUs of these NUMA nodes, and how they were picked."""
    needed = count // topology.threads_per_core if qos.full_pcpus else 0
    whole = sum(core <= local for core in topology.cores.values())
    if whole < needed:
        raise NoRoomError(f"{count} CPUs need {needed} whole free cores, there are {whole}")
    if not qos.distribute_evenly:
        return topo(topology, local, count), "by topology"
    if count % len(numa_ids):
        raise InvalidRequestError(
            f"{count} CPUs cannot be distributed evenly over {len(numa_ids)} NUMA nodes"
        )
    each = count // len(numa_ids)
    parts = (topo(topology, topology.cpus_of((node,)) & local, each) for node in numa_ids)
    return NO_CPUS.union(*parts), f"by topology, {each} of each NUMA node"


def _unbound_dedicated(state: PoolState, pod: PoolPod, kept: frozenset[int]) -> PoolPod:
    """Gives a pod CPUs that it has alone, of any NUMA nodes without bound pods of `shared_cores`."""
    of = demand(state.pods.values(), state.advice)
    count = ceil(pod.request / 1_000)
    if count == 0:
        raise InvalidRequestError("it has no CPU request: CPUs that it has alone are as many")
    local = available_cpus(state.topology, state.reserved, of) - state.topology.cpus_of(of.bound)
    cpus = kept if len(kept) == count and kept <= local else topo(state.topology, local, count)
    left, requested = unbound_cpus(state, of) - cpus, unbound_millicpu(state)
    if 1_000 * len(left) < requested:
        raise NoRoomError(
            f"with {count} CPUs less, pods of shared_cores have {len(left)} for the {requested}m they request"
        )
    reason = f"CPUs {format_cpu_list(cpus)} by topology, of no NUMA node in particular"
    return replace(_settled(pod), dedicated=cpus, reason=reason)


def _bound_share(state: PoolState, pod: PoolPod, facts: PodFacts, kept: frozenset[int]) -> PoolPod:
    numa_ids, hint = _numa_nodes_of(state.topology, kept), "where it was"
    stays = len(numa_ids) == 1 and may_be_bound(state, pod, numa_ids)
    if not stays or lacks_room(state, replace(pod, numa_ids=numa_ids)):
        numa_ids, hint = _hint(state, facts, pod.request, unbound_millicpu(state))
        _check_bound_share(state, replace(pod, numa_ids=numa_ids))
    reason = f"NUMA node {format_cpu_list(numa_ids)} {hint}"
    return _booked(state, replace(_settled(pod), numa_ids=numa_ids, reason=reason), facts)


def _bound_reclaimed(state: PoolState, pod: PoolPod, facts: PodFacts, kept: frozenset[int]) -> PoolPod:
    numa_ids, hint = _numa_nodes_of(state.topology, kept), "where it was"
    if len(numa_ids) != 1:
        unbound = [each for each in state.pods.values() if each.level is pod.level and not each.numa_ids]
        numa_ids, hint = _hint(state, facts, pod.request, sum(each.request for each in unbound))
    if len(numa_ids) != 1:
        # Source: with more than one it has the whole pool.
        return replace(pod, reason=f"NUMA nodes {format_cpu_list(numa_ids)} {hint}: not bound to one")
    return replace(pod, numa_ids=numa_ids, reason=f"NUMA node {format_cpu_list(numa_ids)} {hint}")


def _numa_nodes_of(topology: Topology, cpus: frozenset[int]) -> frozenset[int]:
    return frozenset(node for node, own in topology.by_numa.items() if own & cpus)


def free_memory_bytes(state: PoolState) -> dict[int, int]:
    """Return by NUMA node what bound pods can book; empty if sizes are not known."""
    reserved = state.settings.reserved_memory_bytes
    free = {n: max(0, size - reserved) for n, size in state.topology.memory_bytes.items()}
    for pod in state.pods.values():
        for numa_node, size in pod.booked_bytes.items():
            if numa_node in free:
                free[numa_node] = max(0, free[numa_node] - size)
    return free


def _booked(state: PoolState, pod: PoolPod, facts: PodFacts) -> PoolPod:
    """Books memory: an exclusive pod all of its NUMA nodes, another what it requests, the lowest first."""
    free = {n: size for n, size in sorted(free_memory_bytes(state).items()) if n in pod.numa_ids}
    booked, wanted = {}, facts.memory_bytes or 0
    for numa_node, size in free.items():
        taken = size if pod.numa_exclusive else min(size, wanted)
        if taken:
            booked[numa_node] = taken
            wanted -= taken
    return replace(pod, booked_bytes=booked)


def _settled(pod: PoolPod) -> PoolPod:
    # It does not ramp up, and its request is what it was placed for, whichever of its containers go later.
    return replace(pod, millicpu=pod.request, is_ramping_up=False, ramp_up_since_s=None)


def fitted(state: PoolState, pod: PoolPod) -> PoolPod:
    """Return a pod that has CPUs alone with those of them that are left, and with others for the rest.

    `state`: with the pod, and of the node as it is now.
    """
    others = {uid: each for uid, each in state.pods.items() if uid != pod.uid}
    of = demand(others.values(), state.advice)
    free = available_cpus(state.topology, state.reserved, of)
    # Bound pods of `shared_cores` keep what they have of a NUMA node.
    spare = free - state.topology.cpus_of(of.bound)
    local = state.topology.cpus_of(pod.numa_ids) & spare if pod.numa_ids else spare
    kept, count = pod.dedicated & free, ceil(pod.request / 1_000)
    if pod.numa_exclusive:
        cpus = local
    elif len(kept) < count:
        more = local - kept
        cpus = kept | topo(state.topology, more, min(count - len(kept), len(more)))
    else:
        return pod
    if not cpus:
        return as_shared(pod, "none of its CPUs is online")
    problem = "" if pod.numa_exclusive or len(cpus) == count else f"has {len(cpus)} of its {count} CPUs"
    return replace(pod, dedicated=cpus, problem=problem)
