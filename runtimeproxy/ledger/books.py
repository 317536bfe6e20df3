"""The rules of the books: from claims and present contents to what is written, kept and given back. Pure.

Per parameter of a cgroup there are the requested value (by the kubelet), the booked one (in the runtime's
specification of a container), the resolved one (of all claims), the observed one (in the file), and the
original: the raw text of the file before the first write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import permutations
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from runtimeproxy.cgroups.order import loosened
from runtimeproxy.cgroups.writer import CgroupValues, FileText
from runtimeproxy.fields.devices import (
    by_device,
    given_back,
    is_same_setting,
    joined_lines,
    text_of,
)
from runtimeproxy.fields.tables import (
    BY_DEVICE,
    FIELDS,
    IDLE,
    NEUTRAL,
    PERIOD,
    QUOTA,
    SHARES,
    V2_FILES,
    check_value,
    clamped,
)
from runtimeproxy.hooks.algebra import Claim, ClaimOutcome, FieldValue, Note, Resolved, Role, resolve
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind, parse_claimant
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.ledger.fields import KUBELET_ON_PODS, Base, base_of, is_of_kubelet
from runtimeproxy.ledger.journal import Noted
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.tree import BURST, Path
from runtimeproxy.ledger.unapplied import UnappliedCause, Withheld
from runtimeproxy.pods.records import Book, CgroupRecord, Entry, Level, Original, as_saved, is_leased
from runtimeproxy.units import UNLIMITED, rounded_quota

Value = int | str

NO_VALUES: Final[Mapping[str, Any]] = MappingProxyType({})

TREE: Final = Claimant("cgroup-tree")
"""The owner of values that no policy claims, but that values of other cgroups or files need."""
RECOVERED: Final = Claimant("recovered")
"""The owner of a value that is ours, until the next evaluation names the policy."""


class Formats(Protocol):
    """The files of this node's cgroup version; `CgroupWriter` has them."""

    def decode(self, name: str, text: str) -> Value | None: ...
    def encode(self, name: str, value: Value) -> str | None: ...
    def matches(self, name: str, value: Value, text: str) -> bool: ...
    def parts(self, name: str, text: str) -> tuple[str, ...]: ...
    def file_of(self, name: str) -> str | None: ...


class MadeBelow(NamedTuple):
    """A list of a cgroup that was made below a bound: on version 1 it begins with the list of that above."""

    value: Value
    """That it began with."""
    original: str
    """The content of its file without the bound."""


class Wanted(NamedTuple):
    """Claims on one cgroup.

    Without an owner the whole answer of all policies: what is not named in it any more is given back. With an
    owner all its claims on the named parameters: none end those that it had.
    """

    target: CgroupTarget
    claims: Mapping[str, tuple[Claim, ...]]
    """By parameter, in its version 1 name."""
    requested: Mapping[str, Value] = {}
    """Of a container: what the kubelet asked for. Of a pod: what its containers' requests come to, for
    values whose original is not known."""
    booked: Mapping[str, Value] = {}
    """Of a container: what the runtime's specification holds."""
    owner: Claimant | None = None
    """Who claims with a lease; None for the answer of all policies."""
    binds_descendants: bool = False
    """Whether lists of CPUs of this owner bound every cgroup below, too."""
    made_below: Mapping[str, MadeBelow] = {}
    """By parameter, of a cgroup that was made below a bound; on version 1 only."""
    once: frozenset[str] = frozenset()
    """Parameters that are written once and then observed only."""
    unanswered: frozenset[str] = frozenset()
    """Owners without an answer this time, as an input is not known: what they wanted before still holds."""
    blocked: frozenset[str] = frozenset()
    """Parameters whose claims stay as they are."""
    withheld: Mapping[str, Withheld] = {}
    """Wanted values beside the claims that cannot be claimed now, by parameter or field of the message."""


