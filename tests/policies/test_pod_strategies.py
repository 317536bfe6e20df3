"""Policies with strategies as they are pasted: what counts for one pod only."""

from __future__ import annotations

import pytest

from policies.cpu_burst import CpuBurst
from policies.group_identity import BVT, GROUP_IDENTITY_SYSCTL, GroupIdentity
from policies.memory_qos import MemoryQoS
from runtimeproxy.hooks import PodView, Resources
from runtimeproxy.node.snapshot import Feature, Node
from runtimeproxy.qos import KubeQoSClass
from tests.slo.configs import good

GI = 1 << 30


def node(key: str, strategy: dict[str, object]) -> Node:
    """A node with one strategy for the pods of the namespace `prod`, and none besides."""
    rule = {"name": "web", "namespace": "prod", **strategy}
    return Node(
        strategies=good({key: {"podStrategies": [rule]}}).strategies,
        features=frozenset({Feature.BVT, Feature.GROUP_IDENTITY_SYSCTL, Feature.MEMORY_PROTECTION}),
    )


def pod(namespace: str = "prod") -> PodView:
    return PodView(
        uid="u",
        namespace=namespace,
        kube_qos=KubeQoSClass.GUARANTEED,
        resources=Resources(cpu_quota_us=100_000, memory_limit_bytes=GI),
    )


@pytest.mark.parametrize(
    ("policy", "on", "expected"),
    [
        pytest.param(
            CpuBurst(),
            node("cpu-burst-config", {"cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": 200}}),
            {"cpu.cfs_burst_us": 200_000},
            id="cpu-burst",
        ),
        pytest.param(
            GroupIdentity(),
            node("resource-qos-config", {"cpuQOS": {"enable": True, "groupIdentity": 1}}),
            {BVT: 1},
            id="group-identity",
        ),
        pytest.param(
            MemoryQoS(),
            node(
                "resource-qos-config", {"memoryQOS": {"enable": True, "minLimitPercent": 50, "wmarkRatio": 0}}
            ),
            {"memory.min": GI // 2},
            id="memory-qos",
        ),
    ],
)
def test_a_strategy_for_some_pods_counts_though_no_class_is_enabled(
    policy: CpuBurst | GroupIdentity | MemoryQoS, on: Node, expected: dict[str, int]
) -> None:
    change = policy.pod(pod(), on)
    assert change is not None
    assert expected.items() <= change.cgroup.items()
    other = policy.pod(pod("test"), on)
    assert other is None or other.cgroup == {BVT: 0}


def test_group_identity_is_switched_on_for_a_pod_strategy_alone() -> None:
    change = GroupIdentity().node(
        node("resource-qos-config", {"cpuQOS": {"enable": True, "groupIdentity": 1}})
    )
    assert change is not None
    assert change.sysctl == {GROUP_IDENTITY_SYSCTL: 1}
