"""CPU sets: the CPUs that the scheduler allocated to a pod, or those that its class shares.

The scheduler writes a pod's own CPUs into an annotation. All containers of the pod get exactly these. Of
`LSE` and `LSR` pods the quotas of containers and pod are removed: throttling has no use on CPUs that belong
to the pod alone. Others with such an annotation are bound to its CPUs, keep their quotas, and take none from
others. Pods without CPUs of their own get the shared pools of their class, where the node knows any.
Source: Koordinator pkg/koordlet/runtimehooks/hooks/cpuset/rule.go.

CPUs that the kubelet's CPU manager, or a claim of a DRA driver, gave to one container alone stay as they
are. Where this policy decides, the kubelet's updates carry the same CPUs as the creation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final, NamedTuple

from policies.annotations import (
    RESOURCE_STATUS,
    AnnotationError,
    ResourceStatus,
    memory_nodes,
    resource_status,
)
from policies.host_applications import host_application_values
from runtimeproxy.hooks import (
    CLEAR,
    Clear,
    ContainerChange,
    ContainerView,
    NodeChange,
    PodChange,
    PodSelector,
    PodView,
    Policy,
    Reason,
    ResourceChange,
)
from runtimeproxy.node.snapshot import Input, Node, Pool, Pools
from runtimeproxy.qos import EXCLUSIVE, KubeQoSClass, QoSClass
from runtimeproxy.units import UNLIMITED, format_cpu_list, parse_cpu_list

REMEMBERED_LISTS: Final = 64
"""Size of the cache of joined pools: most containers of a node have the same."""

MOST_NAMED: Final = 8
"""NUMA nodes that a problem names."""

_ALLOCATED: Final = "CPUs allocated by the scheduler"
_SHARED: Final = "CPUs that the class shares"
_MEMORY: Final = "NUMA nodes of the memory allocated by the scheduler"
_NO_QUOTA_WITHOUT_CPUS: Final = {"resources.cpu_quota_us": "resources.cpuset_cpus"}
_STATIC: Final = "static"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpusetOptions:
    """Settings of the policy."""

    disable_unset_cpu_quota: bool = False
    """True keeps the quotas of all pods with a CPU set; Koordinator's flag of the same name."""
    be_cpu_manager: bool = False
    """True places `BE` pods in the pools of the NUMA nodes that the scheduler chose; Koordinator's feature
    gate BECPUManager."""
    bind_memory: bool = False
    """True binds containers to the NUMA nodes from which the scheduler allocated memory (#2590). On cgroup
    version 2 the kernel moves the pages of a running container there, on version 1 with `memory_migrate`
    only. A container is out of memory when these nodes are full, whatever others have."""


@dataclass(frozen=True, slots=True)
class CpuRule:
    """The shared CPUs of this node, and the kubelet's CPU manager."""

    pools: Pools | None = None
    cpu_manager_policy: str | None = None
    """The kubelet's, `none` or `static`; None: not known."""
    uses_be_pools: bool = False


def container_cpus(
    qos: QoSClass, kube_qos: KubeQoSClass, status: ResourceStatus, rule: CpuRule, *, has_static_cpus: bool
) -> str | Clear | None:
    """Return the CPUs of a pod's container as a list, CLEAR for no own CPUs, None to leave them alone.

    Source: getContainerCPUSet, with two differences: CPUs that the kubelet's CPU manager gave to this
    container alone are left alone unless the scheduler allocated some; and while the CPU manager's policy is
    not known, containers without a class of their own are left alone.
    """
    if status.cpus is not None:
        return status.cpus
    pools = rule.pools
    if pools is None or has_static_cpus:
        return None
    if status.numa_nodes and (qos is not QoSClass.BE or rule.uses_be_pools):
        return _joined(pools.be if qos is QoSClass.BE else pools.ls, status.numa_nodes)
    if qos is QoSClass.SYSTEM and pools.system_cpus:
        return format_cpu_list(pools.system_cpus)
    if qos is QoSClass.LS:
        return _joined(pools.ls)
    if kube_qos is KubeQoSClass.BEST_EFFORT:
        return CLEAR
    if rule.cpu_manager_policy in (None, _STATIC):
        return None
    return _joined(pools.ls)


def claim_problems(
    status: ResourceStatus, claims: Collection[str], claimed_cpus: Mapping[str, frozenset[int]]
) -> tuple[str, ...]:
    """Return the problems of a container that has CPUs from the scheduler where a DRA driver gives some, too.

    `claims` are the container's own, `claimed_cpus` the CPUs of all claims of the node.
    """
    if status.cpus is None or not (claims or claimed_cpus):
        return ()
    if claims:
        return (f"annotation {RESOURCE_STATUS}: the container has the CPUs of a DRA claim instead",)
    taken = parse_cpu_list(status.cpus) & frozenset[int]().union(*claimed_cpus.values())
    if not taken:
        return ()
    return (f"annotation {RESOURCE_STATUS}: CPUs {format_cpu_list(taken)} are those of a DRA claim, too",)


