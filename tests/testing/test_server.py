"""The fake runtime on its socket: calls, records, lists."""

import contextlib
from pathlib import Path

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing import CallError, FakeRuntime, preload
from runtimeproxy.testing.builders import container_config, pod_sandbox_config
from runtimeproxy.testing.dispatch import V1ALPHA2_METHODS
from tests.testing.raw_calls import VERSION_PATH, bytes_call, error_of

VERSION = api_pb2.VersionRequest(version="v")
WAIT_S = 30.0
METHODS = [
    (f"{service.name}/{method.name}", method.name)
    for service in api_pb2.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.name != "GetContainerEvents"
]
OLD = "/runtime.v1alpha2.RuntimeService"
EXPECTED_CODES = {
    grpc.StatusCode.OK,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT,
}


Runtime = api_pb2_grpc.RuntimeServiceStub


@pytest.mark.parametrize("package", ["runtime.v1", "runtime.v1alpha2"])
def test_every_call_is_served_in_both_packages(
    fake_runtime: FakeRuntime, channel: grpc.Channel, package: str
) -> None:
    paths = [
        f"/{package}.{name}"
        for name, method in METHODS
        if package == "runtime.v1" or method in V1ALPHA2_METHODS
    ]
    for path in paths:
        call = bytes_call(channel, path, "unary_stream")(b"", timeout=WAIT_S)
        with contextlib.suppress(grpc.RpcError):
            list(call)
        assert call.code() in EXPECTED_CODES, path
    assert [call.path for call in fake_runtime.recorded] == paths


def test_unknown_methods_and_services_are_unimplemented(
    channel: grpc.Channel, fake_runtime: FakeRuntime
) -> None:
    for path in ("/runtime.v1.RuntimeService/New", "/containerd.Version/Version"):
        with pytest.raises(grpc.RpcError) as caught:
            bytes_call(channel, path)(b"")
        assert error_of(caught.value)[0] is grpc.StatusCode.UNIMPLEMENTED
    assert len(fake_runtime.recorded) == 0


def refused(channel: grpc.Channel, path: str) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        list(bytes_call(channel, path, "unary_stream")(b"", timeout=WAIT_S))
    code, details, *_ = error_of(caught.value)
    return code, details


@pytest.mark.parametrize(
    "method", ["GetContainerEvents", "RuntimeConfig", "CheckpointContainer", "StreamContainers"]
)
def test_the_old_version_lacks_what_came_later(channel: grpc.Channel, method: str) -> None:
    """As containerd 1.6 answers; see tests/e2e/test_fake_runtime.py."""
    message = f"unknown method {method} for service runtime.v1alpha2.RuntimeService"
    assert refused(channel, f"{OLD}/{method}") == (grpc.StatusCode.UNIMPLEMENTED, message)


@pytest.mark.parametrize("record", [True, False])
def test_the_old_version_names_itself(socket_folder: Path, record: bool) -> None:
    with (
        FakeRuntime(socket_folder / "old.sock", record=record) as runtime,
        grpc.insecure_channel(runtime.endpoint) as channel,
    ):
        for path, version in ((f"{OLD}/Version", "v1alpha2"), (VERSION_PATH, "v1")):
            answer = api_pb2.VersionResponse.FromString(bytes_call(channel, path)(b""))
            assert answer.runtime_api_version == version


def test_a_runtime_without_the_old_version(socket_folder: Path) -> None:
    with (
        FakeRuntime(socket_folder / "new.sock", v1alpha2=False) as runtime,
        grpc.insecure_channel(runtime.endpoint) as channel,
    ):
        message = "unknown service runtime.v1alpha2.RuntimeService"
        assert refused(channel, f"{OLD}/Version") == (grpc.StatusCode.UNIMPLEMENTED, message)
        assert bytes_call(channel, VERSION_PATH)(b"")


def test_a_misspelled_method_is_refused(fake_runtime: FakeRuntime) -> None:
    reason = "there is no method 'RunPodSandBox'; did you mean RunPodSandbox"
    for use in (
        lambda: fake_runtime.on("RunPodSandBox", hang=True),
        lambda: fake_runtime.clear("RunPodSandBox"),
        lambda: fake_runtime.release("RunPodSandBox"),
        lambda: fake_runtime.recorded.of("RunPodSandBox"),
        lambda: fake_runtime.recorded.wait("RunPodSandBox"),
    ):
        with pytest.raises(ValueError, match=reason):
            use()


@pytest.mark.parametrize(
    ("code", "near"), [("UNAVAILBLE", "UNAVAILABLE"), ("not_found", ""), ("OK", ""), ("14", "")]
)
def test_what_is_no_status_code_is_refused(code: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"there is no status code '{code}'; did you mean {near}"):
        CallError(code)


