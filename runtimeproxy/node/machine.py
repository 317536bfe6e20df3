"""CPUs, memory, processor and kernel features of this machine, from sysfs, procfs and the cgroup tree."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from runtimeproxy.cgroups import core_scheduling, slices
from runtimeproxy.cgroups.mounts import find_mounts
from runtimeproxy.cgroups.resctrl import FOLDER as RESCTRL
from runtimeproxy.cgroups.resctrl import SCHEMATA
from runtimeproxy.fields.declaration import Declaration
from runtimeproxy.fields.kernel_settings import SCHED_FEATURE_FILES
from runtimeproxy.fields.tables import PARAMETERS
from runtimeproxy.node.facts import NodeFacts, read_list
from runtimeproxy.node.snapshot import Cpu, Feature

_CPUS: Final = "devices/system/cpu"
_NODES: Final = "devices/system/node"
"""Source: Linux Documentation/ABI/stable/sysfs-devices-system-cpu, sysfs-devices-node;
Documentation/ABI/testing/sysfs-devices-system-cpu (cache, smt, intel_pstate, cpufreq)."""
_MAX_TEXT: Final = 65_536
"""Characters of one file that are read: /proc/cpuinfo has megabytes, of which the first CPU is enough."""
_MAX_PACKAGES: Final = 2**31 - 1
_MEM_TOTAL: Final = re.compile(r"^(?:Node +[0-9]+ +)?MemTotal: +([0-9]+) kB", re.MULTILINE)
_MODEL_NAME: Final = re.compile(r"^model name[ \t]*:[ \t]*(.*)$", re.MULTILINE)

PROGRAM_FOLDERS: Final = ("/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/local/bin")
"""Where programs are looked for, after PATH."""
_CAP_NET_ADMIN: Final = 12
"""Source: Linux include/uapi/linux/capability.h."""

SYSTEMD_IDLE: Final = 252
"""From this version on systemd writes `cpu.idle` 0 before a weight. Source: systemd src/core/cgroup.c,
cgroup_apply_unified_cpu_idle."""
SYSTEMD: Final = "systemd"
CGROUPFS: Final = "cgroupfs"
"""The kubelet's cgroup drivers. Source: kubelet.config.k8s.io/v1beta1, cgroupDriver."""
_ROOT_NAMES: Final = {"kubepods.slice": SYSTEMD, "kubepods": CGROUPFS}
"""Name of the kubelet's root cgroup by driver. Source: Koordinator pkg/koordlet/util/system."""

_SYSTEMD_FOLDERS: Final = ("usr/lib/systemd", "usr/lib64/systemd", "usr/lib/*/systemd")

_SYSCTLS: Final = {
    Feature.CORE_SCHED_SYSCTL: "sys/kernel/sched_core",
    Feature.GROUP_IDENTITY_SYSCTL: "sys/kernel/sched_group_identity_enabled",
}


class Processor(NamedTuple):
    """The processor that the CPUs of a node are of."""

    model: str = ""
    """Name as in /proc/cpuinfo; empty: not known."""
    has_hyper_threads: bool = False
    """Whether cores have more than one thread now."""
    has_turbo: bool = False
    """Whether cores may run faster than their nominal frequency now."""


def read_cpus(sysfs: Path) -> tuple[Cpu, ...] | None:
    """The CPUs that are present, by id; None if sysfs does not say."""
    folder = sysfs / _CPUS
    present = read_list(folder / "present")
    online = read_list(folder / "online")
    if not present or online is None:
        return None
    nodes = {
        cpu: node
        for node in read_list(sysfs / _NODES / "online") or ()
        for cpu in read_list(sysfs / _NODES / f"node{node}" / "cpulist") or ()
    }
    # sysfs has less for a CPU that is offline: it is put into socket, core and NUMA node 0.
    return tuple(
        Cpu(
            id=cpu,
            core=_number(folder / f"cpu{cpu}/topology/core_id"),
            socket=_number(folder / f"cpu{cpu}/topology/physical_package_id"),
            numa_node=nodes.get(cpu, 0),
            l3=_l3(folder / f"cpu{cpu}/cache"),
            is_online=cpu in online,
        )
        for cpu in sorted(present)
    )


def read_memory(sysfs: Path, procfs: Path) -> dict[int, int]:
    """Bytes of memory by NUMA node; all of it as that of node 0 where the kernel knows no such nodes."""
    nodes = sorted(read_list(sysfs / _NODES / "online") or ())
    memory = {node: _total_bytes(sysfs / _NODES / f"node{node}" / "meminfo") for node in nodes}
    memory = memory or {0: _total_bytes(procfs / "meminfo")}
    return {node: size_bytes for node, size_bytes in memory.items() if size_bytes}


def _total_bytes(meminfo: Path) -> int:
    """Bytes of memory by a file of the kernel; 0 if it does not say."""
    with suppress(OSError, ValueError):
        if match := _MEM_TOTAL.search(meminfo.read_text(encoding="ascii")):
            return int(match[1]) * 1024
    return 0


def read_processor(sysfs: Path, procfs: Path) -> Processor:
    """The processor; features that cannot be read are absent, as for koordlet."""
    folder = sysfs / _CPUS
    turbo = folder / "intel_pstate/no_turbo"
    return Processor(
        model=_model(procfs),
        has_hyper_threads=_text(folder / "smt/active") == "1",
        # The first is of Intel's driver, the other one of all the others.
        has_turbo=_text(turbo) == "0" if turbo.exists() else _text(folder / "cpufreq/boost") == "1",
    )


