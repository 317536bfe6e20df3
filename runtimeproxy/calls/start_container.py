"""StartContainer: with its success the container's cgroup exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.calls.container_call import ContainerCall
from runtimeproxy.calls.cri_call import CallContext, DueWrites, Questions, slice_of
from runtimeproxy.hooks import Hook
from runtimeproxy.pods.records import Lifecycle
from runtimeproxy.pods.resources import NO_ENTRIES


class StartContainer(ContainerCall):
    """The kubelet starts a container; cgroup values that waited for it are due after that."""

    request_type = api_pb2.StartContainerRequest

    def __init__(self, context: CallContext, request: api_pb2.StartContainerRequest) -> None:
        super().__init__(context, request, request.container_id)
        self._due: Mapping[str, int | str] = NO_ENTRIES

    def questions(self) -> Questions:
        """Its cgroup values wait for the cgroup."""
        record = self.record
        if record is not None:
            yield self.question(Hook.PRE_START_CONTAINER, record)

    def succeeded(self, response: bytes) -> None:
        """The container runs."""
        record = self.record
        if record is None:
            return
        self._due = {**record.pending_cgroup, **self.pending}
        running = replace(record, state=Lifecycle.RUNNING, pending_cgroup=NO_ENTRIES)
        self.context.store.containers.put(running)

    def afterwards(self) -> Questions:
        """The container runs: its cgroup exists now."""
        record = self.record
        if record is not None:
            yield self.question(Hook.POST_START_CONTAINER, record)

    def due_writes(self) -> DueWrites | None:
        """What policies wanted at the creation and before the start."""
        record = self.record
        if record is None or not self._due:
            return None
        owners = {**record.owners, **self.pending_owners}
        return DueWrites(self.cgroup(record), self._due, record, self.pod, owners)

    @property
    def disturbed_cgroup(self) -> str:
        """The pod's slice: the container's scope was started in it."""
        return slice_of(self.pod)

    async def confirm(self) -> bool:
        """The container runs, or it does not."""
        found = await self.context.lookups.confirm_container(self.container_id)
        started = found is not None and found.state is Lifecycle.RUNNING
        if started:
            self.succeeded(b"")
        return started
