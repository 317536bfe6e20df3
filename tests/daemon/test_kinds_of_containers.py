"""A pod with init containers, a sidecar, regular and ephemeral containers, from its start to a resize."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2 as cri
from runtimeproxy.testing import (
    CgroupDriver,
    CgroupFiles,
    FakeRuntime,
    NriAdaptation,
    NriRuntimeState,
    PodCgroups,
)
from runtimeproxy.testing.builders import (
    KubeletQos,
    container_config,
    create_container_request,
    pod_sandbox_config,
)
from tests.daemon.conftest import PATIENT_NRI, Daemons
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node_objects import NodeObjects, kubelet_files
from tests.node.objects_of import Machine

PLUGIN = "50-koord-runtime-proxy"
CONFIG = """
[daemon]
mode = "{mode}"
lock = "{folder}/lock"
[nri]
socket = "{folder}/nri.sock"
[node]
shared_pools = "computed"
kubelet_dir = "{folder}/kubelet"
[policies.cpu-burst]
enabled = true
[policies.cpu-normalization]
enabled = true
"""
BURST = {"clusterStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 20}}
RATIO = {"node.koordinator.sh/cpu-normalization-ratio": "1.25"}


@pytest.fixture
def state(socket_folder: Path, cgroup_files: CgroupFiles) -> NriRuntimeState:
    adaptation = NriAdaptation(socket_folder / "nri.sock", PATIENT_NRI)
    return NriRuntimeState(adaptation, PodCgroups(CgroupDriver.CGROUPFS, cgroup_files))


@pytest.fixture
def runtime(socket_folder: Path, state: NriRuntimeState) -> Iterator[FakeRuntime]:
    with FakeRuntime(socket_folder / "runtime.sock", state=state) as fake:
        yield fake


@dataclass
class RunningPod:
    """A pod whose containers come one after the other, as with the kubelet."""

    kubelet: CriClient
    files: CgroupFiles
    config: cri.PodSandboxConfig
    id: str = ""
    containers: dict[str, str] = field(default_factory=dict)

    def run(self, quota_us: int) -> None:
        # The kubelet makes the pod's cgroup first, with what its containers need at most at one time.
        parent = self.config.linux.cgroup_parent
        self.files.make(parent)
        self.files.write(parent, "cpu.max", f"{quota_us} 100000")
        self.config.linux.resources.CopyFrom(limits(quota_us))
        request = cri.RunPodSandboxRequest(config=self.config)
        self.id = self.kubelet.runtime.RunPodSandbox(request, timeout=CALL_TIMEOUT_S).pod_sandbox_id

    def start(self, name: str, quota_us: int) -> None:
        config = container_config(name, pod=self.config, resources=limits(quota_us))
        request = create_container_request(self.id, config, self.config)
        made = self.kubelet.runtime.CreateContainer(request, timeout=CALL_TIMEOUT_S).container_id
        start = cri.StartContainerRequest(container_id=made)
        self.kubelet.runtime.StartContainer(start, timeout=CALL_TIMEOUT_S)
        self.containers[name] = made

    def stop(self, name: str) -> None:
        request = cri.StopContainerRequest(container_id=self.containers.pop(name))
        self.kubelet.runtime.StopContainer(request, timeout=CALL_TIMEOUT_S)

    def resize(self, name: str, quota_us: int, pod_quota_us: int) -> None:
        """The pod's cgroup first, as it grows. Source: kubelet, doPodResizeAction."""
        self.files.write(self.config.linux.cgroup_parent, "cpu.max", f"{pod_quota_us} 100000")
        sandbox = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=self.id, resources=limits(pod_quota_us))
        self.kubelet.runtime.UpdatePodSandboxResources(sandbox, timeout=CALL_TIMEOUT_S)
        request = cri.UpdateContainerResourcesRequest(
            container_id=self.containers[name], linux=limits(quota_us)
        )
        self.kubelet.runtime.UpdateContainerResources(request, timeout=CALL_TIMEOUT_S)

    def wait_for(self, pod: tuple[int, int], **containers: tuple[int, int]) -> None:
        """Waits until pod and containers have these quotas and bursts; -1: no quota. All share all CPUs."""
        parent = self.config.linux.cgroup_parent
        wanted = {"": (*pod, "")} | {
            name.replace("_", "-"): (*each, "0-7") for name, each in containers.items()
        }
        assert wanted.keys() == {"", *self.containers}

        def found() -> dict[str, tuple[int | None, int | None, str]]:
            paths = {"": parent} | {name: f"{parent}/{each}" for name, each in self.containers.items()}
            return {name: self._values(path, has_cpus=bool(name)) for name, path in paths.items()}

        try:
            wait_until(lambda: found() == wanted, "the values")
        except TimeoutError:
            assert found() == wanted
            raise

    def _values(self, path: str, *, has_cpus: bool) -> tuple[int | None, int | None, str]:
        """Quota, burst and CPUs; None for a file that is empty, because the daemon is about to write it."""
        quota = self.files.read(path, "cpu.max").partition(" ")[0].replace("max", "-1")
        burst = self.files.read(path, "cpu.max.burst")
        cpus = self.files.read(path, "cpuset.cpus").strip() if has_cpus else ""
        return int(quota) if quota else None, int(burst) if burst else None, cpus


