"""Keeps the checkpoint up to date with the records and books of this node.

`CheckpointSync` loads the checkpoint and notes changes in the loop's thread; `CheckpointWriter` has them
written by a thread of its own, for a disk may hang.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from runtimeproxy.cgroups.paths import CgroupPathError, cgroup_path
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.hooks.fields import CGROUP
from runtimeproxy.pods.checkpoint.codec import Rank, RowChange, RowKind, Saved, rank_of
from runtimeproxy.pods.records import Book, CgroupRecord, Record

if TYPE_CHECKING:
    from runtimeproxy.hooks.claimants import Claimant
    from runtimeproxy.ledger.ledger import Ledger
    from runtimeproxy.pods.checkpoint.file import CheckpointFile
    from runtimeproxy.pods.inventory import Inventory

logger = logging.getLogger(__name__)

LOAD_WAIT_S: Final = 2.0
"""How long calls wait for the checkpoint. If the disk hangs, the records come from the runtime."""
FOLLOW_INTERVAL_S: Final = 1.0
FOLLOW_LOOKS: Final = 30
"""A predecessor ends within its drain, which is seconds; only long calls without records last longer."""
CLOSE_WAIT_S: Final = 2.0
"""How long the end of the process waits for the last write."""

MOST_IN_A_BATCH: Final = 500
"""Bounds how long the loop is busy with gathering records."""

MOST_NOTED: Final = 20_000
"""Many times the records of a node; when more ids are noted, the whole file is written instead."""

GATHER_S: Final = 0.02
"""How long changes are gathered: a kill loses these, but the thread competes with each call."""

BOOKS_GATHER_S: Final = 0.2
"""The same for books that follow others: what a storm has written is in the journal."""

IDLE_GATHER_S: Final = 5.0
"""The same for changes that the runtime has reported, and would report again."""

FIRST_PAUSE_S: Final = 1.0
"""Pause after the first failed attempt; it doubles."""

LONGEST_PAUSE_S: Final = 30.0
"""Longest pause between failed attempts: a disk is full for minutes, not for seconds."""

LOOK_INTERVAL_S: Final = 10.0
"""How often a file that is not written to is checked: others may have removed, cut or overwritten it."""

LOG_INTERVAL_S: Final = 600.0
"""Interval between two log lines about a failure that goes on."""

_DISK_ERRORS: Final = (RuntimeProxyError, ImportError)
"""Failures of the file, including a Python without SQLite."""

_Key = tuple[RowKind, str]
ResultT = TypeVar("ResultT")


class _Moment(NamedTuple):
    """The time from which on another process decided; by default there was none."""

    event: int = 0
    """Sequence number of the store's last event before it."""
    at_s: float | None = None
    """By the clock of the cgroups."""


