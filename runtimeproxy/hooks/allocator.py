"""Choices with state: which pod has which CPUs of this node for itself. Pure.

Policies are functions of what is known. What depends on an order of events, such as the CPUs that are still
free, belongs to an allocator: its rules are functions from one state to the next. `ledger.allocations` keeps
the state of this node, which policies see as `node.allocations`. Katalyst's pools are the other allocator:
their rules are `runtimeproxy.katalyst.pool_operations`, `ledger.pools` keeps their state, which policies see
as `node.cpu_pools`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

from runtimeproxy.hooks.views import PodView
from runtimeproxy.node.derived import pod_cpus
from runtimeproxy.node.snapshot import PodCpus
from runtimeproxy.qos import QoSClass
from runtimeproxy.units import format_cpu_list, parse_cpu_list

if TYPE_CHECKING:
    from runtimeproxy.katalyst.pools import PoolSettings

Allocations: TypeAlias = Mapping[str, PodCpus]
"""By pod uid, what each pod has for itself."""

NO_ALLOCATIONS: Final[Allocations] = MappingProxyType({})


@runtime_checkable
class UsesCpuPools(Protocol):
    """The policy that gives pods what they have of Katalyst's pools: while it is loaded, there are pools."""

    pool_settings: PoolSettings


class SharePools:
    """LSE and LSR pods have the CPUs from the scheduler for themselves; the shared pools are what is left.

    No other pod may use the CPUs of an `LSE` pod; only `BE` pods may use those of an `LSR` pod. The scheduler
    has decided: this only notes which pods there are. Source: koordlet's share pools, as in
    `node.derived`. All functions are pure and quick: they run in the loop.
    """

    def __init__(self, last_cpu: Callable[[], int | None] = lambda: None) -> None:
        self._last_cpu = last_cpu

    def admit(self, pod: PodView, before: Allocations) -> Allocations:
        """Return the state with a pod that is about to be created, or its container is.

        It is `before` itself if nothing changes.
        """
        cpus = pod_cpus(pod.labels, pod.annotations, self._last_cpu())
        if cpus is None:
            return self.release(pod.uid, before)
        if not pod.uid or before.get(pod.uid) == cpus:
            return before
        return MappingProxyType({**before, pod.uid: cpus})

    def release(self, uid: str, before: Allocations) -> Allocations:
        """Return the state without a pod; `before` itself if it is not there."""
        if uid not in before:
            return before
        return MappingProxyType({other: cpus for other, cpus in before.items() if other != uid})

    def rebuild(self, pods: Iterable[PodView]) -> Allocations:
        found = ((pod.uid, pod_cpus(pod.labels, pod.annotations, self._last_cpu())) for pod in pods)
        return MappingProxyType({uid: cpus for uid, cpus in found if uid and cpus is not None})


def gained_cpus(before: Allocations, after: Allocations) -> frozenset[int]:
    # The CPUs that some pods must leave: they belong to a pod now, or more than they did.
    return (_owned(after) - _owned(before)) | (_exclusive(after) - _exclusive(before))


def overlaps(uid: str, allocations: Allocations) -> tuple[str, ...]:
    """Return a problem for each other pod that has some of this pod's CPUs for itself, too."""
    own = allocations.get(uid)
    if own is None:
        return ()
    return tuple(
        f"CPUs {format_cpu_list(own.cpus & each.cpus)} are also allocated to the pod with uid {other}"
        for other, each in sorted(allocations.items())
        if other != uid and own.cpus & each.cpus
    )


def _owned(allocations: Allocations) -> frozenset[int]:
    return frozenset[int]().union(*(each.cpus for each in allocations.values()))


def _exclusive(allocations: Allocations) -> frozenset[int]:
    return frozenset[int]().union(*(each.cpus for each in allocations.values() if each.qos is QoSClass.LSE))


def as_document(allocations: Allocations) -> dict[str, object]:
    pods = {
        uid: {"qos": each.qos.value, "cpus": format_cpu_list(each.cpus)} for uid, each in allocations.items()
    }
    return {"pods": pods}


def from_document(saved: Mapping[str, Any]) -> Allocations:
    # Raises one of `UNLIKE_OURS` if it is no saved state.
    return MappingProxyType(
        {
            str(uid): PodCpus(QoSClass(each["qos"]), parse_cpu_list(each["cpus"]))
            for uid, each in saved["pods"].items()
        }
    )
