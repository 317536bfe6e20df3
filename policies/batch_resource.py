"""Batch resources: CPU and memory of best-effort pods, which Kubernetes itself knows as extended resources.

The kubelet gives a pod that only asks for `kubernetes.io/batch-cpu` and `-memory` the least CPU weight and
no limits. A webhook notes the amounts in an annotation; this policy turns them into the cgroup values that
the same amounts of native resources would have given (policies spec 2.2).

It differs from Koordinator where that is marked as a quirk: a specification without containers says nothing
(Koordinator writes a memory limit of 0), and a quota that the CPU normalization ratio makes smaller than the
kernel's least is set to the least.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar, Final

from policies.annotations import EXTENDED_RESOURCE_SPEC, REMEMBERED_ANNOTATIONS, Place, parse
from runtimeproxy.hooks import (
    CgroupChange,
    Concern,
    ContainerChange,
    ContainerView,
    PodChange,
    PodView,
    Policy,
    ResourceChange,
    Resources,
)
from runtimeproxy.qos import QoSClass
from runtimeproxy.units import (
    MAX_INT64,
    MIN_CPU_QUOTA_US,
    UNLIMITED,
    cpu_quota_us_from_millicores,
    cpu_shares_from_millicores,
)

BATCH_CPU: Final = "kubernetes.io/batch-cpu"
"""In whole millicores. Source: policies spec 1.5."""
BATCH_MEMORY: Final = "kubernetes.io/batch-memory"
"""In bytes. Source: policies spec 1.5."""

_REASON: Final = "batch resources of a best-effort pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResourceOptions:
    """Settings of the policy; Koordinator derives both from its NodeSLO and the node's annotations."""

    cfs_quota_enabled: bool = True
    """False leaves all quotas unlimited: for nodes whose best-effort pods share one suppressed quota."""
    cpu_normalization_ratio: float = -1.0
    """By how much this node's CPUs are faster than the nominal ones; quotas are divided by it if above 1."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.cpu_normalization_ratio):
            raise ValueError("cpu_normalization_ratio is no finite number")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContainer:
    """The batch resources of one container; 0 where it names none."""

    request_cpu_millicores: int = 0
    limit_cpu_millicores: int = 0
    limit_memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchValues:
    """The cgroup values of a container or pod."""

    cpu_shares: int
    cpu_quota_us: int
    """-1 means unlimited."""
    memory_limit_bytes: int
    """-1 means unlimited."""


def batch_containers(annotations: Mapping[str, str]) -> Mapping[str, BatchContainer]:
    """Return the batch resources of a pod's containers by name; empty when the annotation names none.

    Raises:
        AnnotationError: the annotation is malformed.
    """
    text = annotations.get(EXTENDED_RESOURCE_SPEC)
    return {} if text is None else _batch_containers(text)


@lru_cache(maxsize=REMEMBERED_ANNOTATIONS)
def _batch_containers(text: str) -> Mapping[str, BatchContainer]:
    entries = parse(EXTENDED_RESOURCE_SPEC, text).member("containers").entries()
    return MappingProxyType({name: _batch_container(entry) for name, entry in entries.items()})


def _batch_container(entry: Place) -> BatchContainer:
    requests, limits = entry.member("requests").entries(), entry.member("limits").entries()
    none = Place("", None)
    return BatchContainer(
        request_cpu_millicores=requests.get(BATCH_CPU, none).quantity(),
        limit_cpu_millicores=limits.get(BATCH_CPU, none).quantity(),
        limit_memory_bytes=limits.get(BATCH_MEMORY, none).quantity(),
    )


def container_values(container: BatchContainer, options: BatchResourceOptions) -> BatchValues:
    """Return the cgroup values of a container. Source: policies spec 2.2, container level."""
    memory_bytes = container.limit_memory_bytes
    return BatchValues(
        cpu_shares=cpu_shares_from_millicores(container.request_cpu_millicores),
        cpu_quota_us=_quota_us(container.limit_cpu_millicores, options),
        memory_limit_bytes=memory_bytes if memory_bytes > 0 else UNLIMITED,
    )


def pod_values(containers: Iterable[BatchContainer], options: BatchResourceOptions) -> BatchValues | None:
    """Return the cgroup values of a pod; None when no container is listed.

    One listed container without a limit makes the pod unlimited. Source: policies spec 2.2, pod level.
    """
    listed = tuple(containers)
    if not listed:
        return None
    requests = sum(max(each.request_cpu_millicores, 0) for each in listed)
    cpu_limits = [each.limit_cpu_millicores for each in listed]
    memory_limits = [each.limit_memory_bytes for each in listed]
    return BatchValues(
        cpu_shares=cpu_shares_from_millicores(requests),
        cpu_quota_us=_quota_us(sum(cpu_limits), options) if min(cpu_limits) > 0 else UNLIMITED,
        memory_limit_bytes=min(sum(memory_limits), MAX_INT64) if min(memory_limits) > 0 else UNLIMITED,
    )


def memory_swap_limit_bytes(requested: Resources, memory_limit_bytes: int) -> int | None:
    """Return the memory plus swap limit that keeps the requested swap beside another memory limit.

    None when the kubelet requested none. A limit below that of memory alone would be refused by the runtime.
    """
    swap_bytes = requested.memory_swap_limit_bytes
    if swap_bytes is None or swap_bytes <= 0:
        return None
    if memory_limit_bytes == UNLIMITED:
        return UNLIMITED
    return min(memory_limit_bytes + max(swap_bytes - (requested.memory_limit_bytes or 0), 0), MAX_INT64)


def _quota_us(limit_millicores: int, options: BatchResourceOptions) -> int:
    quota_us = cpu_quota_us_from_millicores(limit_millicores) if options.cfs_quota_enabled else UNLIMITED
    if quota_us <= 0 or options.cpu_normalization_ratio <= 1:
        return quota_us
    return max(math.ceil(quota_us / options.cpu_normalization_ratio), MIN_CPU_QUOTA_US)


class BatchResource(Policy):
    """Sets CPU shares, quota and memory limit of `BE` pods and their containers from batch resources."""

    name: ClassVar[str] = "batch-resource"
    concern: ClassVar[Concern] = Concern(
        qos_classes=frozenset({QoSClass.BE}), annotations=(EXTENDED_RESOURCE_SPEC,)
    )
    priority: ClassVar[int] = 20
    options_type: ClassVar[type[BatchResourceOptions] | None] = BatchResourceOptions

    def __init__(self, options: BatchResourceOptions | None = None) -> None:
        self._options = options or BatchResourceOptions()

    def pre_run_pod_sandbox(self, pod: PodView) -> PodChange | None:
        """Set the pod's own cgroup."""
        values = self._pod_cgroup(pod)
        return PodChange(cgroup=values, reason=_REASON) if values else None

    def post_update_pod_sandbox_resources(self, pod: PodView) -> CgroupChange | None:
        """Set the pod's own cgroup again: the kubelet has just written its own values there."""
        values = self._pod_cgroup(pod)
        return CgroupChange(cgroup=values, reason=_REASON) if values else None

    def pre_create_container(self, container: ContainerView) -> ContainerChange | None:
        """Set the container's resources."""
        return self._container_change(container)

    def pre_update_container_resources(self, container: ContainerView) -> ContainerChange | None:
        """Keep the container's resources through the kubelet's updates."""
        return self._container_change(container)

    def _pod_cgroup(self, pod: PodView) -> Mapping[str, int]:
        if pod.qos is not QoSClass.BE:
            return {}
        values = pod_values(batch_containers(pod.annotations).values(), self._options)
        if values is None:
            return {}
        return {
            "cpu.shares": values.cpu_shares,
            "cpu.cfs_quota_us": values.cpu_quota_us,
            "memory.limit_in_bytes": values.memory_limit_bytes,
        }

    def _container_change(self, container: ContainerView) -> ContainerChange | None:
        if container.pod.qos is not QoSClass.BE:
            return None
        batch = batch_containers(container.pod.annotations).get(container.name)
        if batch is None:
            return None
        values = container_values(batch, self._options)
        resources = ResourceChange(
            cpu_shares=values.cpu_shares,
            cpu_quota_us=values.cpu_quota_us,
            memory_limit_bytes=values.memory_limit_bytes,
            memory_swap_limit_bytes=memory_swap_limit_bytes(container.requested, values.memory_limit_bytes),
        )
        return ContainerChange(resources=resources, reason=_REASON)
