"""The pools of a node by who is there, and what each pod has of them. Pure.

Pools are a function of the demand: who has CPUs alone, and what the pods of each pool request. Only where
`reclaimed_cores` share CPUs with `shared_cores` (`overlap`) the pools of before matter.

Source: katalyst-core pkg/agent/qrm-plugins/cpu/dynamicpolicy/policy_allocation_handlers.go
(adjustPoolsAndIsolatedEntries, generatePoolsAndIsolation), allocation_handlers.go; for memory
pkg/agent/qrm-plugins/memory/dynamicpolicy. Other than there, ties go by name, the pool `reclaim` evades CPUs
that a pod has alone if it can, and CPUs that no pool takes while reclaim is off are the pool `fallback`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from runtimeproxy.katalyst.names import (
    DEDICATED,
    FALLBACK,
    ISOLATION_PREFIX,
    RECLAIM,
    RESERVE,
    SYSTEM_PREFIX,
    QosLevel,
    is_shared_pool,
    numa_pool,
)
from runtimeproxy.katalyst.pickers import core_balance, ht_balance
from runtimeproxy.katalyst.pools import (
    NO_CPUS,
    RAMPING_UP,
    AdvisedSizes,
    PoolPod,
    Pools,
    PoolSettings,
    PoolState,
)
from runtimeproxy.katalyst.sizes import (
    Requirements,
    assemble,
    overlap_ratio,
    proportion,
    quantity,
    reserved_for_reclaim,
)
from runtimeproxy.katalyst.topology import Topology


class Demand(NamedTuple):
    """What pools depend on. Requests are in millicores."""

    dedicated: frozenset[int]
    """CPUs that pods have alone."""
    exclusive_numas: frozenset[int]
    """NUMA nodes that pods have alone."""
    bound_numas: frozenset[int]
    """NUMA nodes with bound pods of `shared_cores` or `dedicated_cores`."""
    bound: Mapping[int, Mapping[str, int]]
    """What bound pods of `shared_cores` request, by NUMA node and pool."""
    unbound: Mapping[str, int]
    """What the others in their pools request, by pool; without isolated ones."""
    isolated: Mapping[str, tuple[str, int]]
    """By uid: the pool that it is split off, and the request."""


def demand(pods: Iterable[PoolPod], advice: AdvisedSizes | None = None) -> Demand:
    """Return what the pools depend on, of these pods."""
    isolated_uids = advice.isolated if advice is not None else frozenset()
    dedicated: set[int] = set()
    exclusive: set[int] = set()
    numas: set[int] = set()
    bound: dict[int, dict[str, int]] = {}
    unbound: dict[str, int] = {}
    isolated: dict[str, tuple[str, int]] = {}
    for pod in pods:
        if pod.level is QosLevel.DEDICATED:
            dedicated |= pod.dedicated
            numas |= pod.numa_ids
            if pod.numa_exclusive:
                exclusive |= pod.numa_ids
        elif pod.level is QosLevel.SHARED and pod.numa_ids:
            numas |= pod.numa_ids
            of_numa = bound.setdefault(min(pod.numa_ids), {})
            of_numa[pod.pool] = of_numa.get(pod.pool, 0) + pod.request
        elif pod.level is QosLevel.SHARED and not pod.is_ramping_up:
            if pod.uid in isolated_uids and pod.main_request:
                isolated[pod.uid] = pod.pool, pod.main_request
            else:
                unbound[pod.pool] = unbound.get(pod.pool, 0) + pod.main_request
    wanted = {name: millicpu for name, millicpu in unbound.items() if millicpu}
    return Demand(frozenset(dedicated), frozenset(exclusive), frozenset(numas), bound, wanted, isolated)


def reclaim_reserve(topology: Topology, settings: PoolSettings) -> int:
    """Return the least size of the pool `reclaim`, in CPUs.

    Source: 4 CPUs (minReclaimedResourceForAllocate), or one for each NUMA node.
    """
    least = 4 if settings.reclaim_reserve is None else settings.reclaim_reserve
    return max(least, len(topology.numa_nodes))


def available_cpus(topology: Topology, reserved: frozenset[int], of: Demand) -> frozenset[int]:
    """Return the CPUs that pools can have."""
    exclusive = topology.cpus_of(of.exclusive_numas)
    return topology.all_cpus - reserved - of.dedicated - exclusive


def build(before: PoolState, of: Demand) -> Pools:
    """Return the pools for a demand."""
    topology, settings = before.topology, before.settings
    free = available_cpus(topology, before.reserved, of)
    built = _Building(before)
    left = built.bound_pools(of, free)
    left |= built.unbound_pools(of, free - topology.cpus_of(of.bound))
    reserve = reclaim_reserve(topology, settings)
    if not settings.enable_reclaim and not settings.overlap and len(left) > reserve:
        if built.unbound:
            left = _given_back(topology, built.pools, built.unbound, left, reserve)
        else:
            built.pools[FALLBACK] = left - ht_balance(topology, left, reserve)
            left -= built.pools[FALLBACK]
    if settings.overlap:
        left |= _overlapped(before, built, reserve)
    if not left:
        usable = free or topology.all_cpus - before.reserved
        left = ht_balance(topology, usable, min(reserve, len(usable))) or topology.all_cpus
    return {**built.pools, RECLAIM: left}


class _Building:
    """Pools of `shared_cores`, one after the other."""

    def __init__(self, before: PoolState) -> None:
        self._topology, self._settings = before.topology, before.settings
        is_advised = before.advice is not None and self._settings.takes_sizes
        self._sizes = before.advice.sizes if before.advice is not None and is_advised else {}
        reserve = reclaim_reserve(before.topology, self._settings)
        self._reserve_each = reserved_for_reclaim(reserve, len(before.topology.numa_nodes))
        self.overlap: dict[str, int] = {}
        """Of pools with advice: how many of their CPUs `reclaim` has, too."""
        self.pools: dict[str, frozenset[int]] = {RESERVE: before.reserved}
        self.requests: dict[str, int] = {}
        self.unbound: list[str] = []

    def bound_pools(self, of: Demand, free: frozenset[int]) -> frozenset[int]:
        """Builds the pools of bound pods; returns what they leave of their NUMA nodes."""
        left = NO_CPUS
        is_exact = self._settings.enable_reclaim and not self._settings.overlap
        for numa_node, requests in sorted(of.bound.items()):
            counts = {}
            for pool, millicpu in requests.items():
                name = numa_pool(pool, numa_node)
                self.requests[name] = millicpu
                counts[name] = self._size(name, millicpu, self._settings.snb_ratio)
            cpus = self._topology.cpus_of((numa_node,)) & free
            if cpus and self._is_advised(counts):
                left |= self._give_advised(cpus, counts, 1)
            elif cpus:
                fits = is_exact and sum(counts.values()) <= len(cpus)
                left |= self._give(cpus, counts) if fits else self._split(cpus, counts)
        return left

    def unbound_pools(self, of: Demand, free: frozenset[int]) -> frozenset[int]:
        """Builds the others, and those of isolated pods if there is room; returns what they leave."""
        names = {ISOLATION_PREFIX + uid: millicpu for uid, (_, millicpu) in of.isolated.items()}
        alone = {name: self._size(name, millicpu) for name, millicpu in names.items()}
        requests = dict(of.unbound)
        counts = {name: self._size(name, millicpu) for name, millicpu in requests.items()}
        if sum(alone.values()) + sum(counts.values()) <= len(free):
            free = self._give(free, alone)
        else:
            for pool, millicpu in of.isolated.values():
                requests[pool] = requests.get(pool, 0) + millicpu
            counts = {name: self._size(name, millicpu) for name, millicpu in requests.items()}
        self.requests |= requests
        if not counts or not free:
            return free
        self.unbound = sorted(counts)
        if self._is_advised(counts):
            numa_nodes = sum(1 for cpus in self._topology.by_numa.values() if cpus & free)
            return self._give_advised(free, counts, numa_nodes)
        fits = not self._settings.overlap and sum(counts.values()) <= len(free)
        return self._give(free, counts) if fits else self._split(free, counts)

    def _size(self, name: str, millicpu: int, ratio: float = 1.0) -> int:
        return max(1, self._sizes.get(name) or quantity(millicpu, ratio))

    def _is_advised(self, counts: Mapping[str, int]) -> bool:
        return any(name in self._sizes for name in counts)

    def _give_advised(
        self, cpus: frozenset[int], counts: Mapping[str, int], numa_nodes: int
    ) -> frozenset[int]:
        """Sizes each pool by its advice, within these CPUs; returns the CPUs that are left.

        The reserve of `reclaim` goes to no other pool, unless there is less than one CPU for each pool.
        """
        reserve = max(0, min(self._reserve_each * numa_nodes, len(cpus) - len(counts)))
        requirements = Requirements(
            usable=len(cpus),
            reserved_for_reclaim=reserve,
            share=counts,
            requests={name: self.requests.get(name, 0) / 1_000 for name in counts},
        )
        overlap = self._settings.overlap
        found = assemble(requirements, enable_reclaim=self._settings.enable_reclaim, overlap=overlap)
        if overlap:
            self.overlap |= {name: found.overlap.get(name, 0) for name in counts}
        if sum(found.sizes.values()) > len(cpus):
            self.pools |= dict.fromkeys(counts, cpus)
            return NO_CPUS
        return self._give(cpus, found.sizes)

    def _give(self, cpus: frozenset[int], counts: Mapping[str, int]) -> frozenset[int]:
        # Each exactly what it wants; returns what is left.
        for name in sorted(counts):
            self.pools[name] = core_balance(self._topology, cpus, counts[name])
            cpus -= self.pools[name]
        return cpus

    def _split(self, cpus: frozenset[int], counts: Mapping[str, int]) -> frozenset[int]:
        # All of them; everybody has all if there is less than one for each.
        shares = proportion(counts, len(cpus))
        if sum(shares.values()) <= len(cpus):
            return self._give(cpus, shares)
        self.pools |= dict.fromkeys(shares, cpus)
        return NO_CPUS


def _given_back(
    topology: Topology,
    pools: dict[str, frozenset[int]],
    names: Iterable[str],
    left: frozenset[int],
    reserve: int,
) -> frozenset[int]:
    """Gives pools what `reclaim` has beyond its least size, by their sizes; returns what it keeps."""
    sizes = {name: len(pools[name]) for name in names}
    surplus, total = len(left) - reserve, sum(sizes.values())
    for name, size in sizes.items():
        if len(left) <= reserve:
            break
        count = min(max(1, surplus * size // total), len(left) - reserve)
        given = ht_balance(topology, left, count)
        pools[name] |= given
        left -= given
    return left


def _ratio(before: Pools, name: str) -> Fraction | None:
    """Return which part of a pool `reclaimed_cores` had; None: it is new, or they had none of any."""
    reclaim = before.get(RECLAIM, NO_CPUS)
    if not before.get(name) or not any(before[other] & reclaim for other in filter(is_shared_pool, before)):
        return None
    return overlap_ratio(before[name], reclaim)


def _overlapped(before: PoolState, built: _Building, reserve: int) -> frozenset[int]:
    """Return the CPUs of the pools of `shared_cores` that `reclaimed_cores` have, too.

    `reserve`: how many they have at least, if an advisor says how many they are.
    """
    found = NO_CPUS
    advised = before.advice.overlap if before.advice is not None else {}
    for name in sorted(filter(is_shared_pool, built.pools)):
        size = len(built.pools[name])
        count = advised.get(name, built.overlap.get(name))
        if count is not None:
            least = min(built.overlap.get(name, 0), reserve)
            count = min(max(count, least), size)
            found |= core_balance(before.topology, built.pools[name], count, reverse=True)
            continue
        ratio = _ratio(before.pools, name)
        if ratio is None:
            ratio = max(1 - Fraction(built.requests[name], 1_000 * size), Fraction())
        found |= core_balance(before.topology, built.pools[name], ceil(size * ratio), reverse=True)
    return found


class _Places:
    """What pods of each kind have: CPUs and NUMA nodes. Each is computed once."""

    def __init__(self, state: PoolState, of: Demand, pods: Iterable[PoolPod]) -> None:
        topology = state.topology
        self._topology, self._pools = topology, state.pools
        # Some NUMA nodes have memory only, some have none.
        nodes = topology.memory_bytes.keys() | set(topology.numa_nodes)
        self._memory = frozenset(n for n in nodes if topology.memory_bytes.get(n, 1)) or frozenset(nodes)
        free, reclaim = available_cpus(topology, state.reserved, of), state.pools[RECLAIM]
        not_bound = free - topology.cpus_of(of.bound_numas)
        self._unbound = not_bound or free - topology.cpus_of(of.bound) or reclaim
        self._unbound_mems = self._without(of.bound_numas)
        local = NO_CPUS.union(*(pod.numa_ids for pod in pods if pod.level is QosLevel.RECLAIMED))
        self._reclaim = reclaim - topology.cpus_of(local) or reclaim
        self._reclaim_mems = self._without(
            local if state.settings.enable_reclaim else local | of.exclusive_numas
        )
        self._bound_system = topology.all_cpus - of.dedicated - state.reserved or topology.all_cpus
        self._bound_system_mems = self._without(of.exclusive_numas)
        self._system: dict[str, frozenset[int]] = {}

    def of(self, pod: PoolPod) -> tuple[str, frozenset[int], frozenset[int]]:
        """Return owner, CPUs and NUMA nodes of a pod."""
        mems = pod.numa_ids and (pod.numa_ids & self._memory or self._memory)
        match pod.level:
            case QosLevel.DEDICATED if pod.dedicated:
                return DEDICATED, pod.dedicated, mems or self._unbound_mems
            case QosLevel.RECLAIMED:
                local = self._pools[RECLAIM] & self._topology.cpus_of(pod.numa_ids)
                return RECLAIM, local or self._reclaim, mems or self._reclaim_mems
            case QosLevel.SYSTEM:
                return (
                    SYSTEM_PREFIX + pod.pool,
                    self._of_system(pod),
                    mems or (self._bound_system_mems if pod.numa_binding else self._memory),
                )
            case QosLevel.SHARED if not pod.is_ramping_up:
                name = numa_pool(pod.pool, min(pod.numa_ids)) if pod.numa_ids else pod.pool
                for owner in (ISOLATION_PREFIX + pod.uid, name):
                    if owner in self._pools:
                        return owner, self._pools[owner], mems or self._unbound_mems
        return RAMPING_UP, self._unbound, mems or self._unbound_mems

    def _without(self, numa_nodes: frozenset[int]) -> frozenset[int]:
        return self._memory - numa_nodes or self._memory

    def _of_system(self, pod: PoolPod) -> frozenset[int]:
        key = f"{pod.pool}/{pod.numa_binding}/{sorted(pod.numa_ids)}"
        found = self._system.get(key)
        if found is None:
            named = [cpus for name, cpus in self._pools.items() if pod.pool and name.startswith(pod.pool)]
            found = NO_CPUS.union(*named)
            if not found and pod.numa_binding:
                local = self._topology.cpus_of(pod.numa_ids) & self._bound_system
                found = local or self._bound_system
            found = self._system[key] = found or self._topology.all_cpus
        return found


def settled(before: PoolState, pods: Mapping[str, PoolPod], *, is_new: bool = False) -> PoolState:
    """Return the state with these pods: pools by their demand, and each pod with what it has of them.

    `is_new`: pools are built even if the demand is that of before.
    """
    if not is_new and (unmoved := _unmoved(before, pods)) is not None:
        return unmoved
    of = demand(pods.values(), before.advice)
    pools = before.pools
    if is_new or of != demand(before.pods.values(), before.advice):
        pools = _kept(before.pools, build(before, of))
    state = replace(before, pools=pools)
    places = _Places(state, of, pods.values())
    after: dict[str, PoolPod] = {}
    for uid in sorted(pods):
        pod = pods[uid]
        owner, cpus, mems = places.of(pod)
        if (owner, cpus, mems) != (pod.owner, pod.cpus, pod.mems):
            pod = replace(pod, owner=owner, cpus=cpus, mems=mems)
        after[uid] = pod
    if not is_new and after == before.pods and pools == before.pools:
        return before
    return replace(before, pools=pools, pods=after, generation=before.generation + 1)


def _unmoved(before: PoolState, pods: Mapping[str, PoolPod]) -> PoolState | None:
    """Return the state with these pods if none of them moves; None: they may, or others are there.

    A container that comes or goes mostly moves none, and calls wait for it.
    """
    if pods.keys() != before.pods.keys():
        return None
    changed = {uid: pod for uid, pod in pods.items() if pod is not before.pods[uid]}
    others = [before.pods[uid] for uid in changed]
    if any(map(_moves, others, changed.values())):
        return None
    if demand(changed.values(), before.advice) != demand(others, before.advice):
        return None
    if list(changed.values()) == others:
        return before
    return replace(before, pods={**before.pods, **changed}, generation=before.generation + 1)


def _moves(before: PoolPod, after: PoolPod) -> bool:
    # By all that `_Places.of` looks at.
    return (
        (before.owner, before.cpus, before.mems) != (after.owner, after.cpus, after.mems)
        or (before.level, before.pool, before.numa_ids) != (after.level, after.pool, after.numa_ids)
        or (before.dedicated, before.numa_binding) != (after.dedicated, after.numa_binding)
        or before.is_ramping_up != after.is_ramping_up
    )


def _kept(before: Pools, after: Pools) -> Pools:
    # The same sets where they are equal: comparing them is quick.
    return {name: before[name] if before.get(name) == cpus else cpus for name, cpus in after.items()}
