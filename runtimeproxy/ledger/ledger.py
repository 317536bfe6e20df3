"""The ledger: the wanted values of all cgroups, resolved, written and given back.

Only its executor writes cgroup files. What is claimed is written, compared again from time to time, and given
back with its last claim.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from runtimeproxy.cgroups.paths import CgroupPathError, cgroup_path, path_or_none
from runtimeproxy.cgroups.writer import CgroupValues, FileText, WriteOutcome, WriteResult, explain
from runtimeproxy.errors import described as error_text
from runtimeproxy.fields.tables import LISTS, NEUTRAL
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.fields import SERVER_PREFIX
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.ledger import books, fitting
from runtimeproxy.ledger.answers import by_parameter
from runtimeproxy.ledger.book_store import BOUNDING, BookStore, Held, Path, identity_of, paths_of
from runtimeproxy.ledger.books import BookPlan, Leased, MadeBelow, Value, ValueChange, Wanted
from runtimeproxy.ledger.change_log import FAILURES, Applied, described, log_values, pod_fields
from runtimeproxy.ledger.counts import LedgerCounts, LedgerFailures
from runtimeproxy.ledger.executor import USAGE, CgroupFileAccess, Executor, Job, is_there, is_written
from runtimeproxy.ledger.foreign import ForeignWriters, Yielded
from runtimeproxy.ledger.journal import Journal, Noted
from runtimeproxy.ledger.path_locks import IsBusyError, PathLocks
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.tree import BURST, QUOTA
from runtimeproxy.ledger.unapplied import (
    BY_KOORDLET,
    LIMIT,
    NO_CGROUP,
    NO_FILE,
    WRITTEN_ONCE,
    UnappliedCause,
    UnappliedStage,
    Withheld,
)
from runtimeproxy.ledger.unwritten import given_way, not_written
from runtimeproxy.logs import FailureLog
from runtimeproxy.pods.records import Book, ContainerRecord, Entry, Level
from runtimeproxy.units import UNLIMITED, measured_weight_formula

logger = logging.getLogger(__name__)

SHARES: Final = "cpu.shares"
LOWERED_S: Final = 30.0
"""How long a pod's burst stays below the quota that the kubelet is about to write there, which the kernel
would refuse otherwise. The kubelet writes it after it has updated the pod's containers."""

_NEW: Final = "new"
"""Stands for the cgroup of a container that has none yet."""


_NO_ENTRIES: Final[Mapping[Path, Mapping[str, Entry]]] = MappingProxyType({})
_NOTHING_BELOW: Final[Mapping[Path, Level]] = MappingProxyType({})


class _Look(NamedTuple):
    """A cgroup before its plan is made."""

    book: Book
    present: Mapping[str, FileText]
    only_observed: Mapping[str, tuple[UnappliedCause, str]]


class _Looking(NamedTuple):
    """How cgroups are looked at; see `Ledger._settle`."""

    is_periodic: bool = False
    counts_foreign: bool = False


