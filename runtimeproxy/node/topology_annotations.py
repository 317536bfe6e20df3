"""The annotations of a NodeResourceTopology: what koordlet publishes about the CPUs of its node.

All functions are pure. Go matches the keys of a struct in any case. Source: Koordinator apis/extension,
numa_aware.go, system_qos.go, node.go, cpu_normalization.go (policies spec 1.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from runtimeproxy.node.files import (
    InputError,
    cpus_of,
    list_of,
    mapping_of,
    member,
    parse_json,
    text_of,
    within,
)
from runtimeproxy.node.snapshot import Pool
from runtimeproxy.node.topology import Processor
from runtimeproxy.units import format_cpu_list

LS_POOLS: Final = "node.koordinator.sh/cpu-shared-pools"
BE_POOLS: Final = "node.koordinator.sh/be-cpu-shared-pools"
SYSTEM_QOS: Final = "node.koordinator.sh/system-qos-resource"
RESERVATION: Final = "node.koordinator.sh/reservation"
CPU_TOPOLOGY: Final = "node.koordinator.sh/cpu-topology"
POD_CPU_ALLOCS: Final = "node.koordinator.sh/pod-cpu-allocs"
CPU_MANAGER_POLICY: Final = "kubelet.koordinator.sh/cpu-manager-policy"
CPU_BASIC_INFO: Final = "node.koordinator.sh/cpu-basic-info"

_MAX_NODES: Final = 1024
"""NUMA nodes and sockets. Source: Linux arch/x86/Kconfig, NODES_SHIFT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyFacts:
    """What the annotations say; None: there is no such annotation."""

    ls_pools: tuple[Pool, ...] | None = None
    be_pools: tuple[Pool, ...] | None = None
    system_cpus: frozenset[int] | None = None
    is_system_exclusive: bool = True
    reserved_cpus: frozenset[int] = frozenset()
    """`reservedCPUs` of the reservation."""
    kubelet_policy: str | None = None
    """CPU manager policy: `none` or `static`."""
    kubelet_reserved_cpus: frozenset[int] = frozenset()
    static_cpus: Mapping[tuple[str, str], frozenset[int]] | None = None
    """CPUs that the kubelet has given away, by pod uid; the container's name is not published."""
    processor: Processor | None = None
    source: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """The annotations that were read."""


def parse_topology(annotations: Mapping[str, str], cpus: frozenset[int] | None) -> TopologyFacts:
    """Reads the annotations of a NodeResourceTopology.

    Args:
        annotations: Of the object; others are ignored.
        cpus: The CPUs that the node has; None: not known.

    Raises:
        InputError: One is invalid, or names CPUs that the node does not have.
    """
    values: dict[str, Any] = {}
    for name in _READ:
        if name in annotations:
            with within(name):
                values[name] = parse_json(annotations[name])
    _check_topology(values.get(CPU_TOPOLOGY), cpus)
    found: dict[str, Any] = {"source": {name: annotations[name] for name in values}}
    for name, attribute in ((LS_POOLS, "ls_pools"), (BE_POOLS, "be_pools")):
        if values.get(name) is not None:
            with within(name):
                found[attribute] = _pools(values[name], cpus)
    for name, read in (
        (SYSTEM_QOS, _system),
        (RESERVATION, _reservation),
        (CPU_MANAGER_POLICY, _kubelet),
        (POD_CPU_ALLOCS, _allocations),
        (CPU_BASIC_INFO, _processor),
    ):
        if values.get(name) is not None:
            with within(name):
                found.update(read(values[name], cpus))
    return TopologyFacts(**found)


_READ: Final = (
    LS_POOLS,
    BE_POOLS,
    SYSTEM_QOS,
    RESERVATION,
    CPU_TOPOLOGY,
    POD_CPU_ALLOCS,
    CPU_MANAGER_POLICY,
    CPU_BASIC_INFO,
)


