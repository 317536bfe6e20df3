"""The CPU pools of a node in Katalyst's terms: who has which CPUs and NUMA nodes. Frozen values; pure.

A pod is placed as a whole: all its containers, sidecars too, have the CPUs of its main container. What a pod
gets, and when pools change, is in `pool_operations`.

Source: katalyst-core pkg/agent/qrm-plugins/cpu/dynamicpolicy/state and util/general; names of pools in
pkg/agent/qrm-plugins/commonstate/pool.go.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import combinations, compress
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from runtimeproxy.katalyst.hints import HintPolicy
from runtimeproxy.katalyst.names import (
    DEDICATED,
    FALLBACK,
    NUMA_INFIX,
    RECLAIM,
    RESERVE,
    QosLevel,
    pool_and_numa_node,
)
from runtimeproxy.katalyst.topology import Topology, TopologyCpu
from runtimeproxy.units import format_cpu_list, parse_cpu_list

RAMPING_UP: Final = ""
"""The owner of a pod that is in no pool yet."""

VERSION: Final = 1
"""Of the document."""
NO_CPUS: Final[frozenset[int]] = frozenset()

Pools: TypeAlias = Mapping[str, frozenset[int]]
"""CPUs by name of the pool."""


class PoolSettings(NamedTuple):
    """What is configured; of the node, and by dynamic configuration."""

    reserved_cpus: frozenset[int] = NO_CPUS
    """By number; empty: `reserved_count` of them."""
    reserved_count: int = 0
    """How many are picked if there are none by number."""
    reserved_memory_bytes: int = 0
    """Of each NUMA node; bound pods cannot book it."""
    enable_reclaim: bool = False
    """Whether the pools of `shared_cores` have what they request, and `reclaimed_cores` all else."""
    overlap: bool = False
    """Whether `reclaimed_cores` share the CPUs of `shared_cores` (allowSharedCoresOverlapReclaimedCores)."""
    reclaim_reserve: int | None = None
    """The least size of the pool `reclaim` in CPUs; None: 4, or one for each NUMA node if there are more."""
    snb_ratio: float = 2.0
    """What the requests of bound pods of `shared_cores` are multiplied with."""
    ramp_up_s: float = 30.0
    """How long a new pod of `shared_cores` has all CPUs that are not bound, before it joins its pool."""
    numa_hint_policy: HintPolicy = HintPolicy.SPREADING
    """Which NUMA node a bound pod of `shared_cores` gets."""
    enable_reclaim_numa_binding: bool = False
    """Whether pods of `reclaimed_cores` may be bound to a NUMA node."""

    @property
    def takes_sizes(self) -> bool:
        """Whether sizes by an advisor have an effect: without both of these `shared_cores` have all CPUs."""
        return self.enable_reclaim or self.overlap


DEFAULT_SETTINGS: Final = PoolSettings()


class AdvisedSizes(NamedTuple):
    """Sizes that an advisor has computed from usage; without it they follow from requests."""

    sizes: Mapping[str, int] = MappingProxyType({})
    """CPUs by name of the pool that it requires; one that is not in it has its requests."""
    isolated: frozenset[str] = frozenset()
    """Uids of pods of `shared_cores` that get a pool of their own: those of whose pool `isolation-UID` a size
    is claimed."""
    overlap: Mapping[str, int] = MappingProxyType({})
    """How many CPUs of a pool `reclaim` is to have, too, by name; one that is not in it has what it does not
    require."""


class PoolContainer(NamedTuple):
    """A container of a pod that is placed."""

    id: str = ""
    """The runtime's; empty: it is being created."""
    millicpu: int | None = None
    """Its request; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPod:
    """A pod that was admitted: what it asked for, and where it is.

    Attributes:
        pool: Its pool by the annotations, such as `share`; of `system_cores` which pools it may use, maybe
            empty.
        owner: Whose CPUs it has now: the name of a pool, `dedicated`, `system-...`; empty: ramping up.
        numa_ids: The NUMA nodes that it is bound to; empty: none.
        millicpu: The request of the whole pod, reclaimed CPU for `reclaimed_cores`; None: not known, then
            that of its main container counts.
        booked_bytes: Memory by NUMA node that no other bound pod gets.
        dedicated: CPUs that it has alone, from its admission on.
        cpus: What each of its containers has; never empty.
        mems: NUMA nodes, likewise; empty: left as they are.
        main: Name of the main container by the annotation; empty: the first that was created, as no call says
            which ones are init containers.
        ramp_up_since_s: When its main container was created; None: it does not ramp up, or waits for it.
        is_ramping_up: Until it joins its pool.
        containers: By name, in the order in which they were created.
        reason: Why these CPUs, for people; of the admission.
        problem: Why it has not what it asked for; empty if it has.
    """

    uid: str
    namespace: str = ""
    name: str = ""
    level: QosLevel
    pool: str
    owner: str = RAMPING_UP
    numa_binding: bool = False
    numa_exclusive: bool = False
    numa_share: bool = True
    numa_ids: frozenset[int] = NO_CPUS
    millicpu: int | None = None
    booked_bytes: Mapping[int, int] = field(default_factory=dict)
    dedicated: frozenset[int] = NO_CPUS
    cpus: frozenset[int] = NO_CPUS
    mems: frozenset[int] = NO_CPUS
    main: str = ""
    ramp_up_since_s: float | None = None
    is_ramping_up: bool = False
    containers: Mapping[str, PoolContainer] = field(default_factory=dict)
    reason: str = ""
    problem: str = ""

    @property
    def request(self) -> int:
        """In millicores: of the whole pod, else of its main container, else 0."""
        if self.millicpu is not None:
            return self.millicpu
        main = self.main_container
        return 0 if main is None else main.millicpu or 0

    @property
    def main_request(self) -> int:
        """In millicores: of its main container if that is named, else of the whole pod.

        The first container that was created may be an init container, or restart after the others.
        """
        main = self.containers.get(self.main)
        return self.request if main is None or main.millicpu is None else main.millicpu

    @property
    def is_waiting(self) -> bool:
        """Whether its ramp-up has not begun."""
        return self.is_ramping_up and self.ramp_up_since_s is None

    @property
    def main_container(self) -> PoolContainer | None:
        if self.main:
            return self.containers.get(self.main)
        return next(iter(self.containers.values()), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """All of it at one moment.

    Attributes:
        reserved: Reserved CPUs, those that are online.
        pools: With `reserve` and `reclaim`, without what pods have alone.
        pods: By uid.
        generation: Larger after each change.
    """

    topology: Topology
    settings: PoolSettings = DEFAULT_SETTINGS
    reserved: frozenset[int] = NO_CPUS
    pools: Pools = field(default_factory=dict)
    pods: Mapping[str, PoolPod] = field(default_factory=dict)
    advice: AdvisedSizes | None = None
    generation: int = 0

    @property
    def dedicated(self) -> frozenset[int]:
        return NO_CPUS.union(*(pod.dedicated for pod in self.pods.values()))

    def containers(self) -> Iterator[tuple[PoolPod, str, PoolContainer]]:
        for pod in self.pods.values():
            for name, container in pod.containers.items():
                yield pod, name, container


class RefusalKind(IntEnum):
    """Whether to ask again."""

    INVALID = 1
    """The request itself: it can never be placed on such a node."""
    NO_ROOM = 2
    """Not now; another time it may be."""
    RESIZE = 3
    """A resize that is not possible."""


class Refusal(NamedTuple):
    """The state stays."""

    kind: RefusalKind
    reason: str


class StateEncoder:
    """Makes the texts of states, one after the other: of a pod that is as before none is made again."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[PoolPod, str]] = {}
        # What pods stand in, and the values that it is of.
        self._frame: tuple[tuple[object, ...], str] = ((), "")

    def text(self, state: PoolState) -> str:
        """Return what is saved of a state: a JSON object on one line, for `from_document`."""
        texts: dict[frozenset[int], str] = {}

        def listed(numbers: frozenset[int]) -> str:
            # Most pods have one of a few sets.
            text = texts.get(numbers)
            if text is None:
                text = texts[numbers] = format_cpu_list(numbers)
            return text

        known, self._pods = self._pods, {}
        for uid, pod in state.pods.items():
            found = known.get(uid)
            is_same = found is not None and found[0] is pod
            self._pods[uid] = found if found and is_same else (pod, _JSON.encode(_as_list(pod, listed)))
        made_of = (*_apart(state), state.pools)
        if len(self._frame[0]) != len(made_of) or any(map(operator.is_not, made_of, self._frame[0])):
            self._frame = made_of, _JSON.encode(_frame(state, listed))[1:-1]
        pods = ",".join([text for _, text in self._pods.values()])
        return f'{{"generation":{state.generation},{self._frame[1]},"pods":[{pods}]}}'

    def change(self, before: PoolState, state: PoolState) -> str | None:
        """Return what is saved of the difference, for `from_document`; None: it is to be saved as a whole."""
        if any(map(operator.is_not, _apart(before), _apart(state))):
            return None
        changed = others(before.pods, state.pods)
        gone = before.pods.keys() - state.pods.keys()
        if len(changed) + len(gone) > _MOST_CHANGED:
            return None
        found: dict[str, object] = {
            "generation": state.generation,
            "gone": sorted(gone),
            "pods": [_as_list(state.pods[uid], format_cpu_list) for uid in changed],
        }
        if before.pools != state.pools:
            found["pools"] = _pools_as_text(state.pools, format_cpu_list)
        return _JSON.encode(found)


