"""The allocations of this node: which pods have CPUs for themselves, and when the others leave these.

1. RunPodSandbox: `admit` allocates the pod's CPUs. From then on no other pod is given them. The state is
   saved, and running pods leave the CPUs, by file, before the call goes on; it waits within its own time.
2. CreateContainer: `create` does the same for a pod whose CPUs were not all left, or that was not admitted.
3. The call has ended: `settle`; if it has failed, `release`.
4. The API server has other CPUs for a running pod: `moving`. Others leave the new ones, the pod goes there,
   and only then others may have the old ones.
5. About every second `follow` makes the state that of the records: the CPUs of a pod without a running
   sandbox are free again, and an event that was missed holds none for long. What has not left a pod's CPUs,
   or may not have before a restart, is asked to again.

Nothing of this refuses a call. What fails is logged, and done again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from runtimeproxy.errors import described
from runtimeproxy.hooks.allocator import (
    NO_ALLOCATIONS,
    Allocations,
    SharePools,
    as_document,
    from_document,
    gained_cpus,
    overlaps,
)
from runtimeproxy.hooks.views import ContainerView, PodView
from runtimeproxy.node.snapshot import PodCpus
from runtimeproxy.pods.record_views import recorded_pod
from runtimeproxy.pods.records import Lifecycle, PodRecord
from runtimeproxy.slo.names import RESOURCE_STATUS
from runtimeproxy.state.state_file import StateFile
from runtimeproxy.units import format_cpu_list

logger = logging.getLogger(__name__)

FILE: Final = "allocations.json"
"""In the state folder."""
IN_FLIGHT_S: Final = 600.0
"""How long a pod counts whose sandbox is being created. Longer than that takes. Source: the kubelet gives the
runtime 2 x 2 minutes for it (pkg/kubelet/cri/remote)."""
RETRY_S: Final = 30.0
"""After a state could not be saved: a disk is full for minutes, not for seconds."""
ASK_S: Final = 10.0
"""How often what has not left a pod's CPUs is asked to again, without a call that creates a container."""
NO_CPUS: Final[frozenset[int]] = frozenset()


def allocation_file(state_folder: Path, boot_id: str) -> StateFile:
    """Where allocations are saved; those of another boot do not count."""
    effect = "CPUs of pods are allocated anew once the runtime's pods are known"
    return StateFile(state_folder / FILE, effect, boot_id=boot_id)


class NodePlace(Protocol):
    """Where allocations count; see `NodeSources`."""

    def allocate(self, allocations: Allocations) -> None: ...


class _InFlight(NamedTuple):
    pod: PodView
    until_s: float


