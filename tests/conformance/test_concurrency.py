"""Items 61 to 66: many calls at a time."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.http2.frames import PREFACE
from runtimeproxy.testing import FakeRuntime
from tests.conformance.asking_policy import PolicyDesk
from tests.conformance.messages import CREATE, EXEC, LIST, RUNTIME, STATUS, asking_create, plain_create
from tests.conformance.services import COUNT
from tests.lab import procfs
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.peers.blocking import Http2Client
from tests.peers.bytes_client import WAIT_S, BytesClient, answer_of
from tests.peers.wire import INITIAL_WINDOW, settings, wire

MIB = 1024 * 1024
CREATED = api_pb2.CreateContainerResponse(container_id="c" * 64).SerializeToString()


@pytest.mark.conformance(61, 64)
def test_300_calls_at_a_time(runtime: FakeRuntime, through: BytesClient) -> None:
    """Each ends only when all of them have reached the runtime, on one connection. That they take no longer
    together than one alone follows, without the list's second of waiting."""
    runtime.on("ExecSync", hang=True, response=b"done")
    calls = [through.start(EXEC) for _ in range(300)]
    runtime.recorded.wait("ExecSync", 300, WAIT_S)
    runtime.release("ExecSync")

    assert [answer_of(call).message for call in calls] == [b"done"] * 300


@pytest.mark.conformance(64)
@pytest.mark.parametrize("path", [STATUS, f"{RUNTIME}/StopContainer"], ids=["passing", "held"])
def test_streams_of_one_connection(runtime: FakeRuntime, proxy: ProxyProcess, path: str) -> None:
    """250 streams stay open together; the relay announces no bound of its own, the runtime's holds."""
    method = path.rpartition("/")[2]
    runtime.on(method, hang=True, response=b"")
    with Http2Client(proxy.socket) as client:
        stream_ids = [client.open(path) for _ in range(250)]
        for stream_id in reversed(stream_ids):
            client.message(stream_id)
        runtime.recorded.wait(method, 250, WAIT_S)
        runtime.release(method)
        for stream_id in stream_ids:
            assert client.answer(stream_id).trailers["grpc-status"] == "0"


@pytest.mark.conformance(62)
def test_blocked_create_delays_no_other_call(runtime: FakeRuntime, through: BytesClient) -> None:
    """The create hangs in the runtime for as long as it takes, instead of the list's 60 s."""
    runtime.on("CreateContainer", hang=True, response=CREATED)
    call = through.start(CREATE, plain_create().SerializeToString())
    runtime.recorded.wait("CreateContainer")

    for path in (LIST, STATUS, f"{RUNTIME}/ListPodSandbox", f"{RUNTIME}/StopContainer"):
        assert through.call(path).code == "OK"
    assert not call.done()
    runtime.release("CreateContainer")
    assert list(call) == [CREATED]


@pytest.mark.conformance(62)
def test_blocked_policy_delays_no_other_call(
    runtime: FakeRuntime, through: BytesClient, desk: PolicyDesk
) -> None:
    runtime.on("CreateContainer", response=CREATED)
    call = through.start(CREATE, asking_create(desk.annotations).SerializeToString())
    question = desk.question()

    for path in (LIST, STATUS, f"{RUNTIME}/ListPodSandbox"):
        assert through.call(path).code == "OK"
    assert through.call(CREATE, plain_create("elsewhere").SerializeToString()).code == "OK"
    assert not call.done()
    question.answer()
    assert list(call) == [CREATED]


@pytest.mark.conformance(63)
@pytest.mark.parametrize("sandboxes", [("one", "one"), ("one", "two")], ids=["one pod", "two pods"])
def test_two_creates_in_the_runtime(
    runtime: FakeRuntime, through: BytesClient, sandboxes: tuple[str, str]
) -> None:
    runtime.on("CreateContainer", hang=True, response=CREATED)
    requests = [plain_create(sandbox, f"c{number}") for number, sandbox in enumerate(sandboxes)]
    calls = [through.start(CREATE, request.SerializeToString()) for request in requests]
    runtime.recorded.wait("CreateContainer", 2)
    runtime.release("CreateContainer")

    assert [list(call) for call in calls] == [[CREATED], [CREATED]]


