"""The CRI's two services over one state."""

# ruff: noqa: N802 - the methods are named as the calls are

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import grpc

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.behaviours import CallError, not_found
from runtimeproxy.testing.cgroups import CgroupDriver
from runtimeproxy.testing.events import EventBroadcast
from runtimeproxy.testing.messages import (
    METRIC_DESCRIPTORS,
    container_info,
    container_stats,
    container_status,
    image_entry,
    list_container_stats,
    list_containers,
    list_images,
    list_metrics,
    list_sandbox_stats,
    list_sandboxes,
    sandbox_info,
    sandbox_stats,
    sandbox_status,
)
from runtimeproxy.testing.state import FakeContainer, RuntimeState, Sandbox

Item = TypeVar("Item")


RUNTIME_NAME = "fake-runtime"
"""The runtime's name in ``Version``."""

RUNTIME_VERSION = "2.2.1"
"""Version of the runtime: that of the containerd whose behaviour it follows."""

IMAGE_MOUNTPOINT = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs"
"""File system that holds images and containers."""

STREAM_CHUNK = 100
"""Items in one message of a streamed list."""


class FakeRuntimeService:
    """The runtime service: calls about the node, sandboxes, containers and usage.

    A method raises ``CallError`` to end its call with an error.

    Attributes:
        state: Read and changed by the calls.
        events: Where life-cycle events come from.
    """

    def __init__(self, state: RuntimeState, events: EventBroadcast) -> None:
        self.state = state
        self.events = events

    def Version(self, request: api_pb2.VersionRequest) -> api_pb2.VersionResponse:
        """Names the runtime."""
        return api_pb2.VersionResponse(
            version="0.1.0",
            runtime_name=RUNTIME_NAME,
            runtime_version=RUNTIME_VERSION,
            runtime_api_version="v1",
        )

    def Status(self, request: api_pb2.StatusRequest) -> api_pb2.StatusResponse:
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

    def RuntimeConfig(self, request: api_pb2.RuntimeConfigRequest) -> api_pb2.RuntimeConfigResponse:
        """Names the cgroup driver."""
        systemd = self.state.cgroups.driver is CgroupDriver.SYSTEMD
        response = api_pb2.RuntimeConfigResponse()
        response.linux.cgroup_driver = api_pb2.SYSTEMD if systemd else api_pb2.CGROUPFS
        return response

    def UpdateRuntimeConfig(
        self, request: api_pb2.UpdateRuntimeConfigRequest
    ) -> api_pb2.UpdateRuntimeConfigResponse:
        """Keeps the pod network range."""
        self.state.pod_cidr = request.runtime_config.network_config.pod_cidr
        return api_pb2.UpdateRuntimeConfigResponse()

    def RunPodSandbox(self, request: api_pb2.RunPodSandboxRequest) -> api_pb2.RunPodSandboxResponse:
        """Creates a ready sandbox."""
        sandbox = self.state.run_sandbox(request.config, request.runtime_handler)
        return api_pb2.RunPodSandboxResponse(pod_sandbox_id=sandbox.id)

    def StopPodSandbox(self, request: api_pb2.StopPodSandboxRequest) -> api_pb2.StopPodSandboxResponse:
        """Stops a sandbox and its containers."""
        self.state.stop_sandbox(request.pod_sandbox_id)
        return api_pb2.StopPodSandboxResponse()

    def RemovePodSandbox(self, request: api_pb2.RemovePodSandboxRequest) -> api_pb2.RemovePodSandboxResponse:
        """Removes a sandbox and its containers."""
        self.state.remove_sandbox(request.pod_sandbox_id)
        return api_pb2.RemovePodSandboxResponse()

    def PodSandboxStatus(self, request: api_pb2.PodSandboxStatusRequest) -> api_pb2.PodSandboxStatusResponse:
        """Reports a sandbox; without the statuses of its containers, as containerd does (tried with 2.2)."""
        with self.state.lock:
            sandbox = self.state.find_sandbox(request.pod_sandbox_id)
            return api_pb2.PodSandboxStatusResponse(
                status=sandbox_status(sandbox),
                info=sandbox_info(sandbox, self.state.cgroups.driver) if request.verbose else {},
            )

    def ListPodSandbox(self, request: api_pb2.ListPodSandboxRequest) -> api_pb2.ListPodSandboxResponse:
        """Lists sandboxes."""
        return api_pb2.ListPodSandboxResponse(items=list_sandboxes(self.state, request.filter))

    def StreamPodSandboxes(
        self, request: api_pb2.StreamPodSandboxesRequest, context: grpc.ServicerContext
    ) -> Iterator[api_pb2.StreamPodSandboxesResponse]:
        """Lists sandboxes in several messages."""
        for chunk in chunks(list(list_sandboxes(self.state, request.filter))):
            yield api_pb2.StreamPodSandboxesResponse(pod_sandboxes=chunk)

    def UpdatePodSandboxResources(
        self, request: api_pb2.UpdatePodSandboxResourcesRequest
    ) -> api_pb2.UpdatePodSandboxResourcesResponse:
        """Keeps new pod-level resources."""
        self.state.update_sandbox(request.pod_sandbox_id, request.overhead, request.resources)
        return api_pb2.UpdatePodSandboxResourcesResponse()

    def PortForward(self, request: api_pb2.PortForwardRequest) -> api_pb2.PortForwardResponse:
        """Names an endpoint where nothing listens."""
        sandbox = self.state.find_sandbox(request.pod_sandbox_id)
        return api_pb2.PortForwardResponse(url=f"http://127.0.0.1:1/portforward/{sandbox.id[:8]}")

    def CheckpointPod(self, request: api_pb2.CheckpointPodRequest) -> api_pb2.CheckpointPodResponse:
        """Keeps a checkpoint under the output path; no file is written."""
        with self.state.lock:
            sandbox = self.state.find_sandbox(request.pod_sandbox_id)
            wanted = set(request.container_ids)
            kept: list[FakeContainer] = [
                entry for entry in self.state.containers_of(sandbox.id) if not wanted or entry.id in wanted
            ]
            self.state.checkpoints[request.output_path] = (sandbox, kept)
        return api_pb2.CheckpointPodResponse()

    def RestorePod(self, request: api_pb2.RestorePodRequest) -> api_pb2.RestorePodResponse:
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

    def CreateContainer(self, request: api_pb2.CreateContainerRequest) -> api_pb2.CreateContainerResponse:
        """Creates a container."""
        sandbox_config = request.sandbox_config if request.HasField("sandbox_config") else None
        made = self.state.create_container(request.pod_sandbox_id, request.config, sandbox_config)
        return api_pb2.CreateContainerResponse(container_id=made.id)

    def StartContainer(self, request: api_pb2.StartContainerRequest) -> api_pb2.StartContainerResponse:
        """Starts a created container."""
        self.state.start_container(request.container_id)
        return api_pb2.StartContainerResponse()

    def StopContainer(self, request: api_pb2.StopContainerRequest) -> api_pb2.StopContainerResponse:
        """Stops a container at once, whatever the grace period."""
        self.state.stop_container(request.container_id)
        return api_pb2.StopContainerResponse()

    def RemoveContainer(self, request: api_pb2.RemoveContainerRequest) -> api_pb2.RemoveContainerResponse:
        """Removes a container."""
        self.state.remove_container(request.container_id)
        return api_pb2.RemoveContainerResponse()

    def ListContainers(self, request: api_pb2.ListContainersRequest) -> api_pb2.ListContainersResponse:
        """Lists containers."""
        return api_pb2.ListContainersResponse(containers=list_containers(self.state, request.filter))

    def StreamContainers(
        self, request: api_pb2.StreamContainersRequest, context: grpc.ServicerContext
    ) -> Iterator[api_pb2.StreamContainersResponse]:
        """Lists containers in several messages."""
        for chunk in chunks(list(list_containers(self.state, request.filter))):
            yield api_pb2.StreamContainersResponse(containers=chunk)

    def ContainerStatus(self, request: api_pb2.ContainerStatusRequest) -> api_pb2.ContainerStatusResponse:
        """Reports a container."""
        with self.state.lock:
            container = self.state.find_container(request.container_id)
            driver = self.state.cgroups.driver
            return api_pb2.ContainerStatusResponse(
                status=container_status(container),
                info=container_info(container, driver) if request.verbose else {},
            )

    def UpdateContainerResources(
        self, request: api_pb2.UpdateContainerResourcesRequest
    ) -> api_pb2.UpdateContainerResourcesResponse:
        """Changes resources of a container."""
        self.state.update_container(request.container_id, request.linux, request.annotations)
        return api_pb2.UpdateContainerResourcesResponse()

    def ReopenContainerLog(
        self, request: api_pb2.ReopenContainerLogRequest
    ) -> api_pb2.ReopenContainerLogResponse:
        """Does nothing for a running container."""
        self._running(request.container_id)
        return api_pb2.ReopenContainerLogResponse()

    def ExecSync(self, request: api_pb2.ExecSyncRequest) -> api_pb2.ExecSyncResponse:
        """Answers with the words of the command, as ``echo`` would."""
        self._running(request.container_id)
        return api_pb2.ExecSyncResponse(stdout=f"{' '.join(request.cmd)}\n".encode())

    def Exec(self, request: api_pb2.ExecRequest) -> api_pb2.ExecResponse:
        """Names an endpoint where nothing listens."""
        container = self._running(request.container_id)
        return api_pb2.ExecResponse(url=f"http://127.0.0.1:1/exec/{container.id[:8]}")

    def Attach(self, request: api_pb2.AttachRequest) -> api_pb2.AttachResponse:
        """Names an endpoint where nothing listens."""
        container = self._running(request.container_id)
        return api_pb2.AttachResponse(url=f"http://127.0.0.1:1/attach/{container.id[:8]}")

    def CheckpointContainer(
        self, request: api_pb2.CheckpointContainerRequest
    ) -> api_pb2.CheckpointContainerResponse:
        """Does nothing for a running container."""
        self._running(request.container_id)
        return api_pb2.CheckpointContainerResponse()

    def GetContainerEvents(
        self, request: api_pb2.GetEventsRequest, context: grpc.ServicerContext
    ) -> Iterator[api_pb2.ContainerEventResponse]:
        """Streams events until the client goes or the fake ends them."""
        with self.events.subscribed() as subscription:
            if not context.add_callback(lambda: subscription.put(None)):
                raise CallError("CANCELLED", "the call has ended")
            while (event := subscription.get()) is not None:
                yield event

    def ContainerStats(self, request: api_pb2.ContainerStatsRequest) -> api_pb2.ContainerStatsResponse:
        """Usage of a container."""
        with self.state.lock:
            container = self.state.find_container(request.container_id)
            stats = container_stats(container, self.state.clock_ns())
            return api_pb2.ContainerStatsResponse(stats=stats)

    def ListContainerStats(
        self, request: api_pb2.ListContainerStatsRequest
    ) -> api_pb2.ListContainerStatsResponse:
        """Usage of the running containers."""
        return api_pb2.ListContainerStatsResponse(stats=list_container_stats(self.state, request.filter))

    def StreamContainerStats(
        self, request: api_pb2.StreamContainerStatsRequest, context: grpc.ServicerContext
    ) -> Iterator[api_pb2.StreamContainerStatsResponse]:
        """Usage of the running containers in several messages."""
        for chunk in chunks(list(list_container_stats(self.state, request.filter))):
            yield api_pb2.StreamContainerStatsResponse(container_stats=chunk)

    def PodSandboxStats(self, request: api_pb2.PodSandboxStatsRequest) -> api_pb2.PodSandboxStatsResponse:
        """Usage of a sandbox."""
        with self.state.lock:
            sandbox = self.state.find_sandbox(request.pod_sandbox_id)
            return api_pb2.PodSandboxStatsResponse(stats=sandbox_stats(self.state, sandbox))

    def ListPodSandboxStats(
        self, request: api_pb2.ListPodSandboxStatsRequest
    ) -> api_pb2.ListPodSandboxStatsResponse:
        """Usage of the ready sandboxes."""
        return api_pb2.ListPodSandboxStatsResponse(stats=list_sandbox_stats(self.state, request.filter))

    def StreamPodSandboxStats(
        self, request: api_pb2.StreamPodSandboxStatsRequest, context: grpc.ServicerContext
    ) -> Iterator[api_pb2.StreamPodSandboxStatsResponse]:
        """Usage of the ready sandboxes in several messages."""
        for chunk in chunks(list(list_sandbox_stats(self.state, request.filter))):
            yield api_pb2.StreamPodSandboxStatsResponse(pod_sandbox_stats=chunk)

    def ListMetricDescriptors(
        self, request: api_pb2.ListMetricDescriptorsRequest
    ) -> api_pb2.ListMetricDescriptorsResponse:
        """Describes the metrics."""
        return api_pb2.ListMetricDescriptorsResponse(descriptors=METRIC_DESCRIPTORS)

    def ListPodSandboxMetrics(
        self, request: api_pb2.ListPodSandboxMetricsRequest
    ) -> api_pb2.ListPodSandboxMetricsResponse:
        """Metrics of the ready sandboxes."""
        return api_pb2.ListPodSandboxMetricsResponse(pod_metrics=list_metrics(self.state))

    def StreamPodSandboxMetrics(
        self, request: api_pb2.StreamPodSandboxMetricsRequest, context: grpc.ServicerContext
    ) -> Iterator[api_pb2.StreamPodSandboxMetricsResponse]:
        """Metrics of the ready sandboxes in several messages."""
        for chunk in chunks(list(list_metrics(self.state))):
            yield api_pb2.StreamPodSandboxMetricsResponse(pod_sandbox_metrics=chunk)

    def _running(self, container_id: str) -> FakeContainer:
        container = self.state.find_container(container_id)
        if container.state != api_pb2.CONTAINER_RUNNING:
            raise CallError("UNKNOWN", f"container {container.id!r} is not running")
        return container

    def _restored(
        self, sandbox: Sandbox, kept: FakeContainer, request: api_pb2.RestorePodRequest
    ) -> api_pb2.RestoredContainer:
        name = kept.config.metadata.name
        configs = {config.metadata.name: config for config in request.container_configs}
        made = self.state.create_container(sandbox.id, configs.get(name, kept.config), request.config)
        self.state.start_container(made.id)
        return api_pb2.RestoredContainer(name=name, container_id=made.id)


