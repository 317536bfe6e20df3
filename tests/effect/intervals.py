"""Medians with intervals that need no shape of the distribution: by order statistics. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

COVERAGE: Final = 0.95


class Estimate(NamedTuple):
    """A median and the interval in which that of all possible rounds lies."""

    median: float
    low: float
    high: float
    coverage: float
    """How sure that is: 0.95 and more, or less with fewer than six values."""


def estimate(values: Sequence[float]) -> Estimate:
    """The median, and the narrowest interval between two values of the same rank that covers enough.

    The median lies between the values of rank k and n + 1 - k unless fewer than k of n are on one side of it,
    each of which has a chance of one half.
    """
    ranked = sorted(values)
    count = len(ranked)
    if not count:
        raise ValueError("no value")
    best = 1
    for rank in range(2, count // 2 + 1):
        if coverage_of(count, rank) >= COVERAGE:
            best = rank
    return Estimate(median(ranked), ranked[best - 1], ranked[count - best], coverage_of(count, best))


def coverage_of(count: int, rank: int) -> float:
    """The chance that the median lies between the values of this rank from both ends."""
    outside = sum(math.comb(count, each) for each in range(rank))
    return max(1 - 2 * outside / float(2**count), 0.0)
