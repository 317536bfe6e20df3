"""The kernel's cookies of tasks, at the boundary of prctl. Source: Linux kernel/sched/core_sched.c."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from threading import Lock, local
from typing import Protocol

from runtimeproxy.cgroups.core_scheduling import Command, Scope
from runtimeproxy.testing import CgroupFiles


class Cookies:
    """Tasks with cookies; stands in for `prctl`.

    Attributes:
        processes: The process of each task.
        cookies: The cookie of each task that has one.
        refused: Tasks that this process may not trace.
        made: How many cookies were made.
    """

    def __init__(self) -> None:
        self.processes: dict[int, int] = {}
        self.cookies: dict[int, int] = {}
        self.refused: set[int] = set()
        self.made = 0
        self._numbers: list[int] = []
        self._lock = Lock()
        # What a thread of this process has ends with it.
        self._caller = local()

    def start(self, task: int, process: int | None = None, parent: int = 0) -> None:
        """A fork or clone: the new task has its parent's cookie."""
        self.processes[task] = task if process is None else process
        if parent in self.cookies:
            self.cookies[task] = self.cookies[parent]

    def end(self, *tasks: int) -> None:
        for task in tasks:
            del self.processes[task]
            self.cookies.pop(task, None)

    def of(self, *tasks: int) -> list[int]:
        """The cookies of some tasks."""
        return [self.cookies.get(task, 0) for task in tasks]

    def __call__(self, command: Command, task: int, scope: Scope) -> int:
        """What the kernel does."""
        with self._lock:
            if task and task not in self.processes:
                raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
            if task in self.refused:
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
            if command in (Command.GET, Command.SHARE_FROM) and scope is not Scope.THREAD:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            own = getattr(self._caller, "cookie", 0)
            cookie = self.cookies.get(task, 0) if task else own
            if command is Command.GET:
                return cookie
            if command is Command.SHARE_FROM:
                self._caller.cookie = cookie
                return 0
            given = self._new(own) if command is Command.CREATE else own
            if not task:
                self._caller.cookie = given
            process = self.processes.get(task)
            for each, its_process in self.processes.items():
                if each == task or (scope is Scope.THREAD_GROUP and its_process == process):
                    self.cookies[each] = given
                    if not given:
                        del self.cookies[each]
            return 0

    def _new(self, own: int) -> int:
        # The number of a cookie whose last task has ended may be given again, and is, here.
        self.made += 1
        used = {*self.cookies.values(), own}
        number = next((each for each in self._numbers if each not in used), 1000 + 8 * self.made)
        self._numbers.append(number)
        return number


class TaskKernel(Protocol):
    """What tasks inherit."""

    def start(self, task: int, process: int | None = None, parent: int = 0) -> None: ...

    def end(self, *tasks: int) -> None: ...


class Tasks:
    """Tasks in cgroups, as files of version 2 and of procfs.

    Args:
        files: The cgroups.
        procfs: In place of `/proc`.
        kernel: Has what is no file.
    """

    def __init__(self, files: CgroupFiles, procfs: Path, kernel: TaskKernel) -> None:
        self._files, self.procfs, self._kernel = files, procfs, kernel
        self._next = 1 << 22

    def make(self, cgroup: str) -> None:
        """A cgroup without any task."""
        self._files.make(cgroup)
        (self._files.folder(cgroup) / "cgroup.threads").touch()

    def start(self, cgroup: str, parent: int = 0, process: int | None = None) -> int:
        """Starts a task; returns its number, above those of this machine.

        `parent`: the one that it inherits its cookie from. `process`: of which it is a thread.
        """
        self._next += 1
        task = self._next
        self._kernel.start(task, process, parent)
        (self.procfs / str(task)).mkdir(parents=True)
        (self.procfs / str(task) / "cgroup").write_text(f"0::{cgroup}\n")
        with (self._files.folder(cgroup) / "cgroup.threads").open("a") as threads:
            threads.write(f"{task}\n")
        return task

    def end(self, *tasks: int) -> None:
        for task in tasks:
            self._kernel.end(task)
            cgroup = (self.procfs / str(task) / "cgroup").read_text().strip().removeprefix("0::")
            shutil.rmtree(self.procfs / str(task))
            threads = self._files.folder(cgroup) / "cgroup.threads"
            left = [each for each in threads.read_text().split() if each != str(task)]
            threads.write_text("".join(f"{each}\n" for each in left))
