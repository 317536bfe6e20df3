"""A small pool of daemon threads that run policies for one event loop.

All accounts are kept in the loop's thread; a worker thread only takes a task, runs it and tells the loop.
A thread whose task has been given up no longer counts until it returns; a few spare threads may take its
place. When no thread is left, tasks are refused at once instead of waiting for one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from functools import partial
from typing import Final, Protocol

from runtimeproxy.hooks.exchange import Exchange

logger = logging.getLogger(__name__)

DEFAULT_SIZE: Final = 4
"""Threads that work at the same time. Policies compute little, and one interpreter lock serves them all."""

PATIENCE_MS: Final = 1
"""How long the loop stands still for a task that is alone, if the one before took no longer; once a turn.

While a thread computes, the loop could do little, for they share the interpreter. A task that is done in that
time saves two wake-ups, and what follows from it is written together with what the loop has begun.
"""


class Task(Protocol):
    """What a worker thread runs."""

    def run(self) -> None:
        """In a worker thread; must not raise."""

    def done(self) -> None:
        """In the loop's thread, after `run` has returned, however late."""

    def dropped(self) -> None:
        """In the loop's thread, instead of the two: no thread is left to run it."""


class Workers:
    """The pool. Every method is called in the loop's thread.

    Args:
        size: how many threads work at the same time.
        spares: how many more may be started for threads that hang; None for as many.
        patience_ms: how long the loop waits for a task, in milliseconds; 0 for tasks that wait for others.

    Attributes:
        size: how many threads work at the same time.
        spares: how many more may be started for threads that hang.
    """

    def __init__(
        self, size: int = DEFAULT_SIZE, *, spares: int | None = None, patience_ms: int = PATIENCE_MS
    ) -> None:
        self.size = size
        self.spares = size if spares is None else spares
        self._patience_ms = patience_ms
        self._is_quick = False
        self._has_waited = False
        self._lone: Task | None = None
        self._lone_since_s = 0.0
        self._exchange: Exchange[Task] = Exchange(self._completed)
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
        """Have a thread run the task, as soon as one is free; False if none is left or the pool is closed.

        It may be done when this returns: `done` has been called then.
        """
        if self._closed:
            return False
        self._grow(self._pending + 1)
        if self._threads == len(self._stuck):
            return False
        self._pending += 1
        self._exchange.follow()
        self._exchange.put(task)
        if self._pending == 1:
            self._lone, self._lone_since_s = task, time.monotonic()
            if self._is_quick and not self._has_waited:
                self._has_waited = True
                asyncio.get_running_loop().call_soon(self._next_turn)
                self._exchange.wait_for(task, self._patience_ms)
        return True

    def _next_turn(self) -> None:
        self._has_waited = False

    def give_up(self, task: Task) -> None:
        """Count the thread that runs the task as lost until it returns."""
        self._stuck.add(task)
        self._pending -= 1
        if task is self._lone:
            self._lone, self._is_quick = None, False
        self._grow(self._pending)
        if self._threads == len(self._stuck):
            self._drop_waiting()

    def close(self) -> None:
        """Let idle threads end; busy ones end after their task, hung ones with the process."""
        self._closed = True
        for _ in range(self._threads):
            self._exchange.put(None)
        self._leave_when_idle()

    def _grow(self, wanted: int) -> None:
        working = self._threads - len(self._stuck)
        if wanted > working and working < self.size and self._threads < self.size + self.spares:
            self._threads += 1
            work = partial(_work, self._exchange)
            threading.Thread(target=work, name=f"policies-{self._threads}", daemon=True).start()

    def _drop_waiting(self) -> None:
        while (taken := self._exchange.take()) is not None:
            if (task := taken[0]) is not None:
                self._pending -= 1
                task.dropped()

    def _completed(self, task: Task) -> None:
        if task in self._stuck:
            self._stuck.discard(task)
            self._shrink()
        else:
            self._pending -= 1
        if task is self._lone:
            self._lone = None
            took_ms = (time.monotonic() - self._lone_since_s) * 1000
            self._is_quick = took_ms < self._patience_ms
        task.done()
        if self._closed:
            self._leave_when_idle()

    def _leave_when_idle(self) -> None:
        if not (self._pending or self._stuck):
            self._exchange.leave()

    def _shrink(self) -> None:
        if self._threads - len(self._stuck) > self.size:
            self._threads -= 1
            self._exchange.put(None)


def _work(exchange: Exchange[Task]) -> None:
    while (task := exchange.next()) is not None:
        try:
            task.run()
        except BaseException:  # a bug in a task must not cost a thread
            logger.exception("a task of the policies' worker threads raised")
        exchange.finish(task)
        del task
