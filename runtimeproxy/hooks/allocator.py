"""Choices with state: which pod has which CPUs of this node for itself.

Policies are functions of what is known. What depends on an order of events, such as the CPUs that are still
free, belongs to an allocator. Its rules are pure functions from one state to the next; `NodeAllocator` keeps
the state of a node:

1. RunPodSandbox: `admit` puts the pod's CPUs into the state. It is saved, and only then does it count.
2. The caller makes the others leave these CPUs, by file, before the call goes on, and says so with `left`. If
   that fails, `create` names the same CPUs again before the pod's next container is created. A container is
   never refused for it.
3. The pod's last sandbox has stopped, or was never created: `release`. The others may have the CPUs again.
4. After a start, once the pods are known: `rebuild`.

One short lock per node orders these events. Readers need none, since a state is frozen. `allocations` is what
policies see as `node.allocations`.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeAlias

from runtimeproxy.errors import described
from runtimeproxy.hooks.views import ContainerView, PodView
from runtimeproxy.node.derived import pod_cpus
from runtimeproxy.node.snapshot import PodCpus
from runtimeproxy.qos import QoSClass
from runtimeproxy.units import format_cpu_list, parse_cpu_list

logger = logging.getLogger(__name__)

Allocations: TypeAlias = Mapping[str, PodCpus]
"""By pod uid, what each pod has for itself."""

NO_ALLOCATIONS: Final[Allocations] = MappingProxyType({})


class Allocator(Protocol):
    """The rules of one kind of allocation. All functions are pure, and quick: they run under the lock."""

    def admit(self, pod: PodView, before: Allocations) -> Allocations:
        """Return the state with a pod whose sandbox is about to be created; `before` itself if equal."""

    def create(self, container: ContainerView, before: Allocations) -> Allocations:
        """Return the state with the pod of a container that is about to be created; as `admit`.

        The pod may be unknown: it may have been admitted by another process, or while no allocator was used.
        """

    def release(self, uid: str, before: Allocations) -> Allocations:
        """Return the state without a pod; `before` itself if it is not there."""

    def rebuild(self, pods: Iterable[PodView]) -> Allocations:
        """Return the state of all pods that are there."""


class SharePools:
    """Pods with CPUs from the scheduler have them for themselves; the shared pools are what is left.

    CPUs of `LSE` pods are nobody else's; those of other pods are shared with `BE` pods only. The scheduler
    has decided: this only notes which pods there are. Source: policies spec 2.4, share pool computation.
    """

    def admit(self, pod: PodView, before: Allocations) -> Allocations:
        cpus = pod_cpus(pod.labels, pod.annotations)
        if cpus is None:
            return self.release(pod.uid, before)
        if not pod.uid or before.get(pod.uid) == cpus:
            return before
        return MappingProxyType({**before, pod.uid: cpus})

    def create(self, container: ContainerView, before: Allocations) -> Allocations:
        return self.admit(container.pod, before)

    def release(self, uid: str, before: Allocations) -> Allocations:
        if uid not in before:
            return before
        return MappingProxyType({other: cpus for other, cpus in before.items() if other != uid})

    def rebuild(self, pods: Iterable[PodView]) -> Allocations:
        found = ((pod.uid, pod_cpus(pod.labels, pod.annotations)) for pod in pods)
        return MappingProxyType({uid: cpus for uid, cpus in found if uid and cpus is not None})


def gained_cpus(before: Allocations, after: Allocations) -> frozenset[int]:
    """Return the CPUs that some pods must leave: they belong to a pod now, or more than they did."""
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


def to_text(allocations: Allocations) -> str:
    """Return a state as it is saved."""
    entries = {
        uid: {"qos": each.qos.value, "cpus": format_cpu_list(each.cpus)} for uid, each in allocations.items()
    }
    return json.dumps(entries, sort_keys=True)


def from_text(text: str) -> Allocations:
    """Return a saved state.

    Raises:
        ValueError: the text is not one.
    """
    try:
        entries = json.loads(text)
        return MappingProxyType(
            {
                str(uid): PodCpus(QoSClass(each["qos"]), parse_cpu_list(each["cpus"]))
                for uid, each in entries.items()
            }
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a saved state of allocations: {described(error)}") from error


class Allocated(NamedTuple):
    """What became of a pod or container."""

    occupied: frozenset[int] = frozenset()
    """CPUs that belong to the pod now, and that others must leave first."""
    problems: tuple[str, ...] = ()
    """To be reported with the pod; none of them is a reason to refuse it."""


class NodeAllocator:
    """The allocations of this node; safe for all threads.

    Args:
        allocator: the rules.
        save: writes a state to disk, with the lock held; whatever it raises, the pod is not admitted.
        allocations: the saved state of the process before this one, which counts until `rebuild`.

    Attributes:
        on_change: called in any thread, without the lock, after the state has changed.
    """

    def __init__(
        self,
        allocator: Allocator,
        *,
        save: Callable[[Allocations], None],
        allocations: Allocations = NO_ALLOCATIONS,
    ) -> None:
        self._allocator = allocator
        self._save = save
        self._lock = threading.Lock()
        self._allocations = allocations
        # The CPUs that others may still run on, by the pod that owns them.
        self._occupied: dict[str, frozenset[int]] = {}
        # Pods that this process has admitted: they may be unknown to everybody else yet.
        self._admitted: set[str] = set()
        self.on_change: Callable[[], None] = lambda: None

    @property
    def allocations(self) -> Allocations:
        """The present state; needs no lock."""
        return self._allocations

    def admit(self, pod: PodView) -> Allocated:
        """Give a pod its CPUs before its sandbox is created; in a worker thread, since it saves them."""
        return self._give(pod.uid, lambda before: self._allocator.admit(pod, before))

    def create(self, container: ContainerView) -> Allocated:
        """Make sure that a container's pod has its CPUs, before the container is created; as `admit`."""
        return self._give(container.pod.uid, lambda before: self._allocator.create(container, before))

    def left(self, uid: str, cpus: frozenset[int]) -> None:
        """Note that the others have left the CPUs that `admit` or `create` has named for a pod."""
        with self._lock:
            if self._occupied.get(uid) == cpus:
                del self._occupied[uid]

    def release(self, uid: str) -> None:
        """Take the CPUs of a pod back: it has no running sandbox any more, or its sandbox was not created."""
        with self._lock:
            self._occupied.pop(uid, None)
            self._admitted.discard(uid)
            changed = self._shrunk_to(self._allocator.release(uid, self._allocations))
        if changed:
            self.on_change()

    def rebuild(self, pods: Iterable[PodView]) -> None:
        """Start from the pods that are there, in place of the saved state.

        Pods that this process has admitted stay, since they may not be there yet.
        """
        with self._lock:
            present = self._allocations
            admitted = {uid: present[uid] for uid in self._admitted if uid in present}
            after = MappingProxyType({**self._allocator.rebuild(pods), **admitted})
            changed = self._shrunk_to(after)
        if changed:
            self.on_change()

    def _give(self, uid: str, step: Callable[[Allocations], Allocations]) -> Allocated:
        with self._lock:
            before = self._allocations
            after = step(before)
            changed = after != before
            if changed:
                try:
                    self._save(after)
                except Exception as error:  # noqa: BLE001 - a full disk must not stop pods
                    return Allocated(problems=(f"the CPUs are not allocated: {described(error)}",))
                self._allocations = after
            if uid in after:
                self._admitted.add(uid)
            occupied = gained_cpus(before, after) | self._occupied.get(uid, frozenset())
            if occupied:
                self._occupied[uid] = occupied
        if changed:
            self.on_change()
        return Allocated(occupied, overlaps(uid, after))

    def _shrunk_to(self, after: Allocations) -> bool:
        """Make a state the present one from which pods have gone; return whether it is another one.

        It counts even if it cannot be saved: what is saved is compared with the pods at the next start.
        """
        if after == self._allocations:
            return False
        self._allocations = after
        try:
            self._save(after)
        except Exception as error:  # noqa: BLE001 - see above
            logger.warning("allocations cannot be saved: %s", described(error))
        return True
