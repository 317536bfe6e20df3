"""The books of a node in memory: what is wanted in which cgroup, by whom, and what was there before.

Nothing here reads or writes a file; `runtimeproxy.ledger.ledger` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Final, NamedTuple, TypeAlias

from runtimeproxy.cgroups.paths import CgroupPathError, cgroup_path, path_or_none
from runtimeproxy.fields.tables import LISTS
from runtimeproxy.hooks.algebra import Role
from runtimeproxy.ledger import books, unapplied
from runtimeproxy.ledger.books import Formats, Leased, Value, Wanted
from runtimeproxy.ledger.fields import CLASS_KUBELET, field_class
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.tree import QUOTA
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


class Held(NamedTuple):
    """A book, and since when it is here."""

    book: Book
    since_s: float
    target: CgroupTarget


class BookStore:
    """The books of a node; safe for all threads.

    Args:
        formats: Of the files.
        boot_id: Of this boot of the kernel.
        clock: In seconds.

    Attributes:
        now_s: The clock.
        not_loaded: Policies that could not be loaded: what they wanted before still holds.
        closed: Parameters that nothing new is claimed of: the kernel's mode that they need is another one.
        on_change: Called in any thread with the id of each cgroup whose book has changed.
        pod_changes: Another number after each change of the book of a pod.
        unapplied: What is wanted and not in force.
    """

    def __init__(self, formats: Formats, boot_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._formats = formats
        self._boot_id = boot_id
        self._lock = Lock()
        self._held: dict[Path, Held] = {}
        self._prune_at = MOST_UNCLAIMED
        # By pod, its containers to whose quota something with a lease is added.
        self._adding: dict[Path, set[Path]] = {}
        self.now_s = clock
        self.not_loaded: frozenset[str] = frozenset()
        self.closed: frozenset[str] = frozenset()
        self.on_change: Callable[[str], None] | None = None
        self.pod_changes = 0
        self.unapplied = UnappliedValues()

    # --- queries -----------------------------------------------------------------------------------------

    @property
    def formats(self) -> Formats:
        """Of the files of this node."""
        return self._formats

    def __len__(self) -> int:
        """Number of books."""
        return len(self._held)

    @property
    def books(self) -> tuple[Book, ...]:
        """All books."""
        with self._lock:
            return tuple(held.book for held in self._held.values())

    @property
    def identities(self) -> tuple[str, ...]:
        """The ids of all books."""
        with self._lock:
            return tuple(map(identity_of, self._held))

    def above_pods(self) -> dict[str, Level]:
        """The ids of the books of QoS classes and host applications, with their levels."""
        with self._lock:
            held = tuple(self._held.items())
        return {identity_of(path): each.book.level for path, each in held if each.book.level < Level.POD}

    def record(self, identity: str) -> Book | None:
        """The book of a cgroup; None if nothing is wanted there."""
        held = self._find(identity)
        return None if held is None else held.book

    @property
    def value_count(self) -> int:
        """How many values the files hold that were written here."""
        with self._lock:
            held = tuple(self._held.values())
        return sum(entry.resolved is not None for each in held for entry in each.book.entries.values())

    def target(self, cgroup: str) -> CgroupTarget | None:
        """Whose cgroup it is; None if nothing is wanted there."""
        held = self._find(cgroup)
        return None if held is None else held.target

    def is_managed(self, cgroup: str) -> bool:
        """Whether `repair` might write to this cgroup."""
        held = self._find(cgroup)
        if held is None:
            return False
        return any(not entry.is_once or entry.is_settling for entry in held.book.entries.values())

    def holders(self, *, owners: Collection[str] = (), names: Collection[str] = ()) -> tuple[str, ...]:
        """The cgroups with claims of these owners, or with values of these parameters; upper ones first."""
        with self._lock:
            held = tuple(self._held.items())
        found = [
            (each.book.level, path)
            for path, each in held
            if any(
                (name in names and (entry.claims or _is_leftover(entry)))
                or any(claim.owner in owners for claim in entry.claims)
                for name, entry in each.book.entries.items()
            )
        ]
        return tuple(identity_of(path) for _, path in sorted(found))

    def owners(self) -> set[str]:
        """The owners of all claims."""
        with self._lock:
            held = tuple(self._held.values())
        return {
            claim.owner for each in held for entry in each.book.entries.values() for claim in entry.claims
        }

    def resolved(self, cgroup: str) -> Mapping[str, Value]:
        """What the files of a cgroup are to hold, by parameter, without what is observed only."""
        held = self._find(cgroup)
        if held is None:
            return {}
        return {
            name: entry.resolved
            for name, entry in held.book.entries.items()
            if entry.resolved is not None and not entry.is_once
        }

    @property
    def has_leftovers(self) -> bool:
        """Whether there are values without a claim that could not be given back yet."""
        with self._lock:
            held = tuple(self._held.values())
        return any(_is_leftover(entry) for each in held for entry in each.book.entries.values())

    def users_of(self, cpus: Collection[int]) -> frozenset[tuple[Level, Path]]:
        """Levels and paths of cgroups that values of ours let run on some CPUs; for a container its pod's."""
        with self._lock:
            held = tuple(self._held.items())
        meets: dict[Value, bool] = {}
        found: set[tuple[Level, Path]] = set()
        for path, each in held:
            entry = each.book.entries.get(CPUS)
            if entry is None or not entry.resolved:
                continue
            if entry.resolved not in meets:
                meets[entry.resolved] = not parse_cpu_list(str(entry.resolved)).isdisjoint(cpus)
            if meets[entry.resolved]:
                is_container = each.book.level is Level.CONTAINER
                found.add((Level.POD, path[:-1]) if is_container else (each.book.level, path))
        return frozenset(found)

    def bounds_above(self, path: Path) -> Iterator[tuple[Path, Level, Mapping[str, Value]]]:
        """The cgroups above one that bound its quota or its lists of CPUs and NUMA nodes, and to what."""
        for length in range(1, len(path)):
            held = self._held.get(path[:length])
            if held is not None:
                entries = held.book.entries
                bounds = {name: books.bound_of(entries.get(name)) for name in BOUNDING}
                found = {name: value for name, value in bounds.items() if value is not None}
                if found:
                    yield path[:length], held.book.level, found

    def is_bounded(self, pod_cgroup: str) -> bool:
        """Whether a bound of a pod, or above, counts for its containers."""
        path = path_or_none(pod_cgroup) or ()
        for length in range(1, len(path) + 1):
            held = self._held.get(path[:length])
            entries = held.book.entries if held is not None else {}
            for name in BOUNDING:
                entry = entries.get(name)
                if entry is not None and any(claim.role is Role.AT_MOST for claim in entry.claims):
                    return True
        return False

    # --- claims ------------------------------------------------------------------------------------------

    def book(self, wanted: Wanted) -> None:
        """Takes the answer of all policies, and writes nothing: a message carries it, or `repair` follows.

        Raises:
            CgroupPathError: The cgroup's path is none.
        """
        path = cgroup_path(wanted.target.cgroup)
        if (withheld := self._withheld(wanted)) or self.unapplied:
            self.unapplied.note(
                UnappliedStage.ASKED, wanted.target, identity_of(path), withheld, among=wanted.claims
            )
        with self._lock:
            # What is closed meanwhile is either not claimed, or found by `holders` afterwards.
            wanted = self._taken(wanted)
            held = self._held.get(path)
            before = self._blank(path, wanted.target) if held is None else held.book
            after = books.with_wanted(before, wanted)
            after = books.with_values_of_message(after)
            if not after.entries and held is None:
                return
            self._held[path] = Held(after, self.now_s(), wanted.target)
        if held is None or after is not before:
            self._report([path])

    def note_asked(self, wanted: Wanted, waiting: tuple[UnappliedCause, str] | None = None) -> None:
        """Notes what policies want of something that runs and does not get into the books.

        Args:
            wanted: Their answer.
            waiting: Why the answer itself is not booked yet; None if it is, or is about to be.
        """
        found = self._withheld(wanted)
        if not found and waiting is None and not self.unapplied:
            return
        try:
            identity = identity_of(cgroup_path(wanted.target.cgroup))
        except CgroupPathError:
            return
        held = self._find(wanted.target.cgroup)
        entries = {} if held is None else held.book.entries
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

    def keep_unapplied(
        self, pod_cgroups: Iterable[str], container_ids: Iterable[str], unknown: Iterable[str] = ()
    ) -> None:
        """Forgets what is not in force in pods and containers that do not run.

        Args:
            pod_cgroups: Of all running pods.
            container_ids: Of the containers that have not ended.
            unknown: The ids of sandboxes and containers that run and whose cgroup is not known.
        """
        live, boxes, ids = paths_of(pod_cgroups), frozenset(container_ids), frozenset(unknown)

        def is_there(target: CgroupTarget, cgroup: str) -> bool:
            if target.level >= Level.POD and not cgroup.startswith("/"):
                return cgroup in ids
            path = cgroup_path(cgroup) if cgroup else ()
            return target.level < Level.POD or path in live or _is_of(path, live, boxes)

        self.unapplied.keep(is_there)

    def _withheld(self, wanted: Wanted) -> dict[str, Withheld]:
        """What an answer wants and books do not take."""
        found = dict(wanted.withheld)
        if not self.closed and wanted.target.level is not Level.QOS_CLASS:
            return found
        for name, claims in wanted.claims.items():
            if claims and name in self.closed:
                found[name] = Withheld(claims, UnappliedCause.CPU_MODE, unapplied.OTHER_MODE)
            elif claims and field_class(wanted.target.level, name) is CLASS_KUBELET:
                found[name] = Withheld(claims, UnappliedCause.KUBELET, unapplied.OF_KUBELET)
        return found

    def book_leased(self, owner: str, leased: Leased) -> tuple[Path, Book, Book] | None:
        """Takes the claims of an owner with a lease on one cgroup, and writes nothing.

        Returns:
            The path, and the book before and after; None where nothing has changed.

        Raises:
            CgroupPathError: The cgroup's path is none.
        """
        path = cgroup_path(leased.target.cgroup)
        with self._lock:
            held = self._held.get(path)
            if self.closed:
                claims = {name: each for name, each in leased.claims.items() if name not in self.closed}
                leased = leased._replace(claims=claims)
            before = self._blank(path, leased.target) if held is None else held.book
            after = books.with_leased(before, owner, leased)
            if after is before:
                return None
            target = leased.target if held is None or not held.target.name else held.target
            self._held[path] = Held(after, self.now_s() if held is None else held.since_s, target)
            self._note_adding(path, after)
        if not books.is_saved_alike(before, after):
            self._report([path])
        return path, before, after

    def leased(self) -> tuple[tuple[CgroupTarget, Book], ...]:
        """The books with claims that have a lease, and whose they are."""
        with self._lock:
            held = tuple(self._held.values())
        return tuple(
            (each.target, each.book)
            for each in held
            if any(entry.leases for entry in each.book.entries.values())
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

    def _sums_of_adds(self, pod: Path) -> dict[str, int]:
        """What is added to the quotas of a pod's containers, by owner; the pod gets the sum."""
        sums: dict[str, int] = {}
        with self._lock:
            children = [self._held[path].book for path in self._adding.get(pod, ()) if path in self._held]
        for book in children:
            for owner, amount in books.amounts_added(book, QUOTA).items():
                sums[owner] = sums.get(owner, 0) + amount
        return sums

    def forget_claims(
        self, cgroups: Iterable[str], *, owners: Collection[str] = (), names: Collection[str] = ()
    ) -> None:
        """Ends claims on some cgroups: those of these owners, and those on these parameters."""
        changed: list[Path] = []
        with self._lock:
            for path in paths_of(cgroups):
                held = self._held.get(path)
                book = None if held is None else books.without_claims(held.book, owners, names)
                if held is not None and book is not None and book is not held.book:
                    self._held[path] = held._replace(book=book)
                    changed.append(path)
        self._report(changed)

    def differs(self, wanted: Wanted) -> bool:
        """Whether an answer claims something else than what is claimed now, or counts on other requests."""
        held = self._find(wanted.target.cgroup)
        if held is None:
            return any(wanted.claims.values())
        book = books.without_claims(held.book, {books.TREE})
        before, after = book.entries, books.with_wanted(book, self._taken(wanted)).entries
        if wanted.target.level is Level.CONTAINER:
            return after != before
        # What is requested of a pod is known to evaluations only.
        return any(entry.claims != before.get(name, Entry()).claims for name, entry in after.items())

    def note_requests(self, pod_cgroup: str, requested: Mapping[str, Value]) -> None:
        """What a pod's containers ask for counts where the original of its file is not known.

        Found in the file it is the kubelet's, and the original from then on.
        """
        with self._lock:
            held = self._find(pod_cgroup)
            if held is None:
                return
            entries = {
                name: entry._replace(requested=requested.get(name, entry.requested))
                for name, entry in held.book.entries.items()
            }
            if entries == held.book.entries:
                return
            path = cgroup_path(pod_cgroup)
            self._held[path] = held._replace(book=replace(held.book, entries=entries))
        self._report([path])

    # --- checkpoint --------------------------------------------------------------------------------------

    def load(self, saved: Iterable[Book], *, outdated_s: float | None = None) -> None:
        """Adds the books of a checkpoint; what this process has claimed takes precedence.

        Args:
            saved: Books of the checkpoint.
            outdated_s: Time from which on another process decided: what this process claimed before it does
                not take precedence. None if there was no other process.
        """
        now_s = self.now_s()
        for book in saved:
            path = path_or_none(book.id)
            if path is None:
                continue
            if book.boot_id != self._boot_id:
                self._report([path])
                continue
            with self._lock:
                held = self._held.get(path)
                if held is None:
                    loaded = Held(book, now_s, CgroupTarget(book.level, book.id))
                elif outdated_s is not None and held.since_s <= outdated_s:
                    loaded = held._replace(book=book, since_s=now_s)
                else:
                    loaded = held._replace(book=books.merged(book, held.book))
                self._held[path] = loaded
                self._note_adding(path, loaded.book)
            if loaded.book != book:
                self._report([path])

    def take_over(self, records: Iterable[tuple[CgroupRecord, Mapping[str, str]]]) -> None:
        """Adds what version 0.1 has written, by its checkpoint; each with the owners of its values."""
        found = []
        for record, owners in records:
            with suppress(CgroupPathError):
                cgroup_path(record.id)
                found.append(books.taken_over(record, owners, self._boot_id, self._formats))
        self.load(found)
        self._report([cgroup_path(book.id) for book in found])

    def add_noted(self, noted: Iterable[Book]) -> None:
        """Adds what the journal says to the books; the checkpoint is read already."""
        for book in noted:
            path = cgroup_path(book.id)
            with self._lock:
                held = self._held.get(path)
                if held is None:
                    self._held[path] = Held(book, self.now_s(), CgroupTarget(book.level, book.id))
                else:
                    self._held[path] = held._replace(book=books.with_newer(held.book, book))
                self._note_adding(path, self._held[path].book)
            self._report([path])

    # --- cgroups that are gone ---------------------------------------------------------------------------

    def prune(self, pod_cgroups: Iterable[str], container_ids: Iterable[str] = ()) -> None:
        """Forgets the cgroups of pods that are gone if there are many; cheap otherwise."""
        if len(self._held) > self._prune_at:
            self.forget_gone(pod_cgroups, container_ids)
            self._prune_at = len(self._held) + MOST_UNCLAIMED

    def forget_gone(self, pod_cgroups: Iterable[str], container_ids: Iterable[str] = ()) -> None:
        """Forgets cgroups without a pod or container that have been so for long, or are too many.

        Args:
            pod_cgroups: Of all running pods.
            container_ids: All known containers.
        """
        live, boxes = paths_of(pod_cgroups), frozenset(container_ids)
        with self._lock:
            unclaimed = [
                path for path, held in self._held.items() if not _is_claimed(path, held, live, boxes)
            ]
            too_many = max(0, len(unclaimed) - MOST_UNCLAIMED)
            until_s = self.now_s() - UNCLAIMED_S
            gone = [
                path
                for number, path in enumerate(unclaimed)
                if number < too_many or self._held[path].since_s < until_s
            ]
            for path in gone:
                self._forget(path)
        self._report(gone)

    # --- inside ------------------------------------------------------------------------------------------

    def _taken(self, wanted: Wanted) -> Wanted:
        """The answer as far as it counts now."""
        if self.not_loaded:
            wanted = wanted._replace(silent=wanted.silent | self.not_loaded)
        if self.closed:
            claims = {name: each for name, each in wanted.claims.items() if name not in self.closed}
            wanted = wanted._replace(claims=claims, closed=self.closed)
        return wanted

    def _find(self, cgroup: str) -> Held | None:
        path = path_or_none(cgroup)
        return None if path is None else self._held.get(path)

    def _blank(self, path: Path, target: CgroupTarget) -> Book:
        return Book(identity_of(path), target.level, boot_id=self._boot_id)

    def _forget(self, path: Path) -> None:
        """Forgets a book; with the lock held."""
        del self._held[path]
        self._adding.pop(path, None)
        if path[:-1] in self._adding:
            self._adding[path[:-1]].discard(path)

    def _report(self, paths: Iterable[Path]) -> None:
        for path in paths:
            held = self._held.get(path)
            if held is None or held.book.level is Level.POD:
                self.pod_changes += 1
            if self.on_change is not None:
                self.on_change(identity_of(path))


def _is_claimed(path: Path, held: Held, live: set[Path], container_ids: frozenset[str]) -> bool:
    """Whether a cgroup is a pod's, or that of a container in one; names of scopes end with its id."""
    if path in live or held.book.level in (Level.NODE, Level.QOS_CLASS):
        return True
    return _is_of(path, live, container_ids)


def _is_of(path: Path, live: set[Path], container_ids: frozenset[str]) -> bool:
    """Whether a cgroup is that of a container of a pod; names of scopes end with its id."""
    return path[:-1] in live and path[-1].removesuffix(".scope").rpartition("-")[2] in container_ids


def _is_leftover(entry: Entry) -> bool:
    # What the runtime's specification still holds is in no file any more.
    return not entry.claims and entry.resolved is not None and entry.booked is None


def identity_of(path: Path) -> str:
    """The id of a cgroup's book."""
    return "/" + "/".join(path)


def paths_of(cgroups: Iterable[str]) -> set[Path]:
    """The paths of cgroups, without those that are none."""
    return {path for cgroup in cgroups if (path := path_or_none(cgroup)) is not None}
