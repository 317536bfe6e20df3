"""The records and cgroup values of this node with their checkpoint: loaded at the start, saved meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtimeproxy.ops.background import BackgroundThreads
from runtimeproxy.pods.checkpoint_rows import Kind, Saved
from runtimeproxy.pods.checkpoint_writer import Checkpoint

if TYPE_CHECKING:
    from runtimeproxy.ops.kept_cgroups import KeptCgroups
    from runtimeproxy.pods.recovery import Recovery
    from runtimeproxy.pods.store import PodStore

logger = logging.getLogger(__name__)

LOAD_WAIT_S: Final = 2.0
"""How long held calls wait for the checkpoint; on a disk that hangs the records come from the runtime."""
FOLLOW_INTERVAL_S: Final = 1.0
FOLLOW_LOOKS: Final = 30
"""A predecessor ends within its drain, which is seconds; only long calls without records last longer."""
CLOSE_WAIT_S: Final = 2.0
"""How long the end of the process waits for the last write."""


class LastingRecords:
    """Saves what changes, off the kubelet's path. Used in the event loop's thread.

    Args:
        folder: the state folder.
        store: the records.
        cgroups: the cgroup values that policies wrote.
        recovery: asks the runtime what has changed while the proxy was away.

    Attributes:
        is_passive: whether another process decides, or nobody.
    """

    def __init__(self, folder: Path, store: PodStore, cgroups: KeptCgroups, recovery: Recovery) -> None:
        self._store = store
        self._cgroups = cgroups
        self._recovery = recovery
        self.is_passive: Callable[[], bool] = lambda: False
        self._thread = BackgroundThreads(1, "checkpoint")
        self._loading: asyncio.Task[None] | None = None
        self._flushed_event = 0
        sources = {
            Kind.POD: store.pods.get,
            Kind.CONTAINER: store.containers.get,
            Kind.CGROUP: cgroups.record,
        }
        self._checkpoint = Checkpoint(folder, self._thread, sources, self._all_ids)
        store.tell(self._note)
        cgroups.tell(lambda identity: self._checkpoint.note_from_thread(Kind.CGROUP, identity))

    @property
    def problem(self) -> str:
        """Why the records are not saved just now; empty when they are."""
        return self._checkpoint.problem

    async def load(self) -> None:
        """Takes what the last process has saved; after a bound of time that goes on in the background."""
        self._loading = asyncio.get_running_loop().create_task(self._load())
        await asyncio.wait({self._loading}, timeout=LOAD_WAIT_S)
        if not self._loading.done():
            logger.warning("the checkpoint is still being read; records come from the runtime meanwhile")

    async def merge(self) -> None:
        """Takes what another process has saved since, for ids to which nothing has happened in this one."""
        if await self._checkpoint.flush():
            await self._load()
            self._recovery.compare_soon()

    async def flush(self) -> bool:
        """Saves all changes; returns whether they are on disk now."""
        self._flushed_event = self._store.event
        return await self._checkpoint.flush()

    async def take_back(self) -> None:
        """Another process had all records since the last flush, and is gone: what it has saved counts."""
        self._store.yield_to_others(self._flushed_event)
        await self.merge()

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
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        await self._checkpoint.close(CLOSE_WAIT_S)
        self._thread.shutdown(cancel_futures=True)

    async def _load(self) -> None:
        with self._store.listing() as since:
            saved = await self._checkpoint.load(self._read_late)
            if saved is not None:
                self._take(saved, since)

    def _read_late(self, saved: Saved) -> None:
        """What could not be read at the start; what has happened since counts more."""
        with self._store.listing() as since:
            self._take(saved, since)
        self._recovery.compare_soon()

    def _take(self, saved: Saved, since: int) -> None:
        self._recovery.confirm(self._store.take(saved, since))
        self._cgroups.take(saved.cgroups)
        _tell(saved)

    def _note(self, kind: Kind, identity: str, is_event: bool) -> None:
        # Once a successor decides, what the runtime says is for that one to compare with its records.
        if is_event or not self.is_passive():
            self._checkpoint.note(kind, identity, seen=is_event)

    def _all_ids(self) -> Iterator[tuple[Kind, str]]:
        yield from ((Kind.POD, pod.id) for pod in self._store.pods)
        yield from ((Kind.CONTAINER, container.id) for container in self._store.containers)
        yield from ((Kind.CGROUP, identity) for identity in self._cgroups.identities)


def _tell(saved: Saved) -> None:
    found = {"pods": len(saved.pods), "containers": len(saved.containers), "cgroups": len(saved.cgroups)}
    logger.info("checkpoint read", extra=found)
    if saved.unreadable:
        logger.warning("rows of the checkpoint cannot be read", extra={"rows": saved.unreadable})
