"""What has to be written so that a node is as the kubelet wants it: pure rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from runtimeproxy.calls.field_presence import NEUTRAL
from runtimeproxy.hooks.fields import RESOURCES, UNIFIED
from runtimeproxy.hooks.views import Resources
from runtimeproxy.ledger.managed import as_read
from runtimeproxy.pods.checkpoint.codec import Saved
from runtimeproxy.pods.reconcile import reconciled, same_value
from runtimeproxy.pods.records import CgroupRecord, ContainerRecord, Lifecycle, ManagedValue, PodRecord
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


class Outcome(StrEnum):
    """What becomes of one value."""

    PLANNED = "to be restored"
    RESTORED = "restored"
    LEFT = "left alone"
    FAILED = "not restored"


@dataclass(frozen=True, slots=True)
class Line:
    """One value: where it is, what it is, what it shall be, and what becomes of it."""

    target: str
    field: str
    old: Value | None
    new: Value | None
    outcome: Outcome = Outcome.PLANNED
    reason: str = ""


class Place(NamedTuple):
    """A file of a cgroup."""

    cgroup: str
    """Id of the cgroup's record."""
    name: str


@dataclass(frozen=True, slots=True)
class Node:
    """What is on the node now.

    Attributes:
        containers: What the runtime says of the containers that it has and that have not stopped, by id.
        files: What the files hold; a file that is not there is not in it.
        silent: Containers of which the runtime says nothing just now, by id, with the reason.
        cpus: All CPUs of a pod's cgroup, by the sandbox's id.
        memory_nodes: All memory nodes of a pod's cgroup, by the sandbox's id.
    """

    containers: Mapping[str, ContainerRecord]
    files: Mapping[Place, Value | None]
    cpus: Mapping[str, str] = field(default_factory=dict)
    memory_nodes: Mapping[str, str] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """What one container gets.

    Attributes:
        record: What the checkpoint has of it, with what somebody else has changed since.
        values: What is sent to the runtime.
        lines: All values that policies own.
    """

    record: ContainerRecord
    values: Resources
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class CgroupPlan:
    """What the files of one cgroup get.

    Attributes:
        record: What the checkpoint has of it.
        values: What is written.
        lines: All values that policies have put there.
    """

    record: CgroupRecord
    values: Mapping[str, Value]
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is to be done; what is gone, or is already as it should be, is not part of it."""

    containers: tuple[ContainerPlan, ...]
    cgroups: tuple[CgroupPlan, ...]

    @property
    def lines(self) -> tuple[Line, ...]:
        """All values, containers first."""
        of_containers = (line for each in self.containers for line in each.lines)
        return (*of_containers, *(line for each in self.cgroups for line in each.lines))


def plan(saved: Saved, node: Node) -> Plan:
    """Compares the checkpoint with the node.

    Args:
        saved: The checkpoint.
        node: What is on the node now.
    """
    pods = {pod.id: pod for pod in saved.pods}
    containers = (
        _container_plan(record, pods.get(record.pod_id), node)
        for record in saved.containers
        if record.owners and (record.id in node.containers or record.id in node.silent)
    )
    cgroups = (_cgroup_plan(record, node.files) for record in saved.cgroups)
    return Plan(
        tuple(each for each in containers if each.lines), tuple(each for each in cgroups if each.lines)
    )


def alive(containers: Mapping[str, ContainerRecord]) -> frozenset[str]:
    """The ids of containers that have values to be restored, as far as a list tells."""
    return frozenset(found.id for found in containers.values() if found.state is not Lifecycle.STOPPED)


def without_owners(planned: ContainerPlan, restored: frozenset[str]) -> ContainerRecord:
    """The record of a container once these fields are the kubelet's again."""
    record = planned.record
    owners = {name: owner for name, owner in record.owners.items() if name not in restored}
    scalars = {name: getattr(planned.values, name) for name in SCALARS if f"{RESOURCES}.{name}" in restored}
    unified = {key: value for key, value in planned.values.unified.items() if f"{UNIFIED}[{key}]" in restored}
    applied = overlay(record.applied, Resources(**scalars, unified=unified))
    return replace(record, owners=owners or NO_ENTRIES, applied=applied)


def without_values(record: CgroupRecord, restored: frozenset[str]) -> CgroupRecord | None:
    """The record of a cgroup once these files hold what they held before; None if nothing is left of it."""
    values = {name: value for name, value in record.values.items() if name not in restored}
    return CgroupRecord(record.id, values) if values else None


