"""Samples of one metric over time, in memory of fixed size, and their summary for plugins."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence

from runtimeproxy.qosmanager.snapshot import Window


def summarize(values: Sequence[float]) -> Window | None:
    """Return the window of samples in the order of their time; None without any."""
    if not values:
        return None
    ordered = sorted(values)
    return Window(
        last=values[-1],
        avg=mean_of(values),
        p50=percentile(ordered, 0.50),
        p90=percentile(ordered, 0.90),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        count=len(values),
    )


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return math.fsum(values) / len(values)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the least of the values, which are in ascending order, that `share` of them do not exceed."""
    # The product is rounded, because 0.55 * 20 is a little more than 11.
    rank = math.ceil(round(share * len(ordered), 9))
    return ordered[max(rank, 1) - 1]


class Ring:
    """The latest samples of some values that are taken together; an append replaces the oldest when full."""

    __slots__ = ("_columns", "_count", "_next", "_times")

    def __init__(self, capacity: int, columns: int = 1) -> None:
        self._times = array("d", bytes(8 * capacity))
        self._columns = [array("d", bytes(8 * capacity)) for _ in range(columns)]
        self._next = 0
        self._count = 0

    @property
    def capacity(self) -> int:
        return len(self._times)

    @property
    def columns(self) -> int:
        return len(self._columns)

    def append(self, at_s: float, values: Sequence[float]) -> None:
        """Adds a sample with a value for each column; its time is not before that of the last one."""
        at = self._next
        self._times[at] = at_s
        for column, value in zip(self._columns, values, strict=True):
            column[at] = value
        self._next = (at + 1) % len(self._times)
        if self._count < len(self._times):
            self._count += 1

    def values_after(self, at_s: float, column: int = 0) -> array[float]:
        """The values of the samples taken after a time, oldest first."""
        times, values, end = self._times, self._columns[column], self._next
        if self._count < len(times):
            return values[bisect_right(times, at_s, 0, end) : end]
        # Most windows are shorter than the ring: the older part is in it only if all of the newer one is.
        begin = bisect_right(times, at_s, 0, end)
        if begin > 0:
            return values[begin:end]
        return values[bisect_right(times, at_s, end) :] + values[:end]

    def last_after(self, at_s: float, column: int = 0) -> float | None:
        """The latest value; None if it was not taken after a time."""
        last = self._next - 1
        return self._columns[column][last] if self._count and self._times[last] > at_s else None

    def timed_after(self, at_s: float, column: int = 0) -> list[tuple[float, float]]:
        """The samples taken after a time with their times, oldest first; for few of them."""
        found: list[tuple[float, float]] = []
        size = len(self._times)
        for back in range(1, self._count + 1):
            at = (self._next - back) % size
            if self._times[at] <= at_s:
                break
            found.append((self._times[at], self._columns[column][at]))
        return found[::-1]

    def resized(self, capacity: int) -> Ring:
        """A ring of another capacity with as many of the latest samples as it holds."""
        ring = Ring(capacity, len(self._columns))
        columns = map(self._in_order, self._columns)
        for at_s, *values in zip(self._in_order(self._times), *columns, strict=True):
            ring.append(at_s, values)
        return ring

    def _in_order(self, items: array[float]) -> array[float]:
        if self._count < len(items):
            return items[: self._count]
        return items[self._next :] + items[: self._next]
