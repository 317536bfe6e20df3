"""What Koordinator's proxy makes of a hook server's answer: the reference for what koordlet relies on.

Pure functions over the protocol's own messages: the request stands for the proxy's record.
Source: koord-runtime-proxy, pkg/runtimeproxy/resexecutor/cri: pod.go, container.go, utils.go.
"""

from __future__ import annotations

from collections.abc import Mapping

from cri_api.koordinator.v1alpha1.api_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)

_POSITIVE = ("cpu_period", "cpu_shares", "memory_limit_in_bytes", "memory_swap_limit_in_bytes")


def merge_map(a: Mapping[str, str] | None, b: Mapping[str, str] | None) -> dict[str, str]:
    return {**(a or {}), **(b or {})}


def update_resource(
    record: LinuxContainerResources, response: LinuxContainerResources
) -> LinuxContainerResources:
    merged = LinuxContainerResources()
    merged.CopyFrom(record)
    for field in _POSITIVE:
        if getattr(response, field) > 0:
            setattr(merged, field, getattr(response, field))
    if response.cpu_quota != 0:
        merged.cpu_quota = response.cpu_quota
    if -1000 <= response.oom_score_adj <= 1000:
        merged.oom_score_adj = response.oom_score_adj
    merged.cpuset_cpus = response.cpuset_cpus
    merged.cpuset_mems = response.cpuset_mems
    merged.unified.update(response.unified)
    return merged


def merge_container(
    record: ContainerResourceHookRequest, response: ContainerResourceHookResponse
) -> ContainerResourceHookRequest:
    merged = ContainerResourceHookRequest()
    merged.CopyFrom(record)
    merged.container_annotations.update(response.container_annotations)
    if response.HasField("container_resources"):
        resources = update_resource(record.container_resources, response.container_resources)
        merged.container_resources.CopyFrom(resources)
    if response.pod_cgroup_parent:
        merged.pod_cgroup_parent = response.pod_cgroup_parent
    if response.container_envs:
        merged.container_envs.clear()
        merged.container_envs.update(response.container_envs)
    return merged


def merge_pod(record: PodSandboxHookRequest, response: PodSandboxHookResponse) -> PodSandboxHookRequest:
    merged = PodSandboxHookRequest()
    merged.CopyFrom(record)
    merged.labels.update(response.labels)
    merged.annotations.update(response.annotations)
    if response.cgroup_parent:
        merged.cgroup_parent = response.cgroup_parent
    return merged
