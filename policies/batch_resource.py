"""Batch resources: CPU and memory of best-effort pods, requested as extended resources of Kubernetes.

The kubelet gives a pod that only requests `kubernetes.io/batch-cpu` and `-memory` the least CPU weight and
no limits. A webhook writes the amounts into an annotation; this policy converts them to the cgroup values of
the same amounts of native resources (policies spec 2.2).

It differs from Koordinator in three points: a specification without containers changes nothing (Koordinator
writes a memory limit of 0); a quota that falls below the kernel's minimum by the CPU normalization ratio is
raised to the minimum; and an unreadable amount affects only the values that depend on it (in Koordinator the
whole annotation is then an error).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar, Final

from policies.annotations import (
    EXTENDED_RESOURCE_SPEC,
    REMEMBERED_ANNOTATIONS,
    AnnotationError,
    Place,
    parse,
)
from runtimeproxy.hooks import (
    ContainerChange,
    ContainerView,
    PodChange,
    PodSelector,
    PodView,
    Policy,
    ResourceChange,
    Resources,
)
from runtimeproxy.node.snapshot import Node
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
    """False leaves all quotas unlimited, for nodes whose best-effort pods share one suppressed quota."""
    cpu_normalization_ratio: float = -1.0
    """Speed of this node's CPUs relative to the nominal ones; quotas are divided by it if it is above 1."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.cpu_normalization_ratio):
            raise ValueError("cpu_normalization_ratio is not a finite number")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContainer:
    """The batch resources of one container; 0 if absent, None if unreadable."""

    request_cpu_millicores: int | None = 0
    limit_cpu_millicores: int | None = 0
    limit_memory_bytes: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchValues:
    """The cgroup values of a container or pod; None if an amount that they depend on is unreadable."""

    cpu_shares: int | None
    cpu_quota_us: int | None
    """-1 means unlimited."""
    memory_limit_bytes: int | None
    """-1 means unlimited."""


