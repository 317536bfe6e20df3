"""Slices of tasks: how long one runs until another one that waits gets its turn, from Linux 6.12 on.

A task with a shorter slice than others gets its turn sooner, and has no more of the CPU for it. Tasks inherit
it from the one that starts them. What a program has chosen for itself stays: another scheduling policy, or a
slice of its own. So slices of ours are marked, which no program's are: they are found again after a crash.
Source: Linux kernel/sched/syscalls.c, __setparam_fair, get_params; include/uapi/linux/sched/types.h.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Callable
from functools import cache
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from runtimeproxy.cgroups.processes import KEPT

if TYPE_CHECKING:
    import ctypes

FIELD: Final = "sched_slice_us"
"""The field of a task's slice, and the name by which its format finds `Slices`."""
SHORTEST_US: Final = 100
LONGEST_US: Final = 99_999
"""The kernel takes 0.1 to 100 ms, our mark included."""
DEFAULT: Final = "0"
"""The slice of tasks for which nothing was chosen."""
MARK_NS: Final = 7
"""What our slices have beyond whole microseconds."""
REFRESH_S: Final = 1.0
"""How long the kernel's default counts: a thread asks for it, and many tasks may have slices of their own."""
MOST_DEFAULTS: Final = 8
"""The kernel's default follows the number of CPUs, and a task that sleeps still has the one of before."""

_SCHED_OTHER: Final = 0
_FAIR: Final = frozenset({_SCHED_OTHER, 3, 5})
"""With slices: this one, SCHED_BATCH and SCHED_IDLE. Source: Linux include/uapi/linux/sched.h."""
_NUMBERS: Final = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Of sched_setattr and sched_getattr. Source: Linux arch/x86/entry/syscalls/syscall_64.tbl,
include/uapi/asm-generic/unistd.h."""
_LAYOUT: Final = struct.Struct("=IIQiIQQQ")
"""Source: struct sched_attr, SCHED_ATTR_SIZE_VER0."""


class Scheduling(NamedTuple):
    """How a task is scheduled: the kernel's `sched_attr`."""

    policy: int = _SCHED_OTHER
    flags: int = 0
    nice: int = 0
    priority: int = 0
    slice_ns: int = 0
    """`sched_runtime`. Of SCHED_OTHER the slice; 0: that of a kernel before 6.12, or the default when set."""
    deadline_ns: int = 0
    period_ns: int = 0


class SchedulingCalls(Protocol):
    """The kernel's interface. A task is a number of this process's PID namespace; 0: the calling thread."""

    def read(self, task: int) -> Scheduling:
        """Raises OSError: ESRCH: no such task. ENOSYS: not on this processor."""
        ...

    def write(self, task: int, scheduling: Scheduling) -> None:
        """Raises OSError as `read`; EPERM: CAP_SYS_NICE is missing, for tasks of other users."""
        ...


class KernelCalls:
    """The system calls; see `SchedulingCalls`."""

    def read(self, task: int) -> Scheduling:
        buffer = _buffer(b"\0" * _LAYOUT.size)
        _call(1, task, buffer, _LAYOUT.size, 0)
        return Scheduling(*_LAYOUT.unpack(buffer.raw)[1:])

    def write(self, task: int, scheduling: Scheduling) -> None:
        _call(0, task, _buffer(_LAYOUT.pack(_LAYOUT.size, *scheduling)), 0)


def _buffer(content: bytes) -> ctypes.Array[ctypes.c_char]:
    import ctypes  # takes a MiB

    return ctypes.create_string_buffer(content, _LAYOUT.size)


def _call(which: int, *arguments: Any) -> None:  # noqa: ANN401 - of ctypes
    import ctypes

    numbers = _NUMBERS.get(os.uname().machine)
    if numbers is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if _function()(numbers[which], *arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def _function() -> Any:  # noqa: ANN401 - of ctypes
    import ctypes

    return ctypes.CDLL(None, use_errno=True).syscall


def default_slice_ns(calls: SchedulingCalls) -> int:
    """Return the kernel's default slice, by a thread of our own that gets a slice and gives it back.

    0: tasks have no slices: a kernel before 6.12, or one that refuses to change them.
    """
    found: list[int] = []

    def work() -> None:
        try:
            own = calls.read(0)._replace(policy=_SCHED_OTHER, priority=0, deadline_ns=0, period_ns=0)
            calls.write(0, own._replace(slice_ns=SHORTEST_US * 1_000 + MARK_NS))
            is_taken = calls.read(0).slice_ns == SHORTEST_US * 1_000 + MARK_NS
            calls.write(0, own._replace(slice_ns=0))
            found.append(calls.read(0).slice_ns if is_taken else 0)
        except OSError:
            found.append(0)

    # What this thread has been started with is its own: the one that is tried on ends.
    thread = Thread(target=work, name="slice", daemon=True)
    thread.start()
    thread.join()
    return found[0] if found else 0


@cache
def is_supported() -> bool:
    """Whether tasks of this kernel have slices that can be set."""
    return default_slice_ns(KernelCalls()) > 0


class Slices:
    """Reads and writes the slice of one task, as `cgroups/processes.py:ProcessAccess` says. Thread safe.

    Texts are microseconds: `DEFAULT`, or one of ours. A task that is not ours to change has `KEPT`.
    """

    def __init__(
        self,
        calls: SchedulingCalls | None = None,
        default_ns: Callable[[SchedulingCalls], int] = default_slice_ns,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = calls or KernelCalls()
        self._default_ns = default_ns
        self._now_s = clock
        self._lock = Lock()
        self._refreshed_s = float("-inf")
        self._defaults: dict[int, None] = {}

    def refresh(self) -> None:
        with self._lock:
            if self._now_s() - self._refreshed_s < REFRESH_S:
                return
            self._refreshed_s = self._now_s()
            default = self._default_ns(self._calls)
            self._defaults.pop(default, None)
            self._defaults[default] = None
            if len(self._defaults) > MOST_DEFAULTS:
                del self._defaults[next(iter(self._defaults))]

    def read(self, pid: int, folder: int) -> str:
        del folder
        found = self._calls.read(pid)
        if _is_ours(found):
            return str(found.slice_ns // 1_000)
        if found.policy != _SCHED_OTHER:
            return KEPT
        if not found.slice_ns:
            raise OSError(errno.EINVAL, "tasks of this kernel have no slices")
        if found.slice_ns not in self._defaults:
            # Another one since the number of CPUs has changed; or the task's own.
            self.refresh()
        return DEFAULT if found.slice_ns in self._defaults else KEPT

    def write(self, pid: int, folder: int, text: str) -> None:
        """Changes the slice and nothing else of a task; see `ProcessAccess.write`.

        Raises:
            OSError: The kernel's error. EPERM: CAP_SYS_NICE is missing.
        """
        del folder
        found = self._calls.read(pid)
        slice_ns = int(text) * 1_000 + MARK_NS if text != DEFAULT else 0
        # One with a slice of ours may have another policy since.
        if found.policy == _SCHED_OTHER or (not slice_ns and _is_ours(found)):
            self._calls.write(pid, found._replace(slice_ns=slice_ns))


def _is_ours(scheduling: Scheduling) -> bool:
    return scheduling.policy in _FAIR and scheduling.slice_ns % 1_000 == MARK_NS
