"""Values that could not be written or are left alone, for those who look at a running daemon."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from threading import Lock
from typing import Final, NamedTuple

from runtimeproxy.cgroups.writer import WriteOutcome, WriteResult

REMEMBERED_FAILURES: Final = 20
MOST_LEFT: Final = 100
"""Values that are left alone, for the status; those above it are only logged."""

FAILED_WRITES: Final = frozenset({WriteOutcome.FAILED, WriteOutcome.INVALID, WriteOutcome.REFUSED})


class FailedWrite(NamedTuple):
    """A value that could not be written."""

    time_s: float
    """Since the epoch."""
    result: WriteResult


class LedgerFailures:
    """The last failures, and what is left alone now. Safe for all threads.

    Args:
        left_alone: Reasons of results for values that are left as they are.
        clock: Seconds since the epoch.

    Attributes:
        writes: The last failed ones, oldest first.
    """

    def __init__(self, left_alone: Collection[str] = (), clock: Callable[[], float] = time.time) -> None:
        self._left_alone = frozenset(left_alone)
        self._clock = clock
        self._lock = Lock()
        self._left: dict[tuple[str, str], WriteResult] = {}
        self.writes: deque[FailedWrite] = deque(maxlen=REMEMBERED_FAILURES)

    @property
    def left(self) -> tuple[WriteResult, ...]:
        """The values that are left alone now."""
        with self._lock:
            return tuple(self._left.values())

    def add(self, results: Iterable[WriteResult]) -> None:
        """Takes the results of a batch."""
        with self._lock:
            for result in results:
                key = result.cgroup, result.name
                if result.outcome in FAILED_WRITES:
                    self.writes.append(FailedWrite(self._clock(), result))
                if result.error not in self._left_alone:
                    self._left.pop(key, None)
                elif key in self._left or len(self._left) < MOST_LEFT:
                    self._left[key] = result

    def forget(self, cgroup: str) -> None:
        """The cgroup is gone."""
        with self._lock:
            for key in [each for each in self._left if each[0] == cgroup]:
                del self._left[key]
