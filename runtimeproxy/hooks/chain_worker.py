"""The part of a chain's run that a worker thread does: policies in sequence, then the writes.

The loop's thread may give a worker run up at any time. A lock decides which of the two was first: after that
nothing of the run counts, and its writes can no longer begin.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from runtimeproxy.hooks.audit import Written
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

if TYPE_CHECKING:
    from runtimeproxy.hooks.chain import ChainRun


class Stage(Enum):
    """Where a worker run is."""

    WAITING = "waiting"
    """No thread has taken it."""
    POLICIES = "policies"
    WRITES = "writes"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class WorkerRun:
    """Runs policies in sequence in a worker thread, then applies the decision; a `workers.Task`."""

    chain_run: ChainRun
    """The call's run, which this one reads and reports to."""
    policies: Sequence[LoadedPolicy]
    following: Sequence[LoadedPolicy]
    """The policies after these, the first of which is in another process. The decision is applied only if
    there are none."""
    progress: Progress
    """As of before the policy at `index`; valid for the loop's thread once the run is given up or over."""
    until_s: float
    """When it has to end, by the monotonic clock."""
    index: int = 0
    """Of the policy that runs; the number of policies when all have run."""
    failures: list[Failure] = field(default_factory=list)
    """Of the policies before `index`."""
    stage: Stage = Stage.WAITING
    is_given_up: bool = False
    blamed: LoadedPolicy | None = None
    """The policy that the thread hangs in, set by the loop's thread."""
    decision: Decision | None = None
    """Set once all policies have run."""
    written: Mapping[str, Written] = field(default_factory=dict)
    """The results of writing the cgroup values, as far as the writer reports them."""
    unwritten: str = ""
    """Why the writes failed; empty if they did not."""
    _started_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- in the worker thread -------------------------------------------------------------------------------

    def run(self) -> None:
        """Run all policies, until one refuses, then apply the decision."""
        subject, chain, progress = self.chain_run.subject, self.chain_run.chain, self.progress
        failure: Failure | None = None
        for index, policy in enumerate(self.policies):
            with self._lock:
                if self.is_given_up:
                    return
                self.stage, self._started_s = Stage.POLICIES, time.monotonic()
                self._note(index, progress, failure)
            if policy.name in chain.hung:
                failure = Failure(policy, FailureKind.SKIPPED, HANGS)
                progress = add_failure(subject, progress, failure)
            else:
                progress, failure = run_policy(policy, subject, progress)
            if progress.refusal is not None:
                break
        decision = make_decision(subject, progress)
        apply = self.chain_run.apply if decision.change is not None and not self.following else None
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
        self.chain_run.on_worker_done(self)

    def on_dropped(self) -> None:
        self.chain_run.on_worker_dropped(self)

    def give_up(self) -> bool:
        """Discard the run; False if its writes have begun."""
        with self._lock:
            if self.stage in (Stage.WRITES, Stage.ENDED):
                return False
            self.is_given_up = True
            return True

    def postpone(self, paused_s: float) -> None:
        """Move all deadlines."""
        with self._lock:
            self.until_s += paused_s
            self._started_s += paused_s

    def is_overdue(self, now_s: float) -> bool:
        """Return whether the run, or the policy that runs, takes too long; then the run is given up."""
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
    """Something long that a worker thread does, with one result; a `workers.Task`, and a `Cancellable`."""

    work: Callable[[], Any]
    """Runs in the worker thread; never returns None."""
    on_result: Callable[[Any], None] | None
    """Gets the result, in the loop's thread; None once it has, or must not get it any more."""
    without: Callable[[str], object]
    """Makes another result, from the reason why there is none in time."""
    _result: object = None
    _timer: asyncio.TimerHandle | None = None

    def limit(self, left_s: float, reason: str) -> None:
        """Wait no longer than that; a thread that is at it continues."""
        self._timer = asyncio.get_running_loop().call_later(left_s, self.end_without, reason)

    def run(self) -> None:
        """In the worker thread."""
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
        """End without the work's result."""
        if self.on_result is not None:
            self._end(self.without(reason))

    def _end(self, result: object) -> None:
        on_result = self.on_result
        self.cancel()
        if on_result is not None:
            on_result(result)
