"""The listener: HTTP on a Unix socket and on TCP, and clients that misbehave."""

from __future__ import annotations

import asyncio
import logging
import socket
import stat
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimeproxy.config.parsing import TcpAddress
from runtimeproxy.service.metrics import server as module
from runtimeproxy.service.metrics.collector import Exposition
from runtimeproxy.service.metrics.server import MAX_HEAD_BYTES, MOST_CLIENTS, MetricsServer
from tests.lab.ports import free_port
from tests.peers.aio import until


async def read(accept: str) -> Exposition:
    return Exposition("text/plain; version=0.0.4", f"accept={accept}\n".encode())


@pytest.fixture
async def served(socket_folder: Path) -> AsyncIterator[Path]:
    """The path of a listener."""
    path = socket_folder / "metrics.sock"
    server = MetricsServer(str(path), read)
    await server.open()
    yield path
    server.close()


async def exchange(path: Path, request: bytes) -> bytes:
    """All that a client gets before the connection ends."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(request)
    try:
        return await ended(reader)
    finally:
        writer.close()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """All that is left until the connection ends."""
    try:
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionError:
        return b""


async def test_a_request_gets_the_numbers(served: Path) -> None:
    got = await exchange(served, b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nACCEPT:  text/plain \r\n\r\n")
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: 18\r\n"
    )
    assert body == b"accept=text/plain\n"


@pytest.mark.parametrize(
    ("request_", "start", "has_body"),
    [
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK", False),
        (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 ", True),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 ", True),
        (b"\0\xff\r\n\r\n", b"HTTP/1.1 405 ", True),
        (b"GET /" + bytes(2 * MAX_HEAD_BYTES), b"", False),
    ],
)
async def test_other_requests(served: Path, request_: bytes, start: bytes, has_body: bool) -> None:
    got = await exchange(served, request_)
    assert got.startswith(start)
    assert bool(got.partition(b"\r\n\r\n")[2]) is has_body


async def test_the_socket_is_the_users_own_and_goes_with_the_listener(socket_folder: Path) -> None:
    path = socket_folder / "made" / "metrics.sock"
    server = MetricsServer(str(path), read)
    await server.open()
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["metrics.sock"]
    server.close()
    assert not path.exists()
    server.close()


async def test_a_successors_socket_stays(socket_folder: Path) -> None:
    path = socket_folder / "metrics.sock"
    old, new = MetricsServer(str(path), read), MetricsServer(str(path), read)
    await old.open()
    await new.open()
    old.close()
    assert (await exchange(path, b"GET /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    new.close()


async def test_what_is_no_socket_is_left_alone(socket_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = socket_folder / "metrics.sock"
    path.write_text("precious")
    server = MetricsServer(str(path), read)
    await server.open()
    await server.open()
    assert path.read_text() == "precious"
    assert [each.message for each in caplog.records] == [
        f"metrics cannot be served on {path}: exists and is not a socket"
    ]
    path.unlink()
    await server.open()
    assert path.is_socket()
    server.close()


async def test_a_port_in_use_is_taken_once_it_is_free(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with socket.create_server(("127.0.0.1", free_port())) as other:
        address = TcpAddress(*other.getsockname())
        server = MetricsServer(address, read)
        await server.open()
        assert "Address already in use" in caplog.text
    await server.open()
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()
    server.close()
    assert f"metrics are served on http://127.0.0.1:{address.port}/metrics" in caplog.text


async def test_a_silent_client_is_cut_off(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_S", 0.05)
    assert await exchange(served, b"GET /metr") == b""


async def test_a_client_that_does_not_read_is_cut_off(
    socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESPONSE_S", 0.2)
    ended = asyncio.Event()

    async def much(accept: str) -> Exposition:
        return Exposition("text/plain", bytes(32 * 1024 * 1024))

    class Watched(MetricsServer):
        async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await super()._serve(reader, writer)
            ended.set()

    path = socket_folder / "metrics.sock"
    server = Watched(str(path), much)
    await server.open()
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    await asyncio.wait_for(ended.wait(), 30)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(32 * 1024 * 1024)
    writer.close()
    server.close()


REQUEST = b"GET /metrics HTTP/1.1\r\n\r\n"


async def test_silent_clients_make_room_the_oldest_first(served: Path) -> None:
    silent = [await asyncio.open_unix_connection(served) for _ in range(MOST_CLIENTS + 1)]
    for _, writer in silent:
        writer.write(b"GET /metr")
    assert await ended(silent[0][0]) == b""
    assert (await exchange(served, REQUEST)).startswith(b"HTTP/1.1 200 ")
    assert await ended(silent[1][0]) == b""
    # Those that are left get their responses still.
    silent[-1][1].write(b"ics HTTP/1.1\r\n\r\n")
    assert (await silent[-1][0].read()).startswith(b"HTTP/1.1 200 ")
    for _, writer in silent:
        writer.close()


async def test_clients_that_are_being_answered_keep_their_places(socket_folder: Path) -> None:
    path, begun, go_on = socket_folder / "metrics.sock", asyncio.Semaphore(0), asyncio.Event()

    async def slowly(accept: str) -> Exposition:
        begun.release()
        await go_on.wait()
        return await read(accept)

    server = MetricsServer(str(path), slowly)
    await server.open()
    answered = [asyncio.ensure_future(exchange(path, REQUEST)) for _ in range(MOST_CLIENTS)]
    await until(lambda: len(server._clients) == MOST_CLIENTS and not server._silent)
    # They share one reading of the numbers.
    await begun.acquire()
    assert begun.locked()
    assert await exchange(path, REQUEST) == b""
    go_on.set()
    assert all(each.startswith(b"HTTP/1.1 200 ") for each in await asyncio.gather(*answered))
    server.close()


FLOOD = """
import socket, sys
print("begun", flush=True)
while True:
    try:
        each = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5)
        each.sendall(b"GET /metrics HTTP/1.1\\r\\n\\r\\n")
        while each.recv(65536):
            pass
        each.close()
    except OSError:
        pass
