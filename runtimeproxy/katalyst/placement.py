"""Where a new pod goes: its NUMA nodes, its CPUs, the memory that it books; or why it goes nowhere. Pure.

A pod is bound by its hint, of CPUs and memory together (`hints`). CPUs that it has alone are picked at once.

Source: katalyst-core pkg/agent/qrm-plugins/cpu/dynamicpolicy/policy_allocation_handlers.go, and
pkg/agent/qrm-plugins/memory/dynamicpolicy/policy_allocation_handlers.go.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import NamedTuple

from runtimeproxy.katalyst.hints import dedicated_hint, reclaimed_hint, share_hint
from runtimeproxy.katalyst.levels import KatalystQos, QosLevel, keeps_away
from runtimeproxy.katalyst.pickers import InsufficientCpus, topo
from runtimeproxy.katalyst.pools import (
    NO_CPUS,
    SHARE,
    PoolPod,
    PoolState,
    Refusal,
    RefusalKind,
)
from runtimeproxy.katalyst.rebuild import Demand, available_cpus, demand
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
    main_container: str = ""
    """`kubernetes.io/main-container-name`; empty: the first that is created."""
    is_handled: bool = True
    """False: pools leave it alone (`katalyst.kubewharf.io/skip_qrm_admit`, pods for debugging)."""


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


def is_unplaced(pod: PoolPod) -> bool:
    """Return whether a pod has yet to get what it has alone, or its NUMA node."""
    if pod.level is QosLevel.DEDICATED:
        return not pod.dedicated
    return pod.level is QosLevel.SHARED and pod.numa_binding and not pod.numa_ids


def as_shared(pod: PoolPod, problem: str) -> PoolPod:
    """Return the pod as one of the pool `share`, since it has no other place."""
    return replace(
        pod,
        level=QosLevel.SHARED,
        pool=SHARE,
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

    Args:
        pod: One that is not in the state, or without a place there.
        kept: What it runs on already; it stays there if it can.
    """
    match pod.level:
        case QosLevel.DEDICATED:
            return _dedicated(state, pod, facts, kept)
        case QosLevel.SHARED if pod.numa_binding:
            return _bound_share(state, pod, facts, kept)
        case QosLevel.SHARED:
            return lacks_room(state, pod) or pod
        case QosLevel.RECLAIMED if pod.numa_binding and state.settings.enable_reclaim_numa_binding:
            return _bound_reclaimed(state, pod, facts, kept)
        case QosLevel.SYSTEM if pod.numa_binding:
            return replace(pod, numa_ids=facts.qos.numa_ids & frozenset(state.topology.numa_nodes))
    return pod


