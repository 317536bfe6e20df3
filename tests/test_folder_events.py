"""The kernel's events of a folder."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.folder_events import FolderEvents, open_inotify
from tests.hooks.remote import registration_files as files
from tests.inotify_doubles import Deaf
from tests.lab.programs import REPOSITORY


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


def test_more_events_than_the_kernel_keeps_are_an_event(folder: Path, events: FolderEvents) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    events.renew()
    names = folder / "a.json", folder / "b.json"
    names[0].touch()
    for number in range(most // 2 + 1):  # each is two events
        names[number % 2].rename(names[1 - number % 2])
    assert has_some(events)
    events.renew()
    assert not has_some(events)
    (folder / "new.json").touch()
    assert has_some(events)


def test_a_watch_that_cannot_be_had_is_asked_for_again(folder: Path) -> None:
    class Full(Deaf):
        def add_watch(self, path: Path, mask: int) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    instances: list[Any] = [Full(), open_inotify()]
    events = FolderEvents(folder, lambda: instances[0])
    for _ in range(2):
        assert (events.try_renew() or "").endswith("No space left on device; see fs.inotify.max_user_watches")
        assert events.fileno is None
    instances[0].add_watch = instances[1].add_watch
    instances[0].fileno = instances[1].fileno
    assert events.try_renew() is None
    (folder / "new.json").touch()
    assert has_some(events)
    events.close()
    instances[1].close()


MOUNTED_OVER = """
import pathlib, select, subprocess, sys
from runtimeproxy.folder_events import FolderEvents

folder = pathlib.Path(sys.argv[1])
events = FolderEvents(folder)

def tell():
    print(bool(select.select([events.fileno], [], [], 0)[0]))

events.renew()
subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], check=True)
events.renew()
(folder / "new.json").touch()
tell()
events.renew()
tell()
subprocess.run(["umount", str(folder)], check=True)
tell()
events.renew()
(folder / "newer.json").touch()
tell()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_a_folder_that_is_mounted_over(folder: Path) -> None:
    """Nothing tells of the mount itself; the end of it is an event.

    In mounts of its own: programs of other tests that have theirs would keep a copy of what is mounted here.
    """
    alone = ("unshare", "--mount")
    mount = (*alone, "mount", "-t", "tmpfs", "none", str(folder))
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("may not mount")
    command = (*alone, sys.executable, "-c", MOUNTED_OVER, str(folder))
    told = subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY).stdout
    assert told.split() == ["True", "False", "True", "True"]
