"""Draws all scenarios: `python -m tests.scenarios [FOLDER]`, one PNG each.

And what a real kernel showed of waits for CPUs beside what the simulated one does: see `waiting.py`.

`python -m tests.scenarios FOLDER RECORDING [ADVISOR]` draws what an advisor would have said on a recorded
day: ADVISOR is a class such as `my_plugins.model:Advisor`, by default the built-in one.
"""

from __future__ import annotations

import pkgutil
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from runtimeproxy.qosmanager.plugins.katalyst_advisor import KatalystAdvisor
from runtimeproxy.slo.schema import CpuSuppressPolicy
from runtimeproxy.testing.node.replay import AdvisorReplay, replayed
from runtimeproxy.testing.node.simulation import changes_of_direction
from tests.scenarios import evictions, scenarios, waiting
from tests.scenarios.upstream import UpstreamBurst

if TYPE_CHECKING:
    from runtimeproxy.testing.node.simulation import SimulatedNode

SCENARIOS: Mapping[str, Callable[[], scenarios.Scenario]] = {
    "surge-cfs-quota": lambda: scenarios.surge(CpuSuppressPolicy.CFS_QUOTA),
    "surge-cpuset": lambda: scenarios.surge(CpuSuppressPolicy.CPUSET),
    "burst-buckets": scenarios.buckets,
    "burst-flapping": lambda: scenarios.flapping(UpstreamBurst),
    "memory-pressure": scenarios.memory_pressure,
    "waits": scenarios.waits,
    "guard-pressure": scenarios.guard,
    "guard-run-delay": lambda: scenarios.guard(has_pressure=False),
    "guard-surge": scenarios.guard_surge,
    "guard-equal-weights": scenarios.guard_equal_weights,
    "guard-throttled": scenarios.guard_throttled,
    "guard-own-threads": scenarios.guard_own_threads,
    "guard-first-second": scenarios.guard_from_the_first_second,
    "guard-unreachable": scenarios.guard_unreachable,
    "day": scenarios.day,
    "service-day": scenarios.service_day,
    "service-day-dynamic-quota": lambda: scenarios.service_day("dynamic-quota"),
}


def draw(scenario: scenarios.Scenario, file: Path) -> None:
    """Draws the series of a run as PNG; those of the compared run beside them."""
    # It takes most of a second to import, and only this needs it.
    from matplotlib.figure import Figure

    columns: dict[str, SimulatedNode] = {"": scenario.node}
    if scenario.compared is not None:
        columns = {"this QoS manager": scenario.node, scenario.compared_name: scenario.compared}
    rows = len(scenario.panels)
    figure = Figure(figsize=(6.4 * len(columns), 1 + 2.6 * rows), layout="constrained")
    axes = figure.subplots(rows, len(columns), sharex=True, sharey="row", squeeze=False)
    figure.suptitle(scenario.title)
    for column, (name, node) in enumerate(columns.items()):
        unit, length_s = ("h", 3_600.0) if node.now_s > 7_200 else ("s", 1.0)
        for row, (label, series) in enumerate(scenario.panels.items()):
            panel = axes[row][column]
            for each in series:
                panel.plot(
                    [at_s / length_s for at_s in node.times_s], node.series[each], label=each, linewidth=0.9
                )
            panel.grid(alpha=0.3)
            if column == 0:
                panel.set_ylabel(label)
                panel.legend(loc="upper right", fontsize="small")
            if row == 0:
                panel.set_title(name, fontsize="medium")
            if row == rows - 1:
                panel.set_xlabel(f"time in {unit}")
    for panel in axes.flat:
        # Only now: it would fix the upper end, too.
        panel.set_ylim(bottom=0)
    figure.savefig(file, dpi=110)


