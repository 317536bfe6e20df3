"""Items 67 to 75: the runtime comes and goes, the proxy comes and goes."""

from __future__ import annotations

import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.errors import MESSAGE_PREFIX
from runtimeproxy.http2.frames import MAX_STREAM_ID, ErrorCode
from runtimeproxy.testing import FakeRuntime
from runtimeproxy.testing.builders import container_config, create_container_request, pod_sandbox_config
from tests.conformance.asking_policy import PolicyDesk
from tests.conformance.conftest import ProxyStarter
from tests.conformance.messages import (
    CREATE,
    EVENTS,
    EXEC,
    STATUS,
    VERSION,
    asking_create,
    plain_create,
)
from tests.conformance.services import BytesServices
from tests.lab.cri_client import CriClient
from tests.lab.deadline import quickest_s, time_s, wait_until
from tests.peers.blocking import Http2Client
from tests.peers.bytes_client import WAIT_S, BytesClient, answer_of
from tests.peers.wire import ping

CREATED = api_pb2.CreateContainerResponse(container_id="c" * 64).SerializeToString()
BACK_S = 3.0
"""Source: k8s.io/cri-client, the kubelet's longest pause between two attempts to connect."""
PROMPT_S = 0.5
"""At once; in the best of several tries, for the machine may be busy."""


def back_s(client: BytesClient) -> float:
    """How long it takes until calls succeed again."""
    return time_s(lambda: wait_until(lambda: client.call(VERSION).code == "OK", "calls succeed again"))


@pytest.mark.conformance(67)
def test_runtime_is_not_up_yet(folder: Path, start_proxy: ProxyStarter) -> None:
    """The proxy serves at once, and the first call waits until the runtime is there."""
    daemon = start_proxy(folder / "runtime.sock")
    with BytesClient(daemon.socket) as client:
        call = client.start(VERSION)
        # A PING of another client is answered while the call waits: the proxy lives.
        with Http2Client(daemon.socket) as other:
            other.send(ping(b"12345678"))
            other.until(lambda: other.ping_acks)
        assert not call.done()
        with FakeRuntime(folder / "runtime.sock"):
            assert answer_of(call).code == "OK"
    assert daemon.alive()


@pytest.mark.conformance(68, 69)
@pytest.mark.parametrize("path", [CREATE, EXEC, EVENTS], ids=["held", "passing", "stream"])
def test_runtime_dies_in_a_call(folder: Path, start_proxy: ProxyStarter, path: str) -> None:
    """The caller learns it at once and with the code of a direct connection, nothing is repeated, and
    when the runtime is back the next call succeeds.
    """
    method = path.rpartition("/")[2]
    with FakeRuntime(folder / "runtime.sock") as runtime:
        daemon = start_proxy(runtime.socket_path)
        took_s, came_back_s, codes = [], [], []
        for number in range(5):
            runtime.on(method, hang=True)
            with BytesClient(daemon.socket) as client:
                call = client.start(path, plain_create().SerializeToString() if path == CREATE else b"")
                runtime.recorded.wait(method, number + 1)
                ended = threading.Event()
                call.add_callback(ended.set)
                begin = time.monotonic()
                runtime.kill()
                assert ended.wait(WAIT_S)
                took_s.append(time.monotonic() - begin)
                codes.append(call.code().name)
                runtime.start()
                came_back_s.append(back_s(client))

        assert codes == ["UNAVAILABLE"] * 5
        assert len(runtime.recorded.of(method)) == 5
        assert min(took_s) < PROMPT_S
        assert min(came_back_s) < BACK_S


@pytest.mark.conformance(69)
def test_idle_client_when_the_runtime_returns(folder: Path, start_proxy: ProxyStarter) -> None:
    """A call without wait-for-ready, as the kubelet makes it, succeeds within the kubelet's longest
    pause.
    """
    with FakeRuntime(folder / "runtime.sock") as runtime:
        daemon = start_proxy(runtime.socket_path)
        with BytesClient(daemon.socket) as client:
            assert client.call(VERSION).code == "OK"

            def restart_s() -> float:
                runtime.restart()
                return back_s(client)

            assert quickest_s(restart_s, BACK_S) < BACK_S


