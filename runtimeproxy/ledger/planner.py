"""Plans a batch: reads the files of its cgroups, and fits the values to each other and to the cgroups beside.

For worker threads; nothing here writes a file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from runtimeproxy.cgroups.core_scheduling import UNREADABLE
from runtimeproxy.cgroups.paths import cgroup_id, cgroup_path
from runtimeproxy.cgroups.processes import NOT_VISIBLE
from runtimeproxy.cgroups.resctrl import FOREIGN
from runtimeproxy.cgroups.writer import CgroupWriter, FileText
from runtimeproxy.fields.tables import IDLE, LISTS, OF_PROCESSES, PERIOD, QUOTA, SHARES
from runtimeproxy.hooks.claimants import ClaimantKind
from runtimeproxy.ledger import books, fitting
from runtimeproxy.ledger.book_store import BOUNDING, Books, Known
from runtimeproxy.ledger.books import Plan, Value, ValueChange
from runtimeproxy.ledger.counts import LedgerCounts
from runtimeproxy.ledger.executor import USAGE
from runtimeproxy.ledger.foreign import ForeignWriters
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.tree import BURST, Path
from runtimeproxy.ledger.unapplied import (
    BY_KOORDLET,
    LIMIT,
    NO_CGROUP,
    NO_FILE,
    WRITTEN_ONCE,
    UnappliedCause,
)
from runtimeproxy.pods.records import Book, Entry, Level
from runtimeproxy.units import CPU_PERIOD_US, UNLIMITED

logger = logging.getLogger(__name__)

LOWERED_S: Final = 30.0
"""How long a pod's burst stays below the quota that the kubelet is about to write there, which the kernel
would refuse otherwise. The kubelet writes it after it has updated the pod's containers."""
AFTER_RESET_S: Final = 0.5
"""How long a class stays as it is when idle was ended for a weight: after systemd the kubelet writes the
weight itself, which the kernel would refuse."""
NEW: Final = "new"
"""Stands for the cgroup of a container that has none yet."""

Batch: TypeAlias = Mapping[Path, Mapping[str, Entry]]
"""Cgroups whose values are settled together, with their entries before other values were wanted."""


class SettleCause(StrEnum):
    """Why values are settled, which tells what a foreign value there means."""

    EVENT = "event"
    """A call, or a new answer of policies: it is the likelier cause of a foreign value."""
    CLAIM = "claim"
    """Claims with a lease have changed."""
    COMPARISON = "comparison"
    """Nothing has happened that would explain a change; files that are missing are not tried."""


class _Source(NamedTuple):
    """The inputs of a cgroup's plan."""

    book: Book
    present: Mapping[str, FileText]
    only_observed: Mapping[str, tuple[UnappliedCause, str]]


