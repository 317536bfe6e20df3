"""Many calls of the API at a time: they are bounded, and others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.service.api import handlers
from runtimeproxy.service.api.loading import MOST_CALLS, READ_SERVICE
from runtimeproxy.service.api.simulate import MOST_CALLS as MOST_SIMULATED
from runtimeproxy.service.local_services import NOT_SERVING, SERVING, RuntimeHealth
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
async def served(server: grpc.aio.Server) -> AsyncIterator[grpc.aio.Channel]:
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


def server_of(servicer: Waiting) -> grpc.aio.Server:
    async def load() -> Any:
        return servicer

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handlers.handlers(READ_SERVICE, load),))
    return server


async def test_simulations_are_refused_when_many_wait() -> None:
    servicer = Waiting()
    async with served(server_of(servicer)) as channel:
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


async def test_a_request_that_does_not_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "REQUEST_S", 0.01)
    servicer = Waiting()
    async with served(server_of(servicer)) as channel:
        call: Any = channel.stream_unary(SIMULATE)()
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert not servicer.begun


def test_a_simulation_of_too_many_pods_is_refused(shared_client: CriClient) -> None:
    simulate: Any = shared_client.channel.unary_unary(SIMULATE)
    containers = ", ".join(f"{{name: c{number}}}" for number in range(MOST_SIMULATED))
    text = f"kind: Pod\nmetadata: {{name: one}}\nspec: {{containers: [{containers}]}}\n"
    with pytest.raises(grpc.RpcError) as caught:
        simulate(api_pb2.SimulateRequest(manifest=text).SerializeToString(), timeout=60)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"has {MOST_SIMULATED + 1} pods and containers" in error.details()


async def test_all_watches_of_the_health_share_one_probe() -> None:
    probes, stopping = 0, asyncio.Event()

    async def probe() -> bool:
        nonlocal probes
        probes += 1
        return True

    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(RuntimeHealth(probe, stopping), server)
    async with served(server) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(100)]
        assert {(await each.read()).status for each in watches} == {SERVING}
        # One a second while they begin.
        assert probes < len(watches)
        stopping.set()
        assert {(await each.read()).status for each in watches} == {NOT_SERVING}
        assert {await each.read() for each in watches} == {grpc.aio.EOF}
