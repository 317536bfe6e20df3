"""grpcio's client and server with the relay between them; nghttp2's server under h2load's load."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from tests.frontends.cri_proxy.relay.playbook import HELD, PASSING, forward_as_it_came
from tests.frontends.cri_proxy.relay.sockets.stage import Stage
from tests.lab.ports import free_port
from tests.lab.programs import debian_program
from tests.peers.aio import Peer, soon, until
from tests.peers.wire import message

TALK = "/passing.Service/Talk"
FAIL = "/passing.Service/Fail"
WAIT = "/held.Service/Wait"
PASSING_WAIT = "/passing.Service/Wait"
COUNT = "/passing.Service/Count"
SHORT_S = 1.0
"""On a connection that is there, a call reaches the runtime in it, also on a machine that is busy."""
MEBIBYTE = 1 << 20


class Echo(grpc.GenericRpcHandler):
    """Answers with what it gets, or as the path says."""

    def __init__(self) -> None:
        self.requests: list[int] = []
        self.waiting = threading.Event()
        self.cancelled = threading.Event()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        """The handler of a path."""
        if details.method == TALK:
            return grpc.stream_stream_rpc_method_handler(lambda requests, _: requests)
        if details.method == FAIL:
            return grpc.unary_unary_rpc_method_handler(self._fail)
        if details.method == COUNT:
            return grpc.unary_stream_rpc_method_handler(self._count)
        if details.method in (WAIT, PASSING_WAIT):
            return grpc.unary_unary_rpc_method_handler(self._wait)
        return grpc.unary_unary_rpc_method_handler(self._echo)

    def _echo(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.requests.append(len(request))
        context.set_trailing_metadata(context.invocation_metadata())
        return request

    def _count(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        for number in range(int(request)):
            yield b"%d" % number

    def _fail(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata((("x-text", "1"), ("x-text", "2"), ("x-bin", b"\x00\xff")))
        context.abort(grpc.StatusCode.NOT_FOUND, "no such pod: größe 100%")
        raise AssertionError

    def _wait(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(self.cancelled.set)
        self.waiting.set()
        self.cancelled.wait(30)
        return b""


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[Echo]:
    """A server in threads of its own, where the stage looks for its runtime."""
    handler = Echo()
    options = [("grpc.max_receive_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(8), [handler], options=options)
    server.add_insecure_port(f"unix:{tmp_path / 'runtime.sock'}")
    server.start()
    yield handler
    handler.cancelled.set()
    server.stop(None).wait()


@pytest_asyncio.fixture
async def relay(tmp_path: Path, echo: Echo) -> AsyncIterator[Stage]:
    """A relay before it."""
    async with Stage(tmp_path, has_runtime=False) as stage:
        yield stage


def channel_to(stage: Stage) -> grpc.Channel:
    """A client's channel through the relay."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    return grpc.insecure_channel(f"unix:{stage.path}", options)


def unary(channel: grpc.Channel, path: str) -> Any:
    """A method whose messages are bytes; the stubs know serialized ones only."""
    return channel.unary_unary(path)


async def test_messages_of_all_sizes_pass(relay: Stage) -> None:
    def ask() -> list[bytes]:
        with channel_to(relay) as channel:
            call = unary(channel, PASSING)
            return [call(bytes(size), timeout=30) for size in (0, 1, 65_531, 17 * MEBIBYTE)]

    assert [len(answer) for answer in await soon(asyncio.to_thread(ask))] == [0, 1, 65_531, 17 * MEBIBYTE]


