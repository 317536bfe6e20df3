"""kill -9 of the proxy and of containerd: containers go on, and calls work again afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from tests.e2e.koordinator import cpuset, extended_resources, qos
from tests.e2e.values import BATCH_500, GUARANTEED, HALF_A_CORE, as_resources
from tests.lab import procfs
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CALL_TIMEOUT_S, NOT_YET, CriClient
from tests.lab.deadline import wait_until
from tests.lab.go_clients import KubeletClient
from tests.lab.node import RunningPod, running_pod, update_resources
from tests.lab.pods import ContainerSpec, PodSpec
from tests.lab.programs import ContainerdVersion
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

SERVING_TIMEOUT_S = 30.0
# How long the first call of a connection waits for a runtime that is away.
SHORT_WAIT = "[proxy]\nupstream_wait_s = 0.5\n"
LONG_WAIT = "[proxy]\nupstream_wait_s = 60.0\n"
BATCH_POD = PodSpec("batch", "besteffort", qos("BE"), extended_resources({"main": BATCH_500}))
PINNED_POD = PodSpec(
    "pinned",
    "guaranteed",
    qos("LSR"),
    cpuset("0"),
    (ContainerSpec(resources=as_resources(GUARANTEED)),),
)


@pytest.fixture
def mortal_containerd(containerd_version: ContainerdVersion) -> Iterator[Containerd]:
    with Containerd(containerd_version) as running:
        yield running


@pytest.fixture
def mortal_proxy(mortal_containerd: Containerd, folder: Path) -> Iterator[ProxyProcess]:
    own = Path(tempfile.mkdtemp(dir=folder))
    options = ProxyOptions(str(mortal_containerd.socket), config=SHORT_WAIT)
    with ProxyProcess(own, options) as running:
        yield running


@pytest.fixture
def connected(mortal_proxy: ProxyProcess) -> Iterator[CriClient]:
    with CriClient(mortal_proxy.socket) as client:
        yield client


def identity(pod: RunningPod) -> tuple[int, int]:
    """Names the container's process: a restarted one has another start time."""
    return pod.main_pid(), procfs.start_ticks(pod.main_pid())


def assert_policies_hold(client: CriClient, batch: RunningPod, pinned: RunningPod) -> None:
    """The kubelet's usual updates come; what the policies own stays."""
    update_resources(client, batch.container_id(), api_pb2.LinuxContainerResources(cpu_shares=2))
    update_resources(
        client,
        pinned.container_id(),
        api_pb2.LinuxContainerResources(cpuset_cpus="1", cpu_quota=50000, cpu_period=100000),
    )
    assert batch.values().cpu_shares == HALF_A_CORE.cpu_shares
    assert batch.values().cpu_quota_us == HALF_A_CORE.cpu_quota_us
    assert pinned.values().cpuset_cpus == "0"
    assert pinned.values().cpu_quota_us == -1


def assert_pods_survive(victim: ProxyProcess | Containerd, connected: CriClient, logs: Path) -> None:
    """Kills the victim and starts it again: the containers run on, and the policies hold."""
    with running_pod(connected, BATCH_POD, logs) as batch, running_pod(connected, PINNED_POD, logs) as pinned:
        before = [identity(batch), identity(pinned)]
        victim.kill()
        with pytest.raises(grpc.RpcError) as caught:
            connected.runtime.Version(api_pb2.VersionRequest(), timeout=CALL_TIMEOUT_S)
        victim.start()
        connected.wait_until_serving(SERVING_TIMEOUT_S)
        after = [identity(batch), identity(pinned)]
        assert_policies_hold(connected, batch, pinned)
        output = connected.exec(batch.container_id(), "/bin/echo", "alive")

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert after == before
    assert output == "alive\n"


def test_kill_of_the_proxy(connected: CriClient, mortal_proxy: ProxyProcess, logs: Path) -> None:
    assert_pods_survive(mortal_proxy, connected, logs)