@pytest.mark.conformance(63)
@pytest.mark.parametrize("sandboxes", [("one", "one"), ("one", "two")], ids=["one pod", "two pods"])
def test_two_creates_in_a_policy(
    runtime: FakeRuntime, through: BytesClient, desk: PolicyDesk, sandboxes: tuple[str, str]
) -> None:
    """Both are with the policy at the same time, and the later one may be done first."""
    runtime.on("CreateContainer", response=CREATED)
    requests = [
        asking_create(desk.annotations, f"c{number}", sandbox, sandbox)
        for number, sandbox in enumerate(sandboxes)
    ]
    calls = [through.start(CREATE, request.SerializeToString()) for request in requests]
    questions = {each.name: each for each in (desk.question(), desk.question())}

    for number in (1, 0):
        questions[f"c{number}"].answer(env={"ANSWERED": "1"})
        assert list(calls[number]) == [CREATED]


@pytest.mark.conformance(65)
def test_list_does_not_stand_in_front(runtime: FakeRuntime, proxy: ProxyProcess) -> None:
    """A client reads a list of 64 MiB and asks for the Status on the same connection. How much of the
    list comes before the answer is counted, instead of the time: no more than what was under way in
    buffers; the least of several, for the list goes on while the runtime's answer waits for a CPU. Behind the
    list there would be no answer before its end.
    """
    size = 64 * MIB
    runtime.on("ListContainerStats", response=b"x" * size)
    with Http2Client(proxy.socket, {INITIAL_WINDOW: MIB}) as client:
        client.message(client.open(LIST))
        ahead: list[int] = []
        while min(ahead, default=size) >= 8 * MIB:
            read_more(client)
            before = len(client.stream(1).data)
            assert client.call(STATUS).trailers["grpc-status"] == "0"
            ahead.append(len(client.stream(1).data) - before)
            assert not client.stream(1).is_over, ahead
        assert len(client.answer(1).data) == size + 5


@pytest.mark.conformance(65)
def test_list_of_one_client_does_not_stand_in_front_of_another(
    runtime: FakeRuntime, proxy: ProxyProcess, through: BytesClient
) -> None:
    """The other client's calls are answered while the list is under way."""
    runtime.on("ListContainerStats", response=b"x" * (64 * MIB))
    with Http2Client(proxy.socket, {INITIAL_WINDOW: MIB}) as client:
        client.message(client.open(LIST))
        for _ in range(10):
            read_more(client)
            assert through.call(STATUS).code == "OK"
        assert not client.stream(1).is_over


def read_more(client: Http2Client) -> None:
    """Reads another MiB of the first call's answer."""
    data = client.stream(1).data
    enough = len(data) + MIB
    client.until(lambda: len(data) > enough)


@pytest.mark.conformance(66)
def test_short_connections_leak_nothing(runtime: FakeRuntime, proxy: ProxyProcess) -> None:
    """Clients that make a call, say nothing, leave in the preface, in a call, or at once."""
    with BytesClient(proxy.socket) as client:
        client.call(STATUS)
        before = procfs.open_files(proxy.pid)
        for _ in range(100):
            visit(proxy.socket)

        wait_until(lambda: procfs.open_files(proxy.pid) <= before or None, "all files are closed", WAIT_S)
        assert client.call(STATUS).code == "OK"


def visit(path: Path) -> None:
    with Http2Client(path) as client:
        client.call(STATUS)
    with Http2Client(path) as client:
        client.message(client.open(COUNT), b"100 16384")
    with Http2Client(path) as client:
        client.open(CREATE)
    for begin in (b"", PREFACE[:10], b"GET / HTTP/1.1\r\n\r\n", wire(PREFACE, settings())):
        with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(ConnectionError):
            sock.connect(str(path))
            sock.sendall(begin)
