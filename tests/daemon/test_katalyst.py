"""Pods with Katalyst's annotations, with Koordinator's labels and with both, on one real daemon."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2 as cri
from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.commands.explain import show_explanation
from runtimeproxy.commands.output import Page
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
from tests.lab.proxy_process import ProxyProcess

LEVEL = "katalyst.kubewharf.io/qos_level"
CPU = "katalyst.kubewharf.io/cpu_enhancement"
MEMORY = "katalyst.kubewharf.io/memory_enhancement"
BATCH = json.dumps(
    {
        "containers": {
            "main": {
                "requests": {"kubernetes.io/batch-cpu": "500"},
                "limits": {"kubernetes.io/batch-cpu": "1000"},
            }
        }
    }
)
BOUND = json.dumps({"numa_binding": "true", "oom_priority": "150"})
EXCLUSIVE = json.dumps({"numa_binding": "true", "numa_exclusive": "true"})
STATIC = json.dumps({"cpu_burst_policy": "static", "cpu_burst_percent": "50", "cpuset_pool": "web"})
QUOTA_US = 100_000


class Row(NamedTuple):
    """A pod, and what becomes of it."""

    label: str
    annotations: dict[str, str]
    qos: str
    """Its class."""
    level: str = ""
    pool: str = ""
    shares: int = 2
    """Of its container, by `batch-resource` for class BE."""
    score: int = 1000
    """By `katalyst-qos`, else the kubelet's."""
    burst: str = "0"
    problem: str = ""


TABLE = {
    "none": Row("", {}, ""),
    "koord-be": Row("BE", {}, "BE", shares=512),
    "koord-ls": Row("LS", {}, "LS"),
    "reclaimed": Row("", {LEVEL: "reclaimed_cores"}, "BE", "reclaimed_cores", "reclaim", 512),
    "shared": Row(
        "", {LEVEL: "shared_cores", CPU: STATIC}, "LS", "shared_cores", "web", score=501, burst="50000"
    ),
    "dedicated": Row(
        *("", {LEVEL: "dedicated_cores", MEMORY: BOUND, CPU: STATIC}, "LSR", "dedicated_cores", "dedicated"),
        *(2, -248, "50000"),
    ),
    "exclusive": Row(
        "", {LEVEL: "dedicated_cores", MEMORY: EXCLUSIVE}, "LSE", "dedicated_cores", "dedicated", 2, 2
    ),
    "system": Row("", {LEVEL: "system_cores"}, "SYSTEM", "system_cores", "", score=-497),
    "differ": Row(
        *("BE", {LEVEL: "shared_cores"}, "LS", "shared_cores", "share"),
        score=501,
        problem="label koordinator.sh/qosClass BE and shared_cores, which is treated as LS, differ: LS is "
        "used",
    ),
    "refused": Row(
        *("", {LEVEL: "dedicated_cores"}, "LS", "shared_cores", "share"),
        score=501,
        problem="numa_binding: dedicated_cores needs it: 'true'",
    ),
}
COUNT = 50


def config(mode: str = "enforce", on_error: str = "fallback") -> str:
    return (
        f'[katalyst]\non_error = "{on_error}"\n[policies.katalyst-qos]\nenabled = true\nmode = "{mode}"\n'
        "[policies.katalyst-qos.options]\noom_score = true\n"
    )


class Node:
    """A daemon, as kubelet and operator use it.

    `endpoint`: the kubelet's, if that is not the daemon's socket.
    """

    def __init__(self, daemon: ProxyProcess, files: CgroupFiles, endpoint: Path | None = None) -> None:
        self.daemon, self.socket = daemon, daemon.socket
        self.client = CriClient(daemon.socket)
        self.api = api_pb2_grpc.RuntimeProxyStub(self.client.channel)
        self._kubelet = self.client if endpoint is None else CriClient(endpoint)
        self._files = files

    def close(self) -> None:
        for each in {self.client, self._kubelet}:
            each.channel.close()

    def run(self, name: str, row: Row) -> tuple[str, str]:
        """Runs a pod with one container; returns the cgroup of the container, and its id."""
        annotations = {**row.annotations, "node.koordinator.sh/extended-resource-spec": BATCH}
        kubelet_qos = KubeletQos.BESTEFFORT if row.qos == "BE" else KubeletQos.BURSTABLE
        pod = pod_sandbox_config(name, qos=row.label, kubelet_qos=kubelet_qos, annotations=annotations)
        self._files.make(pod.linux.cgroup_parent)
        run = cri.RunPodSandboxRequest(config=pod)
        pod_id = self._kubelet.runtime.RunPodSandbox(run, timeout=CALL_TIMEOUT_S).pod_sandbox_id
        resources = cri.LinuxContainerResources(
            cpu_period=100_000, cpu_quota=QUOTA_US, cpu_shares=2, oom_score_adj=1000
        )
        made = container_config("main", pod=pod, resources=resources)
        create = create_container_request(pod_id, made, pod)
        container = self._kubelet.runtime.CreateContainer(create, timeout=CALL_TIMEOUT_S).container_id
        start = cri.StartContainerRequest(container_id=container)
        self._kubelet.runtime.StartContainer(start, timeout=CALL_TIMEOUT_S)
        return f"{pod.linux.cgroup_parent}/{container}", container

    def pods(self) -> dict[str, api_pb2.Pod]:
        parts = self.api.WatchPods(api_pb2.WatchPodsRequest(snapshot_only=True), timeout=CALL_TIMEOUT_S)
        return {pod.name: pod for part in parts for pod in part.snapshot.pods}

    def status(self) -> api_pb2.GetStatusResponse:
        return self.api.GetStatus(api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S)

    def explain(self, name: str) -> api_pb2.ExplainResponse:
        return self.api.Explain(api_pb2.ExplainRequest(pod=f"default/{name}"), timeout=CALL_TIMEOUT_S)


