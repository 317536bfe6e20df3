"""Methods of a service as functions, in tasks and in threads, beside a real gRPC server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.errors import StatusCode
from runtimeproxy.http2.client import AnsweredError, GrpcClient, RpcError, UnreachableError
from runtimeproxy.stubs import BlockingClient, async_stub
from tests.lab.deadline import wait_until
from tests.peers.aio import RawServer, soon

SERVICE = api_pb2.DESCRIPTOR.services_by_name["RuntimeProxy"]
LONG = "x" * 300_000


class Api(api_pb2_grpc.RuntimeProxyServicer):
    """Sends long messages, 100 of them, or without end; `gone` is set when a client has left."""

    def __init__(self) -> None:
        self.sent = 0
        self.gone = threading.Event()

    def GetNode(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.known_generation:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such node")
        return api_pb2.GetNodeResponse(name=LONG)

    def WatchPods(self, request: Any, context: Any) -> Any:  # noqa: N802
        context.add_callback(self.gone.set)
        for _ in range(100):
            self.sent += 1
            yield api_pb2.WatchPodsResponse(removed=api_pb2.Pod(uid=LONG))
        if request.namespace:
            context.abort(grpc.StatusCode.UNAVAILABLE, "it ends")

    def _none(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    GetStatus = GetResctrl = GetCustomNodeResource = Explain = Simulate = WatchAudit = _none


@pytest.fixture
def api(socket_folder: Path) -> Iterator[tuple[Path, Api]]:
    made, path = Api(), socket_folder / "api.sock"
    server = grpc.server(ThreadPoolExecutor(4))
    api_pb2_grpc.add_RuntimeProxyServicer_to_server(made, server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    yield path, made
    server.stop(None).wait()


def test_answers_and_errors_in_a_thread(api: tuple[Path, Api]) -> None:
    with BlockingClient(str(api[0])) as client:
        stub = client.stub(SERVICE)
        assert stub.GetNode(api_pb2.GetNodeRequest(), timeout=30).name == LONG
        with pytest.raises(AnsweredError) as caught:
            stub.GetNode(api_pb2.GetNodeRequest(known_generation=1), timeout=30)
        assert (caught.value.code, caught.value.text) == (StatusCode.NOT_FOUND, "no such node")
        # More than the window of a stream, which is given back as they are taken.
        sizes = [len(each.removed.uid) for each in stub.WatchPods(api_pb2.WatchPodsRequest())]
        assert sizes == [len(LONG)] * 100


def test_a_stream_that_is_left_is_cancelled_and_the_server_is_not_read_ahead(api: tuple[Path, Api]) -> None:
    with BlockingClient(str(api[0])) as client:
        answers = client.stub(SERVICE).WatchPods(api_pb2.WatchPodsRequest())
        assert next(answers).removed.uid == LONG
        answers.close()
        wait_until(api[1].gone.is_set, "the end of the call")
        assert api[1].sent < 100


def test_no_server_and_a_client_that_is_closed(socket_folder: Path) -> None:
    # Other tests of this process may have clients that still close.
    before = set(threading.enumerate())
    with BlockingClient(str(socket_folder / "none.sock")) as client:
        with pytest.raises(UnreachableError, match="No such file or directory"):
            client.stub(SERVICE).GetNode(api_pb2.GetNodeRequest(), timeout=30)
        (thread,) = (each for each in set(threading.enumerate()) - before if each.name == "grpc-client")
        assert thread.is_alive()
    client.close()
    assert not thread.is_alive()


async def test_answers_and_errors_in_tasks(api: tuple[Path, Api]) -> None:
    client = GrpcClient(str(api[0]))
    stub = async_stub(client, SERVICE)
    assert (await stub.GetNode(api_pb2.GetNodeRequest(), timeout=30)).name == LONG
    taken = 0

    async def take() -> None:
        nonlocal taken
        async for _ in stub.WatchPods(api_pb2.WatchPodsRequest(namespace="a")):
            taken += 1

    with pytest.raises(RpcError, match="UNAVAILABLE: it ends"):
        await take()
    assert taken == 100
    waiting = asyncio.ensure_future(anext(aiter(stub.WatchPods(api_pb2.WatchPodsRequest()))))
    await asyncio.sleep(0)
    client.abort()
    with pytest.raises(RpcError, match="CANCELLED"):
        await waiting


async def test_a_client_of_one_connection_makes_no_other(api: tuple[Path, Api], socket_folder: Path) -> None:
    path = socket_folder / "raw.sock"
    async with RawServer(path) as server:
        client = GrpcClient(str(path), reconnects=False)
        stub = async_stub(client, SERVICE)
        first = asyncio.ensure_future(stub.GetNode(api_pb2.GetNodeRequest(), timeout=30))
        await (await server.peer()).abort()
        for call in (first, stub.GetNode(api_pb2.GetNodeRequest(), timeout=30)):
            with pytest.raises(UnreachableError):
                await soon(call)
        assert len(server.peers) == 1
