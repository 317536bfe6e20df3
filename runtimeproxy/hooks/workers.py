"""The worker threads that run policies for one event loop, and the loop's timer that watches their runs.

All accounts are kept in the loop's thread; a worker thread only takes a task, runs it and reports it to the
loop. A thread whose task has been given up no longer counts until it returns; a few spare threads may take
its place. When no thread is left, tasks are refused at once instead of waiting for one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Set
from typing import Final, Protocol, TypeAlias

logger = logging.getLogger(__name__)

DEFAULT_SIZE: Final = 4
"""Threads that work at the same time. Policies compute little, and one interpreter lock serves them all."""
SHORT_SWITCH_INTERVAL_S: Final = 0.00001
"""With shorter ones, calls beside a policy that computes take longer again; measured with the bench."""
TICK_S: Final = 0.005
"""How often runs are looked at. A run that is under way at two ticks is a long one."""

_PAUSE_S: Final = 0.1
"""How late a tick has to be before the process counts as paused: by SIGSTOP, with its virtual machine, or for
want of a CPU."""


class Task(Protocol):
    """Work for a worker thread."""

    def run(self) -> None:
        """In a worker thread; must not raise."""

    def on_done(self) -> None:
        """In the loop's thread, after `run` has returned, however late."""

    def on_dropped(self) -> None:
        """In the loop's thread, instead of the two: no thread is left to run it."""


_Item: TypeAlias = "tuple[Task, asyncio.AbstractEventLoop] | None"


class Workers:
    """The pool. Every public method is called in the loop's thread.

    Attributes:
        size: how many threads work at the same time.
        spares: how many more may be started for threads that hang.
        threads: how many threads there are, hung ones included.
    """

    def __init__(self, size: int = DEFAULT_SIZE, *, spares: int | None = None) -> None:
        self.size = size
        self.spares = size if spares is None else spares
        self.threads = 0
        self._items: deque[_Item] = deque()
        # Threads are woken by a write to a file, for that lets go of the interpreter: a thread that wakes up
        # from a lock finds the interpreter taken by the one that woke it, and sleeps again. On two cores that
        # makes a hop there and back 0.1 ms longer.
        self._wake_fd = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        self._pending = 0
        self._stuck: set[Task] = set()
        self._is_closed = False

    def __del__(self) -> None:
        # The threads hold the pool, so none of them reads any more.
        os.close(self._wake_fd)

    @property
    def hung(self) -> int:
        """How many threads hang in a task that was given up."""
        return len(self._stuck)

    def submit(self, task: Task) -> bool:
        """Have a thread run the task, as soon as one is free; False if none is left or the pool is closed."""
        if self._is_closed:
            return False
        if self._pending >= self.threads - len(self._stuck):
            self._add_thread()
        if self.threads == len(self._stuck):
            return False
        self._pending += 1
        self._items.append((task, asyncio.get_running_loop()))
        os.eventfd_write(self._wake_fd, 1)
        return True

    def give_up(self, task: Task) -> None:
        """Count the thread that runs the task as lost until it returns."""
        self._stuck.add(task)
        self._pending -= 1
        if self._pending > self.threads - len(self._stuck):
            self._add_thread()
        while self.threads == len(self._stuck) and self._items:
            item = self._items.popleft()
            if item is not None:
                self._pending -= 1
                item[0].on_dropped()

    def close(self) -> None:
        """Let idle threads end; busy ones end after their task, hung ones with the process."""
        self._is_closed = True
        for _ in range(self.threads):
            self._end_one_thread()

    def _add_thread(self) -> None:
        if self.threads - len(self._stuck) < self.size and self.threads < self.size + self.spares:
            self.threads += 1
            name = f"policies-{self.threads}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def _end_one_thread(self) -> None:
        self._items.append(None)
        os.eventfd_write(self._wake_fd, 1)

    def _work(self) -> None:
        """In a worker thread: run tasks until the pool ends it."""
        while True:
            os.eventfd_read(self._wake_fd)
            try:
                item = self._items.popleft()
            except IndexError:  # its task has been dropped
                continue
            if item is None:
                return
            task, loop = item
            try:
                task.run()
            except BaseException:  # a bug in a task must not cost a thread
                logger.exception("a task of the policies' worker threads raised")
            try:
                loop.call_soon_threadsafe(self._on_done, task)
            except RuntimeError:
                return  # the loop is closed: the process ends
            # An idle thread must not keep the task alive.
            del item, task, loop

    def _on_done(self, task: Task) -> None:
        if task in self._stuck:
            self._stuck.discard(task)
            if self.threads - len(self._stuck) > self.size:
                self.threads -= 1
                self._end_one_thread()
        else:
            self._pending -= 1
        task.on_done()


