"""Facts about a node, read from sysfs and the cgroup tree; an unknown fact refuses no value."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from runtimeproxy.cgroups.mounts import DEFAULT_ROOT, controllers_of, find_mounts
from runtimeproxy.fields.anolis import only_anolis
from runtimeproxy.fields.declaration import Declaration
from runtimeproxy.fields.tables import PARAMETERS, unknown_parameter
from runtimeproxy.node.devices import DEFAULT_DEVFS, HostDevices, read_devices
from runtimeproxy.units import format_cpu_list, parse_cpu_list

DEFAULT_SYSFS: Final = Path("/sys")
"""Where sysfs is mounted. Source: sysfs(5)."""
REFRESH_S: Final = 1.0
"""How old facts may be that change while a node runs: CPUs and memory are switched on and off by hand, and a
device that is bound to its driver anew may have another one's number."""

_ONLINE_CPUS: Final = "devices/system/cpu/online"
_POSSIBLE_CPUS: Final = "devices/system/cpu/possible"
_MEMORY_NODES: Final = "devices/system/node/has_memory"
"""The nodes that are online and have memory: the kernel takes no others for a cpuset."""
_ONLINE_NODES: Final = "devices/system/node/online"
"""Source: Linux Documentation/ABI/stable/sysfs-devices-system-cpu and -node."""
_MOST_CGROUPS: Final = 32
"""Number of cgroups below a root to read the files of: they differ in controllers, not in kernels."""
_WRITABLE: Final = 0o222
_USUAL: Final = frozenset({"cpu", "cpuset", "memory"})
"""Controllers on whose files policies usually act."""

