"""Why a pod has its CPUs, with the arithmetic, and where a pod would go. Pure; for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from runtimeproxy.katalyst.names import DEDICATED, ISOLATION_PREFIX, RECLAIM, QosLevel
from runtimeproxy.katalyst.placement import PodFacts
from runtimeproxy.katalyst.pool_operations import ContainerFacts, create, ramp_done
from runtimeproxy.katalyst.pools import NO_CPUS, RAMPING_UP, PoolPod, PoolState, Refusal
from runtimeproxy.katalyst.rebuild import reclaim_reserve
from runtimeproxy.katalyst.sizes import quantity
from runtimeproxy.katalyst.transition import NOTHING, AdvisedPool
from runtimeproxy.units import format_cpu_list


class WouldBe(NamedTuple):
    """Where a pod would go."""

    at_first: PoolPod
    """With its main container."""
    later: PoolPod
    """After its ramp-up."""
    reasons: tuple[str, ...]
    """Of `later`."""


def where_it_would_go(state: PoolState, pod: PodFacts) -> WouldBe | Refusal | None:
    """Return where a pod of one container would go now; None: pools leave it alone."""
    name = pod.main_container or "main"
    first = create(state, ContainerFacts(pod, name, pod.millicpu), 0.0)
    if isinstance(first, Refusal):
        return first
    if pod.uid not in first.pods:
        return None
    later = ramp_done(first, state.settings.ramp_up_s)
    return WouldBe(first.pods[pod.uid], later.pods[pod.uid], reasons(later, pod.uid))


def reasons(state: PoolState, uid: str, advice: Mapping[str, AdvisedPool] = NOTHING) -> tuple[str, ...]:
    """Return why a pod has its CPUs; empty if it is not in the state.

    `advice`: what advisors say, by pool.
    """
    pod = state.pods.get(uid)
    return tuple(_reasons(state, pod, advice)) if pod is not None else ()


def _reasons(state: PoolState, pod: PoolPod, advice: Mapping[str, AdvisedPool]) -> Iterator[str]:
    if pod.problem:
        yield f"in the pool {pod.pool} since it has no other place: {pod.problem}"
    if pod.reason:
        yield pod.reason
    if pod.owner == RAMPING_UP:
        yield _ramping_up(state, pod)
    elif pod.owner == DEDICATED:
        kind = (
            "with the whole NUMA nodes, but for reserved CPUs" if pod.numa_exclusive else "that it requests"
        )
        yield f"{pod.level}: it has CPUs alone, {kind}: {pod.request}m"
    elif pod.level is QosLevel.SYSTEM:
        which = f"the pools {pod.pool}*" if pod.pool else "all CPUs"
        yield f"{pod.level}: {which}, {_listed(pod.cpus)}"
    elif pod.owner == RECLAIM:
        yield _reclaimed(state, pod)
        if (found := advice.get(RECLAIM)) is not None:
            yield advice_text(RECLAIM, found)
    else:
        yield _in_pool(state, pod)
        if (found := advice.get(pod.owner)) is not None:
            yield advice_text(pod.owner, found)
    yield f"mems {format_cpu_list(pod.mems)}: {_why_mems(pod)}"


def advice_text(pool: str, advice: AdvisedPool) -> str:
    """Say what an advisor says of a pool, and why."""
    said = []
    if advice.required_cpus is not None:
        said.append(f"it needs {advice.required_cpus} CPUs")
    if advice.overlap_cpus is not None:
        said.append(f"{RECLAIM} has {advice.overlap_cpus} of them, too")
    if advice.headroom_millicpu is not None:
        said.append(f"headroom {advice.headroom_millicpu / 1_000:g} CPUs")
    if advice.headroom_bytes is not None:
        said.append(f"headroom {advice.headroom_bytes / (1 << 30):.1f} GiB")
    why = f" ({advice.reason})" if advice.reason else ""
    return f"{advice.owner or 'an advisor'} says of pool {pool}: {', '.join(said)}{why}"


def _ramping_up(state: PoolState, pod: PoolPod) -> str:
    cpus = f"{_listed(pod.cpus)}, which no pod has alone and no NUMA node with bound pods has"
    if pod.is_ramping_up:
        return f"it ramps up for {state.settings.ramp_up_s:g} s on {cpus}; then it joins the pool {pod.pool}"
    if pod.numa_ids:
        return f"NUMA nodes {format_cpu_list(pod.numa_ids)} have no CPU for it; it is on {cpus}"
    return f"the pods of the pool {pod.pool} request nothing, so there is no such pool; it is on {cpus}"


def _in_pool(state: PoolState, pod: PoolPod) -> str:
    """Source of the size: `rebuild.build`."""
    members = [each for each in state.pods.values() if each.owner == pod.owner]
    ratio = state.settings.snb_ratio if pod.numa_ids else 1.0
    millicpu = sum(each.request if pod.numa_ids else each.main_request for each in members)
    wanted = quantity(millicpu, ratio)
    factor = f" x {ratio:g}" if ratio != 1.0 else ""
    advised = state.advice.sizes.get(pod.owner) if state.advice is not None else None
    who = "1 pod requests" if len(members) == 1 else f"{len(members)} pods request"
    text = f"pool {pod.owner}: {who} {millicpu}m{factor}, that is {wanted} CPUs"
    if advised is not None:
        text, wanted = f"{text}; the advisor says {advised}", advised
    if pod.owner.startswith(ISOLATION_PREFIX):
        text += "; the advisor keeps it apart"
    size = len(pod.cpus)
    if size > wanted:
        text += "; it has more since " + _why_more(state)
    elif size < wanted:
        text += "; it has less: the pools share what there is by their requests"
    return f"{text}: {_listed(pod.cpus)}"


def _why_more(state: PoolState) -> str:
    if state.settings.overlap:
        return "reclaimed_cores overlap with it (overlap)"
    return "it has one CPU at least" if state.settings.enable_reclaim else "reclaim is off"


def _reclaimed(state: PoolState, pod: PoolPod) -> str:
    pool, least = state.pools[RECLAIM], reclaim_reserve(state.topology, state.settings)
    shared = pool & NO_CPUS.union(*(each.cpus for each in state.pods.values() if each.owner != RECLAIM))
    text = f"pool {RECLAIM}: {_listed(pool)}, what other pools leave, or {least} CPUs at least"
    if shared and state.settings.overlap:
        text += f"; pods of shared_cores have {format_cpu_list(shared)}, too (overlap)"
    if pod.cpus != pool:
        text += f"; of these {_listed(pod.cpus)} by NUMA nodes"
    return text


def _why_mems(pod: PoolPod) -> str:
    if pod.numa_ids:
        return "the NUMA nodes that it is bound to"
    if pod.level is QosLevel.SYSTEM:
        return "all that have memory, but for exclusive ones if it is bound"
    if pod.level is QosLevel.RECLAIMED:
        return "those without bound pods of reclaimed_cores"
    return "those without bound pods"


def _listed(cpus: frozenset[int]) -> str:
    return f"{len(cpus)} CPUs ({format_cpu_list(cpus)})"
