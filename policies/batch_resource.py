"""Batch resources: CPU and memory of best-effort pods, requested as extended resources of Kubernetes.

The kubelet gives a pod that only requests `kubernetes.io/batch-cpu` and `-memory` the least CPU weight and
no limits. A webhook writes the amounts into an annotation; this policy converts them to the cgroup values of
the same amounts of native resources. All containers that the annotation names count, init containers and
sidecars too. A container that it does not name keeps the kubelet's values, which are added to those of the
pod's own cgroup. Source: Koordinator pkg/koordlet/runtimehooks/hooks/batchresource.

Quotas are divided by the node's CPU normalization ratio. They are left unlimited while best-effort pods are
suppressed by one quota for all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from policies.annotations import EXTENDED_RESOURCE_SPEC, AnnotationError, BatchContainer, batch_specification
from runtimeproxy.hooks import (
    ContainerChange,
    ContainerView,
    PodChange,
    PodSelector,
    PodView,
    Policy,
    Reason,
    ResourceChange,
    Resources,
    Source,
)
from runtimeproxy.hooks.algebra import divided
from runtimeproxy.hooks.reasons import LateReason, Part
from runtimeproxy.hooks.sources import ratio_source
from runtimeproxy.node.snapshot import Input, Node
from runtimeproxy.qos import QoSClass
from runtimeproxy.slo.schema import CpuSuppressPolicy, Threshold
from runtimeproxy.units import (
    CPU_PERIOD_US,
    MAX_CPU_SHARES,
    MAX_INT64,
    MIN_CPU_QUOTA_US,
    MIN_CPU_SHARES,
    UNLIMITED,
    cpu_quota_us_from_millicores,
    cpu_shares_from_millicores,
)

_REASON: Final = "batch resources of a best-effort pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResourceOptions:
    """Settings of the policy, in place of the node's strategy and its normalization ratio."""

    cfs_quota_enabled: bool | None = None
    """False leaves all quotas unlimited, for nodes whose best-effort pods share one suppressed quota; true
    sets them. Unset, `resource-threshold-config` decides."""
    cpu_normalization_ratio: float | None = None
    """Speed of this node's CPUs relative to the nominal ones; quotas are divided by it if it is above 1.
    Unset, the node's ratio counts."""

    def __post_init__(self) -> None:
        if self.cpu_normalization_ratio is not None and not math.isfinite(self.cpu_normalization_ratio):
            raise ValueError("cpu_normalization_ratio is not a finite number")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRule:
    """How CPU limits become quotas on this node."""

    has_quotas: bool = True
    ratio: float = -1.0
    """The divisor; applied if above 1."""
    origin: Part = ""
    """The option or strategy that changes the quotas, for reasons; empty if none does."""


