"""Batch and mid resources of the node: what pods of lower priority may be given. All functions are pure.

What koord-manager computes for a node of a cluster, from the samples of this node. Source:
Koordinator pkg/slo-controller/noderesource/plugins, batchresource and midresource.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from runtimeproxy.documents.reading import InputError, list_of, mapping_of, parse_json
from runtimeproxy.qos import PriorityClass, QoSClass
from runtimeproxy.slo.schema import CalculatePolicy, Colocation, MidReclaimMode
from runtimeproxy.units import quantity_bytes

THIRD_PARTY_ALLOCATIONS: Final = "node.koordinator.sh/thirdPartyAllocations"
"""Annotation of a Node: what other schedulers have given away. Source: Koordinator apis/slo/v1alpha1."""


class ResourceAmounts(NamedTuple):
    """An amount of each resource."""

    cpu_millicores: float
    memory_bytes: float

    def combined(self, other: ResourceAmounts, combine: Callable[[float, float], float]) -> ResourceAmounts:
        return ResourceAmounts(
            combine(self.cpu_millicores, other.cpu_millicores), combine(self.memory_bytes, other.memory_bytes)
        )

    def plus(self, other: ResourceAmounts) -> ResourceAmounts:
        return self.combined(other, lambda own, others: own + others)

    def minus(self, other: ResourceAmounts) -> ResourceAmounts:
        return self.combined(other, lambda own, others: own - others)

    def at_least(self, other: ResourceAmounts) -> ResourceAmounts:
        return self.combined(other, max)

    def at_most(self, other: ResourceAmounts) -> ResourceAmounts:
        return self.combined(other, min)

    def times(self, cpu: float, memory: float) -> ResourceAmounts:
        return ResourceAmounts(self.cpu_millicores * cpu, self.memory_bytes * memory)

    def percent(self, cpu: float, memory: float) -> ResourceAmounts:
        return ResourceAmounts(self.cpu_millicores * cpu / 100, self.memory_bytes * memory / 100)


NOTHING = ResourceAmounts(0.0, 0.0)

_LOW_CLASSES = (PriorityClass.BATCH, PriorityClass.FREE)


def summed(amounts: Iterable[ResourceAmounts]) -> ResourceAmounts:
    total = NOTHING
    for each in amounts:
        total = total.plus(each)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class PodUse:
    """A pod that is pending or running; its usage is None without samples."""

    uid: str
    priority_class: PriorityClass
    """With the default by its QoS class."""
    qos: QoSClass
    request: ResourceAmounts
    usage: ResourceAmounts | None

    @property
    def is_high_priority(self) -> bool:
        return self.priority_class not in _LOW_CLASSES


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """The node, and all that runs on it."""

    capacity: ResourceAmounts
    allocatable: ResourceAmounts
    reserved: ResourceAmounts
    """Not for pods: the larger one of the kubelet's reservation and that of the annotation."""
    usage: ResourceAmounts
    pods: tuple[PodUse, ...]
    high_priority_applications: ResourceAmounts = NOTHING
    """Usage of host applications of other classes than batch and free."""
    applications: ResourceAmounts = NOTHING

    @property
    def system_usage(self) -> ResourceAmounts:
        """Usage of all but pods and host applications."""
        of_pods = summed(pod.usage for pod in self.pods if pod.usage is not None)
        return self.usage.minus(of_pods).minus(self.applications).at_least(NOTHING)

    @property
    def system_used(self) -> ResourceAmounts:
        return self.system_usage.plus(self.high_priority_applications).at_least(self.reserved)


def high_priority_used(pods: Iterable[PodUse]) -> ResourceAmounts:
    return summed(_used(pod) for pod in pods if pod.is_high_priority)


def _used(pod: PodUse) -> ResourceAmounts:
    # Nobody else may use the CPUs of an LSE pod.
    if pod.usage is None:
        return pod.request
    if pod.qos is QoSClass.LSE:
        return ResourceAmounts(pod.request.cpu_millicores, pod.usage.memory_bytes)
    return pod.usage


def high_priority_requested(pods: Iterable[PodUse]) -> ResourceAmounts:
    return summed(pod.request for pod in pods if pod.is_high_priority)


def high_priority_max(pods: Iterable[PodUse]) -> ResourceAmounts:
    # The formula leaves pods without samples out; they would be given away until their first sample.
    return summed(pod.request.at_least(pod.usage or NOTHING) for pod in pods if pod.is_high_priority)