def others(before: Mapping[str, PoolPod], after: Mapping[str, PoolPod]) -> list[str]:
    """Return the uids of the pods of `after` that are other objects in `before`, or are not in it.

    Each operation makes new objects of the pods that it changes, and keeps all others.
    """
    if before is after:
        return []
    # Without a loop in Python: most operations keep their order, and calls wait for this.
    if len(before) == len(after) and all(map(operator.eq, before, after)):
        return list(compress(after, map(operator.is_not, before.values(), after.values())))
    return [uid for uid, pod in after.items() if before.get(uid) is not pod]


def _apart(state: PoolState) -> tuple[object, ...]:
    """All of a state but pods and pools."""
    return state.topology, state.settings, state.advice, state.reserved


_MOST_CHANGED: Final = 16
"""How many pods a change has at most."""
_JSON: Final = json.JSONEncoder(separators=(",", ":"))


def _frame(state: PoolState, listed: Callable[[frozenset[int]], str]) -> dict[str, object]:
    """What is saved of all but the pods."""
    advice = state.advice
    return {
        "version": VERSION,
        "settings": {**state.settings._asdict(), "reserved_cpus": listed(state.settings.reserved_cpus)},
        "advice": advice
        and {
            "sizes": dict(advice.sizes),
            "isolated": sorted(advice.isolated),
            "overlap": dict(advice.overlap),
        },
        "cpus": state.topology.cpus,
        "memory_bytes": {str(node): size for node, size in state.topology.memory_bytes.items()},
        "reserved": listed(state.reserved),
        "pools": _pools_as_text(state.pools, listed),
    }


