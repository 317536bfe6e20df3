"""The kernel's events of a folder."""

from __future__ import annotations

import errno
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.folder_events import FolderEvents
from tests.hooks.remote import registration_files as files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    files.write(path / "there.json")
    return path


@pytest.fixture
def events(folder: Path) -> Iterator[FolderEvents]:
    made = FolderEvents(folder)
    yield made
    made.close()


def has_some(events: FolderEvents) -> bool:
    assert events.fileno is not None
    return bool(select.select([events.fileno], [], [], 0)[0])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda folder: (folder / "new.json").touch(), id="new"),
        pytest.param(lambda folder: files.write(folder / "there.json"), id="in place"),
        pytest.param(lambda folder: files.replace(folder / "there.json", "/x"), id="renamed over"),
        pytest.param(lambda folder: (folder / "there.json").unlink(), id="deleted"),
        pytest.param(lambda folder: (folder / "there.json").chmod(0o600), id="mode"),
        pytest.param(lambda folder: (folder / "there.json").rename(folder.parent / "x"), id="moved away"),
        pytest.param(lambda folder: folder.rename(folder.parent / "other"), id="folder renamed"),
    ],
)
def test_what_happens_is_told_once(
    folder: Path, events: FolderEvents, change: Callable[[Path], object]
) -> None:
    events.renew()
    assert not has_some(events)
    change(folder)
    assert has_some(events)


def test_looking_is_no_event(folder: Path, events: FolderEvents) -> None:
    events.renew()
    (folder / "there.json").read_text()
    list(folder.iterdir())
    assert not has_some(events)


def test_renewing_forgets_what_was(folder: Path, events: FolderEvents) -> None:
    events.renew()
    (folder / "new.json").touch()
    events.renew()
    assert not has_some(events)
    (folder / "newer.json").touch()
    assert has_some(events)


def test_a_folder_that_is_replaced(folder: Path, events: FolderEvents) -> None:
    events.renew()
    old = folder.rename(folder.parent / "old")
    with pytest.raises(FileNotFoundError):
        events.renew()
    assert events.fileno is None
    folder.mkdir()
    events.renew()
    (old / "new.json").touch()
    assert not has_some(events)
    (folder / "new.json").touch()
    assert has_some(events)


def test_a_folder_that_is_deleted_and_made_again(folder: Path, events: FolderEvents) -> None:
    (folder / "there.json").unlink()
    for _ in range(3):
        events.renew()
        folder.rmdir()
        assert has_some(events)
        folder.mkdir()
    events.renew()
    assert not has_some(events)


def test_a_file_in_the_place_of_the_folder(folder: Path) -> None:
    events = FolderEvents(folder / "there.json")
    with pytest.raises(NotADirectoryError):
        events.renew()
    events.close()


def test_an_instance_that_cannot_be_had_is_asked_for_again(folder: Path) -> None:
    tries = 0

    def refuse() -> Any:
        nonlocal tries
        tries += 1
        raise OSError(errno.EMFILE, "too many")

    events = FolderEvents(folder, refuse)
    for _ in range(2):
        with pytest.raises(OSError, match="too many"):
            events.renew()
    assert events.fileno is None
    assert tries == 2
    events.close()
