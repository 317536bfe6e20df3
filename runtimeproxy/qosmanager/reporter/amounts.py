"""What the node and each NUMA node have, keep, use, and can give to `reclaimed_cores`. Pure functions.

Of each resource in each place:

    capacity    = total - reserved - dedicated        what could be reclaimed at all
    idle        = capacity - used
    allocatable = at most idle, and the headroom      what `reclaimed_cores` can have in all now
    free        = allocatable - requested             what they do not request yet

The node's numbers are the sums of those of its NUMA nodes. Samples are of the node and of pods; what of them
is a NUMA node's follows from where the pod's CPUs are: an estimate. All is rounded to less to reclaim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from runtimeproxy.katalyst.names import RECLAIM, RECLAIMED_MEMORY, RECLAIMED_MILLICPU, RESERVE, QosLevel
from runtimeproxy.qos import QoSClass
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, Headroom, Metric, Pod, PoolMember, Snapshot

CPU_REQUESTS: Final = (RECLAIMED_MILLICPU, "kubernetes.io/batch-cpu", "cpu")
MEMORY_REQUESTS: Final = (RECLAIMED_MEMORY, "kubernetes.io/batch-memory", "memory")
"""Where a container's request stands: the first of these resources that it has."""
WINDOW_S: Final = 10.0
"""Usage is the mean of so long a time."""
CPU_STEP: Final = 100
"""Millicores; smaller changes of usage or headroom change nothing."""
MEMORY_STEP: Final = 64 << 20
"""Bytes, likewise."""

Place: TypeAlias = int | None
"""A NUMA node; None: the whole node, where NUMA nodes are not known."""


