"""Counters of what has happened to values, and the last failures; for all threads."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final, NamedTuple

from runtimeproxy.cgroups.writer import FAILURES, WriteOutcome, WriteResult
from runtimeproxy.counts import Counts
from runtimeproxy.ledger.books import LeftReason
from runtimeproxy.ledger.change_log import Applied
from runtimeproxy.pods.records import Level

REMEMBERED_FAILURES: Final = 20
MOST_LEFT: Final = 100
"""Values that are left alone, for the status; those above it are only logged."""


class LedgerCounts:
    """Counters of what has happened to values since the start.

    Attributes:
        writes: Values that were written or not, by parameter and outcome.
        above_usage: Memory limits that fell less than they should, because of the usage, by level.
        repairs: Values that were set again, by level and by how that was found: `event` after a call that
            resets them, `comparison` otherwise.
        overwrites: Values of other programs that were written over, by parameter.
        left: Attempts at values that are left alone, by reason.
        given_back: Values that are no longer ours, by level.
        renewed: Cgroups that were made anew under their name, by level; after a reboot all.
        recovered: Cgroups whose values a process had written that was killed before it could save them.
    """

    def __init__(self, writes: Counts[tuple[str, WriteOutcome]], above_usage: Counts[Level]) -> None:
        self.writes = writes
        self.above_usage = above_usage
        self.repairs: Counts[tuple[Level, str]] = Counts()
        self.overwrites: Counts[str] = Counts()
        self.left: Counts[LeftReason] = Counts()
        self.given_back: Counts[Level] = Counts()
        self.renewed: Counts[Level] = Counts()
        self.recovered = 0


class FailedWrite(NamedTuple):
    """A value that could not be written."""

    time_s: float
    """Since the epoch."""
    result: WriteResult


class LedgerFailures:
    """The last failures, and what is left alone now. Safe for all threads. `clock`: seconds since the epoch.

    Attributes:
        writes: The last failed ones, oldest first.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = Lock()
        self._left: dict[tuple[str, str], Applied] = {}
        self.writes: deque[FailedWrite] = deque(maxlen=REMEMBERED_FAILURES)

    @property
    def left(self) -> tuple[Applied, ...]:
        with self._lock:
            return tuple(self._left.values())

    def add(self, results: Iterable[Applied]) -> None:
        with self._lock:
            for result in results:
                key = result.cgroup, result.name
                if result.outcome in FAILURES:
                    self.writes.append(FailedWrite(self._clock(), result))
                if result.left_alone in (None, LeftReason.NOT_IN_RANGE):
                    self._left.pop(key, None)
                elif key in self._left or len(self._left) < MOST_LEFT:
                    self._left[key] = result

    def forget(self, cgroup: str) -> None:
        with self._lock:
            for key in [each for each in self._left if each[0] == cgroup]:
                del self._left[key]