def test_calls_are_recorded_as_they_came(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    runtime.Version(VERSION, metadata=(("k", "a"), ("k", "b"), ("x-bin", b"\xff")), timeout=50)
    runtime.Version(VERSION)
    call, without_deadline = fake_runtime.recorded.wait("Version", 2)
    assert (call.raw, call.message) == (VERSION.SerializeToString(), VERSION)
    sent = {("k", "a"), ("k", "b"), ("x-bin", b"\xff")}
    assert sent <= set(call.metadata)
    assert 40 < (call.deadline_s or 0) < 60
    assert without_deadline.deadline_s is None
    assert fake_runtime.recorded.methods == ["Version", "Version"]
    assert call.at_s <= without_deadline.at_s


def test_unknown_fields_are_recorded(fake_runtime: FakeRuntime, channel: grpc.Channel) -> None:
    raw = VERSION.SerializeToString() + b"\xfa\x3f\x01x"
    bytes_call(channel, VERSION_PATH)(raw)
    assert fake_runtime.recorded[0].raw == raw


def test_records_can_be_forgotten_or_not_kept(socket_folder: Path) -> None:
    with FakeRuntime(socket_folder / "r.sock", record=False) as fake:
        with grpc.insecure_channel(fake.endpoint) as channel:
            api_pb2_grpc.RuntimeServiceStub(channel).Version(VERSION)
        assert len(fake.recorded) == 0


def test_calls_that_nobody_notes_can_be_obstructed(socket_folder: Path) -> None:
    with (
        FakeRuntime(socket_folder / "r.sock", record=False) as fake,
        grpc.insecure_channel(fake.endpoint) as channel,
    ):
        runtime = api_pb2_grpc.RuntimeServiceStub(channel)
        assert runtime.Version(VERSION).runtime_name == "fake-runtime"
        fake.on("Version", error=CallError("UNAVAILABLE"), times=1)
        with pytest.raises(grpc.RpcError) as caught:
            runtime.Version(VERSION)
        assert error_of(caught.value)[0] is grpc.StatusCode.UNAVAILABLE
        assert runtime.Version(VERSION).runtime_name == "fake-runtime"


def test_waiting_for_calls_that_do_not_come_ends(fake_runtime: FakeRuntime) -> None:
    with pytest.raises(TimeoutError, match="0 of 1 calls of Version"):
        fake_runtime.recorded.wait("Version", timeout_s=0.01)


def test_a_client_can_run_a_pod(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    pod = pod_sandbox_config("web")
    sandbox_id = runtime.RunPodSandbox(api_pb2.RunPodSandboxRequest(config=pod)).pod_sandbox_id
    made = runtime.CreateContainer(
        api_pb2.CreateContainerRequest(
            pod_sandbox_id=sandbox_id, config=container_config(pod=pod), sandbox_config=pod
        )
    )
    runtime.StartContainer(api_pb2.StartContainerRequest(container_id=made.container_id))
    assert fake_runtime.state.find_container(made.container_id).pid


def test_lists_are_current_although_they_are_remembered(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    request = api_pb2.ListContainersRequest()
    preload(fake_runtime.state, 1, 2)
    assert runtime.ListContainers(request) == runtime.ListContainers(request)
    first = next(iter(fake_runtime.state.containers))
    fake_runtime.state.stop_container(first)
    states = {entry.id: entry.state for entry in runtime.ListContainers(request).containers}
    assert states[first] == api_pb2.CONTAINER_EXITED


def test_messages_have_no_size_limit(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    pod = pod_sandbox_config(annotations={"big": "x" * (20 * 2**20)})
    runtime.RunPodSandbox(api_pb2.RunPodSandboxRequest(config=pod))
    (listed,) = runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest()).items
    assert len(listed.annotations["big"]) == 20 * 2**20
    assert len(fake_runtime.recorded[0].raw) > 20 * 2**20


def test_a_list_of_1000_containers_has_the_size_of_a_real_one(
    fake_runtime: FakeRuntime, runtime: Runtime
) -> None:
    preload(fake_runtime.state, 100, 1000)
    answer = runtime.ListContainers(api_pb2.ListContainersRequest())
    assert 750_000 < answer.ByteSize() < 800_000


def test_more_services_can_share_the_socket(socket_folder: Path) -> None:
    echo = grpc.method_handlers_generic_handler(
        "more.Echo", {"Echo": grpc.unary_unary_rpc_method_handler(lambda request, _: request)}
    )
    with (
        FakeRuntime(socket_folder / "r.sock", handlers=[echo]) as fake,
        grpc.insecure_channel(fake.endpoint) as channel,
    ):
        assert bytes_call(channel, "/more.Echo/Echo")(b"x") == b"x"


async def test_an_asyncio_client_can_use_it(fake_runtime: FakeRuntime) -> None:
    async with grpc.aio.insecure_channel(fake_runtime.endpoint) as channel:
        version = await api_pb2_grpc.RuntimeServiceStub(channel).Version(VERSION)
    assert version.runtime_name == "fake-runtime"
