"""What follows from the events of pods and containers, for the values of their cgroups and for the audit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from runtimeproxy.cgroups.writer import WriteOutcome, WriteResult
from runtimeproxy.core.questions import (
    AFTER_SANDBOX,
    NO_WORK,
    not_stopped,
    owners_with_fitted,
    waits_for_cgroup,
)
from runtimeproxy.fields.tables import OF_PROCESSES, RESOURCE_PARAMETERS
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.audit import NO_ORIGIN, Origin, Subject, kind_of_write
from runtimeproxy.hooks.changes import PodChange
from runtimeproxy.hooks.claimants import Claimant, Owners, labels_of
from runtimeproxy.hooks.fields import CGROUP, NO_FIELDS, Field, FieldUpdate, plain_cgroup_values
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.views import ContainerView, PodView, Resources
from runtimeproxy.ledger.answers import (
    by_parameter,
    claims_of,
    requested_of_pod,
    target_of,
    target_of_view,
    wanted_of,
)
from runtimeproxy.ledger.books import Wanted, with_fitted_claims
from runtimeproxy.ledger.unapplied import IN_VM
from runtimeproxy.ledger.upkeep import WORK_S
from runtimeproxy.pods.record_views import is_resize, recorded_container, recorded_pod
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.resources import NO_ENTRIES, bounded
from runtimeproxy.pods.updates import merged_owners, slice_of, with_updates

if TYPE_CHECKING:
    from runtimeproxy.core.questions import DecidedPod, DecidedValues
    from runtimeproxy.core.services import CgroupLedger, CoreServices, Work
    from runtimeproxy.hooks.algebra import Resolved
    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.hooks.views import Resources
    from runtimeproxy.pods.updates import PendingUpdate

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
        wanted = wanted_of(decision, target_of_view(view, target))
        waiting = AFTER_SANDBOX & values.keys() if decision.hook is Hook.PRE_RUN_POD_SANDBOX else ()
        if waiting:
            wanted = wanted._replace(
                claims={name: each for name, each in wanted.claims.items() if name not in waiting}
            )
        pending = _unwritten({name: values[name] for name in waiting}, WriteOutcome.PENDING)
        return {**_by_name(ledger.change([wanted])), **pending}
    return _unwritten(values, WriteOutcome.MISSING, "the pod's cgroup is not known")


async def write_decision(
    core: CoreServices, decision: Decision, cgroup: str, origin: Origin = NO_ORIGIN
) -> None:
    """Writes and audits the values of a pod's cgroup before the pod is created, once all else is decided."""
    run = asyncio.get_running_loop().run_in_executor
    written = await run(core.executor, write_before, core.ledger, decision, cgroup)
    subject = Subject(decision.hook, decision.merged.start, time.time(), origin=origin)
    _audit_late_writes(core, subject, decision.owners, cgroup, written)


# --- a pod was created -------------------------------------------------------------------------------------


def on_pod_created(
    core: CoreServices,
    record: PodRecord,
    decided: DecidedPod,
    evaluation: int,
    origin: Origin = NO_ORIGIN,
) -> Sequence[Work]:
    """Records a sandbox; returns the work that is due now.

    `evaluation`: `evaluator.rounds` before the policies were asked.
    """
    core.store.pods.put(record)
    # The sandbox's scope was started in the pod's slice: systemd has set that again, as it sees it.
    works = repair(core, slice_of(record))
    due = due_at_creation(record, decided, evaluation)
    if due is not None:
        return (*works, partial(write_due, core, due, origin))
    core.catch_up(record.id, evaluation)
    return works


def due_at_creation(record: PodRecord, decided: DecidedPod, evaluation: int) -> DueWrites | None:
    """The cgroup values of a pod that were not written before it was created; see `DueWrites`."""
    if decided.late is None or not record.cgroup_parent:
        return None
    wanted = decided.late._replace(target=target_of(record))
    hook, make_view = Hook.PRE_RUN_POD_SANDBOX, partial(recorded_pod, record)
    return DueWrites(record.cgroup_parent, {}, decided.owners, hook, make_view, wanted, evaluation)