class ValueChange(StrEnum):
    """How a value has changed between two comparisons."""

    NONE = "none"
    RESET = "reset"
    """It went back to the booked value, the original or the systemd unit's: repaired, never counted."""
    FOREIGN = "foreign"
    """Another program has written a value of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(CgroupValues):
    """The values to be written to one cgroup, and what they follow from."""

    book: Book
    """As it is when the values are written."""
    only_observed: Mapping[str, tuple[UnappliedCause, str]] = field(default_factory=dict)
    """Parameters that are not written, with the reason."""
    noted: Noted | None = None
    """The line for the journal, which is on disk before."""
    left: Mapping[str, Left] = field(default_factory=dict)
    """Parameters that are left alone."""
    given_back: frozenset[str] = frozenset()
    """Parameters that no longer hold a value of ours."""
    resolved: Mapping[str, Resolved] = field(default_factory=dict)
    """The results of the claims, by parameter, before they are fitted to other values."""
    used: Mapping[str, tuple[Claim, ...]] = field(default_factory=dict)
    """The effective claims, by parameter; none for those that are given back."""
    bounded: frozenset[str] = frozenset()
    """Parameters with an at_most, whether their value is lower because of it or not."""

    @property
    def path(self) -> Path:
        return tuple(filter(None, self.cgroup.split("/")))

    @property
    def level(self) -> Level:
        return self.book.level

    def wanted(self, name: str) -> Value | None:
        """The result of the claims on a parameter; None if it cannot be computed."""
        value = self.resolved[name].value if name in self.resolved else None
        return value if isinstance(value, int | str) else None


def with_claims(book: Book, wanted: Wanted) -> Book:
    """The book with what is claimed now.

    The answer of all policies leaves claims of hook servers, claims with a lease, and those of unanswered
    owners; that of an owner leaves those of all others.
    """
    entries, originals = dict(book.entries), dict(book.originals)
    for name in wanted.claims if wanted.owner else {**book.entries, **wanted.claims}:
        if name in wanted.blocked:
            continue
        if is_of_kubelet(book.level, name):
            entries.pop(name, None)
            continue
        entry = entries.get(name, Entry())
        if wanted.owner:
            others = tuple(claim for claim in entry.claims if claim.owner != wanted.owner)
            after = entry._replace(claims=(*others, *wanted.claims[name]))
            if name not in entries:
                made = wanted.made_below.get(name)
                if after.claims:
                    asked, booked = wanted.requested.get(name), wanted.booked.get(name)
                    after = after._replace(requested=asked, booked=booked)
                elif made is not None:
                    after = after._replace(resolved=made.value)
                if made is not None and book.level is Level.POD:
                    originals.setdefault(name, Original(made.original))
        else:
            after = _answered(book, name, entry, wanted)
        if after != entry:
            entries[name] = after
    return book if entries == book.entries else replace(book, entries=entries, originals=originals)


def _answered(book: Book, name: str, entry: Entry, wanted: Wanted) -> Entry:
    """The entry of a parameter with the answer of all policies."""
    claims = wanted.claims.get(name, ())
    if entry.claims:
        given = {claim.owner for claim in claims}
        claims += tuple(
            claim
            for claim in entry.claims
            if claim.owner not in given
            and (claim.owner.kind is not ClaimantKind.POLICY or claim.owner.name in wanted.unanswered)
        )
    is_once = name in wanted.once if name in wanted.claims else entry.is_once
    is_settling = (is_once and name in wanted.claims and book.id.endswith(".slice")) or entry.is_settling
    requested, booked = wanted.requested.get(name), wanted.booked.get(name)
    return Entry(claims, entry.resolved, requested, booked, is_once, is_settling)


def with_requests(book: Book, requested: Mapping[str, Value], booked: Mapping[str, Value]) -> Book:
    """The book of a container with what its record says of parameters that have claims with a lease."""
    entries = {
        name: entry._replace(requested=requested.get(name), booked=booked.get(name))
        if entry.leases and entry.requested is None and entry.booked is None
        else entry
        for name, entry in book.entries.items()
    }
    return book if entries == book.entries else replace(book, entries=entries)


def changed_leases(before: Book, after: Book) -> dict[str, tuple[tuple[str, str], ...]]:
    """Owners and roles of claims with a lease, for the journal: of parameters where they have changed."""
    none = Entry()
    return {
        name: after.entries.get(name, none).leases
        for name in {**before.entries, **after.entries}
        if before.entries.get(name, none).leases != after.entries.get(name, none).leases
    }


def is_saved_alike(one: Book, other: Book) -> bool:
    """Whether the checkpoint has the same of two books, which lacks values that claims with a lease move."""
    if one.entries is other.entries or one.entries == other.entries:
        return one.originals == other.originals
    return (
        one.originals == other.originals
        and one.boot_id == other.boot_id
        and one.entries.keys() == other.entries.keys()
        and all(
            entry is (its := other.entries[name]) or as_saved(entry) == as_saved(its)
            for name, entry in one.entries.items()
        )
    )


def restored(book: Book, present: Mapping[str, FileText], formats: Formats, opening_us: int = 0) -> Book:
    """The book with the values of claims with a lease that were not saved: they lead to what the files hold.

    Nothing jumps then when such a claim goes on, and it is ours when it ends.

    `opening_us`: what the process before this one has added to the bounds of its quota.
    """
    entries: dict[str, Entry] = {}
    for name, entry in book.entries.items():
        found = present.get(name)
        observed = formats.decode(name, found.text) if found is not None else None
        if observed is not None and any(claim.value is None for claim in entry.claims):
            lifted = opening_us if name == QUOTA else 0
            entries[name] = _restored(book, name, entry, observed, found, formats, lifted)
    return replace(book, entries={**book.entries, **entries}) if entries else book


def without_boosts(
    book: Book, present: Mapping[str, FileText], formats: Formats, added_us: int, least_us: int
) -> Book:
    """The book of a pod whose original quota is lost, with what it was before start-up boosts were added.

    `added_us`: what they add. `least_us`: less than that was not the original: they are not in the file then.
    """
    found, entry = present.get(QUOTA), book.entries.get(QUOTA)
    quota_us = formats.decode(QUOTA, found.text) if found is not None else None
    if found is None or entry is None or found.file in book.originals or not isinstance(quota_us, int):
        return book
    original_us = quota_us - added_us
    if original_us < least_us:
        return book
    # The period of version 2 stands in the same file.
    text = found.text.replace(str(quota_us), str(original_us), 1)
    originals = {**book.originals, found.file: Original(text, found.inode)}
    entries = {**book.entries, QUOTA: entry._replace(resolved=quota_us)}
    return replace(book, entries=entries, originals=originals)


def _restored(
    book: Book,
    name: str,
    entry: Entry,
    observed: Value,
    found: FileText | None,
    formats: Formats,
    opening_us: int,
) -> Entry:
    known = entry._replace(claims=tuple(claim for claim in entry.claims if claim.value is not None))
    result = resolved(book.level, name, known, book.originals, found, formats)
    steps = result.steps or (result.value,) * 4
    claims: list[Claim] = []
    for claim in entry.claims:
        if claim.value is None:
            value: int | float | str = observed
            if claim.role is Role.ADD:
                value = _difference(observed, steps[1])
                steps = (*steps[:1], observed, *steps[2:])
            elif claim.role is Role.SCALE:
                value = _ratio(steps[0], observed)
            elif claim.role is Role.AT_MOST and isinstance(observed, int) and observed > opening_us:
                value = observed - opening_us
            claims.append(claim._replace(value=value))
        else:
            claims.append(claim)
    return entry._replace(claims=tuple(claims), resolved=observed)


def _difference(value: Value, base: object) -> int:
    """The amount that was added to a base; 0 where either is unlimited or no number."""
    if not isinstance(value, int) or not isinstance(base, int) or UNLIMITED in (value, base):
        return 0
    return max(0, value - base)


def _ratio(base: object, value: Value) -> float:
    """The ratio by which a base was divided; 1 where that cannot be known."""
    if not isinstance(value, int) or not isinstance(base, int) or not 0 < value < base:
        return 1.0
    return base / value


def amounts_added(book: Book, name: str) -> dict[Claimant, int]:
    """The amounts that claims with a lease add to a parameter of a container, by owner."""
    entry = book.entries.get(name)
    if entry is None:
        return {}
    result = resolve(name, entry.requested, entry.claims)
    scaled = result.steps[1] if result.steps else None
    found: dict[Claimant, int] = {}
    for claim in result.used:
        if claim.role is Role.ADD and is_leased(claim) and isinstance(claim.value, int):
            most = claim.value
            if claim.ceiling is not None and isinstance(scaled, int):
                most = min(most, claim.ceiling - scaled)
            found[claim.owner] = found.get(claim.owner, 0) + most
    return found


def with_fitted_claims(
    claims: Mapping[str, tuple[Claim, ...]], fitted: Mapping[str, Value]
) -> dict[str, tuple[Claim, ...]]:
    """The claims on a container, with those on values that its message has because of bounds above."""
    missing = {name: (Claim(TREE, Role.SET, each),) for name, each in fitted.items() if name not in claims}
    return {**claims, **missing}


def with_missing(book: Book, claims: Mapping[str, tuple[Claim, ...]]) -> Book:
    """The book with claims on parameters that it does not have."""
    missing = {name: Entry(each) for name, each in claims.items() if name not in book.entries}
    return replace(book, entries={**book.entries, **missing}) if missing else book


def with_values_of_message(book: Book) -> Book:
    """The book of a container whose values a message carries: they are in the files from its start on."""
    if book.level is not Level.CONTAINER:
        return book
    carried: dict[str, Entry] = {}
    for name, entry in book.entries.items():
        if entry.resolved is None and entry.claims:
            fitted = next((each.value for each in entry.claims if each.owner == TREE), None)
            value = fitted if isinstance(fitted, int | str) else entry.booked
            if value is not None:
                carried[name] = entry._replace(resolved=value)
    return replace(book, entries={**book.entries, **carried}) if carried else book


def with_written(now: Book, written: Book) -> Book:
    """The book of what is wanted now, with what was written while that changed."""
    entries = {
        name: entry._replace(resolved=written.entries[name].resolved) if name in written.entries else entry
        for name, entry in now.entries.items()
    }
    originals = {**written.originals, **now.originals}
    return replace(now, entries=entries, originals=originals, boot_id=written.boot_id)


def with_newer(book: Book, noted: Book) -> Book:
    """A book of the checkpoint with what the journal says, which is newer."""
    entries = dict(book.entries)
    for name, entry in noted.entries.items():
        known = entries.get(name, entry)
        if entry.leases != known.leases:
            leased = tuple(claim for claim in entry.claims if is_leased(claim))
            others = tuple(claim for claim in known.claims if not is_leased(claim))
            known = known._replace(claims=(*others, *leased))
        entries[name] = known._replace(resolved=entry.resolved)
    return replace(book, entries=entries, originals={**book.originals, **noted.originals})


def without_claims(book: Book, owners: Collection[Claimant] = (), names: Collection[str] = ()) -> Book:
    """The book without the claims of these owners, and without those on these parameters."""
    entries = {
        name: entry._replace(
            claims=tuple(each for each in entry.claims if each.owner not in owners and name not in names)
        )
        if any(claim.owner in owners or name in names for claim in entry.claims)
        else entry
        for name, entry in book.entries.items()
    }
    return book if entries == book.entries else replace(book, entries=entries)


def still_valid(book: Book, present: Iterable[FileText], boot_id: str) -> Book:
    """The book as far as it is about this cgroup.

    After a reboot, or in another cgroup of the same name, claims count and nothing else.
    """
    if book.boot_id == boot_id:
        inodes = {found.file: found.inode for found in present}
        if all(
            original.inode in (0, inodes.get(file, original.inode))
            for file, original in book.originals.items()
        ):
            return book
    entries = {}
    for name, entry in book.entries.items():
        # A value that only the file of before had is not known any more.
        claims = tuple(claim for claim in entry.claims if claim.value is not None)
        if claims:
            entries[name] = entry._replace(claims=claims, resolved=None)
    return replace(book, entries=entries, originals={}, boot_id=boot_id)


def bound_of(entry: Entry | None) -> Value | None:
    """The bound that a parameter sets for all cgroups below; None for no bound."""
    bounds = [each.value for each in entry.claims if each.role is Role.AT_MOST] if entry is not None else []
    if entry is None or not bounds:
        return None
    if entry.resolved not in (None, UNLIMITED, ""):
        return entry.resolved
    numbers = [bound for bound in bounds if isinstance(bound, int)]
    return min(numbers) if numbers else next((bound for bound in bounds if isinstance(bound, str)), None)


def is_fitted(book: Book) -> bool:
    return any(claim.owner == TREE for entry in book.entries.values() for claim in entry.claims)


def with_fitted(book: Book, given_back: Mapping[str, Value], fitted: Mapping[str, Value | None]) -> Book:
    """The book with claims on unclaimed values that have to fit to others.

    `given_back`: values that are about to be given back. An empty list of CPUs is written in another form,
    and nothing more.
    """
    entries = dict(book.entries)
    for name, value in fitted.items():
        entry = entries.get(name, Entry())
        if not entry.claims and value is not None and given_back.get(name) != "":
            entries[name] = entry._replace(claims=(Claim(TREE, Role.SET, value),))
    return replace(book, entries=entries)


def plan_values(
    book: Book,
    present: Mapping[str, FileText],
    formats: Formats,
    only_observed: Mapping[str, tuple[UnappliedCause, str]] = NO_VALUES,
    rule: ConflictRule = ConflictRule.LATER,
    fitted: Mapping[str, Value | None] = NO_VALUES,
    opening_us: int = 0,
) -> Plan:
    """Plans the values of a cgroup, and its book after the write.

    Args:
        book: Of this cgroup; see `still_valid`.
        present: What its files hold; a parameter whose file cannot be read is missing.
        formats: Of its files.
        only_observed: Parameters that nothing is written to, such as those of another agent, with the reason.
        rule: Whose value applies when two policies set one parameter.
        fitted: Values in place of those that the claims come to; None: nothing is written.
        opening_us: What is added to the bounds of its quota now.
    """
    new = _new_originals(book, present, formats)
    originals = {**book.originals, **new}
    results = {
        name: resolved(book.level, name, entry, originals, present.get(name), formats, rule, opening_us)
        for name, entry in book.entries.items()
        if entry.claims
    }
    if IDLE in results:
        results[IDLE] = _unless_weighted(results[IDLE], results.get(SHARES))
    is_without_weight = IDLE in results and SHARES in results and results[IDLE].value == 1
    known = replace(book, originals=originals)
    planned = {
        name: _with_given_back(
            known,
            name,
            _claimed_value(name, entry, results[name], fitted, is_observed=name in only_observed),
            present.get(name),
            formats,
        )
        if name in results
        else _given_back_value(book, name, present.get(name), formats, fitted)
        for name, entry in book.entries.items()
    }
    if is_without_weight:
        # The file shows that of all idle cgroups.
        planned[SHARES] = _PlannedValue(book.entries[SHARES]._replace(resolved=None))
    if _leaves_idle(book, planned) and SHARES in present:
        # What the file holds while the cgroup is idle is no weight, and the kernel's default replaces it.
        present = {**present, SHARES: present[SHARES]._replace(text="")}
        if SHARES not in results:
            weight, text = release_value(replace(book, originals=originals), SHARES, present[SHARES], formats)
            planned[SHARES] = _PlannedValue(None, weight, text, _UNKNOWN_ORIGINAL if weight is None else None)
    entries = {name: each.entry for name, each in planned.items() if each.entry is not None}
    values = {name: each.value for name, each in planned.items() if each.value is not None}
    return Plan(
        cgroup=book.id,
        values=values,
        present=present,
        raw={name: each.raw for name, each in planned.items() if each.raw is not None},
        replaces={name: each.replaces for name, each in planned.items() if each.replaces is not None},
        book=replace(book, entries=entries, originals=_needed(originals, entries, present, book)),
        only_observed=only_observed,
        noted=_line_of_journal(book, new, entries, values),
        left={name: each.left for name, each in planned.items() if each.left},
        given_back=frozenset(planned.keys() - entries.keys()),
        resolved=results,
        used={
            name: _used(result, fitted.get(name))
            for name, result in results.items()
            if not (is_without_weight and name == SHARES)
        },
        bounded=frozenset(name for name, result in results.items() if result.is_bounded),
    )


def _unless_weighted(idle: Resolved, weight: Resolved | None) -> Resolved:
    """The result for `cpu.idle`: the kernel refuses weights of an idle cgroup, so an owner of these counts.

    One that claims both wants it idle in place of a weight, also of one that others claim.
    Source: Linux kernel/sched/fair.c, sched_group_set_shares.
    """
    if weight is None or not weight.used or idle.value != 1:
        return idle
    if {each.owner for each in weight.used} == {each.owner for each in idle.used}:
        return idle
    reason = f"{weight.used[0].owner} sets {SHARES}, which the kernel refuses while it is 1"
    notes = tuple(Note(claim, ClaimOutcome.LOST, reason) for claim in idle.used)
    return Resolved(NEUTRAL[IDLE], notes=(*idle.notes, *notes))


def _leaves_idle(book: Book, planned: Mapping[str, _PlannedValue]) -> bool:
    """Whether a cgroup that we have made idle has a weight again."""
    entry = book.entries.get(IDLE)
    if entry is None or entry.resolved != 1:
        return False
    after = planned[IDLE]
    return after.left is None and (after.entry is None or after.entry.resolved != 1)


class _PlannedValue(NamedTuple):
    """The part of a plan that is about one parameter."""

    entry: Entry | None
    """As it is after the write; None if nothing remains."""
    value: Value | None = None
    """To be written; None for nothing."""
    raw: str | None = None
    """The raw text of the value, if that is known."""
    replaces: tuple[Value, ...] | None = None
    """Of values of processes: those that it takes the place of; None for all."""
    left: Left | None = None
    """None unless the file is left alone."""


def _claimed_value(
    name: str, entry: Entry, result: Resolved, fitted: Mapping[str, Value | None], *, is_observed: bool
) -> _PlannedValue:
    """The plan for a parameter with claims. `is_observed`: nothing is written to it."""
    value = fitted[name] if name in fitted else _in_range(name, result)
    remaining = None if entry.resolved is None else entry
    if not isinstance(value, int | str):
        return _PlannedValue(remaining, left=_UNKNOWN_BASE)
    if problem := check_value(name, value):
        return _PlannedValue(remaining, left=Left(LeftReason.NOT_IN_RANGE, problem))
    is_done = entry.is_once and not entry.is_settling and entry.resolved == value
    if is_observed or is_done:
        return _PlannedValue(entry)
    # Its first write does not count: the slice is reset after that.
    is_settling = entry.is_settling and entry.resolved != value
    return _PlannedValue(entry._replace(resolved=value, is_settling=is_settling), value)


def _settings(value: Value | None) -> dict[str, str]:
    """The settings of a value by block device; none of one that is not readable, as after a downgrade."""
    try:
        return by_device(value or "")
    except ValueError:
        return {}


def _with_given_back(
    book: Book, name: str, planned: _PlannedValue, found: FileText | None, formats: Formats
) -> _PlannedValue:
    """The plan for a parameter with claims, with what goes back to block devices that are not wanted now."""
    ours, value = book.entries[name].resolved, planned.value
    if name not in BY_DEVICE or value is None or ours is None:
        return planned
    wanted = _settings(value)
    dropped = {device: each for device, each in _settings(ours).items() if device not in wanted}
    if not dropped or found is None:
        return planned
    return planned._replace(value=text_of(wanted | _given_back_settings(book, name, dropped, found, formats)))


def _given_back_settings(
    book: Book, name: str, ours: Mapping[str, str], found: FileText, formats: Formats
) -> dict[str, str]:
    """What goes back to block devices of ours, see `given_back`. `found`: what the file holds."""
    original = book.originals.get(found.file)
    before = formats.decode(name, original.text or "") if original is not None else None
    present = formats.decode(name, found.text)
    return given_back(ours, _settings(before), _settings(present), FIELDS[name].reset)


def _new_originals(book: Book, present: Mapping[str, FileText], formats: Formats) -> Mapping[str, Original]:
    """The originals of files that are about to get their first value of ours."""
    new: dict[str, Original] = {}
    for name, entry in book.entries.items():
        found = present.get(name)
        if not entry.claims or found is None:
            continue
        known = new.get(found.file) or book.originals.get(found.file)
        if known is None:
            original = _original(book.level, name, entry, found, formats)
            if original is not None:
                new[found.file] = original
        elif name in BY_DEVICE:
            # The lines of other devices may have changed since the first became ours.
            mates = [each for each, its in present.items() if its.file == found.file]
            text = joined_lines(known.text or "", found.text, _new_devices(book, entry, mates))
            if text != known.text:
                new[found.file] = known._replace(text=text)
    new |= _weight_before_idle({**book.originals, **new}, book, present, formats)
    return new


def _new_devices(book: Book, entry: Entry, mates: Iterable[str]) -> set[str]:
    """The block devices that are claimed and whose line has nothing of ours yet.

    `mates`: the parameters in the same file, which has one line for a device.
    """
    claimed = (_settings(claim.value) for claim in entry.claims if isinstance(claim.value, str))
    ours = (_settings(book.entries[each].resolved) for each in mates if each in book.entries)
    return {device for each in claimed for device in each}.difference(*ours)


def _weight_before_idle(
    originals: Mapping[str, Original], book: Book, present: Mapping[str, FileText], formats: Formats
) -> dict[str, Original]:
    """The original of the weight of a cgroup that is about to be idle: the kernel forgets it."""
    entry, idle, weight = book.entries.get(IDLE), present.get(IDLE), present.get(SHARES)
    if entry is None or not entry.claims or idle is None or weight is None or weight.file in originals:
        return {}
    is_idle = formats.matches(IDLE, 1, idle.text)
    return {} if is_idle else {weight.file: Original(weight.text, weight.inode)}


def _line_of_journal(
    book: Book, new: Mapping[str, Original], entries: Mapping[str, Entry], values: Mapping[str, Value]
) -> Noted | None:
    """The journal's line on new originals and changed values; None without any."""
    changed = {
        name: value
        for name, value in values.items()
        if name in entries and entries[name].claims and book.entries[name].resolved != value
        # The file alone has what a claim with a lease moves.
        if not entries[name].leases
        # The kernel may hold another list in place of an empty one, which is always known for a reset.
        if value != ""
    }
    if not new and not changed:
        return None
    before = {name: old for name in changed if (old := book.entries[name].resolved) is not None}
    return Noted(book.id, book.level, new, changed, before)


