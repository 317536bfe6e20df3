"""The same call direct and through the proxy: the same answer, code and message."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from google.protobuf.message import Message

from cri_api.runtime.v1 import api_pb2
from tests.lab.busybox_image import IMAGE
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient, outcome_of
from tests.lab.node import run_sandbox, running_pod
from tests.lab.pods import ContainerSpec, PodSpec, container_config, sandbox_config
from tests.lab.programs import CONTAINERD_WITHOUT_EVENTS

UNKNOWN = "0" * 64
# Nothing listens on this port, so a pull fails at once and without a network.
UNREACHABLE = "127.0.0.1:1/nothing:latest"
RUNTIME = "/runtime.v1.RuntimeService"


def pull(client: CriClient, image: str) -> object:
    request = api_pb2.PullImageRequest(image=api_pb2.ImageSpec(image=image))
    return client.images.PullImage(request, timeout=CALL_TIMEOUT_S)


def image_status(client: CriClient, image: str) -> object:
    request = api_pb2.ImageStatusRequest(image=api_pb2.ImageSpec(image=image))
    return client.images.ImageStatus(request, timeout=CALL_TIMEOUT_S)


def remove_image(client: CriClient, image: str) -> object:
    request = api_pb2.RemoveImageRequest(image=api_pb2.ImageSpec(image=image))
    return client.images.RemoveImage(request, timeout=CALL_TIMEOUT_S)


def create_in_no_sandbox(client: CriClient) -> object:
    pod = PodSpec("nowhere")
    request = api_pb2.CreateContainerRequest(
        pod_sandbox_id=UNKNOWN,
        config=container_config(pod, ContainerSpec()),
        sandbox_config=sandbox_config(pod, "/tmp"),
    )
    return client.runtime.CreateContainer(request, timeout=CALL_TIMEOUT_S)


def run_without_metadata(client: CriClient) -> object:
    return run_sandbox(client, api_pb2.PodSandboxConfig(hostname="nameless"))


def raw(path: str, request: bytes = b"") -> Callable[[CriClient], object]:
    return lambda client: client.raw(path, request)


CALLS: dict[str, Callable[[CriClient], object]] = {
    "status of an unknown container": raw(
        f"{RUNTIME}/ContainerStatus",
        api_pb2.ContainerStatusRequest(container_id=UNKNOWN).SerializeToString(),
    ),
    "status of an unknown sandbox": raw(
        f"{RUNTIME}/PodSandboxStatus",
        api_pb2.PodSandboxStatusRequest(pod_sandbox_id=UNKNOWN).SerializeToString(),
    ),
    "start of an unknown container": raw(
        f"{RUNTIME}/StartContainer",
        api_pb2.StartContainerRequest(container_id=UNKNOWN).SerializeToString(),
    ),
    "stop of an unknown container": raw(
        f"{RUNTIME}/StopContainer",
        api_pb2.StopContainerRequest(container_id=UNKNOWN).SerializeToString(),
    ),
    "removal of an unknown container": raw(
        f"{RUNTIME}/RemoveContainer",
        api_pb2.RemoveContainerRequest(container_id=UNKNOWN).SerializeToString(),
    ),
    "stop of an unknown sandbox": raw(
        f"{RUNTIME}/StopPodSandbox",
        api_pb2.StopPodSandboxRequest(pod_sandbox_id=UNKNOWN).SerializeToString(),
    ),
    "removal of an unknown sandbox": raw(
        f"{RUNTIME}/RemovePodSandbox",
        api_pb2.RemovePodSandboxRequest(pod_sandbox_id=UNKNOWN).SerializeToString(),
    ),
    "update of an unknown container": raw(
        f"{RUNTIME}/UpdateContainerResources",
        api_pb2.UpdateContainerResourcesRequest(container_id=UNKNOWN).SerializeToString(),
    ),
    "container in no sandbox": create_in_no_sandbox,
    "sandbox without metadata": run_without_metadata,
    "intercepted call with an empty message": raw(f"{RUNTIME}/CreateContainer"),
    "intercepted call that does not parse": raw(f"{RUNTIME}/CreateContainer", b"\x0a\xff\xff"),
    "passing call that does not parse": raw(f"{RUNTIME}/ContainerStatus", b"\x0a\xff\xff"),
    "unknown method": raw(f"{RUNTIME}/NoSuchMethod", b"\x08\x01"),
    "unknown service": raw("/no.such.Service/Method"),
    "method of a later release": raw(f"{RUNTIME}/UpdatePodSandboxResources"),
    "old API version": raw("/runtime.v1alpha2.RuntimeService/Version"),
    "containerd's own service": raw("/containerd.services.version.v1.Version/Version"),
    "pull that fails": partial(pull, image=UNREACHABLE),
    "pull of a bad name": partial(pull, image="UPPER CASE"),
    "status of a known image": partial(image_status, image=IMAGE),
    "status of an unknown image": partial(image_status, image=UNREACHABLE),
    "removal of an unknown image": partial(remove_image, image=UNREACHABLE),
    "runtime configuration": raw(f"{RUNTIME}/RuntimeConfig"),
    "version": raw(f"{RUNTIME}/Version"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_same_answer(call: Callable[[CriClient], object], direct: CriClient, through: CriClient) -> None:
    assert answer_of(call, through) == answer_of(call, direct)


@pytest.mark.parametrize("containerd_version", [CONTAINERD_WITHOUT_EVENTS], indirect=True)
def test_same_end_of_a_stream_that_is_not_implemented(direct: CriClient, through: CriClient) -> None:
    def first_event(client: CriClient) -> object:
        stream = client.runtime.GetContainerEvents(api_pb2.GetEventsRequest(), timeout=CALL_TIMEOUT_S)
        return next(iter(stream))

    assert answer_of(first_event, through) == answer_of(first_event, direct)
    assert outcome_of(partial(first_event, through))[0] == "UNIMPLEMENTED"


def answer_of(call: Callable[[CriClient], object], client: CriClient) -> tuple[object, object]:
    answers: list[object] = []
    return outcome_of(lambda: answers.append(call(client))), answers


def test_same_lists(direct: CriClient, through: CriClient, logs: Path) -> None:
    with running_pod(direct, PodSpec("lists"), logs):
        from_runtime, from_proxy = lists(direct), lists(through)

    assert from_proxy == from_runtime
    assert all(from_runtime)


def lists(client: CriClient) -> list[list[bytes]]:
    sandboxes = client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest()).items
    containers = client.runtime.ListContainers(api_pb2.ListContainersRequest()).containers
    images = client.images.ListImages(api_pb2.ListImagesRequest()).images
    # containerd lists in the order of a Go map, which changes from call to call.
    return [sorted(map(encoded, each)) for each in (sandboxes, containers, images)]


def encoded(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


@pytest.mark.parametrize("method", ["Version", "CreateContainer"], ids=["passing call", "intercepted call"])
def test_same_code_for_a_message_over_the_bound(method: str, direct: CriClient, through: CriClient) -> None:
    message = b"\xfa\x7f" + b"\x80\x80\x80\x09" + b"x" * (18 * 1024 * 1024)
    call = partial(CriClient.raw, path=f"{RUNTIME}/{method}", request=message)

    code_direct, _ = outcome_of(partial(call, direct))
    code_through, _ = outcome_of(partial(call, through))

    assert code_through == code_direct == "RESOURCE_EXHAUSTED"


def test_large_held_call(client: CriClient, logs: Path) -> None:
    blob = "x" * (3 * 1024 * 1024)
    with running_pod(client, PodSpec("large", annotations={"blob": blob}), logs) as pod:
        request = api_pb2.PodSandboxStatusRequest(pod_sandbox_id=pod.sandbox_id)
        status = client.runtime.PodSandboxStatus(request, timeout=CALL_TIMEOUT_S).status

    assert status.annotations["blob"] == blob
