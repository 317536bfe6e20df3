"""The life-cycle and usage calls."""

from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.builders import (
    container_config,
    create_container_request,
    pod_sandbox_config,
)
from tests.testing.servicer_client import Client

POD = pod_sandbox_config("web", uid="u", qos="LS")
GONE = "f" * 64


def test_usage_is_reported_for_containers_and_sandboxes(
    client: Client, sandbox_id: str, container_id: str
) -> None:
    stats = client.ok(api_pb2.ContainerStatsRequest(container_id=container_id)).stats
    assert stats.memory.working_set_bytes.value == 2**28
    assert stats.memory.available_bytes.value == 2**30 - 2**28
    pod = client.ok(api_pb2.PodSandboxStatsRequest(pod_sandbox_id=sandbox_id)).stats
    assert pod.linux.memory.working_set_bytes.value == 2**28
    assert pod.linux.containers[0] == stats
    assert list(client.ok(api_pb2.ListContainerStatsRequest()).stats) == [stats]
    assert list(client.ok(api_pb2.ListPodSandboxStatsRequest()).stats) == [pod]
    assert client.stream(api_pb2.StreamContainerStatsRequest(), 1)[0].container_stats[0] == stats
    assert client.stream(api_pb2.StreamPodSandboxStatsRequest(), 1)[0].pod_sandbox_stats[0] == pod


def test_metrics_have_a_value_for_each_descriptor(client: Client, container_id: str) -> None:
    descriptors = client.ok(api_pb2.ListMetricDescriptorsRequest()).descriptors
    listed = client.ok(api_pb2.ListPodSandboxMetricsRequest()).pod_metrics
    (metrics,) = listed[0].container_metrics
    assert metrics.container_id == container_id
    assert [metric.name for metric in metrics.metrics] == [each.name for each in descriptors]
    assert all(
        len(metric.label_values) == len(each.label_keys)
        for metric, each in zip(metrics.metrics, descriptors, strict=True)
    )
    (message,) = client.stream(api_pb2.StreamPodSandboxMetricsRequest(), 1)
    assert list(message.pod_sandbox_metrics) == list(listed)


def test_exec_answers_as_echo_would(client: Client, container_id: str) -> None:
    response = client.ok(api_pb2.ExecSyncRequest(container_id=container_id, cmd=["a", "b"]))
    assert (response.stdout, response.exit_code) == (b"a b\n", 0)


def test_streaming_calls_name_an_endpoint(client: Client, sandbox_id: str, container_id: str) -> None:
    for request in (
        api_pb2.ExecRequest(container_id=container_id),
        api_pb2.AttachRequest(container_id=container_id),
        api_pb2.PortForwardRequest(pod_sandbox_id=sandbox_id),
    ):
        assert client.ok(request).url.startswith("http://127.0.0.1:1/")


@pytest.mark.parametrize(
    "request_type",
    [
        api_pb2.ExecSyncRequest,
        api_pb2.ExecRequest,
        api_pb2.AttachRequest,
        api_pb2.ReopenContainerLogRequest,
        api_pb2.CheckpointContainerRequest,
    ],
)
def test_what_needs_a_running_container_fails_without(
    client: Client, container_id: str, request_type: type[Any]
) -> None:
    client.ok(request_type(container_id=container_id))
    client.state.stop_container(container_id)
    _, code, message = client.call(request_type(container_id=container_id))
    assert (code, "not running" in message) == (grpc.StatusCode.UNKNOWN, True)


@pytest.mark.parametrize(
    "request_",
    [
        api_pb2.PodSandboxStatusRequest(pod_sandbox_id=GONE),
        api_pb2.PodSandboxStatsRequest(pod_sandbox_id=GONE),
        api_pb2.UpdatePodSandboxResourcesRequest(pod_sandbox_id=GONE),
        api_pb2.PortForwardRequest(pod_sandbox_id=GONE),
        api_pb2.CheckpointPodRequest(pod_sandbox_id=GONE),
        api_pb2.RestorePodRequest(checkpoint_path="/gone"),
        create_container_request(GONE, container_config(), POD),
        api_pb2.StartContainerRequest(container_id=GONE),
        api_pb2.ContainerStatusRequest(container_id=GONE),
        api_pb2.ContainerStatsRequest(container_id=GONE),
        api_pb2.UpdateContainerResourcesRequest(container_id=GONE),
        api_pb2.ExecSyncRequest(container_id=GONE),
    ],
    ids=lambda request: request.DESCRIPTOR.name,
)
def test_what_does_not_exist_is_not_found(client: Client, request_: Message) -> None:
    assert client.call(request_)[1] is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    "request_",
    [
        api_pb2.StopPodSandboxRequest(pod_sandbox_id=GONE),
        api_pb2.RemovePodSandboxRequest(pod_sandbox_id=GONE),
        api_pb2.StopContainerRequest(container_id=GONE),
        api_pb2.RemoveContainerRequest(container_id=GONE),
        api_pb2.RemoveImageRequest(image=api_pb2.ImageSpec(image=GONE)),
    ],
    ids=lambda request: request.DESCRIPTOR.name,
)
def test_stop_and_remove_are_idempotent(client: Client, request_: Message) -> None:
    client.ok(request_)


def test_a_resized_sandbox_keeps_its_resources(client: Client, sandbox_id: str) -> None:
    client.ok(
        api_pb2.UpdatePodSandboxResourcesRequest(
            pod_sandbox_id=sandbox_id, resources=api_pb2.LinuxContainerResources(cpu_shares=300)
        )
    )
    assert client.state.find_sandbox(sandbox_id).config.linux.resources.cpu_shares == 300


def test_a_restored_pod_has_the_containers_of_its_checkpoint(
    client: Client, sandbox_id: str, container_id: str
) -> None:
    client.ok(api_pb2.CheckpointPodRequest(pod_sandbox_id=sandbox_id, output_path="/cp"))
    changed = container_config("app", resources=api_pb2.LinuxContainerResources(cpu_shares=9))
    response = client.ok(
        api_pb2.RestorePodRequest(checkpoint_path="/cp", config=POD, container_configs=[changed])
    )
    (restored,) = response.restored_containers
    assert (restored.name, restored.container_id != container_id) == ("app", True)
    container = client.state.find_container(restored.container_id)
    assert container.state == api_pb2.CONTAINER_RUNNING
    assert container.resources.cpu_shares == 9
    assert container.sandbox_id == response.pod_sandbox_id


def test_restore_needs_a_sandbox_config(client: Client, sandbox_id: str) -> None:
    client.ok(api_pb2.CheckpointPodRequest(pod_sandbox_id=sandbox_id, output_path="/cp"))
    _, code, _ = client.call(api_pb2.RestorePodRequest(checkpoint_path="/cp"))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
