"""The cgroup files of pods of each QoS class, created direct and through the proxy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.e2e.conftest import Endpoint
from tests.e2e.koordinator import batch, cpuset, extended_resources, qos
from tests.e2e.values import (
    ALL_CPUS,
    BATCH_500,
    BEST_EFFORT,
    BURSTABLE,
    GUARANTEED,
    HALF_A_CORE,
    MIB,
    as_resources,
    on_this_machine,
)
from tests.lab.cgroup_v1 import CgroupValues
from tests.lab.cri_client import CriClient
from tests.lab.node import running_pod
from tests.lab.pods import ContainerSpec, KubeQos, PodSpec


@dataclass(frozen=True)
class Case:
    """A pod, what the kubelet asks for each container, and what each shall have in the end.

    `applied` and `pod_applied` are None where the policies change nothing.
    """

    requested: CgroupValues
    kube_qos: KubeQos
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    applied: Mapping[str, CgroupValues] | None = None
    pod_applied: CgroupValues | None = None

    def pod(self, name: str) -> PodSpec:
        names = self.applied or {"main": self.requested}
        containers = tuple(ContainerSpec(each, as_resources(self.requested)) for each in names)
        return PodSpec(name, self.kube_qos, self.labels, self.annotations, containers)

    def pod_requested(self) -> CgroupValues:
        return replace(self.requested, memory_limit_bytes=None)


CASES = {
    "LSE with a cpuset": Case(
        GUARANTEED,
        "guaranteed",
        qos("LSE"),
        cpuset("0"),
        {"main": replace(GUARANTEED, cpu_quota_us=-1, cpuset_cpus="0")},
        CgroupValues(1024, -1, None, ALL_CPUS),
    ),
    "LSR with a cpuset": Case(
        GUARANTEED,
        "guaranteed",
        qos("LSR"),
        cpuset("0-1"),
        {"main": replace(GUARANTEED, cpu_quota_us=-1, cpuset_cpus="0-1")},
        CgroupValues(1024, -1, None, ALL_CPUS),
    ),
    "no QoS class, with a cpuset": Case(
        GUARANTEED,
        "guaranteed",
        qos(""),
        cpuset("1"),
        {"main": replace(GUARANTEED, cpuset_cpus="1")},
    ),
    "LSR without a cpuset": Case(GUARANTEED, "guaranteed", qos("LSR")),
    "LS": Case(BURSTABLE, "burstable", qos("LS")),
    "SYSTEM": Case(GUARANTEED, "guaranteed", qos("SYSTEM")),
    "no QoS class": Case(BURSTABLE, "burstable", qos("")),
    "BE without batch resources": Case(BEST_EFFORT, "besteffort", qos("BE")),
    "BE with requests and limits": Case(
        BEST_EFFORT,
        "besteffort",
        qos("BE"),
        extended_resources({"main": BATCH_500}),
        {"main": HALF_A_CORE},
        HALF_A_CORE,
    ),
    "BE with requests only": Case(
        BEST_EFFORT,
        "besteffort",
        qos("BE"),
        extended_resources({"main": {"requests": batch(500, "64Mi")}}),
        {"main": CgroupValues(512, -1, None, ALL_CPUS)},
        CgroupValues(512, -1, None, ALL_CPUS),
    ),
    "BE with two containers, one with limits only": Case(
        BEST_EFFORT,
        "besteffort",
        qos("BE"),
        extended_resources({"main": BATCH_500, "side": {"limits": batch(1000, "64Mi")}}),
        {"main": HALF_A_CORE, "side": CgroupValues(2, 100000, 64 * MIB, ALL_CPUS)},
        CgroupValues(512, 150000, 128 * MIB, ALL_CPUS),
    ),
    "BE with a container that the annotation does not name": Case(
        BEST_EFFORT,
        "besteffort",
        qos("BE"),
        extended_resources({"main": BATCH_500}),
        {"main": HALF_A_CORE, "injected": BEST_EFFORT},
        HALF_A_CORE,
    ),
    "LS with batch resources": Case(
        BURSTABLE, "burstable", qos("LS"), extended_resources({"main": BATCH_500})
    ),
    "BE with a broken annotation": Case(
        BEST_EFFORT,
        "besteffort",
        qos("BE"),
        {"node.koordinator.sh/extended-resource-spec": '{"containers": ['},
    ),
    "LSR with a broken annotation": Case(
        GUARANTEED,
        "guaranteed",
        qos("LSR"),
        {"scheduling.koordinator.sh/resource-status": '{"cpuset": 3}'},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_values_of_pod_and_containers(case: Case, client: CriClient, endpoint: Endpoint, logs: Path) -> None:
    pod = case.pod("values")
    kubelet_files = {
        "cpu.shares": str(case.requested.cpu_shares),
        "cpu.cfs_quota_us": str(case.requested.cpu_quota_us),
    }
    with running_pod(client, pod, logs, kubelet_files) as running:
        containers = {name: running.values(name) for name in running.container_ids}
        pod_values = running.pod_values()

    applied = (case.applied or {}) if endpoint.through_proxy else {}
    assert containers == {name: on_this_machine(applied.get(name, case.requested)) for name in containers}
    pod_applied = case.pod_applied if endpoint.through_proxy else None
    assert pod_values == on_this_machine(pod_applied or case.pod_requested())
