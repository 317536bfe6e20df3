"""Items 51 to 60: server streams, most of all the kubelet's stream of container events."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import CallError, FakeRuntime
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.conformance.conftest import ProxyStarter
from tests.conformance.messages import EVENTS, RUNTIME, STATUS
from tests.conformance.relay_here import RelayHere
from tests.conformance.services import CONVERSE, COUNT, HEALTH_CHECK, OVER
from tests.lab import procfs
from tests.lab.cri_client import CriClient
from tests.lab.proxy_process import ProxyProcess
from tests.peers.blocking import LARGEST_WINDOW, Http2Client
from tests.peers.bytes_client import WAIT_S, Answer, BytesClient, Metadata, answer_of
from tests.peers.wire import INITIAL_WINDOW, credit

MIB = 1024 * 1024
HOUR_S = 3600.0
MOST_GROWTH_BYTES = 12 * MIB
"""Buffers, and pages that the allocator keeps; 20 and 64 MiB pass by."""
PREFIX_BYTES = 5


def event(number: int) -> api_pb2.ContainerEventResponse:
    return api_pb2.ContainerEventResponse(container_id=f"container-{number}", created_at=number)


def subscribe(runtime: FakeRuntime, client: BytesClient, count: int = 1) -> list[Iterator[bytes]]:
    """Opens streams of events and waits until the runtime has them all."""
    calls = [client.start(EVENTS, timeout_s=None) for _ in range(count)]
    assert runtime.events.wait_for_subscribers(count, WAIT_S)
    return calls


@pytest.mark.conformance(51)
def test_each_event_comes_at_once_and_in_order(runtime: FakeRuntime, through: BytesClient) -> None:
    """The next event is sent only when the one before has arrived, so none may wait for company."""
    [call] = subscribe(runtime, through)

    for number in range(200):
        runtime.emit_event(event(number))
        assert next(call) == event(number).SerializeToString()


@pytest.mark.conformance(52)
def test_event_after_an_idle_hour(folder: Path, runtime: FakeRuntime) -> None:
    """The hour is not waited for: the clock of the relay's loop is put forward, and every timer that is
    due by then fires. There is none for a stream or connection without traffic.
    """
    with (
        RelayHere(folder / "relay.sock", runtime.socket_path) as relay,
        BytesClient(relay.socket) as client,
    ):
        [call] = subscribe(runtime, client)
        runtime.emit_event(event(1))
        assert next(call) == event(1).SerializeToString()
        relay.travel(HOUR_S)
        runtime.emit_event(event(2))
        assert next(call) == event(2).SerializeToString()


@pytest.mark.conformance(53)
def test_headers_come_before_any_event(runtime: FakeRuntime, through: BytesClient) -> None:
    headers: Metadata = (("ready", "yes"),)
    runtime.on("GetContainerEvents", initial_metadata=headers)

    call = through.start(EVENTS, timeout_s=None)

    assert tuple(call.initial_metadata()) == headers
    assert not call.done()
    # The fake subscribes after the headers: the next test must not count this subscriber.
    assert runtime.events.wait_for_subscribers(1, WAIT_S)
    call.cancel()


@pytest.mark.conformance(54)
def test_end_of_the_stream(runtime: FakeRuntime, direct: BytesClient, through: BytesClient) -> None:
    """CRI-O without events ends at once with OK."""
    answers = []
    for client in (direct, through):
        [call] = subscribe(runtime, client)
        runtime.emit_event(event(1))
        runtime.events.end()
        answers.append(answer_of(call))
        assert runtime.events.wait_for_subscribers(0, WAIT_S)

    assert answers[1] == answers[0] == Answer("OK", "", (event(1).SerializeToString(),), (), ())


@pytest.mark.conformance(54)
def test_error_at_the_end_of_the_stream(
    runtime: FakeRuntime, direct: BytesClient, through: BytesClient
) -> None:
    error = CallError("UNAVAILABLE", "events are switched off", trailing_metadata=(("why", "test"),))
    runtime.on("GetContainerEvents", error=error, after=True)
    answers = []
    for client in (direct, through):
        [call] = subscribe(runtime, client)
        runtime.emit_event(event(1))
        assert next(call) == event(1).SerializeToString()
        runtime.events.end()
        answers.append(answer_of(call))

    assert answers[1] == answers[0]
    assert (answers[0].code, answers[0].text) == ("UNAVAILABLE", "events are switched off")


@pytest.mark.conformance(55)
@pytest.mark.parametrize("reads", [True, False], ids=["no stream credit", "reads nothing"])
def test_slow_consumer(runtime: FakeRuntime, start_proxy: ProxyStarter, reads: bool) -> None:
    """One client gives no credit for its stream, or a huge window and then reads nothing at all, so that
    only the sockets push back. Other streams go on, and the proxy keeps nothing of the 64 MiB that wait.
    """
    daemon = start_proxy(runtime.socket_path)
    before = warm_rss_bytes(daemon)
    window = 65_535 if reads else LARGEST_WINDOW
    with (
        BytesClient(daemon.socket) as through,
        Http2Client(daemon.socket, {INITIAL_WINDOW: window}) as slow,
    ):
        slow.credits = False
        slow.send(credit(0, LARGEST_WINDOW - 65_535))
        stream_id = slow.open(COUNT)
        slow.message(stream_id, b"4096 16384")
        slow.until(lambda: len(slow.stream(stream_id).data) >= (65_535 if reads else 1))

        [call] = subscribe(runtime, through)
        for number in range(100):
            runtime.emit_event(event(number))
            assert next(call) == event(number).SerializeToString()
            assert through.call(STATUS).code == "OK"
        if reads:
            assert slow.call(STATUS).trailers["grpc-status"] == "0"

        assert procfs.rss_bytes(daemon.pid) - before < MOST_GROWTH_BYTES
        assert not slow.stream(stream_id).is_over


def warm_rss_bytes(daemon: ProxyProcess) -> int:
    """The memory of a daemon that has loaded all that it loads: its own services and the CRI's messages."""
    with BytesClient(daemon.socket) as client:
        assert client.call(HEALTH_CHECK).code == "OK"
        assert client.call(f"{RUNTIME}/StopContainer").code == "OK"
    return procfs.rss_bytes(daemon.pid)


