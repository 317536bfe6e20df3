"""Draws all scenarios: `python -m tests.scenarios [FOLDER]`, one PNG each."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from runtimeproxy.slo.schema import CpuSuppressPolicy
from tests.scenarios import scenarios
from tests.scenarios.upstream import UpstreamBurst

if TYPE_CHECKING:
    from runtimeproxy.testing.node.simulation import SimulatedNode

SCENARIOS: Mapping[str, Callable[[], scenarios.Scenario]] = {
    "surge-cfs-quota": lambda: scenarios.surge(CpuSuppressPolicy.CFS_QUOTA),
    "surge-cpuset": lambda: scenarios.surge(CpuSuppressPolicy.CPUSET),
    "burst-buckets": scenarios.buckets,
    "burst-flapping": lambda: scenarios.flapping(UpstreamBurst),
    "memory-pressure": scenarios.memory_pressure,
    "day": scenarios.day,
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
            panel.set_ylim(bottom=0)
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


def main(folder: str = "dist/scenarios") -> None:
    """Draws each scenario, and says how long that took."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for name, run in SCENARIOS.items():
        began = time.perf_counter()
        scenario = run()
        ran_s = time.perf_counter() - began
        draw(scenario, target / f"{name}.png")
        print(f"{target / name}.png: {scenario.node.now_s:g} simulated seconds in {ran_s:.1f} s")


if __name__ == "__main__":
    main(*sys.argv[1:2])
