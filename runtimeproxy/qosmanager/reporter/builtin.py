"""The built-in field reporters: node resources, topology zones, pools, headroom, allocations. Pure.

Source of names and places: katalyst-core pkg/agent/resourcemanager/fetcher (system and kubelet plugins),
pkg/consts/cnr.go for attributes, and pkg/agent/sysadvisor/plugin/qosaware/reporter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from runtimeproxy.katalyst.names import RECLAIMED_MEMORY, RECLAIMED_MILLICPU
from runtimeproxy.qosmanager.reporter.amounts import (
    CPU_REQUESTS,
    MEMORY_REQUESTS,
    Amount,
    NodeAmounts,
    Place,
    apportioned,
    is_reclaimed,
    own_cpus,
    requested,
    reserved_cpus,
)
from runtimeproxy.qosmanager.reporter.fields import FieldReporter, ObjectSection, ReportedField, View
from runtimeproxy.qosmanager.snapshot import Cpu, Pod, PoolMember, Snapshot
from runtimeproxy.units import format_cpu_list, millicores_quantity, number_quantity

AMOUNTS_ANNOTATION: Final = "koord-runtime-proxy.io/amounts"
"""Total, reserved, dedicated, used and free of the node, as JSON: the API has no place for them. NUMA nodes
have them as attributes."""
RECLAIMED_ANNOTATION: Final = "koord-runtime-proxy.io/reclaimed-amounts"
"""What of the node's reclaimed resources is requested, and free, likewise."""
SOCKET: Final = "Socket"
NUMA: Final = "Numa"
CACHE_GROUP: Final = "CacheGroup"
"""Types of zones. Source: katalyst-api pkg/apis/node/v1alpha1/types.go, TopologyType."""
CPU_LIST: Final = "cpu_lists"
RESERVED_CPU_LIST: Final = "reserved_cpu_list"
POOL_PREFIX: Final = "cpu_pool_"
"""Begins the name of an attribute with the CPUs of a pool on a NUMA node."""


class NodeResources(FieldReporter):
    """Size of the node: total and allocatable CPU and memory, and what is reserved, used and free."""

    name: ClassVar[str] = "node-resources"

    def report(self, view: View) -> Sequence[ReportedField]:
        amounts, cpus = view.amounts, view.snapshot.node.cpus
        properties = [{"propertyName": "numa", "propertyQuantity": str(len({cpu.numa_node for cpu in cpus}))}]
        if amounts.cpu:
            total = millicores_quantity(amounts.node_cpu.total)
            properties.append({"propertyName": "cpu", "propertyQuantity": total})
        if amounts.memory:
            total = number_quantity(amounts.node_memory.total)
            properties.append({"propertyName": "memory", "propertyQuantity": total})
        shown: dict[str, dict[str, str]] = {}
        if amounts.cpu:
            shown["cpu"] = dict(_details(amounts.node_cpu, millicores_quantity))
        if amounts.memory:
            shown["memory"] = dict(_details(amounts.node_memory, number_quantity))
        zones = [
            _numa_zone(
                view.snapshot,
                place,
                resources=_sizes(amounts.cpu.get(place), amounts.memory.get(place)),
                attributes=_attributes(
                    {
                        f"{resource}_{name}": text
                        for resource, of_places, write in (
                            ("cpu", amounts.cpu, millicores_quantity),
                            ("memory", amounts.memory, number_quantity),
                        )
                        if place in of_places
                        for name, text in _details(of_places[place], write)
                    }
                ),
            )
            for place in _numa_nodes(amounts)
        ]
        sizes = _sizes(
            amounts.node_cpu if amounts.cpu else None, amounts.node_memory if amounts.memory else None
        )
        return [
            ReportedField(ObjectSection.SPEC, "nodeResourceProperties", properties),
            ReportedField(ObjectSection.STATUS, "resources", sizes),
            *_zone_field(zones),
            ReportedField(
                ObjectSection.METADATA, "annotations", {AMOUNTS_ANNOTATION: json.dumps(shown, sort_keys=True)}
            ),
        ]


