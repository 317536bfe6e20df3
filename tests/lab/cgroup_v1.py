"""Cgroup version 1 of this machine: reading values, making and removing a pod's folders."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from tests.lab.deadline import wait_until

# Source: the kernel's PAGE_COUNTER_MAX times the page size of 4096 bytes: no memory limit.
_NO_MEMORY_LIMIT_BYTES = 9223372036854771712


@dataclass(frozen=True)
class CgroupValues:
    """The values that policies change. `cpu_quota_us` -1 and `memory_limit_bytes` None: no limit."""

    cpu_shares: int
    cpu_quota_us: int
    memory_limit_bytes: int | None
    cpuset_cpus: str


@cache
def controllers() -> dict[str, Path]:
    """The mount point of each controller. Source: /proc/self/mounts, the options of type cgroup."""
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, options, *_ = line.split()
        if kind == "cgroup":
            found.update({option: Path(point) for option in options.split(",")})
    return {name: point for name, point in found.items() if _is_controller(name)}


@cache
def hierarchies() -> tuple[Path, ...]:
    """All mount points of cgroups: runc puts containers into those without controllers, too."""
    lines = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return tuple(dict.fromkeys(Path(point) for _, point, kind, *_ in lines if kind in ("cgroup", "cgroup2")))


def file(controller: str, cgroup: str, name: str) -> Path:
    """The file of a cgroup, whose path begins with a slash."""
    return controllers()[controller] / cgroup.lstrip("/") / name


def read(controller: str, cgroup: str, name: str) -> str:
    """The value of a file without its line end."""
    return file(controller, cgroup, name).read_text().strip()


def values(cgroup: str) -> CgroupValues:
    """Reads the values of one cgroup."""
    limit = int(read("memory", cgroup, "memory.limit_in_bytes"))
    return CgroupValues(
        cpu_shares=int(read("cpu", cgroup, "cpu.shares")),
        cpu_quota_us=int(read("cpu", cgroup, "cpu.cfs_quota_us")),
        memory_limit_bytes=None if limit >= _NO_MEMORY_LIMIT_BYTES else limit,
        cpuset_cpus=read("cpuset", cgroup, "cpuset.cpus"),
    )


def processes(cgroup: str) -> list[int]:
    """The processes of one cgroup, those of cgroups below it left out."""
    return [int(pid) for pid in read("cpu", cgroup, "cgroup.procs").split()]


_HOLDS_NO_VALUE = re.compile(
    r"procs|tasks|event_control|force_empty|failcnt|usage|pressure|reset_stats|release_agent|stat$"
)
"""Files that can be written and hold processes, counters or commands."""


def texts(cgroup: str, *, deep: bool = True) -> dict[str, bytes]:
    """The raw text of every file of a cgroup that holds a value, by its path below the mounts.

    In controllers whose files policies write, with all cgroups below it unless `deep` is false; files that
    this kernel does not let be read are left out.
    """
    found: dict[str, bytes] = {}
    for controller in ("cpu", "cpuset", "memory"):
        point = controllers()[controller]
        for path in (point / cgroup.lstrip("/")).glob("**/*" if deep else "*"):
            if _HOLDS_NO_VALUE.search(path.name) or not path.is_file():
                continue
            if path.stat().st_mode & 0o200:
                with suppress(OSError):
                    found[f"{controller}/{path.relative_to(point)}"] = path.read_bytes()
    return found


def text_file(path: str) -> Path:
    """The file of a path that `texts` gave."""
    controller, _, rest = path.partition("/")
    return controllers()[controller] / rest


@contextmanager
def pod_cgroup(path: str) -> Iterator[str]:
    """Makes a pod's cgroup in every controller as the kubelet does, and removes it at the end.

    In cpuset an empty cgroup takes no process: CPUs and memory nodes are filled from the parent.
    """
    try:
        for controller in controllers():
            _make(controller, Path(path.lstrip("/")))
        yield path
    finally:
        remove_tree(path)
        for parent in [str(parent) for parent in Path(path).parents][:-1]:
            _remove_if_empty(parent)


def kill_processes(cgroup: str) -> None:
    """Kills the processes of a cgroup and of all below it."""
    for file in (controllers()["cpu"] / cgroup.lstrip("/")).rglob("cgroup.procs"):
        # Either may be gone.
        with suppress(OSError):
            for pid in map(int, file.read_text().split()):
                os.kill(pid, signal.SIGKILL)


def remove_tree(cgroup: str) -> None:
    """Removes a cgroup with everything below it. Its processes have been killed before."""
    for point in hierarchies():
        top = point / cgroup.lstrip("/")
        for folder, _, _ in os.walk(top, topdown=False):
            # A killed process leaves its cgroup a moment after it can no longer be seen.
            wait_until(partial(_removed, Path(folder)), f"{folder} is removed")


def _make(controller: str, path: Path) -> None:
    point = controllers()[controller]
    for part in [*reversed(path.parents), path]:
        folder = point / part
        folder.mkdir(exist_ok=True)
        if controller == "cpuset" and folder != point:
            for name in ("cpuset.mems", "cpuset.cpus"):
                if not (folder / name).read_text().strip():
                    (folder / name).write_text((folder.parent / name).read_text())


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    return True


def _remove_if_empty(cgroup: str) -> None:
    for point in controllers().values():
        # EBUSY: other pods are below it.
        with suppress(OSError):
            (point / cgroup.lstrip("/")).rmdir()


def _is_controller(name: str) -> bool:
    return name in {"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids"}
