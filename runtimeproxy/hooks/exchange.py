"""Between an event loop's thread and worker threads: tasks one way, what is done the other way.

Either side wakes the other by a write to a file, for that lets go of the interpreter: a thread that wakes up
from a lock finds the interpreter taken by the one that woke it, and sleeps again. On two cores that makes a
hop there and back 0.1 ms longer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

TaskT = TypeVar("TaskT")


class Exchange(Generic[TaskT]):
    """Hands tasks to threads, and tells the loop which are done.

    Args:
        on_done: called in the loop's thread with each task that a thread has finished.
    """

    def __init__(self, on_done: Callable[[TaskT], None]) -> None:
        self._on_done = on_done
        self._tasks: deque[TaskT | None] = deque()
        self._done: deque[TaskT] = deque()
        self._tasks_fd = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        self._done_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._done_fd, select.POLLIN)
        self._loop: asyncio.AbstractEventLoop | None = None

    def __del__(self) -> None:
        # The threads and the loop hold the exchange, so nobody reads any more.
        os.close(self._tasks_fd)
        os.close(self._done_fd)

    # --- in the loop's thread ----------------------------------------------------------------------------

    def follow(self) -> None:
        """Call `on_done` in the running loop from now on."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self.leave()
            self._loop = loop
            loop.add_reader(self._done_fd, self._collect)

    def leave(self) -> None:
        """What is done from now on concerns nobody."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._done_fd)
        self._loop = None

    def put(self, task: TaskT | None) -> None:
        """Let a thread have a task; None ends the thread that gets it."""
        self._tasks.append(task)
        os.eventfd_write(self._tasks_fd, 1)

    def take(self) -> tuple[TaskT | None] | None:
        """The next task, in a tuple, for which no thread has come; None when there is none."""
        try:
            return (self._tasks.popleft(),)
        except IndexError:
            return None

    def wait_for(self, task: TaskT, wait_ms: int) -> bool:
        """Wait a moment for a thread to finish a task; the loop stands still so long.

        Returns:
            Whether it is done; `on_done` has been called with it then.
        """
        if not self._poll.poll(wait_ms):
            return False
        self._forget_signal()
        is_done = task in self._done
        if is_done:
            self._done.remove(task)
        if self._done and self._loop is not None:
            self._loop.call_soon(self._collect)
        if is_done:
            self._on_done(task)
        return is_done

    def _collect(self) -> None:
        self._forget_signal()
        while self._done:
            task = self._done.popleft()
            try:
                self._on_done(task)
            except Exception:  # a bug in one task must not cost the others their end
                logger.exception("what a worker thread has done was not taken well")

    def _forget_signal(self) -> None:
        """To be called before looking at what is done: what comes after the look signals again."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._done_fd)

    # --- in a worker thread ------------------------------------------------------------------------------

    def next(self) -> TaskT | None:
        """The next task, once there is one; None when the thread is to end."""
        while True:
            os.eventfd_read(self._tasks_fd)
            taken = self.take()
            if taken is not None:
                return taken[0]

    def finish(self, task: TaskT) -> None:
        """The task is done."""
        self._done.append(task)
        os.eventfd_write(self._done_fd, 1)
