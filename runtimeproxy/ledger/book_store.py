"""The books of a node in memory: what is wanted in which cgroup, by whom, and what was there before.

Nothing here reads or writes a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Final, NamedTuple, TypeAlias

from runtimeproxy.cgroups.paths import CgroupPathError, cgroup_id, cgroup_path, path_or_none, paths_of
from runtimeproxy.fields.tables import LISTS, QUOTA
from runtimeproxy.hooks.algebra import Role
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.ledger import books, unapplied
from runtimeproxy.ledger.books import Formats, Value, Wanted
from runtimeproxy.ledger.fields import is_of_kubelet
from runtimeproxy.ledger.fitting import OF_CHILDREN
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.unapplied import UnappliedCause, UnappliedStage, UnappliedValues, Withheld
from runtimeproxy.pods.records import Book, CgroupRecord, Entry, Level, is_leased
from runtimeproxy.units import parse_cpu_list

CPUS: Final = "cpuset.cpus"
BOUNDING: Final = (QUOTA, *LISTS)
"""Parameters whose at_most bounds the cgroups below, too."""
MOST_UNCLAIMED: Final = 256
"""Bound on remembered cgroups without a recorded pod: their pods may be about to start. The oldest are
forgotten first. More than the pods of a node. Source: the kubelet's default of 110 pods."""
UNCLAIMED_S: Final = 600.0
"""How long such a cgroup is remembered: longer than the start of a pod takes. Source: the kubelet gives the
runtime 2 x 2 minutes for it (pkg/kubelet/cri/remote)."""

Path: TypeAlias = tuple[str, ...]


class Known(NamedTuple):
    """A book, since when it is here, and whose cgroup it is of."""

    book: Book
    since_s: float
    target: CgroupTarget


class BoostedPod(NamedTuple):
    """What the quota of a pod may hold of start-up boosts that a process before this one has given."""

    added_us: int
    least_us: int
    """Less than that the kubelet has not given to the pod: what its boosted containers ask for."""


