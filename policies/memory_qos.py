"""Memory QoS: protection, throttling, early reclaim and OOM priority of memory, by QoS class.

By `memoryQOS` of the pod's class in `resource-qos-config`, by pod strategies and by the annotation
`koordinator.sh/memoryQOS`, all merged by `runtimeproxy.slo`
(source: Koordinator pkg/koordlet/qosmanager/plugins/cgreconcile/cgroup_reconcile.go):

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
    Reason,
    ResolvedPod,
)
from runtimeproxy.hooks.reasons import Part
from runtimeproxy.hooks.sources import strategy_source
from runtimeproxy.node.snapshot import Feature, Input, InputState, Node
from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.slo.names import MEMORY_QOS
from runtimeproxy.slo.schema import MemoryQoSStrategy as Strategy
from runtimeproxy.slo.strategies import PodStrategy, Provenance
from runtimeproxy.units import MAX_INT64, UNLIMITED

PAGE_BYTES: Final = 4_096
"""The page that Koordinator rounds to. Source: Koordinator pkg/koordlet/util/system, PageSize."""

_FEATURE_OF: Final = {
    name: Feature(each.feature) for name, each in PARAMETERS.items() if each.feature.startswith("memory-")
}
_PROTECTING: Final = ("memory.min", "memory.low")
_OFF: Final = Strategy()
_REASON: Final = "memory QoS of the class"
_CLASS_ATTRIBUTES: Final = {
    "memory.wmark_ratio": "wmark_ratio",
    "memory.wmark_scale_factor": "wmark_scale_permill",
    "memory.wmark_min_adj": "wmark_min_adj",
    "memory.priority": "priority",
    "memory.use_priority_oom": "priority_enable",
    "memory.oom.group": "oom_kill_group",
}
"""The attributes of a strategy whose values do not depend on requests and limits."""
_PAGE_CACHE_ENABLE: Final = "memory.pagecache_limit.enable"
_ATTRIBUTES: Final = _CLASS_ATTRIBUTES | {
    _PAGE_CACHE_ENABLE: "page_cache_enable",
    "memory.pagecache_limit.sync": "page_cache_reclaim_sync",
}


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
    """Return `memory.min` and `memory.low` of a container or pod. Source: calculatePodResources."""
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

    Without a limit (-1, 0) it is the node's allocatable memory. Source: calculateContainerResources.
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
    """Return the values that do not depend on requests and limits. Source: calculatePodResources."""
    return {
        name: value
        for name, attribute in _CLASS_ATTRIBUTES.items()
        if (value := getattr(strategy, attribute)) is not None
    }


def page_cache_values(limit_bytes: int, strategy: Strategy) -> dict[str, int]:
    """Return the bounds of a pod's page cache; limits of -1 and 0 are none. Source: calculatePodResources."""
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
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {
        "pod": frozenset({*_PROTECTING, *_ATTRIBUTES, "memory.pagecache_limit.size"}),
        "container": frozenset({*_PROTECTING, *_CLASS_ATTRIBUTES, "memory.high"}),
        "qos_class": frozenset({*_PROTECTING, "memory.priority", "memory.use_priority_oom"}),
    }
    priority: ClassVar[int] = 55
    is_default: ClassVar[bool] = False

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Return the values of the pod's own cgroup."""
        of_pod = node.strategy_for(pod)
        strategy, problems = of_pod.memory_qos, of_pod.problems_of(MEMORY_QOS)
        values: Mapping[str, int] = {}
        reasons: Mapping[str, Reason] = {}
        if strategy != _OFF:
            amounts, unknown = _known_amounts(lambda: pod_amounts(pod, node), strategy)
            limits = amounts.limit_bytes, pod.resources.memory_limit_bytes
            bounds = bounds_of(*limits, node=node)
            found, above = within_bounds(pod_values(amounts, strategy), bounds)
            values = _claimed(found, node)
            reasons = _reasons(values, amounts, _of_pod(of_pod), node, bounds)
            problems += above + unknown + left_to_unknown_kubelet(pod, values, node)
        if not values and not problems:
            return None
        return PodChange(cgroup=values, problems=problems, reason=_REASON, reasons=reasons)

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the values of the container."""
        of_pod = node.strategy_for(container.pod)
        strategy = of_pod.memory_qos
        if strategy == _OFF:
            return None
        amounts, unknown = _known_amounts(lambda: container_amounts(container, node), strategy)
        allocatable = (node.allocatable or {}).get("memory")
        limits = amounts.limit_bytes, container.requested.memory_limit_bytes
        bounds = bounds_of(*limits, node=node)
        found, above = within_bounds(container_values(amounts, allocatable, strategy), bounds)
        values = _claimed(found, node)
        # The kubelet saves no requests of init containers that end, and of ephemeral containers.
        problems = above if node.requests_of(container.pod) else above + unknown
        if not values and not problems:
            return None
        reasons = _reasons(values, amounts, _of_pod(of_pod), node, bounds)
        return ContainerChange(cgroup=values, problems=problems, reason=_REASON, reasons=reasons)

    def qos_class(self, qos: KubeQoSClass, pods: Sequence[ResolvedPod], node: Node) -> CgroupChange | None:
        """Return the sums of a directory of pods."""
        name = {KubeQoSClass.BURSTABLE: "ls_class", KubeQoSClass.BEST_EFFORT: "be_class"}.get(qos)
        strategy = None if name is None else getattr(node.strategies.qos, name).memory_qos
        sums = directory_values([each.cgroup for each in pods], strategy)
        found, problems = within_bounds(sums, bounds_of(node=node))
        of_kubelet = written_by_kubelet(qos, node)
        values = {name: value for name, value in _claimed(found, node).items() if name not in of_kubelet}
        if not values:
            return None
        provenance, path = node.strategies.provenance, f"qos.{name}.memory_qos"
        reasons = {each: _sum_reason(each, value, len(pods)) for each, value in values.items()}
        if strategy is not None:
            of_class = _Origin(strategy, path, provenance)
            reasons |= {
                each: _value_reason(each, values[each], of_class) for each in values.keys() & _ATTRIBUTES
            }
        return CgroupChange(cgroup=values, problems=problems, reason=_REASON, reasons=reasons)


class _Origin(NamedTuple):
    """A strategy with the sources of its values, which begin with `path`."""

    strategy: Strategy
    path: str
    provenance: Mapping[str, Provenance]

    def source(self, attribute: str) -> tuple[Part, ...]:
        return strategy_source(self.provenance, f"{self.path}.{attribute}", f"{self.path}.enable")


def _of_pod(strategy: PodStrategy) -> _Origin:
    return _Origin(strategy.memory_qos, "memory_qos", strategy.provenance)


def _reasons(
    values: Mapping[str, int],
    amounts: MemoryAmounts,
    origin: _Origin,
    node: Node,
    bounds: Sequence[MemoryBound],
) -> dict[str, Reason]:
    """Return the arithmetic of the values of a container or pod."""
    reasons: dict[str, Reason] = {}
    for name, value in values.items():
        if name in _PROTECTING:
            reason = _protection_reason(name, amounts, origin)
            if any(each.amount_bytes == value for each in bounds):
                reason = reason.then(", at most ", value)
            reasons[name] = reason.then(" = ", value)
        elif name == "memory.high":
            reasons[name] = _high_reason(value, amounts, (node.allocatable or {}).get("memory"), origin)
        elif name == "memory.pagecache_limit.size":
            reasons[name] = _page_cache_reason(value, amounts, origin)
        else:
            reasons[name] = _value_reason(name, value, origin)
    return reasons


def _protection_reason(name: str, amounts: MemoryAmounts, origin: _Origin) -> Reason:
    strategy, request_bytes = origin.strategy, amounts.request_bytes or 0
    percent, attribute = strategy.min_limit_percent or 0, "min_limit_percent"
    if name != "memory.min":
        percent, attribute = strategy.low_limit_percent or 0, "low_limit_percent"
    reason = Reason("memory request ", request_bytes, " x ", percent, " % ", *origin.source(attribute))
    least = _percent_of(request_bytes, strategy.min_limit_percent or 0)
    if _percent_of(request_bytes, percent) < least:
        reason = reason.then(", at least memory.min ", least)
    return reason


def _high_reason(
    value: int, amounts: MemoryAmounts, allocatable_bytes: int | None, origin: _Origin
) -> Reason:
    request_bytes, limit_bytes = amounts.request_bytes or 0, amounts.limit_bytes or 0
    what, top = "memory limit", limit_bytes
    if limit_bytes <= 0:
        what, top = "allocatable memory", allocatable_bytes or 0
    percent, source = origin.strategy.throttling_percent or 0, origin.source("throttling_percent")
    reason = Reason("memory request ", request_bytes, " + (", what, " ", top, " - ", request_bytes, ") x ")
    reason = reason.then(percent, " % ", *source, ", in whole pages")
    least = _percent_of(request_bytes, origin.strategy.min_limit_percent or 0)
    if value == least:
        reason = reason.then(", at least memory.min ", least)
    return reason.then(" = ", value)


def _page_cache_reason(value: int, amounts: MemoryAmounts, origin: _Origin) -> Reason:
    strategy, limit_bytes = origin.strategy, amounts.limit_bytes or 0
    if strategy.page_cache_limit_size is None:
        percent, source = strategy.page_cache_limit_percent or 0, origin.source("page_cache_limit_percent")
        return Reason("memory limit ", limit_bytes, " x ", percent, " % ", *source, " = ", value)
    reason = Reason(strategy.page_cache_limit_size, " ", *origin.source("page_cache_limit_size"))
    if value != strategy.page_cache_limit_size:
        reason = reason.then(", at most the memory limit ", limit_bytes)
    return reason.then(" = ", value)


def _value_reason(name: str, value: int, origin: _Origin) -> Reason:
    attribute = _ATTRIBUTES[name]
    if name == _PAGE_CACHE_ENABLE and origin.strategy.page_cache_enable is None:
        return Reason("a page cache limit is set = ", value)
    return Reason("strategy's value ", *origin.source(attribute), " = ", value)


def _sum_reason(name: str, value: int, pods: int) -> Reason:
    return Reason("sum of ", name, " of ", pods, " pods = ", value)


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
