"""Which CPUs a pool or a pod gets of those that are available. Pure; the same answer for the same CPUs.

Source: katalyst-core pkg/agent/qrm-plugins/cpu/dynamicpolicy/calculator/cpu_assignment.go.
"""

from __future__ import annotations

from collections.abc import Iterable

from runtimeproxy.katalyst.topology import Topology


class InsufficientCpusError(ValueError):
    """Fewer CPUs are available than asked for."""


def ht_balance(
    topology: Topology, available: frozenset[int], count: int, reverse: bool = False
) -> frozenset[int]:
    """Return CPUs of all NUMA nodes in turn: the lowest of each, then the next.

    `reverse`: the highest of each; the order of NUMA nodes stays.

    Raises:
        InsufficientCpusError: `count` is more than there are.
    """
    if _is_none(available, count):
        return frozenset()
    rows = [sorted(own & available, reverse=reverse) for own in topology.by_numa.values()]
    taken: list[int] = []
    for turn in range(max(map(len, rows))):
        taken += [row[turn] for row in rows if turn < len(row)]
        if len(taken) >= count:
            break
    return frozenset(taken[:count])


def core_balance(
    topology: Topology, available: frozenset[int], count: int, reverse: bool = False
) -> frozenset[int]:
    """Return whole free cores of all NUMA nodes in turn, and single CPUs, likewise, for what is left.

    `reverse`: the highest core and CPU of each NUMA node.

    Raises:
        InsufficientCpusError: `count` is more than there are.
    """
    if _is_none(available, count):
        return frozenset()
    threads = topology.threads_per_core
    if count < threads:
        return ht_balance(topology, available, count, reverse)
    rows = [[core for core in cores if core <= available] for cores in topology.numa_cores.values()]
    if reverse:
        for row in rows:
            row.reverse()
    taken: set[int] = set()
    for turn in range(max(map(len, rows))):
        for row in rows:
            if turn < len(row) and count - len(taken) >= threads:
                taken |= row[turn]
    rest = count - len(taken)
    return frozenset(taken) | ht_balance(topology, available - taken, rest, reverse)


def topo(
    topology: Topology, available: frozenset[int], count: int, align_by_l3: bool = True
) -> frozenset[int]:
    """Return CPUs that are near to each other: whole sockets, caches, cores, and single CPUs at last.

    The least free socket, and its least free core, come first, so that what is free stays together.

    `align_by_l3`: whole last-level caches come before cores, and the rest is of one cache if one has as many.

    Raises:
        InsufficientCpusError: `count` is more than there are.
    """
    if _is_none(available, count):
        return frozenset()
    taken: set[int] = set()
    free = available
    for socket in _by_free(topology.sockets.values(), free):
        if socket <= free and len(socket) <= count - len(taken):
            taken |= socket
    free -= taken
    while align_by_l3 and len(taken) < count:
        cache = _best_cache(topology, free, count - len(taken))
        if len(cache) > count - len(taken):
            free = cache
            break
        taken |= cache
        free -= cache
    for core in _cores_by_free(topology, free):
        if core <= free and len(core) <= count - len(taken):
            taken |= core
    free -= taken
    singles = [cpu for core in _cores_by_free(topology, free) for cpu in sorted(core & free)]
    return frozenset(taken).union(singles[: count - len(taken)])


def _is_none(available: frozenset[int], count: int) -> bool:
    if count > len(available):
        raise InsufficientCpusError(f"insufficient CPUs: requested {count}, available {len(available)}")
    return count <= 0


def _by_free(groups: Iterable[frozenset[int]], free: frozenset[int]) -> list[frozenset[int]]:
    """Sort groups of CPUs by how many of each are free; equal ones stay in their order."""
    return sorted(
        (group for group in groups if not group.isdisjoint(free)), key=lambda group: len(group & free)
    )


def _cores_by_free(topology: Topology, free: frozenset[int]) -> list[frozenset[int]]:
    """Return the cores with free CPUs: those of the least free socket first, its least free core first."""
    cores: dict[int, list[frozenset[int]]] = {}
    for (socket, _), core in topology.cores.items():
        if not core.isdisjoint(free):
            cores.setdefault(socket, []).append(core)
    sockets = sorted(cores, key=lambda socket: len(topology.sockets[socket] & free))
    return [core for socket in sockets for core in _by_free(cores[socket], free)]


def _best_cache(topology: Topology, free: frozenset[int], count: int) -> frozenset[int]:
    """Return the free CPUs of a cache: as many as asked for, or the least that is more, or the most."""
    parts = [part for cpus in topology.caches.values() if (part := cpus & free)]
    large = [part for part in parts if len(part) >= count]
    return min(large, key=len) if large else max(parts, key=len)
