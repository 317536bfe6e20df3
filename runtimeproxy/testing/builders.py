"""Builders for pods and containers as the kubelet describes them to a runtime."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypedDict, Unpack

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.qos import KubeQoSClass
from runtimeproxy.simulate.kubelet import POD_ANNOTATIONS, container_annotations, pod_cgroup, pod_names
from runtimeproxy.testing.cgroups import CgroupDriver
from runtimeproxy.testing.state import RuntimeState

QOS_LABEL = "koordinator.sh/qosClass"
"""Label with Koordinator's QoS class. Source: koordinator, apis/extension."""

IMAGE = "docker.io/library/busybox:1.36"
"""Image of containers for which none is given."""


class KubeletQos(StrEnum):
    """QoS class of Kubernetes, which decides where the kubelet puts a pod's cgroup."""

    GUARANTEED = "guaranteed"
    BURSTABLE = "burstable"
    BESTEFFORT = "besteffort"


class PodFields(TypedDict, total=False):
    """Arguments of ``pod_sandbox_config``.

    Attributes:
        namespace: Namespace; "default" if not given.
        uid: Uid; a random one if not given.
        attempt: Counts sandboxes of the pod; 0 if not given.
        qos: Koordinator QoS class, set as a label: LSE, LSR, LS, BE or SYSTEM.
        kubelet_qos: Decides the cgroup parent; best effort for BE, else burstable.
        labels: More labels.
        annotations: More annotations.
        cgroup_parent: Used as it is; "" for none.
        driver: How the cgroup parent is written.
        host_network: Whether the pod uses the host's network; False if not given.
    """

    namespace: str
    uid: str
    attempt: int
    qos: str
    kubelet_qos: KubeletQos
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    cgroup_parent: str
    driver: CgroupDriver
    host_network: bool


class ContainerFields(TypedDict, total=False):
    """Arguments of ``container_config``.

    Attributes:
        attempt: Counts restarts; 0 if not given.
        image: Image reference.
        command: Command; ``sleep 3600`` if not given.
        envs: Environment.
        labels: More labels.
        annotations: More annotations.
        resources: Cgroup parameters; those of a container without requests if not given.
        pod: The pod's configuration, for the labels that name it.
    """

    attempt: int
    image: str
    command: Sequence[str]
    envs: Mapping[str, str]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    resources: api_pb2.LinuxContainerResources
    pod: api_pb2.PodSandboxConfig


def pod_sandbox_config(name: str = "pod", **fields: Unpack[PodFields]) -> api_pb2.PodSandboxConfig:
    """A pod's configuration as in ``RunPodSandbox`` and ``CreateContainer``."""
    namespace, uid = fields.get("namespace", "default"), fields.get("uid", str(uuid.uuid4()))
    qos = fields.get("qos", "")
    place = KubeletQos.BESTEFFORT if qos == "BE" else KubeletQos.BURSTABLE
    driver = fields.get("driver", CgroupDriver.CGROUPFS)
    parent = kubelet_cgroup_parent(uid, fields.get("kubelet_qos", place), driver)
    config = api_pb2.PodSandboxConfig(
        metadata=api_pb2.PodSandboxMetadata(
            name=name, uid=uid, namespace=namespace, attempt=fields.get("attempt", 0)
        ),
        hostname="" if fields.get("host_network") else name,
        log_directory=f"/var/log/pods/{namespace}_{name}_{uid}",
        labels=pod_names(name, namespace, uid)
        | ({QOS_LABEL: qos} if qos else {})
        | dict(fields.get("labels", {})),
        annotations=POD_ANNOTATIONS | dict(fields.get("annotations", {})),
        linux=api_pb2.LinuxPodSandboxConfig(cgroup_parent=fields.get("cgroup_parent", parent)),
    )
    if fields.get("host_network"):
        config.linux.security_context.namespace_options.network = api_pb2.NODE
    return config


def container_config(name: str = "main", **fields: Unpack[ContainerFields]) -> api_pb2.ContainerConfig:
    """A container's configuration as in ``CreateContainer``."""
    attempt = fields.get("attempt", 0)
    labels = {"io.kubernetes.container.name": name}
    if "pod" in fields:
        pod = fields["pod"].metadata
        labels |= pod_names(pod.name, pod.namespace, pod.uid)
    environment = fields.get("envs", {"PATH": "/bin"}).items()
    return api_pb2.ContainerConfig(
        metadata=api_pb2.ContainerMetadata(name=name, attempt=attempt),
        image=api_pb2.ImageSpec(image=fields.get("image", IMAGE)),
        command=fields.get("command", ["sleep", "3600"]),
        envs=[api_pb2.KeyValue(key=key, value=value.encode()) for key, value in environment],
        labels=labels | dict(fields.get("labels", {})),
        annotations=container_annotations(attempt) | dict(fields.get("annotations", {})),
        log_path=f"{name}/{attempt}.log",
        linux=api_pb2.LinuxContainerConfig(resources=fields.get("resources", default_resources())),
    )


def create_container_request(
    sandbox_id: str, config: api_pb2.ContainerConfig, pod: api_pb2.PodSandboxConfig
) -> api_pb2.CreateContainerRequest:
    """The request that creates a container in a sandbox."""
    return api_pb2.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config, sandbox_config=pod)


def default_resources() -> api_pb2.LinuxContainerResources:
    """The kubelet's values for a container without requests and limits."""
    return api_pb2.LinuxContainerResources(cpu_period=100_000, cpu_shares=2, oom_score_adj=1000)


def kubelet_cgroup_parent(
    uid: str, qos: KubeletQos, driver: CgroupDriver = CgroupDriver.CGROUPFS, root: str = "kubepods"
) -> str:
    """The kubelet's cgroup of a pod; that of a guaranteed pod lies directly under the root."""
    return pod_cgroup(uid, _KUBE_QOS[qos], driver.value, root)


_KUBE_QOS = {
    KubeletQos.GUARANTEED: KubeQoSClass.GUARANTEED,
    KubeletQos.BURSTABLE: KubeQoSClass.BURSTABLE,
    KubeletQos.BESTEFFORT: KubeQoSClass.BEST_EFFORT,
}

QOS_CLASSES = ("LSR", "LS", "BE")
"""Koordinator QoS classes that the pods get in turn."""


def preload(state: RuntimeState, pods: int, containers: int) -> None:
    """Adds ready pods and running containers, the containers spread evenly over the pods.

    Args:
        state: Gets them.
        pods: Number of pods; at least one if there are containers.
        containers: Number of containers over all pods.
    """
    state.images.add(IMAGE)
    driver = state.cgroups.driver
    made = []
    for number in range(max(pods, 1 if containers else 0)):
        qos = QOS_CLASSES[number % len(QOS_CLASSES)]
        pod = pod_sandbox_config(f"pod-{number:04}", qos=qos, driver=driver)
        made.append((state.run_sandbox(pod).id, pod))
    for number in range(containers):
        sandbox_id, pod = made[number % len(made)]
        config = container_config(f"app-{number:04}", pod=pod, resources=_resources(number))
        state.start_container(state.create_container(sandbox_id, config, pod).id)


def _resources(number: int) -> api_pb2.LinuxContainerResources:
    cpus = 1 + number % 4
    return api_pb2.LinuxContainerResources(
        cpu_period=100_000,
        cpu_quota=100_000 * cpus,
        cpu_shares=1024 * cpus,
        memory_limit_in_bytes=cpus * 2**30,
        oom_score_adj=1000 - cpus,
    )
