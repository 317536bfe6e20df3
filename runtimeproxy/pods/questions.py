"""The questions to a runtime and how their answers are read. Imports protobuf: load it where it is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.parsing import parse
from runtimeproxy.pods.from_cri import listed_container, listed_pod, seen_container, seen_pod
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.pods.resources import SCALARS

ResultT_co = TypeVar("ResultT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Question(Generic[ResultT_co]):
    """One call: the method's name, the request's bytes, and what reads the answer's bytes."""

    method: str
    request: bytes
    read: Callable[[bytes], ResultT_co]


def runtime_name() -> Question[str]:
    """What the runtime calls itself."""
    return Question("Version", api_pb2.VersionRequest().SerializeToString(), _runtime_name)


def list_pods(labels: Mapping[str, str]) -> Question[dict[str, PodRecord]]:
    """All sandboxes, or those with all of the labels."""
    request = api_pb2.ListPodSandboxRequest()
    if labels:
        request.filter.label_selector.update(labels)
    return Question("ListPodSandbox", request.SerializeToString(), _pods)


def list_containers(pod_id: str) -> Question[dict[str, ContainerRecord]]:
    """All containers, or those of one sandbox."""
    request = api_pb2.ListContainersRequest()
    if pod_id:
        request.filter.pod_sandbox_id = pod_id
    return Question("ListContainers", request.SerializeToString(), _containers)


def pod(identity: str) -> Question[PodRecord]:
    """One sandbox; only the verbose answer has its cgroup parent."""
    request = api_pb2.PodSandboxStatusRequest(pod_sandbox_id=identity, verbose=True)
    return Question("PodSandboxStatus", request.SerializeToString(), _pod)


def container(identity: str, *, verbose: bool) -> Question[tuple[ContainerRecord, bool]]:
    """One container, and whether the status itself has the resources."""
    request = api_pb2.ContainerStatusRequest(container_id=identity, verbose=verbose)
    return Question("ContainerStatus", request.SerializeToString(), _container)


def update_container(identity: str, scalars: Mapping[str, int | str], unified: Mapping[str, str]) -> bytes:
    """The request that gives a container these values, by the names of `Resources`."""
    request = api_pb2.UpdateContainerResourcesRequest(container_id=identity)
    for name, value in scalars.items():
        setattr(request.linux, SCALARS[name], value)
    request.linux.unified.update(unified)
    return request.SerializeToString()


def _runtime_name(answer: bytes) -> str:
    return parse(api_pb2.VersionResponse, answer).runtime_name


def _pods(answer: bytes) -> dict[str, PodRecord]:
    return {item.id: listed_pod(item) for item in parse(api_pb2.ListPodSandboxResponse, answer).items}


def _containers(answer: bytes) -> dict[str, ContainerRecord]:
    items = parse(api_pb2.ListContainersResponse, answer).containers
    return {item.id: listed_container(item) for item in items}


def _pod(answer: bytes) -> PodRecord:
    return seen_pod(parse(api_pb2.PodSandboxStatusResponse, answer))


def _container(answer: bytes) -> tuple[ContainerRecord, bool]:
    response = parse(api_pb2.ContainerStatusResponse, answer)
    return seen_container(response), response.status.HasField("resources")