def lacks_room(state: PoolState, pod: PoolPod) -> Refusal | None:
    """Return why a pod of `shared_cores` does not fit beside the pods of the state; None if it does."""
    of = demand(state.pods.values(), state.advice)
    if pod.numa_ids:
        # One is all that a pod of `shared_cores` is bound to.
        numa_node = min(pod.numa_ids)
        free = shared_millicpu(state, of, numa_node)
        if pod.request <= free and free > 0:
            return None
        return _no_room(f"NUMA node {numa_node} has {free}m of CPU left for bound pods; {pod.request}m requested")
    requested = unbound_millicpu(state) + pod.request
    cpus = unbound_cpus(state, of)
    if ceil(requested / 1_000) <= len(cpus):
        return None
    return _no_room(
        f"CPUs of no bound pod are {len(cpus)} ({format_cpu_list(cpus) or 'none'}); with this pod {requested}m "
        "of CPU is requested of them"
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


def shared_millicpu(state: PoolState, of: Demand, numa_node: int) -> int:
    """Return what bound pods of `shared_cores` can yet request of a NUMA node."""
    free = available_cpus(state.topology, state.reserved, of) & state.topology.cpus_of((numa_node,))
    return 1_000 * len(free) - sum(of.bound.get(numa_node, {}).values())


def _no_room(reason: str) -> Refusal:
    return Refusal(RefusalKind.NO_ROOM, reason)


def _dedicated(state: PoolState, pod: PoolPod, facts: PodFacts, kept: frozenset[int]) -> PoolPod | Refusal:
    topology, qos, of = state.topology, facts.qos, demand(state.pods.values(), state.advice)
    count = ceil(pod.request / 1_000)
    if count == 0 and not pod.numa_exclusive:
        return Refusal(RefusalKind.INVALID, "a pod of dedicated_cores has no CPU request")
    free = available_cpus(topology, state.reserved, of)
    if not pod.numa_binding:
        return _unbound_dedicated(state, pod, of, free, count, kept)
    numa_ids, hint = _numa_nodes_of(topology, kept), "which it had"
    if not (numa_ids and kept <= free and may_be_bound(state, pod, numa_ids)):
        chosen = dedicated_hint(state, of, facts, pod)
        if isinstance(chosen, Refusal):
            return chosen
        numa_ids, hint = chosen
    local = topology.cpus_of(numa_ids) & free
    if pod.numa_exclusive:
        cpus, how = local, "all that are not reserved"
    elif len(kept) == count and kept <= local:
        cpus, how = kept, "which it had"
    else:
        picked = _picked(topology, qos, local, numa_ids, count)
        if isinstance(picked, Refusal):
            return picked
        cpus, how = picked
    if not cpus:
        return _no_room(f"NUMA nodes {format_cpu_list(numa_ids)} have no free CPU")
    for numa_node in sorted(numa_ids & of.bound.keys()):
        left = (topology.cpus_of((numa_node,)) & free) - cpus
        if 1_000 * len(left) < sum(of.bound[numa_node].values()) or not left:
            return _no_room(f"NUMA node {numa_node} has too few CPUs for its pods of shared_cores and this one")
    reason = f"NUMA nodes {format_cpu_list(numa_ids)} {hint}: CPUs {format_cpu_list(cpus)}, {how}"
    return _booked(
        state, replace(pod, numa_ids=numa_ids, dedicated=cpus, is_ramping_up=False, reason=reason), facts
    )


def _picked(
    topology: Topology, qos: KatalystQos, local: frozenset[int], numa_ids: frozenset[int], count: int
) -> tuple[frozenset[int], str] | Refusal:
    """Return CPUs of these NUMA nodes, and how they were picked."""
    whole = [core for core in topology.cores.values() if core <= local]
    threads = topology.threads_per_core
    if qos.full_pcpus and len(whole) < count // threads:
        return _no_room(f"{count // threads} whole free cores needed for {count} CPUs, {len(whole)} there are")
    parts = {n: topology.cpus_of((n,)) & local for n in sorted(numa_ids)} if qos.distribute_evenly else {}
    if parts and count % len(parts):
        return Refusal(RefusalKind.INVALID, f"{count} CPUs cannot be distributed evenly over {len(parts)} NUMA nodes")
    try:
        if parts:
            each = count // len(parts)
            cpus = NO_CPUS.union(*(topo(topology, part, each) for part in parts.values()))
            return cpus, f"{each} of each NUMA node, by topology"
        return topo(topology, local, count), "by topology"
    except InsufficientCpus as error:
        return _no_room(str(error))


def _unbound_dedicated(
    state: PoolState, pod: PoolPod, of: Demand, free: frozenset[int], count: int, kept: frozenset[int]
) -> PoolPod | Refusal:
    """Gives a pod CPUs that it has alone, of any NUMA nodes without bound pods of `shared_cores`."""
    local = free - state.topology.cpus_of(of.bound)
    unbound = unbound_cpus(state, of)
    if count > len(local):
        return _no_room(f"{count} CPUs requested, {len(local)} are free")
    cpus = kept if len(kept) == count and kept <= local else topo(state.topology, local, count)
    if 1_000 * len(unbound - cpus) < unbound_millicpu(state):
        return _no_room(f"{len(unbound - cpus)} CPUs would be left for {unbound_millicpu(state)}m of CPU")
    reason = f"CPUs {format_cpu_list(cpus)} by topology, of no NUMA node in particular"
    return replace(pod, dedicated=cpus, is_ramping_up=False, reason=reason)


def _bound_share(state: PoolState, pod: PoolPod, facts: PodFacts, kept: frozenset[int]) -> PoolPod | Refusal:
    of = demand(state.pods.values(), state.advice)
    numa_ids, hint = _numa_nodes_of(state.topology, kept), "which it had"
    stays = len(numa_ids) == 1 and may_be_bound(state, pod, numa_ids)
    if not stays or lacks_room(state, replace(pod, numa_ids=numa_ids)) is not None:
        chosen = share_hint(state, of, facts, pod)
        if isinstance(chosen, Refusal):
            return chosen
        numa_ids, hint = chosen
    reason = f"NUMA node {format_cpu_list(numa_ids)} {hint}"
    return _booked(state, replace(pod, numa_ids=numa_ids, is_ramping_up=False, reason=reason), facts)


def _bound_reclaimed(state: PoolState, pod: PoolPod, facts: PodFacts, kept: frozenset[int]) -> PoolPod | Refusal:
    numa_ids, hint = _numa_nodes_of(state.topology, kept), "which it had"
    if len(numa_ids) != 1:
        chosen = reclaimed_hint(state, facts, pod)
        if isinstance(chosen, Refusal):
            return chosen
        numa_ids, hint = chosen
    if len(numa_ids) != 1:
        # Source: the whole pool for a hint of more than one.
        return pod
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


def _booked(state: PoolState, pod: PoolPod, facts: PodFacts) -> PoolPod | Refusal:
    """Books memory: an exclusive pod all of its NUMA nodes, another what it requests."""
    free = {n: size for n, size in sorted(free_memory_bytes(state).items()) if n in pod.numa_ids}
    wanted = facts.memory_bytes or 0
    if free and wanted > sum(free.values()):
        return _no_room(
            f"{wanted} bytes of memory requested, NUMA nodes {format_cpu_list(pod.numa_ids)} have "
            f"{sum(free.values())} left"
        )
    if pod.numa_exclusive:
        return replace(pod, booked_bytes=free)
    booked = {}
    for numa_node, size in free.items():
        if taken := min(size, wanted):
            booked[numa_node] = taken
            wanted -= taken
    return replace(pod, booked_bytes=booked)


def fitted(state: PoolState, pod: PoolPod) -> PoolPod:
    """Return a pod that has CPUs alone with those that the node has now; the state has it, too."""
    others = {uid: each for uid, each in state.pods.items() if uid != pod.uid}
    of = demand(others.values(), state.advice)
    free = available_cpus(state.topology, state.reserved, of)
    # Bound pods of `shared_cores` keep what they have of a NUMA node.
    spare = free - state.topology.cpus_of(of.bound)
    local = state.topology.cpus_of(pod.numa_ids) & spare if pod.numa_ids else spare
    kept, count = pod.dedicated & free, len(pod.dedicated)
    if pod.numa_exclusive:
        cpus = local
    elif len(kept) < count:
        more = local - kept
        cpus = kept | topo(state.topology, more, min(count - len(kept), len(more)))
    else:
        return pod
    if not cpus:
        return as_shared(pod, "none of its CPUs is online")
    problem = "" if pod.numa_exclusive or len(cpus) == count else f"has {len(cpus)} CPUs of {count} before"
    return replace(pod, dedicated=cpus, problem=problem)
