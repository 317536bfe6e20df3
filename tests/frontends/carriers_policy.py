"""A policy file that sets all that messages can carry; an annotation of the pod says what of it.

Its value is `all`, or names such as `pids_limit,unified,env`: of resources, or of attributes of a change.
"""

from __future__ import annotations

from collections.abc import Collection
from types import MappingProxyType
from typing import Any, Final

from runtimeproxy.fields.tables import RESOURCE_PARAMETERS
from runtimeproxy.hooks import (
    ContainerChange,
    ContainerView,
    DeviceSpec,
    MountSpec,
    Policy,
    ResourceChange,
)
from runtimeproxy.node.snapshot import Node

ANNOTATION: Final = "test/carriers"
ALL: Final = "all"
RESOURCES: Final[dict[str, Any]] = {
    "cpu_period_us": 50_000,
    "cpu_quota_us": 25_000,
    "cpu_shares": 300,
    "memory_limit_bytes": 64 << 20,
    "memory_swap_limit_bytes": 64 << 20,
    "oom_score_adj": 321,
    "cpuset_cpus": "0",
    "cpuset_mems": "0",
    "pids_limit": 77,
    "rdt_class": "carried",
    "blockio_class": "carried",
    "unified": {"memory.high": str(48 << 20)},
}
ATTRIBUTES: Final[dict[str, Any]] = {
    "annotations": {"test/carried": "yes"},
    "env": {"CARRIED": "yes"},
    "mounts": (MountSpec(host_path="/etc/hostname", container_path="/carried"),),
    "devices": (DeviceSpec(host_path="/dev/null", container_path="/dev/carried", permissions="rw"),),
    "cdi_devices": ("vendor.com/carried=one",),
}


def change_of(names: Collection[str]) -> ContainerChange:
    """Return the change that sets these; `all` is everything."""
    resources, attributes = (
        {name: value for name, value in given.items() if name in names or ALL in names}
        for given in (RESOURCES, ATTRIBUTES)
    )
    given = ResourceChange(**resources) if resources else None
    return ContainerChange(resources=given, **attributes, reason="carried")


class Carriers(Policy):
    """Sets what the annotation names."""

    name = "carriers"
    sets_fields = MappingProxyType(
        {
            "container": frozenset(
                {
                    *ATTRIBUTES,
                    *(RESOURCE_PARAMETERS.get(name, name) for name in RESOURCES if name != "unified"),
                }
            )
        }
    )

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the change, the same for all containers of a pod."""
        names = container.pod.annotations.get(ANNOTATION, "")
        return change_of(names.split(",")) if names else None
