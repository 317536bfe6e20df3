"""A worker thread's part of one call: policies in sequence, then the writes if no policies follow.

The loop's thread may give a leg up at any time. A lock decides who was first: after that nothing of the leg
counts, and its writes can no longer begin.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from runtimeproxy.hooks.audit import Subject
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.evaluation import (
    Outcome,
    OutcomeKind,
    Progress,
    decision_of,
    evaluate,
    explained,
    failed,
)
from runtimeproxy.hooks.loaded import LoadedPolicy
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.hooks.written import Written

_MIN_WAIT_S: Final = 0.001


class Stage(Enum):
    """Where a leg is."""

    WAITING = "waiting"
    """No thread has taken it."""
    POLICIES = "policies"
    WRITES = "writes"
    ENDED = "ended"


class Work(NamedTuple):
    """What a leg needs of its call."""

    subject: Subject
    rule: ConflictRule
    hung: Collection[str]
    """Names of the policies that hang just now: a live collection."""
    finish: Callable[[Decision], Mapping[str, Written] | None] | None
    ended: Callable[[Leg], None]
    """Called in the loop's thread when a leg's thread is back."""
    dropped: Callable[[Leg], None]
    """Called in the loop's thread when no thread is left for a leg."""


class Leg:
    """Runs policies from where the call has come to; a `workers.Task`.

    Attributes:
        progress: as of before the policy at `index`; valid for the loop's thread once the leg is given up.
        index: of the policy that has its turn, or the number of policies when all had theirs.
        outcomes: of the policies before `index`, each with its duration in seconds.
        decision: there once all policies had their turn.
        written: what became of the cgroup values, as far as the writer tells.
        unwritten: why the writes failed; empty when they did not.
        blamed: the policy that the leg's thread hangs in, set by the loop's thread.
        following: the policies after those of the leg, the first of which is in another process.
    """

    __slots__ = (
        "_lock",
        "_started_s",
        "_until_s",
        "blamed",
        "decision",
        "following",
        "given_up",
        "index",
        "outcomes",
        "policies",
        "progress",
        "stage",
        "unwritten",
        "work",
        "written",
    )

    def __init__(
        self,
        work: Work,
        policies: Sequence[LoadedPolicy],
        progress: Progress,
        until_s: float,
        following: Sequence[LoadedPolicy] = (),
    ) -> None:
        self.work = work
        self.policies = policies
        self.following = following
        self.progress = progress
        self.index = 0
        self.outcomes: list[tuple[Outcome, float]] = []
        self.stage = Stage.WAITING
        self.given_up = False
        self.decision: Decision | None = None
        self.written: Mapping[str, Written] = {}
        self.unwritten = ""
        self.blamed: LoadedPolicy | None = None
        self._until_s = until_s
        self._started_s = 0.0
        self._lock = threading.Lock()

    def run(self) -> None:
        """In a worker thread: all policies' turns, until one refuses, then the writes."""
        if not self._enter(Stage.POLICIES):
            return
        progress = self.progress
        while self.index < len(self.policies) and progress.refusal is None:
            progress, outcome = self._turn(self.policies[self.index], progress)
            if not self._advance(progress, outcome):
                return
        self._write(progress)

    def done(self) -> None:
        """In the loop's thread: the thread is back."""
        self.work.ended(self)

    def dropped(self) -> None:
        """In the loop's thread: no thread will come."""
        self.work.dropped(self)

    def give_up(self) -> bool:
        """In the loop's thread: nothing of this leg counts any more; False if its writes have begun."""
        with self._lock:
            if self.stage in (Stage.WRITES, Stage.ENDED):
                return False
            self.given_up = True
            return True

    def postpone(self, paused_s: float) -> None:
        """In the loop's thread: all times end so much later."""
        with self._lock:
            self._until_s += paused_s
            self._started_s += paused_s

    def wait_s(self, now_s: float) -> float:
        """Return how long to wait until looking again; 0 if the leg is overdue (and then it is given up)."""
        with self._lock:
            if self.stage is Stage.ENDED:
                return _MIN_WAIT_S
            left_s = self._until_s - now_s
            timeouts_s = [policy.timeout_s for policy in self.policies[self.index :]]
            if self.stage is Stage.POLICIES and timeouts_s:
                left_s = min(left_s, self._started_s + timeouts_s[0] - now_s)
            if left_s > 0:
                return max(min([left_s, *timeouts_s]), _MIN_WAIT_S)
            self.given_up = True
            return 0.0

    def _enter(self, stage: Stage) -> bool:
        with self._lock:
            if self.given_up:
                return False
            self.stage = stage
            self._started_s = time.monotonic()
            return True

    def _turn(self, policy: LoadedPolicy, progress: Progress) -> tuple[Progress, Outcome]:
        if policy.name in self.work.hung:
            return failed(self.work.subject, progress, hangs(policy))
        return evaluate(policy, self.work.subject, progress, self.work.rule)

    def _advance(self, progress: Progress, outcome: Outcome) -> bool:
        now_s = time.monotonic()
        with self._lock:
            if self.given_up:
                return False
            self.progress = progress
            self.index += 1
            self.outcomes.append((outcome, now_s - self._started_s))
            self._started_s = now_s
            return True

    def _write(self, progress: Progress) -> None:
        decision = decision_of(self.work.subject, progress)
        finish = self.work.finish if decision.change is not None and not self.following else None
        with self._lock:
            if self.given_up:
                return
            self.decision = decision
            self.stage = Stage.WRITES if finish else Stage.ENDED
        if finish is None:
            return
        try:
            self.written = finish(decision) or {}
        except Exception as error:  # noqa: BLE001 - whatever the writer raises, the call has an answer
            self.unwritten, _ = explained(error, self.work.subject.view)
        with self._lock:
            self.stage = Stage.ENDED


def hangs(policy: LoadedPolicy) -> Outcome:
    """Return the outcome of a policy that has no turn because its thread has not come back."""
    return Outcome(policy, OutcomeKind.SKIPPED, "hangs since an earlier call", "hangs")
