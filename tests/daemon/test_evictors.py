"""Evictions from end to end: an API server, the daemon, the QoS manager as a process, and a runtime."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from cri_api.runtime.v1 import api_pb2
from cri_api.runtimeproxy.v1 import api_pb2 as own_pb2
from cri_api.runtimeproxy.v1 import api_pb2_grpc as own_grpc
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from runtimeproxy.testing.builders import container_config, create_container_request, pod_sandbox_config
from tests.daemon.conftest import Daemons
from tests.daemon.driving import BATCH
from tests.kubernetes.api_server import ApiServer
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ManagerProcess, ProxyProcess

CONFIG_MAPS = "/api/v1/namespaces/koordinator-system/configmaps"
NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
CONFIG = """\
[kubernetes]
enabled = true
kubeconfig = "%(kubeconfig)s"
# The runtime stops containers, as without an API server.
evictions = false
[slo]
start_spread_s = 0
[node]
name = "node-a"
[qosmanager]
interval_s = 0.2
feature_gates = ["BEMemoryEvict=true", "MemoryEvict=true", "BECPUEvict=true", "CPUAllocatableEvict=true"]
[plugins.cpu-suppress]
mode = "off"
[plugins.%(plugin)s]
mode = "%(mode)s"
"""
NODE = {
    # Any machine uses more than 64 MiB.
    "capacity": {"cpu": "4", "memory": "64Mi"},
    "allocatable": {"cpu": "100m", "memory": "64Mi", "kubernetes.io/batch-cpu": "100"},
}
STRATEGY = {
    "enable": True,
    "memoryEvictThresholdPercent": 70,
    "evictEnabledPriorityThreshold": 9000,
    "cpuEvictPolicy": "evictByAllocatable",
    "cpuEvictBESatisfactionLowerPercent": 40,
    "cpuEvictBESatisfactionUpperPercent": 60,
    "cpuEvictTimeWindowSeconds": 1,
    "cpuAllocatableEvictThresholdPercent": 100,
    "cpuAllocatableEvictLowerPercent": 90,
    "allocatableEvictPriorityThreshold": 7999,
}
PODS_BY_NAME = {
    # Priority, and used MiB. All of them allow evictions; by priority and usage the protected ones are first.
    "be": ("BE", 5500, 100),
    "low": ("LS", 3500, 200),
    "lse": ("LSE", 10, 3000),
    "system": ("SYSTEM", 20, 3000),
}

pytestmark = pytest.mark.slow


class Cluster:
    """An API server, a daemon beside it, and pods that run."""

    def __init__(self, server: ApiServer, daemon: ProxyProcess, files: CgroupFiles) -> None:
        self._server = server
        self._daemon = daemon
        self._files = files
        self.containers: dict[str, str] = {}
        """By the names of their pods."""

    def run(self, client: CriClient, name: str) -> None:
        qos, priority, used_mib = PODS_BY_NAME[name]
        pod = pod_sandbox_config(
            name,
            uid=f"uid-{name}",
            qos=qos,
            labels={"koordinator.sh/eviction-enabled": "true"},
            annotations=BATCH if qos == "BE" else {},
        )
        requests = {} if qos == "BE" else {"cpu": "500m", "memory": "64Mi"}
        self._server.put(
            PODS,
            name,
            metadata={
                "namespace": pod.metadata.namespace,
                "uid": pod.metadata.uid,
                "labels": dict(pod.labels),
                "annotations": dict(pod.annotations),
            },
            spec={
                "nodeName": "node-a",
                "priority": priority,
                "containers": [{"name": "main", "resources": {"requests": requests}}],
            },
        )
        sandbox = client.runtime.RunPodSandbox(
            api_pb2.RunPodSandboxRequest(config=pod), timeout=CALL_TIMEOUT_S
        ).pod_sandbox_id
        resources = api_pb2.LinuxContainerResources(cpu_shares=512)
        config = container_config("main", pod=pod, resources=resources)
        create = create_container_request(sandbox, config, pod)
        container = client.runtime.CreateContainer(create, timeout=CALL_TIMEOUT_S).container_id
        start = api_pb2.StartContainerRequest(container_id=container)
        client.runtime.StartContainer(start, timeout=CALL_TIMEOUT_S)
        self.containers[name] = container
        used = used_mib << 20
        self._files.write(pod.linux.cgroup_parent, "memory.current", str(used))
        self._files.write(
            pod.linux.cgroup_parent,
            "memory.stat",
            f"anon {used}\ninactive_anon {used}\nactive_anon 0\ninactive_file 0\nunevictable 0\n",
        )
        self._files.write(pod.linux.cgroup_parent, "cpu.stat", "usage_usec 1000\n")

    def audit(self, api: Any, plugin: str) -> dict[str, own_pb2.AuditEntry]:
        """The entries of evictions, by the names of the pods."""
        request = own_pb2.WatchAuditRequest(policy=f"plugin:{plugin}")
        entries = [
            entry for answer in api.WatchAudit(request, timeout=CALL_TIMEOUT_S) for entry in answer.entries
        ]
        return {entry.pod: entry for entry in entries if entry.field == "eviction"}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as made:
        made.put(NODES, "node-a", status=NODE)
        strategy = json.dumps({"clusterStrategy": STRATEGY})
        made.put(CONFIG_MAPS, "slo-controller-config", data={"resource-threshold-config": strategy})
        yield made


@pytest.mark.parametrize("mode", ["enforce", "dry-run"])
@pytest.mark.parametrize(
    ("plugin", "arithmetic"),
    [
        pytest.param(
            "memory-evict",
            {
                "be": "BEMemoryEvict: * MiB used of 64 MiB (* %), threshold 70 %, down to 68 %; "
                "used memory: * MiB to release, this pod 100 MiB, then * MiB",
                "low": "MemoryEvict: * MiB used of 64 MiB (* %), threshold 70 %, down to 68 %; "
                "used memory: * MiB to release, this pod 200 MiB, then * MiB",
            },
            id="memory-evict",
        ),
        pytest.param(
            "cpu-evict",
            {
                "be": "BECPUEvict: BE pods have 100m and use 0m of 500m requested, 40 % to 60 % wanted; "
                "requested kubernetes.io/batch-cpu: 410m to release, this pod 500m, then 0m",
                "low": "CPUAllocatableEvict: 1500m cpu requested of 100m, "
                "500m kubernetes.io/batch-cpu requested of 100m, threshold 100 %, down to 90 %; "
                "requested cpu: 1410m to release, this pod 500m, then 910m",
            },
            id="cpu-evict",
        ),
    ],
)
def test_pods_go_in_their_order_and_protected_ones_never(
    daemons: Daemons,
    runtime: FakeRuntime,
    cgroup_files: CgroupFiles,
    server: ApiServer,
    socket_folder: Path,
    plugin: str,
    arithmetic: dict[str, str],
    mode: str,
) -> None:
    kubeconfig = server.kubeconfig(socket_folder)
    daemon = daemons.start(CONFIG % {"kubeconfig": kubeconfig, "plugin": plugin, "mode": mode})
    cluster = Cluster(server, daemon, cgroup_files)
    manager = ManagerProcess(daemon.folder, daemon.config_file, daemon.socket, daemon.options.environment)
    with CriClient(daemon.socket) as client:
        api = own_grpc.RuntimeProxyStub(client.channel)
        for name in PODS_BY_NAME:
            cluster.run(client, name)

        def known_pods() -> int:
            return api.GetStatus(own_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S).kubernetes.pods

        # What is requested in all is in the texts below.
        wait_until(lambda: known_pods() == len(PODS_BY_NAME), "the pods of the API server")
        try:
            manager.start()
            found = wait_until(
                lambda: it if len(it := cluster.audit(api, plugin)) == 2 else None, "evictions", 90
            )
            # What is still missing is not taken from protected pods in the next rounds either.
            for _ in range(3):
                manager.wait_for_state("STATUS=")
        finally:
            manager.close()
        found = cluster.audit(api, plugin)
    outcome = "evicted" if mode == "enforce" else "dry-run"
    assert {name: entry.after for name, entry in found.items()} == dict.fromkeys(arithmetic, outcome)
    for name, pattern in arithmetic.items():
        assert fnmatchcase(found[name].reason, pattern), found[name].reason
    stopped = {call.message.container_id for call in runtime.recorded.of("StopContainer")}
    wanted = {cluster.containers["be"], cluster.containers["low"]} if mode == "enforce" else set()
    assert stopped == wanted
