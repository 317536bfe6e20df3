"""The command restore: from the checkpoint to a node as the kubelet wants it, and a table of it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.hooks.fields import RESOURCES
from runtimeproxy.ledger.managed import as_read
from runtimeproxy.pods.checkpoint.codec import Change, Kind, Saved
from runtimeproxy.pods.checkpoint.file import CheckpointError, CheckpointFile
from runtimeproxy.pods.reconcile import same_value
from runtimeproxy.pods.records import CgroupRecord, ContainerRecord, Lifecycle
from runtimeproxy.pods.resources import SCALARS
from runtimeproxy.pods.runtime_client import ClientSettings, GrpcRuntimeClient, RuntimeUnavailableError
from runtimeproxy.restore.plan import (
    CgroupPlan,
    ContainerPlan,
    Line,
    Node,
    Outcome,
    Place,
    Plan,
    Value,
    alive,
    plan,
    without_owners,
    without_values,
)
from runtimeproxy.service.signals import is_served
from runtimeproxy.units import cpu_shares_from_weight, cpu_weight_from_shares

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings

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


HEADERS: Final = ("CONTAINER OR CGROUP", "FIELD", "FROM", "TO", "RESULT")
"""Of the table."""


class ServedError(RuntimeProxyError):
    """An instance serves: what is restored would be changed again."""


class NoCheckpointError(RuntimeProxyError):
    """There is no checkpoint where it should be."""


def restore(settings: Settings, *, dry_run: bool) -> tuple[Line, ...]:
    """Restores all values that policies own; returns what became of each.

    Running it again is harmless: what is restored is no longer a policy's in the checkpoint.

    Args:
        settings: where runtime, cgroups and checkpoint are.
        dry_run: only says what would be done.

    Raises:
        ServedError: an instance serves, and it is no dry run.
        NoCheckpointError: there is no checkpoint.
        RuntimeProxyError: the checkpoint cannot be read, or the runtime does not answer.
    """
    if not dry_run and is_served(settings.proxy.endpoint):
        raise ServedError(
            f"an instance serves on {settings.proxy.endpoint}: end it first, or it changes everything again"
        )
    path, saved = _saved(Path(settings.state.dir))
    lines = asyncio.run(_restored(settings, saved, dry_run=dry_run))
    return (*lines, *_unreadable(path, saved))


def is_complete(lines: Iterable[Line]) -> bool:
    """Whether there is nothing that could not be restored."""
    return all(line.outcome is not Outcome.FAILED for line in lines)


def table(lines: Iterable[Line]) -> Iterator[str]:
    """The lines of the table, without the last column's padding."""
    rows = [HEADERS, *map(_cells, lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADERS))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _saved(folder: Path) -> tuple[Path, Saved]:
    """The checkpoint's name and what it holds; without one nobody knows what policies have changed.

    Raises:
        NoCheckpointError: there is none.
        CheckpointError: it cannot be read.
    """
    with closing(CheckpointFile(folder, read_only=True)) as file:
        try:
            file.path.stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NoCheckpointError(f"{file.path}: no checkpoint; is this the daemon's state.dir?") from error
        except OSError as error:
            raise CheckpointError(f"{file.path}: {error.strerror}") from error
        return file.path, file.load()


def _unreadable(path: Path, saved: Saved) -> Iterator[Line]:
    if saved.unreadable:
        reason = f"{saved.unreadable} of its rows cannot be read"
        yield Line(str(path), "", None, None, Outcome.FAILED, reason)


async def _restored(settings: Settings, saved: Saved, *, dry_run: bool) -> tuple[Line, ...]:
    writer = CgroupWriter(Path(settings.cgroups.root))
    timeout_s = settings.proxy.runtime_call_timeout_s
    target = ClientSettings(f"unix:{settings.proxy.runtime_endpoint}", timeout_s, timeout_s)
    with ThreadPoolExecutor(1) as executor:
        client = GrpcRuntimeClient(target, executor)
        try:
            found = plan(saved, await observed(saved, client, writer))
            if dry_run:
                return found.lines
            return await _carried_out(found, client, writer, Path(settings.state.dir))
        finally:
            await client.close()


async def _carried_out(
    found: Plan, client: GrpcRuntimeClient, writer: CgroupWriter, folder: Path
) -> tuple[Line, ...]:
    """Loosens pods, restores their containers, then gives the pods what they had."""
    loosen(writer, found.cgroups)
    lines: list[Line] = []
    changes: list[Change] = []
    for container in found.containers:
        done = await restore_container(client, container)
        lines += done
        changes.append(_container_change(container, done))
    written = restore_cgroups(writer, found.cgroups)
    changes += (_cgroup_change(cgroup, written) for cgroup in found.cgroups)
    return (*lines, *written, *_noted(CheckpointFile(folder), changes))


def _noted(file: CheckpointFile, changes: Iterable[Change]) -> Iterator[Line]:
    """Notes what belongs to no policy any more; says so if that fails."""
    with closing(file):
        try:
            file.write(changes)
        except CheckpointError as error:
            yield Line(str(file.path), "", None, None, Outcome.FAILED, f"cannot be noted: {error}")


def _container_change(planned: ContainerPlan, done: Iterable[Line]) -> Change:
    """What the checkpoint says of a container from now on."""
    restored = frozenset(line.field for line in done if line.outcome is Outcome.RESTORED)
    record = without_owners(planned, restored)
    return Change(Kind.CONTAINER, record.id, record)


def _cgroup_change(planned: CgroupPlan, done: Iterable[Line]) -> Change:
    """What the checkpoint says of a cgroup from now on."""
    identity = planned.record.id
    restored = frozenset(
        line.field for line in done if line.target == identity and line.outcome is Outcome.RESTORED
    )
    return Change(Kind.CGROUP, identity, without_values(planned.record, restored))


def _cells(line: Line) -> tuple[str, ...]:
    # A runtime's reason may have several lines.
    reason = " ".join(line.reason.split())
    result = f"{line.outcome}: {reason}" if reason else str(line.outcome)
    return line.target, line.field, _cell(line.old), _cell(line.new), result


def _cell(value: int | str | None) -> str:
    return "-" if value is None or value == "" else str(value)
