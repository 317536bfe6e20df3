"""Removing what a runtime leaves behind: containers, shims, mounts, cgroups.

Only what bears the ids of this runtime's own state folder is touched.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.lab import cgroup_v1, procfs
from tests.lab.deadline import wait_until

# Source: mount(2), MNT_DETACH.
_MNT_DETACH = 2


@dataclass(frozen=True)
class Remains:
    """A container as the runtime has written it down: its OCI bundle and the file of its first process."""

    container_id: str
    bundle: Path
    pid_file: Path


def remove(folder: Path, containers: Sequence[Remains], monitors: Sequence[int]) -> None:
    """Ends the containers of a runtime that no longer runs, and cleans up after them.

    Args:
        folder: where all its mounts are.
        monitors: the processes beside the containers, such as shims.
    """
    cgroups = [path for container in containers if (path := _cgroup_of(container))]
    # The containers first: without its shim a container's process has no parent that could be found.
    _kill_all([pid for container in containers if (pid := _first_process(container))])
    _kill_all(monitors)
    unmount_below(folder)
    for cgroup in cgroups:
        cgroup_v1.remove_tree(cgroup)


def processes_of(program: str, path: Path) -> list[int]:
    """The processes of a program that have this path on their command line."""
    return [pid for pid in procfs.all_pids() if _is_of(procfs.command_line(pid), program, path)]


def _is_of(words: list[str], program: str, path: Path) -> bool:
    return bool(words) and program in words[0] and any(str(path) in word for word in words[1:])


def _cgroup_of(container: Remains) -> str | None:
    with suppress(OSError, ValueError):
        path = json.loads((container.bundle / "config.json").read_text())["linux"].get("cgroupsPath")
        return str(path) if path else None
    return None


def _first_process(container: Remains) -> int | None:
    with suppress(OSError, ValueError):
        pid = int(container.pid_file.read_text())
        # A pid that the kernel has given away since is in no cgroup of that container.
        if container.container_id in Path(f"/proc/{pid}/cgroup").read_text():
            return pid
    return None


def _kill_all(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        wait_until(partial(_has_ended, pid), f"process {pid} has ended")


def _has_ended(pid: int) -> bool:
    return not procfs.runs(pid)


def unmount_below(folder: Path) -> None:
    """Unmounts what is mounted below a folder."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    libc = ctypes.CDLL(None, use_errno=True)
    for point in reversed(points):
        if point.startswith(f"{folder}/"):
            libc.umount2(point.encode(), _MNT_DETACH)
