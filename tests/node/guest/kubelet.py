"""The kubelet's calls for one pod, with the patience that an emulated node needs."""

from __future__ import annotations

from cri_api.runtime.v1 import api_pb2
from tests.lab.cri_client import CriClient
from tests.lab.pods import PodSpec, container_config, sandbox_config
from tests.node.guest.machine import PATIENCE_S


def run_pod(client: CriClient, spec: PodSpec, logs: str, handler: str) -> tuple[str, str]:
    """Runs a pod and starts its container; returns the ids of sandbox and container."""
    config = sandbox_config(spec, logs)
    run = api_pb2.RunPodSandboxRequest(config=config, runtime_handler=handler)
    sandbox_id = client.runtime.RunPodSandbox(run, timeout=PATIENCE_S).pod_sandbox_id
    create = api_pb2.CreateContainerRequest(
        pod_sandbox_id=sandbox_id,
        config=container_config(spec, spec.containers[0]),
        sandbox_config=config,
    )
    container_id = client.runtime.CreateContainer(create, timeout=PATIENCE_S).container_id
    start = api_pb2.StartContainerRequest(container_id=container_id)
    client.runtime.StartContainer(start, timeout=PATIENCE_S)
    return sandbox_id, container_id


def remove_pod(client: CriClient, sandbox_id: str) -> None:
    """Stops and removes a pod with its container."""
    stop = api_pb2.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
    client.runtime.StopPodSandbox(stop, timeout=PATIENCE_S)
    remove = api_pb2.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
    client.runtime.RemovePodSandbox(remove, timeout=PATIENCE_S)


def update(client: CriClient, container_id: str, resources: api_pb2.LinuxContainerResources) -> None:
    """Changes the resources of a container."""
    request = api_pb2.UpdateContainerResourcesRequest(container_id=container_id, linux=resources)
    client.runtime.UpdateContainerResources(request, timeout=PATIENCE_S)