# --- a container was created or has started ----------------------------------------------------------------


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
    pod: PodRecord | None,
    record: ContainerRecord,
    fields: Mapping[Field, Resolved] | None,
    fitted: Mapping[str, int | str] = NO_ENTRIES,
) -> None:
    """Books what policies want of a container that was created; to be called once the answer has gone."""
    cgroup = core.inventory.cgroup_of(pod, record)
    if pod is None or not cgroup:
        return
    wanted = wanted_of_container(pod, record, cgroup, fields or NO_FIELDS, fitted)
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


def on_container_started(
    core: CoreServices, record: ContainerRecord, decided: DecidedValues, origin: Origin = NO_ORIGIN
) -> Sequence[Work]:
    """Records that a container runs, which policies were asked about; returns the work that is due now."""
    due = on_started(core, record, decided.pending, decided.owners if decided.pending else NO_ENTRIES)
    core.catch_up(record.pod_id, record.evaluation)
    works = repair(core, _changed_by_start(core, core.store.pods.get(record.pod_id)))
    return works if due is None else (*works, partial(write_due, core, due, origin))


def _changed_by_start(core: CoreServices, pod: PodRecord | None) -> str:
    """The pod's cgroup if the start of a container may have changed its values; empty if not."""
    if pod is None:
        return ""
    book = core.ledger.books.record(pod.cgroup_parent) if pod.cgroup_parent else None
    if book is not None and not OF_PROCESSES.isdisjoint(book.entries):
        # The new processes have other values.
        return pod.cgroup_parent
    # The container's scope was started in the pod's slice: systemd has set that again, as it sees it.
    return slice_of(pod)


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


# --- a container or pod was updated ------------------------------------------------------------------------


def updated_container(
    record: ContainerRecord,
    update: PendingUpdate,
    decided: DecidedValues,
    fitted: Mapping[str, int | str],
    released: Collection[str],
    annotations: Mapping[str, str],
) -> ContainerRecord:
    """The record after an update.

    Args:
        record: Before it.
        update: What the runtime has taken.
        decided: What policies decided on it.
        fitted: The values that bounds above have changed, by cgroup parameter.
        released: The fields that no policy sets any more.
        annotations: Those of the update. Policies see them from now on, as with Koordinator's proxy.
    """
    if annotations:
        # Many updates, each with others, would add up.
        annotations = bounded({**record.annotations, **annotations})
    owners, pending = owners_with_fitted(decided.owners, fitted), record.pending_cgroup
    if record.state is Lifecycle.CREATED:
        pending = {**pending, **decided.pending}
    return replace(
        with_updates(record, (update,)),
        owners=merged_owners(record.owners, update.sent, owners, released),
        annotations=annotations or record.annotations,
        recovered=record.recovered and not is_resize(update.sent),
        pending_cgroup=pending,
    )


def on_container_updated(
    core: CoreServices,
    record: ContainerRecord,
    sent: Resources,
    decided: DecidedValues,
    fitted: Mapping[str, int | str],
    evaluation: int,
    origin: Origin = NO_ORIGIN,
) -> Sequence[Work]:
    """Records an update; returns the work that is due now.

    Args:
        core: What acts on events.
        record: As it is now; see `updated_container`.
        sent: From the kubelet.
        decided: What policies decided on the update.
        fitted: The values that bounds above have changed, by cgroup parameter.
        evaluation: `evaluator.rounds` before the policies were asked.
        origin: The event.
    """
    core.store.containers.put(record)
    pod = core.store.pods.get(record.pod_id)
    if pod is None:
        return NO_WORK
    if is_resize(sent):
        note_requests(core, pod)
    if record.state is Lifecycle.CREATED and decided.fields is not None:
        asyncio.get_running_loop().call_soon(book_container, core, pod, record, decided.fields, fitted)
    if record.state in (Lifecycle.CREATED, Lifecycle.STOPPED):
        return NO_WORK
    due = due_of_container(core, pod, record, decided, fitted, evaluation)
    return NO_WORK if due is None else (partial(write_due, core, due, origin),)