class TopologyZones(FieldReporter):
    """The tree of sockets, NUMA nodes and last-level caches, with their CPUs."""

    name: ClassVar[str] = "topology"

    def report(self, view: View) -> Sequence[ReportedField]:
        snapshot = view.snapshot
        reserved = reserved_cpus(snapshot)
        zones = [
            {"type": SOCKET, "name": str(each)} for each in sorted({c.socket for c in snapshot.node.cpus})
        ]
        fields = [ReportedField(ObjectSection.STATUS, "topologyZone", zones)] if zones else []
        by_numa = _by_numa(snapshot.node.cpus)
        for place in sorted({*by_numa, *snapshot.node.memory_bytes}):
            cpus = by_numa.get(place, [])
            attributes = {CPU_LIST: format_cpu_list(cpu.id for cpu in cpus)} if cpus else {}
            if kept := reserved.intersection(cpu.id for cpu in cpus):
                attributes[RESERVED_CPU_LIST] = format_cpu_list(kept)
            groups = _by_cache(cpus)
            children = [_cache_zone(cache, ids, reserved) for cache, ids in groups.items() if cache >= 0]
            zone = _numa_zone(snapshot, place, attributes=_attributes(attributes), children=children)
            fields.append(ReportedField(ObjectSection.STATUS, "topologyZone", [zone]))
        policy = ReportedField(ObjectSection.STATUS, "topologyPolicy", "None")
        # The daemon's pools need it: the kubelet's managers place nothing.
        return [*fields, policy]


class CpuPoolsReporter(FieldReporter):
    """Katalyst's CPU pools: of the node as a property, of NUMA nodes as attributes."""

    name: ClassVar[str] = "cpu-pools"

    def report(self, view: View) -> Sequence[ReportedField]:
        pools = view.snapshot.node.cpu_pools
        if pools is None:
            return []
        filled = [(name, cpus) for name, cpus in sorted(pools.pools.items()) if cpus]
        values = [f"{name}={format_cpu_list(cpus)}" for name, cpus in filled]
        zones: list[dict[str, Any]] = []
        for place, there in _by_numa(view.snapshot.node.cpus).items():
            ids = frozenset(cpu.id for cpu in there)
            attributes = {
                f"{POOL_PREFIX}{name}": format_cpu_list(cpus & ids) for name, cpus in filled if cpus & ids
            }
            zones.append(_numa_zone(view.snapshot, place, attributes=_attributes(attributes)))
        properties = [{"propertyName": "cpu_pools", "propertyValues": values}]
        return [ReportedField(ObjectSection.SPEC, "nodeResourceProperties", properties), *_zone_field(zones)]


class HeadroomReporter(FieldReporter):
    """Reclaimed CPU and memory: as capacity what could be reclaimed at all, as allocatable what can be now.

    While the headroom is not known there is a capacity only. Katalyst's own has one number for both.
    """

    name: ClassVar[str] = "headroom"

    def report(self, view: View) -> Sequence[ReportedField]:
        amounts = view.amounts
        if view.snapshot.node.cpu_pools is None:
            return []
        zones: list[dict[str, Any]] = []
        for place in _numa_nodes(amounts):
            cpu, memory = amounts.cpu.get(place), amounts.memory.get(place)
            details = {
                f"reclaimed_{resource}_{name}": number_quantity(value)
                for resource, amount in (("cpu", cpu), ("memory", memory))
                if amount is not None
                for name, value in _reclaimed_details(amount)
            }
            zones.append(
                _numa_zone(
                    view.snapshot,
                    place,
                    resources=_reclaimed(cpu, memory),
                    attributes=_attributes(details),
                )
            )
        cpu = amounts.node_cpu if amounts.cpu else None
        memory = amounts.node_memory if amounts.memory else None
        shown = {
            resource: {name: number_quantity(value) for name, value in _reclaimed_details(amount)}
            for resource, amount in (("cpu", cpu), ("memory", memory))
            if amount is not None
        }
        text = json.dumps(shown, sort_keys=True)
        return [
            ReportedField(ObjectSection.STATUS, "resources", _reclaimed(cpu, memory)),
            *_zone_field(zones),
            ReportedField(ObjectSection.METADATA, "annotations", {RECLAIMED_ANNOTATION: text}),
        ]


