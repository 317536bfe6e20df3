"""The table and the plot of all rounds; pure, but for the file of the plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)


class Way(StrEnum):
    """What runs beside the LS server; also the heading of a column."""

    ALONE = "no BE pods"
    WITHOUT = "without the product"
    WITH = "with the product"


class Round(NamedTuple):
    """What was measured in one round, in one of the ways."""

    way: Way
    latencies_ms: list[float]
    """Ascending."""
    be_per_s: float
    """Units of work of all BE pods."""
    be_cores: float
    """CPU time of all BE pods per second."""
    quotas_us: list[int]
    """Of the BE class, second by second; -1 for none."""
    late_ms: float
    """How late the load generator was at most."""
    product_cores: float
    """CPU time of both processes of the product per second."""


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The value that so many percent of the values do not exceed."""
    return ascending[min(len(ascending) - 1, int(len(ascending) * percent / 100))]


def table(rounds: Sequence[Round]) -> str:
    """Medians over the rounds, with the least and the largest, as a table in Markdown."""
    columns = [[each for each in rounds if each.way is way] for way in Way]
    lines = [f"| | {' | '.join(Way)} |", f"| --- |{' --- |' * len(columns)}"]
    for name, figure in _figures().items():
        cells = [_cell([figure(each) for each in found]) for found in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _figures() -> dict[str, Callable[[Round], float]]:
    found: dict[str, Callable[[Round], float]] = {
        f"latency of the LS server, p{each:g}, ms": _latency(each) for each in PERCENTILES
    }
    found["throughput of the BE pods, units/s"] = lambda each: each.be_per_s
    found["CPU of the BE pods, cores"] = lambda each: each.be_cores
    found["CPU of the product, cores"] = lambda each: each.product_cores
    return found


def _latency(percent: float) -> Callable[[Round], float]:
    return lambda each: percentile(each.latencies_ms, percent)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{_number(median(values))} ({_number(min(values))} to {_number(max(values))})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def draw(rounds: Sequence[Round], file: Path) -> None:
    """Draws latencies by percentile, and the p99 and the BE throughput of each round, as PNG."""
    # It takes most of a second to import.
    from matplotlib.figure import Figure

    colors = {Way.ALONE: "#999999", Way.WITHOUT: "#d55e00", Way.WITH: "#0072b2"}
    figure = Figure(figsize=(11, 4), layout="constrained")
    by_percentile, p99, throughput = figure.subplots(1, 3)
    # 20 points for each further nine.
    steps = [step / 20 for step in range(61)]
    for place, way in enumerate(Way):
        found = [each for each in rounds if each.way is way]
        for index, each in enumerate(found):
            values = [percentile(each.latencies_ms, 100 * (1 - 10**-step)) for step in steps]
            label = way if index == 0 else None
            by_percentile.plot(steps, values, color=colors[way], label=label, alpha=0.7)
        places = [index + 0.27 * (place - 1) for index in range(1, len(found) + 1)]
        heights = [percentile(each.latencies_ms, 99) for each in found]
        p99.bar(places, heights, 0.27, color=colors[way], label=way)
        throughput.bar(places, [each.be_per_s for each in found], 0.27, color=colors[way], label=way)
    by_percentile.set_xticks([0, 1, 2, 3], ["0", "90", "99", "99.9"])
    by_percentile.set(xlabel="percentile", ylabel="latency of the LS server, ms", yscale="log")
    p99.set(xlabel="round", ylabel="p99 of the LS server, ms")
    throughput.set(xlabel="round", ylabel="throughput of the BE pods, units/s")
    for axes in (by_percentile, p99, throughput):
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
    by_percentile.legend()
    figure.savefig(file, dpi=110)
