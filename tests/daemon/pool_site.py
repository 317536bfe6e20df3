"""A daemon with Katalyst's pools on a machine of its own, and what a kubelet does with pods there."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cri_api.runtime.v1 import api_pb2 as cri
from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.katalyst.pools import PoolState
from runtimeproxy.katalyst.topology import Topology
from runtimeproxy.ledger.journal import read_boot_id
from runtimeproxy.ledger.pools import pools_file, saved_state
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from runtimeproxy.testing.builders import KubeletQos, default_resources, pod_sandbox_config
from runtimeproxy.units import SHARES_PER_CPU
from tests.daemon.conftest import Daemons
from tests.daemon.driving import Pod
from tests.daemon.failures.scene import WITH_STATEMENTS
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.node_objects import kubelet_files
from tests.lab.proxy_process import ProxyProcess
from tests.node.objects_of import Machine

LEVEL: Final = "katalyst.kubewharf.io/qos_level"
MEMORY: Final = "katalyst.kubewharf.io/memory_enhancement"
CPU: Final = "katalyst.kubewharf.io/cpu_enhancement"
BOUND: Final = {MEMORY: json.dumps({"numa_binding": "true"})}
EXCLUSIVE: Final = {MEMORY: json.dumps({"numa_binding": "true", "numa_exclusive": "true"})}
DEDICATED: Final = {LEVEL: "dedicated_cores"}
SHARED: Final = {LEVEL: "shared_cores"}
RECLAIMED: Final = {LEVEL: "reclaimed_cores"}
SYSTEM: Final = {LEVEL: "system_cores", CPU: json.dumps({"cpuset_pool": "reserve"})}

CONFIG: Final = """
[node]
kubelet_dir = "{kubelet}"

[katalyst]
on_error = "{on_error}"

[policies.cpuset]
enabled = false

[policies.katalyst-pools]
enabled = true

[policies.katalyst-pools.options]
reserved_count = 2
ramp_up_s = {ramp_up_s}
{options}
"""


@dataclass
class PoolSite:
    """A node of two sockets, each a NUMA node with as many cores of two threads as asked for."""

    daemon: ProxyProcess
    client: CriClient
    files: CgroupFiles
    runtime: FakeRuntime
    kubelet: Path

    def pod(self, name: str, annotations: Mapping[str, str], cores: float = 1.0) -> Pod:
        """A pod of one container that is not there yet, with a request of this many CPUs."""
        config = pod_sandbox_config(
            name, kubelet_qos=KubeletQos.BURSTABLE, uid=f"uid-{name}", annotations=annotations
        )
        resources = default_resources()
        resources.cpu_shares = int(cores * SHARES_PER_CPU)
        config.linux.resources.CopyFrom(resources)
        self.files.make(config.linux.cgroup_parent)
        return Pod(self.client, config, resources=resources)

    def start(self, name: str, annotations: Mapping[str, str], cores: float = 1.0) -> Pod:
        """A pod that runs."""
        return self.pod(name, annotations, cores).run().create().start()

    def connect(self) -> None:
        """Has the kubelet connect to another process of the daemon, without its backoff."""
        self.client.channel.close()
        self.client = CriClient(self.daemon.socket)

    def cpus(self, pod: Pod) -> str:
        """The CPUs of its container by the file."""
        return self._read(pod, "cpuset.cpus")

    def mems(self, pod: Pod) -> str:
        """Its NUMA nodes."""
        return self._read(pod, "cpuset.mems")

    def _read(self, pod: Pod, name: str) -> str:
        return self.files.read(f"{pod.config.linux.cgroup_parent}/{pod.container}", name).strip()

    def wait_for(self, pod: Pod, cpus: str) -> None:
        """Waits until these are its container's CPUs."""
        wait_until(lambda: self.cpus(pod) == cpus, f"{cpus} as CPUs of {pod.config.metadata.name}")

    @property
    def saved(self) -> PoolState:
        """What is in the file of the pools."""
        file = pools_file(self.daemon.state_folder, read_boot_id())
        found = file.load(lambda saved: saved_state(saved, Topology(())))
        assert found is not None
        return found

    def in_pools(self, pod: Pod) -> api_pb2.KatalystPod | None:
        """What the pools have of it; None: it is in none."""
        with CriClient(self.daemon.socket) as client:
            stub = api_pb2_grpc.RuntimeProxyStub(client.channel)
            found = stub.GetNode(api_pb2.GetNodeRequest(), timeout=30, wait_for_ready=True)
        uid = pod.config.metadata.uid
        return next((each for each in found.katalyst_pods if each.pod_uid == uid), None)

    def status(self) -> api_pb2.GetStatusResponse:
        with CriClient(self.daemon.socket) as client:
            stub = api_pb2_grpc.RuntimeProxyStub(client.channel)
            return stub.GetStatus(api_pb2.GetStatusRequest(), timeout=30, wait_for_ready=True)

    @property
    def problems(self) -> list[str]:
        """Those of the status that are about pools."""
        return [each for each in self.status().problems if each.startswith("katalyst-pools")]

    def created(self) -> cri.LinuxContainerResources:
        """What the runtime was last asked to create."""
        message = self.runtime.recorded.of("CreateContainer")[-1].message
        resources: cri.LinuxContainerResources = message.config.linux.resources
        return resources


@contextmanager
def pool_site(
    daemons: Daemons,
    files: CgroupFiles,
    runtime: FakeRuntime,
    folder: Path,
    *,
    cores: int = 4,
    on_error: str = "reject",
    options: str = "",
    ramp_up_s: float = 0.0,
    more: str = "",
    at_runtime: bool = False,
    statements: str = "",
) -> Iterator[PoolSite]:
    """Starts a daemon.

    `cores` in each socket, `options` of the policy, `more` of the configuration; `at_runtime`: the kubelet
    uses the runtime's socket; `statements`: Python that runs in the daemon's process before it.
    """
    machine, kubelet = Machine(folder / "machine", cores), folder / "kubelet"
    kubelet_files(kubelet, {})
    daemons.environment["KOORD_RUNTIMEPROXY_NODE_SYSFS_ROOT"] = str(machine.sysfs)
    text = CONFIG.format(kubelet=kubelet, on_error=on_error, options=options, ramp_up_s=ramp_up_s)
    wrapper = (sys.executable, "-c", WITH_STATEMENTS, statements) if statements else ()
    daemon = daemons.start(text + more, wrapper=wrapper)
    client = CriClient(Path(runtime.socket_path) if at_runtime else daemon.socket)
    site = PoolSite(daemon, client, files, runtime, kubelet)
    while "pools: " not in daemon.wait_for_state("STATUS"):
        continue
    with client:
        yield site
