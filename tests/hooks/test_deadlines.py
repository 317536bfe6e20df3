"""One timer looks at all calls under way."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from runtimeproxy.hooks.deadlines import Watch


class Watched:
    """Is looked at as often as it says."""

    def __init__(self, *waits_s: float | None) -> None:
        self.waits_s = list(waits_s)
        self.looks_s: list[float] = []
        self.paused_s: list[float] = []
        self.over = asyncio.Event()

    def postpone(self, paused_s: float) -> None:
        self.paused_s.append(paused_s)

    def look(self, now_s: float) -> float | None:
        self.looks_s.append(now_s)
        wait_s = self.waits_s.pop(0)
        if wait_s is None:
            self.over.set()
        return wait_s


async def test_a_call_is_looked_at_when_it_says() -> None:
    watch, call = Watch(), Watched(0.02, None)
    start_s = time.monotonic()
    watch.add(call, start_s, 0.02)
    async with asyncio.timeout(30):
        await call.over.wait()
    assert len(call.looks_s) == 2
    assert call.looks_s[-1] - start_s >= 0.03


async def test_an_earlier_time_moves_the_timer_forward() -> None:
    watch, late, early = Watch(), Watched(None), Watched(None)
    watch.add(late, time.monotonic(), 3_600)
    watch.add(early, time.monotonic(), 0.01)
    async with asyncio.timeout(30):
        await early.over.wait()


async def test_a_call_that_is_over_is_not_looked_at() -> None:
    watch, over, call = Watch(), Watched(None), Watched(None)
    watch.add(over, time.monotonic(), 0.01)
    watch.add(call, time.monotonic(), 0.01)
    watch.discard(over)
    async with asyncio.timeout(30):
        await call.over.wait()
    assert over.looks_s == []
    assert watch.watched == 1


async def test_a_call_that_raises_leaves_the_others_watched(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Watched):
        def look(self, now_s: float) -> float | None:
            raise RuntimeError("bug")

    watch, call = Watch(), Watched(0.01, None)
    for each in (Broken(), call):
        watch.add(each, time.monotonic(), 0.01)
    async with asyncio.timeout(30):
        await call.over.wait()
    assert "cannot be concluded" in caplog.text


PAUSED = """
import asyncio, time
from runtimeproxy.hooks.deadlines import Watch
from tests.hooks.test_deadlines import Watched

async def main():
    watch, call = Watch(), Watched(None)
    watch.add(call, time.monotonic(), 0.05)
    print("armed", flush=True)
    await call.over.wait()
    print(sum(call.paused_s), flush=True)

asyncio.run(main())
"""


def test_a_pause_of_the_process_is_given_back() -> None:
    with subprocess.Popen((sys.executable, "-c", PAUSED), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "armed\n"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        stopped_s = time.monotonic()
        # For so long that it counts, by the clock and not by what else this machine does.
        while time.monotonic() < stopped_s + 0.5:
            os.sched_yield()
        process.send_signal(signal.SIGCONT)
        assert float(process.stdout.readline()) >= 0.4


async def test_what_the_process_itself_computes_is_no_pause() -> None:
    watch, call = Watch(), Watched(None)
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    watch.add(call, began_s, 0.001)
    while time.process_time() < began_cpu_s + 0.5:
        pass
    async with asyncio.timeout(30):
        await call.over.wait()
    # On a machine with other work the process waited for a CPU meanwhile: at most that is given back.
    others_s = time.monotonic() - began_s - (time.process_time() - began_cpu_s)
    assert sum(call.paused_s) <= others_s + 0.01
