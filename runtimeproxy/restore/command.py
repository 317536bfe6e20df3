"""The command `restore`: gives a node the values that the kubelet requested, and shows them in a table."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy.cgroups.order import loosened
from runtimeproxy.cgroups.paths import CgroupPathError, cgroup_path
from runtimeproxy.cgroups.resctrl import FOLDER as RESCTRL
from runtimeproxy.cgroups.resctrl import ResctrlGroups
from runtimeproxy.cgroups.writer import CgroupValues, CgroupWriter, FileText, WriteOutcome, WriteResult
from runtimeproxy.errors import RuntimeProxyError, described
from runtimeproxy.fields.declaration import Direction
from runtimeproxy.fields.kernel_settings import NO_GROUP, RESCTRL_GROUPS
from runtimeproxy.fields.tables import CRI_FIELDS, LISTS, PARAMETERS, check_value
from runtimeproxy.hooks.fields import RESOURCES
from runtimeproxy.ledger.books import restored, still_valid
from runtimeproxy.ledger.fitting import cgroup_version, with_neighbours
from runtimeproxy.ledger.journal import read_boot_id
from runtimeproxy.ledger.kernel_settings import KernelSettings, kind_of
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.network import network_control
from runtimeproxy.offline import Offline
from runtimeproxy.pods.checkpoint.codec import RowChange, RowKind, Saved
from runtimeproxy.pods.checkpoint.file import CheckpointError, CheckpointFile
from runtimeproxy.pods.inventory import RuntimeUnavailableError
from runtimeproxy.pods.records import Book, ContainerRecord, Lifecycle
from runtimeproxy.pods.runtime_client import GrpcRuntimeClient, runtime_client
from runtimeproxy.restore.plan import (
    CgroupPlan,
    CgroupState,
    ContainerPlan,
    Line,
    NodeState,
    RestorePlan,
    Status,
    Value,
    is_same,
    kept_book,
    plan,
    unified_key,
    without_owners,
)
from runtimeproxy.signals import is_served
from runtimeproxy.units import format_cpu_list, parse_cpu_list

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings

HEADERS: Final = ("CONTAINER OR CGROUP", "FIELD", "FROM", "TO", "RESULT")
"""Of the table."""

ONLINE_CPUS: Final = Path("/sys/devices/system/cpu/online")
ONLINE_MEMORY_NODES: Final = Path("/sys/devices/system/node/has_memory")
"""Source: Linux, Documentation/ABI/stable/sysfs-devices-node and sysfs-devices-system-cpu."""


def restore(settings: Settings, *, dry_run: bool) -> tuple[Line, ...]:
    """Restores all values that policies own; returns the result of each, or in a dry run the plan.

    Running it again is harmless: the checkpoint no longer has a policy as the owner of a restored value.

    Raises:
        RuntimeProxyError: An instance serves and it is not a dry run, there is no checkpoint, it cannot be
            read, or the runtime does not answer.
    """
    if not dry_run and is_served(settings.proxy.endpoint):
        raise RuntimeProxyError(
            f"an instance serves on {settings.proxy.endpoint}: stop it first, or it changes the values again"
        )
    path, saved = _read_checkpoint(Path(settings.state.dir))
    try:
        lines = asyncio.run(_restore_all(settings, saved, dry_run=dry_run))
    except RuntimeUnavailableError as error:
        raise RuntimeProxyError(f"{settings.proxy.runtime_endpoint}: {error}") from error
    folder, root = Path(settings.state.dir), Path(settings.node.procfs_root) / "sys"
    of_kernel = KernelSettings(
        folder, read_boot_id(), root, sysfs=Path(settings.node.sysfs_root), network=network_control(settings)
    )
    lines += restore_kernel_settings(of_kernel, dry_run=dry_run)
    if saved.unreadable:
        reason = f"{saved.unreadable} of its rows cannot be read"
        lines += (Line(str(path), "", None, None, Status.FAILED, reason),)
    return lines


def restore_kernel_settings(settings: KernelSettings, *, dry_run: bool) -> tuple[Line, ...]:
    """Gives all sysctls and other settings of the kernel their originals; returns the results."""
    done = Status.PLANNED if dry_run else Status.RESTORED
    lines = tuple(
        Line(
            kind_of(each.name),
            *(each.name, each.old, each.new),
            Status.FAILED if each.error else done,
            each.error,
        )
        for each in (settings.planned() if dry_run else settings.apply({}))
    )
    return (*lines, *_restore_groups(settings.groups, {each.field for each in lines}, dry_run=dry_run))


def _restore_groups(groups: ResctrlGroups, named: Collection[str], *, dry_run: bool) -> Iterator[Line]:
    """Removes all other resctrl groups of ours; the kernel gives their tasks to the root group."""
    left = (*groups.own(), *groups.own_monitors())
    error = ""
    if left and not dry_run:
        try:
            groups.remove_all()
        except OSError as failed:
            error = described(failed)
    for name in left:
        if f"{RESCTRL_GROUPS}{name}" not in named:
            status = Status.FAILED if error else Status.PLANNED if dry_run else Status.RESTORED
            yield Line("resctrl group", name, "there", NO_GROUP, status, error)


def is_complete(lines: Iterable[Line]) -> bool:
    return all(line.status is not Status.FAILED for line in lines)


def table_row(line: Line) -> tuple[str, ...]:
    # A runtime's reason may have several lines.
    reason = " ".join(line.reason.split())
    old, new = ("-" if value is None or value == "" else str(value) for value in (line.old, line.new))
    return line.target, line.field, old, new, f"{line.status}: {reason}" if reason else line.status


def lines_as_json(lines: Iterable[Line]) -> dict[str, Any]:
    listed = list(lines)
    values = [
        {
            "target": each.target,
            "field": each.field,
            "from": each.old,
            "to": each.new,
            "result": each.status.value,
            "reason": each.reason,
        }
        for each in listed
    ]
    return {"complete": is_complete(listed), "values": values}


def states(ledger: Ledger, writer: CgroupWriter) -> tuple[CgroupState, ...]:
    found = (ledger.books.record(identity) for identity in ledger.books.identities)
    return tuple(_state(book, writer) for book in found if book is not None)


async def observe(saved: Saved, client: GrpcRuntimeClient, ledger: Ledger, writer: CgroupWriter) -> NodeState:
    """Reads the present state of the checkpoint's containers and cgroups.

    Raises:
        RuntimeUnavailableError: The runtime does not answer.
    """
    listed = await client.list_containers()
    containers: dict[str, ContainerRecord] = {}
    unreported: dict[str, str] = {}
    for record in saved.containers:
        known = listed.get(record.id)
        if known is None or known.state is Lifecycle.STOPPED or not record.owners:
            continue
        try:
            found = await client.container(record.id)
        except RuntimeUnavailableError as error:
            # One container must not stop the restoring of all others.
            unreported[record.id] = str(error)
            continue
        if found is not None and found.state is not Lifecycle.STOPPED:
            containers[record.id] = found
    parents = {pod.id: pod.cgroup_parent for pod in saved.pods}
    needed = {record.pod_id: parents.get(record.pod_id, "") for record in saved.containers}
    whole_lists = {
        name: {pod: _everything(ledger, writer, parent, name, online) for pod, parent in needed.items()}
        for name, online in (("cpuset.cpus", ONLINE_CPUS), ("cpuset.mems", ONLINE_MEMORY_NODES))
    }
    return NodeState(containers, states(ledger, writer), whole_lists, unreported)


async def restore_container(client: GrpcRuntimeClient, planned: ContainerPlan) -> tuple[Line, ...]:
    """Updates a container at the runtime; returns the results."""
    scalars = {name: value for name in CRI_FIELDS if (value := getattr(planned.values, name)) is not None}
    if not scalars and not planned.values.unified:
        return planned.lines
    identity = planned.record.id
    try:
        await client.update_container(identity, scalars, planned.values.unified)
        found = await client.container(identity)
    except RuntimeUnavailableError as error:
        with suppress(RuntimeUnavailableError):
            found = await client.container(identity)
            if found is None or found.state is Lifecycle.STOPPED:
                return tuple(_update_result(line, None) for line in planned.lines)
        return tuple(_with(line, Status.FAILED, str(error)) for line in planned.lines)
    return tuple(_update_result(line, found) for line in planned.lines)


def loosen(writer: CgroupWriter, plans: Iterable[CgroupPlan]) -> None:
    """Makes room in the pods' cgroups for the values of their containers."""
    values = [
        CgroupValues(line.target, {line.field: loosened(line.field, line.old, line.new)})
        for each in plans
        for line in each.lines
        if line.status is Status.PLANNED and line.old is not None and line.new is not None
        if PARAMETERS[line.field].direction is not Direction.NONE and not check_value(line.field, line.new)
    ]
    writer.write_levels(_levels(values))


