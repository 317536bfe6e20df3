"""What a front end asks the policies about pods and containers, and what it keeps of their decisions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from runtimeproxy.core.events import DueWrites, pending_values, wanted_of_container
from runtimeproxy.hooks import CgroupChange, Hook, PodChange, PodView
from runtimeproxy.hooks.audit import NO_ORIGIN
from runtimeproxy.hooks.fields import NO_FIELDS, plain_cgroup_values
from runtimeproxy.ledger.answers import by_parameter, claims_of, target_of, wanted_of
from runtimeproxy.ledger.books import TREE, Wanted
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.pods.drafts import fitted_owners, merged_owners
from runtimeproxy.pods.record_views import (
    container_in_force,
    is_resize,
    recorded_container,
    recorded_pod,
    recorded_summary,
)
from runtimeproxy.pods.records import Level, Lifecycle
from runtimeproxy.pods.resources import NO_ENTRIES, bounded, overlay

if TYPE_CHECKING:
    from runtimeproxy.core.events import CgroupLedger, EventServices
    from runtimeproxy.hooks import ContainerView, Resources
    from runtimeproxy.hooks.algebra import Resolved
    from runtimeproxy.hooks.audit import Origin
    from runtimeproxy.hooks.chain import Chain
    from runtimeproxy.hooks.changes import Change
    from runtimeproxy.hooks.claimants import Owners
    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.hooks.fields import Field, View
    from runtimeproxy.hooks.selector import PodTraits
    from runtimeproxy.pods.inventory import Inventory
    from runtimeproxy.pods.records import ContainerRecord, PodRecord


def no_edit(change: Change) -> bool:
    """For events that carry no field that a policy may change."""
    return False


def _ignore(decision: Decision | None) -> None:
    return


@dataclass(slots=True)
class Question:
    """One hook of an event: its input for policies, and the target of their decision.

    Attributes:
        pod: What selectors look at.
        make_view: Makes the view for policies; called only when a policy is to run, in any thread, without
            access to the store.
        cgroup: The cgroup for the decision's cgroup values; empty while it does not exist.
        is_deferred: Whether those values are not written before the decision is applied.
        edit: Applies a change to what the front end sends; returns whether that differs now. Runs in any
            thread.
        on_decided: Takes the decision, once it is applied; None if no policy had to run.
    """

    hook: Hook
    pod: PodTraits
    make_view: Callable[[], View]
    cgroup: str = ""
    is_deferred: bool = False
    edit: Callable[[Change], bool] = no_edit
    on_decided: Callable[[Decision | None], None] = _ignore


def container_question(
    inventory: Inventory,
    hook: Hook,
    record: ContainerRecord,
    pod: PodRecord | None,
    updated: Resources | None = None,
) -> Question:
    """A question about a recorded container; `updated` are the resources that an update asks for.

    Without an update its values are those in force.
    """
    cgroup = "" if record.state is Lifecycle.CREATED else inventory.cgroup_of(pod, record)

    def make_view() -> ContainerView:
        view = PodView() if pod is None else recorded_pod(pod)
        if updated is None:
            return container_in_force(record, view)
        return recorded_container(record, view, updated)

    return Question(hook, PodView() if pod is None else recorded_summary(pod), make_view, cgroup)


def pod_question(hook: Hook, record: PodRecord, *, has_cgroup: bool = True) -> Question:
    """A question about a recorded pod; `has_cgroup` says whether its cgroup is there to be written to."""
    cgroup = record.cgroup_parent if has_cgroup else ""
    return Question(hook, recorded_summary(record), partial(recorded_pod, record), cgroup)


async def decide(
    chain: Chain, question: Question, budget_s: float, origin: Origin = NO_ORIGIN
) -> Decision | None:
    """Has the policies decide, for callers that apply nothing; None if none is about the pod."""
    policies = chain.policies_for(question.hook, question.pod)
    if not policies:
        return None
    view = question.make_view()
    return await chain.decide(question.hook, view, policies, budget_s=budget_s, origin=origin)


# --- what is kept of a decision until the runtime has answered ---------------------------------------------


class DecidedValues(NamedTuple):
    """The part of a decision that records and cgroups get once the runtime has answered."""

    owners: Owners = NO_ENTRIES
    pending: Mapping[str, int | str] = NO_ENTRIES
    """The cgroup values that wait for the event."""
    fields: Mapping[Field, Resolved] | None = NO_FIELDS
    """What all policies want; None if that was not applied to the end."""
    silent: frozenset[str] = frozenset()
    """The policies without an answer."""


NOTHING_DECIDED: Final = DecidedValues()


def decided_values(decision: Decision, cgroup: str = "", *, is_deferred: bool = False) -> DecidedValues:
    """For `cgroup` and `is_deferred` see `pending_values`."""
    change = decision.change
    has_values = isinstance(change, CgroupChange) and change.cgroup
    pending = pending_values(decision, cgroup, is_deferred=is_deferred) if has_values else NO_ENTRIES
    fields = None if decision.unwritten else decision.merged.fields
    return DecidedValues(decision.owners, pending, fields, decision.without_answer)


def values_within_bounds(
    ledger: CgroupLedger, pod_cgroup: str, values: Callable[[], Resources]
) -> Mapping[str, int | str]:
    """What bounds of a pod's cgroup and above change of a container's values; empty for nothing."""
    if not ledger.books.is_bounded(pod_cgroup):
        return NO_ENTRIES
    return ledger.within_bounds(pod_cgroup, by_parameter(values()))


def owners_with_fitted(owners: Owners, fitted: Mapping[str, int | str]) -> Owners:
    """The owners of a container's fields, with those of values that bounds above have changed."""
    return {**fitted_owners(fitted, TREE), **owners} if fitted else owners


