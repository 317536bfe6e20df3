"""The daemon with an API server: strategies, live pods, Events; and without it, when it is away."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from cri_api.runtimeproxy.v1 import api_pb2 as own_pb2
from cri_api.runtimeproxy.v1 import api_pb2_grpc as own_grpc
from runtimeproxy.testing import CgroupFiles
from runtimeproxy.testing.builders import (
    KubeletQos,
    container_config,
    create_container_request,
    pod_sandbox_config,
)
from tests.daemon.conftest import Daemons
from tests.daemon.live_annotations import LIVE, POLICIES, STRATEGIES, Live, check_edits
from tests.kubernetes.api_server import ApiServer, refusing
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node_objects import kubelet_files
from tests.lab.proxy_process import ProxyProcess
from tests.node.objects_of import Machine

CONFIG_MAPS = "/api/v1/namespaces/koordinator-system/configmaps"
NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
NODE_SLOS = "/apis/slo.koordinator.sh/v1alpha1/nodeslos"
QUOTA_US = 100_000
STRICT = """
from runtimeproxy.errors import RefusalError
from runtimeproxy.hooks import Policy

class Strict(Policy):
    name = "strict"

    def pod(self, pod, node):
        if pod.priority == "koord-free":
            raise RefusalError("no free pods here")
        return None
"""

pytestmark = pytest.mark.slow


def burst(percent: int) -> dict[str, str]:
    strategy = {"clusterStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": percent}}
    return {"cpu-burst-config": json.dumps(strategy)}


def run_pod(
    daemon: ProxyProcess,
    files: CgroupFiles,
    name: str,
    uid: str,
    qos: str = "LS",
    annotations: Mapping[str, str] | None = None,
    oom_score_adj: int = 0,
) -> str:
    """Runs a pod with one container; returns the path of the container's cgroup."""
    pod = pod_sandbox_config(
        name, uid=uid, qos=qos, kubelet_qos=KubeletQos.BURSTABLE, annotations=annotations or {}
    )
    files.make(pod.linux.cgroup_parent)
    resources = api_pb2.LinuxContainerResources(
        cpu_period=100_000, cpu_quota=QUOTA_US, cpu_shares=512, oom_score_adj=oom_score_adj
    )
    config = container_config("main", pod=pod, resources=resources)
    with CriClient(daemon.socket) as client:
        request = api_pb2.RunPodSandboxRequest(config=pod)
        made = client.runtime.RunPodSandbox(request, timeout=CALL_TIMEOUT_S)
        create = create_container_request(made.pod_sandbox_id, config, pod)
        container = client.runtime.CreateContainer(create, timeout=CALL_TIMEOUT_S).container_id
        start = api_pb2.StartContainerRequest(container_id=container)
        client.runtime.StartContainer(start, timeout=CALL_TIMEOUT_S)
    return f"{pod.linux.cgroup_parent}/{container}"