def _pools_as_text(pools: Pools, listed: Callable[[frozenset[int]], str]) -> dict[str, str]:
    return {name: listed(cpus) for name, cpus in pools.items()}


def _as_list(pod: PoolPod, listed: Callable[[frozenset[int]], str]) -> list[object]:
    """What is saved of a pod, in the order of the parameters of `_pod_from`."""
    return [
        pod.uid,
        pod.namespace,
        pod.name,
        pod.level,
        pod.pool,
        pod.owner,
        [pod.numa_binding, pod.numa_exclusive, pod.numa_share, pod.is_ramping_up],
        listed(pod.numa_ids),
        pod.millicpu,
        {str(number): size for number, size in pod.booked_bytes.items()},
        listed(pod.dedicated),
        listed(pod.cpus),
        listed(pod.mems),
        pod.main,
        pod.ramp_up_since_s,
        [[name, *each] for name, each in pod.containers.items()],
        pod.reason,
        pod.problem,
    ]


def from_document(
    saved: Mapping[str, Any], topology: Topology, changes: Iterable[Mapping[str, Any]] = ()
) -> PoolState:
    """Return the saved state.

    `topology`: that of the node now. If the saved one is another, `pool_operations.configure` fits the state.
    `changes`: what `StateEncoder.change` has made since.

    Raises:
        One of `UNLIKE_OURS`: it is no saved state.
    """
    if saved["version"] != VERSION:
        raise ValueError(f"version {saved['version']!r} is not {VERSION}")
    sets: dict[str, frozenset[int]] = {}

    def parsed(text: str) -> frozenset[int]:
        numbers = sets.get(text)
        if numbers is None:
            numbers = sets[text] = parse_cpu_list(text)
        return numbers

    settings, advice = saved["settings"], saved["advice"]
    generation, pools, rows = saved["generation"], saved["pools"], {each[0]: each for each in saved["pods"]}
    for each in changes:
        generation, pools = each["generation"], each.get("pools", pools)
        rows.update((row[0], row) for row in each["pods"])
        for uid in each["gone"]:
            del rows[uid]
    pods = (_pod_from(parsed, *rows[uid]) for uid in sorted(rows))
    memory_bytes = {int(node): size for node, size in saved["memory_bytes"].items()}
    before = Topology(tuple(TopologyCpu(*each) for each in saved["cpus"]), memory_bytes)
    return PoolState(
        topology=topology if topology == before else before,
        settings=PoolSettings(**settings)._replace(
            reserved_cpus=parsed(settings["reserved_cpus"]),
            numa_hint_policy=HintPolicy(settings["numa_hint_policy"]),
        ),
        reserved=parsed(saved["reserved"]),
        pools={str(name): parsed(text) for name, text in pools.items()},
        pods={pod.uid: pod for pod in pods},
        advice=advice
        and AdvisedSizes(
            dict(advice["sizes"]), frozenset(advice["isolated"]), dict(advice.get("overlap", {}))
        ),
        generation=generation,
    )


