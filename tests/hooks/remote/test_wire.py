"""What hook servers are sent."""

from __future__ import annotations

from cri_api.koordinator.v1alpha1.api_pb2 import (
    ContainerMetadata,
    ContainerResourceHookRequest,
    HugepageLimit,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxMetadata,
)
from runtimeproxy.hooks import ContainerView, PodView, Resources
from runtimeproxy.hooks.remote.protocol import container_request, pod_request

RESOURCES = Resources(
    cpu_period_us=1,
    cpu_quota_us=-1,
    cpu_shares=3,
    memory_limit_bytes=4,
    memory_swap_limit_bytes=5,
    oom_score_adj=-6,
    cpuset_cpus="7",
    cpuset_mems="0",
    hugepage_limits_bytes=(("2MB", 8),),
    unified={"memory.high": "9"},
)
RESOURCES_MESSAGE = LinuxContainerResources(
    cpu_period=1,
    cpu_quota=-1,
    cpu_shares=3,
    memory_limit_in_bytes=4,
    memory_swap_limit_in_bytes=5,
    oom_score_adj=-6,
    cpuset_cpus="7",
    cpuset_mems="0",
    hugepage_limits=[HugepageLimit(page_size="2MB", limit=8)],
    unified={"memory.high": "9"},
)
POD = PodView(
    id="sandbox",
    name="pod",
    namespace="ns",
    uid="u",
    attempt=2,
    labels={"l": "1"},
    annotations={"a": "1"},
    runtime_handler="kata",
    cgroup_parent="/kubepods/pod1",
    overhead=Resources(cpu_shares=10),
    resources=RESOURCES,
)
POD_META = PodSandboxMetadata(name="pod", namespace="ns", uid="u", attempt=2)


def test_everything_about_a_pod() -> None:
    assert pod_request(POD) == PodSandboxHookRequest(
        pod_meta=POD_META,
        runtime_handler="kata",
        labels={"l": "1"},
        annotations={"a": "1"},
        cgroup_parent="/kubepods/pod1",
        overhead=LinuxContainerResources(cpu_shares=10),
        resources=RESOURCES_MESSAGE,
    )


def test_everything_about_a_container() -> None:
    view = ContainerView(
        id="c1",
        name="main",
        attempt=3,
        pod=POD,
        labels={"not": "in the protocol"},
        annotations={"b": "2"},
        env={"A": "ä".encode(), "RAW": b"\xff"},
        requested=Resources(cpu_shares=1_000),
        current=RESOURCES,
        updated=Resources(cpu_shares=1_001),
    )
    assert container_request(view) == ContainerResourceHookRequest(
        pod_meta=POD_META,
        container_meta=ContainerMetadata(name="main", attempt=3, id="c1"),
        container_annotations={"b": "2"},
        container_resources=RESOURCES_MESSAGE,
        pod_resources=RESOURCES_MESSAGE,
        pod_annotations={"a": "1"},
        pod_labels={"l": "1"},
        pod_cgroup_parent="/kubepods/pod1",
        container_envs={"A": "ä"},
    )


def test_what_says_nothing() -> None:
    pod, container = pod_request(PodView()), container_request(ContainerView())
    assert not pod.HasField("overhead")
    assert not pod.HasField("resources")
    assert not container.HasField("pod_resources")
    assert container.HasField("container_resources")
    assert container.container_resources == LinuxContainerResources()


def test_long_maps_are_whole() -> None:
    entries = {f"key-{number}": str(number) for number in range(2_500)}
    env = {name: value.encode() for name, value in entries.items()}
    pod = PodView(labels=entries, annotations=entries)
    assert pod_request(pod) == PodSandboxHookRequest(
        pod_meta=PodSandboxMetadata(), labels=entries, annotations=entries
    )
    request = container_request(ContainerView(pod=pod, annotations=entries, env=env))
    for name in ("container_annotations", "pod_annotations", "pod_labels", "container_envs"):
        assert dict(getattr(request, name)) == entries
