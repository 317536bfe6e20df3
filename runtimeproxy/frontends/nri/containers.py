"""The runtime creates, starts and updates a container: what policies decide, and how it gets there.

A container's values are put into the reply to CreateContainer. At StartContainer its cgroup exists and its
program does not run yet: what only files hold is written then, and what the runtime has not taken from the
reply is written, too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from cri_api.nri.v1alpha1 import api_pb2
from runtimeproxy.cgroups.writer import WriteOutcome
from runtimeproxy.core.events import (
    book_container,
    on_container_started,
    on_container_updated,
    repair,
    resized,
    updated_container,
)
from runtimeproxy.core.questions import (
    NOTHING_DECIDED,
    DecidedValues,
    Question,
    commit_pools,
    container_question,
    decided_values,
    lower_bursts,
    make_room,
    not_stopped,
    owners_with_fitted,
    put_back,
    take_cpus,
    values_within_bounds,
)
from runtimeproxy.errors import RefusalError
from runtimeproxy.fields.tables import RESOURCE_FIELDS, RESOURCE_PARAMETERS, UPDATABLE
from runtimeproxy.frontends.nri.messages import (
    CLASSES,
    Adjustment,
    container_record,
    container_update,
    read_env,
    read_resources,
    specified_resources,
)
from runtimeproxy.frontends.nri.services import RefusedError
from runtimeproxy.frontends.nri.state import PluginConflict, UncarriedField
from runtimeproxy.hooks import ContainerChange, ContainerView, Hook, Resources
from runtimeproxy.hooks.audit import AuditKind, Origin, Subject
from runtimeproxy.hooks.changes import ResourceChange
from runtimeproxy.hooks.claimants import labels_of
from runtimeproxy.hooks.fields import entry_edits, scalar_edits
from runtimeproxy.ledger.answers import by_parameter, resized_pod, target_of
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.pods.inventory import RuntimeUnavailableError
from runtimeproxy.pods.reconcile import reconciled
from runtimeproxy.pods.record_views import is_resize, recorded_container, recorded_pod, recorded_summary
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.resources import NO_ENTRIES, overlay
from runtimeproxy.pods.updates import (
    PendingUpdate,
    fitted_change,
    has_taken,
    with_updates,
)
from runtimeproxy.slo.names import RESOURCE_STATUS

if TYPE_CHECKING:
    from runtimeproxy.cgroups.writer import WriteResult
    from runtimeproxy.frontends.nri.services import EventServices
    from runtimeproxy.hooks.changes import Change
    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.ledger.pools import NodePools

logger = logging.getLogger(__name__)

MOST_DRAFTS: Final = 1000
"""Containers between CreateContainer and PostCreateContainer; runtimes make some at a time."""
CONFIRM_S: Final = 2.0
"""How long PostUpdateContainer may take to follow UpdateContainer, before the runtime is asked."""
RESIZE_PAUSES_S: Final = (0.1, 0.4, 1.0)
"""Between comparisons of the cgroup of a resized pod."""
LATE_S: Final = 3.0
"""So long a policy may be late rather than hang for good: containers wait for it before they start."""
MOST_HUNG_S: Final = 60.0
"""So long a container's pod is evaluated again for policies that hang; then the next evaluation asks them."""
FIRST_PAUSE_S: Final = 0.02
"""Between two checks whether they still hang; it grows by a fifth."""
LONGEST_PAUSE_S: Final = 1.0
BOOST_S: Final = 0.5
"""How long a program waits for its start-up boost, which takes a write of two files."""
MOST_OWNED: Final = 1000
"""Of the remembered fields of other plugins."""
CREATE: Final = Origin("CreateContainer")
START: Final = Origin("StartContainer")
UPDATE: Final = Origin("UpdateContainerResources")


