"""Memory QoS: protection, throttling, early reclaim and OOM priority of memory, by QoS class.

By `memoryQOS` of the pod's class in `resource-qos-config`, by pod strategies and by the annotation
`koordinator.sh/memoryQOS`, all merged by `runtimeproxy.slo` (policies spec 3.6):

- `memory.min` and `memory.low` protect a part of the request, for containers, pods and, as the sum of
  their pods, the directories of QoS classes;
- `memory.high` throttles a container between request and limit;
- `memory.wmark_*` start reclaim in the background; `memory.priority`, `memory.use_priority_oom` and
  `memory.oom.group` choose what the OOM killer ends first; `memory.pagecache_limit.*` bound a pod's page
  cache.

A value without effect (0, `max`) is not claimed, so that the values of kubelet and runtime stay. Groups of
files that the node's kernel lacks are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from policies.annotations import AnnotationError, BatchContainer, batch_specification
from runtimeproxy.fields.tables import NEUTRAL, PARAMETERS
from runtimeproxy.hooks import (
    CgroupChange,
    ContainerChange,
    ContainerView,
    PodChange,
    PodSelector,
    PodView,
    Policy,
    ResolvedPod,
)
from runtimeproxy.node.snapshot import Feature, Input, InputState, Node
from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.slo.names import MEMORY_QOS
from runtimeproxy.slo.schema import MemoryQoSStrategy as Strategy
from runtimeproxy.units import MAX_INT64, UNLIMITED

PAGE_BYTES: Final = 4_096
"""The page that Koordinator rounds to. Source: policies spec 3.6, floor_page."""

_FEATURE_OF: Final = {
    name: Feature(each.feature) for name, each in PARAMETERS.items() if each.feature.startswith("memory-")
}
_PROTECTING: Final = ("memory.min", "memory.low")
_OFF: Final = Strategy()
_REASON: Final = "memory QoS of the class"


class MemoryAmounts(NamedTuple):
    """Memory request and limit of a container or pod; None: not known."""

    request_bytes: int | None
    """0: none."""
    limit_bytes: int | None
    """-1: none."""


def batch_amounts(container: BatchContainer) -> MemoryAmounts:
    """Return the batch memory of a container."""
    request, limit = container.request_memory_bytes, container.limit_memory_bytes
    return MemoryAmounts(
        None if request is None else max(request, 0), UNLIMITED if limit is not None and limit <= 0 else limit
    )


def sum_of(containers: Iterable[MemoryAmounts]) -> MemoryAmounts:
    """Return the amounts of a pod; unlimited with no containers, or if one has no limit."""
    listed = tuple(containers)
    requests = [each.request_bytes for each in listed if each.request_bytes is not None]
    limits = [each.limit_bytes for each in listed if each.limit_bytes is not None]
    request = sum(requests) if len(requests) == len(listed) else None
    if UNLIMITED in limits or not listed:
        return MemoryAmounts(request, UNLIMITED)
    return MemoryAmounts(request, sum(limits) if len(limits) == len(listed) else None)


def protected_bytes(request_bytes: int, strategy: Strategy) -> dict[str, int]:
    """Return `memory.min` and `memory.low` of a container or pod. Source: policies spec 3.6."""
    values: dict[str, int] = {}
    if strategy.min_limit_percent is not None:
        values["memory.min"] = _percent_of(request_bytes, strategy.min_limit_percent)
    if strategy.low_limit_percent is not None:
        low = _percent_of(request_bytes, strategy.low_limit_percent)
        values["memory.low"] = max(low, values.get("memory.min", 0)) if low else 0
    return values


class MemoryBound(NamedTuple):
    """An upper bound of memory protection."""

    amount_bytes: int
    what: str


def bounds_of(*limits_bytes: int | None, node: Node) -> tuple[MemoryBound, ...]:
    """Return the known bounds on the protection of a pod, container or directory with these memory limits."""
    bounds = [MemoryBound(each, "the memory limit") for each in limits_bytes if each is not None and each > 0]
    if allocatable := (node.allocatable or {}).get("memory"):
        bounds.append(MemoryBound(allocatable, "the node's allocatable memory"))
    elif machine := sum(node.memory_bytes.values()):
        bounds.append(MemoryBound(machine, "the node's memory"))
    return tuple(bounds)


def within_bounds(
    values: Mapping[str, int], bounds: Sequence[MemoryBound]
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the values with `memory.min` and `memory.low` within bounds, and a problem for each above."""
    # Koordinator has no bound: a pod's author could protect more memory than the node has.
    found, problems = dict(values), []
    least = min(bounds, default=None)
    for name in _PROTECTING:
        if least is not None and found.get(name, 0) > least.amount_bytes:
            amount, found[name] = found[name], least.amount_bytes
            problems.append(f"{name} of {amount} is bounded to {least.amount_bytes}, {least.what}")
    return found, tuple(problems)


