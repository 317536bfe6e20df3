"""The checkpoint's file as its thread sees it: which file makes way for a new one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from runtimeproxy.pods.checkpoint.codec import Change, Kind, Saved
from runtimeproxy.pods.checkpoint.file import FILE_NAME, CheckpointDisk, CheckpointError
from runtimeproxy.pods.records import ContainerRecord

BOX = ContainerRecord(id="box")
CHANGES = (Change(Kind.CONTAINER, BOX.id, BOX),)
NEWER = "PRAGMA user_version = 1000"
DAMAGED = "DROP TABLE records"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def disk(folder: Path) -> Iterator[CheckpointDisk]:
    first = CheckpointDisk(folder)
    assert first.write(CHANGES) is False
    first.close()
    made = CheckpointDisk(folder)
    yield made
    made.close()


def change(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME)) as other:
        other.execute(statement)


def set_aside(folder: Path) -> int:
    return sum(path.name.startswith(f"{FILE_NAME}.unusable") for path in folder.iterdir())


@pytest.mark.parametrize("statement", [NEWER, DAMAGED], ids=["newer", "damaged"])
def test_an_unusable_file_makes_way(disk: CheckpointDisk, folder: Path, statement: str) -> None:
    change(folder, statement)
    assert disk.load() == Saved()
    assert set_aside(folder) >= 1
    disk.write(CHANGES)
    assert disk.load().containers == (BOX,)


@pytest.mark.parametrize("statement", [NEWER, DAMAGED], ids=["newer", "damaged"])
def test_everything_is_due_in_a_new_file(disk: CheckpointDisk, folder: Path, statement: str) -> None:
    change(folder, statement)
    assert disk.write(CHANGES) is True
    assert disk.rewrite(CHANGES) is False
    assert disk.load().containers == (BOX,)


def test_everything_is_due_in_place_of_a_lost_file(disk: CheckpointDisk, folder: Path) -> None:
    assert disk.load().containers == (BOX,)
    (folder / FILE_NAME).unlink()
    assert disk.write(()) is True


def test_a_file_that_cannot_be_read_just_now_stays(disk: CheckpointDisk, folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CheckpointError, match="locked"):
            disk.load()
        other.execute("ROLLBACK")
    assert set_aside(folder) == 0
    assert disk.load().containers == (BOX,)
