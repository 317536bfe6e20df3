"""`python -m tests.restarts.nri`: restarts beside a whole kubelet, and prints what came of them."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace

from tests.lab.programs import KubeletClientVersion
from tests.restarts.nri.guarded import guarded_restarts
from tests.restarts.nri.lab import RUNTIMES, lab
from tests.restarts.nri.resizes import resized
from tests.restarts.nri.turnover import Event, Report, restarted, turned_over
from tests.restarts.nri.verdicts import faults_of, lines_of, resize_faults, resize_lines

_RESIZE = "resize"
_GUARD = "guard"
_KINDS = (*Event, _RESIZE, _GUARD)
_DIRECT_PODS = 60
"""How many come and go without a plugin, for comparison."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what was asked for; 1 if it does not show what it must, else 0."""
    chosen = _parser().parse_args(arguments)
    kinds = chosen.kind or _KINDS
    load = ", ".join(f"{part:.2f}" for part in os.getloadavg())
    print(f"{os.cpu_count()} CPUs, Linux {platform.release()}; load average {load}", flush=True)
    faults: list[str] = []
    for version in chosen.kubelet or RUNTIMES:
        for kind in kinds:
            print(f"\nkubelet {version}, containerd {RUNTIMES[version]}: {kind}", flush=True)
            if kind == _RESIZE:
                faults += _resize(version, chosen.resized)
            elif kind == _GUARD:
                faults += _guard(version, chosen.restarts, chosen.guarded)
            else:
                faults += _restart(version, Event(kind), chosen.pods, chosen.restarts)
    print("\n".join(faults or ["all as it must be"]))
    return 1 if faults else 0


def _restart(version: KubeletClientVersion, event: Event, pods: int, restarts: int) -> list[str]:
    # The daemon's restarts are compared with a time in which nothing is restarted.
    is_runtimes = event is Event.RUNTIME
    direct = _run(version, event if is_runtimes else Event.NOTHING, _DIRECT_PODS, restarts, with_plugin=False)
    report = _run(version, event, pods, restarts, with_plugin=True)
    print("\n".join(lines_of(report, direct)), flush=True)
    return faults_of(report, direct)


def _run(
    version: KubeletClientVersion, event: Event, pods: int, restarts: int, *, with_plugin: bool
) -> Report:
    with lab(version, with_plugin=with_plugin) as running:
        if event is Event.NOTHING:
            return turned_over(running, pods, min(pods, 100))
        return restarted(running, event, restarts)


def _resize(version: KubeletClientVersion, pods: int) -> list[str]:
    with lab(version, with_plugin=True, with_api=True) as running:
        report = resized(running, pods)
    print("\n".join(resize_lines(report)), flush=True)
    return resize_faults(report)


def _guard(version: KubeletClientVersion, restarts: int, pods: int) -> list[str]:
    direct, _ = guarded_restarts(version, restarts, pods, is_guarded=False)
    report, complaints = guarded_restarts(version, restarts, pods, is_guarded=True)
    if report.faults(direct):
        # Errors that are races of the kubelet's own do not come in each run: without the guard it has two.
        again, _ = guarded_restarts(version, restarts, pods, is_guarded=False)
        direct = replace(direct, errors=direct.errors | again.errors)
    print("\n".join(report.lines(direct)), flush=True)
    return [*report.faults(direct), *complaints]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.restarts.nri", description=__doc__)
    parser.add_argument("--kubelet", action="append", choices=list(RUNTIMES), help="its version (all)")
    parser.add_argument("--kind", action="append", choices=_KINDS, help="what happens (all)")
    parser.add_argument("--pods", type=int, default=500, help="that come and go, 100 at a time (500)")
    parser.add_argument("--restarts", type=int, default=20, help="of each kind (20)")
    parser.add_argument("--resized", type=int, default=20, help="pods that are resized (20)")
    parser.add_argument("--guarded", type=int, default=100, help="pods made under the CPU guard (100)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
