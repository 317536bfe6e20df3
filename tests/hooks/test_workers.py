"""The pool of worker threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from runtimeproxy.hooks.workers import Workers


class Job:
    """A task that waits to be let go."""

    def __init__(self, *, waits: bool = False) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()
        if not waits:
            self.let_go.set()
        self.thread = ""
        self.finished = asyncio.Event()
        self.was_dropped = False

    def run(self) -> None:
        self.thread = threading.current_thread().name
        self.entered.set()
        self.let_go.wait(30)

    def done(self) -> None:
        self.finished.set()

    def dropped(self) -> None:
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
    assert "raised" in caplog.text
    workers.close()


async def test_threads_do_not_keep_the_process_alive() -> None:
    workers = Workers(1)
    job = Job()
    workers.submit(job)
    await job.finished.wait()
    (thread,) = (each for each in threading.enumerate() if each.name == job.thread and each.daemon)
    workers.close()
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()
    assert not workers.submit(Job())


async def test_what_hung_is_told_of_also_behind_the_end() -> None:
    workers = Workers(1, spares=0)
    hung = Job(waits=True)
    workers.submit(hung)
    await enter(hung)
    workers.give_up(hung)
    workers.close()
    hung.let_go.set()
    await hung.finished.wait()
    assert workers.hung == 0
