"""Tables and plot of all measurements; pure, but for the file of the plot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.effect.intervals import Estimate, estimate
from tests.effect.product import LEVERS, WATCH
from tests.effect.results import CURVE, PERCENTILES, Measurement

ALONE: Final = "alone"
GOAL_LATENCY: Final = 1.2
"""p99.9 of the LS server, of that alone."""
GOAL_SHARE: Final = 0.7
"""CPU time of BE pods, of what is idle alone."""
LEAST_IDLE: Final = 0.02
"""CPUs; with less nothing is idle, and a share of it says nothing."""
_COLORS: Final = ("#999999", "#d55e00", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#000000")


def report(measurements: Sequence[Measurement]) -> str:
    """Everything, in Markdown."""
    parts: list[str] = []
    for load in dict.fromkeys(each.load for each in measurements):
        found = [each for each in measurements if each.load == load]
        parts += [f"## Load {load}", table(found), *_pairs(found), *_guard(found), *_problems(found)]
    return "\n\n".join(parts)


def _ways(measurements: Sequence[Measurement]) -> list[str]:
    found = {each.way for each in measurements}
    order = ("alone", "nothing", *LEVERS, WATCH, "suppress", "protection", "feedback")

    def place(way: str) -> tuple[int, float]:
        name, _, number = way.partition(":")
        return order.index(name), float(number or 0)

    return sorted(found, key=place)


def _of(measurements: Sequence[Measurement], way: str) -> list[Measurement]:
    return sorted((each for each in measurements if each.way == way), key=lambda each: each.round)


def share_of_idle(measurements: Sequence[Measurement], each: Measurement) -> float | None:
    """CPU time of BE pods, of what is idle in the same round alone; None: not known, or nothing is idle."""
    alone = [other for other in measurements if other.way == ALONE and other.round == each.round]
    return each.cores.be / alone[0].cores.idle if alone and alone[0].cores.idle > LEAST_IDLE else None


def table(measurements: Sequence[Measurement]) -> str:
    """Medians of the rounds with their intervals; a row for each figure."""
    ways = _ways(measurements)
    lines = [f"| | {' | '.join(ways)} |", f"| --- |{' --- |' * len(ways)}"]
    figures: dict[str, Callable[[Measurement], float | None]] = {
        f"p{percent:g} of the LS server, ms": _latency(percent) for percent in PERCENTILES
    }
    figures["throughput of the BE pods, per second"] = lambda each: each.be_per_s
    figures["CPU of the BE pods, of what is idle alone"] = lambda each: share_of_idle(measurements, each)
    figures["CPU of the BE pods, CPUs"] = lambda each: each.cores.be
    figures["CPU of the LS pod, CPUs"] = lambda each: each.cores.ls
    figures["CPU of the system, with load generator, CPUs"] = lambda each: (
        each.cores.system + each.cores.bench
    )
    figures["idle CPUs"] = lambda each: each.cores.idle
    figures["CPU that the hypervisor takes (steal), ms/s"] = lambda each: each.cores.steal * 1e3
    figures["CPU of the product, ms/s"] = lambda each: each.cores.product * 1e3
    figures["waits of the LS pod (full), ms/s"] = _full_ms
    for name, figure in figures.items():
        cells = [_cell([figure(each) for each in _of(measurements, way)]) for way in ways]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    rounds = ", ".join(f"{way} {len(_of(measurements, way))}" for way in ways)
    return "\n".join(lines) + f"\n\nMedians, with their 95 % intervals by order statistics. Rounds: {rounds}."


def _latency(percent: float) -> Callable[[Measurement], float]:
    return lambda each: each.percentile_ms(percent)


def _full_ms(each: Measurement) -> float | None:
    waits = [second.full_ms for second in each.per_second]
    return sum(waits) / len(waits) if waits else None


def _cell(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return _estimated(estimate(known)) if known else "-"


def _estimated(found: Estimate) -> str:
    if found.coverage <= 0:
        return _number(found.median)
    return f"{_number(found.median)} ({_number(found.low)} to {_number(found.high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def paired(
    measurements: Sequence[Measurement],
    way: str,
    base: str,
    compare: Callable[[Measurement, Measurement], float],
) -> list[float]:
    """What `compare` gives for the two ways of each round that has both."""
    bases = {each.round: each for each in _of(measurements, base)}
    return [compare(each, bases[each.round]) for each in _of(measurements, way) if each.round in bases]


def _pairs(measurements: Sequence[Measurement]) -> Iterator[str]:
    """Differences within rounds, and what they say of the goal."""
    ways = _ways(measurements)
    bases = [base for base in (ALONE, "nothing", "suppress") if base in ways]
    lines = ["| in the same round | " + " | ".join(ways) + " |", f"| --- |{' --- |' * len(ways)}"]
    for base in bases:
        for percent in (50.0, 99.0, 99.9):
            cells = [_cell(paired(measurements, way, base, _ratio(percent))) for way in ways]
            lines.append(f"| p{percent:g}, times that of {base} | {' | '.join(cells)} |")
            cells = [_cell(paired(measurements, way, base, _difference(percent))) for way in ways]
            lines.append(f"| p{percent:g} less that of {base}, ms | {' | '.join(cells)} |")
        if base != ALONE:
            cells = [_cell(paired(measurements, way, base, _throughput)) for way in ways]
            lines.append(f"| BE throughput, times that of {base} | {' | '.join(cells)} |")
    if not bases:
        return
    yield "\n".join(lines)
    if ALONE in ways:
        yield "\n".join(_verdicts(measurements, [way for way in ways if way != ALONE]))


def _ratio(percent: float) -> Callable[[Measurement, Measurement], float]:
    return lambda each, base: each.percentile_ms(percent) / base.percentile_ms(percent)


def _difference(percent: float) -> Callable[[Measurement, Measurement], float]:
    return lambda each, base: each.percentile_ms(percent) - base.percentile_ms(percent)


def _throughput(each: Measurement, base: Measurement) -> float:
    return each.be_per_s / base.be_per_s if base.be_per_s else 0.0


def _verdicts(measurements: Sequence[Measurement], ways: Sequence[str]) -> Iterator[str]:
    for way in ways:
        latency = paired(measurements, way, ALONE, _ratio(99.9))
        shares = [share_of_idle(measurements, each) for each in _of(measurements, way)]
        known = [share for share in shares if share is not None]
        if not latency or not known:
            continue
        found, share = estimate(latency), estimate(known)
        is_met = found.median <= GOAL_LATENCY and share.median >= GOAL_SHARE
        yield (
            f"- {way}: p99.9 {_estimated(found)} times that alone, BE pods have {_estimated(share)} of the "
            f"CPU time that is idle alone: {'within' if is_met else 'outside'} {GOAL_LATENCY:g} and "
            f"{GOAL_SHARE:g} (intervals cover {found.coverage:.0%})"
        )


def _guard(measurements: Sequence[Measurement]) -> Iterator[str]:
    """What the guard decided, second by second, in each of its rounds."""
    lines = []
    for each in measurements:
        seconds = [second for second in each.per_second if second.guard is not None]
        if not seconds:
            continue
        bounds = [second.quota_us // 100 if second.quota_us > 0 else None for second in seconds]
        rules = [int((second.guard or {}).get("rule", 0)) for second in seconds]
        errors = sorted((second.guard or {}).get("error", 0.0) for second in seconds)
        targets = {round((second.guard or {}).get("pod_target_ratio", 0.0) * 1e3, 1) for second in seconds}
        count = ", ".join(f"{rules.count(rule)} s rule {rule}" for rule in sorted(set(rules)))
        lines.append(
            f"- round {each.round + 1} {each.way}: B in millicores {_runs(bounds)}; {count}; E median "
            f"{errors[len(errors) // 2]:.2f}, largest {errors[-1]:.2f}; t {sorted(targets)} ms/s"
        )
    if lines:
        yield "\n".join(("Decisions of the guard:", "", *lines))


def _runs(bounds: Sequence[int | None]) -> str:
    """Bounds in a row: each with how long it stood."""
    found: list[tuple[int | None, int]] = []
    for bound in bounds:
        if found and found[-1][0] == bound:
            found[-1] = bound, found[-1][1] + 1
        else:
            found.append((bound, 1))
    return ", ".join(f"{'none' if bound is None else bound} ({seconds} s)" for bound, seconds in found)


def _problems(measurements: Sequence[Measurement]) -> Iterator[str]:
    lines = [
        f"- round {each.round + 1} {each.way}: {'; '.join(each.problems)}"
        for each in measurements
        if each.problems
    ]
    if lines:
        yield "\n".join(("Not as it should be:", "", *lines))


def draw(measurements: Sequence[Measurement], file: Path) -> None:
    """Draws, for each load: latencies by percentile, p99.9 by BE work, and a round of the guard; as PNG."""
    # It takes most of a second to import.
    from matplotlib.figure import Figure

    loads = list(dict.fromkeys(each.load for each in measurements))
    if not loads:
        return
    figure = Figure(figsize=(15, 4.2 * len(loads)), layout="constrained")
    for row, load in enumerate(loads):
        found = [each for each in measurements if each.load == load]
        colors = dict(zip(_ways(found), _COLORS * 2, strict=False))
        curves, frontier, guard = (
            figure.add_subplot(len(loads), 3, 3 * row + column) for column in (1, 2, 3)
        )
        _draw_curves(curves, found, colors)
        _draw_frontier(frontier, found, colors)
        _draw_guard(guard, found)
        curves.set_title(f"load {load}")
        for axes in (curves, frontier, guard):
            axes.grid(alpha=0.3)
            axes.set_axisbelow(True)
    figure.savefig(file, dpi=110)


def _draw_curves(axes: Any, measurements: Sequence[Measurement], colors: dict[str, str]) -> None:
    steps = [step / 20 for step in range(len(CURVE))]
    for way, color in colors.items():
        for index, each in enumerate(_of(measurements, way)):
            label = way if index == 0 else None
            axes.plot(steps, each.curve_ms, color=color, label=label, alpha=0.6, linewidth=1)
    axes.set_xticks([0, 1, 2, 3], ["0", "90", "99", "99.9"])
    axes.set(xlabel="percentile", ylabel="latency of the LS server, ms", yscale="log")
    axes.legend(fontsize=8)


def _draw_frontier(axes: Any, measurements: Sequence[Measurement], colors: dict[str, str]) -> None:
    """What BE pods get, and what the server pays: each round, and the medians with their intervals."""
    for way, color in colors.items():
        x = [each.be_per_s for each in _of(measurements, way)]
        y = [each.percentile_ms(99.9) for each in _of(measurements, way)]
        axes.scatter(x, y, color=color, s=8, alpha=0.5)
        across, up = estimate(x), estimate(y)
        axes.errorbar(
            [across.median],
            [up.median],
            xerr=[[across.median - across.low], [across.high - across.median]],
            yerr=[[up.median - up.low], [up.high - up.median]],
            color=color,
            fmt="o",
            label=way,
        )
    if ALONE in colors:
        alone = estimate([each.percentile_ms(99.9) for each in _of(measurements, ALONE)]).median
        axes.axhline(alone * GOAL_LATENCY, color="#999999", linestyle=":", linewidth=1)
    axes.set(xlabel="throughput of the BE pods, per second", ylabel="p99.9 of the LS server, ms")
    axes.legend(fontsize=8)


def _draw_guard(axes: Any, measurements: Sequence[Measurement]) -> None:
    """Bound, usage and waits over time, in the last round with feedback."""
    rounds = [each for each in measurements if any(second.guard for second in each.per_second)]
    if not rounds:
        axes.set_axis_off()
        return
    last = rounds[-1]
    at_s = [second.at_s for second in last.per_second]
    bounds = [second.quota_us / 1e5 if second.quota_us > 0 else float("nan") for second in last.per_second]
    axes.step(at_s, bounds, where="pre", color="#0072b2", label="bound of BE pods, CPUs")
    axes.plot(
        at_s, [second.be_cores for second in last.per_second], color="#009e73", label="BE pods use, CPUs"
    )
    axes.set(xlabel=f"seconds, {last.way}, round {last.round + 1}", ylabel="CPUs", ylim=(0, None))
    waits = axes.twinx()
    targets = [(second.guard or {}).get("pod_target_ratio", float("nan")) * 1e3 for second in last.per_second]
    waits.plot(
        at_s, [second.full_ms for second in last.per_second], color="#d55e00", label="LS pod waits, ms/s"
    )
    waits.plot(at_s, targets, color="#d55e00", linestyle=":", label="its target")
    waits.set(ylabel="ms/s", ylim=(0, None))
    axes.legend(fontsize=8, loc="upper left")
    waits.legend(fontsize=8, loc="upper right")
