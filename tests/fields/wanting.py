"""A policy that wants a value of each synthetic field, where a pod's annotation says so."""

from __future__ import annotations

from typing import Any

from runtimeproxy.hooks import (
    AtMost,
    ContainerChange,
    ContainerView,
    PodChange,
    PodView,
    Policy,
    ResourceChange,
)
from runtimeproxy.hooks.changes import CgroupValue
from runtimeproxy.node.snapshot import Node

ANNOTATION = "test/wants"
OF_CGROUP: dict[str, CgroupValue] = {
    "cpu.made_up_ns": 7,
    "cpuset.cpus.made_up": "0-3",
    "cpuset.mems.made_up": "0",
    "cpuset.made_up_kind": "root",
}
BY_STRATEGY: dict[str, CgroupValue] = {
    "cpu.made_up_ns": 9,
    "cpuset.cpus.made_up": "1",
    "cpuset.mems.made_up": "1",
    "cpuset.made_up_kind": "member",
}
"""While the cluster strategy of resource-threshold-config has a `cpuSuppressMinPercent`."""
OF_POD: dict[str, CgroupValue] = {**OF_CGROUP, "memory.made_up_in_bytes": 1 << 30, "pids.made_up.max": 64}
OF_MESSAGE: dict[str, Any] = {
    "made_up_bytes": AtMost(1 << 20),
    "made_up_score": -3,
    "made_up_pids": AtMost(64),
    "made_up_class": "fast",
}
OF_UNIFIED = {"memory.made_up.max": "65536"}


class Wanting(Policy):
    """The values above."""

    name = "wanting"

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        if ANNOTATION not in pod.annotations:
            return None
        return PodChange(cgroup={**OF_POD, **_by_strategy(node)}, reason="wanted")

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        if ANNOTATION not in container.pod.annotations:
            return None
        resources = ResourceChange(**OF_MESSAGE, unified=OF_UNIFIED)
        cgroup = {**OF_CGROUP, **_by_strategy(node)}
        return ContainerChange(resources=resources, cgroup=cgroup, reason="wanted")


def _by_strategy(node: Node) -> dict[str, CgroupValue]:
    return BY_STRATEGY if node.strategies.threshold.cpu_suppress_min_percent is not None else {}
