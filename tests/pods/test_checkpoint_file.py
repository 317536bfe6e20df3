"""The checkpoint's file: its content, and unusable files."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.pods.checkpoint.codec import Rank, RowChange, RowKind, Saved, encode
from runtimeproxy.pods.checkpoint.file import (
    FILE_NAME,
    MOST_SET_ASIDE,
    SCHEMA_VERSION,
    CheckpointError,
    CheckpointFile,
    NotPlainError,
    UnusableFileError,
    make_private,
    set_aside,
)
from runtimeproxy.pods.records import CgroupRecord, ContainerRecord, ManagedValue, PodRecord
from runtimeproxy.pods.resources import LAST_APPLIED
from tests.lab.deadline import quickest_s, wait_until

POD = PodRecord(id="pod", name="web", labels={"a": "b"})
BOX = ContainerRecord(id="box", pod_id="pod", owners={"resources.cpu_shares": (Claimant("batch"),)})
CGROUP = CgroupRecord("/kubepods/pod1", {"cpu.shares": ManagedValue(512, 1024)})
ALL = Saved((POD,), (BOX,), (CGROUP,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def file(folder: Path) -> Iterator[CheckpointFile]:
    made = CheckpointFile(folder)
    yield made
    made.close()


def change(record: PodRecord | ContainerRecord | CgroupRecord, rank: Rank = Rank.SEEN) -> RowChange:
    """That a record is new."""
    kinds = {PodRecord: RowKind.POD, ContainerRecord: RowKind.CONTAINER, CgroupRecord: RowKind.CGROUP}
    return RowChange(kinds[type(record)], record.id, record, rank)


def everything() -> list[RowChange]:
    return [change(POD), change(BOX), change(CGROUP)]


def loaded(folder: Path) -> Saved:
    """What the next process finds."""
    with closing(CheckpointFile(folder)) as other:
        return other.load()


def test_what_is_written_is_there_for_the_next_process(file: CheckpointFile, folder: Path) -> None:
    assert file.load() == Saved()
    file.write(everything())
    assert loaded(folder) == ALL


def test_it_is_for_its_owner_only(file: CheckpointFile, folder: Path) -> None:
    file.write(everything())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_a_file_that_others_may_read_is_closed_to_them(folder: Path) -> None:
    folder.mkdir()
    (folder / FILE_NAME).touch(0o644)
    assert loaded(folder) == Saved()
    assert stat.S_IMODE((folder / FILE_NAME).stat().st_mode) == 0o600


def test_what_is_gone_leaves_no_row(file: CheckpointFile, folder: Path) -> None:
    file.write(everything())
    file.write([RowChange(RowKind.CONTAINER, "box", None), RowChange(RowKind.POD, "nobody", None)])
    assert loaded(folder) == Saved((POD,), (), (CGROUP,))


def test_everything_in_place_of_what_was_there(file: CheckpointFile, folder: Path) -> None:
    file.write(everything())
    file.write([change(POD)], everything=True)
    assert loaded(folder) == Saved((POD,))


@pytest.mark.parametrize(
    ("first", "second", "wins"),
    [
        pytest.param(Rank.SEEN, Rank.SEEN, True, id="calls-over-calls"),
        pytest.param(Rank.SEEN, Rank.ASKED, False, id="the-runtime-not-over-calls"),
        pytest.param(Rank.LISTED, Rank.ASKED, True, id="a-status-over-a-list"),
        pytest.param(Rank.ASKED, Rank.LISTED, False, id="a-list-not-over-a-status"),
    ],
)
def test_a_row_gives_way_to_who_knows_as_much(
    file: CheckpointFile, folder: Path, first: Rank, second: Rank, wins: bool
) -> None:
    file.write([change(BOX, first)])
    file.write([change(ContainerRecord(id="box"), second)])
    (found,) = loaded(folder).containers
    assert (found != BOX) is wins


def test_two_processes_write_one_file(file: CheckpointFile, folder: Path) -> None:
    with closing(CheckpointFile(folder)) as other:
        file.write([change(POD)])
        other.write([change(BOX)])
        file.write([change(CGROUP)])
        assert other.load() == file.load() == ALL


def test_writes_of_another_process_show(file: CheckpointFile, folder: Path) -> None:
    file.load()
    file.write([change(POD)])
    assert not file.changed_by_others()
    with closing(CheckpointFile(folder)) as other:
        other.write([change(BOX)])
    assert file.changed_by_others()
    assert not file.changed_by_others()


def test_bad_rows_are_counted_and_left_out(file: CheckpointFile, folder: Path) -> None:
    file.write(everything())
    file.close()
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection, connection:
        connection.executemany(
            "INSERT INTO records VALUES (?, ?, 2, ?)",
            [(1, "bad", "{"), (9, "kind", "{}"), ("x", "y", "{}"), (2, "blob", b"{}"), (2, "bytes", "ok")],
        )
        connection.execute("UPDATE records SET body = CAST(x'7bff7d' AS TEXT) WHERE id = 'bytes'")
    found = loaded(folder)
    assert (found.pods, found.containers, found.unreadable) == ((POD,), (BOX,), 5)


def garbage(path: Path) -> None:
    path.write_bytes(b"no database at all " * 100)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA application_id = 7")


def without_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE records")


def other_columns(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE records RENAME COLUMN body TO something")


def a_schema_that_is_no_text(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CREATE \xffABLE"))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "spoil",
    [
        garbage,
        cut_off,
        newer,
        foreign,
        without_tables,
        other_columns,
        a_schema_that_is_no_text,
        a_folder,
        a_link,
        a_fifo,
    ],
    ids=lambda spoil: spoil.__name__,
)
def test_a_file_that_cannot_be_used_makes_way(
    file: CheckpointFile, folder: Path, spoil: Callable[[Path], None]
) -> None:
    file.write([change(PodRecord(id=f"pod-{number}", name="x" * 100)) for number in range(200)])
    file.close()
    path = folder / FILE_NAME
    spoil(path)
    with pytest.raises(UnusableFileError):
        file.load()
    file.close()
    with closing(CheckpointFile(folder, recreates=True)) as replacing:
        assert replacing.load() == Saved()
    assert any(".unusable-" in each.name for each in folder.iterdir())
    file.write(everything())
    assert loaded(folder) == ALL


def test_a_file_that_was_removed_is_noticed(file: CheckpointFile, folder: Path) -> None:
    assert not file.was_lost()
    file.write([change(POD)])
    assert not file.was_lost()
    for path in folder.iterdir():
        path.unlink()
    assert file.was_lost()
    file.write([change(BOX)])
    assert loaded(folder) == Saved((), (BOX,))


def test_what_an_earlier_version_kept_of_a_manifest_is_taken_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "hush-7f3a" * 500
    records = [
        replace(
            POD, id=f"pod{number}", annotations={LAST_APPLIED: f'{{"value":"{secret}"}}', "other": "stays"}
        )
        for number in range(20)
    ]
    connection = leave_with_wal(folder)
    for each in records:
        connection.execute("INSERT INTO records VALUES (1, ?, 2, ?)", (each.id, encode(each)))
    # One that is deleted is in free pages.
    connection.execute("DELETE FROM records WHERE id = 'pod7'")
    connection.close()
    assert b"hush" in (folder / FILE_NAME).read_bytes()
    with closing(CheckpointFile(folder)) as file:
        found = file.load()
        assert len(found.pods) == 20
        assert all(each.annotations == {"other": "stays"} for each in found.pods if each.id != "pod")
        assert not any(b"hush" in path.read_bytes() for path in folder.iterdir())
        assert file.load() == loaded(folder) == found


def cut_in_the_middle(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 8192 * 4096)


def cut_to_nothing(path: Path) -> None:
    os.truncate(path, 0)


def overwritten_in_the_middle(path: Path) -> None:
    with path.open("r+b") as opened:
        opened.seek(4096)
        opened.write(bytes(8192))


@pytest.mark.parametrize("harm", [cut_in_the_middle, cut_to_nothing, overwritten_in_the_middle, garbage])
def test_what_is_harmed_while_it_is_open_is_written_anew(folder: Path, harm: Callable[[Path], None]) -> None:
    """Also where the pages that the next write reads are in memory still."""
    boxes = [change(replace(BOX, id=f"box{number}", name="x" * 2000)) for number in range(50)]
    with closing(CheckpointFile(folder, recreates=True)) as file:
        file.write([*boxes, change(POD)])
        harm(folder / FILE_NAME)
        assert file.write([change(POD)])
        assert file.set_aside == 1
        assert not file.write([*boxes, change(POD)], everything=True)
    found = loaded(folder)
    assert (len(found.containers), found.pods) == (50, (POD,))


def mapped(folder: Path) -> list[str]:
    """The files of the folder that this process has mapped."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]


