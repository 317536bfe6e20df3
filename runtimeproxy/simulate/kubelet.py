"""The requests that the kubelet makes of a pod, and the names and paths that it gives. Pure.

What a kubelet adds on some nodes only is left out: swap limits, `memory.oom.group` and MemoryQoS in
`unified`, devices, mounts, and the variables of services.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.documents.reading import InputError
from runtimeproxy.hooks.fields import RESOURCES
from runtimeproxy.node.machine import CGROUPFS, SYSTEMD
from runtimeproxy.node.snapshot import Node
from runtimeproxy.qos import KubeQoSClass
from runtimeproxy.simulate.manifests import ContainerKind, ManifestContainer, ManifestPod, Quantities
from runtimeproxy.units import (
    CPU_PERIOD_US,
    MAX_INT64,
    UNLIMITED,
    cpu_quota_us_from_millicores,
    cpu_shares_from_millicores,
)

GUARANTEED_OOM_SCORE_ADJ: Final = -997
BEST_EFFORT_OOM_SCORE_ADJ: Final = 1000
"""Source: kubelet pkg/kubelet/qos/policy.go."""

CGROUP_DRIVER: Final = "the kubelet's cgroup driver"
NODE_MEMORY: Final = "the node's memory capacity"
"""Unknown facts that requests depend on."""

_HUGE_PAGES: Final = "hugepages-"
_OOM_SCORE_ADJ: Final = f"{RESOURCES}.oom_score_adj"


class ContainerCreation(NamedTuple):
    """The creation of a container."""

    kind: ContainerKind
    config: api_pb2.ContainerConfig
    unknown: Mapping[str, str] = {}
    """By field, such as `resources.oom_score_adj`: what its requested value depends on."""


class PodCalls(NamedTuple):
    """The requests for a pod, in the order in which the kubelet makes them."""

    source: str
    """Where it is from, for people."""
    config: api_pb2.PodSandboxConfig
    """Of the sandbox; the kubelet sends it with each container, too."""
    containers: tuple[ContainerCreation, ...] = ()
    runtime_handler: str = ""
    runs_sandbox: bool = True
    """Whether there is a RunPodSandbox; else its sandbox is one that the proxy has not seen."""
    requests: Mapping[str, Quantities] = {}
    """By container: what the kubelet saves of them."""
    cgroup_values: Mapping[str, int] = {}
    """The kubelet's values of the pod's own cgroup, by parameter of version 1; empty: not known."""
    added: tuple[str, ...] = ()
    """Changes by Koordinator's webhook, for people."""
    notes: tuple[str, ...] = ()
    """About parts that are not simulated."""
    alternatives: tuple[tuple[str, PodCalls], ...] = ()
    """The pod under other assumptions, each with the name of the unknown fact."""


def calls_of(pod: ManifestPod, node: Node) -> PodCalls:
    """Returns the requests for a pod on a node. Raises InputError if the pod has no container."""
    if not any(each.kind is ContainerKind.REGULAR for each in pod.containers):
        raise InputError(f"{pod.source} has no container", "spec.containers")
    memory_bytes = (node.capacity or {}).get("memory")
    if node.cgroup_driver is not None:
        return _calls(pod, node.cgroup_driver, memory_bytes)
    other = _calls(pod, CGROUPFS, memory_bytes)
    return _calls(pod, SYSTEMD, memory_bytes)._replace(alternatives=((CGROUP_DRIVER, other),))


def _calls(pod: ManifestPod, cgroup_driver: str, memory_bytes: int | None) -> PodCalls:
    uid = pod.uid or str(uuid.uuid5(uuid.NAMESPACE_URL, pod.source))
    config = sandbox_config(pod, uid, cgroup_driver)
    return PodCalls(
        source=pod.source,
        config=config,
        containers=tuple(_container_call(each, pod, uid, memory_bytes) for each in pod.containers),
        requests={each.name: each.requests for each in pod.containers},
        cgroup_values=pod_cgroup_values(pod),
        notes=pod.notes,
    )