def restore_cgroups(writer: CgroupWriter, plans: Iterable[CgroupPlan]) -> tuple[Line, ...]:
    """Writes the original values in safe order; returns the results."""
    plans = tuple(plans)
    wanted = (
        CgroupValues(each.state.book.id, each.values, each.state.present, each.raw, each.replaces)
        for each in plans
    )
    results = {(result.cgroup, result.name): result for result in writer.write_levels(_levels(wanted))}
    return tuple(
        _write_result(line, results.get((line.target, line.field)), writer)
        for each in plans
        for line in each.lines
    )


def _read_checkpoint(folder: Path) -> tuple[Path, Saved]:
    with closing(CheckpointFile(folder, read_only=True)) as file:
        try:
            file.path.stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            reason = "no checkpoint; is this the daemon's state.dir?"
            raise CheckpointError(f"{file.path}: {reason}") from error
        except OSError as error:
            raise CheckpointError(f"{file.path}: {error.strerror}") from error
        return file.path, file.load()


async def _restore_all(settings: Settings, saved: Saved, *, dry_run: bool) -> tuple[Line, ...]:
    groups = ResctrlGroups(Path(settings.node.sysfs_root) / RESCTRL)
    writer = CgroupWriter(Path(settings.cgroups.root), resctrl=groups)
    proxy = settings.proxy
    with ThreadPoolExecutor(1) as executor:
        client = runtime_client(proxy.runtime_endpoint, proxy.runtime_call_timeout_s, executor)
        ledger = Offline(settings).ledger(saved, writer)
        try:
            found = plan(saved, await observe(saved, client, ledger, writer), writer)
            if dry_run:
                return found.lines
            return await _carry_out(found, client, ledger, writer, Path(settings.state.dir))
        finally:
            await client.close()


