"""`python -m tests.bench`: measures the proxy beside its references and prints one table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench import beside, datapath, guarded, lifetime, managed, pooled, samples, storm, table, watched
from tests.bench.bench import Bench, Options
from tests.bench.evaluated import EvaluatedRow
from tests.bench.held import HeldRows
from tests.bench.hooked import HookedRows
from tests.bench.load import h2load_is_there
from tests.bench.nri import NriRows
from tests.bench.stands import containerd_is_there
from tests.peers.load_client import LoadError

ROWS = (
    "version",
    "kubelet",
    "beside",
    "watched",
    "managed",
    "list",
    "held",
    "evaluated",
    "hooked",
    "nri",
    "storm",
    "samples",
    "pooled",
    "guarded",
    "guarded-threads",
    "start",
    "memory",
)

CALIBRATED = ("version", "kubelet", "list")
"""Rows whose first load only tells how many calls fill the time of a round."""
CALIBRATION = -1
"""The turn before the first, for that load."""

Row = Callable[[Bench, int], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the bench; 1 if `--check` was given and a target was missed, else 0."""
    chosen = _parser().parse_args(arguments)
    options = _options(chosen)
    began = time.monotonic()
    print(_conditions(options), flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, Bench(options, Path(folder)) as bench:
        failures = _measure(bench, _rows(chosen.rows.split(",")), chosen.verbose)
    print("\n".join(table.lines(bench.results)))
    load = ", ".join(f"{part:.2f}" for part in os.getloadavg())
    print(f"took {time.monotonic() - began:.0f} s; load average at the end {load}")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(bench.results.rows, indent=1))
    return 1 if chosen.check and (failures or table.misses(bench.results)) else 0


def _measure(bench: Bench, rows: dict[str, Row], verbose: bool) -> int:
    """Measures all rounds; a row that fails is given up. Returns how many were."""
    running = dict(rows)
    for turn in range(CALIBRATION, bench.options.rounds):
        for name, row in tuple(running.items()):
            if turn == CALIBRATION and name not in CALIBRATED:
                continue
            try:
                row(bench, turn)
            except (LoadError, OSError, subprocess.SubprocessError) as error:
                print(f"rows of {name!r} given up: {type(error).__name__}: {error}", flush=True)
                del running[name]
        if verbose:
            print(f"round {turn + 1}", *table.lines(bench.results), sep="\n", flush=True)
    return len(rows) - len(running)


def _rows(wanted: Sequence[str]) -> dict[str, Row]:
    rows: dict[str, Row] = {
        "version": datapath.version,
        "kubelet": datapath.kubelet,
        "beside": beside.rows,
        "watched": watched.rows,
        "managed": managed.rows,
        "list": datapath.listing,
        "held": HeldRows(),
        "evaluated": EvaluatedRow(),
        "hooked": HookedRows(),
        "nri": NriRows(),
        "storm": storm.rows,
        "samples": samples.rows,
        "pooled": pooled.rows,
        "guarded": guarded.pressures,
        "guarded-threads": guarded.threads,
        "start": lifetime.start,
        "memory": lifetime.memory,
    }
    return {name: row for name, row in rows.items() if name in wanted}


def _options(chosen: argparse.Namespace) -> Options:
    quick: bool = chosen.quick
    return Options(
        rounds=chosen.rounds or (2 if quick else 7),
        beside_rounds=chosen.beside_rounds or (2 if quick else 15),
        seconds=chosen.seconds or (0.15 if quick else 0.5),
        storm_pods=chosen.storm_pods or (20 if quick else 250),
        containers=chosen.containers,
        cycles=chosen.cycles or (300 if quick else 10_000),
        containerd=_with_containerd(chosen.runtime),
        h2load=h2load_is_there(),
        proxy_command=chosen.proxy_command,
        earlier_python=chosen.earlier_python,
    )


def _with_containerd(runtime: str) -> bool:
    return runtime == "containerd" or (runtime == "auto" and os.geteuid() == 0 and containerd_is_there())


def _conditions(options: Options) -> str:
    runtime = "containerd" if options.containerd else "the fake runtime"
    generator = "h2load" if options.h2load else "the bench's own generator (h2load is missing)"
    load = ", ".join(f"{part:.2f}" for part in os.getloadavg())
    return (
        f"{os.cpu_count()} CPUs, Linux {platform.release()}, Python {platform.python_version()}; "
        f"load average {load}\n"
        f"Version before {runtime}, the rest before the fake runtime with {options.containers} containers; "
        f"load by {generator}; medians of {options.rounds} rounds"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, help="rounds (7; 2 with --quick)")
    parser.add_argument(
        "--beside-rounds",
        type=int,
        help="rounds of the rows `beside`, `watched`, `managed` and `storm`, all in the first round (15; 2)",
    )
    parser.add_argument(
        "--storm-pods",
        type=int,
        help="pods of the rows `storm`, `managed`, `samples`, `pooled` and `guarded` (250; 20)",
    )
    parser.add_argument("--quick", action="store_true", help="short rounds: under a minute, rough figures")
    parser.add_argument(
        "--runtime", choices=("auto", "fake", "containerd"), default="auto", help="for Version"
    )
    parser.add_argument("--rows", default=",".join(ROWS), help=f"some of {','.join(ROWS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    parser.add_argument("--containers", type=int, default=1000, help="containers in the fake runtime (1000)")
    parser.add_argument("--cycles", type=int, help="create/remove cycles (10000; 300 with --quick)")
    parser.add_argument("--seconds", type=float, help="load per way, row and round (0.5; 0.15 with --quick)")
    parser.add_argument("--verbose", action="store_true", help="print the table after each round")
    parser.add_argument(
        "--proxy-command", metavar="COMMAND", help="measure another proxy; has {listen} and {upstream} in it"
    )
    parser.add_argument(
        "--earlier-python",
        metavar="PYTHON",
        help="measure beside it the version that is installed in this interpreter's environment",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
