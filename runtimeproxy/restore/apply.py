"""What is on the node now, and how it is changed: the runtime, and the kernel's cgroup files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
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
from runtimeproxy.ledger.managed import as_read
from runtimeproxy.pods.checkpoint_rows import Saved
from runtimeproxy.pods.reconcile import same_value
from runtimeproxy.pods.records import CgroupRecord, ContainerRecord, Lifecycle
from runtimeproxy.pods.resources import SCALARS
from runtimeproxy.pods.runtime import RuntimeUnavailableError
from runtimeproxy.pods.runtime_client import GrpcRuntimeClient
from runtimeproxy.restore.plan import (
    CgroupPlan,
    ContainerPlan,
    Line,
    Node,
    Outcome,
    Place,
    Value,
    alive,
)
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
    owned = [record.id for record in saved.containers if record.id in living and record.owners]
    containers, silent = await _asked(owned, client)
    files = dict(_files(saved.cgroups, writer))
    originals = dict(_originals(saved.cgroups, files))
    parents = {pod.id: pod.cgroup_parent for pod in saved.pods}
    needed = {record.pod_id: parents.get(record.pod_id, "") for record in saved.containers}

    def everything(name: str, online: Path) -> dict[str, str]:
        return {
            pod: _everything(writer, Place(parent, name), originals, online) for pod, parent in needed.items()
        }

    return Node(
        containers,
        files,
        everything("cpuset.cpus", ONLINE_CPUS),
        everything("cpuset.mems", ONLINE_MEMORY_NODES),
        silent,
    )


async def _asked(
    identities: Iterable[str], client: GrpcRuntimeClient
) -> tuple[dict[str, ContainerRecord], dict[str, str]]:
    """What the runtime says of containers, and why it says nothing of others: one is not to stop all."""
    containers: dict[str, ContainerRecord] = {}
    silent: dict[str, str] = {}
    for identity in identities:
        try:
            found = await client.container(identity)
        except RuntimeUnavailableError as error:
            silent[identity] = str(error)
            continue
        if found is not None and found.state is not Lifecycle.STOPPED:
            containers[identity] = found
    return containers, silent


async def restore_container(client: GrpcRuntimeClient, planned: ContainerPlan) -> tuple[Line, ...]:
    """Has the runtime give a container its values; returns what became of them."""
    scalars = {name: value for name in SCALARS if (value := getattr(planned.values, name)) is not None}
    if not scalars and not planned.values.unified:
        return planned.lines
    try:
        await client.update_container(planned.record.id, scalars, planned.values.unified)
        found = await client.container(planned.record.id)
    except RuntimeUnavailableError as error:
        if await _has_ended(client, planned.record.id):
            return tuple(_updated(line, None) for line in planned.lines)
        return tuple(_refused(line, str(error)) for line in planned.lines)
    return tuple(_updated(line, found) for line in planned.lines)


async def _has_ended(client: GrpcRuntimeClient, identity: str) -> bool:
    """Whether a container is no longer there to be changed; False if the runtime does not say."""
    with suppress(RuntimeUnavailableError):
        found = await client.container(identity)
        return found is None or found.state is Lifecycle.STOPPED
    return False


def loosen(writer: CgroupWriter, plans: Iterable[CgroupPlan]) -> None:
    """Makes room in the pods' cgroups for what their containers get."""
    values = [
        CgroupValues(line.target, {line.field: loosened(line.field, line.old, line.new)})
        for each in plans
        for line in each.lines
        if line.outcome is Outcome.PLANNED and line.old is not None and line.new is not None
        if PARAMETERS[line.field].direction is not Direction.NONE and not check_value(line.field, line.new)
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
    if found is None or found.state is Lifecycle.STOPPED:
        return replace(line, outcome=Outcome.LEFT, reason="the container has ended")
    scalar = line.field.removeprefix(f"{RESOURCES}.")
    now = _reported(found, scalar)
    if now is not None and line.new is not None and not same_value(scalar, now, line.new):
        return _refused(line, "the runtime does not change it on a container that runs")
    return replace(line, outcome=Outcome.RESTORED)


def _reported(found: ContainerRecord, name: str) -> Value | None:
    """What the runtime says of a value; None for nothing."""
    if name in SCALARS:
        value: Value | None = getattr(found.applied, name)
        return value
    return found.applied.unified.get(name.removeprefix("unified[").removesuffix("]"))


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


def _originals(
    records: Iterable[CgroupRecord], files: Mapping[Place, Value | None]
) -> Iterator[tuple[Place, Value]]:
    """What files hold again after the restoring."""
    for record in records:
        for name, kept in record.values.items():
            place = Place(record.id, name)
            if kept.original is not None and files.get(place) in as_read(name, kept.wanted):
                yield place, kept.original


def _everything(writer: CgroupWriter, place: Place, originals: Mapping[Place, Value], online: Path) -> str:
    """All CPUs or memory nodes that a pod may use: those of its cgroup, else of the machine.

    Version 2 leaves the pod's own file empty, and takes any list in its containers'.
    """
    with suppress(CgroupPathError, OSError):
        saved = Place("/" + "/".join(cgroup_path(place.cgroup)), place.name)
        found = originals[saved] if saved in originals else writer.read(*place)
        if found:
            return str(found)
    with suppress(OSError):
        return online.read_text().strip()
    return ""
