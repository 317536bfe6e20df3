"""The command `restore`: from the checkpoint to a node as the kubelet wants it, and a table of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtimeproxy.cgroups import CgroupWriter
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.pods.checkpoint import CheckpointError, CheckpointFile
from runtimeproxy.pods.checkpoint_rows import Change, Kind, Saved
from runtimeproxy.pods.runtime_client import ClientSettings, GrpcRuntimeClient
from runtimeproxy.restore.apply import loosen, observed, restore_cgroups, restore_container
from runtimeproxy.restore.plan import (
    CgroupPlan,
    ContainerPlan,
    Line,
    Outcome,
    Plan,
    plan,
    without_owners,
    without_values,
)
from runtimeproxy.service.control_signals import is_served

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings

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
