"""Audit entries about values that are wanted and not in force. Used in the event loop's thread."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from runtimeproxy.hooks.audit import AuditEntry, AuditKind, AuditSink
from runtimeproxy.hooks.claimants import labels_of
from runtimeproxy.hooks.fields import CGROUP, Field
from runtimeproxy.ledger.change_log import value_entry
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.unapplied import Unapplied, UnappliedCause
from runtimeproxy.pods.records import Level

INTERVAL_S: Final = 60.0
"""Between two entries about one value and cause, which may come and go with each comparison."""
MOST_ENTRIES: Final = 100
"""About single values, at a time; the others are counted by cause."""
MOST_TOLD: Final = 20_000
"""Values whose last entry is remembered."""


_PODS: Final = CgroupTarget(Level.POD, "")


class UnappliedAudit:
    """Makes the entries."""

    def __init__(self, sink: AuditSink, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink = sink
        self._now_s = clock
        self._told: dict[tuple[CgroupTarget, str, UnappliedCause], float] = {}

    def add(self, found: Iterable[Unapplied]) -> None:
        """Takes what is not in force since the last call, or for another reason."""
        now_s, time_s = self._now_s(), time.time()
        entries, more = 0, Counter[UnappliedCause]()
        for each in found:
            key = each.target, each.field, each.cause
            if now_s - self._told.get(key, -INTERVAL_S) < INTERVAL_S:
                continue
            # Of a change of many pods each is written within seconds.
            if each.cause is UnappliedCause.TURN or entries >= MOST_ENTRIES:
                more[each.cause] += 1
                continue
            entries += 1
            if len(self._told) >= MOST_TOLD:
                self._told.clear()
            self._told[key] = now_s
            self._sink(entry_of(each, time_s))
        for cause, count in more.items():
            reason = f"{count} values are wanted and not applied"
            entry = value_entry(_PODS, AuditKind.NOT_APPLIED, "", time_s)
            self._sink(entry._replace(target="pods", reason=reason, note=cause))


def entry_of(each: Unapplied, time_s: float) -> AuditEntry:
    is_plain = "[" in each.field or each.field.startswith(("resources.", "cgroup_parent"))
    entry = value_entry(each.target, AuditKind.NOT_APPLIED, labels_of(each.owners), time_s)
    field = each.field if is_plain else str(Field(CGROUP, each.field))
    return entry._replace(field=field, new=each.wanted, reason=each.reason, note=each.cause)
