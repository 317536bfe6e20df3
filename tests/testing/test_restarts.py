"""The socket, and how the fake runtime stops, dies and comes back."""

import contextlib
import socket
import stat
import threading
from pathlib import Path

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing import FakeRuntime, preload

VERSION = api_pb2.VersionRequest(version="v")
WAIT_S = 30.0

Runtime = api_pb2_grpc.RuntimeServiceStub


def test_the_socket_is_for_owner_and_group_and_goes_with_the_runtime(socket_folder: Path) -> None:
    path = socket_folder / "r.sock"
    with FakeRuntime(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert [entry.name for entry in socket_folder.iterdir()] == ["r.sock"]
    assert list(socket_folder.iterdir()) == []


def test_a_stale_socket_is_replaced_and_a_foreign_one_left(socket_folder: Path) -> None:
    path = socket_folder / "r.sock"
    path.touch()
    with FakeRuntime(path) as fake:
        assert path.is_socket()
        path.unlink()
        path.touch()
        fake.stop()
    assert path.is_file()


def test_a_runtime_starts_once(fake_runtime: FakeRuntime) -> None:
    with pytest.raises(RuntimeError, match="already served"):
        fake_runtime.start()


def test_a_path_that_is_too_long_is_named(socket_folder: Path) -> None:
    with pytest.raises(ValueError, match="longer than 107 bytes"):
        FakeRuntime(socket_folder / ("x" * 100)).start()


def test_a_restart_keeps_path_state_and_records(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    preload(fake_runtime.state, 1, 1)
    runtime.Version(VERSION)
    fake_runtime.restart()
    # On a connection of its own: the first channel may not have noticed the end of its connection.
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"unix:{fake_runtime.socket_path}", options) as channel:
        answer = Runtime(channel).ListContainers(api_pb2.ListContainersRequest(), wait_for_ready=True)
    assert len(answer.containers) == 1
    assert fake_runtime.recorded.methods == ["Version", "ListContainers"]


def test_a_stop_with_grace_lets_calls_finish(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    fake_runtime.on("Version", hang=True)
    answer = runtime.Version.future(VERSION)
    fake_runtime.recorded.wait("Version")
    stopping = threading.Thread(target=fake_runtime.stop, args=(WAIT_S,))
    stopping.start()
    fake_runtime.release()
    assert answer.result(WAIT_S).runtime_name == "fake-runtime"
    stopping.join(WAIT_S)


def test_a_killed_runtime_cuts_calls_and_leaves_its_socket(
    fake_runtime: FakeRuntime, runtime: Runtime
) -> None:
    fake_runtime.on("Version", hang=True)
    answer = runtime.Version.future(VERSION)
    fake_runtime.recorded.wait("Version")
    fake_runtime.kill()
    assert answer.code() is grpc.StatusCode.UNAVAILABLE
    assert fake_runtime.socket_path.is_socket()


def test_a_killed_runtime_closes_without_a_goaway(
    fake_runtime: FakeRuntime,
) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(WAIT_S)
        client.connect(str(fake_runtime.socket_path))
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        received = client.recv(65536)
        fake_runtime.kill()
        # What the fake has not read yet makes the end of a Unix socket a reset.
        with contextlib.suppress(ConnectionResetError):
            while data := client.recv(65536):
                received += data
    assert 7 not in frame_types(received)


def frame_types(data: bytes) -> list[int]:
    types = []
    while data:
        types.append(data[3])
        data = data[9 + int.from_bytes(data[:3], "big") :]
    return types


def test_a_killed_runtime_can_start_again(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    for _ in range(3):
        fake_runtime.kill()
        fake_runtime.start()
    with grpc.insecure_channel(fake_runtime.endpoint) as channel:
        stub = api_pb2_grpc.RuntimeServiceStub(channel)
        assert stub.Version(VERSION, timeout=WAIT_S).runtime_name == "fake-runtime"
