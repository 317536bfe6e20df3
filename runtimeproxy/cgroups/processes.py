"""Values that each process or thread of a cgroup has for itself: read and written where files are.

What the processes of a cgroup have reads as one text: each value that one of them has, once. Those of the
cgroups below belong to it: a container may make some for itself, as systemd in a container does.

Processes fork while their values are written. So all are read again and again until none is without the
value, within bounds; what remains is said, and one that is being forked in that very moment is found by the
next comparison. A number may belong to another process by then: a process is held by its folder in procfs,
and has to be in the cgroup after that.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from runtimeproxy.cgroups.pace import rest
from runtimeproxy.fields.formats import Members, ProcessFormat
from runtimeproxy.fields.tables import NEUTRAL

DEFAULT_PROCFS: Final = Path("/proc")
MOST_PASSES: Final = 16
"""Each pass writes to all that the one before has missed: with fewer processes each time, unless they fork
faster than that."""
MOST_PROCESSES: Final = 4_096
"""Of one cgroup, those below included: a pass over so many takes a tenth of a second."""
MOST_CGROUPS: Final = 256
"""Below one: a container may make as many as it likes."""
MOST_VALUES: Final = 8
"""In the text of what a cgroup's processes have."""
MORE: Final = "..."
"""Stands for others in that text."""
KEPT: Final = ""
"""The text of a process that keeps what it has, whatever the others of its cgroup get."""
NOT_VISIBLE: Final = (
    "its processes are not visible from here: the daemon has to run in the node's PID namespace (hostPID), "
    "with a procfs that shows all"
)
CUT: Final = f"more than {MOST_PROCESSES:,} processes or {MOST_CGROUPS} cgroups below: others are without it"
FORKING: Final = "its processes fork faster than the value is written: some are without it"
_CURRENT: Final = "pids.current"
_NODES_NAMESPACE: Final = "pid:[4026531836]"
"""Source: Linux include/linux/proc_ns.h, PROC_PID_INIT_INO."""
_PIECE_BYTES: Final = 65_536
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PROCESS_FLAGS: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_ENDED: Final = frozenset({errno.ENOENT, errno.ESRCH})
_NO_MEMBERS: Final = frozenset({errno.EOPNOTSUPP, errno.ENOENT, errno.ENODEV})
"""Errors of cgroups below: EOPNOTSUPP of version 2 where threads are what a cgroup holds."""
_LISTS: Final = {
    (Members.PROCESSES, 1): "cgroup.procs",
    (Members.PROCESSES, 2): "cgroup.procs",
    (Members.THREADS, 1): "tasks",
    (Members.THREADS, 2): "cgroup.threads",
}
"""By members and version. Source: Linux, admin-guide/cgroup-v1/cgroups.rst, admin-guide/cgroup-v2.rst."""


class ProcessAccess(Protocol):
    """How one value of a process or thread is read and written; for worker threads, thread safe.

    A process that has ended meanwhile is ENOENT or ESRCH.
    """

    def refresh(self) -> None:
        """Called before each pass that writes: what was read of many processes at once is old by then."""
        ...

    def read(self, pid: int, folder: int) -> str:
        """The text of its value, one word; `KEPT` for a process that is not to get another one.

        Args:
            pid: Of the process or thread, as this process sees it; only `folder` is sure to be of this one.
            folder: Its folder in procfs, an open descriptor.

        Raises:
            OSError: The kernel's error.
        """
        ...

    def write(self, pid: int, folder: int, text: str) -> None:
        """Gives it a value; raises OSError as `read`."""
        ...


