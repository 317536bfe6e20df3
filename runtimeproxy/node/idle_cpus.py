"""How many CPUs of the node are idle: from /proc/stat, between two reads."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

LEAST_S: Final = 0.5
"""Between two reads that are compared: the kernel counts in ticks of 1 to 10 ms."""
YOUNG_S: Final = 60.0
"""How long after the boot the mean since then tells what is idle now."""
TICKS_PER_S: Final = 100
"""Source: USER_HZ of Linux, which is the same on all architectures that the kubelet runs on."""


class CpuTimes(NamedTuple):
    """Ticks of all CPUs together since the boot, and how many CPUs are online."""

    idle: int
    total: int
    cpus: int


def cpu_times(text: str) -> CpuTimes:
    """Read /proc/stat. Source: Linux fs/proc/stat.c; idle and iowait are the fourth and fifth number.

    Raises:
        ValueError: it is another file.
    """
    lines = text.splitlines()
    fields = lines[0].split() if lines else []
    if len(fields) < 6 or fields[0] != "cpu":
        raise ValueError("has no line of all CPUs")
    # Time of guests is in that of users, too.
    ticks = [int(each) for each in fields[1:9]]
    cpus = sum(line[:3] == "cpu" and line[3:4].isdigit() for line in lines)
    return CpuTimes(ticks[3] + ticks[4], sum(ticks), cpus)


def idle_cpus(before: CpuTimes | None, now: CpuTimes) -> float | None:
    """Return the number of idle CPUs on average since an earlier read, or else since the boot.

    None if no time has passed; without an earlier read also if the boot is not within `YOUNG_S`.
    """
    if before is None and now.total > now.cpus * YOUNG_S * TICKS_PER_S:
        return None
    idle, total = now.idle - (before.idle if before else 0), now.total - (before.total if before else 0)
    return None if total <= 0 else now.cpus * min(max(idle / total, 0.0), 1.0)


class IdleCpus:
    """Reads a node's idle CPUs from time to time. Used in one thread at a time.

    Args:
        procfs: Where procfs is mounted.

    Attributes:
        problem: Why they are not known; empty if they are.
    """

    def __init__(self, procfs: Path) -> None:
        self._file = procfs / "stat"
        self._before: CpuTimes | None = None
        self._before_s = 0.0
        self._last: float | None = None
        self.problem = ""

    def read(self, now_s: float) -> float | None:
        """Return the idle CPUs since the last read, or of then within `LEAST_S` of it. None: not known."""
        if self._before is not None and now_s - self._before_s < LEAST_S:
            return self._last
        try:
            now = cpu_times(self._file.read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            self.problem = f"{self._file} cannot be used: {error}"
            self._before, self._last = None, None
            return None
        found, self.problem = idle_cpus(self._before, now), ""
        self._before, self._before_s = now, now_s
        self._last = self._last if found is None else found
        return self._last
