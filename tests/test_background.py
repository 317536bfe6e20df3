"""Work in the background: tasks whose errors are seen, and threads that do not keep the process from
ending."""

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from runtimeproxy.background import BackgroundTasks, BackgroundThreads, ShieldedTasks
from tests.lab.deadline import wait_until

WAIT_S = 30.0

HANGS = """\
import threading
from runtimeproxy.background import BackgroundThreads
began = threading.Event()
threads = BackgroundThreads(1, "hanging")
threads.submit(lambda: (began.set(), threading.Event().wait()))
began.wait()
threads.shutdown()
"""


@pytest.fixture
def threads() -> Iterator[BackgroundThreads]:
    made = BackgroundThreads(2, "test")
    yield made
    made.shutdown()


def test_results_and_errors_reach_who_waits(threads: BackgroundThreads) -> None:
    assert threads.submit(max, 1, 2).result(WAIT_S) == 2
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 / 0).result(WAIT_S)
    assert threads.submit(len, "abc").result(WAIT_S) == 3


class Large:
    """Stands for a long request."""


def test_what_failed_work_had_is_free_without_a_garbage_collection(threads: BackgroundThreads) -> None:
    found: list[weakref.ref[Large]] = []

    def fail() -> None:
        large = Large()
        found.append(weakref.ref(large))
        raise ValueError(large)

    gc.disable()
    try:
        error = threads.submit(fail).exception(WAIT_S)
        assert isinstance(error, ValueError)
        del error
        # The thread lets go of it soon after.
        wait_until(lambda: found[0]() is None, "the end of what it had")
    finally:
        gc.enable()


def test_as_many_run_at_once_as_there_may_be_threads(threads: BackgroundThreads) -> None:
    together = threading.Barrier(2)
    running = [threads.submit(together.wait, WAIT_S) for _ in range(2)]
    assert sorted(each.result(WAIT_S) for each in running) == [0, 1]


def test_a_thread_that_hangs_leaves_the_others(threads: BackgroundThreads) -> None:
    free = threading.Event()
    hanging = threads.submit(free.wait, WAIT_S)
    assert [threads.submit(abs, -number).result(WAIT_S) for number in range(20)] == list(range(20))
    assert not hanging.done()
    free.set()
    assert hanging.result(WAIT_S)


def test_what_was_not_begun_can_be_cancelled() -> None:
    threads = BackgroundThreads(1, "test")
    free = threading.Event()
    running, waiting = threads.submit(free.wait, WAIT_S), threads.submit(abs, -1)
    threads.shutdown(cancel_futures=True)
    free.set()
    assert running.result(WAIT_S)
    with pytest.raises(CancelledError):
        waiting.result(WAIT_S)
    with pytest.raises(RuntimeError, match="shut down"):
        threads.submit(abs, 1)


def test_what_waits_is_done_before_the_end() -> None:
    threads = BackgroundThreads(1, "test")
    free = threading.Event()
    threads.submit(free.wait, WAIT_S)
    waiting = threads.submit(abs, -1)
    threads.shutdown()
    free.set()
    assert waiting.result(WAIT_S) == 1


def test_the_process_ends_although_a_thread_hangs() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], check=False, timeout=WAIT_S)
    assert done.returncode == 0


async def fails() -> None:
    raise ValueError("of all things")


async def test_an_error_is_logged_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    fatal: list[BaseException] = []
    tasks = BackgroundTasks(fatal.append)
    going_on = tasks.spawn(asyncio.Event().wait())  # type: ignore[arg-type]
    await asyncio.wait((tasks.spawn(fails()),))
    assert "of all things" in caplog.text
    assert not fatal
    assert not going_on.done()
    await tasks.cancel(10)
    assert going_on.cancelled()


async def test_the_error_of_a_vital_task_is_told(caplog: pytest.LogCaptureFixture) -> None:
    fatal: list[BaseException] = []
    await asyncio.wait((BackgroundTasks(fatal.append).spawn(fails(), is_vital=True),))
    assert [str(error) for error in fatal] == ["of all things"]
    assert not caplog.records


async def test_shielded_work_goes_on_and_its_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    shielded, free = ShieldedTasks(), asyncio.Event()

    async def fails_later() -> None:
        await free.wait()
        await fails()

    caller = asyncio.get_running_loop().create_task(shielded.run(fails_later()))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait((caller,))
    assert caller.cancelled()
    (work,) = shielded._tasks
    free.set()
    await asyncio.wait((work,))
    await asyncio.sleep(0)
    assert "of all things" in caplog.text
    caplog.clear()
    with pytest.raises(ValueError, match="of all things"):
        await shielded.run(fails())
    assert not caplog.records


async def test_who_cancels_is_not_cancelled() -> None:
    tasks = BackgroundTasks(lambda _: None)

    async def cancels() -> None:
        await tasks.cancel(10)

    task = tasks.spawn(cancels())
    await asyncio.wait((task,))
    assert not task.cancelled()


async def test_one_that_does_not_end_is_not_waited_for() -> None:
    tasks, over = BackgroundTasks(lambda _: None), asyncio.Event()

    async def stubborn() -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    task = tasks.spawn(stubborn())
    await asyncio.sleep(0)
    await tasks.cancel(0.05)
    assert not task.done()
    over.set()
    await task
