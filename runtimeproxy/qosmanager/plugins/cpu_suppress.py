"""CPU suppress: BE pods together get what all others leave below a share of the node's CPUs.

By the policy of the strategy that bounds the quota of their QoS class, or its CPUs. The bound falls at once,
and rises in steps. Unlike in Koordinator nothing is divided by zero or negative, and CPUs that became
exclusive are taken from BE pods even if few are left.
Source: Koordinator pkg/koordlet/qosmanager/plugins/cpusuppress/cpu_suppress.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import ClassVar, Final, NamedTuple

from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.qosmanager.plugin import (
    BE_CLASS,
    CPUS,
    QUOTA,
    Claim,
    Decision,
    Need,
    Plugin,
    PluginContext,
    Role,
    Target,
)
from runtimeproxy.qosmanager.snapshot import LOOK_BACK_S, NODE_CGROUP, Cpu, Level, Metric, Node, Pod, Snapshot
from runtimeproxy.slo.dynamic import GATES
from runtimeproxy.slo.schema import CgroupBase, CpuSuppressPolicy
from runtimeproxy.units import CPU_PERIOD_US, UNLIMITED, format_cpu_list, parse_cpu_list

MIN_QUOTA_US: Final = 2_000
"""The least quota of all BE pods together. Source: beMinQuota."""
MIN_CPUS: Final = 2
"""The least number of CPUs of BE pods. Source: beMinCPUSetCores."""
GROWTH_PERCENT: Final = 10
"""The share of the node's CPUs that BE pods get back in one step. Source: beMaxIncreaseCPUPercent."""
QUOTA_DEADBAND_PERCENT: Final = 1
"""Of the node's CPUs: smaller changes of the quota are left out. Source: suppressBypassQuotaDeltaRatio."""
CPU_DEADBAND_MILLICORES: Final = 250
"""One CPU more is given only if so much of it is left for BE pods: else it would come and go with each
fraction of a core."""


class Used(NamedTuple):
    """CPU usage of one pod or host application."""

    cores: float
    is_be: bool
    """Of a pod: its label or its Kubernetes QoS class is best effort. Of a host application: its class is BE,
    and its cgroup lies below that of BE pods."""


def be_millicores(
    *,
    capacity_millicores: int,
    threshold_percent: int,
    min_percent: int | None,
    node_used_cores: float,
    pods: Iterable[Used],
    host_applications: Iterable[Used] = (),
    reserved_millicores: int = 0,
) -> int:
    """Return the CPU that is left for all BE pods, 0 at least. Source: calculateBESuppressCPU.

    Percentages are of the capacity: what all pods and the system use together, and what BE pods keep. Pods
    that are gone are taken for pods of other classes. `reserved_millicores` are kept for the system, used or
    not.
    """
    used = [*pods, *host_applications]
    system_cores = max(node_used_cores - sum(each.cores for each in used), reserved_millicores / 1_000, 0.0)
    others = sum(int(each.cores * 1_000) for each in used if not each.is_be)
    left = capacity_millicores * threshold_percent // 100 - others - int(system_cores * 1_000)
    return max(left, floor_millicores(capacity_millicores, min_percent))


def floor_millicores(capacity_millicores: int, min_percent: int | None) -> int:
    return capacity_millicores * (min_percent or 0) // 100


def next_quota_us(
    target_millicores: int, current_us: int, capacity_millicores: int, min_percent: int | None = None
) -> int:
    """Return the quota of all BE pods, for a period of 100 ms. Source: adjustByCfsQuota."""
    quota_us = max(_quota_us(target_millicores), MIN_QUOTA_US)
    if current_us == UNLIMITED:
        return quota_us
    capacity_us = _quota_us(capacity_millicores)
    if quota_us != MIN_QUOTA_US and abs(quota_us - current_us) * 100 < capacity_us * QUOTA_DEADBAND_PERCENT:
        quota_us = current_us
    step_us = capacity_us * GROWTH_PERCENT // 100
    # No step limit delays the floor.
    floor_us = _quota_us(floor_millicores(capacity_millicores, min_percent))
    return max(min(quota_us, current_us + step_us), floor_us)