class CgroupAccess(Protocol):
    """How values that a cgroup has elsewhere than in its files are read and written; thread safe."""

    def read_pod(self, field: str, cgroup: str) -> str:
        """The text of a value; `cgroup` is the name of its folder, which no other pod has."""
        ...

    def write_pod(self, field: str, cgroup: str, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ProcFile:
    """A value that is a file in a process's folder of procfs."""

    name: str

    def refresh(self) -> None:
        return

    def read(self, pid: int, folder: int) -> str:
        return _content(self.name, folder).strip()

    def write(self, pid: int, folder: int, text: str) -> None:
        descriptor = os.open(self.name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


@dataclass(slots=True)
class ProcessesWritten:
    """What became of one write to all processes of a cgroup.

    Attributes:
        written: How many got the value.
        had: How many had it.
        refused: The kernel's errors, by process.
        problem: Why others are without the value; empty if that is not so.
    """

    written: int = 0
    had: int = 0
    refused: dict[int, OSError] = field(default_factory=dict)
    problem: str = ""


@dataclass(slots=True)
class _Found:
    """The processes or threads of a cgroup and of those below."""

    pids: dict[int, None] = field(default_factory=dict)
    hidden: int = 0
    """Those of other PID namespaces, which have no number here. On version 1 they are not in the list."""
    cgroups: int = 0
    is_cut: bool = False


class ProcessValues:
    """Reads and writes the values of all processes or threads of a cgroup.

    Args:
        procfs: Where procfs is mounted.
        accesses: By the name of their format's `file`, of values that are no file of procfs.
        of_cgroups: Has the values of cgroups themselves; None: where they are not kept, all are neutral.
    """

    def __init__(
        self,
        procfs: Path = DEFAULT_PROCFS,
        accesses: Mapping[str, ProcessAccess] | None = None,
        of_cgroups: CgroupAccess | None = None,
    ) -> None:
        self._procfs = procfs
        self._accesses = dict(accesses or {})
        self.of_cgroups = of_cgroups

    def text(self, form: ProcessFormat, cgroup: int, version: int) -> str:
        """The values that the processes of a cgroup have, each once, sorted; empty without any process.

        Args:
            form: Of the value.
            cgroup: The cgroup's folder, an open descriptor.
            version: That of its hierarchy.

        Raises:
            OSError: The kernel's error. ESRCH: its processes are not visible from here.
        """
        if form.members is Members.CGROUP:
            if self.of_cgroups is None:
                return f"{NEUTRAL[form.file]}\n"
            return f"{self.of_cgroups.read_pod(form.file, _name_of(cgroup))}\n"
        access, counts = self._access(form), Counter[str]()
        pids = self._members(form, cgroup, version).pids
        for pid in pids:
            rest()
            try:
                process = self._open(pid)
            except OSError as error:
                if error.errno not in _ENDED:
                    raise
                continue
            try:
                counts[access.read(pid, process)] += 1
            except OSError as error:
                if error.errno not in _ENDED:
                    raise
            finally:
                os.close(process)
        if pids and not counts and pids.keys() & self._members(form, cgroup, version).pids.keys():
            # Not ended: procfs hides them (`hidepid`).
            raise ProcessLookupError(errno.ESRCH, NOT_VISIBLE)
        found = [each for each, _ in counts.most_common(MOST_VALUES) if each != KEPT]
        return " ".join((*sorted(found), *([MORE] if len(counts) > MOST_VALUES else ()))) + "\n"

    def write(
        self,
        form: ProcessFormat,
        cgroup: int,
        version: int,
        name: str,
        text: str,
        is_due: Callable[[str], bool],
    ) -> ProcessesWritten:
        """Gives a value to all processes of a cgroup that are to get it, and to those that they fork.

        Args:
            form: Of the value.
            cgroup: The cgroup's folder, an open descriptor.
            version: That of its hierarchy.
            name: Of the folder, which no other cgroup has: only processes below it are written to.
            text: The value.
            is_due: Whether a process with this text is to get another one.

        Raises:
            OSError: As `text`.
        """
        if form.members is Members.CGROUP:
            if self.of_cgroups is not None:
                self.of_cgroups.write_pod(form.file, name, text)
            return ProcessesWritten(written=1)
        access, done = self._access(form), ProcessesWritten()
        for _ in range(MOST_PASSES):
            found = self._members(form, cgroup, version)
            access.refresh()
            done.had, is_any_due = 0, False
            for pid in found.pids:
                rest()
                if pid in done.refused:
                    continue
                try:
                    is_written = self._write_one(access, pid, name, text, is_due)
                except OSError as error:
                    if error.errno not in _ENDED:
                        done.refused[pid] = error
                    continue
                done.had += not is_written
                done.written += is_written
                is_any_due |= is_written
            done.problem = CUT if found.is_cut else ""
            if not is_any_due:
                return done
        done.problem = FORKING
        return done

    def _write_one(
        self, access: ProcessAccess, pid: int, name: str, text: str, is_due: Callable[[str], bool]
    ) -> bool:
        """Whether a process was to get the value, and has got it; one that is elsewhere now is none of these.

        Raises:
            OSError: The kernel's error; ESRCH for one that has ended, or is elsewhere.
        """
        process = self._open(pid)
        try:
            if not is_due(access.read(pid, process)):
                return False
            # The number may have been given to another process before its folder was opened, and not since.
            if f"/{name}/" not in _content("cgroup", process).replace("\n", "/\n"):
                raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
            access.write(pid, process, text)
        finally:
            os.close(process)
        return True

    def _open(self, pid: int) -> int:
        return os.open(self._procfs / str(pid), _PROCESS_FLAGS)

    def _access(self, form: ProcessFormat) -> ProcessAccess:
        return self._accesses.get(form.file) or ProcFile(form.file)

    def _members(self, form: ProcessFormat, cgroup: int, version: int) -> _Found:
        found, file = _Found(), _LISTS[form.members, version]
        _add_members(found, file, cgroup)
        for folder in _folders_below(cgroup, found):
            try:
                _add_members(found, file, folder)
            except OSError as error:
                if error.errno not in _NO_MEMBERS:
                    raise
        if not found.pids and (found.hidden or (version == 1 and self._hides(cgroup))):
            raise ProcessLookupError(errno.ESRCH, NOT_VISIBLE)
        return found

    def _hides(self, cgroup: int) -> bool:
        """Whether a cgroup of version 1 has processes of another PID namespace, which no list shows."""
        with suppress(OSError, ValueError):
            # Also those that have ended and are not waited for, so that it says nothing in the node's own.
            has_any = int(_content(_CURRENT, cgroup)) > 0
            return has_any and os.readlink(self._procfs / "self/ns/pid") != _NODES_NAMESPACE  # noqa: PTH115
        return False


def _name_of(folder: int) -> str:
    return Path(os.readlink(f"/proc/self/fd/{folder}")).name  # noqa: PTH115


def _add_members(found: _Found, file: str, cgroup: int) -> None:
    for word in _content(file, cgroup).split():
        pid = int(word)
        if pid == 0:
            found.hidden += 1
        elif len(found.pids) < MOST_PROCESSES:
            found.pids[pid] = None
        else:
            found.is_cut = True


def _folders_below(cgroup: int, found: _Found) -> Iterator[int]:
    """The cgroups below one, each open until the next one is asked for."""
    left = ["."]
    while left:
        path = left.pop()
        try:
            folder = os.open(path, _FOLDER_FLAGS, dir_fd=cgroup)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                found.is_cut = True
            elif error.errno not in _NO_MEMBERS:
                raise
            continue
        try:
            if path != ".":
                yield folder
            with os.scandir(folder) as entries:
                below = [f"{path}/{each.name}" for each in entries if each.is_dir(follow_symlinks=False)]
        finally:
            os.close(folder)
        taken = below[: MOST_CGROUPS - found.cgroups]
        found.is_cut |= len(taken) < len(below)
        found.cgroups += len(taken)
        left += taken


def _content(file: str, folder: int) -> str:
    """The whole content; the kernel gives a long list in pieces."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    try:
        pieces = []
        while piece := os.read(descriptor, _PIECE_BYTES):
            pieces.append(piece)
        return b"".join(pieces).decode("utf-8", "replace")
    finally:
        os.close(descriptor)
