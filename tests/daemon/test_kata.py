"""Pods of Kata Containers: containers without cgroups of their own on the node."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2 as cri
from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from runtimeproxy.testing.builders import KubeletQos, pod_sandbox_config
from tests.daemon.conftest import Daemons
from tests.daemon.driving import Pod
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node_objects import NodeObjects, kubelet_files
from tests.node.objects_of import Machine

CONFIG = """
[node]
shared_pools = "computed"
kubelet_dir = "{folder}/kubelet"
[policies.cpu-burst]
enabled = true
"""
BURST = {"clusterStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 20}}
IN_VM = "it runs in a VM (Kata Containers) and has no cgroup of its own on the node"


class KataPod(Pod):
    """A pod with the runtime class of Kata Containers, whose containers have no cgroups."""

    def run(self) -> Pod:
        request = cri.RunPodSandboxRequest(config=self.config, runtime_handler="kata-qemu")
        self.id = self.client.runtime.RunPodSandbox(request, timeout=CALL_TIMEOUT_S).pod_sandbox_id
        return self


@dataclass
class Site:
    """A daemon on a machine with eight CPUs, and its API."""

    client: CriClient
    files: CgroupFiles
    api: api_pb2_grpc.RuntimeProxyStub

    def start(self, name: str, qos: str, annotations: Mapping[str, str] | None = None) -> Pod:
        limits = cri.LinuxContainerResources(cpu_period=100_000, cpu_quota=100_000)
        config = pod_sandbox_config(
            name, qos=qos, kubelet_qos=KubeletQos.BURSTABLE, uid=f"uid-{name}", annotations=annotations or {}
        )
        config.linux.resources.CopyFrom(limits)
        self.files.make(config.linux.cgroup_parent)
        self.files.write(config.linux.cgroup_parent, "cpu.max", "100000 100000")
        made = KataPod(self.client, config, resources=limits).run().create()
        shutil.rmtree(self.files.folder(f"{config.linux.cgroup_parent}/{made.container}"), ignore_errors=True)
        return made.start()

    def wait_for(self, made: Pod, name: str, value: str) -> None:
        parent = made.config.linux.cgroup_parent
        wait_until(lambda: self.files.read(parent, name).split()[:1] == [value], f"{name} = {value}")

    def fields(self, made: Pod) -> dict[str, api_pb2.ExplainedField]:
        """Those of the pod's container."""
        request = api_pb2.ExplainRequest(pod=f"default/{made.config.metadata.name}", container="main")
        targets = self.api.Explain(request, timeout=CALL_TIMEOUT_S).targets
        return {field.name: field for target in targets for field in target.fields}


@pytest.fixture
def site(daemons: Daemons, cgroup_files: CgroupFiles, socket_folder: Path) -> Iterator[Site]:
    kubelet_files(socket_folder / "kubelet", {})
    daemons.environment["KOORD_RUNTIMEPROXY_NODE_SYSFS_ROOT"] = str(Machine(socket_folder / "m").sysfs)
    daemon = daemons.prepare(CONFIG.format(folder=socket_folder))
    NodeObjects(daemon.objects_folder).strategies({"cpu-burst-config": BURST})
    daemon.start()
    with CriClient(daemon.socket) as client:
        yield Site(client, cgroup_files, api_pb2_grpc.RuntimeProxyStub(client.channel))


def test_messages_and_the_pods_cgroup_have_the_values(site: Site, runtime: FakeRuntime) -> None:
    web = site.start("web", "LS")
    site.wait_for(web, "cpuset.cpus", "0-7")
    site.wait_for(web, "cpu.max.burst", "20000")
    status = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": "2-3"})}
    own = site.start("own", "LSR", status)
    site.wait_for(own, "cpuset.cpus", "2-3")
    site.wait_for(own, "cpu.max", "max")
    site.wait_for(web, "cpuset.cpus", "0-1,4-7")
    # The runtime has the containers' values, and gives them to the guest.
    sent = [each.message.config.linux.resources for each in runtime.recorded.of("CreateContainer")]
    assert [(each.cpuset_cpus, each.cpu_quota) for each in sent] == [("0-7", 100_000), ("2-3", -1)]
    assert site.fields(own).keys() >= {"resources.cpuset_cpus", "resources.cpu_quota_us"}

    def is_told() -> bool:
        burst = site.fields(web).get("cpu.cfs_burst_us")
        return burst is not None and any(IN_VM in each.reason for each in burst.unapplied)

    wait_until(is_told, "the value that only a file holds")
    found = site.api.GetStatus(api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S)
    assert not [each for each in found.problems if "default/" in each]
    # The kubelet's next update carries what has changed since.
    update = cri.LinuxContainerResources(cpu_shares=512)
    request = cri.UpdateContainerResourcesRequest(container_id=web.container, linux=update)
    site.client.runtime.UpdateContainerResources(request, timeout=CALL_TIMEOUT_S)
    assert runtime.recorded.of("UpdateContainerResources")[-1].message.linux.cpuset_cpus == "0-1,4-7"