def _used(result: Resolved, fitted: Value | None) -> tuple[Claim, ...]:
    """The claims that a value follows from."""
    if fitted is None or any(claim.owner == TREE for claim in result.used):
        return result.used
    return (*result.used, Claim(TREE, Role.SET, fitted))


def _in_range(name: str, result: Resolved) -> FieldValue:
    """The resolved value, within the range of its parameter where it was calculated."""
    value = result.value
    is_given = any(claim.role is Role.SET and claim.value == value for claim in result.used)
    return clamped(name, value) if isinstance(value, int) and not is_given else value


class LeftReason(StrEnum):
    """Why a file is left as it is; the names are those of a metric."""

    UNKNOWN_BASE = "unknown_base"
    UNKNOWN_ORIGINAL = "unknown_original"
    CHANGED_SINCE = "changed_since"
    NOT_IN_RANGE = "not_in_range"


class Left(NamedTuple):
    """A file that is left as it is."""

    reason: LeftReason
    text: str
    """For people."""


_UNKNOWN_BASE: Final = Left(LeftReason.UNKNOWN_BASE, "the value that it counts on is not known")
_UNKNOWN_ORIGINAL: Final = Left(LeftReason.UNKNOWN_ORIGINAL, "its original value is not known")
_CHANGED_SINCE: Final = Left(LeftReason.CHANGED_SINCE, "another program has changed it since")


