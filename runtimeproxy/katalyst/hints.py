"""Which NUMA nodes a bound pod gets: hints by CPU, then those that memory agrees to. Pure.

A hint is a set of NUMA nodes that a pod fits on; some are preferred. The topology manager's part is here,
too, its policy `numeric`: CPU and memory have the same NUMA nodes, and one of them at least prefers these.

Other than in Katalyst, a set of NUMA nodes must leave enough to pods of `shared_cores` that are not bound,
not only each of them alone; no set has a NUMA node that the pod can have nothing of; and pods with
`distribute_evenly_across_numa` and `full_pcpus_pairing` find their whole cores on each NUMA node.

Source: katalyst-core pkg/agent/qrm-plugins/cpu/dynamicpolicy/policy_hint_handlers.go and hintoptimizer,
pkg/agent/qrm-plugins/memory/dynamicpolicy/policy_hint_handlers.go; the kubelet's patch
cm/topologymanager/policy_numeric.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain, combinations, islice
from typing import Final, NamedTuple

from runtimeproxy.katalyst.levels import KatalystQos, Placed, keeps_away
from runtimeproxy.katalyst.names import QosLevel
from runtimeproxy.katalyst.sizes import ImpossibleSizesError, is_sufficient, numa_count
from runtimeproxy.katalyst.topology import Topology
from runtimeproxy.units import format_cpu_list

NO_NODES: Final[frozenset[int]] = frozenset()
_MANY_NUMA_NODES: Final = 16
"""With more, sets have one NUMA node more than needed at most. Source: pkg/util/machine, LargeNUMAsPoint."""
_MAX_SETS: Final = 4_096
"""Of one size, of more NUMA nodes than that: the first ones, and the one with the most free CPUs."""
_SHOWN_NUMA_NODES: Final = 8
"""In the text of a refusal."""


class HintPolicy(StrEnum):
    """Which NUMA node is preferred for a bound pod of `shared_cores`."""

    SPREADING = "spreading"
    """The one with the most CPU left."""
    PACKING = "packing"
    """The one with the least."""
    DYNAMIC_PACKING = "dynamic_packing"
    """The one with the least of those that stay free enough; all, if none does."""
    NONE = "none"
    """All."""


class InvalidRequestError(ValueError):
    """No NUMA nodes of this node can ever satisfy the pod."""


class NoRoomError(ValueError):
    """No NUMA nodes satisfy the pod now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaBooking:
    """What is booked on a NUMA node.

    Attributes:
        free_cpus: Neither reserved nor of one pod alone.
        held_millicpu: What bound pods of `shared_cores` request of them.
        bound: Bound pods of `shared_cores` and `dedicated_cores`.
        is_taken: Whether a pod has CPUs here alone without being bound.
        free_bytes: Memory that is neither reserved nor booked; None: not known.
        headroom_millicpu: What `reclaimed_cores` can have here.
        reclaimed_millicpu: What their pods that are bound here request; None: there is none.
    """

    numa_node: int
    free_cpus: frozenset[int]
    held_millicpu: int = 0
    bound: tuple[Placed, ...] = ()
    is_taken: bool = False
    free_bytes: int | None = None
    headroom_millicpu: int = 0
    reclaimed_millicpu: int | None = None

    @property
    def free_millicpu(self) -> int:
        return 1_000 * len(self.free_cpus) - self.held_millicpu

    @property
    def free_count(self) -> int:
        """CPUs that a pod can have alone."""
        return max(0, self.free_millicpu // 1_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class HintRequest:
    """A pod that is to be bound, as a whole.

    Attributes:
        memory_bytes: None: not known, then memory agrees to all.
        unbound_millicpu: What pods of `shared_cores` that are not bound request; for one of `reclaimed_cores`
            those of this level.
        bind_result: NUMA nodes that Katalyst's scheduler chose; empty: none.
        least_free: Which part of a NUMA node's CPU is left at least where `dynamic_packing` packs.
    """

    qos: KatalystQos
    millicpu: int
    memory_bytes: int | None = None
    unbound_millicpu: int = 0
    bind_result: frozenset[int] = frozenset()
    policy: HintPolicy = HintPolicy.SPREADING
    least_free: float = 0.5


class Hint(NamedTuple):
    """NUMA nodes that a pod fits on."""

    numa_nodes: frozenset[int]
    is_preferred: bool


class Choice(NamedTuple):
    """The NUMA nodes of a pod."""

    numa_nodes: frozenset[int]
    reason: str
    """Such as `with 4 CPUs free for 2000m`."""


def check_unbound(bookings: Iterable[NumaBooking], millicpu: int) -> None:
    """Check that pods of `shared_cores` that are not bound fit on the NUMA nodes without bound pods.

    Raises:
        NoRoomError: They request more CPUs.
    """
    cpus, requested = _unbound_cpus(bookings), -(-millicpu // 1_000)
    if requested > cpus:
        raise NoRoomError(
            f"no available cpu hints: NUMA nodes without bound pods have {cpus} CPUs, and pods of "
            f"{QosLevel.SHARED} request {millicpu}m of them"
        )


def choose(topology: Topology, bookings: Sequence[NumaBooking], request: HintRequest) -> Choice:
    """Return the NUMA nodes of a pod: CPU and memory agree to them, and most of the two prefer them.

    Raises:
        InvalidRequestError: None can ever do.
        NoRoomError: None does now.
    """
    by_numa = {booking.numa_node: booking for booking in bookings}
    memory = _memory_need(topology, by_numa, request)
    chosen = request.bind_result
    is_possible = bool(chosen) and any(_hints(topology, bookings, request, only=chosen))
    if is_possible and (memory is None or memory.agrees(chosen)):
        return Choice(chosen, f"{_reason(by_numa, request, chosen)}, the scheduler's choice")
    best: frozenset[int] | None = None
    best_score = 0
    # What neither prefers is no choice: sets of other sizes are not looked at.
    sizes = {memory.size} if memory else set()
    for nodes, is_preferred in cpu_hints(topology, bookings, replace(request, bind_result=NO_NODES), sizes):
        if memory is None or memory.agrees(nodes):
            score = is_preferred + (memory is not None and len(nodes) == memory.size)
            if score > best_score or (best and score == best_score and len(nodes) < len(best)):
                best, best_score = nodes, score
        if best_score == (1 if memory is None else 2):
            break
    if best is not None:
        return Choice(best, _reason(by_numa, request, best))
    if memory is not None:
        raise NoRoomError(memory.refusal())
    # Only pods of `reclaimed_cores` come here.
    others = frozenset(each.numa_node for each in bookings if each.reclaimed_millicpu is None)
    if others:
        return Choice(others, "since none alone has headroom")
    raise NoRoomError(_no_cpu(bookings, request))


def cpu_hints(
    topology: Topology,
    bookings: Sequence[NumaBooking],
    request: HintRequest,
    sizes: Collection[int] | None = None,
) -> Iterator[Hint]:
    """Yield the hints of CPU: sets of NUMA nodes from small to large; of `reclaimed_cores` the best first.

    `sizes`: of the sets that are not preferred; None: all. There may be 65,535 of them.

    Raises:
        InvalidRequestError: As `choose`.
        NoRoomError: Likewise; there is one hint at least.
    """
    hints = _hints(topology, bookings, request, sizes)
    chosen = request.bind_result
    if chosen and any(_hints(topology, bookings, request, only=chosen)):
        hints = (Hint(hint.numa_nodes, hint.numa_nodes == chosen) for hint in hints)
    first = next(hints, None)
    if first is None:
        raise NoRoomError(_no_cpu(bookings, request))
    yield from chain((first,), hints)


def _hints(
    topology: Topology,
    bookings: Sequence[NumaBooking],
    request: HintRequest,
    sizes: Collection[int] | None = None,
    only: frozenset[int] = NO_NODES,
) -> Iterator[Hint]:
    """Yield the hints of CPU. `only`: this one, if it is one; empty: all."""
    match request.qos.level:
        case QosLevel.DEDICATED:
            return _dedicated_hints(topology, bookings, request, sizes, only)
        case QosLevel.SHARED:
            hints = _shared_hints(topology, bookings, request)
        case QosLevel.RECLAIMED:
            hints = _reclaimed_hints(bookings, request)
        case _:
            raise InvalidRequestError(f"pods of {request.qos.level} are bound to no NUMA node by CPU")
    return (hint for hint in hints if not only or hint.numa_nodes == only)


def _unbound_cpus(bookings: Iterable[NumaBooking]) -> int:
    return sum(len(booking.free_cpus) for booking in bookings if not booking.bound)


def _candidates(
    bookings: Sequence[NumaBooking], request: HintRequest, numa_number: int = 0
) -> dict[int, NumaBooking]:
    """Return the NUMA nodes that a pod may be bound to, by what is bound there already."""
    unbound, unbound_cpus = -(-request.unbound_millicpu // 1_000), _unbound_cpus(bookings)
    found = {}
    for booking in bookings:
        if any(keeps_away(holder, request.qos) for holder in booking.bound):
            continue
        if booking.bound:
            is_possible = numa_number > 1 or request.millicpu <= booking.free_millicpu
        else:
            is_possible = is_sufficient(unbound, unbound_cpus - len(booking.free_cpus))
        if is_possible:
            found[booking.numa_node] = booking
    return found


def _dedicated_hints(
    topology: Topology,
    bookings: Sequence[NumaBooking],
    request: HintRequest,
    wanted: Collection[int] | None,
    only: frozenset[int],
) -> Iterator[Hint]:
    qos, millicpu = request.qos, request.millicpu
    number, least = _numa_number(topology, request)
    free = {
        node: booking.free_count
        for node, booking in sorted(_candidates(bookings, request, number).items())
        if booking.free_count and not (qos.numa_exclusive and (booking.bound or booking.is_taken))
    }
    largest = _sums(sorted(free.values(), reverse=True))
    enough = [size for size, cpus in enumerate(largest, 1) if size >= least and millicpu <= 1_000 * cpus]
    preferred = number or (enough[0] if enough else 0)
    named = {each for each in (only, qos.numa_ids) if each}
    if len(named) > 1:
        return
    fit = _Fit(topology, {booking.numa_node: booking for booking in bookings}, request)
    for size in enough:
        if not _is_possible_size(topology, request, size, number, least):
            continue
        if not (only or wanted is None or size == preferred or size in wanted):
            continue
        for nodes in [tuple(each) for each in named] or _sets(topology, free, size):
            if len(nodes) == size and all(node in free for node in nodes):
                cpus = sum(free[node] for node in nodes)
                if millicpu <= 1_000 * cpus and fit.is_fit(nodes):
                    yield Hint(frozenset(nodes), size == preferred)


def _is_possible_size(topology: Topology, request: HintRequest, size: int, number: int, least: int) -> bool:
    if number:
        return size == number
    if not request.qos.numa_exclusive:
        return size == 1
    return len(topology.numa_nodes) <= _MANY_NUMA_NODES or size <= least + 1


def _numa_number(topology: Topology, request: HintRequest) -> tuple[int, int]:
    """Return how many NUMA nodes the pod asks for (0: it does not say), and how many it needs at least."""
    qos, numa_nodes = request.qos, topology.numa_nodes
    if not qos.numa_binding:
        raise InvalidRequestError(f"{QosLevel.DEDICATED} without numa_binding have no NUMA nodes")
    for name, is_set in (
        ("distribute_evenly_across_numa", qos.distribute_evenly),
        ("full_pcpus_pairing", qos.full_pcpus),
    ):
        if is_set and qos.numa_exclusive:
            raise InvalidRequestError(f"{name} does not go with numa_exclusive")
    if missing := qos.numa_ids.difference(numa_nodes):
        raise InvalidRequestError(f"numa_ids: the node has no NUMA node {min(missing)}")
    number = len(qos.numa_ids) or qos.numa_number or 0
    if number > len(numa_nodes):
        raise InvalidRequestError(f"numa_number: {number}, and the node has {len(numa_nodes)} NUMA nodes")
    try:
        least = numa_count(topology, request.millicpu).numa_nodes
    except ImpossibleSizesError as error:
        raise InvalidRequestError(str(error)) from None
    if least > 1 and number <= 1 and not qos.numa_exclusive:
        raise InvalidRequestError(
            f"{request.millicpu}m of CPU need {least} NUMA nodes, which only pods with numa_exclusive or a "
            "numa_number above 1 have"
        )
    return number, least


def _sets(topology: Topology, free: Mapping[int, int], size: int) -> Iterator[tuple[int, ...]]:
    """Yield sets of NUMA nodes; those that fit in a socket are of one."""
    if size <= topology.numas_per_socket:
        groups: dict[frozenset[int], list[int]] = {}
        for node in free:
            groups.setdefault(topology.sockets_of_numa[node], []).append(node)
        sets = chain.from_iterable(combinations(group, size) for group in groups.values())
    else:
        sets = chain(combinations(free, size))
    if len(free) <= _MANY_NUMA_NODES:
        yield from sets
        return
    yield from islice(sets, _MAX_SETS)
    if next(sets, None) is not None:
        yield tuple(sorted(sorted(free, key=lambda node: -free[node])[:size]))


class _Fit(NamedTuple):
    """What a set of NUMA nodes has to satisfy beside enough CPUs."""

    topology: Topology
    by_numa: Mapping[int, NumaBooking]
    request: HintRequest

    def is_fit(self, nodes: Sequence[int]) -> bool:
        topology, request, qos = self.topology, self.request, self.request.qos
        count, size = -(-request.millicpu // 1_000), len(nodes)
        if size <= topology.numas_per_socket and topology.is_across_sockets(nodes):
            return False
        if request.unbound_millicpu:
            left = (each for node, each in self.by_numa.items() if node not in nodes)
            if request.unbound_millicpu > 1_000 * _unbound_cpus(left):
                return False
        if qos.align_by_socket:
            of_socket = max(1, len(topology.all_cpus) // len(topology.sockets))
            if len(topology.sockets_of(nodes)) != max(1, -(-count // of_socket)):
                return False
        parts: list[Collection[int]] = [nodes]
        if qos.distribute_evenly:
            if count % size or any(self.by_numa[node].free_count < count // size for node in nodes):
                return False
            count, parts = count // size, [(node,) for node in nodes]
        return not qos.full_pcpus or all(
            self._whole_cores(part) >= count // topology.threads_per_core for part in parts
        )

    def _whole_cores(self, nodes: Iterable[int]) -> int:
        return sum(
            core <= self.by_numa[node].free_cpus for node in nodes for core in self.topology.numa_cores[node]
        )


def _shared_hints(topology: Topology, bookings: Sequence[NumaBooking], request: HintRequest) -> list[Hint]:
    millicpu, numa_ids = request.millicpu, request.qos.numa_ids
    if missing := numa_ids.difference(topology.numa_nodes):
        raise InvalidRequestError(f"numa_ids: the node has no NUMA node {min(missing)}")
    try:
        least = numa_count(topology, millicpu).numa_nodes
    except ImpossibleSizesError as error:
        raise InvalidRequestError(str(error)) from None
    if least > 1:
        raise InvalidRequestError(
            f"{millicpu}m of CPU need {least} NUMA nodes, and bound pods of {QosLevel.SHARED} have one"
        )
    candidates = _candidates(bookings, request)
    left = {
        node: booking.free_millicpu - millicpu
        for node, booking in sorted(candidates.items())
        if booking.free_cpus and booking.free_millicpu >= millicpu and (not numa_ids or node in numa_ids)
    }
    preferred = set(left)
    match request.policy:
        case HintPolicy.SPREADING:
            preferred = {node for node in left if left[node] == max(left.values())}
        case HintPolicy.PACKING:
            preferred = {node for node in left if left[node] == min(left.values())}
        case HintPolicy.DYNAMIC_PACKING:
            some = {
                node: rest
                for node, rest in left.items()
                if rest >= request.least_free * 1_000 * len(candidates[node].free_cpus)
            }
            preferred = {node for node in some if some[node] == min(some.values())} or preferred
    return [Hint(frozenset({node}), node in preferred) for node in left]


def _reclaimed_hints(bookings: Sequence[NumaBooking], request: HintRequest) -> list[Hint]:
    unbound = [each for each in bookings if each.reclaimed_millicpu is None]
    headroom = sum(each.headroom_millicpu for each in unbound)
    numa_ids = request.qos.numa_ids
    some = [
        each
        for each in sorted(
            bookings, key=lambda each: (not each.bound, -each.headroom_millicpu, each.numa_node)
        )
        if each.headroom_millicpu > 0
        and (not numa_ids or each.numa_node in numa_ids)
        and (
            each.reclaimed_millicpu is not None
            or len(unbound) > 1
            or request.unbound_millicpu <= headroom - each.headroom_millicpu
        )
    ]
    left = {
        each.numa_node: each.headroom_millicpu - (each.reclaimed_millicpu or 0) - request.millicpu
        for each in some
    }
    return [Hint(frozenset({node}), left[node] >= 0) for node in sorted(left, key=lambda node: -left[node])]


class _MemoryNeed(NamedTuple):
    """Which NUMA nodes have the memory that a pod requests."""

    free: Mapping[int, int]
    bytes: int
    size: int
    """How many NUMA nodes are preferred: as few as have it."""

    def agrees(self, nodes: Iterable[int]) -> bool:
        return self.bytes <= sum(self.free[node] for node in nodes)

    def refusal(self) -> str:
        shown = [f"{node}: {free}" for node, free in sorted(self.free.items())][:_SHOWN_NUMA_NODES]
        return (
            f"no available memory hints: {self.bytes} bytes requested on NUMA nodes that have the CPUs; free "
            f"by NUMA node: {', '.join(shown)}"
        )


def _memory_need(
    topology: Topology, by_numa: Mapping[int, NumaBooking], request: HintRequest
) -> _MemoryNeed | None:
    """Return what memory agrees to; None: to all.

    Source: memory/dynamicpolicy, calculateHints; there a share of all memory says how few.
    """
    wanted, qos = request.memory_bytes, request.qos
    free = {node: each.free_bytes for node, each in by_numa.items() if each.free_bytes is not None}
    if not wanted or len(free) < len(by_numa) or qos.level is QosLevel.RECLAIMED:
        return None
    whole = sum(topology.memory_bytes.get(node, 0) for node in topology.numa_nodes)
    if whole and wanted > whole:
        raise InvalidRequestError(f"{wanted} bytes of memory requested, the node has {whole}")
    size = 1
    if qos.level is QosLevel.DEDICATED:
        largest = enumerate(_sums(sorted(free.values(), reverse=True)), 1)
        size = next((count for count, total in largest if wanted <= total), 1)
        size = len(qos.numa_ids) or qos.numa_number or size
    return _MemoryNeed(free, wanted, size)


def _sums(numbers: Iterable[int]) -> Iterator[int]:
    total = 0
    for number in numbers:
        total += number
        yield total


def _reason(by_numa: Mapping[int, NumaBooking], request: HintRequest, nodes: frozenset[int]) -> str:
    some = [by_numa[node] for node in sorted(nodes)]
    match request.qos.level:
        case QosLevel.DEDICATED:
            free = f"{sum(each.free_count for each in some)} CPUs free"
        case QosLevel.SHARED:
            free = f"{some[0].free_millicpu}m free"
        case _:
            free = f"{some[0].headroom_millicpu - (some[0].reclaimed_millicpu or 0)}m to reclaim"
    how = f" ({request.policy})" if request.qos.level is QosLevel.SHARED else ""
    return f"with {free} for {request.millicpu}m{how}"


def _no_cpu(bookings: Sequence[NumaBooking], request: HintRequest) -> str:
    is_reclaimed = request.qos.level is QosLevel.RECLAIMED
    shown = []
    for each in bookings[:_SHOWN_NUMA_NODES]:
        has = f"{each.headroom_millicpu}m to reclaim" if is_reclaimed else f"{each.free_millicpu}m free"
        if not is_reclaimed and each.bound:
            has += f" beside {len(each.bound)} bound pods"
        shown.append(f"{each.numa_node}: {has}")
    unbound = (
        f"; {request.unbound_millicpu}m are of pods that are not bound" if request.unbound_millicpu else ""
    )
    ids = request.qos.numa_ids
    asked = f" on {format_cpu_list(ids)}" if ids else ""
    return (
        f"no available cpu hints: {request.millicpu}m of CPU requested{asked}; by NUMA node: "
        f"{', '.join(shown)}{unbound}"
    )
