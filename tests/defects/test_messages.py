"""Messages: of any size, with missing parts, with unknown fields, with metadata, in streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from google.protobuf.message import Message

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import RecordedCall
from tests.conformance.messages import UNKNOWN
from tests.daemon.driving import Pod, pod, shares_of
from tests.defects.node import Node, Registrations
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient

LARGE_BYTES = 5_000_000
"""More than gRPC's default bound of 4 MiB, less than the 16 MiB of kubelet and containerd."""
TRACE = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
ALL_OVER = {
    "cpu_shares": 1024,
    "env": {"GPU": "0"},
    "annotations": {"hook": "1"},
    "cgroup_parent": "/kubepods/other",
}
"""A hook that changes something in each part of a request."""


def large() -> str:
    return "x" * LARGE_BYTES


@pytest.mark.defect(7)
def test_large_answers(node: Node, client: CriClient) -> None:
    """A dense node's lists ended in RESOURCE_EXHAUSTED."""
    containers = api_pb2.ListContainersResponse(containers=[api_pb2.Container(id=large())])
    node.runtime.on("ListContainers", response=containers)
    images = api_pb2.ListImagesResponse(images=[api_pb2.Image(id=large())])
    node.runtime.on("ListImages", response=images)
    command = api_pb2.ExecSyncResponse(stdout=large().encode())
    node.runtime.on("ExecSync", response=command)
    timeout = CALL_TIMEOUT_S
    assert client.runtime.ListContainers(api_pb2.ListContainersRequest(), timeout=timeout) == containers
    assert client.images.ListImages(api_pb2.ListImagesRequest(), timeout=timeout) == images
    assert client.runtime.ExecSync(api_pb2.ExecSyncRequest(container_id="x"), timeout=timeout) == command


@pytest.mark.defect(7)
def test_large_requests(
    node: Node, client: CriClient, registrations: Registrations, server: HookServerProcess
) -> None:
    """One that passes, and one that a hook server changes; it is asked by a large message, too."""
    filtering = api_pb2.ListContainersRequest(filter=api_pb2.ContainerFilter(id=large()))
    client.runtime.ListContainers(filtering, timeout=CALL_TIMEOUT_S)
    assert node.sent("ListContainers") == filtering
    server.behave("koordlet", overlay={"cpu_shares": 1024})
    registrations.register(server, "PreCreateContainer")
    made = pod(client).run()
    request = made.create_request
    request.config.envs.add(key="LARGE", value=large().encode())
    client.runtime.CreateContainer(request, timeout=CALL_TIMEOUT_S)
    request.config.linux.resources.cpu_shares = 1024
    assert node.sent("CreateContainer") == request


def without_linux(made: Pod) -> api_pb2.CreateContainerRequest:
    request = made.create_request
    request.config.ClearField("linux")
    return request


def without_pods_linux(made: Pod) -> api_pb2.CreateContainerRequest:
    request = made.create_request
    request.sandbox_config.ClearField("linux")
    return request


def without_pod(made: Pod) -> api_pb2.CreateContainerRequest:
    return api_pb2.CreateContainerRequest(pod_sandbox_id=made.id, config=made.create_request.config)


def without_anything(made: Pod) -> api_pb2.CreateContainerRequest:
    config = api_pb2.ContainerConfig(metadata=api_pb2.ContainerMetadata(name="main"))
    return api_pb2.CreateContainerRequest(pod_sandbox_id=made.id, config=config)


@pytest.mark.defect(10)
@pytest.mark.parametrize("overlay", [{}, ALL_OVER], ids=["echo", "all over"])
@pytest.mark.parametrize("change", [without_linux, without_pods_linux, without_pod, without_anything])
def test_a_container_without_its_linux_part(
    client: CriClient,
    registrations: Registrations,
    server: HookServerProcess,
    change: Callable[[Pod], api_pb2.CreateContainerRequest],
    overlay: dict[str, object],
) -> None:
    """As crictl sends them; any answer to the hook was the end of the process."""
    server.behave("koordlet", overlay=overlay)
    registrations.register(server, "PreCreateContainer", failure_policy="Fail")
    made = pod(client).run()
    made.container = client.runtime.CreateContainer(change(made), timeout=CALL_TIMEOUT_S).container_id
    if overlay:
        assert shares_of(made) == 1024


@pytest.mark.defect(10)
@pytest.mark.parametrize("overlay", [{}, ALL_OVER], ids=["echo", "all over"])
def test_a_pod_without_its_linux_part(
    node: Node,
    client: CriClient,
    registrations: Registrations,
    server: HookServerProcess,
    overlay: dict[str, object],
) -> None:
    server.behave("koordlet", overlay=overlay)
    registrations.register(server, "PreRunPodSandbox", failure_policy="Fail")
    made = pod(client)
    made.config.ClearField("linux")
    made.run()
    assert node.sent("RunPodSandbox").config.linux.cgroup_parent == overlay.get("cgroup_parent", "")


