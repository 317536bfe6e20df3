"""The CPU guard on many drawn nodes at constant load: `python -m tests.scenarios.guard_family`.

Prints the table of `runtimeproxy/qosmanager/guard/README.md`, and the changes on nodes where there were two
within a minute, trials included. It may be told how many nodes, and of which seed: those of the default seed
were not in view when the constants of the law were chosen.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from runtimeproxy.qosmanager.guard.law import TRIAL_S, floor_of
from runtimeproxy.qosmanager.guard.lever import is_by_cpus
from runtimeproxy.qosmanager.plugins.cpu_guard import CpuGuardPlugin
from runtimeproxy.slo.schema import CpuGuard
from runtimeproxy.testing.node.simulation import SimulatedNode
from tests.scenarios.scenarios import greedy, guarded_node, noisy, service

NODES: Final = 50
SEED: Final = 2_026
SETTLING_S: Final = 150
"""After BE pods have come."""
RUN_S: Final = 700
APART_S: Final = 60
"""At constant load the bound changes once in so long at most, but for trials."""
ROW_S: Final = 15
"""Between two decreases of a row, at most."""
_LEFT: Final = re.compile(r"(?:futile|settled): [^ ]+ for ([0-9]+) s")
_COMPARED: Final = f"more for {TRIAL_S:g} s, to compare"
_BLIND: Final = re.compile(r"blind: .*; (?:given back in steps: )?([0-9]+)m")
_DECISION: Final = re.compile(r"rule ([0-9]): .*?; E ([0-9.]+|none).*?, B ([0-9]+|none)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnNode:
    """A node and its load, which does not change."""

    cpus: int
    load: float
    """Of its CPUs: what LS pods use."""
    asked: float
    """Of its CPUs: what BE pods want."""
    weight: float
    """Of the class BestEffort, of that of the class Burstable."""
    services: int
    has_pressure: bool
    policy: str
    """Of the kubelet's CPU manager."""
    noise: float
    """By which the load of a second differs, as a share."""
    quiet_s: int
    """Without BE pods: pods become old enough to be judged, and after 90 s their targets are learnt."""

    @property
    def floor(self) -> int:
        """Of the bound, in millicores."""
        return floor_of(self.cpus, by_cpus=is_by_cpus(self.cpus * 1_000, self.cpus, self.policy))

    def start(self, level: Callable[[], float] = lambda: 1.0) -> SimulatedNode:
        """The node with its services, old enough to be judged; BE pods come with `start_greedy`.

        Args:
            level: Of the load, as a share of `load`; asked for in each second.
        """
        strategy = CpuGuard(enable=True, idle_pods=False)
        node = guarded_node(self.cpus, has_pressure=self.has_pressure, policy=self.policy, strategy=strategy)
        cores = self.load * self.cpus / self.services
        for number in range(self.services):
            load = noisy(lambda _s: cores * level(), self.noise, number)
            request, threads = int(cores * 1_500), 2 * self.cpus
            node.add_pod(service(f"web{number}", load, request=request, threads=threads))
        node.advance(self.quiet_s)
        return node

    def start_greedy(self, node: SimulatedNode) -> None:
        greedy(node, self.asked * self.cpus, self.weight)


def drawn(count: int, seed: int) -> list[DrawnNode]:
    numbers = random.Random(seed)
    return [
        DrawnNode(
            cpus=numbers.choice([2, 4, 8, 16, 32, 64]),
            load=numbers.uniform(0.1, 0.7),
            asked=numbers.uniform(0.3, 1.5),
            weight=numbers.choice([0.002, 0.06, 0.25, 1.0]),
            services=numbers.choice([1, 3]),
            has_pressure=numbers.random() < 0.5,
            policy=numbers.choice(["none", "static"]),
            noise=numbers.choice([0.0, 0.02, 0.05]),
            quiet_s=numbers.choice([60, 120]),
        )
        for _ in range(count)
    ]


class Change(NamedTuple):
    """The bound changed."""

    at_s: float
    before: float | None
    """In millicores; None: no bound."""
    after: float | None
    rule: int
    reason: str

    @property
    def is_rise(self) -> bool:
        return self.before is not None and (self.after is None or self.after > self.before)


class Second(NamedTuple):
    """What the guard decided in one second."""

    at_s: float
    rule: int
    error: float | None
    bound: float | None
    used: float
    """CPUs that BE pods got."""
    said: str


class Run(NamedTuple):
    """All seconds since BE pods came."""

    cpus: int
    seconds: Sequence[Second]

    def changes(self, after_s: float = SETTLING_S) -> list[Change]:
        found = [
            Change(now.at_s, before.bound, now.bound, now.rule, now.said)
            for before, now in pairwise(self.seconds)
            if now.bound != before.bound
        ]
        return [each for each in found if each.at_s - self.seconds[0].at_s >= after_s]