def limits(quota_us: int) -> cri.LinuxContainerResources:
    """The kubelet's request of a container with this limit; 0 for none."""
    return cri.LinuxContainerResources(cpu_period=100_000, cpu_quota=quota_us, cpu_shares=512)


@pytest.mark.parametrize("mode", ["proxy", "nri", "standalone"])
def test_all_have_their_values_at_each_stage(
    daemons: Daemons,
    runtime: FakeRuntime,
    state: NriRuntimeState,
    cgroup_files: CgroupFiles,
    socket_folder: Path,
    mode: str,
) -> None:
    """#2115, #2350: of an LS pod with CPU burst and a normalization ratio of 1.25, in shared CPUs."""
    cgroup_files.root.mkdir(parents=True, exist_ok=True)
    kubelet_files(socket_folder / "kubelet", {})
    daemons.environment["KOORD_RUNTIMEPROXY_NODE_SYSFS_ROOT"] = str(Machine(socket_folder / "m").sysfs)
    daemon = daemons.prepare(CONFIG.format(mode=mode, folder=socket_folder))
    objects = NodeObjects(daemon.objects_folder)
    objects.strategies({"cpu-burst-config": BURST})
    objects.node(annotations=RATIO)
    daemon.start()
    if mode == "nri":
        state.nri.wait_for_plugins(PLUGIN)
    with CriClient(daemon.socket if mode == "proxy" else runtime.socket_path) as kubelet:
        config = pod_sandbox_config("web", qos="LS", kubelet_qos=KubeletQos.BURSTABLE, uid="uid-web")
        pod = RunningPod(kubelet, cgroup_files, config)
        # init-a alone needs 4 CPUs, all that run later 3.5.
        pod.run(400_000)
        pod.start("init-a", 400_000)
        pod.wait_for((320_000, 80_000), init_a=(320_000, 80_000))
        pod.stop("init-a")
        pod.start("side", 50_000)
        pod.start("init-b", 100_000)
        pod.wait_for((320_000, 80_000), side=(40_000, 10_000), init_b=(80_000, 20_000))
        pod.stop("init-b")
        pod.start("main", 200_000)
        pod.start("helper", 100_000)
        running = {"side": (40_000, 10_000), "helper": (80_000, 20_000)}
        pod.wait_for((320_000, 80_000), main=(160_000, 40_000), **running)
        # An ephemeral container has no limit, and none of the pod's values follow it.
        pod.start("debug", 0)
        pod.wait_for((320_000, 80_000), main=(160_000, 40_000), debug=(-1, 0), **running)
        pod.resize("main", 300_000, 450_000)
        pod.wait_for((360_000, 90_000), main=(240_000, 60_000), debug=(-1, 0), **running)
