"""Many calls of the API at a time: they are bounded, and others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.http2 import server
from runtimeproxy.http2.server import Budget, GrpcServer
from runtimeproxy.logs import FailureLog
from runtimeproxy.service.api.handlers import api_methods
from runtimeproxy.service.api.loading import MOST_CALLS, READ_SERVICE
from runtimeproxy.service.api.simulate import MOST_CALLS as MOST_SIMULATED
from runtimeproxy.service.local_services import NOT_SERVING, SERVING, make_server
from tests.lab.cri_client import CriClient

SIMULATE = f"/{READ_SERVICE}/Simulate"


class Waiting:
    """A servicer whose simulations wait."""

    def __init__(self) -> None:
        self.begun = 0
        self.all_begun = asyncio.Event()
        self.end = asyncio.Event()

    async def Simulate(self, _request: Any, _context: Any) -> api_pb2.SimulateResponse:  # noqa: N802
        self.begun += 1
        if self.begun == MOST_CALLS["Simulate"]:
            self.all_begun.set()
        await self.end.wait()
        return api_pb2.SimulateResponse()


@asynccontextmanager
async def served(made: GrpcServer, folder: Path) -> AsyncIterator[grpc.aio.Channel]:
    path = f"{folder}/own.sock"
    listener = await asyncio.get_running_loop().create_unix_server(made.protocol, path)
    try:
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            yield channel
    finally:
        listener.close()
        await made.stop()
        assert made.budget.used_bytes == 0


def server_of(servicer: Waiting) -> GrpcServer:
    async def load() -> Any:
        return servicer

    return GrpcServer(api_methods(READ_SERVICE, load, FailureLog()), Budget(), FailureLog())


async def test_simulations_are_refused_when_many_wait(socket_folder: Path) -> None:
    servicer = Waiting()
    async with served(server_of(servicer), socket_folder) as channel:
        simulate: Any = channel.unary_unary(SIMULATE)
        begun = [simulate(b"") for _ in range(MOST_CALLS["Simulate"])]
        await servicer.all_begun.wait()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await simulate(b"")
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.details() == "5 calls of Simulate are under way already; call again"
        begun.pop().cancel()
        servicer.end.set()
        assert await asyncio.gather(*begun) == [b""] * len(begun)
        assert await simulate(b"") == b""


async def test_a_request_that_does_not_come_in_time(
    socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.01)
    servicer = Waiting()
    async with served(server_of(servicer), socket_folder) as channel:
        call: Any = channel.stream_unary(SIMULATE)()
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert not servicer.begun


async def test_requests_that_cannot_be_read_cost_one_line(
    socket_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(server_of(Waiting()), socket_folder) as channel:
        simulate: Any = channel.unary_unary(SIMULATE)
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await simulate(b"\xff")
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    (record,) = caplog.records
    assert record.getMessage() == "own services: a request of Simulate cannot be read"
    assert record.exc_info is None


def test_a_simulation_of_too_many_pods_is_refused(shared_client: CriClient) -> None:
    simulate: Any = shared_client.channel.unary_unary(SIMULATE)
    containers = ", ".join(f"{{name: c{number}}}" for number in range(MOST_SIMULATED))
    text = f"kind: Pod\nmetadata: {{name: one}}\nspec: {{containers: [{containers}]}}\n"
    with pytest.raises(grpc.RpcError) as caught:
        simulate(api_pb2.SimulateRequest(manifest=text).SerializeToString(), timeout=60)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"has {MOST_SIMULATED + 1} pods and containers" in error.details()


async def test_all_watches_of_the_health_share_one_probe(socket_folder: Path) -> None:
    probes, stopping = 0, asyncio.Event()

    async def probe() -> bool:
        nonlocal probes
        probes += 1
        return True

    async with served(make_server(probe, stopping), socket_folder) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(100)]
        assert {(await each.read()).status for each in watches} == {SERVING}
        # One a second while they begin.
        assert probes < len(watches)
        stopping.set()
        assert {(await each.read()).status for each in watches} == {NOT_SERVING}
        assert {await each.read() for each in watches} == {grpc.aio.EOF}
