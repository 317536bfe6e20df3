"""CPU sets: the CPUs that Koordinator's scheduler allocated to a pod, without a CPU quota.

The scheduler writes the CPUs into an annotation. All containers of the pod get exactly these CPUs, and the
quotas of containers and pod are removed: throttling has no use on CPUs that belong to the pod alone (policies
spec 2.4, step 1 and "quota unset").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final

from policies.annotations import REMEMBERED_ANNOTATIONS, RESOURCE_STATUS, AnnotationError, parse
from runtimeproxy.hooks import (
    ContainerChange,
    ContainerView,
    PodChange,
    PodSelector,
    PodView,
    Policy,
    ResourceChange,
)
from runtimeproxy.node.snapshot import Node
from runtimeproxy.units import UNLIMITED, is_cpu_list

_REASON: Final = "CPUs allocated by the scheduler"
_NO_QUOTA_WITHOUT_CPUS: Final = {"resources.cpu_quota_us": "resources.cpuset_cpus"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CpusetOptions:
    """Settings of the policy."""

    disable_unset_cpu_quota: bool = False
    """True keeps the quotas of pods with a CPU set; Koordinator's flag of the same name."""


def allocated_cpus(annotations: Mapping[str, str]) -> str | None:
    """Return the CPU list allocated to a pod, as it is written; None if none is allocated.

    The full syntax of the kernel is accepted, such as `,8-15`; the proxy rewrites it in plain spelling.

    Raises:
        AnnotationError: the annotation is malformed, or not a CPU list.
    """
    text = annotations.get(RESOURCE_STATUS)
    return None if text is None else _allocated_cpus(text)


@lru_cache(maxsize=REMEMBERED_ANNOTATIONS)
def _allocated_cpus(text: str) -> str | None:
    place = parse(RESOURCE_STATUS, text).member("cpuset")
    cpus = place.text()
    if cpus and not is_cpu_list(cpus):
        place.fail("is not a CPU list")
    return cpus or None


class Cpuset(Policy):
    """Sets the CPU set from `resource-status` and removes the CPU quota, for all QoS classes."""

    name: ClassVar[str] = "cpuset"
    selector: ClassVar[PodSelector] = PodSelector(annotations=(RESOURCE_STATUS,))
    priority: ClassVar[int] = 40
    options_type: ClassVar[type[CpusetOptions] | None] = CpusetOptions

    def __init__(self, options: CpusetOptions | None = None) -> None:
        self._unsets_quota = not (options or CpusetOptions()).disable_unset_cpu_quota

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Remove the quota of the pod's own cgroup."""
        if not self._unsets_quota:
            return None
        try:
            cpus = allocated_cpus(pod.annotations)
        except AnnotationError as error:
            return PodChange(problems=(str(error),))
        return PodChange(cgroup={"cpu.cfs_quota_us": UNLIMITED}, reason=_REASON) if cpus else None

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Set the container's CPUs, and remove its quota."""
        try:
            cpus = allocated_cpus(container.pod.annotations)
        except AnnotationError as error:
            return ContainerChange(problems=(str(error),))
        if cpus is None:
            return None
        quota_us = UNLIMITED if self._unsets_quota else None
        resources = ResourceChange(cpuset_cpus=cpus, cpu_quota_us=quota_us)
        return ContainerChange(resources=resources, requires=_NO_QUOTA_WITHOUT_CPUS, reason=_REASON)
