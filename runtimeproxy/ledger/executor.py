"""The executor: the daemon's only caller of `CgroupWriter`'s writes. For worker threads.

Values are compared before they are written, parents are loosened before their children and children
tightened before their parents, and what cannot be written in one cgroup stops no other. Before the first
write of a plan's value, the original text of its file is in the journal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from runtimeproxy.cgroups.paths import cgroup_path
from runtimeproxy.cgroups.writer import CgroupValues, CgroupWriter, WriteOutcome, WriteResult
from runtimeproxy.counts import Counts
from runtimeproxy.fields.tables import PERIOD, QUOTA
from runtimeproxy.ledger.books import Plan, Value
from runtimeproxy.ledger.journal import Journal
from runtimeproxy.ledger.tree import BURST
from runtimeproxy.ledger.unapplied import LIMIT
from runtimeproxy.pods.records import Level
from runtimeproxy.units import UNLIMITED, WeightFormula

USAGE: Final = "memory.usage_in_bytes"
MARGIN_PERCENT: Final = 110
"""A memory limit falls to this share of the usage at most: below it the kernel reclaims at once, and kills
where it cannot."""
_CPU_MAX: Final = (QUOTA, PERIOD)


class Executor:
    """Writes batches of plans; safe for all threads, if each cgroup is in one batch at a time.

    Attributes:
        writes: How many values were written or not, by parameter and outcome.
        above_usage: How many memory limits fell less than they should, because of the usage.
        weights: How the cgroups of a level get their cpu.weight, as far as it is known.
    """

    def __init__(self, files: CgroupWriter, journal: Journal) -> None:
        self.files = files
        self._journal = journal
        self.weights: dict[Level, WeightFormula] = {}
        self.writes: Counts[tuple[str, WriteOutcome]] = Counts()
        self.above_usage: Counts[Level] = Counts()

    def write(self, plans: Sequence[Plan]) -> tuple[WriteResult, ...]:
        """Writes all values of a batch; returns one result per value."""
        levels: defaultdict[tuple[int, int], list[CgroupValues]] = defaultdict(list)
        for plan in plans:
            if plan.noted is not None:
                self._journal.note(plan.noted)
            if values := self._above_usage(plan):
                written = replace(plan, values=values, weights=self.weights.get(plan.level))
                levels[plan.level, len(plan.path)].append(written)
        if not levels:
            return ()
        results = self.files.write_levels([levels[order] for order in sorted(levels)])
        for result in results:
            self.writes.add((result.name, result.outcome))
        quotas = {each.cgroup for each in results if each.name in _CPU_MAX and is_written(each)}
        for plan in plans:
            if plan.cgroup in quotas:
                self._repair_burst(plan)
        return results

    def write_values(self, cgroup: str, values: Mapping[str, Value]) -> tuple[WriteResult, ...]:
        """Writes values of one cgroup that follow from no plan; neither counted nor in the journal."""
        return self.files.write_levels([[CgroupValues(cgroup, values)]])

    def _repair_burst(self, plan: Plan) -> None:
        """Without commit 49217ea147df (2024) Linux divides the burst by 1,000 when cpu.max is written."""
        wanted = plan.values.get(BURST)
        if wanted:
            found = None
            with suppress(OSError):
                found = self.files.look(plan.path, (BURST,)).get(BURST)
            if found is not None and not self.files.matches(BURST, wanted, found.text):
                self.write_values(plan.cgroup, {BURST: wanted})

    def lower_burst(self, cgroup: str, quota_us: int) -> bool:
        """Lowers the burst of a cgroup whose quota is about to fall to this; returns whether it was higher.

        The kernel refuses a quota below the burst. Seen with runc 1.1: the update fails after its shares were
        changed.
        """
        path = cgroup_path(cgroup)
        found = self.files.look(path, (BURST,)).get(BURST)
        burst_us = self.files.decode(BURST, found.text) if found is not None else None
        if quota_us != UNLIMITED and isinstance(burst_us, int) and burst_us > quota_us:
            self.write_values(cgroup, {BURST: quota_us})
            return True
        return False

    def _above_usage(self, plan: Plan) -> Mapping[str, Value]:
        """The values of a plan, where a memory limit that falls leaves room for what is in use."""
        values = plan.values
        wanted, found = values.get(LIMIT), plan.present.get(LIMIT)
        if not isinstance(wanted, int) or wanted == UNLIMITED or found is None:
            return values
        present = self.files.decode(LIMIT, found.text)
        if not isinstance(present, int) or UNLIMITED != present <= wanted:
            return values
        usage = plan.present.get(USAGE)
        used = self.files.decode(USAGE, usage.text) if usage is not None else None
        if not isinstance(used, int):
            return values
        least = -(-used * MARGIN_PERCENT // 100)
        if wanted >= least:
            return values
        self.above_usage.add(plan.level)
        if present != UNLIMITED and least >= present:
            return {name: value for name, value in values.items() if name != LIMIT}
        return {**values, LIMIT: least}


def is_written(result: WriteResult) -> bool:
    return result.outcome is WriteOutcome.WRITTEN


def is_there(result: WriteResult) -> bool:
    return result.outcome in (WriteOutcome.WRITTEN, WriteOutcome.UNCHANGED)
