"""The worker threads that run policies: their pool, the work of one for one call, and the timer of the runs.

All accounts are kept in the loop's thread; a worker thread only takes a task, runs it and reports it to the
loop. A thread whose task has been given up no longer counts until it returns; a few spare threads may take
its place. When no thread is left, tasks are refused at once instead of waiting for one.

The loop's thread may give a run up at any time. A lock decides which of the two was first: after that
nothing of the run counts, and its writes can no longer begin.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from runtimeproxy.cgroups.writer import WriteResult
from runtimeproxy.hooks.audit import PolicyRun, Subject
from runtimeproxy.hooks.decision import (
    HANGS,
    Decision,
    Failure,
    FailureKind,
    Progress,
    add_failure,
    error_texts,
    make_decision,
    run_policy,
)
from runtimeproxy.hooks.loaded import LoadedPolicy
from runtimeproxy.node.snapshot import NodeSource

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


class Hanging(NamedTuple):
    """A policy in which threads hang."""

    policy: LoadedPolicy
    threads: int
    since_s: float
    """When the first of them was given up, in seconds since the epoch."""


class Workers:
    """The pool. Every public method is called in the loop's thread.

    Args:
        size: how many threads work at the same time.
        spares: how many more may be started for threads that hang; None for as many as `size`.

    Attributes:
        threads: how many threads there are, hung ones included.
        hanging: the policies in which threads hang, by the `id` of `LoadedPolicy.policy`, whichever chain had
            them run: one that a reload has replaced goes on computing. Worker threads look into it, too.
        timer: watches the runs that have a thread.
    """

    def __init__(
        self,
        size: int = DEFAULT_SIZE,
        *,
        spares: int | None = None,
        switch_interval: SwitchInterval | None = None,
    ) -> None:
        self.size = size
        self.spares = size if spares is None else spares
        self.threads = 0
        self.hanging: dict[int, Hanging] = {}
        self.timer = RunTimer(self.hanging, switch_interval or SWITCH_INTERVAL)
        self._items: deque[_Item] = deque()
        # Threads are woken by a write to a file: that releases the interpreter, while a thread that wakes up
        # from a lock finds the interpreter taken by the one that woke it, and sleeps again. On two cores that
        # makes a hop there and back 0.1 ms longer.
        self._wake_fd = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        self._pending = 0
        self._stuck: dict[Task, LoadedPolicy | None] = {}
        self._is_closed = False

    def __del__(self) -> None:
        # The threads hold the pool, so none of them reads any more.
        os.close(self._wake_fd)

    @property
    def hung(self) -> int:
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

    def give_up(self, task: Task, policy: LoadedPolicy | None = None) -> None:
        """Count the thread that runs the task as lost until it returns.

        `policy`: the policy that it hangs in; None if it is in none.
        """
        self._stuck[task] = policy
        if policy is not None:
            self._count_hanging(policy, 1)
        self._pending -= 1
        if self._pending > self.threads - len(self._stuck):
            self._add_thread()
        while self.threads == len(self._stuck) and self._items:
            item = self._items.popleft()
            if item is not None:
                self._pending -= 1
                item[0].on_dropped()

    def _count_hanging(self, policy: LoadedPolicy, more: int) -> None:
        key = id(policy.policy)
        present = self.hanging.get(key) or Hanging(policy, 0, time.time())
        self.hanging[key] = present._replace(threads=present.threads + more)
        if not self.hanging[key].threads:
            del self.hanging[key]

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
        # In a worker thread, until the pool ends it.
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
                logger.exception("a task in a policy worker thread failed")
            try:
                loop.call_soon_threadsafe(self._on_done, task)
            except RuntimeError:
                return  # the loop is closed: the process ends
            # An idle thread must not keep the task alive.
            del item, task, loop

    def _on_done(self, task: Task) -> None:
        if task in self._stuck:
            policy = self._stuck.pop(task)
            if policy is not None:
                self._count_hanging(policy, -1)
            if self.threads - len(self._stuck) > self.size:
                self.threads -= 1
                self._end_one_thread()
        else:
            self._pending -= 1
        task.on_done()


class Stage(Enum):
    """Where a worker run is."""

    WAITING = "waiting"
    """No thread has taken it."""
    POLICIES = "policies"
    WRITES = "writes"
    ENDED = "ended"


ApplyDecision: TypeAlias = Callable[[Decision], Mapping[str, WriteResult] | None]
"""Applies a decision: edits the message and writes cgroup values; runs in a worker thread.

Of a short call whose decision has no cgroup values to write, it may run in the loop's thread. May return the
results of writing the cgroup values, by parameter."""


class WorkerRunOwner(Protocol):
    """The run through the chain that a worker run is a part of; in the loop's thread."""

    def on_worker_done(self, worker: WorkerRun) -> None:
        """A worker thread is back, in time or long after it was left behind."""

    def on_worker_dropped(self, worker: WorkerRun) -> None:
        """No thread is left."""