@dataclass(slots=True)
class Draft:
    """A container that the runtime is about to create, with what is decided on it.

    Attributes:
        is_late: Whether the runtime has had its answer before the decision.
        is_validated: Whether the runtime has shown the answers of all plugins together.
        is_undecided: Whether policies had no answer in time: they are asked again once it starts.
        pools: Katalyst's pools once they have heard of it; None if they have not, or its call has ended.
        pod_uid: Of the pod in the pools.
        is_placed: Whether this call has placed it there.
    """

    record: ContainerRecord
    adjustment: Adjustment
    decided: DecidedValues = NOTHING_DECIDED
    fitted: Mapping[str, int | str] = field(default_factory=lambda: NO_ENTRIES)
    is_late: bool = False
    is_validated: bool = False
    is_undecided: bool = False
    pools: NodePools | None = None
    pod_uid: str = ""
    is_placed: bool = False

    def place(self, pools: NodePools | None, pod: PodRecord) -> None:
        """Places it in Katalyst's pools, before policies are asked."""
        if pools is not None and pools.is_on:
            view = recorded_container(replace(self.record, id=""), recorded_pod(pod))
            self.pools, self.pod_uid, self.is_placed = pools, pod.uid, pools.create(view)

    def end_place(self, *, is_made: bool) -> None:
        """Its creation has ended; `is_made`: the runtime has it now."""
        pools, self.pools = self.pools, None
        if pools is None:
            return
        pools.end(self.pod_uid)
        if is_made:
            pools.created(self.pod_uid, self.record.name, self.record.id)
        elif self.is_placed:
            pools.undo(self.pod_uid, self.record.name)

    def edit(self, change: Change) -> bool:
        """Puts a change into the reply; in any thread."""
        self.adjustment.put(cast("ContainerChange", change))
        return not self.adjustment.is_empty

    def finished(self) -> ContainerRecord:
        """The record, once the runtime has created the container."""
        given: dict[str, Any] = {} if self.is_late else dict(self.adjustment.set_fields)
        unified = {} if self.is_late else dict(self.adjustment.message.linux.resources.unified)
        requested = self.record.requested
        return replace(
            self.record,
            booked=overlay(requested, Resources(**given, unified=unified)) if given or unified else requested,
            owners=owners_with_fitted(self.decided.owners, self.fitted),
            pending_cgroup=dict(self.decided.pending) or NO_ENTRIES,
        )


class _Update(NamedTuple):
    """An update that the runtime was answered and has not confirmed."""

    pending: PendingUpdate
    decided: DecidedValues
    fitted: Mapping[str, int | str]
    released: Collection[str]
    evaluation: int
    timer: asyncio.TimerHandle
    pools_uid: str
    """The pod's, if Katalyst's pools wait for the end: if it fails, they take back the request then."""


