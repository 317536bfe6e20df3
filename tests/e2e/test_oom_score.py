"""OOM scores of a running container's processes: by a live annotation, over kill -9, and given back."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cri_api.runtime.v1.api_pb2 import LinuxContainerResources
from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from tests.cgroups.boxes import CAP_SYS_RESOURCE, has_right
from tests.e2e.koordinator import qos
from tests.kubernetes.api_server import ApiServer
from tests.lab import cgroup_v1
from tests.lab.containerd import Containerd
from tests.lab.containerd_config import PATIENT
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.crio import runtime_with_nri
from tests.lab.deadline import wait_until
from tests.lab.node import RunningPod, running_pod
from tests.lab.pods import NAMESPACE, ContainerSpec, PodSpec
from tests.lab.programs import RUNTIMES_WITH_NRI
from tests.lab.proxy_process import ProxyOptions, ProxyProcess
from tests.lab.runtime_process import RuntimeProcess

ASKED = 500
ANNOTATION = "koordinator.sh/oom-score-adj"
POLICY = "[policies.oom-score]\n"
FORKS = ("/bin/sh", "-c", "sleep 1000000 & sleep 1000000 & wait")
"""Processes that the first one forks."""
MODES = ("proxy", "standalone", *RUNTIMES_WITH_NRI)
"""Those of the daemon, and for NRI the runtime's version."""


@dataclass
class Node:
    """A runtime with its daemon, an API server, and a pod that runs."""

    daemon: ProxyProcess
    server: ApiServer
    pod: RunningPod

    def annotate(self, **annotations: object) -> None:
        """The pod has these annotations now; `score` stands for that of the score."""
        names = {"score": ANNOTATION, "scores": f"{ANNOTATION}-spec"}
        texts = {names[key]: str(value) for key, value in annotations.items()}
        put_pod(self.server, self.pod.spec, texts)

    def scores(self) -> list[int]:
        """Of all processes of the container, sorted."""
        pids = cgroup_v1.processes(self.pod.container_cgroup())
        return sorted(int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in pids)

    def wait_for(self, *scores: int) -> None:
        wait_until(lambda: self.scores() == sorted(scores), f"the scores {scores}")

    def status(self) -> api_pb2.GetStatusResponse:
        with CriClient(self.daemon.socket) as client:
            api = api_pb2_grpc.RuntimeProxyStub(client.channel)
            found: api_pb2.GetStatusResponse = api.GetStatus(
                api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S
            )
            return found

    def enable(self, *, on: bool) -> None:
        """The policy is on from the next start of the daemon, or off."""
        file, now = self.daemon.config_file, str(on).lower()
        head, _, _ = file.read_text().partition(POLICY)
        file.write_text(f"{head}{POLICY}enabled = {now}\n")

    def run(self, *words: str) -> None:
        done = self.daemon.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr


def put_pod(server: ApiServer, spec: PodSpec, annotations: dict[str, str]) -> None:
    metadata: dict[str, Any] = {"namespace": NAMESPACE, "uid": spec.uid, "annotations": annotations}
    server.put("/api/v1/pods", spec.name, metadata=metadata, spec={"nodeName": "node-a"})


def configuration(mode: str, own: Path, server: ApiServer, runtime: Containerd | RuntimeProcess) -> str:
    kubeconfig = server.kubeconfig(own)
    text = (
        f'[daemon]\nmode = "{mode}"\nlock = "{own}/front-end.lock"\n'
        f'[kubernetes]\nenabled = true\nkubeconfig = "{kubeconfig}"\n[slo]\nstart_spread_s = 0\n'
        '[node]\nname = "node-a"\n'
    )
    text += f'[nri]\nsocket = "{runtime.nri_socket}"\n' if mode == "nri" else ""
    return f"{text}{POLICY}enabled = true\n"


@pytest.fixture
def spec() -> PodSpec:
    asked = LinuxContainerResources(cpu_period=100_000, cpu_shares=100, oom_score_adj=ASKED)
    containers = (ContainerSpec("main", asked, FORKS),)
    return PodSpec("scored", "burstable", qos("LS"), containers=containers)


