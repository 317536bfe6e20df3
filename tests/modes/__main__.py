"""`python -m tests.modes`: 60 pods in each mode on each runtime; prints what differs, and what was late.

A mode has to end with the values of NRI but for the modes' table, and no program may start with others.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.lab.containerd import Containerd
from tests.lab.containerd_config import Nri
from tests.lab.crio import runtime_with_nri
from tests.lab.programs import RuntimeWithNri
from tests.lab.runtime_process import RuntimeProcess
from tests.modes import all_policies
from tests.modes.pods import KINDS, pods
from tests.modes.runs import (
    Mode,
    Values,
    differences,
    first_values,
    merged,
    node,
    running,
    settled,
    unexplained,
)

RUNTIMES: tuple[RuntimeWithNri, ...] = ("1.7", "2.2", "2.3", "2.4", "cri-o")
ORDER: tuple[Mode, ...] = ("nri", "proxy", "standalone")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all; 1 if something differs that the table of modes does not have, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.modes", description=__doc__)
    parser.add_argument("runtimes", nargs="*", default=RUNTIMES, metavar="RUNTIME")
    parser.add_argument("--of-each", type=int, default=4, help=f"pods of each of {len(KINDS)} kinds")
    parser.add_argument(
        "--all-policies",
        action="store_true",
        help="all built-in policies on; only what is silent or not given back",
    )
    chosen = parser.parse_args(arguments)
    if chosen.all_policies:
        return _all_policies(chosen.of_each)
    print("runtime     mode        pods  seconds  settled_s  wrong first  differ in the end  unexplained")
    faults: list[str] = []
    for which in chosen.runtimes:
        with runtime_with_nri(which) as runtime:
            faults += _of_runtime(which, runtime, chosen.of_each)
    print("\n".join(faults[:100] or ["all as it must be"]))
    return 1 if faults else 0


def _all_policies(of_each: int) -> int:
    found: list[str] = []
    with (
        Containerd("2.2", Nri()) as runtime,
        tempfile.TemporaryDirectory(prefix="modes-", dir="/tmp") as name,
    ):
        kubelets = all_policies.without_daemon(runtime, Path(name) / "kubelets", of_each)
        for mode in ORDER:
            of_mode = all_policies.faults(mode, runtime, kubelets, Path(name) / mode, of_each)
            print(
                f"{mode:<10}  {of_each * len(KINDS)} pods, {len(kubelets)} values, {len(of_mode)} faults",
                flush=True,
            )
            found += of_mode
    print("\n".join(found[:100] or ["all as it must be"]))
    return 1 if found else 0


def _of_runtime(which: str, runtime: RuntimeProcess, of_each: int) -> list[str]:
    wanted: Values = {}
    should: Values = {}
    faults: list[str] = []
    for mode in ORDER:
        with tempfile.TemporaryDirectory(prefix="modes-", dir="/tmp") as name, node(mode, runtime) as here:
            folder, logs = Path(name) / "out", Path(name) / "logs"
            folder.mkdir()
            logs.mkdir()
            specs, began_s = list(pods(folder, of_each)), time.monotonic()
            with running(here.client, specs, logs, runtime.cgroup_prefix) as found:
                took_s = time.monotonic() - began_s
                first = first_values(found)
                due = wanted
                final, settled_s = settled(found, lambda now: not unexplained(now, due, mode))  # noqa: B023
                problems = [f"{which} {mode}: {text}" for text in here.status().problems]
        wanted, should = wanted or final, should or merged(final, first)
        at_first, at_last = differences(first, merged(final, should)), differences(final, wanted)
        left = [
            *unexplained(first, should, mode, at_first=True),
            *unexplained(final, wanted, mode),
        ]
        faults += [*(f"{which} {mode}: {each}" for each in left), *problems]
        print(
            f"{which:<10}  {mode:<10}  {len(specs):4}  {took_s:7.1f}  {settled_s:9.2f}  {len(at_first):11}"
            f"  {len(at_last):17}  {len(left):11}",
            flush=True,
        )
        for title, lines in (("first", at_first), ("in the end", at_last)):
            names = Counter(line.split(" ")[1].rstrip(":") for line in lines)
            if names:
                print(f"    {title}: " + ", ".join(f"{name} {count}" for name, count in names.items()))
    return faults


if __name__ == "__main__":
    sys.exit(main())