@pytest.mark.conformance(56)
def test_flood_of_events(runtime: FakeRuntime, through: BytesClient) -> None:
    """10,000 events as fast as the runtime can send them, to two consumers, instead of the same rate for
    10 s: a loss would come from a full queue, and queues fill fastest so.
    """
    count = 10_000
    calls = subscribe(runtime, through, 2)
    received: queue.Queue[list[bytes]] = queue.Queue()

    def consume(call: Iterator[bytes]) -> None:
        received.put([next(call) for _ in range(count)])

    threads = [threading.Thread(target=consume, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for number in range(count):
        runtime.emit_event(event(number))
    for thread in threads:
        thread.join()

    expected = [event(number).SerializeToString() for number in range(count)]
    assert [received.get(), received.get()] == [expected] * 2


@pytest.mark.conformance(57)
def test_proxy_has_no_stream_of_its_own(runtime: FakeRuntime, start_proxy: ProxyStarter) -> None:
    """A CRI-O whose subscribers share one queue would lose the kubelet's events to it. The recovery is
    over and a pod has come and gone before the subscribers are counted.
    """
    daemon = start_proxy(runtime.socket_path)
    with BytesClient(daemon.socket) as client, CriClient(daemon.socket) as cri:
        for method in ("ListPodSandbox", "ListContainers"):
            runtime.recorded.wait(method)
        run = api_pb2.RunPodSandboxRequest(config=pod_sandbox_config("short"))
        sandbox = cri.runtime.RunPodSandbox(run).pod_sandbox_id
        cri.runtime.RemovePodSandbox(api_pb2.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
        assert not runtime.recorded.of("GetContainerEvents")
        subscribe(runtime, client)

    assert len(runtime.recorded.of("GetContainerEvents")) == 1


@pytest.mark.conformance(58)
@pytest.mark.parametrize("path", [STATUS, f"{RUNTIME}/StopContainer"], ids=["passing", "held"])
def test_server_finishes_before_the_client(runtime: FakeRuntime, proxy: ProxyProcess, path: str) -> None:
    """The answer is there before the message; the client may still send it, or not, and call again."""
    method = path.rpartition("/")[2]
    runtime.on(method, response=b"early", before_message=True, times=2)
    with Http2Client(proxy.socket) as client:
        for sends in (True, False):
            stream_id = client.open(path)
            answer = client.answer(stream_id)
            assert bytes(answer.data[PREFIX_BYTES:]) == b"early"
            assert answer.trailers["grpc-status"] == "0"
            if sends and answer.reset_code is None:
                client.message(stream_id, b"late")
        assert client.call(path).trailers["grpc-status"] == "0"


@pytest.mark.conformance(59)
def test_large_streamed_list(runtime: FakeRuntime, start_proxy: ProxyStarter) -> None:
    """100,000 items in 1,000 messages of 20 KiB (100 items each, as the fake runtime cuts lists), to a
    client with the smallest usual windows; the proxy's memory does not grow with the list.
    """
    daemon = start_proxy(runtime.socket_path)
    before = warm_rss_bytes(daemon)
    messages, size = 1_000, 20_480
    with Http2Client(daemon.socket) as client:
        client.message(client.open(COUNT), f"{messages} {size}".encode())
        data = client.answer(1).data

    whole = PREFIX_BYTES + size
    assert len(data) == messages * whole
    numbers = [int.from_bytes(data[place + 5 : place + 13], "big") for place in range(0, len(data), whole)]
    assert numbers == list(range(messages))
    assert procfs.rss_bytes(daemon.pid) - before < MOST_GROWTH_BYTES


@pytest.mark.conformance(60)
def test_half_close(through: BytesClient) -> None:
    """The server says its last word only when the client has ended its side."""
    requests: queue.Queue[bytes | None] = queue.Queue()
    call = through.converse(CONVERSE, iter(requests.get, None))

    for message in (b"1", b"2"):
        requests.put(message)
        assert next(call) == message
    requests.put(None)
    assert list(call) == [OVER]
    assert call.code().name == "OK"