class BoundMemory(NamedTuple):
    """The NUMA nodes that a container is bound to."""

    nodes: tuple[int, ...] = ()
    problem: str = ""
    """Why some of the allocated ones are left out; empty if none is."""


def bound_memory(allocated: tuple[int, ...], there: frozenset[int] | None) -> BoundMemory:
    """Return the allocated NUMA nodes that have memory.

    `there` are those of the node; None: not known. On cgroup version 1 the kernel refuses lists with others,
    on version 2 it ignores these. Source: Linux kernel/cgroup/cpuset.c, update_nodemask.
    """
    missing = () if there is None else tuple(each for each in allocated if each not in there)
    if not missing:
        return BoundMemory(allocated)
    rest = tuple(each for each in allocated if each not in missing)
    names = ", ".join(map(str, missing[:MOST_NAMED]))
    which = f"NUMA nodes {names} have" if len(missing) > 1 else f"NUMA node {names} has"
    left = "memory is not bound" if not rest else "memory is bound to the others"
    return BoundMemory(rest, f"annotation {RESOURCE_STATUS}: {which} no memory, or is offline: {left}")


def host_cpus(qos: QoSClass, pools: Pools) -> str | None:
    """Return the CPUs of a host application; None to leave them alone. Source: getHostAppCpuset."""
    return _joined(pools.ls) if qos is QoSClass.LS else None


@lru_cache(maxsize=REMEMBERED_LISTS)
def _joined(pools: tuple[Pool, ...], numa_nodes: tuple[int, ...] | None = None) -> str | None:
    """Return the CPUs of pools, of some NUMA nodes or all; None if there are none."""
    chosen = [pool.cpus for pool in pools if numa_nodes is None or pool.numa_node in numa_nodes]
    return format_cpu_list({cpu for cpus in chosen for cpu in cpus}) or None


