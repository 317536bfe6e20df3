"""Messages of the daemon's API to the types of plugins, and claims to messages. Pure.

A newer daemon may send values that are not known here: those of enums count as if they were absent, fields of
strategies keep their defaults, and the problems are returned.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_type_hints

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy import __version__, api_names
from runtimeproxy.api_names import advised_values, plugin_status
from runtimeproxy.config.schema import validator_of
from runtimeproxy.katalyst.eviction_config import PATHS, EvictionConfig
from runtimeproxy.qos import (
    QOS_CLASS_LABEL,
    KubeQoSClass,
    PriorityClass,
    QoSClass,
    priority_class_with_default,
)
from runtimeproxy.qosmanager.plugin import Claim, NodeReport, Role, Target
from runtimeproxy.qosmanager.snapshot import (
    CacheUse,
    Container,
    ContainerState,
    Cpu,
    CpuPools,
    HostApplication,
    KatalystTraits,
    Node,
    Pod,
    PodEviction,
    PoolAdvice,
    PoolMember,
    Strategies,
)
from runtimeproxy.slo.schema import (
    CgroupBase,
    Colocation,
    CpuBurstStrategy,
    CpuGuard,
    PodCpuBurst,
    PodCpuGuard,
    Threshold,
)
from runtimeproxy.units import CPU_PERIOD_US, UNLIMITED, parse_cpu_list
from runtimeproxy.vocabulary import (
    MOST_CLAIM_REASON_BYTES,
    MOST_EXPLANATION_BYTES,
    MOST_POD_NOTE_BYTES,
    MOST_POD_NOTES,
    ClaimKey,
)

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator

    from runtimeproxy.vocabulary import MetricsSource, PluginReport

_Kind = TypeVar("_Kind")
_EnumT = TypeVar("_EnumT", bound=Enum)

_STATES: Final = {
    api_pb2.Container.STATE_CREATED: ContainerState.CREATED,
    api_pb2.Container.STATE_RUNNING: ContainerState.RUNNING,
}
_KUBE_QOS_CLASSES: Final = frozenset(map(str, KubeQoSClass))
_SUB_PRIORITY: Final = "koordinator.sh/priority"
"""Label of a pod. Source: Koordinator apis/extension/constants.go."""
_STARTUP_BOOST: Final = "plugin:startup-boost"
"""What raises limits of containers that start owns values of a pod meanwhile. Source: `OWNER` of
runtimeproxy.ledger.boosts, whose claims have a lease."""
_GUARD_PART: Final = "cpu_guard."
_ANNOTATION: Final = "annotation"
"""Source of a strategy's value: the pod's author. Source: `Layer` of runtimeproxy.slo.strategies."""
_INT32: Final = re.compile(r"-?[0-9]{1,10}")


def pod_of(message: api_pb2.Pod) -> tuple[Pod, tuple[str, ...]]:
    """A pod with its containers, and the problems with its strategies."""
    fields = {each.path: each.value for each in message.strategies}
    burst, burst_problems = strategy_of(PodCpuBurst, "cpu_burst", fields)
    eviction, eviction_problems = strategy_of(PodEviction, "eviction", fields)
    guard, guard_problems = strategy_of(PodCpuGuard, "cpu_guard", fields)
    priority = message.priority if message.HasField("priority") else None
    sub_priority = message.labels.get(_SUB_PRIORITY, "")
    kube_qos = _member(KubeQoSClass, message.kube_qos_class, KubeQoSClass.BURSTABLE)
    labels: Mapping[str, str] = message.labels
    if message.HasField("katalyst"):
        labels = {**labels, QOS_CLASS_LABEL: message.qos_class}
    pod = Pod(
        sandbox_id=message.sandbox_id,
        uid=message.uid,
        namespace=message.namespace,
        name=message.name,
        qos=_member(QoSClass, message.qos_class, QoSClass.NONE),
        kube_qos=kube_qos,
        priority_class=priority_class_with_default(labels, priority, kube_qos),
        priority=priority,
        sub_priority=int(sub_priority) if _INT32.fullmatch(sub_priority) else None,
        cgroup=next((each.cgroup.rpartition("/")[0] for each in message.containers if each.cgroup), ""),
        containers=tuple(map(_container, message.containers)),
        cpus=_cpus(message.allocated_cpus),
        cpu_burst=burst,
        eviction=eviction,
        cpu_guard=guard,
        annotated_guard=frozenset(
            each.path.removeprefix(_GUARD_PART)
            for each in message.strategies
            if each.provenance.source == _ANNOTATION and each.path.startswith(_GUARD_PART)
        ),
        is_boosted=_STARTUP_BOOST in message.policies,
        created_s=message.created_at.ToMicroseconds() / 1e6 if message.HasField("created_at") else None,
        katalyst=_katalyst(message.katalyst) if message.HasField("katalyst") else None,
        has_known_requests=message.has_known_requests,
        requests=dict(message.requests),
    )
    return pod, (*burst_problems, *eviction_problems, *guard_problems)


def _katalyst(message: api_pb2.KatalystLevel) -> KatalystTraits:
    rate, threshold = message.suppression_tolerance_rate, message.rss_overuse_threshold
    return KatalystTraits(
        message.level,
        rate if message.HasField("suppression_tolerance_rate") else None,
        threshold if message.HasField("rss_overuse_threshold") else None,
        message.rss_overuse_problem,
    )


def cache_use_of(message: api_pb2.GetResctrlResponse) -> dict[str, CacheUse]:
    """What pods use of caches and memory bandwidth, by uid."""
    return {
        pod.uid: CacheUse(
            pod.group,
            {(each.cache, each.name): each.value for each in pod.counters if each.HasField("value")},
            {(each.cache, each.name): each.problem for each in pod.counters if not each.HasField("value")},
        )
        for pod in message.pods
    }


def _container(message: api_pb2.Container) -> Container:
    return Container(
        id=message.id,
        name=message.name,
        cgroup=message.cgroup,
        state=_STATES.get(message.state, ContainerState.STOPPED),
        requests=dict(message.requests),
        limits=dict(message.limits),
        cpu_quota_us=_quota_us(message),
    )


def _quota_us(message: api_pb2.Container) -> int | None:
    """The quota for the period that Kubernetes uses, whatever the container's is."""
    if not message.HasField("scaled_cpu_quota_us"):
        return None
    quota_us = message.scaled_cpu_quota_us
    if quota_us < 0:
        return UNLIMITED
    return quota_us * CPU_PERIOD_US // (message.requested.cpu_period_us or CPU_PERIOD_US)


