"""grpc-go in front of the proxy: the kubelet's own client, and grpcurl without a .proto file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cri_api.runtime.v1.api_pb2 import LinuxContainerResources
from tests.e2e.conftest import Endpoint
from tests.e2e.koordinator import extended_resources, qos
from tests.e2e.values import BATCH_500, BEST_EFFORT, HALF_A_CORE, on_this_machine
from tests.lab import cgroup_v1
from tests.lab.cri_client import CriClient
from tests.lab.go_clients import Grpcurl, KubeletClient, KubeletClientError
from tests.lab.node import running_pod
from tests.lab.pods import PodSpec
from tests.lab.programs import CONTAINERDS_WITH_EVENTS, KUBELET_CLIENT_VERSIONS
from tests.lab.proxy_process import ProxyProcess

pytestmark = pytest.mark.golang

BATCH_POD = PodSpec("kubelet", "besteffort", qos("BE"), extended_resources({"main": BATCH_500}))


@pytest.fixture(params=KUBELET_CLIENT_VERSIONS, ids=lambda version: f"kubelet-{version}")
def kubelet(request: pytest.FixtureRequest, endpoint: Endpoint) -> KubeletClient:
    return KubeletClient(endpoint.socket, request.param)


def test_kubelet_reads_the_node(kubelet: KubeletClient) -> None:
    version = kubelet.call("version")
    conditions = {each["type"]: each for each in kubelet.call("status")["status"]["conditions"]}

    assert version["runtime_name"] == "containerd"
    assert conditions["RuntimeReady"]["status"] is True
    assert kubelet.call("image-fs")["image_filesystems"]
    assert len(kubelet.call("images")) == 1


def test_kubelet_runs_updates_and_removes_a_pod(
    kubelet: KubeletClient, endpoint: Endpoint, logs: Path
) -> None:
    with cgroup_v1.pod_cgroup(BATCH_POD.cgroup_parent) as pod_cgroup:
        ids = kubelet.run_pod(BATCH_POD, logs)
        container_id = ids["container_ids"][0]
        created = cgroup_v1.values(f"{pod_cgroup}/{container_id}")
        kubelet.update(container_id, LinuxContainerResources(cpu_shares=3))
        updated = cgroup_v1.values(f"{pod_cgroup}/{container_id}")
        executed = kubelet.call("exec", container_id, "/bin/sh", "-c", "echo $((6*7)); exit 3")
        kubelet.call("remove-pod", ids["pod_sandbox_id"])
        left = kubelet.call("list")

    through = endpoint.through_proxy
    assert created == on_this_machine(HALF_A_CORE if through else BEST_EFFORT)
    assert updated.cpu_shares == (512 if through else 3)
    assert executed == {"stdout": "42\n", "stderr": "", "exit_code": 3}
    assert left == {"sandboxes": [], "containers": []}


def test_kubelet_sees_the_code_of_an_error(kubelet: KubeletClient) -> None:
    with pytest.raises(KubeletClientError) as caught:
        kubelet.call("container-status", "0" * 64)

    assert caught.value.code == "NotFound"


def test_kubelet_calls_side_by_side(kubelet: KubeletClient) -> None:
    assert kubelet.call("burst", "2000", "32")["codes"] == {"OK": 2000}


@pytest.mark.parametrize("containerd_version", CONTAINERDS_WITH_EVENTS, indirect=True)
def test_kubelet_hears_events(kubelet: KubeletClient, client: CriClient, logs: Path) -> None:
    with kubelet.events() as events:
        subscribed = events.next()
        with running_pod(client, PodSpec("heard"), logs) as pod:
            # containerd hands earlier events to the first subscriber.
            events.until(lambda event: event["pod_sandbox_status"]["id"] == pod.sandbox_id)

    assert subscribed == {"subscribed": True}


def test_grpcurl_lists_and_describes(proxy: ProxyProcess) -> None:
    grpcurl = Grpcurl(proxy.socket)

    services = set(grpcurl.names())
    assert {"runtime.v1.RuntimeService", "runtime.v1.ImageService"} <= services
    assert {"grpc.health.v1.Health"} <= services
    assert any(name.startswith("grpc.reflection.") for name in services)
    assert "runtime.v1.RuntimeService.RunPodSandbox" in grpcurl.names("runtime.v1.RuntimeService")
    assert "rpc RunPodSandbox" in grpcurl.describe("runtime.v1.RuntimeService")


def test_grpcurl_calls_without_a_proto_file(proxy: ProxyProcess) -> None:
    grpcurl = Grpcurl(proxy.socket)

    version = grpcurl.call("runtime.v1.RuntimeService/Version")
    health = grpcurl.call("grpc.health.v1.Health/Check")
    failure = grpcurl.failing_call("runtime.v1.RuntimeService/StartContainer", '{"container_id": "0000"}')

    assert version["runtimeName"] == "containerd"
    assert health == {"status": "SERVING"}
    assert "Code: NotFound" in failure
