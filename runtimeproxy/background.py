"""Background work: tasks whose errors are logged, and threads that never keep the process from ending."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar, cast

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Job = Callable[[], object]

logger = logging.getLogger(__name__)


class BackgroundTasks:
    """Tasks that are not awaited.

    Args:
        on_fatal: called with the error of a task without which the daemon cannot go on.
    """

    def __init__(self, on_fatal: Callable[[BaseException], None]) -> None:
        self._on_fatal = on_fatal
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], *, is_vital: bool = False) -> asyncio.Task[None]:
        """Starts a task and keeps it; its error is logged, or is fatal if the task is vital."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_end, is_vital=is_vital))
        return task

    async def cancel(self, timeout_s: float) -> None:
        """Cancels all but the calling task, and waits for their ends for a bounded time."""
        others = self._tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=timeout_s)

    def _on_end(self, task: asyncio.Task[None], *, is_vital: bool) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and is_vital:
            self._on_fatal(error)
        else:
            _log_error(task)


class ShieldedTasks:
    """Work that goes on when its caller is cancelled, such as the handler of a call that is over."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Awaits the work; if the caller is cancelled meanwhile, its error is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_error)
            raise


def _log_error(task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        logger.error("a background task failed", exc_info=error)


class BackgroundThreads(Executor):
    """An executor with daemon threads.

    The interpreter waits at its end for the threads of a ThreadPoolExecutor, so one that hangs in a file or
    in a policy's import would keep the daemon from stopping.

    Args:
        size: most threads; they are started as they are needed.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[tuple[Future[object], _Job] | None] = SimpleQueue()
        self._threads = 0
        self._pending = 0
        self._is_closed = False

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Has a thread call the function. Raises RuntimeError after `shutdown`."""
        future: Future[_T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the threads are shut down")
            self._jobs.put((cast("Future[object]", future), partial(fn, *args, **kwargs)))
            self._pending += 1
            if self._threads < min(self._size, self._pending):
                self._start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Lets the threads end after their current jobs.

        Args:
            wait: ignored: a thread may hang.
            cancel_futures: whether jobs that no thread has begun are cancelled.
        """
        with self._lock:
            self._is_closed = True
            waiting = [self._jobs.get_nowait() for _ in range(self._jobs.qsize())] if cancel_futures else []
            for _ in range(self._threads):
                self._jobs.put(None)
        for job in waiting:
            if job is not None:
                job[0].cancel()

    def _start(self) -> None:
        self._threads += 1
        threading.Thread(target=self._run, name=f"{self._name}-{self._threads}", daemon=True).start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, work = job
            if future.set_running_or_notify_cancel():
                _run_job(future, work)
            with self._lock:
                self._pending -= 1
            # The job's objects must not live until the next one comes.
            del future, work, job


def _run_job(future: Future[object], work: _Job) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - the future raises it
        future.set_exception(error)
        # The error has this frame. With the future in it both, and all that the work had, such as a request
        # of 12 MB, would live until the next garbage collection, often after free memory is given back.
        del future, work


class ThreadPools:
    """The threads of a process, in pools by what they do; all end with it.

    Attributes:
        background: For loading, long messages, lists and cgroup files.
    """

    def __init__(self, background: int) -> None:
        self.background = BackgroundThreads(background, "background")
        self._others: list[BackgroundThreads] = []

    def make(self, name: str, size: int = 1) -> BackgroundThreads:
        """Makes a pool for something that may hang, or must not wait for others."""
        pool = BackgroundThreads(size, name)
        self._others.append(pool)
        return pool

    def shutdown(self) -> None:
        # What waits is cancelled.
        for pool in (*self._others, self.background):
            pool.shutdown(cancel_futures=True)
