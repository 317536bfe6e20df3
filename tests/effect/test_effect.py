"""The load generator, the pods' programs and the table; the measurement itself needs a quiet machine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.effect import workloads
from tests.effect.load import Generator, is_served
from tests.effect.report import Round, Way, draw, percentile, table
from tests.effect.workloads import counted
from tests.lab.deadline import wait_until
from tests.lab.ports import free_port


class Held(asyncio.Protocol):
    """The server's side of a connection: answers when that is allowed."""

    def __init__(self, connections: list[Held]) -> None:
        self.lost = asyncio.Event()
        self.is_open = False
        self._waiting = b""
        connections.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        if self.is_open:
            self.answer()

    def answer(self) -> None:
        self.is_open = True
        self._transport.write(self._waiting)
        self._waiting = b""

    def connection_lost(self, _error: Exception | None) -> None:
        self.lost.set()


async def test_a_request_that_waits_for_a_connection_has_waited_since_it_was_due() -> None:
    number, rate, connections = 40, 400, list[Held]()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Held(connections), "127.0.0.1", 0)
    async with server:
        generator = Generator(server.sockets[0].getsockname()[1], rate, number, connections=2)
        running = asyncio.ensure_future(generator.run())
        await generator.all_due.wait()
        assert len(generator.waiting) == number - 2
        for each in connections:
            each.answer()
        load = await running
        for each in connections:
            await each.lost.wait()
    assert len(load.latencies_s) == number
    # The first was due long before the last, and answered no earlier. A client that sends a request only
    # after an answer would have seen two slow ones.
    assert max(load.latencies_s) >= (number - 2) / rate
    assert sum(each > 5 / rate for each in load.latencies_s) > number // 2


def test_the_programs_of_the_pods(tmp_path: Path) -> None:
    port, counter = free_port(), tmp_path / "counter"
    program = [sys.executable, workloads.__file__]
    server = subprocess.Popen([*program, "serve", str(port), "100"])
    burning = subprocess.Popen([*program, "burn", str(counter), "100"])
    try:
        wait_until(lambda: counter.exists() and counted(counter) > 1, "work")
        wait_until(lambda: is_served(port), "the server")
        load = asyncio.run(Generator(port, 200, 20, connections=4).run())
        assert len(load.latencies_s) == 20
    finally:
        for each in (server, burning):
            each.kill()
            each.wait(30)


def round_of(way: Way, *, p99_ms: float, be_per_s: float) -> Round:
    return Round(way, sorted([1.0] * 98 + [p99_ms] * 2), be_per_s, 1.5, [-1], 0.1, 0.02)


def test_percentiles() -> None:
    values = [float(each) for each in range(1, 1001)]
    assert [percentile(values, each) for each in (50, 99, 99.9, 100)] == [501, 991, 1000, 1000]


def test_the_table_has_medians_and_bounds() -> None:
    rounds = [
        round_of(Way.WITHOUT, p99_ms=20, be_per_s=1000),
        round_of(Way.WITH, p99_ms=2, be_per_s=400),
        round_of(Way.WITHOUT, p99_ms=30, be_per_s=1200),
        round_of(Way.WITHOUT, p99_ms=40, be_per_s=1100),
    ]
    lines = table(rounds).splitlines()
    assert lines[0] == "| | no BE pods | without the product | with the product |"
    assert "| latency of the LS server, p50, ms | - | 1 (1 to 1) | 1 (1 to 1) |" in lines
    assert "| latency of the LS server, p99, ms | - | 30 (20 to 40) | 2 (2 to 2) |" in lines
    assert "| throughput of the BE pods, units/s | - | 1,100 (1,000 to 1,200) | 400 (400 to 400) |" in lines


@pytest.mark.slow
def test_the_plot(tmp_path: Path) -> None:
    rounds = [round_of(way, p99_ms=20, be_per_s=1000) for way in Way]
    draw(rounds, tmp_path / "effect.png")
    assert (tmp_path / "effect.png").read_bytes().startswith(b"\x89PNG")