def run(node: SimulatedNode, seconds: int, watch: Callable[[], object] = lambda: None) -> Run:
    """Lets time pass, and calls `watch` after each second."""
    found: list[Second] = []
    for _ in range(seconds):
        node.advance(1)
        watch()
        said = node.explanation(CpuGuardPlugin.name)
        if (decision := _DECISION.match(said)) is not None:
            rule, error, bound = decision.groups()
        else:
            given_back = _BLIND.match(said)
            rule, error, bound = "0", "none", given_back[1] if given_back is not None else "none"
        found.append(Second(node.now_s, int(rule), _number(error), _number(bound), node.used_cores(), said))
    return Run(len(node.facts.cpus), found)


def _number(text: str) -> float | None:
    return None if text == "none" else float(text)


def trials(run: Run) -> list[Change]:
    """The changes that are part of a trial.

    - A rise, or the end of the bound, that one decrease takes back within a minute: B is what it was before.
    - Rises that go on every 10 s after a first one.
    - All decreases when a pod drives again that was futile or settled, and what rule 3 gives back of them.
    - Rises from the floor for a minute, to compare (rule 3), and the decreases after them.
    """
    changes = run.changes(0)
    found: list[Change] = []
    for rise, after in pairwise(changes):
        if rise.is_rise and after.after == rise.before and after.at_s - rise.at_s <= APART_S:
            found += rise, after
        if rise.is_rise and after.is_rise and after.at_s - rise.at_s < ROW_S:
            found.append(after)
    again = [
        after.at_s
        for before, after in pairwise(run.seconds)
        if any(float(left_s) <= 1 for left_s in _LEFT.findall(before.said))
    ]
    compared = [each.at_s for each in run.seconds if _COMPARED in each.said]
    found += [each for each in changes if any(0 < each.at_s - at_s <= TRIAL_S for at_s in compared)]
    row_s = float("-inf")
    for each in changes:
        is_first = any(0 <= each.at_s - at_s < ROW_S for at_s in again)
        if each.rule in (1, 3) and (is_first or each.at_s - row_s < ROW_S):
            found.append(each)
            row_s = each.at_s
    return found


def without_trials(run: Run) -> list[Change]:
    """The changes after `SETTLING_S` that are no part of a trial."""
    left_out = set(trials(run))
    return [each for each in run.changes() if each not in left_out]


def most_within(changes: Iterable[Change], length_s: float = APART_S) -> int:
    """The largest number of changes within so long."""
    times = [each.at_s for each in changes]
    return max((sum(begin <= at_s < begin + length_s for at_s in times) for begin in times), default=0)


def outcome(node: DrawnNode) -> Run:
    simulated = node.start()
    node.start_greedy(simulated)
    return run(simulated, RUN_S)


def table(family: Sequence[DrawnNode], runs: Sequence[Run]) -> str:
    """Of the time after `SETTLING_S`."""
    changes = [each.changes() for each in runs]
    calm = [without_trials(each) for each in runs]
    settled = [list(each.seconds[SETTLING_S:]) for each in runs]
    got = [sum(it.used for it in each) / len(each) / of.cpus for each, of in zip(settled, runs, strict=True)]
    judged = [
        (it.error, it.bound is None or it.bound > of.floor)
        for each, of in zip(settled, family, strict=True)
        for it in each
        if it.error is not None
    ]
    over = [is_above for error, is_above in judged if error > 1]
    rows = {
        f"changes of the bound in {RUN_S - SETTLING_S} s, mean": f"{sum(map(len, changes)) / len(runs):.1f}",
        "of these, no part of a trial": f"{sum(map(len, calm)) / len(runs):.1f}",
        f"nodes with two changes and more within {APART_S} s": sum(most_within(each) > 1 for each in changes),
        f"nodes with two such changes and more within {APART_S} s": sum(
            most_within(each) > 1 for each in calm
        ),
        "CPUs that BE pods got, of the node": f"{sum(got) / len(got):.0%}",
        "time with E > 1; futile pods are left out of E": f"{len(over) / max(len(judged), 1):.0%}",
        "the same, with B above its floor": f"{sum(over) / max(len(judged), 1):.1%}",
    }
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows.items())])


def main(nodes: str = str(NODES), seed: str = str(SEED)) -> None:
    family = drawn(int(nodes), int(seed))
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        runs = list(processes.map(outcome, family))
    print(table(family, runs))
    for node, each in zip(family, runs, strict=True):
        if most_within(each.changes()) > 1:
            print(f"\n{node}")
            for change in each.changes():
                print(f"  {change.at_s:g} s: {change.before} -> {change.after}: {change.reason}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