class Allocations(FieldReporter):
    """Pods that are bound to NUMA nodes or have CPUs alone, with how much they have in which zone.

    All others run anywhere, and have nothing of one zone. Source: katalyst-core
    pkg/agent/resourcemanager/fetcher/kubelet/topology/filter.go.
    """

    name: ClassVar[str] = "allocations"

    def report(self, view: View) -> Sequence[ReportedField]:
        snapshot = view.snapshot
        pools = snapshot.node.cpu_pools
        members: Mapping[str, PoolMember] = pools.members if pools is not None else {}
        owned = own_cpus(snapshot)
        by_numa = _by_numa(snapshot.node.cpus)
        known = {*by_numa, *snapshot.node.memory_bytes}
        of_numa: dict[int, dict[str, Any]] = {}
        of_caches: dict[tuple[int, int], dict[str, Any]] = {}
        for pod in snapshot.pods:
            member, own = members.get(pod.uid), owned.get(pod.uid, frozenset())
            if not own and (member is None or not member.numa_nodes):
                continue
            consumer = _consumer(pod)
            for place, resources in _of_numa(pod, member, own, by_numa).items():
                if place not in known:
                    continue
                of_numa.setdefault(place, {})[consumer] = resources
            for place, cpus in by_numa.items() if own else ():
                for cache, ids in _by_cache(cpus).items():
                    if cache >= 0 and (there := len(ids & own)):
                        key = place, cache
                        of_caches.setdefault(key, {})[consumer] = {"cpu": millicores_quantity(there * 1_000)}
        zones = [
            _numa_zone(
                snapshot,
                place,
                allocations=_allocations(of_numa.get(place, {})),
                children=[
                    {"type": CACHE_GROUP, "name": str(cache), "allocations": _allocations(found)}
                    for (numa, cache), found in sorted(of_caches.items())
                    if numa == place
                ],
            )
            for place in sorted({*of_numa, *(numa for numa, _ in of_caches)})
        ]
        return _zone_field(zones)


BUILT_IN: Final[tuple[type[FieldReporter], ...]] = (
    NodeResources,
    TopologyZones,
    CpuPoolsReporter,
    HeadroomReporter,
    Allocations,
)
"""In this order: of two values for one place the first stays."""


def _of_numa(
    pod: Pod, member: PoolMember | None, own: frozenset[int], by_numa: Mapping[int, Sequence[Cpu]]
) -> dict[int, dict[str, str]]:
    """What the pod has on NUMA nodes: CPUs of its own, else its request on the nodes that it is bound to."""
    is_pod_reclaimed = is_reclaimed(pod, member)
    cpu_name, memory_name = ("cpu", "memory")
    if is_pod_reclaimed:
        cpu_name, memory_name = RECLAIMED_MILLICPU, RECLAIMED_MEMORY
    bound = sorted(member.numa_nodes) if member is not None else []
    if own:
        counts = {place: len(own.intersection(c.id for c in cpus)) for place, cpus in by_numa.items()}
        cpu = {place: count * 1_000 for place, count in counts.items() if count}
        bound = bound or sorted(cpu)
    else:
        cpu = dict(zip(bound, apportioned(requested(pod, CPU_REQUESTS), [1] * len(bound)), strict=True))
    memory = dict(zip(bound, apportioned(requested(pod, MEMORY_REQUESTS), [1] * len(bound)), strict=True))
    write = number_quantity if is_pod_reclaimed else millicores_quantity
    found: dict[int, dict[str, str]] = {place: {} for place in sorted({*cpu, *bound})}
    for place, resources in found.items():
        if cpu.get(place):
            resources[cpu_name] = write(cpu[place])
        if memory.get(place):
            resources[memory_name] = number_quantity(memory[place])
    return found


