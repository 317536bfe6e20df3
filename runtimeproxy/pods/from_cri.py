"""CRI requests about pods and containers, and the records in their responses.

Imports protobuf: load it where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from sys import intern
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from cri_api.parsing import parse
from cri_api.runtime.v1 import api_pb2
from runtimeproxy.documents.reading import InputError, json_value
from runtimeproxy.fields.tables import CRI_FIELDS
from runtimeproxy.node.cpu_claims import claims_among
from runtimeproxy.pods.inventory import RuntimeEvent
from runtimeproxy.pods.records import MOST_ADDRESSES, ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.resources import (
    bounded,
    compact,
    kept_annotations,
    overlay,
    read_resources,
    resources_from_json,
    resources_from_spec,
)

_HOST_NETWORK: Final = 2
"""Source: CRI v1, enum NamespaceMode, NODE."""
SANDBOX_READY: Final = 0
"""Source: CRI v1, enum PodSandboxState."""

CONTAINER_STATES: Final = {0: Lifecycle.CREATED, 1: Lifecycle.RUNNING}
"""All others count as stopped. Source: CRI v1, enum ContainerState."""

INFO_KEY: Final = "info"
"""Key of the JSON document in a verbose answer. Source: containerd and CRI-O, both use this one."""

_NANOS: Final = 1_000_000_000

CRIO_CGROUP_PARENT: Final = "io.kubernetes.cri-o.CgroupParent"
"""Annotation in the OCI specification of a sandbox. Source: CRI-O, pkg/annotations."""


def listed_pod(item: api_pb2.PodSandbox | api_pb2.PodSandboxStatus) -> PodRecord:
    """A sandbox as a list has it: without cgroup parent and resources."""
    about = item.metadata
    return PodRecord(
        id=intern(item.id),
        name=about.name,
        namespace=intern(about.namespace),
        uid=about.uid,
        attempt=about.attempt,
        labels=compact(bounded(item.labels)),
        annotations=kept_annotations(bounded(item.annotations)),
        runtime_handler=item.runtime_handler,
        state=Lifecycle.RUNNING if item.state == SANDBOX_READY else Lifecycle.STOPPED,
        detailed=False,
        recovered=True,
        created_s=item.created_at / _NANOS,
    )


def listed_container(item: api_pb2.Container | api_pb2.ContainerStatus, pod_id: str) -> ContainerRecord:
    # A list has no resources.
    return ContainerRecord(
        id=item.id,
        # Those of all containers of a pod, and of many pods, are the same.
        pod_id=intern(pod_id),
        name=intern(item.metadata.name),
        attempt=item.metadata.attempt,
        labels=compact(bounded(item.labels)),
        annotations=kept_annotations(bounded(item.annotations)),
        state=CONTAINER_STATES.get(item.state, Lifecycle.STOPPED),
        detailed=False,
        recovered=True,
        created_s=item.created_at / _NANOS,
    )


def seen_pod(answer: api_pb2.PodSandboxStatusResponse) -> PodRecord:
    """A sandbox with the additions of a verbose status: cgroup parent, overhead and resources."""
    info = parse_info(answer.info)
    linux = _member(info, "config", "linux")
    resources = resources_from_json(_member(linux, "resources"))
    network = answer.status.network
    is_host_network = answer.status.linux.namespaces.options.network == _HOST_NETWORK
    found = (network.ip, *(each.ip for each in network.additional_ips[:MOST_ADDRESSES]))
    return replace(
        listed_pod(answer.status),
        # Without any it may have none yet.
        addresses=() if is_host_network else tuple(each for each in found if each) or None,
        is_host_network=is_host_network,
        cgroup_parent=_cgroup_parent(info),
        overhead=resources_from_json(_member(linux, "overhead")),
        requested=resources,
        booked=resources,
        detailed=True,
    )


def seen_container(answer: api_pb2.ContainerStatusResponse) -> ContainerRecord:
    """A container with its resources: from the status, or else from the verbose part of the response.

    Only the verbose part has the sandbox's id.
    """
    status = answer.status
    info = parse_info(answer.info)
    if status.HasField("resources"):
        resources = read_resources(status.resources.linux)
    else:
        # Those of the creation, and over them the present ones: containerd 1.6 keeps the result of
        # UpdateContainerResources in the OCI specification only.
        created = resources_from_json(_member(info, "config", "linux", "resources"))
        present = resources_from_spec(_member(info, "runtimeSpec", "linux", "resources"))
        resources = overlay(created, present)
    pod_id = info.get("sandboxID")
    record = listed_container(status, pod_id if isinstance(pod_id, str) else "")
    return replace(record, requested=resources, booked=resources, cpu_claims=_claims(info), detailed=True)


def parse_info(info: Mapping[str, str]) -> dict[str, Any]:
    """The JSON document of a verbose answer; empty if there is none or if it is not an object."""
    text = info.get(INFO_KEY)
    if not text:
        return {}
    try:
        found = json_value(text, interruptible=True)
    except InputError:
        return {}
    return found if isinstance(found, dict) else {}


def _claims(info: Mapping[str, Any]) -> tuple[str, ...]:
    """The DRA claims on CPUs in containerd's copy of the request."""
    devices = _member(info, "config").get("CDI_devices")
    names = (
        (each.get("name") for each in devices if isinstance(each, dict)) if isinstance(devices, list) else ()
    )
    return claims_among(each for each in names if isinstance(each, str))


