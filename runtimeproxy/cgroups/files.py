"""Reading and writing one kernel file below a mount, without following a link out of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_READ_LIMIT_BYTES = 65_536
"""More than any value file holds: a cgroup file's content is at most some pages."""
_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking, so that a FIFO in a strange tree cannot hang the thread.
_FILE_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def read_text(folder: Path, path: tuple[str, ...], file: str) -> str:
    """The content of `folder/path.../file`.

    Raises:
        OSError: as the kernel says; ELOOP or ENOTDIR for a symbolic link on the way.
    """
    with _opened(folder, path, file, os.O_RDONLY) as descriptor:
        return os.read(descriptor, _READ_LIMIT_BYTES).decode("utf-8", "replace")


def write_text(folder: Path, path: tuple[str, ...], file: str, text: str) -> None:
    """Writes `text` and a newline with one system call to a file that exists.

    Raises:
        OSError: as the kernel says; ELOOP or ENOTDIR for a symbolic link on the way.
    """
    with _opened(folder, path, file, os.O_WRONLY | os.O_TRUNC) as descriptor:
        os.write(descriptor, f"{text}\n".encode())


@contextmanager
def _opened(folder: Path, path: tuple[str, ...], file: str, flags: int) -> Iterator[int]:
    held = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in path:
            outer, held = held, os.open(part, _FOLDER_FLAGS, dir_fd=held)
            # Held no more, whatever becomes of it: its number may be another thread's next moment.
            os.close(outer)
        descriptor = os.open(file, flags | _FILE_FLAGS, dir_fd=held)
    finally:
        os.close(held)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