def sandbox_config(pod: ManifestPod, uid: str, cgroup_driver: str) -> api_pb2.PodSandboxConfig:
    """Returns the configuration of a pod's sandbox.

    Source: kubelet pkg/kubelet/kuberuntime, kuberuntime_sandbox.go and kuberuntime_sandbox_linux.go.
    """
    requests, limits = _sums(pod)
    config = api_pb2.PodSandboxConfig(
        metadata=api_pb2.PodSandboxMetadata(name=pod.name, uid=uid, namespace=pod.namespace),
        hostname="" if pod.has_host_network else pod.name,
        log_directory=f"/var/log/pods/{pod.namespace}_{pod.name}_{uid}",
        labels={**pod.labels, **pod_names(pod.name, pod.namespace, uid)},
        annotations=POD_ANNOTATIONS | dict(pod.annotations),
        linux=api_pb2.LinuxPodSandboxConfig(
            cgroup_parent=pod_cgroup(uid, pod.qos, cgroup_driver),
            resources=linux_resources(requests, limits),
        ),
    )
    if pod.overhead:
        overhead = linux_resources(pod.overhead, pod.overhead)
        overhead.cpu_quota = -1
        config.linux.overhead.CopyFrom(overhead)
    else:
        config.linux.overhead.SetInParent()
    if pod.has_host_network:
        config.linux.security_context.namespace_options.network = api_pb2.NODE
    return config


def _container_call(
    container: ManifestContainer, pod: ManifestPod, uid: str, memory_bytes: int | None
) -> ContainerCreation:
    """Source: kubelet pkg/kubelet/kuberuntime, kuberuntime_container.go, kuberuntime_container_linux.go."""
    resources = linux_resources(container.requests, container.limits)
    unknown: dict[str, str] = {}
    score = oom_score_adj(container, pod, memory_bytes)
    if score is None:
        unknown[_OOM_SCORE_ADJ] = NODE_MEMORY
    else:
        resources.oom_score_adj = score
    for name, limit in container.limits.items():
        if name.startswith(_HUGE_PAGES):
            # `2MB` for `hugepages-2Mi`. Source: Kubernetes pkg/apis/core/v1/helper.
            page_size = name.removeprefix(_HUGE_PAGES).removesuffix("i") + "B"
            resources.hugepage_limits.add(page_size=page_size, limit=limit)
    config = api_pb2.ContainerConfig(
        metadata=api_pb2.ContainerMetadata(name=container.name),
        image=api_pb2.ImageSpec(image=container.image, user_specified_image=container.image),
        command=container.command,
        args=container.args,
        envs=[api_pb2.KeyValue(key=key, value=value.encode()) for key, value in container.env.items()],
        labels={"io.kubernetes.container.name": container.name} | pod_names(pod.name, pod.namespace, uid),
        annotations=container_annotations(0),
        log_path=f"{container.name}/0.log",
        linux=api_pb2.LinuxContainerConfig(resources=resources),
    )
    return ContainerCreation(container.kind, config, unknown)


def linux_resources(requests: Quantities, limits: Quantities) -> api_pb2.LinuxContainerResources:
    """Returns CPU and memory of a container, or those of a sandbox by the sums of its containers.

    Source: kubelet pkg/kubelet/kuberuntime, calculateLinuxResources.
    """
    cpu_limit = limits.get("cpu", 0)
    return api_pb2.LinuxContainerResources(
        cpu_period=CPU_PERIOD_US,
        cpu_quota=cpu_quota_us_from_millicores(cpu_limit) if cpu_limit else 0,
        cpu_shares=cpu_shares_from_millicores(requests.get("cpu", cpu_limit)),
        memory_limit_in_bytes=limits.get("memory", 0),
    )


def amounts_of(containers: Iterable[tuple[ContainerKind, Quantities]]) -> dict[str, int]:
    """Returns what all containers of a pod have at most at one time, by resource.

    Init containers run one after the other, each beside the sidecars that have been started before it.
    Source: Kubernetes k8s.io/component-helpers/resource/helpers.go, PodRequests and PodLimits.
    """
    running: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    starting: dict[str, int] = {}
    for kind, amounts in containers:
        if kind is not ContainerKind.INIT:
            _add(running, amounts)
        if kind is ContainerKind.REGULAR:
            continue
        if kind is ContainerKind.SIDECAR:
            _add(sidecars, amounts)
        together = dict(sidecars)
        if kind is ContainerKind.INIT:
            _add(together, amounts)
        for name, amount in together.items():
            starting[name] = max(starting.get(name, 0), amount)
    return {
        name: min(max(running.get(name, 0), starting.get(name, 0)), MAX_INT64)
        for name in (*running, *starting)
    }


