"""How long threads waited for a CPU, and why a cgroup has no pressure.

The run delay of a cgroup is no file: each thread has its own (`/proc/PID/task/TID/schedstat`; that of the
process is its first thread's alone). So the threads of some pods are read one by one, within bounds.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from runtimeproxy.cgroups.mounts import Mount
from runtimeproxy.qosmanager.guard.signal import Threads, run_delay_share

MOST_THREADS: Final = 1_000
"""Read in one pass. Each pod has its even share of them, and what others leave goes to the first ones: a pod
may have as many threads as it likes."""
MOST_CGROUPS: Final = 64
"""Below one pod: a container may make as many as it likes."""
_LIST_PASSES: Final = 10
"""The threads of a pod are listed once in so many passes, a tenth of the pods in each: to list 1,000 threads
of 166 pods takes 16 ms, to read them 3."""
_LIST_BYTES: Final = 65_536
_SCHEDSTAT_BYTES: Final = 96
_LEAF_LINKS: Final = 2
"""Source: Linux fs/kernfs/inode.c, kernfs_refresh_inode."""
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

PSI_IS_OFF: Final = (
    "PSI is off: the kernel was started with psi=0, or without psi=1 where that is its default"
)
NO_FULL: Final = "cpu.pressure has no line full, which Linux 5.13 has"
SWITCHED_OFF: Final = "pressure of this cgroup is switched off: its cgroup.pressure is 0"
NO_SCHEDSTAT: Final = "threads have no schedstat: the kernel lacks CONFIG_SCHED_INFO"
HIDDEN: Final = (
    "threads of pods cannot be seen: procfs hides them (ProtectProc= of the unit, without the drop-in "
    "40-run-delay.conf), or this is another PID namespace (without hostPID)"
)
NO_HIERARCHY: Final = "there is no hierarchy in which the processes of pods are found"
ZERO_SCHEDSTAT: Final = "the kernel counts no run delay: schedstat of threads is 0"


def pressure_problem(folder: Path, procfs: Path) -> str:
    """Return why a cgroup has no CPU pressure of `full`; empty if it has, or if it is gone."""
    try:
        content = (folder / "cpu.pressure").read_bytes()
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return PSI_IS_OFF
        if not folder.is_dir():
            return ""
        if _content(folder / "cgroup.pressure").strip() == b"0":
            return SWITCHED_OFF
        # The node's file is there with PSI, but EOPNOTSUPP where it is off.
        if not _content(procfs / "pressure/cpu"):
            return PSI_IS_OFF
        return f"cpu.pressure: {os.strerror(error.errno or 0)}"
    return "" if b"full " in content else NO_FULL


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def process_folder(mounts: Mapping[str, Mount]) -> Path | None:
    """The hierarchy in which the processes of pods are found; None if there is none."""
    found = next((mounts[name] for name in ("cpu", "cpuacct", "memory") if name in mounts), None)
    return found.folder if found is not None else None


class Delay(NamedTuple):
    """The run delay of one cgroup over one pass."""

    cgroup: str
    at_s: float
    share: float
    """Of the time that its threads ran or waited; below 0: a counter fell."""


class _Followed:
    """A cgroup whose threads are read."""

    __slots__ = ("descriptors", "is_due", "names", "threads", "turn")

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.is_due = True
        """Whether its threads are listed in the next pass whatever the turn."""
        self.threads: Threads = {}
        self.names: dict[int, str] = {}
        """By thread: its file."""
        self.descriptors: dict[int, int] = {}
        """Those of the files that stay open, by thread."""

    def drop(self, thread: int) -> None:
        del self.names[thread]
        if (descriptor := self.descriptors.pop(thread, None)) is not None:
            os.close(descriptor)

    def close(self) -> None:
        for thread in tuple(self.names):
            self.drop(thread)


class RunDelays:
    """Reads the threads of some cgroups; used by one thread.

    Threads are listed when one of them has ended, and once in `_LIST_PASSES` passes: one that is new counts
    from the pass on that follows. Their files stay open as far as descriptors go.
    """

    def __init__(
        self,
        folder: Path | None,
        procfs: Path,
        clock: Callable[[], float],
        most_threads: int = MOST_THREADS,
        most_kept_files: int = MOST_THREADS,
    ) -> None:
        self.problem = NO_HIERARCHY if folder is None else ""
        """Why there is none; empty if that is not known."""
        self._are_hidden = False
        self._folder = folder
        self._procfs = str(procfs)
        self._clock = clock
        self._most_threads = most_threads
        self._most_kept_files = most_kept_files
        self._kept_files = 0
        self._passes = 0
        self._followed: dict[str, _Followed] = {}

    def read(self, cgroups: Sequence[str]) -> list[Delay]:
        """Reads the threads of cgroups, as many as may be; the delays since the last pass.

        All have an even share of what may be read, as far as they are known to need it; what is left of that
        goes to the first ones. A cgroup that is new may have to wait for the next pass.
        """
        if self._folder is None:
            return []
        found: list[Delay] = []
        followed: dict[str, _Followed] = {}
        left, is_zero, is_any = self._most_threads, False, False
        self._are_hidden = False
        self._passes += 1
        share = max(self._most_threads // max(len(cgroups), 1), 1)
        known = (self._followed.get(each) for each in cgroups)
        kept = [min(len(each.names), share) if each is not None else 0 for each in known]
        kept_for_others = sum(kept)
        for turn, cgroup in enumerate(cgroups):
            kept_for_others -= kept[turn]
            most = max(left - kept_for_others, 0)
            each = self._followed.pop(cgroup) if cgroup in self._followed else _Followed(turn)
            followed[cgroup] = each
            if each.is_due or (self._passes + each.turn) % _LIST_PASSES == 0:
                self._list(cgroup, each, max(most, share))
            at_s = self._clock()
            threads = self._threads(each, most)
            left -= len(threads)
            delay = run_delay_share(each.threads, threads)
            each.threads = threads
            is_any = is_any or bool(threads)
            is_zero = is_zero or (bool(threads) and not any(map(any, threads.values())))
            if delay is not None:
                found.append(Delay(cgroup, at_s, delay))
        self.close()
        self._followed = followed
        self._kept_files = sum(len(each.descriptors) for each in followed.values())
        if found:
            self.problem = ""
        elif is_zero:
            self.problem = ZERO_SCHEDSTAT
        elif self._are_hidden and not is_any:
            self.problem = HIDDEN
        return found

    def close(self) -> None:
        """Closes all files."""
        for each in self._followed.values():
            each.close()
        self._followed = {}

    def _list(self, cgroup: str, followed: _Followed, most: int) -> None:
        """Finds the threads of a cgroup and of those below it."""
        followed.is_due = False
        names: dict[int, str] = {}
        for folder in _cgroups_below(f"{self._folder}/{cgroup.strip('/')}"):
            for process in _read(f"{folder}/cgroup.procs", _LIST_BYTES).split():
                if len(names) < most:
                    self._add_process(process.decode("ascii", "replace"), names, most)
        for thread in followed.names.keys() - names.keys():
            followed.drop(thread)
        followed.names |= names

    def _add_process(self, process: str, names: dict[int, str], most: int) -> None:
        tasks = f"{self._procfs}/{process}/task"
        try:
            threads = os.listdir(tasks)  # noqa: PTH208 - no paths are needed
        except OSError:
            self._are_hidden = True
            return  # Or it has ended.
        for thread in threads[: most - len(names)]:
            names[int(thread)] = f"{tasks}/{thread}/schedstat"

    def _threads(self, followed: _Followed, most: int) -> dict[int, tuple[int, int]]:
        threads: dict[int, tuple[int, int]] = {}
        failed = ""
        descriptors = followed.descriptors
        for thread, name in tuple(followed.names.items())[:most]:
            try:
                if (descriptor := descriptors.get(thread)) is not None:
                    fields = os.pread(descriptor, _SCHEDSTAT_BYTES, 0).split()
                else:
                    fields = self._opened(followed, thread, name).split()
            except OSError:
                # It has ended, or the kernel has no such file.
                followed.drop(thread)
                failed = name
                continue
            if len(fields) == 3 and fields[0].isdigit() and fields[1].isdigit():
                threads[thread] = int(fields[0]), int(fields[1])
        if failed:
            followed.is_due = bool(threads)
            if not threads:
                self._note_schedstat(failed)
        return threads

    def _opened(self, followed: _Followed, thread: int, name: str) -> bytes:
        """The content of a file, which stays open if it may."""
        descriptor = os.open(name, _FLAGS)
        if self._kept_files < self._most_kept_files:
            followed.descriptors[thread] = descriptor
            self._kept_files += 1
            return os.pread(descriptor, _SCHEDSTAT_BYTES, 0)
        try:
            return os.read(descriptor, _SCHEDSTAT_BYTES)
        finally:
            os.close(descriptor)

    def _note_schedstat(self, name: str) -> None:
        folder = Path(name).parent
        if not (folder / "schedstat").exists() and (folder / "stat").exists():
            self.problem = NO_SCHEDSTAT


def _read(path: str, most: int) -> bytes:
    """The content of a file; empty if it cannot be read."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return b""
    try:
        return os.read(descriptor, most)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _cgroups_below(folder: str) -> list[str]:
    """A cgroup and those below it, within bounds."""
    found = [folder]
    for each in found:
        try:
            # A link for itself, one of its parent, and one of each folder in it: most have none.
            if os.stat(each).st_nlink == _LEAF_LINKS:  # noqa: PTH116 - no paths are needed
                continue
            with os.scandir(each) as entries:
                found += (entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError:
            continue
        if len(found) >= MOST_CGROUPS:
            break
    return found[:MOST_CGROUPS]
