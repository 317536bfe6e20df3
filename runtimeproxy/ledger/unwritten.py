"""Which values of a batch are not in the files after it, and why. Pure; see `unapplied`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from runtimeproxy.cgroups.writer import WriteOutcome, WriteResult
from runtimeproxy.hooks.algebra import ClaimOutcome, Role
from runtimeproxy.ledger.books import TREE, Formats, LeftReason, Plan
from runtimeproxy.ledger.unapplied import (
    IN_USE,
    LIMIT,
    NO_CGROUP,
    NO_FILE,
    NO_FILE_HERE,
    WRITTEN_ONCE,
    UnappliedCause,
    Withheld,
)
from runtimeproxy.pods.records import Level

_THERE: Final = (WriteOutcome.WRITTEN, WriteOutcome.UNCHANGED)


def not_written(
    plan: Plan, done: Mapping[tuple[str, str], WriteResult], formats: Formats
) -> Iterator[tuple[str, Withheld]]:
    """The wanted values of a cgroup that its files do not hold.

    What only has another form there, because it has to fit to the values of other cgroups and files, is in
    force.

    `done`: the results of the batch, by cgroup and parameter.
    """
    for name, used in plan.used.items():
        claims = tuple(claim for claim in used if claim.owner != TREE)
        if claims and (why := _kept_from(plan, name, done, formats)) is not None:
            wanted = plan.wanted(name)
            yield name, Withheld(claims, *why, "" if wanted is None else str(wanted))


def given_way(plan: Plan) -> Iterator[tuple[str, Withheld]]:
    # Another owner's claim applies in place of these.
    for name, result in plan.resolved.items():
        lost = [
            note
            for note in result.notes
            if note.outcome is ClaimOutcome.LOST
            and note.claim.role is Role.SET
            and note.claim.value != result.value
        ]
        if lost:
            claims = tuple(note.claim for note in lost)
            yield name, Withheld(claims, UnappliedCause.CONFLICT, lost[0].reason)


def _kept_from(
    plan: Plan, name: str, done: Mapping[tuple[str, str], WriteResult], formats: Formats
) -> tuple[UnappliedCause, str] | None:
    """Why a value is not in its file; None if it is."""
    if (left := plan.left.get(name)) is not None:
        is_invalid = left.reason is LeftReason.NOT_IN_RANGE
        return (UnappliedCause.INVALID if is_invalid else UnappliedCause.BASE_UNKNOWN), left.text
    # The value of a container is there when it starts, and nothing waits for one that has ended.
    is_gone = not plan.present and plan.level is Level.CONTAINER
    if (observed := plan.only_observed.get(name)) is not None:
        is_nothing = is_gone and observed[0] is UnappliedCause.NO_CGROUP
        return None if is_nothing or _is_there(plan, name, formats) else observed
    if name not in plan.values:
        is_in_force = name not in plan.present or _is_there(plan, name, formats)
        return None if is_in_force else (UnappliedCause.ONCE, WRITTEN_ONCE)
    result = done.get((plan.cgroup, name))
    if result is None or result.outcome in _THERE:
        # A limit is not written at all where it cannot fall.
        is_held_up = name == LIMIT and (result is None or result.value != plan.values[name])
        return (UnappliedCause.IN_USE, IN_USE) if is_held_up else None
    if result.outcome is not WriteOutcome.MISSING:
        return UnappliedCause.REFUSED, result.error
    if formats.file_of(name) is None:
        return UnappliedCause.NO_FILE, NO_FILE_HERE
    if is_gone:
        return None
    return (UnappliedCause.NO_FILE, NO_FILE) if plan.present else (UnappliedCause.NO_CGROUP, NO_CGROUP)


def _is_there(plan: Plan, name: str, formats: Formats) -> bool:
    """Whether the file has the wanted value, whoever has written it."""
    wanted, found = plan.wanted(name), plan.present.get(name)
    return found is not None and wanted is not None and formats.matches(name, wanted, found.text)