class Ledger(BookStore):
    """The books of a node, and the files of its cgroups; safe for all threads.

    Methods of this class read and write files, in worker threads; those of `BookStore` do not.

    Args:
        files: Reads and writes cgroup files.
        journal: Keeps originals until the checkpoint has them.
        boot_id: Of this boot of the kernel.
        clock: In seconds.

    Attributes:
        counts: What has happened to values since the start.
        rule: Whose value counts when two policies set one parameter.
        observed: Parameters that another agent of this node writes: they are compared, and never written.
        is_v1: Whether quotas are those of cgroup version 1. Known from the first write on: before it, no pod
            has a value of ours.
        failures: The last failed writes, and what is left alone now.
    """

    def __init__(
        self,
        files: CgroupFileAccess,
        journal: Journal,
        boot_id: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(files, boot_id, clock)
        self._files = files
        self._journal = journal
        self._executor = Executor(files, journal)
        self.counts = LedgerCounts(self._executor.writes, self._executor.above_usage)
        # Held while a cgroup is read and written, and its book is changed: otherwise a thread could take the
        # value that another one has just written for the original.
        self._write_locks = PathLocks()
        self._foreign_writers = ForeignWriters(clock)
        # A look follows every second.
        self._failures = FailureLog(clock=clock, output=logger)
        # By parameter, the last text of another program that was written over.
        self._repaired: dict[Path, dict[str, str]] = {}
        # Cgroups whose bound on the quota the kernel has refused: one below has a higher one.
        self._refused_bounds: set[Path] = set()
        # Bounds of pods' bursts, and until when they hold.
        self._lowered: dict[Path, tuple[int, float]] = {}
        self.failures = LedgerFailures(_REASONS)
        self.is_v1 = False
        self.rule = ConflictRule.LATER
        self.observed: frozenset[str] = frozenset()

    def look(self, cgroup: str, names: Iterable[str]) -> Mapping[str, FileText]:
        """What the files of a cgroup hold now, by parameter; for a worker thread.

        Raises:
            OSError: No file can be read at all.
        """
        path = path_or_none(cgroup)
        return {} if path is None else self._files.look(path, names)

    def yielded(self) -> tuple[Yielded, ...]:
        """The values that are left to other programs for a time."""
        return self._foreign_writers.yielded()

    def claim(self, wanted: Sequence[Wanted]) -> tuple[WriteResult, ...]:
        """Takes the answers of all policies for some cgroups, and writes what follows, as one batch.

        Returns:
            One result per value that was to be written; never raises for an error of the kernel.
        """
        return tuple(each.result for each in self.change(wanted))

    def change(self, wanted: Sequence[Wanted]) -> tuple[Applied, ...]:
        """The same for something that runs, with what the values follow from."""
        refused: list[Applied] = []
        claimed: dict[Path, Mapping[str, Entry]] = {}
        pods: set[Path] = set()
        for each in wanted:
            try:
                path = cgroup_path(each.target.cgroup)
            except CgroupPathError as error:
                outcome, text = WriteOutcome.REFUSED, str(error)
                refused += [
                    Applied(
                        each.target,
                        WriteResult(each.target.cgroup, name, _shown(claims), outcome, error=text),
                        claims,
                    )
                    for name, claims in each.claims.items()
                ]
            else:
                held = self._held.get(path)
                claimed[path] = {} if held is None else held.book.entries
                self.book(each)
                if path[:-1] in self._adding:
                    pods.add(path[:-1])
        for pod in pods:
            # With other scales and ceilings another part of what is added counts.
            for owner in self._sums_of_adds(pod):
                self._add_to_pod(owner, pod, claimed)
        return (*refused, *self._settle(list(claimed), before=claimed))

    def change_leased(self, owner: str, group: Sequence[Leased]) -> tuple[Applied, ...]:
        """Takes claims of an owner with a lease, and writes what follows, as one batch.

        Where it adds to quotas of containers, their pods get the sum.

        Args:
            owner: In the ledger.
            group: Cgroups of one pod, or of one QoS class and below.
        """
        changed: dict[Path, Mapping[str, Entry]] = {}
        own = {cgroup_path(leased.target.cgroup) for leased in group}
        covered = [each for leased in group if leased.covers for each in self._covered(leased, own)]
        for leased in (*group, *covered):
            with suppress(CgroupPathError):
                self._book_leased(owner, leased, changed)
        pods = {path[:-1]: None for path in changed if self._level(path) is Level.CONTAINER}
        pods |= {path: None for leased in group if (path := self._pod_of_ended(leased)) in self._adding}
        for pod in pods:
            self._add_to_pod(owner, pod, changed)
        return self._settle(list(changed), before=changed, counts_foreign=True) if changed else ()

    def _book_leased(self, owner: str, leased: Leased, changed: dict[Path, Mapping[str, Entry]]) -> None:
        found = self.book_leased(owner, leased)
        if found is None:
            return
        path, before, after = found
        changed[path] = before.entries
        originals = {} if after.originals == before.originals else after.originals
        if (leases := books.changed_leases(before, after)) or originals:
            # The process may be killed after the value is written, and before the checkpoint has the claim.
            self._journal.note(Noted(after.id, after.level, originals, {}, {}, leases))

    def _pod_of_ended(self, leased: Leased) -> Path:
        """The pod of a container whose book may be gone already; empty for all others."""
        is_container = leased.target.level is Level.CONTAINER
        return cgroup_path(leased.target.cgroup)[:-1] if is_container else ()

    def _add_to_pod(self, owner: str, pod: Path, changed: dict[Path, Mapping[str, Entry]]) -> None:
        if pod not in self._adding:
            return
        amount = self._sums_of_adds(pod).get(owner, 0)
        claims = (Claim(owner, Role.ADD, amount, reason=_SUM),) if amount else ()
        held = self._held.get(pod)
        target = held.target if held is not None else CgroupTarget(Level.POD, identity_of(pod))
        self._book_leased(owner, Leased(target, {QUOTA: claims}), changed)

    def _covered(self, leased: Leased, own: Container[Path]) -> Iterator[Leased]:
        """The same claims on lists of CPUs for the cgroups below a QoS class: containers, and pods.

        A list of a parent bounds that of its children on version 2, where an empty one is the parent's, so
        that those without a list of their own follow by themselves. Version 1 refuses a parent a list that
        lacks something of a child's.
        """
        path = cgroup_path(leased.target.cgroup)
        for name, claims in leased.claims.items():
            if name not in LISTS:
                continue
            bounds = tuple(each for each in claims if each.role is Role.AT_MOST)
            above = self._list_above(path, name)
            for inner, level in self._below(path, name):
                if inner in own:
                    continue
                held = self._held.get(inner)
                target = held.target if held is not None else CgroupTarget(level, identity_of(inner))
                if not bounds and not above and held is None:
                    continue
                found = self._files.look(inner, (name,)).get(name)
                if found is None or (bounds and not self.is_v1 and not found.text.strip()):
                    continue
                value = self._files.decode(name, found.text)
                made = {name: MadeBelow(value, above[1])} if above and value == above[0] else {}
                yield Leased(target, {name: bounds}, made_below=made)

    def _list_above(self, path: Path, name: str) -> tuple[Value, str] | None:
        """The list with which new cgroups below a bounded one begin, and that without the bound.

        None on version 2, where they begin with none.
        """
        held = self._held.get(path)
        if not self.is_v1 or held is None or books.bound_of(held.book.entries.get(name)) is None:
            return None
        bounded = {each for each, _, bounds in self.bounds_above((*path, _NEW)) if name in bounds}
        unbounded = next(path[:length] for length in range(len(path), -1, -1) if path[:length] not in bounded)
        mine = self._files.look(path, (name,)).get(name)
        free = self._files.look(unbounded, (name,)).get(name)
        value = self._files.decode(name, mine.text) if mine is not None else None
        return None if value is None or free is None else (value, free.text)

    def _below(self, path: Path, name: str) -> Iterator[tuple[Path, Level]]:
        """The cgroups of pods and containers below that of a QoS class or pod."""
        if self._level(path) is Level.POD:
            yield from (
                ((*path, container), Level.CONTAINER) for container in self._files.children(path, name)
            )
            return
        for pod in self._files.children(path, name):
            if _is_of_class(pod):
                yield (*path, pod), Level.QOS_CLASS
                yield from self._below((*path, pod), name)
                continue
            yield (*path, pod), Level.POD
            for container in self._files.children((*path, pod), name):
                yield (*path, pod, container), Level.CONTAINER

    def restore_leased(self, records: Mapping[str, ContainerRecord]) -> None:
        """Reads the values of claims with a lease that a process before this one has left in the files.

        Args:
            records: Of the containers, by the ids of their books: a journal has no requests.
        """
        for target, book in self.leased():
            path = cgroup_path(target.cgroup)
            with suppress(IsBusyError, OSError), self._write_locks.held([path]):
                held = self._held.get(path)
                if held is None or held.book is not book:
                    continue
                if (record := records.get(book.id)) is not None:
                    asked = by_parameter(record.requested), by_parameter(record.booked)
                    held = held._replace(book=books.with_requests(book, *asked))
                    with self._lock:
                        self._held[path] = held
                look = self._look(path, held, (), _Looking())
                with self._lock:
                    if self._held.get(path) is held:
                        self._held[path] = held._replace(book=look.book)

    def repair(self, cgroup: str) -> None:
        """Compares the values of one cgroup after an event that is known to reset them, and writes again."""
        held = self._find(cgroup)
        if held is not None:
            self._note_look(logging.DEBUG, "event", held, self._settle([cgroup_path(cgroup)]))

    def release(
        self, cgroups: Collection[str], *, owners: Collection[str] = (), names: Collection[str] = ()
    ) -> tuple[Applied, ...]:
        """Ends claims, and writes what follows, as one batch; see `forget_claims` and `change`."""
        paths = [cgroup_path(cgroup) for cgroup in cgroups]
        before = {path: held.book.entries for path in paths if (held := self._held.get(path)) is not None}
        self.forget_claims(cgroups, owners=owners, names=names)
        return self._settle(paths, before=before)

    def clear(self, cgroups: Iterable[str], names: Collection[str], depth: int = 0) -> tuple[str, ...]:
        """Sets parameters neutral where nothing is claimed, and reads them back.

        A new cgroup begins with its parent's value of some parameters, with claims or without.

        Args:
            cgroups: And those below them.
            names: Parameters with a neutral value.
            depth: How many levels below.

        Returns:
            What is not neutral, for people.
        """
        left: list[str] = []
        for path in sorted(paths_of(cgroups)):
            with self._files.keeping_open():
                left += self._cleared(path, names)
                below = [
                    identity_of((*path, each)) for name in names for each in self._files.children(path, name)
                ]
            if depth:
                left += self.clear(below, names, depth - 1)
        return tuple(left)

    def _cleared(self, path: Path, names: Collection[str]) -> list[str]:
        identity = identity_of(path)
        try:
            with self._write_locks.held([path]):
                values = {
                    name: NEUTRAL[name]
                    for name, found in self._files.look(path, names).items()
                    if not self._files.matches(name, NEUTRAL[name], found.text)
                }
                if not values:
                    return []
                results = self._files.write_levels([[CgroupValues(identity, values)]])
                errors = {each.name: f" ({each.error})" for each in results if each.error}
                return [
                    f"{name} of {identity} is {found.text.strip()}{errors.get(name, '')}"
                    for name, found in self._files.look(path, values).items()
                    if not self._files.matches(name, NEUTRAL[name], found.text)
                ]
        except (IsBusyError, OSError) as error:
            return [error.why if isinstance(error, IsBusyError) else explain(error, "")]

    def start(self, wanted: Wanted) -> tuple[WriteResult, ...]:
        """Writes the values of a cgroup that exists now: those of its book, or these if it has none."""
        with self._lock:
            held = self._find(wanted.target.cgroup)
            if held is not None:
                book = books.with_missing(held.book, self._taken(wanted).claims)
                self._held[cgroup_path(wanted.target.cgroup)] = held._replace(book=book)
        if held is None:
            return self.claim([wanted])
        return tuple(each.result for each in self._settle([cgroup_path(wanted.target.cgroup)]))

    def on_resized(self, cgroup: str, written: Mapping[str, Value] = books.NO_VALUES) -> None:
        """The kubelet has written to a pod's cgroup itself: what is not ours there is the new original.

        Args:
            cgroup: Of the pod.
            written: The values that it is known to have written: ours may be in the files again.
        """
        path = path_or_none(cgroup)
        if path is None:
            return
        with suppress(IsBusyError, OSError), self._write_locks.held([path]):
            held = self._held.get(path)
            if held is None:
                return
            # A later request counts, not what was repaired before this one.
            for name in written:
                self._repaired.get(path, {}).pop(name, None)
            present = self._files.look(path, held.book.entries)
            book = books.with_requests_of_the_kubelet(held.book, present, self._files, written)
            if book is not held.book:
                noted = Noted(book.id, book.level, book.originals, {}, {})
                self._journal.note(noted)
                with self._lock:
                    now = self._held.get(path)
                    if now is not None:
                        self._held[path] = now._replace(book=replace(now.book, originals=book.originals))
                self._report([path])
            self.repair(cgroup)

    def _take_requests(self, path: Path) -> None:
        """Takes what the kubelet has written to a pod's cgroup without a call for it.

        Source: kubelet 1.27 to 1.32, doPodResizeAction: a pod is raised before its containers, and lowered
        after them. What was raised may have been repaired before the containers' calls told the request.
        """
        held = self._held.get(path)
        if held is None or held.book.level is not Level.POD:
            return
        book, matches = held.book, self._files.matches
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
                self.on_resized(identity_of(path))
                return
            if matches(name, requested, self._repaired.get(path, {}).get(name, "")):
                self.on_resized(identity_of(path), {name: requested})
                return

    def needs_room(self, pod_cgroup: str) -> bool:
        """Whether `make_room` might write to a pod's cgroup; for the event loop's thread."""
        held = self._find(pod_cgroup)
        return held is not None and self.is_v1 and not fitting.OF_CHILDREN.isdisjoint(held.book.entries)

    def make_room(self, pod_cgroup: str, values: Mapping[str, Value]) -> None:
        """Raises the quota and the CPUs of a pod, if they are ours, to those of a container to be created.

        On cgroup version 1 the runtime could not create it otherwise; on version 2 nothing happens.

        Args:
            pod_cgroup: Of the pod.
            values: Of the container, by parameter, as its message has them.
        """
        held = self._find(pod_cgroup)
        names = values.keys() & fitting.OF_CHILDREN
        if held is None or names.isdisjoint(held.book.entries):
            return
        if self.is_v1:
            path = cgroup_path(pod_cgroup)
            plan = BookPlan(Book("", Level.CONTAINER), {name: values[name] for name in names})
            self._settle([path], [Job((*path, _NEW), plan, {})])

    def within_bounds(self, pod_cgroup: str, values: Mapping[str, Value]) -> Mapping[str, Value]:
        """What the bounds of cgroups above change of a container's values, before a message carries them.

        On cgroup version 1 the runtime could not write the others. Version 2 takes any list of CPUs: those
        that the container may have count. Reads no file.

        Args:
            pod_cgroup: Of the pod.
            values: Of the container, by parameter, as its message has them.
        """
        pod = path_or_none(pod_cgroup)
        if pod is None:
            return {}
        path = (*pod, _NEW)
        above = tuple(self._jobs_above(path))
        names = values.keys() & set(BOUNDING if self.is_v1 else (QUOTA,))
        if not above or not names:
            return {}
        plan = BookPlan(Book("", Level.CONTAINER), {name: values[name] for name in names})
        found = fitting.fitted([*above, Job(path, plan, {})], self._files).get(path, {})
        return {name: value for name, value in found.items() if value is not None}

    def _jobs_above(self, path: Path) -> Iterator[Job]:
        """The cgroups above one whose bounds its values have to fit to."""
        for above, level, bounds in self.bounds_above(path):
            plan = BookPlan(Book(identity_of(above), level), bounds, bounded=frozenset(bounds))
            yield Job(above, plan, {})

    def before_update(self, cgroup: str, quota_us: int) -> None:
        """Lowers the burst of a container or pod whose quota falls to this next."""
        path = path_or_none(cgroup)
        if path is None:
            return
        with suppress(IsBusyError, OSError), self._write_locks.held([path]):
            if self._lowered.get(path, (quota_us, 0.0))[0] < quota_us:
                self._lowered.pop(path, None)
            if not self._executor.lower_burst(cgroup, quota_us):
                return
            with self._lock:
                held = self._held.get(path)
                entry = held.book.entries.get(BURST) if held is not None else None
                if held is not None and held.book.level is Level.POD:
                    self._lowered = {
                        each: it for each, it in self._lowered.items() if it[1] > self.now_s()
                    } | {path: (quota_us, self.now_s() + LOWERED_S)}
                if held is not None and entry is not None and entry.resolved is not None:
                    entries = {**held.book.entries, BURST: entry._replace(resolved=quota_us)}
                    self._held[path] = held._replace(book=replace(held.book, entries=entries))

    def verify(self, levels: Collection[Level], pod_cgroups: Collection[str] | None = None) -> None:
        """Compares the values of all cgroups of some levels, and repairs them.

        Args:
            levels: Those to look at.
            pod_cgroups: Of all running pods: the cgroups of others are left alone; None for all.
        """
        if not self._held:
            return
        live = None if pod_cgroups is None else paths_of(pod_cgroups)
        with self._lock:
            paths = [
                path
                for path, held in self._held.items()
                if held.book.level in levels
                and (live is None or held.book.level < Level.POD or path in live or path[:-1] in live)
            ]
        for path in paths:
            held = self._held.get(path)
            if held is not None:
                self._note_look(logging.WARNING, "comparison", held, self._settle([path], is_periodic=True))

    def measure_weights(self, level: Level, shares: Mapping[str, int]) -> None:
        """Finds out how cgroups of a level get their cpu.weight, by those that others have written.

        runc from 1.3.2 on, and the kubelets with its code, turn shares into other weights than before. Only
        weights of one formula share the CPU as they should.

        Args:
            level: Of the cgroups.
            shares: Requested cpu.shares by cgroup, the newest last.
        """
        for cgroup, requested in reversed(list(shares.items())):
            with suppress(CgroupPathError, OSError):
                path = cgroup_path(cgroup)
                held = self._held.get(path)
                if held is None or SHARES not in held.book.entries:
                    found = self._files.look(path, (SHARES,)).get(SHARES)
                    if found is not None and found.file == SHARES:
                        return  # version 1, which has no weights
                    text = found.text.strip() if found is not None else ""
                    formula = measured_weight_formula([(requested, int(text))]) if text.isdecimal() else None
                    if formula is not None:
                        self._executor.weights[level] = formula
                        return

    def forget_gone(self, pod_cgroups: Iterable[str], container_ids: Iterable[str] = ()) -> None:
        """Forgets also what was left alone in cgroups that are gone; see `BookStore.forget_gone`."""
        live = paths_of(pod_cgroups)
        super().forget_gone(map(identity_of, live), container_ids)
        for cgroup in {result.cgroup for result in self.failures.left}:
            path = cgroup_path(cgroup)
            if path not in self._held and live.isdisjoint((path, path[:-1])):
                self.failures.forget(cgroup)

    # --- checkpoint --------------------------------------------------------------------------------------

    def note_saved(self, identity: str, book: Book | None) -> None:
        """The checkpoint has this book now, or no longer has one of the cgroup."""
        self._journal.note_saved(identity, book)

    def read_journal(self) -> list[Book]:
        """The books that the journals of killed processes lead to; for a worker thread, `load` follows."""
        found: dict[Path, Book] = {}
        for noted in self._journal.read():
            try:
                path = cgroup_path(noted.cgroup)
            except CgroupPathError:
                continue
            present: Mapping[str, FileText] = {}
            with suppress(OSError):
                present = self._files.look(path, noted.values)
            found[path] = books.with_noted(found.get(path), noted, present, self._files, self._boot_id)
        self.counts.recovered += len(found)
        for book in found.values():
            self._journal.settle(book)
        return list(found.values())

    # --- inside ------------------------------------------------------------------------------------------

    def _settle(
        self,
        paths: Sequence[Path],
        new: Sequence[Job] = (),
        *,
        is_periodic: bool = False,
        counts_foreign: bool = False,
        before: Mapping[Path, Mapping[str, Entry]] = _NO_ENTRIES,
    ) -> tuple[Applied, ...]:
        """Writes the values of these cgroups as one batch.

        Args:
            paths: Of the cgroups.
            new: Containers that are about to be created, which the values have to fit to.
            is_periodic: Whether nothing has happened that would explain a change: then a foreign value counts
                as one, and files that are missing are not tried.
            counts_foreign: Whether a foreign value counts as one although values have changed.
            before: The entries of cgroups before other values were wanted.
        """
        self.is_v1 = fitting.cgroup_version(self._files) == 1
        try:
            below = self._bounded_below(paths, before)
            paths = [*paths, *(path for path in below if path in self._held)]
            # A container's values may have to fit to those of its pod.
            levels = {path: self._level(path) for path in paths} | below
            pods = [path[:-1] for path, level in levels.items() if level is Level.CONTAINER]
            with self._write_locks.held([*levels, *pods]), self._files.keeping_open():
                for path in {*levels, *pods}:
                    self._take_requests(path)
                look = _Looking(is_periodic=is_periodic, counts_foreign=is_periodic or counts_foreign)
                return self._settle_alone(paths, new, before, look, below)
        except Exception as error:  # noqa: BLE001 - a bug that one cgroup shows must not affect the others
            # The books stay as they are: it is tried again.
            why = self._why(error, paths)
            failed = tuple(
                Applied(held.target, _failed(path, name, entry, why), entry.claims)
                for path in paths
                if (held := self._held.get(path)) is not None
                for name, entry in held.book.entries.items()
            )
            self.failures.add(each.result for each in failed)
            for path in paths:
                if (held := self._held.get(path)) is not None:
                    found = {
                        name: Withheld(entry.claims, UnappliedCause.UNREADABLE, why)
                        for name, entry in held.book.entries.items()
                        if entry.claims
                    }
                    self.unapplied.note(
                        UnappliedStage.BOOKED, held.target, identity_of(path), found, among=found
                    )
            return failed

    def _why(self, error: Exception, paths: Sequence[Path]) -> str:
        """Why values of some cgroups could not be written; a bug is logged with its traceback."""
        if isinstance(error, IsBusyError):
            return error.why
        if isinstance(error, OSError):
            return explain(error, "")
        cgroup, why = identity_of(paths[0]) if paths else "", error_text(error)
        self._failures.report(cgroup, why, f"its values cannot be written: {why}", error=error)
        return why

    def _bounded_below(
        self, paths: Iterable[Path], before: Mapping[Path, Mapping[str, Entry]]
    ) -> dict[Path, Level]:
        """The cgroups below those of a batch whose bound begins, ends or moves, as far as they follow.

        All below a bound get unlimited quotas when it begins, or after the kernel has refused it; others read
        nothing, as a bound may move each second. Lists follow with each move.
        """
        found: dict[Path, Level] = {}
        none = Entry()
        for path in paths:
            held = self._held.get(path)
            if held is None or held.book.level is Level.CONTAINER:
                continue
            for name in BOUNDING:
                entry = held.book.entries.get(name, none)
                earlier = before[path].get(name, none) if path in before else entry
                bound, was_bound = books.bound_of(entry), books.bound_of(earlier)
                if name == QUOTA and bound is not None:
                    if was_bound is None or path in self._refused_bounds:
                        found |= {
                            each: level for each, level in self._below(path, name) if self._has_quota(each)
                        }
                elif was_bound is not None and entry.claims != earlier.claims:
                    found |= self._fitted_below(path, name, before)
        return found

    def _has_quota(self, path: Path) -> bool:
        """Whether a cgroup below a bound has a quota now."""
        text = self._files.look(path, (QUOTA,)).get(QUOTA)
        return text is not None and self._files.decode(QUOTA, text.text) != UNLIMITED

    def _fitted_below(self, path: Path, name: str, known: Container[Path]) -> dict[Path, Level]:
        """The other cgroups below one that have a book of a value, and exist."""
        with self._lock:
            found = {
                each: held.book.level
                for each, held in self._held.items()
                if each[: len(path)] == path and each not in known and name in held.book.entries
            }
        # A container that does not run yet gets its own value when it starts.
        return {each: level for each, level in found.items() if self._files.look(each, (name,))}

    def _settle_alone(
        self,
        paths: Sequence[Path],
        new: Sequence[Job],
        before: Mapping[Path, Mapping[str, Entry]],
        looking: _Looking,
        below: Mapping[Path, Level],
    ) -> tuple[Applied, ...]:
        """No other thread reads or writes these cgroups meanwhile."""
        applied: dict[tuple[str, str], Applied] = {}
        left = paths
        while left:
            batch = {path: held for path in left if (held := self._held.get(path)) is not None}
            jobs = self._jobs(batch, new, looking, below)
            below = _NOTHING_BELOW
            results = self._executor.write(jobs)
            for job in jobs:
                for why in job.plan.left.values():
                    self.counts.left.add(_REASONS.get(why, "not_in_range"))
            done = {(result.cgroup, result.name): result for result in results}
            for job in jobs:
                self._note_bound(job, done)
                self._note_unapplied(job, batch[job.path], done)
                applied |= self._applied(job, batch[job.path], before.get(job.path, books.NO_VALUES), done)
            # A call may have claimed something else meanwhile.
            left = [job.path for job in jobs if not self._keep(job, batch[job.path], done)]
        self.failures.add(each.result for each in applied.values())
        return tuple(applied.values())

    def _note_bound(self, job: Job, done: Mapping[tuple[str, str], WriteResult]) -> None:
        result = done.get((job.plan.book.id, QUOTA))
        if QUOTA in job.plan.bounded and result is not None and result.outcome is WriteOutcome.FAILED:
            self._refused_bounds.add(job.path)
        elif result is not None or QUOTA not in job.plan.bounded:
            self._refused_bounds.discard(job.path)

    def _note_unapplied(self, job: Job, held: Held, done: Mapping[tuple[str, str], WriteResult]) -> None:
        names = {*held.book.entries, *job.plan.book.entries}
        found = dict(not_written(job, done, self._files))
        self.unapplied.note(UnappliedStage.BOOKED, held.target, job.plan.book.id, found, among=names)
        found = dict(given_way(job))
        self.unapplied.note(UnappliedStage.LOST, held.target, job.plan.book.id, found, among=names)

    def _applied(
        self, job: Job, held: Held, before: Mapping[str, Entry], done: Mapping[tuple[str, str], WriteResult]
    ) -> Iterator[tuple[tuple[str, str], Applied]]:
        """The values of one cgroup of a batch, by cgroup and parameter."""
        plan, target = job.plan, held.target
        for name, value in plan.values.items():
            key = plan.book.id, name
            result = done.get(key)
            if result is None:
                continue
            claims, change = plan.used.get(name, ()), ValueChange.NONE
            is_given_back = name not in plan.used
            entry = held.book.entries.get(name)
            if is_written(result) and entry is not None and name in job.present:
                found = job.present[name]
                change = books.change_of(plan.book.level, name, entry, held.book, found, self._files)
            if is_given_back and name in before:
                claims = before[name].claims
            yield key, Applied(target, result, claims, is_given_back, change, result.value != value)
        for name, why in plan.left.items():
            yield (plan.book.id, name), Applied(target, _left(job, name, why), plan.used.get(name, ()))

    def _note_look(self, level: int, cause: str, held: Held, applied: Sequence[Applied]) -> None:
        """Counts and logs the values that had been changed, and logs those that could not be written before.

        Args:
            level: Of the lines, but for those about values that cannot be written.
            cause: Of the look.
            held: The cgroup that was looked at, as it was before.
            applied: All its values.
        """
        written = [each for each in applied if is_written(each.result)]
        changed = [each for each in written if each.change is not ValueChange.NONE]
        later = [each for each in written if each.change is ValueChange.NONE and not each.is_held_up]
        if changed:
            self.counts.repairs.add((held.book.level, cause), len(changed))
            self._log_repair(level, changed)
        if later:
            later_level = min(level, logging.INFO)
            log_values(later_level, "cgroup values of %s could be written only now: %s", later)
        for result in (each.result for each in applied if each.result.outcome in FAILURES):
            text = f"{result.name} cannot be set: {result.error}"
            fields: dict[str, Any] = {**pod_fields(held.target), "field": result.name, "value": result.value}
            self._failures.report(result.cgroup, (result.name, result.error), text, **fields)

    def _log_repair(self, level: int, changed: Sequence[Applied]) -> None:
        if level < logging.WARNING:
            log_values(level, "cgroup values of %s had been changed, and are set again: %s", changed)
            return
        # A look follows every second, and a reset may follow every repair.
        whose, values, fields = described(changed)
        cause = tuple((each.result.cgroup, each.result.name) for each in changed)
        text = f"had been changed, and are set again: {values}"
        self._failures.report(f"cgroup values of {whose}", cause, text, level=level, **fields)

    def _forget(self, path: Path) -> None:
        super()._forget(path)
        self._foreign_writers.forget(path)
        self._repaired.pop(path, None)
        self._refused_bounds.discard(path)
        self.failures.forget(identity_of(path))

    def _level(self, path: Path) -> Level | None:
        held = self._held.get(path)
        return None if held is None else held.book.level

    def _jobs(
        self,
        batch: dict[Path, Held],
        new: Sequence[Job],
        looking: _Looking,
        below: Mapping[Path, Level],
    ) -> list[Job]:
        """Plans a batch; cgroups whose values have to fit to those of others join it.

        Args:
            batch: The cgroups.
            new: Containers that are about to be created.
            looking: See `_settle`.
            below: Cgroups with a quota below one whose bound begins.
        """
        # A cgroup is opened with one system call below one that is open.
        looks = {path: self._look(path, batch[path], (), looking) for path in sorted(batch)}
        for path, level in below.items():
            if path not in looks:
                held = self._held.get(path) or self._unclaimed(path, level)
                looks[path] = self._look(path, held, (QUOTA,), looking)
        jobs = {path: self._job(path, look) for path, look in looks.items()}
        for path, names in fitting.parents_to_read(list(jobs.values()), self._files):
            if path not in jobs or not names <= looks[path].present.keys():
                held = batch.get(path) or self._held.get(path) or self._unclaimed(path)
                looks[path] = self._look(path, held, names, looking)
                jobs[path] = self._job(path, looks[path])
        children = [each for job in jobs.values() for each in self._children(job, jobs)]
        above = {each.path: each for job in jobs.values() for each in self._jobs_above(job.path)}
        bounds = [job for path, job in above.items() if path not in jobs]
        changes = fitting.fitted((*jobs.values(), *children, *bounds, *new), self._files)
        for path, job in jobs.items():
            most_us, until_s = self._lowered.get(path, (0, 0.0))
            burst_us = changes.get(path, {}).get(BURST, job.plan.values.get(BURST))
            if self.now_s() < until_s and isinstance(burst_us, int) and burst_us > most_us:
                changes.setdefault(path, {})[BURST] = most_us
        for path, values in changes.items():
            if path not in jobs:
                # What is not claimed there, or not yet there, is not for this batch to change.
                continue
            jobs[path] = self._job(path, looks[path], fitted=values)
            if path not in batch and jobs[path].plan.values:
                with self._lock:
                    level = below.get(path, Level.POD)
                    batch[path] = self._held.setdefault(path, self._unclaimed(path, level))
        return [job for path, job in jobs.items() if path in batch]

    def _children(self, job: Job, known: Container[Path]) -> Iterator[Job]:
        """The other containers of a pod, as they are: on version 2 those with values of ours.

        Only version 1 refuses a pod that has less than what the kubelet gave to one of its containers.
        """
        held = self._held.get(job.path)
        is_fitted = held is not None and books.is_fitted(held.book)
        if is_fitted or fitting.depends_on_children(job, self._files):
            for name in self._files.children(job.path, SHARES):
                path = (*job.path, name)
                child = self._held.get(path)
                is_ours = child is not None and not fitting.OF_CHILDREN.isdisjoint(child.book.entries)
                if path not in known and (is_ours or self.is_v1):
                    blank = BookPlan(Book(identity_of(path), Level.CONTAINER))
                    yield Job(path, blank, self._files.look(path, fitting.OF_CHILDREN))

    def _look(self, path: Path, held: Held, names: Iterable[str], looking: _Looking) -> _Look:
        book = books.without_claims(held.book, {books.TREE})
        names = fitting.with_neighbours({*book.entries, *names})
        present = self._files.look(path, (*names, USAGE) if LIMIT in names else names)
        valid = books.still_valid(book, present.values(), self._boot_id)
        if valid is not book:
            self.counts.renewed.add(book.level)
        book = books.restored(valid, present, self._files)
        only_observed = {
            name: (UnappliedCause.KOORDLET, BY_KOORDLET)
            for name in self.observed & book.entries.keys()
            if not any(each.owner.startswith(SERVER_PREFIX) for each in book.entries[name].claims)
        }
        only_observed |= self._written_by_others(path, held, book, present, looking)
        if looking.is_periodic and (missing := book.entries.keys() - present.keys()):
            only_observed |= dict.fromkeys(missing, self._why_missing(path, present))
        return _Look(book, present, only_observed)

    def _why_missing(self, path: Path, present: Mapping[str, FileText]) -> tuple[UnappliedCause, str]:
        """Why files of a cgroup cannot be read."""
        if present or self._files.look(path, (SHARES, LIMIT, *LISTS)):
            return UnappliedCause.NO_FILE, NO_FILE
        return UnappliedCause.NO_CGROUP, NO_CGROUP

    def _job(self, path: Path, look: _Look, *, fitted: fitting.Changes = books.NO_VALUES) -> Job:
        book = look.book
        if fitted:
            plain = books.plan(
                book, look.present, self._files, only_observed=look.only_observed, rule=self.rule
            )
            book = books.with_fitted(book, plain.values, fitted)
        plan = books.plan(
            book, look.present, self._files, only_observed=look.only_observed, rule=self.rule, fitted=fitted
        )
        return Job(path, plan, look.present, look.only_observed)

    def _unclaimed(self, path: Path, level: Level = Level.POD) -> Held:
        target = CgroupTarget(level, identity_of(path))
        return Held(self._blank(path, target), self.now_s(), target)

    def _written_by_others(
        self, path: Path, held: Held, book: Book, present: Mapping[str, FileText], looking: _Looking
    ) -> dict[str, tuple[UnappliedCause, str]]:
        """The parameters that other programs write, and that are left to them for a time or for good."""
        left: dict[str, tuple[UnappliedCause, str]] = {}
        for name, entry in book.entries.items():
            if name not in present or entry.resolved is None:
                continue
            change = books.change_of(book.level, name, entry, book, present[name], self._files)
            if change is ValueChange.NONE:
                continue
            if entry.is_once:
                if looking.is_periodic:
                    left[name] = UnappliedCause.ONCE, WRITTEN_ONCE
            elif change is ValueChange.FOREIGN and entry.claims:
                self._repaired.setdefault(path, {})[name] = present[name].text
                # After an event that resets values, the event is the likelier cause.
                if looking.counts_foreign and not self._foreign_writers.is_yielding(path, name):
                    self._count_overwrite(path, held.target, name, entry.resolved, present[name].text)
                if self._foreign_writers.is_yielding(path, name):
                    theirs = present[name].text.strip()
                    left[name] = (
                        UnappliedCause.FOREIGN,
                        f"it is left to another program, which keeps writing {theirs}",
                    )
        return left

    def _count_overwrite(self, path: Path, target: CgroupTarget, name: str, ours: Value, text: str) -> None:
        self.counts.overwrites.add(name)
        theirs = self._files.decode(name, text)
        theirs = text.strip() if theirs is None else theirs
        if self._foreign_writers.on_overwrite(path, name, ours, theirs):
            return
        yields_s = max(each.left_s for each in self.yielded() if (each.path, each.name) == (path, name))
        text = "another program keeps writing a cgroup value of %s: %s is %s, not %s, and is left so for %d s"
        about = {"pod": target.name, "uid": target.uid, "cgroup": identity_of(path), "field": name}
        logger.warning(text, target.name or identity_of(path), name, theirs, ours, yields_s, extra=about)

    def _keep(self, job: Job, before: Held, done: Mapping[tuple[str, str], WriteResult]) -> bool:
        """Keeps the book of a batch; returns whether it is still the wanted one."""
        after = _as_written(job.plan, before.book, done)
        with self._lock:
            now = self._held.get(job.path)
            is_same = now is before
            if now is not None and not is_same:
                after = books.with_written(now.book, after)
            if not after.entries and is_same:
                self._forget(job.path)
            elif now is not None and after != now.book:
                self._held[job.path] = now._replace(book=after)
        is_noted = job.plan.noted is not None
        if is_noted or job.plan.given_back:
            self._journal.settle(after)
        if job.plan.given_back:
            self.counts.given_back.add(after.level, len(job.plan.given_back))
        for name in job.plan.given_back:
            self._foreign_writers.forget(job.path, name)
        if now is None or is_noted or not books.is_saved_alike(before.book, after):
            self._report([job.path])
        return is_same or now is None


def _as_written(plan: BookPlan, before: Book, done: Mapping[tuple[str, str], WriteResult]) -> Book:
    """The book after a batch: a value that could not be written is not there."""
    entries, originals = dict(plan.book.entries), plan.book.originals
    for name in plan.values:
        result = done.get((plan.book.id, name))
        known = before.entries.get(name)
        if known is not None and result is not None and result.left is not None:
            # The next look finds a value of ours there, and no other program's.
            known = known._replace(resolved=result.left)
        if result is not None and is_there(result):
            if name in entries:
                entries[name] = entries[name]._replace(resolved=result.value)
        elif known is not None and (result is None or result.outcome is not WriteOutcome.MISSING):
            entries[name], originals = known, {**before.originals, **originals}
        elif name in entries and known is not None:
            entries[name] = entries[name]._replace(resolved=known.resolved)
    if entries == plan.book.entries and originals == plan.book.originals:
        return plan.book
    return replace(plan.book, entries=entries, originals=originals)


_SUM: Final = "the sum of its containers'"
"""The reason of a claim on a pod that follows from those on its containers."""


def _is_of_class(name: str) -> bool:
    """Whether a cgroup below that of all pods is that of a QoS class."""
    stem = name.removesuffix(".slice").rpartition("-")[2]
    return stem in ("burstable", "besteffort")


def _failed(path: Path, name: str, entry: Entry, why: str) -> WriteResult:
    return WriteResult(identity_of(path), name, entry.resolved or "", WriteOutcome.FAILED, error=why)


def _left(job: Job, name: str, why: str) -> WriteResult:
    found = job.present.get(name)
    outcome = WriteOutcome.MISSING if why in _REASONS else WriteOutcome.INVALID
    value = "" if found is None else found.text.strip()
    return WriteResult(job.plan.book.id, name, value, outcome, error=why)


_REASONS: Final = {
    books.UNKNOWN_BASE: "unknown_base",
    books.UNKNOWN_ORIGINAL: "unknown_original",
    books.CHANGED_SINCE: "changed_since",
}
"""Why values are left alone, and how they are counted; all others are out of range."""


def _shown(claims: Sequence[Claim]) -> Value:
    value = claims[0].value if claims else ""
    return value if isinstance(value, int | str) else str(value)