def test_kill_of_the_proxy_without_its_state(
    connected: CriClient, mortal_proxy: ProxyProcess, logs: Path
) -> None:
    with running_pod(connected, BATCH_POD, logs) as batch, running_pod(connected, PINNED_POD, logs) as pinned:
        mortal_proxy.kill()
        for file in sorted(mortal_proxy.state_folder.rglob("*"), reverse=True):
            file.unlink() if not file.is_dir() else file.rmdir()
        mortal_proxy.start()
        connected.wait_until_serving(SERVING_TIMEOUT_S)
        assert_policies_hold(connected, batch, pinned)


def test_kill_of_containerd(
    connected: CriClient, mortal_proxy: ProxyProcess, mortal_containerd: Containerd, logs: Path
) -> None:
    assert_pods_survive(mortal_containerd, connected, logs)
    assert mortal_proxy.alive()


@pytest.mark.parametrize("victim", ["proxy", "containerd"])
def test_call_in_flight_at_a_kill(
    victim: str,
    connected: CriClient,
    mortal_proxy: ProxyProcess,
    mortal_containerd: Containerd,
    logs: Path,
) -> None:
    killed = mortal_proxy if victim == "proxy" else mortal_containerd
    with running_pod(connected, BATCH_POD, logs) as pod:
        before = identity(pod)
        long = api_pb2.ExecSyncRequest(
            container_id=pod.container_id(), cmd=["/bin/sh", "-c", "touch /tmp/on; sleep 100"]
        )
        with ThreadPoolExecutor(1) as threads:
            call = threads.submit(connected.runtime.ExecSync, long, timeout=CALL_TIMEOUT_S)
            wait_until(
                lambda: "on" in connected.exec(pod.container_id(), "/bin/ls", "/tmp"),
                "the command runs",
            )
            killed.kill()
            error = call.exception(timeout=SERVING_TIMEOUT_S)
        killed.start()
        connected.wait_until_serving(SERVING_TIMEOUT_S)
        after = identity(pod)

    assert isinstance(error, grpc.RpcError)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert after == before
    assert mortal_proxy.alive()


def is_ok(outcome: Any) -> bool:
    return bool(outcome["code"] == "OK")


@pytest.mark.golang
def test_kubelet_stays_connected(mortal_proxy: ProxyProcess, mortal_containerd: Containerd) -> None:
    with KubeletClient(mortal_proxy.socket).watching() as outcomes:
        outcomes.until_code("OK")
        mortal_proxy.kill()
        outcomes.until_code("Unavailable")
        mortal_proxy.start()
        before_the_answers = outcomes.until(is_ok)
        mortal_containerd.kill()
        outcomes.until_code("Unavailable")
        mortal_containerd.start()
        before_the_answers += outcomes.until(is_ok)

    # A runtime that takes longer to start than the proxy waits is asked all the same.
    assert {each["code"] for each in before_the_answers if each["message"] != NOT_YET} <= {"Unavailable"}


def test_end_by_sigterm(connected: CriClient, mortal_proxy: ProxyProcess, logs: Path) -> None:
    with running_pod(connected, BATCH_POD, logs) as pod:
        before = identity(pod)
        code = mortal_proxy.terminate()
        socket_left = mortal_proxy.socket.exists()
        mortal_proxy.start()
        connected.wait_until_serving(SERVING_TIMEOUT_S)
        after = identity(pod)

    assert code == 0
    assert not socket_left
    assert "STOPPING=1" in mortal_proxy.states
    assert after == before


def test_first_call_waits_for_a_runtime_that_starts(
    containerd_version: ContainerdVersion, folder: Path
) -> None:
    own = Path(tempfile.mkdtemp(dir=folder))
    with Containerd(containerd_version) as containerd:
        containerd.kill()
        containerd.socket.unlink(missing_ok=True)
        options = ProxyOptions(str(containerd.socket), config=LONG_WAIT)
        with (
            ProxyProcess(own, options) as proxy,
            CriClient(proxy.socket) as client,
            ThreadPoolExecutor(1) as threads,
        ):
            call = threads.submit(client.runtime.Version, api_pb2.VersionRequest(), timeout=CALL_TIMEOUT_S)
            containerd.start()
            answer = call.result(timeout=CALL_TIMEOUT_S)

    assert answer.runtime_name == "containerd"
