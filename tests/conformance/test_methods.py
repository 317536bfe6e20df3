"""Items 17 to 24: every method of every service reaches its server."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import FakeRuntime, RuntimeState, preload
from runtimeproxy.testing.builders import container_config, create_container_request, pod_sandbox_config
from tests.conformance.conftest import CONFIG, ProxyStarter
from tests.conformance.grpc_server import grpc_server
from tests.conformance.messages import IMAGE, RUNTIME, UNKNOWN, plain_create
from tests.conformance.services import (
    BACKEND_HEALTH,
    CONVERSE,
    COUNT,
    ECHO,
    FUTURE_METHOD,
    HEALTH_CHECK,
    OVER,
    REFLECTION,
    BytesServices,
    numbered,
)
from tests.lab.cri_client import CriClient
from tests.lab.proxy_process import ProxyProcess
from tests.peers.blocking import Http2Client, request_fields
from tests.peers.bytes_client import Answer, BytesClient
from tests.peers.wire import DATA, END_HEADERS, HEADERS, Frame

METHODS = [
    (f"/{service.full_name}/{method.name}", method.server_streaming)
    for service in api_pb2.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
UNARY = [path for path, streams in METHODS if not streams]
STREAMING = [path for path, streams in METHODS if streams and not path.endswith("/GetContainerEvents")]
UNKNOWN_PATHS = [
    f"{RUNTIME}/NoSuchMethod",
    f"{IMAGE}/NoSuchMethod",
    "/containerd.services.tasks.v1.Tasks/Create",
    "/no-service",
]


@pytest.mark.conformance(17)
def test_unknown_method_of_a_known_service(through: BytesClient) -> None:
    assert through.call(FUTURE_METHOD, UNKNOWN).message == UNKNOWN


@pytest.mark.conformance(18)
def test_unknown_service(through: BytesClient) -> None:
    """Services of the runtime's own lie on the same socket: unary, server streams, conversations."""
    assert through.call(ECHO, UNKNOWN).message == UNKNOWN
    assert through.call(COUNT, b"3 100").messages == tuple(numbered(number, 100) for number in range(3))
    assert list(through.converse(CONVERSE, [b"1", b"2"])) == [b"1", b"2", OVER]


@pytest.mark.conformance(19)
@pytest.mark.parametrize("path", UNKNOWN_PATHS)
def test_unimplemented(direct: BytesClient, through: BytesClient, path: str) -> None:
    """`call` reads as a stream does: the status is what the first Recv gives."""
    answer = through.call(path)

    assert answer == direct.call(path)
    assert answer.code == "UNIMPLEMENTED"
    assert answer.messages == ()


