"""RemoveContainer and RemovePodSandbox: with their success the records are forgotten."""

from __future__ import annotations

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.calls.container_call import ContainerCall, PodCall
from runtimeproxy.calls.cri_call import CallContext, Question, Questions
from runtimeproxy.calls.to_views import recorded_pod
from runtimeproxy.hooks import Hook, PodView


class RemoveContainer(ContainerCall):
    """The kubelet removes a container, perhaps more than once."""

    request_type = api_pb2.RemoveContainerRequest

    def __init__(self, context: CallContext, request: api_pb2.RemoveContainerRequest) -> None:
        super().__init__(context, request, request.container_id)
        self._last: Question | None = None
        self._last_pod_id = ""

    def questions(self) -> Questions:
        """It is about to be removed."""
        record = self.record
        if record is not None:
            yield self.question(Hook.PRE_REMOVE_CONTAINER, record)

    def succeeded(self, response: bytes) -> None:
        """Forgets the container."""
        record = self.record
        if record is not None:
            self._last = self.question(Hook.POST_REMOVE_CONTAINER, record)
            self._last_pod_id = record.pod_id
        self.context.store.containers.remove(self.container_id)

    @property
    def pod_keys(self) -> tuple[str, ...]:
        """The sandbox's id, as it was before the record went."""
        return (self._last_pod_id,)

    def afterwards(self) -> Questions:
        """Only if there was something to forget."""
        if self._last is not None:
            yield self._last

    async def confirm(self) -> bool:
        """The container is gone, or it is not."""
        gone = await self.context.lookups.confirm_container(self.container_id) is None
        if gone:
            self.succeeded(b"")
        return gone


class RemovePodSandbox(PodCall):
    """The kubelet removes a sandbox, and with it the containers in it."""

    request_type = api_pb2.RemovePodSandboxRequest

    def __init__(self, context: CallContext, request: api_pb2.RemovePodSandboxRequest) -> None:
        super().__init__(context, request, request.pod_sandbox_id)
        self._last_view: PodView | None = None

    def questions(self) -> Questions:
        """It is about to be removed."""
        record = self.record
        if record is not None:
            yield Question(Hook.PRE_REMOVE_POD_SANDBOX, recorded_pod(record))

    def succeeded(self, response: bytes) -> None:
        """Forgets the sandbox and its containers."""
        removed = self.context.store.remove_pod(self.pod_id)
        self._last_view = recorded_pod(removed) if removed is not None else None

    def afterwards(self) -> Questions:
        """Only if there was something to forget."""
        if self._last_view is not None:
            yield Question(Hook.POST_REMOVE_POD_SANDBOX, self._last_view)

    async def confirm(self) -> bool:
        """The sandbox is gone, or it is not."""
        gone = await self.context.lookups.confirm_pod(self.pod_id) is None
        if gone:
            self.succeeded(b"")
        return gone
