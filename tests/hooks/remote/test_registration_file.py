"""Reading a file, whatever lies under its name."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeproxy.documents.files import stamp_of
from runtimeproxy.documents.reading import InputError
from runtimeproxy.hooks.remote.registrations import (
    MAX_FILE_BYTES,
    read_registration,
    registration_names,
)
from tests.lab.deadline import wait_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.json"


def test_names(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", ".hidden.json", ".json", "foojson", "a.json.bak", "a.JSON", "a.json~"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner.json").touch()
    assert registration_names(tmp_path) == ["a.json", "b.json"]


@pytest.mark.parametrize("size", [0, 1, MAX_FILE_BYTES], ids=str)
def test_content(path: Path, size: int) -> None:
    path.write_bytes(b"x" * size)
    assert read_registration(path).data == b"x" * size


def test_a_link_is_its_target(path: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("text")
    path.symlink_to("target")
    assert read_registration(path).data == b"text"
    assert stamp_of(path) == stamp_of(tmp_path / "target")


def test_the_stamp_of_a_file_that_has_just_changed_is_not_to_be_relied_on(path: Path) -> None:
    path.write_text("text")
    assert wait_until(lambda: read_registration(path).stamp, "a settled file") == stamp_of(path)
    path.write_text("next")
    assert read_registration(path).stamp is None


def test_what_is_not_there(path: Path) -> None:
    assert stamp_of(path) is None
    with pytest.raises(FileNotFoundError):
        read_registration(path)


def _listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(os.mkfifo, "is not a regular file", id="FIFO"),
        pytest.param(Path.mkdir, "is not a regular file", id="folder"),
        pytest.param(_listen, "is not a regular file", id="socket"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), "is not a regular file", id="device"),
        pytest.param(lambda path: path.symlink_to("nowhere"), "is a dangling symbolic link", id="link"),
        pytest.param(lambda path: path.symlink_to(path.name), "cannot be read: Too many levels", id="loop"),
        pytest.param(
            lambda path: path.write_bytes(b"x" * (MAX_FILE_BYTES + 1)),
            "has more than 1048576 bytes",
            id="large",
        ),
    ],
)
def test_what_is_no_file_to_read(socket_folder: Path, make: Callable[[Path], object], reason: str) -> None:
    path = socket_folder / "a.json"
    make(path)
    with pytest.raises(InputError, match=reason):
        read_registration(path)
