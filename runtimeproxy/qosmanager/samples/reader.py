"""Reads many kernel files in one pass: with descriptors that stay open, and in a thread that may hang.

A read of a cgroup file waits where the kernel holds a lock over a change of the hierarchy, and one below a
procfs of FUSE (lxcfs) waits for a program. So a pass runs in a thread of its own, which is left behind when a
file does not return in time; another one goes on with the next file. A FIFO or device under a file's name
is not read at all.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from queue import SimpleQueue
from typing import Final, NamedTuple

from runtimeproxy.qosmanager.samples.kernel_files import FileGroup, Numbers


class Loss(StrEnum):
    """Why there is no sample."""

    GONE = "gone"
    """There is no such cgroup or file: it vanished, is not made yet, or the kernel lacks the file."""
    UNREADABLE = "unreadable"
    """Another error of the kernel."""
    GARBAGE = "garbage"
    """The content is not that of such a file."""
    COUNTER_BACK = "counter_back"
    """A counter is less than before."""
    IMPLAUSIBLE = "implausible"
    """The values cannot be, such as more CPU time than there are CPUs."""
    STUCK = "stuck"
    """The read did not return in time."""
    NOT_READ = "not_read"
    """The pass ended before this file, as too many others were stuck."""


class FileReading(NamedTuple):
    """The result of one read."""

    at_s: float
    """Monotonic."""
    numbers: Numbers
    """Empty if `loss` is set."""
    loss: Loss | None = None
    is_replaced: bool = False
    """The files are others than those of the read before: the cgroup was made anew."""


_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_READ_BYTES: Final = 16_384
_MOST_BYTES: Final = 1 << 20
"""For a machine with so many CPUs or NUMA nodes that a file exceeds the usual size."""
_NO_SUCH_FILE: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ESTALE})
"""The kernel answers ENODEV where the cgroup of an open file was removed."""
MOST_HANGING: Final = 8
"""Threads that hang at once; while there are as many, nothing is read."""
_MOST_STUCK_PER_PASS: Final = 2
"""Files that get stuck in one pass before the rest of it is not read."""
_NAME_CHECK_READS: Final = 10
"""Number of reads after which a kept file's name is checked. For cgroups that are plain files,
as in tests and simulations; of a removed cgroup the kernel says so at once."""
_first_checks = itertools.cycle(range(_NAME_CHECK_READS))
"""Not all files in the same pass."""


class KernelFile:
    """One file; its descriptor stays open if it is kept."""

    __slots__ = ("_inode", "descriptor", "folder", "name")

    def __init__(self, folder: str, name: str) -> None:
        # There are thousands: a text of its own for the path of each would take a MiB.
        self.folder = folder
        self.name = name
        self.descriptor = -1
        self._inode: int | None = None

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}"

    def open(self) -> bool:
        """Opens it; returns whether it is another file than before. Raises OSError and ValueError."""
        descriptor = os.open(self.path, _FLAGS)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise ValueError("not a regular file")
        before, self._inode = self._inode, found.st_ino
        self.descriptor = descriptor
        return before is not None and before != self._inode

    def is_unlinked(self) -> bool:
        return self.descriptor >= 0 and os.fstat(self.descriptor).st_nlink == 0

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class SourceFiles:
    """The files of one source, of one cgroup or the node."""

    __slots__ = ("_reads", "files", "is_kept", "is_stuck", "source")

    def __init__(self, source: FileGroup, folders: Sequence[str]) -> None:
        self.source = source
        self.files = [
            KernelFile(folder, name) for folder, (_, name) in zip(folders, source.files, strict=True)
        ]
        self.is_stuck = False
        """A thread hangs in it, and owns it until it returns."""
        self.is_kept = False
        """Whether descriptors stay open after a read."""
        self._reads = next(_first_checks)

    def read(self, at_s: float) -> FileReading:
        """Reads and decodes the files, now. Whatever is wrong with them is a loss, not an error."""
        self._reads += 1
        try:
            if self._reads % _NAME_CHECK_READS == 0 and any(file.is_unlinked() for file in self.files):
                self.close_files()
            contents: list[bytes] = []
            is_replaced = False
            for file in self.files:
                if file.descriptor < 0 and file.open():
                    is_replaced = True
                content = os.pread(file.descriptor, _READ_BYTES, 0)
                if len(content) == _READ_BYTES:
                    content = os.pread(file.descriptor, _MOST_BYTES, 0)
                contents.append(content)
                if not self.is_kept:
                    file.close()
            return FileReading(at_s, self.source.decode(contents), None, is_replaced)
        except ValueError:
            return FileReading(at_s, (), Loss.GARBAGE)
        except OSError as error:
            self.close_files()
            return FileReading(at_s, (), Loss.GONE if error.errno in _NO_SUCH_FILE else Loss.UNREADABLE)

    def close_files(self) -> None:
        for file in self.files:
            file.close()

    def close(self) -> None:
        # A thread that hangs in a read closes them as soon as it returns.
        if not self.is_stuck:
            self.close_files()


class _Pass:
    """A list of files that a thread reads in its order."""

    def __init__(self, files: Sequence[SourceFiles], clock: Callable[[], float]) -> None:
        self.files = files
        self.clock = clock
        self.readings: list[FileReading] = []
        self.lock = threading.Lock()
        """Held to add a reading, and to leave the thread behind: of the two only one happens."""
        self.is_abandoned = False
        self.done = threading.Event()

    def run(self) -> bool:
        """Reads all files; False if the thread was left behind meanwhile."""
        for files in self.files:
            reading = files.read(self.clock())
            with self.lock:
                if self.is_abandoned:
                    files.is_stuck = False
                    files.close_files()
                    return False
                self.readings.append(reading)
        self.done.set()
        return True

    def abandon(self, count: int) -> bool:
        with self.lock:
            if len(self.readings) > count or self.done.is_set():
                return False
            self.is_abandoned = True
            self.files[count].is_stuck = True
            return True


class PassReader:
    """Reads lists of files, one list at a time."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        stuck_after_s: float = 0.5,
    ) -> None:
        """Starts no thread yet. A file is stuck after `stuck_after_s`; noticed within twice this time."""
        self.clock = clock
        self._stuck_after_s = stuck_after_s
        self._passes: SimpleQueue[_Pass | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._hanging: list[threading.Thread] = []

    @property
    def hanging_threads(self) -> int:
        """How many threads hang in a read now."""
        self._hanging = [thread for thread in self._hanging if thread.is_alive()]
        return len(self._hanging)

    def read(self, files: Sequence[SourceFiles]) -> list[FileReading]:
        """Reads the files, none of which is stuck, and returns a reading for each, in their order."""
        readings: list[FileReading] = []
        stuck = 0
        while len(readings) < len(files):
            begun = len(readings)
            if stuck == _MOST_STUCK_PER_PASS or self.hanging_threads >= MOST_HANGING:
                return readings + [FileReading(self.clock(), (), Loss.NOT_READ)] * (len(files) - begun)
            rest = _Pass(files[begun:], self.clock)
            thread = self._start(rest)
            is_whole = self._wait(rest)
            readings += rest.readings
            if not is_whole:
                self._hanging.append(thread)
                self._thread = None
                stuck += 1
                readings.append(FileReading(self.clock(), (), Loss.STUCK))
        return readings

    def close(self) -> None:
        """Ends the thread; one that hangs ends when its read returns, and does not hold up the process."""
        self._passes.put(None)
        if self._thread is not None:
            self._thread.join(2 * self._stuck_after_s)
            self._thread = None

    def _start(self, work: _Pass) -> threading.Thread:
        if self._thread is None:
            self._passes = SimpleQueue()
            self._thread = threading.Thread(target=_work, args=(self._passes,), name="samples", daemon=True)
            self._thread.start()
        self._passes.put(work)
        return self._thread

    def _wait(self, work: _Pass) -> bool:
        """Waits for the end; False if a file is stuck, and its thread is left behind."""
        seen = -1
        while not work.done.wait(self._stuck_after_s):
            count = len(work.readings)
            if count == seen and work.abandon(count):
                return False
            seen = count
        return True


def _work(passes: SimpleQueue[_Pass | None]) -> None:
    while (work := passes.get()) is not None and work.run():
        pass