async def _carry_out(
    found: RestorePlan, client: GrpcRuntimeClient, ledger: Ledger, writer: CgroupWriter, folder: Path
) -> tuple[Line, ...]:
    """Loosens the pods' cgroups, restores containers, then cgroups, and updates the checkpoint."""
    loosen(writer, found.cgroups)
    lines: list[Line] = []
    changes: list[RowChange] = []
    for container in found.containers:
        done = await restore_container(client, container)
        lines += done
        fields = frozenset(line.field for line in done if line.status is Status.RESTORED)
        changes.append(RowChange(RowKind.CONTAINER, container.record.id, without_owners(container, fields)))
    # The updates have changed files of containers, and `loosen` those of pods.
    cgroups = tuple(replace(each, state=_state(each.state.book, writer)) for each in found.cgroups)
    written = restore_cgroups(writer, cgroups)
    lines += written
    copies = {cgroup.state.book.id: cgroup.copies for cgroup in cgroups}
    for identity in ledger.books.identities:
        book = ledger.books.record(identity)
        if book is not None:
            unrestored = (each for each in written if each.status is not Status.RESTORED)
            left = {each.field: each.status for each in unrestored if each.target == identity}
            changes.append(RowChange(RowKind.BOOK, identity, kept_book(book, left, copies.get(identity, {}))))
    with closing(CheckpointFile(folder)) as file:
        try:
            file.write(changes)
        except CheckpointError as error:
            reason = f"cannot be updated: {error}"
            lines.append(Line(str(file.path), "", None, None, Status.FAILED, reason))
        else:
            for change in changes:
                if change.kind is RowKind.BOOK:
                    ledger.note_saved(change.id, None)
    return tuple(lines)