def _cgroup_parent(info: Mapping[str, Any]) -> str:
    """From containerd's copy of the request, or from CRI-O's annotation."""
    parent = _member(info, "config", "linux").get("cgroup_parent")
    if not parent:
        parent = _member(info, "runtimeSpec", "annotations").get(CRIO_CGROUP_PARENT)
    return parent if isinstance(parent, str) else ""


def _member(document: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """The object at a path of keys; empty if anything on the way is missing or not an object."""
    for key in path:
        found = document.get(key)
        if not isinstance(found, dict):
            return {}
        document = found
    return document


ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)
ResponseT = TypeVar("ResponseT", bound=Message)


@dataclass(frozen=True, slots=True)
class CriRequest(Generic[ResultT_co]):
    """A request of one method, and the reader of its response."""

    method: str
    message: Message
    result: Callable[[bytes], ResultT_co]


def _request(
    method: str, message: Message, response: type[ResponseT], read: Callable[[ResponseT], ResultT]
) -> CriRequest[ResultT]:
    return CriRequest(method, message, lambda body: read(parse(response, body)))


def runtime_name() -> CriRequest[str]:
    return _request(
        "Version", api_pb2.VersionRequest(), api_pb2.VersionResponse, lambda found: found.runtime_name
    )


def list_pods(labels: Mapping[str, str]) -> CriRequest[dict[str, PodRecord]]:
    """All sandboxes, or those with all of the labels."""
    message = api_pb2.ListPodSandboxRequest()
    if labels:
        message.filter.label_selector.update(labels)
    return _request(
        "ListPodSandbox",
        message,
        api_pb2.ListPodSandboxResponse,
        lambda found: {item.id: listed_pod(item) for item in found.items},
    )


def list_containers(pod_id: str) -> CriRequest[dict[str, ContainerRecord]]:
    """All containers, or those of one sandbox."""
    message = api_pb2.ListContainersRequest()
    if pod_id:
        message.filter.pod_sandbox_id = pod_id
    return _request(
        "ListContainers",
        message,
        api_pb2.ListContainersResponse,
        lambda found: {item.id: listed_container(item, item.pod_sandbox_id) for item in found.containers},
    )


def pod_status(identity: str) -> CriRequest[PodRecord]:
    """One sandbox; only the verbose response has its cgroup parent."""
    message = api_pb2.PodSandboxStatusRequest(pod_sandbox_id=identity, verbose=True)
    return _request("PodSandboxStatus", message, api_pb2.PodSandboxStatusResponse, seen_pod)


def container_status(identity: str, *, verbose: bool) -> CriRequest[tuple[ContainerRecord, bool]]:
    # With whether the status itself has the resources.
    return _request(
        "ContainerStatus",
        api_pb2.ContainerStatusRequest(container_id=identity, verbose=verbose),
        api_pb2.ContainerStatusResponse,
        lambda found: (seen_container(found), found.status.HasField("resources")),
    )


def read_event(data: bytes) -> RuntimeEvent:
    """An event of GetContainerEvents. Raises google.protobuf.message.DecodeError if it does not parse."""
    event = api_pb2.ContainerEventResponse.FromString(data)
    is_gone = event.container_event_type == api_pb2.CONTAINER_DELETED_EVENT
    return RuntimeEvent(event.container_id, event.pod_sandbox_status.id == event.container_id, is_gone)


def stop_container(identity: str, grace_s: int) -> bytes:
    return api_pb2.StopContainerRequest(container_id=identity, timeout=grace_s).SerializeToString()


def update_container(identity: str, scalars: Mapping[str, int | str], unified: Mapping[str, str]) -> bytes:
    """The request that gives a container these values, by the names of `Resources`."""
    request = api_pb2.UpdateContainerResourcesRequest(container_id=identity)
    for name, value in scalars.items():
        setattr(request.linux, CRI_FIELDS[name].cri, value)
    request.linux.unified.update(unified)
    return request.SerializeToString()
