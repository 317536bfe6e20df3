"""Stand-alone beside a real containerd: values by file, and none of them before runc's own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from tests.e2e.koordinator import extended_resources, qos
from tests.e2e.values import BATCH_500, BEST_EFFORT, HALF_A_CORE, as_resources, on_this_machine
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import running_pod, update_resources
from tests.lab.pods import ContainerSpec, PodSpec
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

POD = PodSpec(
    "standalone",
    "besteffort",
    qos("BE"),
    extended_resources({"main": BATCH_500}),
    (ContainerSpec("main", as_resources(BEST_EFFORT)),),
)


@pytest.fixture
def standalone(containerd: Containerd, folder: Path) -> Iterator[ProxyProcess]:
    own = Path(tempfile.mkdtemp(dir=folder))
    config = f'[daemon]\nmode = "standalone"\nlock = "{own}/front-end.lock"\n'
    with ProxyProcess(own, ProxyOptions(str(containerd.socket), config=config)) as running:
        yield running


def status_of(daemon: ProxyProcess) -> api_pb2.GetStatusResponse:
    with CriClient(daemon.socket) as client:
        api = api_pb2_grpc.RuntimeProxyStub(client.channel)
        return api.GetStatus(api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S)


def test_a_pod_gets_its_values_by_file(
    containerd: Containerd, standalone: ProxyProcess, tmp_path: Path
) -> None:
    wanted = on_this_machine(HALF_A_CORE)
    with CriClient(containerd.socket) as client, running_pod(client, POD, tmp_path) as pod:
        wait_until(lambda: pod.values() == wanted, "the container's values")
        wait_until(lambda: pod.pod_values() == wanted, "the pod's values")
        # As an in-place resize or the CPU manager does; no event tells it, and the runtime puts its own back.
        update_resources(client, pod.container_id(), as_resources(BEST_EFFORT))
        wait_until(lambda: pod.values() == wanted, "the values after an update")
        status = status_of(standalone)
        assert (status.daemon.mode, list(status.problems)) == ("standalone", [])
        assert standalone.terminate() == 0
        assert pod.values() == wanted
        assert standalone.run("restore").returncode == 0
        assert pod.values() == on_this_machine(BEST_EFFORT)