@pytest.mark.parametrize("size", [0, 1, 100_000, 3 * MEBIBYTE])
async def test_a_held_message_is_changed(relay: Stage, size: int) -> None:
    changed = bytes(range(256)) * (size // 256)
    relay.decide(lambda call, _: call.reply.forward(message(changed)))

    def ask() -> bytes:
        with channel_to(relay) as channel:
            answer: bytes = unary(channel, HELD)(bytes(size), timeout=30)
            return answer

    assert await soon(asyncio.to_thread(ask)) == changed
    assert relay.held[0].events[0] == ("message", message(bytes(size)))
    assert relay.budget.used_bytes == 0


async def test_compressed_messages_pass_held_or_not(relay: Stage) -> None:
    relay.decide(lambda call, _: call.reply.forward(None))

    def ask(path: str) -> bytes:
        with channel_to(relay) as channel:
            call = unary(channel, path)
            answer: bytes = call(bytes(100_000), timeout=30, compression=grpc.Compression.Gzip)
            return answer

    for path in (PASSING, HELD):
        assert await soon(asyncio.to_thread(ask, path)) == bytes(100_000)
    assert relay.held[0].head.encoding == "gzip"


async def test_a_refusal_is_a_status_with_its_text(relay: Stage) -> None:
    relay.decide(lambda call, _: call.reply.refuse(9, "koord-runtime-proxy: größe 100%\n"))

    def ask() -> list[tuple[grpc.StatusCode, str | None]]:
        found = []
        with channel_to(relay) as channel:
            for _ in range(3):
                call = unary(channel, HELD).future(b"x", timeout=30)
                assert call.exception() is not None
                found.append((call.code(), call.details()))
            assert unary(channel, PASSING)(b"x", timeout=30) == b"x"
        return found

    expected = (grpc.StatusCode.FAILED_PRECONDITION, "koord-runtime-proxy: größe 100%\n")
    assert await soon(asyncio.to_thread(ask)) == [expected] * 3


async def test_status_text_and_trailers_pass(relay: Stage) -> None:
    def ask() -> tuple[grpc.StatusCode, str | None, list[tuple[str, str | bytes]]]:
        with channel_to(relay) as channel:
            call = unary(channel, FAIL).future(b"x", timeout=30)
            return call.code(), call.details(), [tuple(each) for each in call.trailing_metadata()]

    code, text, trailers = await soon(asyncio.to_thread(ask))
    assert (code, text) == (grpc.StatusCode.NOT_FOUND, "no such pod: größe 100%")
    assert trailers == [("x-text", "1"), ("x-text", "2"), ("x-bin", b"\x00\xff")]


async def test_a_conversation_passes_message_by_message(relay: Stage) -> None:
    def talk() -> None:
        with channel_to(relay) as channel:
            said: list[bytes] = []
            turn = threading.Semaphore(0)

            def speak() -> Iterator[bytes]:
                for number in range(20):
                    said.append(b"%d" % number * 1000)
                    yield said[-1]
                    turn.acquire()

            conversation: Any = channel.stream_stream(TALK)
            for heard in conversation(speak(), timeout=30):
                assert heard == said[-1]
                turn.release()
            assert len(said) == 20

    await soon(asyncio.to_thread(talk))


async def test_a_cancelled_call_is_cancelled_at_the_server(relay: Stage, echo: Echo) -> None:
    relay.decide(lambda call, _: call.reply.forward(None))

    def give_up() -> bool:
        with channel_to(relay) as channel:
            call = unary(channel, WAIT).future(b"x", timeout=30)
            assert echo.waiting.wait(30)
            call.cancel()
            return echo.cancelled.wait(30)

    assert await soon(asyncio.to_thread(give_up))


async def test_many_calls_at_the_same_time_do_not_mix(relay: Stage) -> None:
    relay.decide(lambda call, data: call.reply.forward(data[:5] + data[5:].swapcase()))

    def ask() -> None:
        with channel_to(relay) as channel:
            held, passing = unary(channel, HELD), unary(channel, PASSING)
            calls = [
                (n, held.future(b"a%d" % n * 500, timeout=30), passing.future(b"b%d" % n, timeout=30))
                for n in range(200)
            ]
            for number, first, second in calls:
                assert first.result() == b"A%d" % number * 500
                assert second.result() == b"b%d" % number

    await soon(asyncio.to_thread(ask))
    assert relay.budget.used_bytes == 0


async def test_a_stream_of_many_messages_passes(relay: Stage) -> None:
    def ask() -> list[bytes]:
        with channel_to(relay) as channel:
            call: Any = channel.unary_stream(COUNT)
            return list(call(b"1000", timeout=30))

    assert await soon(asyncio.to_thread(ask)) == [b"%d" % number for number in range(1000)]


async def test_a_held_message_over_the_bound_is_refused(relay: Stage, echo: Echo) -> None:
    def ask() -> tuple[grpc.StatusCode, str | None, bytes]:
        with channel_to(relay) as channel:
            call = unary(channel, HELD).future(bytes(17 * MEBIBYTE), timeout=30)
            return call.code(), call.details(), unary(channel, PASSING)(b"next", timeout=30)

    code, text, following = await soon(asyncio.to_thread(ask))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert text is not None
    assert text.startswith("koord-runtime-proxy: ")
    assert following == b"next"
    assert echo.requests == [4]


async def test_a_deadline_while_a_call_is_held(relay: Stage, echo: Echo) -> None:
    def ask() -> grpc.StatusCode:
        with channel_to(relay) as channel:
            unary(channel, PASSING)(b"the connection is there", timeout=30)
            code: grpc.StatusCode = unary(channel, HELD).future(b"x", timeout=SHORT_S).code()
            return code

    assert await soon(asyncio.to_thread(ask)) is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: relay.held[0].names == ["message", "cancelled"])


