"""`python -m tests.modes`: 60 pods in each mode on each containerd; prints what differs, and what was late.

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
from tests.lab.programs import ContainerdVersion
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

VERSIONS: tuple[ContainerdVersion, ...] = ("1.7", "2.2", "2.3", "2.4")
ORDER: tuple[Mode, ...] = ("nri", "proxy", "standalone")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all; 1 if something differs that the table of modes does not have, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.modes", description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--of-each", type=int, default=4, help=f"pods of each of {len(KINDS)} kinds")
    chosen = parser.parse_args(arguments)
    print("containerd  mode        pods  seconds  settled_s  wrong first  differ in the end  unexplained")
    faults: list[str] = []
    for version in chosen.versions:
        with Containerd(version, Nri()) as runtime:
            faults += _of_version(version, runtime, chosen.of_each)
    print("\n".join(faults[:100] or ["all as it must be"]))
    return 1 if faults else 0


def _of_version(version: str, runtime: Containerd, of_each: int) -> list[str]:
    wanted: Values = {}
    should: Values = {}
    faults: list[str] = []
    for mode in ORDER:
        with tempfile.TemporaryDirectory(prefix="modes-", dir="/tmp") as name, node(mode, runtime) as here:
            folder, logs = Path(name) / "out", Path(name) / "logs"
            folder.mkdir()
            logs.mkdir()
            specs, began_s = list(pods(folder, of_each)), time.monotonic()
            with running(here.client, specs, logs) as found:
                took_s = time.monotonic() - began_s
                first = first_values(found)
                due = wanted
                final, settled_s = settled(found, lambda now: not unexplained(now, due, mode))  # noqa: B023
                problems = [f"{version} {mode}: {text}" for text in here.status().problems]
        wanted, should = wanted or final, should or merged(final, first)
        at_first, at_last = differences(first, merged(final, should)), differences(final, wanted)
        left = [
            *unexplained(first, should, mode, at_first=True),
            *unexplained(final, wanted, mode),
        ]
        faults += [*(f"{version} {mode}: {each}" for each in left), *problems]
        print(
            f"{version:<10}  {mode:<10}  {len(specs):4}  {took_s:7.1f}  {settled_s:9.2f}  {len(at_first):11}"
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
