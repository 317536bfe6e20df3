"""Keeps Katalyst's pools of this node: which pod has which CPUs and NUMA nodes, and when pods go there.

1. A call is decided: `admit`, `create` or `resize` makes the next state, at once and before policies are
   asked, which see it as `node.cpu_pools`. Pods that have to leave CPUs have less from now on.
2. Before the call goes on: `commit`. A new place is saved, then the pods that leave CPUs are written by file.
3. The call has ended: `end`. If it has failed: `undo`. What others get follows in the background.
4. About every second, and whenever a record changes: pods that have gone are removed, unknown ones adopted,
   ramp-up ends, another configuration is taken. All of it takes the same way: saved, left, grown. Only what
   has changed is looked at (`pool_records`), saved, and written.

Values of running containers go through the ledger: the policy `katalyst-pools` says them, and the keeper only
has the right pods asked, in the right order. The runtime is never called.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from runtimeproxy.errors import RefusalError, StatusCode, described
from runtimeproxy.hooks.views import ContainerView, PodView
from runtimeproxy.katalyst import pool_operations as operations
from runtimeproxy.katalyst import transition
from runtimeproxy.katalyst.advice import Advisors, BoundedAdvice, bounded_advice, target_problem
from runtimeproxy.katalyst.levels import (
    MAIN_CONTAINER_NAME,
    SKIP_QRM_ADMIT,
    KatalystQos,
    LevelRules,
    bind_result,
    effective_class,
    katalyst_qos,
)
from runtimeproxy.katalyst.names import RECLAIM, RECLAIMED_MILLICPU, QosLevel
from runtimeproxy.katalyst.placement import PodFacts, waits_for_request
from runtimeproxy.katalyst.pool_operations import ContainerFacts, ObservedPod
from runtimeproxy.katalyst.pools import (
    NO_CPUS,
    AdvisedSizes,
    PoolPod,
    PoolSettings,
    PoolState,
    Refusal,
    StateEncoder,
    from_document,
    others,
)
from runtimeproxy.katalyst.topology import Topology
from runtimeproxy.katalyst.transition import Overlap, PlacedPools, Placement
from runtimeproxy.ledger.pool_records import ObservedPods, millicpu_of
from runtimeproxy.logs import FailureLog
from runtimeproxy.node.snapshot import Input, InputState
from runtimeproxy.qos import QoSClass, qos_class
from runtimeproxy.state.slot_file import CHANGES, VALUE, SlotFile

if TYPE_CHECKING:
    from runtimeproxy.node.snapshot import Node
    from runtimeproxy.pods.store import PodStore

logger = logging.getLogger(__name__)

POOL_INPUTS: Final = frozenset({Input.CPUS, Input.MEMORY, Input.KUBELET, Input.POD_REQUESTS, Input.KATALYST})
"""What pools depend on of the node."""
FILE: Final = "cpu_pools.json"
"""In the state folder."""
IN_FLIGHT_S: Final = 600.0
"""How long the records change nothing of a pod whose call has no `end`. Longer than any call takes: the
kubelet gives the runtime 2 x 2 minutes. Source: Kubernetes pkg/kubelet/cri/remote."""
TICK_S: Final = 1.0
"""Between two comparisons with the records; a change of one is looked at at once."""
ROUND_S: Final = 0.25
"""The least time between two rounds: what calls wait for is done in them, the rest of many calls at once."""
RETRY_S: Final = 5.0
"""Until the next try, after a state could not be saved, or a pod could not be made to leave CPUs."""
START_S: Final = 3.0
"""How long a start waits for the node's CPUs: sysfs may hang."""
NO_REFUSALS: Final[Mapping[tuple[str, str], Refusal]] = MappingProxyType({})


def pools_file(state_folder: Path, boot_id: str) -> SlotFile:
    """Where pools are saved; those of another boot do not apply.

    No container outlives a loss of power, so the file need not either.
    """
    effect = "pods are placed anew once the runtime's pods are known"
    return SlotFile(state_folder / FILE, effect, boot_id=boot_id)