@dataclass
class Cluster:
    """A daemon and its API server."""

    server: ApiServer
    daemon: ProxyProcess
    files: CgroupFiles
    api: Any

    def put_pod(self, name: str, **parts: Any) -> None:
        pod = pod_sandbox_config(name, uid=f"uid-{name}")
        metadata = {"namespace": pod.metadata.namespace, "uid": pod.metadata.uid, **parts.pop("metadata", {})}
        self.server.put(PODS, name, metadata=metadata, spec={"nodeName": "node-a", **parts})

    def run(self, name: str) -> str:
        return run_pod(self.daemon, self.files, name, f"uid-{name}")

    def wait_for_burst(self, container: str, percent: int) -> None:
        wanted = str(QUOTA_US * percent // 100)
        wait_until(lambda: self.files.read(container, "cpu.max.burst") == wanted or None, f"burst {percent}")

    def status(self) -> own_pb2.GetStatusResponse:
        found: own_pb2.GetStatusResponse = self.api.GetStatus(own_pb2.GetStatusRequest(), timeout=30)
        return found

    def wait_until_synced(self) -> None:
        def watches() -> bool:
            found = self.status().kubernetes.watches
            return len(found) == 5 and all(each.state == each.STATE_WATCHING for each in found)

        wait_until(watches, "the watches")


@pytest.fixture
def cluster(daemons: Daemons, cgroup_files: CgroupFiles, socket_folder: Path) -> Iterator[Cluster]:
    for folder in ("/kubepods/burstable", "/kubepods/besteffort"):
        cgroup_files.make(folder)
    with ApiServer() as server:
        kubeconfig = server.kubeconfig(socket_folder)
        config = (
            f'[kubernetes]\nenabled = true\nkubeconfig = "{kubeconfig}"\n[slo]\nstart_spread_s = 0\n'
            f'[node]\nname = "node-a"\n{POLICIES}'
        )
        server.put(CONFIG_MAPS, "slo-controller-config", data=burst(20))
        capacity = {"cpu": "4", "memory": "8Gi"}
        server.put(NODES, "node-a", status={"capacity": capacity, "allocatable": capacity})
        daemon = daemons.prepare(config)
        daemon.policies_folder.mkdir(exist_ok=True)
        (daemon.policies_folder / "strict.py").write_text(STRICT)
        daemon.start()
        with CriClient(daemon.socket) as client:
            found = Cluster(server, daemon, cgroup_files, own_grpc.RuntimeProxyStub(client.channel))
            found.wait_until_synced()
            yield found


def test_strategies_and_live_annotations_reach_running_pods(cluster: Cluster) -> None:
    cluster.put_pod("web")
    container = cluster.run("web")
    cluster.wait_for_burst(container, 20)
    cluster.server.put(CONFIG_MAPS, "slo-controller-config", data=burst(30))
    cluster.wait_for_burst(container, 30)
    # The pod's own annotation counts over it, from the moment it is edited.
    own = {"koordinator.sh/cpuBurst": json.dumps({"policy": "cpuBurstOnly", "cpuBurstPercent": 50})}
    cluster.put_pod("web", metadata={"annotations": own})
    cluster.wait_for_burst(container, 50)
    cluster.put_pod("web")
    cluster.wait_for_burst(container, 30)


def test_cpus_of_a_running_pod_follow_its_annotation_and_nothing_else(
    daemons: Daemons, cgroup_files: CgroupFiles, socket_folder: Path
) -> None:
    """#2877: the new CPUs are left by others first, then the pod has them, then its old ones are others'."""
    with ApiServer() as server:
        daemon = daemons.prepare(moving_config(server, socket_folder))
        daemons.environment["KOORD_RUNTIMEPROXY_NODE_SYSFS_ROOT"] = str(Machine(socket_folder / "m").sysfs)
        server.put(NODES, "node-a")
        daemon.start()
        with CriClient(daemon.socket) as client:
            cluster = Cluster(server, daemon, cgroup_files, own_grpc.RuntimeProxyStub(client.channel))
            cluster.wait_until_synced()
            cluster.put_pod("web")
            own_status(cluster, "0-1")
            web = cluster.run("web")
            own = run_pod(
                daemon, cgroup_files, "own", "uid-own", qos="LSR", annotations=resource_status("0-1")
            )
            files = [cgroup_files.folder(each, "cpuset") / "cpuset.cpus" for each in (web, own)]

            def wait_for(shared: str, cpus: str) -> tuple[int, ...]:
                wanted = [shared, cpus]
                wait_until(lambda: [each.read_text().strip() for each in files] == wanted, str(wanted))
                return tuple(each.stat().st_mtime_ns for each in files)

            wait_for("2-7", "0-1")
            for _ in range(4):
                own_status(cluster, "0-3")
                others_ns, own_ns = wait_for("4-7", "0-3")
                assert others_ns <= own_ns
                own_status(cluster, "2-3")
                others_ns, own_ns = wait_for("0-1,4-7", "2-3")
                assert own_ns <= others_ns
            own_status(cluster, "0-3")
            grown = wait_for("4-7", "0-3")
            # What says nothing else of CPUs makes no work, however often it comes.
            for beat in range(20):
                own_status(cluster, "0-3", beat=str(beat))
            cluster.put_pod("other", metadata={"annotations": {"beat": "last"}})
            wait_until(lambda: cluster.status().kubernetes.pods == 3 or None, "the last pod")
            assert wait_for("4-7", "0-3") == grown
            own_status(cluster, "4-5")
            wait_for("0-3,6-7", "4-5")
            # Without CPUs of its own it shares those of the others.
            own_status(cluster, "")
            wait_for("0-7", "0-7")


def moving_config(server: ApiServer, folder: Path) -> str:
    kubeconfig = server.kubeconfig(folder)
    kubelet_files(folder / "kubelet", {})
    return (
        f'[kubernetes]\nenabled = true\nkubeconfig = "{kubeconfig}"\n[slo]\nstart_spread_s = 0\n'
        f'[node]\nname = "node-a"\nshared_pools = "computed"\nkubelet_dir = "{folder / "kubelet"}"\n'
    )


def resource_status(cpus: str) -> dict[str, str]:
    return {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": cpus})} if cpus else {}


def own_status(cluster: Cluster, cpus: str, **others: str) -> None:
    """The API server's annotation of the pod `own`, beside others."""
    cluster.put_pod("own", metadata={"annotations": {**resource_status(cpus), **others}})


@pytest.mark.parametrize("live", LIVE, ids=[each.key.rpartition("/")[2] for each in LIVE])
def test_an_edited_annotation_applies_soon(cluster: Cluster, live: Live) -> None:
    requests = {"cpu": "500m", "memory": "1Gi"}
    containers = [{"name": "main", "resources": {"requests": requests}}]
    cluster.server.put(CONFIG_MAPS, "slo-controller-config", data=STRATEGIES)

    def edit(annotations: Mapping[str, str]) -> None:
        cluster.put_pod("web", metadata={"annotations": dict(annotations)}, containers=containers)

    edit({})
    check_edits(live, cluster.files, cluster.run("web"), edit)


def test_a_refusal_by_priority_becomes_an_event(cluster: Cluster) -> None:
    cluster.put_pod("cheap", priority=3500)
    wait_until(lambda: cluster.status().kubernetes.pods or None, "the pod")

    def refused() -> bool:
        try:
            cluster.run("cheap")
        except grpc.RpcError as error:
            return "no free pods here" in str(error.details())
        return False

    # The watch knows it before the snapshot does.
    wait_until(refused, "the refusal")

    def events() -> list[Any]:
        return [each.body for each in cluster.server.requests if each.method == "POST"]

    wait_until(events, "the Event")
    body = events()[0]
    assert body["involvedObject"]["name"] == "cheap"
    assert (body["reason"], body["message"]) == ("RefusedByPolicy", "policy strict: no free pods here")
    wait_until(lambda: cluster.status().kubernetes.events_sent or None, "the count")


def test_a_server_that_is_away_changes_nothing(cluster: Cluster) -> None:
    cluster.put_pod("web")
    container = cluster.run("web")
    cluster.wait_for_burst(container, 20)
    status = cluster.status()
    assert not [each for each in status.problems if "API server" in each]
    assert status.kubernetes.server == cluster.server.url
    cluster.server.faults += [("", refusing(503, "etcd is away"))] * 10_000
    cluster.server.break_watches()
    wait_until(lambda: any("503: etcd is away" in each for each in cluster.status().problems), "the problem")
    second = cluster.run("other")
    cluster.wait_for_burst(second, 20)
    # After a restart, too: its last good values are saved.
    cluster.daemon.terminate()
    cluster.daemon.start()
    third = cluster.run("third")
    cluster.wait_for_burst(third, 20)
    cluster.server.faults.clear()
    cluster.server.put(CONFIG_MAPS, "slo-controller-config", data=burst(40))
    for each in (container, second, third):
        cluster.wait_for_burst(each, 40)


def test_without_the_extra_it_says_so_and_ends(daemons: Daemons, tmp_path: Path) -> None:
    # A folder without code in place of the library.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'urllib3':\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    daemons.environment["PYTHONPATH"] = str(tmp_path)
    daemon = daemons.prepare("[kubernetes]\nenabled = true\n", is_forked=False)
    daemon.spawn()
    assert daemon.wait() == 2
    assert "kubernetes.enabled: needs the extra kubernetes: pip install" in "\n".join(daemon.log)