def draw_waits(file: Path) -> None:
    """Draws the recorded runs beside the simulated ones: a row for each run, its seconds."""
    from matplotlib.figure import Figure

    found = waiting.recordings()
    columns = {"run delay": 0, "pressure, full": 1, "p50 in ms": 2, "p99 in ms": 3}
    figure = Figure(figsize=(3.2 * len(columns), 1 + 1.5 * len(found)), layout="constrained")
    axes = figure.subplots(len(found), len(columns), sharex=True, squeeze=False)
    figure.suptitle("Waits of a service for CPUs: recorded and simulated")
    for row, recording in zip(axes, found, strict=True):
        runs = {"recorded": waiting.recorded(recording)[1], "simulated": waiting.simulated(recording)[1]}
        row[0].set_ylabel(recording.run.name, fontsize="small")
        for panel, (label, index) in zip(row, columns.items(), strict=True):
            for name, seconds in runs.items():
                panel.plot([each[index] for each in seconds], label=name, linewidth=0.9)
            panel.set_ylim(bottom=0)
            panel.grid(alpha=0.3)
            if row is axes[0]:
                panel.set_title(label, fontsize="medium")
    axes[0][0].legend(fontsize="small")
    figure.savefig(file, dpi=90)


def draw_replay(replay: AdvisorReplay, title: str, file: Path) -> None:
    """Draws what an advisor says on a recording, beside the real use."""
    from matplotlib.figure import Figure

    hours = [(at_s - replay.times_s[0]) / 3_600.0 for at_s in replay.times_s]
    rows = len(replay.required) + 1
    figure = Figure(figsize=(9.6, 1 + 2.6 * rows), layout="constrained")
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False)
    figure.suptitle(title)
    panels = [
        (f"cores of {name}", {"needs": replay.required[name], "used": replay.used[name]})
        for name in sorted(replay.required)
    ]
    panels.append(("cores of reclaim", {"idle": replay.idle, "headroom": replay.headroom}))
    for panel, (label, series) in zip(axes.flat, panels, strict=True):
        for name, values in series.items():
            panel.plot(hours, values, label=name, linewidth=0.9)
        panel.set_ylabel(label)
        panel.grid(alpha=0.3)
        panel.legend(loc="upper right", fontsize="small")
        panel.set_ylim(bottom=0)
    axes[-1][0].set_xlabel("time in h")
    figure.savefig(file, dpi=110)


def judge(folder: Path, recording: Path, reference: str) -> None:
    """Replays a recording with an advisor."""
    advisor = pkgutil.resolve_name(reference)()
    with recording.open(encoding="utf-8") as lines:
        replay = replayed(lines, advisor)
    if not replay.times_s:
        sys.exit(f"{recording} has no moment")
    file = folder / f"replay-{advisor.name}.png"
    draw_replay(replay, f"{advisor.name} on {recording.name}", file)
    print(
        f"{file}: {len(replay.times_s)} moments; a pool used more than it was said to need at "
        f"{replay.short}, headroom was above what was idle at {replay.too_much}, "
        f"{len(replay.problems)} answers were not usable"
    )
    for pool, series in sorted(replay.required.items()):
        print(f"what {pool} needs changed its direction {changes_of_direction(series)} times")
    for problem in sorted(set(replay.problems)):
        print(problem)


def main(
    folder: str = "dist/scenarios",
    recording: str = "",
    reference: str = f"{KatalystAdvisor.__module__}:{KatalystAdvisor.__name__}",
) -> None:
    """Draws each scenario, and says how long that took; or a recording."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    if recording:
        judge(target, Path(recording), reference)
        return
    with TemporaryDirectory() as files:
        own = {f"katalyst-{name}": partial(evictions.eviction, name, Path(files)) for name in evictions.CASES}
        draw_all({**SCENARIOS, **own}, target)


def draw_all(drawn: Mapping[str, Callable[[], scenarios.Scenario]], target: Path) -> None:
    for name, run in drawn.items():
        began = time.perf_counter()
        scenario = run()
        ran_s = time.perf_counter() - began
        draw(scenario, target / f"{name}.png")
        print(f"{target / name}.png: {scenario.node.now_s:g} simulated seconds in {ran_s:.1f} s")
    draw_waits(target / "waits-recorded.png")
    print(f"{target / 'waits-recorded'}.png: recorded / simulated\n{waiting.table(waiting.recordings())}")


if __name__ == "__main__":
    main(*sys.argv[1:4])