@pytest.fixture(params=MODES)
def start(
    request: pytest.FixtureRequest, folder: Path, spec: PodSpec, tmp_path: Path
) -> Iterator[Callable[..., Node]]:
    """Starts all, for a pod that has a score of its own at its creation, or none."""
    mode, own = request.param, Path(tempfile.mkdtemp(dir=folder))
    with ExitStack() as stack:
        runtime: Any
        if mode in ("proxy", "standalone"):
            runtime, prefix = stack.enter_context(Containerd("1.6")), ""
        else:
            runtime = stack.enter_context(runtime_with_nri(mode, PATIENT))
            mode, prefix = "nri", runtime.cgroup_prefix

        def started(score: str = "") -> Node:
            server = stack.enter_context(ApiServer())
            annotations = {ANNOTATION: score} if score else {}
            put_pod(server, spec, annotations)
            options = ProxyOptions(str(runtime.socket), config=configuration(mode, own, server, runtime))
            daemon = stack.enter_context(ProxyProcess(own, options))
            socket = daemon.socket if mode == "proxy" else runtime.socket
            if mode == "nri":
                wait_until(lambda: "registered with the runtime" in str(daemon.log), "the registration")
            with CriClient(daemon.socket) as asking:
                api = api_pb2_grpc.RuntimeProxyStub(asking.channel)
                wait_until(partial(knows_pods, api), "the API server's pods")
            client = stack.enter_context(CriClient(socket))
            remover = stack.enter_context(CriClient(runtime.socket))
            made = replace(spec, annotations=annotations)
            running = running_pod(client, made, tmp_path, cgroup_prefix=prefix, remover=remover)
            return Node(daemon, server, stack.enter_context(running))

        yield started


def knows_pods(api: Any) -> bool:
    watches = api.GetStatus(api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S).kubernetes.watches
    return len(watches) == 5 and all(each.state == each.STATE_WATCHING for each in watches)


def test_a_live_annotation_applies_to_running_processes(start: Callable[..., Node]) -> None:
    node = start()
    node.wait_for(ASKED, ASKED, ASKED)
    node.annotate(score=700)
    node.wait_for(700, 700, 700)
    node.daemon.kill()
    # Meanwhile one gives itself another score, and the pod's author wants another one.
    (first, *_) = cgroup_v1.processes(node.pod.container_cgroup())
    Path(f"/proc/{first}/oom_score_adj").write_text("950")
    node.annotate(score=-1, scores='{"main": 800}')
    node.daemon.start()
    node.wait_for(800, 800, 800)
    node.run("policy", "oom-score", "off")
    node.wait_for(ASKED, ASKED, ASKED)
    node.run("policy", "oom-score", "reset")
    node.wait_for(800, 800, 800)
    assert list(node.status().problems) == []
    # What a process has given itself is its own when the policy ends.
    node.daemon.kill()
    Path(f"/proc/{first}/oom_score_adj").write_text("950")
    node.enable(on=False)
    node.daemon.start()
    node.wait_for(ASKED, ASKED, 950)
    node.enable(on=True)
    node.daemon.restart()
    node.wait_for(800, 800, 800)
    assert node.daemon.terminate() == 0
    assert node.scores() == [800] * 3
    node.run("restore")
    assert node.scores() == [ASKED] * 3


def test_a_container_begins_with_its_score_and_loses_it_with_the_annotation(
    start: Callable[..., Node],
) -> None:
    node = start(score="700")
    node.wait_for(700, 700, 700)
    node.annotate()
    node.wait_for(ASKED, ASKED, ASKED)
    assert list(node.status().problems) == []
    node.annotate(score="600")
    node.wait_for(600, 600, 600)
    assert node.daemon.terminate() == 0
    node.run("restore")
    assert node.scores() == [ASKED] * 3


@pytest.mark.skipif(has_right(CAP_SYS_RESOURCE), reason="this daemon may lower every score")
def test_the_status_names_the_missing_right(start: Callable[..., Node]) -> None:
    node = start()
    node.wait_for(ASKED, ASKED, ASKED)
    node.annotate(score="-900")

    def refused() -> list[str]:
        return [each.reason for each in node.status().ledger.unapplied if each.field == "oom_score_adj"]

    wait_until(refused, "the refusal")
    assert refused() == ["EACCES: such a value needs CAP_SYS_RESOURCE (3 of 3 processes)"]
    assert node.scores() == [ASKED] * 3
    node.annotate(score="900")
    node.wait_for(900, 900, 900)
    wait_until(lambda: not refused(), "nothing is left")
