"""UpdateContainerResources as the kubelet sends it for a resize and for its CPU manager."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from cri_api.runtime.v1.api_pb2 import LinuxContainerResources
from tests.e2e.conftest import Endpoint
from tests.e2e.koordinator import cpuset, extended_resources, qos
from tests.e2e.values import (
    BATCH_500,
    BEST_EFFORT,
    BURSTABLE,
    GUARANTEED,
    HALF_A_CORE,
    MIB,
    as_resources,
    on_this_machine,
)
from tests.lab import cgroup_v1
from tests.lab.cgroup_v1 import CgroupValues
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import running_pod, update_resources
from tests.lab.pods import ContainerSpec, KubeQos, PodSpec


@dataclass(frozen=True)
class Pod:
    """A pod with one container, and its values before any update: direct, through the proxy."""

    kube_qos: KubeQos
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    requested: CgroupValues
    applied: CgroupValues

    def spec(self) -> PodSpec:
        container = ContainerSpec(resources=as_resources(self.requested))
        return PodSpec("update", self.kube_qos, self.labels, self.annotations, (container,))


BE = Pod("besteffort", qos("BE"), extended_resources({"main": BATCH_500}), BEST_EFFORT, HALF_A_CORE)
LSR = Pod(
    "guaranteed",
    qos("LSR"),
    cpuset("0"),
    GUARANTEED,
    replace(GUARANTEED, cpu_quota_us=-1, cpuset_cpus="0"),
)
LS = Pod("burstable", qos("LS"), {}, BURSTABLE, BURSTABLE)

CPUSET_ONLY = LinuxContainerResources(cpuset_cpus="1")
RESIZE = LinuxContainerResources(
    cpu_period=100000, cpu_shares=2048, cpu_quota=200000, memory_limit_in_bytes=128 * MIB
)
MEMORY_ONLY = LinuxContainerResources(memory_limit_in_bytes=128 * MIB)

CASES = {
    "BE, the CPU manager moves it": (
        BE,
        CPUSET_ONLY,
        replace(BEST_EFFORT, cpuset_cpus="1"),
        replace(HALF_A_CORE, cpuset_cpus="1"),
    ),
    "BE, the kubelet writes the shares of a pod without requests": (
        BE,
        LinuxContainerResources(cpu_period=100000, cpu_shares=2),
        BEST_EFFORT,
        HALF_A_CORE,
    ),
    "BE, resized": (BE, RESIZE, CgroupValues(2048, 200000, 128 * MIB, "all"), HALF_A_CORE),
    "LSR, the CPU manager moves it": (
        LSR,
        CPUSET_ONLY,
        replace(GUARANTEED, cpuset_cpus="1"),
        LSR.applied,
    ),
    "LSR, resized": (
        LSR,
        RESIZE,
        CgroupValues(2048, 200000, 128 * MIB, "all"),
        CgroupValues(2048, -1, 128 * MIB, "0"),
    ),
    "LSR, memory resized": (
        LSR,
        MEMORY_ONLY,
        replace(GUARANTEED, memory_limit_bytes=128 * MIB),
        replace(LSR.applied, memory_limit_bytes=128 * MIB),
    ),
    "LS, resized": (
        LS,
        RESIZE,
        CgroupValues(2048, 200000, 128 * MIB, "all"),
        CgroupValues(2048, 200000, 128 * MIB, "all"),
    ),
}


@pytest.mark.parametrize(("pod", "update", "direct", "through"), CASES.values(), ids=CASES.keys())
def test_values_after_an_update(
    pod: Pod,
    update: LinuxContainerResources,
    direct: CgroupValues,
    through: CgroupValues,
    client: CriClient,
    endpoint: Endpoint,
    logs: Path,
) -> None:
    with running_pod(client, pod.spec(), logs) as running:
        before = running.values()
        update_resources(client, running.container_id(), update)
        after = running.values()

    proxied = endpoint.through_proxy
    assert before == on_this_machine(pod.applied if proxied else pod.requested)
    assert after == on_this_machine(through if proxied else direct)


@pytest.mark.parametrize("method", ["UpdatePodSandboxResources", "UpdateContainerResources"])
def test_a_pod_that_the_kubelet_resizes_keeps_its_own_quota(
    method: str, client: CriClient, endpoint: Endpoint, logs: Path
) -> None:
    """The kubelet writes the pod's cgroup, then tells the runtime, which may answer with an error."""
    with running_pod(client, LSR.spec(), logs) as running:
        quota = cgroup_v1.file("cpu", running.spec.cgroup_parent, "cpu.cfs_quota_us")
        quota.write_text("150000")
        if method == "UpdateContainerResources":
            update_resources(client, running.container_id(), MEMORY_ONLY)
        else:
            request = api_pb2.UpdatePodSandboxResourcesRequest(pod_sandbox_id=running.sandbox_id)
            with suppress(grpc.RpcError):
                client.runtime.UpdatePodSandboxResources(request, timeout=CALL_TIMEOUT_S)
        if endpoint.through_proxy:
            wait_until(lambda: quota.read_text().strip() == "-1", "the policy's quota")
        else:
            assert quota.read_text().strip() == "150000"