def node_of(message: api_pb2.GetNodeResponse) -> tuple[Node, Strategies, tuple[str, ...]]:
    """The node, its strategies, and the problems with them."""
    system = next((pool for pool in message.pools if pool.name == "system"), None)
    of_target = [each for each in message.strategies if each.path in _EVICTION]
    eviction_target = next((each.provenance.strategy for each in of_target), "")
    texts = {_EVICTION[each.path]: each.value for each in of_target}
    eviction, eviction_problems = strategy_of(EvictionConfig, "", texts)
    node = Node(
        cpus=tuple(map(_cpu, (cpu for cpu in message.cpus if cpu.is_online))),
        capacity=dict(message.capacity),
        allocatable=dict(message.allocatable),
        annotations=dict(message.annotations),
        labels=dict(message.labels),
        cgroup_version=message.cgroups.version,
        features=frozenset(message.features),
        cpu_manager_policy=message.kubelet.cpu_manager_policy,
        reserved_cpus=_cpus(message.reserved_cpus),
        reserved=dict(message.reserved),
        static_cpus={
            (each.pod_uid, each.container): _cpus(each.cpus) for each in message.kubelet.static_cpus
        },
        claimed_cpus=_cpus(message.claimed_cpus),
        system_cpus=_cpus(system.cpus) if system is not None else frozenset(),
        is_system_exclusive=system.is_exclusive if system is not None else True,
        normalization_ratio=(
            message.normalization_ratio if message.HasField("normalization_ratio") else None
        ),
        qos_cgroups={
            KubeQoSClass(each.kube_qos_class): each.cgroup
            for each in message.qos_class_cgroups
            if each.kube_qos_class in _KUBE_QOS_CLASSES
        },
        memory_bytes=dict(message.memory_bytes),
        cpu_pools=_cpu_pools(message) if message.HasField("katalyst_pool_settings") else None,
        eviction=eviction,
        eviction_target=eviction_target,
        is_eviction_unknown=any(
            each.name == _KATALYST and each.state == api_pb2.NodeInput.STATE_UNKNOWN
            for each in message.inputs
        ),
    )
    fields = {each.path: each.value for each in message.plugin_strategies}
    threshold, threshold_problems = strategy_of(Threshold, "threshold", fields)
    burst, burst_problems = strategy_of(CpuBurstStrategy, "cpu_burst", fields)
    colocation, colocation_problems = strategy_of(Colocation, "colocation", fields)
    guard, guard_problems = strategy_of(CpuGuard, "cpu_guard", fields)
    strategies = Strategies(
        cpu_guard=guard,
        threshold=threshold,
        cpu_burst=burst,
        colocation=colocation,
        host_applications=tuple(map(_host_application, message.host_applications)),
    )
    problems = (
        *threshold_problems,
        *burst_problems,
        *colocation_problems,
        *eviction_problems,
        *guard_problems,
    )
    return node, strategies, problems


