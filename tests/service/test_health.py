"""Health on the kubelet's socket: serving only while the runtime answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from runtimeproxy.service.local_services import SERVICES, make_server
from runtimeproxy.testing import CallError, FakeRuntime
from tests.daemon.conftest import Daemons
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def check(client: CriClient, service: str = "") -> int:
    stub: Any = health_pb2_grpc.HealthStub(client.channel)
    request = health_pb2.HealthCheckRequest(service=service)
    answer: health_pb2.HealthCheckResponse = stub.Check(request, timeout=30, wait_for_ready=True)
    return answer.status


def watch(client: CriClient, service: str = "") -> Iterator[int]:
    """The states one after the other, until the stream ends."""
    request = health_pb2.HealthCheckRequest(service=service)
    stub: Any = health_pb2_grpc.HealthStub(client.channel)
    stream = stub.Watch(request, timeout=30, wait_for_ready=True)
    return (answer.status for answer in stream)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_it_follows_the_runtime(client: CriClient, runtime: FakeRuntime) -> None:
    assert check(client) == SERVING
    runtime.kill()
    wait_until(lambda: check(client) == NOT_SERVING, "not serving")
    runtime.start()
    wait_until(lambda: check(client) == SERVING, "serving again")


def test_watch_tells_each_change_once(shared_client: CriClient, shared_runtime: FakeRuntime) -> None:
    states = watch(shared_client)
    assert next(states) == SERVING
    shared_runtime.kill()
    assert next(states) == NOT_SERVING
    shared_runtime.start()
    assert next(states) == SERVING


def test_a_runtime_that_hangs_is_not_serving(shared_client: CriClient, shared_runtime: FakeRuntime) -> None:
    assert check(shared_client) == SERVING
    shared_runtime.on("Version", hang=True)
    assert check(shared_client) == NOT_SERVING
    shared_runtime.clear()
    shared_runtime.release()
    wait_until(lambda: check(shared_client) == SERVING, "serving again")


def test_a_runtime_that_answers_with_an_error_is_not_serving(
    shared_client: CriClient, shared_runtime: FakeRuntime
) -> None:
    shared_runtime.on("Version", error=CallError("INTERNAL", "disk full"))
    assert check(shared_client) == NOT_SERVING


def test_the_services_it_knows_and_another(shared_client: CriClient) -> None:
    assert [check(shared_client, service) for service in SERVICES] == [SERVING] * len(SERVICES)
    with pytest.raises(grpc.RpcError) as caught:
        check(shared_client, "no.such.Service")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert next(watch(shared_client, "no.such.Service")) == SERVICE_UNKNOWN


def test_left_to_the_runtime(socket_folder: Path, daemons: Daemons) -> None:
    servicer = health.HealthServicer()
    servicer.set("the-runtimes-own", SERVING)
    handler = grpc.method_handlers_generic_handler(
        "grpc.health.v1.Health",
        {
            "Check": grpc.unary_unary_rpc_method_handler(
                servicer.Check,
                request_deserializer=health_pb2.HealthCheckRequest.FromString,
                response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
            )
        },
    )
    with FakeRuntime(socket_folder / "healthy.sock", handlers=[handler]) as healthy:
        config = "[proxy]\nown_services = false\n"
        daemon = daemons.start(config, runtime_endpoint=str(healthy.socket_path))
        with CriClient(daemon.socket) as client:
            assert check(client, "the-runtimes-own") == SERVING


def test_calls_of_the_runtime_and_health_alternate_on_one_client(shared_client: CriClient) -> None:
    for _ in range(3):
        assert check(shared_client) == SERVING
        assert shared_client.wait_until_serving(30).runtime_name == "fake-runtime"


def test_a_drained_daemon_does_not_serve(daemon: ProxyProcess, client: CriClient) -> None:
    states = watch(client)
    assert next(states) == SERVING
    assert daemon.terminate() == 0
    # Cut or ended, whichever comes first.
    with contextlib.suppress(grpc.RpcError):
        assert list(states) == [NOT_SERVING]


class TestServicer:
    """The servicer on a server of its own."""

    @pytest.fixture
    async def stopping(self) -> asyncio.Event:
        return asyncio.Event()

    @pytest.fixture
    async def stub(self, socket_folder: Path, stopping: asyncio.Event) -> AsyncIterator[Any]:
        answers = itertools.cycle([True])

        async def probe() -> bool:
            return next(answers)

        path = f"{socket_folder}/own.sock"
        server = make_server(probe, stopping)
        listener = await asyncio.get_running_loop().create_unix_server(server.protocol, path)
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            yield health_pb2_grpc.HealthStub(channel)
        listener.close()
        await server.stop()

    async def test_stopping_ends_a_watch_with_its_last_state(
        self, stub: Any, stopping: asyncio.Event
    ) -> None:
        states = []
        async for answer in stub.Watch(health_pb2.HealthCheckRequest(), timeout=30):
            states.append(answer.status)
            stopping.set()
        assert states == [SERVING, NOT_SERVING]

    async def test_stopping_counts_more_than_the_runtimes_answer(
        self, stub: Any, stopping: asyncio.Event
    ) -> None:
        stopping.set()
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert answer.status == NOT_SERVING
