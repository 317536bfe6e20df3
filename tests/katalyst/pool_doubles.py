"""Nodes and pods for tests of pools."""

from __future__ import annotations

from runtimeproxy.katalyst.levels import KatalystQos
from runtimeproxy.katalyst.names import QosLevel
from runtimeproxy.katalyst.placement import PodFacts
from runtimeproxy.katalyst.pool_operations import ContainerFacts, admit, create, initial
from runtimeproxy.katalyst.pools import PoolSettings, PoolState, Refusal, problems
from runtimeproxy.katalyst.topology import Topology, TopologyCpu
from runtimeproxy.katalyst.transition import after_shrink, growing, of_state
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


def checked(outcome: PoolState | Refusal) -> PoolState:
    assert isinstance(outcome, PoolState), outcome
    assert problems(outcome) == ()
    return outcome


def admitted(state: PoolState, pod: PodFacts) -> PoolState:
    return checked(admit(state, pod))


def refused(outcome: PoolState | Refusal) -> str:
    assert isinstance(outcome, Refusal), outcome
    return outcome.reason


def running(state: PoolState, pod: PodFacts, *, now_s: float = 0.0, name: str = "main") -> PoolState:
    """With a pod of one container."""
    container = ContainerFacts(pod, name, pod.millicpu)
    return checked(create(admitted(state, pod), container, now_s))


def cpus_of(state: PoolState, uid: str) -> str:
    return format_cpu_list(state.pods[uid].cpus)


def mems_of(state: PoolState, uid: str) -> str:
    return format_cpu_list(state.pods[uid].mems)


def pools_of(state: PoolState) -> dict[str, str]:
    return {name: format_cpu_list(cpus) for name, cpus in state.pools.items()}


def cpus(text: str) -> frozenset[int]:
    return parse_cpu_list(text)


def steps(before: PoolState, after: PoolState) -> list[tuple[str, str, str]]:
    """What pods of `before` have on the way to another state, in its order: the step, the uid, the CPUs."""
    now = of_state(before)
    shrunk = after_shrink(now, after)
    found = [
        ("SHRINK", uid, format_cpu_list(each.cpus))
        for uid, each in shrunk.items()
        if uid in now and each.cpus != now[uid].cpus
    ]
    grown = [uid for uid in growing(shrunk, after) if shrunk[uid].cpus != after.pods[uid].cpus]
    step = {uid: "DEDICATED" if after.pods[uid].dedicated else "GROW" for uid in grown}
    return found + [(step[uid], uid, cpus_of(after, uid)) for uid in grown]