@pytest.mark.defect(17)
def test_events_stream(node: Node, client: CriClient) -> None:
    """It was UNIMPLEMENTED, so the kubelet's evented PLEG could not work."""
    events = client.runtime.GetContainerEvents(api_pb2.GetEventsRequest(), timeout=CALL_TIMEOUT_S)
    assert node.runtime.events.wait_for_subscribers(1, CALL_TIMEOUT_S)
    made = pod(client).run().create().start()
    kinds = [next(events) for _ in range(4)]
    assert [(each.container_id, each.container_event_type) for each in kinds] == [
        (made.id, api_pb2.CONTAINER_CREATED_EVENT),
        (made.id, api_pb2.CONTAINER_STARTED_EVENT),
        (made.container, api_pb2.CONTAINER_CREATED_EVENT),
        (made.container, api_pb2.CONTAINER_STARTED_EVENT),
    ]
    events.cancel()


@pytest.mark.defect(22)
@pytest.mark.parametrize("is_changed", [False, True], ids=["as it came", "changed by a hook"])
def test_metadata_goes_both_ways(
    node: Node,
    client: CriClient,
    registrations: Registrations,
    server: HookServerProcess,
    is_changed: bool,
) -> None:
    server.behave("koordlet", overlay={"cpu_shares": 1024} if is_changed else {})
    registrations.register(server, "PreCreateContainer")
    node.runtime.on("CreateContainer", initial_metadata=(("first", "1"),), trailing_metadata=(("last", "2"),))
    made = pod(client).run()
    _, call = client.runtime.CreateContainer.with_call(
        made.create_request, timeout=CALL_TIMEOUT_S, metadata=(TRACE,)
    )
    recorded: RecordedCall = node.runtime.recorded.wait("CreateContainer")[-1]
    assert (recorded.message.config.linux.resources.cpu_shares == 1024) is is_changed
    assert TRACE in recorded.metadata
    assert not any("grpc-go" in str(value) for _, value in recorded.metadata)
    assert ("first", "1") in call.initial_metadata()
    assert ("last", "2") in call.trailing_metadata()


def parts(message: Message) -> Iterator[Message]:
    """A message and all messages in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if isinstance(value, list) or hasattr(value, "add") else [value]:
            yield from parts(each)


def of_a_later_release(message: Message) -> int:
    """Adds an unknown field to all parts; returns how many there are."""
    found = list(parts(message))
    for part in found:
        part.MergeFromString(UNKNOWN)
    return len(found)


def kept(call: RecordedCall) -> int:
    """In how many parts of a request the unknown field is."""
    return call.raw.count(UNKNOWN)


@pytest.mark.defect(27)
def test_unknown_fields_stay_in_all_that_hooks_change(
    node: Node, client: CriClient, registrations: Registrations, server: HookServerProcess
) -> None:
    server.behave("koordlet", overlay=ALL_OVER)
    registrations.register(server, "PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources")
    made = pod(client)
    run = api_pb2.RunPodSandboxRequest(config=made.config)
    counts = [of_a_later_release(run)]
    made.id = client.runtime.RunPodSandbox(run, timeout=CALL_TIMEOUT_S).pod_sandbox_id
    made.envs = {"A": "1", "B": "2"}
    create = made.create_request
    counts.append(of_a_later_release(create))
    made.container = client.runtime.CreateContainer(create, timeout=CALL_TIMEOUT_S).container_id
    update = api_pb2.UpdateContainerResourcesRequest(container_id=made.container)
    update.linux.hugepage_limits.add(page_size="2MB", limit=1)
    counts.append(of_a_later_release(update))
    server.behave("koordlet", overlay={**ALL_OVER, "cpu_shares": 2048})
    client.runtime.UpdateContainerResources(update, timeout=CALL_TIMEOUT_S)
    methods = ("RunPodSandbox", "CreateContainer", "UpdateContainerResources")
    calls = [node.runtime.recorded.wait(method)[-1] for method in methods]
    assert [kept(call) for call in calls] == counts
    assert min(counts) >= 3
    assert calls[0].message.config.linux.cgroup_parent == "/kubepods/other"
    assert calls[1].message.config.linux.resources.cpu_shares == 1024
    assert calls[2].message.linux.cpu_shares == 2048


@pytest.mark.defect(27)
def test_unknown_fields_stay_in_answers(node: Node, client: CriClient) -> None:
    made = pod(client).run()
    answer = api_pb2.CreateContainerResponse(container_id="made").SerializeToString() + UNKNOWN
    node.runtime.on("CreateContainer", response=answer)
    request = made.create_request.SerializeToString()
    assert client.raw("/runtime.v1.RuntimeService/CreateContainer", request) == answer
