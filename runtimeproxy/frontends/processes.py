"""Whether the program of a container runs yet, by its cgroup and procfs.

A runtime such as runc makes the cgroup, starts its own init in it and writes the values; that process then
becomes the container's program by execve. Until then it is a clone that has executed nothing, which the
kernel tells of each process; runc's first helper has executed `runc init`, and ends early.
Source: Linux include/linux/sched.h, PF_FORKNOEXEC; runc libcontainer/nsenter/README.md. Seen with runc 1.1.5.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

PF_FORKNOEXEC: Final = 0x40
"""Set by fork and clone, cleared by execve. Source: Linux include/linux/sched.h."""
_STATE, _FLAGS, _START = 0, 6, 19
"""Fields 3, 9 and 22 of `/proc/PID/stat`, counted from the one behind the name. Source: proc_pid_stat(5)."""
_ENDED: Final = ("Z", "X")
_INIT: Final = b"init"
"""The one argument of runc's own processes. Source: runc libcontainer/factory_linux.go, InitArgs."""
_RUNC: Final = b"runc"


def runs_program(folder: Path, proc: Path) -> bool | None:
    """Whether the first process of a cgroup is the container's program.

    Returns:
        None if its processes are not visible from here, as in another pid namespace.

    Raises:
        OSError: The cgroup is gone.
    """
    pids = (folder / "cgroup.procs").read_text(encoding="ascii").split()
    if pids and set(pids) == {"0"}:
        return None
    # The first one: hooks of the runtime run in the cgroup, too, as its children.
    alive = sorted(found for pid in pids if (found := _started_s(proc / pid)) is not None)
    if not alive:
        return False
    _, has_executed, process = alive[0]
    return has_executed and not _is_runc(process)


def _started_s(process: Path) -> tuple[int, bool, Path] | None:
    """When a process began, and whether it has executed a program; None if it has ended."""
    try:
        fields = (process / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    if fields[_STATE] in _ENDED:
        return None
    return int(fields[_START]), not int(fields[_FLAGS]) & PF_FORKNOEXEC, process


def _is_runc(process: Path) -> bool:
    try:
        arguments = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return True
    # One that has just ended has none.
    return not arguments[0] or (
        arguments[1:] == [_INIT] and arguments[0].rpartition(b"/")[2].startswith(_RUNC)
    )
