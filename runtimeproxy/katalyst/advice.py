"""What counts of an advisor's claims on Katalyst's pools. Pure.

An advisor is outside of this process: what it says is bounded here, and what cannot be has no effect, with
the reason. Without its claims, pools have the sizes of their requests.

Source: katalyst-core pkg/agent/qrm-plugins/cpu/dynamicpolicy/policy_advisor_handler.go, which refuses advice
that does not fit the pools as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from runtimeproxy.katalyst.names import (
    ISOLATION_PREFIX,
    NUMA_INFIX,
    RECLAIM,
    QosLevel,
    is_shared_pool,
    numa_pool,
    pool_and_numa_node,
)
from runtimeproxy.katalyst.pools import NO_CPUS, AdvisedSizes, PoolState
from runtimeproxy.katalyst.transition import NOTHING, AdvisedPool
from runtimeproxy.vocabulary import MOST_BYTES, POOL_RANGES, PoolField

_OF_SHARED: Final = frozenset({PoolField.REQUIRED_CPUS, PoolField.OVERLAP_CPUS})
_ORDER: Final = tuple(PoolField)


class PoolClaim(NamedTuple):
    """One value that an advisor claims of a pool."""

    pool: str
    field: PoolField
    value: int
    owner: str = ""
    reason: str = ""


class Advisors(NamedTuple):
    """What all advisors claim at a moment."""

    claims: tuple[PoolClaim, ...] = ()
    """The later one of a value counts."""
    late: tuple[str, ...] = ()
    """Owners whose claims have ended with their lease, and that have claimed nothing since."""
    is_known: bool = True
    """Whether the claims of the process before this one are known."""


class BoundedAdvice(NamedTuple):
    """All claims within their bounds."""

    pools: Mapping[str, AdvisedPool] = NOTHING
    """By name."""
    problems: tuple[str, ...] = ()
    """What of the claims has no effect, or less, and why."""

    def sizes(self, state: PoolState) -> AdvisedSizes | None:
        """The part that the sizes of pools follow from; None: they follow from requests."""
        required = {name: each.required_cpus for name, each in self.pools.items() if each.required_cpus}
        isolated = {uid for name in required if (uid := _isolated_uid(name)) and state.settings.takes_sizes}
        overlap = {
            name: each.overlap_cpus
            for name, each in self.pools.items()
            if each.overlap_cpus is not None and state.settings.overlap
        }
        return AdvisedSizes(required, frozenset(isolated), overlap) if required or overlap else None


def target_problem(state: PoolState, pool: str, field: str) -> str:
    """Return why a pool has no such value now; empty if it has."""
    if field == PoolField.REQUIRED_CPUS and (uid := _isolated_uid(pool)):
        pod = state.pods.get(uid)
        if pod is not None and pod.level is QosLevel.SHARED and not pod.numa_ids:
            return ""
        return f"only pods of shared_cores without NUMA nodes of their own can be isolated, not {uid[:64]}"
    if field in _OF_SHARED:
        if pool in state.pools and is_shared_pool(pool):
            return ""
        there = ", ".join(sorted(filter(is_shared_pool, state.pools))) or "none"
        return f"there is no pool {pool[:64]} of shared_cores; there are: {there}"
    if pool == RECLAIM or pool in {numa_pool(RECLAIM, each) for each in state.topology.by_numa}:
        return ""
    return f"only {RECLAIM} and {RECLAIM}{NUMA_INFIX}<number> of a NUMA node have a headroom, not {pool[:64]}"


def bounded_advice(state: PoolState, claims: Iterable[PoolClaim]) -> BoundedAdvice:
    """Return claims within their bounds; of those for the same value the last one.

    A value that is larger than the node is that of the node. Claims on pools that are gone are left out.
    """
    pools: dict[str, AdvisedPool] = {}
    problems: list[str] = []
    found = {(each.pool, _ORDER.index(each.field)): each for each in claims}
    for _, each in sorted(found.items()):
        if target_problem(state, each.pool, each.field):
            continue
        least, most = POOL_RANGES[each.field]
        value = min(max(each.value, least), most, _most_of(state, each))
        if value != each.value:
            problems.append(
                f"{each.field} of pool {each.pool} by {each.owner} is {each.value}, the node has {value}"
            )
        before = pools.get(each.pool, AdvisedPool(owner=each.owner))
        reason = "; ".join(filter(None, dict.fromkeys((before.reason, each.reason))))
        pools[each.pool] = _with_value(before._replace(reason=reason), each.field, value)
    if any(each.required_cpus for each in pools.values()) and not state.settings.takes_sizes:
        problems.append(
            "sizes by an advisor need enable_reclaim or overlap: without, shared_cores have all CPUs"
        )
    return BoundedAdvice(MappingProxyType(pools), tuple(problems))


def _with_value(before: AdvisedPool, field: PoolField, value: int) -> AdvisedPool:
    match field:
        case PoolField.REQUIRED_CPUS:
            return before._replace(required_cpus=value)
        case PoolField.OVERLAP_CPUS:
            return before._replace(overlap_cpus=value)
        case PoolField.HEADROOM_MILLICPU:
            return before._replace(headroom_millicpu=value)
        case PoolField.HEADROOM_BYTES:
            return before._replace(headroom_bytes=value)


def _isolated_uid(pool: str) -> str:
    """Return whose own pool it is; empty: it is none of one pod."""
    return pool.removeprefix(ISOLATION_PREFIX) if pool.startswith(ISOLATION_PREFIX) else ""


def _most_of(state: PoolState, claim: PoolClaim) -> int:
    """Return what a pool can have at most of a value."""
    topology = state.topology
    _, numa_node = pool_and_numa_node(claim.pool)
    numa_nodes = tuple(topology.by_numa) if numa_node is None else (numa_node,)
    if claim.field is PoolField.HEADROOM_BYTES:
        sizes = [topology.memory_bytes[node] for node in numa_nodes if node in topology.memory_bytes]
        return sum(sizes) if sizes else MOST_BYTES
    if claim.field is PoolField.OVERLAP_CPUS:
        return len(state.pools.get(claim.pool, NO_CPUS))
    cpus = len(topology.cpus_of(numa_nodes) - state.reserved)
    return 1_000 * cpus if claim.field is PoolField.HEADROOM_MILLICPU else max(1, cpus)
