"""Bad input of policies, clients and authors of pods: the daemon lives, and no other call changes."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.http2.frames import PREFACE, ErrorCode
from runtimeproxy.testing import FakeRuntime
from runtimeproxy.testing.builders import container_config, create_container_request, pod_sandbox_config
from tests.conformance.asking_policy import PolicyDesk
from tests.conformance.conftest import ProxyStarter
from tests.conformance.messages import CREATE, RUNTIME, STATUS, UNKNOWN, VERSION, asking_create
from tests.conformance.services import ECHO, BytesServices
from tests.lab.proxy_process import ProxyProcess
from tests.peers.blocking import Http2Client
from tests.peers.bytes_client import WAIT_S, BytesClient, answer_of
from tests.peers.scripted_server import ScriptedServer
from tests.peers.wire import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PUSH_PROMISE,
    SETTINGS,
    WINDOW_UPDATE,
    Frame,
    message,
    reset,
    settings,
    wire,
)

CREATED = api_pb2.CreateContainerResponse(container_id="c" * 64).SerializeToString()
STOP = f"{RUNTIME}/StopContainer"

ANSWERS = {
    "raises": {"raise": "secret text"},
    "negative shares": {"resources": {"cpu_shares": -5}},
    "shares of another type": {"resources": {"cpu_shares": "many"}},
    "bad cpuset": {"resources": {"cpuset_cpus": "0-x"}},
    "environment of another type": {"env": {"A": 1}},
}
ANNOTATIONS = {
    "no JSON": "{",
    "another type": "[1, 2]",
    "wrong inside": '{"containers": {"main": {"limits": {"kubernetes.io/batch-cpu": "a lot"}}}}',
    "deep": "[" * 5000,
    "huge number": '{"containers": {"main": {"limits": {"kubernetes.io/batch-cpu": 1e999}}}}',
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_bad_answer_of_a_policy_is_ignored(
    runtime: FakeRuntime, through: BytesClient, desk: PolicyDesk, answer: dict[str, object]
) -> None:
    """By default the request goes on as it came."""
    runtime.on("CreateContainer", response=CREATED)
    request = asking_create(desk.annotations).SerializeToString()
    call = through.start(CREATE, request)
    desk.question().answer(**answer)

    assert answer_of(call).message == CREATED
    assert runtime.recorded.wait("CreateContainer")[0].raw == request


@pytest.mark.parametrize(
    ("field", "answered", "sent"),
    [("cpu_shares", 10**9, 262_144), ("cpu_quota_us", 1, 1_000)],
    ids=["shares over the kernel's", "quota below the kernel's"],
)
def test_value_outside_the_kernels_range_is_clamped(
    runtime: FakeRuntime, through: BytesClient, desk: PolicyDesk, field: str, answered: int, sent: int
) -> None:
    runtime.on("CreateContainer", response=CREATED)
    call = through.start(CREATE, asking_create(desk.annotations).SerializeToString())
    desk.question().answer(resources={field: answered})

    assert answer_of(call).message == CREATED
    raw = runtime.recorded.wait("CreateContainer")[0].raw
    resources = api_pb2.CreateContainerRequest.FromString(raw).config.linux.resources
    names = {"cpu_shares": resources.cpu_shares, "cpu_quota_us": resources.cpu_quota}
    assert names[field] == sent


@pytest.mark.parametrize("text", ANNOTATIONS.values(), ids=ANNOTATIONS.keys())
def test_malformed_annotation(runtime: FakeRuntime, through: BytesClient, text: str) -> None:
    runtime.on("CreateContainer", response=CREATED)
    annotations = {
        "node.koordinator.sh/extended-resource-spec": text,
        "scheduling.koordinator.sh/resource-status": text,
        "scheduling.koordinator.sh/device-allocated": text,
    }
    pod = pod_sandbox_config("malformed", qos="BE", annotations=annotations)
    request = create_container_request("sandbox", container_config("main"), pod).SerializeToString()

    assert through.call(CREATE, request).message == CREATED
    assert runtime.recorded.wait("CreateContainer")[0].raw == request


def test_random_requests_of_all_held_calls(
    runtime: FakeRuntime, direct: BytesClient, through: BytesClient
) -> None:
    """The runtime decides on bytes that are not a message; the proxy passes its answer on."""
    pieces = random.Random(1)
    for method in ("RunPodSandbox", "CreateContainer", "UpdateContainerResources", "RestorePod"):
        for size in (1, 2, 7, 40, 300):
            request = b"\x0a\xff\xff" + pieces.randbytes(size)
            path = f"{RUNTIME}/{method}"
            assert through.call(path, request).code == direct.call(path, request).code != "OK"


def broken(*frames: Frame) -> bytes:
    return wire(PREFACE, settings(), *frames)


GARBAGE = {
    "no HTTP": random.Random(1).randbytes(4096),
    "HTTP/1": b"GET /info HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "preface and noise": PREFACE + b"\xff" * 4096,
    "frame that is too long": broken(Frame(DATA, 0, 1, bytes(20_000))),
    "DATA without HEADERS": broken(Frame(DATA, 0, 1, b"x")),
    "DATA on stream 0": broken(Frame(DATA, 0, 0, b"x")),
    "HEADERS on stream 0": broken(Frame(HEADERS, END_HEADERS, 0, b"\x82")),
    "HEADERS that do not decode": broken(Frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff")),
    "padding that is too long": broken(Frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff\x82")),
    "HEADERS without end": broken(
        Frame(HEADERS, 0, 1, b""), *(Frame(CONTINUATION, 0, 1, bytes(16_000)) for _ in range(100))
    ),
    "CONTINUATION alone": broken(Frame(CONTINUATION, END_HEADERS, 1, b"\x82")),
    "push of a client": broken(Frame(PUSH_PROMISE, END_HEADERS, 1, b"\x00\x00\x00\x02\x82")),
    "odd SETTINGS": broken(Frame(SETTINGS, 0, 0, b"\x00\x04\xff")),
    "window of 0": broken(Frame(WINDOW_UPDATE, 0, 0, bytes(4))),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_client_that_sends_garbage(
    runtime: FakeRuntime, proxy: ProxyProcess, through: BytesClient, garbage: bytes
) -> None:
    """Its own connection ends, by the proxy or by the runtime behind it; another client's call goes on."""
    runtime.on("ExecSync", hang=True, response=b"done")
    call = through.start(f"{RUNTIME}/ExecSync")
    runtime.recorded.wait("ExecSync")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(str(proxy.socket))
        # Whoever refuses early closes before all is sent or read.
        with contextlib.suppress(ConnectionError):
            sock.sendall(garbage)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65_536):
                pass

    runtime.release("ExecSync")
    assert answer_of(call).message == b"done"
    assert through.call(STATUS).code == "OK"
    assert proxy.alive()


