"""StopContainer and StopPodSandbox: repeated by the kubelet, but hooks run once per real stop."""

from __future__ import annotations

from dataclasses import replace

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.calls.container_call import ContainerCall, PodCall
from runtimeproxy.calls.cri_call import CallContext, Question, Questions
from runtimeproxy.calls.to_views import recorded_pod
from runtimeproxy.hooks import Hook
from runtimeproxy.pods.records import Lifecycle


class StopContainer(ContainerCall):
    """The kubelet stops a container; the record stays until the container is removed."""

    request_type = api_pb2.StopContainerRequest

    def __init__(self, context: CallContext, request: api_pb2.StopContainerRequest) -> None:
        super().__init__(context, request, request.container_id)
        self._stopped = False

    def questions(self) -> Questions:
        """Nothing, if it has stopped already."""
        record = self.record
        if record is not None and record.state is not Lifecycle.STOPPED:
            yield self.question(Hook.PRE_STOP_CONTAINER, record)

    def succeeded(self, response: bytes) -> None:
        """It has stopped."""
        record = self.record
        self._stopped = record is not None and record.state is not Lifecycle.STOPPED
        if record is not None and self._stopped:
            self.context.store.containers.put(replace(record, state=Lifecycle.STOPPED))

    def afterwards(self) -> Questions:
        """Once per real stop."""
        record = self.record
        if record is not None and self._stopped:
            yield self.question(Hook.POST_STOP_CONTAINER, record)

    async def confirm(self) -> bool:
        """The container has stopped or is gone, or it still runs."""
        found = await self.context.lookups.confirm_container(self.container_id)
        done = found is None or found.state is Lifecycle.STOPPED
        if done:
            self.succeeded(b"")
        return done


class StopPodSandbox(PodCall):
    """The kubelet stops a sandbox; the record stays until the sandbox is removed."""

    request_type = api_pb2.StopPodSandboxRequest

    def __init__(self, context: CallContext, request: api_pb2.StopPodSandboxRequest) -> None:
        super().__init__(context, request, request.pod_sandbox_id)
        self._stopped = False

    def questions(self) -> Questions:
        """Nothing, if it has stopped already."""
        record = self.record
        if record is not None and record.state is not Lifecycle.STOPPED:
            yield Question(Hook.PRE_STOP_POD_SANDBOX, recorded_pod(record), cgroup=record.cgroup_parent)

    def succeeded(self, response: bytes) -> None:
        """It has stopped."""
        record = self.record
        self._stopped = record is not None and record.state is not Lifecycle.STOPPED
        if record is not None and self._stopped:
            self.context.store.pods.put(replace(record, state=Lifecycle.STOPPED))

    def afterwards(self) -> Questions:
        """Once per real stop."""
        record = self.record
        if record is not None and self._stopped:
            yield Question(Hook.POST_STOP_POD_SANDBOX, recorded_pod(record))

    async def confirm(self) -> bool:
        """The sandbox has stopped or is gone, or it still runs."""
        found = await self.context.lookups.confirm_pod(self.pod_id)
        done = found is None or found.state is Lifecycle.STOPPED
        if done:
            self.succeeded(b"")
        return done
