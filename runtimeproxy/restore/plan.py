"""The values to write so that a node is as the kubelet requested: pure rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from runtimeproxy.calls.edit_request import NEUTRAL
from runtimeproxy.hooks.fields import RESOURCES, UNIFIED
from runtimeproxy.hooks.views import Resources
from runtimeproxy.ledger.managed import as_read
from runtimeproxy.pods.checkpoint.codec import Saved
from runtimeproxy.pods.reconcile import reconciled, same_value
from runtimeproxy.pods.records import CgroupRecord, ContainerRecord, PodRecord
from runtimeproxy.pods.resources import NO_ENTRIES, SCALARS, overlay
from runtimeproxy.units import (
    MAX_CPU_SHARES,
    MIN_CPU_SHARES,
    UNLIMITED,
    cpu_weight_from_shares,
    format_cpu_max,
    format_memory_max,
)

Value = int | str


class Status(StrEnum):
    """The outcome of one value."""

    PLANNED = "to be restored"
    RESTORED = "restored"
    LEFT = "left alone"
    FAILED = "not restored"


@dataclass(frozen=True, slots=True)
class Line:
    """One value: its place, the present and the wanted value, and the outcome."""

    target: str
    field: str
    old: Value | None
    new: Value | None
    status: Status = Status.PLANNED
    reason: str = ""


class Place(NamedTuple):
    """A file of a cgroup."""

    cgroup: str
    """Id of the cgroup's record."""
    name: str


@dataclass(frozen=True, slots=True)
class NodeState:
    """The present state of the node.

    Attributes:
        containers: The runtime's records of the containers that have not stopped, by id.
        files: The values of existing files; None for one that cannot be read.
        unreported: Why the runtime does not report a container just now, by id.
        cpus: All CPUs of a pod's cgroup, by the sandbox's id.
        memory_nodes: All memory nodes of a pod's cgroup, by the sandbox's id.
    """

    containers: Mapping[str, ContainerRecord]
    files: Mapping[Place, Value | None]
    cpus: Mapping[str, str] = field(default_factory=dict)
    memory_nodes: Mapping[str, str] = field(default_factory=dict)
    unreported: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """The values to restore for one container.

    Attributes:
        record: From the checkpoint, with the changes that other programs have made since.
        values: To be sent to the runtime.
        lines: All values that policies own.
    """

    record: ContainerRecord
    values: Resources
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class CgroupPlan:
    """The values to restore in the files of one cgroup.

    Attributes:
        record: From the checkpoint.
        values: To be written.
        lines: All values that policies have written.
    """

    record: CgroupRecord
    values: Mapping[str, Value]
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All values to restore, but for those that are gone or are already as the kubelet requested."""

    containers: tuple[ContainerPlan, ...]
    cgroups: tuple[CgroupPlan, ...]

    @property
    def lines(self) -> tuple[Line, ...]:
        """All values, containers first."""
        of_containers = (line for each in self.containers for line in each.lines)
        return (*of_containers, *(line for each in self.cgroups for line in each.lines))


def plan(saved: Saved, node: NodeState) -> Plan:
    """Compares the checkpoint with the node.

    Args:
        saved: The checkpoint.
        node: Its present state.
    """
    pods = {pod.id: pod for pod in saved.pods}
    containers = (
        _container_plan(record, pods.get(record.pod_id), node)
        for record in saved.containers
        if record.owners and (record.id in node.containers or record.id in node.unreported)
    )
    cgroups = (_cgroup_plan(record, node.files) for record in saved.cgroups)
    return Plan(
        tuple(each for each in containers if each.lines), tuple(each for each in cgroups if each.lines)
    )


def without_owners(planned: ContainerPlan, restored: frozenset[str]) -> ContainerRecord:
    """The record of a container once these fields are the kubelet's again."""
    record = planned.record
    owners = {name: owner for name, owner in record.owners.items() if name not in restored}
    scalars = {name: getattr(planned.values, name) for name in SCALARS if f"{RESOURCES}.{name}" in restored}
    unified = {key: value for key, value in planned.values.unified.items() if f"{UNIFIED}[{key}]" in restored}
    booked = overlay(record.booked, Resources(**scalars, unified=unified))
    return replace(record, owners=owners or NO_ENTRIES, booked=booked)


def without_values(record: CgroupRecord, restored: frozenset[str]) -> CgroupRecord | None:
    """The record of a cgroup once these files have their original values; None if no value is left."""
    values = {name: value for name, value in record.values.items() if name not in restored}
    return CgroupRecord(record.id, values) if values else None


