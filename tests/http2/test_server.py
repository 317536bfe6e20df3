"""The server of own services: what clients send and do not send costs others nothing."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from runtimeproxy.errors import StatusCode
from runtimeproxy.http2 import frames, server
from runtimeproxy.http2.client import GrpcClient, RpcError, request_block
from runtimeproxy.http2.server import CALL_BYTES, Budget, EarlyEnd, GrpcServer, ServedMethod, ServerCall
from runtimeproxy.logs import FailureLog
from tests.peers.aio import Peer, until
from tests.peers.error_codes import CODES
from tests.peers.wire import Frame, message

KIB = 1024
LONG_S = 30.0


class Own:
    """A server with a method that echoes, one that waits, one that sends without end, and one that fails."""

    def __init__(self, path: Path, budget: Budget) -> None:
        self.path = path
        self.budget = budget
        self.output = logging.getLogger("own")
        self.cancelled = 0
        self.server = GrpcServer(
            {
                "/own/Echo": ServedMethod(self.echo, 256 * KIB),
                "/own/Wait": ServedMethod(self.wait, KIB),
                "/own/Flow": ServedMethod(self.flow, KIB),
                "/own/Fail": ServedMethod(self.fail, KIB),
            },
            budget,
            FailureLog(output=self.output),
        )

    async def echo(self, call: ServerCall) -> None:
        await call.send(await call.message() or b"")

    async def wait(self, call: ServerCall) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1

    async def flow(self, call: ServerCall) -> None:
        while True:
            await call.send(bytes(16 * KIB))

    async def fail(self, call: ServerCall) -> None:
        raise ValueError("no luck")


@pytest.fixture
async def own(socket_folder: Path) -> AsyncIterator[Own]:
    made = Own(socket_folder / "own.sock", Budget(1024 * KIB))
    listener = await asyncio.get_running_loop().create_unix_server(made.server.protocol, str(made.path))
    yield made
    listener.close()
    await made.server.stop()
    assert made.budget.used_bytes == 0
    assert not made.budget.waiting


async def peer_of(own: Own) -> Peer:
    peer = Peer(*await asyncio.open_unix_connection(own.path))
    peer.begin()
    return peer


async def ask(own: Own, method: str, request: bytes = b"", timeout_s: float = LONG_S) -> bytes | RpcError:
    client = GrpcClient(str(own.path))
    came: asyncio.Future[bytes | RpcError] = asyncio.get_running_loop().create_future()
    client.call(request_block(f"/own/{method}"), request, timeout_s, came.set_result)
    try:
        return await came
    finally:
        client.close()


@pytest.mark.parametrize("size_bytes", [0, 1, 65_530, 65_531, 256 * KIB])
async def test_messages_of_any_size_up_to_the_methods(own: Own, size_bytes: int) -> None:
    assert await ask(own, "Echo", bytes(size_bytes)) == bytes(size_bytes)


@pytest.mark.parametrize(
    ("method", "size_bytes", "code", "text"),
    [
        (
            "Echo",
            256 * KIB + 1,
            StatusCode.RESOURCE_EXHAUSTED,
            "the request has 262145 bytes, at most 262144",
        ),
        ("None", 0, StatusCode.UNIMPLEMENTED, "this server has no such method"),
        ("Fail", 0, StatusCode.INTERNAL, server.INTERNAL),
    ],
)
async def test_calls_that_are_not_answered(
    own: Own, method: str, size_bytes: int, code: StatusCode, text: str
) -> None:
    error = await ask(own, method, bytes(size_bytes))
    assert isinstance(error, RpcError)
    assert error.code is code
    assert error.text.startswith(text)


async def test_a_deadline_ends_the_call_and_its_task(own: Own) -> None:
    error = await ask(own, "Wait", b"", 0.05)
    assert isinstance(error, RpcError)
    assert error.code is StatusCode.DEADLINE_EXCEEDED
    await until(lambda: own.cancelled == 1)


async def test_a_long_request_does_not_keep_small_ones_out(own: Own) -> None:
    peer = await peer_of(own)
    for number in range(20):
        peer.send(peer.call(2 * number + 1, "/own/Echo"))
        peer.send(Frame(frames.DATA, 0, 2 * number + 1, struct.pack(">BL", 0, 200 * KIB)))
    # Each of the newer ones takes the place of an older one.
    ended = await peer.next_of(frames.HEADERS)
    assert ended.stream_id == 1
    assert own.budget.used_bytes <= own.budget.limit_bytes
    assert await ask(own, "Echo", b"small") == b"small"
    assert own.budget.early_ends == {EarlyEnd.MADE_ROOM: 16}
    assert own.budget.was_short_s is not None
    await peer.close()


async def test_a_call_for_which_no_other_can_make_room_is_refused_and_counted(own: Own) -> None:
    own.budget.limit_bytes = CALL_BYTES
    error = await ask(own, "Echo", bytes(8))
    assert isinstance(error, RpcError)
    assert error.code is StatusCode.RESOURCE_EXHAUSTED
    assert own.budget.early_ends == {EarlyEnd.NO_ROOM: 1}


async def test_calls_without_a_request_end_and_make_room(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = await peer_of(own)
    count = own.budget.limit_bytes // CALL_BYTES
    for number in range(count):
        peer.send(peer.call(2 * number + 1, "/own/Echo"))
    await until(lambda: own.budget.used_bytes == own.budget.limit_bytes)
    assert await ask(own, "Echo", b"small") == b"small"
    monkeypatch.setattr(server, "REQUEST_S", 0.01)
    late = await peer_of(own)
    late.send(late.call(1, "/own/Echo"))
    assert (await late.next_of(frames.HEADERS)).stream_id == 1
    assert own.budget.early_ends[EarlyEnd.REQUEST_LATE] == 1
    await peer.close()
    await late.close()


async def test_responses_that_are_not_read_end(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RESPONSE_S", 0.05)
    peer = await peer_of(own)
    peer.send(peer.call(1, "/own/Flow"), Frame(frames.DATA, frames.END_STREAM, 1, message(b"")))
    while not (found := await peer.next_of(frames.HEADERS)).ends_stream:
        pass
    assert found.stream_id == 1
    await until(lambda: own.budget.used_bytes == 0)
    assert own.budget.early_ends == {EarlyEnd.RESPONSE_UNREAD: 1}
    assert own.budget.was_short_s is None
    await peer.close()


@pytest.mark.parametrize("kind", [frames.RST_STREAM, frames.GOAWAY])
async def test_any_error_code_of_a_client(own: Own, caplog: pytest.LogCaptureFixture, kind: int) -> None:
    for code in CODES:
        peer = await peer_of(own)
        peer.send(peer.call(1, "/own/Wait"), Frame(frames.DATA, frames.END_STREAM, 1, message(b"")))
        await until(lambda: bool(own.server.tasks))
        peer.send(frames.rst_stream(1, code) if kind == frames.RST_STREAM else frames.goaway(0, code))
        if kind == frames.GOAWAY:
            await peer.close()
        await until(lambda: not own.server.tasks)
        await peer.close()
    assert own.cancelled == len(CODES)
    assert not caplog.records
    assert await ask(own, "Echo", b"next") == b"next"


Send = Callable[[Peer], object]


@pytest.mark.parametrize(
    "send",
    [
        lambda peer: peer.send(Frame(frames.DATA, 0, 1, bytes(5))),
        lambda peer: peer.send(Frame(frames.HEADERS, frames.END_HEADERS, 2, b"\x83")),
        lambda peer: peer.send(Frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\xff\xff")),
        lambda peer: peer.send(Frame(frames.CONTINUATION, 0, 1, b"")),
        lambda peer: peer.send(Frame(frames.PING, 0, 0, bytes(7))),
        lambda peer: peer.writer.write(b"\xff" * 9),
    ],
)
async def test_a_client_that_breaks_the_protocol_loses_its_connection_and_costs_one_line(
    own: Own, caplog: pytest.LogCaptureFixture, send: Send
) -> None:
    for _ in range(3):
        peer = await peer_of(own)
        send(peer)
        await peer.rest()
        assert peer.goaway is not None
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is None
    assert await ask(own, "Echo", b"next") == b"next"


async def test_what_is_not_http2_is_cut_off(own: Own) -> None:
    peer = Peer(*await asyncio.open_unix_connection(own.path))
    peer.writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await peer.ended()
    assert await ask(own, "Echo", b"next") == b"next"


async def test_more_data_than_was_allowed_ends_the_stream(own: Own) -> None:
    peer = await peer_of(own)
    peer.send(peer.call(1, "/own/Echo"))
    peer.send(
        *(Frame(frames.DATA, 0, 1, struct.pack(">BL", 0, 100 * KIB) + bytes(16_000)) for _ in range(20))
    )
    await until(lambda: own.budget.used_bytes == 0)
    assert await ask(own, "Echo", b"next") == b"next"
    await peer.close()