_EVICTION: Final = {shown: f".{path}" for path, shown in PATHS.items()}
"""Of Katalyst's dynamic configuration, by their paths there."""
_KATALYST: Final = "katalyst"
"""The name of that input of the daemon's."""


def _cpu_pools(message: api_pb2.GetNodeResponse) -> CpuPools:
    settings = message.katalyst_pool_settings
    return CpuPools(
        pools={each.name: _cpus(each.cpus) for each in message.katalyst_pools},
        members={
            each.pod_uid: PoolMember(
                level=each.level,
                pool=each.pool,
                cpus=_cpus(each.cpus),
                own_cpus=_cpus(each.own_cpus),
                numa_nodes=_cpus(each.numa_nodes),
                is_ramping_up=each.is_ramping_up,
            )
            for each in message.katalyst_pods
        },
        enable_reclaim=settings.enable_reclaim,
        overlap=settings.overlap,
        least_reclaim_cpus=settings.least_reclaim_cpus,
        reserved_cpus=_cpus(settings.reserved_cpus),
        advice={each.pool: PoolAdvice(*advised_values(each)) for each in message.katalyst_advice},
    )


def _cpu(message: api_pb2.Cpu) -> Cpu:
    l3 = message.l3 if message.HasField("l3") else -1
    return Cpu(message.id, message.core, message.socket, message.numa_node, l3)


def _host_application(message: api_pb2.HostApplication) -> HostApplication:
    return HostApplication(
        message.name,
        _member(QoSClass, message.qos_class, QoSClass.NONE),
        _member(PriorityClass, message.priority_class, PriorityClass.NONE),
        message.cgroup,
        _member(CgroupBase, message.cgroup_base, CgroupBase.CGROUP_ROOT),
    )


def _cpus(text: str) -> frozenset[int]:
    try:
        return parse_cpu_list(text)
    except ValueError:
        return frozenset()


def _member(kind: type[_EnumT], value: str, default: _EnumT) -> _EnumT:
    try:
        return kind(value)
    except ValueError:
        return default