def _consumer(pod: Pod) -> str:
    """Source: katalyst-core pkg/util/native, GenerateUniqObjectUIDKey."""
    text = f"{pod.namespace:.253}/{pod.name:.253}/{pod.uid or pod.sandbox_id:.253}"
    return "".join(each if each.isprintable() else "?" for each in text)


def _allocations(found: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    return [{"consumer": consumer, "requests": dict(found[consumer])} for consumer in sorted(found)]


def _sizes(cpu: Amount | None, memory: Amount | None) -> dict[str, dict[str, str]]:
    """Capacity and allocatable, the latter without what is reserved."""
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    if cpu is not None:
        capacity["cpu"] = millicores_quantity(cpu.total)
        allocatable["cpu"] = millicores_quantity(cpu.total - cpu.reserved)
    if memory is not None:
        capacity["memory"] = number_quantity(memory.total)
        allocatable["memory"] = number_quantity(memory.total - memory.reserved)
    return {"allocatable": allocatable, "capacity": capacity}


def _reclaimed(cpu: Amount | None, memory: Amount | None) -> dict[str, dict[str, str]]:
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    for name, amount in ((RECLAIMED_MILLICPU, cpu), (RECLAIMED_MEMORY, memory)):
        if amount is not None:
            capacity[name] = number_quantity(amount.capacity)
            if amount.allocatable is not None:
                allocatable[name] = number_quantity(amount.allocatable)
    return {"allocatable": allocatable, "capacity": capacity}


def _details(amount: Amount, write: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    yield "total", write(amount.total)
    yield "reserved", write(amount.reserved)
    yield "dedicated", write(amount.dedicated)
    if amount.used is not None and amount.idle is not None:
        yield "used", write(amount.used)
        yield "free", write(amount.idle)


def _reclaimed_details(amount: Amount) -> Iterator[tuple[str, int]]:
    yield "requested", amount.requested
    if amount.free is not None:
        yield "free", amount.free


def _numa_nodes(amounts: NodeAmounts) -> list[int]:
    return sorted(place for place in {*amounts.cpu, *amounts.memory} if place is not None)


def _by_numa(cpus: Iterable[Cpu]) -> dict[int, list[Cpu]]:
    found: dict[int, list[Cpu]] = {}
    for cpu in sorted(cpus, key=lambda each: (each.numa_node, each.id)):
        found.setdefault(cpu.numa_node, []).append(cpu)
    return found


def _by_cache(cpus: Iterable[Cpu]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for cpu in sorted(cpus, key=lambda each: (each.l3, each.id)):
        found.setdefault(cpu.l3, set()).add(cpu.id)
    return found


def _numa_zone(snapshot: Snapshot, place: Place, **members: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """A NUMA node in its socket: that of its first CPU; one without CPUs is in none."""
    filled = {name: value for name, value in members.items() if value}
    zone = {"type": NUMA, "name": str(place), **filled}
    socket = next((cpu.socket for cpu in snapshot.node.cpus if cpu.numa_node == place), None)
    return zone if socket is None else {"type": SOCKET, "name": str(socket), "children": [zone]}


def _cache_zone(cache: int, ids: set[int], reserved: frozenset[int]) -> dict[str, Any]:
    return {
        "type": CACHE_GROUP,
        "name": str(cache),
        "resources": {
            "allocatable": {"cpu": millicores_quantity(len(ids - reserved) * 1_000)},
            "capacity": {"cpu": millicores_quantity(len(ids) * 1_000)},
        },
        "attributes": _attributes({CPU_LIST: format_cpu_list(ids)}),
    }


def _attributes(texts: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": text} for name, text in sorted(texts.items())]


def _zone_field(zones: Iterable[dict[str, Any]]) -> list[ReportedField]:
    # Each alone, as the zones of several NUMA nodes name the same socket.
    return [ReportedField(ObjectSection.STATUS, "topologyZone", [zone]) for zone in zones]