"""
"""Connects, asks and reads without end."""


async def test_scrapes_beside_a_flood(caplog: pytest.LogCaptureFixture) -> None:
    async def long(accept: str) -> Exposition:
        return Exposition("text/plain", bytes(300_000))

    port = free_port()
    server = MetricsServer(TcpAddress("127.0.0.1", port), long)
    await server.open()
    flood = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FLOOD, str(port), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert flood.stdout is not None
        assert await flood.stdout.readline() == b"begun\n"
        for _ in range(50):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REQUEST)
            answer = await ended(reader)
            writer.close()
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert answer.endswith(bytes(300_000))
    finally:
        flood.kill()
        await flood.wait()
        server.close()
    assert not caplog.messages


async def test_clients_that_do_not_read_make_room(socket_folder: Path) -> None:
    path = socket_folder / "metrics.sock"

    async def long(accept: str) -> Exposition:
        return Exposition("text/plain", bytes(4 << 20))

    server = MetricsServer(str(path), long)
    await server.open()
    idle = [await asyncio.open_unix_connection(path, limit=1024) for _ in range(MOST_CLIENTS)]
    for _, writer in idle:
        writer.write(REQUEST)
    await until(lambda: len(server._unread) == MOST_CLIENTS)
    assert (await exchange(path, REQUEST)).startswith(b"HTTP/1.1 200 ")
    for _, writer in idle:
        writer.transport.abort()
    server.close()


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_a_client_that_leaves_before_its_response_is_no_error(
    caplog: pytest.LogCaptureFixture, is_noticed: bool
) -> None:
    """By a reset, which ends the connection before it is written to, or by its end, which is seen then."""
    go_on = asyncio.Event()

    async def slowly(accept: str) -> Exposition:
        await go_on.wait()
        return await read(accept)

    server = MetricsServer(TcpAddress("127.0.0.1", 0), slowly)
    await server.open()
    assert server._server is not None
    _, writer = await asyncio.open_connection(*server._server.sockets[0].getsockname())
    writer.write(REQUEST)
    await until(lambda: bool(server._readings))
    if is_noticed:
        own = writer.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    if is_noticed:
        await until(lambda: all(each.is_closing() for each in server._clients))
    go_on.set()
    await until(lambda: not server._clients)
    assert "metrics cannot be read" not in caplog.text
    server.close()


async def test_an_error_costs_one_response(socket_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    is_broken = True

    async def sometimes(accept: str) -> Exposition:
        if is_broken:
            raise RuntimeError("broken")
        return await read(accept)

    path = socket_folder / "metrics.sock"
    server = MetricsServer(str(path), sometimes)
    await server.open()
    assert await exchange(path, b"GET /metrics HTTP/1.1\r\n\r\n") == b""
    assert "metrics cannot be read" in caplog.text
    is_broken = False
    assert (await exchange(path, b"GET /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    server.close()
