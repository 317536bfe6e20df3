"""Strategies change the values of a pod that runs, and give them back."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.fields.anolis import lacking_text
from runtimeproxy.testing import FakeRuntime
from runtimeproxy.testing.builders import (
    KubeletQos,
    container_config,
    create_container_request,
    pod_sandbox_config,
)
from runtimeproxy.testing.cgroups import CgroupFiles
from tests.daemon.conftest import Daemons
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.node.objects_of import config_map, write

MIB = 1 << 20
CLASS = {"memoryQOS": {"enable": True, "minLimitPercent": 50, "throttlingPercent": 80}}
STRATEGIES = {
    "cpu_burst_config": {"clusterStrategy": {"policy": "auto", "cpuBurstPercent": 1000}},
    "resource_qos_config": {"clusterStrategy": {"lsClass": CLASS, "lsrClass": CLASS}},
}
LIMITS = api_pb2.LinuxContainerResources(
    cpu_period=100_000, cpu_quota=150_000, cpu_shares=1_024, memory_limit_in_bytes=200 * MIB
)


def texts(files: CgroupFiles) -> Mapping[str, str]:
    """The content of every file of every cgroup."""
    return {
        str(path.relative_to(files.root)): path.read_text()
        for path in files.root.rglob("*.*")
        if path.is_file() and not path.name.startswith("cgroup.")
    }


def test_strategies_count_for_a_pod_that_runs_and_are_given_back(
    daemons: Daemons, cgroup_files: CgroupFiles
) -> None:
    """Every file has its original text again, and those of pods that nobody mentions never another one."""
    daemon = daemons.start("[policies.memory-qos]\nenabled = true\n")
    daemon.objects_folder.mkdir()
    file = daemon.objects_folder / "slo.yaml"
    sandbox = pod_sandbox_config("web", qos="LS", kubelet_qos=KubeletQos.GUARANTEED)
    sandbox.linux.resources.CopyFrom(LIMITS)
    pod_path = sandbox.linux.cgroup_parent
    cgroup_files.make(pod_path)
    # By these files the daemon knows what the kernel has.
    (cgroup_files.folder("/kubepods") / "cgroup.controllers").write_text("cpu memory\n")
    (cgroup_files.folder(pod_path) / "cpu.max").write_text("150000 100000\n")
    with CriClient(daemon.socket) as client:
        run = api_pb2.RunPodSandboxRequest(config=sandbox)
        pod_id = client.runtime.RunPodSandbox(run, timeout=CALL_TIMEOUT_S).pod_sandbox_id
        config = container_config("main", pod=sandbox, resources=LIMITS)
        create = create_container_request(pod_id, config, sandbox)
        container = client.runtime.CreateContainer(create, timeout=CALL_TIMEOUT_S).container_id
        start = api_pb2.StartContainerRequest(container_id=container)
        client.runtime.StartContainer(start, timeout=CALL_TIMEOUT_S)
        path = f"{pod_path}/{container}"
        before = texts(cgroup_files)
        wanted = {
            # Ten times the limit, within the quota (#2326).
            (path, "cpu.max.burst"): "150000",
            (pod_path, "cpu.max.burst"): "150000",
            # Of a Guaranteed pod the request is the limit.
            (path, "memory.min"): str(100 * MIB),
            (path, "memory.high"): str(200 * MIB),
            (pod_path, "memory.min"): str(100 * MIB),
            ("/kubepods", "memory.min"): str(100 * MIB),
        }

        def present() -> dict[tuple[str, str], str]:
            return {key: cgroup_files.read(*key) for key in wanted}

        write(file, config_map(**STRATEGIES))
        wait_until(lambda: present() == wanted, "the values of the strategies")
        lacking = ["memory-oom-group", "memory-pagecache-limit", "memory-priority", "memory-wmark"]
        daemon.wait_for_state(
            f"STATUS=8 policies (group-identity is off: the kernel lacks {lacking_text(['bvt'])}; "
            f"memory-qos in part: the kernel lacks {lacking_text(lacking)}); "
        )
        write(file, config_map())
        wait_until(lambda: texts(cgroup_files) == before, "the original values")


def test_a_pod_that_starts_while_strategies_change_has_the_new_values(
    daemons: Daemons, runtime: FakeRuntime, cgroup_files: CgroupFiles
) -> None:
    """Decided with the old ones: a sandbox that is being made, a container that is not started yet."""
    daemon = daemons.prepare()
    daemon.objects_folder.mkdir()
    file = daemon.objects_folder / "slo.yaml"
    write(file, config_map(cpu_burst_config=burst(10)))
    daemon.start()

    def sandbox(name: str) -> api_pb2.PodSandboxConfig:
        config = pod_sandbox_config(name, qos="LS", kubelet_qos=KubeletQos.GUARANTEED)
        config.linux.resources.CopyFrom(LIMITS)
        cgroup_files.make(config.linux.cgroup_parent)
        (cgroup_files.folder(config.linux.cgroup_parent) / "cpu.max").write_text("150000 100000\n")
        return config

    def bursts(cgroup: str) -> str:
        return cgroup_files.read(cgroup, "cpu.max.burst").strip()

    ready, making = sandbox("ready"), sandbox("making")
    with CriClient(daemon.socket) as client, ThreadPoolExecutor(1) as executor:

        def run(config: api_pb2.PodSandboxConfig) -> str:
            request = api_pb2.RunPodSandboxRequest(config=config)
            return client.runtime.RunPodSandbox(request, timeout=CALL_TIMEOUT_S).pod_sandbox_id

        ready_id = run(ready)
        config = container_config("main", pod=ready, resources=LIMITS)
        create = create_container_request(ready_id, config, ready)
        container = client.runtime.CreateContainer(create, timeout=CALL_TIMEOUT_S).container_id
        runtime.on("RunPodSandbox", hang=True, times=1)
        running = executor.submit(run, making)
        wait_until(lambda: bursts(making.linux.cgroup_parent) == "15000", "the old value of the second pod")
        runtime.recorded.wait("RunPodSandbox", 2)
        write(file, config_map(cpu_burst_config=burst(20)))
        wait_until(lambda: bursts(ready.linux.cgroup_parent) == "30000", "the new value of the first pod")
        runtime.release("RunPodSandbox")
        running.result(30)
        wait_until(lambda: bursts(making.linux.cgroup_parent) == "30000", "the new value of the second pod")
        start = api_pb2.StartContainerRequest(container_id=container)
        client.runtime.StartContainer(start, timeout=CALL_TIMEOUT_S)
        path = f"{ready.linux.cgroup_parent}/{container}"
        wait_until(lambda: bursts(path) == "30000", "the new value of the container")


def burst(percent: int) -> Mapping[str, object]:
    """A strategy of CPU burst."""
    return {"clusterStrategy": {"policy": "auto", "cpuBurstPercent": percent}}
