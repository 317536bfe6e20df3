"""Reads a registration file, whatever lies under its name; for a worker thread."""

from __future__ import annotations

import os
import stat
import time
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple

MAX_FILE_BYTES: Final = 1024 * 1024
"""Largest registration file; Koordinator's have some hundred bytes."""
SUFFIX: Final = ".json"

_SETTLED_NS: Final = 100_000_000
"""A file that changed this short before it was read may change again under the same times: the kernel's clock
of files has ticks of up to 10 ms. Source: current_time() in Linux fs/inode.c takes the coarse clock."""


class Stamp(NamedTuple):
    """What changes with a file's content."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


class UnreadableFileError(Exception):
    """There is a file of this name, but not one to read; the text says why."""


class Content(NamedTuple):
    """What was read."""

    data: bytes
    stamp: Stamp | None
    """None when the file may have changed meanwhile: read it again next time."""


def names_in(folder: Path) -> list[str]:
    """Returns the names of the registration files in a folder, sorted.

    Raises:
        OSError: the folder cannot be read.
    """
    names = (path.name for path in folder.iterdir())
    return sorted(name for name in names if name.endswith(SUFFIX) and not name.startswith("."))


def stamp_of(path: Path) -> Stamp | None:
    """Returns the stamp of the file that a path leads to; None when there is none."""
    try:
        return _stamp(path.stat())
    except OSError:
        return None


def is_watchable(path: Path) -> bool:
    """Returns whether each change of a file is one in its folder: it is no link, and has no other name."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def read(path: Path) -> Content:
    """Returns the file's content; never waits for the other end of a FIFO.

    Raises:
        FileNotFoundError: there is nothing of this name any more.
        UnreadableFileError: what is there is no regular file, too large, or out of reach.
    """
    now_ns = time.time_ns()
    try:
        # Opening a device may have effects of its own, so what is no file is not opened at all.
        _check_regular(path.stat())
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(fd, "rb", buffering=0) as file:
            before = os.fstat(fd)
            _check_regular(before)
            data = _all_of(file)
            after = os.fstat(fd)
    except OSError as error:
        raise _reason(path, error) from None
    if len(data) > MAX_FILE_BYTES:
        raise UnreadableFileError(f"has more than {MAX_FILE_BYTES} bytes")
    is_settled = _stamp(before) == _stamp(after) and after.st_ctime_ns + _SETTLED_NS < now_ns
    return Content(data, _stamp(after) if is_settled else None)


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableFileError("is no regular file")


def _all_of(file: FileIO) -> bytes:
    data = bytearray()
    while len(data) <= MAX_FILE_BYTES and (piece := file.read(MAX_FILE_BYTES + 1 - len(data))):
        data += piece
    return bytes(data)


def _reason(path: Path, error: OSError) -> UnreadableFileError | FileNotFoundError:
    if isinstance(error, FileNotFoundError):
        return UnreadableFileError("is a link that leads nowhere") if path.is_symlink() else error
    return UnreadableFileError(f"cannot be read: {error.strerror}")


def _stamp(status: os.stat_result) -> Stamp:
    return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
