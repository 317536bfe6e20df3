"""The kubelet's part of a node: cgroups of pods, pods run through a CRI socket, their end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cri_api.runtime.v1 import api_pb2
from tests.lab import cgroup_v1, procfs
from tests.lab.cgroup_v1 import CgroupValues
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.pods import ContainerSpec, PodSpec, container_config, sandbox_config


@dataclass(frozen=True)
class RunningPod:
    """A pod that was started, with the ids that the runtime gave."""

    spec: PodSpec
    sandbox_id: str
    container_ids: Mapping[str, str]
    log_directory: Path
    cgroup_prefix: str = ""
    """What the runtime writes before a container's id in the name of its cgroup."""

    def container_id(self, name: str = "main") -> str:
        return self.container_ids[name]

    def values(self, name: str = "main") -> CgroupValues:
        """The values of a container's cgroup."""
        return cgroup_v1.values(self.container_cgroup(name))

    def pod_values(self) -> CgroupValues:
        """The values of the pod's own cgroup."""
        return cgroup_v1.values(self.spec.cgroup_parent)

    def container_cgroup(self, name: str = "main") -> str:
        return f"{self.spec.cgroup_parent}/{self.cgroup_prefix}{self.container_ids[name]}"

    def main_pid(self, name: str = "main") -> int:
        """The first process of a container: the oldest, for process ids start over."""
        found: dict[int, int] = {}
        for pid in cgroup_v1.processes(self.container_cgroup(name)):
            # One of an exec may end meanwhile.
            with suppress(FileNotFoundError, ProcessLookupError):
                found[pid] = procfs.start_ticks(pid)
        return min(found, key=found.__getitem__)


@contextmanager
def running_pod(
    client: CriClient,
    spec: PodSpec,
    logs: Path,
    pod_cgroup_files: Mapping[str, str] | None = None,
    cgroup_prefix: str = "",
    remover: CriClient | None = None,
) -> Iterator[RunningPod]:
    """Runs a pod as the kubelet does and removes it at the end.

    `pod_cgroup_files` are files of the pod's cpu cgroup that are written before the sandbox runs,
    as the kubelet writes the pod's shares and quota. `remover` removes it, if `client` may be gone then.
    """
    with ExitStack() as stack:
        stack.enter_context(cgroup_v1.pod_cgroup(spec.cgroup_parent))
        for name, value in (pod_cgroup_files or {}).items():
            cgroup_v1.file("cpu", spec.cgroup_parent, name).write_text(value)
        log_directory = logs / spec.uid
        log_directory.mkdir()
        config = sandbox_config(spec, str(log_directory))
        sandbox_id = run_sandbox(client, config)
        stack.callback(remove_sandbox, remover or client, sandbox_id)
        ids = {
            container.name: start_container(client, sandbox_id, config, spec, container)
            for container in spec.containers
        }
        yield RunningPod(spec, sandbox_id, ids, log_directory, cgroup_prefix)


def run_sandbox(client: CriClient, config: api_pb2.PodSandboxConfig) -> str:
    """Runs a sandbox and returns its id."""
    request = api_pb2.RunPodSandboxRequest(config=config)
    return client.runtime.RunPodSandbox(request, timeout=CALL_TIMEOUT_S).pod_sandbox_id


def start_container(
    client: CriClient,
    sandbox_id: str,
    config: api_pb2.PodSandboxConfig,
    pod: PodSpec,
    container: ContainerSpec,
) -> str:
    """Creates and starts a container and returns its id."""
    request = api_pb2.CreateContainerRequest(
        pod_sandbox_id=sandbox_id, config=container_config(pod, container), sandbox_config=config
    )
    created = client.runtime.CreateContainer(request, timeout=CALL_TIMEOUT_S)
    start = api_pb2.StartContainerRequest(container_id=created.container_id)
    client.runtime.StartContainer(start, timeout=CALL_TIMEOUT_S)
    return created.container_id


def remove_sandbox(client: CriClient, sandbox_id: str) -> None:
    """Stops and removes a sandbox with its containers; one that is gone is no error."""
    stop = api_pb2.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
    client.runtime.StopPodSandbox(stop, timeout=CALL_TIMEOUT_S)
    remove = api_pb2.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
    client.runtime.RemovePodSandbox(remove, timeout=CALL_TIMEOUT_S)


def update_resources(
    client: CriClient, container_id: str, resources: api_pb2.LinuxContainerResources
) -> None:
    """Changes the resources of a container, as an in-place resize or the CPU manager does."""
    request = api_pb2.UpdateContainerResourcesRequest(container_id=container_id, linux=resources)
    client.runtime.UpdateContainerResources(request, timeout=CALL_TIMEOUT_S)