@pytest.mark.conformance(19)
@pytest.mark.parametrize("early", [False, True], ids=["after the message", "before the message"])
def test_unimplemented_of_an_old_runtime(folder: Path, start_proxy: ProxyStarter, early: bool) -> None:
    """An old runtime knows the service and not a method, and may say so before it has the message."""
    passing_and_held = ("RuntimeConfig", "UpdatePodSandboxResources")

    class Old(grpc.GenericRpcHandler):
        def service(
            self, handler_call_details: grpc.HandlerCallDetails
        ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
            if not early or not handler_call_details.method.endswith(passing_and_held):
                return None
            return grpc.stream_unary_rpc_method_handler(_old)

    with grpc_server(folder / "old.sock", Old()) as socket:
        daemon = start_proxy(socket)
        with BytesClient(socket) as direct, BytesClient(daemon.socket) as through:
            for path in (f"{RUNTIME}/{method}" for method in passing_and_held):
                answer = through.call(path, UNKNOWN)
                assert answer == direct.call(path, UNKNOWN)
                assert answer.code == "UNIMPLEMENTED"
                assert through.call(path, UNKNOWN) == answer


@pytest.mark.conformance(20)
def test_there_are_43_methods() -> None:
    assert len(METHODS) == 43


@pytest.mark.conformance(20)
@pytest.mark.parametrize("path", UNARY)
def test_unary_method_round_trips(runtime: FakeRuntime, through: BytesClient, path: str) -> None:
    method = path.rpartition("/")[2]
    request = (plain_create().SerializeToString() if method == "CreateContainer" else b"") + UNKNOWN
    runtime.on(method, response=UNKNOWN)

    answer = through.call(path, request)

    assert answer.message == UNKNOWN
    [recorded] = [call for call in runtime.recorded.of(method) if call.raw == request]
    assert recorded.path == path


@pytest.mark.conformance(4, 20)
def test_streaming_methods_round_trip(folder: Path, start_proxy: ProxyStarter) -> None:
    """250 containers make several messages; the runtime's clock stands, so that two answers are equal."""
    state = RuntimeState(clock_ns=lambda: 1_000_000_000)
    preload(state, pods=120, containers=250)
    with FakeRuntime(folder / "runtime.sock", state=state) as runtime:
        daemon = start_proxy(runtime.socket_path)
        with BytesClient(runtime.socket_path) as direct, BytesClient(daemon.socket) as through:
            answers = {path: through.call(path) for path in STREAMING}
            assert answers == {path: direct.call(path) for path in STREAMING}

    assert {answer.code for answer in answers.values()} == {"OK"}
    assert all(answer.messages for answer in answers.values())


@pytest.mark.conformance(20)
def test_events_round_trip(runtime: FakeRuntime, through: BytesClient) -> None:
    event = api_pb2.ContainerEventResponse(container_id="c", created_at=1)
    call = through.start(f"{RUNTIME}/GetContainerEvents", timeout_s=None)
    assert runtime.events.wait_for_subscribers(1, 30)
    runtime.emit_event(event)

    assert next(call) == event.SerializeToString()
    call.cancel()
    assert runtime.events.wait_for_subscribers(0, 30)


@pytest.mark.conformance(20)
def test_life_of_a_pod(runtime: FakeRuntime, proxy_client: CriClient) -> None:
    """All intercepted calls in the kubelet's order, with believable answers of the runtime."""
    calls = proxy_client.runtime
    pod = pod_sandbox_config("life")
    sandbox = calls.RunPodSandbox(api_pb2.RunPodSandboxRequest(config=pod)).pod_sandbox_id
    create = create_container_request(sandbox, container_config("main", pod=pod), pod)
    made = calls.CreateContainer(create).container_id
    calls.StartContainer(api_pb2.StartContainerRequest(container_id=made))
    limits = api_pb2.LinuxContainerResources(cpu_shares=100)
    calls.UpdateContainerResources(api_pb2.UpdateContainerResourcesRequest(container_id=made, linux=limits))
    calls.UpdatePodSandboxResources(api_pb2.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox))
    status = calls.ContainerStatus(api_pb2.ContainerStatusRequest(container_id=made)).status
    calls.StopContainer(api_pb2.StopContainerRequest(container_id=made))
    calls.RemoveContainer(api_pb2.RemoveContainerRequest(container_id=made))
    calls.StopPodSandbox(api_pb2.StopPodSandboxRequest(pod_sandbox_id=sandbox))
    calls.RemovePodSandbox(api_pb2.RemovePodSandboxRequest(pod_sandbox_id=sandbox))

    assert status.state == api_pb2.CONTAINER_RUNNING
    assert status.resources.linux.cpu_shares == 100
    assert sandbox not in runtime.state.sandboxes


@pytest.mark.conformance(21)
def test_image_service_on_the_same_socket(runtime: FakeRuntime, proxy_client: CriClient) -> None:
    name = api_pb2.ImageSpec(image="docker.io/library/same:1")
    pulled = proxy_client.images.PullImage(api_pb2.PullImageRequest(image=name)).image_ref

    assert proxy_client.images.ImageStatus(api_pb2.ImageStatusRequest(image=name)).image.id == pulled
    assert runtime.recorded.of("PullImage")
    assert proxy_client.runtime.Version(api_pb2.VersionRequest()).runtime_name == "fake-runtime"


@pytest.mark.conformance(22)
def test_image_service_on_another_socket(folder: Path, start_proxy: ProxyStarter) -> None:
    """One connection of the client carries both services in turn; the client never sees the change."""
    with FakeRuntime(folder / "runtime.sock") as runtime, FakeRuntime(folder / "images.sock") as images:
        flag = f"--remote-image-service-endpoint={images.endpoint}"
        daemon = start_proxy(runtime.socket_path, CONFIG, flag)
        with BytesClient(daemon.socket) as client:
            paths = [f"{IMAGE}/ListImages", f"{RUNTIME}/Status"] * 3
            assert [client.call(path).code for path in paths] == ["OK"] * 6

        assert runtime.recorded.methods.count("ListImages") == 0
        assert images.recorded.methods == ["ListImages"] * 3
        assert len(runtime.recorded.of("Status")) >= 3


