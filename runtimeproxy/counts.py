"""Numbers that metrics and status read: plain integers, so that counting costs next to nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable
from threading import Lock
from typing import Final, Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)

OTHER: Final = "other"
"""Stands for all methods that are not known: their number must not grow with what clients call."""
SECONDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
)
"""Upper bounds of durations in the proxy: a policy takes 0.1 ms, a call that waits up to `hooks.budget_s`."""


class Histogram:
    """How often values fell into which range. Used in one thread; others may read it.

    Args:
        bounds: upper bounds of the ranges, rising; the last range has none.

    Attributes:
        counts: how many values are in each range, one more than there are bounds.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Counts(Generic[KeyT]):
    """Numbers by key, for all threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._numbers: dict[KeyT, int] = {}

    def add(self, key: KeyT, number: int = 1) -> None:
        with self._lock:
            self._numbers[key] = self._numbers.get(key, 0) + number

    def read(self) -> dict[KeyT, int]:
        with self._lock:
            return dict(self._numbers)
