"""The files of one SQLite database: private to their owner, and out of the way if they are no use."""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

MOST_SET_ASIDE: Final = 3
"""Databases that were of no use and are kept; older ones are removed."""

_COMPANIONS: Final = ("", "-wal", "-shm")
"""Source: sqlite.org/wal.html."""

_NOT_PLAIN: Final = (errno.ELOOP, errno.EISDIR, errno.ENXIO)
"""A symbolic link, a folder, a socket. Source: open(2)."""


class NotPlainError(Exception):
    """What stands there is no plain file."""


def make_private(path: Path) -> int:
    """Makes a file if it is missing, and closes it to all but its owner; returns its inode.

    To be called while this process has not opened the database: closing any descriptor of it drops the
    locks. Source: fcntl(2), "Record locking".

    Raises:
        NotPlainError: see there.
        OSError: as the kernel says.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno in _NOT_PLAIN:
            raise NotPlainError from error
        raise
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise NotPlainError
        if stat.S_IMODE(about.st_mode) & 0o077:
            os.fchmod(descriptor, 0o600)
        return about.st_ino
    finally:
        os.close(descriptor)


def set_aside(path: Path) -> Path:
    """Renames a database with its companions, and removes the oldest such ones; returns the new name.

    Raises:
        OSError: as the kernel says.
    """
    aside = path.with_name(f"{path.name}.unusable-{time.time_ns()}")
    for suffix in _COMPANIONS:
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    _remove_oldest(path)
    return aside


def _remove_oldest(path: Path) -> None:
    found = path.parent.glob(f"{path.name}.unusable-*")
    names = {each.name.removesuffix("-wal").removesuffix("-shm") for each in found}
    for name in sorted(names)[:-MOST_SET_ASIDE]:
        for suffix in _COMPANIONS:
            with suppress(OSError):
                path.with_name(name + suffix).unlink()