class Cpuset(Policy):
    """Sets the CPU set from `resource-status`, without quotas of LSE and LSR pods; else that of the class."""

    name: ClassVar[str] = "cpuset"
    selector_without: ClassVar[Mapping[Input, PodSelector]] = {
        Input.POOLS: PodSelector(annotations=(RESOURCE_STATUS,))
    }
    optional_inputs: ClassVar[frozenset[Input]] = frozenset(
        {Input.POOLS, Input.KUBELET, Input.STRATEGIES, Input.CGROUPS}
    )
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {
        "pod": frozenset({"cpu.cfs_quota_us", "cpuset.cpus"}),
        "container": frozenset({"cpuset.cpus", "cpuset.mems", "cpu.cfs_quota_us"}),
        "node": frozenset({"cpuset.cpus"}),
    }
    priority: ClassVar[int] = 40
    options_type: ClassVar[type[CpusetOptions] | None] = CpusetOptions

    def __init__(self, options: CpusetOptions | None = None) -> None:
        self._options = options or CpusetOptions()

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Return an unlimited quota for the pod's own cgroup, if it has allocated CPUs for itself.

        A pod without cgroups of containers has its CPUs there, too.
        """
        try:
            status = resource_status(pod.annotations, node.facts.last_cpu)
        except AnnotationError as error:
            return PodChange(problems=(str(error),))
        values: dict[str, int | str | Clear] = {}
        reasons: dict[str, Reason] = {}
        if status.cpus is not None and self._is_unlimited(pod):
            values["cpu.cfs_quota_us"], reasons["cpu.cfs_quota_us"] = UNLIMITED, _quota_reason(pod)
        if not pod.has_container_cgroups:
            rule, kubelet = self._rule(node), node.kubelet
            has_static_cpus = kubelet is not None and any(uid == pod.uid for uid, _ in kubelet.static_cpus)
            cpus = container_cpus(pod.qos, pod.kube_qos, status, rule, has_static_cpus=has_static_cpus)
            # What a sandbox has of its own is for the runtime: nothing is cleared.
            if isinstance(cpus, str):
                values["cpuset.cpus"], reasons["cpuset.cpus"] = cpus, _cpus_reason(pod, status, rule, cpus)
        if not values:
            return None
        reason = _SHARED if status.cpus is None else _ALLOCATED
        return PodChange(cgroup=values, reason=reason, reasons=reasons)

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the container's CPUs, and the NUMA nodes of its memory."""
        pod = container.pod
        try:
            status = resource_status(pod.annotations, node.facts.last_cpu)
        except AnnotationError as error:
            return ContainerChange(problems=(str(error),))
        rule, kubelet = self._rule(node), node.kubelet
        has_static_cpus = kubelet is not None and (pod.uid, container.name) in kubelet.static_cpus
        problems = list(claim_problems(status, container.cpu_claims, node.claimed_cpus))
        if container.cpu_claims:
            # The driver of its claims binds it.
            status, has_static_cpus = ResourceStatus(), True
        cpus = container_cpus(pod.qos, pod.kube_qos, status, rule, has_static_cpus=has_static_cpus)
        memory = self._memory(container, node)
        mems = format_cpu_list(memory.nodes) if memory.nodes else None
        if memory.problem:
            problems.append(memory.problem)
        if cpus is None and mems is None:
            return ContainerChange(problems=tuple(problems)) if problems else None
        reasons: dict[str, Reason] = {}
        if cpus is not None:
            reasons["cpuset_cpus"] = _cpus_reason(pod, status, rule, cpus)
        if mems is not None:
            reasons["cpuset_mems"] = Reason(_MEMORY, " (resource-status) = ", mems)
        if status.cpus is None:
            resources = ResourceChange(cpuset_cpus=cpus, cpuset_mems=mems)
            reason = _MEMORY if cpus is None else _SHARED
            return ContainerChange(
                resources=resources, reason=reason, reasons=reasons, problems=tuple(problems)
            )
        quota_us = UNLIMITED if self._is_unlimited(pod) else None
        if quota_us is not None:
            reasons["cpu_quota_us"] = _quota_reason(pod)
        return ContainerChange(
            resources=ResourceChange(cpuset_cpus=cpus, cpuset_mems=mems, cpu_quota_us=quota_us),
            requires=_NO_QUOTA_WITHOUT_CPUS,
            reason=_ALLOCATED,
            reasons=reasons,
            problems=tuple(problems),
        )

    def _rule(self, node: Node) -> CpuRule:
        return CpuRule(
            pools=node.pools,
            cpu_manager_policy=None if node.kubelet is None else node.kubelet.cpu_manager_policy,
            uses_be_pools=self._options.be_cpu_manager,
        )

    def _memory(self, container: ContainerView, node: Node) -> BoundMemory:
        # What the kubelet's memory manager has asked for stays; of a recovered container that is not known.
        is_kubelets = container.requested.cpuset_mems and not container.is_recovered
        if not self._options.bind_memory or is_kubelets:
            return BoundMemory()
        try:
            allocated = memory_nodes(container.pod.annotations, node.facts.last_cpu)
        except AnnotationError as error:
            return BoundMemory(problem=str(error))
        return bound_memory(allocated, node.facts.online_memory_nodes)

    def _is_unlimited(self, pod: PodView) -> bool:
        return pod.qos in EXCLUSIVE and not self._options.disable_unset_cpu_quota

    def node(self, node: Node) -> NodeChange | None:
        """Return the CPUs of host applications."""
        pools = node.pools
        applications = node.strategies.host_applications
        if pools is None or not applications:
            return None

        def values_of(qos: QoSClass) -> Mapping[str, int | str]:
            cpus = host_cpus(qos, pools)
            return {} if cpus is None else {"cpuset.cpus": cpus}

        cgroups, problems = host_application_values(applications, node.cgroup_driver, values_of)
        reasons = {
            f"{path}/{name}": Reason("shared pool of LS pods = ", value)
            for path, values in cgroups.items()
            for name, value in values.items()
        }
        return NodeChange(cgroups=cgroups, reason=_SHARED, reasons=reasons, problems=problems)


def _quota_reason(pod: PodView) -> Reason:
    return Reason("CPUs that the ", pod.qos, " pod has for itself need no quota = ", UNLIMITED)


def _cpus_reason(pod: PodView, status: ResourceStatus, rule: CpuRule, cpus: str | Clear) -> Reason:
    if status.cpus is not None:
        return Reason(_ALLOCATED, " (resource-status) = ", status.cpus)
    if isinstance(cpus, Clear):
        return Reason("a best-effort pod has no CPUs of its own")
    if status.numa_nodes and (pod.qos is not QoSClass.BE or rule.uses_be_pools):
        numa_nodes = format_cpu_list(status.numa_nodes)
        pool = "BE" if pod.qos is QoSClass.BE else "LS"
        return Reason("shared pool of ", pool, " pods on NUMA nodes ", numa_nodes, " = ", cpus)
    if pod.qos is QoSClass.SYSTEM and rule.pools is not None and rule.pools.system_cpus:
        return Reason("CPUs of SYSTEM pods = ", cpus)
    return Reason("shared pool of LS pods = ", cpus)
