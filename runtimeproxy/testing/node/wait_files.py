"""The files in which a simulated kernel shows waits: pressure of cgroups, and schedstat of tasks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, Literal

_FIRST_PID: Final = 1_000
_MOST_TASKS: Final = 64
"""Of one workload; others have no files."""
_V1_HIERARCHIES: Final = ("cpu", "cpuacct", "cpuset", "memory", "pids")


class WaitFiles:
    """Files below a folder that stands for `/`.

    A workload is one process, whose threads have run and waited alike.

    Args:
        folder: That folder.
        version: Of the cgroups; with 1, pressure is in a tree of version 2 beside them, as runc makes it.
        has_pressure: Whether there are pressure files.
    """

    def __init__(self, folder: Path, version: Literal[1, 2], *, has_pressure: bool) -> None:
        self._cgroups = folder / "sys/fs/cgroup"
        self._procfs = folder / "proc"
        self._version = version
        unified = self._cgroups / "unified" if version == 1 else self._cgroups
        self._unified = unified if has_pressure else None
        self._next_pid = _FIRST_PID
        self._tasks: dict[str, list[int]] = {}

    def make(self, cgroup: str) -> None:
        """Makes what a new cgroup has; the root has it, too: by that programs see that there is PSI."""
        if self._unified is not None:
            folder = self._unified / cgroup.strip("/")
            folder.mkdir(parents=True, exist_ok=True)
            for each in (self._unified, folder):
                _write(each / "cpu.pressure", _NO_PRESSURE)
                _write(each / "cgroup.pressure", "1")
            if self._version == 1:
                _write(folder / "cgroup.procs", "")
                _write(folder / "cgroup.events", "populated 0\nfrozen 0")

    def start(self, cgroup: str, count: float) -> None:
        """Starts a process with so many threads."""
        self._end_tasks(cgroup)
        tids = list(range(self._next_pid, self._next_pid + max(min(int(count), _MOST_TASKS), 1)))
        self._next_pid = tids[-1] + 1
        self._tasks[cgroup] = tids
        names = {1: "tasks", 2: "cgroup.threads"}
        folders = [self._cgroups]
        if self._version == 1:
            folders = [self._cgroups / each for each in _V1_HIERARCHIES]
        if self._version == 1 and self._unified is not None:
            _write(self._unified / cgroup.strip("/") / "cgroup.procs", str(tids[0]))
            for above in (each for each in (cgroup, *map(str, Path(cgroup).parents)) if each != "/"):
                _write(self._unified / above.strip("/") / "cgroup.events", "populated 1\nfrozen 0")
        for folder in folders:
            _write(folder / cgroup.strip("/") / "cgroup.procs", str(tids[0]))
            _write(folder / cgroup.strip("/") / names[self._version], "\n".join(map(str, tids)))
        for tid in tids:
            (self._procfs / str(tids[0]) / "task" / str(tid)).mkdir(parents=True)
        self.run(cgroup, 0.0, 0.0, 0.0)

    def end(self, cgroup: str) -> None:
        """Ends a cgroup's process, and removes what the cgroup had beside the files of its hierarchy."""
        self._end_tasks(cgroup)
        if self._version == 1 and self._unified is not None:
            shutil.rmtree(self._unified / cgroup.strip("/"), ignore_errors=True)

    def _end_tasks(self, cgroup: str) -> None:
        for tid in self._tasks.pop(cgroup, ())[:1]:
            shutil.rmtree(self._procfs / str(tid))

    def run(self, cgroup: str, ran_us: float, delay_us: float, turns: float) -> None:
        """Writes what the tasks of a cgroup's own workload have run and waited.

        Source of the shape: Linux Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat.
        """
        tids = self._tasks[cgroup]
        count = len(tids)
        ran_ns, delay_ns = int(ran_us * 1_000 / count), int(delay_us * 1_000 / count)
        content = f"{ran_ns} {delay_ns} {int(turns / count)}"
        folder = self._procfs / str(tids[0])
        _write(folder / "schedstat", content)
        for tid in tids:
            _write(folder / "task" / str(tid) / "schedstat", content)

    def publish(self, cgroup: str, pressure: str) -> None:
        """Writes the pressure of a cgroup."""
        if self._unified is not None:
            _write(self._unified / cgroup.strip("/") / "cpu.pressure", pressure)

    def publish_node(self, pressure: str) -> None:
        """Writes the pressure of the node."""
        if self._unified is not None:
            (self._procfs / "pressure").mkdir(exist_ok=True)
            _write(self._procfs / "pressure/cpu", pressure)
            _write(self._unified / "cpu.pressure", pressure)


_NO_PRESSURE: Final = "\n".join(
    f"{kind} avg10=0.00 avg60=0.00 avg300=0.00 total=0" for kind in ("some", "full")
)


def _write(file: Path, content: str) -> None:
    file.write_text(f"{content}\n", encoding="ascii")