class PoolCause(StrEnum):
    """Why a call was refused, or what it went on without."""

    INVALID = "invalid"
    """It can never be placed on this node."""
    NO_ROOM = "no_room"
    RESIZE = "resize"
    """A resize that is not possible."""
    NOT_READY = "not_ready"
    """The state could not be saved, or others have not left the pod's CPUs: refused."""
    WENT_ON = "went_on"
    """The same, and the container was created all the same."""


class PoolConfiguration(NamedTuple):
    """What is configured at a moment."""

    settings: PoolSettings = PoolSettings()
    rules: LevelRules = LevelRules()
    is_rejecting: bool = False
    """Whether what cannot be placed, saved or left refuses the call (`reject`), or the pod is in `share`."""


class PoolNode(Protocol):
    """Where pools are shown, and what they depend on; see `NodeSources`."""

    @property
    def latest(self) -> Node: ...

    async def restore(self) -> None: ...

    def place(self, pools: PlacedPools | None, state: InputState) -> None: ...


class NodePools:
    """The pools of a node. Used in the event loop's thread, which orders all events.

    Args:
        configured: The configuration now.
        is_wanted: Whether the policy `katalyst-pools` is loaded.
        is_recovered: Whether the records are those of the runtime.
        is_idle: Whether no policies are loaded, or another process decides.
        write: Asks the policies about the pods with these uids, and writes what follows; returns those of
            which something could not be written.
        executor: A thread for the file alone: calls wait for it, and the checkpoint's is busy with its disk.
        advisors: What advisors claim of pools now.

    Attributes:
        off_reason: Why there are no pools; empty if there are.
        problem: Why the state is not saved; empty if it is.
        advice: What counts of advisors' claims.
        counts: Of calls that were refused, or went on without what they should have had, by the cause.
    """

    def __init__(
        self,
        store: PodStore,
        node: PoolNode,
        file: SlotFile,
        configured: Callable[[], PoolConfiguration],
        is_wanted: Callable[[], bool],
        is_recovered: Callable[[], bool],
        is_idle: Callable[[], bool],
        write: Callable[[Collection[str]], Awaitable[frozenset[str]]],
        executor: Executor,
        clock: Callable[[], float] = time.monotonic,
        advisors: Callable[[], Advisors] = Advisors,
    ) -> None:
        self._store = store
        self._node = node
        self.file = file
        self._configured = configured
        self._is_wanted = is_wanted
        self._is_recovered = is_recovered
        self._is_idle = is_idle
        self._write = write
        self._executor = executor
        self._now_s = clock
        self._advisors = advisors
        self.advice = BoundedAdvice()
        self.off_reason = "not started"
        self.problem = ""
        self.counts: Counter[PoolCause] = Counter()
        self._failures = FailureLog(output=logger)
        self._encoder = StateEncoder()
        self._state: PoolState | None = None
        self._saved: PoolState | None = None
        # What the file has; of the thread that writes it.
        self._in_file: PoolState | None = None
        # Made again only if the node's CPUs are others.
        self._topology: tuple[object, object, Topology] | None = None
        # Whether the state is that of records, or of the process before this one.
        self._is_known = False
        # Whether the pods of the state were compared with the records once.
        self._is_followed = False
        self._placements: dict[str, Placement] = {}
        self._shown: PlacedPools | None = None
        self._refusals: Mapping[tuple[str, str], Refusal] = NO_REFUSALS
        # What pods were last written with, and those that have to be written.
        self._written: dict[str, Placement] = {}
        self._unwritten: set[str] = set()
        # CPUs that pods still have although they are to leave them, by uid.
        self._left_over: Mapping[str, frozenset[int]] = transition.NOTHING
        # By uid, how many calls are under way, and until when they are awaited.
        self._in_flight: dict[str, tuple[int, float]] = {}
        self._records = ObservedPods(store, self._facts_of)
        # Uids of pods that the state may not have as the records do, apart from those whose records change.
        self._unfollowed: set[str] = set()
        # Uids of pods that are to have more CPUs or NUMA nodes than they have.
        self._ungrown: set[str] = set()
        # What levels were read by when pods were last looked at.
        self._rules: LevelRules | None = None
        self._writing = asyncio.Lock()
        # The last save, and whether the thread has not begun it.
        self._saving: asyncio.Future[PoolState | None] | None = None
        self._is_queued = False
        self._wake = asyncio.Event()
        # Whether the policy is loaded; without it records are not looked at.
        self._follows = False
        # When the last round ended.
        self._round_s = 0.0
        self._retry_save_s = 0.0
        self._retry_write_s = 0.0

    # --- what is shown -------------------------------------------------------------------------------------

    @property
    def is_wanted(self) -> bool:
        """Whether the policy is loaded."""
        return self._is_wanted()

    @property
    def is_on(self) -> bool:
        return not self.off_reason

    @property
    def state(self) -> PoolState | None:
        """The pools; None while they are off."""
        return self._state if self.is_on else None

    @property
    def is_saved(self) -> bool:
        return self._state is self._saved

    @property
    def unwritten(self) -> int:
        """How many pods are to leave CPUs, or get some, and have not."""
        return len(self._unwritten) if self.is_on else 0

    @property
    def overlaps(self) -> tuple[Overlap, ...]:
        """CPUs that pods have alone, and others have not left."""
        return tuple(transition.overlaps(self._left_over, self._state)) if self._state is not None else ()

    @property
    def summary(self) -> str:
        """A part of the status line; empty if pools are not wanted."""
        if not self._is_wanted():
            return ""
        if self._state is None or not self.is_on:
            return f"pools off: {self.off_reason}"
        count = len(self._state.pods)
        return f"pools: {'1 pod' if count == 1 else f'{count} pods'}"

    # --- the start -----------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Takes the saved state, which applies until the records are those of the runtime."""
        self._state = self._saved = None
        self._is_known = self._is_followed = False
        with suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                await self._node.restore()
        topology = self._present_topology()
        if topology is not None:
            run = asyncio.get_running_loop().run_in_executor
            found = await run(self._executor, self.file.load, lambda saved: saved_state(saved, topology))
            if found is not None:
                self._saved, self._is_known = found, True
                self._replace(found)
                # The process before this one may have ended before it was all written.
                self._unwritten = set(found.pods)
        self.look()

    def look(self) -> None:
        """The policies, or their settings, have changed: there may be pools from now on."""
        self._records.look_again()
        self._refresh()
        self._wake.set()

    def look_soon(self) -> None:
        """The node has changed."""
        self._wake.set()

    def on_record(self, identity: str) -> None:
        """The record of this sandbox or container has changed."""
        if self._follows:
            self._records.on_record(identity)
            self._wake.set()

    def _refresh(self) -> None:
        """Finds out whether there are pools, and shows them."""
        node, before = self._node.latest, self.off_reason
        followed, self._follows = self._follows, self._is_wanted()
        if self._follows and not followed:
            self._records.look_again()
        state, self.off_reason = why_off(node) if self._follows else (InputState.WITHDRAWN, "not wanted")
        if not self.off_reason and not self._is_known and not self._is_recovered():
            state, self.off_reason = InputState.UNKNOWN, "the runtime's pods are not known yet"
        if not self.off_reason and (topology := self._present_topology()) is not None:
            settings, rules, _ = self._configured()
            if rules != self._rules:
                self._rules = rules
                self._records.look_again()
            found = self._state or operations.initial(topology, settings)
            advice = self._present_advice(found)
            found = operations.configure(found, settings, topology, advice)
            if found is not self._state:
                self._replace(found)
        if self.off_reason != before and self._is_wanted():
            logger.info("katalyst-pools: %s", f"off: {self.off_reason}" if self.off_reason else "on")
        self._show(state)

    def _present_advice(self, state: PoolState) -> AdvisedSizes | None:
        """What sizes follow from: an advisor's claims, else requests."""
        before, advisors = self.advice, self._advisors()
        if not advisors.is_known:
            return state.advice
        found = bounded_advice(state, advisors.claims)
        late = (f"{name} is late: its advice has ended with its lease" for name in advisors.late)
        self.advice = found._replace(problems=(*found.problems, *late))
        for problem in self.advice.problems:
            if problem not in before.problems:
                self._failures.report("advice", problem, problem)
        if bool(before.pools) != bool(self.advice.pools):
            text = "an advisor's" if self.advice.pools else "by requests: no advisor's lease counts"
            logger.info("katalyst-pools: sizes are %s", text)
        return self.advice.sizes(state)

    def pool_problem(self, pool: str, field: str) -> str:
        """Why a pool has no value of this field for an advisor; empty if it has."""
        state = self.state
        if state is None:
            return f"there are no pools: {self.off_reason}" if self._is_wanted() else "there are no pools"
        return target_problem(state, pool, field)

    def _present_topology(self) -> Topology | None:
        node = self._node.latest
        if not node.cpus:
            return None
        made = self._topology
        if made is None or made[0] is not node.cpus or made[1] is not node.memory_bytes:
            made = (node.cpus, node.memory_bytes, Topology.of(node.cpus, node.memory_bytes))
            self._topology = made
        return made[2]

    # --- calls ---------------------------------------------------------------------------------------------

    def admit(self, pod: PodView) -> bool:
        """Places a pod whose sandbox is about to be created, before policies are asked about it.

        Returns:
            Whether this has placed it: then `undo` takes it back.
        """
        state = self.state
        if state is None or not pod.uid:
            return False
        self._begin(pod.uid)
        facts = self._facts_of(pod)
        outcome = operations.admit(state, facts, is_forced=not self._configured().is_rejecting)
        return self._take(outcome, pod.uid)

    def create(self, container: ContainerView) -> bool:
        """The same of a container that is about to be created."""
        state, pod = self.state, container.pod
        if state is None or not pod.uid:
            return False
        self._begin(pod.uid)
        # Only a pod that has no place yet is read for one.
        placed, live = state.pods.get(pod.uid), self._records.live.get(pod.uid)
        is_known = placed is not None and live is not None and not waits_for_request(placed)
        of_pod = live.facts if live is not None and is_known else self._facts_of(pod)
        facts = ContainerFacts(of_pod, container.name, self._container_millicpu(pod, container))
        is_forced = not self._configured().is_rejecting
        outcome = operations.create(state, facts, self._now_s(), is_forced=is_forced)
        return self._take(outcome, pod.uid, container.name)

    def resize(self, container: ContainerView) -> int | None:
        """Notes the request of an update of a container.

        Returns:
            The request before, for `undo_resize`; None if this has changed nothing.

        Raises:
            RefusalError: It is not possible, and the update is to be refused for that.
        """
        state, pod, updated = self.state, container.pod, container.updated
        if state is None or not pod.uid:
            return None
        self._begin(pod.uid)
        placed = state.pods.get(pod.uid)
        known = placed.containers.get(container.name) if placed is not None else None
        millicpu = millicpu_of(updated.cpu_shares) if updated is not None else None
        if known is None or millicpu is None or known.millicpu == millicpu:
            return None
        configured = self._configured()
        outcome = operations.resize(state, pod.uid, container.name, millicpu, pod_qos(pod, configured.rules))
        if not isinstance(outcome, Refusal):
            return known.millicpu if self._take(outcome, pod.uid, container.name) else None
        self.counts[PoolCause[outcome.kind.name]] += 1
        if configured.is_rejecting:
            raise RefusalError(f"katalyst-pools: {outcome.reason}")
        self._failures.report("a container is resized all the same", outcome.reason, outcome.reason)
        return None

    def needs_commit(self, uid: str) -> bool:
        """Whether `commit` has something to do before the call of this pod goes on."""
        state = self.state
        if state is None or (pod := state.pods.get(uid)) is None:
            return False
        return bool(not self._is_place_saved(pod) or self.problem or (pod.dedicated and self._unwritten))

    def _is_place_saved(self, pod: PoolPod) -> bool:
        """Whether the file has what only it knows of a pod's place.

        All else follows from that and the records: it may wait for the next round, and calls need not.
        """
        saved = self._saved.pods.get(pod.uid) if self._saved is not None else None
        return saved is not None and operations.is_same_place(saved, pod)

    async def commit(self, uid: str, until_s: float) -> None:
        """Saves the state if it has a new place, and waits until others have left what this pod has alone.

        `until_s`: when the call has to go on, by the loop's clock.

        Raises:
            RefusalError: It is not so, and the call is to be refused for that.
        """
        try:
            async with asyncio.timeout_at(until_s):
                await self._save()
                # Others share what a pod has not alone.
                if (state := self._state) is not None and uid in state.pods and state.pods[uid].dedicated:
                    await self._leave()
            reason = self.problem or self._overlap_of(uid)
        except TimeoutError:
            reason = "the state could not be saved, or other pods have not left its CPUs, in time"
        if not reason:
            return
        if self._configured().is_rejecting:
            self.counts[PoolCause.NOT_READY] += 1
            raise RefusalError(f"katalyst-pools: {reason}", StatusCode.UNAVAILABLE)
        self.counts[PoolCause.WENT_ON] += 1
        self._failures.report("a container is created all the same", reason, reason)

    def _overlap_of(self, uid: str) -> str:
        state = self._state
        return "; ".join(each.text(state) for each in self.overlaps if each.uid == uid) if state else ""

    def created(self, uid: str, container: str, identity: str) -> None:
        """The runtime has created a container, with this id."""
        if (state := self.state) is not None and uid in state.pods:
            self._replace(operations.created(state, uid, container, identity))
            # That is what the message had.
            self._written.setdefault(uid, self._placements[uid])

    def undo(self, uid: str, container: str = "") -> None:
        """The call that has placed a pod, or a container of it, has failed."""
        if (state := self.state) is not None:
            self._replace(operations.remove(state, uid, container))
            self._show()
            self._wake.set()

    def undo_resize(self, uid: str, container: str, millicpu: int) -> None:
        if (state := self.state) is not None and uid in state.pods:
            outcome = operations.resize(state, uid, container, millicpu)
            if not isinstance(outcome, Refusal):
                self._replace(outcome)
                self._show()
                self._wake.set()

    def end(self, uid: str) -> None:
        """A call of a pod has ended in any way; each `admit`, `create` and `resize` has one end."""
        count, until_s = self._in_flight.pop(uid, (0, 0.0))
        if count > 1:
            self._in_flight[uid] = (count - 1, until_s)
        if any(each == uid for each, _ in self._refusals):
            self._refusals = MappingProxyType(
                {key: each for key, each in self._refusals.items() if key[0] != uid}
            )
        # The record comes next.
        self._unfollowed.add(uid)
        self._wake.set()

    def _begin(self, uid: str) -> None:
        count, _ = self._in_flight.get(uid, (0, 0.0))
        self._in_flight[uid] = (count + 1, self._now_s() + IN_FLIGHT_S)

    def _take(self, outcome: operations.Outcome, uid: str, container: str = "") -> bool:
        if isinstance(outcome, Refusal):
            self.counts[PoolCause[outcome.kind.name]] += 1
            self._refusals = MappingProxyType({**self._refusals, (uid, container): outcome})
            self._show()
            return False
        if outcome is self._state:
            return False
        self._replace(outcome)
        if uid in outcome.pods and not self._is_place_saved(outcome.pods[uid]):
            # Policies are asked meanwhile.
            self._begin_save()
        self._show()
        self._wake.set()
        return True

    # --- what a pod asks for -------------------------------------------------------------------------------

    def _facts_of(self, pod: PodView) -> PodFacts:
        return pod_facts(pod, self._configured().rules, self._node.latest.requests_of(pod))

    def _container_millicpu(self, pod: PodView, container: ContainerView) -> int | None:
        known = self._node.latest.requests_of(pod).get(container.name, transition.NOTHING).get("cpu")
        return known if known is not None else millicpu_of(container.requested.cpu_shares)

    # --- the state and what pods have of it ----------------------------------------------------------------

    def _replace(self, state: PoolState) -> None:
        """Takes another state: pods have what is left to them at once, and what is new once it is left."""
        known = self._state.pods if self._state is not None else transition.NOTHING
        before, changed = self._placements, others(known, state.pods)
        self._state = state
        self._placements = transition.after_shrink(before, state, changed)
        self._unwritten &= self._placements.keys()
        self._ungrown &= self._placements.keys()
        self._ungrown.update(changed)
        for uid in changed:
            found, each = before.get(uid), self._placements[uid]
            # A new one without containers has nothing to be written yet.
            is_adopted = found is None and any(box.id for box in state.pods[uid].containers.values())
            if is_adopted or (found is not None and found != each):
                self._unwritten.add(uid)

    def _show(self, state: InputState = InputState.KNOWN) -> None:
        pools, before = None, self._shown
        if self._state is not None and self.is_on:
            placements = MappingProxyType(self._placements)
            pools = PlacedPools(self._state, placements, self._refusals, self.advice.pools)
            if before is not None and pools.is_as(before):
                pools = before
        self._shown = pools
        self._node.place(pools, state)

    def _begin_save(self) -> asyncio.Future[PoolState | None]:
        """Has the thread save what the state is by then; returns the job, which other changes may share."""
        if self._saving is None or not self._is_queued:
            # First: the thread may be quicker than this one.
            self._is_queued = True
            self._saving = asyncio.get_running_loop().run_in_executor(self._executor, self._save_in_thread)
            self._saving.add_done_callback(self._on_saved)
        return self._saving

    def _save_in_thread(self) -> PoolState | None:
        # In this order: a change after this is for another job.
        self._is_queued = False
        state = self._state
        if state is not None and state is not self._saved:
            before, self._in_file = self._in_file, None
            change = self._encoder.change(before, state) if before is not None else None
            if change is None or not self.file.add(change):
                self.file.save(self._encoder.text(state))
            self._in_file = state
        return state

    def _on_saved(self, job: asyncio.Future[PoolState | None]) -> None:
        if job.cancelled():
            return
        error = job.exception()
        if error is None:
            self._saved, self.problem = job.result(), ""
            return
        problem = f"the pools cannot be saved: {described(error)}"
        if problem != self.problem:
            logger.warning("katalyst-pools: %s", problem)
        self.problem, self._retry_save_s = problem, self._now_s() + RETRY_S

    async def _save(self) -> None:
        """Saves the state unless it is saved; `problem` says why it is not."""
        if self._state is not self._saved:
            await asyncio.wait({self._begin_save()})

    async def _leave(self) -> None:
        """Has all pods written that have less now, or that could not be written before."""
        async with self._writing:
            await self._write_pods()

    async def _write_pods(self) -> None:
        todo, self._unwritten = self._unwritten, set()
        if not todo:
            return
        now = {uid: each for uid in todo if (each := self._placements.get(uid)) is not None}
        failed = frozenset(todo)
        try:
            failed = await self._write(sorted(now))
        finally:
            # Also if it was cancelled.
            self._unwritten |= failed & self._placements.keys()
            self._written.update((uid, each) for uid, each in now.items() if uid not in failed)
            self._written = {uid: each for uid, each in self._written.items() if uid in self._placements}
            everything = NO_CPUS if self._state is None else self._state.topology.all_cpus
            self._left_over = {
                # What a pod has that was not written by this process is not known.
                uid: (self._written[uid].cpus if uid in self._written else everything)
                - self._placements[uid].cpus
                for uid in self._unwritten & failed
                if uid in self._placements
            }
            if self._unwritten:
                self._retry_write_s = self._now_s() + RETRY_S

    async def _grow(self) -> None:
        """Gives pods what others have left, those that have CPUs alone first."""
        async with self._writing:
            state = self._state
            if state is None:
                return
            waiting = tuple(transition.growing(self._placements, state, self._ungrown))
            self._ungrown.clear()
            if not waiting:
                return
            # Others have the placements of before.
            grown = {uid: transition.of_pod(state.pods[uid]) for uid in waiting}
            self._placements = {**self._placements, **grown}
            self._unwritten.update(waiting)
            self._show()
            await self._write_pods()

    # --- in the background ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follows the records, and ends ramp-up; never returns."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._wake.wait()
            self._wake.clear()
            if self._is_idle():
                continue
            pause_s = self._round_s + ROUND_S - self._now_s()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
                self._wake.clear()
            try:
                await self._round()
                self._round_s = self._now_s()
            except Exception:  # a bug costs this round, not the next one
                logger.exception("katalyst-pools: pods could not be placed")
                await asyncio.sleep(TICK_S)

    def _pause_s(self) -> float:
        state = self.state
        due_s = operations.ramp_due_s(state) if state is not None else None
        return TICK_S if due_s is None else min(TICK_S, max(0.01, due_s - self._now_s()))

    async def _round(self) -> None:
        self._refresh()
        if self.state is None:
            return
        self._follow()
        now_s = self._now_s()
        if self._state is not self._saved and (not self.problem or now_s >= self._retry_save_s):
            await self._save()
        if self._unwritten and now_s >= self._retry_write_s:
            await self._leave()
        await self._grow()

    def _follow(self) -> None:
        """Makes the state that of the records, and ends the ramp-up of pods whose time is over."""
        state, now_s = self._state, self._now_s()
        if state is None:
            return
        before = state
        for uid in [uid for uid, (_, until_s) in self._in_flight.items() if until_s <= now_s]:
            del self._in_flight[uid]
            self._unfollowed.add(uid)
        if (self._unfollowed or self._records.has_changed) and self._is_recovered():
            self._is_known = True
            state = self._with_records(state, now_s)
        due_s = operations.ramp_due_s(state)
        if due_s is not None and due_s <= now_s:
            state = operations.ramp_done(state, now_s)
        if state is not before:
            self._replace(state)
            self._show()

    def _with_records(self, state: PoolState, now_s: float) -> PoolState:
        """The state with what has changed of the records."""
        changed = self._records.follow() | self._unfollowed
        if not self._is_followed:
            # What is saved may have gone meanwhile.
            changed |= state.pods.keys()
        self._is_followed, self._unfollowed = True, set()
        live = self._records.live
        pods = [live[uid] for uid in sorted(changed) if uid in live]
        state = self._with_new_containers(state, pods, now_s)
        state = operations.reconcile_changed(state, live, changed, self._in_flight.keys())
        return self._with_requests(state, pods)

    def _with_new_containers(
        self, state: PoolState, live: Collection[ObservedPod], now_s: float
    ) -> PoolState:
        """The state with containers that no call has placed: their ramp-up begins now."""
        for pod in live:
            uid = pod.facts.uid
            known = state.pods.get(uid)
            if known is None or uid in self._in_flight:
                continue
            for box in pod.containers:
                if box.name not in known.containers:
                    facts = ContainerFacts(pod.facts, box.name, box.millicpu)
                    outcome = operations.create(state, facts, now_s, is_forced=True)
                    if not isinstance(outcome, Refusal):
                        state = operations.created(outcome, uid, box.name, box.id)
        return state

    def _with_requests(self, state: PoolState, live: Collection[ObservedPod]) -> PoolState:
        """The state with the requests of the records; one that is refused waits until it is possible."""
        for pod in live:
            uid = pod.facts.uid
            known = state.pods.get(uid)
            for box in pod.containers if known is not None and uid not in self._in_flight else ():
                there = known.containers.get(box.name) if known is not None else None
                if there is not None and box.millicpu is not None and box.millicpu != there.millicpu:
                    outcome = operations.resize(state, uid, box.name, box.millicpu)
                    if isinstance(outcome, Refusal):
                        self._unfollowed.add(uid)
                    else:
                        state = outcome
        return state


