"""Settles batches: plans the values of some cgroups, has them written, and keeps the books as they are then.

For worker threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from runtimeproxy.cgroups.paths import cgroup_id
from runtimeproxy.cgroups.writer import FAILURES, CgroupWriter, WriteOutcome, WriteResult, explain
from runtimeproxy.errors import described as error_text
from runtimeproxy.fields.tables import BY_DEVICE, QUOTA
from runtimeproxy.ledger import books, fitting
from runtimeproxy.ledger.book_store import Books, Known
from runtimeproxy.ledger.books import LeftReason, Plan, Value, ValueChange
from runtimeproxy.ledger.change_log import Applied, described, log_values, pod_fields
from runtimeproxy.ledger.counts import LedgerCounts, LedgerFailures
from runtimeproxy.ledger.executor import Executor, is_there, is_written
from runtimeproxy.ledger.journal import Journal, Noted
from runtimeproxy.ledger.path_locks import IsBusyError, PathLocks
from runtimeproxy.ledger.planner import Batch, Planner, SettleCause
from runtimeproxy.ledger.tree import BURST, Path
from runtimeproxy.ledger.unapplied import UnappliedCause, UnappliedStage, Withheld
from runtimeproxy.ledger.unwritten import given_way, not_written
from runtimeproxy.logs import FailureLog
from runtimeproxy.pods.records import Book, Entry, Level

logger = logging.getLogger(__name__)

_NOTHING_BELOW: Final[Mapping[Path, Level]] = {}


class Settlement:
    """The one way from books to files. Safe for all threads.

    Attributes:
        locks: Held while a cgroup is read and written, and its book is changed: otherwise a thread could take
            the value that another one has just written for the original.
    """

    def __init__(
        self,
        store: Books,
        files: CgroupWriter,
        journal: Journal,
        boot_id: str,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._files = files
        self._journal = journal
        self.executor = Executor(files, journal)
        self.counts = LedgerCounts(self.executor.writes, self.executor.above_usage)
        self.planner = Planner(store, files, boot_id, self.counts, clock)
        self.failures = LedgerFailures()
        self.locks = PathLocks()
        # Cgroups are compared every second.
        self._log = FailureLog(clock=clock, output=logger)

    def settle(
        self, batch: Batch, cause: SettleCause = SettleCause.EVENT, new: Sequence[Plan] = ()
    ) -> tuple[Applied, ...]:
        """Writes the values of some cgroups.

        `new`: containers that are about to be created, which the values have to fit to.

        Returns:
            One result per value; never raises for an error of the kernel, or a bug.
        """
        planner = self.planner
        self._store.is_v1 = fitting.cgroup_version(self._files) == 1
        paths = list(batch)
        try:
            below = planner.bounded_below(batch)
            paths += [path for path in below if self._store.find(path) is not None]
            # A container's values may have to fit to those of its pod.
            levels = {
                path: known.book.level for path in paths if (known := self._store.find(path)) is not None
            } | below
            pods = [path[:-1] for path, level in levels.items() if level is Level.CONTAINER]
            locked = {*paths, *levels, *pods}
            with self.locks.held(locked), self._files.keeping_open():
                for path in locked:
                    self._take_requests(path)
                return self._settle_locked(paths, batch, new, cause, below)
        except Exception as error:  # noqa: BLE001 - a bug that one cgroup shows must not affect the others
            return self._failed(paths, error)

    def _failed(self, paths: Sequence[Path], error: Exception) -> tuple[Applied, ...]:
        """The books stay as they are: it is tried again."""
        why = self._why(error, paths)
        failed: list[Applied] = []
        for path in paths:
            known = self._store.find(path)
            if known is None:
                continue
            identity, withheld = cgroup_id(path), dict[str, Withheld]()
            for name, entry in known.book.entries.items():
                about = identity, name, entry.resolved or "", WriteOutcome.FAILED
                failed.append(Applied(*about, error=why, target=known.target, claims=entry.claims))
                if entry.claims:
                    withheld[name] = Withheld(entry.claims, UnappliedCause.UNREADABLE, why)
            self._store.unapplied.note(
                UnappliedStage.BOOKED, known.target, identity, withheld, among=withheld
            )
        self.failures.add(failed)
        return tuple(failed)

    def _why(self, error: Exception, paths: Sequence[Path]) -> str:
        """Why values of some cgroups could not be written; a bug is logged with its traceback."""
        if isinstance(error, IsBusyError):
            return error.why
        if isinstance(error, OSError):
            return explain(error, "")
        cgroup, why = cgroup_id(paths[0]) if paths else "", error_text(error)
        self._log.report(cgroup, why, f"its values cannot be written: {why}", error=error)
        return why

    def _settle_locked(
        self,
        paths: Sequence[Path],
        before: Batch,
        new: Sequence[Plan],
        cause: SettleCause,
        below: Mapping[Path, Level],
    ) -> tuple[Applied, ...]:
        """No other thread reads or writes these cgroups meanwhile."""
        applied: dict[tuple[str, str], Applied] = {}
        left = paths
        while left:
            batch = {path: known for path in left if (known := self._store.find(path)) is not None}
            plans = self.planner.plans(batch, new, cause, below)
            below = _NOTHING_BELOW
            results = self.executor.write(plans)
            for plan in plans:
                for left_alone in plan.left.values():
                    self.counts.left.add(left_alone.reason)
            done = {(result.cgroup, result.name): result for result in results}
            for plan in plans:
                known = batch[plan.path]
                self._note_bound(plan, done)
                self._note_unapplied(plan, known, done)
                applied |= self._applied(plan, known, before.get(plan.path, books.NO_VALUES), done)
            # A call may have claimed something else meanwhile.
            left = [plan.path for plan in plans if not self._keep(plan, batch[plan.path], done)]
        self.failures.add(applied.values())
        return tuple(applied.values())

    def _note_bound(self, plan: Plan, done: Mapping[tuple[str, str], WriteResult]) -> None:
        result, refused = done.get((plan.cgroup, QUOTA)), self.planner.refused_bounds
        if QUOTA in plan.bounded and result is not None and result.outcome is WriteOutcome.FAILED:
            refused.add(plan.path)
        elif result is not None or QUOTA not in plan.bounded:
            refused.discard(plan.path)

    def _note_unapplied(self, plan: Plan, known: Known, done: Mapping[tuple[str, str], WriteResult]) -> None:
        names, note = {*known.book.entries, *plan.book.entries}, self._store.unapplied.note
        found = dict(not_written(plan, done, self._files))
        note(UnappliedStage.BOOKED, known.target, plan.cgroup, found, among=names)
        note(UnappliedStage.LOST, known.target, plan.cgroup, dict(given_way(plan)), among=names)

    def _applied(
        self,
        plan: Plan,
        known: Known,
        before: Mapping[str, Entry],
        done: Mapping[tuple[str, str], WriteResult],
    ) -> Iterator[tuple[tuple[str, str], Applied]]:
        target, book = known.target, known.book
        for name, value in plan.values.items():
            key = plan.cgroup, name
            result = done.get(key)
            if result is None:
                continue
            claims, change = plan.used.get(name, ()), ValueChange.NONE
            is_given_back, entry = name not in plan.used, book.entries.get(name)
            if is_written(result) and entry is not None and name in plan.present:
                change = books.change_of(book.level, name, entry, book, plan.present[name], self._files)
            if is_given_back and name in before:
                claims = before[name].claims
            old, own = result.old, before[name].resolved if name in before else None
            if own is not None and name in plan.present:
                # A file of version 2 holds no shares, but a weight, which several of them become.
                old = own if self._files.matches(name, own, plan.present[name].text) else old
            yield (
                key,
                Applied(
                    *key,
                    result.value,
                    result.outcome,
                    old,
                    result.error,
                    result.left,
                    target=target,
                    claims=claims,
                    is_given_back=is_given_back,
                    change=change,
                    is_held_up=result.value != value,
                ),
            )
        for name, (reason, why) in plan.left.items():
            present = plan.present[name].text.strip() if name in plan.present else ""
            is_invalid, claims = reason is LeftReason.NOT_IN_RANGE, plan.used.get(name, ())
            about = plan.cgroup, name, present, WriteOutcome.INVALID if is_invalid else WriteOutcome.MISSING
            applied = Applied(*about, error=why, target=target, claims=claims, left_alone=reason)
            yield (plan.cgroup, name), applied

    def _keep(self, plan: Plan, before: Known, done: Mapping[tuple[str, str], WriteResult]) -> bool:
        """Keeps the book of a batch; returns whether it is still the wanted one."""
        after, is_wanted, is_gone = self._store.keep(plan.path, before, _as_written(plan, before.book, done))
        is_noted = plan.noted is not None
        if is_noted or plan.given_back:
            self._journal.settle(after)
        if plan.given_back:
            self.counts.given_back.add(after.level, len(plan.given_back))
        for name in plan.given_back:
            self.planner.foreign.forget(plan.path, name)
        if is_gone:
            self.forget(plan.path)
        if is_gone or is_noted or not books.is_saved_alike(before.book, after):
            self._store.report([plan.path])
        return is_wanted

    def forget(self, path: Path) -> None:
        self.planner.forget(path)
        self.failures.forget(cgroup_id(path))

    # --- comparisons -------------------------------------------------------------------------------------

    def compare(self, path: Path, cause: SettleCause = SettleCause.EVENT) -> None:
        """Compares the values of a cgroup with its files, and writes those again that have changed."""
        known = self._store.find(path)
        if known is None:
            return
        level = logging.WARNING if cause is SettleCause.COMPARISON else logging.DEBUG
        applied = self.settle({path: known.book.entries}, cause)
        written = [each for each in applied if is_written(each)]
        changed = [each for each in written if each.change is not ValueChange.NONE]
        later = [each for each in written if each.change is ValueChange.NONE and not each.is_held_up]
        if changed:
            self.counts.repairs.add((known.book.level, cause), len(changed))
            self._log_repair(level, changed)
        if later:
            later_level = min(level, logging.INFO)
            log_values(later_level, "cgroup values of %s could be written only now: %s", later)
        for result in (each for each in applied if each.outcome in FAILURES):
            text = f"{result.name} cannot be set: {result.error}"
            fields: dict[str, Any] = {**pod_fields(known.target), "field": result.name, "value": result.value}
            self._log.report(result.cgroup, (result.name, result.error), text, **fields)

    def _log_repair(self, level: int, changed: Sequence[Applied]) -> None:
        if level < logging.WARNING:
            log_values(level, "cgroup values of %s had been changed, and are set again: %s", changed)
            return
        # Cgroups are compared every second, and a reset may follow every repair.
        whose, values, fields = described(changed)
        cause = tuple((each.cgroup, each.name) for each in changed)
        text = f"had been changed, and are set again: {values}"
        self._log.report(f"cgroup values of {whose}", cause, text, level=level, **fields)

    # --- the kubelet -------------------------------------------------------------------------------------

    def on_resized(self, path: Path, written: Mapping[str, Value] = books.NO_VALUES) -> None:
        """The kubelet has written to a pod's cgroup itself: what is not ours there is the new original.

        `written`: the values that it is known to have written: ours may be in the files again.
        """
        with suppress(IsBusyError, OSError), self.locks.held([path]):
            known = self._store.find(path)
            if known is None:
                return
            # A later request applies, not what was repaired before this one.
            for name in written:
                self.planner.repaired.get(path, {}).pop(name, None)
            present = self._files.look(path, known.book.entries)
            book = books.with_requests_of_the_kubelet(known.book, present, self._files, written)
            if book is not known.book:
                self._journal.note(Noted(book.id, book.level, book.originals, {}, {}))
                self._store.revise(path, lambda now: replace(now, originals=book.originals))
                self._store.report([path])
            self.compare(path)

    def _take_requests(self, path: Path) -> None:
        """Takes what the kubelet has written to a pod's cgroup without a call for it.

        Source: kubelet 1.27 to 1.32, doPodResizeAction: a pod is raised before its containers, and lowered
        after them. What was raised may have been repaired before the containers' calls told the request.
        """
        known = self._store.find(path)
        if known is None or known.book.level is not Level.POD:
            return
        book, matches = known.book, self._files.matches
        noted = {
            name: (each.resolved, each.requested)
            for name, each in book.entries.items()
            if each.resolved is not None and each.requested is not None
        }
        if not noted:
            return
        for name, found in self._files.look(path, noted).items():
            (resolved, requested), original = noted[name], book.originals.get(found.file)
            if original is None or original.text is None or matches(name, requested, original.text):
                continue
            if matches(name, requested, found.text) and not matches(name, resolved, found.text):
                self.on_resized(path)
                return
            if matches(name, requested, self.planner.repaired.get(path, {}).get(name, "")):
                self.on_resized(path, {name: requested})
                return

    def before_update(self, path: Path, quota_us: int) -> None:
        # The quota of the container or pod falls to this next.
        with suppress(IsBusyError, OSError), self.locks.held([path]):
            self.planner.end_lower_burst(path, quota_us)
            if not self.executor.lower_burst(cgroup_id(path), quota_us):
                return
            known = self._store.find(path)
            if known is not None and known.book.level is Level.POD:
                self.planner.lower_burst(path, quota_us)
            self._store.revise(path, lambda book: _with_burst(book, quota_us))


def _with_burst(book: Book, burst_us: int) -> Book:
    entry = book.entries.get(BURST)
    if entry is None or entry.resolved is None:
        return book
    return replace(book, entries={**book.entries, BURST: entry._replace(resolved=burst_us)})


def _as_written(plan: Plan, before: Book, done: Mapping[tuple[str, str], WriteResult]) -> Book:
    """The book after a batch: a value that could not be written is not there."""
    entries, originals = dict(plan.book.entries), plan.book.originals
    for name in plan.values:
        result = done.get((plan.cgroup, name))
        entry = before.entries.get(name)
        if entry is not None and result is not None and result.left is not None:
            # The next comparison finds a value of ours there, and no other program's.
            entry = entry._replace(resolved=result.left)
        if result is not None and is_there(result):
            # What went back to block devices is not ours any more.
            if name in entries and name not in BY_DEVICE:
                entries[name] = entries[name]._replace(resolved=result.value)
        elif entry is not None and (result is None or result.outcome is not WriteOutcome.MISSING):
            entries[name], originals = entry, {**before.originals, **originals}
        elif name in entries and entry is not None:
            entries[name] = entries[name]._replace(resolved=entry.resolved)
    if entries == plan.book.entries and originals == plan.book.originals:
        return plan.book
    return replace(plan.book, entries=entries, originals=originals)
