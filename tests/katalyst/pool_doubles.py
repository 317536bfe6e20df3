"""Nodes and pods for tests of pools."""

from __future__ import annotations

from runtimeproxy.katalyst.levels import KatalystQos, QosLevel
from runtimeproxy.katalyst.placement import PodFacts
from runtimeproxy.katalyst.pool_operations import ContainerFacts, admit, create, initial
from runtimeproxy.katalyst.pools import Change, PoolSettings, PoolState, PoolUpdate, Refusal, problems
from runtimeproxy.katalyst.topology import Topology, TopologyCpu
from runtimeproxy.units import format_cpu_list, parse_cpu_list

GIB = 1 << 30


def machine(cpus: int, sockets: int, numa_nodes: int, threads: int = 2, gib: int = 8) -> Topology:
    """As Katalyst's dummy topology: CPU i and i + cpus/2 are siblings, an L3 cache is a NUMA node."""
    cores = cpus // threads
    of_socket, of_numa = cores // sockets, cores // numa_nodes
    made = (
        TopologyCpu(
            i, i % cores % of_socket, i % cores // of_socket, i % cores // of_numa, i % cores // of_numa
        )
        for i in range(cpus)
    )
    return Topology(tuple(made), dict.fromkeys(range(numa_nodes), gib * GIB))


T16 = machine(16, 2, 4)

SHARED = KatalystQos()
SNB = KatalystQos(numa_binding=True)
RECLAIMED = KatalystQos(level=QosLevel.RECLAIMED, pool="reclaim")
DNB = KatalystQos(level=QosLevel.DEDICATED, pool="dedicated", numa_binding=True)
EXCLUSIVE = KatalystQos(level=QosLevel.DEDICATED, pool="dedicated", numa_binding=True, numa_exclusive=True)
UNBOUND = KatalystQos(level=QosLevel.DEDICATED, pool="dedicated")


def system(pool: str = "", *, numa_binding: bool = False) -> KatalystQos:
    return KatalystQos(level=QosLevel.SYSTEM, pool=pool, numa_binding=numa_binding)


def t16(**settings: object) -> PoolState:
    return initial(T16, PoolSettings(reserved_count=2)._replace(**settings))  # type: ignore[arg-type]


def facts(uid: str, qos: KatalystQos = SHARED, cpus: float | None = 1, **rest: object) -> PodFacts:
    millicpu = None if cpus is None else round(cpus * 1_000)
    made = PodFacts(uid, qos, "default", uid, millicpu, reclaimed_millicpu=millicpu)
    return made._replace(**rest)  # type: ignore[arg-type]


def checked(outcome: PoolUpdate | Refusal) -> PoolUpdate:
    assert isinstance(outcome, PoolUpdate), outcome
    assert problems(outcome.state) == ()
    return outcome


def admitted(state: PoolState, pod: PodFacts) -> PoolUpdate:
    return checked(admit(state, pod))


def refused(outcome: PoolUpdate | Refusal) -> str:
    assert isinstance(outcome, Refusal), outcome
    return outcome.reason


def running(state: PoolState, pod: PodFacts, *, now_s: float = 0.0, name: str = "main") -> PoolState:
    """With a pod of one container."""
    container = ContainerFacts(pod, name, pod.millicpu)
    return checked(create(admitted(state, pod).state, container, now_s)).state


def cpus_of(state: PoolState, uid: str) -> str:
    return format_cpu_list(state.pods[uid].cpus)


def mems_of(state: PoolState, uid: str) -> str:
    return format_cpu_list(state.pods[uid].mems)


def pools_of(state: PoolState) -> dict[str, str]:
    return {name: format_cpu_list(cpus) for name, cpus in state.pools.items()}


def cpus(text: str) -> frozenset[int]:
    return parse_cpu_list(text)


def listed(changes: tuple[Change, ...]) -> list[tuple[str, str, str]]:
    return [(each.step.name, each.uid, format_cpu_list(each.cpus)) for each in changes]
