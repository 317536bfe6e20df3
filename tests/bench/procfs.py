"""CPU time and memory of other processes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

_SCHEDULER_CLOCK = 2
_LOOK_S = 0.5
_IDLE_SHARE = 0.03
"""Of one CPU."""


def cpu_ns(pid: int) -> int:
    """CPU time of a process, all its threads and those that have ended, in nanoseconds.

    Source: clock_getcpuclockid(3); Linux, include/linux/posix-timers_types.h (CPUCLOCK_SCHED).
    """
    return time.clock_gettime_ns((~pid) << 3 | _SCHEDULER_CLOCK)


def wait_until_idle(pids: Iterable[int], timeout_s: float = 60.0) -> None:
    """Returns once all of these processes have next to nothing to do, or when the time is over."""
    ends_s, busy = time.monotonic() + timeout_s, {pid: cpu_ns(pid) for pid in pids}
    while busy and time.monotonic() < ends_s:
        time.sleep(_LOOK_S)
        now = {pid: cpu_ns(pid) for pid in busy}
        busy = now if any(now[pid] - busy[pid] > _LOOK_S * _IDLE_SHARE * 1e9 for pid in busy) else {}


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has no memory")
