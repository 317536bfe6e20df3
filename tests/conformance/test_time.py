"""Items 42 to 50: deadlines and cancellation."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import FakeRuntime
from tests.conformance.asking_policy import PolicyDesk
from tests.conformance.messages import (
    CREATE,
    EVENTS,
    EXEC,
    IMAGE,
    RUNTIME,
    STATUS,
    VERSION,
    asking_create,
    plain_create,
)
from tests.conformance.relay_here import HoldingInterceptor, RelayHere
from tests.lab.deadline import quickest_s
from tests.lab.proxy_process import ProxyProcess
from tests.peers.blocking import Http2Client
from tests.peers.bytes_client import WAIT_S, BytesClient, answer_of

PATHS = pytest.mark.parametrize("path", [STATUS, f"{RUNTIME}/StopContainer"], ids=["passing", "held"])
CREATED = api_pb2.CreateContainerResponse(container_id="c" * 64).SerializeToString()

PROMPT_S = 0.1
"""What the list asks of a cancellation."""
TRIES = 20
"""The machine may be busy with something else; the best of so many tries shows what the proxy adds."""


@pytest.mark.conformance(42)
@PATHS
def test_deadline_reaches_the_runtime(runtime: FakeRuntime, proxy: ProxyProcess, path: str) -> None:
    """The header passes at once and unchanged (`test_request_headers_are_the_same_bytes`), so what the
    runtime counts from is late by the way through the proxy only: the best of many calls is within 50
    ms. gRPC's Python client rounds long timeouts up, so the header is written by hand here.
    """
    with Http2Client(proxy.socket) as client:

        def late_s() -> float:
            assert client.call(path, b"", ("grpc-timeout", "30000m")).trailers["grpc-status"] == "0"
            return 30 - (runtime.recorded.of(path.rpartition("/")[2])[-1].deadline_s or 0)

        assert 0 <= quickest_s(late_s, 0.05, 10 * TRIES) < 0.05


@pytest.mark.conformance(43)
@pytest.mark.parametrize("path", [f"{IMAGE}/PullImage", EXEC, f"{RUNTIME}/StopContainer"])
def test_no_deadline_stays_none(runtime: FakeRuntime, through: BytesClient, path: str) -> None:
    method = path.rpartition("/")[2]
    runtime.on(method, response=b"")

    assert through.call(path, timeout_s=None).code == "OK"
    assert runtime.recorded.wait(method)[0].deadline_s is None


@pytest.mark.conformance(43)
def test_events_have_no_deadline(runtime: FakeRuntime, through: BytesClient) -> None:
    call = through.start(EVENTS, timeout_s=None)

    assert runtime.events.wait_for_subscribers(1, WAIT_S)
    assert runtime.recorded.wait("GetContainerEvents")[0].deadline_s is None
    call.cancel()


@pytest.mark.conformance(44)
def test_time_of_a_policy_counts(runtime: FakeRuntime, through: BytesClient, desk: PolicyDesk) -> None:
    """A policy that does not answer costs a quarter of the deadline, no more; the runtime sees the rest."""
    runtime.on("CreateContainer", response=CREATED)
    call = through.start(CREATE, asking_create(desk.annotations).SerializeToString(), timeout_s=4)
    desk.question()

    assert list(call) == [CREATED]
    left_s = runtime.recorded.wait("CreateContainer")[0].deadline_s
    assert left_s is not None
    assert left_s <= 3.1


@pytest.mark.conformance(44)
def test_deadline_ends_a_held_call(folder: Path, runtime: FakeRuntime) -> None:
    """Whoever holds a call for too long: the caller's deadline ends it, and the runtime never runs it."""
    interceptor = HoldingInterceptor({CREATE})
    with (
        RelayHere(folder / "relay.sock", runtime.socket_path, interceptor) as relay,
        BytesClient(relay.socket) as client,
    ):
        assert client.call(STATUS).code == "OK"
        assert client.call(CREATE, b"", timeout_s=1.0).code == "DEADLINE_EXCEEDED"
        held = interceptor.next()
        assert held.was_cancelled.wait(WAIT_S)
        held.forward()
        assert client.call(STATUS).code == "OK"

    assert not runtime.recorded.of("CreateContainer")


