"""UpdateContainerResources: partial updates by the kubelet, which stay partial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.calls.container_call import ContainerCall
from runtimeproxy.calls.cri_call import CallContext, Questions, UpdateUnderWay, merged_owners
from runtimeproxy.calls.edit_request import edit_container_update
from runtimeproxy.hooks import ContainerChange, Hook
from runtimeproxy.pods.reconcile import COMPARED, same_value
from runtimeproxy.pods.records import compact
from runtimeproxy.pods.resources import NO_ENTRIES, overlay, read_resources

if TYPE_CHECKING:
    from runtimeproxy.hooks import CgroupChange, Resources
    from runtimeproxy.pods.records import ContainerRecord


class UpdateContainerResources(ContainerCall):
    """The kubelet resizes a container or moves it to other CPUs.

    Only the fields that the kubelet sent or that a policy changes now reach the runtime.
    """

    request_type = api_pb2.UpdateContainerResourcesRequest

    def __init__(self, context: CallContext, request: api_pb2.UpdateContainerResourcesRequest) -> None:
        super().__init__(context, request, request.container_id)
        self._request = request
        self._annotations = compact(request.annotations)
        self._sent = self._carried = read_resources(request.linux)
        self._in_force: Resources | None = None
        self._under_way: UpdateUnderWay | None = None
        self._key = ""
        self._owners: Mapping[str, str] = NO_ENTRIES
        self._prepared: tuple[ContainerRecord, ContainerRecord] | None = None

    def questions(self) -> Questions:
        """May change resources and annotations."""
        record = self.record
        if record is None:
            return
        expected = self._expected(record)
        # While another update is under way, nobody knows whose value the runtime will have.
        is_known = record.detailed and expected is record
        self._in_force = record.applied if is_known else None
        question = self.question(Hook.PRE_UPDATE_CONTAINER_RESOURCES, expected, self._sent)
        question.edit = self._edit
        decision = yield question
        if decision is not None:
            self._owners = decision.owners

    def sent(self) -> None:
        """Updates that are decided meanwhile count with it."""
        self._key = self.turn_key
        self._under_way = UpdateUnderWay(self._sent, self._carried)
        self.context.updates_under_way.setdefault(self._key, []).append(self._under_way)

    def over(self) -> None:
        """It is in the record, or was never in force."""
        all_under_way = self.context.updates_under_way
        left = [each for each in all_under_way.pop(self._key, ()) if each is not self._under_way]
        if left:
            all_under_way[self._key] = left

    def preparation(self) -> Callable[[], None] | None:
        """Makes the record that counts afterwards, if nothing else happens meanwhile."""
        record = self.record
        return None if record is None else partial(self._prepare, record)

    def release(self) -> None:
        """Drops the request: all that is needed of it is read."""
        self.request = self._request = api_pb2.UpdateContainerResourcesRequest()

    def _prepare(self, record: ContainerRecord) -> None:
        self._prepared = record, self._updated(record)

    def succeeded(self, response: bytes) -> None:
        """Lays the update over what was requested and over what was applied."""
        record = self.record
        if record is None:
            return
        if self._prepared is not None and self._prepared[0] is record:
            updated = self._prepared[1]
        else:
            updated = self._updated(record)
        self.context.store.containers.put(updated)

    def _updated(self, record: ContainerRecord) -> ContainerRecord:
        return replace(
            record,
            requested=overlay(record.requested, self._sent),
            applied=overlay(record.applied, self._carried),
            owners=merged_owners(record.owners, self._sent, self._owners),
            # What hooks are shown from now on, as they are with Koordinator's proxy.
            annotations=_joined(record.annotations, self._annotations),
            pending_cgroup={**record.pending_cgroup, **self.pending} or NO_ENTRIES,
        )

    def afterwards(self) -> Questions:
        """The update is done."""
        record = self.record
        if record is not None:
            yield self.question(Hook.POST_UPDATE_CONTAINER_RESOURCES, record, self._sent)

    @property
    def resized_cgroup(self) -> str:
        """The pod's cgroup: it is resized before or after its containers, as the values rise or fall."""
        pod = self.pod
        return pod.cgroup_parent if pod is not None else ""

    async def confirm(self) -> bool:
        """The container has every value of the update that is reported, or the update counts as failed."""
        found = await self.context.lookups.confirm_container(self.container_id)
        if found is None:
            self.context.store.containers.remove(self.container_id)
            return False
        done = has_taken(self._carried, found.applied)
        if done:
            self.succeeded(b"")
        return done

    def _expected(self, record: ContainerRecord) -> ContainerRecord:
        """The record with what is under way: with it the policies' answers are compared."""
        for each in self.context.updates_under_way.get(record.id, ()):
            record = replace(
                record,
                requested=overlay(record.requested, each.sent),
                applied=overlay(record.applied, each.carried),
            )
        return record

    def _edit(self, change: CgroupChange) -> bool:
        changed = edit_container_update(self._request, cast("ContainerChange", change), self._in_force)
        self._carried = read_resources(self._request.linux)
        self._annotations = compact(self._request.annotations)
        return changed


def _joined(before: Mapping[str, str], newer: Mapping[str, str]) -> Mapping[str, str]:
    return {**before, **newer} if newer else before


def has_taken(wanted: Resources, reported: Resources) -> bool:
    """Whether a runtime reports what it was asked for; what it does not report tells nothing.

    Args:
        wanted: The values of an update.
        reported: What the runtime says after it.
    """
    pairs = [(name, getattr(wanted, name), getattr(reported, name)) for name in COMPARED]
    told = [same_value(*pair) for pair in pairs if None not in pair[1:]]
    told += [
        reported.unified[key] == value for key, value in wanted.unified.items() if key in reported.unified
    ]
    return bool(told) and all(told)
