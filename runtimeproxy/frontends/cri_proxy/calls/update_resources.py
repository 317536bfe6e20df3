"""UpdateContainerResources and UpdatePodSandboxResources: partial updates, which stay partial."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.core.events import (
    on_container_updated,
    on_pod_updated,
    repair,
    resized,
    updated_container,
    without_own_values,
)
from runtimeproxy.core.questions import (
    NO_WORK,
    NOTHING_DECIDED,
    DecidedValues,
    Question,
    commit_pools,
    decided_values,
    lower_bursts,
    pod_question,
    put_back,
    values_within_bounds,
)
from runtimeproxy.errors import RefusalError
from runtimeproxy.fields.tables import CRI_FIELDS, UPDATABLE
from runtimeproxy.frontends.cri_proxy.calls.cri_call import ContainerCall, PodCall
from runtimeproxy.frontends.cri_proxy.calls.messages import edit_entries, edit_resources
from runtimeproxy.hooks import ContainerChange, ContainerView, Hook, PodChange, Resources
from runtimeproxy.ledger.answers import by_parameter
from runtimeproxy.pods.record_views import is_resize
from runtimeproxy.pods.resources import NO_ENTRIES, kept_annotations, overlay, read_resources
from runtimeproxy.pods.updates import (
    PendingUpdate,
    fitted_change,
    has_taken,
    merged_owners,
    with_updates,
)

if TYPE_CHECKING:
    from runtimeproxy.core.services import Work
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices
    from runtimeproxy.hooks.changes import Change
    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.pods.records import ContainerRecord, PodRecord


class UpdateContainerResources(ContainerCall):
    """The kubelet resizes a container or moves it to other CPUs.

    The runtime applies its whole specification again, so the update brings that up to date: it carries the
    fields that the kubelet sent, and those of which the specification has another value than policies want.
    """

    request_type = api_pb2.UpdateContainerResourcesRequest

    def __init__(self, services: CallServices, request: api_pb2.UpdateContainerResourcesRequest) -> None:
        super().__init__(services, request, request.container_id)
        self._request = request
        self._annotations = kept_annotations(request.annotations)
        self._sent = self._forwarded = _given(request.linux)
        self._in_force: Resources | None = None
        self._update: PendingUpdate | None = None
        self._update_key = ""
        self._released: Collection[str] = ()
        # What bounds above have changed, by cgroup parameter.
        self._fitted: Mapping[str, int | str] = NO_ENTRIES
        # The pod's cgroup, and what the runtime's specification holds; see `_expected`.
        self._parent = ""
        self._booked = Resources()
        self._decided = NOTHING_DECIDED
        self._evaluation = services.core.evaluator.rounds
        self._before: ContainerRecord | None = None
        # The record that it was made from, and the one that is valid afterwards.
        self._prepared: tuple[ContainerRecord, ContainerRecord] | None = None
        # The pod's uid if its Katalyst's pools have heard of it, and the request that they had before.
        self._pools_uid = ""
        self._millicpu: int | None = None
        self._refusal: RefusalError | None = None

    def find_records(self) -> bool:
        self._before = self.record
        return super().find_records()

    def before(self) -> Sequence[Question]:
        """May change resources and annotations."""
        expected = self._expected()
        if expected is None:
            return ()
        # As long as no policy has to run.
        self._decided = DecidedValues(silent=self.core.chain.unsettled)
        question = self.question(Hook.PRE_UPDATE_CONTAINER_RESOURCES, expected, self._sent)
        self._resize_place(question)
        question.edit, question.is_deferred, question.on_decided = self._edit, True, self._keep_decision
        return (question,)

    def _keep_decision(self, decision: Decision | None) -> None:
        if decision is not None:
            self._decided = decided_values(decision, is_deferred=True)

    def preparations(self, until_s: float) -> Sequence[Work]:
        record, pod = self.record, self.pod
        if record is None or pod is None:
            return NO_WORK
        update = PendingUpdate(self._sent, self._forwarded)
        works = lower_bursts(self.core, record, pod, update, has_pending=bool(self._decided.pending))
        if self._refusal is not None:
            return (self._refuse,)
        if self._millicpu is None:
            return works
        return (*works, *commit_pools(self.core, "UpdateContainerResources", self._pools_uid, until_s))

    def _resize_place(self, question: Question) -> None:
        """Tells Katalyst's pools the request of a resize, before policies are asked."""
        pools = self.core.pools
        if pools is None or not pools.is_on or self._sent.cpu_shares is None:
            return
        view = question.make_view()
        if isinstance(view, ContainerView):
            self._pools_uid = view.pod.uid
            try:
                self._millicpu = pools.resize(view)
            except RefusalError as error:
                self._refusal = error

    async def _refuse(self) -> None:
        # Policies cannot refuse an update.
        if self._refusal is not None:
            raise self._refusal

    def _undo_resize(self) -> None:
        record, pools = self.record, self.core.pools
        if self._millicpu is not None and record is not None and pools is not None:
            pools.undo_resize(self._pools_uid, record.name, self._millicpu)
            self._millicpu = None

    def on_cancelled(self) -> bool:
        self._undo_resize()
        return False

    def on_failure(self) -> Sequence[Work]:
        self._undo_resize()
        return NO_WORK

    def _expected(self) -> ContainerRecord | None:
        """The record as it is when the runtime has answered the updates that are on their way."""
        record = self.record
        if record is None:
            return None
        expected = with_updates(record, self.core.pending_updates.get(record.id, ()))
        self._parent = self.pod.cgroup_parent if self.pod is not None else ""
        self._booked = expected.booked
        # Which of two concurrent updates the runtime makes last is not known.
        self._in_force = record.booked if record.detailed and expected is record else None
        return expected

    def adjust(self) -> bool:
        """Puts the kubelet's values back into fields that no policy wants any more, and fits to bounds."""
        expected = self._expected()
        if expected is None:
            return False
        is_changed = self._put_back(expected) if expected.owners else False
        return self._fit_to_bounds() or is_changed

    def _put_back(self, expected: ContainerRecord) -> bool:
        self._released, change = put_back(expected, self._sent, self._decided)
        if not self._released:
            return False
        changed = edit_resources(self._request.linux, change, self._sent, self._in_force, update=True)
        self._forwarded = _given(self._request.linux)
        return changed

    def _fit_to_bounds(self) -> bool:
        """Changes what bounds of the pod's cgroup and above do not allow; returns whether anything was.

        The runtime writes all that its specification holds again, not only what the update carries.
        """
        given = _given(self._request.linux)
        values = partial(overlay, self._booked, given)
        fitted = values_within_bounds(self.core.ledger, self._parent, values)
        if not fitted:
            return False
        self._fitted = {**self._fitted, **fitted}
        changed = edit_resources(self._request.linux, fitted_change(fitted), given, update=True)
        self._forwarded = _given(self._request.linux)
        return changed

    def on_sent(self) -> None:
        """Updates that are decided from now on take this one into account."""
        self._update_key = self.turn_key
        self._update = PendingUpdate(self._sent, self._forwarded)
        self.core.pending_updates.setdefault(self._update_key, []).append(self._update)

    def on_end(self) -> Sequence[Work]:
        """The pod is resized before or after its containers, as the values rise or fall."""
        if self._pools_uid and self.core.pools is not None:
            self.core.pools.end(self._pools_uid)
        all_pending = self.core.pending_updates
        left = [each for each in all_pending.pop(self._update_key, ()) if each is not self._update]
        if left:
            all_pending[self._update_key] = left
        pod = self.pod
        cgroup = pod.cgroup_parent if pod is not None else ""
        if not is_resize(self._sent):
            return repair(self.core, cgroup)
        return resized(self.core, cgroup)

    def prepare(self) -> None:
        # It is valid afterwards unless the present record changes meanwhile.
        if self._before is not None:
            self._prepared = self._before, self._updated(self._before)

    def release(self) -> None:
        # All that is needed of it is read.
        self.request = self._request = api_pb2.UpdateContainerResourcesRequest()

    def on_success(self, response: bytes) -> Sequence[Work]:
        """Lays the update over the requested and the booked resources."""
        record = self.record
        if record is None:
            return NO_WORK
        before, updated = self._prepared or (None, record)
        # Another update may have ended meanwhile.
        updated = updated if before is record else self._updated(record)
        return on_container_updated(
            self.core, updated, self._sent, self._decided, self._fitted, self._evaluation, self.origin
        )

    def _updated(self, record: ContainerRecord) -> ContainerRecord:
        update = PendingUpdate(self._sent, self._forwarded)
        return updated_container(
            record, update, self._decided, self._fitted, self._released, self._annotations
        )

    async def confirm(self) -> Sequence[Work] | None:
        """Whether all reported values are those of the update; else it counts as failed."""
        found = await self.lookups.confirm_container(self.container_id)
        if found is None:
            self.core.store.containers.remove(self.container_id)
            return None
        return self.on_success(b"") if has_taken(self._forwarded, found.booked) else None

    def _edit(self, change: Change) -> bool:
        asked = cast("ContainerChange", change)
        changed = edit_entries(self._request.annotations, asked.annotations)
        if asked.resources is not None:
            linux = self._request.linux
            changed |= edit_resources(linux, asked.resources, self._sent, self._in_force, update=True)
        self._forwarded = _given(self._request.linux)
        self._annotations = kept_annotations(self._request.annotations)
        return changed


