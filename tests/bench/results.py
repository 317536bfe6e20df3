"""The figures of a run, round by round, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from tests.bench.stands import DIRECT, PROXY

Series = dict[str, list[float]]
"""By way, one figure per round."""


class Results:
    """Figures by row, metric and way."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Series]] = {}

    def add(self, row: str, way: str, metrics: dict[str, float]) -> None:
        """Adds what one round measured."""
        for metric, value in metrics.items():
            self.rows.setdefault(row, {}).setdefault(metric, {}).setdefault(way, []).append(value)

    def series(self, row: str, metric: str, way: str) -> list[float]:
        """One figure per round; empty if it was not measured."""
        return self.rows.get(row, {}).get(metric, {}).get(way, [])

    def median(self, row: str, metric: str, way: str) -> float | None:
        """The median over all rounds; None if it was not measured."""
        series = self.series(row, metric, way)
        return median(series) if series else None

    def ratio(self, row: str, metric: str, other: str) -> float | None:
        """The proxy's figure over another way's: the median of each round's ratio."""
        return self._paired(row, metric, other, lambda own, others: own / others if others else 0.0)

    def added(self, row: str, metric: str, other: str = DIRECT) -> float | None:
        """What the proxy adds to another way's figure: the median of each round's difference."""
        return self._paired(row, metric, other, lambda own, others: own - others)

    def _paired(
        self, row: str, metric: str, other: str, combine: Callable[[float, float], float]
    ) -> float | None:
        own, others = self.series(row, metric, PROXY), self.series(row, metric, other)
        if not own or len(own) != len(others):
            return None
        return median(map(combine, own, others))
