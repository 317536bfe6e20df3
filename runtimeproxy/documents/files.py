"""Files by name: read whatever lies there, within bounds; replaced as a whole."""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path
from typing import TypeAlias

from runtimeproxy.documents.reading import InputError

Stamp: TypeAlias = tuple[int, int, int, int, int]
"""Device, inode, size and times: another one after each change."""


def read_file(path: Path, max_bytes: int) -> tuple[bytes, Stamp]:
    """The content of a file.

    Raises:
        FileNotFoundError: There is no such file.
        InputError: It cannot be read, is not a regular file, or has more than `max_bytes`.
    """
    try:
        # Before it is opened, which has an effect on some devices.
        _check_file(path.stat(), max_bytes)
        # A FIFO that has come since must not hang.
        with open(path, "rb", opener=_open) as file:
            about = os.fstat(file.fileno())
            _check_file(about, max_bytes)
            # Some files of procfs have None just now.
            data = file.read(max_bytes + 1) or b""
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}") from None
    if len(data) > max_bytes:  # it grows, or does not tell its size
        raise InputError(_too_large(max_bytes))
    return data, _stamp(about)


def _check_file(about: os.stat_result, max_bytes: int) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise InputError("is not a regular file")
    if about.st_size > max_bytes:
        raise InputError(_too_large(max_bytes))


def _too_large(max_bytes: int) -> str:
    return f"has more than {max_bytes} bytes"


def replace_file(path: Path, data: bytes, *, is_synced: bool = True, mode: int = 0o600) -> None:
    """Replaces a file as a whole; makes its folder if there is none.

    `is_synced`: whether it outlives a crash of the node; what counts until a reboot need not. `mode`: of a
    new file.

    Raises:
        OSError: It cannot be written; the old one stays.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    with open(new, "wb", opener=partial(_open_new, mode=mode)) as file:
        file.write(data)
        if is_synced:
            file.flush()
            os.fsync(file.fileno())
    new.replace(path)


def stamp_of(path: Path) -> Stamp | None:
    try:
        return _stamp(path.stat())
    except OSError:
        return None


def is_watchable(path: Path) -> bool:
    """Whether each change of a file is an event in its folder: it is no link, and has no other name."""
    try:
        about = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(about.st_mode) and about.st_nlink == 1


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _open_new(path: str, flags: int, mode: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, mode)


def _stamp(about: os.stat_result) -> Stamp:
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def is_denied(path: Path) -> bool:
    """Whether this user may not read a file or folder, or may not see if it is there."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(path, os.R_OK)
