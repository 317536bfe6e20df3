"""Cgroups of the fake runtime: their paths and, if wanted, plain files laid out like the kernel's.

Only what a container runtime writes is modelled: a file holds the value last written.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runtimeproxy.fields.tables import CRI_FIELDS, PARAMETERS, V2_FILES, unified_text

if TYPE_CHECKING:
    from cri_api.runtime.v1 import api_pb2


SCOPE_PREFIX = "cri-containerd"
"""First part of a scope's name. Source: containerd, getCgroupsPath of the CRI plugin."""


class CgroupDriver(StrEnum):
    """The manager of cgroups, which decides the form of cgroup parents."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


def spec_path(cgroup_parent: str, owner_id: str, driver: CgroupDriver) -> str:
    """``cgroupsPath`` of the OCI specification of a sandbox or container.

    With systemd this is ``slice:prefix:id``, otherwise a path; "" without a cgroup parent.
    """
    if not cgroup_parent:
        return ""
    if driver is CgroupDriver.SYSTEMD:
        return f"{cgroup_parent.rstrip('/').rsplit('/', 1)[-1]}:{SCOPE_PREFIX}:{owner_id}"
    return f"{cgroup_parent.rstrip('/')}/{owner_id}"


def parent_path(cgroup_parent: str, driver: CgroupDriver) -> str:
    """Path below the cgroup root of a cgroup parent, with a leading slash.

    A slice name is unfolded: ``a-b.slice`` lies in ``a.slice``. Source: systemd.slice(5).
    """
    if driver is CgroupDriver.CGROUPFS or not cgroup_parent.endswith(".slice"):
        return "/" + cgroup_parent.strip("/")
    words = cgroup_parent.rsplit("/", 1)[-1].removesuffix(".slice").split("-")
    return "".join(f"/{'-'.join(words[: count + 1])}.slice" for count in range(len(words)))


def container_path(cgroup_parent: str, owner_id: str, driver: CgroupDriver) -> str:
    """Path below the cgroup root of the cgroup of a sandbox or container."""
    name = f"{SCOPE_PREFIX}-{owner_id}.scope" if driver is CgroupDriver.SYSTEMD else owner_id
    return f"{parent_path(cgroup_parent, driver).rstrip('/')}/{name}"


V1_UNLIMITED_MEMORY_BYTES = 9223372036854771712
"""The content of version 1 files without a limit. Source: kernel, PAGE_COUNTER_MAX times a page of 4096."""

_V1_DEFAULTS = {
    "cpu": {
        "cpu.shares": "1024",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "-1",
        "cpu.cfs_burst_us": "0",
        "cpu.idle": "0",
    },
    "cpuacct": {"cpuacct.usage": "0"},
    "cpuset": {"cpuset.cpus": "", "cpuset.mems": ""},
    "memory": {
        "memory.limit_in_bytes": str(V1_UNLIMITED_MEMORY_BYTES),
        "memory.memsw.limit_in_bytes": str(V1_UNLIMITED_MEMORY_BYTES),
    },
    "pids": {"pids.max": "max"},
}
_V2_DEFAULTS = {
    "": {
        "cpu.weight": "100",
        "cpu.max": "max 100000",
        "cpu.max.burst": "0",
        "cpu.idle": "0",
        "cpuset.cpus": "",
        "cpuset.mems": "",
        "memory.min": "0",
        "memory.low": "0",
        "memory.high": "max",
        "memory.max": "max",
        "memory.swap.max": "max",
        "pids.max": "max",
    }
}


def default_values(version: Literal[1, 2]) -> Mapping[str, Mapping[str, str]]:
    """The files of a new cgroup and their contents, by controller; version 2 has one tree, named ``""``."""
    return _V1_DEFAULTS if version == 1 else _V2_DEFAULTS


_V2_CONTROLLERS = "cpuset cpu io memory hugetlb pids"
"""Its file shows programs that the root is one of version 2. Source: cgroups(7)."""


class CgroupFiles:
    """A tree of plain files in the layout of cgroup version 1 or 2.

    Attributes:
        root: Folder that stands for ``/sys/fs/cgroup``.
        version: 1 (one folder per controller) or 2 (one tree).

    Args:
        more: Files that this kernel has beside the usual ones, and their contents in a new cgroup.
    """

    def __init__(self, root: Path, version: Literal[1, 2] = 2, more: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.version = version
        self._defaults = {controller: dict(files) for controller, files in default_values(version).items()}
        for name, value in (more or {}).items():
            self._defaults.setdefault(name.split(".")[0] if version == 1 else "", {})[name] = value
        self._made_pods: set[str] = set()

    def folder(self, path: str, controller: str = "cpu") -> Path:
        """Folder of a cgroup path; the controller matters in version 1 only."""
        return self.root / (controller if self.version == 1 else "") / path.strip("/")

    def read(self, path: str, name: str) -> str:
        """Content of a file of the cgroup path, without the newline.

        Raises:
            FileNotFoundError: There is no such cgroup or file.
        """
        file = self.folder(path, name.split(".", 1)[0]) / name
        return file.read_text(encoding="ascii").rstrip("\n")

    def write(self, path: str, name: str, value: str) -> None:
        """Writes the content of a file of the cgroup path, which need not exist, with a newline."""
        _write(self.folder(path, name.split(".", 1)[0]) / name, value)

    def make(self, path: str) -> None:
        """Makes a cgroup and its ancestors, with the kernel's default values where they are new."""
        if self.version == 2:
            self.root.mkdir(parents=True, exist_ok=True)
            _write(self.root / "cgroup.controllers", _V2_CONTROLLERS)
        parts = path.strip("/").split("/")
        for controller, defaults in self._defaults.items():
            for depth in range(len(parts)):
                folder = self.root.joinpath(controller, *parts[: depth + 1])
                if not folder.is_dir():
                    folder.mkdir(parents=True)
                    for name, value in {**defaults, "cgroup.procs": ""}.items():
                        _write(folder / name, value)

    def make_pod(self, path: str) -> None:
        """Makes a pod's cgroup unless the kubelet has; what is made here is dropped with the pod."""
        if not self.folder(path).is_dir():
            self._made_pods.add(path)
        self.make(path)

    def drop_pod(self, path: str) -> None:
        """Removes a pod's cgroup if it was made here."""
        if path in self._made_pods:
            self._made_pods.discard(path)
            self.remove(path)

    def remove(self, path: str) -> None:
        """Removes a cgroup with all below it; a missing one is not an error."""
        for controller in self._defaults:
            shutil.rmtree(self.root / controller / path.strip("/"), ignore_errors=True)

    def apply(self, path: str, resources: api_pb2.LinuxContainerResources) -> None:
        """Writes the parameters that are set, as a runtime does for a container's cgroup."""
        values = v1_values(resources) if self.version == 1 else v2_values(resources)
        for name, value in values.items():
            self.write(path, name, value)


