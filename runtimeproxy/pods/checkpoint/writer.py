"""Keeps the checkpoint up to date, off the kubelet's path: changes are noted, and written in a thread."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.pods.checkpoint.codec import Change, Kind, Rank, Saved, rank_of
from runtimeproxy.pods.checkpoint.file import CheckpointDisk
from runtimeproxy.pods.records import Record

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

MOST_IN_A_BATCH: Final = 500
"""Bounds how long the loop is busy with gathering records."""

MOST_NOTED: Final = 20_000
"""More than a node's records many times over: beyond it the whole file is due, not single ids."""

GATHER_S: Final = 0.02
"""How long changes are gathered: what a kill may cost, against a thread that competes with each call."""

IDLE_GATHER_S: Final = 5.0
"""The same for what the runtime reports, and would report again: there is no hurry to save that."""

FIRST_PAUSE_S: Final = 1.0
"""Pause after the first failed attempt; it doubles."""

LONGEST_PAUSE_S: Final = 30.0
"""Longest pause between failed attempts: a disk is full for minutes, not for seconds."""

LOG_INTERVAL_S: Final = 600.0
"""How often a failure that goes on is logged."""

_DISK_ERRORS: Final = (RuntimeProxyError, ImportError)
"""What goes wrong with the file, a Python without SQLite included."""

ResultT = TypeVar("ResultT")