def _update_result(line: Line, found: ContainerRecord | None) -> Line:
    if found is None or found.state is Lifecycle.STOPPED:
        return _with(line, Status.LEFT, "the container has ended")
    scalar = line.field.removeprefix(f"{RESOURCES}.")
    now: Value | None
    if scalar in CRI_FIELDS:
        now = getattr(found.booked, scalar)
    else:
        now = found.booked.unified.get(unified_key(line.field))
    if now is not None and line.new is not None and not is_same(line.field, now, line.new):
        return _with(line, Status.FAILED, "the runtime does not change it on a running container")
    return _with(line, Status.RESTORED)


def _write_result(line: Line, result: WriteResult | None, writer: CgroupWriter) -> Line:
    """The result of a write; a file that is there still has its value."""
    if result is None:
        return line
    if result.outcome in (WriteOutcome.WRITTEN, WriteOutcome.UNCHANGED):
        # Something may stand for an empty list.
        return _with(replace(line, new=result.value), Status.RESTORED, line.reason)
    if result.outcome is WriteOutcome.MISSING and not _is_there(line, writer):
        return _with(line, Status.LEFT, "the cgroup is gone")
    return _with(line, Status.FAILED, result.error)


def _is_there(line: Line, writer: CgroupWriter) -> bool:
    with suppress(OSError):
        return bool(writer.look(cgroup_path(line.target), [line.field]))
    return True


def _with(line: Line, status: Status, reason: str = "") -> Line:
    return replace(line, status=status, reason=reason) if line.status is Status.PLANNED else line


def _levels(wanted: Iterable[CgroupValues]) -> list[list[CgroupValues]]:
    """The values by depth, parents first."""
    by_depth: defaultdict[int, list[CgroupValues]] = defaultdict(list)
    for each in wanted:
        by_depth[len(cgroup_path(each.cgroup))].append(each)
    return [by_depth[depth] for depth in sorted(by_depth)]


def _state(book: Book, writer: CgroupWriter) -> CgroupState:
    """A cgroup as it is now; after a reboot, or in another cgroup of its name, nothing of its book counts."""
    path = cgroup_path(book.id)
    present: dict[str, FileText] = {}
    with suppress(OSError):
        present = writer.look(path, with_neighbours(book.entries))
    unreadable: set[str] = set()
    for name in PARAMETERS.keys() & (book.entries.keys() - present.keys()):
        try:
            writer.read(book.id, name)
        except OSError:
            unreadable.add(name)
    # Values of claims with a lease are in the files only.
    valid = restored(still_valid(book, present.values(), book.boot_id), present, writer)
    above: Mapping[str, FileText] = {}
    with suppress(OSError):
        above = writer.look(path[:-1], book.entries.keys() & set(LISTS))
    return CgroupState(valid, present, frozenset(unreadable), above)


def _everything(ledger: Ledger, writer: CgroupWriter, cgroup: str, name: str, online: Path) -> str:
    """All CPUs or memory nodes that a pod may use: those of its cgroup, else of the machine.

    Version 2 leaves the pod's own file empty, and accepts any list in its containers'.
    """
    with suppress(CgroupPathError, OSError):
        book = ledger.books.record(cgroup)
        original = book.originals.get(name) if book is not None else None
        if original is not None and original.text is not None:
            found = writer.decode(name, original.text)
        else:
            found = writer.read(cgroup, name)
        if found:
            return _within_above(ledger, writer, cgroup, name, str(found))
    with suppress(OSError):
        return online.read_text().strip()
    return ""


def _within_above(ledger: Ledger, writer: CgroupWriter, cgroup: str, name: str, members: str) -> str:
    """Cuts a list to what version 1 takes: the cgroups above may have less than when it was read.

    Those with a book get back what the ones above them have.
    """
    path = cgroup_path(cgroup)
    if cgroup_version(writer) == 2:
        return members
    for length in range(1, len(path)):
        above = "/" + "/".join(path[:length])
        book = ledger.books.record(above)
        found = writer.read(above, name) if book is None or name not in book.entries else None
        if found and (common := parse_cpu_list(members) & parse_cpu_list(str(found))):
            members = format_cpu_list(common)
    return members
