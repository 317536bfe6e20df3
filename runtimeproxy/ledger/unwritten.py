"""Which values of a batch are not in the files after it, and why. Pure; see `unapplied`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from runtimeproxy.cgroups.writer import WriteOutcome, WriteResult
from runtimeproxy.ledger.books import TREE, Formats
from runtimeproxy.ledger.executor import Job
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
    job: Job, done: Mapping[tuple[str, str], WriteResult], formats: Formats
) -> Iterator[tuple[str, Withheld]]:
    """What the claims on one cgroup come to and its files do not hold.

    What only has another form there, because it has to fit to the values of other cgroups and files, is in
    force.

    Args:
        job: of the cgroup.
        done: the results of the batch, by cgroup and parameter.
        formats: of its files.
    """
    for name, used in job.plan.used.items():
        claims = tuple(claim for claim in used if claim.owner != TREE)
        if claims and (why := _kept_from(job, name, done, formats)) is not None:
            wanted = job.plan.wanted.get(name)
            yield name, Withheld(claims, *why, "" if wanted is None else str(wanted))


def given_way(job: Job) -> Iterator[tuple[str, Withheld]]:
    """The claims that set a value in place of which another owner's counts."""
    for name, notes in job.plan.lost.items():
        claims = tuple(note.claim for note in notes)
        yield name, Withheld(claims, UnappliedCause.CONFLICT, notes[0].reason)


def _kept_from(
    job: Job, name: str, done: Mapping[tuple[str, str], WriteResult], formats: Formats
) -> tuple[UnappliedCause, str] | None:
    """What keeps one value from its file; None for nothing."""
    plan = job.plan
    if (left := plan.left.get(name)) is not None:
        return (UnappliedCause.INVALID if name in plan.wanted else UnappliedCause.BASE_UNKNOWN), left
    # The value of a container is there when it starts, and nothing waits for one that has ended.
    is_gone = not job.present and plan.book.level is Level.CONTAINER
    if (observed := job.only_observed.get(name)) is not None:
        is_nothing = is_gone and observed[0] is UnappliedCause.NO_CGROUP
        return None if is_nothing or _is_there(job, name, formats) else observed
    if name not in plan.values:
        return (
            None
            if name not in job.present or _is_there(job, name, formats)
            else (UnappliedCause.ONCE, WRITTEN_ONCE)
        )
    result = done.get((plan.book.id, name))
    if result is None or result.outcome in _THERE:
        # A limit is not written at all where it cannot fall.
        is_held_up = name == LIMIT and (result is None or result.value != plan.values[name])
        return (UnappliedCause.IN_USE, IN_USE) if is_held_up else None
    if result.outcome is not WriteOutcome.MISSING:
        return UnappliedCause.REFUSED, result.error
    if formats.file_of(name) is None:
        return UnappliedCause.NO_FILE, NO_FILE_HERE
    return (
        None
        if is_gone
        else (UnappliedCause.NO_FILE, NO_FILE)
        if job.present
        else (UnappliedCause.NO_CGROUP, NO_CGROUP)
    )


def _is_there(job: Job, name: str, formats: Formats) -> bool:
    """Whether the file has the wanted value, whoever has written it."""
    wanted, found = job.plan.wanted.get(name), job.present.get(name)
    return found is not None and wanted is not None and formats.matches(name, wanted, found.text)
