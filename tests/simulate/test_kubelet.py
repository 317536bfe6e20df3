"""The kubelet's requests for a pod: its formulas."""

from __future__ import annotations

from typing import Any

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.node.snapshot import Node
from runtimeproxy.qos import KubeQoSClass
from runtimeproxy.simulate.kubelet import (
    CGROUP_DRIVER,
    NODE_MEMORY,
    PodCalls,
    amounts_of,
    calls_of,
    linux_resources,
    pod_cgroup,
)
from runtimeproxy.simulate.manifests import ContainerKind, read_pods

GIB = 2**30


def calls(spec: dict[str, Any], node: Node | None = None, **metadata: Any) -> PodCalls:
    metadata = {"name": "web", "uid": "1-2", **metadata}
    (pod,) = read_pods([{"kind": "Pod", "metadata": metadata, "spec": spec}])
    return calls_of(pod, node or Node(cgroup_driver="cgroupfs", capacity={"memory": 16 * GIB}))


def container(name: str = "main", **resources: dict[str, str]) -> dict[str, Any]:
    return {"name": name, "resources": resources}


@pytest.mark.parametrize(
    ("requests", "limits", "shares", "quota"),
    [
        ({}, {}, 2, 0),
        ({"cpu": 1}, {}, 2, 0),
        ({"cpu": 500}, {"cpu": 1500}, 512, 150_000),
        ({}, {"cpu": 2000}, 2048, 200_000),
        ({"cpu": 0}, {"cpu": 2000}, 2, 200_000),
        ({"cpu": 1}, {"cpu": 5}, 2, 1000),
        ({"cpu": 1_000_000}, {}, 262_144, 0),
    ],
)
def test_cpu(requests: dict[str, int], limits: dict[str, int], shares: int, quota: int) -> None:
    found = linux_resources(requests, limits)
    assert (found.cpu_shares, found.cpu_quota, found.cpu_period) == (shares, quota, 100_000)


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([], {}),
        ([("container", {"cpu": 1}), ("container", {"cpu": 2, "memory": 3})], {"cpu": 3, "memory": 3}),
        ([("init", {"cpu": 5}), ("container", {"cpu": 2})], {"cpu": 5}),
        ([("init", {"cpu": 5}), ("init", {"memory": 4}), ("container", {"cpu": 6})], {"cpu": 6, "memory": 4}),
        ([("sidecar", {"cpu": 1}), ("container", {"cpu": 2})], {"cpu": 3}),
        # The second init container runs beside the sidecar, the first one does not.
        (
            [("init", {"cpu": 4}), ("sidecar", {"cpu": 1}), ("init", {"cpu": 4}), ("container", {})],
            {"cpu": 5},
        ),
        ([("init", {"cpu": 4}), ("sidecar", {"cpu": 1}), ("container", {"cpu": 1})], {"cpu": 4}),
    ],
)
def test_amounts_of_a_pod(containers: list[tuple[str, dict[str, int]]], expected: dict[str, int]) -> None:
    assert amounts_of((ContainerKind(kind), amounts) for kind, amounts in containers) == expected


@pytest.mark.parametrize(
    ("spec", "scores"),
    [
        ({"containers": [container()]}, [1000]),
        ({"containers": [container(limits={"cpu": "1", "memory": "1Gi"})]}, [-997]),
        ({"containers": [container(requests={"memory": "4Gi"})]}, [750]),
        ({"containers": [container(requests={"memory": "1"})]}, [999]),
        ({"containers": [container(requests={"memory": "17Gi"})]}, [3]),
        ({"containers": [container("a", requests={"memory": "8Gi"}), container("b")]}, [500, 999]),
        ({"containers": [container(requests={"memory": "4Gi"})], "priority": 2_000_001_000}, [-997]),
        (
            {
                "containers": [container(requests={"memory": "4Gi"})],
                "priorityClassName": "system-node-critical",
            },
            [-997],
        ),
        (
            {
                "initContainers": [{**container("mesh"), "restartPolicy": "Always"}],
                "containers": [
                    container("a", requests={"memory": "8Gi"}),
                    container("b", requests={"memory": "4Gi"}),
                ],
            },
            [750, 500, 750],
        ),
    ],
)
def test_oom_score(spec: dict[str, Any], scores: list[int]) -> None:
    found = calls(spec)
    assert [each.config.linux.resources.oom_score_adj for each in found.containers] == scores
    assert not any(each.unknown for each in found.containers)


