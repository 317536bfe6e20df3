"""Stop and Remove of containers and sandboxes.

The kubelet repeats these calls, but their hooks run once per real stop or removal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.frontends.cri_proxy.calls.cri_call import (
    ContainerCall,
    PodCall,
    Question,
    Questions,
    container_question,
    pod_question,
)
from runtimeproxy.hooks import Hook
from runtimeproxy.pods.records import Lifecycle

if TYPE_CHECKING:
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices


class StopContainer(ContainerCall):
    """The kubelet stops a container; the record stays until the container is removed."""

    request_type = api_pb2.StopContainerRequest

    def __init__(self, services: CallServices, request: api_pb2.StopContainerRequest) -> None:
        super().__init__(services, request, request.container_id)
        self._was_running = False

    def on_success(self, response: bytes) -> None:
        record = self.record
        self._was_running = record is not None and record.state is not Lifecycle.STOPPED
        if record is not None and self._was_running:
            self.services.store.containers.put(replace(record, state=Lifecycle.STOPPED))

    def post_questions(self) -> Questions:
        record = self.record
        if record is not None and self._was_running:
            yield self.question(Hook.POST_STOP_CONTAINER, record)

    async def confirm(self) -> bool:
        """Whether the container has stopped or is gone."""
        found = await self.services.lookups.confirm_container(self.container_id)
        stopped = found is None or found.state is Lifecycle.STOPPED
        if stopped:
            self.on_success(b"")
        return stopped


class StopPodSandbox(PodCall):
    """The kubelet stops a sandbox; the record stays until the sandbox is removed."""

    request_type = api_pb2.StopPodSandboxRequest

    def __init__(self, services: CallServices, request: api_pb2.StopPodSandboxRequest) -> None:
        super().__init__(services, request, request.pod_sandbox_id)
        self._was_running = False

    def on_success(self, response: bytes) -> None:
        record = self.record
        self._was_running = record is not None and record.state is not Lifecycle.STOPPED
        if record is not None and self._was_running:
            self.services.store.pods.put(replace(record, state=Lifecycle.STOPPED))

    def post_questions(self) -> Questions:
        record = self.record
        if record is not None and self._was_running:
            yield pod_question(Hook.POST_STOP_POD_SANDBOX, record, has_cgroup=False)

    async def confirm(self) -> bool:
        """Whether the sandbox has stopped or is gone."""
        found = await self.services.lookups.confirm_pod(self.pod_id)
        stopped = found is None or found.state is Lifecycle.STOPPED
        if stopped:
            self.on_success(b"")
        return stopped


class RemoveContainer(ContainerCall):
    """The kubelet removes a container; its record is dropped."""

    request_type = api_pb2.RemoveContainerRequest

    def __init__(self, services: CallServices, request: api_pb2.RemoveContainerRequest) -> None:
        super().__init__(services, request, request.container_id)
        self._removed: Question | None = None
        self._is_gone = False

    async def fetch_records(self) -> None:
        """The runtime knows nothing of a removed container."""
        if not self._is_gone:
            await super().fetch_records()

    def on_success(self, response: bytes) -> None:
        record = self.record
        if record is not None:
            self.pod_key = record.pod_id
            self._removed = self.question(Hook.POST_REMOVE_CONTAINER, record)
        self._is_gone = True
        self.services.store.containers.remove(self.container_id)

    def post_questions(self) -> Questions:
        if self._removed is not None:
            yield self._removed

    async def confirm(self) -> bool:
        """Whether the container is gone."""
        gone = await self.services.lookups.confirm_container(self.container_id) is None
        if gone:
            self.on_success(b"")
        return gone


class RemovePodSandbox(PodCall):
    """The kubelet removes a sandbox and its containers; their records are dropped."""

    request_type = api_pb2.RemovePodSandboxRequest

    def __init__(self, services: CallServices, request: api_pb2.RemovePodSandboxRequest) -> None:
        super().__init__(services, request, request.pod_sandbox_id)
        self._removed: tuple[Question, ...] = ()
        self._is_gone = False

    async def fetch_records(self) -> None:
        """The runtime knows nothing of a removed sandbox."""
        if not self._is_gone:
            await super().fetch_records()

    def on_success(self, response: bytes) -> None:
        pod, store = self.record, self.services.store
        if pod is not None:
            containers = store.containers.members(pod.id)
            self._removed = tuple(
                container_question(self.services, Hook.POST_REMOVE_CONTAINER, each, pod)
                for each in containers
            )
        self._is_gone = True
        store.remove_pod(self.pod_id)

    def post_questions(self) -> Questions:
        """Containers that have gone with the sandbox."""
        yield from self._removed

    async def confirm(self) -> bool:
        """Whether the sandbox is gone."""
        gone = await self.services.lookups.confirm_pod(self.pod_id) is None
        if gone:
            self.on_success(b"")
        return gone
