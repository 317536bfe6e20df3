"""Katalyst's pools in the messages of the API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.api_names import advised_values
from runtimeproxy.katalyst.explain import advice_text
from runtimeproxy.katalyst.rebuild import reclaim_reserve
from runtimeproxy.katalyst.transition import AdvisedPool, name_of, pool_sizes
from runtimeproxy.units import format_cpu_list

if TYPE_CHECKING:
    from runtimeproxy.katalyst.pools import PoolState
    from runtimeproxy.katalyst.transition import PlacedPools
    from runtimeproxy.ledger.pools import NodePools

MOST_UNPLACED: Final = 20
MOST_ADVICE: Final = 10
"""Pools whose advice the notes of a status have; the status itself has all."""
_LIMITS: Final = {
    "standalone": (
        "no pod is refused: one without room is in the pool share",
        "a pod is placed once it runs, and runs anywhere until then",
    ),
    "nri": ("the sandbox's own process has the CPUs that the runtime gives it",),
}
"""By mode, what it cannot do for pools."""


def pools_status(pools: NodePools, mode: str) -> api_pb2.CpuPoolsStatus | None:
    """Return the pools for the status; None if they are not wanted."""
    if not pools.is_wanted:
        return None
    limits, state = _LIMITS.get(mode, ()), pools.state
    if state is None:
        return api_pb2.CpuPoolsStatus(off_reason=pools.off_reason, problem=pools.problem, limits=limits)
    with_problem = ((uid, pod) for uid, pod in state.pods.items() if pod.problem)
    unplaced = sorted((name_of(pod, uid), uid, pod.problem) for uid, pod in with_problem)
    return api_pb2.CpuPoolsStatus(
        off_reason=pools.off_reason,
        problem=pools.problem,
        limits=limits,
        pools=pool_messages(state),
        pods=len(state.pods),
        unwritten_pods=pools.unwritten,
        overlaps=[each.text(state) for each in pools.overlaps],
        unplaced_pods=len(unplaced),
        unplaced=[
            api_pb2.PodProblem(pod=name, pod_uid=uid, reason=reason)
            for name, uid, reason in unplaced[:MOST_UNPLACED]
        ],
        advice=advice_messages(pools.advice.pools),
        advice_problems=pools.advice.problems,
    )


def problems_of_pools(status: api_pb2.CpuPoolsStatus) -> Iterator[str]:
    """What of the pools needs an operator's attention."""
    if status.off_reason:
        yield f"katalyst-pools: there are no pools: {status.off_reason}."
    if status.problem:
        yield f"katalyst-pools: {status.problem}."
    yield from (f"katalyst-pools: {each}." for each in status.overlaps)
    for each in status.unplaced:
        yield f"katalyst-pools: pod {each.pod}: {each.reason}."
    if (more := status.unplaced_pods - len(status.unplaced)) > 0:
        yield f"katalyst-pools: {more} more pods have not what they asked for."
    yield from (f"katalyst-pools: {each}." for each in status.advice_problems)


def notes_of_pools(status: api_pb2.CpuPoolsStatus) -> Iterator[str]:
    """What an operator may want to know of them."""
    for each in status.advice[:MOST_ADVICE]:
        yield f"katalyst-pools: {advice_text(each.pool, _advised(each))}."
    if (more := len(status.advice) - MOST_ADVICE) > 0:
        yield f"katalyst-pools: advisors say something of {more} more pools."
    yield from (f"katalyst-pools: {each}." for each in status.limits)


def pool_messages(state: PoolState) -> Iterator[api_pb2.KatalystPool]:
    """Return the pools by name."""
    for name, cpus, pods in pool_sizes(state):
        yield api_pb2.KatalystPool(name=name, cpus=format_cpu_list(cpus), cpu_count=len(cpus), pods=pods)


def advice_messages(advice: Mapping[str, AdvisedPool]) -> Iterator[api_pb2.AdvisedPool]:
    """Return what an advisor says, by pool."""
    for name, each in sorted(advice.items()):
        yield api_pb2.AdvisedPool(
            pool=name,
            required_cpus=each.required_cpus,
            overlap_cpus=each.overlap_cpus,
            headroom_millicpu=each.headroom_millicpu,
            headroom_bytes=each.headroom_bytes,
            owner=each.owner,
            reason=each.reason,
        )


def _advised(message: api_pb2.AdvisedPool) -> AdvisedPool:
    return AdvisedPool(*advised_values(message), message.owner, message.reason)


def settings_message(state: PoolState) -> api_pb2.KatalystPoolSettings:
    settings = state.settings
    return api_pb2.KatalystPoolSettings(
        enable_reclaim=settings.enable_reclaim,
        overlap=settings.overlap,
        least_reclaim_cpus=reclaim_reserve(state.topology, settings),
        reserved_cpus=format_cpu_list(state.reserved),
    )


def pod_messages(pools: PlacedPools) -> Iterator[api_pb2.KatalystPod]:
    """Return what pods have of the pools, by uid."""
    for uid, pod in sorted(pools.state.pods.items()):
        now = pools.placements.get(uid)
        yield api_pb2.KatalystPod(
            pod_uid=uid,
            pod=f"{pod.namespace}/{pod.name}",
            level=pod.level.value,
            pool=pod.owner,
            cpus=format_cpu_list(pod.cpus),
            memory_nodes=format_cpu_list(pod.mems),
            own_cpus=format_cpu_list(pod.dedicated),
            present_cpus=format_cpu_list(now.cpus) if now is not None else "",
            numa_nodes=format_cpu_list(pod.numa_ids),
            is_ramping_up=pod.is_ramping_up,
            reason=pod.reason,
            problem=pod.problem,
        )
