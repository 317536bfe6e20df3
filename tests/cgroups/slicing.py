"""The kernel's scheduling attributes of tasks, at the boundary of the system calls."""

from __future__ import annotations

import errno
import os

from runtimeproxy.cgroups.slices import Scheduling, SchedulingCalls

FIFO, BATCH = 1, 3
"""Source: Linux include/uapi/linux/sched.h."""


class SlicingKernel:
    """Tasks with slices; stands in for the system calls.

    Source: Linux kernel/sched/syscalls.c, __setparam_fair, get_params; kernel/sched/core.c, sched_fork.

    Attributes:
        tasks: The attributes of each task, a slice of 0 for the default.
        default_ns: What a task without a slice of its own has.
        refused: Tasks that this process may not change.
        writes: How often it was asked to change one.
    """

    def __init__(self) -> None:
        self.tasks: dict[int, Scheduling] = {}
        self.default_ns = 2_800_000
        self.refused: set[int] = set()
        self.writes = 0

    def start(self, task: int, process: int | None = None, parent: int = 0) -> None:
        """A fork or clone: the new task has its parent's attributes."""
        del process
        self.tasks[task] = self.tasks.get(parent, Scheduling())

    def end(self, *tasks: int) -> None:
        for task in tasks:
            del self.tasks[task]

    def read(self, task: int) -> Scheduling:
        found = self._find(task)
        is_fair = found.policy != FIFO
        return found._replace(slice_ns=found.slice_ns or self.default_ns) if is_fair else found

    def write(self, task: int, scheduling: Scheduling) -> None:
        self._find(task)
        self.writes += 1
        if task in self.refused:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        slice_ns = scheduling.slice_ns and min(max(scheduling.slice_ns, 100_000), 100_000_000)
        self.tasks[task] = scheduling._replace(slice_ns=slice_ns)

    def default(self, calls: SchedulingCalls) -> int:
        """In place of `default_slice_ns`."""
        assert calls is self
        return self.default_ns

    def slices(self, *tasks: int) -> list[int]:
        """The slices of some tasks, in ns; 0: the default."""
        return [self.tasks[task].slice_ns for task in tasks]

    def _find(self, task: int) -> Scheduling:
        if task not in self.tasks:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        return self.tasks[task]