def leave_with_wal(folder: Path) -> sqlite3.Connection:
    """Makes a file as earlier versions did; gives their connection, which is still open."""
    with closing(CheckpointFile(folder)) as file:
        file.write(everything())
    connection = sqlite3.connect(folder / FILE_NAME, isolation_level=None)
    assert connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    connection.execute("UPDATE records SET rank = rank")
    return connection


def test_nothing_is_mapped(file: CheckpointFile, folder: Path) -> None:
    file.write(everything())
    assert file.load() == ALL
    assert mapped(folder) == []


def test_the_log_of_an_earlier_version_goes_with_the_last_process_that_has_it_open(folder: Path) -> None:
    predecessor = leave_with_wal(folder)
    with closing(CheckpointFile(folder)) as file:
        assert file.load() == ALL
        file.write([change(POD)])
        predecessor.execute("DELETE FROM records WHERE id = 'box'")
        predecessor.close()
        file.write([change(BOX)])
        assert mapped(folder) == []
        assert {path.name for path in folder.iterdir()} == {FILE_NAME, f"{FILE_NAME}-journal"}
        assert loaded(folder) == file.load() == ALL


def test_a_predecessor_may_write_while_the_file_is_opened_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(leave_with_wal(folder)) as predecessor, closing(CheckpointFile(folder)) as file:
        file.load()
        close = file.close

        def be_overtaken() -> None:
            close()
            predecessor.execute("DELETE FROM records WHERE id = 'box'")

        monkeypatch.setattr(file, "close", be_overtaken)
        file.write([change(POD)])
        monkeypatch.undo()
        assert file.changed_by_others()
        assert file.load().containers == ()


