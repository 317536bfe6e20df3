"""What follows from the events of pods and containers, for the values of their cgroups and for the audit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from runtimeproxy.cgroups.writer import WriteOutcome, WriteResult
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.audit import NO_ORIGIN, Origin, Subject, kind_of_write
from runtimeproxy.hooks.changes import PodChange
from runtimeproxy.hooks.claimants import Claimant, Owners, labels_of
from runtimeproxy.hooks.fields import CGROUP, Field, FieldUpdate, plain_cgroup_values
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.views import ContainerView, PodView
from runtimeproxy.ledger.answers import (
    by_parameter,
    claims_of,
    target_of,
    target_of_view,
    wanted_of,
)
from runtimeproxy.ledger.books import Wanted, with_fitted_claims
from runtimeproxy.ledger.upkeep import WORK_S
from runtimeproxy.pods.record_views import recorded_container, recorded_pod
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.resources import NO_ENTRIES

if TYPE_CHECKING:
    from runtimeproxy.core.services import CgroupLedger, CoreServices
    from runtimeproxy.hooks.algebra import Resolved
    from runtimeproxy.hooks.decision import Decision

_IS_THERE: Final = "the cgroup is there now"


class DueWrites(NamedTuple):
    """Cgroup values that have waited until the pod or container was there."""

    cgroup: str
    """Empty if its path is not known."""
    values: Mapping[str, int | str]
    owners: Owners
    """Of the values."""
    hook: Hook
    """For the audit."""
    make_view: Callable[[], PodView | ContainerView]
    wanted: Wanted | None = None
    """The answer of all policies; None for a container that starts, whose book has it."""
    evaluation: int | None = None
    """How many evaluations had begun before policies gave that answer; None without one."""


# --- before ----------------------------------------------------------------------------------------------


def waits_for_cgroup(decision: Decision, cgroup: str, *, is_deferred: bool) -> bool:
    """Whether cgroup values of a decision cannot be written before the event: no cgroup, or not yet.

    Args:
        decision: On the pod or container.
        cgroup: Of it; empty while it does not exist.
        is_deferred: Whether they wait although it exists, as the event may fail.
    """
    return is_deferred or (not cgroup and isinstance(decision.merged.start, ContainerView))


def pending_values(
    decision: Decision | None, cgroup: str, *, is_deferred: bool = False
) -> Mapping[str, int | str]:
    """The cgroup values of a decision that are due after the event."""
    if decision is None or decision.change is None or decision.unwritten:
        return NO_ENTRIES
    if cgroup and not is_deferred:
        return NO_ENTRIES
    return plain_cgroup_values(decision.change)


def write_before(
    ledger: CgroupLedger, decision: Decision, cgroup: str, *, is_deferred: bool = False
) -> Mapping[str, WriteResult]:
    """Writes the cgroup values of a decision, in a worker thread, but those that have to wait.

    Returns:
        The results by parameter.
    """
    change, view = decision.change, decision.merged.start
    values = plain_cgroup_values(change) if change is not None else {}
    if not values or not isinstance(view, PodView | ContainerView):
        return {}
    target = (change.cgroup_parent if isinstance(change, PodChange) else None) or cgroup
    if waits_for_cgroup(decision, target, is_deferred=is_deferred):
        return _unwritten(values, WriteOutcome.PENDING)
    if target:
        return _by_name(ledger.change([wanted_of(decision, target_of_view(view, target))]))
    return _unwritten(values, WriteOutcome.MISSING, "the pod's cgroup is not known")


async def write_decision(
    core: CoreServices, decision: Decision, cgroup: str, origin: Origin = NO_ORIGIN
) -> None:
    """Writes and audits the values of a pod's cgroup before the pod is created, once all else is decided."""
    run = asyncio.get_running_loop().run_in_executor
    written = await run(core.executor, write_before, core.ledger, decision, cgroup)
    subject = Subject(decision.hook, decision.merged.start, time.time(), origin=origin)
    _audit_late_writes(core, subject, decision.owners, cgroup, written)


# --- a container was created, started or updated -----------------------------------------------------------


def wanted_of_container(
    pod: PodRecord,
    record: ContainerRecord,
    cgroup: str,
    fields: Mapping[Field, Resolved],
    fitted: Mapping[str, int | str] = NO_ENTRIES,
    silent: frozenset[str] = frozenset(),
) -> Wanted:
    """What policies want of a container's cgroup.

    Args:
        pod: Its record.
        record: Of the container.
        cgroup: Of the container.
        fields: What policies want.
        fitted: The values that its message has because of bounds above; see `within_bounds`.
        silent: The policies without an answer.
    """
    claims = claims_of(fields, is_container=True, is_base_known=not record.recovered)
    claims = with_fitted_claims(claims, fitted)
    requested, booked = by_parameter(record.requested), by_parameter(record.booked)
    return Wanted(target_of(pod, record, cgroup), claims, requested, booked, unanswered=silent)


def book_container(
    core: CoreServices,
    pod: PodRecord,
    record: ContainerRecord,
    fields: Mapping[Field, Resolved],
    fitted: Mapping[str, int | str] = NO_ENTRIES,
) -> None:
    """Books what policies want of a container that was created."""
    cgroup = core.inventory.cgroup_of(pod, record)
    if not cgroup:
        return
    wanted = wanted_of_container(pod, record, cgroup, fields, fitted)
    if wanted.claims:
        core.ledger.books.book(wanted)


