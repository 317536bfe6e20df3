"""Removing what a containerd leaves behind: containers, shims, mounts, cgroups.

Only what bears the ids of this containerd's own state folder is touched.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.lab import cgroup_v1, procfs
from tests.lab.containerd_config import Places
from tests.lab.deadline import wait_until

# Source: mount(2), MNT_DETACH.
_MNT_DETACH = 2


def remove(places: Places) -> None:
    """Ends the containers and shims of a containerd that no longer runs, and cleans up after them."""
    bundles = _bundles(places)
    cgroups = [path for bundle in bundles if (path := _cgroup_of(bundle))]
    sockets = [socket for bundle in bundles if (socket := _shim_socket(bundle))]
    shims = _shims(places)
    # The containers first: without its shim a container's process has no parent that could be found.
    _kill_all([pid for bundle in bundles if (pid := _init_pid(bundle))])
    _kill_all(shims)
    _unmount_below(places.folder)
    for cgroup in cgroups:
        cgroup_v1.remove_tree(cgroup)
    for socket in sockets:
        socket.unlink(missing_ok=True)


def _bundles(places: Places) -> list[Path]:
    return sorted(places.state.glob("io.containerd.runtime.v2.task/k8s.io/*/"))


def _cgroup_of(bundle: Path) -> str | None:
    with suppress(OSError, ValueError):
        path = json.loads((bundle / "config.json").read_text())["linux"].get("cgroupsPath")
        return str(path) if path else None
    return None


def _shim_socket(bundle: Path) -> Path | None:
    with suppress(OSError):
        address = (bundle / "address").read_text().strip()
        return Path(address.removeprefix("unix://"))
    return None


def _init_pid(bundle: Path) -> int | None:
    with suppress(OSError, ValueError):
        pid = int((bundle / "init.pid").read_text())
        # A pid that the kernel has given away since is in no cgroup of that container.
        if bundle.name in Path(f"/proc/{pid}/cgroup").read_text():
            return pid
    return None


def _shims(places: Places) -> list[int]:
    return [pid for pid in procfs.all_pids() if _is_shim(procfs.command_line(pid), places)]


def _is_shim(words: list[str], places: Places) -> bool:
    return "containerd-shim" in words[0] and str(places.socket) in words if words else False


def _kill_all(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        wait_until(partial(_has_ended, pid), f"process {pid} has ended")


def _has_ended(pid: int) -> bool:
    return not procfs.runs(pid)


def _unmount_below(folder: Path) -> None:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    libc = ctypes.CDLL(None, use_errno=True)
    for point in reversed(points):
        if point.startswith(f"{folder}/"):
            libc.umount2(point.encode(), _MNT_DETACH)
