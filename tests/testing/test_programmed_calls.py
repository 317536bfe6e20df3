"""Calls that are delayed, failed, hung or answered as a test wants."""

import contextlib
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing import CallError, FakeRuntime, preload
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.testing.raw_calls import VERSION_PATH, bytes_call, error_of, trailers_of

VERSION = api_pb2.VersionRequest(version="v")
WAIT_S = 30.0

Runtime = api_pb2_grpc.RuntimeServiceStub


def test_an_error_has_code_message_details_and_trailers(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    failure = CallError("RESOURCE_EXHAUSTED", "voll: ü", b"\x08\x08", (("t", "1"), ("t", "2")))
    fake_runtime.on("Version", error=failure)
    with pytest.raises(grpc.RpcError) as caught:
        runtime.Version(VERSION)
    assert error_of(caught.value) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "voll: ü")
    trailers = {tuple(entry) for entry in trailers_of(caught.value)}
    assert trailers == {("t", "1"), ("t", "2"), ("grpc-status-details-bin", b"\x08\x08")}


def test_a_behaviour_can_hold_for_some_calls(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    fake_runtime.on("Version", error=CallError("UNAVAILABLE"), times=1)
    with pytest.raises(grpc.RpcError):
        runtime.Version(VERSION)
    assert runtime.Version(VERSION).runtime_name == "fake-runtime"


def test_a_behaviour_of_every_method_gives_way_to_one_of_its_own(
    fake_runtime: FakeRuntime, runtime: Runtime
) -> None:
    fake_runtime.on("*", error=CallError("UNAVAILABLE"))
    fake_runtime.on("Version", delay_s=0.0)
    runtime.Version(VERSION)
    with pytest.raises(grpc.RpcError):
        runtime.Status(api_pb2.StatusRequest())
    fake_runtime.clear("*")
    runtime.Status(api_pb2.StatusRequest())


def test_a_hanging_call_goes_on_when_released(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    fake_runtime.on("Version", hang=True)
    answer = runtime.Version.future(VERSION)
    fake_runtime.recorded.wait("Version")
    assert not answer.done()
    fake_runtime.release("Version")
    assert answer.result(WAIT_S).runtime_name == "fake-runtime"


def test_a_delay_can_be_cut_short(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    fake_runtime.on("Version", delay_s=1000)
    answer = runtime.Version.future(VERSION)
    fake_runtime.recorded.wait("Version")
    fake_runtime.release()
    assert answer.result(WAIT_S).runtime_name == "fake-runtime"


def test_a_delayed_call_is_answered_in_the_end(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    fake_runtime.on("Version", delay_s=0.01)
    assert runtime.Version(VERSION, timeout=WAIT_S).runtime_name == "fake-runtime"


def test_a_cancelled_call_changes_nothing(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    fake_runtime.on("RunPodSandbox", hang=True)
    answer = runtime.RunPodSandbox.future(api_pb2.RunPodSandboxRequest(config=pod_sandbox_config()))
    (call,) = fake_runtime.recorded.wait("RunPodSandbox")
    answer.cancel()
    assert call.ended.wait(WAIT_S)
    assert call.cancelled
    fake_runtime.stop()
    assert not fake_runtime.state.sandboxes


def test_an_answered_call_is_not_cancelled(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    runtime.Version(VERSION)
    (call,) = fake_runtime.recorded.wait("Version")
    assert call.ended.wait(WAIT_S)
    assert not call.cancelled


def test_an_error_after_the_work_leaves_the_work_done(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    fake_runtime.on("RunPodSandbox", error=CallError("DEADLINE_EXCEEDED"), after=True)
    with pytest.raises(grpc.RpcError):
        runtime.RunPodSandbox(api_pb2.RunPodSandboxRequest(config=pod_sandbox_config()))
    assert len(fake_runtime.state.sandboxes) == 1


def test_a_stream_can_end_with_an_error_after_its_messages(
    fake_runtime: FakeRuntime, runtime: Runtime
) -> None:
    preload(fake_runtime.state, 1, 1)
    fake_runtime.on("StreamContainers", error=CallError("INTERNAL", "late"), after=True)
    answers = runtime.StreamContainers(api_pb2.StreamContainersRequest())
    assert len(next(answers).containers) == 1
    with pytest.raises(grpc.RpcError) as caught:
        next(answers)
    assert error_of(caught.value) == (grpc.StatusCode.INTERNAL, "late")


@pytest.mark.parametrize("given", [b"\x12\x01x", api_pb2.VersionResponse(runtime_name="x")])
def test_an_answer_can_be_given(
    fake_runtime: FakeRuntime, runtime: Runtime, given: bytes | api_pb2.VersionResponse
) -> None:
    fake_runtime.on("Version", response=given)
    assert runtime.Version(VERSION) == api_pb2.VersionResponse(runtime_name="x")


def test_headers_come_before_the_answer_and_trailers_after(
    fake_runtime: FakeRuntime, channel: grpc.Channel
) -> None:
    headers, trailers = (("early", "1"),), (("late", "2"),)
    fake_runtime.on("Version", hang=True, initial_metadata=headers, trailing_metadata=trailers)
    call = bytes_call(channel, VERSION_PATH, "unary_stream")(b"")
    assert ("early", "1") in {(entry[0], entry[1]) for entry in call.initial_metadata()}
    assert not call.done()
    fake_runtime.release()
    assert len(list(call)) == 1
    assert trailers_of(call) == [("late", "2")]


@pytest.mark.parametrize("failing", [True, False])
def test_an_answer_can_come_before_the_message(
    fake_runtime: FakeRuntime, channel: grpc.Channel, failing: bool
) -> None:
    error = CallError("UNIMPLEMENTED", "too new") if failing else None
    fake_runtime.on("Version", error=error, response=b"", before_message=True)
    messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    stub = bytes_call(channel, VERSION_PATH, "stream_unary")
    call = stub.future(iter(messages.get, None), timeout=WAIT_S)
    assert call.code() is (grpc.StatusCode.UNIMPLEMENTED if failing else grpc.StatusCode.OK)
    messages.put(None)


@pytest.fixture
def counted(fake_runtime: FakeRuntime, socket_folder: Path) -> Iterator[tuple[Path, list[int]]]:
    """A socket that forwards one connection to the fake, and sizes of what the fake sent."""
    path, sizes = socket_folder / "counted.sock", list[int]()
    with (
        socket.socket(socket.AF_UNIX) as listener,
        socket.socket(socket.AF_UNIX) as upstream,
    ):
        listener.bind(str(path))
        listener.listen()
        upstream.connect(str(fake_runtime.socket_path))

        def forward() -> None:
            with listener.accept()[0] as client:
                back = threading.Thread(target=pump, args=(upstream, client, sizes))
                back.start()
                pump(client, upstream, [])
                back.join()

        thread = threading.Thread(target=forward)
        thread.start()
        yield path, sizes
        thread.join(WAIT_S)


def pump(source: socket.socket, sink: socket.socket, sizes: list[int]) -> None:
    """Forwards until either side is gone."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sizes.append(len(data))
            sink.sendall(data)
    # A client that is gone with data unread is a reset; the other side has to end then, too.
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("compressed", [True, False])
def test_an_answer_can_be_compressed(
    fake_runtime: FakeRuntime, counted: tuple[Path, list[int]], compressed: bool
) -> None:
    preload(fake_runtime.state, 1, 100)
    fake_runtime.on("ListContainers", gzip=compressed)
    path, sizes = counted
    with grpc.insecure_channel(f"unix://{path}") as channel:
        stub = api_pb2_grpc.RuntimeServiceStub(channel)
        answer = stub.ListContainers(api_pb2.ListContainersRequest())
    assert len(answer.containers) == 100
    assert (sum(sizes) < answer.ByteSize() / 2) is compressed


def test_many_calls_can_hang_at_once(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    fake_runtime.on("Version", hang=True)
    answers = [runtime.Version.future(VERSION) for _ in range(300)]
    fake_runtime.recorded.wait("Version", 300, timeout_s=30)
    runtime.Status(api_pb2.StatusRequest(), timeout=WAIT_S)
    fake_runtime.release()
    assert {answer.result(WAIT_S).runtime_name for answer in answers} == {"fake-runtime"}
