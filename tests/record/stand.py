"""A daemon whose calls are recorded, and pods that go through it."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from runtimeproxy.record.entries import Recording, open_recording
from runtimeproxy.record.recorder import Recorder
from runtimeproxy.testing import KoordProxy


class Tape:
    """The lines of a recording that goes on in the proxy's loop."""

    def __init__(self) -> None:
        self.data = b""
        self.changed = threading.Condition()

    def add(self, data: bytes) -> None:
        with self.changed:
            self.data += data
            self.changed.notify_all()

    @property
    def entries(self) -> list[tuple[str, dict[str, Any]]]:
        return [next(iter(json.loads(line).items())) for line in self.data.splitlines()]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [body for each, body in self.entries if each == kind]

    def wait(self, is_there: Callable[[Tape], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: is_there(self), 30)

    def wait_for(self, kind: str, count: int) -> list[dict[str, Any]]:
        self.wait(lambda tape: len(tape.of_kind(kind)) >= count)
        return self.of_kind(kind)

    def recording(self) -> Recording:
        return open_recording(io.BytesIO(self.data))


@contextmanager
def recorded(proxy: KoordProxy) -> Iterator[Tape]:
    """Records the proxy's calls."""
    tape, daemon, loop = Tape(), proxy._daemon, proxy._loop
    assert daemon is not None
    assert loop is not None
    assert daemon.parts is not None
    assert daemon.parts.proxy is not None
    services = daemon.parts.proxy.services
    assert services is not None

    async def record() -> None:
        with ThreadPoolExecutor(1) as executor:
            async for data in Recorder(services).lines(executor):
                tape.add(data)

    tasks: list[asyncio.Task[None]] = []
    loop.call_soon_threadsafe(lambda: tasks.append(loop.create_task(record())))
    tape.wait(lambda each: bool(each.data))
    try:
        yield tape
    finally:
        loop.call_soon_threadsafe(tasks[0].cancel)