@pytest.mark.conformance(45)
@pytest.mark.parametrize(
    "path", [EXEC, f"{RUNTIME}/StopContainer", EVENTS], ids=["passing", "held", "stream"]
)
def test_expiry(runtime: FakeRuntime, through: BytesClient, path: str) -> None:
    """ExecSync's is the probe's "timed out"."""
    method = path.rpartition("/")[2]
    assert through.call(VERSION).code == "OK"
    runtime.on(method, hang=True)

    answer = through.call(path, timeout_s=1.0)

    assert (answer.code, answer.text) == ("DEADLINE_EXCEEDED", "Deadline Exceeded")
    assert runtime.recorded.wait(method)[0].ended.wait(WAIT_S)


@pytest.mark.conformance(46, 47)
@pytest.mark.parametrize(
    "path",
    [STATUS, f"{RUNTIME}/StopContainer", EVENTS],
    ids=["passing", "held", "stream"],
)
def test_cancel_reaches_the_runtime(runtime: FakeRuntime, through: BytesClient, path: str) -> None:
    method = path.rpartition("/")[2]
    runtime.on(method, hang=True)
    took_s = []
    for number in range(TRIES):
        call = through.start(path)
        recorded = runtime.recorded.wait(method, number + 1)[-1]
        begin = time.monotonic()
        call.cancel()
        assert recorded.ended.wait(WAIT_S)
        took_s.append(time.monotonic() - begin)
        assert recorded.cancelled

    assert min(took_s) < PROMPT_S


@pytest.mark.conformance(48)
def test_disconnect_cancels_all_calls(runtime: FakeRuntime, proxy: ProxyProcess) -> None:
    paths = [STATUS, f"{RUNTIME}/StopContainer", EVENTS, EXEC]
    runtime.on("*", hang=True)
    with Http2Client(proxy.socket) as client:
        for path in paths:
            client.message(client.open(path))
        calls = [runtime.recorded.wait(path.rpartition("/")[2])[0] for path in paths]

    for call in calls:
        assert call.ended.wait(WAIT_S)
        assert call.cancelled


@pytest.mark.conformance(49)
def test_cancel_during_a_policy(runtime: FakeRuntime, through: BytesClient, desk: PolicyDesk) -> None:
    """A thread cannot be stopped; its answer is thrown away, and the next call is not hurt."""
    request = asking_create(desk.annotations).SerializeToString()
    runtime.on("CreateContainer", response=CREATED)
    call = through.start(CREATE, request)
    question = desk.question()

    call.cancel()
    assert answer_of(call).code == "CANCELLED"
    # The cancellation has arrived when a later call on the connection has: frames keep their order.
    assert through.call(STATUS).code == "OK"
    question.answer(env={"LATE": "1"})
    assert through.call(CREATE, plain_create().SerializeToString()).message == CREATED

    assert [each.message.config.envs[-1].key for each in runtime.recorded.of("CreateContainer")] == ["PATH"]


@pytest.mark.conformance(49)
def test_cancel_of_a_held_call(folder: Path, runtime: FakeRuntime) -> None:
    """The handler is cancelled, and nothing more is sent to the runtime."""
    interceptor = HoldingInterceptor({CREATE})
    with (
        RelayHere(folder / "relay.sock", runtime.socket_path, interceptor) as relay,
        BytesClient(relay.socket) as client,
    ):
        call = client.start(CREATE)
        held = interceptor.next()
        call.cancel()
        assert held.was_cancelled.wait(WAIT_S)
        held.forward()
        assert client.call(STATUS).code == "OK"

    assert not runtime.recorded.of("CreateContainer")
    assert call.code() is grpc.StatusCode.CANCELLED


@pytest.mark.conformance(50)
def test_other_clients_disconnect(runtime: FakeRuntime, proxy: ProxyProcess, through: BytesClient) -> None:
    runtime.on("ExecSync", hang=True, times=1)
    call = through.start(EXEC)
    recorded = runtime.recorded.wait("ExecSync")[0]
    runtime.on("StopContainer", hang=True)
    with Http2Client(proxy.socket) as other:
        other.message(other.open(f"{RUNTIME}/StopContainer"))
        ended = runtime.recorded.wait("StopContainer")[0].ended

    assert ended.wait(WAIT_S)
    assert not recorded.ended.is_set()
    runtime.release("ExecSync")
    # No such container: the runtime's own answer, not the proxy's.
    assert answer_of(call).code == "NOT_FOUND"
