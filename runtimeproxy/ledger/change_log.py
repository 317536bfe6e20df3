"""Log and audit of values of what runs: which parameter, from and to what, by which policy, and why."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from runtimeproxy.cgroups.writer import FAILURES, WriteOutcome, WriteResult
from runtimeproxy.hooks.algebra import Claim
from runtimeproxy.hooks.audit import AuditEntry, AuditKind, AuditSink
from runtimeproxy.hooks.claimants import labels_of
from runtimeproxy.hooks.fields import CGROUP, Field
from runtimeproxy.hooks.owners import Owner
from runtimeproxy.hooks.policy import Hook, Mode
from runtimeproxy.ledger.books import TREE, LeftReason, ValueChange
from runtimeproxy.ledger.target import EVALUATIONS, CgroupTarget
from runtimeproxy.pods.records import Level, is_leased
from runtimeproxy.vocabulary import ClaimKey, PoolField

logger = logging.getLogger(__name__)

MOST_LINES: Final = 20
"""Bound on the lines about single pods, of one change and of one level, and on the pods with audit entries of
their own; the others are summed up."""
MOST_VALUES: Final = 20
"""Bound on the values that the text of a line names; its fields have all."""
CLAIM_INTERVAL_S: Final = 60.0
"""Between two audit entries about one value that a claim with a lease moves, or that cannot be written."""
MOST_CLAIM_ENTRIES: Final = 120
"""In `CLAIM_INTERVAL_S`: as many as the pods of a node."""
MOST_REMEMBERED: Final = 20_000
"""Values whose last entry is remembered; more than an owner's claims."""
FITS: Final = "fits to the values of other cgroups or files"
_GIVEN_BACK: Final = "given back"
_CLAIM_ENDED: Final = "the claim has ended"
_HEADROOM: Final = frozenset({PoolField.HEADROOM_MILLICPU, PoolField.HEADROOM_BYTES})
"""Moves with the load; metrics have its values."""
_KINDS: Final = {logging.INFO: AuditKind.CHANGED, logging.WARNING: AuditKind.FAILED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied(WriteResult):
    """The outcome of one value of a batch, with where it belongs and what it follows from."""

    target: CgroupTarget
    claims: tuple[Claim, ...] = ()
    """The effective claims; for a value that is given back, its previous claims, as far as they are known."""
    is_given_back: bool = False
    change: ValueChange = ValueChange.NONE
    """Whether another program had changed the value that was written last."""
    left_alone: LeftReason | None = None
    """Why the file is left as it is; None if it is not."""
    is_held_up: bool = False
    """Whether it is a memory limit that cannot fall to the wanted value yet, as more is in use."""


class ChangeLog:
    """The log lines and audit entries of one change, which may touch many pods. For the event loop's thread.

    Args:
        audit: Takes the entries; None for none.
        most_lines: Bound on the lines of one level.
    """

    def __init__(self, audit: AuditSink | None = None, most_lines: int = MOST_LINES) -> None:
        self._audit = audit
        self._most_lines = most_lines
        self._lines = Counter[int]()
        # By level of the log: how often each parameter of each policy.
        self._unnamed: dict[int, Counter[tuple[str, str]]] = {}

    def add(self, applied: Sequence[Applied], **about: str) -> bool:
        """Logs the changed values of a pod, or of cgroups that are no pod's; returns whether none failed.

        `applied`: the values, unchanged ones too.
        """
        written = [each for each in applied if each.outcome is WriteOutcome.WRITTEN]
        failed = [each for each in applied if each.outcome in FAILURES]
        self._add(logging.INFO, "changed values of %s: %s", written, about)
        self._add(logging.WARNING, "values of %s could not be changed: %s", failed, about)
        return all(each.outcome is not WriteOutcome.FAILED for each in applied)

    def close(self) -> None:
        """Logs a line, and makes audit entries, about all that had none of their own."""
        for level, counts in self._unnamed.items():
            values = ", ".join(
                f"{name} ({policy}) {count} times"
                for (name, policy), count in counts.most_common(MOST_VALUES)
            )
            pods = self._lines[level] - self._most_lines
            self._audit_sums(level, pods, counts)
            text = "changed values of %d more pods: %s"
            if level == logging.WARNING:
                text = "values of %d more pods could not be changed: %s"
            logger.log(level, text, pods, values, extra={"pods": pods})
        self._unnamed.clear()

    def _add(self, level: int, text: str, applied: Sequence[Applied], about: Mapping[str, str]) -> None:
        if not applied:
            return
        self._lines[level] += 1
        if self._lines[level] <= self._most_lines:
            log_values(level, text, applied, **about)
            if self._audit is not None:
                for entry in audit_entries(_KINDS[level], applied, time.time(), about.get("sandbox", "")):
                    self._audit(entry)
        else:
            counts = self._unnamed.setdefault(level, Counter())
            counts.update((each.name, _policy(each)) for each in applied)

    def _audit_sums(self, level: int, pods: int, counts: Mapping[tuple[str, str], int]) -> None:
        if self._audit is None:
            return
        time_s = time.time()
        for (name, policy), count in counts.items():
            entry = AuditEntry(time_s, Hook.EVALUATE_POD, _KINDS[level], policy, Mode.ENFORCE, "", "", "", "")
            field, reason = str(Field(CGROUP, name)), f"{count} values of a change of many pods"
            self._audit(entry._replace(field=field, target=f"{pods} more pods", reason=reason))


class _Row(NamedTuple):
    """The outcome of one value."""

    target: CgroupTarget
    field: str
    kind: AuditKind
    old: object
    new: object
    reason: str
    ends: bool = False
    """Whether no claim with a lease applies there any more."""


class ClaimAudit:
    """Audit entries about claims with a lease, whose values may move every second.

    An entry is made when a claim takes effect, ends, or fails, and at most once a minute while it moves: then
    it has the newest value. All claims together make at most `MOST_CLAIM_ENTRIES` in a minute; one more entry
    says how many others there were. Used in the event loop's thread.
    """

    def __init__(self, sink: AuditSink, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink = sink
        self._now_s = clock
        self._last: dict[tuple[str, str, str], tuple[float, AuditKind]] = {}
        self._since_s = clock()
        self._entries = 0
        self._left_out = 0

    def on_applied(self, owner: Owner, applied: Iterable[Applied]) -> None:
        # Unchanged values too.
        for each in applied:
            row = _Row(each.target, each.name, AuditKind.FAILED, each.old, each.value, each.error)
            if each.outcome is WriteOutcome.WRITTEN:
                reasons = (str(claim.reason) for claim in each.claims if is_leased(claim))
                is_fitted = any(claim.owner == TREE for claim in each.claims)
                ends = each.is_given_back or not (is_fitted or any(map(is_leased, each.claims)))
                reason = "; ".join(filter(None, reasons)) or (FITS if is_fitted else "")
                reason = _CLAIM_ENDED if ends else reason
                row = row._replace(kind=AuditKind.CHANGED, reason=reason, ends=ends)
            elif each.outcome not in FAILURES:
                continue
            self._add(owner, row)

    def on_dry_run(
        self, owner: Owner, changes: Iterable[tuple[ClaimKey, CgroupTarget, Claim | None]]
    ) -> None:
        # None for claims that have ended.
        for key, target, claim in changes:
            if claim is not None:
                value, kind = f"{claim.role} {claim.value}", AuditKind.WOULD_CHANGE
                self._add(owner, _Row(target, key.field, kind, None, value, str(claim.reason)))

    def on_pool(
        self, owner: Owner, key: ClaimKey, before: Claim | None, now: Claim | None, *, is_late: bool
    ) -> None:
        """A claim on one of Katalyst's pools has changed, or ended: `now` is None then.

        Args:
            owner: Whose it is.
            key: The pool and the field.
            before: The claim before it.
            now: The present one.
            is_late: Whether it has ended with its lease.
        """
        old = before.value if before is not None else None
        new = now.value if now is not None else None
        if old == new or (key.field in _HEADROOM and old is not None and new is not None):
            return
        kind = AuditKind.WOULD_CHANGE if owner.mode is Mode.DRY_RUN else AuditKind.CHANGED
        reason = "its lease has ended" if is_late else _CLAIM_ENDED
        if now is not None:
            reason = str(now.reason)
        target = CgroupTarget(Level.NODE, "", f"pool {key.target}")
        shown = "" if new is None else new
        self._add(owner, _Row(target, key.field, kind, old, shown, reason, ends=now is None))

    def _add(self, owner: Owner, row: _Row) -> None:
        now_s, key = self._now_s(), (owner.name, row.target.cgroup or row.target.name, row.field)
        last = self._last.get(key)
        if last is not None and not row.ends and last[1] is row.kind and now_s - last[0] < CLAIM_INTERVAL_S:
            return
        if row.ends:
            self._last.pop(key, None)
        else:
            if len(self._last) >= MOST_REMEMBERED:
                self._last.clear()
            self._last[key] = now_s, row.kind
        if now_s - self._since_s >= CLAIM_INTERVAL_S:
            self._sum_up(owner)
            self._since_s, self._entries = now_s, 0
        self._entries += 1
        if self._entries > MOST_CLAIM_ENTRIES:
            self._left_out += 1
            return
        old = "" if row.old is None else str(row.old)
        field = row.field if row.field in set(PoolField) else str(Field(CGROUP, row.field))
        entry = value_entry(row.target, row.kind, str(owner.claimant), time.time())
        self._sink(entry._replace(field=field, old=old, new=str(row.new), reason=row.reason))

    def _sum_up(self, owner: Owner) -> None:
        if self._left_out:
            node = CgroupTarget(Level.NODE, "")
            entry = value_entry(node, AuditKind.CHANGED, str(owner.claimant), time.time())
            self._sink(entry._replace(reason=f"claims have changed {self._left_out} more values"))
            self._left_out = 0


def value_entry(target: CgroupTarget, kind: AuditKind, policy: str, time_s: float) -> AuditEntry:
    """The audit entry of a value of a pod or container, or of a cgroup that is no pod's.

    `time_s`: since the epoch: all entries with it are of one decision.
    """
    mode = Mode.DRY_RUN if kind is AuditKind.WOULD_CHANGE else Mode.ENFORCE
    entry = AuditEntry(time_s, EVALUATIONS[target.level], kind, policy, mode, "", "", target.uid, "")
    if target.level < Level.POD or not target.name:
        cgroup = f"cgroup {target.cgroup}" if target.cgroup else "node"
        return entry._replace(target=target.name or cgroup)
    namespace, _, pod = _pod(target).partition("/")
    container = _place(target) if target.level is Level.CONTAINER else ""
    return entry._replace(pod_namespace=namespace, pod_name=pod, container=container)


def audit_entries(
    kind: AuditKind, applied: Sequence[Applied], time_s: float, sandbox: str = ""
) -> Iterator[AuditEntry]:
    """The audit entries of the values of one pod and its containers, or of cgroups that are no pod's.

    Args:
        kind: Whether they were written, or could not be.
        applied: The values, in any order; those of one cgroup follow each other in the entries.
        time_s: Since the epoch.
        sandbox: The id of the pod's sandbox; empty if it is not known.
    """
    for each in sorted(applied, key=lambda each: each.target.cgroup):
        is_failed = kind is AuditKind.FAILED
        yield value_entry(each.target, kind, _policy(each), time_s)._replace(
            sandbox_id=sandbox,
            field=str(Field(CGROUP, each.name)),
            old=each.old_text,
            new=str(each.value),
            reason=each.error if is_failed else _reason(each),
            note=_GIVEN_BACK if each.is_given_back and is_failed else "",
        )


def log_values(level: int, text: str, applied: Sequence[Applied], **about: str) -> None:
    """Logs one line about values of one pod, or of cgroups that are no pod's.

    `text`: with places for whose values they are, and for the values. `applied`: the values; at least one.
    """
    if logger.isEnabledFor(level):
        whose, values, fields = described(applied)
        logger.log(level, text, whose, values, extra={**fields, **about})


def described(applied: Sequence[Applied]) -> tuple[str, str, dict[str, Any]]:
    """Whose values these are, at least one, the values, and the fields of a log line about them."""
    values = [_text(each) for each in applied[:MOST_VALUES]]
    if len(applied) > MOST_VALUES:
        values.append(f"{len(applied) - MOST_VALUES} more")
    target = applied[0].target
    whose = f"pod {_pod(target)}" if target.name else f"cgroup {target.cgroup}"
    if target.level < Level.POD:
        whose = "cgroups of the node"
    return whose, ", ".join(values), {**pod_fields(target), "changes": [_row(each) for each in applied]}


def pod_fields(target: CgroupTarget) -> dict[str, str]:
    # None where the pod is not known.
    return {"pod": _pod(target), "uid": target.uid} if target.name else {}


def _pod(target: CgroupTarget) -> str:
    return target.name.rpartition("/")[0] if target.level is Level.CONTAINER else target.name


def _place(target: CgroupTarget) -> str:
    """Which of the pod's cgroups it is; empty for its own."""
    if target.level is Level.CONTAINER:
        return target.name.rpartition("/")[2]
    return "" if target.level is Level.POD else target.cgroup


def _policy(applied: Applied) -> str:
    return labels_of(claim.owner for claim in applied.claims)


def _reason(applied: Applied) -> str:
    if applied.is_given_back:
        return _GIVEN_BACK
    reasons = (FITS if claim.owner == TREE else str(claim.reason) for claim in applied.claims)
    return "; ".join(filter(None, dict.fromkeys(reasons)))


def _text(applied: Applied) -> str:
    place = _place(applied.target)
    name = f"{place} {applied.name}" if place else applied.name
    why = ", ".join(filter(None, (_policy(applied), _GIVEN_BACK if applied.is_given_back else "")))
    if applied.outcome in FAILURES:
        why = f"{why}: {applied.error}" if why else applied.error
    values = f"{'-' if applied.old is None else applied.old} -> {applied.value}"
    return f"{name} {values} ({why})" if why else f"{name} {values}"


def _row(applied: Applied) -> dict[str, Any]:
    row = {
        "container": _place(applied.target) if applied.target.level is Level.CONTAINER else "",
        "cgroup": applied.cgroup,
        "field": applied.name,
        "from": applied.old_text,
        "to": str(applied.value),
        "policy": _policy(applied),
        "reason": _reason(applied),
    }
    return {**row, "error": applied.error} if applied.error else row
