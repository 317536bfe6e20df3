"""Cycles per instruction of cgroups, counted by the CPUs themselves (perf_event_open(2)), where allowed.

An event of a cgroup is one descriptor for each CPU, and costs at each switch to and from its tasks. So
cgroups take turns: some are counted for a few seconds, then the next ones.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from runtimeproxy.cgroups.mounts import Mount

TURN_PASSES: Final = 10
"""A cgroup is counted for so many passes."""
_MOST_DESCRIPTORS: Final = 512
"""At once; two for each CPU of each cgroup."""
_LEAST_INSTRUCTIONS: Final = 1_000_000
"""Fewer make no sample: what a cgroup does in a millisecond says nothing of its neighbours."""

_SYSCALLS: Final = {"x86_64": 298, "aarch64": 241}
"""Number of perf_event_open. Source: Linux arch/x86/entry/syscalls/syscall_64.tbl,
include/uapi/asm-generic/unistd.h."""
# Source of all below: Linux include/uapi/linux/perf_event.h.
_TYPE_HARDWARE: Final = 0
_CYCLES: Final = 0
_INSTRUCTIONS: Final = 1
_FORMAT: Final = 1 | 2 | 8
"""PERF_FORMAT_TOTAL_TIME_ENABLED, PERF_FORMAT_TOTAL_TIME_RUNNING, PERF_FORMAT_GROUP."""
_FLAGS: Final = 4 | 8
"""PERF_FLAG_PID_CGROUP, PERF_FLAG_FD_CLOEXEC."""
_ATTRIBUTES: Final = struct.Struct("=IIQQQQQQQ")
"""perf_event_attr of PERF_ATTR_SIZE_VER0: type, size, config, and five fields and flags that are 0."""
_VALUES: Final = struct.Struct("=QQQQQ")
"""Number of events, time enabled, time running, cycles, instructions."""

_PROBLEMS: Final[Mapping[int, str]] = {
    errno.EACCES: "the kernel does not allow it: no CAP_PERFMON, or kernel.perf_event_paranoid is above 2",
    errno.EPERM: "the kernel does not allow it: CAP_PERFMON is missing",
    errno.ENOSYS: "the kernel has no perf events, or a seccomp filter is in the way",
    errno.ENOENT: "this machine does not count cycles, as is usual for virtual ones",
    errno.EOPNOTSUPP: "this machine does not count cycles",
    errno.EINVAL: "the kernel has no perf events of cgroups",
}
"""Errors that do not go away."""

OpenEvent = Callable[[int, int, int, int], int]
"""Event, descriptor of a cgroup's folder, CPU, descriptor of the group or -1, to a descriptor; OSError."""


def perf_event_folder(mounts: Mapping[str, Mount]) -> Path | None:
    """The folder in which perf events find cgroups; None if there is none."""
    if "perf_event" in mounts:
        return mounts["perf_event"].folder
    # Version 2 always has it, and does not list it. Source: Linux cgroup-v2.rst, perf_event.
    cpu = mounts.get("cpu")
    return cpu.folder if cpu is not None and cpu.version == 2 else None


def open_event(event: int, cgroup: int, cpu: int, group: int) -> int:
    """Starts to count an event of a cgroup on one CPU; returns the descriptor to be read. Raises OSError."""
    import ctypes  # Takes a MiB, and is seldom wanted.

    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    attributes = _ATTRIBUTES.pack(_TYPE_HARDWARE, _ATTRIBUTES.size, event, 0, 0, _FORMAT, 0, 0, 0)
    call = ctypes.CDLL(None, use_errno=True).syscall
    arguments = (ctypes.c_long(number), attributes, *map(ctypes.c_long, (cgroup, cpu, group, _FLAGS)))
    descriptor: int = call(*arguments)
    if descriptor < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return descriptor


def cycles_per_instruction(counts: Sequence[bytes]) -> float | None:
    """The ratio over all CPUs; None if there were too few instructions."""
    cycles = instructions = 0.0
    for each in counts:
        if len(each) != _VALUES.size:
            continue
        _, enabled, running, own_cycles, own_instructions = _VALUES.unpack(each)
        if running:
            # With more events than counters each is counted for a part of the time.
            cycles += own_cycles * enabled / running
            instructions += own_instructions * enabled / running
    return cycles / instructions if instructions >= _LEAST_INSTRUCTIONS else None


class CycleCounters:
    """Counts the cgroups in turns; used by one thread."""

    def __init__(
        self,
        folder: Path | None,
        cpus: int,
        *,
        most_descriptors: int = _MOST_DESCRIPTORS,
        open_event: OpenEvent = open_event,
    ) -> None:
        self.problem = "" if folder is not None else "no hierarchy of cgroups with perf_event is mounted"
        """Why nothing is counted; empty if it is."""
        self._folder = folder
        self._cpus = cpus
        self._at_once = max(most_descriptors // (2 * cpus), 1)
        self._open_event = open_event
        self._queue: deque[str] = deque()
        self._events: dict[str, list[int]] = {}
        """By cgroup, for each CPU the descriptor of the group, which is read, and that of its other event."""
        self._passes_left = 0

    def step(self, cgroups: Sequence[str]) -> list[tuple[str, float]]:
        """To be called in each pass; returns the ratios of the cgroups whose turn has ended."""
        if self.problem or not cgroups:
            self.close()
            return []
        if self._passes_left > 0:
            self._passes_left -= 1
            return []
        found = self._end_turn()
        self._begin_turn(cgroups)
        self._passes_left = TURN_PASSES - 1
        return found

    def close(self) -> None:
        for descriptors in self._events.values():
            for descriptor in descriptors:
                os.close(descriptor)
        self._events.clear()
        self._passes_left = 0

    def _end_turn(self) -> list[tuple[str, float]]:
        ratios = (
            (cgroup, cycles_per_instruction([os.read(each, _VALUES.size) for each in descriptors[::2]]))
            for cgroup, descriptors in self._events.items()
        )
        found = [(cgroup, ratio) for cgroup, ratio in ratios if ratio is not None]
        self.close()
        return found

    def _begin_turn(self, cgroups: Sequence[str]) -> None:
        there = set(cgroups)
        if not self._queue:
            self._queue.extend(cgroups)
        while self._queue and len(self._events) < self._at_once and not self.problem:
            cgroup = self._queue.popleft()
            if cgroup in there:
                self._count(cgroup)

    def _count(self, cgroup: str) -> None:
        if self._folder is None:
            return
        descriptors: list[int] = []
        try:
            folder = os.open(self._folder / cgroup.strip("/"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return  # It has gone, or is not there yet.
        try:
            for cpu in range(self._cpus):
                self._count_on(cpu, folder, descriptors)
        except OSError as error:
            for descriptor in descriptors:
                os.close(descriptor)
            self.problem = _PROBLEMS.get(error.errno or 0, "")
        else:
            self._events[cgroup] = descriptors
        finally:
            os.close(folder)

    def _count_on(self, cpu: int, folder: int, descriptors: list[int]) -> None:
        try:
            group = self._open_event(_CYCLES, folder, cpu, -1)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return  # The CPU is offline.
            raise
        descriptors.append(group)
        descriptors.append(self._open_event(_INSTRUCTIONS, folder, cpu, group))