class Checkpoint:
    """The records' checkpoint. Used in the event loop's thread, but for `note_from_thread`.

    Attributes:
        problem: Why the records are not saved just now; empty when they are.
    """

    def __init__(
        self,
        folder: Path,
        executor: Executor,
        sources: Mapping[Kind, Callable[[str], Record | None]],
        everything: Callable[[], Iterable[tuple[Kind, str]]],
    ) -> None:
        """Prepares the checkpoint.

        Args:
            folder: The state folder.
            executor: One worker thread that nobody else needs: a disk may hang.
            sources: What gives the record of an id, by kind; None if there is none any more.
            everything: Gives the ids of all records.
        """
        self._disk = CheckpointDisk(folder)
        self._executor = executor
        self._sources = sources
        self._everything = everything
        self._noted: dict[tuple[Kind, str], bool] = {}
        self._all_due = False
        self._on_read: Callable[[Saved], None] | None = None
        self._is_unread = False
        self._due = asyncio.Event()
        self._is_urgent = asyncio.Event()
        self._writing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._told_s = 0.0
        self.problem = ""

    def note(self, kind: Kind, identity: str, *, seen: bool) -> None:
        """Something about this id is to be written.

        Args:
            kind: What it is.
            identity: Its id.
            seen: Whether a call of the kubelet is the reason; what the runtime says never overrides that.
        """
        key = kind, identity
        self._noted[key] = seen or self._noted.get(key, False)
        self._due.set()
        if seen:
            self._is_urgent.set()

    def note_from_thread(self, kind: Kind, identity: str) -> None:
        """As `note`, in any thread."""
        try:
            self._loop.call_soon_threadsafe(self._note_seen, kind, identity)
        except RuntimeError:
            # The loop is closed: nothing is written any more.
            return

    async def load(self, read_late: Callable[[Saved], None]) -> Saved | None:
        """What the last process has saved.

        A file that is damaged, somebody else's or newer is set aside. One that cannot be read just now is
        read later, and nothing is written before that: what is in it is known to nobody else.

        Args:
            read_late: gets what is in it then.

        Returns:
            None if it cannot be read just now.
        """
        async with self._writing:
            try:
                return await self._in_thread(self._disk.load)
            except _DISK_ERRORS as error:
                self._on_read = read_late
                self._is_unread = True
                self._due.set()
                self._failed(error)
                return None

    async def changed_by_others(self) -> bool:
        """Whether another process has written to the file since it was loaded, or since this was asked."""
        async with self._writing:
            return await self._in_thread(self._disk.changed_by_others)

    async def run(self) -> None:
        """Writes what is noted, batch after batch, until it is cancelled."""
        pause_s = FIRST_PAUSE_S
        while True:
            await self._due.wait()
            await self._gather()
            async with self._writing:
                is_written = await self._write_batch()
            if is_written:
                pause_s = FIRST_PAUSE_S
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def flush(self) -> bool:
        """Writes all that is noted; returns whether it is on disk now."""
        async with self._writing:
            while self._noted or self._all_due or self._is_unread:
                if not await self._write_batch() and not await self._write_batch():
                    return False
        return True

    async def close(self, timeout_s: float) -> None:
        """Writes the rest and closes the file; gives up after `timeout_s`, for a disk may hang."""
        try:
            async with asyncio.timeout(timeout_s):
                if not await self.flush():
                    logger.error("the last changes of the records are not saved: %s", self.problem)
                await self._in_thread(self._disk.close)
        except TimeoutError:
            logger.error("the last changes of the records are not saved: the disk does not answer")  # noqa: TRY400

    async def _gather(self) -> None:
        """Lets more changes come, so that they are written together."""
        with suppress(TimeoutError):
            async with asyncio.timeout(IDLE_GATHER_S):
                await self._is_urgent.wait()
        await asyncio.sleep(GATHER_S)

    def _note_seen(self, kind: Kind, identity: str) -> None:
        self.note(kind, identity, seen=True)

    async def _write_batch(self) -> bool:
        """Writes one batch, or everything if that is due; what could not be written stays noted."""
        if len(self._noted) > MOST_NOTED:
            self._all_due = True
            self._noted.clear()
        if self._is_unread and not await self._read_late():
            return False
        is_rewrite = self._all_due
        batch, changes = self._taken(is_rewrite=is_rewrite)
        write = self._disk.rewrite if is_rewrite else self._disk.write
        try:
            is_renewed = await self._in_thread(lambda: write(changes))
        except BaseException as error:
            self._put_back(batch, is_rewrite=is_rewrite)
            if not isinstance(error, _DISK_ERRORS):
                raise
            self._failed(error)
            return False
        if is_renewed:
            self._put_back(batch, is_rewrite=True)
            return False
        self._succeeded()
        return True

    async def _read_late(self) -> bool:
        """Whether the file that could not be read at the start is read now."""
        try:
            saved = await self._in_thread(self._disk.load)
        except _DISK_ERRORS as error:
            self._failed(error)
            return False
        self._is_unread = False
        if self._on_read is not None:
            self._on_read(self._without_removed(saved))
        return True

    def _without_removed(self, saved: Saved) -> Saved:
        """Without what has gone meanwhile, and is in the file only because that could not be written."""
        changes = (self._change(*key, seen=True) for key in self._noted)
        gone = {(change.kind, change.id) for change in changes if change.record is None}
        return replace(
            saved,
            pods=tuple(pod for pod in saved.pods if (Kind.POD, pod.id) not in gone),
            containers=tuple(found for found in saved.containers if (Kind.CONTAINER, found.id) not in gone),
            cgroups=tuple(cgroup for cgroup in saved.cgroups if (Kind.CGROUP, cgroup.id) not in gone),
        )

    def _taken(self, *, is_rewrite: bool) -> tuple[dict[tuple[Kind, str], bool], list[Change]]:
        if is_rewrite:
            batch = dict.fromkeys(self._everything(), False)
            self._noted.clear()
            self._all_due = False
        else:
            keys = list(self._noted)[:MOST_IN_A_BATCH]
            batch = {key: self._noted.pop(key) for key in keys}
        if not self._noted:
            self._due.clear()
            self._is_urgent.clear()
        return batch, [self._change(*key, seen=seen) for key, seen in batch.items()]

    def _put_back(self, batch: Mapping[tuple[Kind, str], bool], *, is_rewrite: bool) -> None:
        self._all_due = self._all_due or is_rewrite
        for key, seen in batch.items():
            self._noted[key] = seen or self._noted.get(key, False)
        self._due.set()
        if any(self._noted.values()):
            self._is_urgent.set()

    def _change(self, kind: Kind, identity: str, *, seen: bool) -> Change:
        record = self._sources[kind](identity)
        if record is not None and record.id != identity:
            # A source may take an id that is gone for the beginning of another one.
            record = None
        return Change(kind, identity, record, Rank.SEEN if seen or record is None else rank_of(record))

    def _failed(self, error: Exception) -> None:
        self.problem = str(error)
        now_s = time.monotonic()
        if not self._told_s or now_s - self._told_s >= LOG_INTERVAL_S:
            self._told_s = now_s
            logger.warning("the records cannot be saved, it is tried again: %s", error)

    def _succeeded(self) -> None:
        if self.problem:
            logger.info("the records are saved again")
        self.problem = ""
        self._told_s = 0.0

    async def _in_thread(self, work: Callable[[], ResultT]) -> ResultT:
        return await self._loop.run_in_executor(self._executor, work)
