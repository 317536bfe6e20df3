"""Stop and Remove of containers and sandboxes.

The kubelet repeats these calls, but their hooks run once per real stop or removal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.core.questions import NO_WORK, Question, container_question, pod_question
from runtimeproxy.frontends.cri_proxy.calls.cri_call import ContainerCall, PodCall
from runtimeproxy.hooks import Hook
from runtimeproxy.pods.records import Lifecycle

if TYPE_CHECKING:
    from runtimeproxy.core.services import Work
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices


class StopContainer(ContainerCall):
    """The kubelet stops a container; the record stays until the container is removed."""

    request_type = api_pb2.StopContainerRequest

    def __init__(self, services: CallServices, request: api_pb2.StopContainerRequest) -> None:
        super().__init__(services, request, request.container_id)
        self._was_running = False

    def on_success(self, response: bytes) -> Sequence[Work]:
        record = self.record
        self._was_running = record is not None and record.state is not Lifecycle.STOPPED
        if record is not None and self._was_running:
            self.core.store.containers.put(replace(record, state=Lifecycle.STOPPED))
        return NO_WORK

    def after(self) -> Sequence[Question]:
        record = self.record
        if record is None or not self._was_running:
            return ()
        return (self.question(Hook.POST_STOP_CONTAINER, record),)

    async def confirm(self) -> Sequence[Work] | None:
        """Whether the container has stopped or is gone."""
        found = await self.lookups.confirm_container(self.container_id)
        return self.on_success(b"") if found is None or found.state is Lifecycle.STOPPED else None


class StopPodSandbox(PodCall):
    """The kubelet stops a sandbox; the record stays until the sandbox is removed."""

    request_type = api_pb2.StopPodSandboxRequest

    def __init__(self, services: CallServices, request: api_pb2.StopPodSandboxRequest) -> None:
        super().__init__(services, request, request.pod_sandbox_id)
        self._was_running = False

    def on_success(self, response: bytes) -> Sequence[Work]:
        record = self.record
        self._was_running = record is not None and record.state is not Lifecycle.STOPPED
        if record is not None and self._was_running:
            self.core.store.pods.put(replace(record, state=Lifecycle.STOPPED))
        return NO_WORK

    def after(self) -> Sequence[Question]:
        record = self.record
        if record is None or not self._was_running:
            return ()
        return (pod_question(Hook.POST_STOP_POD_SANDBOX, record, has_cgroup=False),)

    async def confirm(self) -> Sequence[Work] | None:
        """Whether the sandbox has stopped or is gone."""
        found = await self.lookups.confirm_pod(self.pod_id)
        return self.on_success(b"") if found is None or found.state is Lifecycle.STOPPED else None


class RemoveContainer(ContainerCall):
    """The kubelet removes a container; its record is dropped."""

    request_type = api_pb2.RemoveContainerRequest

    def __init__(self, services: CallServices, request: api_pb2.RemoveContainerRequest) -> None:
        super().__init__(services, request, request.container_id)
        self._removed: Sequence[Question] = ()
        self._is_gone = False

    async def fetch_records(self) -> None:
        # The runtime knows nothing of a removed container.
        if not self._is_gone:
            await super().fetch_records()

    def on_success(self, response: bytes) -> Sequence[Work]:
        record = self.record
        if record is not None:
            self.pod_key = record.pod_id
            self._removed = (self.question(Hook.POST_REMOVE_CONTAINER, record),)
        self._is_gone = True
        self.core.store.containers.remove(self.container_id)
        return NO_WORK

    def after(self) -> Sequence[Question]:
        return self._removed

    async def confirm(self) -> Sequence[Work] | None:
        """Whether the container is gone."""
        found = await self.lookups.confirm_container(self.container_id)
        return self.on_success(b"") if found is None else None


class RemovePodSandbox(PodCall):
    """The kubelet removes a sandbox and its containers; their records are dropped."""

    request_type = api_pb2.RemovePodSandboxRequest

    def __init__(self, services: CallServices, request: api_pb2.RemovePodSandboxRequest) -> None:
        super().__init__(services, request, request.pod_sandbox_id)
        self._removed: Sequence[Question] = ()
        self._is_gone = False

    async def fetch_records(self) -> None:
        # The runtime knows nothing of a removed sandbox.
        if not self._is_gone:
            await super().fetch_records()

    def on_success(self, response: bytes) -> Sequence[Work]:
        pod, store = self.record, self.core.store
        if pod is not None:
            containers = store.containers.members(pod.id)
            self._removed = tuple(
                container_question(self.core.inventory, Hook.POST_REMOVE_CONTAINER, each, pod)
                for each in containers
            )
        self._is_gone = True
        store.remove_pod(self.pod_id)
        return NO_WORK

    def after(self) -> Sequence[Question]:
        # The containers that have gone with the sandbox.
        return self._removed

    async def confirm(self) -> Sequence[Work] | None:
        """Whether the sandbox is gone."""
        found = await self.lookups.confirm_pod(self.pod_id)
        return self.on_success(b"") if found is None else None
