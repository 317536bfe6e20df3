"""Topologies that Katalyst's own tests have, and real ones."""

from __future__ import annotations

from runtimeproxy.katalyst.topology import Topology, TopologyCpu
from runtimeproxy.units import parse_cpu_list

GIB = 1 << 30


def dummy(cpus: int, sockets: int, numa_nodes: int, memory_bytes: int = 0) -> Topology:
    """CPU i and i + N/2 are siblings; a NUMA node has a row of cores, and a cache.

    `memory_bytes`: of each NUMA node; 0: not known.

    Source: katalyst-core pkg/util/machine, GenerateDummyCPUTopology.
    """
    cores = cpus // 2
    rows = [(cpu, cpu % cores) for cpu in range(cpus)]
    return Topology(
        tuple(
            TopologyCpu(
                cpu,
                core,
                core // (cores // sockets),
                core // (cores // numa_nodes),
                core // (cores // numa_nodes),
            )
            for cpu, core in rows
        ),
        dict.fromkeys(range(numa_nodes), memory_bytes) if memory_bytes else {},
    )


def adjacent(cpus: int, of_numa_node: int, of_cache: int) -> Topology:
    """CPUs 2i and 2i + 1 are siblings; NUMA nodes are sockets."""
    return Topology(
        tuple(
            TopologyCpu(cpu, cpu // 2, cpu // of_numa_node, cpu // of_numa_node, cpu // of_cache)
            for cpu in range(cpus)
        )
    )


T16 = dummy(16, 2, 4, 8 * GIB)
T24 = adjacent(24, 12, 6)
T128 = adjacent(128, 32, 8)
ONE_CPU = Topology((TopologyCpu(0, 0, 0, 0, 0),))
WITHOUT_SMT = Topology(tuple(TopologyCpu(cpu, cpu, 0, cpu // 4, -1) for cpu in range(8)))
HYBRID = Topology(
    (
        *(TopologyCpu(cpu, cpu // 2, 0, 0, 0) for cpu in range(8)),
        *(TopologyCpu(cpu, cpu - 4, 0, 0, 0) for cpu in range(8, 12)),
    )
)
"""4 cores of two threads, 4 of one."""
WITH_HOLES = Topology(
    tuple(
        TopologyCpu(cpu, cpu % 6, cpu % 2, 3 * (cpu % 2), cpu % 2) for cpu in (0, 1, 2, 3, 5, 6, 7, 8, 10, 11)
    )
)
"""NUMA nodes 0 and 3; CPUs 4 and 9 are offline."""
ALL = (T16, T24, T128, ONE_CPU, WITHOUT_SMT, HYBRID, WITH_HOLES)


def cpus(text: str) -> frozenset[int]:
    return parse_cpu_list(text)
