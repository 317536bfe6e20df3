"""Unary calls by a client whose connection the loop reads: beside real servers, and beside hostile ones."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.errors import StatusCode
from runtimeproxy.http2 import connection, frames
from runtimeproxy.http2.client import (
    AnsweredError,
    GrpcCall,
    GrpcClient,
    LateError,
    RpcError,
    UnreachableError,
    UnusableError,
    request_block,
)
from tests.hooks.asking import until
from tests.peers.aio import Peer, RawServer, Script

OK = [(":status", "200"), ("content-type", "application/grpc")]
DONE = [("grpc-status", "0")]
ECHO = request_block("/test.Echo/Echo")
LONG_S = 30.0
MEBIBYTE = 1024 * 1024
ODD_NAME = "a b%2Fc?d#\u00e4.sock"
FAIL = request_block("/test.Echo/Fail")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="client-") as path:
        yield Path(path)


@pytest.fixture
async def client(folder: Path) -> AsyncIterator[GrpcClient]:
    made = GrpcClient(str(folder / "s.sock"))
    yield made
    made.close()
    assert (made._calls, made._held_bytes) == ({}, 0)


def begin(
    client: GrpcClient, message: bytes = b"", timeout_s: float = LONG_S, block: bytes = ECHO
) -> tuple[GrpcCall, asyncio.Future[bytes | RpcError]]:
    came: asyncio.Future[bytes | RpcError] = asyncio.get_running_loop().create_future()
    return client.call(block, message, timeout_s, came.set_result), came


async def call(
    client: GrpcClient, message: bytes = b"", timeout_s: float = LONG_S, block: bytes = ECHO
) -> bytes | RpcError:
    async with asyncio.timeout(LONG_S):
        return await begin(client, message, timeout_s, block)[1]


def error_of(outcome: bytes | RpcError) -> RpcError:
    assert isinstance(outcome, RpcError)
    return outcome


# --- a real server ----------------------------------------------------------------------------------------


@pytest.fixture
def echo(folder: Path) -> Iterator[list[grpc.ServicerContext]]:
    """A gRPC server on a path that would mean something else in a URI; gives the contexts of its calls."""
    contexts: list[grpc.ServicerContext] = []

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        contexts.append(context)
        return request

    def fail(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, request.decode())

    def compressed(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_compression(grpc.Compression.Gzip)
        return request

    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Echo": grpc.unary_unary_rpc_method_handler(answer),
        "Fail": grpc.unary_unary_rpc_method_handler(fail),
        "Compressed": grpc.unary_unary_rpc_method_handler(compressed),
    }
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Echo", handlers)])
    server.add_insecure_port(f"unix:{quote(str(folder / ODD_NAME))}")
    server.start()
    yield contexts
    server.stop(None).wait()


@pytest.fixture
async def odd_client(folder: Path, echo: list[grpc.ServicerContext]) -> AsyncIterator[GrpcClient]:
    made = GrpcClient(str(folder / ODD_NAME))
    yield made
    made.close()


async def test_a_call(odd_client: GrpcClient, echo: list[grpc.ServicerContext]) -> None:
    assert await call(odd_client, b"hello", 5.0) == b"hello"
    assert 3.0 < echo[0].time_remaining() <= 5.0
    assert dict(echo[0].invocation_metadata()) == {"user-agent": "koord-runtime-proxy"}


@pytest.mark.parametrize("size_bytes", [0, 1, 16_379, 16_380, 65_530, 65_536, 3 * MEBIBYTE, 16 * MEBIBYTE])
async def test_messages_of_any_size_up_to_the_bound(odd_client: GrpcClient, size_bytes: int) -> None:
    message = bytes(range(256)) * (size_bytes // 256) + bytes(size_bytes % 256)
    assert await call(odd_client, message) == message


async def test_a_longer_answer_is_not_taken(odd_client: GrpcClient) -> None:
    error = error_of(await call(odd_client, bytes(16 * MEBIBYTE + 1)))
    assert (type(error), error.code) == (UnusableError, StatusCode.RESOURCE_EXHAUSTED)
    assert await call(odd_client, b"next") == b"next"


@pytest.mark.parametrize("ends", ["client", "server"])
async def test_a_connection_that_ends_before_it_is_open_closes_its_descriptor_once(
    folder: Path, ends: str
) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / ODD_NAME))
        server.listen()
        client = GrpcClient(str(folder / ODD_NAME))
        begun, outcome = begin(client)
        connections = [client._connection]
        if ends == "client":
            begun.cancel()
            client.close()
        else:
            # It has not accepted the connection, which ends with it: the first bytes are refused.
            server.close()

        def is_over() -> bool:
            [connection] = connections
            assert connection is not None
            assert connection.opening is not None
            return connection.opening.done() and connection.is_lost

        await until(is_over)
        if ends == "server":
            # The call that waited tries a second connection, which is refused one turn of the loop later.
            assert isinstance(await outcome, UnreachableError)
        else:
            assert not outcome.done()
        # Whoever opens files now gets the descriptor's number, and has to keep it.
        descriptors = [descriptor for _ in range(5) for descriptor in os.pipe()]
        connections.clear()
        begun.connection = None
        gc.collect()
        for descriptor in descriptors:
            os.close(descriptor)


async def test_a_call_that_ends_while_its_task_is_cancelled(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / ODD_NAME))
        server.listen()
        client = GrpcClient(str(folder / ODD_NAME))
        waiting = asyncio.get_running_loop().create_task(client.unary(ECHO, b"", None))
        await until(lambda: bool(client._calls))
        [begun] = client._calls
        waiting.cancel()
        begun.end(b"late")
        with pytest.raises(asyncio.CancelledError):
            await waiting
        client.close()
    assert not caplog.records


async def test_many_calls_at_once_share_the_connection(odd_client: GrpcClient) -> None:
    messages = [bytes([number]) * number * 700 for number in range(200)]
    assert await asyncio.gather(*(call(odd_client, message) for message in messages)) == messages


async def test_a_status_of_the_servers_own(odd_client: GrpcClient) -> None:
    error = error_of(await call(odd_client, "no CPU left: 100 % \u00e4".encode(), block=FAIL))
    assert (type(error), error.code) == (AnsweredError, StatusCode.RESOURCE_EXHAUSTED)
    assert error.text == "no CPU left: 100 % \u00e4"


async def test_an_unknown_method(odd_client: GrpcClient) -> None:
    error = error_of(await call(odd_client, block=request_block(f"/test.Echo/{'x' * 300}")))
    assert (type(error), error.code) == (AnsweredError, StatusCode.UNIMPLEMENTED)


async def test_a_compressed_answer_is_refused(odd_client: GrpcClient) -> None:
    error = error_of(await call(odd_client, bytes(5_000), block=request_block("/test.Echo/Compressed")))
    # The client did not offer any compression.
    assert error.code is StatusCode.UNIMPLEMENTED


# --- its connection ---------------------------------------------------------------------------------------


async def serve_one(peer: Peer) -> None:
    peer.send(peer.answer(*await peer.request()))


async def serve(peer: Peer) -> None:
    while True:
        await serve_one(peer)


async def test_no_server(client: GrpcClient) -> None:
    error = error_of(await call(client))
    assert (type(error), error.code) == (UnreachableError, StatusCode.UNAVAILABLE)
    assert error.text == "cannot connect: No such file or directory"


async def test_a_connection_is_made_again(client: GrpcClient, folder: Path) -> None:
    async with RawServer(folder / "s.sock", serve_one, serve) as server:
        assert await call(client, b"a") == b"a"
        await until(lambda: client._connection is None)
        assert await call(client, b"b") == b"b"
        assert len(server.peers) == 2


async def test_a_connection_that_breaks_ends_its_calls_and_repeats_none(
    client: GrpcClient, folder: Path
) -> None:
    async def breaking(peer: Peer) -> None:
        await peer.request()
        await peer.request()

    async with RawServer(folder / "s.sock", breaking, serve) as server:
        for outcome in await asyncio.gather(call(client, b"a"), call(client, b"b")):
            assert isinstance(outcome, UnreachableError)
        assert len(server.peers) == 1


async def test_goaway_lets_calls_below_its_id_finish_and_repeats_the_others_once(
    client: GrpcClient, folder: Path
) -> None:
    seen: list[bytes] = []

    async def leaving(peer: Peer) -> None:
        first, second = await peer.request(), await peer.request()
        peer.send(frames.goaway(first[0], 0))
        seen.extend((first[1], second[1]))
        peer.send(peer.answer(first[0], b"from the old one"))
        await peer.frame()

    async with RawServer(folder / "s.sock", leaving, serve) as server:
        answers = await asyncio.gather(call(client, b"a"), call(client, b"b"))
        assert list(answers) == [b"from the old one", b"b"]
        assert seen == [b"a", b"b"]
        assert len(server.peers) == 2


async def test_a_call_that_no_connection_takes_is_repeated_once(client: GrpcClient, folder: Path) -> None:
    async def leaving(peer: Peer) -> None:
        await peer.request()
        peer.send(frames.goaway(0, 0))
        await peer.frame()

    async with RawServer(folder / "s.sock", leaving) as server:
        assert isinstance(await call(client), UnreachableError)
        assert len(server.peers) == 2


async def test_the_end_of_a_call_may_cancel_another_that_ends_with_it(
    client: GrpcClient, folder: Path
) -> None:
    async def leaving(peer: Peer) -> None:
        for _ in range(2):
            await peer.request()
        peer.send(frames.goaway(0, 0))
        await peer.frame()

    ended: asyncio.Future[bytes | RpcError] = asyncio.get_running_loop().create_future()
    others: list[GrpcCall] = []
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))

    def cancel_the_other(outcome: bytes | RpcError) -> None:
        others[0].cancel()
        ended.set_result(outcome)

    async with RawServer(folder / "s.sock", leaving) as server:
        client.call(ECHO, b"", LONG_S, cancel_the_other)
        call, came = begin(client)
        others.append(call)
        async with asyncio.timeout(LONG_S):
            assert error_of(await ended).text == "the server shuts down"
        assert not came.done()
        assert len(server.peers) == 2
        assert problems == []


async def test_a_connection_that_nobody_waits_for_any_more_fails_no_call(folder: Path) -> None:
    client = GrpcClient(str(folder / "s.sock"))
    client.close()
    async with RawServer(folder / "other.sock", serve):
        nowhere, _ = begin(client)
        nowhere.cancel()
        (folder / "s.sock").symlink_to(folder / "other.sock")
        assert await call(client, b"a") == b"a"


async def test_a_refused_stream_is_repeated_once(client: GrpcClient, folder: Path) -> None:
    async def refusing(peer: Peer) -> None:
        stream_id, _ = await peer.request()
        peer.send(frames.rst_stream(stream_id, 0x7))
        await serve(peer)

    async with RawServer(folder / "s.sock", refusing):
        assert await call(client, b"a") == b"a"


async def test_a_late_call_is_called_off_and_a_silent_connection_replaced(
    client: GrpcClient, folder: Path
) -> None:
    async def silent(peer: Peer) -> None:
        await serve_one(peer)
        await peer.next_of(frames.RST_STREAM)

    async with RawServer(folder / "s.sock", silent, serve) as server:
        assert await call(client, b"a") == b"a"
        begun_s = asyncio.get_running_loop().time()
        error = error_of(await call(client, b"a", 0.3))
        assert (type(error), error.code, error.text) == (
            LateError,
            StatusCode.DEADLINE_EXCEEDED,
            "no answer within 0.3 s",
        )
        assert asyncio.get_running_loop().time() - begun_s >= 0.29
        assert await call(client, b"b") == b"b"
        await until(lambda: bool(server.peers[0].resets))
        assert server.peers[0].resets == {3: 8}


async def test_a_cancelled_call_is_reset_and_says_nothing(client: GrpcClient, folder: Path) -> None:
    asked, reset = asyncio.Event(), asyncio.Event()

    async def waiting(peer: Peer) -> None:
        await peer.request()
        asked.set()
        await peer.next_of(frames.RST_STREAM)
        reset.set()
        await serve(peer)

    async with RawServer(folder / "s.sock", waiting) as server:
        cancelled, came = begin(client)
        await asked.wait()
        cancelled.cancel()
        await reset.wait()
        assert await call(client, b"b") == b"b"
        assert not came.done()
        assert len(server.peers) == 1


async def test_calls_wait_for_a_stream(client: GrpcClient, folder: Path) -> None:
    most = 0

    async def narrow(peer: Peer) -> None:
        nonlocal most
        await serve_one(peer)
        peer.send(frame(frames.SETTINGS, 0, 0, b"\0\3\0\0\0\2"), peer.answer(*await peer.request()))
        requests: list[tuple[int, bytes]] = []
        for _ in range(20):
            requests = [await peer.request(), await peer.request()]
            most = max(most, len(peer._bodies) + len(requests))
            peer.send(*(peer.answer(*each) for each in requests))
        await peer.frame()

    async with RawServer(folder / "s.sock", narrow):
        assert await call(client) == await call(client) == b""
        messages = [bytes([number]) for number in range(10)]
        assert await asyncio.gather(*(call(client, message) for message in messages)) == messages
        assert most == 2


async def test_a_long_request_keeps_to_the_windows(client: GrpcClient, folder: Path) -> None:
    message = bytes(200_000)
    sizes: list[int] = []

    async def narrow(peer: Peer) -> None:
        body = 0
        while body < len(message) + 5:
            kind, _, stream_id, payload = await peer.frame()
            if kind == frames.DATA:
                sizes.append(len(payload))
                body += len(payload)
                peer.send(
                    frames.window_update(0, len(payload)), frames.window_update(stream_id, len(payload))
                )
        peer.send(peer.answer(1, b"whole"))
        await peer.frame()

    async with RawServer(folder / "s.sock", narrow):
        assert await call(client, message) == b"whole"
        assert max(sizes) <= 16_384


async def test_closing_lets_calls_finish(folder: Path) -> None:
    client = GrpcClient(str(folder / "s.sock"))
    ended = asyncio.Event()

    async def slow(peer: Peer) -> None:
        request = await peer.request()
        client.close()
        peer.send(peer.answer(*request))
        with suppress(EOFError):
            while True:
                await peer.frame()
        ended.set()

    async with RawServer(folder / "s.sock", slow):
        assert await call(client, b"a") == b"a"
        await ended.wait()


# --- hostile servers --------------------------------------------------------------------------------------


def frame(kind: int, flags: int = 0, stream_id: int = 0, payload: bytes = b"") -> bytes:
    return frames.frame(kind, flags, stream_id, payload)


def answering(*parts: Callable[[Peer, int], bytes]) -> Script:
    """Answers the first call with these frames, and all others well."""

    async def script(peer: Peer) -> None:
        stream_id, _ = await peer.request()
        peer.send(*(part(peer, stream_id) for part in parts))
        await serve(peer)

    return script


def head(fields: list[tuple[str, str]], *, end: bool = False) -> Callable[[Peer, int], bytes]:
    return lambda peer, stream_id: bytes(peer.block(stream_id, fields, end=end))


def data(content: bytes, *, end: bool = False) -> Callable[[Peer, int], bytes]:
    return lambda _, stream_id: frame(frames.DATA, frames.END_STREAM if end else 0, stream_id, content)


def raw(content: bytes) -> Callable[[Peer, int], bytes]:
    return lambda _, __: content


def status(code: str) -> list[tuple[str, str]]:
    return [*OK, ("grpc-status", code)]


NO_MESSAGE = b"\0\0\0\0\0"
OF_THE_CALL: dict[str, tuple[Script, type[RpcError], StatusCode]] = {
    "not gRPC": (
        answering(head([(":status", "200"), ("content-type", "text/html")]), data(b"<html>", end=True)),
        UnusableError,
        StatusCode.UNKNOWN,
    ),
    "HTTP status": (answering(head([(":status", "503")], end=True)), UnusableError, StatusCode.UNAVAILABLE),
    "not found": (answering(head([(":status", "404")], end=True)), UnusableError, StatusCode.UNIMPLEMENTED),
    "trailers only": (
        answering(head(status("9"), end=True)),
        AnsweredError,
        StatusCode.FAILED_PRECONDITION,
    ),
    "unknown status": (
        answering(head(status("99"), end=True)),
        AnsweredError,
        StatusCode.UNKNOWN,
    ),
    "no trailers": (answering(head(OK), data(NO_MESSAGE, end=True)), UnusableError, StatusCode.UNKNOWN),
    "no message": (answering(head(OK), head(DONE, end=True)), UnusableError, StatusCode.INTERNAL),
    "half a message": (
        answering(head(OK), data(b"\0\0\0\0\x09half"), head(DONE, end=True)),
        UnusableError,
        StatusCode.INTERNAL,
    ),
    "two messages": (answering(head(OK), data(NO_MESSAGE * 2)), UnusableError, StatusCode.INTERNAL),
    "compressed": (answering(head(OK), data(b"\1\0\0\0\1x")), UnusableError, StatusCode.UNIMPLEMENTED),
    "300 MB": (
        answering(head(OK), data(b"\0" + (300 * MEBIBYTE).to_bytes(4, "big") + bytes(10_000))),
        UnusableError,
        StatusCode.RESOURCE_EXHAUSTED,
    ),
    "data before headers": (answering(data(NO_MESSAGE)), UnusableError, StatusCode.INTERNAL),
    "headers twice": (answering(head(OK), head(OK)), UnusableError, StatusCode.INTERNAL),
    "reset": (
        answering(lambda _, number: frames.rst_stream(number, 2)),
        UnreachableError,
        StatusCode.INTERNAL,
    ),
    "window of the stream": (
        answering(lambda _, stream_id: frames.window_update(stream_id, 2**31 - 1) * 2),
        UnusableError,
        StatusCode.INTERNAL,
    ),
}
"""What ends the call, and leaves the connection as it is."""


@pytest.mark.parametrize(("script", "kind", "code"), OF_THE_CALL.values(), ids=OF_THE_CALL)
async def test_an_answer_that_is_none_costs_one_call(
    client: GrpcClient, folder: Path, script: Script, kind: type[RpcError], code: StatusCode
) -> None:
    async with RawServer(folder / "s.sock", script) as server:
        error = error_of(await call(client))
        assert (type(error), error.code) == (kind, code)
        assert len(error.text) < 500
        assert await call(client, b"next") == b"next"
        assert len(server.peers) == 1


OF_THE_CONNECTION: dict[str, Script] = {
    "a long frame": answering(raw(b"\xff\xff\xff\0\0\0\0\0\1")),
    "endless CONTINUATION": answering(
        lambda _, stream_id: frame(frames.HEADERS, 0, stream_id),
        lambda _, stream_id: frame(frames.CONTINUATION, 0, stream_id, bytes(10_000)) * 10,
    ),
    "endless empty CONTINUATION": answering(
        lambda _, stream_id: frame(frames.HEADERS, 0, stream_id),
        lambda _, stream_id: frame(frames.CONTINUATION, 0, stream_id) * 100_000,
    ),
    "an interrupted block": answering(
        lambda _, stream_id: frame(frames.HEADERS, 0, stream_id), raw(frames.ping(bytes(8)))
    ),
    "CONTINUATION of nothing": answering(lambda _, stream_id: frame(frames.CONTINUATION, 4, stream_id)),
    "a block that does not decode": answering(
        lambda _, stream_id: frame(frames.HEADERS, 4, stream_id, b"\xff\xff\xff\xff\xff")
    ),
    "a stream of nobody": answering(raw(frame(frames.DATA, 0, 99, b"x"))),
    "a stream of the server": answering(raw(frame(frames.HEADERS, 4, 2))),
    "the connection's window": answering(raw(frames.window_update(0, 2**31 - 1))),
    "no window": answering(raw(frame(frames.WINDOW_UPDATE, 0, 0, bytes(4)))),
    "push": answering(raw(frame(frames.PUSH_PROMISE, 4, 1, bytes(4)))),
    "SETTINGS of a stream": answering(raw(frame(frames.SETTINGS, 0, 1))),
    "odd SETTINGS": answering(raw(frame(frames.SETTINGS, 0, 0, b"x"))),
    "huge window in SETTINGS": answering(raw(frame(frames.SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff"))),
    "tiny frames in SETTINGS": answering(raw(frame(frames.SETTINGS, 0, 0, b"\0\5\0\0\0\1"))),
    "a short PING": answering(raw(frame(frames.PING, 0, 0, b"x"))),
    "a short GOAWAY": answering(raw(frame(frames.GOAWAY, 0, 0, b"x"))),
    "padding": answering(lambda _, stream_id: frame(frames.DATA, frames.PADDED, stream_id, b"\xff")),
}


@pytest.mark.parametrize("script", OF_THE_CONNECTION.values(), ids=OF_THE_CONNECTION)
async def test_a_server_that_breaks_the_protocol_has_a_new_connection(
    client: GrpcClient, folder: Path, script: Script
) -> None:
    async with RawServer(folder / "s.sock", script, serve) as server:
        error = error_of(await call(client))
        assert (type(error), error.code) == (UnreachableError, StatusCode.UNAVAILABLE)
        assert error.text.startswith("the server broke the protocol: ")
        assert await call(client, b"next") == b"next"
        assert len(server.peers) == 2


async def test_answers_to_pings_that_are_not_read_are_bounded(client: GrpcClient, folder: Path) -> None:
    async def flooding(peer: Peer) -> None:
        await peer.request()
        while True:
            peer.send(frames.ping(bytes(8)) * 1_000)
            await peer.writer.drain()
            await asyncio.sleep(0)

    async with RawServer(folder / "s.sock", flooding, serve):
        assert isinstance(await call(client), UnreachableError)
        assert await call(client, b"next") == b"next"


async def test_too_much_under_way_is_refused(client: GrpcClient, folder: Path) -> None:
    async def silent(peer: Peer) -> None:
        await asyncio.Event().wait()

    async with RawServer(folder / "s.sock", silent):
        calls = [begin(client, bytes(16 * MEBIBYTE)) for _ in range(3)]
        error = error_of(await call(client, bytes(16 * MEBIBYTE)))
        assert error.code is StatusCode.RESOURCE_EXHAUSTED
        for each, _ in calls:
            each.cancel()


async def test_many_tiny_frames_leave_others_their_turn(client: GrpcClient, folder: Path) -> None:
    turns: list[int] = []

    async def tiny(peer: Peer) -> None:
        stream_id, _ = await peer.request()
        peer.send(
            frame(frames.DATA, 0, stream_id) * 0,
            peer.block(stream_id, OK),
            frame(frames.DATA, 0, stream_id) * 20_000,
        )
        peer.send(frame(frames.DATA, 0, stream_id, NO_MESSAGE), peer.block(stream_id, DONE, end=True))
        await peer.frame()

    async with RawServer(folder / "s.sock", tiny):
        loop = asyncio.get_running_loop()

        def turn() -> None:
            turns.append(1)
            loop.call_soon(turn)

        answer = asyncio.ensure_future(call(client))
        loop.call_soon(turn)
        assert await answer == b""
        assert len(turns) >= 20_000 // connection._FRAMES_A_TURN // 2


async def test_header_blocks_of_many_fields_leave_others_their_turn(client: GrpcClient, folder: Path) -> None:
    turns: list[int] = []
    count, fields = 100, b"\x84" * 16_000  # :path /

    async def full(peer: Peer) -> None:
        stream_id, _ = await peer.request()
        peer.send(frame(frames.HEADERS, 4, stream_id, fields) * count)
        await peer.next_of(frames.RST_STREAM)
        peer.send(frames.ping(bytes(8)))
        await peer.next_of(frames.PING)
        read.set()
        await peer.frame()

    read = asyncio.Event()
    async with RawServer(folder / "s.sock", full):
        loop = asyncio.get_running_loop()

        def turn() -> None:
            turns.append(1)
            if not read.is_set():
                loop.call_soon(turn)

        loop.call_soon(turn)
        assert isinstance(await call(client), UnusableError)
        async with asyncio.timeout(LONG_S):
            await read.wait()
        assert (
            len(turns)
            >= count * len(fields) // connection._BLOCK_BYTES_A_FRAME // connection._FRAMES_A_TURN // 2
        )


PAYLOADS = (b"\x88", b"\x88\x0f\x10\x10application/grpc", b"\0\0\0\0\1x", bytes(4), bytes(8), b"\0\4\0\0\0\1")
garbage = st.binary(max_size=40)
any_frame = st.builds(
    frames.frame,
    st.integers(0, 11),
    st.sampled_from((0, 1, 4, 5, 8, 9, 13, 0x20, 0x24, 0xFF)),
    st.sampled_from((0, 1, 1, 1, 3, 5, 2, 99)),
    garbage
    | st.sampled_from(
        (b"\x88", b"\x88\x0f\x10\x10application/grpc", b"\0\0\0\0\1x", bytes(4), bytes(8), b"\0\4\0\0\0\1")
    ),
)


@settings(max_examples=20, deadline=None)
@given(chunks=st.lists(st.lists(any_frame | garbage, max_size=6), max_size=5), ends=st.booleans())
def test_whatever_a_server_sends_each_call_ends_once_and_in_time(
    chunks: list[list[bytes]], ends: bool
) -> None:
    async def main(folder: Path) -> None:
        problems: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context))

        async def script(peer: Peer) -> None:
            await peer.frame()
            for chunk in chunks:
                peer.send(*chunk)
                await asyncio.sleep(0)
            if not ends:
                await asyncio.Event().wait()

        client = GrpcClient(str(folder / "s.sock"))
        outcomes: list[list[bytes | RpcError]] = [[] for _ in range(3)]
        over = asyncio.Event()

        def done(came: list[bytes | RpcError], outcome: bytes | RpcError) -> None:
            came.append(outcome)
            if all(outcomes):
                over.set()

        async with RawServer(folder / "s.sock", script):
            for came in outcomes:
                client.call(ECHO, b"request", 0.03, lambda outcome, came=came: done(came, outcome))  # type: ignore[misc]
            async with asyncio.timeout(LONG_S):
                await over.wait()
            client.close()
            await until(lambda: not any(task.get_name() == "connect-grpc" for task in asyncio.all_tasks()))
        transports: Mapping[int, Any] = loop._transports  # type: ignore[attr-defined]
        await until(lambda: all(each._sock is None for each in list(transports.values())))
        assert [len(came) for came in outcomes] == [1, 1, 1]
        assert (client._calls, client._held_bytes) == ({}, 0)
        assert not client._waiting
        assert problems == []

    with tempfile.TemporaryDirectory(prefix="client-") as path, asyncio.Runner() as runner:
        runner.run(main(Path(path)))
    gc.collect()
