"""The audit in a file of its own: one line of JSON per decision, rotated by size.

Entries are gathered in the event loop's thread, and formatted and written in a thread of their own. A full
queue, a full disk and a file that cannot be opened lose lines, which are counted; they never delay a call.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

from runtimeproxy.logs import FailureLog

if TYPE_CHECKING:
    from runtimeproxy.config.settings import AuditSettings
    from runtimeproxy.hooks.audit import AuditEntry

logger = logging.getLogger(__name__)

MOST_QUEUED: Final = 20_000
"""Entries that wait for the disk: some MiB, and the changes of some thousand containers."""
REOPEN_S: Final = 1.0
"""Between two attempts to open a file that could not be opened."""
CLOSE_S: Final = 1.0
"""How long the end of the process waits for the disk."""

_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


Write = Callable[[int, bytes], int]


class _Reopen(NamedTuple):
    """Has the thread open the file again, with these settings."""

    settings: AuditSettings


class AuditFile:
    """An audit sink; used in the event loop's thread.

    Args:
        settings: see `AuditSettings`; without a file it takes nothing.
        write: writes to a descriptor, as `os.write`.
    """

    def __init__(self, settings: AuditSettings, write: Write = os.write) -> None:
        self._settings = settings
        self._gathered: list[AuditEntry] = []
        self._queue: SimpleQueue[list[AuditEntry] | _Reopen | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._queued = 0
        self._overflowed = 0
        self._overflow = ""
        self._writer = _Writer(settings, write)
        self._thread: threading.Thread | None = None

    @property
    def written(self) -> int:
        # Lines, since the start.
        return self._writer.written

    @property
    def lost(self) -> int:
        # Lines that were lost since the start; of what did not fit into the queue, entries.
        return self._overflowed + self._writer.lost

    @property
    def path(self) -> str:
        # Empty for none.
        return self._settings.file

    @property
    def problem(self) -> str:
        # Empty if the last line was written.
        return self._overflow or self._writer.problem

    def __call__(self, entry: AuditEntry) -> None:
        """Takes an entry; never blocks."""
        if not self._settings.file:
            return
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._pass_on)
        self._gathered.append(entry)

    def configure(self, settings: AuditSettings) -> None:
        # Opens the file again: another program may have renamed it.
        if settings.file or self._settings.file:
            self._pass_on()
            self._settings = settings
            self._put(_Reopen(settings))

    def close(self) -> None:
        """Writes what is gathered, for a bounded time."""
        self._pass_on()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(CLOSE_S)

    def _pass_on(self) -> None:
        entries, self._gathered = self._gathered, []
        if not entries:
            return
        with self._lock:
            if self._queued + len(entries) > MOST_QUEUED:
                self._overflowed += len(entries)
                self._overflow = f"entries came faster than {self._settings.file} can be written"
                return
            self._overflow = ""
            self._queued += len(entries)
        self._put(entries)

    def _put(self, item: list[AuditEntry] | _Reopen) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="audit-writer", daemon=True)
            self._thread.start()
        self._queue.put(item)

    def _run(self) -> None:
        """In the thread: writes until the end."""
        # It imports much, and the daemon is to serve first.
        from runtimeproxy.core.audit_lines import lines

        while (item := self._queue.get()) is not None:
            try:
                if isinstance(item, _Reopen):
                    self._writer.reopen(item.settings)
                    continue
                for line in lines(item):
                    self._writer.write(line)
            except Exception:  # a bug costs these lines, not the thread
                logger.exception("audit entries cannot be written")
            if isinstance(item, list):
                with self._lock:
                    self._queued -= len(item)
        self._writer.close()


class _Writer:
    """The file; used in one thread.

    Attributes:
        lost: lines that could not be written.
        problem: why the last line was lost; empty if it was written.
    """

    def __init__(self, settings: AuditSettings, write: Write) -> None:
        self._settings = settings
        self._write = write
        self._failures = FailureLog()
        self._descriptor = -1
        self._size_bytes = 0
        self._open_again_s = 0.0
        self._is_cut = False
        self.written = 0
        self.lost = 0
        self.problem = ""

    def reopen(self, settings: AuditSettings) -> None:
        self.close()
        self._settings = settings
        self._open_again_s = 0.0

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def write(self, line: bytes) -> None:
        try:
            if self._descriptor < 0:
                self._open()
            if self._size_bytes and self._size_bytes + len(line) > self._settings.max_bytes:
                self._rotate()
            self._append(line)
        except OSError as error:
            self.lost += 1
            self.problem = text = f"{self._settings.file}: {error.strerror}"
            self._failures.report("audit file", error.errno, text, level=logging.ERROR)
        else:
            self.written += 1
            self.problem = ""

    def _append(self, line: bytes) -> None:
        # The part of a line that a full disk took is ended, so that the next one can be read.
        data = b"\n" + line if self._is_cut else line
        count = self._write(self._descriptor, data)
        self._size_bytes += count
        if count < len(data):
            self._is_cut = self._is_cut or count > 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._is_cut = False

    def _open(self) -> None:
        now_s = time.monotonic()
        if now_s < self._open_again_s:
            raise OSError(errno.EAGAIN, "it could not be opened a moment ago")
        self._open_again_s = now_s + REOPEN_S
        path = Path(self._settings.file)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, _FLAGS, 0o600)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is not a regular file")
        self._descriptor, self._size_bytes, self._open_again_s = descriptor, status.st_size, 0.0
        # A process that was killed may have written half a line.
        self._is_cut = status.st_size > 0 and not _ends_with_newline(path)

    def _rotate(self) -> None:
        """Renames the file to `.1`, that to `.2` and so on; the last one goes."""
        path, keep = self._settings.file, self._settings.keep
        self.close()
        with suppress(FileNotFoundError):
            Path(f"{path}.{keep}" if keep else path).unlink()
        for number in range(keep, 0, -1):
            with suppress(FileNotFoundError):
                Path(f"{path}.{number - 1}" if number > 1 else path).rename(f"{path}.{number}")
        self._open()


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
