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
"""Read in one pass, which takes about 15 ms."""
MOST_CGROUPS: Final = 64
"""Below one pod: a container may make as many as it likes."""
_LIST_PASSES: Final = 5
"""The cgroups below a pod are listed once in so many passes."""
_LIST_BYTES: Final = 65_536
_SCHEDSTAT_BYTES: Final = 96

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
    __slots__ = ("folders", "passes", "threads")

    def __init__(self) -> None:
        self.threads: Threads = {}
        self.folders: list[str] = []
        self.passes = 0


class RunDelays:
    """Reads the threads of some cgroups; used by one thread."""

    def __init__(
        self,
        folder: Path | None,
        procfs: Path,
        clock: Callable[[], float],
        most_threads: int = MOST_THREADS,
    ) -> None:
        self.problem = NO_HIERARCHY if folder is None else ""
        """Why there is none; empty if that is not known."""
        self._are_hidden = False
        self._folder = folder
        self._procfs = str(procfs)
        self._clock = clock
        self._most_threads = most_threads
        self._followed: dict[str, _Followed] = {}

    def read(self, cgroups: Sequence[str]) -> list[Delay]:
        """Reads the threads of cgroups in their order, as many as may be; the delays since the last pass."""
        if self._folder is None:
            return []
        found: list[Delay] = []
        followed: dict[str, _Followed] = {}
        left, is_zero, is_any = self._most_threads, False, False
        self._are_hidden = False
        for cgroup in cgroups:
            if left <= 0:
                break
            each = followed[cgroup] = self._followed.get(cgroup) or _Followed()
            at_s = self._clock()
            threads = self._threads(cgroup, each, left)
            left -= len(threads)
            share = run_delay_share(each.threads, threads)
            each.threads = threads
            is_any = is_any or bool(threads)
            is_zero = is_zero or (bool(threads) and not any(map(any, threads.values())))
            if share is not None:
                found.append(Delay(cgroup, at_s, share))
        # Those that had no turn begin anew: what they waited since is of more than a pass.
        self._followed = followed
        if found:
            self.problem = ""
        elif is_zero:
            self.problem = ZERO_SCHEDSTAT
        elif self._are_hidden and not is_any:
            self.problem = HIDDEN
        return found

    def _threads(self, cgroup: str, followed: _Followed, most: int) -> dict[int, tuple[int, int]]:
        if followed.passes % _LIST_PASSES == 0:
            followed.folders = _cgroups_below(f"{self._folder}/{cgroup.strip('/')}")
        followed.passes += 1
        threads: dict[int, tuple[int, int]] = {}
        for folder in followed.folders:
            for process in _read(f"{folder}/cgroup.procs", _LIST_BYTES).split():
                self._add_process(process.decode("ascii", "replace"), threads, most)
                if len(threads) >= most:
                    return threads
        return threads

    def _add_process(self, process: str, threads: dict[int, tuple[int, int]], most: int) -> None:
        tasks = f"{self._procfs}/{process}/task"
        try:
            names = os.listdir(tasks)  # noqa: PTH208 - no paths are needed
        except OSError:
            self._are_hidden = True
            return  # Or it has ended.
        for name in names[: most - len(threads)]:
            fields = _read(f"{tasks}/{name}/schedstat", _SCHEDSTAT_BYTES).split()
            if len(fields) == 3 and fields[0].isdigit() and fields[1].isdigit():
                threads[int(name)] = int(fields[0]), int(fields[1])
        if names and not threads and not os.path.exists(f"{tasks}/{names[0]}/schedstat"):  # noqa: PTH110
            self.problem = NO_SCHEDSTAT if os.path.exists(f"{tasks}/{names[0]}/stat") else ""  # noqa: PTH110


def _read(path: str, most: int) -> bytes:
    """The content of a file; empty if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
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
            with os.scandir(each) as entries:
                found += (entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError:
            continue
        if len(found) >= MOST_CGROUPS:
            break
    return found[:MOST_CGROUPS]
