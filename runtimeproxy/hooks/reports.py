"""Counters of the chain."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from runtimeproxy.hooks.evaluation import Outcome, OutcomeKind
from runtimeproxy.hooks.policy import Hook


@dataclass(slots=True)
class ChainStats:
    """Counters since the chain was made; changed in the event loop's thread only."""

    calls: Counter[Hook] = field(default_factory=Counter)
    """Decisions asked for, by hook."""
    outcomes: Counter[tuple[str, OutcomeKind]] = field(default_factory=Counter)
    """Policies' turns, by policy name and how they ended."""
    duration_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Sum of the time spent in turns that came back in time, by policy name."""
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Fields that were not used, by policy and field."""
    conflicts: int = 0
    refused: int = 0
    """Calls that were refused."""
    exhausted: int = 0
    """Calls that found no worker thread."""
    cancelled: int = 0
    unwritten: int = 0
    """Calls whose `finish` did not run to its end."""

    def count(self, outcome: Outcome, duration_s: float) -> None:
        """Count one policy's turn."""
        name = outcome.policy.name
        self.outcomes[name, outcome.kind] += 1
        self.duration_s[name] += duration_s
