"""Real runtimes with NRI switched on, and plugins in Go on them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.containerd import Containerd
from tests.lab.containerd_config import Nri
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import running_pod
from tests.lab.nri_plugins import Balloons, GoPlugin, GoPluginOptions, MemoryQos
from tests.lab.pods import NAMESPACE, PodSpec
from tests.lab.programs import CONTAINERDS_WITH_NRI, WITH_ALL_VERSIONS, ContainerdVersion

pytestmark = pytest.mark.containerd

SHARES = {"linux": {"resources": {"cpu": {"shares": {"value": "512"}}}}}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


@pytest.fixture(params=CONTAINERDS_WITH_NRI)
def version(request: pytest.FixtureRequest) -> ContainerdVersion:
    wanted: ContainerdVersion = request.param
    return wanted


def test_a_plugin_hears_of_a_pod_and_its_adjustment_is_in_the_kernel(
    version: ContainerdVersion, folder: Path
) -> None:
    options = GoPluginOptions(adjustment=SHARES, prints=True)
    with Containerd(version, Nri()) as containerd, CriClient(containerd.socket) as client:
        with (
            GoPlugin(containerd.nri_socket, folder, options) as plugin,
            running_pod(client, PodSpec("lab"), folder) as pod,
        ):
            values = pod.values()
            sandbox = plugin.event("RunPodSandbox")["messages"][0]
            created, started = (plugin.event(name) for name in ("CreateContainer", "StartContainer"))
        with GoPlugin(containerd.nri_socket, folder) as plugin:
            assert plugin.synchronized["pods"] == []

    assert values.cpu_shares == 512
    assert sandbox["id"] == pod.sandbox_id
    assert [each["messages"][1]["id"] for each in (created, started)] == [pod.container_id()] * 2


@pytest.mark.golang
@pytest.mark.skipif(not WITH_ALL_VERSIONS, reason="plugins of others are of `make e2e-versions`")
def test_plugins_of_others_beside_each_other(folder: Path) -> None:
    """What balloons updates without being asked is in the kernel; memory-qos hears of the container, too."""
    pool = {"balloonTypes": [{"name": "lab", "namespaces": [NAMESPACE], "minCPUs": 1}], "pinCPU": True}
    with Containerd("2.2", Nri()) as containerd, CriClient(containerd.socket) as client:
        balloons = Balloons(containerd.nri_socket, folder, {**pool, "reservedResources": {"cpu": "cpuset:0"}})
        memory_qos = MemoryQos(containerd.nri_socket, folder, {"unifiedAnnotations": ["memory.high"]})
        with balloons, memory_qos, running_pod(client, PodSpec("lab"), folder) as pod:
            before = pod.values().cpuset_cpus
            balloons.configure({**pool, "reservedResources": {"cpu": "cpuset:1"}})
            wait_until(lambda: pod.values().cpuset_cpus == "0", "the container has the other CPU", 10)
            memory_qos.wait_for_log("CreateContainer lab/lab:main: no adjustments")

    assert before == "1"