def resolved(
    level: Level,
    name: str,
    entry: Entry,
    originals: Mapping[str, Original],
    found: FileText | None,
    formats: Formats,
    rule: ConflictRule = ConflictRule.LATER,
    opening_us: int = 0,
) -> Resolved:
    base: Value | None = None
    is_known = True
    if level is Level.CONTAINER:
        base = entry.requested
    elif base_of(level, name) is Base.ORIGINAL:
        original = originals.get(found.file) if found is not None else None
        text = original.text if original is not None else None
        base = formats.decode(name, text) if text is not None else entry.requested
        is_known = base is not None
    opening = opening_us if name == QUOTA else 0
    return resolve(name, base, entry.claims, is_base_known=is_known, rule=rule, opening=opening)


def change_of(
    level: Level, name: str, entry: Entry, book: Book, found: FileText, formats: Formats
) -> ValueChange:
    """Compares a value that was written with the present content of its file."""
    if entry.resolved is None or formats.matches(name, entry.resolved, found.text):
        return ValueChange.NONE
    original = book.originals.get(found.file)
    text = original.text if original is not None else None
    known = [None if text is None else formats.decode(name, text)]
    if name in BY_DEVICE:
        return _change_of_devices(name, entry.resolved, known, formats.decode(name, found.text))
    if level is Level.CONTAINER:
        known += [entry.booked, entry.requested]
    if not FIELDS[name].processes or known.count(None) == len(known):
        # A process that gives itself the neutral value wants it, where that is not what it was made with.
        known.append(NEUTRAL.get(name))
    known += [_reset_by_others(name, value) for value in (entry.resolved, *known)]
    # Some processes of a cgroup may have ours, and those that the runtime has just made others.
    known.append(entry.resolved)
    is_reset = all(_holds_any(name, known, part, formats) for part in formats.parts(name, found.text))
    return ValueChange.RESET if is_reset else ValueChange.FOREIGN


