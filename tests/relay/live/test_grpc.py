"""A grpcio client and a grpcio server with the relay between them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest

from tests.conformance.bytes_client import BytesClient
from tests.relay.live.harness import WAIT_S, LiveRelay, StartRelay, eventually
from tests.relay.playbook import ScriptedCall
from tests.relay.wire import message

UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
ECHO, HELD_ECHO = "/passing.Service/Echo", "/held.Service/Echo"
COUNT, HANG = "/passing.Service/Count", "/passing.Service/Hang"
MEGABYTE = 1024 * 1024
SHORT_S = 1.0
"""On a connection that is there, a call reaches the runtime in it, also on a machine that is busy."""

Result = TypeVar("Result")


class Services(grpc.GenericRpcHandler):
    """Echoes, counts, or hangs until the call is given up."""

    def __init__(self) -> None:
        self.requests: list[int] = []
        self.given_up = threading.Event()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        name = details.method.rpartition("/")[2]
        if name == "Echo":
            return grpc.unary_unary_rpc_method_handler(self._echo)
        if name == "Count":
            return grpc.unary_stream_rpc_method_handler(self._count)
        return grpc.unary_unary_rpc_method_handler(self._hang)

    def _echo(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.requests.append(len(request))
        return request

    def _count(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        for number in range(int(request)):
            yield b"%d" % number

    def _hang(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(self.given_up.set)
        self.requests.append(len(request))
        self.given_up.wait(WAIT_S)
        return b""


@pytest.fixture
def services(folder: Path) -> Iterator[Services]:
    found = Services()
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool, handlers=[found], options=UNLIMITED)
        server.add_insecure_port(f"unix://{folder / 'runtime.sock'}")
        server.start()
        yield found
        server.stop(None).wait(WAIT_S)


@pytest.fixture
async def client(relay: LiveRelay, services: Services) -> AsyncIterator[BytesClient]:
    found = BytesClient(relay.path)
    yield found
    await asyncio.to_thread(found.channel.close)


async def later(action: Callable[..., Result], *arguments: Any) -> Result:
    """Runs what blocks in a thread."""
    async with asyncio.timeout(WAIT_S):
        return await asyncio.to_thread(action, *arguments)


async def test_unary_calls(client: BytesClient) -> None:
    for size in (0, 1, 100_000):
        assert (await later(client.call, ECHO, bytes(size))).message == bytes(size)


async def test_many_calls_at_once(client: BytesClient) -> None:
    answers = await asyncio.gather(*(later(client.call, ECHO, b"%d" % n) for n in range(30)))
    assert [answer.message for answer in answers] == [b"%d" % n for n in range(30)]


async def test_a_server_stream(client: BytesClient) -> None:
    answer = await later(client.call, COUNT, b"1000")
    assert answer.messages == tuple(b"%d" % n for n in range(1000))


async def test_a_message_of_20_mb_passes(client: BytesClient) -> None:
    content = bytes(range(256)) * (20 * MEGABYTE // 256)
    assert (await later(client.call, ECHO, content)).message == content


async def test_a_held_message_of_3_mb_is_changed(start_relay: StartRelay, services: Services) -> None:
    changed = bytes(range(255)) * (3 * MEGABYTE // 255)

    def decide(call: ScriptedCall, data: bytes) -> None:
        call.reply.forward(message(changed) if len(data) > MEGABYTE else None)

    relay = await start_relay(decide=decide)
    with BytesClient(relay.path) as client:
        assert (await later(client.call, HELD_ECHO, bytes(3 * MEGABYTE))).message == changed
        assert (await later(client.call, HELD_ECHO, b"small")).message == b"small"
        await later(client.channel.close)
    assert relay.budget.used_bytes == 0


async def test_a_refused_call(start_relay: StartRelay, services: Services) -> None:
    relay = await start_relay(decide=lambda call, data: call.reply.refuse(9, "not today: 100 %, déjà vu"))
    with BytesClient(relay.path) as client:
        answer = await later(client.call, HELD_ECHO, bytes(100))
        assert (answer.code, answer.text) == ("FAILED_PRECONDITION", "not today: 100 %, déjà vu")
        assert (await later(client.call, ECHO, b"next")).message == b"next"
        await later(client.channel.close)
    assert services.requests == [4]


async def test_a_held_message_over_the_bound(relay: LiveRelay, client: BytesClient) -> None:
    answer = await later(client.call, HELD_ECHO, bytes(17 * MEGABYTE))
    assert answer.code == "RESOURCE_EXHAUSTED"
    assert answer.text.startswith("koord-runtime-proxy: ")
    assert (await later(client.call, ECHO, b"next")).message == b"next"


async def test_a_deadline_while_the_call_is_held(relay: LiveRelay, client: BytesClient) -> None:
    assert (await later(client.call, ECHO, b"first")).code == "OK"
    answer = await later(lambda: client.call(HELD_ECHO, b"x", timeout_s=SHORT_S))
    assert answer.code == "DEADLINE_EXCEEDED"
    call = await relay.message()
    await eventually(lambda: call.names == ["message", "cancelled"], "the call is cancelled")


async def test_a_deadline_reaches_the_runtime(client: BytesClient, services: Services) -> None:
    assert (await later(client.call, ECHO, b"first")).code == "OK"
    answer = await later(lambda: client.call(HANG, b"x", timeout_s=SHORT_S))
    assert answer.code == "DEADLINE_EXCEEDED"
    assert await later(services.given_up.wait, WAIT_S)


async def test_a_cancel_reaches_the_runtime(client: BytesClient, services: Services) -> None:
    call = client.start(HANG, b"x")
    await eventually(lambda: bool(services.requests), "the runtime has the call")
    call.cancel()
    assert await later(services.given_up.wait, WAIT_S)


async def test_a_cancel_while_the_call_is_held(
    relay: LiveRelay, client: BytesClient, services: Services
) -> None:
    call = client.start(HELD_ECHO, b"x")
    held = await relay.message()
    call.cancel()
    await eventually(lambda: held.names == ["message", "cancelled"], "the call is cancelled")
    held.reply.forward(None)
    assert (await later(client.call, ECHO, b"next")).message == b"next"
    assert services.requests == [4]