def test_a_write_that_was_cut_short_is_taken_back_for_who_only_reads(folder: Path, tmp_path: Path) -> None:
    with closing(CheckpointFile(folder)) as file:
        file.write(everything())
    shutil.copytree(folder, tmp_path / "killed")
    with closing(sqlite3.connect(folder / FILE_NAME, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN")
        connection.execute("DELETE FROM records")
        connection.executemany(
            "INSERT INTO records VALUES (2, ?, 2, ?)", [(f"box{number}", "{}" * 2000) for number in range(20)]
        )
        for path in folder.iterdir():
            shutil.copy(path, tmp_path / "killed")
    with closing(CheckpointFile(tmp_path / "killed", read_only=True)) as reading:
        assert reading.load() == ALL


def test_no_folder_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with closing(CheckpointFile(tmp_path / "plain" / "state")) as file, pytest.raises(CheckpointError):
        file.load()


def test_reading_only_changes_nothing(file: CheckpointFile, folder: Path) -> None:
    with closing(CheckpointFile(folder, read_only=True)) as reader:
        assert reader.load() == Saved()
        assert not folder.exists()
        file.write(everything())
        assert reader.load() == ALL
        with pytest.raises(CheckpointError):
            reader.write([change(POD)])


def test_a_thousand_containers_load_quickly(file: CheckpointFile, folder: Path) -> None:
    text = {f"io.kubernetes.example/key-{number}": f"value {number}" for number in range(10)}
    file.write(
        change(ContainerRecord(id=f"{number:064}", labels=text, annotations=text)) for number in range(1000)
    )

    def load_s() -> float:
        begun_s = time.thread_time()
        assert len(loaded(folder).containers) == 1000
        return time.thread_time() - begun_s

    # CPU time of this thread, with room for a slow machine; 20 ms are usual.
    assert quickest_s(load_s, 0.3, tries=10) < 0.3


def open_all(places: Sequence[Path], ready: Barrier) -> None:
    """Opens the files of some folders, each at the same time as other processes."""
    for place in places:
        ready.wait()
        assert wait_until(partial(loaded_if_free, place), "the file") == Saved()


def loaded_if_free(place: Path) -> Saved | None:
    """What is in a file; None if another process has locked it."""
    try:
        return loaded(place)
    except UnusableFileError:
        raise
    except CheckpointError:
        return None


def test_a_new_file_may_be_opened_by_several_at_once(folder: Path) -> None:
    """As around an upgrade: no process takes a file that another one is just making for a foreign one."""
    context = multiprocessing.get_context("spawn")
    places = [folder / str(number) for number in range(50)]
    ready = context.Barrier(3, timeout=60)
    processes = [context.Process(target=open_all, args=(places, ready)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]


BOX_ONLY = (change(BOX),)
NEWER = "PRAGMA user_version = 1000"
DAMAGED = "DROP TABLE records"


@pytest.fixture
def saved(folder: Path) -> Iterator[CheckpointFile]:
    with closing(CheckpointFile(folder)) as first:
        assert first.write(BOX_ONLY) is False
    with closing(CheckpointFile(folder, recreates=True)) as made:
        yield made


def execute(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME)) as other:
        other.execute(statement)


def renamed(folder: Path) -> int:
    return sum(path.name.startswith(f"{FILE_NAME}.unusable") for path in folder.iterdir())


@pytest.mark.parametrize("statement", [NEWER, DAMAGED], ids=["newer", "damaged"])
def test_an_unusable_file_makes_way(saved: CheckpointFile, folder: Path, statement: str) -> None:
    execute(folder, statement)
    assert saved.load() == Saved()
    assert renamed(folder) >= 1
    saved.write(BOX_ONLY)
    assert saved.load().containers == (BOX,)


@pytest.mark.parametrize("statement", [NEWER, DAMAGED], ids=["newer", "damaged"])
def test_everything_is_due_in_a_new_file(saved: CheckpointFile, folder: Path, statement: str) -> None:
    execute(folder, statement)
    assert saved.write(BOX_ONLY) is True
    assert saved.write(BOX_ONLY, everything=True) is False
    assert saved.load().containers == (BOX,)


def test_everything_is_due_in_place_of_a_lost_file(saved: CheckpointFile, folder: Path) -> None:
    assert saved.load().containers == (BOX,)
    (folder / FILE_NAME).unlink()
    assert saved.write(()) is True


@pytest.mark.usefixtures("quick")
def test_a_file_that_cannot_be_read_just_now_stays(saved: CheckpointFile, folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CheckpointError, match="locked"):
            saved.load()
        other.execute("ROLLBACK")
    assert renamed(folder) == 0
    assert saved.load().containers == (BOX,)


@pytest.mark.parametrize("before", [None, 0o600, 0o644, 0o666])
def test_only_the_owner_may_read(tmp_path: Path, before: int | None) -> None:
    path = tmp_path / "db"
    if before is not None:
        path.touch()
        path.chmod(before)
    assert make_private(path) == path.stat().st_ino
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(Path.mkdir, id="folder"),
        pytest.param(os.mkfifo, id="fifo"),
        pytest.param(lambda path: path.symlink_to("elsewhere"), id="link"),
    ],
)
def test_what_is_no_plain_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "db"
    make(path)
    with pytest.raises(NotPlainError):
        make_private(path)
    assert set_aside(path).is_symlink() or not path.exists()
    make_private(path)


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        make_private(tmp_path / "folder" / "db")


def test_companions_go_along_and_only_a_few_are_kept(tmp_path: Path) -> None:
    names = []
    for number in range(MOST_SET_ASIDE + 2):
        for suffix in ("", "-wal", "-shm"):
            (tmp_path / f"db{suffix}").write_text(f"{number}{suffix}")
        names.append(set_aside(tmp_path / "db").name)
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {
        f"{name}{suffix}": f"{number}{suffix}"
        for number, name in list(enumerate(names))[-MOST_SET_ASIDE:]
        for suffix in ("", "-wal", "-shm")
    }