def _pod_from(
    parsed: Callable[[str], frozenset[int]],
    uid: str,
    namespace: str,
    name: str,
    level: str,
    pool: str,
    owner: str,
    flags: Sequence[bool],
    numa_ids: str,
    millicpu: int | None,
    booked_bytes: Mapping[str, int],
    dedicated: str,
    cpus: str,
    mems: str,
    main: str,
    ramp_up_since_s: float | None,
    containers: Iterable[Sequence[Any]],
    reason: str,
    problem: str,
) -> PoolPod:
    numa_binding, numa_exclusive, numa_share, is_ramping_up = flags
    return PoolPod(
        uid=uid,
        namespace=namespace,
        name=name,
        level=QosLevel(level),
        pool=pool,
        owner=owner,
        numa_binding=numa_binding,
        numa_exclusive=numa_exclusive,
        numa_share=numa_share,
        numa_ids=parsed(numa_ids),
        millicpu=millicpu,
        booked_bytes={int(number): size for number, size in booked_bytes.items()},
        dedicated=parsed(dedicated),
        cpus=parsed(cpus),
        mems=parsed(mems),
        main=main,
        ramp_up_since_s=ramp_up_since_s,
        is_ramping_up=is_ramping_up,
        containers={container: PoolContainer(*rest) for container, *rest in containers},
        reason=reason,
        problem=problem,
    )


def problems(state: PoolState) -> tuple[str, ...]:
    """Return which invariants a state breaks; none after any operation."""
    return (
        *_problems_of_pools(state),
        *_problems_of_dedicated(state),
        *(problem for pod in state.pods.values() if pod.numa_exclusive for problem in _intruders(state, pod)),
        *(problem for pod in state.pods.values() for problem in _problems_of_pod(state, pod)),
        *_problems_of_memory(state),
    )


def _problems_of_pools(state: PoolState) -> Iterator[str]:
    topology, pools = state.topology, state.pools
    everything = NO_CPUS.union(*pools.values()) | state.dedicated
    if everything != topology.all_cpus:
        yield f"CPUs {format_cpu_list(topology.all_cpus ^ everything)} are in no pool, or not online"
    if not pools.get(RECLAIM):
        yield "the pool reclaim is empty"
    if pools.get(RESERVE) != state.reserved:
        yield "the pool reserve has other CPUs than the reserved ones"
    owners = {pod.owner for pod in state.pods.values()}
    for name, cpus in pools.items():
        if name in (RESERVE, RECLAIM, FALLBACK):
            continue
        if not cpus or name not in owners:
            yield f"pool {name} has no CPU or no pod"
        if cpus & state.reserved:
            yield f"pool {name} has reserved CPUs {format_cpu_list(cpus & state.reserved)}"
        _, numa_node = pool_and_numa_node(name)
        if numa_node is not None and not cpus <= topology.cpus_of((numa_node,)):
            yield f"pool {name} has CPUs of other NUMA nodes"


