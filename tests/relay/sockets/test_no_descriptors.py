"""A process that is out of file descriptors: everybody waits, and nobody is lost."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.relay.playbook import HELD
from tests.relay.sockets.stage import Stage, until
from tests.relay.wire import GOAWAY, HEADERS, data, goaway, message


@contextlib.contextmanager
def none_left() -> Iterator[None]:
    """No file can be opened for the length of a block."""
    # What earlier tests left behind would be closed in the middle of this one.
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as highest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest.fileno() + 50, hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_clients_wait(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        with none_left():
            client.connect(str(stage.path))
            await until(lambda: "clients have to wait" in caplog.text)
        await until(lambda: stage.server.connection_count == 1)


async def test_calls_wait(stage: Stage) -> None:
    client = await stage.client()
    client.begin()
    await client.frame()
    (connection,) = stage.server._connections
    with none_left():
        client.send(call := client.call(1, end=True))
        await until(lambda: connection._dial is not None and connection._dial._retry is not None)
    runtime = await stage.runtime.peer()
    assert await runtime.next_of(HEADERS) == call
    assert stage.server.defect_count == 0


async def test_calls_are_refused_when_their_time_is_over(tmp_path: Path) -> None:
    async with Stage(tmp_path, has_runtime=False, upstream_wait_s=0.05) as stage:
        client = await stage.client()
        client.begin()
        await client.frame()
        client.send(client.call(1), client.call(3, HELD), data(3, message(b"x"), end=True))
        await until(lambda: bool(stage.held and stage.held[0].events))
        with none_left():
            *answers, last = [frame for frame in await client.rest() if frame.type_ in (HEADERS, GOAWAY)]
        assert ([frame.stream_id for frame in answers], last) == ([1, 3], goaway(3))
        fields = client.headers.read(answers[0].payload)
        assert fields["grpc-status"] == "14"
        assert fields["grpc-message"].endswith("is not reachable: Too many open files")
        assert stage.held[0].names == ["message", "cancelled"]