def without_own_values(core: CoreServices, cgroup: str, sent: Resources) -> Resources:
    """The kubelet's update of a pod without values that policies have given its cgroup.

    It reads there what it does not change. Source: kubelet 1.34 and 1.37, pkg/kubelet/kuberuntime,
    doPodResizeAction, mergeResourceConfig.

    `cgroup`: the pod's; empty if it is not known.
    """
    book = core.ledger.books.record(cgroup) if cgroup else None
    if book is None:
        return sent
    own: dict[str, Any] = {
        name: None
        for name, parameter in RESOURCE_PARAMETERS.items()
        if (entry := book.entries.get(parameter)) is not None and entry.resolved == getattr(sent, name)
    }
    return replace(sent, **own) if own else sent


def on_pod_updated(
    core: CoreServices,
    record: PodRecord,
    decided: DecidedValues,
    evaluation: int,
    origin: Origin = NO_ORIGIN,
) -> Sequence[Work]:
    """The same of a pod."""
    core.store.pods.put(record)
    due = due_of_pod(core, record, decided, evaluation)
    return NO_WORK if due is None else (partial(write_due, core, due, origin),)


def due_of_container(
    core: CoreServices,
    pod: PodRecord,
    record: ContainerRecord,
    decided: DecidedValues,
    fitted: Mapping[str, int | str],
    evaluation: int,
) -> DueWrites | None:
    """The writes after an update of a container that runs; None if its files stay as they are."""
    cgroup, fields = core.inventory.cgroup_of(pod, record), decided.fields
    if fields is None or not cgroup:
        return None
    if not (fields or fitted or core.ledger.books.is_managed(cgroup)):
        return None
    wanted = wanted_of_container(pod, record, cgroup, fields, fitted, decided.silent)
    hook = Hook.PRE_UPDATE_CONTAINER_RESOURCES
    make_view = partial(recorded_container, record, recorded_pod(pod))
    return DueWrites(cgroup, decided.pending, decided.owners, hook, make_view, wanted, evaluation)


def due_of_pod(
    core: CoreServices, record: PodRecord, decided: DecidedValues, evaluation: int
) -> DueWrites | None:
    """The writes after an update of a pod; None if its files stay as they are."""
    cgroup, fields = record.cgroup_parent, decided.fields
    if fields is None or not cgroup:
        return None
    if not (fields or core.ledger.books.is_managed(cgroup)):
        return None
    claims = claims_of(fields, is_container=False, is_base_known=not record.recovered)
    wanted = Wanted(target_of(record), claims, unanswered=decided.silent)
    hook, make_view = Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES, partial(recorded_pod, record)
    return DueWrites(cgroup, decided.pending, decided.owners, hook, make_view, wanted, evaluation)


def repair(core: CoreServices, cgroup: str) -> Sequence[Work]:
    """Writes values of policies again that another program may have replaced, if there are any."""
    if not cgroup or not core.ledger.books.is_managed(cgroup):
        return NO_WORK
    return (core.in_executor(core.ledger.repair, cgroup),)


def resized(core: CoreServices, cgroup: str, written: Mapping[str, int | str] = NO_ENTRIES) -> Sequence[Work]:
    """The same after the kubelet has resized a pod in its cgroup.

    Source: kubelet 1.33, in-place resize.

    `cgroup`: the pod's; empty if it is not known. `written`: what the kubelet has written there, by cgroup
    parameter, as far as the event says it.
    """
    if not cgroup or not core.ledger.books.is_managed(cgroup):
        return NO_WORK
    return (core.in_executor(core.ledger.on_resized, cgroup, written),)


def note_requests(core: CoreServices, pod: PodRecord) -> None:
    """Notes a resized pod's new sums; the kubelet writes them after the event if they are lower."""
    if core.ledger.books.is_managed(pod.cgroup_parent):
        members = core.store.containers.members(pod.id)
        core.ledger.books.note_requests(pod.cgroup_parent, requested_of_pod(not_stopped(members)))


# --- writes that have waited -------------------------------------------------------------------------------


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
        is_in_vm = isinstance(view, ContainerView) and not view.pod.has_container_cgroups
        why = IN_VM if is_in_vm else "the cgroup is not known"
        return _unwritten(due.values, WriteOutcome.MISSING, why)
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