def _container_plan(record: ContainerRecord, pod: PodRecord | None, node: NodeState) -> ContainerPlan:
    target = "/".join((pod.namespace, pod.name, record.name)) if pod is not None else record.id[:12]
    if (reason := node.unreported.get(record.id)) is not None:
        owned = _owned_lines(target, record, node)
        failed = tuple(replace(line, status=Status.FAILED, reason=reason) for line in owned)
        return ContainerPlan(record, Resources(), failed)
    record = reconciled(record, node.containers[record.id])
    lines = tuple(_owned_lines(target, record, node))
    values: dict[str, Any] = {}
    unified: dict[str, str] = {}
    for line in lines:
        if line.status is Status.PLANNED and line.field.startswith(f"{UNIFIED}["):
            unified[unified_key(line.field)] = str(line.new)
        elif line.status is Status.PLANNED:
            values[line.field.removeprefix(f"{RESOURCES}.")] = line.new
    return ContainerPlan(record, Resources(**values, unified=unified), lines)


def _owned_lines(target: str, record: ContainerRecord, node: NodeState) -> Iterator[Line]:
    for name in record.owners:
        scalar = name.removeprefix(f"{RESOURCES}.")
        booked: Value | None
        wanted: Value | None
        if name.startswith(f"{UNIFIED}["):
            key = unified_key(name)
            booked, wanted = record.booked.unified.get(key), requested_text(key, record.requested)
        elif scalar in SCALARS:
            booked, wanted = getattr(record.booked, scalar), _wanted(scalar, record, node)
        else:
            continue
        line = Line(target, name, booked, wanted)
        if wanted is None and booked is not None:
            reason = "the kubelet gave no value, and the CRI cannot clear one of a running container"
            yield replace(line, status=Status.FAILED, reason=reason)
        elif wanted is not None and (booked is None or not same_value(scalar, booked, wanted)):
            yield line


def _wanted(scalar: str, record: ContainerRecord, node: NodeState) -> Value | None:
    """The kubelet's value, or the one that means "no value" on a running container; None if there is none."""
    requested: Value | None = getattr(record.requested, scalar)
    if requested is not None:
        return requested
    if scalar == "cpuset_cpus":
        return node.cpus.get(record.pod_id) or None
    if scalar == "cpuset_mems":
        return node.memory_nodes.get(record.pod_id) or None
    return NEUTRAL.get(scalar)


def _cgroup_plan(record: CgroupRecord, files: Mapping[Place, Value | None]) -> CgroupPlan:
    lines: list[Line] = []
    values: dict[str, Value] = {}
    for name, value in record.values.items():
        place = Place(record.id, name)
        if place not in files:
            continue
        current, original = files[place], value.original
        line = Line(place.cgroup, name, current, original)
        if current is None:
            lines.append(replace(line, status=Status.FAILED, reason="the file cannot be read"))
        elif original is not None and current in as_read(name, original):
            continue
        elif current not in as_read(name, value.wanted):
            lines.append(replace(line, status=Status.LEFT, reason="another program has changed it since"))
        elif original is None:
            lines.append(replace(line, status=Status.FAILED, reason="its original value is not known"))
        else:
            lines.append(line)
            values[name] = original
    return CgroupPlan(record, values, tuple(lines))


def unified_key(field: str) -> str:
    """The file of a field `unified[file]`."""
    return field.removeprefix(f"{UNIFIED}[").removesuffix("]")


NEUTRAL_UNIFIED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cpu.idle": "0",
        "cpu.max": "max 100000",
        "cpu.max.burst": "0",
        "cpu.weight": "100",
        "memory.high": "max",
        "memory.low": "0",
        "memory.max": "max",
        "memory.min": "0",
        "memory.oom.group": "0",
        "memory.swap.max": "max",
        "pids.max": "max",
    }
)
"""The kernel's defaults in files of version 2. Source: Linux,
Documentation/admin-guide/cgroup-v2.rst."""


def requested_text(key: str, requested: Resources) -> str | None:
    """The requested text of a file of version 2: its own, or made of the scalars, or the default."""
    return requested.unified.get(key) or _made_of_scalars(key, requested) or NEUTRAL_UNIFIED.get(key)


def _made_of_scalars(key: str, requested: Resources) -> str | None:
    """The text that a runtime writes to a file of version 2 for the scalars of the CRI; None without.

    Source: opencontainers/runc, libcontainer/cgroups/fs2 and ConvertMemorySwapToCgroupV2Value.
    """
    limit_bytes, swap_bytes = requested.memory_limit_bytes, requested.memory_swap_limit_bytes
    if key == "cpu.weight" and requested.cpu_shares is not None:
        return str(cpu_weight_from_shares(min(max(requested.cpu_shares, MIN_CPU_SHARES), MAX_CPU_SHARES)))
    if key == "cpu.max" and requested.cpu_quota_us is not None:
        return format_cpu_max(requested.cpu_quota_us, requested.cpu_period_us or NEUTRAL["cpu_period_us"])
    if key == "memory.max" and limit_bytes is not None:
        return format_memory_max(limit_bytes)
    if key == "memory.swap.max" and limit_bytes is not None and swap_bytes is not None:
        has_limit = UNLIMITED not in (limit_bytes, swap_bytes)
        return format_memory_max(max(swap_bytes - limit_bytes, 0) if has_limit else UNLIMITED)
    return None
