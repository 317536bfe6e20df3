"""What one check hands on to the next: the pods that run, and a load of calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.pods import PodSpec
from tests.node.guest.cgroup_v2 import CgroupValues, Watch, processes, values


@dataclass(frozen=True)
class Pod:
    """A pod that runs, with one container."""

    spec: PodSpec
    sandbox_id: str
    container_id: str
    cgroup: Path
    container_cgroup: Path

    def values(self) -> tuple[CgroupValues, CgroupValues]:
        """Those of the container and of the pod."""
        return values(self.container_cgroup), values(self.cgroup)

    def process(self) -> tuple[int, str]:
        """The container's first process, with its start time so that another one is told apart."""
        pid = processes(self.container_cgroup)[0]
        # Source: proc(5): field 22, counted behind the name in parentheses.
        return pid, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


@dataclass
class Node:
    """The state of one run of all checks."""

    logs: Path
    pods: dict[str, Pod] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    """The text of each file that holds a value, before a strategy."""
    bound: Watch | None = None
    """Of the QoS class of BE pods, since the QoS manager bounds it."""


@dataclass(frozen=True)
class Check:
    """One row of the table: what shall hold, and the function that finds out and returns what it saw."""

    name: str
    run: Callable[[Node], str]
