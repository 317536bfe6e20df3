"""What is on the node now, and how it is changed: the runtime, and the kernel's cgroup files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from runtimeproxy.cgroups import (
    PARAMETERS,
    CgroupPathError,
    CgroupValues,
    CgroupWriter,
    Direction,
    WriteResult,
    cgroup_path,
    check_value,
)
from runtimeproxy.cgroups import Outcome as Written
from runtimeproxy.cgroups.order import loosened
from runtimeproxy.hooks.fields import RESOURCES
from runtimeproxy.pods.checkpoint_rows import Saved
from runtimeproxy.pods.reconcile import same_value
from runtimeproxy.pods.records import CgroupRecord, ContainerRecord
from runtimeproxy.pods.resources import SCALARS
from runtimeproxy.pods.runtime import RuntimeUnavailableError
from runtimeproxy.pods.runtime_client import GrpcRuntimeClient
from runtimeproxy.restore.plan import CgroupPlan, ContainerPlan, Line, Node, Outcome, Place, Value, alive
from runtimeproxy.units import cpu_shares_from_weight, cpu_weight_from_shares

ONLINE_CPUS: Final = Path("/sys/devices/system/cpu/online")
ONLINE_MEMORY_NODES: Final = Path("/sys/devices/system/node/has_memory")
"""Source: Linux, Documentation/ABI/stable/sysfs-devices-node and sysfs-devices-system-cpu."""


async def observed(saved: Saved, client: GrpcRuntimeClient, writer: CgroupWriter) -> Node:
    """What the checkpoint's containers and cgroups are now.

    Raises:
        RuntimeUnavailableError: The runtime does not answer.
    """
    living = alive(await client.list_containers())
    containers: dict[str, ContainerRecord] = {}
    for record in saved.containers:
        found = await client.container(record.id) if record.id in living and record.owners else None
        if found is not None:
            containers[record.id] = found
    parents = {pod.id: pod.cgroup_parent for pod in saved.pods}
    needed = {record.pod_id: parents.get(record.pod_id, "") for record in saved.containers}
    return Node(
        containers,
        dict(_files(saved.cgroups, writer)),
        {pod: _everything(writer, parent, "cpuset.cpus", ONLINE_CPUS) for pod, parent in needed.items()},
        {
            pod: _everything(writer, parent, "cpuset.mems", ONLINE_MEMORY_NODES)
            for pod, parent in needed.items()
        },
    )


async def restore_container(client: GrpcRuntimeClient, planned: ContainerPlan) -> tuple[Line, ...]:
    """Has the runtime give a container its values; returns what became of them."""
    scalars = {name: value for name in SCALARS if (value := getattr(planned.values, name)) is not None}
    if not scalars and not planned.values.unified:
        return planned.lines
    try:
        await client.update_container(planned.record.id, scalars, planned.values.unified)
        found = await client.container(planned.record.id)
    except RuntimeUnavailableError as error:
        return tuple(_refused(line, str(error)) for line in planned.lines)
    return tuple(_updated(line, found) for line in planned.lines)


def loosen(writer: CgroupWriter, plans: Iterable[CgroupPlan]) -> None:
    """Makes room in the pods' cgroups for what their containers get."""
    values = [
        CgroupValues(line.target, {line.field: loosened(line.field, line.old, line.new)})
        for each in plans
        for line in each.lines
        if line.outcome is Outcome.PLANNED and line.old is not None and line.new is not None
        if PARAMETERS[line.field].direction is not Direction.NONE
    ]
    writer.write_levels(_levels(values))


def restore_cgroups(writer: CgroupWriter, plans: Iterable[CgroupPlan]) -> tuple[Line, ...]:
    """Writes what the files held before, in safe order; returns what became of it."""
    plans = tuple(plans)
    wanted = (
        CgroupValues(
            each.record.id, {name: exact(writer, name, value) for name, value in each.values.items()}
        )
        for each in plans
    )
    results = {Place(result.cgroup, result.name): result for result in writer.write_levels(_levels(wanted))}
    return tuple(
        _rewritten(line, results.get(Place(line.target, line.field))) for each in plans for line in each.lines
    )


def exact(writer: CgroupWriter, name: str, value: Value) -> Value:
    """The value that makes the file what it was: shares read from a weight may mean one weight less."""
    mount = writer.hierarchy.mounts.get(PARAMETERS[name].controller)
    if name != "cpu.shares" or mount is None or mount.version != 2 or check_value(name, value):
        return value
    shares = int(value)
    is_same = cpu_shares_from_weight(cpu_weight_from_shares(shares)) == shares
    return shares if is_same else shares + 1


def _updated(line: Line, found: ContainerRecord | None) -> Line:
    """What the runtime says after an update."""
    if line.outcome is not Outcome.PLANNED:
        return line
    if found is None:
        return replace(line, outcome=Outcome.LEFT, reason="the container is gone")
    scalar = line.field.removeprefix(f"{RESOURCES}.")
    now: Value | None = getattr(found.applied, scalar) if scalar in SCALARS else None
    if now is not None and line.new is not None and not same_value(scalar, now, line.new):
        return _refused(line, "the runtime does not change it on a container that runs")
    return replace(line, outcome=Outcome.RESTORED)


def _refused(line: Line, reason: str) -> Line:
    return replace(line, outcome=Outcome.FAILED, reason=reason) if line.outcome is Outcome.PLANNED else line


def _rewritten(line: Line, result: WriteResult | None) -> Line:
    """What became of a write."""
    if line.outcome is not Outcome.PLANNED or result is None:
        return line
    if result.outcome in (Written.WRITTEN, Written.UNCHANGED):
        return replace(line, outcome=Outcome.RESTORED)
    if result.outcome is Written.MISSING:
        return replace(line, outcome=Outcome.LEFT, reason="the cgroup is gone")
    return _refused(line, result.error)


def _levels(wanted: Iterable[CgroupValues]) -> list[list[CgroupValues]]:
    """The values by depth, parents first."""
    by_depth: defaultdict[int, list[CgroupValues]] = defaultdict(list)
    for each in wanted:
        by_depth[len(cgroup_path(each.cgroup))].append(each)
    return [by_depth[depth] for depth in sorted(by_depth)]


def _files(records: Iterable[CgroupRecord], writer: CgroupWriter) -> Iterator[tuple[Place, Value | None]]:
    """What the files hold that are there; None for one that cannot be read."""
    for record in records:
        for name in PARAMETERS.keys() & record.values.keys():
            try:
                found = writer.read(record.id, name)
            except CgroupPathError:
                continue
            except OSError:
                yield Place(record.id, name), None
                continue
            if found is not None:
                yield Place(record.id, name), found


def _everything(writer: CgroupWriter, pod_cgroup: str, name: str, online: Path) -> str:
    """All CPUs or memory nodes that a pod may use: those of its cgroup, else of the machine.

    Version 2 leaves the pod's own file empty, and takes any list in its containers'.
    """
    with suppress(CgroupPathError, OSError):
        found = writer.read(pod_cgroup, name)
        if found:
            return str(found)
    with suppress(OSError):
        return online.read_text().strip()
    return ""