def strategy_of(kind: type[_Kind], part: str, texts: Mapping[str, str]) -> tuple[_Kind, tuple[str, ...]]:
    """A strategy by JSON values at dotted paths below `part`, and problems of fields that keep defaults."""
    problems: list[str] = []
    return _laid_over(kind(), part, texts, problems), tuple(problems)


def _laid_over(default: _Kind, place: str, texts: Mapping[str, str], problems: list[str]) -> _Kind:
    changed: dict[str, object] = {}
    kind: Any = type(default)
    for name, validator in _validators(kind).items():
        path, value = f"{place}.{name}", getattr(default, name)
        if path in texts:
            try:
                changed[name] = validator.validate_json(texts[path], strict=True)
            except ValueError:
                problems.append(f"{path}: {texts[path][:100]} is not known here; {value} is used")
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            changed[name] = _laid_over(value, path, texts, problems)
    return dataclasses.replace(default, **changed)  # type: ignore[type-var]  # kinds are dataclasses


@cache
def _validators(kind: Any) -> dict[str, SchemaValidator]:  # noqa: ANN401 - a dataclass, which has no type
    hints = get_type_hints(kind)
    return {each.name: validator_of(hints[each.name]) for each in dataclasses.fields(kind)}


# --- claims ------------------------------------------------------------------------------------------------


def key_message(claim: Claim) -> api_pb2.ClaimKey:
    return api_names.key_message(_key(claim))


def _key(claim: Claim) -> ClaimKey:
    return ClaimKey(claim.target.level, claim.target.id, claim.field, claim.role)


def cut_bytes(text: str, most: int) -> str:
    # Half a character at the end is dropped.
    return text.encode()[:most].decode(errors="ignore")


def claim_message(claim: Claim) -> api_pb2.Claim:
    reason = cut_bytes(claim.reason, MOST_CLAIM_REASON_BYTES)
    return api_names.claim_message(_key(claim), claim.value, claim.ceiling, reason)


def claims_of(messages: Iterable[api_pb2.Claim]) -> Iterator[Claim]:
    # Claims of roles and targets that are not known here are left out.
    for message in messages:
        key = api_names.key_of(message.key)
        if isinstance(key, str) or key.role is Role.SCALE or not message.HasField("value"):
            continue
        is_list = key.field.startswith("cpuset.")
        yield Claim(
            Target(key.level, key.target),
            key.field,
            key.role,
            message.value if is_list else int(message.value),
            message.ceiling if message.HasField("ceiling") else None,
            message.reason,
        )


# --- reports -----------------------------------------------------------------------------------------------


def report_message(
    pid: int, started_s: float, plugins: Iterable[PluginReport], metrics: tuple[MetricsSource, str]
) -> api_pb2.QosManagerReport:
    """The report to the daemon about this process, which started `started_s` after the epoch."""
    message = api_pb2.QosManagerReport(version=__version__, pid=pid)
    message.started_at.FromNanoseconds(int(started_s * 1e9))
    message.metrics_source, problem = metrics
    message.metrics_problem = cut_bytes(problem, MOST_CLAIM_REASON_BYTES)
    message.plugins.extend(
        plugin_status(
            each._replace(
                problem=cut_bytes(each.problem, MOST_CLAIM_REASON_BYTES),
                explanation=cut_bytes(each.explanation, MOST_EXPLANATION_BYTES),
                pod_notes=_few_notes(each.pod_notes),
            )
        )
        for each in plugins
    )
    return message


def _few_notes(notes: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """What a report takes of what a plugin says of pods."""
    found: dict[str, list[str]] = {}
    for text, uids in itertools.islice(notes.items(), MOST_POD_NOTES):
        found.setdefault(cut_bytes(text, MOST_POD_NOTE_BYTES), []).extend(uids)
    return found


def node_report_message(report: NodeReport) -> api_pb2.NodeResourceReport:
    problems = [cut_bytes(each, MOST_CLAIM_REASON_BYTES) for each in report.problems]
    return api_pb2.NodeResourceReport(json=report.document, problems=problems)
