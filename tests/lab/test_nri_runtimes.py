"""Real runtimes with NRI switched on, and plugins in Go on them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import cgroup_v1, procfs
from tests.lab.containerd import Containerd
from tests.lab.containerd_config import PATIENT
from tests.lab.cri_client import CriClient
from tests.lab.crio import Crio, runtime_with_nri
from tests.lab.deadline import wait_until
from tests.lab.node import run_sandbox, running_pod, start_container
from tests.lab.nri_plugins import Balloons, GoPlugin, GoPluginOptions, MemoryQos
from tests.lab.pods import NAMESPACE, PodSpec, sandbox_config
from tests.lab.programs import RUNTIMES_WITH_NRI, WITH_ALL_VERSIONS
from tests.lab.runtime_process import RuntimeProcess

pytestmark = [pytest.mark.containerd, pytest.mark.golang]

OF_ALL_VERSIONS = pytest.mark.skipif(not WITH_ALL_VERSIONS, reason="of `make e2e-versions`")
SHARES = {"linux": {"resources": {"cpu": {"shares": {"value": "512"}}}}}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


@pytest.fixture(params=RUNTIMES_WITH_NRI)
def runtime(request: pytest.FixtureRequest) -> Iterator[RuntimeProcess]:
    with runtime_with_nri(request.param, PATIENT) as running:
        yield running


def test_a_plugin_hears_of_a_pod_and_its_adjustment_is_in_the_kernel(
    runtime: RuntimeProcess, folder: Path
) -> None:
    options = GoPluginOptions(adjustment=SHARES, prints=True)
    with CriClient(runtime.socket) as client:
        with (
            GoPlugin(runtime.nri_socket, folder, options) as plugin,
            running_pod(client, PodSpec("lab"), folder, cgroup_prefix=runtime.cgroup_prefix) as pod,
        ):
            values = pod.values()
            sandbox = plugin.event("RunPodSandbox")["messages"][0]
            created, started = (plugin.event(name) for name in ("CreateContainer", "StartContainer"))
        with GoPlugin(runtime.nri_socket, folder) as plugin:
            assert plugin.synchronized["pods"] == []

    assert values.cpu_shares == 512
    assert sandbox["id"] == pod.sandbox_id
    assert [each["messages"][1]["id"] for each in (created, started)] == [pod.container_id()] * 2


@OF_ALL_VERSIONS
def test_crio_leaves_nothing_of_pods_that_were_not_removed(folder: Path) -> None:
    spec = PodSpec("left")
    config = sandbox_config(spec, str(folder))
    with cgroup_v1.pod_cgroup(spec.cgroup_parent):
        with Crio() as crio, CriClient(crio.socket) as client:
            sandbox = run_sandbox(client, config)
            container = start_container(client, sandbox, config, spec, spec.containers[0])
            cgroup = f"{spec.cgroup_parent}/crio-{container}"
            process = cgroup_v1.processes(cgroup)[0]
        gone = not cgroup_v1.file("cpu", cgroup, "cgroup.procs").exists()

    assert gone
    assert not procfs.runs(process)
    assert not crio.folder.exists()
    assert str(crio.folder) not in Path("/proc/self/mountinfo").read_text()
    assert not any(str(crio.folder) in " ".join(procfs.command_line(pid)) for pid in procfs.all_pids())


@OF_ALL_VERSIONS
def test_plugins_of_others_beside_each_other(folder: Path) -> None:
    """What balloons updates without being asked is in the kernel; memory-qos hears of the container, too."""
    pool = {"balloonTypes": [{"name": "lab", "namespaces": [NAMESPACE], "minCPUs": 1}], "pinCPU": True}
    with Containerd("2.2", PATIENT) as containerd, CriClient(containerd.socket) as client:
        balloons = Balloons(containerd.nri_socket, folder, {**pool, "reservedResources": {"cpu": "cpuset:0"}})
        memory_qos = MemoryQos(containerd.nri_socket, folder, {"unifiedAnnotations": ["memory.high"]})
        with balloons, memory_qos, running_pod(client, PodSpec("lab"), folder) as pod:
            before = pod.values().cpuset_cpus
            balloons.configure({**pool, "reservedResources": {"cpu": "cpuset:1"}})
            wait_until(lambda: pod.values().cpuset_cpus == "0", "the container has the other CPU", 10)
            memory_qos.wait_for_log("CreateContainer lab/lab:main: no adjustments")

    assert before == "1"