class Containers:
    """Answers the runtime's requests about containers. Used in the event loop's thread.

    Attributes:
        owners: By a field's name, the other plugin that has set it for any container.
    """

    def __init__(self, services: EventServices) -> None:
        self._services = services
        self._core = services.core
        self._state = services.state
        self._drafts: dict[str, Draft] = {}
        # Ids by pod and name of containers whose creation was answered, and not reported as done yet.
        self._unreported: dict[tuple[str, str], str] = {}
        self._updates: dict[str, _Update] = {}
        self.owners: dict[str, str] = {}

    @property
    def _known_claims(self) -> Collection[str]:
        return self._core.chain.node.latest.claimed_cpus

    # --- creation ------------------------------------------------------------------------------------------

    async def create(
        self, message: api_pb2.Container, pod: PodRecord, until_s: float
    ) -> api_pb2.CreateContainerResponse:
        """Decides on a container to be created.

        Raises:
            RefusedError: Policies refuse it.
        """
        core = self._core
        record = replace(
            container_record(message, time.time(), self._known_claims),
            pod_id=pod.id,
            state=Lifecycle.CREATED,
            evaluation=core.evaluator.rounds,
        )
        has_swap_limit = message.linux.resources.memory.HasField("swap")
        adjustment = Adjustment(record.requested, has_swap_limit, message)
        adjustment.by_file = self._resources_by_file(has_failed=self._has_failed(pod, record))
        draft = Draft(record, adjustment)
        self._keep(draft, pod)
        if not self._services.is_standby():
            draft.place(core.pools, pod)

        def make_view() -> ContainerView:
            # Without the id that it is going to have: by that policies know that it does not exist yet.
            view = recorded_container(replace(record, id=""), recorded_pod(pod))
            return replace(view, env=read_env(message.env))

        question = Question(Hook.PRE_CREATE_CONTAINER, recorded_summary(pod), make_view, edit=draft.edit)
        try:
            decision = await self._services.ask(question, until_s, CREATE)
            for work in commit_pools(core, CREATE.call, pod.uid, until_s) if draft.pools is not None else ():
                await work()
        except (RefusedError, RefusalError) as error:
            # That the runtime does not create it now is no failure of its.
            self._drafts.pop(record.id, None)
            self._unreported.pop((pod.id, record.name), None)
            draft.end_place(is_made=False)
            if isinstance(error, RefusalError):
                raise RefusedError(error.code, error.text) from error
            raise
        if decision is not None:
            draft.decided = decided_values(decision)
            draft.is_undecided = bool(decision.unwritten) or _has_failed_policy(decision)
        self._fit_to_bounds(draft, pod)
        for work in self._preparations(draft, pod, until_s):
            await work()
        self._report_left_out(draft, pod)
        self._add_conflicts(draft, pod, _moved(draft))
        return api_pb2.CreateContainerResponse(
            adjust=None if draft.adjustment.is_empty else draft.adjustment.message
        )

    def _has_failed(self, pod: PodRecord, record: ContainerRecord) -> bool:
        """Whether the runtime has not created the container of this name, and tries it again."""
        earlier = self._unreported.get((pod.id, record.name))
        # One that is known was created while the plugin was away.
        if earlier is None or earlier == record.id or self._core.store.containers.get(earlier) is not None:
            return False
        draft = self._drafts.pop(earlier, None)
        if draft is not None:
            self._note_not_created(draft)
        return True

    def _note_not_created(self, draft: Draft) -> None:
        self._state.failed_creates += 1
        pod = self._core.store.pods.get(draft.record.pod_id)
        draft.end_place(is_made=False)
        if pod is not None and not draft.adjustment.is_empty:
            self._report_conflicts(draft, pod)

    def _resources_by_file(self, *, has_failed: bool) -> Collection[str]:
        """The resources that a file holds, and that another plugin sets: the runtime refuses two owners.

        `has_failed`: whether the runtime did not create the container after an earlier answer: then all.
        """
        if has_failed:
            return RESOURCE_PARAMETERS.keys()
        if not self.owners:
            return ()
        return [name for name in RESOURCE_PARAMETERS if f"resources.{name}" in self.owners]

    def on_validated(self, container_id: str, fields: Mapping[str, str], plugins: Collection[str]) -> None:
        """The runtime has put the answers of all plugins together.

        Args:
            container_id: Of the container to be created.
            fields: Those that other plugins have set, by name, with the plugin.
            plugins: All that are connected.
        """
        # What has gone sets nothing any more.
        self.owners = {name: plugin for name, plugin in self.owners.items() if plugin in plugins}
        for name, plugin in fields.items():
            if name in self.owners or len(self.owners) < MOST_OWNED:
                self.owners[name] = plugin
        draft = self._drafts.get(container_id)
        pod = self._core.store.pods.get(draft.record.pod_id) if draft is not None else None
        if draft is not None and pod is not None:
            draft.is_validated = True
            self._add_conflicts(draft, pod, _moved(draft))

    def _add_conflicts(self, draft: Draft, pod: PodRecord, fields: Collection[str]) -> list[str]:
        """Notes which of these fields other plugins set, for status, explain and audit; returns them."""
        name = f"{pod.namespace}/{pod.name}/{draft.record.name}"
        found = sorted(each for each in fields if each in self.owners)
        for each in found:
            plugin = self.owners[each]
            if self._state.add_conflict(draft.record.id, PluginConflict(name, each, plugin)):
                self._audit(draft, pod, f"the runtime's plugin {plugin} sets it, too: it goes by file", each)
        return found

    def _report_conflicts(self, draft: Draft, pod: PodRecord) -> None:
        # The runtime tells plugins of no conflict: the likely ones are fields that others have set before.
        name = f"{pod.namespace}/{pod.name}/{draft.record.name}"
        fields = self._add_conflicts(draft, pod, self.fields_of(draft.adjustment.message))
        which = ", ".join(f"{each} is set by {self.owners[each]}" for each in fields)
        if not which and draft.is_validated:
            which = "a validator or the runtime refused it"
        elif not which:
            more = "" if self._state.learns_owners else "; nri.learn_owners tells which plugin sets a field"
            which = f"the cause is not told{more}"
        text = "the runtime did not create it after the plugin's answer; its values go by file now"
        self._core.problems.counts["CreateContainer", "not_created"] += 1
        self._core.problems.failures.report(
            "CreateContainer", "not created", f"{text}: {which}", container=name
        )
        self._audit(draft, pod, f"{text}: {which}")

    def _audit(self, draft: Draft, pod: PodRecord, reason: str, name: str = "") -> None:
        """Adds what other plugins do to the audit; `name`: of a field, empty for all."""
        view = recorded_container(draft.record, recorded_pod(pod))
        subject = Subject(Hook.PRE_CREATE_CONTAINER, view, time.time(), origin=CREATE)
        entry = subject.entry(AuditKind.CONFLICT, labels_of(draft.decided.owners.get(name, ())), reason)
        self._services.audit(entry._replace(field=name))

    @staticmethod
    def fields_of(message: api_pb2.ContainerAdjustment) -> set[str]:
        """The fields that an answer sets, as they are called here."""
        linux, found = message.linux, set[str]()
        for name, each in RESOURCE_FIELDS.items():
            if each.oci and linux.resources.HasField(each.oci[0]):  # type: ignore[arg-type]
                value = getattr(getattr(linux.resources, each.oci[0]), each.oci[1])
                if value if isinstance(value, int | str) else value.ByteSize():
                    found.add(f"resources.{name}")
        found.update(f"resources.{name}" for name in CLASSES if linux.resources.HasField(name))
        if linux.HasField("oom_score_adj"):
            found.add("resources.oom_score_adj")
        found.update(f"resources.unified[{key}]" for key in linux.resources.unified)
        found.update(f"annotations[{key}]" for key in message.annotations)
        found.update(f"env[{each.key}]" for each in message.env)
        found.update(f"mounts[{each.destination}]" for each in message.mounts)
        found.update(f"devices[{each.path}]" for each in linux.devices)
        found.update(f"cdi_devices[{each.name}]" for each in message.CDI_devices)
        return found

    def _keep(self, draft: Draft, pod: PodRecord) -> None:
        while len(self._drafts) >= MOST_DRAFTS:
            self._drafts.pop(next(iter(self._drafts))).end_place(is_made=False)
        while len(self._unreported) >= MOST_DRAFTS:
            del self._unreported[next(iter(self._unreported))]
        self._drafts[draft.record.id] = draft
        self._unreported[pod.id, draft.record.name] = draft.record.id

    def _fit_to_bounds(self, draft: Draft, pod: PodRecord) -> None:
        """Changes values that bounds of the pod's cgroup and above do not allow."""
        values = partial(self._booked, draft)
        draft.fitted = values_within_bounds(self._core.ledger, pod.cgroup_parent, values)
        if draft.fitted:
            draft.adjustment.put_resources(fitted_change(draft.fitted))

    def _booked(self, draft: Draft) -> Resources:
        return draft.finished().booked

    def _preparations(self, draft: Draft, pod: PodRecord, until_s: float) -> Sequence[Any]:
        """Raises the limits of the pod's cgroup for the values of the answer, and takes the pod's CPUs."""
        core, works = self._core, []
        if core.allocations is not None and RESOURCE_STATUS in pod.annotations:
            taking = partial(core.allocations.create, ContainerView(pod=recorded_pod(pod)))
            works.append(take_cpus(core.problems, CREATE.call, until_s, taking))
        return (*works, *make_room(core, pod, lambda: by_parameter(self._booked(draft))))

    def _report_left_out(self, draft: Draft, pod: PodRecord) -> None:
        name = f"{pod.namespace}/{pod.name}/{draft.record.name}"
        for each, why in draft.adjustment.left_out.items():
            self._core.problems.counts[CREATE.call, "left_out"] += 1
            self._core.problems.failures.report(CREATE.call, each, f"{each}: {why}", container=name)

    def on_late(self, container_id: str) -> None:
        """The runtime has its answer without the decision."""
        draft = self._drafts.get(container_id)
        if draft is not None:
            draft.is_late = True

    def on_created(self, message: api_pb2.Container, pod: PodRecord) -> ContainerRecord:
        """The runtime has created a container."""
        store, draft = self._core.store, self._drafts.pop(message.id, None)
        known = store.containers.get(message.id)
        if draft is None:
            if known is not None:
                return known
            self._state.undecided_containers += 1
            record = replace(container_record(message, time.time(), self._known_claims), pod_id=pod.id)
            store.containers.put(record)
            self._services.note_undecided(record.id)
            return record
        self._unreported.pop((pod.id, draft.record.name), None)
        if draft.is_late:
            self._state.undecided_containers += 1
        record = with_others_values(draft, message)
        store.containers.put(record)
        draft.end_place(is_made=True)
        if draft.decided.fields is not None and (draft.decided.fields or draft.fitted):
            book_container(self._core, pod, record, draft.decided.fields, draft.fitted)
        if draft.is_late or draft.is_undecided:
            self._services.note_undecided(record.id)
        return record

    async def compare(self, known: ContainerRecord, found: ContainerRecord) -> None:
        """Brings a record up to the runtime's specification after a time without events."""
        store, pod = self._core.store, self._core.store.pods.get(known.pod_id)
        update = self._updates.get(known.id)
        if update is not None and pod is not None and has_taken(update.pending.forwarded, found.booked):
            self._services.start_after(UPDATE.call, pod, self.on_updated(known.id, pod))
            return
        self._forget_update(known.id)
        record = reconciled(known, found)
        if record.booked != known.booked and not await self._was_updated(found):
            # A reply whose end was not recorded: what the kubelet asked for is the same.
            record = replace(record, requested=known.requested, owners=known.owners)
        if record is not known and store.containers.get(known.id) is known:
            store.containers.put(record)

    async def find_requested(self, found: ContainerRecord) -> None:
        """Finds what the kubelet asked for, of a container whose record was lost with its decision.

        Its status has that, as long as it has not been updated; see `_was_updated`.

        Raises:
            RuntimeUnavailableError: The runtime did not answer.
        """
        containers = self._core.store.containers
        shown = await self._services.lookups.confirm_container(found.id)
        record = containers.get(found.id)
        if shown is not None and record is not None and not has_taken(found.booked, shown.booked):
            containers.put(replace(record, requested=shown.booked))

    async def _was_updated(self, found: ContainerRecord) -> bool:
        """Whether a container has been updated since its creation: till then its status has other values.

        Source: containerd internal/cri/server, copyResourcesToStatus: those that plugins have not changed.
        """
        try:
            shown = await self._services.lookups.confirm_container(found.id)
        except RuntimeUnavailableError:
            return False
        return shown is not None and has_taken(found.booked, shown.booked)

    # --- start ---------------------------------------------------------------------------------------------

    async def start(self, message: api_pb2.Container, pod: PodRecord, until_s: float) -> None:
        """Writes the values of a container whose program does not run yet."""
        core = self._core
        record = core.store.containers.get(message.id) or self.on_created(message, pod)
        question = container_question(core.inventory, Hook.PRE_START_CONTAINER, record, pod)
        decision = await self._services.ask(question, until_s, START)
        decided = NOTHING_DECIDED if decision is None else decided_values(decision)
        await self._verify(record, pod)
        for work in on_container_started(core, record, decided, START):
            await work()
        if core.starts is not None:
            left_s = until_s - asyncio.get_running_loop().time()
            await core.starts.boosts.settled(record.id, min(BOOST_S, max(left_s, 0.0)))
        if record.id in self._services.undecided:
            self._services.undecided.discard(record.id)
            await core.evaluator.evaluate_pod(pod.id)
            if core.chain.hung:
                asking = core.spawn(self._ask_again(pod.id))
                if core.chain.has_hung_since(time.time() - LATE_S):
                    # It may be late only: the program waits for it until the reply is due.
                    await asyncio.wait({asking}, timeout=until_s - asyncio.get_running_loop().time())

    async def _ask_again(self, pod_id: str) -> None:
        """Asks the policies again about a pod each time that one of those that hang now has ended."""
        core, pause_s = self._core, FIRST_PAUSE_S
        hung, until_s = set(core.chain.hung), time.monotonic() + MOST_HUNG_S
        while hung and time.monotonic() < until_s:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.2, LONGEST_PAUSE_S)
            if not hung <= (now := set(core.chain.hung)):
                await core.evaluator.evaluate_pod(pod_id)
                hung &= now

    async def _verify(self, record: ContainerRecord, pod: PodRecord) -> None:
        """Compares the container's files and processes with what policies want, and writes what differs.

        Runtimes drop fields that they do not know without a word.
        """
        core, cgroup = self._core, self._core.inventory.cgroup_of(pod, record)
        run = asyncio.get_running_loop().run_in_executor
        if cgroup and core.ledger.books.record(cgroup) is not None:
            written = await run(core.executor, core.ledger.start, Wanted(target_of(pod, record, cgroup), {}))
            self._note_uncarried(record, written)

    def _note_uncarried(self, record: ContainerRecord, written: Sequence[WriteResult]) -> None:
        booked = by_parameter(record.booked)
        for each in written:
            if each.outcome is WriteOutcome.WRITTEN and booked.get(each.name) == each.value:
                name = next((key for key, of in RESOURCE_PARAMETERS.items() if of == each.name), each.name)
                self._add_uncarried(f"resources.{name}")

    def _add_uncarried(self, name: str) -> None:
        found = UncarriedField(name, self._state.runtime)
        if found not in self._state.not_carried:
            self._state.not_carried.add(found)
            text = "not taken from the plugin's answer: it goes by file"
            logger.warning("%s: %s %s", self._state.runtime or "the runtime", name, text)

    # --- updates -------------------------------------------------------------------------------------------

    async def update(
        self, message: api_pb2.Container, asked: api_pb2.LinuxResources, pod: PodRecord, until_s: float
    ) -> api_pb2.UpdateContainerResponse:
        """Decides on an update by the kubelet; the reply has what the runtime's specification lacks."""
        core = self._core
        record = core.store.containers.get(message.id) or self.on_created(message, pod)
        sent, evaluation = _updatable(read_resources(asked)), core.evaluator.rounds
        expected = with_updates(record, core.pending_updates.get(record.id, ()))
        pools_uid = ""
        if sent.cpu_shares is not None and not self._services.is_standby():
            view = recorded_container(expected, recorded_pod(pod), sent)
            pools_uid = await self._resize_place(view, until_s)
        change = _UpdateChange(sent, record.booked if record.detailed and expected is record else None)
        question = container_question(
            core.inventory, Hook.PRE_UPDATE_CONTAINER_RESOURCES, expected, pod, sent
        )
        question.edit, question.is_deferred = change.edit, True
        # As long as no policy has to run.
        decided = DecidedValues(silent=core.chain.unsettled)
        try:
            decision = await self._services.ask(question, until_s, UPDATE)
        except BaseException:
            self._end_resize(pools_uid)
            raise
        if decision is not None:
            decided = decided_values(decision, is_deferred=True)
        released: Collection[str] = ()
        if expected.owners:
            released, back = put_back(expected, sent, decided)
            if released:
                change.put(back)
        values = partial(overlay, expected.booked, change.forwarded)
        fitted = values_within_bounds(core.ledger, pod.cgroup_parent, values)
        if fitted:
            change.put(fitted_change(fitted))
        pending = PendingUpdate(sent, change.forwarded)
        # Of a resize of the pod before it nothing may have been told.
        room = make_room(core, pod, lambda: by_parameter(change.forwarded))
        for work in (*lower_bursts(core, record, pod, pending, has_pending=bool(decided.pending)), *room):
            await work()
        self._await_end(record.id, pending, decided, fitted, released, evaluation, pools_uid)
        if not (change.values or change.entries):
            return api_pb2.UpdateContainerResponse()
        reply = container_update(record.id, change.values, change.entries)
        return api_pb2.UpdateContainerResponse(update=[reply])

    def _end_resize(self, uid: str) -> None:
        if uid and self._core.pools is not None:
            self._core.pools.end(uid)

    async def _resize_place(self, view: ContainerView, until_s: float) -> str:
        """Tells Katalyst's pools the request of a resize; nothing of it is refused in this mode.

        Returns:
            The pod's uid if they wait for the end of the update; else empty.
        """
        pools = self._core.pools
        if pools is None or not pools.is_on or not view.pod.uid:
            return ""
        try:
            pools.resize(view)
            for work in commit_pools(self._core, UPDATE.call, view.pod.uid, until_s):
                await work()
        except RefusalError as error:
            self._core.problems.counts[UPDATE.call, "refusal_not_carried"] += 1
            name = f"{view.pod.namespace}/{view.pod.name}/{view.name}"
            text = f"the resize is made all the same: {error.text}"
            self._core.problems.failures.report(UPDATE.call, error.text, text, container=name)
        except BaseException:
            pools.end(view.pod.uid)
            raise
        return view.pod.uid

    def _await_end(
        self,
        container_id: str,
        pending: PendingUpdate,
        decided: DecidedValues,
        fitted: Mapping[str, int | str],
        released: Collection[str],
        evaluation: int,
        pools_uid: str,
    ) -> None:
        core = self._core
        # One of which no end was told has failed, and the kubelet repeats it.
        self._forget_update(container_id)
        timer = asyncio.get_running_loop().call_later(CONFIRM_S, self._confirm_soon, container_id, pending)
        self._updates[container_id] = _Update(
            pending, decided, fitted, released, evaluation, timer, pools_uid
        )
        core.pending_updates.setdefault(container_id, []).append(pending)

    def _confirm_soon(self, container_id: str, pending: PendingUpdate) -> None:
        self._core.spawn(self._confirm(container_id, pending))

    async def _confirm(self, container_id: str, pending: PendingUpdate) -> None:
        """Asks the runtime how an update has ended of which it told no more."""
        core = self._core
        try:
            found = await self._services.lookups.confirm_container(container_id)
        except RuntimeUnavailableError:
            core.inventory.confirm_all()
            found = None
        pod = core.store.pods.get(found.pod_id) if found is not None else None
        if found is not None and pod is not None and has_taken(pending.forwarded, found.booked):
            self._services.start_after(UPDATE.call, pod, self.on_updated(container_id, pod))
        else:
            self._forget_update(container_id)

    def _forget_update(self, container_id: str) -> _Update | None:
        update = self._updates.pop(container_id, None)
        if update is not None:
            update.timer.cancel()
            self._end_resize(update.pools_uid)
            pending = self._core.pending_updates
            left = [each for each in pending.pop(container_id, ()) if each is not update.pending]
            if left:
                pending[container_id] = left
        return update

    def on_updated(self, container_id: str, pod: PodRecord) -> Sequence[Any]:
        """The runtime has made an update; returns the work that is due now."""
        core, update = self._core, self._forget_update(container_id)
        record = core.store.containers.get(container_id)
        if record is None or update is None:
            return ()
        sent, members = update.pending.sent, core.store.containers.members(pod.id)
        updated = updated_container(
            record, update.pending, update.decided, update.fitted, update.released, NO_ENTRIES
        )
        works = on_container_updated(
            core, updated, sent, update.decided, update.fitted, update.evaluation, UPDATE
        )
        of_pod = resized(core, pod.cgroup_parent) if is_resize(sent) else repair(core, pod.cgroup_parent)
        cgroup = core.inventory.cgroup_of(pod, updated)
        # Another plugin may have had the last word.
        works = (*works, *of_pod, *repair(core, cgroup))
        # The first containerd that tells plugins of a pod's resize is 2.3.
        members_now = core.store.containers.members(pod.id)
        pod_now = resized_pod(pod, not_stopped(members), not_stopped(members_now))
        if pod_now is pod:
            return works
        core.store.pods.put(pod_now)
        core.spawn(self.follow_kubelet(pod))
        return (*works, partial(core.evaluator.evaluate_pod, pod.id))

    async def follow_kubelet(self, pod: PodRecord) -> None:
        """Sets a pod's cgroup again once the kubelet has lowered its values, of which nothing tells."""
        core = self._core
        for pause_s in RESIZE_PAUSES_S:
            await asyncio.sleep(pause_s)
            if any(each.id in self._updates for each in core.store.containers.members(pod.id)):
                # The kubelet raises the pod first; the end of its next update leads here again.
                return
            for work in resized(core, pod.cgroup_parent):
                await work()

    def end_places(self, pod_id: str | None = None) -> None:
        """Katalyst's pools wait no longer for what a pod's creations come to; None: for those of all pods.

        The runtime tells of no creation that has failed. One that is still made has a record then.
        """
        for draft in self._drafts.values():
            if pod_id in (None, draft.record.pod_id):
                draft.end_place(is_made=False)

    def forget(self, container_id: str) -> None:
        """The container is gone."""
        draft = self._drafts.pop(container_id, None)
        if draft is not None:
            # containerd undoes a creation that has failed.
            self._note_not_created(draft)
        self._state.fields_of_others.pop(container_id, None)
        self._services.undecided.discard(container_id)
        self._forget_update(container_id)