@pytest.mark.conformance(70)
def test_socket_of_the_runtime_is_replaced(folder: Path, start_proxy: ProxyStarter) -> None:
    """A new socket is renamed over the old one, whose server still lives: new clients reach the new one."""
    path = folder / "runtime.sock"
    with FakeRuntime(path) as old, FakeRuntime(folder / "next.sock") as new:
        daemon = start_proxy(path)
        with BytesClient(daemon.socket) as client:
            assert client.call(STATUS).code == "OK"
            new.socket_path.rename(path)
            with BytesClient(daemon.socket) as later:
                assert later.call(STATUS).code == "OK"

        assert (len(old.recorded.of("Status")), len(new.recorded.of("Status"))) == (1, 1)


@pytest.mark.conformance(71)
@pytest.mark.parametrize("path", [VERSION, CREATE], ids=["passing", "held"])
def test_runtime_accepts_and_never_answers(folder: Path, start_proxy: ProxyStarter, path: str) -> None:
    """Only the caller's deadline ends the call, and another client is not hurt by it."""
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(folder / "runtime.sock"))
        hung.listen(16)
        daemon = start_proxy(folder / "runtime.sock")
        with BytesClient(daemon.socket) as client, BytesClient(daemon.socket) as other:
            long = other.start(path, timeout_s=None)
            assert client.call(path, timeout_s=0.3).code == "DEADLINE_EXCEEDED"
            assert not long.done()
            long.cancel()


@pytest.mark.conformance(72)
def test_proxy_restarts(folder: Path, start_proxy: ProxyStarter) -> None:
    """The kubelet's calls come back within its longest pause; a container that runs is not touched."""
    with FakeRuntime(folder / "runtime.sock") as runtime:
        daemon = start_proxy(runtime.socket_path)
        with CriClient(daemon.socket) as client, BytesClient(daemon.socket) as kubelet:
            pod = pod_sandbox_config("web")
            sandbox = client.runtime.RunPodSandbox(api_pb2.RunPodSandboxRequest(config=pod)).pod_sandbox_id
            create = create_container_request(sandbox, container_config("main", pod=pod), pod)
            made = client.runtime.CreateContainer(create).container_id
            client.runtime.StartContainer(api_pb2.StartContainerRequest(container_id=made))
            assert kubelet.call(VERSION).code == "OK"
            before = runtime.state.find_container(made).pid
            runtime.recorded.clear()

            def restart_s() -> float:
                daemon.restart()
                return back_s(kubelet)

            assert quickest_s(restart_s, BACK_S) < BACK_S

        assert runtime.state.find_container(made).pid == before
        changing = {"StopContainer", "RemoveContainer", "UpdateContainerResources", "StopPodSandbox"}
        assert changing.isdisjoint(runtime.recorded.methods)


@pytest.mark.conformance(73)
def test_graceful_stop(folder: Path, start_proxy: ProxyStarter, desk: PolicyDesk) -> None:
    """An intercepted call finishes, the client gets a GOAWAY, new clients are refused, the exit code is 0.

    The list wants all unary calls in flight to finish. By design intercepted calls do; streams and long
    calls that just pass are cut, as a restart of the runtime cuts them, so that stop and start stay under
    4 s.
    """
    with FakeRuntime(folder / "runtime.sock") as runtime:
        runtime.on("CreateContainer", response=CREATED)
        runtime.on("ExecSync", hang=True)
        daemon = start_proxy(runtime.socket_path)
        with Http2Client(daemon.socket) as client:
            passing = client.open(EXEC)
            client.message(passing)
            held = client.open(CREATE)
            client.message(held, asking_create(desk.annotations).SerializeToString())
            question = desk.question()
            runtime.recorded.wait("ExecSync")

            daemon.signal(signal.SIGTERM)
            client.until(lambda: len(client.goaways) == 2)
            assert client.goaways == [(MAX_STREAM_ID, ErrorCode.NO_ERROR), (held, ErrorCode.NO_ERROR)]
            with socket.socket(socket.AF_UNIX) as late, pytest.raises((FileNotFoundError, ConnectionError)):
                late.connect(str(daemon.socket))
            client.open(STATUS)

            question.answer(env={"ANSWERED": "1"})
            assert bytes(client.answer(held).data[5:]) == CREATED
            client.until_closed()

        assert not client.stream(passing).is_over
        assert daemon.wait() == 0
        assert runtime.recorded.of("ExecSync")[0].ended.wait(WAIT_S)