class CheckpointSync:
    """Loads records and books from the checkpoint, and has all their changes written to it.

    Used in the event loop's thread.

    Args:
        thread: One worker thread of its own: a disk may hang.
        is_standby: Whether the bypass is on, or another process decides on calls.

    Attributes:
        writer: Saves the changes.
        on_loaded: Called when books were loaded, which may be long after `load`.
        unreadable: Rows of the file that could not be read, when it was last read.
    """

    def __init__(
        self,
        folder: Path,
        inventory: Inventory,
        cgroups: Ledger,
        thread: Executor,
        is_standby: Callable[[], bool] = lambda: False,
    ) -> None:
        self._folder = folder
        self._inventory = inventory
        self._store = store = inventory.store
        self._cgroups = cgroups
        self._loading: set[asyncio.Task[None]] = set()
        self._flushed = _Moment()
        self.on_loaded: Callable[[], None] = lambda: None
        self.unreadable = 0
        sources = {
            RowKind.POD: store.pods.get,
            RowKind.CONTAINER: store.containers.get,
            RowKind.BOOK: cgroups.books.record,
        }
        self.writer = CheckpointWriter(
            folder, thread, sources, self._all_ids, cgroups.note_saved, is_standby=is_standby
        )
        store.on_change = self.writer.note
        cgroups.books.on_change = partial(self.writer.note_from_thread, RowKind.BOOK)

    async def load(self) -> None:
        await self._wait_for_load(self._load(_Moment()))

    async def merge(self) -> None:
        # Records of ids with events in this process take precedence.
        await self._merge(_Moment())

    async def flush(self) -> bool:
        """Saves all changes; returns whether they are on disk now."""
        self._flushed = _Moment(self._store.event, self._cgroups.books.now_s())
        return await self.writer.flush()

    async def take_back(self) -> None:
        """Loads the records of a process that decided since the last `flush` and has ended.

        They take precedence over the records of this process from before. After `LOAD_WAIT_S` the
        loading goes on in the background.
        """
        await self._wait_for_load(self._merge(self._flushed))

    async def follow(self) -> None:
        # The predecessor still saves records while it ends.
        for _ in range(FOLLOW_LOOKS):
            await asyncio.sleep(FOLLOW_INTERVAL_S)
            if await self.writer.changed_by_others():
                await self.merge()

    async def close(self) -> None:
        """Saves the rest; gives up after `CLOSE_WAIT_S`."""
        for task in self._loading:
            task.cancel()
        await asyncio.gather(*self._loading, return_exceptions=True)
        await self.writer.close(CLOSE_WAIT_S)

    async def _wait_for_load(self, loading: Coroutine[Any, Any, None]) -> None:
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
        if await self.writer.flush():
            await self._load(outdated)
            self._inventory.compare_soon()

    async def _load(self, outdated: _Moment) -> None:
        with self._store.listing() as since:
            saved = await self.writer.load(partial(self._load_late, outdated))
            if saved is not None:
                self._merge_saved(saved, since, outdated)
        # What a process that was killed had not saved yet.
        self._cgroups.books.add_noted(await self.writer.run_in_thread(self._cgroups.read_journal))
        self.on_loaded()

    def _load_late(self, outdated: _Moment, saved: Saved) -> None:
        with self._store.listing() as since:
            self._merge_saved(saved, since, outdated)
        self.on_loaded()
        self._inventory.compare_soon()

    def _merge_saved(self, saved: Saved, since: int, outdated: _Moment) -> None:
        self._inventory.load(saved, since, outdated=outdated.event)
        self._cgroups.books.take_over(with_owners(saved))
        self._cgroups.books.load(saved.books, outdated_s=outdated.at_s)
        books = len(saved.books) + len(saved.cgroups)
        found = {"pods": len(saved.pods), "containers": len(saved.containers), "cgroups": books}
        logger.info("checkpoint read", extra=found)
        self.unreadable = saved.unreadable
        if saved.unreadable:
            about = {"rows": saved.unreadable, "folder": str(self._folder)}
            logger.warning("rows of the checkpoint cannot be read", extra=about)

    def _all_ids(self) -> Iterator[tuple[RowKind, str]]:
        yield from ((RowKind.POD, pod.id) for pod in self._store.pods)
        yield from ((RowKind.CONTAINER, container.id) for container in self._store.containers)
        yield from ((RowKind.BOOK, identity) for identity in self._cgroups.books.identities)


def with_owners(saved: Saved) -> Iterator[tuple[CgroupRecord, Mapping[str, Claimant]]]:
    """What version 0.1 has written, each cgroup with the owners of its values, by parameter.

    Its records of pods have them.
    """
    known: dict[tuple[str, ...], dict[str, Claimant]] = {}
    for pod in saved.pods:
        owner_of = {
            field.removeprefix(f"{CGROUP}[").removesuffix("]"): owners[0]
            for field, owners in pod.owners.items()
            if field.startswith(f"{CGROUP}[")
        }
        with suppress(CgroupPathError):
            known.setdefault(cgroup_path(pod.cgroup_parent), {}).update(owner_of)
    for record in saved.cgroups:
        with suppress(CgroupPathError):
            yield record, known.get(cgroup_path(record.id), {})


