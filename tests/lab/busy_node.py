"""A node with many pods of all QoS classes: a fake runtime, a daemon with the node page, strategies, CPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.qos import QOS_CLASS_LABEL
from runtimeproxy.testing import CgroupDriver, CgroupFiles, FakeRuntime, PodCgroups, RuntimeState
from runtimeproxy.testing.builders import (
    KubeletQos,
    container_config,
    create_container_request,
    pod_sandbox_config,
)
from tests.daemon.driving import Pod
from tests.lab.cri_client import CriClient
from tests.lab.node_objects import NodeObjects, kubelet_files, strategy_policies
from tests.lab.ports import free_port
from tests.lab.proxy_process import ProxyOptions, ProxyProcess
from tests.node.objects_of import Machine

NODE_NAME: Final = "node-a"
PODS: Final = 250
_CLIENTS: Final = 4

STRATEGIES: Final[Mapping[str, Any]] = {
    "resource-threshold-config": {
        "clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 65},
        "nodeStrategies": [
            {
                "name": "storage",
                "nodeSelector": {"matchLabels": {"node.koordinator.sh/kind": "storage"}},
                "cpuSuppressThresholdPercent": 50,
            }
        ],
    },
    "cpu-burst-config": {"clusterStrategy": {"policy": "auto", "cpuBurstPercent": 50}},
}

_CONFIG: Final = """
[qosmanager]
mode = "none"
[metrics]
listen = "{listen}"
page = {page}
[node]
name = "{name}"
shared_pools = "{shared_pools}"
kubelet_dir = "{kubelet}"
sysfs_root = "{sysfs}"
[cgroups]
root = "{cgroups}"
"""
_BATCH: Final = {"kubernetes.io/batch-cpu": "1500", "kubernetes.io/batch-memory": "2Gi"}


class Workload(NamedTuple):
    """Pods with the same name but for a number.

    Attributes:
        share: How many of `PODS` they are.
        cpus: Number of CPUs that each has for itself.
    """

    namespace: str
    name: str
    qos: str
    kubelet_qos: KubeletQos
    share: int
    cpus: int = 0


WORKLOADS: Final = (
    Workload("trading", "matching-engine", "LSE", KubeletQos.GUARANTEED, 2, cpus=4),
    Workload("search", "ranking", "LSR", KubeletQos.GUARANTEED, 3, cpus=4),
    Workload("shop", "checkout", "LS", KubeletQos.GUARANTEED, 12),
    Workload("shop", "catalog", "LS", KubeletQos.BURSTABLE, 28),
    Workload("search", "query-frontend", "LS", KubeletQos.BURSTABLE, 30),
    Workload("ml", "recommender", "LS", KubeletQos.BURSTABLE, 20),
    Workload("data", "spark-executor", "BE", KubeletQos.BESTEFFORT, 70),
    Workload("data", "etl-nightly", "BE", KubeletQos.BESTEFFORT, 40),
    Workload("media", "transcode", "BE", KubeletQos.BESTEFFORT, 25),
    Workload("kube-system", "node-exporter", "SYSTEM", KubeletQos.BURSTABLE, 4),
    Workload("default", "web", "", KubeletQos.BURSTABLE, 16),
)


@dataclass
class BusyPod(Pod):
    """A pod whose container has a limit of CPU, if its class has one."""

    @property
    def create_request(self) -> api_pb2.CreateContainerRequest:
        container = container_config("main", pod=self.config)
        if self.config.labels.get(QOS_CLASS_LABEL) in ("LS", "LSR", "LSE"):
            container.linux.resources.cpu_quota = 200_000
            container.linux.resources.cpu_shares = 1024
        return create_container_request(self.id, container, self.config)


class BusyNode:
    """The node, from `with` to the end of its block. The daemon serves before any pod runs.

    Args:
        folder: With a path short enough for sockets.
        cores: In each of two sockets, with two threads each; 0 for CPUs that are not known.
        listen: `[metrics] listen`; a free port of 127.0.0.1 by default.
        has_page: Whether the daemon serves the page.
        shared_pools: `[node] shared_pools`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        cores: int = 16,
        listen: str = "",
        has_page: bool = True,
        shared_pools: str = "computed",
    ) -> None:
        self.port = free_port()
        self.files = CgroupFiles(folder / "cgroup", version=2)
        state = RuntimeState(PodCgroups(CgroupDriver.CGROUPFS, self.files))
        self.runtime = FakeRuntime(folder / "runtime.sock", state=state)
        self.machine = Machine(folder / "machine", cores=cores or 1)
        self.pods: list[Pod] = []
        kubelet_files(folder / "kubelet", {})
        with (folder / "kubelet" / "config.yaml").open("a") as kubelet:
            kubelet.write('reservedSystemCPUs: "0-1"\n')
        config = _CONFIG.format(
            listen=listen or self.port,
            page=str(has_page).lower(),
            name=NODE_NAME,
            shared_pools=shared_pools,
            kubelet=folder / "kubelet",
            sysfs=self.machine.sysfs if cores else folder / "none",
            cgroups=folder / "cgroup",
        )
        config += strategy_policies(enabled=True)
        self.daemon = ProxyProcess(folder, ProxyOptions(str(self.runtime.socket_path), config=config))
        self.objects = NodeObjects(self.daemon.objects_folder, NODE_NAME)
        self.objects.strategies(STRATEGIES)
        self.objects.node(labels={"node.koordinator.sh/kind": "storage"})
        self._first_free_cpu = count(2)

    def __enter__(self) -> Self:
        self.runtime.__enter__()
        self.daemon.start()
        self.client = CriClient(self.daemon.socket)
        return self

    def __exit__(self, *_error: object) -> None:
        self.client.channel.close()
        self.daemon.close()
        self.runtime.__exit__(None, None, None)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/page"

    def pod(self, name: str, workload: Workload, **fields: Any) -> Pod:
        """A pod that is not there yet."""
        annotations: dict[str, str] = {}
        if workload.cpus:
            cpus = ",".join(map(str, islice(self._first_free_cpu, workload.cpus)))
            annotations["scheduling.koordinator.sh/resource-status"] = json.dumps({"cpuset": cpus})
        if workload.qos == "BE":
            spec = {"containers": {"main": {"requests": _BATCH, "limits": _BATCH}}}
            annotations["node.koordinator.sh/extended-resource-spec"] = json.dumps(spec)
        config = pod_sandbox_config(
            name,
            namespace=workload.namespace,
            qos=workload.qos,
            kubelet_qos=workload.kubelet_qos,
            uid=f"uid-{workload.namespace}-{name}"[:60],
            annotations=annotations,
            **fields,
        )
        self.files.make(config.linux.cgroup_parent)
        return BusyPod(self.client, config)

    def fill(self, number: int = PODS) -> None:
        """Starts so many pods: of all workloads by their shares, then more of the last one."""
        prepared = list(islice(self._prepared(), number))
        with ThreadPoolExecutor(_CLIENTS) as executor:
            list(executor.map(lambda pod: pod.run().create().start(), prepared))
        self.pods += prepared

    def _prepared(self) -> Iterator[Pod]:
        for workload in WORKLOADS:
            for number in range(workload.share):
                yield self.pod(f"{workload.name}-{number}", workload)
        for number in count(WORKLOADS[-1].share):
            yield self.pod(f"{WORKLOADS[-1].name}-{number}", WORKLOADS[-1])
