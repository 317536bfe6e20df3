"""The command restore on a real containerd: the kernel's files are as if the proxy had never been there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.e2e.koordinator import cpuset, extended_resources, qos
from tests.e2e.values import (
    ALL_CPUS,
    BATCH_500,
    BEST_EFFORT,
    GUARANTEED,
    HALF_A_CORE,
    as_resources,
    on_this_machine,
)
from tests.lab.cgroup_v1 import CgroupValues
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import RunningPod, running_pod, update_resources
from tests.lab.pods import ContainerSpec, KubeQos, PodSpec
from tests.lab.programs import ContainerdVersion
from tests.lab.proxy_process import ProxyOptions, ProxyProcess


@dataclass(frozen=True)
class Case:
    """A pod: what the kubelet asks for its container, and what policies make of that."""

    kube_qos: KubeQos
    requested: CgroupValues
    applied: CgroupValues
    pod_applied: CgroupValues
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    def spec(self, name: str) -> PodSpec:
        containers = (ContainerSpec("main", as_resources(self.requested)),)
        return PodSpec(name, self.kube_qos, self.labels, self.annotations, containers)


BATCH = Case(
    "besteffort",
    BEST_EFFORT,
    HALF_A_CORE,
    HALF_A_CORE,
    qos("BE"),
    extended_resources({"main": BATCH_500}),
)
BOUND = Case(
    "guaranteed",
    GUARANTEED,
    replace(GUARANTEED, cpu_quota_us=-1, cpuset_cpus="0"),
    CgroupValues(1024, -1, None, ALL_CPUS),
    qos("LSR"),
    cpuset("0"),
)
CASES = {"batch": BATCH, "bound": BOUND}


@pytest.fixture(scope="module")
def containerd(containerd_version: ContainerdVersion) -> Iterator[Containerd]:
    """A runtime of its own: the daemon of the other tests would keep the values of its pods, too."""
    with Containerd(containerd_version) as running:
        yield running


@pytest.fixture
def own_proxy(containerd: Containerd, folder: Path) -> Iterator[ProxyProcess]:
    """A proxy that the test ends."""
    own = Path(tempfile.mkdtemp(dir=folder))
    with ProxyProcess(own, ProxyOptions(str(containerd.socket))) as running:
        yield running


@pytest.fixture
def pods(own_proxy: ProxyProcess, direct: CriClient, logs: Path) -> Iterator[dict[str, RunningPod]]:
    """The pods, run through the proxy and removed at the runtime."""
    with ExitStack() as stack:
        through = stack.enter_context(CriClient(own_proxy.socket))
        yield {
            name: stack.enter_context(running_pod(through, case.spec(name), logs, kubelet_files(case)))
            for name, case in CASES.items()
        }
        if not own_proxy.alive():
            own_proxy.start()


def kubelet_files(case: Case) -> dict[str, str]:
    """What the kubelet writes to the pod's cgroup."""
    return {
        "cpu.shares": str(case.requested.cpu_shares),
        "cpu.cfs_quota_us": str(case.requested.cpu_quota_us),
    }


def values(pods: Mapping[str, RunningPod]) -> dict[str, tuple[CgroupValues, CgroupValues]]:
    """What the kernel's files of containers and pods hold."""
    return {name: (pod.values(), pod.pod_values()) for name, pod in pods.items()}


APPLIED = {name: (case.applied, case.pod_applied) for name, case in CASES.items()}
REQUESTED = {
    name: (case.requested, replace(case.requested, memory_limit_bytes=None)) for name, case in CASES.items()
}


def here(expected: Mapping[str, tuple[CgroupValues, ...]]) -> dict[str, tuple[CgroupValues, ...]]:
    """The values with this machine's CPUs."""
    return {name: tuple(map(on_this_machine, each)) for name, each in expected.items()}


def test_the_kernels_files_are_as_the_kubelet_wants_them(
    own_proxy: ProxyProcess, pods: dict[str, RunningPod]
) -> None:
    assert values(pods) == here(APPLIED)
    assert own_proxy.terminate() == 0
    shown = own_proxy.run("restore", "--dry-run")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert values(pods) == here(APPLIED)
    done = own_proxy.run("restore")
    assert done.returncode == 0, done.stdout + done.stderr
    assert values(pods) == here(REQUESTED)
    again = own_proxy.run("restore")
    assert (again.returncode, again.stdout) == (0, "nothing to restore\n")


def test_after_a_kill_and_a_resize_at_the_runtime(
    own_proxy: ProxyProcess, pods: dict[str, RunningPod], direct: CriClient
) -> None:
    own_proxy.kill()
    resized = replace(BATCH.requested, cpu_shares=3000)
    resources = as_resources(resized)
    update_resources(direct, pods["batch"].container_id(), type(resources)(cpu_shares=3000))
    done = own_proxy.run("restore")
    assert done.returncode == 0, done.stdout + done.stderr
    found = values(pods)
    assert found["batch"][0] == on_this_machine(resized)
    assert found["bound"] == here(REQUESTED)["bound"]


def lists(pod: RunningPod) -> tuple[str, str]:
    """The CPUs of its container and of the pod."""
    return pod.values().cpuset_cpus, pod.pod_values().cpuset_cpus


def test_cpus_of_a_pod_that_was_there_before_the_proxy(
    own_proxy: ProxyProcess, direct: CriClient, logs: Path
) -> None:
    """Its list is in the file only, and version 1 takes no empty one back. The same after another start."""
    assert own_proxy.terminate() == 0
    with running_pod(direct, BOUND.spec("made-before"), logs, kubelet_files(BOUND)) as pod:
        before = lists(pod)
        for _ in range(2):
            own_proxy.start()
            wait_until(lambda: lists(pod)[0] == "0", "the container is bound")
            assert own_proxy.terminate() == 0
            done = own_proxy.run("restore")
            assert done.returncode == 0, done.stdout + done.stderr
            assert lists(pod) == before
            assert "restored: what the cgroup above has" in done.stdout
            again = own_proxy.run("restore")
            assert (again.returncode, again.stdout) == (0, "nothing to restore\n")