def _sums(pod: ManifestPod) -> tuple[dict[str, int], dict[str, int]]:
    """The requests and the limits of all containers."""
    requests = amounts_of((each.kind, each.requests) for each in pod.containers)
    return requests, amounts_of((each.kind, each.limits) for each in pod.containers)


def _add(total: dict[str, int], amounts: Quantities) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount


def oom_score_adj(container: ManifestContainer, pod: ManifestPod, memory_bytes: int | None) -> int | None:
    """Returns the score of a container; None if it depends on the node's memory, which is not known.

    Source: kubelet pkg/kubelet/qos/policy.go, GetContainerOOMScoreAdjust.
    """
    if pod.is_node_critical or pod.qos is KubeQoSClass.GUARANTEED:
        return GUARANTEED_OOM_SCORE_ADJ
    if pod.qos is KubeQoSClass.BEST_EFFORT:
        return BEST_EFFORT_OOM_SCORE_ADJ
    request = container.requests.get("memory", 0)
    if container.kind is ContainerKind.SIDECAR:
        # From Kubernetes 1.32 on, it is not ended before all containers that it serves.
        regular = (each for each in pod.containers if each.kind is ContainerKind.REGULAR)
        request = max(request, min(each.requests.get("memory", 0) for each in regular))
    if not request:
        return BEST_EFFORT_OOM_SCORE_ADJ - 1
    if not memory_bytes:
        return None
    score = BEST_EFFORT_OOM_SCORE_ADJ - BEST_EFFORT_OOM_SCORE_ADJ * request // memory_bytes
    least = BEST_EFFORT_OOM_SCORE_ADJ + GUARANTEED_OOM_SCORE_ADJ
    return min(max(score, least), BEST_EFFORT_OOM_SCORE_ADJ - 1)


def pod_cgroup(uid: str, qos: KubeQoSClass, driver: str, root: str = "kubepods") -> str:
    """Returns the cgroup of a pod; that of a guaranteed pod lies directly below the root.

    Source: kubelet, cm.PodContainerManager and CgroupName.ToSystemd.
    """
    words = [root, *([] if qos is KubeQoSClass.GUARANTEED else [qos.value.lower()])]
    if driver == CGROUPFS:
        return f"/{'/'.join(words)}/pod{uid}"
    words.append(f"pod{uid.replace('-', '_')}")
    slices = ["-".join(words[: count + 1]) + ".slice" for count in range(len(words))]
    return f"/{'/'.join(slices)}"


def pod_cgroup_values(pod: ManifestPod) -> dict[str, int]:
    """Returns what the kubelet writes to the cgroup of a pod, by parameter of version 1; -1 is unlimited.

    One container without a limit makes the pod unlimited. Source: kubelet pkg/kubelet/cm/helpers_linux.go,
    ResourceConfigForPod.
    """
    requests, limits = _sums(pod)
    _add(requests, pod.overhead)
    _add(limits, {name: amount for name, amount in pod.overhead.items() if name in limits})
    is_limited = {name: all(each.limits.get(name) for each in pod.containers) for name in ("cpu", "memory")}
    cpu_limit = limits.get("cpu", 0) if is_limited["cpu"] else 0
    return {
        "cpu.shares": cpu_shares_from_millicores(requests.get("cpu", 0)),
        "cpu.cfs_quota_us": cpu_quota_us_from_millicores(cpu_limit),
        "memory.limit_in_bytes": min(limits["memory"], MAX_INT64) if is_limited["memory"] else UNLIMITED,
    }


POD_ANNOTATIONS: Final[dict[str, str]] = {
    "kubernetes.io/config.seen": "2026-01-01T00:00:00.000000000Z",
    "kubernetes.io/config.source": "api",
}
"""Annotations that the kubelet adds to a pod. Source: kubelet pkg/kubelet/config."""


def pod_names(name: str, namespace: str, uid: str) -> dict[str, str]:
    # Source: kubelet, kuberuntime newPodLabels.
    return {
        "io.kubernetes.pod.name": name,
        "io.kubernetes.pod.namespace": namespace,
        "io.kubernetes.pod.uid": uid,
    }


def container_annotations(attempt: int) -> dict[str, str]:
    # Source: kubelet, kuberuntime newContainerAnnotations.
    return {
        "io.kubernetes.container.hash": "30b3d9a8",
        "io.kubernetes.container.restartCount": str(attempt),
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        "io.kubernetes.container.terminationMessagePolicy": "File",
        "io.kubernetes.pod.terminationGracePeriod": "30",
    }