async def test_a_deadline_reaches_the_runtime(relay: Stage, echo: Echo) -> None:
    def ask() -> grpc.StatusCode:
        with channel_to(relay) as channel:
            unary(channel, PASSING)(b"the connection is there", timeout=30)
            code: grpc.StatusCode = unary(channel, PASSING_WAIT).future(b"x", timeout=SHORT_S).code()
            assert echo.cancelled.wait(30)
            return code

    assert await soon(asyncio.to_thread(ask)) is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_cancelled_call_that_is_held_does_not_reach_the_server(relay: Stage, echo: Echo) -> None:
    with channel_to(relay) as channel:
        call = unary(channel, HELD).future(b"x", timeout=30)
        held = await relay.message()
        call.cancel()
        await until(lambda: held.names == ["message", "cancelled"])
        held.reply.forward(None)
        assert await soon(asyncio.to_thread(unary(channel, PASSING), b"next", 30)) == b"next"
        await asyncio.to_thread(channel.close)
    assert echo.requests == [4]


@pytest.mark.debian
async def test_nghttp2_under_load(tmp_path: Path) -> None:
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "file").write_bytes(bytes(100_000))
    async with Nghttpd(tmp_path) as server, Stage(tmp_path, has_runtime=False) as stage:
        bridge = await asyncio.start_unix_server(server.serve, str(stage.runtime.path))
        async with bridge:
            report = await h2load(stage.path, "/file", "-n200", "-c4", "-m10")
    assert "200 2xx" in report
    assert re.search(r"200 succeeded, 0 failed, 0 errored, 0 timeout", report)


@pytest.mark.debian
@pytest.mark.parametrize("path", [PASSING, HELD], ids=["passing", "held"])
async def test_grpc_under_load(relay: Stage, echo: Echo, tmp_path: Path, path: str) -> None:
    relay.decide(forward_as_it_came)
    (tmp_path / "request").write_bytes(message(b"x" * 300))
    fields = ("-H", "content-type: application/grpc", "-H", "te: trailers")
    report = await h2load(relay.path, path, "-n2000", "-c4", "-m8", f"-d{tmp_path / 'request'}", *fields)
    assert "2000 succeeded, 0 failed, 0 errored" in report
    assert echo.requests == [300] * 2000


async def h2load(path: Path, target: str, *options: str) -> str:
    """Runs h2load; returns its report."""
    child = await asyncio.create_subprocess_exec(
        *(str(debian_program("h2load")), *options, f"--base-uri=unix:{path}", f"http://localhost{target}"),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await soon(child.communicate())
    return output.decode()


class Nghttpd:
    """nghttpd on a port of its own; a bridge brings Unix sockets to it, since it speaks TCP only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = 0
        self._child: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Nghttpd:
        program = str(debian_program("nghttpd"))
        self._port = free_port()
        self._child = await asyncio.create_subprocess_exec(
            *(program, "--no-tls", "-a", "127.0.0.1", "-d", str(self._folder / "www"), str(self._port))
        )
        await soon(self._ready())
        return self

    async def _ready(self) -> None:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except ConnectionRefusedError:
                continue
            writer.close()
            await writer.wait_closed()
            return

    async def __aexit__(self, *_: object) -> None:
        assert self._child is not None
        self._child.kill()
        await soon(self._child.wait())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Brings one connection to it."""
        other = Peer(*await asyncio.open_connection("127.0.0.1", self._port))
        await asyncio.gather(_pump(reader, other.writer), _pump(other.reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while received := await reader.read(1 << 16):
            writer.write(received)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()