def _change_of_devices(
    name: str, ours: Value, known: Iterable[Value | None], present: Value | None
) -> ValueChange:
    """As `change_of`, of block devices with settings of ours: one that is unplugged loses its line."""
    reset, now = FIELDS[name].reset, _settings(present)
    resets = [{}, *(_settings(each) for each in known)]
    for device, setting in _settings(ours).items():
        held = now.get(device, reset)
        if not is_same_setting(setting, held) and not any(
            is_same_setting(each.get(device, reset), held) for each in resets
        ):
            return ValueChange.FOREIGN
    return ValueChange.RESET


def _holds_any(name: str, values: Iterable[Value | None], text: str, formats: Formats) -> bool:
    return any(value is not None and formats.matches(name, value, text) for value in values)


def _reset_by_others(name: str, value: Value | None) -> Value | None:
    """The value that systemd or the kernel put in place of one by themselves; None if they do not."""
    if name == QUOTA and isinstance(value, int):
        # runc writes the quota to the file, and a rounded one to the unit, which systemd applies when it
        # reloads.
        return rounded_quota(value)
    if name == BURST and isinstance(value, int):
        # Without commit 49217ea147df (2024) Linux divides the burst by 1,000 whenever cpu.max is written.
        return value // 1_000
    return None


def with_requests_of_the_kubelet(
    book: Book,
    present: Mapping[str, FileText],
    formats: Formats,
    written: Mapping[str, Value] = NO_VALUES,
) -> Book:
    """The book of a pod after the kubelet has written to its files itself.

    `present`: what its files hold. `written`: the values that the kubelet is known to have written. They are
    the new originals, even if a file holds a value of ours again. For other files the present text is the new
    original, unless it is a value of ours.
    """
    originals = dict(book.originals)
    for file, original in book.originals.items():
        names = [name for name, found in present.items() if found.file == file]
        if KUBELET_ON_PODS.isdisjoint(names):
            continue
        found = present[names[0]]
        asked = {name: value for name, value in written.items() if formats.file_of(name) == file}
        text = _joined_text(asked, formats)
        if text is not None:
            known = (each for each in (found.text, original.text) if each is not None)
            same = (each for each in known if all(formats.matches(*pair, each) for pair in asked.items()))
            originals[file] = Original(next(same, text), found.inode)
        elif formats.decode(names[0], found.text) is not None and not _is_ours(book, names, found, formats):
            originals[file] = Original(found.text, found.inode)
    return book if originals == book.originals else replace(book, originals=originals)


