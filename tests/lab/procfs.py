"""What the kernel says of a process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """User and system time of the process and of its ended threads, in steps of 10 ms.

    Source: proc(5), fields 14 and 15 of /proc/PID/stat.
    """
    fields = _stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_ticks(pid: int) -> int:
    """When the process started, in ticks since boot: with the pid it names one process for ever.

    Source: proc(5), field 22 of /proc/PID/stat.
    """
    return int(_stat_fields(pid)[19])


def rss_bytes(pid: int) -> int:
    """Resident memory. Source: proc(5), VmRSS of /proc/PID/status, in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def open_files(pid: int) -> int:
    """How many file descriptors the process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def open_below(folder: Path) -> int:
    """How many files and folders below a folder this process has open, whatever its other threads do."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += descriptor.readlink().is_relative_to(folder)
    return found


def threads(pid: int) -> int:
    """How many threads the process has."""
    return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())


def thread_names(pid: int) -> list[str]:
    """The names of the process's threads, but of those that end meanwhile."""
    names: list[str] = []
    for path in Path(f"/proc/{pid}/task").glob("*/comm"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            names.append(path.read_text().strip())
    return names


def thread_states(pid: int) -> set[str]:
    """The states of the process's threads, by letter. Source: proc(5), field 3 of /proc/PID/stat."""
    states: set[str] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            states.add(path.read_text().rpartition(")")[2].split()[0])
    return states


def runs(pid: int) -> bool:
    """Whether the process is there and is not a zombie."""
    try:
        return _stat_fields(pid)[0] not in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return False


def command_line(pid: int) -> list[str]:
    """The words of the command, none for a process that is gone."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return raw.decode(errors="replace").rstrip("\0").split("\0")


def all_pids() -> list[int]:
    """Every process that this one can see."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _stat_fields(pid: int) -> list[str]:
    # The second field is a name in parentheses that may itself hold spaces and parentheses.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
