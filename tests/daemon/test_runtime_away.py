"""A runtime that restarts: calls wait for it, and an event stream is soon back."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.driving import pod
from tests.daemon.upgrading import WAIT_S, Family
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

BOTH_LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
RESTARTS = 4
BACK_S = 1.0


class Watching:
    """What a kubelet with evented PLEG does: it asks for events again as soon as the stream has broken.

    Attributes:
        seen: the names of the pods of which there were events.
        failures: how often the stream has broken.
    """

    def __init__(self, client: CriClient) -> None:
        self.seen: list[str] = []
        self.failures = 0
        self._client = client
        self._is_over = threading.Event()
        self._call: grpc.Call | None = None
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._is_over.is_set():
            call = self._client.runtime.GetContainerEvents(api_pb2.GetEventsRequest(), timeout=60)
            self._call = call
            try:
                self.seen += (event.pod_sandbox_status.metadata.name for event in call)
            except grpc.RpcError:
                self.failures += 1

    def close(self) -> None:
        self._is_over.set()
        if self._call is not None:
            self._call.cancel()
        self._thread.join(30)


@pytest.fixture
def watching(client: CriClient) -> Iterator[Watching]:
    made = Watching(client)
    yield made
    made.close()


@BOTH_LOOPS
def test_an_event_stream_is_back_within_a_second(
    daemon: ProxyProcess, watching: Watching, runtime: FakeRuntime
) -> None:
    back_s = []
    with CriClient(daemon.socket) as other:
        for number in range(RESTARTS):
            runtime.events.wait_for_subscribers(1, 30)
            before = watching.failures
            runtime.kill()
            # The stream has ended and is asked for again while there is no runtime.
            wait_until(lambda: watching.failures > before, "the end of the stream", 30)  # noqa: B023
            runtime.start()
            began_s = time.monotonic()
            runtime.events.wait_for_subscribers(1, 30)
            back_s.append(time.monotonic() - began_s)
            pod(other, f"after-{number}").run()
            wait_until(lambda: f"after-{number}" in watching.seen, "an event", 30)  # noqa: B023
    # One of them on a machine that is not busy just then.
    assert min(back_s) < BACK_S


@BOTH_LOOPS
def test_calls_of_new_connections_wait_and_do_not_fail(daemon: ProxyProcess, runtime: FakeRuntime) -> None:
    runtime.kill()
    with CriClient(daemon.socket) as first, CriClient(daemon.socket) as second:
        waiting: list[grpc.Future[Any]] = [
            first.runtime.Version.future(api_pb2.VersionRequest(), timeout=CALL_TIMEOUT_S),
            first.images.ListImages.future(api_pb2.ListImagesRequest(), timeout=CALL_TIMEOUT_S),
            second.runtime.ListContainers.future(api_pb2.ListContainersRequest(), timeout=CALL_TIMEOUT_S),
        ]
        with pytest.raises(grpc.FutureTimeoutError):
            waiting[0].result(0.5)
        runtime.start()
        for each in waiting:
            assert each.result(30) is not None


def test_an_upgrade_while_it_is_away(daemons: Daemons, runtime: FakeRuntime) -> None:
    daemon = daemons.start("[proxy]\nupstream_wait_s = 120.0\n")
    runtime.kill()
    with Family(daemon) as family, CriClient(daemon.socket) as client:
        waiting = client.runtime.Version.future(api_pb2.VersionRequest(), timeout=WAIT_S)
        with pytest.raises(grpc.FutureTimeoutError):
            waiting.result(0.5)
        family.upgrade()
        runtime.start()
        assert waiting.result(30).runtime_name == "fake-runtime"


def test_the_status_tells_that_it_is_away(daemons: Daemons, runtime: FakeRuntime) -> None:
    daemon = daemons.start("[proxy]\nupstream_wait_s = 120.0\n")
    runtime.stop()
    with CriClient(daemon.socket) as client:
        waiting = client.runtime.Version.future(api_pb2.VersionRequest(), timeout=WAIT_S)
        daemon.wait_for_state("STATUS=the runtime is away; ")
        daemon.forget_states()
        daemon.signal(signal.SIGHUP)
        daemon.wait_for_state("READY=1")
        after_reload = [state for state in daemon.states if state.startswith("STATUS=")][-1]
        assert after_reload.startswith("STATUS=the runtime is away; ")
        daemon.forget_states()
        runtime.start()
        daemon.wait_for_state("STATUS=7 policies")
        assert waiting.result(30).runtime_name == "fake-runtime"


WATCHFUL = """\
import runpy, sys
import runtimeproxy.frontends.runtime_link
runtimeproxy.frontends.runtime_link.WATCH_INTERVAL_S = 0.05
sys.argv = sys.argv[3:]
runpy.run_module("runtimeproxy", run_name="__main__", alter_sys=False)
"""


def about_runtime(daemon: ProxyProcess, text: str) -> list[dict[str, Any]]:
    """The lines of the daemon's own client that have the text."""
    return [
        record
        for record in daemon.log_records
        if record.get("runtime") == daemon.options.runtime_endpoint and text in record["message"]
    ]


def test_a_runtime_that_hangs_is_logged_once_with_its_path(daemons: Daemons, runtime: FakeRuntime) -> None:
    daemon = daemons.start(
        "[proxy]\nruntime_call_timeout_s = 0.1\n", wrapper=(sys.executable, "-c", WATCHFUL)
    )
    wait_until(lambda: about_runtime(daemon, "serving on"), "the start")
    runtime.on("Version", hang=True)
    wait_until(lambda: about_runtime(daemon, "does not answer in time: Version"), "the line", 30)
    runtime.recorded.wait("Version", len(runtime.recorded.of("Version")) + 5)
    runtime.clear("Version")
    wait_until(lambda: about_runtime(daemon, "answers again"), "the other line", 30)
    assert daemon.terminate() == 0
    (record,) = about_runtime(daemon, "does not answer in time")
    assert record["level"] == "warning"
    assert str(runtime.socket_path) in record["message"]


def test_a_runtime_that_is_away_is_logged_once_with_its_path(daemons: Daemons, runtime: FakeRuntime) -> None:
    runtime.kill()
    daemon = daemons.prepare()
    daemon.spawn()
    wait_until(lambda: about_runtime(daemon, "cannot be reached"), "the line", 30)
    daemon.wait_for_state("READY=1")
    with CriClient(daemon.socket) as client:
        for _ in range(3):
            answer = wait_until(lambda: health(client), "health", 30)
            assert answer == bytes((8, 2))
    runtime.start()
    wait_until(lambda: about_runtime(daemon, "answers again"), "the other line", 30)
    assert daemon.terminate() == 0
    (record,) = about_runtime(daemon, "cannot be reached")
    assert str(runtime.socket_path) in record["message"]


def health(client: CriClient) -> bytes:
    """The answer of the health service, once there is one; empty before."""
    try:
        return client.raw("/grpc.health.v1.Health/Check")
    except grpc.RpcError:
        return b""