@dataclass(slots=True, eq=False)
class WorkerRun:
    """Runs policies in sequence in a worker thread, then applies the decision; a `Task`."""

    owner: WorkerRunOwner
    subject: Subject
    node: NodeSource
    is_hung: Callable[[LoadedPolicy], bool]
    """Whether a thread hangs in a policy; in any thread."""
    policies: Sequence[LoadedPolicy]
    following: Sequence[LoadedPolicy]
    """The policies after these, the first of which is a hook server."""
    apply: ApplyDecision | None
    """Called with the decision, if that changes something and no policies follow."""
    progress: Progress
    """As of before the policy at `index`; valid for the loop's thread once the run is given up or over."""
    until_s: float
    """When it has to end, by the monotonic clock."""
    index: int = 0
    """Of the policy that runs; the number of policies when all have run."""
    runs: list[PolicyRun] = field(default_factory=list)
    """Of the policies that have returned."""
    failures: list[Failure] = field(default_factory=list)
    """Of the policies before `index`."""
    stage: Stage = Stage.WAITING
    is_given_up: bool = False
    blamed: LoadedPolicy | None = None
    """The policy that the thread hangs in, set by the loop's thread."""
    decision: Decision | None = None
    """Set once all policies have run."""
    written: Mapping[str, WriteResult] = field(default_factory=dict)
    """The results of writing the cgroup values, as far as the writer reports them."""
    unwritten: str = ""
    """Why the writes failed; empty if they did not."""
    _started_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- in the worker thread -------------------------------------------------------------------------------

    def run(self) -> None:
        """Run all policies, until one refuses, then apply the decision."""
        subject, progress = self.subject, self.progress
        failure: Failure | None = None
        is_old = bool(self.policies) and time.monotonic() >= self.node.fresh_until_s
        node = self.node.snapshot() if is_old else self.node.latest
        for index, policy in enumerate(self.policies):
            with self._lock:
                if self.is_given_up:
                    return
                self.stage, self._started_s = Stage.POLICIES, time.monotonic()
                self._note(index, progress, failure)
            if self.is_hung(policy):
                failure = Failure(policy, FailureKind.SKIPPED, HANGS)
                progress = add_failure(subject, progress, failure)
            else:
                progress, failure = run_policy(policy, subject, node, progress)
                now_s = time.monotonic()
                self.runs.append(PolicyRun(policy.name, now_s - self._started_s, now_s))
            if progress.refusal is not None:
                break
        decision = make_decision(subject, progress)
        apply = self.apply if decision.change is not None and not self.following else None
        with self._lock:
            if self.is_given_up:
                return
            self._note(len(self.policies), progress, failure)
            self.decision = decision
            self.stage = Stage.ENDED if apply is None else Stage.WRITES
        if apply is not None:
            try:
                self.written = apply(decision) or {}
            except Exception as error:  # noqa: BLE001 - whatever the writer raises, the call gets an answer
                self.unwritten, _ = error_texts(error, subject.view)
            with self._lock:
                self.stage = Stage.ENDED

    def _note(self, index: int, progress: Progress, failure: Failure | None) -> None:
        """Note that the policies before `index` have run."""
        self.index, self.progress = index, progress
        if failure is not None:
            self.failures.append(failure)

    # --- in the loop's thread -------------------------------------------------------------------------------

    def on_done(self) -> None:
        self.owner.on_worker_done(self)

    def on_dropped(self) -> None:
        self.owner.on_worker_dropped(self)

    def give_up(self) -> bool:
        # False if its writes have begun.
        with self._lock:
            if self.stage in (Stage.WRITES, Stage.ENDED):
                return False
            self.is_given_up = True
            return True

    def postpone(self, paused_s: float) -> None:
        with self._lock:
            self.until_s += paused_s
            self._started_s += paused_s

    def is_overdue(self, now_s: float) -> bool:
        # The run, or the policy that runs, takes too long; then the run is given up.
        with self._lock:
            if self.stage is Stage.ENDED:
                return False
            due_s = self.until_s
            if self.stage is Stage.POLICIES and self.index < len(self.policies):
                due_s = min(due_s, self._started_s + self.policies[self.index].timeout_s)
            self.is_given_up |= now_s >= due_s
            return now_s >= due_s


@dataclass(slots=True, eq=False)
class WorkerTask:
    """Something long that a worker thread does, with one result; a `Task`, and a `Cancellable`."""

    work: Callable[[], Any]
    """Runs in the worker thread; never returns None."""
    on_result: Callable[[Any], None] | None
    """Gets the result, in the loop's thread; None once it has, or must not get it any more."""
    without: Callable[[str], object]
    """Makes another result, from the reason why there is none in time."""
    _result: object = None
    _timer: asyncio.TimerHandle | None = None

    def limit(self, left_s: float, reason: str) -> None:
        # The thread that does the work continues.
        self._timer = asyncio.get_running_loop().call_later(left_s, self.end_without, reason)

    def run(self) -> None:
        # In the worker thread.
        if self.on_result is not None:
            self._result = self.work()

    def on_done(self) -> None:
        if self._result is None:
            self.end_without("internal error")
        else:
            self._end(self._result)

    def on_dropped(self) -> None:
        self.end_without("no worker thread is left")

    def cancel(self) -> None:
        self.on_result = None
        if self._timer is not None:
            self._timer.cancel()

    def end_without(self, reason: str) -> None:
        if self.on_result is not None:
            self._end(self.without(reason))

    def _end(self, result: object) -> None:
        on_result = self.on_result
        self.cancel()
        if on_result is not None:
            on_result(result)


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

    Attributes:
        runs: the runs in progress; the one that adds a run discards it.
    """

    def __init__(self, hung: Collection[object], switch_interval: SwitchInterval = SWITCH_INTERVAL) -> None:
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
        # First all of them: the end of one may let others proceed.
        for run in self.runs if paused_s else ():
            run.postpone(paused_s)
        for run in tuple(self.runs):
            try:
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
        """How long nothing of this process ran since the tick was due; its own computing does not count."""
        now_s = time.monotonic()
        idle_s = now_s - self._ticked_s - (time.process_time() - self._ticked_cpu_s)
        paused_s = min(now_s - self._ticked_s - TICK_S, idle_s)
        return paused_s if paused_s >= _PAUSE_S else 0.0