def next_cpu_count(
    target_millicores: int,
    current: int,
    total: int,
    capacity_millicores: int = 0,
    min_percent: int | None = None,
) -> int:
    """Return how many of the node's CPUs BE pods get. Source: adjustByCPUSet."""
    count = max(-(-target_millicores // 1_000), MIN_CPUS)
    if count == current + 1 and target_millicores <= current * 1_000 + CPU_DEADBAND_MILLICORES:
        count = current
    step = -(-total * GROWTH_PERCENT // 100)
    least = max(-(-floor_millicores(capacity_millicores, min_percent) // 1_000), MIN_CPUS)
    return max(min(count, current + step), least)


def spread_cpus(cpus: Iterable[Cpu], count: int) -> tuple[int, ...]:
    """Return so many of the CPUs, whole cores first, spread over NUMA nodes and sockets; in this order.

    The larger a NUMA node's part is, the earlier it has its turn. Whole cores are taken in rounds until one
    finds none; single CPUs where the last round ended. Fewer CPUs than `count`: none.
    Source: calculateBESuppressCPUSetPolicy.
    """
    buckets = _buckets(cpus)
    if count <= 0 or sum(map(len, buckets)) < count:
        return ()
    chosen: list[int] = []
    turn, before_round = 0, -1
    while count - len(chosen) > 1:
        if turn == 0:
            if len(chosen) == before_round:
                break
            before_round = len(chosen)
        for cpu in next(_whole_cores(buckets[turn]), ()):
            buckets[turn].remove(cpu)
            chosen.append(cpu.id)
        turn = (turn + 1) % len(buckets)
    while len(chosen) < count:
        if buckets[turn]:
            chosen.append(buckets[turn].pop(0).id)
        turn = (turn + 1) % len(buckets)
    return tuple(chosen)


def _buckets(cpus: Iterable[Cpu]) -> list[list[Cpu]]:
    def place(cpu: Cpu) -> tuple[int, int]:
        return cpu.numa_node, cpu.socket

    ordered = sorted(cpus, key=lambda cpu: (*place(cpu), cpu.core, cpu.id))
    buckets = [list(members) for _, members in groupby(ordered, place)]
    return sorted(buckets, key=lambda bucket: (-len(bucket), bucket[0].id))


def _whole_cores(bucket: Sequence[Cpu]) -> Iterator[tuple[Cpu, Cpu]]:
    for cpu, successor in pairwise(bucket):
        if cpu.core == successor.core:
            yield cpu, successor


def select_cpus(cpus: Iterable[Cpu], count: int, lsr_cpus: frozenset[int] = frozenset()) -> frozenset[int]:
    """Return so many CPUs for BE pods, those of LSR pods by their share. Source: adjustByCPUSet."""
    there = list(cpus)
    lsr = [cpu for cpu in there if cpu.id in lsr_cpus]
    others = [cpu for cpu in there if cpu.id not in lsr_cpus]
    # A floor or a step may want more than there are.
    count = min(count, len(there))
    of_lsr = count * len(lsr) // max(len(there), 1)
    return frozenset(spread_cpus(lsr, of_lsr) + spread_cpus(others, count - of_lsr))


def _quota_us(millicores: int) -> int:
    return millicores * CPU_PERIOD_US // 1_000


def be_cpus(node: Node, pods: Iterable[Pod]) -> tuple[Cpu, ...]:
    """Return the CPUs that BE pods may have at all.

    Not those of LSE pods, of reservations, of SYSTEM pods alone, and of containers to which the kubelet's CPU
    manager or a DRA driver has given some of their own. Source: calcBECPUSet.
    """
    taken = node.reserved_cpus
    if node.is_system_exclusive:
        taken |= node.system_cpus
    exclusive = [pod.cpus for pod in pods if pod.qos is QoSClass.LSE]
    taken = taken.union(*exclusive, *node.static_cpus.values(), node.claimed_cpus)
    return tuple(cpu for cpu in node.cpus if cpu.id not in taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuppressState:
    """The bounds of BE pods."""

    quota_us: int = UNLIMITED
    """-1: not bounded."""
    cpus: frozenset[int] = frozenset()
    """Empty: not bounded."""
    has_cpu_manager: bool = False
    """Whether another feature gives BE pods their CPUs: nothing is suppressed then."""


class CpuSuppress(Plugin[SuppressState]):
    """Bounds the CPU time, or the CPUs, of all BE pods together."""

    name: ClassVar[str] = "cpu-suppress"
    gates: ClassVar[tuple[str, ...]] = GATES["cpu-suppress"]
    needs: ClassVar[frozenset[Need]] = frozenset(
        Need(level, Metric.CPU_USAGE, LOOK_BACK_S)
        for level in (Level.NODE, Level.POD, Level.HOST_APPLICATION)
    )

    def setup(self, context: PluginContext) -> SuppressState:
        """The present bounds in the daemon: CPU of BE pods must not jump."""
        state = SuppressState(has_cpu_manager=context.gates.get("BECPUManager", False))
        for claim in context.held:
            if claim.role is Role.AT_MOST and claim.field == QUOTA and isinstance(claim.value, int):
                state = replace(state, quota_us=claim.value)
            elif claim.role is Role.AT_MOST and claim.field == CPUS:
                cpus = parse_cpu_list(str(claim.value))
                # Under the kubelet's static policy containers have fewer CPUs than their class.
                state = replace(state, cpus=cpus & state.cpus if state.cpus else cpus)
        return state

    def is_enabled(self, snapshot: Snapshot) -> bool:
        return snapshot.asks_for(self.name)

    def run(self, snapshot: Snapshot, state: SuppressState) -> Decision[SuppressState]:
        if state.has_cpu_manager:
            explanation = "BECPUManager gives BE pods their CPUs"
            return Decision(SuppressState(has_cpu_manager=True), explanation=explanation)
        if snapshot.is_guarded:
            return Decision(
                SuppressState(), explanation="cpu-guard bounds BE pods by what others wait, and says how"
            )
        allowed = be_cpus(snapshot.node, snapshot.pods)
        amount = _amount_of(snapshot)
        if not snapshot.node.cpus:
            after, explanation = state, "the CPUs of the node are not known"
        elif amount is None:
            after, explanation = _within(state, allowed), "the CPU usage of the node is not known"
        elif snapshot.strategies.threshold.cpu_suppress_policy is CpuSuppressPolicy.CFS_QUOTA:
            after, explanation = _by_quota(snapshot, state, allowed, amount), amount.explanation
        else:
            after, explanation = _by_cpus(snapshot, state, allowed, amount), amount.explanation
        if snapshot.node.cpus and not allowed:
            explanation += "; no CPU is left for BE pods"
        return Decision(after, _claims(snapshot, after, allowed, explanation), explanation=explanation)


class _Amount(NamedTuple):
    capacity_millicores: int
    target_millicores: int
    """For all BE pods."""
    explanation: str


def _amount_of(snapshot: Snapshot) -> _Amount | None:
    """The share of BE pods; None if capacity or usage are not known, or no pod is."""
    node, threshold = snapshot.node, snapshot.strategies.threshold
    capacity = node.capacity.get("cpu") or len(node.cpus) * 1_000
    used = snapshot.metrics.last(NODE_CGROUP, Metric.CPU_USAGE, LOOK_BACK_S)
    if not capacity or used is None or not snapshot.pods:
        return None
    pods, applications = _usage(snapshot)
    target = be_millicores(
        capacity_millicores=capacity,
        threshold_percent=threshold.cpu_suppress_threshold_percent,
        min_percent=threshold.cpu_suppress_min_percent,
        node_used_cores=used,
        pods=pods,
        host_applications=applications,
        reserved_millicores=node.reserved.get("cpu", 0),
    )
    others = sum(each.cores for each in (*pods, *applications) if not each.is_be)
    explanation = (
        f"{target} of {capacity} millicores are left for BE pods: the node uses {used:.2f} cores, other pods "
        f"and host applications {others:.2f}, threshold {threshold.cpu_suppress_threshold_percent} %"
    )
    return _Amount(capacity, target, explanation)


def _usage(snapshot: Snapshot) -> tuple[list[Used], list[Used]]:
    """Usage of pods and of host applications, where it is known."""
    pods = [
        (pod.cgroup, pod.qos is QoSClass.BE or pod.kube_qos is KubeQoSClass.BEST_EFFORT)
        for pod in snapshot.pods
    ]
    applications = [
        (each.cgroup, each.qos is QoSClass.BE and each.base is CgroupBase.KUBEPODS_BEST_EFFORT)
        for each in snapshot.strategies.host_applications
    ]

    def used(cgroups: Iterable[tuple[str, bool]]) -> list[Used]:
        found = (
            (snapshot.metrics.last(each, Metric.CPU_USAGE, LOOK_BACK_S), is_be) for each, is_be in cgroups
        )
        return [Used(cores, is_be) for cores, is_be in found if cores is not None]

    return used(pods), used(applications)


def _within(state: SuppressState, allowed: Sequence[Cpu]) -> SuppressState:
    """The bounds of before, without CPUs that BE pods may no longer have."""
    ids = frozenset(cpu.id for cpu in allowed)
    return replace(state, cpus=(state.cpus & ids) or ids) if state.cpus else state


def _by_quota(
    snapshot: Snapshot, state: SuppressState, allowed: Sequence[Cpu], amount: _Amount
) -> SuppressState:
    min_percent = snapshot.strategies.threshold.cpu_suppress_min_percent
    quota_us = next_quota_us(
        amount.target_millicores, state.quota_us, amount.capacity_millicores, min_percent
    )
    # Its CPUs are not suppressed, but those of others stay theirs.
    is_whole = len(allowed) == len(snapshot.node.cpus)
    cpus = frozenset() if is_whole else frozenset(cpu.id for cpu in allowed)
    return replace(state, quota_us=quota_us, cpus=cpus)


def _by_cpus(
    snapshot: Snapshot, state: SuppressState, allowed: Sequence[Cpu], amount: _Amount
) -> SuppressState:
    count = next_cpu_count(
        amount.target_millicores,
        len(state.cpus) if state.cpus else len(allowed),
        len(snapshot.node.cpus),
        amount.capacity_millicores,
        snapshot.strategies.threshold.cpu_suppress_min_percent,
    )
    lsr_cpus = frozenset[int]().union(*(pod.cpus for pod in snapshot.pods if pod.qos is QoSClass.LSR))
    return replace(state, quota_us=UNLIMITED, cpus=select_cpus(allowed, count, lsr_cpus))


def _claims(
    snapshot: Snapshot, state: SuppressState, allowed: Sequence[Cpu], reason: str
) -> tuple[Claim, ...]:
    claims: list[Claim] = []
    if state.quota_us != UNLIMITED:
        claims.append(Claim(BE_CLASS, QUOTA, Role.AT_MOST, state.quota_us, reason=reason))
    if not state.cpus:
        return tuple(claims)
    chosen = format_cpu_list(state.cpus)
    if snapshot.node.cpu_manager_policy != "static":
        # The ledger takes it to all cgroups below.
        return (*claims, Claim(BE_CLASS, CPUS, Role.AT_MOST, chosen, reason=reason))
    # The kubelet writes the containers' lists again and again: with fewer CPUs above that would fail.
    pods = [pod for pod in snapshot.pods if pod.kube_qos is KubeQoSClass.BEST_EFFORT]
    whole = format_cpu_list(cpu.id for cpu in allowed)
    bounds = {BE_CLASS: whole}
    bounds |= {Target(Level.POD, pod.uid): whole for pod in pods}
    bounds |= {Target(Level.CONTAINER, each.id): chosen for pod in pods for each in pod.containers}
    claims += [Claim(target, CPUS, Role.AT_MOST, cpus, reason=reason) for target, cpus in bounds.items()]
    return tuple(claims)
