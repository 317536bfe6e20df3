"""What a front end asks the policies, what it keeps of their decisions, and its work before an event."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from runtimeproxy.errors import RefusalError
from runtimeproxy.fields.tables import IDLE, OF_PROCESSES
from runtimeproxy.hooks import CgroupChange, ContainerView, Hook, PodChange, PodView
from runtimeproxy.hooks.audit import NO_ORIGIN
from runtimeproxy.hooks.fields import NO_FIELDS, plain_cgroup_values
from runtimeproxy.ledger.answers import by_parameter, wanted_of
from runtimeproxy.ledger.books import TREE, Wanted
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.pods.record_views import (
    container_in_force,
    recorded_container,
    recorded_pod,
    recorded_summary,
)
from runtimeproxy.pods.records import Level, Lifecycle
from runtimeproxy.pods.resources import NO_ENTRIES, overlay
from runtimeproxy.pods.updates import (
    PendingUpdate,
    fitted_owners,
    quotas_after_update,
    released_change,
    released_fields,
)

if TYPE_CHECKING:
    from runtimeproxy.core.services import CgroupLedger, CoreServices, EventProblems, Work
    from runtimeproxy.hooks import Resources
    from runtimeproxy.hooks.algebra import Resolved
    from runtimeproxy.hooks.audit import Origin
    from runtimeproxy.hooks.chain import Chain
    from runtimeproxy.hooks.changes import Change, ResourceChange
    from runtimeproxy.hooks.claimants import Owners
    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.hooks.fields import Field, View
    from runtimeproxy.hooks.selector import PodTraits
    from runtimeproxy.pods.inventory import Inventory
    from runtimeproxy.pods.records import ContainerRecord, PodRecord

NO_WORK: Final[Sequence[Work]] = ()


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

    def has_writes(self, decision: Decision) -> bool:
        """Whether a decision's cgroup values are written when it is applied, in a worker thread then."""
        change = decision.change
        if not (isinstance(change, CgroupChange) and change.cgroup):
            return False
        return not waits_for_cgroup(decision, self.cgroup, is_deferred=self.is_deferred)


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
    """Has the policies decide, where nothing is applied, as after an event; None if none is about the pod."""
    policies = chain.policies_for(question.hook, question.pod)
    if not policies:
        return None
    view = question.make_view()
    return await chain.decide(question.hook, view, policies, budget_s=budget_s, origin=origin)


# --- what is kept of a decision until the runtime has answered ---------------------------------------------


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


def put_back(
    expected: ContainerRecord, sent: Resources, decided: DecidedValues
) -> tuple[Collection[str], ResourceChange]:
    """The fields that an update gives back, as no policy wants them any more, and the change that does it.

    Args:
        expected: The record when the runtime has answered earlier updates.
        sent: From the kubelet.
        decided: On the update.
    """
    requested = overlay(expected.requested, sent)
    released = released_fields(expected, requested, decided.owners, decided.silent)
    return released, released_change(released, requested)


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


AFTER_SANDBOX: Final = frozenset({IDLE, *OF_PROCESSES})
"""Values of a pod's cgroup that wait until its sandbox runs: the kubelet, systemd and the runtime write
weights until then, and there are no processes before."""


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
    counted = wanted.claims.keys() - plain_cgroup_values(change).keys()
    is_late = decision.unwritten or counted or not AFTER_SANDBOX.isdisjoint(wanted.claims)
    return DecidedPod(change, decision.owners, wanted if wanted.claims and is_late else None)


# --- work before an event ----------------------------------------------------------------------------------


def make_room(
    core: CoreServices, pod: PodRecord | None, values: Callable[[], Mapping[str, int | str]]
) -> Sequence[Work]:
    """Raises a pod's own limits before the runtime makes or starts a container with these values in it."""
    parent, ledger = pod.cgroup_parent if pod is not None else "", core.ledger
    if not ledger.books.needs_room(parent):
        return NO_WORK
    return (core.in_executor(ledger.make_room, parent, values()),)


def take_cpus(
    problems: EventProblems, kind: str, until_s: float, taking: Callable[[], Awaitable[None]]
) -> Work:
    """Takes a pod's own CPUs, and waits until other pods have left them; they keep no pod from starting.

    `kind`: of the event. `until_s`: when it has to go on, by the loop's clock. `taking`: `admit` or `create`
    of `CoreServices.allocations`.
    """

    async def run() -> None:
        try:
            async with asyncio.timeout_at(until_s):
                await taking()
        except TimeoutError:
            problems.counts[kind, "cpus_not_left"] += 1
            text = "other pods have not left its CPUs in time"
            problems.failures.report(kind, text, text)
        except Exception as error:  # noqa: BLE001 - that others keep its CPUs stops no pod
            problems.report_bug(kind, error)

    return run


def commit_pools(core: CoreServices, kind: str, uid: str, until_s: float) -> Sequence[Work]:
    """Saves Katalyst's pools, and waits until other pods have left the CPUs that this one has alone.

    The work raises `RefusalError` if that is not so and the call is to be refused for it.

    `kind`: of the event. `until_s`: when it has to go on, by the loop's clock.
    """
    pools = core.pools
    if not uid or pools is None or not pools.needs_commit(uid):
        return NO_WORK

    async def run() -> None:
        try:
            await pools.commit(uid, until_s)
        except RefusalError:
            raise
        except Exception as error:  # noqa: BLE001 - a bug of pools stops no pod
            core.problems.report_bug(kind, error)

    return (run,)


def lower_bursts(
    core: CoreServices, record: ContainerRecord, pod: PodRecord, update: PendingUpdate, *, has_pending: bool
) -> Sequence[Work]:
    """Lowers the bursts before the runtime lowers the quotas: none may be below the burst.

    `has_pending`: whether policies have given values that wait for the update.
    """
    if update.sent.cpu_quota_us is None and not has_pending:
        return NO_WORK
    cgroup = "" if record.state is Lifecycle.CREATED else core.inventory.cgroup_of(pod, record)
    is_managed = any(map(core.ledger.books.is_managed, filter(None, (pod.cgroup_parent, cgroup))))
    if not is_managed and not has_pending:
        return NO_WORK
    members = core.store.containers.members(record.pod_id)
    others = [each.requested for each in not_stopped(members) if each.id != record.id]
    quotas_us = quotas_after_update(
        cgroup, pod.cgroup_parent, update.sent.cpu_quota_us, update.forwarded.cpu_quota_us, others
    )
    return (core.in_executor(_lower_bursts, core.ledger, quotas_us),) if quotas_us else NO_WORK


def _lower_bursts(ledger: CgroupLedger, quotas_us: Mapping[str, int]) -> None:
    for cgroup, quota_us in quotas_us.items():
        ledger.before_update(cgroup, quota_us)


def not_stopped(containers: Collection[ContainerRecord]) -> list[ContainerRecord]:
    return [each for each in containers if each.state is not Lifecycle.STOPPED]