class Planner:
    """Makes the plans. Safe for all threads, if each cgroup is in one batch at a time.

    Attributes:
        foreign: Other programs that write the same values.
        repaired: By parameter, the last text of another program that was written over.
        refused_bounds: Cgroups whose bound on the quota the kernel has refused: one below has a higher one.
    """

    def __init__(
        self,
        store: Books,
        files: CgroupWriter,
        boot_id: str,
        counts: LedgerCounts,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._files = files
        self._boot_id = boot_id
        self._counts = counts
        self._now_s = clock
        # Upper limits of pods' bursts, and until when they apply.
        self._lowered: dict[Path, tuple[int, float]] = {}
        # Idle classes whose idle has ended, and since when that is known.
        self._reset_s: dict[Path, float] = {}
        self.foreign = ForeignWriters(clock)
        self.repaired: dict[Path, dict[str, str]] = {}
        self.refused_bounds: set[Path] = set()

    def forget(self, path: Path) -> None:
        self.foreign.forget(path)
        self.repaired.pop(path, None)
        self.refused_bounds.discard(path)
        self._reset_s.pop(path, None)

    def lower_burst(self, path: Path, most_us: int) -> None:
        """Keeps a pod's burst below a quota for a time."""
        now_s = self._now_s()
        lowered = {each: it for each, it in self._lowered.items() if it[1] > now_s}
        self._lowered = lowered | {path: (most_us, now_s + LOWERED_S)}

    def end_lower_burst(self, path: Path, quota_us: int) -> None:
        # The quota of the pod rises to this next.
        if self._lowered.get(path, (quota_us, 0.0))[0] < quota_us:
            self._lowered.pop(path, None)

    def plans(
        self, batch: dict[Path, Known], new: Sequence[Plan], cause: SettleCause, below: Mapping[Path, Level]
    ) -> list[Plan]:
        """Plans a batch; cgroups whose values have to fit to those of others join it.

        `new`: containers that are about to be created, which the values have to fit to. `below`: cgroups with
        a quota below one whose bound begins.
        """
        # A cgroup is opened with one system call below one that is open.
        sources = {path: self.read(path, batch[path], (), cause) for path in sorted(batch)}
        for path, level in below.items():
            if path not in sources:
                known = self._store.find(path) or self._store.unclaimed(path, level)
                sources[path] = self.read(path, known, (QUOTA,), cause)
        plans = {path: self._plan(source) for path, source in sources.items()}
        for path, names in fitting.parents_to_read(list(plans.values()), self._files):
            if path not in plans or not names <= sources[path].present.keys():
                known = batch.get(path) or self._store.find(path) or self._store.unclaimed(path)
                sources[path] = self.read(path, known, names, cause)
                plans[path] = self._plan(sources[path])
        children = [each for plan in plans.values() for each in self._children(plan, plans)]
        above = {each.path: each for path in plans for each in self._above(path)}
        bounds = [plan for path, plan in above.items() if path not in plans]
        changes = fitting.fitted((*plans.values(), *children, *bounds, *new), self._files)
        for path, plan in plans.items():
            most_us, until_s = self._lowered.get(path, (0, 0.0))
            burst_us = changes.get(path, {}).get(BURST, plan.values.get(BURST))
            if self._now_s() < until_s and isinstance(burst_us, int) and burst_us > most_us:
                changes.setdefault(path, {})[BURST] = most_us
        for path, values in changes.items():
            if path not in plans:
                # What is not claimed there, or not yet there, is not for this batch to change.
                continue
            plans[path] = self._plan(sources[path], values)
            if path not in batch and plans[path].values:
                batch[path] = self._store.add(path, below.get(path, Level.POD))
        return [plan for path, plan in plans.items() if path in batch]

    def within_bounds(self, path: Path, values: Mapping[str, Value]) -> Mapping[str, Value]:
        """Fits the values of a new container to bounds of cgroups above. Reads no file.

        `values`: by parameter.
        """
        above = tuple(self._above(path))
        names = values.keys() & set(BOUNDING if self._store.is_v1 else (QUOTA,))
        if not above or not names:
            return {}
        plan = new_container(path, {name: values[name] for name in names})
        found = fitting.fitted([*above, plan], self._files).get(path, {})
        return {name: value for name, value in found.items() if value is not None}

    def _above(self, path: Path) -> Iterator[Plan]:
        for above, level, bounds in self._store.bounds_above(path):
            identity = cgroup_id(above)
            yield Plan(cgroup=identity, values=bounds, book=Book(identity, level), bounded=frozenset(bounds))

    def _children(self, plan: Plan, planned: Container[Path]) -> Iterator[Plan]:
        """The other containers of a pod, as they are: on version 2 those with values of ours.

        Only version 1 refuses a pod that has less than what the kubelet gave to one of its containers.
        """
        known = self._store.find(plan.path)
        is_fitted = known is not None and books.is_fitted(known.book)
        if is_fitted or fitting.depends_on_children(plan, self._files):
            paths = [(*plan.path, name) for name in self._files.children(plan.path, SHARES)]
            for path in paths:
                child = self._store.find(path)
                is_ours = child is not None and not fitting.OF_CHILDREN.isdisjoint(child.book.entries)
                if path not in planned and (is_ours or self._store.is_v1):
                    present = self._files.look(path, fitting.OF_CHILDREN)
                    yield new_container(path, {}, present)
            if self._store.is_v1 and plan.level is Level.POD:
                yield from self._own_writes(plan, paths)

    def _own_writes(self, plan: Plan, children: Iterable[Path]) -> Iterator[Plan]:
        """What the runtime itself may write to containers of a pod at any time.

        runc could not write a quota below a smaller one: the start or update would fail.
        """
        quotas: list[object] = []
        if self._store.starts_as_requested and (original := plan.book.originals.get(QUOTA)) is not None:
            # A container asks for at most what the kubelet gave to the pod.
            quotas.append(self._files.decode(QUOTA, original.text or ""))
        if self._store.updated_by_others:
            known = map(self._store.find, children)
            quotas += [_booked_quota(each.book) for each in known if each is not None]
        finite = [each for each in quotas if isinstance(each, int) and each > 0]
        if finite:
            yield new_container((*plan.path, NEW), {QUOTA: max(finite)})

    def read(
        self, path: Path, known: Known, names: Iterable[str], cause: SettleCause = SettleCause.EVENT
    ) -> _Source:
        """Reads the files of a cgroup: those of its book, and these."""
        book = books.without_claims(known.book, {books.TREE})
        names = fitting.with_neighbours({*book.entries, *names})
        present = self._files.look(path, (*names, USAGE) if LIMIT in names else names)
        valid = books.still_valid(book, present.values(), self._boot_id)
        if valid is not book:
            self._counts.renewed.add(book.level)
        book = books.restored(valid, present, self._files, self._store.openings_us.get(path, 0))
        if (boosted := self._store.boosted.get(path)) is not None:
            book = books.without_boosts(book, present, self._files, *boosted)
        only_observed = {
            name: (UnappliedCause.KOORDLET, BY_KOORDLET)
            for name in self._store.observed & book.entries.keys()
            if not any(each.owner.kind is ClaimantKind.SERVER for each in book.entries[name].claims)
        }
        only_observed |= self._written_by_others(path, known, book, present, cause)
        if book.level is Level.QOS_CLASS and IDLE in book.entries:
            only_observed |= self._reset_class(path, book.entries[IDLE], present.get(IDLE))
        if cause is SettleCause.COMPARISON and (missing := book.entries.keys() - present.keys()):
            why = self._why_missing(path, present)
            only_observed |= dict.fromkeys(missing, why)
            if why[0] is UnappliedCause.NO_FILE:
                unread = UnappliedCause.UNREADABLE, NOT_VISIBLE
                only_observed |= dict.fromkeys(missing & OF_PROCESSES, unread)
        return _Source(book, present, only_observed)

    def _reset_class(
        self, path: Path, entry: Entry, found: FileText | None
    ) -> dict[str, tuple[UnappliedCause, str]]:
        """An idle class whose weight is being written: systemd ends idle, then the kubelet writes, too."""
        is_reset = entry.resolved == 1 and found is not None and self._files.matches(IDLE, 0, found.text)
        if not is_reset or not entry.claims:
            self._reset_s.pop(path, None)
            return {}
        now_s = self._now_s()
        if now_s - self._reset_s.setdefault(path, now_s) >= AFTER_RESET_S:
            return {}
        return {IDLE: (UnappliedCause.TURN, "a weight of it is being written")}

    def _why_missing(self, path: Path, present: Mapping[str, FileText]) -> tuple[UnappliedCause, str]:
        """Why files of a cgroup cannot be read."""
        if present or self._files.look(path, (SHARES, LIMIT, *LISTS)):
            return UnappliedCause.NO_FILE, NO_FILE
        return UnappliedCause.NO_CGROUP, NO_CGROUP

    def _plan(self, source: _Source, fitted: fitting.Changes = books.NO_VALUES) -> Plan:
        book, rule = source.book, self._store.rule
        opening_us = self._store.openings_us.get(cgroup_path(book.id), 0)
        if fitted:
            plain = books.plan_values(
                book, source.present, self._files, source.only_observed, rule, opening_us=opening_us
            )
            book = books.with_fitted(book, plain.values, fitted)
        return books.plan_values(
            book, source.present, self._files, source.only_observed, rule, fitted, opening_us
        )

    def _written_by_others(
        self, path: Path, known: Known, book: Book, present: Mapping[str, FileText], cause: SettleCause
    ) -> dict[str, tuple[UnappliedCause, str]]:
        """The parameters that other programs write, and that are left to them for a time or for good."""
        left: dict[str, tuple[UnappliedCause, str]] = {}
        for name, entry in book.entries.items():
            if name not in present or entry.resolved is None or _holds_kept_values(present[name].text):
                continue
            change = books.change_of(book.level, name, entry, book, present[name], self._files)
            if change is ValueChange.NONE:
                continue
            if entry.is_once:
                if cause is SettleCause.COMPARISON:
                    left[name] = UnappliedCause.ONCE, WRITTEN_ONCE
            elif change is ValueChange.FOREIGN and entry.claims:
                text = present[name].text
                self.repaired.setdefault(path, {})[name] = text
                if cause is not SettleCause.EVENT and not self.foreign.is_yielding(path, name):
                    self._count_overwrite(path, known.target, name, entry.resolved, text)
                if self.foreign.is_yielding(path, name):
                    reason = f"it is left to another program, which keeps writing {text.strip()}"
                    left[name] = UnappliedCause.FOREIGN, reason
        return left

    def _count_overwrite(self, path: Path, target: CgroupTarget, name: str, ours: Value, text: str) -> None:
        self._counts.overwrites.add(name)
        theirs = self._files.decode(name, text)
        theirs = text.strip() if theirs is None else theirs
        if self.foreign.on_overwrite(path, name, ours, theirs):
            return
        yields_s = max(
            each.left_s for each in self.foreign.yielded() if (each.path, each.name) == (path, name)
        )
        text = "another program keeps writing a cgroup value of %s: %s is %s, not %s, and is left so for %d s"
        about = {"pod": target.name, "uid": target.uid, "cgroup": cgroup_id(path), "field": name}
        logger.warning(text, target.name or cgroup_id(path), name, theirs, ours, yields_s, extra=about)

    # --- the cgroups below -------------------------------------------------------------------------------

    def bounded_below(self, batch: Batch) -> dict[Path, Level]:
        """The cgroups below those of a batch whose bound begins, ends or moves, as far as they follow.

        All below a bound get unlimited quotas when it begins, or after the kernel has refused it; others read
        nothing, as a bound may move each second. Lists follow with each move.
        """
        found: dict[Path, Level] = {}
        none = Entry()
        for path, before in batch.items():
            known = self._store.find(path)
            if known is None or known.book.level is Level.CONTAINER:
                continue
            for name in BOUNDING:
                entry, earlier = known.book.entries.get(name, none), before.get(name, none)
                bound, was_bound = books.bound_of(entry), books.bound_of(earlier)
                if name == QUOTA and bound is not None:
                    if was_bound is None or path in self.refused_bounds:
                        found |= {
                            each: level for each, level in self.below(path, name) if self._has_quota(each)
                        }
                elif was_bound is not None and entry.claims != earlier.claims:
                    # A container that does not run yet gets its own value when it starts.
                    below = self._store.fitted_below(path, name).items()
                    found |= {
                        each: level
                        for each, level in below
                        if each not in batch and self._files.look(each, (name,))
                    }
        return found

    def below(self, path: Path, name: str) -> Iterator[tuple[Path, Level]]:
        """The cgroups of pods and containers below that of a QoS class or pod."""
        known = self._store.find(path)
        is_pod = known is not None and known.book.level is Level.POD
        for child in self._files.children(path, name):
            if is_pod:
                yield (*path, child), Level.CONTAINER
            elif child.removesuffix(".slice").rpartition("-")[2] in ("burstable", "besteffort"):
                yield (*path, child), Level.QOS_CLASS
                yield from self.below((*path, child), name)
            else:
                yield (*path, child), Level.POD
                for container in self._files.children((*path, child), name):
                    yield (*path, child, container), Level.CONTAINER

    def _has_quota(self, path: Path) -> bool:
        text = self._files.look(path, (QUOTA,)).get(QUOTA)
        return text is not None and self._files.decode(QUOTA, text.text) != UNLIMITED


def _holds_kept_values(text: str) -> bool:
    """Whether some processes have a value that is not known, or that is left to them."""
    return UNREADABLE in text or FOREIGN in text


def _booked_quota(book: Book) -> int:
    """What the runtime would write to a container, for a period of 100 ms."""
    none = Entry()
    quota = book.entries.get(QUOTA, none).booked
    period = book.entries.get(PERIOD, none).booked or CPU_PERIOD_US
    return -(-int(quota) * CPU_PERIOD_US // int(period)) if quota is not None else UNLIMITED


def new_container(
    path: Path, values: Mapping[str, Value], present: Mapping[str, FileText] = books.NO_VALUES
) -> Plan:
    """The plan of a container that is not in the batch: about to be created, or without values of ours."""
    identity = cgroup_id(path)
    return Plan(cgroup=identity, values=values, present=present, book=Book(identity, Level.CONTAINER))