@dataclass(frozen=True, slots=True)
class BatchSpecification:
    """The content of the annotation."""

    containers: Mapping[str, BatchContainer] = field(default_factory=dict)
    """By name."""
    problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The unreadable parts, by container."""


def batch_specification(annotations: Mapping[str, str]) -> BatchSpecification:
    """Return the batch resources of a pod's containers.

    Raises:
        AnnotationError: the whole annotation is unreadable.
    """
    text = annotations.get(EXTENDED_RESOURCE_SPEC)
    return BatchSpecification() if text is None else _batch_specification(text)


@lru_cache(maxsize=REMEMBERED_ANNOTATIONS)
def _batch_specification(text: str) -> BatchSpecification:
    entries = parse(EXTENDED_RESOURCE_SPEC, text).member("containers").entries()
    containers: dict[str, BatchContainer] = {}
    problems: dict[str, tuple[str, ...]] = {}
    for name, entry in entries.items():
        found: list[str] = []
        containers[name] = BatchContainer(
            request_cpu_millicores=_amount(entry, "requests", BATCH_CPU, found),
            limit_cpu_millicores=_amount(entry, "limits", BATCH_CPU, found),
            limit_memory_bytes=_amount(entry, "limits", BATCH_MEMORY, found),
        )
        if found:
            problems[name] = tuple(dict.fromkeys(found))
    return BatchSpecification(MappingProxyType(containers), MappingProxyType(problems))


def _amount(entry: Place, member: str, resource: str, problems: list[str]) -> int | None:
    try:
        return entry.member(member).entries().get(resource, Place("", None)).quantity()
    except AnnotationError as error:
        problems.append(str(error))
        return None


def container_values(container: BatchContainer, options: BatchResourceOptions) -> BatchValues:
    """Return the cgroup values of a container. Source: policies spec 2.2, container level."""
    request, limit = container.request_cpu_millicores, container.limit_cpu_millicores
    memory_bytes = container.limit_memory_bytes
    if memory_bytes is not None and memory_bytes <= 0:
        memory_bytes = UNLIMITED
    return BatchValues(
        cpu_shares=None if request is None else cpu_shares_from_millicores(request),
        cpu_quota_us=None if limit is None else _quota_us(limit, options),
        memory_limit_bytes=memory_bytes,
    )


def pod_values(containers: Iterable[BatchContainer], options: BatchResourceOptions) -> BatchValues | None:
    """Return the cgroup values of a pod; None if no container is listed.

    One listed container without a limit makes the pod unlimited. Source: policies spec 2.2, pod level.
    """
    listed = tuple(containers)
    if not listed:
        return None
    requests = _all_known(each.request_cpu_millicores for each in listed)
    limits = _all_known(each.limit_cpu_millicores for each in listed)
    memory = _all_known(each.limit_memory_bytes for each in listed)
    shares = quota_us = memory_bytes = None
    if requests is not None:
        shares = cpu_shares_from_millicores(sum(max(each, 0) for each in requests))
    if limits is not None:
        quota_us = _quota_us(sum(limits), options) if min(limits) > 0 else UNLIMITED
    if memory is not None:
        memory_bytes = min(sum(memory), MAX_INT64) if min(memory) > 0 else UNLIMITED
    return BatchValues(cpu_shares=shares, cpu_quota_us=quota_us, memory_limit_bytes=memory_bytes)


def _all_known(amounts: Iterable[int | None]) -> list[int] | None:
    known: list[int] = []
    for amount in amounts:
        if amount is None:
            return None
        known.append(amount)
    return known


def memory_swap_limit_bytes(requested: Resources, memory_limit_bytes: int | None) -> int | None:
    """Return the memory plus swap limit that keeps the requested swap beside another memory limit.

    None if the kubelet requested none, or no other memory limit is set. Runtimes refuse a limit below that of
    memory alone.
    """
    swap_bytes = requested.memory_swap_limit_bytes
    if memory_limit_bytes is None or swap_bytes is None or swap_bytes <= 0:
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
    selector: ClassVar[PodSelector] = PodSelector(
        qos_classes=frozenset({QoSClass.BE}), annotations=(EXTENDED_RESOURCE_SPEC,)
    )
    priority: ClassVar[int] = 20
    options_type: ClassVar[type[BatchResourceOptions] | None] = BatchResourceOptions

    def __init__(self, options: BatchResourceOptions | None = None) -> None:
        self._options = options or BatchResourceOptions()

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Return the values of the pod's own cgroup."""
        values, problems = self._pod_cgroup(pod)
        if not values and not problems:
            return None
        return PodChange(cgroup=values, problems=problems, reason=_REASON)

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the container's resources."""
        if container.pod.qos is not QoSClass.BE:
            return None
        try:
            specification = batch_specification(container.pod.annotations)
        except AnnotationError as error:
            return ContainerChange(problems=(str(error),))
        batch = specification.containers.get(container.name)
        if batch is None:
            return None
        values = container_values(batch, self._options)
        swap_bytes = memory_swap_limit_bytes(container.requested, values.memory_limit_bytes)
        resources = ResourceChange(
            cpu_shares=values.cpu_shares,
            cpu_quota_us=values.cpu_quota_us,
            memory_limit_bytes=values.memory_limit_bytes,
            memory_swap_limit_bytes=swap_bytes,
        )
        problems = specification.problems.get(container.name, ())
        return ContainerChange(resources=resources, problems=problems, reason=_REASON)

    def _pod_cgroup(self, pod: PodView) -> tuple[Mapping[str, int], tuple[str, ...]]:
        """Return the values, and the unreadable parts of the annotation."""
        if pod.qos is not QoSClass.BE:
            return {}, ()
        try:
            specification = batch_specification(pod.annotations)
        except AnnotationError as error:
            return {}, (str(error),)
        values = pod_values(specification.containers.values(), self._options)
        if values is None:
            return {}, ()
        named = {
            "cpu.shares": values.cpu_shares,
            "cpu.cfs_quota_us": values.cpu_quota_us,
            "memory.limit_in_bytes": values.memory_limit_bytes,
        }
        known = {name: value for name, value in named.items() if value is not None}
        return known, tuple(each for found in specification.problems.values() for each in found)