def test_the_sandbox_has_the_sums_of_its_containers_and_its_overhead() -> None:
    limits = {"cpu": "1", "memory": "1Gi"}
    found = calls(
        {
            "containers": [container("a", limits=limits), container("b", limits=limits)],
            "overhead": {"cpu": "250m"},
        },
        labels={"app": "x"},
        annotations={"a": "b"},
    )
    linux = found.config.linux
    assert linux.resources == api_pb2.LinuxContainerResources(
        cpu_period=100_000, cpu_quota=200_000, cpu_shares=2048, memory_limit_in_bytes=2 * GIB
    )
    assert (linux.overhead.cpu_shares, linux.overhead.cpu_quota) == (256, -1)
    assert linux.cgroup_parent == "/kubepods/pod1-2"
    assert dict(found.config.labels) == {
        "app": "x",
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": "1-2",
    }
    assert found.config.annotations["a"] == "b"
    assert found.requests == {"a": {"cpu": 1000, "memory": GIB}, "b": {"cpu": 1000, "memory": GIB}}


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([{}], (2, -1, -1)),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}}], (1024, 100_000, GIB)),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}}, {}], (1024, -1, -1)),
        (
            [{"limits": {"cpu": "1"}}, {"limits": {"cpu": "500m"}, "requests": {"cpu": "0"}}],
            (1024, 150_000, -1),
        ),
    ],
)
def test_values_of_the_pods_own_cgroup(
    containers: list[dict[str, Any]], expected: tuple[int, int, int]
) -> None:
    spec = {"containers": [container(f"c{number}", **each) for number, each in enumerate(containers)]}
    assert tuple(calls(spec).cgroup_values.values()) == expected
    more = calls({**spec, "overhead": {"cpu": "1"}}).cgroup_values
    assert more["cpu.cfs_quota_us"] == (-1 if expected[1] < 0 else expected[1] + 100_000)


def test_huge_pages_and_variables() -> None:
    spec = container(limits={"hugepages-2Mi": "4Mi", "cpu": "1"})
    spec["env"] = [{"name": "A", "value": "x"}, {"name": "B", "valueFrom": {"fieldRef": {}}}]
    config = calls({"containers": [spec]}).containers[0].config
    (page,) = config.linux.resources.hugepage_limits
    assert (page.page_size, page.limit) == ("2MB", 4 * 2**20)
    assert [(each.key, each.value) for each in config.envs] == [("A", b"x")]


def test_what_of_the_node_is_not_known() -> None:
    found = calls({"containers": [container(requests={"memory": "1Gi"})]}, Node())
    assert found.containers[0].unknown == {"resources.oom_score_adj": NODE_MEMORY}
    assert found.config.linux.cgroup_parent.endswith("kubepods-burstable-pod1_2.slice")
    ((name, other),) = found.alternatives
    assert name == CGROUP_DRIVER
    assert other.config.linux.cgroup_parent == "/kubepods/burstable/pod1-2"


def test_cgroup_of_a_pod() -> None:
    assert pod_cgroup("a-b", KubeQoSClass.BEST_EFFORT, "cgroupfs") == "/kubepods/besteffort/poda-b"
    assert pod_cgroup("a-b", KubeQoSClass.GUARANTEED, "systemd") == "/kubepods.slice/kubepods-poda_b.slice"
