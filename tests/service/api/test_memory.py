"""Clients that send half of a request, or read no response: memory is bounded, and others are served."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.http2 import frames
from runtimeproxy.service.api.loading import MOST_CALLS
from tests.lab.cri_client import CriClient
from tests.lab.procfs import rss_bytes
from tests.lab.proxy_process import ProxyProcess
from tests.peers.aio import Peer, until
from tests.peers.wire import Frame, message

MEBIBYTE = 1024 * 1024
MOST_GROWTH_BYTES = 80 * MEBIBYTE
"""The budget of 32 MiB, what the relay has of each connection, and what the allocator keeps."""
READ = "/runtimeproxy.v1.RuntimeProxy/"
ANNOUNCED = struct.pack(">BL", 0, 4 * MEBIBYTE - 64)


class Sender:
    """A client that keeps to the windows of its server."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.is_over = False
        self.has_echo = False
        """Whether the server has answered a PING."""
        self._windows: dict[int, int] = {0: frames.DEFAULT_WINDOW_BYTES}
        self._reading = asyncio.ensure_future(self._read())

    def begin(self, stream_id: int, path: str) -> None:
        self._windows[stream_id] = frames.DEFAULT_WINDOW_BYTES
        self.peer.send(self.peer.call(stream_id, path))

    async def send(self, stream_id: int, data: bytes) -> None:
        """Sends as much as the server takes; returns early if it ends the stream."""
        while data and not self.is_over and stream_id in self._windows:
            size_bytes = min(len(data), 16_384, self._windows[0], self._windows[stream_id])
            if size_bytes <= 0:
                await asyncio.sleep(0)
                continue
            self._windows[0] -= size_bytes
            self._windows[stream_id] -= size_bytes
            self.peer.send(Frame(frames.DATA, 0, stream_id, data[:size_bytes]))
            await self.peer.writer.drain()
            data = data[size_bytes:]

    async def _read(self) -> None:
        try:
            while True:
                found = await self.peer.frame()
                if found.type_ == frames.WINDOW_UPDATE and found.stream_id in self._windows:
                    self._windows[found.stream_id] += found.number
                elif found.type_ == frames.PING:
                    self.has_echo = True
                elif found.stream_id and (found.type_ == frames.RST_STREAM or found.ends_stream):
                    self._windows.pop(found.stream_id, None)
        except (EOFError, ConnectionError):
            self.is_over = True

    async def close(self) -> None:
        self._reading.cancel()
        await self.peer.close()


@asynccontextmanager
async def senders(path: Path, count: int) -> AsyncIterator[list[Sender]]:
    made = [Sender(Peer(*await asyncio.open_unix_connection(path))) for _ in range(count)]
    for each in made:
        each.peer.begin()
    try:
        yield made
    finally:
        for each in made:
            await each.close()


Served = tuple[ProxyProcess, api_pb2_grpc.RuntimeProxyStub]


@pytest.fixture
def served(daemon: ProxyProcess, client: CriClient) -> Served:
    """A daemon whose API has answered."""
    api = api_pb2_grpc.RuntimeProxyStub(client.channel)
    api.GetStatus(api_pb2.GetStatusRequest(), timeout=30, wait_for_ready=True)
    return daemon, api


async def reads(api: api_pb2_grpc.RuntimeProxyStub) -> None:
    """Another client is answered at once."""
    for _ in range(3):
        await asyncio.to_thread(api.GetStatus, api_pb2.GetStatusRequest(), timeout=5)


@pytest.mark.parametrize(
    "path",
    [
        f"{READ}GetStatus",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (f"{READ}GetNode", f"{READ}Simulate", "/grpc.health.v1.Health/Check")
        ),
    ],
)
async def test_requests_that_do_not_end(served: Served, path: str) -> None:
    daemon, api = served
    before_bytes = rss_bytes(daemon.pid)
    async with senders(daemon.socket, 16) as clients:
        for client in clients:
            for number in range(100):
                client.begin(2 * number + 1, path)
                # What every server takes before it has read anything of a message.
                await client.send(2 * number + 1, ANNOUNCED + bytes(60_000))
            client.peer.send(frames.ping(b"all read"))
        await until(lambda: all(client.has_echo or client.is_over for client in clients))
        await reads(api)
        print(path, (rss_bytes(daemon.pid) - before_bytes) / MEBIBYTE, "MiB")
        assert rss_bytes(daemon.pid) - before_bytes < MOST_GROWTH_BYTES


async def test_responses_that_are_not_read(served: Served) -> None:
    daemon, api = served
    asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol="runtime.v1.RuntimeService")
    request = message(asked.SerializeToString())
    before_bytes = rss_bytes(daemon.pid)
    async with senders(daemon.socket, 10) as clients:
        for client in clients:
            # No stream has a window.
            client.peer.send(frames.frame(frames.SETTINGS, 0, 0, struct.pack(">HL", 4, 0)))
            for number in range(100):
                client.begin(2 * number + 1, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
                await client.send(2 * number + 1, request * 20)
        await reads(api)
        print((rss_bytes(daemon.pid) - before_bytes) / MEBIBYTE, "MiB")
        assert rss_bytes(daemon.pid) - before_bytes < MOST_GROWTH_BYTES


async def test_calls_without_a_message_keep_nobody_out(served: Served) -> None:
    daemon, _ = served
    async with senders(daemon.socket, 1) as clients:
        for number in range(MOST_CALLS["Explain"]):
            clients[0].begin(2 * number + 1, f"{READ}Explain")
        # They have come, as those on one connection come in their order.
        clients[0].begin(301, f"{READ}Nothing")
        await until(lambda: 301 not in clients[0]._windows)
        with CriClient(daemon.socket) as client:
            assert await asyncio.to_thread(explained, client) == "NOT_FOUND"


def explained(client: CriClient) -> str:
    """The status of a call."""
    try:
        api_pb2_grpc.RuntimeProxyStub(client.channel).Explain(api_pb2.ExplainRequest(pod="none"), timeout=5)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"