class Books:
    """The books of a node; safe for all threads.

    Attributes:
        rule: Whose value applies when two policies set one parameter.
        observed: Parameters that another agent of this node writes: they are compared, and never written.
        not_loaded: Policies that could not be loaded: what they wanted before still applies.
        blocked: Parameters that nothing new is claimed of: the kernel's mode that they need is another one.
        on_change: Called in any thread with the id of each cgroup whose book has changed.
        pod_changes: Another number after each change of the book of a pod.
        is_v1: Whether quotas are those of cgroup version 1. Known from the first batch on: before it, no pod
            has a value of ours.
        starts_as_requested: Whether containers start with the kubelet's own values, as no message has others.
        updated_by_others: Whether the runtime may at any time write what its specifications hold.
        openings_us: By cgroup, what is added to the bounds of its quota now; see `ledger.openings`. Replaced
            as a whole.
        boosted: Of pods with boosts of the process before this one; see `ledger.boosts`. Replaced as a whole.
    """

    def __init__(self, formats: Formats, boot_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.formats = formats
        self._boot_id = boot_id
        self._lock = Lock()
        self._known: dict[Path, Known] = {}
        # By pod, its containers to whose quota something with a lease is added.
        self._adding: dict[Path, set[Path]] = {}
        self.now_s = clock
        self.rule = ConflictRule.LATER
        self.observed: frozenset[str] = frozenset()
        self.not_loaded: frozenset[str] = frozenset()
        self.blocked: frozenset[str] = frozenset()
        self.on_change: Callable[[str], None] | None = None
        self.pod_changes = 0
        self.unapplied = UnappliedValues()
        self.is_v1 = False
        self.starts_as_requested = False
        self.updated_by_others = False
        self.openings_us: Mapping[Path, int] = {}
        self.boosted: Mapping[Path, BoostedPod] = {}

    # --- queries -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Book]:
        return iter([each.book for each in self._all()])

    def _all(self) -> tuple[Known, ...]:
        with self._lock:
            return tuple(self._known.values())

    @property
    def identities(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(map(cgroup_id, self._known))

    def find(self, path: Path) -> Known | None:
        return self._known.get(path)

    def above_pods(self) -> dict[str, Level]:
        return {book.id: book.level for book in self if book.level < Level.POD}

    def record(self, identity: str) -> Book | None:
        """The book of a cgroup; None if nothing is wanted there."""
        known = self._find(identity)
        return None if known is None else known.book

    @property
    def value_count(self) -> int:
        return sum(entry.resolved is not None for book in self for entry in book.entries.values())

    def target(self, cgroup: str) -> CgroupTarget | None:
        """Whose cgroup it is; None if nothing is wanted there."""
        known = self._find(cgroup)
        return None if known is None else known.target

    def is_managed(self, cgroup: str) -> bool:
        """Whether `Ledger.repair` might write to this cgroup."""
        book = self.record(cgroup)
        entries = () if book is None else book.entries.values()
        return any(not entry.is_once or entry.is_settling for entry in entries)

    def within(
        self,
        levels: Collection[Level],
        pod_cgroups: Collection[str] | None = None,
        names: frozenset[str] | None = None,
    ) -> list[Path]:
        """The cgroups of some levels.

        `pod_cgroups`: of all running pods: the cgroups of others are left out; None for none. `names`: those
        without any of these parameters are left out; None for none.
        """
        is_above = all(level < Level.POD for level in levels)
        live = None if pod_cgroups is None or is_above else paths_of(pod_cgroups)
        with self._lock:
            return [
                path
                for path, known in self._known.items()
                if known.book.level in levels
                and (names is None or not names.isdisjoint(known.book.entries))
                and (live is None or known.book.level < Level.POD or not live.isdisjoint((path, path[:-1])))
            ]

    def texts_of(self, name: str, pod_cgroups: Collection[str]) -> set[str]:
        """The texts of a parameter that running pods have, or are to have.

        `pod_cgroups`: of all running pods.
        """
        live = paths_of(pod_cgroups)
        with self._lock:
            entries = [
                known.book.entries[name]
                for path, known in self._known.items()
                if path in live and name in known.book.entries
            ]
        values = (value for each in entries for value in (each.resolved, *(it.value for it in each.claims)))
        return {value for value in values if isinstance(value, str)}

    def fitted_below(self, path: Path, name: str) -> dict[Path, Level]:
        # The cgroups below one that have an entry of the parameter.
        with self._lock:
            return {
                each: known.book.level
                for each, known in self._known.items()
                if len(each) > len(path) and each[: len(path)] == path and name in known.book.entries
            }

    def holders(self, *, owners: Collection[Claimant] = (), names: Collection[str] = ()) -> tuple[str, ...]:
        """The cgroups with claims of these owners, or with values of these parameters; upper ones first."""
        found = [
            (book.level, cgroup_path(book.id), book.id)
            for book in self
            if any(
                (name in names and (entry.claims or _is_leftover(entry)))
                or any(claim.owner in owners for claim in entry.claims)
                for name, entry in book.entries.items()
            )
        ]
        return tuple(identity for *_, identity in sorted(found))

    def owners(self) -> set[Claimant]:
        return {claim.owner for book in self for entry in book.entries.values() for claim in entry.claims}

    def resolved(self, cgroup: str) -> Mapping[str, Value]:
        """The resolved values of a cgroup, by parameter, without those that are observed only."""
        book = self.record(cgroup)
        return {
            name: entry.resolved
            for name, entry in (book.entries if book is not None else {}).items()
            if entry.resolved is not None and not entry.is_once
        }

    @property
    def has_leftovers(self) -> bool:
        # Values without a claim that could not be given back yet.
        return any(_is_leftover(entry) for book in self for entry in book.entries.values())

    def users_of(self, cpus: Collection[int]) -> frozenset[tuple[Level, Path]]:
        """Levels and paths of cgroups that values of ours let run on some CPUs; for a container its pod's."""
        meets: dict[Value, bool] = {}
        found: set[tuple[Level, Path]] = set()
        for book in self:
            entry = book.entries.get(CPUS)
            if entry is None or not entry.resolved:
                continue
            if entry.resolved not in meets:
                meets[entry.resolved] = not parse_cpu_list(str(entry.resolved)).isdisjoint(cpus)
            if meets[entry.resolved]:
                path, is_container = cgroup_path(book.id), book.level is Level.CONTAINER
                found.add((Level.POD, path[:-1]) if is_container else (book.level, path))
        return frozenset(found)

    def bounds_above(self, path: Path) -> Iterator[tuple[Path, Level, Mapping[str, Value]]]:
        # Those that bound its quota or its lists of CPUs and NUMA nodes.
        for length in range(1, len(path)):
            known = self._known.get(path[:length])
            if known is not None:
                entries = known.book.entries
                bounds = {name: books.bound_of(entries.get(name)) for name in BOUNDING}
                found = {name: value for name, value in bounds.items() if value is not None}
                if found:
                    yield path[:length], known.book.level, found

    def is_bounded(self, pod_cgroup: str) -> bool:
        """Whether a bound of a pod, or above, applies to its containers."""
        path = path_or_none(pod_cgroup) or ()
        for length in range(1, len(path) + 1):
            known = self._known.get(path[:length])
            entries = known.book.entries if known is not None else {}
            for name in BOUNDING:
                entry = entries.get(name)
                for claim in entry.claims if entry is not None else ():
                    if claim.role is Role.AT_MOST:
                        return True
        return False

    def needs_room(self, pod_cgroup: str) -> bool:
        """Whether a pod's cgroup may have to be raised for a container."""
        if not self.is_v1:
            return False
        known = self._find(pod_cgroup)
        return known is not None and not OF_CHILDREN.isdisjoint(known.book.entries)

    # --- claims ------------------------------------------------------------------------------------------

    def book(self, wanted: Wanted) -> tuple[Path, Book, Book]:
        """Takes what is claimed of a cgroup, and writes nothing: a message carries it, or a write follows.

        Returns:
            The path, and the book before and after; the same one where nothing has changed.

        Raises:
            CgroupPathError: The cgroup's path is none.
        """
        path = cgroup_path(wanted.target.cgroup)
        if not wanted.owner and ((withheld := self._withheld(wanted)) or self.unapplied):
            self.unapplied.note(
                UnappliedStage.ASKED, wanted.target, cgroup_id(path), withheld, among=wanted.claims
            )
        with self._lock:
            # What is blocked meanwhile is either not claimed, or found by `holders` afterwards.
            wanted = self._as_accepted(wanted)
            known = self._known.get(path)
            before = self._blank(path, wanted.target) if known is None else known.book
            after = books.with_claims(before, wanted)
            if wanted.owner is None:
                after = books.with_values_of_message(after)
                if after is not before or known is not None:
                    self._known[path] = Known(after, self.now_s(), wanted.target)
            elif after is not before:
                target = known.target if known is not None and known.target.name else wanted.target
                self._known[path] = Known(after, self.now_s() if known is None else known.since_s, target)
                self._note_adding(path, after)
        if after is not before and not (wanted.owner and books.is_saved_alike(before, after)):
            self.report([path])
        return path, before, after

    def note_asked(self, wanted: Wanted, waiting: tuple[UnappliedCause, str] | None = None) -> None:
        """Notes what policies want of something that runs and does not get into the books.

        `waiting`: why the answer itself is not booked yet; None if it is, or is about to be.
        """
        self._name(wanted.target)
        found = self._withheld(wanted)
        if not found and waiting is None and not self.unapplied:
            return
        try:
            identity = cgroup_id(cgroup_path(wanted.target.cgroup))
        except CgroupPathError:
            return
        book = self.record(wanted.target.cgroup)
        entries = {} if book is None else book.entries
        if waiting is not None:
            for name, claims in wanted.claims.items():
                if claims and name not in found and entries.get(name, Entry()).claims != claims:
                    found[name] = Withheld(claims, *waiting)
        self.unapplied.note(UnappliedStage.ASKED, wanted.target, identity, found)
        # What is neither wanted nor written any more is not waited for.
        ended = (
            {each.field for each in self.unapplied.values(identity)} - wanted.claims.keys() - entries.keys()
        )
        for stage in (UnappliedStage.BOOKED, UnappliedStage.LOST):
            self.unapplied.note(stage, wanted.target, identity, {}, among=ended)

    def _name(self, target: CgroupTarget) -> None:
        """Notes whose a cgroup is: a checkpoint has the cgroup only."""
        path = path_or_none(target.cgroup)
        if path is None or not target.name:
            return
        with self._lock:
            known = self._known.get(path)
            if known is not None and not known.target.name:
                self._known[path] = known._replace(target=target)

    def keep_unapplied(
        self, pod_cgroups: Iterable[str], container_ids: Iterable[str], unknown: Iterable[str] = ()
    ) -> None:
        """Forgets what is not in force in pods and containers that do not run.

        Args:
            pod_cgroups: Of all running pods.
            container_ids: Of the containers that have not ended.
            unknown: The ids of sandboxes and containers that run and whose cgroup is not known.
        """
        live, containers, ids = paths_of(pod_cgroups), frozenset(container_ids), frozenset(unknown)

        def is_there(target: CgroupTarget, cgroup: str) -> bool:
            if target.level >= Level.POD and not cgroup.startswith("/"):
                return cgroup in ids
            path = cgroup_path(cgroup) if cgroup else ()
            return target.level < Level.POD or path in live or _is_of(path, live, containers)

        self.unapplied.keep(is_there)

    def _withheld(self, wanted: Wanted) -> dict[str, Withheld]:
        found = dict(wanted.withheld)
        if not self.blocked and wanted.target.level is not Level.QOS_CLASS:
            return found
        for name, claims in wanted.claims.items():
            if claims and name in self.blocked:
                found[name] = Withheld(claims, UnappliedCause.CPU_MODE, unapplied.OTHER_MODE)
            elif claims and is_of_kubelet(wanted.target.level, name):
                found[name] = Withheld(claims, UnappliedCause.KUBELET, unapplied.OF_KUBELET)
        return found

    def leased(self) -> tuple[Known, ...]:
        return tuple(
            each for each in self._all() if any(entry.leases for entry in each.book.entries.values())
        )

    def _note_adding(self, path: Path, book: Book) -> None:
        """Remembers the containers whose quota something with a lease is added to; with the lock held."""
        entry = book.entries.get(QUOTA)
        adds = (
            book.level is Level.CONTAINER
            and entry is not None
            and any(claim.role is Role.ADD and is_leased(claim) for claim in entry.claims)
        )
        if adds:
            self._adding.setdefault(path[:-1], set()).add(path)
        elif path[:-1] in self._adding:
            self._adding[path[:-1]].discard(path)

    def sums_of_adds(self, pod: Path) -> dict[Claimant, int] | None:
        """The sum that each owner adds to the quotas of a pod's containers; None if none ever did."""
        sums: dict[Claimant, int] = {}
        with self._lock:
            if pod not in self._adding:
                return None
            children = [self._known[path].book for path in self._adding[pod] if path in self._known]
        for book in children:
            for owner, amount in books.amounts_added(book, QUOTA).items():
                sums[owner] = sums.get(owner, 0) + amount
        return sums

    def forget_claims(
        self, cgroups: Iterable[str], *, owners: Collection[Claimant] = (), names: Collection[str] = ()
    ) -> None:
        """Ends claims on some cgroups: those of these owners, and those on these parameters."""
        changed: list[Path] = []
        with self._lock:
            for path in paths_of(cgroups):
                known = self._known.get(path)
                book = None if known is None else books.without_claims(known.book, owners, names)
                if known is not None and book is not None and book is not known.book:
                    self._known[path] = known._replace(book=book)
                    changed.append(path)
        self.report(changed)

    def differs(self, wanted: Wanted) -> bool:
        """Whether an answer claims something else than what is claimed now, or is based on other requests."""
        known = self._find(wanted.target.cgroup)
        if known is None:
            return any(wanted.claims.values())
        book = books.without_claims(known.book, {books.TREE})
        before, after = book.entries, books.with_claims(book, self._as_accepted(wanted)).entries
        if wanted.target.level is Level.CONTAINER:
            return after != before
        # What is requested of a pod is known to evaluations only.
        return any(entry.claims != before.get(name, Entry()).claims for name, entry in after.items())

    def note_requests(self, pod_cgroup: str, requested: Mapping[str, Value]) -> None:
        """Takes what a pod's containers ask for, which applies where the original of its file is not known.

        Found in the file it is the kubelet's, and the original from then on.
        """
        with self._lock:
            known = self._find(pod_cgroup)
            if known is None:
                return
            entries = {
                name: entry._replace(requested=requested.get(name, entry.requested))
                for name, entry in known.book.entries.items()
            }
            if entries == known.book.entries:
                return
            path = cgroup_path(pod_cgroup)
            self._known[path] = known._replace(book=replace(known.book, entries=entries))
        self.report([path])

    # --- after reads and writes of files -----------------------------------------------------------------

    def revise(self, path: Path, change: Callable[[Book], Book]) -> None:
        # The change is not reported.
        with self._lock:
            known = self._known.get(path)
            if known is not None:
                self._known[path] = known._replace(book=change(known.book))

    def unclaimed(self, path: Path, level: Level = Level.POD) -> Known:
        target = CgroupTarget(level, cgroup_id(path))
        return Known(self._blank(path, target), self.now_s(), target)

    def add(self, path: Path, level: Level) -> Known:
        # A blank one if there is none.
        with self._lock:
            return self._known.setdefault(path, self.unclaimed(path, level))

    def keep(self, path: Path, before: Known, after: Book) -> tuple[Book, bool, bool]:
        """Takes a book as it was written.

        Returns:
            The book as it is now; whether it is still the one that was to be written; whether it is gone.
        """
        with self._lock:
            now = self._known.get(path)
            is_same = now is before
            if now is not None and not is_same:
                after = books.with_written(now.book, after)
            is_gone = now is None or (is_same and not after.entries)
            if now is not None and is_gone:
                self._forget(path)
            elif now is not None and after != now.book:
                self._known[path] = now._replace(book=after)
        return after, is_same or now is None, is_gone

    # --- checkpoint --------------------------------------------------------------------------------------

    def load(self, saved: Iterable[Book], *, outdated_s: float | None = None) -> None:
        """Adds the books of a checkpoint; what this process has claimed takes precedence.

        `outdated_s`: time from which on another process decided: what this process claimed before it does not
        take precedence. None if there was no other process.
        """
        now_s = self.now_s()
        for book in saved:
            path = path_or_none(book.id)
            if path is None:
                continue
            if book.boot_id != self._boot_id:
                self.report([path])
                continue
            with self._lock:
                known = self._known.get(path)
                if known is None:
                    loaded = Known(book, now_s, CgroupTarget(book.level, book.id))
                elif outdated_s is not None and known.since_s <= outdated_s:
                    loaded = known._replace(book=book, since_s=now_s)
                else:
                    loaded = known._replace(book=books.merged(book, known.book))
                self._known[path] = loaded
                self._note_adding(path, loaded.book)
            if loaded.book != book:
                self.report([path])

    def take_over(self, records: Iterable[tuple[CgroupRecord, Mapping[str, Claimant]]]) -> None:
        """Adds what version 0.1 has written, by its checkpoint; each with the owners of its values."""
        found = []
        for record, owners in records:
            with suppress(CgroupPathError):
                cgroup_path(record.id)
                found.append(books.taken_over(record, owners, self._boot_id, self.formats))
        self.load(found)
        self.report([cgroup_path(book.id) for book in found])

    def add_noted(self, noted: Iterable[Book]) -> None:
        # The checkpoint is read already.
        for book in noted:
            path = cgroup_path(book.id)
            with self._lock:
                known = self._known.get(path)
                if known is None:
                    known = Known(book, self.now_s(), CgroupTarget(book.level, book.id))
                else:
                    known = known._replace(book=books.with_newer(known.book, book))
                self._known[path] = known
                self._note_adding(path, known.book)
            self.report([path])

    # --- cgroups that are gone ---------------------------------------------------------------------------

    def forget_gone(self, pod_cgroups: Iterable[str], container_ids: Iterable[str] = ()) -> list[Path]:
        """Forgets cgroups without a pod or container that have been so for long, or are too many.

        Args:
            pod_cgroups: Of all running pods.
            container_ids: All known containers.

        Returns:
            What was forgotten.
        """
        live, containers = paths_of(pod_cgroups), frozenset(container_ids)
        with self._lock:
            unclaimed = [
                path for path, known in self._known.items() if not _is_claimed(path, known, live, containers)
            ]
            too_many = max(0, len(unclaimed) - MOST_UNCLAIMED)
            until_s = self.now_s() - UNCLAIMED_S
            gone = [
                path
                for number, path in enumerate(unclaimed)
                if number < too_many or self._known[path].since_s < until_s
            ]
            for path in gone:
                self._forget(path)
        self.report(gone)
        return gone

    # --- inside ------------------------------------------------------------------------------------------

    def _as_accepted(self, wanted: Wanted) -> Wanted:
        """The claims as far as they apply now."""
        if self.not_loaded:
            wanted = wanted._replace(unanswered=wanted.unanswered | self.not_loaded)
        if self.blocked:
            claims = {name: each for name, each in wanted.claims.items() if name not in self.blocked}
            wanted = wanted._replace(claims=claims, blocked=self.blocked)
        return wanted

    def add_missing(self, wanted: Wanted) -> Path | None:
        """Takes claims on parameters that the book of a cgroup lacks; None if it has no book."""
        path = path_or_none(wanted.target.cgroup)
        with self._lock:
            known = None if path is None else self._known.get(path)
            if path is None or known is None:
                return None
            book = books.with_missing(known.book, self._as_accepted(wanted).claims)
            self._known[path] = known._replace(book=book)
        return path

    def _find(self, cgroup: str) -> Known | None:
        path = path_or_none(cgroup)
        return None if path is None else self.find(path)

    def _blank(self, path: Path, target: CgroupTarget) -> Book:
        return Book(cgroup_id(path), target.level, boot_id=self._boot_id)

    def _forget(self, path: Path) -> None:
        """Forgets a book; with the lock held."""
        del self._known[path]
        self._adding.pop(path, None)
        if path[:-1] in self._adding:
            self._adding[path[:-1]].discard(path)

    def report(self, paths: Iterable[Path]) -> None:
        for path in paths:
            known = self._known.get(path)
            if known is None or known.book.level is Level.POD:
                self.pod_changes += 1
            if self.on_change is not None:
                self.on_change(cgroup_id(path))


def _is_claimed(path: Path, known: Known, live: set[Path], container_ids: frozenset[str]) -> bool:
    """Whether a cgroup is a pod's, or that of a container in one; names of scopes end with its id."""
    if path in live or known.book.level in (Level.NODE, Level.QOS_CLASS):
        return True
    return _is_of(path, live, container_ids)


def _is_of(path: Path, live: set[Path], container_ids: frozenset[str]) -> bool:
    # A cgroup is that of a container of a pod; names of scopes end with its id.
    return path[:-1] in live and path[-1].removesuffix(".scope").rpartition("-")[2] in container_ids


def _is_leftover(entry: Entry) -> bool:
    # What the runtime's specification still holds is in no file any more.
    return not entry.claims and entry.resolved is not None and entry.booked is None
