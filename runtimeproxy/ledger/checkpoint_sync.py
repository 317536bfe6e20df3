"""Synchronises the records and cgroup values of this node with the checkpoint."""

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
from runtimeproxy.pods.checkpoint.writer import CheckpointWriter
from runtimeproxy.pods.records import CgroupRecord

if TYPE_CHECKING:
    from runtimeproxy.ledger.managed import ManagedCgroups
    from runtimeproxy.pods.recovery import Recovery
    from runtimeproxy.pods.store import PodStore

logger = logging.getLogger(__name__)

LOAD_WAIT_S: Final = 2.0
"""How long calls wait for the checkpoint. If the disk hangs, the records come from the runtime."""
FOLLOW_INTERVAL_S: Final = 1.0
FOLLOW_LOOKS: Final = 30
"""A predecessor ends within its drain, which is seconds; only long calls without records last longer."""
CLOSE_WAIT_S: Final = 2.0
"""How long the end of the process waits for the last write."""


class _Moment(NamedTuple):
    """The time from which on another process decided; by default there was none."""

    event: int = 0
    """Sequence number of the store's last event before it."""
    at_s: float | None = None
    """By the clock of the cgroups."""


class CheckpointSync:
    """Loads records and cgroup values from the checkpoint, and has all their changes written to it.

    Used in the event loop's thread.

    Args:
        folder: The state folder.
        store: The records.
        cgroups: The cgroup values that policies wrote.
        recovery: Compares the loaded records with the runtime.
        thread: One worker thread of its own: a disk may hang.
        is_standby: Whether the bypass is on, or another process decides on calls.
    """

    def __init__(
        self,
        folder: Path,
        store: PodStore,
        cgroups: ManagedCgroups,
        recovery: Recovery,
        thread: Executor,
        is_standby: Callable[[], bool] = lambda: False,
    ) -> None:
        self._folder = folder
        self._store = store
        self._cgroups = cgroups
        self._recovery = recovery
        self._is_standby = is_standby
        self._loading: set[asyncio.Task[None]] = set()
        self._flushed = _Moment()
        sources = {
            Kind.POD: store.pods.get,
            Kind.CONTAINER: store.containers.get,
            Kind.CGROUP: cgroups.record,
        }
        self._writer = CheckpointWriter(folder, thread, sources, self._all_ids)
        store.on_change = self._on_change
        cgroups.on_change = partial(self._writer.note_from_thread, Kind.CGROUP)

    @property
    def problem(self) -> str:
        """Why the records cannot be saved just now; empty if they can."""
        return self._writer.problem

    async def load(self) -> None:
        """Loads the checkpoint; after `LOAD_WAIT_S` that goes on in the background."""
        await self._wait_a_while(self._load(_Moment()))

    async def merge(self) -> None:
        """Loads what another process has saved meanwhile, but for ids with an event in this process."""
        await self._merge(_Moment())

    async def flush(self) -> bool:
        """Saves all changes; returns whether they are on disk now."""
        self._flushed = _Moment(self._store.event, self._cgroups.now_s())
        return await self._writer.flush()

    async def take_back(self) -> None:
        """Loads the records of a process that decided since the last `flush` and has ended.

        They take precedence over what this process knew then. After `LOAD_WAIT_S` the loading goes on in the
        background.
        """
        await self._wait_a_while(self._merge(self._flushed))

    async def run(self) -> None:
        """Saves changes until it is cancelled."""
        await self._writer.run()

    async def follow(self) -> None:
        """Loads what a predecessor still saves while it ends."""
        for _ in range(FOLLOW_LOOKS):
            await asyncio.sleep(FOLLOW_INTERVAL_S)
            if await self._writer.changed_by_others():
                await self.merge()

    async def close(self) -> None:
        """Saves the rest; gives up after `CLOSE_WAIT_S`."""
        for task in self._loading:
            task.cancel()
        await asyncio.gather(*self._loading, return_exceptions=True)
        await self._writer.close(CLOSE_WAIT_S)

    async def _wait_a_while(self, loading: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(loading)
        self._loading.add(task)
        task.add_done_callback(self._on_loaded)
        await asyncio.wait({task}, timeout=LOAD_WAIT_S)
        if not task.done():
            logger.warning("the checkpoint is still being read; records come from the runtime meanwhile")

    def _on_loaded(self, task: asyncio.Task[None]) -> None:
        self._loading.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # A bug costs the saved records, not the daemon.
            logger.error(
                "the checkpoint could not be loaded", exc_info=error, extra={"folder": str(self._folder)}
            )

    async def _merge(self, outdated: _Moment) -> None:
        if await self._writer.flush():
            await self._load(outdated)
            self._recovery.compare_soon()

    async def _load(self, outdated: _Moment) -> None:
        with self._store.listing() as since:
            saved = await self._writer.load(partial(self._load_late, outdated))
            if saved is not None:
                self._take(saved, since, outdated)

    def _load_late(self, outdated: _Moment, saved: Saved) -> None:
        with self._store.listing() as since:
            self._take(saved, since, outdated)
        self._recovery.compare_soon()

    def _take(self, saved: Saved, since: int, outdated: _Moment) -> None:
        self._recovery.confirm(self._store.load(saved, since, outdated=outdated.event))
        self._cgroups.load(_without_servers(saved), outdated_s=outdated.at_s)
        found = {"pods": len(saved.pods), "containers": len(saved.containers), "cgroups": len(saved.cgroups)}
        logger.info("checkpoint read", extra=found)
        if saved.unreadable:
            about = {"rows": saved.unreadable, "folder": str(self._folder)}
            logger.warning("rows of the checkpoint cannot be read", extra=about)

    def _on_change(self, kind: Kind, identity: str, is_event: bool) -> None:
        # While a successor decides, it compares the runtime's reports with its own records.
        if is_event or not self._is_standby():
            self._writer.note(kind, identity, is_event)

    def _all_ids(self) -> Iterator[tuple[Kind, str]]:
        yield from ((Kind.POD, pod.id) for pod in self._store.pods)
        yield from ((Kind.CONTAINER, container.id) for container in self._store.containers)
        yield from ((Kind.CGROUP, identity) for identity in self._cgroups.identities)


def _without_servers(saved: Saved) -> Iterator[CgroupRecord]:
    """The cgroups of a checkpoint, where values that hook servers own are not reapplied.

    Version 0.1 saved such values with `reapply`. The owners of the pods tell them apart: a server is named by
    its file, and the name of a policy has no dot.
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
