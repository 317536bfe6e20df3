"""The listening socket: never stolen, never half there, never left behind."""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.relay.listener import (
    MAX_SOCKET_PATH_BYTES,
    SocketInUseError,
    SocketPathError,
    inherited,
    listen,
    lock_path,
)


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "proxy.sock"


@pytest.fixture
def other(path: Path) -> Iterator[socket.socket]:
    """A socket of another program at the same path."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        yield sock


def names(path: Path) -> set[str]:
    """What lies in the socket's folder, but for the lock."""
    return {entry.name for entry in path.parent.iterdir()} - {Path(lock_path(str(path))).name}


def is_answered(path: Path) -> bool:
    """Whether somebody listens."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def test_it_listens_and_is_removed_at_release(path: Path) -> None:
    listener = listen(str(path))
    assert is_answered(path)
    assert names(path) == {path.name}
    listener.release()
    assert names(path) == set()
    listener.release()


def test_mode_and_owner(path: Path) -> None:
    owner = (65_534, 65_534) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    listener = listen(str(path), mode=0o600, uid=owner[0], gid=owner[1])
    found = path.stat()
    listener.release()
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert (found.st_uid, found.st_gid) == owner


def test_default_mode(path: Path) -> None:
    listener = listen(str(path))
    mode = stat.S_IMODE(path.stat().st_mode)
    listener.release()
    assert mode == 0o660


def test_missing_directories_are_made(folder: Path) -> None:
    path = folder / "a" / "b" / "proxy.sock"
    listener = listen(str(path))
    listener.release()
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o022 == 0


def test_the_lock_refuses_a_second_instance(path: Path) -> None:
    first = listen(str(path))
    assert Path(lock_path(str(path))).read_text() == f"{os.getpid()}\n"
    with pytest.raises(SocketInUseError, match="lock"):
        listen(str(path))
    assert is_answered(path)
    first.release()
    listen(str(path)).release()


def test_a_live_socket_of_another_program_is_refused(path: Path, other: socket.socket) -> None:
    other.listen()
    with pytest.raises(SocketInUseError, match="listens"):
        listen(str(path))
    assert is_answered(path)
    assert names(path) == {path.name}


def test_a_live_socket_with_a_full_backlog_is_refused(path: Path, other: socket.socket) -> None:
    other.listen(0)
    with socket.socket(socket.AF_UNIX) as first:
        first.connect(str(path))
        with pytest.raises(SocketInUseError, match="listens"):
            listen(str(path))


def test_a_stale_socket_is_replaced(path: Path, other: socket.socket) -> None:
    before = path.stat().st_ino
    listener = listen(str(path))
    assert path.stat().st_ino != before
    assert is_answered(path)
    listener.release()
    assert names(path) == set()


def test_a_temporary_name_left_behind_is_no_obstacle(path: Path) -> None:
    Path(f"{path}.new").write_text("left behind")
    listener = listen(str(path))
    assert names(path) == {path.name}
    listener.release()


def test_what_is_no_socket_is_kept(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(SocketPathError, match="not a socket"):
        listen(str(path))
    assert path.read_text() == "precious"


def test_after_a_refusal_the_lock_is_free(path: Path) -> None:
    path.write_text("in the way")
    with pytest.raises(SocketPathError):
        listen(str(path))
    path.unlink()
    listen(str(path)).release()


@pytest.mark.parametrize("surplus", [0, 1], ids=["longest", "too-long"])
def test_the_temporary_name_counts_for_the_length(folder: Path, surplus: int) -> None:
    room = MAX_SOCKET_PATH_BYTES - len(os.fsencode(f"{folder}/.new"))
    path = str(folder / ("s" * (room + surplus)))
    if surplus:
        with pytest.raises(SocketPathError, match=re.escape("at most 103 bytes")):
            listen(path)
        assert list(folder.iterdir()) == []
    else:
        listener = listen(path)
        assert is_answered(Path(path))
        listener.release()


def test_a_successors_socket_is_kept_at_release(path: Path) -> None:
    listener = listen(str(path))
    path.rename(f"{path}.away")
    with socket.socket(socket.AF_UNIX) as successor:
        successor.bind(str(path))
        successor.listen()
        listener.release()
        assert is_answered(path)


def test_a_directory_that_cannot_be_made(folder: Path) -> None:
    (folder / "file").write_text("")
    with pytest.raises(SocketPathError):
        listen(str(folder / "file" / "proxy.sock"))


def test_an_inherited_socket_is_not_touched(path: Path, other: socket.socket) -> None:
    other.listen()
    before = path.stat()
    listener = inherited(other.dup())
    assert listener.sock.gettimeout() == 0.0
    listener.release()
    after = path.stat()
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)
    assert is_answered(path)
