"""What this node's kernel has, from the cgroup tree, procfs and sysfs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from runtimeproxy.cgroups.mounts import find_mounts
from runtimeproxy.cgroups.parameters import PARAMETERS
from runtimeproxy.node.facts import NodeFacts
from runtimeproxy.node.snapshot import Feature

SYSTEMD: Final = "systemd"
CGROUPFS: Final = "cgroupfs"
"""The kubelet's cgroup drivers. Source: kubelet.config.k8s.io/v1beta1, cgroupDriver."""
_ROOT_NAMES: Final = {"kubepods.slice": SYSTEMD, "kubepods": CGROUPFS}
"""Name of the kubelet's root cgroup by driver. Source: policies spec 1.7."""

_PARAMETERS: Final[Mapping[Feature, tuple[str, ...]]] = {
    Feature.BVT: ("cpu.bvt_warp_ns",),
    Feature.BURST: ("cpu.cfs_burst_us",),
    Feature.IDLE: ("cpu.idle",),
    Feature.MEMORY_PROTECTION: ("memory.min", "memory.low", "memory.high"),
    Feature.MEMORY_WMARK: ("memory.wmark_ratio", "memory.wmark_scale_factor", "memory.wmark_min_adj"),
    Feature.MEMORY_PRIORITY: ("memory.priority", "memory.use_priority_oom"),
    Feature.MEMORY_OOM_GROUP: ("memory.oom.group",),
    Feature.MEMORY_PAGECACHE_LIMIT: ("memory.pagecache_limit.enable", "memory.pagecache_limit.size"),
}
"""Cgroup parameters, all of which a kernel with the feature has."""
_FILES: Final[Mapping[Feature, Mapping[str, str]]] = {
    Feature.IO_LIMITS: {"blkio": "blkio.throttle.read_bps_device", "io": "io.max"},
    Feature.IO_WEIGHT: {"blkio": "blkio.cost.weight", "io": "io.weight"},
}
"""A file by controller. Source: policies spec 3.8; Linux Documentation/admin-guide/cgroup-v2.rst, IO."""
_SYSCTLS: Final = {
    Feature.CORE_SCHED: "sys/kernel/sched_core",
    Feature.GROUP_IDENTITY_SYSCTL: "sys/kernel/sched_group_identity_enabled",
}
_SCHED_FEATURES: Final = ("kernel/debug/sched/features", "kernel/debug/sched_features")
"""Source: policies spec 2.5; Linux kernel/sched/debug.c, which has moved the file in 5.13."""
_MAX_LIST_BYTES: Final = 65_536


def read_features(facts: NodeFacts, cgroup_root: Path, sysfs: Path, procfs: Path) -> frozenset[Feature]:
    """The features of the kernel.

    Args:
        facts: Have the files of cgroups; those of no cgroup are missing features, until there is one.
        cgroup_root: The mount of cgroups.
        sysfs: The mount of sysfs.
        procfs: The mount of procfs.
    """
    found = {feature for feature, names in _PARAMETERS.items() if all(_has(facts, name) for name in names)}
    for feature, files in _FILES.items():
        if any(file in facts.files.get(controller, {}) for controller, file in files.items()):
            found.add(feature)
    found.update(feature for feature, path in _SYSCTLS.items() if (procfs / path).exists())
    mounts = find_mounts(cgroup_root)
    folders = {controller: mount.folder for controller, mount in mounts.items()}
    if "cpu.pressure" in facts.files.get("cpu", {}) or _exists(folders.get("cpuacct"), "cpu.pressure"):
        found.add(Feature.PSI)
    # The files of the cost model are in the root only.
    if _exists(folders.get("io"), "io.cost.qos") or _exists(folders.get("blkio"), "blkio.cost.qos"):
        found.add(Feature.IO_COST)
    if "resctrl" in _text(procfs / "filesystems").split():
        found.add(Feature.RESCTRL)
    if any("CORE_SCHED" in _text(sysfs / path).replace("NO_", "").split() for path in _SCHED_FEATURES):
        found.add(Feature.CORE_SCHED)
    return frozenset(found)


def guess_cgroup_driver(cgroup_root: Path) -> str | None:
    """The kubelet's cgroup driver by the name of its root cgroup; None without one, or with both."""
    folders = {mount.folder for mount in find_mounts(cgroup_root).values()}
    found = {driver for name, driver in _ROOT_NAMES.items() for folder in folders if (folder / name).is_dir()}
    return found.pop() if len(found) == 1 else None


def _has(facts: NodeFacts, name: str) -> bool:
    parameter = PARAMETERS[name]
    version = facts.controllers.get(parameter.controller)
    file = parameter.format_for(version) if version is not None else None
    return file is not None and file.file in facts.files.get(parameter.controller, {})


def _exists(folder: Path | None, name: str) -> bool:
    return folder is not None and (folder / name).exists()


def _text(path: Path) -> str:
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            return file.read(_MAX_LIST_BYTES)
    except OSError:
        return ""