class NodeAllocations:
    """The allocations of a node. Used in the event loop's thread, which orders all events.

    Args:
        move_off: Moves what runs off some CPUs; returns whether all has left them.
        executor: One thread for the file.

    Attributes:
        problem: Why the state is not saved; empty if it is.
    """

    def __init__(
        self,
        rules: SharePools,
        file: StateFile,
        node: NodePlace,
        move_off: Callable[[frozenset[int]], Awaitable[bool]],
        executor: Executor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules = rules
        self.file = file
        self._node = node
        self._move_off = move_off
        self._executor = executor
        self._now_s = clock
        self._allocations = NO_ALLOCATIONS
        self.problem = ""
        # Before it is known which pods are there, no pod is asked to leave CPUs.
        self._is_known = False
        self._saved: Allocations | None = None
        # The CPUs that others may still run on, by the pod that owns them.
        self._occupied: dict[str, frozenset[int]] = {}
        self._leaving = asyncio.Lock()
        # Pods that the records may not have yet.
        self._in_flight: dict[str, _InFlight] = {}
        # What a pod that moves to other CPUs has beside those that it is recorded with.
        self._held: dict[str, PodCpus] = {}
        self._moves = asyncio.Lock()
        self._followed: tuple[object, ...] | None = None
        self._retry_s = 0.0
        self._ask_s = 0.0

    @property
    def summary(self) -> str:
        """A part of the status line; empty if no pod owns CPUs."""
        count, cpus = len(self._allocations), {n for each in self._allocations.values() for n in each.cpus}
        pods = "1 pod owns" if count == 1 else f"{count} pods own"
        return f"{pods} CPUs {format_cpu_list(cpus)}" if count else ""

    @property
    def owners(self) -> int:
        return len(self._allocations)

    @property
    def occupied(self) -> int:
        return len(self._occupied)

    @property
    def is_saved(self) -> bool:
        return not self._allocations if self._saved is None else self._allocations == self._saved

    async def load(self) -> None:
        """Takes the saved state, which applies until the records are those of the runtime."""
        run = asyncio.get_running_loop().run_in_executor
        found = await run(self._executor, self.file.load, from_document)
        if found is not None:
            self._is_known, self._saved, self._followed = True, found, None
            # The process before this one may have ended before they were left.
            self._occupied = {uid: each.cpus for uid, each in found.items()}
            self._take(found)

    async def admit(self, pod: PodView) -> None:
        """Allocates the CPUs of a pod before its sandbox is created.

        May be cancelled: the CPUs are the pod's at once, and what has not left them is asked to again when
        the pod's next container is created.
        """
        self._in_flight[pod.uid] = _InFlight(pod, self._now_s() + IN_FLIGHT_S)
        await self._give(pod.uid, self._rules.admit(pod, self._allocations))

    async def create(self, container: ContainerView) -> None:
        # As `admit`.
        # Another process may have admitted the pod, or it came while calls passed by.
        await self._give(container.pod.uid, self._rules.admit(container.pod, self._allocations))

    @asynccontextmanager
    async def moving(self, uid: str, cpus: PodCpus | None) -> AsyncIterator[None]:
        """Gives a running pod other CPUs; None: no CPUs of its own.

        When the block begins, others have been asked to leave the new ones; until its end the pod has the old
        ones, too. One pod at a time.
        """
        async with self._moves:
            old = self._allocations.get(uid)
            both = [each for each in (old, cpus) if each is not None]
            if not both:
                yield
                return
            self._held[uid] = PodCpus(both[-1].qos, NO_CPUS.union(*(each.cpus for each in both)))
            try:
                await self._give(uid, self._allocations)
                yield
            finally:
                del self._held[uid]
                # Of the pod's record from now on.
                self._followed = None
                after = dict(self._rules.release(uid, self._allocations))
                self._take(MappingProxyType(after if cpus is None else {**after, uid: cpus}))

    def settle(self, uid: str) -> None:
        # Whether the pod is there is in the records.
        self._in_flight.pop(uid, None)

    def release(self, uid: str) -> None:
        """The pod's sandbox was not created: its CPUs are free.

        If it has another one, `follow` allocates them again.
        """
        self._in_flight.pop(uid, None)
        self._occupied.pop(uid, None)
        self._followed = None
        self._take(self._rules.release(uid, self._allocations))

    def follow(self, pods: Iterable[PodRecord]) -> Coroutine[Any, Any, None] | None:
        """Makes the state that of the records and of the calls that create pods.

        Returns:
            Work to be awaited in the background; None if there is none.
        """
        now_s = self._now_s()
        self._in_flight = {uid: each for uid, each in self._in_flight.items() if each.until_s > now_s}
        owners = [pod for pod in pods if pod.state is not Lifecycle.STOPPED and owns_cpus(pod.annotations)]
        followed = (*owners, *self._in_flight.values(), *self._held.items())
        if followed == self._followed and not (self.problem and now_s >= self._retry_s):
            return self._ask_again(now_s)
        self._followed, self._is_known = followed, True
        views = [*map(recorded_pod, owners), *(each.pod for each in self._in_flight.values())]
        after = self._with_held(self._rules.rebuild(views))
        self._occupied = {uid: cpus for uid, cpus in self._occupied.items() if uid in after}
        self._take(after)
        if after != self._saved:
            return self._save()
        self.problem = ""
        return self._ask_again(now_s)

    def _ask_again(self, now_s: float) -> Coroutine[Any, Any, None] | None:
        """Work that makes what has not left the CPUs of some pods do so; None if none is due."""
        if not self._occupied or now_s < self._ask_s:
            return None
        self._ask_s = now_s + ASK_S
        return self._make_leave()

    async def _make_leave(self, uid: str | None = None) -> None:
        # Nothing is done if others have left the CPUs of this pod meanwhile.
        async with self._leaving:
            asked = dict(self._occupied)
            # One round is for all pods that have come meanwhile.
            if asked and uid in (None, *asked) and await self._move_off(NO_CPUS.union(*asked.values())):
                for owner, cpus in asked.items():
                    if self._occupied.get(owner) == cpus:
                        del self._occupied[owner]

    def _take(self, after: Allocations) -> None:
        self._allocations = after
        if self._is_known:
            self._node.allocate(after)

    def _with_held(self, after: Allocations) -> Allocations:
        return MappingProxyType({**after, **self._held}) if self._held else after

    async def _give(self, uid: str, after: Allocations) -> None:
        before, after = self._allocations, self._with_held(after)
        if after != before:
            self._followed = None
        self._take(after)
        if not self._is_known:
            return
        occupied = gained_cpus(before, after)
        if occupied:
            self._occupied[uid] = self._occupied.get(uid, NO_CPUS) | occupied
            for problem in overlaps(uid, after):
                logger.warning("pod uid %s: %s", uid, problem, extra={"uid": uid})
        if after != self._saved:
            await self._save()
        await self._make_leave(uid)

    async def _save(self) -> None:
        state, run = self._allocations, asyncio.get_running_loop().run_in_executor
        try:
            await run(self._executor, self.file.save, as_document(state))
        except OSError as error:
            # A full disk must not stop pods, and after a restart the runtime's lists have the same pods.
            problem = f"allocations cannot be saved: {described(error)}"
            if problem != self.problem:
                logger.warning(problem)
            self.problem, self._retry_s = problem, self._now_s() + RETRY_S
        else:
            self._saved, self.problem = state, ""


def owns_cpus(annotations: Mapping[str, str]) -> bool:
    return RESOURCE_STATUS in annotations