class CheckpointWriter:
    """Keeps the checkpoint up to date. Used in the event loop's thread, but for `note_from_thread`.

    Args:
        thread: One worker thread of its own: a disk may hang.
        sources: The record of an id, by kind; None if there is none any more.
        on_saved: Called in the worker thread with the id of each book that is on disk, and the book.
        is_standby: Whether another process looks after the file.

    Attributes:
        problem: Why the records cannot be saved just now; empty if they can.
    """

    def __init__(
        self,
        folder: Path,
        thread: Executor,
        sources: Mapping[RowKind, Callable[[str], Record | None]],
        everything: Callable[[], Iterable[_Key]],
        on_saved: Callable[[str, Book | None], None] | None = None,
        *,
        is_standby: Callable[[], bool] = lambda: False,
    ) -> None:
        self._on_saved = on_saved
        self._is_standby = is_standby
        self._folder = folder
        self._file: CheckpointFile | None = None
        self._thread = thread
        self._sources = sources
        self._everything = everything
        self._noted: dict[_Key, bool] = {}
        self._lock = Lock()
        # Noted in other threads since the last batch.
        self._from_threads: dict[_Key, bool] = {}
        # When a batch of nothing but books may follow another one, by the loop's clock.
        self._books_due_s = 0.0
        self._all_due = False
        self._on_read: Callable[[Saved], None] | None = None
        self._due = asyncio.Event()
        self._is_urgent = asyncio.Event()
        self._writing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._logged_s = 0.0
        self.problem = ""

    @property
    def aside(self) -> str:
        # Empty if no unusable file was set aside.
        return "" if self._file is None else self._file.aside

    @property
    def set_aside(self) -> int:
        return 0 if self._file is None else self._file.set_aside

    @property
    def lost(self) -> int:
        # Removed or replaced while it was open here.
        return 0 if self._file is None else self._file.lost

    def note(self, kind: RowKind, identity: str, seen: bool) -> None:
        """Notes a changed id.

        `seen`: whether a call of the kubelet is the cause; a report of the runtime never overrides that.
        """
        if not seen and self._is_standby():
            return  # a successor that decides compares the runtime's reports with its own records
        key = kind, identity
        self._noted[key] = seen or self._noted.get(key, False)
        self._due.set()
        if seen:
            self._is_urgent.set()

    def note_from_thread(self, kind: RowKind, identity: str) -> None:
        """Notes a changed id in any thread, as caused by a call; wakes the loop once for each batch."""
        with self._lock:
            is_first = not self._from_threads
            self._from_threads[kind, identity] = True
        if is_first:
            with suppress(RuntimeError):  # the loop is closed, so nothing is written any more
                self._loop.call_soon_threadsafe(self._on_noted_in_thread)

    def _on_noted_in_thread(self) -> None:
        if self._from_threads:
            self._due.set()
            wait_s = self._books_due_s - self._loop.time()
            if wait_s > 0:
                self._loop.call_later(wait_s, self._on_noted_in_thread)
            else:
                self._is_urgent.set()

    def _take_from_threads(self) -> None:
        with self._lock:
            noted, self._from_threads = self._from_threads, {}
        self._noted |= noted

    async def load(self, on_late: Callable[[Saved], None]) -> Saved | None:
        """The records that the last process has saved.

        A file that is damaged, foreign or newer is set aside. One that cannot be read just now is read later,
        and nothing is written before that: no other copy of its content exists.

        Args:
            on_late: Called with the content when it has been read later.

        Returns:
            None if the file cannot be read just now.
        """
        async with self._writing:
            try:
                return await self._load_file()
            except _DISK_ERRORS as error:
                self._on_read = on_late
                self._due.set()
                self._log_failure(error)
                return None

    async def _load_file(self) -> Saved:
        before = self.set_aside
        try:
            return await self._in_thread(lambda file: file.load())
        finally:
            if self.set_aside != before:
                # The new file has none of the records that this process has saved before.
                self._all_due = True
                self._due.set()

    async def changed_by_others(self) -> bool:
        # Another process has written to the file since `load`, or since the last call of this.
        async with self._writing:
            return await self._in_thread(lambda file: file.changed_by_others())

    async def run(self) -> None:
        """Writes noted changes, batch after batch, until it is cancelled."""
        pause_s = FIRST_PAUSE_S
        while True:
            await self._wait_until_due()
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE_GATHER_S):
                    await self._is_urgent.wait()
            await asyncio.sleep(GATHER_S)
            async with self._writing:
                is_written = await self._write_batch()
            if is_written:
                pause_s = FIRST_PAUSE_S
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _wait_until_due(self) -> None:
        # The file is checked meanwhile.
        while not self._due.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_INTERVAL_S):
                    await self._due.wait()
                    return
            if not self._is_standby():
                await self._look()

    async def _look(self) -> None:
        async with self._writing:
            with suppress(*_DISK_ERRORS):
                if await self._in_thread(lambda file: file.is_harmed(after_writes=True)):
                    self._all_due = True
                    self._due.set()

    async def flush(self) -> bool:
        """Writes all noted changes; returns whether they are on disk now."""
        async with self._writing:
            while self._noted or self._from_threads or self._all_due or self._on_read is not None:
                # Twice: the first attempt may find that the file is a new one.
                if not await self._write_batch() and not await self._write_batch():
                    return False
        return True

    async def close(self, timeout_s: float) -> None:
        # A disk may hang.
        try:
            async with asyncio.timeout(timeout_s):
                if not await self.flush():
                    logger.error("the last changes of the records are not saved: %s", self.problem)
                if self._file is not None:
                    await self._in_thread(lambda file: file.close())
        except TimeoutError:
            logger.error("the last changes of the records are not saved: the disk does not answer")  # noqa: TRY400

    async def _write_batch(self) -> bool:
        """Writes one batch, or everything if that is due; changes that could not be written stay noted."""
        self._take_from_threads()
        if len(self._noted) > MOST_NOTED:
            self._all_due = True
            self._noted = self._noted_books()
        if self._on_read is not None and not await self._read_late(self._on_read):
            return False
        everything = self._all_due
        batch = self._take_batch()
        if all(kind is RowKind.BOOK for kind, _ in batch):
            self._books_due_s = self._loop.time() + BOOKS_GATHER_S
        changes = [self._change(*key, seen=seen) for key, seen in batch.items()]
        try:
            is_new = await self._in_thread(partial(self._write, changes, everything=everything))
        except BaseException as error:
            self._put_back(batch, everything=everything)
            if not isinstance(error, _DISK_ERRORS):
                raise
            self._log_failure(error)
            return False
        if is_new:
            self._put_back(batch, everything=True)
            return False
        if self.problem:
            logger.info("the records are saved again")
        self.problem = ""
        self._logged_s = 0.0
        return True

    def _write(self, changes: Sequence[RowChange], file: CheckpointFile, *, everything: bool) -> bool:
        is_new = file.write(changes, everything=everything)
        if self._on_saved is not None and not is_new:
            for change in changes:
                if change.kind is RowKind.BOOK:
                    self._on_saved(change.id, change.record if isinstance(change.record, Book) else None)
        return is_new

    async def _read_late(self, on_read: Callable[[Saved], None]) -> bool:
        """Reads the file that could not be read at the start; returns whether that succeeded."""
        try:
            saved = await self._load_file()
        except _DISK_ERRORS as error:
            self._log_failure(error)
            return False
        self._on_read = None
        # Removed meanwhile, and in the file only because the removal could not be written.
        gone = {key for key in self._noted if self._change(*key, seen=True).record is None}
        on_read(
            replace(
                saved,
                pods=tuple(pod for pod in saved.pods if (RowKind.POD, pod.id) not in gone),
                containers=tuple(
                    each for each in saved.containers if (RowKind.CONTAINER, each.id) not in gone
                ),
                cgroups=tuple(cgroup for cgroup in saved.cgroups if (RowKind.BOOK, cgroup.id) not in gone),
                books=tuple(book for book in saved.books if (RowKind.BOOK, book.id) not in gone),
            )
        )
        return True

    def _take_batch(self) -> dict[_Key, bool]:
        if self._all_due:
            batch = self._noted_books() | dict.fromkeys(self._everything(), False)
            self._noted.clear()
            self._all_due = False
        else:
            batch = {key: self._noted.pop(key) for key in list(self._noted)[:MOST_IN_A_BATCH]}
        if not self._noted and not self._from_threads:
            self._due.clear()
            self._is_urgent.clear()
        return batch

    def _noted_books(self) -> dict[_Key, bool]:
        # Of those that are gone it is told that they are saved, also where everything is written.
        return {key: seen for key, seen in self._noted.items() if key[0] is RowKind.BOOK}

    def _put_back(self, batch: Mapping[_Key, bool], *, everything: bool) -> None:
        self._all_due = self._all_due or everything
        self._due.set()
        for key, seen in batch.items():
            self._noted[key] = seen or self._noted.get(key, False)
            if seen:
                self._is_urgent.set()

    def _change(self, kind: RowKind, identity: str, *, seen: bool) -> RowChange:
        record = self._sources[kind](identity)
        if record is not None and record.id != identity:
            # The id is gone, and it is a prefix of another one.
            record = None
        return RowChange(kind, identity, record, Rank.SEEN if seen or record is None else rank_of(record))

    def _log_failure(self, error: Exception) -> None:
        self.problem = str(error)
        now_s = time.monotonic()
        if not self._logged_s or now_s - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now_s
            logger.warning("the records cannot be saved, and it is tried again: %s", error)

    async def run_in_thread(self, work: Callable[[], ResultT]) -> ResultT:
        return await self._loop.run_in_executor(self._thread, work)

    async def _in_thread(self, work: Callable[[CheckpointFile], ResultT]) -> ResultT:
        return await self._loop.run_in_executor(self._thread, partial(self._with_file, work))

    def _with_file(self, work: Callable[[CheckpointFile], ResultT]) -> ResultT:
        """In the worker thread, which loads SQLite at the first use."""
        from runtimeproxy.pods.checkpoint.file import CheckpointFile

        if self._file is None:
            self._file = CheckpointFile(self._folder, recreates=True)
        return work(self._file)