def _model(procfs: Path) -> str:
    match = _MODEL_NAME.search(_text(procfs / "cpuinfo"))
    return match[1].strip() if match else ""


def _l3(cache: Path) -> int:
    """Id of the cache of level 3; -1 without one."""
    for index in range(8):
        level = _text(cache / f"index{index}/level")
        if not level:
            break
        if level == "3":
            return _number(cache / f"index{index}/id", -1)
    return -1


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_TEXT).strip()
    except OSError:
        return ""


def _number(path: Path, default: int = 0) -> int:
    """A number; the kernel writes -1 for what it does not know (sysfs of some virtual machines)."""
    text = _text(path)
    if not (text.isdecimal() and len(text) <= 10):
        return default
    return min(int(text), _MAX_PACKAGES)


class WithoutFiles(NamedTuple):
    """What a node has of which no file of the kernel tells."""

    has_cookies: bool = False
    """Core scheduling."""
    has_slices: bool = False
    """Slices of tasks, that this process may set."""
    systemd: int = 0
    """Version of the systemd that runs it; 0: none, or not known."""

    @classmethod
    def of_this_node(cls) -> WithoutFiles:
        return cls(core_scheduling.is_supported(), slices.is_supported(), systemd_version())


def read_features(
    facts: NodeFacts,
    cgroup_root: Path,
    sysfs: Path,
    procfs: Path,
    without_files: WithoutFiles,
) -> frozenset[Feature]:
    """The features of the kernel; those with files in cgroups are missing until there is a cgroup."""
    # A kernel with a feature has all of its files.
    lacking = {each.feature for each in PARAMETERS.values() if not _has(facts, each)}
    named = {each.feature for each in PARAMETERS.values() if each.feature}
    found = {Feature(feature) for feature in named - lacking}
    found.update(feature for feature, path in _SYSCTLS.items() if _exists(procfs, path))
    mounts = find_mounts(cgroup_root)
    folders = {controller: mount.folder for controller, mount in mounts.items()}
    if "cpu.pressure" in facts.files.get("cpu", {}) or _exists(folders.get("cpuacct"), "cpu.pressure"):
        found.add(Feature.PSI)
    if "resctrl" in _text(procfs / "filesystems").split():
        found.add(Feature.RESCTRL)
    if _exists(sysfs, f"{RESCTRL}/{SCHEMATA}"):
        found.add(Feature.RESCTRL_MOUNTED)
    is_switched = any(
        "CORE_SCHED" in _text(sysfs / path).replace("NO_", "").split() for path in SCHED_FEATURE_FILES
    )
    if is_switched and Feature.CORE_SCHED_SYSCTL not in found:
        found.add(Feature.CORE_SCHED_FEATURE)
    if without_files.has_cookies or is_switched or Feature.CORE_SCHED_SYSCTL in found:
        found.add(Feature.CORE_SCHED)
    if without_files.has_slices:
        found.add(Feature.SLICE)
    if Feature.IDLE in found and facts.controllers.get("cpu") == 2 and without_files.systemd >= SYSTEMD_IDLE:
        found.add(Feature.CLASS_IDLE)
    return frozenset(found)


def network_features() -> frozenset[Feature]:
    """What network QoS needs of this process and its node."""
    found = {
        Feature.TC: find_program("tc"),
        Feature.NFT: find_program("nft"),
        Feature.NET_ADMIN: has_net_admin(),
    }
    return frozenset(feature for feature, is_there in found.items() if is_there)


def find_program(name: str) -> str:
    """The path of a program; empty if there is none."""
    for folder in (*os.environ.get("PATH", "").split(":"), *PROGRAM_FOLDERS):
        path = Path(folder) / name
        # Where this user may not look there is none.
        if folder and os.path.isfile(path) and os.access(path, os.X_OK):  # noqa: PTH113
            return str(path)
    return ""


def has_net_admin() -> bool:
    """Whether this process may change the network."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", _text(Path("/proc/self/status")), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> _CAP_NET_ADMIN & 1)


def systemd_version(root: Path = Path("/")) -> int:
    """The version of the systemd that runs this node, by the name of its library; 0: none, or not known."""
    if _text(root / "proc/1/comm") != "systemd":
        return 0
    names = (
        path.name for folder in _SYSTEMD_FOLDERS for path in root.glob(f"{folder}/libsystemd-shared-*.so")
    )
    found = (re.match(r"libsystemd-shared-([0-9]{3})", name) for name in names)
    # After an upgrade there may be two for a moment: the older one counts.
    return min((int(each[1]) for each in found if each is not None), default=0)


def guess_cgroup_driver(cgroup_root: Path) -> str | None:
    """The kubelet's cgroup driver by the name of its root cgroup; None without one, or with both."""
    folders = {mount.folder for mount in find_mounts(cgroup_root).values()}
    found = {driver for name, driver in _ROOT_NAMES.items() for folder in folders if _exists(folder, name)}
    return found.pop() if len(found) == 1 else None


def _has(facts: NodeFacts, parameter: Declaration) -> bool:
    controller = next((each for each in parameter.controllers if each in facts.controllers), "")
    version = facts.controllers.get(controller)
    file = parameter.format_for(version) if version is not None else None
    files = facts.root_files if parameter.is_of_root else facts.files
    return file is not None and file.file in files.get(controller, {})


def _exists(folder: Path | None, name: str) -> bool:
    return folder is not None and os.path.exists(folder / name)  # noqa: PTH110 - no permission is no file
