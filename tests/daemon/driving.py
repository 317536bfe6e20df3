"""What the kubelet does with one pod of one container."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.builders import (
    container_config,
    create_container_request,
    default_resources,
    pod_sandbox_config,
)
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient

if TYPE_CHECKING:
    from grpc import _CallIterator

    from tests.lab.proxy_process import ProxyProcess

_BATCH = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "128Mi"}
BATCH: Mapping[str, str] = {
    "node.koordinator.sh/extended-resource-spec": json.dumps(
        {"containers": {"main": {"requests": _BATCH, "limits": _BATCH}}}
    )
}
"""The annotation of a best-effort pod with half a CPU and 128 MiB of batch resources."""
BATCH_SHARES = 512
"""Its CPU shares. Source: 1024 shares per CPU."""


@dataclass
class Pod:
    """A pod as one client sees it."""

    client: CriClient
    config: api_pb2.PodSandboxConfig
    envs: Mapping[str, str] = field(default_factory=dict)
    resources: api_pb2.LinuxContainerResources = field(default_factory=default_resources)
    id: str = ""
    container: str = ""

    def run(self) -> Pod:
        """Starts the sandbox."""
        request = api_pb2.RunPodSandboxRequest(config=self.config)
        self.id = self.client.runtime.RunPodSandbox(request, timeout=CALL_TIMEOUT_S).pod_sandbox_id
        return self

    @property
    def create_request(self) -> api_pb2.CreateContainerRequest:
        """What creates its container."""
        config = container_config("main", pod=self.config, envs=self.envs, resources=self.resources)
        return create_container_request(self.id, config, self.config)

    def create(self) -> Pod:
        """Creates the container."""
        answer = self.client.runtime.CreateContainer(self.create_request, timeout=CALL_TIMEOUT_S)
        self.container = answer.container_id
        return self

    @property
    def start_request(self) -> api_pb2.StartContainerRequest:
        """What starts its container."""
        return api_pb2.StartContainerRequest(container_id=self.container)

    def start(self) -> Pod:
        """Starts the container."""
        self.client.runtime.StartContainer(self.start_request, timeout=CALL_TIMEOUT_S)
        return self

    def update(self, memory_bytes: int, client: CriClient | None = None) -> None:
        """Sets the memory limit, through another client if one is given."""
        linux = api_pb2.LinuxContainerResources(memory_limit_in_bytes=memory_bytes)
        request = api_pb2.UpdateContainerResourcesRequest(container_id=self.container, linux=linux)
        (client or self.client).runtime.UpdateContainerResources(request, timeout=CALL_TIMEOUT_S)

    def remove(self) -> None:
        """Stops and removes the sandbox with all that is in it."""
        stop = api_pb2.StopPodSandboxRequest(pod_sandbox_id=self.id)
        self.client.runtime.StopPodSandbox(stop, timeout=CALL_TIMEOUT_S)
        remove = api_pb2.RemovePodSandboxRequest(pod_sandbox_id=self.id)
        self.client.runtime.RemovePodSandbox(remove, timeout=CALL_TIMEOUT_S)


def pod(client: CriClient, name: str = "web", annotations: Mapping[str, str] | None = None) -> Pod:
    """A pod that is not there yet."""
    return Pod(client, pod_sandbox_config(name, annotations=annotations or {}))


def batch_pod(client: CriClient, name: str = "batch") -> Pod:
    """A pod that `batch-resource` changes, not there yet."""
    return Pod(client, pod_sandbox_config(name, qos="BE", annotations=BATCH))


def flowing_events(client: CriClient) -> _CallIterator[api_pb2.ContainerEventResponse]:
    """An event stream on which the first event has come; it ends with the last reference to it."""
    # Longer than all upgrades of a test take.
    events = client.runtime.GetContainerEvents(api_pb2.GetEventsRequest(), timeout=300)
    with ThreadPoolExecutor(1) as reader:
        first = reader.submit(next, events)
        for name in itertools.chain(["web"], map("web-{}".format, itertools.count())):
            # The runtime may listen for a stream only after the first pods, which it does not tell then.
            pod(client, name).run()
            with contextlib.suppress(TimeoutError):
                first.result(1.0)
                break
    return events


def shares_of(pod: Pod) -> int:
    """The CPU shares that the runtime has for its container."""
    request = api_pb2.ContainerStatusRequest(container_id=pod.container)
    answer = pod.client.runtime.ContainerStatus(request, timeout=CALL_TIMEOUT_S)
    return answer.status.resources.linux.cpu_shares


def release(fifo: Path) -> None:
    """Ends the reading of a FIFO; waits until a process reads."""
    fifo.write_bytes(b"")


GIVES_ENV: Final = """
from runtimeproxy.hooks import ContainerChange, Policy
class Gives(Policy):
    name = 'gives-env'
    def container(self, container, node):
        return ContainerChange(env={'GIVEN': 'secret'})
"""
"""A policy whose change only a creation can carry."""


def policy_file(daemon: ProxyProcess, name: str, shares: int = 2) -> Path:
    """Writes a policy of that name, which sets the CPU shares of all containers, into the daemon's folder."""
    daemon.policies_folder.mkdir(exist_ok=True)
    path = daemon.policies_folder / f"{name}.py"
    path.write_text(
        "from runtimeproxy.hooks import ContainerChange, Policy, ResourceChange\n"
        "class Sets(Policy):\n"
        f"    name = {name!r}\n"
        "    def container(self, container, node):\n"
        f"        return ContainerChange(resources=ResourceChange(cpu_shares={shares}), reason='test')\n"
    )
    path.chmod(0o644)
    return path
