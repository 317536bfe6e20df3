"""What changes gets to the disk: batches, failures, the end."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.ledger import checkpoint
from runtimeproxy.ledger.checkpoint import MOST_IN_A_BATCH, MOST_NOTED, CheckpointWriter
from runtimeproxy.pods.checkpoint.codec import RowChange, RowKind, Saved
from runtimeproxy.pods.checkpoint.file import FILE_NAME, CheckpointError, CheckpointFile
from runtimeproxy.pods.records import Book, ContainerRecord, Level, PodRecord
from runtimeproxy.pods.store import PodStore
from tests.lab.deadline import wait_until

TIMEOUT_S = 30.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store() -> PodStore:
    return PodStore()


@pytest.fixture
async def writer(
    folder: Path, store: PodStore, executor: ThreadPoolExecutor
) -> AsyncIterator[CheckpointWriter]:
    made = of_store(folder, store, executor)
    yield made
    await made.close(TIMEOUT_S)


def of_store(folder: Path, store: PodStore, executor: ThreadPoolExecutor) -> CheckpointWriter:
    """The checkpoint of a store, without cgroups."""
    made = CheckpointWriter(
        folder,
        executor,
        {RowKind.POD: store.pods.get, RowKind.CONTAINER: store.containers.get},
        lambda: ((RowKind.CONTAINER, container.id) for container in store.containers),
    )
    store.on_change = made.note
    return made


@asynccontextmanager
async def running(writer: CheckpointWriter) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(writer.run())
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def saved(folder: Path) -> Saved:
    with closing(CheckpointFile(folder, read_only=True)) as file:
        return file.load()


def box(number: int) -> ContainerRecord:
    return ContainerRecord(id=f"box-{number}")


async def on_disk(folder: Path, count: int) -> None:
    """Waits until so many containers are saved."""

    def are_there() -> bool:
        # While it is being made it may be locked.
        with suppress(CheckpointError):
            return (folder / FILE_NAME).exists() and len(saved(folder).containers) == count
        return False

    await asyncio.to_thread(wait_until, are_there, f"{count} saved containers")


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def blocked(folder: Path) -> None:
    """A plain file stands where the folder should be."""
    if folder.exists():
        folder.rename(folder.with_name("away"))
    folder.touch()


def unblocked(folder: Path) -> None:
    folder.unlink()
    if folder.with_name("away").exists():
        folder.with_name("away").rename(folder)


def spoilt(folder: Path) -> None:
    folder.mkdir()
    (folder / FILE_NAME).write_bytes(b"nonsense" * 1000)


def unexpected(late: Saved) -> None:
    raise AssertionError(f"{late} was read late")


async def test_changes_are_written_at_once(writer: CheckpointWriter, store: PodStore, folder: Path) -> None:
    async with running(writer):
        for number in range(3 * MOST_IN_A_BATCH):
            store.containers.put(box(number))
        await on_disk(folder, 3 * MOST_IN_A_BATCH)
        store.containers.remove("box-7")
        await on_disk(folder, 3 * MOST_IN_A_BATCH - 1)


async def test_books_of_other_threads_wake_the_loop_once_and_wait_for_no_record(
    folder: Path, executor: ThreadPoolExecutor, store: PodStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "BOOKS_GATHER_S", TIMEOUT_S * 2)
    batches: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def on_saved(identity: str, _: Book | None) -> None:
        loop.call_soon_threadsafe(batches.put_nowait, identity)

    writer = CheckpointWriter(
        folder,
        executor,
        {RowKind.BOOK: lambda identity: Book(identity, Level.POD), RowKind.CONTAINER: store.containers.get},
        lambda: (),
        on_saved,
    )
    store.on_change = writer.note
    wakes: list[object] = []
    monkeypatch.setattr(writer, "_on_noted_in_thread", partial(_counted, wakes, writer._on_noted_in_thread))

    def note(*names: str) -> None:
        for name in names:
            writer.note_from_thread(RowKind.BOOK, name)

    async with running(writer):
        # However slow the thread is, no batch is taken before its last note.
        async with writer._writing:
            await asyncio.to_thread(note, *(f"/pod{number}" for number in range(100)))
        assert {await batches.get() for _ in range(100)} == {f"/pod{number}" for number in range(100)}
        assert len(wakes) == 1
        # Books that follow wait for each other, and not while there is a record to be saved.
        await asyncio.to_thread(note, "/pod0")
        store.containers.put(box(1))
        assert await batches.get() == "/pod0"
        await on_disk(folder, 1)
        # For the writer, too, this batch is over: one that is cut off is written again.
        async with writer._writing:
            await asyncio.to_thread(note, "/pod1")
    assert batches.empty()
    await writer.close(TIMEOUT_S)
    assert await batches.get() == "/pod1"


def _counted(calls: list[object], function: Callable[[], None]) -> None:
    calls.append(function)
    function()


async def test_ten_thousand_life_cycles_leave_nothing(
    writer: CheckpointWriter, store: PodStore, folder: Path
) -> None:
    for number in range(10_000):
        store.pods.put(PodRecord(id=f"pod-{number}"))
        store.containers.put(ContainerRecord(id=f"box-{number}", pod_id=f"pod-{number}"))
        store.remove_pod(f"pod-{number}")
        if number % 1000 == 0:
            await writer.flush()
    assert await writer.flush()
    assert saved(folder) == Saved()


async def test_an_id_that_begins_another_is_not_that_one(
    writer: CheckpointWriter, store: PodStore, folder: Path
) -> None:
    store.containers.put(box(1))
    store.containers.put(box(10))
    await writer.flush()
    store.containers.remove("box-1")
    await writer.flush()
    assert saved(folder).containers == (box(10),)


async def test_the_end_writes_the_rest(folder: Path, store: PodStore, executor: ThreadPoolExecutor) -> None:
    writer = of_store(folder, store, executor)
    store.containers.put(box(1))
    await writer.close(TIMEOUT_S)
    assert saved(folder).containers == (box(1),)


async def test_what_the_runtime_says_does_not_replace_what_another_process_saw(
    writer: CheckpointWriter, store: PodStore, folder: Path
) -> None:
    with closing(CheckpointFile(folder)) as other:
        theirs = replace(box(1), owners={"a": (Claimant("b"),)})
        other.write([RowChange(RowKind.CONTAINER, "box-1", theirs)])
    store.containers.fill(replace(box(1), recovered=True), 0)
    await writer.flush()
    assert saved(folder).containers == (theirs,)
    store.containers.put(replace(box(1), recovered=True))
    await writer.flush()
    assert saved(folder).containers == (replace(box(1), recovered=True),)


async def test_a_folder_that_cannot_be_made(
    tmp_path: Path, store: PodStore, executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "plain").touch()
    writer = of_store(tmp_path / "plain" / "state", store, executor)
    late: list[Saved] = []
    assert await writer.load(late.append) is None
    for number in range(3):
        store.containers.put(box(number))
        assert not await writer.flush()
    assert "Not a directory" in writer.problem
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    (tmp_path / "plain").unlink()
    assert await writer.flush()
    assert writer.problem == ""
    assert len(saved(tmp_path / "plain" / "state").containers) == 3
    await writer.close(TIMEOUT_S)


@pytest.mark.usefixtures("quick")
async def test_a_full_disk_loses_nothing(writer: CheckpointWriter, store: PodStore, folder: Path) -> None:
    await writer.flush()
    store.containers.put(box(0))
    await writer.flush()
    with closing(sqlite3.connect(folder / FILE_NAME, isolation_level=None)) as blocking:
        blocking.execute("BEGIN IMMEDIATE")
        store.containers.put(box(1))
        assert not await writer.flush()
        assert "locked" in writer.problem
        store.containers.remove("box-0")
    assert await writer.flush()
    assert saved(folder).containers == (box(1),)


@pytest.mark.usefixtures("quick")
async def test_a_failed_write_is_tried_again(writer: CheckpointWriter, store: PodStore, folder: Path) -> None:
    blocked(folder)
    async with running(writer):
        store.containers.put(box(1))
        await asyncio.to_thread(wait_until, lambda: writer.problem, "the failure")
        unblocked(folder)
        await on_disk(folder, 1)


async def test_a_removed_file_is_written_again(
    writer: CheckpointWriter, store: PodStore, folder: Path
) -> None:
    store.containers.put(box(1))
    await writer.flush()
    shutil.rmtree(folder)
    store.containers.put(box(2))
    assert await writer.flush()
    assert {container.id for container in saved(folder).containers} == {"box-1", "box-2"}


async def test_a_file_that_is_spoilt_meanwhile_is_rebuilt(
    writer: CheckpointWriter, store: PodStore, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.containers.put(box(1))
    await writer.flush()
    with closing(sqlite3.connect(folder / FILE_NAME)) as spoiling:
        spoiling.execute("DROP TABLE records")
    store.containers.put(box(2))
    assert await writer.flush()
    assert len(saved(folder).containers) == 2
    assert [record.message[:38] for record in caplog.records] == ["the records are rebuilt from the runti"]


async def test_a_file_that_is_found_cut_when_it_is_read_again_is_rebuilt(
    writer: CheckpointWriter, store: PodStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a predecessor ends, or after an upgrade that has failed."""
    monkeypatch.setattr(checkpoint, "IDLE_GATHER_S", 0.05)
    async with running(writer):
        store.containers.put(box(1))
        await on_disk(folder, 1)
        os.truncate(folder / FILE_NAME, 0)
        assert await writer.load(unexpected) == Saved()
        await on_disk(folder, 1)
    assert writer.set_aside == 1


