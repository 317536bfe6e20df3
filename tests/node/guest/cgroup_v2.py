"""Cgroup version 2 of the node: values of a cgroup, a pod's folder as the kubelet makes it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")

# Source: kubelet pkg/kubelet/cm: the controllers that it enables for the cgroups of pods.
_CONTROLLERS = "+cpu +cpuset +io +memory +pids"


@dataclass(frozen=True)
class CgroupValues:
    """The files that policies change, as they read. `cpuset_cpus` is empty for "as the parent"."""

    cpu_weight: int
    cpu_max: str
    memory_max: str
    cpuset_cpus: str = ""

    def __str__(self) -> str:
        cpus = self.cpuset_cpus or "-"
        return f"cpu.weight={self.cpu_weight} cpu.max={self.cpu_max} memory.max={self.memory_max} cpus={cpus}"


def values(cgroup: Path) -> CgroupValues:
    """Reads the values of one cgroup."""
    return CgroupValues(
        cpu_weight=int(_read(cgroup, "cpu.weight")),
        cpu_max=_read(cgroup, "cpu.max"),
        memory_max=_read(cgroup, "memory.max"),
        cpuset_cpus=_read(cgroup, "cpuset.cpus"),
    )


def bound_of(cgroup: Path) -> tuple[str, str]:
    """Quota and CPUs of a QoS class, as its files read; empty without such a file."""
    files = (cgroup / name for name in ("cpu.max", "cpuset.cpus"))
    quota, cpus = (file.read_text().strip() if file.exists() else "" for file in files)
    return quota, cpus


class Watch:
    """What a cgroup has had since this object was made, in the order in which it came.

    Args:
        read: From files of the cgroup; else the bound of a QoS class.
    """

    _PACE_S = 0.05

    def __init__(self, cgroup: Path, read: Callable[[Path], object] = bound_of) -> None:
        self._cgroup = cgroup
        self._read = read
        self.values = [read(cgroup)]
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Looks no more."""
        self._end.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._end.wait(self._PACE_S):
            if (value := self._read(self._cgroup)) != self.values[-1]:
                self.values.append(value)


def make_pod_cgroup(cgroup_parent: str, files: Mapping[str, str]) -> Path:
    """Makes a pod's cgroup with these values, and its controllers in all folders above it."""
    folder = ROOT
    for part in Path(cgroup_parent.lstrip("/")).parts:
        (folder / "cgroup.subtree_control").write_text(_CONTROLLERS)
        folder /= part
        folder.mkdir(exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(value)
    return folder


def processes(cgroup: Path) -> list[int]:
    """The processes of one cgroup."""
    return [int(pid) for pid in _read(cgroup, "cgroup.procs").split()]


def _read(cgroup: Path, name: str) -> str:
    return (cgroup / name).read_text().strip()
