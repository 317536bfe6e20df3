"""The fuzzers: each runs a plan against a node of its own and reports what it found."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.fuzz.header_blocks import Difference, compare
from tests.fuzz.node import Node, Variant
from tests.fuzz.sessions import Attack, Sessions
from tests.fuzz.witness import Seen, Witness

SLOW_MS: Final = 2_000.0
"""The longest call of a client that behaves, on a machine that does other things, too."""
PORTION: Final = 10_000
"""Sessions between two lines of progress."""
BLOCKS_OF_A_CONNECTION: Final = 8


@dataclass(frozen=True)
class Plan:
    """What to run: everything that is sent follows from the seed."""

    seed: int
    sessions: int
    threads: int = 4
    variant: Variant = field(default_factory=Variant)


@dataclass(frozen=True)
class Report:
    """What a fuzzer has done and found."""

    seed: int
    what: str
    count: int
    seconds: float
    deaths: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line, and one for each note and finding."""
        rate = self.count / max(self.seconds, 1e-9)
        line = f"{self.count:,} {self.what}, seed {self.seed}, {rate:,.0f}/s: {len(self.deaths)} ended the daemon"
        return "\n".join([line, *(f"  {note}" for note in self.notes), *(f"  ! {each}" for each in self.problems)])


Fuzzer = Callable[[Plan], Report]


def sessions(plan: Plan) -> Report:
    """Hostile HTTP/2 clients."""
    with Node(plan.variant) as node:
        attack = Attack(node.proxy.socket, Sessions(plan.seed), plan.threads)
        took_s = 0.0
        with Witness(node.proxy.socket) as witness:
            while attack.done < plan.sessions:
                count = min(PORTION, plan.sessions - attack.done)
                took_s += attack.run(count, lambda: not node.proxy.alive())
                if node.revive():
                    print(f"  the daemon ended before session {attack.done}: {node.deaths[-1]}", flush=True)
                elif plan.sessions > PORTION:
                    print(f"  {attack.done:,} sessions, {attack.done / took_s:,.0f}/s", flush=True)
        excesses = node.excesses()
        lines = len(node.proxy.log)
        notes = [
            ", ".join(f"{count:,} {kind}" for kind, count in sorted(attack.kinds.items())),
            f"{attack.answered:,} answered, {attack.refused:,} not connected, {lines:,} log lines",
        ]
        return _report(plan, "sessions", attack.done, took_s, node, witness.seen, excesses, notes)


def header_blocks(plan: Plan) -> Report:
    """The relay's reader of header blocks beside the `hpack` library."""
    began_s = time.monotonic()
    decoded, problems = 0, []
    connections = max(plan.sessions // BLOCKS_OF_A_CONNECTION, 1)
    for number in range(connections):
        try:
            decoded += compare(Random(plan.seed << 40 | number), BLOCKS_OF_A_CONNECTION)
        except Difference as error:
            problems.append(f"connection {number}: {error}")
    took_s = time.monotonic() - began_s
    notes = (f"{decoded:,} blocks decoded, the last of each other connection by neither",)
    return Report(plan.seed, "connections", connections, took_s, (), tuple(problems), notes)


def _report(
    plan: Plan,
    what: str,
    count: int,
    took_s: float,
    node: Node,
    seen: Seen | None,
    problems: list[str],
    notes: list[str],
) -> Report:
    deaths = tuple(node.deaths)
    problems = [*(f"the daemon ended: {death}" for death in deaths), *problems]
    if seen is not None:
        notes = [*notes, str(seen)]
        # What a daemon that ended has cost is no finding of its own.
        if not deaths:
            problems += [f"beside it: {each}" for each in seen.failed]
            if seen.most_ms > SLOW_MS:
                problems.append(f"beside it: a call took {seen.most_ms:.0f} ms")
    return Report(plan.seed, what, count, took_s, deaths, tuple(problems), tuple(notes))


FUZZERS: Final[Mapping[str, Fuzzer]] = {"sessions": sessions, "header-blocks": header_blocks}