def _is_ours(book: Book, names: Iterable[str], found: FileText, formats: Formats) -> bool:
    return all(
        (value := book.entries[name].resolved) is not None and formats.matches(name, value, found.text)
        for name in names
        if name in book.entries
    )


def _joined_text(values: Mapping[str, Value], formats: Formats) -> str | None:
    """The text of a file that has exactly these values; None without any, and for half of cpu.max."""
    texts = [formats.encode(name, values[name]) for name in sorted(values, key=PERIOD.__eq__)]
    is_half = PERIOD in values and QUOTA not in values and formats.file_of(QUOTA) == formats.file_of(PERIOD)
    return None if not texts or is_half or None in texts else " ".join(map(str, texts)) + "\n"


def taken_over(record: CgroupRecord, owners: Mapping[str, Claimant], boot_id: str, formats: Formats) -> Book:
    """The book of a cgroup that version 0.1 wrote to: its values are ours, and never an original.

    `owners`: the owner of each parameter, as far as it is known.
    """
    entries: dict[str, Entry] = {}
    originals: dict[str, Original] = {}
    for name, value in record.values.items():
        owner = owners.get(name, RECOVERED)
        claim = Claim(owner, Role.SET, value.wanted)
        # What it no longer writes again belongs to policies that are gone, or to a hook server.
        is_servers = owner.kind is ClaimantKind.SERVER
        claims = (claim,) if value.reapply or is_servers else ()
        entries[name] = Entry(claims, value.wanted, is_once=is_servers)
        file = formats.file_of(name)
        if file is not None:
            text = None if value.original is None else _text_of(name, value.original, formats)
            if file not in originals or originals[file].text is None:
                originals[file] = Original(text)
    return Book(record.id, Level.POD, entries, originals, boot_id)


