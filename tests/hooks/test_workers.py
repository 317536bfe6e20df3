"""The pool of worker threads, and the timer of runs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from runtimeproxy.hooks.workers import (
    SHORT_SWITCH_INTERVAL_S,
    TICK_S,
    RunTimer,
    SwitchInterval,
    Workers,
)


class Job:
    """A task that waits to be let go."""

    def __init__(self, *, waits: bool = False) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()
        if not waits:
            self.let_go.set()
        self.thread: threading.Thread | None = None
        self.finished = asyncio.Event()
        self.was_dropped = False

    def run(self) -> None:
        self.thread = threading.current_thread()
        self.entered.set()
        self.let_go.wait(30)

    def on_done(self) -> None:
        self.finished.set()

    def on_dropped(self) -> None:
        self.was_dropped = True


class Raising(Job):
    def run(self) -> None:
        raise SystemExit


async def enter(*jobs: Job) -> None:
    for job in jobs:
        await asyncio.to_thread(job.entered.wait, 30)


async def test_threads_start_when_they_are_needed() -> None:
    workers = Workers(4)
    for _ in range(3):
        job = Job()
        assert workers.submit(job)
        await job.finished.wait()
    assert workers.threads == 1
    workers.close()


async def test_tasks_run_at_the_same_time_up_to_the_size() -> None:
    workers = Workers(2)
    jobs = [Job(waits=True), Job(waits=True), Job()]
    assert all(workers.submit(job) for job in jobs)
    await enter(*jobs[:2])
    assert not jobs[2].entered.is_set()
    assert workers.threads == 2
    jobs[0].let_go.set()
    await jobs[2].finished.wait()
    jobs[1].let_go.set()
    await jobs[1].finished.wait()
    workers.close()


async def test_a_spare_thread_replaces_one_that_hangs_and_goes_when_it_returns() -> None:
    workers = Workers(1, spares=1)
    hung, next_job = Job(waits=True), Job()
    workers.submit(hung)
    workers.submit(next_job)
    await enter(hung)
    workers.give_up(hung)
    await next_job.finished.wait()
    assert (workers.hung, workers.threads) == (1, 2)
    hung.let_go.set()
    await hung.finished.wait()
    assert (workers.hung, workers.threads) == (0, 1)
    last = Job()
    workers.submit(last)
    await last.finished.wait()
    workers.close()


async def test_without_a_thread_waiting_tasks_are_dropped_and_new_ones_refused() -> None:
    workers = Workers(1, spares=0)
    hung, waiting = Job(waits=True), Job()
    workers.submit(hung)
    workers.submit(waiting)
    await enter(hung)
    workers.give_up(hung)
    assert waiting.was_dropped
    assert not workers.submit(Job())
    hung.let_go.set()
    await hung.finished.wait()
    last = Job()
    assert workers.submit(last)
    await last.finished.wait()
    workers.close()


async def test_a_task_that_raises_costs_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    workers = Workers(1)
    bad, good = Raising(), Job()
    workers.submit(bad)
    workers.submit(good)
    await asyncio.gather(bad.finished.wait(), good.finished.wait())
    assert workers.threads == 1
    assert "failed" in caplog.text
    workers.close()


async def test_threads_do_not_keep_the_process_alive() -> None:
    workers = Workers(1)
    job = Job()
    workers.submit(job)
    await job.finished.wait()
    thread = job.thread
    assert thread is not None
    assert thread.daemon
    workers.close()
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()
    assert not workers.submit(Job())


async def test_a_hung_task_is_reported_after_the_pool_was_closed() -> None:
    workers = Workers(1, spares=0)
    hung = Job(waits=True)
    workers.submit(hung)
    await enter(hung)
    workers.give_up(hung)
    workers.close()
    hung.let_go.set()
    await hung.finished.wait()
    assert workers.hung == 0


class Run:
    """A run that ends at one of its ticks."""

    def __init__(self, timer: RunTimer, ticks: int = 1) -> None:
        self.timer = timer
        self.ticks = ticks
        self.paused_s: list[float] = []
        self.over = asyncio.Event()
        timer.add(self)

    def postpone(self, paused_s: float) -> None:
        self.paused_s.append(paused_s)

    def on_tick(self, now_s: float) -> None:
        self.ticks -= 1
        if self.ticks == 0:
            self.timer.runs.discard(self)
            self.over.set()


async def test_each_run_is_looked_at_until_it_is_over() -> None:
    timer = RunTimer(())
    started_s = time.monotonic()
    runs = [Run(timer), Run(timer, ticks=3)]
    async with asyncio.timeout(30):
        for run in runs:
            await run.over.wait()
    assert time.monotonic() - started_s >= 2 * TICK_S
    assert [run.ticks for run in runs] == [0, 0]
    assert timer.runs == set()


async def test_a_run_that_raises_leaves_the_others_watched(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Run):
        def on_tick(self, now_s: float) -> None:
            raise RuntimeError("bug")

    timer = RunTimer(())
    broken, run = Broken(timer), Run(timer, ticks=2)
    async with asyncio.timeout(30):
        await run.over.wait()
    timer.runs.discard(broken)
    assert "cannot be ended" in caplog.text


async def test_a_pause_is_given_back_to_all_runs_before_any_of_them_ends() -> None:
    class Last(Run):
        def on_tick(self, now_s: float) -> None:
            were_paused.append(all(run.paused_s for run in runs))
            super().on_tick(now_s)

    timer = RunTimer(())
    were_paused: list[bool] = []
    runs = [Last(timer) for _ in range(3)]
    threading.Event().wait(0.3)  # nothing is computed meanwhile
    async with asyncio.timeout(30):
        for run in runs:
            await run.over.wait()
    assert were_paused == [True] * 3


PAUSED = """
import asyncio, sys
from runtimeproxy.hooks.workers import RunTimer
from tests.hooks.test_workers import Run

