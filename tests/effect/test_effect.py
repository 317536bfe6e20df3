"""The load generator, the programs beside it, results and report; to measure needs a quiet machine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from tests.effect import workloads
from tests.effect.__main__ import load_of, turned
from tests.effect.intervals import coverage_of, estimate
from tests.effect.load import BYTE, HTTP, Generator, Protocol, is_served
from tests.effect.measure import Counters, cores_between
from tests.effect.node import Node, frames
from tests.effect.product import way, way_problems
from tests.effect.report import draw, paired, report
from tests.effect.results import CURVE, Cores, Measurement, Results, Second, percentile
from tests.effect.waits import table, waits
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
    loop, all_due, waiting = asyncio.get_running_loop(), asyncio.Event(), list[int]()

    def on_all_due() -> None:
        waiting.append(len(generator.waiting))
        loop.call_soon_threadsafe(all_due.set)

    server = await loop.create_server(lambda: Held(connections), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        generator = Generator(port, rate, number, connections=2, on_all_due=on_all_due)
        running = asyncio.ensure_future(asyncio.to_thread(generator.run))
        await all_due.wait()
        for each in connections:
            each.answer()
        load = await running
        for each in connections:
            await each.lost.wait()
    assert waiting == [number - 2]
    assert len(load.latencies_s) == number
    # The first was due long before the last, and answered no earlier. A client that sends a request only
    # after an answer would have seen two slow ones.
    assert max(load.latencies_s) >= (number - 2) / rate
    assert sum(each > 5 / rate for each in load.latencies_s) > number // 2


class Worker(asyncio.Protocol):
    """A connection of a server whose workers take connections at random; answers come in two parts."""

    def __init__(self, name: str, requests: Counter[str]) -> None:
        self._name = name
        self._requests = requests

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for _ in range(data.count(b"GET /text ")):
            self._requests[self._name] += 1
            self._transport.write(f"HTTP/1.1 200 OK\r\nX-Worker: {self._name}\r\n\r\n5\r\nhello".encode())
            asyncio.get_running_loop().call_soon(self._transport.write, b"\r\n0\r\n\r\n")


async def test_workers_have_as_many_connections_each() -> None:
    names, requests, connections = iter("abbbabbbbbabbbbbbbbab"), Counter[str](), Counter[str]()

    def connected() -> Worker:
        name = next(names)
        connections[name] += 1
        return Worker(name, requests)

    server = await asyncio.get_running_loop().create_server(connected, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        generator = Generator(port, 1_000, 8, protocol=HTTP, connections=8, workers=2)
        load = await asyncio.to_thread(generator.run)
    assert len(load.latencies_s) == 8
    assert connections["b"] > 4
    # Each connection is asked once whose it is. Those that are kept take turns.
    assert requests - connections == {"a": 4, "b": 4}


@pytest.mark.parametrize(("protocol", "answer"), [(HTTP, b"HTTP/1.1 404 Not Found\r\n\r\n"), (BYTE, b"")])
async def test_what_is_no_answer_ends_the_run(protocol: Protocol, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        generator = Generator(port, 1_000, 1, protocol=protocol, connections=1)
        with pytest.raises(ConnectionError):
            await asyncio.to_thread(generator.run)


def test_the_programs_of_the_pods(tmp_path: Path) -> None:
    port, counter = free_port(), tmp_path / "counter"
    program = [sys.executable, workloads.__file__]
    server = subprocess.Popen([*program, "serve", str(port), "100"])
    burning = subprocess.Popen([*program, "burn", str(counter), "100"])
    try:
        wait_until(lambda: counter.exists() and counted(counter) > 1, "work")
        wait_until(partial(is_served, port), "the server")
        load = Generator(port, 200, 20, connections=4).run()
        assert len(load.latencies_s) == 20
        assert load.cpu_s > 0
    finally:
        for each in (server, burning):
            each.kill()
            each.wait(30)


def test_frames_are_those_that_were_said_whole(tmp_path: Path) -> None:
    file = tmp_path / "progress"
    file.write_bytes(b"")
    assert frames(file) == 0
    file.write_bytes(
        b"frame=7\nfps=1\nprogress=continue\n" + b"frame=12\nfps=30.0\nprogress=continue\nframe=1"
    )
    assert frames(file) == 12


def test_percentiles() -> None:
    values = [float(each) for each in range(1, 1001)]
    assert [percentile(values, each) for each in (50, 99, 99.9, 100)] == [501, 991, 1000, 1000]


def test_medians_have_intervals_by_rank() -> None:
    assert coverage_of(10, 2) == pytest.approx(0.9785, abs=1e-4)
    assert coverage_of(5, 1) == pytest.approx(0.9375)
    ten = estimate([10, 1, 9, 2, 8, 3, 7, 4, 6, 5])
    assert (ten.median, ten.low, ten.high) == (5.5, 2, 9)
    few = estimate([3, 1, 2])
    assert (few.median, few.low, few.high, few.coverage) == (2, 1, 3, 0.75)
    assert estimate([4]).coverage == 0
    with pytest.raises(ValueError, match="no value"):
        estimate([])


def test_each_way_is_first_as_often_and_does_not_always_follow_the_same() -> None:
    ways = [way(text) for text in ("alone", "nothing", "suppress")]
    rounds = [turned(ways, number) for number in range(6)]
    assert Counter(each[0] for each in rounds) == dict.fromkeys(ways, 2)
    assert all(sorted(each, key=ways.index) == ways for each in rounds)
    assert {(each[0], each[1]) for each in rounds} >= {(ways[0], ways[1]), (ways[1], ways[0])}


def test_ways_with_numbers() -> None:
    suppress = way("suppress:80").strategies["resource-threshold-config"]["clusterStrategy"]
    assert suppress["cpuSuppressThresholdPercent"] == 80
    guard = way("feedback:12").strategies["cpu-guard-config"]["clusterStrategy"]
    assert guard == {
        "enable": True,
        "feedback": True,
        "idlePods": True,
        "targetPressureMilliseconds": 12,
    }
    watch = way("watch").strategies["cpu-guard-config"]["clusterStrategy"]
    assert watch == {"enable": True, "feedback": False, "idlePods": False}
    assert way("protection").strategies["cpu-guard-config"]["clusterStrategy"]["feedback"] is False
    assert not way("nothing").strategies
    assert not any(way(text).strategies for text in ("bound:500", "cpus:1", "idle", "idle-pods"))
    for text in (
        "alone:1",
        "other",
        "suppress:x",
        "bound",
        "bound:9",
        "cpus",
        "cpus:0",
        "idle:1",
        "feedback:1.5",
    ):
        with pytest.raises(ValueError, match=r".*"):
            way(text)


def test_loads_with_numbers() -> None:
    arguments = Namespace(ls_percent=40, rate=0.0, system_percent=20, be_pods=0, be_shares=2, shares_times=1)
    plain, other = load_of("A", arguments), load_of("A:55@1024", arguments)
    assert (plain.ls_percent, plain.be_shares, plain.is_nginx) == (40, 2, True)
    assert (other.ls_percent, other.be_shares, other.system_percent) == (55, 1024, 20)
    assert load_of("B@100", arguments).be_shares == 100
    with pytest.raises(ValueError, match="C"):
        load_of("C", arguments)


def test_cpu_time_of_all_else_is_what_is_left() -> None:
    before = Counters(1, 2, 3, 4, 5, 20, 100, 7)
    after = Counters(2, 4, 4, 5, 5.5, 27, 110, 7)
    assert cores_between(before, after, 2.0) == Cores(0.5, 1, 0.5, 0.5, 0.25, 0.75, 5, 0)


class _Batch:
    batch = ("/one", "/two")


NODE = cast("Node", _Batch())


def second(*, quota_us: int = -1, idle_pods: int = 0, guard: dict[str, float] | None = None) -> Second:
    return Second(1.0, quota_us, idle_pods, 3.0, 0.8, 0.5, guard)


def test_what_was_not_in_its_way_is_said() -> None:
    def problems(text: str, *seconds: Second) -> Sequence[str]:
        return way_problems(way(text), NODE, seconds)

    seeing, blind = {"blind": 0.0, "rule": 1.0}, {"blind": 1.0}
    assert not problems("nothing", second())
    assert not problems("suppress", second(quota_us=5_000))
    assert not problems("protection", second(idle_pods=2))
    assert not problems("bound:50", second(quota_us=5_000))
    assert not problems("feedback", second(idle_pods=2, guard=seeing))
    assert not problems("feedback", second(idle_pods=2, quota_us=9_000, guard=seeing))
    assert problems("nothing", second(), second(quota_us=5_000)) == ["BE pods were bounded in 1 of 2 s"]
    assert problems("suppress", second()) == ["BE pods were bounded in 0 of 1 s"]
    assert problems("protection", second(idle_pods=1)) == ["all BE pods had cpu.idle in 0 of 1 s"]
    assert problems("feedback", second(idle_pods=2, guard=blind)) == ["the guard was blind in 1 of 1 s"]
    assert problems("alone", second()) == ["BE pods used CPU time"]
    assert problems("alone") == ["no second was read"]


def measurement(
    text: str, number: int, *, p999_ms: float, be: float, per_second: Sequence[Second] = ()
) -> Measurement:
    return Measurement(
        load="A",
        way=text,
        round=number,
        seconds=60.0,
        requests=60_000,
        curve_ms=[1.0] * len(CURVE),
        percentiles_ms=(1.0, 2.0, 4.0, p999_ms),
        late_ms=0.1,
        be_per_s=be * 100,
        cores=Cores(0.8, be, 0.3, 0.1, 0.0, 0.0, 0.8 - be, 0.0),
        per_second=per_second,
    )


def some() -> list[Measurement]:
    guard = {"blind": 0.0, "rule": 1.0, "error": 2.0, "pod_target_ratio": 0.02}
    decisions = [second(quota_us=each, idle_pods=2, guard=guard) for each in (-1, 90_000, 90_000)]
    found = []
    for number in range(3):
        # The machine gets slower, and all ways with it.
        times = 1.0 + number
        found += [
            measurement("feedback", number, p999_ms=11 * times, be=0.6, per_second=decisions),
            measurement("alone", number, p999_ms=10 * times, be=0.0),
            measurement("nothing", number, p999_ms=30 * times, be=0.8),
        ]
    return found


def test_the_report_compares_within_rounds() -> None:
    assert paired(
        some(), "feedback", "alone", lambda each, base: each.percentile_ms(99.9) / base.percentile_ms(99.9)
    ) == pytest.approx([1.1] * 3)
    lines = report(some()).splitlines()
    assert "| | alone | nothing | feedback |" in lines
    assert "| p99.9 of the LS server, ms | 20 (10 to 30) | 60 (30 to 90) | 22 (11 to 33) |" in lines
    assert "| p99.9, times that of alone | 1 (1 to 1) | 3 (3 to 3) | 1.1 (1.1 to 1.1) |" in lines
    assert (
        "| CPU of the BE pods, of what is idle alone | 0 (0 to 0) | 1 (1 to 1) | 0.75 (0.75 to 0.75) |"
        in lines
    )
    (nothing, feedback) = (line for line in lines if "that alone, BE pods have" in line)
    assert "outside 1.2 and 0.7" in nothing
    assert "within 1.2 and 0.7" in feedback
    (first, *_) = (line for line in lines if line.startswith("- round 1 feedback: B "))
    assert "none (1 s), 900 (2 s); 3 s rule 1; E median 2.00, largest 2.00; t [20.0] ms/s" in first


def test_results_go_on_from_their_file(tmp_path: Path) -> None:
    file = tmp_path / "effect.jsonl"
    results = Results.read(file)
    results.set_up("A", rate=1_000.5, system_percent=13.0)
    for each in some():
        results.add(each)
    with file.open("a") as opened:
        opened.write('{"load": "A", "way": "alo')
    again = Results.read(file)
    assert again.setups["A"]["rate"] == 1_000.5
    assert again.has("A", "feedback", 2)
    assert not again.has("A", "feedback", 3)
    assert report(again.measurements) == report(some())
    again.add(measurement("alone", 3, p999_ms=10, be=0))
    assert len(Results.read(file).measurements) == 10


@pytest.mark.slow
def test_the_plot(tmp_path: Path) -> None:
    draw(some(), tmp_path / "effect.png")
    assert (tmp_path / "effect.png").read_bytes().startswith(b"\x89PNG")


def switch(cpu: int, at_s: float, before: tuple[str, int, str], after: tuple[str, int]) -> str:
    """A line of `perf script`."""
    (comm, thread, state), (next_comm, next_thread) = before, after
    return (
        f"{comm:>16} {thread:5} [{cpu:03}] {at_s:.6f}:       sched:sched_switch: prev_comm={comm} "
        f"prev_pid={thread} prev_prio=120 prev_state={state} ==> next_comm={next_comm} "
        f"next_pid={next_thread} next_prio=120"
    )


def waking(cpu: int, at_s: float, comm: str, thread: int) -> str:
    """A line of `perf script`."""
    event = f"sched:sched_waking: comm={comm} pid={thread} prio=120 target_cpu=000"
    return f"          python    40 [{cpu:03}] {at_s:.6f}:       {event}"


def test_whom_a_thread_waits_for() -> None:
    owners = {10: "LS pod", 20: "BE pods", 30: "system"}
    trace = [
        switch(0, 1.0, ("nginx", 10, "S"), ("python3", 30)),
        switch(1, 1.0005, ("a => b", 99, "R+"), ("ffmpeg", 20)),
        waking(1, 1.001, "nginx", 10),
        waking(1, 1.001001, "ffmpeg", 20),
        switch(1, 1.002, ("ffmpeg", 20, "S"), ("swapper/1", 0)),
        switch(0, 1.003, ("python3", 30, "R"), ("nginx", 10)),
        switch(1, 1.0035, ("swapper/1", 0, "R"), ("sh", 50)),
        switch(0, 1.004, ("nginx", 10, "R+"), ("ffmpeg", 20)),
        switch(0, 1.0044, ("ffmpeg", 20, "R+"), ("nginx", 10)),
        switch(1, 1.005, ("sh", 50, "S"), ("swapper/1", 0)),
    ]
    woken, preempted = waits(trace, owners)
    assert woken.seconds == pytest.approx(0.002)
    assert woken.same == pytest.approx({"system": 0.002})
    assert woken.other == pytest.approx({"BE pods": 0.001, "idle": 0.001})
    assert preempted.same == pytest.approx({"BE pods": 0.0004})
    assert preempted.other == pytest.approx({"others": 0.0004})
    rows = {
        cells[0]: cells[1:]
        for line in table([woken, preempted], 2).splitlines()
        if (cells := line.split(" | "))
    }
    assert rows["| that CPU: system"][3] == "100%"
    assert rows["| waited, ms/s"] == ["0.2", "0.0", "0.0", "1.0", "0.0 |"]
    assert rows["| other CPUs: idle"] == ["0%", "-", "-", "50%", "- |"]
