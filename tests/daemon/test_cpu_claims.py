"""CPUs of DRA claims: their containers keep them, and others leave them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2 as cri
from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from runtimeproxy.testing.builders import KubeletQos, pod_sandbox_config
from tests.daemon.conftest import Daemons
from tests.daemon.driving import Pod
from tests.lab.cpu_claims import claim_file, device_of
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node_objects import kubelet_files
from tests.lab.proxy_process import ProxyProcess
from tests.node.objects_of import Machine

CONFIG = """
[node]
shared_pools = "computed"
kubelet_dir = "{folder}/kubelet"
cdi_dir = "{folder}/cdi"
[daemon]
mode = "{mode}"
lock = "{folder}/lock"
"""


class ClaimingPod(Pod):
    """A pod whose container has a claim on CPUs."""

    @property
    def create_request(self) -> cri.CreateContainerRequest:
        request = super().create_request
        request.config.CDI_devices.add(name="vendor.com/net=0")
        request.config.CDI_devices.add(name=device_of("a"))
        return request


@dataclass
class Site:
    """A daemon on a machine with eight CPUs."""

    daemon: ProxyProcess
    client: CriClient
    files: CgroupFiles
    folder: Path

    def start(self, name: str, kind: type[Pod] = Pod) -> str:
        """Starts a pod of class LS; returns the path of its container's cgroup."""
        config = pod_sandbox_config(name, qos="LS", kubelet_qos=KubeletQos.BURSTABLE, uid=f"uid-{name}")
        self.files.make(config.linux.cgroup_parent)
        made = kind(self.client, config).run().create().start()
        return f"{config.linux.cgroup_parent}/{made.container}"

    def cpus(self, container: str) -> str:
        return self.files.read(container, "cpuset.cpus").strip()

    def wait_for(self, container: str, cpus: str) -> None:
        wait_until(lambda: self.cpus(container) == cpus, f"{cpus} of {container}")

    def claimed(self) -> str:
        with CriClient(self.daemon.socket) as client:
            api = api_pb2_grpc.RuntimeProxyStub(client.channel)
            return api.GetNode(api_pb2.GetNodeRequest(), timeout=CALL_TIMEOUT_S).claimed_cpus


@pytest.fixture(params=["proxy", pytest.param("standalone", marks=pytest.mark.slow)])
def site(
    request: pytest.FixtureRequest,
    daemons: Daemons,
    cgroup_files: CgroupFiles,
    runtime: FakeRuntime,
    socket_folder: Path,
) -> Iterator[Site]:
    cgroup_files.root.mkdir(parents=True, exist_ok=True)
    kubelet_files(socket_folder / "kubelet", {})
    daemons.environment["KOORD_RUNTIMEPROXY_NODE_SYSFS_ROOT"] = str(Machine(socket_folder / "machine").sysfs)
    daemon = daemons.start(CONFIG.format(folder=socket_folder, mode=request.param))
    socket = daemon.socket if request.param == "proxy" else runtime.socket_path
    with CriClient(socket) as client:
        yield Site(daemon, client, cgroup_files, socket_folder)


def test_the_cpus_of_a_claim_are_its_containers_alone(site: Site) -> None:
    web = site.start("web")
    site.wait_for(web, "0-7")
    # The kubelet has the claim prepared before it runs the pod.
    claim_file(site.folder / "cdi", "a", "2-3")
    site.wait_for(web, "0-1,4-7")
    assert site.claimed() == "2-3"
    claiming = site.start("claiming", ClaimingPod)
    # As the driver does, through the runtime.
    site.files.write(claiming, "cpuset.cpus", "2-3")
    other = site.start("other")
    site.wait_for(other, "0-1,4-7")
    assert site.cpus(claiming) == "2-3"
    # A daemon that knows only what the runtime tells.
    site.daemon.terminate()
    for file in site.daemon.state_folder.iterdir():
        if file.is_file():
            file.unlink()
    site.daemon.start()
    claim_file(site.folder / "cdi", "b", "4")
    for each in (web, other):
        site.wait_for(each, "0-1,5-7")
    assert site.cpus(claiming) == "2-3"
    claim_file(site.folder / "cdi", "a", None)
    claim_file(site.folder / "cdi", "b", None)
    for each in (web, other):
        site.wait_for(each, "0-7")
    assert site.cpus(claiming) == "2-3"
