"""The ledger: the wanted values of all cgroups, resolved, written and given back.

Only its executor has cgroup files written. What is claimed is written, compared again from time to time, and
given back with its last claim.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from runtimeproxy.cgroups.core_scheduling import FIELD as CORE_GROUP
from runtimeproxy.cgroups.core_scheduling import NO_GROUP
from runtimeproxy.cgroups.paths import CgroupPathError, cgroup_id, cgroup_path, path_or_none, paths_of
from runtimeproxy.cgroups.writer import FAILURES, CgroupWriter, FileText, WriteOutcome, explain
from runtimeproxy.fields.tables import LISTS, NEUTRAL, QUOTA, SHARES
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.ledger import book_store, books, fitting
from runtimeproxy.ledger.answers import by_parameter
from runtimeproxy.ledger.book_store import Books
from runtimeproxy.ledger.books import MadeBelow, Value, Wanted
from runtimeproxy.ledger.change_log import Applied
from runtimeproxy.ledger.foreign import Yielded
from runtimeproxy.ledger.journal import Journal, Noted
from runtimeproxy.ledger.path_locks import IsBusyError
from runtimeproxy.ledger.planner import NEW, SettleCause, new_container
from runtimeproxy.ledger.settle import Settlement
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.tree import Path
from runtimeproxy.pods.records import Book, ContainerRecord, Entry, Level
from runtimeproxy.units import measured_weight_formula

_SUM: Final = "the sum of its containers'"
"""The reason of a claim on a pod that follows from those on its containers."""


class Ledger:
    """The values of a node's cgroups; safe for all threads.

    Methods of this class read and write files, in worker threads; those of `books` do not.

    Attributes:
        books: What is wanted, by whom, and what was there before.
    """

    def __init__(
        self,
        files: CgroupWriter,
        journal: Journal,
        boot_id: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._journal = journal
        self._boot_id = boot_id
        self._prune_at = book_store.MOST_UNCLAIMED
        self.books = Books(files, boot_id, clock)
        self._settlement = Settlement(self.books, files, journal, boot_id, clock)
        files.groups.booked = self._texts_by_group
        self.counts = self._settlement.counts
        self.failures = self._settlement.failures

    def look(self, cgroup: str, names: Iterable[str]) -> Mapping[str, FileText]:
        """Reads the present contents of a cgroup's files, by parameter.

        Raises:
            OSError: No file can be read at all.
        """
        path = path_or_none(cgroup)
        return {} if path is None else self._files.look(path, names)

    def compared(self, cgroup: str, values: Mapping[str, str]) -> Mapping[str, tuple[str, bool]]:
        """The present values of a cgroup's files by parameter, and whether each is the given one.

        Raises:
            OSError: No file can be read at all.
        """
        formats, found = self.books.formats, self.look(cgroup, values)
        compared: dict[str, tuple[str, bool]] = {}
        for name, each in found.items():
            text = values[name]
            value: Value = int(text) if text.removeprefix("-").isdecimal() else text
            with suppress(ValueError, TypeError):  # the file holds something else
                now = formats.decode(name, each.text)
                compared[name] = "" if now is None else str(now), formats.matches(name, value, each.text)
        return compared

    def yielded(self) -> tuple[Yielded, ...]:
        return self._settlement.planner.foreign.yielded()

    def _texts_by_group(self, group: str) -> Mapping[str, Sequence[str]]:
        """See `CoreGroups.booked`."""
        found: dict[str, list[str]] = {}
        for book in self.books:
            entry = book.entries.get(CORE_GROUP)
            name = entry.resolved if entry is not None else None
            if isinstance(name, str) and name != NO_GROUP and group in ("", name):
                with suppress(OSError):
                    if (text := self.look(book.id, (CORE_GROUP,)).get(CORE_GROUP)) is not None:
                        found.setdefault(name, []).append(text.text)
        return found

    # --- claims ------------------------------------------------------------------------------------------

    def change(self, wanted: Sequence[Wanted]) -> tuple[Applied, ...]:
        """Takes what is claimed of some cgroups now, and writes what follows, as one batch.

        Where something with a lease is added to quotas of containers, their pods get the sum.

        Args:
            wanted: All answers of policies, or all of one owner: then of one pod, or of one QoS class and
                below.

        Returns:
            One result per value that was to be written; never raises for an error of the kernel.
        """
        refused: list[Applied] = []
        changed: dict[Path, Mapping[str, Entry]] = {}
        pods: dict[Path, None] = {}
        paths = {path_or_none(each.target.cgroup) for each in wanted}
        bound = [more for each in wanted if each.binds_descendants for more in self._bound_below(each, paths)]
        for each in (*wanted, *bound):
            try:
                self._take(each, changed)
            except CgroupPathError as error:
                refused += _refused(each, str(error))
                continue
            if each.target.level is Level.CONTAINER:
                pods[cgroup_path(each.target.cgroup)[:-1]] = None
        for pod in pods:
            # With other scales and ceilings another part of what is added applies.
            if (sums := self.books.sums_of_adds(pod)) is not None:
                for owner in {each.owner for each in wanted if each.owner} or sums:
                    claims = (Claim(owner, Role.ADD, sums[owner], reason=_SUM),) if sums.get(owner) else ()
                    target = self.books.target(cgroup_id(pod)) or CgroupTarget(Level.POD, cgroup_id(pod))
                    self._take(Wanted(target, {QUOTA: claims}, owner=owner), changed)
        cause = SettleCause.CLAIM if any(each.owner for each in wanted) else SettleCause.EVENT
        return (*refused, *(self._settlement.settle(changed, cause) if changed else ()))

    def _take(self, wanted: Wanted, changed: dict[Path, Mapping[str, Entry]]) -> None:
        """Takes claims into the books; `changed` gets the entries of before, for what is to be settled."""
        path, before, after = self.books.book(wanted)
        if wanted.owner and after is before:
            return
        changed.setdefault(path, before.entries)
        if wanted.owner:
            originals = {} if after.originals == before.originals else after.originals
            if (leases := books.changed_leases(before, after)) or originals:
                # The process may be killed after the value is written, and before the claim is saved.
                self._journal.note(Noted(after.id, after.level, originals, {}, {}, leases))

    def _bound_below(self, wanted: Wanted, own: Container[Path | None]) -> Iterator[Wanted]:
        """Claims on lists of CPUs of a QoS class, repeated for the pods and containers below it.

        A list of a parent bounds that of its children on version 2, where an empty one is the parent's, so
        that those without a list of their own follow by themselves. Version 1 refuses a parent a list that
        lacks something of a child's.
        """
        path = cgroup_path(wanted.target.cgroup)
        for name, claims in wanted.claims.items():
            if name not in LISTS:
                continue
            bounds = tuple(each for each in claims if each.role is Role.AT_MOST)
            above = self._list_above(path, name)
            for inner, level in self._settlement.planner.below(path, name):
                known = self.books.find(inner)
                if inner in own or not (bounds or above or known is not None):
                    continue
                found = self._files.look(inner, (name,)).get(name)
                if found is None or (bounds and not self.books.is_v1 and not found.text.strip()):
                    continue
                value = self._files.decode(name, found.text)
                made = {name: MadeBelow(value, above[1])} if above and value == above[0] else {}
                target = known.target if known is not None else CgroupTarget(level, cgroup_id(inner))
                yield Wanted(target, {name: bounds}, owner=wanted.owner, made_below=made)

    def _list_above(self, path: Path, name: str) -> tuple[Value, str] | None:
        """The list with which new cgroups below a bounded one begin, and that without the bound.

        None on version 2, where they begin with none.
        """
        known = self.books.find(path)
        if not self.books.is_v1 or known is None or books.bound_of(known.book.entries.get(name)) is None:
            return None
        bounded = {each for each, _, bounds in self.books.bounds_above((*path, NEW)) if name in bounds}
        unbounded = next(path[:length] for length in range(len(path), -1, -1) if path[:length] not in bounded)
        mine = self._files.look(path, (name,)).get(name)
        free = self._files.look(unbounded, (name,)).get(name)
        value = self._files.decode(name, mine.text) if mine is not None else None
        return None if value is None or free is None else (value, free.text)

    def release(
        self, cgroups: Collection[str], *, owners: Collection[Claimant] = (), names: Collection[str] = ()
    ) -> tuple[Applied, ...]:
        """Ends claims, and writes what follows, as one batch; see `Books.forget_claims` and `change`."""
        paths = [cgroup_path(cgroup) for cgroup in cgroups]
        before = {path: known.book.entries for path in paths if (known := self.books.find(path)) is not None}
        self.books.forget_claims(cgroups, owners=owners, names=names)
        return self._settlement.settle(before)

    def start(self, wanted: Wanted) -> tuple[Applied, ...]:
        """Writes the values of a cgroup that exists now: those of its book, or these if it has none."""
        path = self.books.add_missing(wanted)
        return self.change([wanted]) if path is None else self._settlement.settle(self._unchanged(path))

    def _unchanged(self, path: Path) -> dict[Path, Mapping[str, Entry]]:
        known = self.books.find(path)
        return {path: known.book.entries if known is not None else {}}

    def settle_bounds(self, paths: Iterable[Path]) -> dict[Path, str]:
        """Writes the quotas of cgroups whose opening has changed; those without claims are left alone.

        Returns:
            The cgroups whose quota could not be written, with the reason.
        """
        batch = {path: known.book.entries for path in paths if (known := self.books.find(path)) is not None}
        results = self._settlement.settle(batch) if batch else ()
        failed = [each for each in results if each.name == QUOTA and each.outcome in FAILURES]
        reasons = {cgroup_path(each.cgroup): f"{each.cgroup}: {each.error}" for each in failed}
        return {path: reason for path, reason in reasons.items() if path in batch}

    # --- comparisons -------------------------------------------------------------------------------------

    def repair(self, cgroup: str, *, is_explained: bool = True) -> None:
        """Compares the values of a cgroup after an event, and repairs them.

        `is_explained`: whether the event is known to reset values; else another program may have written.
        """
        if (path := path_or_none(cgroup)) is not None:
            self._settlement.compare(path, SettleCause.EVENT if is_explained else SettleCause.COMPARISON)

    def verify(
        self,
        levels: Collection[Level],
        pod_cgroups: Collection[str] | None = None,
        names: frozenset[str] | None = None,
    ) -> None:
        """Compares the values of all cgroups of some levels, and repairs them.

        `pod_cgroups`: of all running pods: the cgroups of others are left alone; None for all. `names`: only
        cgroups with one of these parameters; None for all.
        """
        for path in self.books.within(levels, pod_cgroups, names):
            self._settlement.compare(path, SettleCause.COMPARISON)

    def restore_leased(self, records: Mapping[str, ContainerRecord]) -> None:
        """Reads the values of claims with a lease that a process before this one has left in the files.

        Args:
            records: Of the containers, by the ids of their books: a journal has no requests.
        """
        for known in self.books.leased():
            path = cgroup_path(known.target.cgroup)
            with suppress(IsBusyError, OSError), self._settlement.locks.held([path]):
                before = book = known.book
                if (record := records.get(book.id)) is not None:
                    book = books.with_requests(
                        book, by_parameter(record.requested), by_parameter(record.booked)
                    )
                book = self._settlement.planner.read(path, known._replace(book=book), ()).book
                self.books.revise(path, partial(_unless_changed, before, book))

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
                    cgroup_id((*path, each)) for name in names for each in self._files.children(path, name)
                ]
            if depth:
                left += self.clear(below, names, depth - 1)
        return tuple(left)

    def _cleared(self, path: Path, names: Collection[str]) -> list[str]:
        identity = cgroup_id(path)
        try:
            with self._settlement.locks.held([path]):
                values = {name: NEUTRAL[name] for name in self._not_neutral(path, names)}
                if not values:
                    return []
                results = self._settlement.executor.write_values(identity, values)
                errors = {each.name: f" ({each.error})" for each in results if each.error}
                return [
                    f"{name} of {identity} is {text}{errors.get(name, '')}"
                    for name, text in self._not_neutral(path, values).items()
                ]
        except (IsBusyError, OSError) as error:
            return [error.why if isinstance(error, IsBusyError) else explain(error, "")]

    def _not_neutral(self, path: Path, names: Iterable[str]) -> dict[str, str]:
        return {
            name: found.text.strip()
            for name, found in self._files.look(path, names).items()
            if not self._files.matches(name, NEUTRAL[name], found.text)
        }

    # --- calls of the kubelet ----------------------------------------------------------------------------

    def on_resized(self, cgroup: str, written: Mapping[str, Value] = books.NO_VALUES) -> None:
        # The kubelet has written to the pod's cgroup itself.
        if (path := path_or_none(cgroup)) is not None:
            self._settlement.on_resized(path, written)

    def before_update(self, cgroup: str, quota_us: int) -> None:
        if (path := path_or_none(cgroup)) is not None:
            self._settlement.before_update(path, quota_us)

    def make_room(self, pod_cgroup: str, values: Mapping[str, Value]) -> None:
        """Raises the quota and the CPUs of a pod, if they are ours, to those of a container to be created.

        On cgroup version 1 the runtime could not create it otherwise; on version 2 nothing happens.

        `values`: of the container, by parameter, as its message has them.
        """
        book, names = self.books.record(pod_cgroup), values.keys() & fitting.OF_CHILDREN
        if self.books.is_v1 and book is not None and not names.isdisjoint(book.entries):
            path = cgroup_path(pod_cgroup)
            new = new_container((*path, NEW), {name: values[name] for name in names})
            self._settlement.settle(self._unchanged(path), new=[new])

    def within_bounds(self, pod_cgroup: str, values: Mapping[str, Value]) -> Mapping[str, Value]:
        """Fits the values of a container to bounds of cgroups above, before a message carries them.

        On cgroup version 1 the runtime could not write the others. Version 2 takes any list of CPUs: those
        that the container may have are effective. Reads no file.

        `values`: of the container, by parameter, as its message has them.
        """
        pod = path_or_none(pod_cgroup)
        return {} if pod is None else self._settlement.planner.within_bounds((*pod, NEW), values)

    def measure_weights(self, level: Level, shares: Mapping[str, int]) -> None:
        """Finds out how cgroups of a level get their cpu.weight, by those that others have written.

        runc from 1.3.2 on, and the kubelets with its code, turn shares into other weights than before. Only
        weights of one formula share the CPU as they should.

        `shares`: requested cpu.shares by cgroup, the newest last.
        """
        for cgroup, requested in reversed(list(shares.items())):
            book = self.books.record(cgroup)
            if book is not None and SHARES in book.entries:
                continue
            with suppress(OSError):
                found = self.look(cgroup, (SHARES,)).get(SHARES)
                if found is not None and found.file == SHARES:
                    return  # version 1, which has no weights
                text = found.text.strip() if found is not None else ""
                formula = measured_weight_formula([(requested, int(text))]) if text.isdecimal() else None
                if formula is not None:
                    self._settlement.executor.weights[level] = formula
                    return

    # --- cgroups that are gone ---------------------------------------------------------------------------

    def prune(self, pod_cgroups: Iterable[str], container_ids: Iterable[str] = ()) -> None:
        # Cheap unless there are many.
        if len(self.books) > self._prune_at:
            self.forget_gone(pod_cgroups, container_ids)
            self._prune_at = len(self.books) + book_store.MOST_UNCLAIMED

    def forget_gone(self, pod_cgroups: Iterable[str], container_ids: Iterable[str] = ()) -> None:
        """Forgets cgroups that are gone, and what was left alone in them; see `Books.forget_gone`."""
        live = paths_of(pod_cgroups)
        for path in self.books.forget_gone(map(cgroup_id, live), container_ids):
            self._settlement.forget(path)
        for cgroup in {result.cgroup for result in self.failures.left}:
            path = cgroup_path(cgroup)
            if self.books.find(path) is None and live.isdisjoint((path, path[:-1])):
                self.failures.forget(cgroup)

    # --- checkpoint --------------------------------------------------------------------------------------

    def note_saved(self, identity: str, book: Book | None) -> None:
        self._journal.note_saved(identity, book)

    def read_journal(self) -> list[Book]:
        """The books that the journals of killed processes lead to; `Books.load` follows."""
        found: dict[Path, Book] = {}
        for noted in self._journal.read():
            if (path := path_or_none(noted.cgroup)) is None:
                continue
            present: Mapping[str, FileText] = {}
            with suppress(OSError):
                present = self._files.look(path, (*noted.values, *noted.leases))
            found[path] = books.with_noted(found.get(path), noted, present, self._files, self._boot_id)
        self.counts.recovered += len(found)
        for book in found.values():
            self._journal.settle(book)
        return list(found.values())


def _unless_changed(before: Book, after: Book, now: Book) -> Book:
    return after if now is before else now


def _refused(wanted: Wanted, why: str) -> Iterator[Applied]:
    for name, claims in wanted.claims.items():
        value = claims[0].value if claims else ""
        shown = value if isinstance(value, int | str) else str(value)
        about = wanted.target.cgroup, name, shown, WriteOutcome.REFUSED
        yield Applied(*about, error=why, target=wanted.target, claims=claims)