@pytest.mark.conformance(23)
def test_health_and_reflection_are_the_daemons(through: BytesClient) -> None:
    """The list wants the backend's to be reachable. The design holds: the daemon answers them itself, so
    that grpcurl and health probes work on the kubelet's socket with runtimes that have neither; a setting
    leaves them to the runtime (the next test).
    """
    assert through.call(HEALTH_CHECK, wait_for_ready=True).message == b"\x08\x01"
    # ServerReflectionRequest with list_services = "".
    [services] = through.converse(REFLECTION, [b"\x3a\x00"])
    assert b"runtime.v1.RuntimeService" in services
    assert b"grpc.health.v1.Health" in services


@pytest.mark.conformance(23)
def test_health_and_reflection_of_the_backend(runtime: FakeRuntime, start_proxy: ProxyStarter) -> None:
    daemon = start_proxy(runtime.socket_path, CONFIG + "[proxy]\nown_services = false\n")
    with BytesClient(runtime.socket_path) as direct, BytesClient(daemon.socket) as through:
        assert through.call(HEALTH_CHECK).message == BACKEND_HEALTH
        answer = through.call(REFLECTION, b"\x3a\x00")
        assert answer == direct.call(REFLECTION, b"\x3a\x00")
        assert answer.code == "UNIMPLEMENTED"


@pytest.mark.conformance(24)
@pytest.mark.parametrize(
    "method", ["RuntimeService/Version", "ImageService/ListImages", "RuntimeService/StopContainer"]
)
def test_old_version_of_the_api_passes_untranslated(
    runtime: FakeRuntime, through: BytesClient, method: str
) -> None:
    path = f"/runtime.v1alpha2.{method}"

    assert through.call(path, UNKNOWN).code == "OK"
    # The daemon asks for the runtime's version, too, by the present name.
    [recorded] = [each for each in runtime.recorded.of(method.rpartition("/")[2]) if each.path == path]
    assert recorded.raw == UNKNOWN


@pytest.mark.conformance(24)
def test_runtime_without_the_old_version(folder: Path, start_proxy: ProxyStarter) -> None:
    """Kubelets of 1.23 to 1.25 fall back by the code."""
    path = "/runtime.v1alpha2.RuntimeService/Version"
    answers: list[Answer] = []
    with grpc_server(folder / "new.sock", BytesServices()) as socket:
        for each in (socket, start_proxy(socket).socket):
            with BytesClient(each) as client:
                answers.append(client.call(path))

    assert answers[1] == answers[0]
    assert answers[0].code == "UNIMPLEMENTED"


def _old(requests: object, context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method")
    raise AssertionError


LARGER_THAN_ALLOWED = Frame(DATA, 0, 1, b"\0" + (1 << 25).to_bytes(4))
"""The beginning of a message that the daemon refuses if it holds the call."""


@pytest.mark.parametrize("path", [f"{RUNTIME}/CreateContainer", f"{RUNTIME}/CreateContainer"[1:]])
def test_a_method_is_held_with_and_without_its_first_slash(proxy: ProxyProcess, path: str) -> None:
    """Servers in Go serve both (`tests/e2e/test_path_spellings.py`)."""
    with Http2Client(proxy.socket) as client:
        # In one write: the runtime here refuses the path without a slash as soon as it has its headers.
        block = client.encoded(request_fields(path))
        client.send(Frame(HEADERS, END_HEADERS, 1, block), LARGER_THAN_ALLOWED)
        trailers = client.answer(1).trailers
    assert trailers["grpc-message"].startswith("koord-runtime-proxy: request message is larger than")


@pytest.mark.parametrize(
    "path", [f"/{RUNTIME}/CreateContainer", f"{RUNTIME}/CreateContainer/", f"{RUNTIME}/CreateContainer?x=1"]
)
def test_what_no_runtime_serves_is_the_runtimes_to_refuse(proxy: ProxyProcess, path: str) -> None:
    with Http2Client(proxy.socket) as client:
        assert client.call(path).trailers["grpc-status"] == str(grpc.StatusCode.UNIMPLEMENTED.value[0])


def test_the_daemons_own_services_are_not_left_to_the_runtime_without_the_first_slash(
    proxy: ProxyProcess,
) -> None:
    with Http2Client(proxy.socket) as client:
        asked = client.call(HEALTH_CHECK)
        client.call(HEALTH_CHECK[1:])
    assert asked.trailers["grpc-status"] == "0"
    assert client.goaways == []
