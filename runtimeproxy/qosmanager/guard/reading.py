"""What the guard reads of a snapshot: of BE pods, of guarded pods, of the node. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.qosmanager.conditions import service_of
from runtimeproxy.qosmanager.guard.law import LawState, floor_of
from runtimeproxy.qosmanager.guard.lever import is_by_cpus
from runtimeproxy.qosmanager.guard.signal import PodSecond, WaitKind
from runtimeproxy.qosmanager.snapshot import LOOK_BACK_S, NODE_CGROUP, Metric, Node, Pod, Snapshot
from runtimeproxy.units import UNLIMITED

ASKED_S: Final = 10.0
"""What BE pods ask for is the 95th percentile of so long."""
_GUARDED: Final = frozenset({QoSClass.LS, QoSClass.LSR, QoSClass.LSE})


def distinct_pods(pods: Iterable[Pod]) -> Iterable[Pod]:
    """Pods that can be claimed for, each once: one may have two sandboxes that are ready for a moment."""
    return {pod.uid: pod for pod in pods if pod.uid}.values()


def is_best_effort(pod: Pod) -> bool:
    """Whether a pod is bounded with the class BestEffort, and made to yield."""
    return pod.kube_qos is KubeQoSClass.BEST_EFFORT and pod.qos not in _GUARDED


def is_guarded(pod: Pod) -> bool:
    """Whether a pod counts: LS, LSR and LSE pods, and those that have targets of their own."""
    own = pod.cpu_guard
    has_target = pod.qos is QoSClass.NONE and not (
        own.target_pressure_milliseconds is None and own.target_run_delay_percent is None
    )
    is_be = pod.kube_qos is KubeQoSClass.BEST_EFFORT and pod.qos is QoSClass.NONE
    return bool(pod.cgroup) and not is_be and (pod.qos in _GUARDED or has_target)


def workload_of(pod: Pod) -> str:
    """Return what a pod is one of: namespace, name without what controllers add, containers."""
    return f"{service_of(pod)}:{','.join(sorted(each.name for each in pod.containers))}"


def be_cores(snapshot: Snapshot) -> tuple[float | None, float | None]:
    """Return what BE pods use now, and what they ask for: the 95th percentile of 10 s. None: not known."""
    cgroups = be_cgroups(snapshot)
    now = [snapshot.metrics.window(each, Metric.CPU_USAGE, LOOK_BACK_S) for each in cgroups]
    if cgroups and not any(now):
        return None, None
    longer = [snapshot.metrics.window(each, Metric.CPU_USAGE, ASKED_S) for each in cgroups]
    return (
        sum(each.avg for each in now if each is not None),
        sum(each.p95 for each in longer if each is not None),
    )


def has_cpu_bounds(node: Node) -> bool:
    """Whether a bound of this node is whole CPUs, if it is large enough."""
    return is_by_cpus(len(node.cpus) * 1_000, len(node.cpus), node.cpu_manager_policy)


def node_floor(snapshot: Snapshot) -> int:
    """F, in millicores."""
    floor, node = snapshot.strategies.cpu_guard.floor_millicores, snapshot.node
    return floor_of(len(node.cpus), floor, by_cpus=has_cpu_bounds(node))


def be_cgroups(snapshot: Snapshot) -> list[str]:
    """The class of BE pods; where that is not known, all of them."""
    cgroup = snapshot.node.qos_cgroups.get(KubeQoSClass.BEST_EFFORT)
    return [cgroup] if cgroup else [pod.cgroup for pod in snapshot.pods if is_best_effort(pod)]


def be_waits(snapshot: Snapshot) -> float | None:
    cgroup = snapshot.node.qos_cgroups.get(KubeQoSClass.BEST_EFFORT, "")
    window = snapshot.metrics.window(cgroup, Metric.CPU_PRESSURE, ASKED_S)
    return window.avg if window is not None else None


def others_used(snapshot: Snapshot, be_cores: float) -> float | None:
    """What all but BE pods use, in millicores; None: not known."""
    window = snapshot.metrics.window(NODE_CGROUP, Metric.CPU_USAGE, LOOK_BACK_S)
    return max(window.avg - be_cores, 0.0) * 1_000 if window is not None else None


def loads_of(snapshot: Snapshot, law: LawState, errors: Mapping[str, float]) -> dict[str, float]:
    """What the law asks of single pods: `LawInputs.loads`."""
    wanted = {uid for uid, error in errors.items() if error > 1} | {law.bad_pod}
    loads = {law.bad_pod: 0.0}
    for pod in snapshot.pods:
        if pod.uid in wanted:
            loads.pop(pod.uid, None)
            window = snapshot.metrics.window(pod.cgroup, Metric.CPU_USAGE, ASKED_S)
            if window is not None:
                loads[pod.uid] = window.avg * 1_000
    return loads


def second_of(
    snapshot: Snapshot, pod: Pod, throttled: Collection[str] = ()
) -> tuple[WaitKind, PodSecond | None]:
    """Return what was read of a pod in the last pass, by pressure if there is any; None: nothing.

    Args:
        snapshot: Of now.
        pod: Of it.
        throttled: The cgroups of QoS classes that were, in that second.
    """
    metrics = snapshot.metrics
    kind, scale = WaitKind.PRESSURE, 1_000.0
    timed = metrics.timed(pod.cgroup, Metric.CPU_PRESSURE_FULL, ASKED_S / 2)
    if not timed:
        kind = WaitKind.RUN_DELAY
        timed = metrics.timed(pod.cgroup, Metric.CPU_RUN_DELAY, ASKED_S / 2)
    if not timed:
        return kind, None
    at_s, waited = timed[-1]
    return kind, PodSecond(
        at_s=at_s,
        elapsed_s=at_s - timed[-2][0] if len(timed) > 1 else None,
        waited=waited * scale,
        used_cores=metrics.last(pod.cgroup, Metric.CPU_USAGE, LOOK_BACK_S),
        # Throttling is a wait, too: without any nothing was throttled.
        is_throttled=waited > 0 and _is_pod_throttled(snapshot, pod, throttled),
        age_s=snapshot.wall_s - pod.created_s if pod.created_s is not None else None,
        is_boosted=pod.is_boosted,
        is_bounded=pod.kube_qos is KubeQoSClass.BEST_EFFORT,
    )


def _is_pod_throttled(snapshot: Snapshot, pod: Pod, throttled: Collection[str]) -> bool:
    """Whether a pod, a container of it or a class above was. Containers without a quota are not asked."""
    if any(pod.cgroup.startswith(f"{each}/") for each in throttled):
        return True
    limited = [each for each in pod.containers if each.cgroup and each.cpu_quota_us != UNLIMITED]
    if not limited and pod.containers:
        return False
    return is_throttled(snapshot, pod.cgroup) or any(is_throttled(snapshot, each.cgroup) for each in limited)


def is_throttled(snapshot: Snapshot, cgroup: str) -> bool:
    """Whether a cgroup was in the last pass."""
    return bool(snapshot.metrics.last(cgroup, Metric.CPU_THROTTLED, LOOK_BACK_S))


def usage_of(snapshot: Snapshot, pod: Pod) -> float:
    """What a pod uses now, in cores; 0: not known."""
    return snapshot.metrics.last(pod.cgroup, Metric.CPU_USAGE, LOOK_BACK_S) or 0.0