def batch_resources(node: NodeUse, strategy: Colocation) -> ResourceAmounts:
    """The resources that batch pods may request on the node, 0 or more."""
    margin = node.capacity.percent(
        100 - strategy.cpu_reclaim_threshold_percent, 100 - strategy.memory_reclaim_threshold_percent
    )
    rest = node.capacity.minus(margin)
    by_policy = {
        CalculatePolicy.USAGE: rest.minus(node.system_used).minus(high_priority_used(node.pods)),
        CalculatePolicy.REQUEST: rest.minus(node.reserved).minus(high_priority_requested(node.pods)),
        CalculatePolicy.MAX_USAGE_REQUEST: rest.minus(node.system_used).minus(high_priority_max(node.pods)),
    }
    cpu_policy = strategy.cpu_calculate_policy
    if cpu_policy is CalculatePolicy.REQUEST:
        cpu_policy = CalculatePolicy.USAGE  # There is no formula by request for CPU.
    batch = ResourceAmounts(
        by_policy[cpu_policy].cpu_millicores, by_policy[strategy.memory_calculate_policy].memory_bytes
    )
    limit = node.capacity.percent(
        _percent_or_all(strategy.batch_cpu_threshold_percent),
        _percent_or_all(strategy.batch_memory_threshold_percent),
    )
    return batch.at_most(limit).at_least(NOTHING)


def _percent_or_all(percent: float | None) -> float:
    return 100 if percent is None else percent


def mid_resources(node: NodeUse, prod_reclaimable: ResourceAmounts, strategy: Colocation) -> ResourceAmounts:
    """The resources that mid pods may request on the node, 0 or more."""
    limit = node.capacity.percent(strategy.mid_cpu_threshold_percent, strategy.mid_memory_threshold_percent)
    if strategy.mid_reclaim_mode is MidReclaimMode.STATIC:
        reserved = node.capacity.percent(
            strategy.mid_static_cpu_reserved_percent, strategy.mid_static_memory_reserved_percent
        )
        return reserved.at_most(limit).at_least(NOTHING)
    unused = node.capacity.minus(node.usage).at_least(NOTHING)
    requested = summed(pod.request for pod in node.pods if is_prod(pod.priority_class))
    unallocated = node.allocatable.minus(requested).at_least(NOTHING)
    percent = strategy.mid_unallocated_percent
    mid = prod_reclaimable.at_most(unused).plus(unallocated.percent(percent, percent))
    return mid.at_most(limit).at_least(NOTHING)


def is_prod(priority_class: PriorityClass) -> bool:
    return priority_class in (PriorityClass.PROD, PriorityClass.NONE)


def third_party_batch(annotations: Mapping[str, str]) -> ResourceAmounts:
    """The batch resources that other schedulers have given away. Source: GetThirdPartyAllocatedResByPriority.

    Raises:
        ValueError: The annotation cannot be read.
    """
    names = ("kubernetes.io/batch-cpu", "kubernetes.io/batch-memory")
    try:
        annotation = mapping_of(parse_json(annotations.get(THIRD_PARTY_ALLOCATIONS) or "{}"))
        allocations = map(mapping_of, list_of(annotation.get("allocations")))
        given = [
            mapping_of(each.get("resources"))
            for each in allocations
            if each["priority"] == PriorityClass.BATCH
        ]
        return summed(
            ResourceAmounts(*(quantity_bytes(str(each.get(name, 0))) for name in names)) for each in given
        )
    except (InputError, ValueError, LookupError) as error:
        raise ValueError(f"annotation {THIRD_PARTY_ALLOCATIONS} of the node: {error}") from None


def published_batch(
    batch: ResourceAmounts, normalization_ratio: float | None, allocated: ResourceAmounts
) -> ResourceAmounts:
    """The batch resources as a node's status has them: whole millicores and bytes.

    A ratio of up to 1 multiplies no CPU. `allocated` is given away by others than Koordinator already.
    """
    rest = batch.times(max(normalization_ratio or 1.0, 1.0), 1.0).minus(allocated).at_least(NOTHING)
    return ResourceAmounts(int(rest.cpu_millicores), int(rest.memory_bytes))


def is_degraded(samples_age_s: float, strategy: Colocation) -> bool:
    return samples_age_s > strategy.degrade_time_minutes * 60


def is_to_publish(
    published: ResourceAmounts | None, published_age_s: float, now: ResourceAmounts, strategy: Colocation
) -> bool:
    """Whether amounts differ so much, or were published so long ago, that they are published again."""
    if published is None or published_age_s >= strategy.update_time_threshold_seconds:
        return True
    return any(
        abs(new - old) > old * strategy.resource_diff_threshold
        for old, new in zip(published, now, strict=True)
    )
