"""A histogram whose samples lose half of their weight with each half-life, and whose buckets grow.

Source of shape and constants: Koordinator pkg/koordlet/prediction/predict_server.go and pkg/util/histogram,
after those of the Kubernetes autoscaler, vertical-pod-autoscaler pkg/recommender/util.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_LEAST_WEIGHT: Final = 0.000_1
"""A bucket with less is empty."""
_MOST_HALF_LIVES: Final = 100.0
"""Weights are scaled down when those of new samples would exceed 2 to this power."""
_MOST_WEIGHT: Final = 2.0**200
"""No bucket has as much, however many samples it has; the sum of larger ones may overflow."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Buckets from 0 on, each a little wider than the one before."""

    first: float
    """Width of the first one."""
    growth: float
    """Width of a bucket over that of the one before."""
    most: float
    """The last bucket begins at or above this."""
    half_life_s: float

    @property
    def count(self) -> int:
        return math.ceil(math.log(self.most * (self.growth - 1) / self.first + 1, self.growth)) + 1

    def start(self, bucket: int) -> float:
        return self.first * (self.growth**bucket - 1) / (self.growth - 1)

    def of(self, value: float) -> int:
        """The bucket of a value; the first one for a negative value, the last one for a too large one."""
        if value < self.first:
            return 0
        bucket = int(math.log(value * (self.growth - 1) / self.first + 1, self.growth))
        return min(bucket, self.count - 1)


CPU_BUCKETS: Final = Buckets(0.025, 1.05, 1_024.0, 12 * 3_600.0)
"""Cores."""
MEMORY_BUCKETS: Final = Buckets(5.0 * (1 << 20), 1.05, float(1 << 41), 24 * 3_600.0)
"""Bytes."""


class UsageHistogram:
    """Weights of samples by bucket."""

    __slots__ = ("_reference_s", "_weights", "buckets")

    def __init__(self, buckets: Buckets) -> None:
        self.buckets = buckets
        self._weights = array("d", bytes(8 * buckets.count))
        self._reference_s = 0.0
        """A sample of this time weighs 1, one of a half-life later 2. Wall clock, which outlives boots."""

    @property
    def is_empty(self) -> bool:
        return max(self._weights) < _LEAST_WEIGHT

    def add(self, value: float, wall_s: float) -> None:
        half_lives = (wall_s - self._reference_s) / self.buckets.half_life_s
        if half_lives > _MOST_HALF_LIVES or (half_lives != 0 and self.is_empty):
            self._refer_to(wall_s)
            half_lives = 0.0
        # A clock that was set back makes samples light, and never none at all.
        self._weights[self.buckets.of(value)] += 2.0 ** max(half_lives, -_MOST_HALF_LIVES)

    def shift(self, seconds: float) -> None:
        self._reference_s += seconds

    def percentile(self, share: float) -> float | None:
        """The upper end of the bucket up to which `share` of all weight lies; None without samples."""
        if self.is_empty:
            return None
        # Rounding leaves a little in buckets that are empty otherwise.
        weights = [weight if weight >= _LEAST_WEIGHT else 0.0 for weight in self._weights]
        left = share * math.fsum(weights)
        last = max(bucket for bucket, weight in enumerate(weights) if weight)
        for bucket in range(last):
            left -= weights[bucket]
            if left <= 0 and weights[bucket]:
                return self.buckets.start(bucket + 1)
        # The last bucket has no upper end.
        return self.buckets.start(min(last + 1, self.buckets.count - 1))

    def saved(self) -> dict[str, Any]:
        """As JSON has it, without the weights of empty buckets."""
        filled = {
            str(bucket): weight for bucket, weight in enumerate(self._weights) if weight >= _LEAST_WEIGHT
        }
        return {"reference_s": self._reference_s, "weights": filled}

    @classmethod
    def restored(cls, buckets: Buckets, saved: Mapping[str, Any]) -> UsageHistogram:
        """The histogram that `saved` gave. Raises ValueError."""
        histogram = cls(buckets)
        try:
            histogram._reference_s = float(saved["reference_s"])
            for bucket, weight in saved["weights"].items():
                number = float(weight)
                if not 0 <= int(bucket) < buckets.count or not 0 <= number < _MOST_WEIGHT:
                    raise ValueError(f"weight {weight} of bucket {bucket}")
                histogram._weights[int(bucket)] = number
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a histogram: {error!r}") from error
        if not math.isfinite(histogram._reference_s):
            raise ValueError("not a histogram: no time")
        return histogram

    def _refer_to(self, wall_s: float) -> None:
        """Scales all weights so that a sample of now has weight 1."""
        factor = 2.0 ** -min(max((wall_s - self._reference_s) / self.buckets.half_life_s, 0.0), 1_000.0)
        for bucket, weight in enumerate(self._weights):
            self._weights[bucket] = weight * factor
        self._reference_s = wall_s
