"""UpdateContainerResources: partial updates by the kubelet, which stay partial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.calls.container_call import ContainerCall
from runtimeproxy.calls.edits import edit_container_update
from runtimeproxy.calls.operation import CallContext, Questions, merged_owners
from runtimeproxy.hooks import ContainerChange, Hook
from runtimeproxy.pods.resources import NO_ENTRIES, overlay, read_resources

if TYPE_CHECKING:
    from runtimeproxy.hooks import CgroupChange, Resources


class UpdateContainerResources(ContainerCall):
    """The kubelet resizes a container or moves it to other CPUs.

    Only the fields that the kubelet sent or that a policy changes now reach the runtime.
    """

    def __init__(self, context: CallContext, body: bytes) -> None:
        request = api_pb2.UpdateContainerResourcesRequest.FromString(body)
        super().__init__(context, request.container_id)
        self.request = request
        self._request = request
        self._sent = read_resources(request.linux)
        self._in_force: Resources | None = None
        self._owners: Mapping[str, str] = NO_ENTRIES

    def questions(self) -> Questions:
        """May change resources and annotations."""
        record = self.record
        if record is None:
            return
        self._in_force = record.applied if record.detailed else None
        question = self.question(Hook.PRE_UPDATE_CONTAINER_RESOURCES, record, self._sent)
        question.edit = self._edit
        decision = yield question
        if decision is not None:
            self._owners = decision.owners

    def succeeded(self, response: bytes) -> None:
        """Lays the update over what was requested and over what was applied."""
        record = self.record
        if record is None:
            return
        updated = replace(
            record,
            requested=overlay(record.requested, self._sent),
            applied=overlay(record.applied, read_resources(self._request.linux)),
            owners=merged_owners(record.owners, self._sent, self._owners),
            pending_cgroup={**record.pending_cgroup, **self.pending} or NO_ENTRIES,
        )
        self.context.store.containers.put(updated)

    def afterwards(self) -> Questions:
        """The update is done."""
        record = self.record
        if record is not None:
            yield self.question(Hook.POST_UPDATE_CONTAINER_RESOURCES, record, self._sent)

    async def confirm(self) -> bool:
        """The container has every value of the update, or the update counts as failed."""
        found = await self.context.lookups.confirm_container(self.container_id)
        if found is None:
            self.context.store.containers.remove(self.container_id)
            return False
        wanted = read_resources(self._request.linux)
        done = overlay(found.applied, wanted) == found.applied
        if done:
            self.succeeded(b"")
        return done

    def _edit(self, change: CgroupChange) -> bool:
        return edit_container_update(self._request, cast("ContainerChange", change), self._in_force)