def _container_plan(record: ContainerRecord, pod: PodRecord | None, node: Node) -> ContainerPlan:
    target = "/".join((pod.namespace, pod.name, record.name)) if pod is not None else record.id[:12]
    if (reason := node.silent.get(record.id)) is not None:
        owned = _owned_lines(target, record, node)
        failed = tuple(replace(line, outcome=Outcome.FAILED, reason=reason) for line in owned)
        return ContainerPlan(record, Resources(), failed)
    record = reconciled(record, node.containers[record.id])
    lines = tuple(_owned_lines(target, record, node))
    values: dict[str, Any] = {}
    unified: dict[str, str] = {}
    for line in lines:
        if line.outcome is Outcome.PLANNED and line.field.startswith(f"{UNIFIED}["):
            unified[_key(line.field)] = str(line.new)
        elif line.outcome is Outcome.PLANNED:
            values[line.field.removeprefix(f"{RESOURCES}.")] = line.new
    return ContainerPlan(record, Resources(**values, unified=unified), lines)


def _owned_lines(target: str, record: ContainerRecord, node: Node) -> Iterator[Line]:
    for name in record.owners:
        if name.startswith(f"{UNIFIED}["):
            key = _key(name)
            wanted_text = asked_text(key, record.requested)
            yield from _line(target, name, record.applied.unified.get(key), wanted_text)
        elif (scalar := name.removeprefix(f"{RESOURCES}.")) in SCALARS:
            wanted = _wanted(scalar, record, node)
            yield from _line(target, name, getattr(record.applied, scalar), wanted)


def _line(target: str, name: str, applied: Value | None, wanted: Value | None) -> Iterator[Line]:
    scalar = name.removeprefix(f"{RESOURCES}.")
    if applied is not None and wanted is not None and same_value(scalar, applied, wanted):
        return
    if wanted is None and applied is None:
        return
    line = Line(target, name, applied, wanted)
    if wanted is None:
        reason = "the kubelet gave no value, and the CRI cannot take one away from a container that runs"
        line = replace(line, outcome=Outcome.FAILED, reason=reason)
    yield line


def _wanted(scalar: str, record: ContainerRecord, node: Node) -> Value | None:
    """The kubelet's value, or what stands for none on a container that runs; None if nothing does."""
    asked: Value | None = getattr(record.requested, scalar)
    if asked is not None:
        return asked
    if scalar == "cpuset_cpus":
        return node.cpus.get(record.pod_id) or None
    if scalar == "cpuset_mems":
        return node.memory_nodes.get(record.pod_id) or None
    return NEUTRAL.get(scalar)


def _cgroup_plan(record: CgroupRecord, files: Mapping[Place, Value | None]) -> CgroupPlan:
    lines = tuple(
        line
        for name, kept in record.values.items()
        if (place := Place(record.id, name)) in files
        for line in _file_line(place, kept, files[place])
    )
    values = {line.field: line.new for line in lines if line.outcome is Outcome.PLANNED}
    return CgroupPlan(record, {name: new for name, new in values.items() if new is not None}, lines)


def _file_line(place: Place, kept: ManagedValue, current: Value | None) -> Iterator[Line]:
    own = as_read(place.name, kept.wanted)
    line = Line(place.cgroup, place.name, current, kept.original)
    if kept.original is not None and current in as_read(place.name, kept.original):
        return
    if current is None:
        yield replace(line, outcome=Outcome.FAILED, reason="the file cannot be read")
    elif current not in own:
        yield replace(line, outcome=Outcome.LEFT, reason="somebody else has changed it since")
    elif kept.original is None:
        yield replace(line, outcome=Outcome.FAILED, reason="what it held before is not known")
    else:
        yield line


def _key(name: str) -> str:
    return name.removeprefix(f"{UNIFIED}[").removesuffix("]")


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
"""What the kernel's files of version 2 hold where nobody writes anything. Source: Linux,
Documentation/admin-guide/cgroup-v2.rst."""


def asked_text(key: str, requested: Resources) -> str | None:
    """The kubelet's text for a file of version 2, or what its other values make of the file."""
    return requested.unified.get(key) or _made_of_scalars(key, requested) or NEUTRAL_UNIFIED.get(key)


def _made_of_scalars(key: str, requested: Resources) -> str | None:
    """What a runtime writes to a file of version 2 for the scalars of the CRI; None if they do not tell.

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