async def main():
    timer = RunTimer(())
    run = Run(timer, ticks=-1)
    print("armed", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    run.ticks = 2
    await run.over.wait()
    print(sum(run.paused_s), flush=True)

asyncio.run(main())
"""


def test_a_pause_of_the_process_is_given_back() -> None:
    command, pipe = (sys.executable, "-c", PAUSED), subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "armed\n"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        stopped_s = time.monotonic()
        # For so long that it counts, by the clock and not by what else this machine does.
        while time.monotonic() < stopped_s + 0.5:
            os.sched_yield()
        process.send_signal(signal.SIGCONT)
        # The run goes on until then, however late it was stopped.
        process.stdin.write("\n")
        process.stdin.flush()
        assert float(process.stdout.readline()) >= 0.4


async def test_what_the_process_itself_computes_is_no_pause() -> None:
    timer = RunTimer(())
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    run = Run(timer)
    while time.process_time() < began_cpu_s + 0.3:
        pass
    async with asyncio.timeout(30):
        await run.over.wait()
    # On a machine with other work the process waited for a CPU meanwhile: at most that is given back.
    others_s = time.monotonic() - began_s - (time.process_time() - began_cpu_s)
    assert sum(run.paused_s) <= others_s + 0.01


USUAL_S = 0.003


@pytest.fixture
def usual() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(USUAL_S)
    yield
    sys.setswitchinterval(before_s)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0)


async def until_interval_is(length_s: float) -> None:
    await until(lambda: sys.getswitchinterval() == pytest.approx(length_s))


@pytest.mark.usefixtures("usual")
async def test_the_switch_interval_is_short_while_a_run_is_long() -> None:
    timer = RunTimer((), SwitchInterval())
    for _ in range(2):
        run = Run(timer, ticks=-1)
        await until_interval_is(SHORT_SWITCH_INTERVAL_S)
        timer.runs.discard(run)
        await until_interval_is(USUAL_S)
        await until(lambda: not timer._is_ticking)


@pytest.mark.usefixtures("usual")
async def test_short_runs_leave_the_switch_interval_as_it_is() -> None:
    timer = RunTimer((), SwitchInterval())
    over_s = time.monotonic() + 4 * TICK_S
    seen_s = set()
    while time.monotonic() < over_s:
        run = Run(timer, ticks=-1)
        seen_s.add(round(sys.getswitchinterval(), 9))
        await asyncio.sleep(0)
        timer.runs.discard(run)
    assert seen_s == {USUAL_S}


@pytest.mark.usefixtures("usual")
async def test_the_switch_interval_is_short_while_a_thread_hangs() -> None:
    hung = ["policy"]
    timer = RunTimer(hung, SwitchInterval())
    Run(timer)
    await until_interval_is(SHORT_SWITCH_INTERVAL_S)
    hung.clear()
    await until_interval_is(USUAL_S)


@pytest.mark.usefixtures("usual")
async def test_the_switch_interval_is_never_made_longer() -> None:
    sys.setswitchinterval(SHORT_SWITCH_INTERVAL_S / 2)
    timer = RunTimer((), SwitchInterval())
    run = Run(timer, ticks=-1)
    await until(lambda: timer._is_shortened)
    assert sys.getswitchinterval() == pytest.approx(SHORT_SWITCH_INTERVAL_S / 2)
    timer.runs.discard(run)
    await until(lambda: not timer._is_shortened)


@pytest.mark.usefixtures("usual")
def test_the_shortest_switch_interval_counts() -> None:
    """The interpreter has one switch interval, and calls and long requests both ask for another."""
    interval = SwitchInterval()
    interval.shorten(USUAL_S / 2)
    interval.shorten(SHORT_SWITCH_INTERVAL_S)
    interval.shorten(SHORT_SWITCH_INTERVAL_S)
    interval.restore(SHORT_SWITCH_INTERVAL_S)
    assert sys.getswitchinterval() == pytest.approx(SHORT_SWITCH_INTERVAL_S)
    interval.restore(SHORT_SWITCH_INTERVAL_S)
    assert sys.getswitchinterval() == pytest.approx(USUAL_S / 2)
    interval.restore(USUAL_S / 2)
    assert sys.getswitchinterval() == pytest.approx(USUAL_S)
