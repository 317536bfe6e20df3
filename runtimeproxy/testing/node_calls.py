"""Calls about the runtime itself, its events, usage and metrics."""
# ruff: noqa: N802 - the methods are named as the calls are

from __future__ import annotations

import json
from collections.abc import Iterator

import grpc

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.cgroup_paths import CgroupDriver
from runtimeproxy.testing.events import EventBroadcast
from runtimeproxy.testing.failures import CallError
from runtimeproxy.testing.servicing import chunks, stream, unary
from runtimeproxy.testing.state import RuntimeState
from runtimeproxy.testing.usage import (
    METRIC_DESCRIPTORS,
    container_stats,
    list_container_stats,
    list_metrics,
    list_sandbox_stats,
    sandbox_stats,
)

RUNTIME_NAME = "fake-runtime"
"""What ``Version`` calls the runtime."""

RUNTIME_VERSION = "2.2.1"
"""Version of the runtime: that of the containerd whose behaviour it follows."""


class NodeCalls:
    """The part of the runtime service that is about the node."""

    state: RuntimeState
    events: EventBroadcast

    @unary
    def Version(
        self, request: api_pb2.VersionRequest, context: grpc.ServicerContext
    ) -> api_pb2.VersionResponse:
        """Names the runtime."""
        return api_pb2.VersionResponse(
            version="0.1.0",
            runtime_name=RUNTIME_NAME,
            runtime_version=RUNTIME_VERSION,
            runtime_api_version="v1",
        )

    @unary
    def Status(self, request: api_pb2.StatusRequest, context: grpc.ServicerContext) -> api_pb2.StatusResponse:
        """Everything is ready."""
        response = api_pb2.StatusResponse()
        for condition in ("RuntimeReady", "NetworkReady"):
            response.status.conditions.add(type=condition, status=True)
        features = api_pb2.RuntimeHandlerFeatures(recursive_read_only_mounts=True, user_namespaces=True)
        for handler in ("", "runc"):
            response.runtime_handlers.add(name=handler, features=features)
        response.features.supplemental_groups_policy = True
        if request.verbose:
            systemd = self.state.cgroups.driver is CgroupDriver.SYSTEMD
            response.info["config"] = json.dumps({"systemdCgroup": systemd})
        return response

    @unary
    def RuntimeConfig(
        self, request: api_pb2.RuntimeConfigRequest, context: grpc.ServicerContext
    ) -> api_pb2.RuntimeConfigResponse:
        """Names the cgroup driver."""
        systemd = self.state.cgroups.driver is CgroupDriver.SYSTEMD
        response = api_pb2.RuntimeConfigResponse()
        response.linux.cgroup_driver = api_pb2.SYSTEMD if systemd else api_pb2.CGROUPFS
        return response

    @unary
    def UpdateRuntimeConfig(
        self, request: api_pb2.UpdateRuntimeConfigRequest, context: grpc.ServicerContext
    ) -> api_pb2.UpdateRuntimeConfigResponse:
        """Keeps the pod network range."""
        self.state.pod_cidr = request.runtime_config.network_config.pod_cidr
        return api_pb2.UpdateRuntimeConfigResponse()

    @stream
    def GetContainerEvents(
        self, request: api_pb2.GetEventsRequest, context: grpc.ServicerContext
    ) -> Iterator[api_pb2.ContainerEventResponse]:
        """Streams events until the client goes or the fake ends them."""
        with self.events.subscribed() as subscription:
            if not context.add_callback(lambda: subscription.put(None)):
                raise CallError("CANCELLED", "the call has ended")
            while (event := subscription.get()) is not None:
                yield event

    @unary
    def ContainerStats(
        self, request: api_pb2.ContainerStatsRequest, context: grpc.ServicerContext
    ) -> api_pb2.ContainerStatsResponse:
        """Usage of a container."""
        with self.state.lock:
            container = self.state.find_container(request.container_id)
            stats = container_stats(container, self.state.clock_ns())
            return api_pb2.ContainerStatsResponse(stats=stats)

    @unary
    def ListContainerStats(
        self, request: api_pb2.ListContainerStatsRequest, context: grpc.ServicerContext
    ) -> api_pb2.ListContainerStatsResponse:
        """Usage of the running containers."""
        listed = list_container_stats(self.state, request.filter)
        return api_pb2.ListContainerStatsResponse(stats=listed)

    @stream
    def StreamContainerStats(
        self, request: api_pb2.StreamContainerStatsRequest, context: grpc.ServicerContext
    ) -> Iterator[api_pb2.StreamContainerStatsResponse]:
        """Usage of the running containers in several messages."""
        for chunk in chunks(list(list_container_stats(self.state, request.filter))):
            yield api_pb2.StreamContainerStatsResponse(container_stats=chunk)

    @unary
    def PodSandboxStats(
        self, request: api_pb2.PodSandboxStatsRequest, context: grpc.ServicerContext
    ) -> api_pb2.PodSandboxStatsResponse:
        """Usage of a sandbox."""
        with self.state.lock:
            sandbox = self.state.find_sandbox(request.pod_sandbox_id)
            return api_pb2.PodSandboxStatsResponse(stats=sandbox_stats(self.state, sandbox))

    @unary
    def ListPodSandboxStats(
        self, request: api_pb2.ListPodSandboxStatsRequest, context: grpc.ServicerContext
    ) -> api_pb2.ListPodSandboxStatsResponse:
        """Usage of the ready sandboxes."""
        listed = list_sandbox_stats(self.state, request.filter)
        return api_pb2.ListPodSandboxStatsResponse(stats=listed)

    @stream
    def StreamPodSandboxStats(
        self, request: api_pb2.StreamPodSandboxStatsRequest, context: grpc.ServicerContext
    ) -> Iterator[api_pb2.StreamPodSandboxStatsResponse]:
        """Usage of the ready sandboxes in several messages."""
        for chunk in chunks(list(list_sandbox_stats(self.state, request.filter))):
            yield api_pb2.StreamPodSandboxStatsResponse(pod_sandbox_stats=chunk)

    @unary
    def ListMetricDescriptors(
        self, request: api_pb2.ListMetricDescriptorsRequest, context: grpc.ServicerContext
    ) -> api_pb2.ListMetricDescriptorsResponse:
        """Describes the metrics."""
        return api_pb2.ListMetricDescriptorsResponse(descriptors=METRIC_DESCRIPTORS)

    @unary
    def ListPodSandboxMetrics(
        self, request: api_pb2.ListPodSandboxMetricsRequest, context: grpc.ServicerContext
    ) -> api_pb2.ListPodSandboxMetricsResponse:
        """Metrics of the ready sandboxes."""
        return api_pb2.ListPodSandboxMetricsResponse(pod_metrics=list_metrics(self.state))

    @stream
    def StreamPodSandboxMetrics(
        self, request: api_pb2.StreamPodSandboxMetricsRequest, context: grpc.ServicerContext
    ) -> Iterator[api_pb2.StreamPodSandboxMetricsResponse]:
        """Metrics of the ready sandboxes in several messages."""
        for chunk in chunks(list(list_metrics(self.state))):
            yield api_pb2.StreamPodSandboxMetricsResponse(pod_sandbox_metrics=chunk)
