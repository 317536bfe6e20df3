"""Facts about a node, and what they say of a value: a frozen snapshot, and pure questions to it.

A fact is known or unknown, and what is unknown refuses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from runtimeproxy.cgroups import PARAMETERS
from runtimeproxy.units import format_cpu_list, parse_cpu_list

FilesByController = Mapping[str, Mapping[str, bool]]
"""The files that cgroups have for a controller, and whether each can be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a node can take."""

    online_cpus: frozenset[int] | None = None
    """None: not known."""
    online_memory_nodes: frozenset[int] | None = None
    """The NUMA nodes that are online; None: not known."""
    last_cpu: int | None = None
    """The highest number that a CPU of this node can have; None: not known."""
    cgroup_version: int | None = None
    """2 where runtimes use version 2 alone, else 1; None: no cgroups are mounted."""
    controllers: Mapping[str, int] = field(default_factory=dict)
    """The cgroup version that carries each controller; empty: not known."""
    files: FilesByController = field(default_factory=dict)
    """Of the controllers that some cgroup has; nothing is known of the others."""

    def cpus_problem(self, cpus: str) -> str:
        """Why a list of CPUs cannot be used; empty if it can."""
        return _offline("CPU", cpus, self.online_cpus)

    def memory_nodes_problem(self, nodes: str) -> str:
        """Why a list of NUMA nodes cannot be used; empty if it can."""
        return _offline("NUMA node", nodes, self.online_memory_nodes)

    def parameter_problem(self, name: str) -> str:
        """Why a cgroup parameter, by its version 1 name, cannot be written here; empty if it can."""
        parameter = PARAMETERS.get(name)
        if parameter is None:
            return "is not a known cgroup parameter"
        if not parameter.writable:
            return "cannot be written"
        if not self.controllers:
            return ""
        version = self.controllers.get(parameter.controller)
        if version is None:
            return f"this node has no cgroup controller {parameter.controller}"
        file_format = parameter.format_for(version)
        if file_format is None:
            return f"cgroup version {version} has no such file"
        return self._file_problem(parameter.controller, file_format.file)

    def unified_problem(self, file: str) -> str:
        """Why a file of version 2 cannot be set for a container; empty if it can.

        Source: runc fails the container for any of these (libcontainer/cgroups/fs2, setUnified).
        """
        if self.cgroup_version == 1:
            return "unified is for cgroup version 2, and this node has version 1"
        controller = file.partition(".")[0]
        if self.controllers and controller != "cgroup" and controller not in self.controllers:
            return f"this node has no cgroup controller {controller}"
        return self._file_problem(controller, file)

    def _file_problem(self, controller: str, file: str) -> str:
        files = self.files.get(controller)
        if files is None or files.get(file):
            return ""
        return f"{file} is read-only" if file in files else f"this kernel has no {file}"


ANY_NODE: Final = NodeFacts()
"""A node of which nothing is known: it takes everything."""


def _offline(what: str, wanted: str, online: frozenset[int] | None) -> str:
    missing = parse_cpu_list(wanted) - online if online is not None else frozenset()
    if online is None or not missing:
        return ""
    return f"{what} {format_cpu_list(missing)} not online, only {format_cpu_list(online) or 'none'}"