def on_started(
    core: CoreServices,
    record: ContainerRecord,
    values: Mapping[str, int | str] = NO_ENTRIES,
    owners: Owners = NO_ENTRIES,
) -> DueWrites | None:
    """Records that a container runs.

    Args:
        core: What acts on events.
        record: Of before.
        values: The cgroup values that policies gave at its start.
        owners: Of these.

    Returns:
        All cgroup values that have waited for it.
    """
    store = core.store
    pod = store.pods.get(record.pod_id)
    running = replace(record, state=Lifecycle.RUNNING, pending_cgroup=NO_ENTRIES)
    store.containers.put(running)
    values = {**record.pending_cgroup, **values}
    if not values:
        return None
    return due_at_start(
        core.inventory.cgroup_of(pod, running), values, {**record.owners, **owners}, running, pod
    )


def due_at_start(
    cgroup: str,
    values: Mapping[str, int | str],
    owners: Owners,
    record: ContainerRecord,
    pod: PodRecord | None,
) -> DueWrites:
    """The cgroup values of a container that has waited for its start."""

    def make_view() -> ContainerView:
        return recorded_container(record, PodView() if pod is None else recorded_pod(pod))

    return DueWrites(cgroup, values, owners, Hook.POST_START_CONTAINER, make_view)


def take_due_writes(core: CoreServices) -> Iterator[DueWrites]:
    """The cgroup values that still wait although their container runs: the event of its start was lost.

    They no longer wait once they are taken.
    """
    store = core.store
    for identity in [container.id for container in store.containers]:
        record = store.containers.get(identity)
        if record is None or record.state is not Lifecycle.RUNNING or not record.pending_cgroup:
            continue
        pod = store.pods.get(record.pod_id)
        cgroup = core.inventory.cgroup_of(pod, record)
        if cgroup:
            store.containers.put(replace(record, pending_cgroup=NO_ENTRIES))
            yield due_at_start(cgroup, record.pending_cgroup, record.owners, record, pod)


# --- after -------------------------------------------------------------------------------------------------


async def write_due(core: CoreServices, due: DueWrites, origin: Origin = NO_ORIGIN) -> None:
    """Writes and audits cgroup values that have waited for an event."""
    run = asyncio.get_running_loop().run_in_executor
    view = due.make_view()
    written = await run(core.executor, _write_due, core.ledger, due, view)
    subject = Subject(due.hook, view, time.time(), origin=origin)
    _audit_late_writes(core, subject, due.owners, due.cgroup, written)
    if due.evaluation is not None:
        # After the write: that undoes what an evaluation since the answer has claimed.
        core.catch_up((view.pod if isinstance(view, ContainerView) else view).id, due.evaluation)


async def write_missed(core: CoreServices) -> None:
    """Writes the cgroup values of containers the event of whose start was lost."""
    for due in take_due_writes(core):
        # If a file hangs, the others are written after the next list of what runs.
        async with asyncio.timeout(WORK_S):
            await write_due(core, due)


def _write_due(
    ledger: CgroupLedger, due: DueWrites, view: PodView | ContainerView
) -> Mapping[str, WriteResult]:
    if not due.cgroup:
        return _unwritten(due.values, WriteOutcome.MISSING, "the cgroup is not known")
    if due.wanted is None:
        claims = {
            name: tuple(Claim(owner, Role.SET, value) for owner in _owners_of(name, due.owners))
            for name, value in due.values.items()
        }
        return _by_name(ledger.start(Wanted(target_of_view(view, due.cgroup), claims)))
    if isinstance(view, PodView):
        # The kubelet may have written there before the call; that is the original then.
        ledger.on_resized(due.cgroup)
    return _by_name(ledger.change([due.wanted]))


def _owners_of(name: str, owners: Owners) -> tuple[Claimant, ...]:
    return owners.get(str(Field(CGROUP, name)), (Claimant(""),))


def _by_name(results: Iterable[WriteResult]) -> Mapping[str, WriteResult]:
    return {result.name: result for result in results}


def _unwritten(
    values: Mapping[str, int | str], outcome: WriteOutcome, why: str = ""
) -> Mapping[str, WriteResult]:
    return {name: WriteResult("", name, value, outcome, error=why) for name, value in values.items()}


def _audit_late_writes(
    core: CoreServices,
    subject: Subject,
    owners: Owners,
    cgroup: str,
    written: Mapping[str, WriteResult],
) -> None:
    book = core.ledger.books.record(cgroup) if cgroup else None
    entries = {} if book is None else book.entries
    for name, result in written.items():
        if result.outcome is not WriteOutcome.UNCHANGED:
            update = FieldUpdate(Field(CGROUP, name), result.old, result.value)
            owned_by = _owners_of(name, owners)
            claims = entries[name].claims if name in entries else ()
            own = dict.fromkeys(str(claim.reason) for claim in claims if claim.owner in owned_by)
            reason = result.error or "; ".join(filter(None, own)) or _IS_THERE
            core.chain.audit(subject.entry(kind_of_write(result), labels_of(owned_by), reason, update))
