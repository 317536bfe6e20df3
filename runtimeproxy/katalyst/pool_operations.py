"""What changes the pools of a node: pure functions from a state to the next, with the changes to containers.

None knows a clock: times are arguments, of any one clock that goes on while pods live.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeAlias

from runtimeproxy.katalyst.levels import KatalystQos
from runtimeproxy.katalyst.pools import (
    Applied,
    PoolAdvice,
    PoolSettings,
    PoolState,
    Refusal,
)
from runtimeproxy.katalyst.topology import Topology

Outcome: TypeAlias = Applied | Refusal


class PodFacts(NamedTuple):
    """A pod, as far as pools depend on it."""

    uid: str
    qos: KatalystQos
    namespace: str = ""
    name: str = ""
    millicpu: int | None = None
    """Request of the whole pod (`linux.resources` of the sandbox); None: not known."""
    reclaimed_millicpu: int | None = None
    """In place of it for `reclaimed_cores`; None: none is known."""
    memory_bytes: int | None = None
    """Request of the whole pod; None: not known, then no memory is booked."""
    main_container: str = ""
    """`kubernetes.io/main-container-name`; empty: the first that is created."""
    is_handled: bool = True
    """False: pools leave it alone (`katalyst.kubewharf.io/skip_qrm_admit`, pods for debugging)."""


class ContainerFacts(NamedTuple):
    """A container that is about to be created."""

    pod: PodFacts
    name: str
    millicpu: int | None = None
    """Its request; None: not known."""
    is_init: bool = False


class LiveContainer(NamedTuple):
    """A container that exists, created or running."""

    name: str
    id: str
    millicpu: int | None = None
    is_init: bool = False
    cpus: frozenset[int] = frozenset()
    """What it has in the kernel; empty: not known. An adopted pod that has CPUs alone keeps these if it can."""


class LivePod(NamedTuple):
    """A pod whose sandbox exists."""

    facts: PodFacts
    containers: tuple[LiveContainer, ...] = ()
    """In the order in which they were created."""


def initial(topology: Topology, settings: PoolSettings) -> PoolState:
    """Return the state of a node without pods."""
    raise NotImplementedError


def admit(state: PoolState, pod: PodFacts, *, is_forced: bool = False) -> Outcome:
    """Places a pod before its sandbox is created.

    A bound pod has its NUMA nodes from now on, one of `dedicated_cores` its CPUs, too: `SHRINK` makes the
    others leave them. A pod that is admitted already, or is not handled, changes nothing. A pod whose request
    is not known is placed with its main container.

    Args:
        is_forced: It is never refused: if it does not fit, it is one of `share` without a room of its own,
            and its `problem` says so.
    """
    raise NotImplementedError


def create(
    state: PoolState, container: ContainerFacts, now_s: float, *, is_forced: bool = False
) -> Outcome:
    """Adds a container before it is created; admits its pod if that was not.

    The `cpus` and `mems` of its pod in the new state are for the request. A container of that name that is
    there already (it restarts) keeps its place. A pod that is not in the new state is not handled.
    """
    raise NotImplementedError


def created(state: PoolState, uid: str, container: str, container_id: str) -> PoolState:
    """Notes the runtime's id of a container that `create` has added."""
    raise NotImplementedError


def ramp_done(state: PoolState, now_s: float) -> Applied:
    """Makes the pods join their pools whose ramp-up is over."""
    raise NotImplementedError


def ramp_due_s(state: PoolState) -> float | None:
    """When `ramp_done` has something to do; None: never."""
    raise NotImplementedError


def resize(
    state: PoolState, uid: str, container: str, millicpu: int, qos: KatalystQos | None = None
) -> Outcome:
    """Notes another request of a container, from the kubelet's update.

    Refused for `dedicated_cores`, while ramping up, if the pod is bound and was not, or the other way
    around, and if it has no room.
    """
    raise NotImplementedError


def remove(state: PoolState, uid: str, container: str = "", container_id: str | None = None) -> Applied:
    """Removes a container, or the whole pod if none is named; the others have its CPUs at once.

    Args:
        container_id: Only if it is that one (an old one of a container that has restarted is none); None:
            whichever it is, such as one whose creation has failed.
    """
    raise NotImplementedError


def adopt(state: PoolState, pods: Iterable[LivePod]) -> Applied:
    """Places pods that exist and are not known, without ramp-up.

    None is refused: as `admit` with `is_forced`. The order of `pods` does not matter.
    """
    raise NotImplementedError


def configure(
    state: PoolState,
    settings: PoolSettings,
    topology: Topology,
    advice: PoolAdvice | None = None,
) -> Applied:
    """Takes other settings, another topology (CPUs go on- and offline), other advice into use.

    Whoever has CPUs alone keeps those that are left.
    """
    raise NotImplementedError


def reconcile(state: PoolState, pods: Iterable[LivePod], in_flight: Collection[str] = ()) -> Applied:
    """Makes the state that of what exists: drops what is gone, adopts what is missing.

    Args:
        pods: All that exist.
        in_flight: Uids of pods that have calls under way; they are left as they are.
    """
    raise NotImplementedError