def _pools(value: object, cpus: frozenset[int] | None) -> tuple[Pool, ...]:
    pools = []
    for index, item in enumerate(list_of(value)):
        with within(f"[{index}]"):
            pool = mapping_of(item)
            pools.append(
                Pool(
                    socket=_natural(pool, "socket"),
                    numa_node=_natural(pool, "node"),
                    cpus=_cpus(pool, "cpuset", cpus),
                )
            )
    return tuple(pools)


def _system(value: object, cpus: frozenset[int] | None) -> dict[str, Any]:
    resource = mapping_of(value)
    is_exclusive = member(resource, "cpusetExclusive")
    if is_exclusive is not None and not isinstance(is_exclusive, bool):
        raise InputError("is neither true nor false", "cpusetExclusive")
    return {
        "system_cpus": _cpus(resource, "cpuset", cpus),
        "is_system_exclusive": True if is_exclusive is None else is_exclusive,
    }


def _reservation(value: object, cpus: frozenset[int] | None) -> dict[str, Any]:
    return {"reserved_cpus": _cpus(mapping_of(value), "reservedCPUs", cpus)}


def _kubelet(value: object, cpus: frozenset[int] | None) -> dict[str, Any]:
    policy = mapping_of(value)
    with within("policy"):
        name = text_of(member(policy, "policy"))
    if name not in ("", "none", "static"):
        raise InputError("is neither none nor static", "policy")
    return {
        "kubelet_policy": name or None,
        "kubelet_reserved_cpus": _cpus(policy, "reservedCPUs", cpus),
    }


def _allocations(value: object, cpus: frozenset[int] | None) -> dict[str, Any]:
    static: dict[tuple[str, str], frozenset[int]] = {}
    for index, item in enumerate(list_of(value)):
        with within(f"[{index}]"):
            allocation = mapping_of(item)
            allocated = _cpus(allocation, "cpuset", cpus)
            with within("uid"):
                uid = text_of(member(allocation, "uid"))
            # The others are the scheduler's, which pods have in an annotation.
            if member(allocation, "managedByKubelet") is True:
                static[uid, ""] = static.get((uid, ""), frozenset()) | allocated
    return {"static_cpus": static}


def _processor(value: object, _: frozenset[int] | None) -> dict[str, Any]:
    info = mapping_of(value)
    with within("cpuModel"):
        model = text_of(member(info, "cpuModel"))
    flags = {key: member(info, key) for key in ("hyperThreadEnabled", "turboEnabled")}
    for key, flag in flags.items():
        if flag is not None and not isinstance(flag, bool):
            raise InputError("is neither true nor false", key)
    return {
        "processor": Processor(
            model=model,
            has_hyper_threads=bool(flags["hyperThreadEnabled"]),
            has_turbo=bool(flags["turboEnabled"]),
        )
    }


def _check_topology(value: object, cpus: frozenset[int] | None) -> None:
    """The published CPUs must be among those of this node, else the object is of another one."""
    with within(CPU_TOPOLOGY), within("detail"):
        published = set()
        for index, item in enumerate(list_of(member(mapping_of(value), "detail"))):
            with within(f"[{index}]"):
                published.add(_natural(mapping_of(item), "id"))
        _check(frozenset(published), cpus)


def _cpus(values: Mapping[str, Any], key: str, cpus: frozenset[int] | None) -> frozenset[int]:
    with within(key):
        found = cpus_of(text_of(member(values, key)))
        _check(found, cpus)
    return found


def _check(found: frozenset[int], cpus: frozenset[int] | None) -> None:
    if cpus is not None and not found <= cpus:
        raise InputError(
            f"this node has no CPU {format_cpu_list(found - cpus)}, only {format_cpu_list(cpus)}"
        )


def _natural(values: Mapping[str, Any], key: str) -> int:
    number = member(values, key)
    if number is None:
        return 0
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < _MAX_NODES * 8:
        raise InputError("is not a number of this kind", key)
    return number
