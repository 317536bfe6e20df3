"""The listening socket: it never steals a path, is never seen before it listens, and leaves no trace."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from runtimeproxy.listener import (
    MAX_SOCKET_PATH_BYTES,
    Listener,
    SocketInUseError,
    SocketPathError,
    inherited,
    listen,
    lock_path,
)

NOBODY = 65534


@contextmanager
def listening(path: Path, **options: int) -> Iterator[Listener]:
    """A listener for the length of a block."""
    listener = listen(str(path), **options)
    try:
        yield listener
    finally:
        listener.release()


@contextmanager
def strangers(path: Path, *, listens: bool = True) -> Iterator[socket.socket]:
    """A socket that another process has bound, without any lock."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        if listens:
            sock.listen(1)
        yield sock


def connects(path: Path) -> bool:
    """Whether a process listens there."""
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(str(path))
        except OSError:
            return False
        return True


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where to listen."""
    return tmp_path / "cri.sock"


def test_it_listens_and_is_gone_after_its_release(path: Path) -> None:
    with listening(path):
        assert connects(path)
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o660, 0o600, 0o666])
def test_the_mode_is_set_whatever_the_umask(path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        with listening(path, mode=mode):
            assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        os.umask(before)


def test_the_default_mode_is_0660(path: Path) -> None:
    with listening(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_the_owner_is_configurable(path: Path) -> None:
    with listening(path, uid=12345, gid=23456):
        assert (path.stat().st_uid, path.stat().st_gid) == (12345, 23456)


def test_a_missing_directory_is_made_and_nobody_else_may_write_to_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "cri.sock"
    with listening(path):
        for each in path.parents[:2]:
            assert not stat.S_IMODE(each.stat().st_mode) & 0o022


def test_no_temporary_name_stays_behind(path: Path) -> None:
    with listening(path):
        assert sorted(each.name for each in path.parent.iterdir()) == ["cri.sock", "cri.sock.lock"]


def test_a_temporary_name_of_a_crash_is_replaced(path: Path) -> None:
    with strangers(path.with_name("cri.sock.new"), listens=False):
        pass
    with listening(path):
        assert connects(path)


def test_the_lock_tells_the_process(path: Path) -> None:
    with listening(path):
        assert Path(lock_path(str(path))).read_text() == f"{os.getpid()}\n"


def test_a_second_instance_is_refused_by_the_lock(path: Path) -> None:
    with listening(path):
        with pytest.raises(SocketInUseError, match="holds the lock"):
            listen(str(path))
        assert connects(path)


def test_after_its_release_another_one_may_listen(path: Path) -> None:
    for _ in range(3):
        with listening(path):
            assert connects(path)


def test_a_live_socket_of_another_process_is_refused(path: Path) -> None:
    with strangers(path) as other:
        with pytest.raises(SocketInUseError, match="another process listens"):
            listen(str(path))
        assert connects(path)
        other.accept()[0].close()
    with listening(path):
        pass


def test_a_live_socket_with_a_full_backlog_is_refused(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind(str(path))
        busy.listen(0)
        first.connect(str(path))
        with pytest.raises(SocketInUseError):
            listen(str(path))


def test_a_stale_socket_is_replaced(path: Path) -> None:
    with strangers(path):
        pass
    assert path.is_socket()
    with listening(path):
        assert connects(path)


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_is_no_socket_is_left_alone(path: Path, kind: str) -> None:
    path.write_text("precious") if kind == "file" else path.mkdir()
    with pytest.raises(SocketPathError, match="is not a socket"):
        listen(str(path))
    assert path.is_file() == (kind == "file")


def longest(folder: Path, extra: int = 0) -> Path:
    """A path whose temporary name just fits into a socket's address."""
    return folder / ("x" * (MAX_SOCKET_PATH_BYTES - len(".new") - len(os.fsencode(folder)) - 1 + extra))


def test_the_longest_path_works(tmp_path: Path) -> None:
    with listening(path := longest(tmp_path)):
        assert connects(path)


def test_a_longer_path_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SocketPathError, match="at most 103 bytes"):
        listen(str(longest(tmp_path, 1)))


def test_bytes_of_the_path_count_and_not_characters(tmp_path: Path) -> None:
    with pytest.raises(SocketPathError, match="at most 103 bytes"):
        listen(str(tmp_path / ("ö" * 50)))


def test_a_path_below_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SocketPathError, match=r"file/cri\.sock: "):
        listen(str(tmp_path / "file" / "cri.sock"))


def test_a_lock_that_is_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    Path(lock_path(str(path))).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SocketPathError):
        listen(str(path))
    assert not (tmp_path / "elsewhere").exists()


@contextmanager
def as_user(uid: int) -> Iterator[None]:
    """Another user's rights, for the length of a block."""
    before = os.geteuid()
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_an_error_on_the_way_leaves_no_trace(public_folder: Path) -> None:
    public_folder.chmod(0o777)
    path = public_folder / "cri.sock"
    with as_user(NOBODY), pytest.raises(SocketPathError, match="not permitted"):
        listen(str(path), uid=0)
    assert [each.name for each in public_folder.iterdir()] == ["cri.sock.lock"]
    with listening(path):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_folder_that_may_not_be_written_is_a_clear_error(public_folder: Path) -> None:
    with as_user(NOBODY), pytest.raises(SocketPathError, match="Permission denied"):
        listen(str(public_folder / "cri.sock"))
    assert not list(public_folder.iterdir())


def test_clients_see_a_socket_that_listens_or_none(path: Path) -> None:
    seen: list[int | None] = []
    started = threading.Event()

    def look() -> None:
        started.set()
        while not seen or seen[-1] is not None:
            with socket.socket(socket.AF_UNIX) as sock:
                seen.append(sock.connect_ex(str(path)) or None)

    thread = threading.Thread(target=look)
    thread.start()
    started.wait()
    with listening(path):
        thread.join()
    assert {code for code in seen if code is not None} <= {errno.ENOENT}


def test_what_another_one_has_put_in_its_place_is_left_alone(path: Path) -> None:
    listener = listen(str(path))
    path.unlink()
    with strangers(path):
        listener.release()
        assert connects(path)


def test_a_release_without_a_socket_at_its_place_is_no_error(path: Path) -> None:
    with listening(path):
        path.unlink()


def test_a_second_release_does_nothing(path: Path) -> None:
    with listening(path) as listener:
        listener.release()
        with strangers(path):
            listener.release()
            assert connects(path)


def test_neither_socket_nor_lock_is_inherited_by_children(path: Path) -> None:
    with listening(path) as listener:
        for fd in (listener.sock.fileno(), listener.lock_fd):
            assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_a_socket_of_systemd_is_neither_bound_nor_renamed_nor_unlinked(path: Path) -> None:
    with strangers(path) as given:
        before = path.stat()
        listener = inherited(given)
        assert listener.path is None
        assert not given.getblocking()
        assert connects(path)
        listener.release()
        assert path.stat().st_ino == before.st_ino
        assert path.is_socket()


def test_a_socket_without_a_name_can_be_inherited_too() -> None:
    with closing(socket.socket(socket.AF_UNIX)) as given:
        inherited(given).release()


def test_a_relative_path_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with listening(Path("cri.sock")):
        assert connects(tmp_path / "cri.sock")
