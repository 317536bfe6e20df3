"""Recovery and look-ups against a real containerd."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.pods.inventory import Inventory
from runtimeproxy.pods.lookup import Lookups
from runtimeproxy.pods.records import Lifecycle
from runtimeproxy.pods.recovery import Recovery
from runtimeproxy.pods.runtime_client import ClientSettings, GrpcRuntimeClient
from runtimeproxy.pods.store import PodStore
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.node import running_pod
from tests.lab.pods import ContainerSpec, PodSpec
from tests.lab.programs import CONTAINERD_VERSIONS, ContainerdVersion

pytestmark = pytest.mark.containerd
SPEC = ContainerSpec(
    resources=api_pb2.LinuxContainerResources(cpu_shares=512, cpu_period=100_000, cpu_quota=50_000)
)


@pytest.mark.parametrize("version", CONTAINERD_VERSIONS)
async def test_a_pod_comes_back_with_cgroup_parent_and_resources(
    version: ContainerdVersion, tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    spec = PodSpec("web", "burstable", labels={"koordinator.sh/qosClass": "LS"}, containers=(SPEC,))
    with (
        Containerd(version) as containerd,
        CriClient(containerd.socket) as kubelet,
        running_pod(kubelet, spec, tmp_path) as running,
    ):
        update = api_pb2.UpdateContainerResourcesRequest(container_id=running.container_id())
        update.linux.cpu_shares = 700
        kubelet.runtime.UpdateContainerResources(update, timeout=CALL_TIMEOUT_S)
        client = GrpcRuntimeClient(ClientSettings(f"unix:{containerd.socket}"), executor)
        recovered, looked_up = PodStore(), PodStore()
        await Recovery(Inventory(recovered), client).compare()
        await Lookups(looked_up, client, timeout_s=10).container(running.container_id()[:12])
        name = await client.runtime_name()
        await client.close()
    (pod,), (container,), (found,) = recovered.pods, recovered.containers, looked_up.containers
    assert name == "containerd"
    assert (pod.name, pod.uid, pod.cgroup_parent) == ("web", spec.uid, spec.cgroup_parent)
    assert pod.labels["koordinator.sh/qosClass"] == "LS"
    assert (container.pod_id, container.name, container.state) == (pod.id, "main", Lifecycle.RUNNING)
    assert (container.booked.cpu_shares, container.booked.cpu_quota_us) == (700, 50_000)
    assert (found.id, found.pod_id, found.booked.cpu_shares) == (container.id, pod.id, 700)
