"""StartContainer: with its success the container's cgroup exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.frontends.cri_proxy.calls.cri_call import (
    ContainerCall,
    DueWrites,
    Questions,
    container_cgroup,
    pending_values,
    slice_of,
)
from runtimeproxy.hooks import ContainerView, Hook, PodView
from runtimeproxy.ledger.answers import by_parameter
from runtimeproxy.pods.record_views import recorded_container, recorded_pod
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.resources import NO_ENTRIES

if TYPE_CHECKING:
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices


class StartContainer(ContainerCall):
    """The kubelet starts a container; cgroup values that waited for it are due after that."""

    request_type = api_pb2.StartContainerRequest

    def __init__(self, services: CallServices, request: api_pb2.StartContainerRequest) -> None:
        super().__init__(services, request, request.container_id)
        self._pending: Mapping[str, int | str] = NO_ENTRIES
        self._owners: Mapping[str, str] = NO_ENTRIES

    def find_records(self) -> bool:
        parent = self.pod.cgroup_parent if self.pod is not None else ""
        ledger = self.services.ledger
        self.room_cgroup = parent if ledger.needs_room(parent) else ""
        return super().find_records()

    def room(self) -> Mapping[str, int | str]:
        """Those of the runtime's specification."""
        return by_parameter(self.record.booked) if self.record is not None else NO_ENTRIES

    def questions(self) -> Questions:
        """Cgroup values wait for the cgroup."""
        record = self.record
        if record is not None:
            question = self.question(Hook.PRE_START_CONTAINER, record)
            decision = yield question
            self._pending = pending_values(question, decision)
            if decision is not None and self._pending:
                self._owners = decision.owners

    def on_success(self, response: bytes) -> None:
        """The container runs."""
        record, pod = self.record, self.pod
        if record is None:
            return
        running = replace(record, state=Lifecycle.RUNNING, pending_cgroup=NO_ENTRIES)
        self.services.store.containers.put(running)
        self.services.catch_up(running.pod_id, running.evaluation)
        # The container's scope was started in the pod's slice.
        self.disturbed_cgroup = slice_of(pod)
        values = {**record.pending_cgroup, **self._pending}
        if values:
            cgroup, owners = container_cgroup(self.services, pod, running), {**record.owners, **self._owners}
            self.due_writes = (due_writes_of(cgroup, values, owners, running, pod),)

    def post_questions(self) -> Questions:
        """The container's cgroup exists now."""
        record = self.record
        if record is not None:
            yield self.question(Hook.POST_START_CONTAINER, record)

    async def confirm(self) -> bool:
        """Whether the container runs."""
        found = await self.services.lookups.confirm_container(self.container_id)
        started = found is not None and found.state is Lifecycle.RUNNING
        if started:
            self.on_success(b"")
        return started


def due_writes_of(
    cgroup: str,
    values: Mapping[str, int | str],
    owners: Mapping[str, str],
    record: ContainerRecord,
    pod: PodRecord | None,
) -> DueWrites:
    """The cgroup values of a container that has waited for its start."""

    def make_view() -> ContainerView:
        return recorded_container(record, PodView() if pod is None else recorded_pod(pod))

    return DueWrites(cgroup, values, owners, Hook.POST_START_CONTAINER, make_view)


def take_due_writes(services: CallServices) -> list[DueWrites]:
    """The cgroup values that still wait although their container runs: a StartContainer response was lost.

    They no longer wait after this.
    """
    due: list[DueWrites] = []
    store = services.store
    for record in store.containers:
        if record.state is not Lifecycle.RUNNING or not record.pending_cgroup:
            continue
        pod = store.pods.get(record.pod_id)
        cgroup = container_cgroup(services, pod, record)
        if cgroup:
            due.append(due_writes_of(cgroup, record.pending_cgroup, record.owners, record, pod))
            store.containers.put(replace(record, pending_cgroup=NO_ENTRIES))
    return due