def _text_of(name: str, value: Value, formats: Formats) -> str | None:
    """The text of a file from the value that was read from it; None if it is not known."""
    if name == PERIOD:
        return None  # half of the text of cpu.max
    text = formats.encode(name, value)
    if name == "cpu.shares" and text is not None and formats.decode(name, text) != value:
        # Shares that were read from a weight may be one less than those that give it.
        text = formats.encode(name, int(value) + 1)
    return text


def merged(saved: Book, known: Book | None) -> Book:
    """One book of a saved one and of that of this process: its claims count, and the older originals."""
    if known is None:
        return saved
    if saved.boot_id != known.boot_id:
        return known
    originals = dict(known.originals)
    for file, original in saved.originals.items():
        mine = originals.get(file)
        if mine is None or mine.inode in (0, original.inode) or original.inode == 0:
            originals[file] = original
    entries = {**saved.entries, **known.entries}
    return replace(known, entries=entries, originals=originals)


def with_noted(
    book: Book | None, noted: Noted, present: Mapping[str, FileText], formats: Formats, boot_id: str
) -> Book:
    """The book with a line of the journal of a process that was killed.

    Whether the process came to write is seen in the file: if that still holds the value of before, that one
    is ours.
    """
    found = book or Book(noted.cgroup, noted.level, boot_id=boot_id)
    entries = dict(found.entries)
    for name, value in noted.values.items():
        before = noted.before.get(name)
        is_old = False
        # Not those of a version after this one, which have no file here.
        if before is not None and name in present:
            text = present[name].text
            is_old = not formats.matches(name, value, text) and formats.matches(name, before, text)
            if name in BY_DEVICE:
                is_old, before = True, _written_settings(name, value, before, formats.decode(name, text))
        # The next evaluation names the policy.
        entry = entries.get(name) or Entry((Claim(RECOVERED, Role.SET, value),))
        entries[name] = entry._replace(resolved=before if is_old else value)
    for name, leases in noted.leases.items():
        entry = entries.get(name, Entry())
        others = tuple(claim for claim in entry.claims if not is_leased(claim))
        claims = tuple(Claim(parse_claimant(owner), Role(role), None) for owner, role in leases)
        entry = entry._replace(claims=(*others, *claims))
        if not entry.claims and entry.resolved is None and name in present:
            # Killed while it gave the value back: only the file may still have it, if it is not just empty.
            held = formats.decode(name, present[name].text)
            entry = entry._replace(resolved="" if held is None else held)
        entries[name] = entry
    return replace(found, entries=entries, originals={**found.originals, **noted.originals})


def _written_settings(name: str, value: Value, before: Value, present: Value | None) -> Value:
    """The settings of block devices that a process wrote which may have been killed between two of them."""
    reset, now, old = FIELDS[name].reset, _settings(present), _settings(before)
    return text_of(
        {
            device: old[device]
            if device in old and is_same_setting(old[device], now.get(device, reset))
            else setting
            for device, setting in {**old, **_settings(value)}.items()
        }
    )


