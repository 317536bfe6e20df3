"""Pods and containers as the kubelet asks for them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.units import MIN_CPU_SHARES
from tests.lab.busybox_image import IMAGE

KubeQos = Literal["guaranteed", "burstable", "besteffort"]

NAMESPACE = "lab"
_SLEEP = ("/bin/sleep", "1000000")


@dataclass(frozen=True)
class ContainerSpec:
    """One container. Resources of zero are what the kubelet sends for "not set"."""

    name: str = "main"
    resources: api_pb2.LinuxContainerResources = field(
        default_factory=lambda: api_pb2.LinuxContainerResources(cpu_shares=2, cpu_period=100000)
    )
    command: tuple[str, ...] = _SLEEP
    env: tuple[tuple[str, str], ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Folders of the host by their paths in the container."""


@dataclass(frozen=True)
class PodSpec:
    """One pod on the host network, which needs no network plugin."""

    name: str
    kube_qos: KubeQos = "guaranteed"
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[ContainerSpec, ...] = (ContainerSpec(),)
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def cgroup_parent(self) -> str:
        """The pod's cgroup with the kubelet's cgroupfs driver."""
        folder = "" if self.kube_qos == "guaranteed" else f"/{self.kube_qos}"
        return f"/kubepods{folder}/pod{self.uid}"


def sandbox_config(pod: PodSpec, log_directory: str) -> api_pb2.PodSandboxConfig:
    """What the kubelet sends with RunPodSandbox and again with each CreateContainer."""
    node = api_pb2.NamespaceMode.NODE
    namespaces = api_pb2.NamespaceOption(network=node)
    linux = api_pb2.LinuxPodSandboxConfig(
        cgroup_parent=pod.cgroup_parent,
        resources=pod_resources(pod),
        security_context=api_pb2.LinuxSandboxSecurityContext(namespace_options=namespaces),
    )
    return api_pb2.PodSandboxConfig(
        metadata=api_pb2.PodSandboxMetadata(name=pod.name, uid=pod.uid, namespace=NAMESPACE),
        log_directory=log_directory,
        labels={**pod.labels, **_kubelet_labels(pod)},
        annotations={**pod.annotations, "kubernetes.io/config.source": "api"},
        linux=linux,
    )


def pod_resources(pod: PodSpec) -> api_pb2.LinuxContainerResources:
    """What the kubelet has added up for the pod; a limit counts that every container has.

    Source: kubelet, kuberuntime calculateSandboxResources.
    """
    each = [container.resources for container in pod.containers]
    quotas = [resources.cpu_quota for resources in each]
    limits = [resources.memory_limit_in_bytes for resources in each]
    # The least is what stands for no request, and the kubelet adds requests.
    shares = sum(resources.cpu_shares for resources in each if resources.cpu_shares > MIN_CPU_SHARES)
    return api_pb2.LinuxContainerResources(
        cpu_period=100_000,
        cpu_shares=shares or MIN_CPU_SHARES,
        cpu_quota=sum(quotas) if all(quota > 0 for quota in quotas) else 0,
        memory_limit_in_bytes=sum(limits) if all(limits) else 0,
    )


def container_config(pod: PodSpec, container: ContainerSpec) -> api_pb2.ContainerConfig:
    """What the kubelet sends with CreateContainer."""
    namespaces = api_pb2.NamespaceOption(network=api_pb2.NamespaceMode.NODE)
    linux = api_pb2.LinuxContainerConfig(
        resources=container.resources,
        security_context=api_pb2.LinuxContainerSecurityContext(namespace_options=namespaces),
    )
    return api_pb2.ContainerConfig(
        metadata=api_pb2.ContainerMetadata(name=container.name),
        image=api_pb2.ImageSpec(image=IMAGE, user_specified_image=IMAGE),
        command=container.command,
        envs=[api_pb2.KeyValue(key=key, value=value.encode()) for key, value in container.env],
        labels={"io.kubernetes.container.name": container.name, **_kubelet_labels(pod)},
        annotations={"io.kubernetes.container.restartCount": "0", **container.annotations},
        mounts=[
            api_pb2.Mount(container_path=path, host_path=host) for path, host in container.mounts.items()
        ],
        log_path=f"{container.name}.log",
        linux=linux,
    )


def _kubelet_labels(pod: PodSpec) -> dict[str, str]:
    return {
        "io.kubernetes.pod.name": pod.name,
        "io.kubernetes.pod.namespace": NAMESPACE,
        "io.kubernetes.pod.uid": pod.uid,
    }
