"""NRI beside a real containerd: values in the first program's cgroup, and what a restart finds."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from tests.e2e.koordinator import extended_resources, qos
from tests.e2e.values import BATCH_500, BEST_EFFORT, HALF_A_CORE, as_resources, on_this_machine
from tests.lab import cgroup_v1
from tests.lab.containerd_config import PATIENT, Nri
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.crio import runtime_with_nri
from tests.lab.deadline import wait_until
from tests.lab.node import running_pod, start_container
from tests.lab.pods import ContainerSpec, PodSpec, sandbox_config
from tests.lab.programs import RUNTIMES_WITH_NRI
from tests.lab.proxy_process import ProxyOptions, ProxyProcess
from tests.lab.runtime_process import RuntimeProcess

pytestmark = pytest.mark.golang

POD = PodSpec(
    "nri",
    "besteffort",
    qos("BE"),
    extended_resources({"main": BATCH_500}),
    (ContainerSpec("main", as_resources(BEST_EFFORT)),),
)
SECOND = ContainerSpec("second", as_resources(BEST_EFFORT))


@pytest.fixture
def nri() -> Nri:
    return PATIENT


@pytest.fixture(params=RUNTIMES_WITH_NRI)
def runtime(request: pytest.FixtureRequest, nri: Nri) -> Iterator[RuntimeProcess]:
    with runtime_with_nri(request.param, nri) as running:
        yield running


@pytest.fixture
def plugin(runtime: RuntimeProcess, folder: Path) -> Iterator[ProxyProcess]:
    own = Path(tempfile.mkdtemp(dir=folder))
    config = (
        f'[daemon]\nmode = "nri"\nlock = "{own}/front-end.lock"\n[nri]\nsocket = "{runtime.nri_socket}"\n'
    )
    with ProxyProcess(own, ProxyOptions(str(runtime.socket), config=config)) as running:
        yield running


def status_of(daemon: ProxyProcess) -> api_pb2.GetStatusResponse:
    with CriClient(daemon.socket) as client:
        api = api_pb2_grpc.RuntimeProxyStub(client.channel)
        return api.GetStatus(api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S)


def test_a_pod_starts_with_its_values(runtime: RuntimeProcess, plugin: ProxyProcess, tmp_path: Path) -> None:
    wanted = on_this_machine(HALF_A_CORE)
    wait_until(lambda: "registered with the runtime" in str(plugin.log), "the registration")
    with (
        CriClient(runtime.socket) as client,
        running_pod(client, POD, tmp_path, cgroup_prefix=runtime.cgroup_prefix) as pod,
    ):
        assert pod.values() == wanted
        assert pod.pod_values() == wanted
        status = status_of(plugin)
        assert (status.daemon.mode, list(status.problems)) == ("nri", [])
        assert plugin.terminate() == 0
        assert pod.values() == wanted
        restored = plugin.run("restore")
        assert (restored.returncode, restored.stderr) == (0, "")
        assert pod.values() == on_this_machine(BEST_EFFORT)


@pytest.mark.parametrize("nri", [pytest.param(Nri(), id="usual")])
def test_a_daemon_that_hangs_fails_no_creation(
    runtime: RuntimeProcess, plugin: ProxyProcess, tmp_path: Path
) -> None:
    spec = replace(POD, annotations=extended_resources({"main": BATCH_500, "second": BATCH_500}))
    wait_until(lambda: "registered with the runtime" in str(plugin.log), "the registration")
    with (
        CriClient(runtime.socket) as client,
        running_pod(client, spec, tmp_path, cgroup_prefix=runtime.cgroup_prefix) as pod,
    ):
        config = sandbox_config(spec, str(pod.log_directory))
        plugin.signal(signal.SIGSTOP)
        try:
            second = start_container(client, pod.sandbox_id, config, spec, SECOND)
        finally:
            plugin.signal(signal.SIGCONT)
        cgroup = f"{spec.cgroup_parent}/{runtime.cgroup_prefix}{second}"
        wanted = on_this_machine(HALF_A_CORE)
        wait_until(lambda: cgroup_v1.values(cgroup) == wanted, "its values by file")
