"""`make fuzz`: hostile peers against the daemon as a process. Ends with code 1 if anything was found."""

from __future__ import annotations

import argparse
import random
import sys

from tests.fuzz.fuzzers import FUZZERS, Plan
from tests.fuzz.node import Variant


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("fuzzers", nargs="*", metavar="FUZZER", help=f"some of: {', '.join(FUZZERS)} (all)")
    parser.add_argument("--sessions", type=int, default=20_000, help="of hostile clients (%(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="what a run that found something printed")
    parser.add_argument("--threads", type=int, default=4, help="hostile clients at a time (%(default)s)")
    parser.add_argument("--python", default=sys.executable, help="the daemon's interpreter (this one)")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for the daemon")
    given = parser.parse_args()
    if unknown := set(given.fuzzers) - set(FUZZERS):
        parser.error(f"no fuzzer {', '.join(sorted(unknown))}")
    variant = Variant(given.python, dict(each.split("=", 1) for each in given.env))
    seed = random.randrange(2**20) if given.seed is None else given.seed
    plan = Plan(seed, given.sessions, given.threads, variant)
    found = 0
    for name in given.fuzzers or FUZZERS:
        report = FUZZERS[name](plan)
        print(f"{name}: {report}", flush=True)
        found += bool(report.problems)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