class DecidedPod(NamedTuple):
    """The part of a decision on a new pod that its record and cgroup get once it is there."""

    change: PodChange = PodChange()
    owners: Owners = NO_ENTRIES
    late: Wanted | None = None
    """The wanted cgroup values, if not all could be written before."""


NOTHING_DECIDED_ON_POD: Final = DecidedPod()


def decided_pod(decision: Decision) -> DecidedPod:
    change, wanted = decision.pod_change or PodChange(), wanted_of(decision, CgroupTarget(Level.POD, ""))
    # What is counted from the value in the file has no plain value yet.
    is_late = decision.unwritten or wanted.claims.keys() - plain_cgroup_values(change).keys()
    return DecidedPod(change, decision.owners, wanted if wanted.claims and is_late else None)


def due_at_creation(record: PodRecord, decided: DecidedPod, evaluation: int) -> DueWrites | None:
    """The cgroup values of a pod that were not written before it was created; see `DueWrites`."""
    if decided.late is None or not record.cgroup_parent:
        return None
    wanted = decided.late._replace(target=target_of(record))
    hook, make_view = Hook.PRE_RUN_POD_SANDBOX, partial(recorded_pod, record)
    return DueWrites(record.cgroup_parent, {}, decided.owners, hook, make_view, wanted, evaluation)


# --- updates -----------------------------------------------------------------------------------------------


class PendingUpdate(NamedTuple):
    """An update of a container that the runtime has not answered."""

    sent: Resources
    """From the kubelet."""
    forwarded: Resources
    """The same with the changes of policies."""


def with_updates(record: ContainerRecord, updates: Iterable[PendingUpdate]) -> ContainerRecord:
    """The record as it is when the runtime has answered these."""
    for update in updates:
        record = replace(
            record,
            requested=overlay(record.requested, update.sent),
            booked=overlay(record.booked, update.forwarded),
        )
    return record


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


def due_of_container(
    services: EventServices,
    pod: PodRecord,
    record: ContainerRecord,
    decided: DecidedValues,
    fitted: Mapping[str, int | str],
    evaluation: int,
) -> DueWrites | None:
    """The writes after an update of a container that runs; None if its files stay as they are."""
    cgroup, fields = services.inventory.cgroup_of(pod, record), decided.fields
    if fields is None or not cgroup:
        return None
    if not (fields or fitted or services.ledger.books.is_managed(cgroup)):
        return None
    wanted = wanted_of_container(pod, record, cgroup, fields, fitted, decided.silent)
    hook = Hook.PRE_UPDATE_CONTAINER_RESOURCES
    make_view = partial(recorded_container, record, recorded_pod(pod))
    return DueWrites(cgroup, decided.pending, decided.owners, hook, make_view, wanted, evaluation)


def due_of_pod(
    services: EventServices, record: PodRecord, decided: DecidedValues, evaluation: int
) -> DueWrites | None:
    """The writes after an update of a pod; None if its files stay as they are."""
    cgroup, fields = record.cgroup_parent, decided.fields
    if fields is None or not cgroup:
        return None
    if not (fields or services.ledger.books.is_managed(cgroup)):
        return None
    claims = claims_of(fields, is_container=False, is_base_known=not record.recovered)
    wanted = Wanted(target_of(record), claims, unanswered=decided.silent)
    hook, make_view = Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES, partial(recorded_pod, record)
    return DueWrites(cgroup, decided.pending, decided.owners, hook, make_view, wanted, evaluation)