def _original(level: Level, name: str, entry: Entry, found: FileText, formats: Formats) -> Original | None:
    """The original of a file, before the first write to it.

    That of a container's file is not known where the runtime was told a value of ours at the creation: None.
    """
    if level is Level.CONTAINER and any(claim.owner != TREE for claim in entry.claims):
        requested = NEUTRAL.get(name) if entry.requested is None else entry.requested
        if requested is None or not formats.matches(name, requested, found.text):
            return None
    return Original(found.text, found.inode)


def _given_back_value(
    book: Book,
    name: str,
    found: FileText | None,
    formats: Formats,
    fitted: Mapping[str, Value | None],
) -> _PlannedValue:
    """The plan for a parameter without claims."""
    entry = book.entries[name]
    if found is None or entry.resolved is None:
        return _PlannedValue(None)
    if name in BY_DEVICE:
        return _given_back_devices(book, name, entry, found, formats)
    value, text = (fitted[name], None) if name in fitted else release_value(book, name, found, formats)
    if value is None:
        return _PlannedValue(None, left=_UNKNOWN_ORIGINAL)
    # Until the runtime's book has caught up, an update of another field would bring our value back.
    stays = book.level is Level.CONTAINER and entry.booked is not None and entry.booked != value
    remaining = entry._replace(resolved=value) if stays else None
    is_same = formats.matches(name, value, found.text)
    if is_same if text is None else found.text.rstrip("\n") == text.rstrip("\n"):
        return _PlannedValue(remaining)
    # No program leaves a file without a value, but one that is killed while it writes to a plain file.
    parts, ours = formats.parts(name, found.text), _values_of_ours(book, name, entry.resolved, value)
    is_empty = all(formats.decode(name, part) is None for part in parts)
    # Of processes, those that do not have it yet.
    parts = tuple(part for part in parts if not formats.matches(name, value, part)) or parts
    if is_empty or any(_holds_any(name, ours, part, formats) for part in parts):
        return _PlannedValue(remaining, value, text, tuple(each for each in ours if each is not None))
    return _PlannedValue(remaining, left=None if is_same else _CHANGED_SINCE)


def _given_back_devices(
    book: Book, name: str, entry: Entry, found: FileText, formats: Formats
) -> _PlannedValue:
    """The plan for a value by block device without claims."""
    back = _given_back_settings(book, name, _settings(entry.resolved), found, formats)
    if back:
        return _PlannedValue(None, text_of(back))
    change = change_of(book.level, name, entry, book, found, formats)
    return _PlannedValue(None, left=_CHANGED_SINCE if change is ValueChange.FOREIGN else None)


def _values_of_ours(book: Book, name: str, ours: Value, value: Value) -> list[Value | None]:
    """A value of ours, and what others or half of a write have made of it.

    `value`: that is to be given back.
    """
    known = [ours, _reset_by_others(name, ours), _between(book, name, ours, value)]
    return [*known, book.entries[name].booked] if book.level is Level.CONTAINER else known


def _between(book: Book, name: str, ours: Value, value: Value) -> Value:
    # A process that is killed between the two steps of giving a value back leaves this one.
    # While quota and period both change, the quota is unlimited.
    return UNLIMITED if name == QUOTA and PERIOD in book.entries else loosened(name, ours, value)


def release_value(
    book: Book, name: str, found: FileText, formats: Formats
) -> tuple[Value | None, str | None]:
    """The value that goes back to a file without claims, and its raw text if that is known.

    (None, None) if neither is known.
    """
    neutral, entry = NEUTRAL.get(name), book.entries.get(name, Entry())
    original = book.originals.get(found.file)
    text = original.text if original is not None else None
    value = formats.decode(name, text) if text is not None else None
    base = base_of(book.level, name)
    if book.level is Level.CONTAINER:
        # The original was that of the request at its time. A journal tells the one and not the other.
        asked = entry.requested
        if value is not None and text is not None and (asked is None or formats.matches(name, asked, text)):
            return value if asked is None else asked, _alone(book, name, found, text)
        return (neutral if entry.requested is None else entry.requested), None
    if base is Base.NEUTRAL:
        if text is not None and neutral is not None and formats.matches(name, neutral, text):
            return neutral, _alone(book, name, found, text)
        return neutral, None
    if value is not None and text is not None:
        return value, _alone(book, name, found, text)
    return (entry.requested if base is Base.ORIGINAL else neutral), None


def _alone(book: Book, name: str, found: FileText, text: str) -> str | None:
    """The raw text, unless another claimed parameter stands in the same file."""
    others = (other for other, entry in book.entries.items() if other != name and entry.claims)
    shares_file = any(_FILE_MATES.get(other) == name for other in others)
    return None if shares_file else text


_FILE_MATES: Final = {
    one.name: other.name for fields in V2_FILES.values() for one, other in permutations(fields, 2)
}
"""Two parameters in one file of version 2."""


def _needed(
    originals: Mapping[str, Original],
    entries: Mapping[str, Entry],
    present: Mapping[str, FileText],
    book: Book,
) -> Mapping[str, Original]:
    """The originals of files with a value of ours; those of files that cannot be read just now stay."""
    names = {*entries, SHARES} if IDLE in entries else entries.keys()
    ours = {present[name].file for name in names if name in present}
    known = {found.file for found in present.values()}
    return {file: original for file, original in originals.items() if file in ours or file not in known}
