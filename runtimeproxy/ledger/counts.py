"""What has happened to values since the start, counted; in any thread."""

from __future__ import annotations

from runtimeproxy.cgroups.writer import WriteOutcome
from runtimeproxy.counts import Counts
from runtimeproxy.pods.records import Level


class LedgerCounts:
    """What has happened to values since the start.

    Args:
        writes: Of the executor.
        above_usage: Of the executor.

    Attributes:
        writes: Values that were written or not, by parameter and outcome.
        above_usage: Memory limits that fell less than they should, because of the usage, by level.
        repairs: Values that were set again, by level and by how that was found: `event` after a call that
            resets them, `comparison` otherwise.
        overwrites: Values of other programs that were written over, by parameter.
        left: Attempts at values that are left alone, by reason.
        given_back: Values that are no longer ours, by level.
        renewed: Cgroups that were made anew under their name, by level; after a reboot all.
        recovered: Cgroups whose values a process had written that was killed before it could save them.
    """

    def __init__(self, writes: Counts[tuple[str, WriteOutcome]], above_usage: Counts[Level]) -> None:
        self.writes = writes
        self.above_usage = above_usage
        self.repairs: Counts[tuple[Level, str]] = Counts()
        self.overwrites: Counts[str] = Counts()
        self.left: Counts[str] = Counts()
        self.given_back: Counts[Level] = Counts()
        self.renewed: Counts[Level] = Counts()
        self.recovered = 0
