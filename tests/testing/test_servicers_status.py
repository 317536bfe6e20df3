"""Status and list calls."""

import json

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import PodCgroups
from runtimeproxy.testing.builders import (
    pod_sandbox_config,
    preload,
)
from runtimeproxy.testing.cgroups import CgroupDriver
from tests.testing.servicer_client import Client


def test_status_shows_the_state_as_it_changes(client: Client, container_id: str) -> None:
    request = api_pb2.ContainerStatusRequest(container_id=container_id[:10])
    running = client.ok(request).status
    assert (running.id, running.state) == (container_id, api_pb2.CONTAINER_RUNNING)
    client.ok(api_pb2.StopContainerRequest(container_id=container_id, timeout=30))
    exited = client.ok(request).status
    assert (exited.exit_code, exited.finished_at) == (137, 1_000_000_000)
    client.ok(api_pb2.RemoveContainerRequest(container_id=container_id))
    assert client.call(request)[1] is grpc.StatusCode.NOT_FOUND


def test_status_shows_the_resources_as_applied(client: Client, container_id: str) -> None:
    client.ok(
        api_pb2.UpdateContainerResourcesRequest(
            container_id=container_id, linux=api_pb2.LinuxContainerResources(cpu_shares=100)
        )
    )
    response = client.ok(api_pb2.ContainerStatusRequest(container_id=container_id, verbose=True))
    assert response.status.resources.linux.cpu_shares == 100
    assert response.status.resources.linux.memory_limit_in_bytes == 2**30
    info = json.loads(response.info["info"])
    assert info["runtimeSpec"]["linux"]["resources"]["cpu"]["shares"] == 100
    assert info["config"]["linux"]["resources"]["cpu_shares"] == 512


def test_verbose_container_status_looks_like_containerds(client: Client, container_id: str) -> None:
    response = client.ok(api_pb2.ContainerStatusRequest(container_id=container_id, verbose=True))
    info = json.loads(response.info["info"])
    spec = info["runtimeSpec"]
    assert spec["linux"]["cgroupsPath"] == f"/kubepods/burstable/podu/{container_id}"
    assert spec["linux"]["resources"] == {
        "memory": {"limit": 2**30},
        "cpu": {"shares": 512, "cpus": "0-1"},
        "unified": {"m": "1"},
    }
    assert spec["process"]["env"] == ["A=b"]
    assert info["config"]["metadata"] == {"name": "app"}
    assert info["config"]["envs"] == [{"key": "A", "value": "b"}]


def test_verbose_sandbox_status_looks_like_containerds(client: Client, sandbox_id: str) -> None:
    response = client.ok(api_pb2.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True))
    info = json.loads(response.info["info"])
    assert info["config"]["linux"] == {"cgroup_parent": "/kubepods/burstable/podu"}
    assert info["config"]["labels"]["koordinator.sh/qosClass"] == "LS"
    assert info["runtimeSpec"]["linux"]["cgroupsPath"] == f"/kubepods/burstable/podu/{sandbox_id}"


def test_status_is_not_verbose_unless_asked(client: Client, sandbox_id: str, container_id: str) -> None:
    sandbox = client.ok(api_pb2.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id))
    assert not sandbox.info
    assert not client.ok(api_pb2.ContainerStatusRequest(container_id=container_id)).info
    assert not sandbox.containers_statuses


def test_systemd_shows_in_paths_and_configuration(client: Client) -> None:
    client.state.cgroups = PodCgroups(CgroupDriver.SYSTEMD)
    pod = pod_sandbox_config(uid="u", driver=CgroupDriver.SYSTEMD)
    sandbox_id = client.ok(api_pb2.RunPodSandboxRequest(config=pod)).pod_sandbox_id
    status = client.ok(api_pb2.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True))
    path = json.loads(status.info["info"])["runtimeSpec"]["linux"]["cgroupsPath"]
    assert path == f"kubepods-burstable-podu.slice:cri-containerd:{sandbox_id}"
    config = client.ok(api_pb2.RuntimeConfigRequest())
    assert config.linux.cgroup_driver == api_pb2.SYSTEMD


@pytest.mark.parametrize(
    ("container_filter", "count"),
    [
        pytest.param(api_pb2.ContainerFilter(), 5, id="all"),
        pytest.param(api_pb2.ContainerFilter(id="no"), 0, id="unknown id"),
        pytest.param(
            api_pb2.ContainerFilter(state=api_pb2.ContainerStateValue(state=api_pb2.CONTAINER_EXITED)),
            1,
            id="state",
        ),
        pytest.param(
            api_pb2.ContainerFilter(label_selector={"io.kubernetes.pod.name": "pod-0001"}),
            2,
            id="label",
        ),
    ],
)
def test_lists_of_containers_match_their_filter(
    client: Client, container_filter: api_pb2.ContainerFilter, count: int
) -> None:
    preload(client.state, 2, 5)
    client.state.stop_container(next(iter(client.state.containers)))
    unary = client.ok(api_pb2.ListContainersRequest(filter=container_filter)).containers
    streamed = client.stream(api_pb2.StreamContainersRequest(filter=container_filter), bool(count))
    assert len(unary) == count
    assert [entry for message in streamed for entry in message.containers] == list(unary)


@pytest.mark.parametrize(
    ("sandbox_filter", "count"),
    [
        pytest.param(api_pb2.PodSandboxFilter(), 3, id="all"),
        pytest.param(
            api_pb2.PodSandboxFilter(state=api_pb2.PodSandboxStateValue(state=api_pb2.SANDBOX_NOTREADY)),
            1,
            id="state",
        ),
        pytest.param(
            api_pb2.PodSandboxFilter(label_selector={"koordinator.sh/qosClass": "BE"}),
            1,
            id="label",
        ),
    ],
)
def test_lists_of_sandboxes_match_their_filter(
    client: Client, sandbox_filter: api_pb2.PodSandboxFilter, count: int
) -> None:
    preload(client.state, 3, 0)
    client.state.stop_sandbox(next(iter(client.state.sandboxes)))
    unary = client.ok(api_pb2.ListPodSandboxRequest(filter=sandbox_filter)).items
    streamed = client.stream(api_pb2.StreamPodSandboxesRequest(filter=sandbox_filter), 1)
    assert len(unary) == count
    assert list(streamed[0].pod_sandboxes) == list(unary)


def test_long_streams_come_in_several_messages(client: Client) -> None:
    preload(client.state, 1, 250)
    messages = client.stream(api_pb2.StreamContainersRequest(), 3)
    assert [len(message.containers) for message in messages] == [100, 100, 50]