async def test_a_damaged_file_is_set_aside_at_the_start(
    writer: CheckpointWriter, store: PodStore, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spoilt(folder)
    store.containers.put(box(1))
    assert await writer.load(unexpected) == Saved()
    await writer.flush()
    assert saved(folder).containers == (box(1),)
    assert sum("unusable" in name for name in files(folder)) == 1
    assert "rebuilt" in caplog.text


async def test_a_file_that_cannot_be_read_just_now_is_read_later_and_not_written_before(
    writer: CheckpointWriter, store: PodStore, folder: Path
) -> None:
    old, gone = ContainerRecord(id="old"), ContainerRecord(id="gone")
    with closing(CheckpointFile(folder)) as file:
        file.write([RowChange(RowKind.CONTAINER, record.id, record) for record in (old, gone)])
    blocked(folder)
    read: list[Saved] = []
    assert await writer.load(read.append) is None
    store.containers.put(box(1))
    store.containers.remove("gone")
    assert not await writer.flush()
    unblocked(folder)
    assert saved(folder).containers == (old, gone)
    assert await writer.flush()
    assert [each.containers for each in read] == [(old,)]
    assert sorted(found.id for found in saved(folder).containers) == [box(1).id, "old"]


async def test_a_file_that_can_never_be_read_costs_bounded_memory(
    tmp_path: Path, store: PodStore, executor: ThreadPoolExecutor
) -> None:
    (tmp_path / "plain").touch()
    writer = of_store(tmp_path / "plain" / "state", store, executor)
    assert await writer.load(unexpected) is None
    for number in range(MOST_NOTED + 10):
        store.containers.put(box(number))
        store.containers.remove(box(number).id)
    assert not await writer.flush()
    assert len(writer._noted) < MOST_NOTED


async def test_books_that_are_gone_are_told_when_everything_is_written(
    folder: Path, executor: ThreadPoolExecutor
) -> None:
    told: dict[str, Book | None] = {}
    books = {"/kept": Book("/kept", Level.POD)}
    sources: dict[RowKind, Callable[[str], Book | None]] = {
        RowKind.BOOK: books.get,
        RowKind.CONTAINER: lambda _: None,
    }
    writer = CheckpointWriter(
        folder, executor, sources, lambda: ((RowKind.BOOK, identity) for identity in books), told.__setitem__
    )
    writer.note(RowKind.BOOK, "/kept", seen=True)
    assert await writer.flush()
    (folder / FILE_NAME).unlink()
    writer.note(RowKind.BOOK, "/gone", seen=True)
    assert await writer.flush()
    assert told == {"/kept": books["/kept"], "/gone": None}
    told.clear()
    writer.note(RowKind.BOOK, "/gone-among-many", seen=True)
    for number in range(MOST_NOTED):
        writer.note(RowKind.CONTAINER, f"box-{number}", seen=False)
    assert await writer.flush()
    assert told == {"/kept": books["/kept"], "/gone-among-many": None}
    await writer.close(TIMEOUT_S)


async def test_a_load_does_not_write_what_it_read(
    writer: CheckpointWriter, store: PodStore, folder: Path
) -> None:
    with closing(CheckpointFile(folder)) as file:
        file.write([RowChange(RowKind.CONTAINER, "box-1", box(1))])
    found = await writer.load(unexpected)
    assert found is not None
    with store.listing() as since:
        assert store.load(found, since) == ("box-1",)
        assert store.load(found, since) == ()
    await writer.flush()
    assert not await writer.changed_by_others()
    with closing(CheckpointFile(folder)) as file:
        file.load()
        await writer.flush()
        assert not file.changed_by_others()
