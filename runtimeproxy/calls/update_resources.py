"""UpdateContainerResources and UpdatePodSandboxResources: partial updates, which stay partial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.calls.cri_call import (
    ContainerCall,
    PodCall,
    Questions,
    merged_owners,
    pending_values,
    pod_question,
)
from runtimeproxy.calls.edit_request import edit_entries, edit_resources
from runtimeproxy.calls.interceptor import PendingUpdate
from runtimeproxy.hooks import ContainerChange, Hook, PodChange
from runtimeproxy.pods.reconcile import COMPARED, same_value
from runtimeproxy.pods.resources import NO_ENTRIES, compact, overlay, read_resources

if TYPE_CHECKING:
    from runtimeproxy.calls.interceptor import CallServices
    from runtimeproxy.hooks import CgroupChange, Resources
    from runtimeproxy.pods.records import ContainerRecord, PodRecord


class UpdateContainerResources(ContainerCall):
    """The kubelet resizes a container or moves it to other CPUs.

    Only the fields that the kubelet sent or that a policy changes now reach the runtime.
    """

    request_type = api_pb2.UpdateContainerResourcesRequest

    def __init__(self, services: CallServices, request: api_pb2.UpdateContainerResourcesRequest) -> None:
        super().__init__(services, request, request.container_id)
        self._request = request
        self._annotations = compact(request.annotations)
        self._sent = self._forwarded = read_resources(request.linux)
        self._in_force: Resources | None = None
        self._update: PendingUpdate | None = None
        self._update_key = ""
        self._owners: Mapping[str, str] = NO_ENTRIES
        self._pending: Mapping[str, int | str] = NO_ENTRIES
        self._before: ContainerRecord | None = None
        # The record that it was made from, and the one that is valid afterwards.
        self._prepared: tuple[ContainerRecord, ContainerRecord] | None = None

    def find_records(self) -> bool:
        self._before, pod = self.record, self.pod
        # The pod is resized before or after its containers, as the values rise or fall.
        self.resized_cgroup = pod.cgroup_parent if pod is not None else ""
        return super().find_records()

    def questions(self) -> Questions:
        """May change resources and annotations."""
        record = self.record
        if record is None:
            return
        expected = record
        # Policies see the values of the updates that the runtime has not answered yet.
        for update in self.services.pending_updates.get(record.id, ()):
            expected = replace(
                expected,
                requested=overlay(expected.requested, update.sent),
                booked=overlay(expected.booked, update.forwarded),
            )
        # Which of two concurrent updates the runtime makes last is not known.
        self._in_force = record.booked if record.detailed and expected is record else None
        question = self.question(Hook.PRE_UPDATE_CONTAINER_RESOURCES, expected, self._sent)
        question.edit = self._edit
        decision = yield question
        if decision is not None:
            self._owners, self._pending = decision.owners, pending_values(question, decision)

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
        self.services.store.containers.put(updated if before is record else self._updated(record))

    def _updated(self, record: ContainerRecord) -> ContainerRecord:
        # Policies see the annotations of updates from now on, as with Koordinator's proxy.
        annotations = {**record.annotations, **self._annotations} if self._annotations else record.annotations
        return replace(
            record,
            requested=overlay(record.requested, self._sent),
            booked=overlay(record.booked, self._forwarded),
            owners=merged_owners(record.owners, self._sent, self._owners),
            annotations=annotations,
            pending_cgroup={**record.pending_cgroup, **self._pending} or NO_ENTRIES,
        )

    def post_questions(self) -> Questions:
        record = self.record
        if record is not None:
            yield self.question(Hook.POST_UPDATE_CONTAINER_RESOURCES, record, self._sent)

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

    def _edit(self, change: CgroupChange) -> bool:
        asked = cast("ContainerChange", change)
        changed = edit_entries(self._request.annotations, asked.annotations)
        if asked.resources is not None:
            linux = self._request.linux
            changed |= edit_resources(linux, asked.resources, self._sent, self._in_force, update=True)
        self._forwarded = read_resources(self._request.linux)
        self._annotations = compact(self._request.annotations)
        return changed


class UpdatePodSandboxResources(PodCall):
    """The kubelet has already set the pod's cgroup; post hooks set the values of policies there again."""

    request_type = api_pb2.UpdatePodSandboxResourcesRequest

    def __init__(self, services: CallServices, request: api_pb2.UpdatePodSandboxResourcesRequest) -> None:
        super().__init__(services, request, request.pod_sandbox_id)
        self._request = request
        self._sent = self._forwarded = read_resources(request.resources)
        self._overhead = read_resources(request.overhead)
        self._in_force: Resources | None = None
        self._owners: Mapping[str, str] = NO_ENTRIES

    def find_records(self) -> bool:
        record = self.record
        self.resized_cgroup = record.cgroup_parent if record is not None else ""
        return super().find_records()

    def questions(self) -> Questions:
        """May change the resources."""
        record = self.record
        if record is None:
            return
        self._in_force = record.booked if record.detailed else None
        question = pod_question(Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES, self._asked(record))
        question.edit = self._edit
        decision = yield question
        if decision is not None:
            self._owners = decision.owners

    def on_success(self, response: bytes) -> None:
        """Lays the update over the requested and the booked resources."""
        record = self.record
        if record is None:
            return
        updated = replace(
            self._asked(record),
            booked=overlay(record.booked, self._forwarded),
            owners=merged_owners(record.owners, self._sent, self._owners),
        )
        self.services.store.pods.put(updated)

    def post_questions(self) -> Questions:
        record = self.record
        if record is not None:
            yield pod_question(Hook.POST_UPDATE_POD_SANDBOX_RESOURCES, record)

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

    def _edit(self, change: CgroupChange) -> bool:
        resources = cast("PodChange", change).resources
        message = self._request.resources
        changed = resources is not None and edit_resources(
            message, resources, self._sent, self._in_force, update=True
        )
        self._forwarded = read_resources(message)
        return changed


def has_taken(wanted: Resources, reported: Resources) -> bool:
    """Whether a runtime reports the values of an update; those that it does not report are ignored.

    Args:
        wanted: The values of an update.
        reported: The runtime's values after it.
    """
    pairs = [(name, getattr(wanted, name), getattr(reported, name)) for name in COMPARED]
    is_same = [same_value(*pair) for pair in pairs if None not in pair[1:]]
    is_same += [
        reported.unified[key] == value for key, value in wanted.unified.items() if key in reported.unified
    ]
    return bool(is_same) and all(is_same)
