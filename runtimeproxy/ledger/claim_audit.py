"""Audit entries about claims with a lease, whose values may move every second.

An entry is made when a claim begins to count, ends, or fails, and at most once a minute while it moves: then
it has the newest value. All claims together make at most `MOST_ENTRIES` in a minute; one more entry says how
many others there were. Used in the event loop's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from runtimeproxy.cgroups.writer import WriteOutcome
from runtimeproxy.hooks.algebra import Claim
from runtimeproxy.hooks.audit import AuditEntry, AuditKind, AuditSink
from runtimeproxy.hooks.fields import CGROUP
from runtimeproxy.hooks.owners import Owner
from runtimeproxy.hooks.policy import Mode
from runtimeproxy.ledger.books import TREE
from runtimeproxy.ledger.change_log import FAILURES, FITS, Applied
from runtimeproxy.ledger.claim_places import ClaimKey
from runtimeproxy.ledger.target import EVALUATIONS, CgroupTarget
from runtimeproxy.pods.records import Level, is_leased

INTERVAL_S: Final = 60.0
"""Between two entries about one value that moves, or cannot be written."""
MOST_ENTRIES: Final = 120
"""In `INTERVAL_S`: as many as the pods of a node."""
MOST_VALUES: Final = 20_000
"""Values whose last entry is remembered; more than an owner's claims."""


class _Row(NamedTuple):
    """What has become of one value."""

    target: CgroupTarget
    field: str
    kind: AuditKind
    old: object
    new: object
    reason: str
    ends: bool = False
    """Whether no claim with a lease counts there any more."""


class ClaimAudit:
    """Makes the entries.

    Args:
        sink: Takes them.
        clock: Monotonic, in seconds.
    """

    def __init__(self, sink: AuditSink, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink = sink
        self._now_s = clock
        self._last: dict[tuple[str, str, str], tuple[float, AuditKind]] = {}
        self._since_s = clock()
        self._entries = 0
        self._left_out = 0

    def on_applied(self, owner: Owner, applied: Iterable[Applied]) -> None:
        """Takes what was written for claims of an owner; unchanged values too."""
        for each in applied:
            row = _Row(each.target, each.name, AuditKind.FAILED, each.old, each.value, each.error)
            if each.outcome is WriteOutcome.WRITTEN:
                reasons = (claim.reason for claim in each.claims if is_leased(claim))
                is_fitted = any(claim.owner == TREE for claim in each.claims)
                ends = each.is_given_back or not (is_fitted or any(map(is_leased, each.claims)))
                reason = "; ".join(filter(None, reasons)) or (FITS if is_fitted else "")
                reason = "the claim has ended" if ends else reason
                row = row._replace(kind=AuditKind.CHANGED, reason=reason, ends=ends)
            elif each.outcome not in FAILURES:
                continue
            self._add(owner, row)

    def on_dry_run(
        self, owner: Owner, changes: Iterable[tuple[ClaimKey, CgroupTarget, Claim | None]]
    ) -> None:
        """Takes the claims of an owner in dry-run that have changed; None for one that has ended."""
        for key, target, claim in changes:
            if claim is not None:
                value, kind = f"{claim.role} {claim.value}", AuditKind.WOULD_CHANGE
                self._add(owner, _Row(target, key.field, kind, None, value, claim.reason))

    def _add(self, owner: Owner, row: _Row) -> None:
        now_s, key = self._now_s(), (owner.name, row.target.cgroup, row.field)
        last = self._last.get(key)
        if last is not None and not row.ends and last[1] is row.kind and now_s - last[0] < INTERVAL_S:
            return
        if row.ends:
            self._last.pop(key, None)
        else:
            if len(self._last) >= MOST_VALUES:
                self._last.clear()
            self._last[key] = now_s, row.kind
        if now_s - self._since_s >= INTERVAL_S:
            self._sum_up(owner)
            self._since_s, self._entries = now_s, 0
        self._entries += 1
        if self._entries > MOST_ENTRIES:
            self._left_out += 1
            return
        entry, old = _entry(owner, row.target, row.kind), "" if row.old is None else str(row.old)
        name = f"{CGROUP}[{row.field}]"
        self._sink(entry._replace(field=name, old=old, new=str(row.new), reason=row.reason))

    def _sum_up(self, owner: Owner) -> None:
        if self._left_out:
            entry = _entry(owner, CgroupTarget(Level.NODE, ""), AuditKind.CHANGED)
            self._sink(entry._replace(reason=f"claims have changed {self._left_out} more values"))
            self._left_out = 0


def _entry(owner: Owner, target: CgroupTarget, kind: AuditKind) -> AuditEntry:
    namespace, _, rest = target.name.partition("/")
    pod, _, container = rest.partition("/")
    is_pods = target.level >= Level.POD
    mode = Mode.DRY_RUN if kind is AuditKind.WOULD_CHANGE else Mode.ENFORCE
    return AuditEntry(
        time.time(),
        EVALUATIONS[target.level],
        kind,
        str(owner.claimant),
        mode,
        namespace if is_pods else "",
        pod if is_pods else "",
        target.uid,
        container if is_pods else "",
        target="" if is_pods else target.name or target.cgroup or "node",
    )