def why_off(node: Node) -> tuple[InputState, str]:
    """Return the state of pools on a node, and why they are off; empty if they are on.

    The kubelet's managers would move containers themselves, every 10 s. Source: Kubernetes
    pkg/kubelet/cm/cpumanager, reconcileState.
    """
    if not node.cpus:
        return InputState.UNKNOWN, "the node's CPUs are not known"
    kubelet = node.kubelet
    policies = (
        ("CPU manager", "none", None if kubelet is None else kubelet.cpu_manager_policy),
        ("memory manager", "None", None if kubelet is None else kubelet.memory_manager_policy),
    )
    for name, wanted, policy in policies:
        if policy is None:
            return InputState.UNKNOWN, f"the kubelet's {name} policy is not known, it has to be {wanted}"
        if policy != wanted:
            return InputState.WITHDRAWN, f"the kubelet's {name} policy is {policy}, it has to be {wanted}"
    return InputState.KNOWN, ""


def pod_qos(pod: PodView, rules: LevelRules) -> KatalystQos:
    """What a pod's annotations say; without a level its label's class decides, then it is `shared_cores`.

    A label of Koordinator comes first where `order` says so, as for all policies: BE is `reclaimed_cores`,
    SYSTEM `system_cores`. LSE and LSR are `shared_cores`: CPUs of one's own need `numa_binding`.
    """
    qos = pod.katalyst or katalyst_qos(pod.annotations, rules)
    named = qos_class(pod.labels) if qos is None or qos.yields else QoSClass.NONE
    own = qos or KatalystQos()
    is_own = effective_class(own) is named or {effective_class(own), named} <= {QoSClass.LSE, QoSClass.LSR}
    return own if not named or is_own else _OF_CLASS.get(named, KatalystQos())


