"""Prints results side by side."""

from __future__ import annotations

from tests.bench.goals import GOALS
from tests.bench.results import Results
from tests.bench.stands import EARLIER, LANES


def lines(results: Results) -> list[str]:
    """The table, columns aligned."""
    has_earlier = any(EARLIER in series for metrics in results.rows.values() for series in metrics.values())
    lanes = [lane for lane in LANES if lane != EARLIER or has_earlier]
    more = ["x earlier"] if has_earlier else []
    rows: list[tuple[str, ...]] = [("row", "figure", *lanes, *more, "target: reached")]
    previous = ""
    for row, metrics in results.rows.items():
        for metric in metrics:
            figures = [results.median(row, metric, way) for way in lanes]
            if has_earlier:
                figures.append(results.ratio(row, metric, EARLIER))
            shown = map(_shown, figures)
            rows.append(("" if row == previous else row, metric, *shown, _targets(results, row, metric)))
            previous = row
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [_aligned(row, widths) for row in rows]


def misses(results: Results) -> int:
    """How many targets were measured and not reached."""
    return sum(goal.verdict(results)[1] is False for goal in GOALS)


def _targets(results: Results, row: str, metric: str) -> str:
    return "; ".join(goal.verdict(results)[0] for goal in GOALS if (goal.row, goal.metric) == (row, metric))


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    last = len(row) - 1
    cells = (
        cell.rjust(width) if 2 <= column < last else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(cells).rstrip()


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"
