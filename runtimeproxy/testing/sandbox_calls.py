"""Calls about sandboxes."""
# ruff: noqa: N802 - the methods are named as the calls are

from __future__ import annotations

from collections.abc import Iterator

import grpc

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.answers import (
    list_sandboxes,
    sandbox_status,
)
from runtimeproxy.testing.entries import Container, Sandbox
from runtimeproxy.testing.failures import CallError, not_found
from runtimeproxy.testing.servicing import chunks, stream, unary
from runtimeproxy.testing.state import RuntimeState
from runtimeproxy.testing.verbose_info import sandbox_info


class SandboxCalls:
    """The part of the runtime service that is about sandboxes."""

    state: RuntimeState

    @unary
    def RunPodSandbox(
        self, request: api_pb2.RunPodSandboxRequest, context: grpc.ServicerContext
    ) -> api_pb2.RunPodSandboxResponse:
        """Creates a ready sandbox."""
        sandbox = self.state.run_sandbox(request.config, request.runtime_handler)
        return api_pb2.RunPodSandboxResponse(pod_sandbox_id=sandbox.id)

    @unary
    def StopPodSandbox(
        self, request: api_pb2.StopPodSandboxRequest, context: grpc.ServicerContext
    ) -> api_pb2.StopPodSandboxResponse:
        """Stops a sandbox and its containers."""
        self.state.stop_sandbox(request.pod_sandbox_id)
        return api_pb2.StopPodSandboxResponse()

    @unary
    def RemovePodSandbox(
        self, request: api_pb2.RemovePodSandboxRequest, context: grpc.ServicerContext
    ) -> api_pb2.RemovePodSandboxResponse:
        """Removes a sandbox and its containers."""
        self.state.remove_sandbox(request.pod_sandbox_id)
        return api_pb2.RemovePodSandboxResponse()

    @unary
    def PodSandboxStatus(
        self, request: api_pb2.PodSandboxStatusRequest, context: grpc.ServicerContext
    ) -> api_pb2.PodSandboxStatusResponse:
        """Reports a sandbox; without the statuses of its containers, as containerd does (tried with 2.2)."""
        with self.state.lock:
            sandbox = self.state.find_sandbox(request.pod_sandbox_id)
            return api_pb2.PodSandboxStatusResponse(
                status=sandbox_status(sandbox),
                info=sandbox_info(sandbox, self.state.cgroups.driver) if request.verbose else {},
            )

    @unary
    def ListPodSandbox(
        self, request: api_pb2.ListPodSandboxRequest, context: grpc.ServicerContext
    ) -> api_pb2.ListPodSandboxResponse:
        """Lists sandboxes."""
        return api_pb2.ListPodSandboxResponse(items=list_sandboxes(self.state, request.filter))

    @stream
    def StreamPodSandboxes(
        self, request: api_pb2.StreamPodSandboxesRequest, context: grpc.ServicerContext
    ) -> Iterator[api_pb2.StreamPodSandboxesResponse]:
        """Lists sandboxes in several messages."""
        for chunk in chunks(list(list_sandboxes(self.state, request.filter))):
            yield api_pb2.StreamPodSandboxesResponse(pod_sandboxes=chunk)

    @unary
    def UpdatePodSandboxResources(
        self, request: api_pb2.UpdatePodSandboxResourcesRequest, context: grpc.ServicerContext
    ) -> api_pb2.UpdatePodSandboxResourcesResponse:
        """Keeps new pod-level resources."""
        self.state.update_sandbox(request.pod_sandbox_id, request.overhead, request.resources)
        return api_pb2.UpdatePodSandboxResourcesResponse()

    @unary
    def PortForward(
        self, request: api_pb2.PortForwardRequest, context: grpc.ServicerContext
    ) -> api_pb2.PortForwardResponse:
        """Names an endpoint where nothing listens."""
        sandbox = self.state.find_sandbox(request.pod_sandbox_id)
        return api_pb2.PortForwardResponse(url=f"http://127.0.0.1:1/portforward/{sandbox.id[:8]}")

    @unary
    def CheckpointPod(
        self, request: api_pb2.CheckpointPodRequest, context: grpc.ServicerContext
    ) -> api_pb2.CheckpointPodResponse:
        """Keeps a checkpoint under the output path; no file is written."""
        with self.state.lock:
            sandbox = self.state.find_sandbox(request.pod_sandbox_id)
            wanted = set(request.container_ids)
            kept: list[Container] = [
                entry for entry in self.state.containers_of(sandbox.id) if not wanted or entry.id in wanted
            ]
            self.state.checkpoints[request.output_path] = (sandbox, kept)
        return api_pb2.CheckpointPodResponse()

    @unary
    def RestorePod(
        self, request: api_pb2.RestorePodRequest, context: grpc.ServicerContext
    ) -> api_pb2.RestorePodResponse:
        """Creates a sandbox and its running containers from a checkpoint of this runtime."""
        with self.state.lock:
            kept = self.state.checkpoints.get(request.checkpoint_path)
            if kept is None:
                raise not_found("checkpoint", request.checkpoint_path)
            if not request.HasField("config"):
                raise CallError("INVALID_ARGUMENT", "no sandbox config")
            sandbox = self.state.run_sandbox(request.config, request.runtime_handler)
            return api_pb2.RestorePodResponse(
                pod_sandbox_id=sandbox.id,
                restored_containers=[self._restored(sandbox, entry, request) for entry in kept[1]],
            )

    def _restored(
        self, sandbox: Sandbox, kept: Container, request: api_pb2.RestorePodRequest
    ) -> api_pb2.RestoredContainer:
        name = kept.config.metadata.name
        configs = {config.metadata.name: config for config in request.container_configs}
        made = self.state.create_container(sandbox.id, configs.get(name, kept.config), request.config)
        self.state.start_container(made.id)
        return api_pb2.RestoredContainer(name=name, container_id=made.id)