def quota_rule(
    threshold: Threshold, normalization_ratio: float | None, options: BatchResourceOptions
) -> QuotaRule:
    """Return the rule of a node. Source: parseRule."""
    is_suppressed = threshold.enable and threshold.cpu_suppress_policy is CpuSuppressPolicy.CFS_QUOTA
    enabled, ratio = options.cfs_quota_enabled, options.cpu_normalization_ratio
    if ratio is None:
        ratio = -1.0 if normalization_ratio is None else normalization_ratio
    return QuotaRule(has_quotas=not is_suppressed if enabled is None else enabled, ratio=ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchValues:
    """The cgroup values of a container or pod; None if an amount that they depend on is unreadable."""

    cpu_shares: int | None
    cpu_quota_us: int | None
    """-1 means unlimited."""
    memory_limit_bytes: int | None
    """-1 means unlimited."""


def container_values(container: BatchContainer, rule: QuotaRule) -> BatchValues:
    """Return the cgroup values of a container. Source: SetContainerResources."""
    request, limit = container.request_cpu_millicores, container.limit_cpu_millicores
    memory_bytes = container.limit_memory_bytes
    if memory_bytes is not None and memory_bytes <= 0:
        memory_bytes = UNLIMITED
    return BatchValues(
        cpu_shares=None if request is None else cpu_shares_from_millicores(request),
        cpu_quota_us=None if limit is None else _quota_us(limit, rule),
        memory_limit_bytes=memory_bytes,
    )


def pod_values(
    containers: Iterable[BatchContainer],
    rule: QuotaRule,
    native: Resources | None = None,
    *,
    has_others: bool = False,
) -> BatchValues | None:
    """Return the cgroup values of a pod; None if no container is listed.

    One container without a limit makes the pod unlimited. Source: SetPodResources.

    Args:
        containers: those that the annotation lists.
        rule: of this node.
        native: what the kubelet asks for the sandbox: the sum of native requests and limits, which only
            containers that are not listed can have. It is added.
        has_others: whether there are containers that are not listed. Without any native limit they have none.
    """
    listed = tuple(containers)
    if not listed:
        return None
    requests = _all_known(each.request_cpu_millicores for each in listed)
    limits = _all_known(each.limit_cpu_millicores for each in listed)
    memory = _all_known(each.limit_memory_bytes for each in listed)
    native_shares, native_quota_us, native_bytes = _native(native or Resources())
    shares = quota_us = memory_bytes = None
    if requests is not None:
        shares = cpu_shares_from_millicores(sum(max(each, 0) for each in requests))
        shares = min(shares + native_shares, MAX_CPU_SHARES)
    if limits is not None:
        quota_us = _quota_us(sum(limits), rule) if min(limits) > 0 else UNLIMITED
        quota_us = _sum(quota_us, native_quota_us, has_others=has_others)
    if memory is not None:
        memory_bytes = min(sum(memory), MAX_INT64) if min(memory) > 0 else UNLIMITED
        memory_bytes = _sum(memory_bytes, native_bytes, has_others=has_others)
    return BatchValues(cpu_shares=shares, cpu_quota_us=quota_us, memory_limit_bytes=memory_bytes)


def _native(sandbox: Resources) -> tuple[int, int, int]:
    """Return native shares, quota for a period of 100 ms, and memory limit; 0 for none."""
    shares = sandbox.cpu_shares or 0
    quota_us = max(sandbox.cpu_quota_us or 0, 0) * CPU_PERIOD_US // (sandbox.cpu_period_us or CPU_PERIOD_US)
    return shares if shares > MIN_CPU_SHARES else 0, quota_us, max(sandbox.memory_limit_bytes or 0, 0)


def _sum(batch: int, native: int, *, has_others: bool) -> int:
    if batch == UNLIMITED or (has_others and not native):
        return UNLIMITED
    return min(batch + native, MAX_INT64)


def _all_known(amounts: Iterable[int | None]) -> list[int] | None:
    listed = tuple(amounts)
    known = [each for each in listed if each is not None]
    return known if len(known) == len(listed) else None


def memory_swap_limit_bytes(requested: Resources, memory_limit_bytes: int | None) -> int | None:
    """Return the memory plus swap limit that keeps the requested swap beside another memory limit."""
    swap_bytes = requested.memory_swap_limit_bytes
    # Runtimes refuse a limit below that of memory alone.
    if memory_limit_bytes is None or swap_bytes is None or swap_bytes <= 0:
        return None
    if memory_limit_bytes == UNLIMITED:
        return UNLIMITED
    return min(memory_limit_bytes + max(swap_bytes - (requested.memory_limit_bytes or 0), 0), MAX_INT64)


def _quota_us(limit_millicores: int, rule: QuotaRule) -> int:
    quota_us = cpu_quota_us_from_millicores(limit_millicores) if rule.has_quotas else UNLIMITED
    if quota_us <= 0 or rule.ratio <= 1:
        return quota_us
    return max(divided(quota_us, rule.ratio), MIN_CPU_QUOTA_US)


class BatchResource(Policy):
    """Sets CPU shares, quota and memory limit of `BE` pods and their containers from batch resources."""

    name: ClassVar[str] = "batch-resource"
    selector: ClassVar[PodSelector] = PodSelector(
        qos_classes=frozenset({QoSClass.BE}), annotations=(EXTENDED_RESOURCE_SPEC,)
    )
    optional_inputs: ClassVar[frozenset[Input]] = frozenset(
        {Input.STRATEGIES, Input.NORMALIZATION, Input.POD_REQUESTS}
    )
    strategy_parts: ClassVar[frozenset[str]] = frozenset({"threshold", "cpu_normalization"})
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {
        method: frozenset({"cpu.shares", "cpu.cfs_quota_us", "memory.limit_in_bytes"})
        for method in ("pod", "container")
    }
    priority: ClassVar[int] = 20
    options_type: ClassVar[type[BatchResourceOptions] | None] = BatchResourceOptions

    def __init__(self, options: BatchResourceOptions | None = None) -> None:
        self._options = options or BatchResourceOptions()

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Return the values of the pod's own cgroup."""
        if pod.qos is not QoSClass.BE:
            return None
        try:
            specification = batch_specification(pod.annotations)
        except AnnotationError as error:
            return PodChange(problems=(str(error),))
        listed = specification.containers
        others = any(name not in listed for name in node.requests_of(pod))
        rule = self._rule(node)
        values = pod_values(listed.values(), rule, pod.resources, has_others=others)
        if values is None:
            return None
        named = {
            "cpu.shares": values.cpu_shares,
            "cpu.cfs_quota_us": values.cpu_quota_us,
            "memory.limit_in_bytes": values.memory_limit_bytes,
        }
        known = {name: value for name, value in named.items() if value is not None}
        problems = tuple(each for found in specification.problems.values() for each in found)
        reasons = _reasons(tuple(listed.values()), values, rule, pod.resources)
        return PodChange(
            cgroup=known, problems=problems, reason=_REASON, reasons=dict(zip(named, reasons, strict=True))
        )

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
        rule = self._rule(node)
        values = container_values(batch, rule)
        swap_bytes = memory_swap_limit_bytes(container.requested, values.memory_limit_bytes)
        resources = ResourceChange(
            cpu_shares=values.cpu_shares,
            cpu_quota_us=values.cpu_quota_us,
            memory_limit_bytes=values.memory_limit_bytes,
            memory_swap_limit_bytes=swap_bytes,
        )
        problems = specification.problems.get(container.name, ())
        of_cpu_shares, of_quota, of_memory = _reasons((batch,), values, rule)
        reasons = {"cpu_shares": of_cpu_shares, "cpu_quota_us": of_quota, "memory_limit_bytes": of_memory}
        if swap_bytes is not None:
            reasons["memory_swap_limit_bytes"] = Reason("memory limit + requested swap = ", swap_bytes)
        return ContainerChange(resources=resources, problems=problems, reason=_REASON, reasons=reasons)

    def _rule(self, node: Node) -> QuotaRule:
        rule = quota_rule(node.strategies.threshold, node.normalization_ratio, self._options)
        if rule.has_quotas and rule.ratio <= 1:
            return rule
        return replace(rule, origin=self._origin(rule, node))

    def _origin(self, rule: QuotaRule, node: Node) -> Part:
        if rule.has_quotas:
            is_option = self._options.cpu_normalization_ratio is not None
            return "(option cpu_normalization_ratio)" if is_option else ratio_source(node)
        if self._options.cfs_quota_enabled is not None:
            return "by the option cfs_quota_enabled"
        path = "threshold.cpu_suppress_policy"
        return Source(path, node.strategies.provenance_of(path))


def _reasons(
    containers: tuple[BatchContainer, ...],
    values: BatchValues,
    rule: QuotaRule,
    native: Resources | None = None,
) -> tuple[Reason, Reason, Reason]:
    """Return those of shares, quota and memory limit; of values that are not known they do not count."""
    shares, quota_us, memory_bytes = (0, 0, 0) if native is None else _native(native)
    return (
        LateReason(_shares_reason, (containers, values.cpu_shares, shares)),
        LateReason(_quota_reason, (containers, values.cpu_quota_us, quota_us, rule)),
        LateReason(_memory_reason, (containers, values.memory_limit_bytes, memory_bytes)),
    )


def _quota_reason(
    containers: Sequence[BatchContainer], quota_us: int | None, native_us: int, rule: QuotaRule
) -> Reason:
    limits = [each.limit_cpu_millicores or 0 for each in containers]
    if min(limits) <= 0:
        return Reason(_lacking("batch-cpu limit", containers), " = ", UNLIMITED)
    if not rule.has_quotas:
        return Reason("best-effort pods share one quota ", rule.origin, " = ", UNLIMITED)
    if quota_us in (None, UNLIMITED):
        return Reason("a container without batch resources has no CPU limit = ", UNLIMITED)
    total, batch_us = sum(limits), (quota_us or 0) - native_us
    parts: list[Part] = [_amount("batch-cpu limit", containers), total, "m"]
    if rule.ratio > 1:
        unscaled_us = cpu_quota_us_from_millicores(total)
        parts += (" = ", unscaled_us, ", / ", rule.ratio, " normalization ratio ", rule.origin)
    if batch_us == MIN_CPU_QUOTA_US:
        parts += (", at least ", MIN_CPU_QUOTA_US)
    return Reason(*parts, " = ", batch_us, *_of_others(native_us, quota_us))


def _shares_reason(containers: Sequence[BatchContainer], shares: int | None, native_shares: int) -> Reason:
    requested = sum(max(each.request_cpu_millicores or 0, 0) for each in containers)
    batch_shares = cpu_shares_from_millicores(requested)
    parts: list[Part] = [_amount("batch-cpu request", containers), requested, "m"]
    if batch_shares == MIN_CPU_SHARES:
        parts += (", at least ", MIN_CPU_SHARES)
    return Reason(*parts, " = ", batch_shares, *_of_others(native_shares, shares))


def _memory_reason(
    containers: Sequence[BatchContainer], limit_bytes: int | None, native_bytes: int
) -> Reason:
    if min(each.limit_memory_bytes or 0 for each in containers) <= 0:
        return Reason(_lacking("batch-memory limit", containers), " = ", UNLIMITED)
    if limit_bytes in (None, UNLIMITED):
        return Reason("a container without batch resources has no memory limit = ", UNLIMITED)
    batch_bytes = (limit_bytes or 0) - native_bytes
    others = _of_others(native_bytes, limit_bytes)
    return Reason(_amount("batch-memory limit", containers), "= ", batch_bytes, *others)


def _amount(resource: str, containers: Sequence[BatchContainer]) -> str:
    return f"{resource} " if len(containers) == 1 else f"{resource}s of {len(containers)} containers "


def _lacking(resource: str, containers: Sequence[BatchContainer]) -> str:
    return f"no {resource}" if len(containers) == 1 else f"a container has no {resource}"


def _of_others(native: int, value: int | None) -> tuple[Part, ...]:
    return (", + ", native, " of other containers = ", value or 0) if native else ()
