"""What the generator does over and over: cycles of calls, each call measured by its own name."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.builders import container_config, create_container_request, pod_sandbox_config
from tests.peers.load_client import call

SERVICE = "/runtime.v1.RuntimeService/"
CONTAINER_NAME = "main"

EXTENDED_RESOURCES = {
    "node.koordinator.sh/extended-resource-spec": json.dumps(
        {
            "containers": {
                CONTAINER_NAME: {
                    "requests": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "1Gi"},
                    "limits": {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "2Gi"},
                }
            }
        }
    )
}
"""Annotation for which the batch-resource policy changes shares, quota and memory limit."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a cycle."""

    name: str
    method: str
    message: bytes = b""


Cycle = Generator[Step, bytes, None]
"""Yields calls and is sent their answers."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A sandbox that the bench has made."""

    sandbox_id: str
    config: api_pb2.PodSandboxConfig
    container_id: str = ""

    def as_words(self) -> dict[str, str]:
        """For the generator, which runs in another process."""
        return {
            "sandbox_id": self.sandbox_id,
            "config": self.config.SerializeToString().hex(),
            "container_id": self.container_id,
        }

    @classmethod
    def from_words(cls, words: dict[str, str]) -> Pod:
        """The inverse of `as_words`."""
        config = api_pb2.PodSandboxConfig.FromString(bytes.fromhex(words["config"]))
        return cls(words["sandbox_id"], config, words["container_id"])


def make_pod(socket: str, name: str, *, best_effort: bool, labels: dict[str, str] | None = None) -> Pod:
    """Runs a pod with one container: best effort with batch resources, or one that no policy knows.

    Args:
        socket: Where the runtime, or a proxy before it, is reached.
        name: The pod's name.
        best_effort: Whether the policies have something to change.
        labels: More labels.
    """
    config = pod_sandbox_config(
        name,
        qos="BE" if best_effort else "",
        labels=labels or {},
        annotations=EXTENDED_RESOURCES if best_effort else {},
    )
    request = api_pb2.RunPodSandboxRequest(config=config)
    answer = call(socket, SERVICE + "RunPodSandbox", request.SerializeToString())
    sandbox_id = api_pb2.RunPodSandboxResponse.FromString(answer).pod_sandbox_id
    first = create_container_request(sandbox_id, container_config(CONTAINER_NAME, pod=config), config)
    answer = call(socket, SERVICE + "CreateContainer", first.SerializeToString())
    container_id = api_pb2.CreateContainerResponse.FromString(answer).container_id
    return Pod(sandbox_id, config, container_id)


def version(_: Pod) -> Cycle:
    """A call that nothing holds."""
    yield Step("version", SERVICE + "Version")


def listing(_: Pod) -> Cycle:
    """All containers; the answer is long."""
    yield Step("list", SERVICE + "ListContainers")


def update(pod: Pod) -> Cycle:
    """An intercepted call that leaves nothing behind."""
    request = api_pb2.UpdateContainerResourcesRequest(container_id=pod.container_id)
    request.linux.cpu_shares = 512
    yield Step("update", SERVICE + "UpdateContainerResources", request.SerializeToString())


_ATTEMPTS = itertools.count(1)


def create_remove(pod: Pod) -> Cycle:
    """A container's creation and removal; both are held."""
    attempt = next(_ATTEMPTS)
    config = container_config(CONTAINER_NAME, pod=pod.config, attempt=attempt)
    create = create_container_request(pod.sandbox_id, config, pod.config)
    answer = yield Step("create", SERVICE + "CreateContainer", create.SerializeToString())
    container_id = api_pb2.CreateContainerResponse.FromString(answer).container_id
    remove = api_pb2.RemoveContainerRequest(container_id=container_id)
    yield Step("remove", SERVICE + "RemoveContainer", remove.SerializeToString())


SCENARIOS: dict[str, Callable[[Pod], Cycle]] = {
    "version": version,
    "list": listing,
    "update": update,
    "create-remove": create_remove,
}


def cycles(scenario: str, pod: Pod, count: int) -> Iterator[Cycle]:
    """That many cycles of a scenario, made one by one."""
    make = SCENARIOS[scenario]
    return (make(pod) for _ in range(count))