@pytest.mark.conformance(73)
def test_stop_without_calls_is_quick(runtime: FakeRuntime, start_proxy: ProxyStarter) -> None:
    """Stop and start again stay under 4 s also with clients that hold idle connections and streams."""

    def stop_s() -> float:
        daemon = start_proxy(runtime.socket_path)
        with BytesClient(daemon.socket) as client:
            call = client.start(EVENTS, timeout_s=None)
            assert runtime.events.wait_for_subscribers(1, WAIT_S)
            took_s = time_s(daemon.terminate)
            assert daemon.wait() == 0
            assert answer_of(call).code == "UNAVAILABLE"
        assert runtime.events.wait_for_subscribers(0, WAIT_S)
        return took_s

    assert quickest_s(stop_s, 4) < 4


@pytest.mark.conformance(74)
def test_start_after_sudden_death(runtime: FakeRuntime, start_proxy: ProxyStarter) -> None:
    daemon = start_proxy(runtime.socket_path)
    daemon.kill()
    assert daemon.socket.is_socket()

    daemon.start()

    with BytesClient(daemon.socket) as client:
        assert client.call(VERSION).code == "OK"


@pytest.mark.conformance(75)
def test_second_instance_steals_nothing(runtime: FakeRuntime, start_proxy: ProxyStarter) -> None:
    daemon = start_proxy(runtime.socket_path)
    second = start_proxy.prepare(runtime.socket_path, "", "--koord-runtimeproxy-endpoint", str(daemon.socket))
    second.spawn()

    assert second.wait() == 1
    assert str(daemon.socket) in second.log[-1]
    with BytesClient(daemon.socket) as client:
        assert client.call(VERSION).code == "OK"


@pytest.mark.conformance(75)
def test_live_socket_of_another_program_is_not_stolen(
    runtime: FakeRuntime, folder: Path, start_proxy: ProxyStarter
) -> None:
    with FakeRuntime(folder / "other.sock") as other:
        daemon = start_proxy.prepare(
            runtime.socket_path, "", "--koord-runtimeproxy-endpoint", str(other.socket_path)
        )
        daemon.spawn()

        assert daemon.wait() == 1
        with BytesClient(other.socket_path) as client:
            assert client.call(VERSION).code == "OK"


@pytest.mark.conformance(67, 33)
def test_runtime_stays_away(folder: Path, start_proxy: ProxyStarter) -> None:
    """After the configured time the waiting calls are refused with the proxy's own words, and the next
    connection waits anew; the daemon lives on."""
    daemon = start_proxy(folder / "runtime.sock", "[proxy]\nupstream_wait_s = 0.2\n")
    with BytesClient(daemon.socket) as client:
        for _ in range(2):
            calls = [client.start(path) for path in (VERSION, CREATE, EVENTS)]
            answers = [answer_of(call) for call in calls]
            assert [answer.code for answer in answers] == ["UNAVAILABLE"] * 3
            assert all(answer.text.startswith(MESSAGE_PREFIX) for answer in answers)
        with FakeRuntime(folder / "runtime.sock", handlers=[BytesServices()]):
            assert client.call(VERSION, wait_for_ready=True).code == "OK"
    assert daemon.alive()