def v1_values(resources: api_pb2.LinuxContainerResources) -> dict[str, str]:
    """Files of version 1 and what is written to them for the parameters that are set."""
    values = _given(resources)
    fields = ((PARAMETERS[name], value) for name, value in values.items() if name in PARAMETERS)
    files = {field.v1.file: field.v1.encode(value) for field, value in fields if field.v1 is not None}
    swap_bytes = resources.memory_swap_limit_in_bytes
    return files | ({"memory.memsw.limit_in_bytes": str(swap_bytes)} if swap_bytes else {})


def v2_values(resources: api_pb2.LinuxContainerResources) -> dict[str, str]:
    """Files of version 2 and what is written to them; ``unified`` is written last."""
    values = _given(resources)
    found = {file: text for file in V2_FILES if (text := unified_text(file, values)) is not None}
    if resources.memory_swap_limit_in_bytes:
        found["memory.swap.max"] = _swap_max(resources)
    return found | dict(resources.unified)


def _given(resources: api_pb2.LinuxContainerResources) -> dict[str, int | str]:
    """The values that are set, by field."""
    values = ((field.name, getattr(resources, field.cri)) for field in CRI_FIELDS.values())
    return {name: value for name, value in values if value}


def _swap_max(resources: api_pb2.LinuxContainerResources) -> str:
    """The CRI counts memory and swap together, version 2 swap alone."""
    both = resources.memory_swap_limit_in_bytes
    return "max" if both < 0 else str(max(both - resources.memory_limit_in_bytes, 0))


def _write(file: Path, value: str) -> None:
    file.write_text(f"{value}\n", encoding="ascii")


class PodCgroups:
    """Makes, changes and removes cgroups in step with the life cycle of pods.

    Attributes:
        driver: How cgroup parents are written.
        files: The tree of files; ``None`` writes none. What has no cgroup parent has no files.
    """

    def __init__(
        self, driver: CgroupDriver = CgroupDriver.CGROUPFS, files: CgroupFiles | None = None
    ) -> None:
        self.driver = driver
        self.files = files

    def path(self, config: api_pb2.PodSandboxConfig, owner_id: str) -> str:
        """Path below the cgroup root of a sandbox or container; "" without a cgroup parent."""
        parent = config.linux.cgroup_parent
        return container_path(parent, owner_id, self.driver) if parent else ""

    def make_sandbox(self, config: api_pb2.PodSandboxConfig, sandbox_id: str) -> None:
        """Makes the sandbox's cgroup, and that of the pod if the kubelet has not."""
        path = self.path(config, sandbox_id)
        if self.files is not None and path:
            self.files.make_pod(parent_path(config.linux.cgroup_parent, self.driver))
            self.files.make(path)

    def drop_pod(self, config: api_pb2.PodSandboxConfig) -> None:
        """Removes the pod's cgroup if it was made here."""
        parent = config.linux.cgroup_parent
        if self.files is not None and parent:
            self.files.drop_pod(parent_path(parent, self.driver))

    def make_container(
        self,
        config: api_pb2.PodSandboxConfig,
        container_id: str,
        resources: api_pb2.LinuxContainerResources,
    ) -> None:
        """Makes the cgroup of a container that starts, with its resources."""
        path = self.path(config, container_id)
        if self.files is not None and path:
            self.files.make(path)
            self.files.apply(path, resources)

    def update_container(
        self,
        config: api_pb2.PodSandboxConfig,
        container_id: str,
        resources: api_pb2.LinuxContainerResources,
    ) -> None:
        """Writes the resources of a container that runs."""
        path = self.path(config, container_id)
        if self.files is not None and path:
            self.files.apply(path, resources)

    def remove(self, config: api_pb2.PodSandboxConfig, owner_id: str) -> None:
        """Removes the cgroup of a sandbox or container that ended."""
        path = self.path(config, owner_id)
        if self.files is not None and path:
            self.files.remove(path)
