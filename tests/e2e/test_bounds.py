"""Bounds of the best-effort class on a real containerd: its pods run, begin and are updated below one.

On cgroup version 1 the kernel refuses a quota, or CPUs, of a container that the class above does not have.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from cri_api.runtime.v1.api_pb2 import LinuxContainerResources
from cri_api.runtimeproxy.v1 import api_pb2 as api
from cri_api.runtimeproxy.v1 import api_pb2_grpc
from tests.e2e.conftest import OF_MANY_TESTS
from tests.e2e.katalyst_site import LONG_LEASES
from tests.e2e.koordinator import extended_resources, qos
from tests.e2e.values import BATCH_500, BEST_EFFORT, HALF_A_CORE, as_resources, on_this_machine
from tests.lab import cgroup_v1
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.node import RunningPod, running_pod, update_resources
from tests.lab.pods import ContainerSpec, PodSpec
from tests.lab.programs import ContainerdVersion
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

pytestmark = pytest.mark.parametrize("containerd_version", ["1.6"], indirect=True)

CLASS = "/kubepods/besteffort"
QUOTA, CPUS = "cpu.cfs_quota_us", "cpuset.cpus"
NO_OPENINGS = '[ledger]\nopenings = "off"\n'


class Bounds:
    """Claims of `cpu-suppress` on the best-effort class."""

    def __init__(self, admin: api_pb2_grpc.AdminStub) -> None:
        self._admin = admin
        self._sequence = itertools.count(1)

    def set(self, field: str, value: str) -> None:
        """Claims this bound and nothing else."""
        key = api.ClaimKey(
            target=api.ClaimTarget(qos_class="BestEffort"), field=field, role=api.ExplainedClaim.ROLE_AT_MOST
        )
        request = api.SetClaimsRequest(
            owner="cpu-suppress",
            session="test",
            sequence=next(self._sequence),
            is_whole=True,
            claims=[api.Claim(key=key, value=value)],
        )
        response = self._admin.SetClaims(request, timeout=CALL_TIMEOUT_S)
        assert response.outcome == api.SetClaimsResponse.OUTCOME_TAKEN
        assert not response.refused
        assert not response.failed

    def end(self) -> None:
        self._admin.ReleaseClaims(api.ReleaseClaimsRequest(owner="cpu-suppress"), timeout=CALL_TIMEOUT_S)


@contextmanager
def bounds_of(proxy: ProxyProcess) -> Iterator[Bounds]:
    socket = proxy.socket.parent / "admin" / "api.sock"
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        yield Bounds(api_pb2_grpc.AdminStub(channel))


@pytest.fixture(scope="module")
def proxy(containerd: Containerd, folder: Path) -> Iterator[ProxyProcess]:
    """Without openings: pods that start would lift the bounds."""
    own = Path(tempfile.mkdtemp(dir=folder))
    options = ProxyOptions(str(containerd.socket), config=NO_OPENINGS + OF_MANY_TESTS, wrapper=LONG_LEASES)
    with ProxyProcess(own, options) as running:
        yield running


@pytest.fixture
def bounds(proxy: ProxyProcess) -> Iterator[Bounds]:
    with bounds_of(proxy) as made:
        yield made
        made.end()


def batch_pod(name: str) -> PodSpec:
    """Its quota comes from the policy `batch-resource`, at both levels."""
    container = ContainerSpec(resources=as_resources(BEST_EFFORT))
    return PodSpec(name, "besteffort", qos("BE"), extended_resources({"main": BATCH_500}), (container,))


def plain_pod(name: str, resources: LinuxContainerResources) -> PodSpec:
    """No policy is about it."""
    return PodSpec(name, "besteffort", containers=(ContainerSpec(resources=resources),))


def quotas(pod: RunningPod) -> tuple[int, int]:
    return pod.pod_values().cpu_quota_us, pod.values().cpu_quota_us


def quota_of_class() -> str:
    return cgroup_v1.read("cpu", CLASS, QUOTA)


def test_pods_run_begin_and_are_updated_below_a_bound_of_the_quota(
    through: CriClient, bounds: Bounds, logs: Path
) -> None:
    native = replace(BEST_EFFORT, cpu_quota_us=60_000)
    with ExitStack() as stack:
        before = stack.enter_context(running_pod(through, batch_pod("before"), logs))
        plain = plain_pod("native-before", as_resources(native))
        own = stack.enter_context(running_pod(through, plain, logs))
        assert [quotas(before), quotas(own)] == [(50_000, 50_000), (-1, 60_000)]
        bounds.set(QUOTA, "20000")
        assert quota_of_class() == "20000"
        assert [quotas(before), quotas(own)] == [(-1, -1), (-1, -1)]
        new = stack.enter_context(running_pod(through, batch_pod("new"), logs))
        plain = plain_pod("native-new", as_resources(native))
        own_new = stack.enter_context(running_pod(through, plain, logs))
        pods = (before, own, new, own_new)
        assert [quotas(pod) for pod in pods] == [(-1, -1)] * 4
        # The runtime writes its whole specification with each update.
        for pod in pods:
            update_resources(through, pod.container_id(), LinuxContainerResources(cpuset_cpus="0"))
        assert [quotas(pod) for pod in pods] == [(-1, -1)] * 4
        resized = LinuxContainerResources(cpu_period=100_000, cpu_quota=70_000)
        update_resources(through, own_new.container_id(), resized)
        assert quotas(own_new) == (-1, -1)
        bounds.set(QUOTA, "30000")
        assert quota_of_class() == "30000"
        bounds.end()
        assert quota_of_class() == "-1"
        assert [quotas(pod) for pod in pods] == [
            (50_000, 50_000),
            (-1, 60_000),
            (50_000, 50_000),
            (-1, 70_000),
        ]
        expected = on_this_machine(replace(HALF_A_CORE, cpuset_cpus="0"))
        assert (before.values(), new.values()) == (expected, expected)
        # What the runtime holds of it catches up with the next update.
        for pod in pods:
            update_resources(through, pod.container_id(), LinuxContainerResources(cpuset_cpus="1"))
        assert [quotas(pod) for pod in pods] == [
            (50_000, 50_000),
            (-1, 60_000),
            (50_000, 50_000),
            (-1, 70_000),
        ]


def test_pods_begin_below_a_bound_of_the_cpus(through: CriClient, bounds: Bounds, logs: Path) -> None:
    every = cgroup_v1.read("cpuset", "/", CPUS)
    if every == "0":
        pytest.skip("needs 2 CPUs")
    with ExitStack() as stack:
        stack.enter_context(running_pod(through, batch_pod("before"), logs))
        bounds.set(CPUS, "0")
        free = stack.enter_context(running_pod(through, batch_pod("free"), logs))
        elsewhere = LinuxContainerResources(cpu_shares=2, cpu_period=100_000, cpuset_cpus="1")
        moved = stack.enter_context(running_pod(through, plain_pod("moved", elsewhere), logs))
        assert [pod.values().cpuset_cpus for pod in (free, moved)] == ["0", "0"]
        update_resources(through, free.container_id(), elsewhere)
        assert free.values().cpuset_cpus == "0"
        bounds.end()
        assert [pod.pod_values().cpuset_cpus for pod in (free, moved)] == [every, every]
        assert [pod.values().cpuset_cpus for pod in (free, moved)] == ["1", "1"]


def test_the_runtime_alone_fails_below_a_bound(
    direct: CriClient, through: CriClient, bounds: Bounds, logs: Path
) -> None:
    resources = LinuxContainerResources(cpu_period=100_000, cpu_quota=60_000)
    with ExitStack() as stack:
        stack.enter_context(running_pod(through, batch_pod("before"), logs))
        bounds.set(QUOTA, "20000")
        with pytest.raises(grpc.RpcError, match="invalid argument"):
            stack.enter_context(running_pod(direct, plain_pod("quota", resources), logs))


@pytest.fixture
def own_containerd(containerd_version: ContainerdVersion) -> Iterator[Containerd]:
    """A daemon of other tests that came to know the pods of a test would give them its values again."""
    with Containerd(containerd_version) as running:
        yield running


@pytest.mark.parametrize("end", ["kill", "restore"])
def test_quotas_come_back_after_the_proxy_has_ended_below_a_bound(
    own_containerd: Containerd, folder: Path, logs: Path, end: str
) -> None:
    native = as_resources(replace(BEST_EFFORT, cpu_quota_us=60_000))
    options = ProxyOptions(str(own_containerd.socket), config=NO_OPENINGS, wrapper=LONG_LEASES)
    with ProxyProcess(Path(tempfile.mkdtemp(dir=folder)), options) as proxy, ExitStack() as stack:
        client = stack.enter_context(CriClient(proxy.socket))
        pods = [stack.enter_context(running_pod(client, batch_pod("batch"), logs))]
        pods.append(stack.enter_context(running_pod(client, plain_pod("before", native), logs)))
        with bounds_of(proxy) as bounds:
            bounds.set(QUOTA, "20000")
        pods.append(stack.enter_context(running_pod(client, plain_pod("new", native), logs)))
        assert [quotas(pod) for pod in pods] == [(-1, -1)] * 3
        if end == "restore":
            proxy.terminate()
            done = proxy.run("restore")
            assert done.returncode == 0, done.stdout + done.stderr
            assert quota_of_class() == "-1", done.stdout
            assert [quotas(pod) for pod in pods] == [(-1, -1), (-1, 60_000), (-1, 60_000)], done.stdout
            proxy.start()
            return
        proxy.kill()
        proxy.start()
        assert quota_of_class() == "20000"
        pods.append(stack.enter_context(running_pod(client, plain_pod("late", native), logs)))
        assert [quotas(pod) for pod in pods] == [(-1, -1)] * 4
        with bounds_of(proxy) as bounds:
            bounds.set(QUOTA, "30000")
            bounds.end()
        assert quota_of_class() == "-1"
        assert [quotas(pod) for pod in pods] == [(50_000, 50_000), *[(-1, 60_000)] * 3]
