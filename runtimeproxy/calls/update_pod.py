"""UpdatePodSandboxResources: the kubelet has resized a pod's cgroup and tells the runtime (since 1.33)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.calls.container_call import PodCall
from runtimeproxy.calls.cri_call import CallContext, Question, Questions, merged_owners
from runtimeproxy.calls.edit_request import edit_update
from runtimeproxy.calls.to_views import recorded_pod
from runtimeproxy.hooks import Hook, PodChange
from runtimeproxy.pods.resources import NO_ENTRIES, overlay, read_resources

if TYPE_CHECKING:
    from runtimeproxy.hooks import CgroupChange, Resources
    from runtimeproxy.pods.records import PodRecord


class UpdatePodSandboxResources(PodCall):
    """The kubelet has already set the pod's cgroup, so policies get to set their values there again."""

    request_type = api_pb2.UpdatePodSandboxResourcesRequest

    def __init__(self, context: CallContext, request: api_pb2.UpdatePodSandboxResourcesRequest) -> None:
        super().__init__(context, request, request.pod_sandbox_id)
        self._request = request
        self._sent = self._carried = read_resources(request.resources)
        self._overhead = read_resources(request.overhead)
        self._in_force: Resources | None = None
        self._owners: Mapping[str, str] = NO_ENTRIES

    def questions(self) -> Questions:
        """May change the resources."""
        record = self.record
        if record is None:
            return
        self._in_force = record.applied if record.detailed else None
        asked = self._asked(record)
        view = recorded_pod(asked)
        decision = yield Question(
            Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES, view, self._edit, record.cgroup_parent
        )
        if decision is not None:
            self._owners = decision.owners

    def succeeded(self, response: bytes) -> None:
        """Lays the update over what was requested and over what was applied."""
        record = self.record
        if record is None:
            return
        updated = replace(
            self._asked(record),
            applied=overlay(record.applied, self._carried),
            owners=merged_owners(record.owners, self._sent, self._owners),
        )
        self.context.store.pods.put(updated)

    def afterwards(self) -> Questions:
        """The sandbox's resources are updated."""
        record = self.record
        if record is not None:
            view = recorded_pod(record)
            yield Question(Hook.POST_UPDATE_POD_SANDBOX_RESOURCES, view, cgroup=record.cgroup_parent)

    @property
    def resized_cgroup(self) -> str:
        """The pod's cgroup."""
        record = self.record
        return record.cgroup_parent if record is not None else ""

    async def confirm(self) -> bool:
        """Nothing in a status tells: the call counts as failed, and the kubelet repeats it."""
        found = await self.context.lookups.confirm_pod(self.pod_id)
        if found is None:
            self.context.store.remove_pod(self.pod_id)
        return False

    def _asked(self, record: PodRecord) -> PodRecord:
        return replace(
            record,
            requested=overlay(record.requested, self._sent),
            overhead=overlay(record.overhead, self._overhead),
        )

    def _edit(self, change: CgroupChange) -> bool:
        resources = cast("PodChange", change).resources
        changed = resources is not None and edit_update(self._request.resources, resources, self._in_force)
        self._carried = read_resources(self._request.resources)
        return changed
