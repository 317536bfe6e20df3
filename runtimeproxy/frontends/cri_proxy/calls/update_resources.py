"""UpdateContainerResources and UpdatePodSandboxResources: partial updates, which stay partial."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.fields.tables import CRI_FIELDS, UPDATABLE
from runtimeproxy.frontends.cri_proxy.calls.cri_call import (
    ContainerCall,
    DueWrites,
    PodCall,
    Questions,
    book_container,
    container_cgroup,
    fitted_change,
    fitted_owners,
    merged_owners,
    pending_values,
    pod_question,
)
from runtimeproxy.frontends.cri_proxy.calls.edit_request import edit_entries, edit_resources
from runtimeproxy.frontends.cri_proxy.calls.interceptor import PendingUpdate
from runtimeproxy.hooks import CLEAR, ContainerChange, Hook, PodChange, ResourceChange, Resources
from runtimeproxy.hooks.fields import RESOURCES, UNIFIED, policies_in
from runtimeproxy.hooks.remote.registrations import SUFFIX
from runtimeproxy.ledger.answers import NO_FIELDS, by_parameter, claims_of, pod_values, target_of
from runtimeproxy.ledger.books import Wanted, with_fitted_claims
from runtimeproxy.pods.record_views import is_resize, recorded_container, recorded_pod
from runtimeproxy.pods.records import Lifecycle
from runtimeproxy.pods.resources import NO_ENTRIES, bounded, kept_annotations, overlay, read_resources

if TYPE_CHECKING:
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices
    from runtimeproxy.hooks.changes import Change
    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.hooks.fields import Field, MergedField
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
        self._owners: Mapping[str, str] = NO_ENTRIES
        self._released: Collection[str] = ()
        # What bounds above have changed, by cgroup parameter.
        self._fitted: Mapping[str, int | str] = NO_ENTRIES
        # The pod's cgroup, and what the runtime's specification holds; see `_expected`.
        self._parent = ""
        self._booked = Resources()
        self._pending: Mapping[str, int | str] = NO_ENTRIES
        # What all policies want now; None if they could not be asked.
        self._fields: Mapping[Field, MergedField] | None = NO_FIELDS
        self._silent: frozenset[str] = frozenset()
        self._evaluation = services.evaluation
        self._before: ContainerRecord | None = None
        # The record that it was made from, and the one that is valid afterwards.
        self._prepared: tuple[ContainerRecord, ContainerRecord] | None = None

    def find_records(self) -> bool:
        self._before, pod = self.record, self.pod
        # The pod is resized before or after its containers, as the values rise or fall.
        sent = self._sent
        self.is_resize = is_resize(sent)
        self.resized_cgroup = pod.cgroup_parent if pod is not None else ""
        if sent.cpu_quota_us is not None and pod is not None:
            cgroups = pod.cgroup_parent, self._cgroup
            self.sets_quota = any(map(self.services.writer.is_managed, filter(None, cgroups)))
        return super().find_records()

    def questions(self) -> Questions:
        """May change resources and annotations."""
        expected = self._expected()
        if expected is None:
            return
        # As long as no policy has to run.
        self._silent = self.services.chain.unsettled
        question = self.question(Hook.PRE_UPDATE_CONTAINER_RESOURCES, expected, self._sent)
        question.edit, question.is_deferred = self._edit, True
        if not self.sets_quota:
            question.new_quotas_us = partial(
                self._new_quotas_us, question.cgroup, self.pod, self._others(expected)
            )
        decision = yield question
        if decision is not None:
            self._owners, self._pending = decision.owners, pending_values(question, decision)
            self._silent = decision.without_answer
            self._fields = None if decision.unwritten else decision.merged.fields

    @property
    def _cgroup(self) -> str:
        """The container's; empty if it is not known, or not there yet."""
        record = self.record
        if record is None or record.state is Lifecycle.CREATED:
            return ""
        return container_cgroup(self.services, self.pod, record)

    def _others(self, record: ContainerRecord) -> Collection[Resources]:
        """The requested resources of the pod's other containers."""
        return [
            each.requested
            for each in self.services.store.containers.members(record.pod_id)
            if each.id != record.id and each.state is not Lifecycle.STOPPED
        ]

    def new_quotas_us(self) -> Mapping[str, int]:
        """Those of the edited request."""
        record = self.record
        return {} if record is None else self._new_quotas_us(self._cgroup, self.pod, self._others(record))

    def _new_quotas_us(
        self, cgroup: str, pod: PodRecord | None, others: Collection[Resources]
    ) -> Mapping[str, int]:
        """The new quota of the container, and that which the kubelet gives its pod after this call.

        The kernel refuses the kubelet's write, too, while the burst is above it.
        """
        sent_us, quota_us = self._sent.cpu_quota_us, self._forwarded.cpu_quota_us
        quotas_us: dict[str, int] = {}
        limits = [each.cpu_quota_us or -1 for each in others]
        if pod is not None and pod.cgroup_parent and sent_us and min(sent_us, *limits, sent_us) > 0:
            quotas_us[pod.cgroup_parent] = sent_us + sum(limits)
        if cgroup and quota_us:
            quotas_us[cgroup] = quota_us
        return quotas_us

    def _expected(self) -> ContainerRecord | None:
        """The record as it is when the runtime has answered the updates that are on their way."""
        record = self.record
        if record is None:
            return None
        expected = record
        for update in self.services.pending_updates.get(record.id, ()):
            expected = replace(
                expected,
                requested=overlay(expected.requested, update.sent),
                booked=overlay(expected.booked, update.forwarded),
            )
        self._parent = self.pod.cgroup_parent if self.pod is not None else ""
        self._booked = expected.booked
        # Which of two concurrent updates the runtime makes last is not known.
        self._in_force = record.booked if record.detailed and expected is record else None
        return expected

    def ride(self, decision: Decision | None) -> bool:
        """Puts the kubelet's values back into fields that no policy wants any more, and fits to bounds."""
        record = self.record
        if record is None:
            return False
        expected = self._expected() or record
        is_changed = self._put_back(record, expected, decision) if record.owners else False
        return self._fit() or is_changed

    def _put_back(
        self, record: ContainerRecord, expected: ContainerRecord, decision: Decision | None
    ) -> bool:
        requested = overlay(expected.requested, self._sent)
        wanted = decision.owners if decision is not None else NO_ENTRIES
        self._released = released = _released_fields(expected, requested, wanted, self._silent)
        if not released:
            return False
        change = _without(released, requested)
        changed = edit_resources(self._request.linux, change, self._sent, self._in_force, update=True)
        self._forwarded = _given(self._request.linux)
        return changed

    def _fit(self) -> bool:
        """Changes what bounds of the pod's cgroup and above do not allow; returns whether anything was.

        The runtime writes all that its specification holds again, not only what the update carries.
        """
        writer, given = self.services.writer, _given(self._request.linux)
        if not writer.is_bounded(self._parent):
            return False
        fitted = writer.within_bounds(self._parent, by_parameter(overlay(self._booked, given)))
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
        self.services.pending_updates.setdefault(self._update_key, []).append(self._update)

    def on_end(self) -> None:
        all_pending = self.services.pending_updates
        left = [each for each in all_pending.pop(self._update_key, ()) if each is not self._update]
        if left:
            all_pending[self._update_key] = left

    def prepare(self) -> None:
        """Makes the record that is valid afterwards unless the present one changes meanwhile."""
        if self._before is not None:
            self._prepared = self._before, self._updated(self._before)

    def release(self) -> None:
        """Drops the request: all that is needed of it is read."""
        self.request = self._request = api_pb2.UpdateContainerResourcesRequest()

    def on_success(self, response: bytes) -> None:
        """Lays the update over the requested and the booked resources."""
        record = self.record
        if record is None:
            return
        before, updated = self._prepared or (None, record)
        # Another update may have ended meanwhile.
        updated = updated if before is record else self._updated(record)
        self.services.store.containers.put(updated)
        self._note_requests()
        self._book(updated)

    def _note_requests(self) -> None:
        """Notes the pod's new sums; the kubelet writes them after this call if they are lower."""
        services, pod = self.services, self.pod
        if pod is None or not is_resize(self._sent):
            return
        if services.writer.is_managed(pod.cgroup_parent):
            members = services.store.containers.members(pod.id)
            running = [each for each in members if each.state is not Lifecycle.STOPPED]
            services.writer.note_requests(pod.cgroup_parent, pod_values(running))

    def _book(self, record: ContainerRecord) -> None:
        """Has the files compared with what policies want now, if they want or wanted anything."""
        services, pod, fields = self.services, self.pod, self._fields
        if fields is None or pod is None or record.state is Lifecycle.STOPPED:
            return
        if record.state is Lifecycle.CREATED:
            book_container(services, pod, record, fields, self._fitted)
            return
        cgroup = container_cgroup(services, pod, record)
        if cgroup and (fields or self._fitted or services.writer.is_managed(cgroup)):
            requested, booked = by_parameter(record.requested), by_parameter(record.booked)
            target = target_of(pod, record, cgroup)
            claims = claims_of(fields, is_container=True, is_base_known=not record.recovered)
            claims = with_fitted_claims(claims, self._fitted)
            wanted = Wanted(target, claims, requested, booked, silent=self._silent)
            hook = Hook.PRE_UPDATE_CONTAINER_RESOURCES
            make_view = partial(recorded_container, record, recorded_pod(pod))
            self.due_writes = (
                DueWrites(cgroup, self._pending, self._owners, hook, make_view, wanted, self._evaluation),
            )

    def _updated(self, record: ContainerRecord) -> ContainerRecord:
        # Policies see the annotations of updates from now on, as with Koordinator's proxy.
        annotations = record.annotations
        if self._annotations:
            # Many updates, each with others, would add up.
            annotations = bounded({**annotations, **self._annotations}) or annotations
        owners = {**fitted_owners(self._fitted), **self._owners}
        return replace(
            record,
            requested=overlay(record.requested, self._sent),
            booked=overlay(record.booked, self._forwarded),
            owners=merged_owners(record.owners, self._sent, owners, self._released),
            annotations=annotations,
            recovered=record.recovered and not is_resize(self._sent),
            pending_cgroup={**record.pending_cgroup, **self._pending}
            if record.state is Lifecycle.CREATED
            else record.pending_cgroup,
        )

    async def confirm(self) -> bool:
        """Whether all reported values are those of the update; else it counts as failed."""
        found = await self.services.lookups.confirm_container(self.container_id)
        if found is None:
            self.services.store.containers.remove(self.container_id)
            return False
        done = has_taken(self._forwarded, found.booked)
        if done:
            self.on_success(b"")
        return done

    def _edit(self, change: Change) -> bool:
        asked = cast("ContainerChange", change)
        changed = edit_entries(self._request.annotations, asked.annotations)
        if asked.resources is not None:
            linux = self._request.linux
            changed |= edit_resources(linux, asked.resources, self._sent, self._in_force, update=True)
        changed |= self._fit()
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
        self._owners: Mapping[str, str] = NO_ENTRIES
        self._pending: Mapping[str, int | str] = NO_ENTRIES
        self._fields: Mapping[Field, MergedField] | None = NO_FIELDS
        self._silent: frozenset[str] = frozenset()
        self._evaluation = services.evaluation

    def find_records(self) -> bool:
        record = self.record
        self.resized_cgroup = record.cgroup_parent if record is not None else ""
        self.written_there = by_parameter(self._sent)
        return super().find_records()

    def questions(self) -> Questions:
        """May change the resources."""
        record = self.record
        if record is None:
            return
        self._in_force = record.booked if record.detailed else None
        self._silent = self.services.chain.unsettled
        question = pod_question(Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES, self._asked(record))
        question.edit, question.is_deferred = self._edit, True
        decision = yield question
        if decision is not None:
            self._owners, self._pending = decision.owners, pending_values(question, decision)
            self._silent = decision.without_answer
            self._fields = None if decision.unwritten else decision.merged.fields

    def on_success(self, response: bytes) -> None:
        """Lays the update over the requested and the booked resources."""
        record = self.record
        if record is not None:
            booked = overlay(record.booked, self._forwarded)
            owners = merged_owners(record.owners, self._sent, self._owners)
            self._remember(replace(self._asked(record), booked=booked, owners=owners))

    def on_failure(self) -> None:
        """Takes what the kubelet has set in the pod's cgroup; a runtime need not have this call.

        Source: containerd 1.6 answers UNIMPLEMENTED, which the kubelet ignores.
        """
        record = self.record
        if record is not None:
            self._remember(self._asked(record))

    def on_cancelled(self) -> bool:
        """Takes what the kubelet has set in the pod's cgroup."""
        record = self.record
        if record is None or (asked := self._asked(record)) == record:
            return False
        self.services.store.pods.put(asked)
        return True

    def _remember(self, updated: PodRecord) -> None:
        self.services.store.pods.put(updated)
        cgroup, fields = updated.cgroup_parent, self._fields
        if cgroup and fields is not None and (fields or self.services.writer.is_managed(cgroup)):
            claims = claims_of(fields, is_container=False, is_base_known=not updated.recovered)
            wanted = Wanted(target_of(updated), claims, silent=self._silent)
            hook, make_view = Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES, partial(recorded_pod, updated)
            self.due_writes = (
                DueWrites(cgroup, self._pending, self._owners, hook, make_view, wanted, self._evaluation),
            )

    async def confirm(self) -> bool:
        """A status does not show it: the call counts as failed, and the kubelet repeats it."""
        found = await self.services.lookups.confirm_pod(self.pod_id)
        if found is None:
            self.services.store.remove_pod(self.pod_id)
        return False

    def _asked(self, record: PodRecord) -> PodRecord:
        return replace(
            record,
            requested=overlay(record.requested, self._sent),
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


def _released_fields(
    record: ContainerRecord, requested: Resources, wanted: Collection[str], held: frozenset[str]
) -> frozenset[str]:
    """The resources that a policy owns by the record and that none wants any more.

    What a hook server set still holds. A memory limit is not lowered in passing: if the container uses more,
    the kernel refuses it, and with it the whole update.

    Args:
        record: The container's.
        requested: What the kubelet has asked for.
        wanted: The fields that policies want now.
        held: The policies without an answer: what they wanted before still holds.
    """
    released: set[str] = set()
    for name, owner in record.owners.items():
        is_held = any(each in held or each.endswith(SUFFIX) for each in policies_in(owner))
        if name.startswith(RESOURCES) and name not in wanted and not is_held:
            released.add(name)
    limits = requested.memory_limit_bytes, record.booked.memory_limit_bytes
    if is_lower(*limits):
        released -= _MEMORY_LIMITS
    return frozenset(released)


def is_lower(limit_bytes: int | None, than_bytes: int | None) -> bool:
    """Whether a limit is lower than another one; None and -1 are no limit."""
    if limit_bytes is None or limit_bytes < 0:
        return False
    return than_bytes is None or than_bytes < 0 or limit_bytes < than_bytes


def _without(released: Collection[str], requested: Resources) -> ResourceChange:
    """The change that sets these fields to what the kubelet has asked for."""
    values = {name: getattr(requested, name) for name in CRI_FIELDS if f"{RESOURCES}.{name}" in released}
    cleared = {name: CLEAR if value is None else value for name, value in values.items()}
    prefix = f"{UNIFIED}["
    keys = [name.removeprefix(prefix).removesuffix("]") for name in released if name.startswith(prefix)]
    unified = {key: requested.unified.get(key, CLEAR) for key in keys}
    return ResourceChange(**cleared, unified=unified)


_MEMORY_LIMITS: Final = frozenset(
    (f"{RESOURCES}.memory_limit_bytes", f"{RESOURCES}.memory_swap_limit_bytes", f"{UNIFIED}[memory.max]")
)


def _given(message: api_pb2.LinuxContainerResources) -> Resources:
    """The values of an update without those that runtimes take at the creation only."""
    found = read_resources(message)
    names = [name for name in CRI_FIELDS.keys() - UPDATABLE if getattr(found, name) is not None]
    without: dict[str, Any] = dict.fromkeys(names)
    return replace(found, **without) if without else found


def has_taken(wanted: Resources, reported: Resources) -> bool:
    """Whether a runtime reports the values of an update; those that it does not report are ignored.

    Args:
        wanted: The values of an update.
        reported: The runtime's values after it.
    """
    pairs = [(name, getattr(wanted, name), getattr(reported, name)) for name in UPDATABLE]
    is_same = [CRI_FIELDS[name].is_same(*pair) for name, *pair in pairs if None not in pair]
    is_same += [
        reported.unified[key] == value for key, value in wanted.unified.items() if key in reported.unified
    ]
    return bool(is_same) and all(is_same)