class SwitchInterval:
    """The interpreter's switch interval: the shortest of those asked for. Used in one thread.

    Short ones keep a policy that computes for long from holding up the calls that pass. But a policy that
    takes half a millisecond better ends before the loop continues, for each switch costs two wake-ups: with
    a short interval a changed CreateContainer takes half as long again.
    """

    def __init__(self) -> None:
        self._asked_s: list[float] = []
        self._usual_s = 0.0

    def shorten(self, length_s: float) -> None:
        """Let no thread keep the interpreter for longer while others wait, until `restore`."""
        if not self._asked_s:
            self._usual_s = sys.getswitchinterval()
        self._asked_s.append(length_s)
        self._set()

    def restore(self, length_s: float) -> None:
        """Take one `shorten` back."""
        self._asked_s.remove(length_s)
        self._set()

    def _set(self) -> None:
        sys.setswitchinterval(min(self._usual_s, *self._asked_s) if self._asked_s else self._usual_s)


SWITCH_INTERVAL: Final = SwitchInterval()
"""Of this process: the interpreter has only one."""


class TimedRun(Protocol):
    """A run that may take too long."""

    def on_tick(self, now_s: float) -> None:
        """End the run if its time is up."""

    def postpone(self, paused_s: float) -> None:
        """Move all deadlines: no thread of this process ran for that time."""


class RunTimer:
    """Looks at the runs under way every few milliseconds. Used in one event loop's thread.

    It finds the runs that are overdue, gives pauses of the process back to all, and shortens the switch
    interval while a run is long or a thread hangs. One timer for all runs: a short run costs none of its own.

    Args:
        hung: the policies in which threads hang: a live collection.
        switch_interval: the interpreter's.

    Attributes:
        runs: the runs under way; whoever adds one discards it.
    """

    def __init__(self, hung: Collection[str], switch_interval: SwitchInterval = SWITCH_INTERVAL) -> None:
        self.runs: set[TimedRun] = set()
        self._hung = hung
        self._switch_interval = switch_interval
        self._is_shortened = False
        self._before: Set[TimedRun] = frozenset()
        self._is_ticking = False
        self._ticked_s = self._ticked_cpu_s = 0.0

    def add(self, run: TimedRun) -> None:
        """Look at a run until it is discarded from `runs`."""
        self.runs.add(run)
        if not self._is_ticking:
            self._is_ticking = True
            self._start_tick()

    def _start_tick(self) -> None:
        self._ticked_s, self._ticked_cpu_s = time.monotonic(), time.process_time()
        asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        paused_s = self._paused_s()
        for run in tuple(self.runs):
            try:
                if paused_s:
                    run.postpone(paused_s)
                run.on_tick(time.monotonic())
            except Exception:  # a bug in one run must not leave the others unwatched
                logger.exception("a run of policies that is overdue cannot be ended")
        is_long = bool(self._hung) or not self._before.isdisjoint(self.runs)
        if is_long and not self._is_shortened:
            self._switch_interval.shorten(SHORT_SWITCH_INTERVAL_S)
        elif self._is_shortened and not is_long:
            self._switch_interval.restore(SHORT_SWITCH_INTERVAL_S)
        self._is_shortened = is_long
        self._before = frozenset(self.runs)
        self._is_ticking = bool(self._hung) or bool(self.runs)
        if self._is_ticking:
            self._start_tick()

    def _paused_s(self) -> float:
        """How long nothing of this process ran since the tick was due; what it computed is no pause."""
        now_s = time.monotonic()
        idle_s = now_s - self._ticked_s - (time.process_time() - self._ticked_cpu_s)
        paused_s = min(now_s - self._ticked_s - TICK_S, idle_s)
        return paused_s if paused_s >= _PAUSE_S else 0.0