_OF_CLASS: Final[Mapping[QoSClass, KatalystQos]] = {
    QoSClass.BE: KatalystQos(level=QosLevel.RECLAIMED, pool=RECLAIM),
    QoSClass.SYSTEM: KatalystQos(level=QosLevel.SYSTEM, pool=""),
}


def pod_facts(pod: PodView, rules: LevelRules, requests: Mapping[str, Mapping[str, int]]) -> PodFacts:
    """Return what pools depend on of a pod.

    Args:
        pod: The pod.
        rules: How its annotations are read.
        requests: Of its containers by name, in the units of `Node.capacity`; empty if they are not known.
    """
    qos, annotations = pod_qos(pod, rules), pod.annotations
    reclaimed = _sum_of(requests, RECLAIMED_MILLICPU)
    if reclaimed is None and qos.level is QosLevel.RECLAIMED:
        text = annotations.get(RECLAIMED_MILLICPU, "")
        reclaimed = int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else None
    millicpu = _sum_of(requests, "cpu")
    chosen = NO_CPUS
    with suppress(ValueError):  # the level's problems have it
        chosen = bind_result(annotations)
    return PodFacts(
        pod.uid,
        qos,
        pod.namespace,
        pod.name,
        millicpu=millicpu if millicpu is not None else millicpu_of(pod.resources.cpu_shares),
        reclaimed_millicpu=reclaimed,
        memory_bytes=_sum_of(requests, "memory"),
        bind_result=chosen,
        main_container=annotations.get(MAIN_CONTAINER_NAME, ""),
        is_handled=annotations.get(SKIP_QRM_ADMIT) != "true",
    )


_MOST_DIGITS: Final = 10


def _sum_of(requests: Mapping[str, Mapping[str, int]], name: str) -> int | None:
    found = [each[name] for each in requests.values() if name in each]
    return sum(found) if found else None


def saved_state(saved: Any, topology: Topology) -> PoolState:  # noqa: ANN401 - JSON
    """Return the state in what `pools_file` has; see `from_document`."""
    return from_document(saved[VALUE], topology, saved.get(CHANGES, ()))
