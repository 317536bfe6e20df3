"""The records and cgroup values of this node with their checkpoint: loaded at the start, saved meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from runtimeproxy.cgroups import CgroupPathError, cgroup_path
from runtimeproxy.hooks.fields import CGROUP
from runtimeproxy.hooks.remote.registrations import SUFFIX
from runtimeproxy.pods.checkpoint.codec import Kind, Saved
from runtimeproxy.pods.checkpoint.writer import Checkpoint
from runtimeproxy.pods.records import CgroupRecord

if TYPE_CHECKING:
    from runtimeproxy.ledger.managed import ManagedCgroups
    from runtimeproxy.pods.recovery import Recovery
    from runtimeproxy.pods.store import PodStore

logger = logging.getLogger(__name__)

LOAD_WAIT_S: Final = 2.0
"""How long held calls and clients wait for the checkpoint; on a disk that hangs the runtime tells all."""
FOLLOW_INTERVAL_S: Final = 1.0
FOLLOW_LOOKS: Final = 30
"""A predecessor ends within its drain, which is seconds; only long calls without records last longer."""
CLOSE_WAIT_S: Final = 2.0
"""How long the end of the process waits for the last write."""


class _Moment(NamedTuple):
    """From when on another process decided; by default none did."""

    event: int = 0
    """Sequence number of the last event that it knew of."""
    at_s: float | None = None
    """By the clock of the cgroups."""


_NOBODY: Final = _Moment()


class CheckpointSync:
    """Saves what changes, off the kubelet's path. Used in the event loop's thread.

    Args:
        folder: the state folder.
        store: the records.
        cgroups: the cgroup values that policies wrote.
        recovery: asks the runtime what has changed while the proxy was away.

    Attributes:
        is_passive: whether another process decides, or nobody.
    """

    def __init__(
        self,
        folder: Path,
        store: PodStore,
        cgroups: ManagedCgroups,
        recovery: Recovery,
        thread: Executor,
    ) -> None:
        self._folder = folder
        self._store = store
        self._cgroups = cgroups
        self._recovery = recovery
        self.is_passive: Callable[[], bool] = lambda: False
        self._thread = thread
        self._loading: set[asyncio.Task[None]] = set()
        self._flushed = _NOBODY
        sources = {
            Kind.POD: store.pods.get,
            Kind.CONTAINER: store.containers.get,
            Kind.CGROUP: cgroups.record,
        }
        self._checkpoint = Checkpoint(folder, self._thread, sources, self._all_ids)
        store.tell(self._note)
        cgroups.on_change = partial(self._checkpoint.note_from_thread, Kind.CGROUP)

    @property
    def problem(self) -> str:
        """Why the records are not saved just now; empty when they are."""
        return self._checkpoint.problem

    async def load(self) -> None:
        """Takes what the last process has saved; after a bound of time that goes on in the background."""
        await self._for_a_while(self._load())

    async def merge(self) -> None:
        """Takes what another process has saved since, for ids to which nothing has happened in this one."""
        await self._merge(_NOBODY)

    async def flush(self) -> bool:
        """Saves all changes; returns whether they are on disk now."""
        self._flushed = _Moment(self._store.event, self._cgroups.now_s())
        return await self._checkpoint.flush()

    async def take_back(self) -> None:
        """Takes what a process has saved that decided since the last `flush`, and is gone.

        It counts more than what this process knew then. After a bound of time that goes on in the background.
        """
        await self._for_a_while(self._merge(self._flushed))

    async def run(self) -> None:
        """Saves what changes, until it is cancelled."""
        await self._checkpoint.run()

    async def follow(self) -> None:
        """Takes what a predecessor still saves while it ends."""
        for _ in range(FOLLOW_LOOKS):
            await asyncio.sleep(FOLLOW_INTERVAL_S)
            if await self._checkpoint.changed_by_others():
                await self.merge()

    async def close(self) -> None:
        """Saves the rest, within a bound of time."""
        for task in self._loading:
            task.cancel()
        await asyncio.gather(*self._loading, return_exceptions=True)
        await self._checkpoint.close(CLOSE_WAIT_S)

    async def _for_a_while(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._loading.add(task)
        task.add_done_callback(self._loaded)
        await asyncio.wait({task}, timeout=LOAD_WAIT_S)
        if not task.done():
            logger.warning("the checkpoint is still being read; records come from the runtime meanwhile")

    def _loaded(self, task: asyncio.Task[None]) -> None:
        self._loading.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # A bug costs what is saved, not the daemon.
            logger.error(
                "the checkpoint could not be taken", exc_info=error, extra={"folder": str(self._folder)}
            )

    async def _merge(self, outdated: _Moment) -> None:
        if await self._checkpoint.flush():
            await self._load(outdated)
            self._recovery.compare_soon()

    async def _load(self, outdated: _Moment = _NOBODY) -> None:
        with self._store.listing() as since:
            saved = await self._checkpoint.load(partial(self._read_late, outdated))
            if saved is not None:
                self._take(saved, since, outdated)

    def _read_late(self, outdated: _Moment, saved: Saved) -> None:
        """What could not be read at first; what has happened since counts more."""
        with self._store.listing() as since:
            self._take(saved, since, outdated)
        self._recovery.compare_soon()

    def _take(self, saved: Saved, since: int, outdated: _Moment) -> None:
        self._recovery.confirm(self._store.take(saved, since, outdated=outdated.event))
        self._cgroups.load(_without_servers(saved), outdated_s=outdated.at_s)
        _tell(saved, self._folder)

    def _note(self, kind: Kind, identity: str, is_event: bool) -> None:
        # Once a successor decides, what the runtime says is for that one to compare with its records.
        if is_event or not self.is_passive():
            self._checkpoint.note(kind, identity, seen=is_event)

    def _all_ids(self) -> Iterator[tuple[Kind, str]]:
        yield from ((Kind.POD, pod.id) for pod in self._store.pods)
        yield from ((Kind.CONTAINER, container.id) for container in self._store.containers)
        yield from ((Kind.CGROUP, identity) for identity in self._cgroups.identities)


def _without_servers(saved: Saved) -> Iterator[CgroupRecord]:
    """Yield the cgroups; what hook servers own in one is not kept there.

    Version 0.1 saved such values as kept. The pods' owners tell them apart: a server is named by its file,
    and no policy has a dot in its name.
    """
    owned: dict[tuple[str, ...], set[str]] = {}
    for pod in saved.pods:
        names = {field for field, owner in pod.owners.items() if owner.endswith(SUFFIX)}
        if names:
            with suppress(CgroupPathError):
                owned.setdefault(cgroup_path(pod.cgroup_parent), set()).update(names)
    for record in saved.cgroups:
        names = set()
        with suppress(CgroupPathError):
            names = owned.get(cgroup_path(record.id), names)
        values = {
            name: replace(value, reapply=value.reapply and f"{CGROUP}[{name}]" not in names)
            for name, value in record.values.items()
        }
        yield CgroupRecord(record.id, values)


def _tell(saved: Saved, folder: Path) -> None:
    found = {"pods": len(saved.pods), "containers": len(saved.containers), "cgroups": len(saved.cgroups)}
    logger.info("checkpoint read", extra=found)
    if saved.unreadable:
        logger.warning(
            "rows of the checkpoint cannot be read", extra={"rows": saved.unreadable, "folder": str(folder)}
        )
