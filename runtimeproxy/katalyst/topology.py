"""CPUs, cores, sockets, caches and NUMA nodes of a node, as pools see them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self, TypeVar

_Key = TypeVar("_Key", int, tuple[int, int])


class LogicalCpu(Protocol):
    """What a topology is made from: `Cpu` of a node's facts."""

    @property
    def id(self) -> int: ...
    @property
    def core(self) -> int: ...
    @property
    def socket(self) -> int: ...
    @property
    def numa_node(self) -> int: ...
    @property
    def l3(self) -> int: ...
    @property
    def is_online(self) -> bool: ...


class TopologyCpu(NamedTuple):
    """One logical CPU."""

    id: int
    core: int
    """Counted anew in each socket."""
    socket: int
    numa_node: int
    l3: int
    """Id of the last-level cache; -1: not known, then the CPUs of a NUMA node have one."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The CPUs that are online. Two are equal if they have the same CPUs and memory.

    Attributes:
        cpus: In the order of their numbers.
        memory_bytes: By NUMA node; one that is not in it has an unknown amount.
        numa_nodes: Those with CPUs, ascending.
        by_numa: CPUs by NUMA node.
        cores: CPUs by socket and core, in this order.
        sockets: CPUs by socket, ascending.
        caches: CPUs by last-level cache, ascending.
        numa_cores: The cores of a NUMA node, ascending.
        sockets_of_numa: By NUMA node; one socket, but for machines with odd firmware.
        threads_per_core: Of the largest core.
    """

    cpus: tuple[TopologyCpu, ...]
    memory_bytes: Mapping[int, int] = field(default_factory=dict, hash=False)
    all_cpus: frozenset[int] = field(init=False, repr=False, compare=False)
    numa_nodes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    by_numa: Mapping[int, frozenset[int]] = field(init=False, repr=False, compare=False)
    cores: Mapping[tuple[int, int], frozenset[int]] = field(init=False, repr=False, compare=False)
    sockets: Mapping[int, frozenset[int]] = field(init=False, repr=False, compare=False)
    caches: Mapping[int, frozenset[int]] = field(init=False, repr=False, compare=False)
    numa_cores: Mapping[int, tuple[frozenset[int], ...]] = field(init=False, repr=False, compare=False)
    sockets_of_numa: Mapping[int, frozenset[int]] = field(init=False, repr=False, compare=False)
    threads_per_core: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        cpus = tuple(TopologyCpu(*each) for each in sorted(self.cpus))
        numa = _grouped((cpu.numa_node, cpu.id) for cpu in cpus)
        cores = _grouped(((cpu.socket, cpu.core), cpu.id) for cpu in cpus)
        # A cache that is not known is the NUMA node's, with a number that no cache has.
        caches = _grouped((cpu.l3 if cpu.l3 >= 0 else -1 - cpu.numa_node, cpu.id) for cpu in cpus)
        derived = {
            "cpus": cpus,
            "all_cpus": frozenset(cpu.id for cpu in cpus),
            "numa_nodes": tuple(numa),
            "by_numa": numa,
            "cores": cores,
            "sockets": _grouped((cpu.socket, cpu.id) for cpu in cpus),
            "caches": caches,
            "numa_cores": {
                node: tuple(core for core in cores.values() if core <= own) for node, own in numa.items()
            },
            "sockets_of_numa": _grouped((cpu.numa_node, cpu.socket) for cpu in cpus),
            "threads_per_core": max((len(core) for core in cores.values()), default=1),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, cpus: Iterable[LogicalCpu], memory_bytes: Mapping[int, int] | None = None) -> Self:
        """Return the topology of the CPUs that are online. `memory_bytes`: by NUMA node."""
        online = (cpu for cpu in cpus if cpu.is_online)
        return cls(
            tuple(TopologyCpu(cpu.id, cpu.core, cpu.socket, cpu.numa_node, cpu.l3) for cpu in online),
            dict(memory_bytes or {}),
        )

    def cpus_of(self, numa_nodes: Iterable[int]) -> frozenset[int]:
        """Return the CPUs of NUMA nodes; none of those that do not exist."""
        return frozenset().union(*(self.by_numa.get(node, ()) for node in numa_nodes))

    @property
    def numas_per_socket(self) -> int:
        """Rounded down; 1 at least."""
        return max(1, len(self.numa_nodes) // max(1, len(self.sockets)))

    def sockets_of(self, numa_nodes: Iterable[int]) -> frozenset[int]:
        return frozenset().union(*(self.sockets_of_numa[node] for node in numa_nodes))

    def is_across_sockets(self, numa_nodes: Iterable[int]) -> bool:
        """Return whether NUMA nodes are on more sockets than one of them alone is."""
        sockets = [self.sockets_of_numa[node] for node in numa_nodes]
        return len(frozenset().union(*sockets)) > max(map(len, sockets), default=0)


def _grouped(pairs: Iterable[tuple[_Key, int]]) -> dict[_Key, frozenset[int]]:
    found: dict[_Key, set[int]] = {}
    for key, number in pairs:
        found.setdefault(key, set()).add(number)
    return {key: frozenset(found[key]) for key in sorted(found)}
