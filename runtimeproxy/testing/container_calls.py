"""Calls about containers."""
# ruff: noqa: N802 - the methods are named as the calls are

from __future__ import annotations

from collections.abc import Iterator

import grpc

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.answers import container_status, list_containers
from runtimeproxy.testing.entries import Container
from runtimeproxy.testing.failures import CallError
from runtimeproxy.testing.servicing import chunks, stream, unary
from runtimeproxy.testing.state import RuntimeState
from runtimeproxy.testing.verbose_info import container_info


class ContainerCalls:
    """The part of the runtime service that is about containers."""

    state: RuntimeState

    @unary
    def CreateContainer(
        self, request: api_pb2.CreateContainerRequest, context: grpc.ServicerContext
    ) -> api_pb2.CreateContainerResponse:
        """Creates a container."""
        sandbox_config = request.sandbox_config if request.HasField("sandbox_config") else None
        made = self.state.create_container(request.pod_sandbox_id, request.config, sandbox_config)
        return api_pb2.CreateContainerResponse(container_id=made.id)

    @unary
    def StartContainer(
        self, request: api_pb2.StartContainerRequest, context: grpc.ServicerContext
    ) -> api_pb2.StartContainerResponse:
        """Starts a created container."""
        self.state.start_container(request.container_id)
        return api_pb2.StartContainerResponse()

    @unary
    def StopContainer(
        self, request: api_pb2.StopContainerRequest, context: grpc.ServicerContext
    ) -> api_pb2.StopContainerResponse:
        """Stops a container at once, whatever the grace period."""
        self.state.stop_container(request.container_id)
        return api_pb2.StopContainerResponse()

    @unary
    def RemoveContainer(
        self, request: api_pb2.RemoveContainerRequest, context: grpc.ServicerContext
    ) -> api_pb2.RemoveContainerResponse:
        """Removes a container."""
        self.state.remove_container(request.container_id)
        return api_pb2.RemoveContainerResponse()

    @unary
    def ListContainers(
        self, request: api_pb2.ListContainersRequest, context: grpc.ServicerContext
    ) -> api_pb2.ListContainersResponse:
        """Lists containers."""
        listed = list_containers(self.state, request.filter)
        return api_pb2.ListContainersResponse(containers=listed)

    @stream
    def StreamContainers(
        self, request: api_pb2.StreamContainersRequest, context: grpc.ServicerContext
    ) -> Iterator[api_pb2.StreamContainersResponse]:
        """Lists containers in several messages."""
        for chunk in chunks(list(list_containers(self.state, request.filter))):
            yield api_pb2.StreamContainersResponse(containers=chunk)

    @unary
    def ContainerStatus(
        self, request: api_pb2.ContainerStatusRequest, context: grpc.ServicerContext
    ) -> api_pb2.ContainerStatusResponse:
        """Reports a container."""
        with self.state.lock:
            container = self.state.find_container(request.container_id)
            driver = self.state.cgroups.driver
            return api_pb2.ContainerStatusResponse(
                status=container_status(container),
                info=container_info(container, driver) if request.verbose else {},
            )

    @unary
    def UpdateContainerResources(
        self, request: api_pb2.UpdateContainerResourcesRequest, context: grpc.ServicerContext
    ) -> api_pb2.UpdateContainerResourcesResponse:
        """Changes resources of a container."""
        self.state.update_container(request.container_id, request.linux, request.annotations)
        return api_pb2.UpdateContainerResourcesResponse()

    @unary
    def ReopenContainerLog(
        self, request: api_pb2.ReopenContainerLogRequest, context: grpc.ServicerContext
    ) -> api_pb2.ReopenContainerLogResponse:
        """Does nothing for a running container."""
        self._running(request.container_id)
        return api_pb2.ReopenContainerLogResponse()

    @unary
    def ExecSync(
        self, request: api_pb2.ExecSyncRequest, context: grpc.ServicerContext
    ) -> api_pb2.ExecSyncResponse:
        """Answers with the words of the command, as ``echo`` would."""
        self._running(request.container_id)
        return api_pb2.ExecSyncResponse(stdout=f"{' '.join(request.cmd)}\n".encode())

    @unary
    def Exec(self, request: api_pb2.ExecRequest, context: grpc.ServicerContext) -> api_pb2.ExecResponse:
        """Names an endpoint where nothing listens."""
        container = self._running(request.container_id)
        return api_pb2.ExecResponse(url=f"http://127.0.0.1:1/exec/{container.id[:8]}")

    @unary
    def Attach(self, request: api_pb2.AttachRequest, context: grpc.ServicerContext) -> api_pb2.AttachResponse:
        """Names an endpoint where nothing listens."""
        container = self._running(request.container_id)
        return api_pb2.AttachResponse(url=f"http://127.0.0.1:1/attach/{container.id[:8]}")

    @unary
    def CheckpointContainer(
        self, request: api_pb2.CheckpointContainerRequest, context: grpc.ServicerContext
    ) -> api_pb2.CheckpointContainerResponse:
        """Does nothing for a running container."""
        self._running(request.container_id)
        return api_pb2.CheckpointContainerResponse()

    def _running(self, container_id: str) -> Container:
        container = self.state.find_container(container_id)
        if container.state != api_pb2.CONTAINER_RUNNING:
            raise CallError("UNKNOWN", f"container {container.id!r} is not running")
        return container