FilesByController = Mapping[str, Mapping[str, bool]]
"""The files that cgroups have for a controller, and whether each can be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """The facts of a node. A fact is known or unknown; an unknown one refuses no value."""

    online_cpus: frozenset[int] | None = None
    online_memory_nodes: frozenset[int] | None = None
    """The NUMA nodes that are online and have memory; None: not known."""
    last_cpu: int | None = None
    """The highest number that a CPU of this node can have; None: not known."""
    cgroup_version: int | None = None
    """2 where runtimes use version 2 alone, else 1; None: no cgroups are mounted."""
    controllers: Mapping[str, int] = field(default_factory=dict)
    """The cgroup version that carries each controller; empty: not known."""
    files: FilesByController = field(default_factory=dict)
    """By controller; those that no cgroup has are unknown."""
    root_files: FilesByController = field(default_factory=dict)
    """The same of the root cgroup, for the files that no other has."""
    devices: HostDevices | None = None
    """The devices that containers may get; None: not known."""
    _problems: dict[str, str] = field(init=False, repr=False, compare=False, default_factory=dict)
    """Of parameters, as far as they have been asked for."""

    def cpus_problem(self, cpus: str) -> str:
        return _offline("CPU", cpus, self.online_cpus)

    def memory_nodes_problem(self, nodes: str) -> str:
        return _offline("NUMA node", nodes, self.online_memory_nodes)

    def parameter_problem(self, name: str) -> str:
        """Why a cgroup parameter, by its version 1 name, cannot be written here; empty if it can."""
        problem = self._problems.get(name)
        if problem is None:
            parameter = PARAMETERS.get(name)
            if parameter is None:
                return unknown_parameter(name)
            problem = self._problems[name] = self._problem_of(parameter)
        return problem

    def _problem_of(self, parameter: Declaration) -> str:
        if not parameter.writable:
            return "cannot be written"
        if not self.controllers or parameter.processes is not None:
            return ""
        controller = next((each for each in parameter.controllers if each in self.controllers), "")
        version = self.controllers.get(controller)
        if version is None:
            return f"this node has no cgroup controller {parameter.controllers[0]}"
        file_format = parameter.format_for(version)
        if file_format is None:
            return f"cgroup version {version} has no such file"
        files = self.root_files if parameter.is_of_root else self.files
        return _file_problem(files.get(controller), file_format.file, version)

    def unified_problem(self, file: str) -> str:
        """Why a file of version 2 cannot be set for a container; empty if it can.

        Source: runc fails the container for any of these (libcontainer/cgroups/fs2, setUnified).
        """
        if self.cgroup_version == 1:
            return "unified is for cgroup version 2, and this node has version 1"
        controller = file.partition(".")[0]
        if self.controllers and controller != "cgroup" and controller not in self.controllers:
            return f"this node has no cgroup controller {controller}"
        return _file_problem(self.files.get(controller), file, self.controllers.get(controller))


def _file_problem(files: Mapping[str, bool] | None, file: str, version: int | None) -> str:
    if files is None or files.get(file):
        return ""
    if file in files:
        return f"{file} is read-only"
    why = only_anolis(file, version)
    return f"this kernel has no {file}: {why}" if why else f"this kernel has no {file}"


ANY_NODE: Final = NodeFacts()
"""A node of which nothing is known: it accepts all values."""


@lru_cache(maxsize=32)  # most containers share the CPUs of a few pools
def _offline(what: str, wanted: str, online: frozenset[int] | None) -> str:
    missing = parse_cpu_list(wanted) - online if online is not None else frozenset()
    if online is None or not missing:
        return ""
    return f"{what} {format_cpu_list(missing)} not online, only {format_cpu_list(online) or 'none'}"


class NodeReader:
    """The node that these folders describe; safe for all threads."""

    def __init__(
        self,
        sysfs: Path = DEFAULT_SYSFS,
        cgroup_root: Path = DEFAULT_ROOT,
        clock: Callable[[], float] = time.monotonic,
        devfs: Path = DEFAULT_DEVFS,
    ) -> None:
        self._sysfs = sysfs
        self._devfs = devfs
        self._cgroup_root = cgroup_root
        self._clock = clock
        # Replaced as one, so that threads need no lock: at worst two of them read the same files.
        self._known: tuple[float, NodeFacts] | None = None

    @property
    def fresh_until_s(self) -> float:
        return self._known[0] + REFRESH_S if self._known is not None else 0.0

    @property
    def latest(self) -> NodeFacts:
        return self._known[1] if self._known is not None else ANY_NODE

    def facts(self) -> NodeFacts:
        """The present facts, read again at most once a second."""
        known, now_s = self._known, self._clock()
        if known is not None and now_s - known[0] < REFRESH_S:
            return known[1]
        facts = replace(
            known[1] if known is not None else ANY_NODE,
            online_cpus=read_list(self._sysfs / _ONLINE_CPUS),
            online_memory_nodes=self._memory_nodes(),
            last_cpu=max(read_list(self._sysfs / _POSSIBLE_CPUS) or (), default=None),
            devices=read_devices(self._sysfs, self._devfs),
        )
        # Until the usual files are known, which never change.
        if not facts.controllers or not _USUAL & facts.controllers.keys() <= facts.files.keys():
            facts = self._with_cgroups(facts)
        if known is not None and facts == known[1]:
            facts = known[1]  # what is made of them stays, too
        self._known = now_s, facts
        return facts

    def _memory_nodes(self) -> frozenset[int] | None:
        found = read_list(self._sysfs / _MEMORY_NODES)
        return found if found is not None else read_list(self._sysfs / _ONLINE_NODES)

    def _with_cgroups(self, facts: NodeFacts) -> NodeFacts:
        mounts = find_mounts(self._cgroup_root)
        if not mounts:
            return facts
        files: defaultdict[str, dict[str, bool]] = defaultdict(dict)
        for controller, mount in mounts.items():
            if mount.version == 1:
                for folder in (mount.folder, *_below(mount.folder)):
                    files[controller].update(_files(folder, controller))
        root_files = {name: _files(mount.folder, name) for name, mount in mounts.items()}
        unified = {mount.folder for mount in mounts.values() if mount.version == 2}
        for folder in (each for root in unified for each in _below(root)):
            # The root itself lacks most files, and so does a cgroup in which a controller is not enabled.
            for controller in ("cgroup", *controllers_of(folder)):
                files[controller].update(_files(folder, controller))
        return replace(
            facts,
            cgroup_version=2 if (self._cgroup_root / "cgroup.controllers").exists() else 1,
            controllers={name: mount.version for name, mount in mounts.items()},
            files={controller: found for controller, found in files.items() if found},
            root_files={controller: found for controller, found in root_files.items() if found},
        )


def read_list(file: Path) -> frozenset[int] | None:
    try:
        return parse_cpu_list(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _below(root: Path) -> list[Path]:
    try:
        with os.scandir(root) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
    return [root / name for name in names[:_MOST_CGROUPS]]


def _files(folder: Path, controller: str) -> dict[str, bool]:
    """A controller's files in a cgroup, and whether each can be written."""
    found: dict[str, bool] = {}
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(f"{controller}."):
                found[entry.name] = bool(entry.stat(follow_symlinks=False).st_mode & _WRITABLE)
    return found