def _problems_of_dedicated(state: PoolState) -> Iterator[str]:
    alone = {pod.uid: pod.dedicated for pod in state.pods.values() if pod.dedicated}
    for (uid, cpus), (other, others) in combinations(sorted(alone.items()), 2):
        if cpus & others:
            yield f"CPUs {format_cpu_list(cpus & others)} belong to the pods {uid} and {other}"
    for uid, cpus in sorted(alone.items()):
        if cpus & state.reserved:
            yield f"pod {uid} has reserved CPUs {format_cpu_list(cpus & state.reserved)}"
        for name, of_pool in state.pools.items():
            if name not in (RESERVE, RECLAIM) and cpus & of_pool:
                yield f"pod {uid} and pool {name} have CPUs {format_cpu_list(cpus & of_pool)}"


def _intruders(state: PoolState, pod: PoolPod) -> Iterator[str]:
    # Whoever is on NUMA nodes that a pod has alone; reclaimed and system pods may be.
    cpus = state.topology.cpus_of(pod.numa_ids)
    for name, of_pool in state.pools.items():
        if name not in (RESERVE, RECLAIM) and cpus & of_pool:
            yield f"pool {name} is on a NUMA node of pod {pod.uid}, which is exclusive"
    for other in state.pods.values():
        may_be_there = other is pod or other.level in (QosLevel.RECLAIMED, QosLevel.SYSTEM)
        if not may_be_there and (other.numa_ids & pod.numa_ids or other.dedicated & cpus):
            yield f"pod {other.uid} is on a NUMA node of pod {pod.uid}, which is exclusive"


def _problems_of_pod(state: PoolState, pod: PoolPod) -> Iterator[str]:
    topology = state.topology
    if not pod.cpus or not pod.cpus <= topology.all_cpus:
        yield f"pod {pod.uid} has CPUs {format_cpu_list(pod.cpus) or 'none'}"
    if not pod.mems or not pod.mems <= topology.memory_bytes.keys() | set(topology.numa_nodes):
        yield f"pod {pod.uid} has NUMA nodes {format_cpu_list(pod.mems) or 'none'}"
    if pod.owner in state.pools and pod.owner != RECLAIM and pod.cpus != state.pools[pod.owner]:
        yield f"pod {pod.uid} has other CPUs than its pool {pod.owner}"
    if pod.owner == RECLAIM and not pod.cpus <= state.pools[RECLAIM]:
        yield f"pod {pod.uid} has CPUs that are not in the pool reclaim"
    if pod.owner == DEDICATED and pod.cpus != pod.dedicated:
        yield f"pod {pod.uid} has other CPUs than those that it has alone"
    if pod.owner == RAMPING_UP and not pod.cpus <= state.pools[RECLAIM]:
        bound = [cpus for name, cpus in state.pools.items() if NUMA_INFIX in name]
        others = pod.cpus & state.dedicated.union(state.reserved, *bound)
        if others:
            yield f"pod {pod.uid} ramps up on CPUs {format_cpu_list(others)}, which are not free for that"
    # A NUMA node may have lost all its CPUs.
    is_bound = pod.numa_ids and pod.level in (QosLevel.SHARED, QosLevel.DEDICATED) and pod.owner != RAMPING_UP
    if is_bound and not pod.problem and not pod.cpus <= topology.cpus_of(pod.numa_ids):
        yield f"pod {pod.uid} has CPUs of other NUMA nodes than its own"


def _problems_of_memory(state: PoolState) -> Iterator[str]:
    booked: dict[int, int] = {}
    for pod in state.pods.values():
        for numa_node, size in pod.booked_bytes.items():
            booked[numa_node] = booked.get(numa_node, 0) + size
    for numa_node, size in sorted(booked.items()):
        if size > state.topology.memory_bytes.get(numa_node, 0):
            yield f"more memory of NUMA node {numa_node} is booked than it has: {size} bytes"
