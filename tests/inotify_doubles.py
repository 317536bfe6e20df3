"""Kernels that have no events, or no more inotify instances."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from runtimeproxy.folder_events import open_inotify


class Deaf:
    """An inotify instance that never has an event."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0)

    def add_watch(self, path: Path, mask: int) -> int:
        return 1

    def rm_watch(self, wd: int) -> None:
        raise OSError(errno.EINVAL, "no such watch")

    def read(self, timeout: int) -> list[object]:
        return []

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)


class Exhausted:
    """Refuses inotify instances as the kernel does when there are too many, until it is told otherwise."""

    def __init__(self) -> None:
        self.is_over = False

    def __call__(self) -> Any:
        if self.is_over:
            return open_inotify()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
