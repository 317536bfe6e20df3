"""CRI requests about pods and containers, and the records in their responses.

Imports protobuf: load it where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from cri_api.parsing import parse
from cri_api.runtime.v1 import api_pb2
from runtimeproxy.hooks.views import Resources
from runtimeproxy.pods.long_json import read_json
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord, compact
from runtimeproxy.pods.resources import (
    SCALARS,
    overlay,
    read_resources,
    resources_from_json,
    resources_from_spec,
)

if TYPE_CHECKING:
    from cri_api.runtime.v1 import api_pb2

SANDBOX_READY: Final = 0
"""Source: CRI v1, enum PodSandboxState."""

CONTAINER_STATES: Final = {0: Lifecycle.CREATED, 1: Lifecycle.RUNNING}
"""All others count as stopped. Source: CRI v1, enum ContainerState."""

INFO_KEY: Final = "info"
"""Key of the JSON document in a verbose answer. Source: containerd and CRI-O, both use this one."""

CRIO_CGROUP_PARENT: Final = "io.kubernetes.cri-o.CgroupParent"
"""Annotation in the OCI specification of a sandbox. Source: CRI-O, pkg/annotations."""


def listed_pod(item: api_pb2.PodSandbox | api_pb2.PodSandboxStatus) -> PodRecord:
    """A sandbox as a list has it: without cgroup parent and resources."""
    about = item.metadata
    return PodRecord(
        id=item.id,
        name=about.name,
        namespace=about.namespace,
        uid=about.uid,
        attempt=about.attempt,
        labels=compact(item.labels),
        annotations=compact(item.annotations),
        runtime_handler=item.runtime_handler,
        state=Lifecycle.RUNNING if item.state == SANDBOX_READY else Lifecycle.STOPPED,
        detailed=False,
        recovered=True,
    )


def listed_container(item: api_pb2.Container) -> ContainerRecord:
    """A container as a list has it: without resources."""
    return ContainerRecord(
        id=item.id,
        pod_id=item.pod_sandbox_id,
        name=item.metadata.name,
        attempt=item.metadata.attempt,
        labels=compact(item.labels),
        annotations=compact(item.annotations),
        state=CONTAINER_STATES.get(item.state, Lifecycle.STOPPED),
        detailed=False,
        recovered=True,
    )


def seen_pod(answer: api_pb2.PodSandboxStatusResponse) -> PodRecord:
    """A sandbox with what a verbose status adds: cgroup parent, overhead and resources."""
    info = parse_info(answer.info)
    linux = _member(info, "config", "linux")
    resources = resources_from_json(_member(linux, "resources"))
    return replace(
        listed_pod(answer.status),
        cgroup_parent=_cgroup_parent(info),
        overhead=resources_from_json(_member(linux, "overhead")),
        requested=resources,
        applied=resources,
        detailed=True,
    )


def seen_container(answer: api_pb2.ContainerStatusResponse) -> ContainerRecord:
    """A container with its resources: from the status, or else from the verbose part of the answer.

    The sandbox's id is only in the verbose answer.
    """
    status = answer.status
    info = parse_info(answer.info)
    pod_id = info.get("sandboxID")
    resources = _reported(status, info)
    return ContainerRecord(
        id=status.id,
        pod_id=pod_id if isinstance(pod_id, str) else "",
        name=status.metadata.name,
        attempt=status.metadata.attempt,
        labels=compact(status.labels),
        annotations=compact(status.annotations),
        requested=resources,
        applied=resources,
        state=CONTAINER_STATES.get(status.state, Lifecycle.STOPPED),
        recovered=True,
    )


def parse_info(info: Mapping[str, str]) -> dict[str, Any]:
    """The JSON document of a verbose answer; empty if there is none or if it is not an object."""
    text = info.get(INFO_KEY)
    if not text:
        return {}
    try:
        found = read_json(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _reported(status: api_pb2.ContainerStatus, info: Mapping[str, Any]) -> Resources:
    """The resources of a container: of the status, else those of its creation with what updates made of them.

    Source: containerd 1.6, UpdateContainerResources keeps its result in the OCI specification only.
    """
    if status.HasField("resources"):
        return read_resources(status.resources.linux)
    asked = resources_from_json(_member(info, "config", "linux", "resources"))
    return overlay(asked, resources_from_spec(_member(info, "runtimeSpec", "linux", "resources")))


def _cgroup_parent(info: Mapping[str, Any]) -> str:
    """From containerd's copy of the request, or from CRI-O's annotation."""
    parent = _member(info, "config", "linux").get("cgroup_parent")
    if not parent:
        parent = _member(info, "runtimeSpec", "annotations").get(CRIO_CGROUP_PARENT)
    return parent if isinstance(parent, str) else ""


def _member(document: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """The object at a path of keys; empty if anything on the way is missing or no object."""
    for key in path:
        found = document.get(key)
        if not isinstance(found, dict):
            return {}
        document = found
    return document


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
