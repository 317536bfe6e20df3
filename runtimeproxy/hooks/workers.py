"""A small pool of daemon threads that run policies for one event loop.

All accounts are kept in the loop's thread; a worker thread only takes a task, runs it and tells the loop.
A thread whose task has been given up no longer counts until it returns; a few spare threads may take its
place. When no thread is left, tasks are refused at once instead of waiting for one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeAlias

logger = logging.getLogger(__name__)

DEFAULT_SIZE: Final = 4
"""Threads that work at the same time. Policies compute little, and one interpreter lock serves them all."""


class Task(Protocol):
    """What a worker thread runs."""

    def run(self) -> None:
        """In a worker thread; must not raise."""

    def done(self) -> None:
        """In the loop's thread, after `run` has returned, however late."""

    def dropped(self) -> None:
        """In the loop's thread, instead of the two: no thread is left to run it."""


_Item: TypeAlias = "tuple[Task, asyncio.AbstractEventLoop] | None"


class _Queue:
    """Hands items from the loop's thread to worker threads.

    It wakes them by a write to a file, for that lets go of the interpreter: a thread that wakes up from a
    lock finds the interpreter taken by the one that woke it, and sleeps again. On two cores that makes a
    hop there and back 0.1 ms longer.
    """

    def __init__(self) -> None:
        self._items: deque[_Item] = deque()
        self._fd = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)

    def __del__(self) -> None:
        # The threads hold the queue, so nobody reads any more.
        os.close(self._fd)

    def put(self, item: _Item) -> None:
        self._items.append(item)
        os.eventfd_write(self._fd, 1)

    def take(self) -> tuple[_Item] | None:
        """The next item in a tuple, None when there is none just now."""
        try:
            return (self._items.popleft(),)
        except IndexError:
            return None

    def wait(self) -> _Item:
        """The next item, once there is one."""
        while True:
            os.eventfd_read(self._fd)
            taken = self.take()
            if taken is not None:
                return taken[0]


class Workers:
    """The pool. Every method is called in the loop's thread.

    Attributes:
        size: how many threads work at the same time.
        spares: how many more may be started for threads that hang.
    """

    def __init__(self, size: int = DEFAULT_SIZE, *, spares: int | None = None) -> None:
        self.size = size
        self.spares = size if spares is None else spares
        self._queue = _Queue()
        self._threads = 0
        self._pending = 0
        self._stuck: set[Task] = set()
        self._closed = False

    @property
    def hung(self) -> int:
        """How many threads hang in a task that was given up."""
        return len(self._stuck)

    @property
    def threads(self) -> int:
        """How many threads there are, hung ones included."""
        return self._threads

    def submit(self, task: Task) -> bool:
        """Have a thread run the task, as soon as one is free; False if none is left or the pool is closed."""
        if self._closed:
            return False
        self._grow(self._pending + 1)
        if self._threads == len(self._stuck):
            return False
        self._pending += 1
        self._queue.put((task, asyncio.get_running_loop()))
        return True

    def give_up(self, task: Task) -> None:
        """Count the thread that runs the task as lost until it returns."""
        self._stuck.add(task)
        self._pending -= 1
        self._grow(self._pending)
        if self._threads == len(self._stuck):
            self._drop_waiting()

    def close(self) -> None:
        """Let idle threads end; busy ones end after their task, hung ones with the process."""
        self._closed = True
        for _ in range(self._threads):
            self._queue.put(None)

    def _grow(self, wanted: int) -> None:
        working = self._threads - len(self._stuck)
        if wanted > working and working < self.size and self._threads < self.size + self.spares:
            self._threads += 1
            work = partial(_work, self._queue, self._completed)
            threading.Thread(target=work, name=f"policies-{self._threads}", daemon=True).start()

    def _drop_waiting(self) -> None:
        while (taken := self._queue.take()) is not None:
            if taken[0] is not None:
                self._pending -= 1
                taken[0][0].dropped()

    def _completed(self, task: Task) -> None:
        if task in self._stuck:
            self._stuck.discard(task)
            self._shrink()
        else:
            self._pending -= 1
        task.done()

    def _shrink(self) -> None:
        if self._threads - len(self._stuck) > self.size:
            self._threads -= 1
            self._queue.put(None)


def _work(queue: _Queue, completed: Callable[[Task], None]) -> None:
    while (item := queue.wait()) is not None:
        task, loop = item
        try:
            task.run()
        except BaseException:  # a bug in a task must not cost a thread
            logger.exception("a task of the policies' worker threads raised")
        try:
            loop.call_soon_threadsafe(completed, task)
        except RuntimeError:
            return  # the loop is closed: the process ends, and nobody waits for the task
        del item, task, loop