def high_bytes(
    request_bytes: int, limit_bytes: int, allocatable_bytes: int | None, strategy: Strategy
) -> int | None:
    """Return `memory.high` of a container, -1 for `max`; None if it is not configured or not known.

    Without a limit (-1 and 0) the node's allocatable memory takes its place. Source: policies spec 3.6.
    """
    percent = strategy.throttling_percent
    if percent is None:
        return None
    if percent == 0:
        return UNLIMITED
    top = limit_bytes if limit_bytes > 0 else allocatable_bytes
    if top is None:
        return None
    # Go divides towards zero, which differs where a request lies above the node's allocatable memory.
    distance = (top - request_bytes) * percent
    high = request_bytes + (distance // 100 if distance >= 0 else -(-distance // 100))
    high -= high % PAGE_BYTES
    minimum = _percent_of(request_bytes, strategy.min_limit_percent or 0)
    return max(high, minimum) if high > 0 else UNLIMITED


def class_values(strategy: Strategy) -> dict[str, int]:
    """Return the values that do not depend on requests and limits. Source: policies spec 3.6."""
    configured = {
        "memory.wmark_ratio": strategy.wmark_ratio,
        "memory.wmark_scale_factor": strategy.wmark_scale_permill,
        "memory.wmark_min_adj": strategy.wmark_min_adj,
        "memory.priority": strategy.priority,
        "memory.use_priority_oom": strategy.priority_enable,
        "memory.oom.group": strategy.oom_kill_group,
    }
    return {name: value for name, value in configured.items() if value is not None}


def page_cache_values(limit_bytes: int, strategy: Strategy) -> dict[str, int]:
    """Return the bounds of a pod's page cache; limits of -1 and 0 are none. Source: policies spec 3.6."""
    size = strategy.page_cache_limit_size
    if size is not None:
        size = min(size, limit_bytes) if limit_bytes > 0 else size
    elif strategy.page_cache_limit_percent is not None and limit_bytes > 0:
        size = _percent_of(limit_bytes, strategy.page_cache_limit_percent)
    values: dict[str, int] = {}
    if size is not None:
        values["memory.pagecache_limit.enable"] = int(size > 0)
        values["memory.pagecache_limit.size"] = size
        if size:
            values["memory.pagecache_limit.sync"] = int(bool(strategy.page_cache_reclaim_sync))
    if strategy.page_cache_enable is not None:
        values["memory.pagecache_limit.enable"] = int(strategy.page_cache_enable)
    return values


def container_values(
    amounts: MemoryAmounts, allocatable_bytes: int | None, strategy: Strategy
) -> dict[str, int]:
    """Return all values of a container, by cgroup parameter; those that are not known are missing."""
    values = class_values(strategy)
    if amounts.request_bytes is None:
        return values
    values |= protected_bytes(amounts.request_bytes, strategy)
    if amounts.limit_bytes is not None:
        high = high_bytes(amounts.request_bytes, amounts.limit_bytes, allocatable_bytes, strategy)
        if high is not None:
            values["memory.high"] = high
    return values


def pod_values(amounts: MemoryAmounts, strategy: Strategy) -> dict[str, int]:
    """Return all values of a pod's own cgroup, by cgroup parameter; those that are not known are missing."""
    values = class_values(strategy)
    if amounts.request_bytes is not None:
        values |= protected_bytes(amounts.request_bytes, strategy)
    if amounts.limit_bytes is not None:
        values |= page_cache_values(amounts.limit_bytes, strategy)
    return values


def directory_values(pods: Sequence[Mapping[str, int | str]], strategy: Strategy | None) -> dict[str, int]:
    """Return the sums of `memory.min` and `memory.low` of a directory of pods, and its class's priority."""
    values: dict[str, int] = {}
    # Without the sums the kernel gives the pods in it no protection. `kubepods` holds all classes.
    for name in _PROTECTING:
        amounts = [value for pod in pods if isinstance(value := pod.get(name), int)]
        # One pod with `max` protects all that there is.
        values[name] = MAX_INT64 if UNLIMITED in amounts else min(sum(amounts), MAX_INT64)
    if strategy is not None:
        of_class = class_values(strategy)
        values |= {name: of_class[name] for name in of_class if _FEATURE_OF[name] is Feature.MEMORY_PRIORITY}
    return values


def _percent_of(amount: int, percent: int) -> int:
    return amount * percent // 100


class MemoryQoS(Policy):
    """Sets protection, throttling, reclaim and priority of memory by the pod's class."""

    name: ClassVar[str] = "memory-qos"
    selector_without: ClassVar[Mapping[Input, PodSelector]] = {
        Input.STRATEGIES: PodSelector(annotations=(MEMORY_QOS,))
    }
    inputs: ClassVar[frozenset[Input]] = frozenset({Input.STRATEGIES})
    optional_inputs: ClassVar[frozenset[Input]] = frozenset(
        {Input.POD_REQUESTS, Input.NODE_OBJECT, Input.MEMORY, Input.KUBELET}
    )
    strategy_parts: ClassVar[frozenset[str]] = frozenset({"memory_qos"})
    optional_features: ClassVar[frozenset[str]] = frozenset(_FEATURE_OF.values())
    priority: ClassVar[int] = 55
    is_default: ClassVar[bool] = False

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Return the values of the pod's own cgroup."""
        of_pod = node.strategy_for(pod)
        strategy, problems = of_pod.memory_qos, of_pod.problems_of(MEMORY_QOS)
        values: Mapping[str, int] = {}
        if strategy != _OFF:
            amounts, unknown = _known_amounts(lambda: pod_amounts(pod, node), strategy)
            limits = amounts.limit_bytes, pod.resources.memory_limit_bytes
            found, above = within_bounds(pod_values(amounts, strategy), bounds_of(*limits, node=node))
            values = _claimed(found, node)
            problems += above + unknown + left_to_unknown_kubelet(pod, values, node)
        if not values and not problems:
            return None
        return PodChange(cgroup=values, problems=problems, reason=_REASON)

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the values of the container."""
        strategy = node.strategy_for(container.pod).memory_qos
        if strategy == _OFF:
            return None
        amounts, unknown = _known_amounts(lambda: container_amounts(container, node), strategy)
        allocatable = (node.allocatable or {}).get("memory")
        limits = amounts.limit_bytes, container.requested.memory_limit_bytes
        bounds = bounds_of(*limits, node=node)
        found, above = within_bounds(container_values(amounts, allocatable, strategy), bounds)
        values = _claimed(found, node)
        problems = above + unknown
        if not values and not problems:
            return None
        return ContainerChange(cgroup=values, problems=problems, reason=_REASON)

    def qos_class(self, qos: KubeQoSClass, pods: Sequence[ResolvedPod], node: Node) -> CgroupChange | None:
        """Return the sums of a directory of pods."""
        classes = {
            KubeQoSClass.BURSTABLE: node.strategies.qos.ls_class,
            KubeQoSClass.BEST_EFFORT: node.strategies.qos.be_class,
        }
        strategy = classes[qos].memory_qos if qos in classes else None
        sums = directory_values([each.cgroup for each in pods], strategy)
        found, problems = within_bounds(sums, bounds_of(node=node))
        of_kubelet = written_by_kubelet(qos, node)
        values = {name: value for name, value in _claimed(found, node).items() if name not in of_kubelet}
        return CgroupChange(cgroup=values, problems=problems, reason=_REASON) if values else None


def written_by_kubelet(qos: KubeQoSClass, node: Node) -> frozenset[str]:
    """Return what the kubelet writes, or may write, to a directory of pods itself: sums of requests, or 0."""
    if node.kubelet is None or node.facts.cgroup_version == 1:
        return frozenset()
    return node.kubelet.class_memory.get(qos, frozenset())


def left_to_unknown_kubelet(pod: PodView, values: Iterable[str], node: Node) -> tuple[str, ...]:
    """Return the problem that values of a pod may lack effect, as those of its directories are left alone."""
    if node.kubelet is None or node.kubelet.version:
        return ()
    # A kubelet writes them in some versions.
    left = written_by_kubelet(pod.kube_qos, node) | written_by_kubelet(KubeQoSClass.GUARANTEED, node)
    if left.isdisjoint(values):
        return ()
    names = " and ".join(sorted(left.intersection(values), reverse=True))
    why = "left to the kubelet's MemoryQoS, as its version is not known without a Node object"
    return (f"{names} of QoS classes may not cover it: {why}",)


def pod_amounts(pod: PodView, node: Node) -> MemoryAmounts:
    """Return request and limit of a pod. Raises AnnotationError.

    Of `BE` pods: the batch memory. Of others: the request from the kubelet's own state; without that the
    limit of a Guaranteed pod, which is its request, and nothing for a best-effort pod. The limit is that of
    the sandbox, which the kubelet sends from version 1.23 on.
    """
    if pod.qos is QoSClass.BE:
        return sum_of(map(batch_amounts, batch_specification(pod.annotations).containers.values()))
    limit = pod.resources.memory_limit_bytes
    request = _known_request(pod.kube_qos, limit)
    if requests := node.requests_of(pod):
        request = sum(each.get("memory", 0) for each in requests.values())
    return MemoryAmounts(request, limit or UNLIMITED)


def container_amounts(container: ContainerView, node: Node) -> MemoryAmounts:
    """Return request and limit of a container, as `pod_amounts`. Raises AnnotationError."""
    pod = container.pod
    if pod.qos is QoSClass.BE:
        batch = batch_specification(pod.annotations).containers.get(container.name)
        return MemoryAmounts(0, UNLIMITED) if batch is None else batch_amounts(batch)
    limit = container.requested.memory_limit_bytes
    known = node.requests_of(pod).get(container.name)
    request = _known_request(pod.kube_qos, limit) if known is None else known.get("memory", 0)
    return MemoryAmounts(request, limit or UNLIMITED)


def _known_amounts(
    read: Callable[[], MemoryAmounts], strategy: Strategy
) -> tuple[MemoryAmounts, tuple[str, ...]]:
    """Return amounts, and the problems if the strategy depends on a memory request that is not known."""
    reason = "memory.min, memory.low and memory.high are left alone: the memory request is not known"
    try:
        amounts = read()
    except AnnotationError as error:
        amounts, reason = MemoryAmounts(None, None), str(error)
    uses = strategy.min_limit_percent or strategy.low_limit_percent or strategy.throttling_percent
    return amounts, (reason,) if amounts.request_bytes is None and uses else ()


def _known_request(kube_qos: KubeQoSClass, limit_bytes: int | None) -> int | None:
    """Return the memory request that follows from the Kubernetes QoS class; None if none does."""
    if kube_qos is KubeQoSClass.BEST_EFFORT:
        return 0
    return limit_bytes if kube_qos is KubeQoSClass.GUARANTEED and (limit_bytes or 0) > 0 else None


def _claimed(values: Mapping[str, int], node: Node) -> dict[str, int]:
    """Return the values with an effect whose files this node's kernel has."""
    has_features = node.state_of(Input.CGROUPS) is InputState.KNOWN
    return {
        name: value
        for name, value in values.items()
        if value != NEUTRAL[name] and (not has_features or _FEATURE_OF[name] in node.features)
    }
