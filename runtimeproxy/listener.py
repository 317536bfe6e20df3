"""Listening Unix sockets: passed by systemd, or bound here without taking a live one from its owner."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runtimeproxy.errors import RuntimeProxyError

DEFAULT_SOCKET_MODE: Final = 0o660
"""Write access to a CRI socket is root on the node. Source: containerd's own socket."""
MAX_SOCKET_PATH_BYTES: Final = 107
"""Source: unix(7): sun_path has 108 bytes with its NUL."""
BACKLOG: Final = 1024

_TEMPORARY_SUFFIX: Final = ".new"
_DIRECTORY_MODE: Final = 0o755


class SocketInUseError(RuntimeProxyError):
    """Another process listens on the socket, or holds its lock."""


class SocketPathError(RuntimeProxyError):
    """The socket's path cannot be used."""


@dataclass(slots=True)
class Listener:
    """A listening Unix socket, with its name and lock, which `release` removes.

    Two processes share it while one hands over to the other; the socket's name and the lock are the owner's.
    """

    sock: socket.socket
    path: str | None = None
    """Where it is published; None for a socket from systemd."""
    inode: int = 0
    """Of the published name."""
    lock_fd: int = -1
    """The open lock file; -1 for none."""
    is_owner: bool = True
    """Whether this process is the one that serves."""

    @property
    def address(self) -> str:
        return self.path if self.path is not None else str(self.sock.getsockname())

    def own(self, note: str = "") -> None:
        """Makes this process the owner, and notes in the lock file why."""
        self.is_owner = True
        self.note(note)

    def note(self, text: str) -> None:
        # One line, behind the owner's process id.
        if self.is_owner and self.lock_fd >= 0:
            with contextlib.suppress(OSError):
                _write_lock(self.lock_fd, text)

    def release(self) -> None:
        """Closes the socket; the owner unlinks the name, if it is still this socket's, and drops the lock."""
        self.sock.close()
        if self.path is not None and self.is_owner:
            unlink_own(self.path, self.inode)
        self.path = None
        if self.lock_fd >= 0:
            if self.is_owner:
                # Closing alone would leave it with a predecessor that still drains.
                fcntl.flock(self.lock_fd, fcntl.LOCK_UN)
            os.close(self.lock_fd)
            self.lock_fd = -1


def inherited(sock: socket.socket) -> Listener:
    """Returns a listener on a socket from systemd: nothing is bound, renamed or unlinked.

    The lock beside it only holds the process id; systemd itself runs one service at a time.
    """
    sock.setblocking(False)
    lock_fd = -1
    name = sock.getsockname()
    if isinstance(name, str) and name:
        with contextlib.suppress(OSError, SocketInUseError):
            lock_fd = _lock(lock_path(name))
    return Listener(sock, lock_fd=lock_fd)


def lock_path(path: str) -> str:
    # It has the process id of the instance that serves.
    return f"{path}.lock"


def listen(path: str, *, mode: int = DEFAULT_SOCKET_MODE, uid: int = -1, gid: int = -1) -> Listener:
    """Publishes a socket and takes its lock; its directory is made if it is missing.

    `uid`: owner, -1 for this process's. `gid`: group, -1 for this process's.

    Raises:
        SocketInUseError: a live process has it.
        SocketPathError: the path is too long, is not a socket, or cannot be written.
    """
    if len(os.fsencode(path + _TEMPORARY_SUFFIX)) > MAX_SOCKET_PATH_BYTES:
        most = MAX_SOCKET_PATH_BYTES - len(_TEMPORARY_SUFFIX)
        raise SocketPathError(f"{path}: socket paths have at most {most} bytes here")
    lock_fd = -1
    try:
        _make_directory(Path(path).parent)
        lock_fd = _lock(lock_path(path))
        if is_live(path):
            raise SocketInUseError(f"{path}: another process listens on this socket")
        sock, inode = publish(path, mode, uid=uid, gid=gid)
    except (OSError, RuntimeProxyError) as error:
        if lock_fd >= 0:
            os.close(lock_fd)
        if isinstance(error, OSError):
            raise SocketPathError(f"{path}: {error.strerror or error}") from error
        raise
    return Listener(sock, path, inode, lock_fd)


def publish(path: str, mode: int, *, uid: int = -1, gid: int = -1) -> tuple[socket.socket, int]:
    """Returns a socket that listens under a path, instead of one that was there, and the inode of the path.

    It is bound to a temporary name and renamed then: clients see a socket that already listens, or none.
    """
    if Path(path).exists() and not Path(path).is_socket():
        raise FileExistsError(errno.EEXIST, "exists and is not a socket")
    temporary = Path(path + _TEMPORARY_SUFFIX)
    temporary.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # Not open to others even for a moment: the umask is the process's, and other threads make files.
        os.fchmod(sock.fileno(), mode)
        sock.bind(str(temporary))
        temporary.chmod(mode)
        if uid != -1 or gid != -1:
            os.chown(temporary, uid, gid)
        sock.listen(BACKLOG)
        inode = temporary.stat().st_ino
        temporary.rename(path)
    except OSError:
        sock.close()
        temporary.unlink(missing_ok=True)
        raise
    return sock, inode


def unlink_own(path: str, inode: int) -> None:
    # Another socket may have the name meanwhile.
    with contextlib.suppress(OSError):
        if Path(path).lstat().st_ino == inode:
            Path(path).unlink()


def is_live(path: str) -> bool:
    """Whether a process listens on a Unix socket. Raises OSError if it cannot be found out."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:
            return True  # its backlog is full
    return True


def _make_directory(directory: Path) -> None:
    # `parents=True` would make the upper ones with whatever mode the umask leaves.
    for each in (*reversed(directory.parents), directory):
        each.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)


def _lock(path: str) -> int:
    """Takes the lock that two instances on one socket compete for; the kernel drops it with the process.

    The file holds the process id, for commands that send the instance a signal.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write_lock(fd, "")
    except BlockingIOError as error:
        os.close(fd)
        raise SocketInUseError(f"{path}: another instance holds the lock") from error
    except OSError:
        os.close(fd)
        raise
    return fd


def _write_lock(fd: int, note: str) -> None:
    """Writes first and truncates then: a reader never sees a file without a process id."""
    lines = f"{os.getpid()}\n{note}\n" if note else f"{os.getpid()}\n"
    data = lines.encode("utf-8", "replace")
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))


def read_lock(path: str) -> tuple[int, str]:
    """Returns the process id and the note in a lock file.

    Raises:
        OSError: it cannot be read.
        ValueError: it has no process id.
    """
    pid, note, *_ = [*Path(path).read_bytes().decode("utf-8", "replace").split("\n"), ""]
    return int(pid), note


def is_locked(path: str | Path) -> bool:
    """Whether a process holds the lock of a file. Raises OSError if there is none."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