class _UpdateChange:
    """The reply to an update, as changes are put into it.

    Attributes:
        values: The resources in it, by their names.
        entries: Those of `unified`.
        forwarded: What the runtime makes of the kubelet's update and the reply.
    """

    def __init__(self, sent: Resources, in_force: Resources | None) -> None:
        self.values: dict[str, int | str] = {}
        self.entries: dict[str, str] = {}
        self.forwarded = self._sent = sent
        self._in_force = in_force

    def edit(self, change: Change) -> bool:
        resources = cast("ContainerChange", change).resources
        if resources is not None:
            self.put(resources)
        return bool(self.values or self.entries)

    def put(self, change: ResourceChange) -> None:
        in_force = self._in_force
        edits = scalar_edits(change, in_force, self.forwarded, update=True)
        # An empty text in a reply stands for no text: the runtime keeps what it has.
        self.values |= {name: value for name, value in edits.items() if value != "" and name in UPDATABLE}
        unified = in_force.unified if in_force is not None else None
        entries = entry_edits(change.unified, self.forwarded.unified, unified)
        self.entries |= {key: text for key, text in entries.items() if text is not None}
        self.forwarded = overlay(self._sent, Resources(**self.values, unified=self.entries))  # type: ignore[arg-type]


def _moved(draft: Draft) -> set[str]:
    return {f"resources.{name}" for name in draft.adjustment.moved}


def with_others_values(draft: Draft, made: api_pb2.Container) -> ContainerRecord:
    """The record of a container that was made: with what the runtime has for values that go by file."""
    record, found = draft.finished(), specified_resources(made)
    given = {name: value for name in draft.adjustment.moved if (value := getattr(found, name)) is not None}
    return replace(record, booked=overlay(record.booked, Resources(**given))) if given else record


def _has_failed_policy(decision: Decision) -> bool:
    """Whether asking again may help: a policy whose inputs are not known has no more to say at the start."""
    failed = (each.policy for each in decision.audit if each.kind is AuditKind.FAILED)
    return bool(decision.without_answer) and not decision.without_answer.isdisjoint(failed)


def _updatable(found: Resources) -> Resources:
    """The values of an update without those that runtimes take at the creation only."""
    names = [name for name in RESOURCE_FIELDS.keys() - UPDATABLE if getattr(found, name) is not None]
    without: dict[str, Any] = dict.fromkeys(names)
    return replace(found, **without) if without else found
