"""Tunes the process: the relay's thread wakes up soon however busy the others are, and free memory goes back.

The relay works in short bursts. While a policy computes on the same CPU, each burst would wait for the end of
that thread's time slice, some milliseconds; and each wait for the interpreter lasts as much longer as timers
of the thread may be late.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

SLICE_NS: Final = 100_000
"""The shortest time slice that Linux gives. A thread that asks for a shorter one than the running thread's
preempts it when it wakes up. Source: Linux 6.12, kernel/sched/fair.c; older kernels ignore it."""

TIMER_SLACK_NS: Final = 1
"""How late timers may be; by default 50,000. Source: prctl(2), PR_SET_TIMERSLACK: 0 would be the default."""

_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""`struct sched_attr`, first version. Source: sched_setattr(2)."""
_RESET_ON_FORK: Final = 1
"""New threads and processes get the usual slice, and the nice value 0 in place of a negative one.
Source: sched(7), "Resetting scheduling policy for child processes"."""
_SYSCALL: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274, "ppc64le": 355, "s390x": 345}
"""The number of sched_setattr by machine. Source: the kernel's syscall tables."""

MOST_ARENAS: Final = 2
"""Memory pools of the C library. One interpreter lock serves all threads, so more of them only cost memory.
Source: mallopt(3), which makes up to eight for each processor."""

_M_ARENA_MAX: Final = -8
"""Source: malloc.h of glibc."""


def exact_timers() -> None:
    """Asks for exact timers for the calling thread, and so for threads and processes that it starts later.

    Asking for another thread needs CAP_SYS_NICE.
    """
    with suppress(OSError):
        Path(f"/proc/{threading.get_native_id()}/timerslack_ns").write_text(str(TIMER_SLACK_NS))


def wake_soon(thread_id: int) -> None:
    """Asks for short slices for a thread of this process; where the kernel allows it.

    A thread that an administrator has given another scheduling policy or a negative nice value keeps all of
    that: with short slices, threads and processes that it starts would lose the nice value.

    Args:
        thread_id: the kernel's id of the thread.
    """
    with suppress(OSError):
        nice = os.getpriority(os.PRIO_PROCESS, thread_id)
        if os.sched_getscheduler(thread_id) == os.SCHED_OTHER and nice >= 0:
            _ask_for_slice(thread_id, nice)


def _ask_for_slice(thread_id: int, nice: int) -> None:
    number = _SYSCALL.get(os.uname().machine)
    if number is None:
        return
    import ctypes  # Python has no function for this call

    size = _ATTRIBUTES.size
    attributes = _ATTRIBUTES.pack(size, os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, SLICE_NS, 0, 0)
    ctypes.CDLL(None).syscall(number, thread_id, ctypes.c_char_p(attributes), 0)


def limit_arenas() -> None:
    """Lets threads that are started from now on share memory pools."""
    import ctypes

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, MOST_ARENAS)


def give_back_memory() -> None:
    """Gives free memory back; takes milliseconds, so it is not for the event loop's thread."""
    import ctypes

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def without_tls() -> Iterator[None]:
    """Has imports within it find no `ssl`, unless it is there already: OpenSSL takes 4 MiB.

    For modules that do without it, such as `asyncio` and `http.client`, in a process that needs no TLS.
    """
    if "ssl" in sys.modules:
        yield
        return
    # With None an import fails. Source: Python's reference, the import system, the module cache.
    sys.modules["ssl"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["ssl"]