class Amount(NamedTuple):
    """One resource in one place, in millicores or bytes."""

    total: int = 0
    reserved: int = 0
    """For the system, and not for pods."""
    dedicated: int = 0
    """Of CPU: what pods have alone."""
    used: int | None = None
    """By all but pods of `reclaimed_cores`, pods with CPUs of their own, and the system within its reserve;
    at most the capacity. None: there are no samples."""
    allocatable: int | None = None
    """To `reclaimed_cores`, those that run included. None: not known."""
    requested: int = 0
    """By pods of `reclaimed_cores` that run."""

    @property
    def capacity(self) -> int:
        return self.total - self.reserved - self.dedicated

    @property
    def idle(self) -> int | None:
        return None if self.used is None else self.capacity - self.used

    @property
    def free(self) -> int | None:
        return None if self.allocatable is None else max(self.allocatable - self.requested, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAmounts:
    """CPU in millicores, and memory in bytes."""

    cpu: Mapping[Place, Amount] = field(default_factory=dict)
    """By NUMA node, in order; empty: the size of the node is not known."""
    memory: Mapping[Place, Amount] = field(default_factory=dict)
    problem: str = ""
    """Why what is allocatable to `reclaimed_cores` is not known; empty if it is."""

    @property
    def node_cpu(self) -> Amount:
        return summed(self.cpu.values())

    @property
    def node_memory(self) -> Amount:
        return summed(self.memory.values())


class LastReported(NamedTuple):
    """Sampled values as they were reported last: smaller changes than a step are left out."""

    used: Mapping[tuple[str, Place], int]
    headroom: Mapping[tuple[str, str], int]


NOTHING_REPORTED: Final = LastReported({}, {})


def summed(amounts: Iterable[Amount]) -> Amount:
    """The sum; what is not known of one is not known of the sum."""
    there = list(amounts)
    used = [each.used for each in there]
    allocatable = [each.allocatable for each in there]
    return Amount(
        sum(each.total for each in there),
        sum(each.reserved for each in there),
        sum(each.dedicated for each in there),
        None if None in used else sum(filter(None, used)),
        None if None in allocatable else sum(filter(None, allocatable)),
        sum(each.requested for each in there),
    )


def apportioned(amount: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers with the sum `amount` (0 or more), in proportion to the weights (0 or more).

    No part is larger than its weight if `amount` is at most their sum. Without any weight all parts are
    alike. What rounding leaves goes to the largest remainders, the first of them.
    """
    if not any(weights):
        weights = [1] * len(weights)
    total = sum(weights)
    divided = [divmod(amount * each, total) for each in weights]
    parts = [part for part, _ in divided]
    order = sorted(range(len(weights)), key=lambda index: (-divided[index][1], index))
    for index in order[: amount - sum(parts)]:
        parts[index] += 1
    return parts


def stepped_up(value: float, step: int, before: int | None) -> int:
    """The value rounded up to a multiple of the step; the one of before if that is at most a step above."""
    now = math.ceil(value / step) * step
    return before if before is not None and now <= before <= now + step else now


def stepped_down(value: float, step: int, before: int | None) -> int:
    """The value rounded down to a multiple of the step; the one of before if that is at most a step below."""
    now = math.floor(value / step) * step
    return before if before is not None and now - step <= before <= now else now


def node_amounts(
    snapshot: Snapshot, last: LastReported = NOTHING_REPORTED
) -> tuple[NodeAmounts, LastReported]:
    """The amounts, and the `last` of the next call."""
    pods = [_PodShare.of(pod, snapshot) for pod in snapshot.pods]
    cpu, cpu_last = _cpu(snapshot, pods, last)
    memory, memory_last = _memory(snapshot, pods, last)
    amounts = NodeAmounts(cpu=cpu, memory=memory, problem=_problem(snapshot, cpu, memory))
    kept = LastReported({**cpu_last.used, **memory_last.used}, {**cpu_last.headroom, **memory_last.headroom})
    return amounts, kept


def reserved_cpus(snapshot: Snapshot) -> frozenset[int]:
    """CPUs that are reserved by number."""
    pools = snapshot.node.cpu_pools
    if pools is None:
        return snapshot.node.reserved_cpus
    return snapshot.node.reserved_cpus | pools.reserved_cpus | pools.pools.get(RESERVE, frozenset())


def own_cpus(snapshot: Snapshot) -> dict[str, frozenset[int]]:
    """The CPUs that pods have alone, by uid; those of programs that no pod is known of, by an empty text."""
    node = snapshot.node
    found = {pod.uid: pod.cpus for pod in snapshot.pods if pod.cpus}
    for (uid, _), cpus in node.static_cpus.items():
        found[uid] = found.get(uid, frozenset()) | cpus
    for uid, member in node.cpu_pools.members.items() if node.cpu_pools is not None else ():
        if member.own_cpus:
            found[uid] = found.get(uid, frozenset()) | member.own_cpus
    others = node.claimed_cpus | (node.system_cpus if node.is_system_exclusive else frozenset())
    return {**found, "": others} if others else found


def requested(pod: Pod, names: Sequence[str]) -> int:
    """What all containers of the pod request, each the first of these resources that it has."""
    return sum(
        next((each.requests[name] for name in names if name in each.requests), 0) for each in pod.containers
    )


class _PodShare(NamedTuple):
    """A pod as far as amounts need it."""

    pod: Pod
    member: PoolMember | None
    is_reclaimed: bool

    @classmethod
    def of(cls, pod: Pod, snapshot: Snapshot) -> _PodShare:
        pools = snapshot.node.cpu_pools
        member = pools.members.get(pod.uid) if pools is not None else None
        return cls(pod, member, is_reclaimed(pod, member))

    def usage(self, snapshot: Snapshot, metric: Metric) -> float:
        """0 without samples: what it uses is the system's then."""
        used = snapshot.metrics.mean(self.pod.cgroup, metric, WINDOW_S) if self.pod.cgroup else None
        return max(used or 0.0, 0.0)


def is_reclaimed(pod: Pod, member: PoolMember | None) -> bool:
    """Whether the pod runs on what others leave: by its level of Katalyst's, else by Koordinator's class."""
    return pod.qos is QoSClass.BE if member is None else member.level == QosLevel.RECLAIMED


def _cpu(
    snapshot: Snapshot, pods: Sequence[_PodShare], last: LastReported
) -> tuple[dict[Place, Amount], LastReported]:
    node = snapshot.node
    by_place: dict[Place, set[int]] = {}
    for cpu in sorted(node.cpus, key=lambda each: (each.numa_node, each.id)):
        by_place.setdefault(cpu.numa_node, set()).add(cpu.id)
    places = list(by_place)
    if not places:
        return _unplaced("cpu", node.capacity.get("cpu", 0), snapshot, pods, last)
    reserved, owned = reserved_cpus(snapshot), own_cpus(snapshot)
    alone = frozenset[int]().union(*owned.values()) - reserved
    totals = [len(cpus) * 1_000 for cpus in by_place.values()]
    reserves = [len(cpus & reserved) * 1_000 for cpus in by_place.values()]
    dedicated = [len(cpus & alone) * 1_000 for cpus in by_place.values()]
    shared = {cpu for cpus in by_place.values() for cpu in cpus} - reserved - alone

    def weights_of(cpus: Iterable[int]) -> list[int]:
        there = shared.intersection(cpus) or shared
        return [len(there & each) for each in by_place.values()]

    def cpus_of(share: _PodShare) -> frozenset[int]:
        return share.member.cpus if share.member is not None else frozenset()

    return _placed(
        _CPU,
        snapshot,
        [each for each in pods if each.is_reclaimed or not _has_own(each)],
        [each for each in pods if not each.is_reclaimed and _has_own(each)],
        _Sizes(places, totals, reserves, dedicated, node.reserved.get("cpu", 0)),
        lambda share: weights_of(cpus_of(share)),
        last,
    )


def _has_own(share: _PodShare) -> bool:
    """Whether the pod as a whole is on CPUs of its own; of the kubelet's static ones only a container is."""
    return bool(share.pod.cpus or (share.member is not None and share.member.own_cpus))


def _memory(
    snapshot: Snapshot, pods: Sequence[_PodShare], last: LastReported
) -> tuple[dict[Place, Amount], LastReported]:
    node = snapshot.node
    if not node.memory_bytes:
        return _unplaced("memory", node.capacity.get("memory", 0), snapshot, pods, last)
    places, totals = sorted(node.memory_bytes), [size for _, size in sorted(node.memory_bytes.items())]

    def weights_of(share: _PodShare) -> list[int]:
        bound = share.member.numa_nodes if share.member is not None else frozenset[int]()
        there = [total if place in bound else 0 for place, total in zip(places, totals, strict=True)]
        return there if any(there) else totals

    nothing = [0] * len(places)
    return _placed(
        _MEMORY,
        snapshot,
        pods,
        (),
        _Sizes(places, totals, nothing, nothing, node.reserved.get("memory", 0)),
        weights_of,
        last,
    )


def _unplaced(
    resource: str, total: int, snapshot: Snapshot, pods: Sequence[_PodShare], last: LastReported
) -> tuple[dict[Place, Amount], LastReported]:
    """The resource of a node without known NUMA nodes."""
    if total <= 0:
        return {}, NOTHING_REPORTED
    kind = _MEMORY if resource == "memory" else _CPU
    sizes = _Sizes([None], [total], [0], [0], snapshot.node.reserved.get(resource, 0))
    return _placed(kind, snapshot, pods, (), sizes, lambda _: [1], last)


class _Resource(NamedTuple):
    """A resource, and how it is sampled."""

    name: str
    scale: float
    """From samples to amounts."""
    step: int
    metric: Metric
    requests: Sequence[str]


_CPU: Final = _Resource("cpu", 1_000.0, CPU_STEP, Metric.CPU_USAGE, CPU_REQUESTS)
_MEMORY: Final = _Resource("memory", 1.0, MEMORY_STEP, Metric.MEMORY_USAGE, MEMORY_REQUESTS)


class _Sizes(NamedTuple):
    """What a resource has, by place, and how much of it is reserved."""

    places: Sequence[Place]
    totals: Sequence[int]
    reserved: Sequence[int]
    """By number."""
    dedicated: Sequence[int]
    least_reserved: int
    """In all, by amount."""


def _placed(
    resource: _Resource,
    snapshot: Snapshot,
    sharing: Sequence[_PodShare],
    alone: Sequence[_PodShare],
    sizes: _Sizes,
    weights_of: Callable[[_PodShare], list[int]],
    last: LastReported,
) -> tuple[dict[Place, Amount], LastReported]:
    # One resource in all places. The usage of pods in `sharing` is of what is shared, that of `alone` within
    # what they have alone; `weights_of` says how much of a pod is in each place.
    rest = [
        total - kept - own
        for total, kept, own in zip(sizes.totals, sizes.reserved, sizes.dedicated, strict=True)
    ]
    more = min(max(sizes.least_reserved - sum(sizes.reserved), 0), sum(rest))
    reserved = [kept + part for kept, part in zip(sizes.reserved, apportioned(more, rest), strict=True)]
    capacities = [each - part for each, part in zip(rest, apportioned(more, rest), strict=True)]
    loads: dict[tuple[int, ...], float] = {}
    requests: dict[tuple[int, ...], int] = {}
    of_pods = sum(share.usage(snapshot, resource.metric) for share in alone) * resource.scale
    for share in sharing:
        usage = share.usage(snapshot, resource.metric) * resource.scale
        of_pods += usage
        weights = tuple(weights_of(share))
        if share.is_reclaimed:
            requests[weights] = requests.get(weights, 0) + requested(share.pod, resource.requests)
        else:
            loads[weights] = loads.get(weights, 0.0) + usage
    window = snapshot.metrics.window(NODE_CGROUP, resource.metric, WINDOW_S)
    used: list[int | None] = [None] * len(capacities)
    kept_used: dict[tuple[str, Place], int] = {}
    if window is not None:
        # What the system uses of what is reserved for it takes nothing from pods.
        system = max(window.avg * resource.scale - of_pods - sum(reserved), 0.0)
        loads[tuple(capacities)] = loads.get(tuple(capacities), 0.0) + system
        for index, load in enumerate(_within(_spread(loads, len(capacities)), capacities)):
            key = resource.name, sizes.places[index]
            kept_used[key] = stepped_up(load, resource.step, last.used.get(key))
            used[index] = min(kept_used[key], capacities[index])
    asked = [0] * len(capacities)
    for weights, amount in requests.items():
        asked = [one + other for one, other in zip(asked, apportioned(amount, weights), strict=True)]
    idle = [None if use is None else capacity - use for capacity, use in zip(capacities, used, strict=True)]
    allocatable, kept_headroom = _allocatable(resource, snapshot, sizes.places, idle, last)
    amounts = {
        place: Amount(*parts)
        for place, *parts in zip(
            sizes.places, sizes.totals, reserved, sizes.dedicated, used, allocatable, asked, strict=True
        )
    }
    return amounts, LastReported(kept_used, kept_headroom)


def _spread(loads: Mapping[tuple[int, ...], float], count: int) -> list[float]:
    """The sum of loads by place: each is spread by its weights, alike without any."""
    found = [0.0] * count
    for weights, load in loads.items():
        total = sum(weights)
        for index, weight in enumerate(weights):
            found[index] += load * weight / total if total else load / count
    return found


def _within(loads: Sequence[float], capacities: Sequence[int]) -> list[float]:
    """The loads, where what a place cannot have is in the other ones: their sum is what was measured."""
    room = [max(capacity - load, 0.0) for load, capacity in zip(loads, capacities, strict=True)]
    excess = sum(max(load - capacity, 0.0) for load, capacity in zip(loads, capacities, strict=True))
    filled = min(excess / sum(room), 1.0) if sum(room) else 0.0
    return [
        min(load, capacity) + part * filled
        for load, capacity, part in zip(loads, capacities, room, strict=True)
    ]


def _allocatable(
    resource: _Resource,
    snapshot: Snapshot,
    places: Sequence[Place],
    idle: Sequence[int | None],
    last: LastReported,
) -> tuple[list[int | None], dict[tuple[str, str], int]]:
    """What `reclaimed_cores` can have: in no place more than what is idle there, nor than its headroom."""
    unknown: list[int | None] = [None] * len(places)
    pools = snapshot.node.cpu_pools
    if pools is not None and not pools.enable_reclaim:
        # Source: katalyst-core reporter/manager/resource/generic.go, sync: 0 while reclaim is off.
        return [0] * len(places), {}
    bounds = [each for each in idle if each is not None]
    if pools is None or pools.headroom is None or len(bounds) < len(places):
        return unknown, {}
    kept: dict[tuple[str, str], int] = {}

    def stepped(name: str, headroom: Headroom) -> int:
        key = resource.name, name
        amount = headroom.cpu_millicores if resource.name == "cpu" else headroom.memory_bytes
        kept[key] = stepped_down(max(amount, 0), resource.step, last.headroom.get(key))
        return kept[key]

    by_numa = pools.numa_headroom
    for index, place in enumerate(places):
        if place is not None and place in by_numa:
            bounds[index] = min(bounds[index], stepped(str(place), by_numa[place]))
    whole = min(stepped("", pools.headroom), sum(bounds))
    return [*apportioned(whole, bounds)], kept


def _problem(snapshot: Snapshot, cpu: Mapping[Place, Amount], memory: Mapping[Place, Amount]) -> str:
    """Why what is allocatable is not known."""
    pools = snapshot.node.cpu_pools
    if pools is None:
        return "there are no pools: the policy katalyst-pools is off, or cannot work here"
    if not pools.enable_reclaim:
        return ""
    if pools.headroom is None:
        advice = pools.advice.get(RECLAIM)
        if advice is None or (advice.headroom_millicpu is None and advice.headroom_bytes is None):
            return "no advisor says what the headroom is"
        missing = "CPU" if advice.headroom_millicpu is None else "memory"
        return f"the advisor does not say what the headroom of {missing} is"
    for name, amounts in (("CPUs", cpu), ("memory", memory)):
        if not amounts:
            return f"the {name} of the node are not known"
        if any(each.used is None for each in amounts.values()):
            return f"there are no samples of the node's {name}"
    return ""