class UpdatePodSandboxResources(PodCall):
    """The kubelet has already set the pod's cgroup; after the call those of policies are set there again."""

    request_type = api_pb2.UpdatePodSandboxResourcesRequest

    def __init__(self, services: CallServices, request: api_pb2.UpdatePodSandboxResourcesRequest) -> None:
        super().__init__(services, request, request.pod_sandbox_id)
        self._request = request
        self._sent = self._forwarded = read_resources(request.resources)
        self._overhead = read_resources(request.overhead)
        self._in_force: Resources | None = None
        self._decided = NOTHING_DECIDED
        self._evaluation = services.core.evaluator.rounds

    def before(self) -> Sequence[Question]:
        """May change the resources."""
        record = self.record
        if record is None:
            return ()
        self._in_force = record.booked if record.detailed else None
        # As long as no policy has to run.
        self._decided = DecidedValues(silent=self.core.chain.unsettled)
        question = pod_question(Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES, self._asked(record))
        question.edit, question.is_deferred, question.on_decided = self._edit, True, self._keep_decision
        return (question,)

    def _keep_decision(self, decision: Decision | None) -> None:
        if decision is not None:
            self._decided = decided_values(decision, is_deferred=True)

    def on_end(self) -> Sequence[Work]:
        """Whatever the runtime answers: containerd 2.2 answers with an error, which the kubelet ignores."""
        record = self.record
        cgroup = record.cgroup_parent if record is not None else ""
        return resized(self.core, cgroup, by_parameter(self._sent))

    def on_success(self, response: bytes) -> Sequence[Work]:
        """Lays the update over the requested and the booked resources."""
        record = self.record
        if record is None:
            return NO_WORK
        booked = overlay(record.booked, self._forwarded)
        owners = merged_owners(record.owners, self._sent, self._decided.owners)
        return self._remember(replace(self._asked(record), booked=booked, owners=owners))

    def on_failure(self) -> Sequence[Work]:
        """Takes what the kubelet has set in the pod's cgroup; a runtime need not have this call.

        Source: containerd 1.6 answers UNIMPLEMENTED, which the kubelet ignores.
        """
        record = self.record
        return self._remember(self._asked(record)) if record is not None else NO_WORK

    def on_cancelled(self) -> bool:
        """Takes what the kubelet has set in the pod's cgroup."""
        record = self.record
        if record is None or (asked := self._asked(record)) == record:
            return False
        self.core.store.pods.put(asked)
        return True

    def _remember(self, updated: PodRecord) -> Sequence[Work]:
        return on_pod_updated(self.core, updated, self._decided, self._evaluation, self.origin)

    async def confirm(self) -> Sequence[Work] | None:
        """A status does not show it: the call counts as failed, and the kubelet repeats it."""
        found = await self.lookups.confirm_pod(self.pod_id)
        if found is None:
            self.core.store.remove_pod(self.pod_id)
        return None

    def _asked(self, record: PodRecord) -> PodRecord:
        sent = without_own_values(self.core, record.cgroup_parent, self._sent)
        return replace(
            record,
            requested=overlay(record.requested, sent),
            overhead=overlay(record.overhead, self._overhead),
        )

    def _edit(self, change: Change) -> bool:
        resources = cast("PodChange", change).resources
        message = self._request.resources
        changed = resources is not None and edit_resources(
            message, resources, self._sent, self._in_force, update=True
        )
        self._forwarded = read_resources(message)
        return changed


def _given(message: api_pb2.LinuxContainerResources) -> Resources:
    """The values of an update without those that runtimes take at the creation only."""
    found = read_resources(message)
    names = [name for name in CRI_FIELDS.keys() - UPDATABLE if getattr(found, name) is not None]
    without: dict[str, Any] = dict.fromkeys(names)
    return replace(found, **without) if without else found
