"""What pods have of Katalyst's pools while these change: all that a pod is to leave is left first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from runtimeproxy.katalyst.names import DEDICATED
from runtimeproxy.katalyst.pools import PoolPod, PoolState, Refusal
from runtimeproxy.units import format_cpu_list


class Placement(NamedTuple):
    """Where a pod runs."""

    cpus: frozenset[int]
    mems: frozenset[int]
    """Its NUMA nodes; empty: left as they are."""


Placements: TypeAlias = Mapping[str, Placement]
"""By uid of the pod."""

NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


class AdvisedPool(NamedTuple):
    """What an advisor says of one pool, within bounds; None: nothing. See `vocabulary.PoolField`."""

    required_cpus: int | None = None
    overlap_cpus: int | None = None
    headroom_millicpu: int | None = None
    headroom_bytes: int | None = None
    owner: str = ""
    """Of the claims; if there are several, that of the first."""
    reason: str = ""
    """Of all of them."""


class PlacedPools(NamedTuple):
    """The pools of a node as policies see them."""

    state: PoolState
    placements: Placements = NOTHING
    """What each pod is to have now: less than in the state until others have left the rest."""
    refusals: Mapping[tuple[str, str], Refusal] = NOTHING
    """Of calls under way, by the pod's uid and the container's name, which is empty for the pod itself."""
    advice: Mapping[str, AdvisedPool] = NOTHING
    """By pool; empty: no advisor's lease counts."""

    def is_as(self, other: PlacedPools) -> bool:
        """Whether another one says the same; quicker than a comparison, as each change makes a new state."""
        is_same = self.state is other.state and self.refusals is other.refusals
        return is_same and self.advice == other.advice and self.placements == other.placements


def shrunk(before: Placement, after: Placement) -> Placement:
    """The first step from one placement to another: without what it is to leave, and nothing new yet.

    CPUs that have nothing in common are replaced at once, as no set is ever empty; so are NUMA nodes.
    """
    mems = after.mems if not (before.mems and after.mems) else before.mems & after.mems or after.mems
    return Placement(before.cpus & after.cpus or after.cpus, mems)


def of_pod(pod: PoolPod) -> Placement:
    """What a pod has in the end."""
    return Placement(pod.cpus, pod.mems)


def of_state(state: PoolState) -> dict[str, Placement]:
    """What all pods have in the end."""
    return {uid: of_pod(pod) for uid, pod in state.pods.items()}


def after_shrink(
    now: Placements, state: PoolState, changed: Iterable[str] | None = None
) -> dict[str, Placement]:
    """The placements once all pods have left what is not theirs any more; new pods have theirs already.

    `changed`: the uids of pods that may have other ones than in the state that `now` is of; None: all.
    """
    found = {uid: now[uid] for uid in now.keys() & state.pods.keys()} if changed is None else dict(now)
    for uid in now.keys() - state.pods.keys() if changed is not None else ():
        del found[uid]
    for uid in state.pods if changed is None else changed:
        before, wanted = now.get(uid), of_pod(state.pods[uid])
        if before != wanted:
            found[uid] = wanted if before is None else shrunk(before, wanted)
    return found


def growing(now: Placements, state: PoolState, of: Iterable[str] | None = None) -> Iterator[str]:
    """The uids of pods that have not all of their CPUs yet, those that have CPUs alone first.

    `of`: the pods to look at; None: all.
    """
    waiting = [uid for uid in (state.pods if of is None else of) if now.get(uid) != of_pod(state.pods[uid])]
    yield from sorted(waiting, key=lambda uid: (not state.pods[uid].dedicated, uid))


class Overlap(NamedTuple):
    """CPUs that a pod has alone by the state, and that another one has not left."""

    uid: str
    cpus: frozenset[int]
    other: str
    """Uid of the one that has not left."""

    def text(self, state: PoolState) -> str:
        names = (name_of(state.pods.get(each), each) for each in (self.other, self.uid))
        other, own = names
        return f"pod {other} has not left CPUs {format_cpu_list(self.cpus)}, which pod {own} has alone"


def overlaps(left_over: Mapping[str, frozenset[int]], state: PoolState) -> Iterator[Overlap]:
    """Where pods still run on CPUs of others.

    Args:
        left_over: By uid, the CPUs that pods have in the kernel, and are to leave.
        state: The pools.
    """
    for other, cpus in sorted(left_over.items()):
        for uid, pod in sorted(state.pods.items()):
            if uid != other and (shared := cpus & pod.dedicated):
                yield Overlap(uid, shared, other)


def name_of(pod: PoolPod | None, uid: str) -> str:
    return f"{pod.namespace}/{pod.name}" if pod is not None and pod.name else f"uid {uid}"


def pool_sizes(state: PoolState) -> Iterator[tuple[str, frozenset[int], int]]:
    """For each pool, and for what pods have alone: its name, its CPUs, and how many pods have them."""
    owners = [pod.owner for pod in state.pods.values()]
    for name, cpus in sorted({DEDICATED: state.dedicated, **state.pools}.items()):
        yield name, cpus, owners.count(name)