def test_client_that_resets(folder: Path, start_proxy: ProxyStarter) -> None:
    """Calls are reset at every stage, on one connection whose other calls keep their results."""
    with FakeRuntime(folder / "runtime.sock", handlers=[BytesServices()]) as runtime:
        runtime.on("StopContainer", response=b"stopped")
        daemon = start_proxy(runtime.socket_path)
        with Http2Client(daemon.socket) as client:
            for number in range(200):
                for path in (STATUS, STOP, CREATE):
                    stream_id = client.open(path)
                    if number % 3:
                        client.message(stream_id, UNKNOWN, end=number % 3 == 1)
                    client.send(reset(stream_id, ErrorCode.CANCEL))
                if number % 20 == 0:
                    assert bytes(client.call(ECHO, b"own").data) == message(b"own")
            assert bytes(client.call(STOP).data) == message(b"stopped")
        assert daemon.alive()


def test_two_messages_in_a_held_call(runtime: FakeRuntime, proxy: ProxyProcess) -> None:
    """The runtime gets them as they came and judges itself."""
    answers = []
    for path in (runtime.socket_path, proxy.socket):
        with Http2Client(path) as client:
            stream_id = client.open(STOP)
            client.send(Frame(DATA, END_STREAM, stream_id, message(b"") * 2))
            answers.append(client.answer(stream_id).trailers.get("grpc-status"))

    assert answers[1] == answers[0]


def test_second_header_block_of_a_held_call(scripted: ScriptedServer, scripted_proxy: ProxyProcess) -> None:
    """Trailers of a request are unknown to gRPC; its servers close the connection, and so does the relay."""
    with Http2Client(scripted_proxy.socket) as client:
        stream_id = client.open(STOP, ("script", "silent"))
        client.send(Frame(HEADERS, END_HEADERS | END_STREAM, stream_id, client.encoded((("a", "b"),))))
        client.until_closed()
        assert client.stream(stream_id).reset_code == ErrorCode.PROTOCOL_ERROR
        assert client.goaways[-1][1] == ErrorCode.PROTOCOL_ERROR


def test_flood_of_connections(runtime: FakeRuntime, proxy: ProxyProcess, through: BytesClient) -> None:
    """Many clients at a time that do not read what they asked for."""
    assert through.call(VERSION).code == "OK"
    with contextlib.ExitStack() as open_clients:
        for _ in range(60):
            client = open_clients.enter_context(Http2Client(proxy.socket))
            client.message(client.open(STATUS))
        assert through.call(VERSION).code == "OK"
        runtime.recorded.wait("Status", 60, WAIT_S)
    assert through.call(VERSION).code == "OK"