class Nodes:
    """Starts daemons with a configuration."""

    def __init__(self, daemons: Daemons, files: CgroupFiles) -> None:
        self._daemons = daemons
        self._files = files
        self.made: list[Node] = []

    def start(self, text: str, endpoint: Path | None = None) -> Node:
        node = Node(self._daemons.start(text), self._files, endpoint)
        self.made.append(node)
        return node


@pytest.fixture
def nodes(daemons: Daemons, cgroup_files: CgroupFiles) -> Iterator[Nodes]:
    made = Nodes(daemons, cgroup_files)
    yield made
    for each in made.made:
        each.close()


def test_both_vocabularies_on_one_node(
    nodes: Nodes, cgroup_files: CgroupFiles, runtime: FakeRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    node = nodes.start(config())
    kinds = list(TABLE)
    names = {
        f"{kinds[number % len(kinds)]}-{number}": TABLE[kinds[number % len(kinds)]] for number in range(COUNT)
    }
    places = {name: node.run(name, row) for name, row in names.items()}
    pods = node.pods()
    for name, row in names.items():
        pod, (cgroup, container) = pods[name], places[name]
        assert (pod.qos_class, pod.katalyst.level, pod.katalyst.pool) == (row.qos, row.level, row.pool), name
        assert pod.HasField("katalyst") is bool(row.level), name
        assert ("; ".join(pod.katalyst.problems)).startswith(row.problem), name
        created = runtime.state.containers[container].config.linux.resources
        assert (created.cpu_shares, created.oom_score_adj) == (row.shares, row.score), name
        # Written after the answer to the call that starts the container.
        wait_until(
            lambda cgroup=cgroup, burst=row.burst: cgroup_files.read(cgroup, "cpu.max.burst") == burst,  # type: ignore[misc]
            f"the burst of {name}",
        )
    status = node.status()
    wrong = {name: row for name, row in names.items() if row.problem}
    assert {each.pod: each.reason for each in status.katalyst_problems} == {
        f"default/{name}": row.problem for name, row in wrong.items()
    }
    assert status.katalyst_problem_pods == len(wrong)
    about = "default/refused-9:"
    expected = f"Pod {about} Katalyst's level: numa_binding: dedicated_cores needs it: 'true'."
    # A value that waits is a problem, too, until it is written.
    wait_until(
        lambda: [each for each in node.status().problems if about in each] == [expected],
        f"no problem of the refused pod but {expected!r}",
    )
    explained = node.explain("dedicated-5")
    show_explanation(explained, Page())
    shown = capsys.readouterr().out
    assert f"dedicated_cores, pool dedicated: annotation {LEVEL}" in shown
    show_explanation(node.explain("differ-8"), Page())
    assert TABLE["differ"].problem in " ".join(capsys.readouterr().out.split())


def test_a_refused_pod_never_gets_to_the_runtime(nodes: Nodes, runtime: FakeRuntime) -> None:
    node = nodes.start(config(on_error="reject"))
    with pytest.raises(grpc.RpcError) as refused:
        node.run("refused", TABLE["refused"])
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "numa_binding: dedicated_cores needs it: 'true'" in str(refused.value.details())
    assert not runtime.state.sandboxes
    node.run("reclaimed", TABLE["reclaimed"])


@pytest.mark.slow
def test_pods_have_no_level_while_the_policy_only_looks(nodes: Nodes, runtime: FakeRuntime) -> None:
    node = nodes.start(config(mode="dry-run", on_error="reject"))
    _, container = node.run("refused", TABLE["refused"])
    node.run("reclaimed", TABLE["reclaimed"])
    pods = node.pods()
    assert [pods[name].HasField("katalyst") for name in ("refused", "reclaimed")] == [False, False]
    assert pods["reclaimed"].qos_class == ""
    assert runtime.state.containers[container].config.linux.resources.oom_score_adj == 1000
    assert node.status().katalyst_problem_pods == 0
    # An operator that has the policy enforced changes the class of what runs.
    request = api_pb2.SetPolicyModeRequest(policy="katalyst-qos", mode=api_pb2.MODE_ENFORCE)
    with CriClient(node.socket.parent / "admin" / "api.sock") as client:
        api_pb2_grpc.AdminStub(client.channel).SetPolicyMode(
            request, timeout=CALL_TIMEOUT_S, wait_for_ready=True
        )
    assert node.pods()["reclaimed"].qos_class == "BE"
    assert node.status().katalyst_problem_pods == 1
