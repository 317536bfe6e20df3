"""Files of databases: private, and set aside if they are no use."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeproxy.pods.checkpoint.file import MOST_SET_ASIDE, NotPlainError, make_private, set_aside


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