class FakeImageService:
    """The image service.

    Attributes:
        state: Holds the images.
    """

    def __init__(self, state: RuntimeState) -> None:
        self.state = state

    def ListImages(self, request: api_pb2.ListImagesRequest) -> api_pb2.ListImagesResponse:
        """Lists images."""
        return api_pb2.ListImagesResponse(images=list_images(self.state, request.filter))

    def StreamImages(
        self, request: api_pb2.StreamImagesRequest, context: grpc.ServicerContext
    ) -> Iterator[api_pb2.StreamImagesResponse]:
        """Lists images in several messages."""
        for chunk in chunks(list(list_images(self.state, request.filter))):
            yield api_pb2.StreamImagesResponse(images=chunk)

    def ImageStatus(self, request: api_pb2.ImageStatusRequest) -> api_pb2.ImageStatusResponse:
        """Reports an image; a missing one gives an empty answer."""
        with self.state.lock:
            image = self.state.images.find(request.image.image)
        info = {"info": '{"chainID":""}'} if request.verbose and image is not None else {}
        return api_pb2.ImageStatusResponse(image=None if image is None else image_entry(image), info=info)

    def PullImage(self, request: api_pb2.PullImageRequest) -> api_pb2.PullImageResponse:
        """Adds an image; every reference can be pulled."""
        if not request.image.image:
            raise CallError("INVALID_ARGUMENT", "no image reference")
        with self.state.lock:
            self.state.generation += 1
            image = self.state.images.add(request.image.image)
        return api_pb2.PullImageResponse(image_ref=image.id)

    def RemoveImage(self, request: api_pb2.RemoveImageRequest) -> api_pb2.RemoveImageResponse:
        """Removes an image; a missing one is not an error."""
        with self.state.lock:
            self.state.generation += 1
            self.state.images.remove(request.image.image)
        return api_pb2.RemoveImageResponse()

    def ImageFsInfo(self, request: api_pb2.ImageFsInfoRequest) -> api_pb2.ImageFsInfoResponse:
        """Sum of the images' sizes."""
        with self.state.lock:
            used_bytes = sum(image.size_bytes for image in self.state.images)
        usage = api_pb2.FilesystemUsage(
            timestamp=self.state.clock_ns(),
            fs_id=api_pb2.FilesystemIdentifier(mountpoint=IMAGE_MOUNTPOINT),
            used_bytes=api_pb2.UInt64Value(value=used_bytes),
            inodes_used=api_pb2.UInt64Value(value=1000),
        )
        return api_pb2.ImageFsInfoResponse(image_filesystems=[usage], container_filesystems=[usage])


def chunks(items: Iterable[Item], size: int = STREAM_CHUNK) -> Iterator[Sequence[Item]]:
    """Cuts items into lists of at most ``size``; no items give no list."""
    source = iter(items)
    while chunk := list(islice(source, size)):
        yield chunk
