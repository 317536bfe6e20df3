"""After a call: effects of policies, post hooks of hook servers, and cgroup values that had to wait."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from runtimeproxy.cgroups.writer import WriteOutcome
from runtimeproxy.frontends.cri_proxy.calls.cri_call import next_question
from runtimeproxy.hooks import ContainerView, PodChange, PodView
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.audit import NO_ORIGIN, Origin, Subject, Written
from runtimeproxy.hooks.fields import CGROUP, Field, FieldUpdate, plain_cgroup_values
from runtimeproxy.ledger.answers import claimant_of_record, target_of_view, wanted_of
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.pods.runtime_client import RuntimeUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from runtimeproxy.cgroups.writer import WriteResult
    from runtimeproxy.frontends.cri_proxy.calls.cri_call import CriCall, DueWrites, Question
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices, CgroupLedger
    from runtimeproxy.frontends.cri_proxy.calls.methods import Method
    from runtimeproxy.hooks.chain import Chain
    from runtimeproxy.hooks.claimants import Claimant
    from runtimeproxy.hooks.decision import Decision

_ERRORS: Final = (WriteOutcome.INVALID, WriteOutcome.REFUSED, WriteOutcome.FAILED)


def start_post_hooks(services: CallServices, method: Method, call: CriCall) -> None:
    """Starts the post hooks and due cgroup writes of a call; the next calls of its pod wait for them."""
    chain = services.chain
    is_disturbed = call.disturbed_cgroup and services.ledger.books.is_managed(call.disturbed_cgroup)
    if not call.due_writes and not is_disturbed:
        if chain.hooks.isdisjoint(method.after):
            return
        if call.has_one_question and call.find_records():
            question = next(call.post_questions(), None)
            if question is None or not chain.policies_for(question.hook, question.pod):
                return
    work = partial(_run_post_hooks, services, method, call)
    services.order.block(call.pod_keys, services.spawn(_guarded(services, method, work)))


def reapply_resized(services: CallServices, method: Method, call: CriCall) -> None:
    """Writes again the values of policies in a pod's cgroup that the kubelet has resized.

    The next calls of the pod wait for it.
    """
    cgroup = call.resized_cgroup
    if cgroup and services.ledger.books.is_managed(cgroup):
        run, ledger = asyncio.get_running_loop().run_in_executor, services.ledger
        if call.is_resize:
            work = partial(run, services.executor, ledger.on_resized, cgroup, call.written_there)
        else:
            work = partial(run, services.executor, ledger.repair, cgroup)
        services.order.block(call.pod_keys, services.spawn(_guarded(services, method, work)))


async def settle(services: CallServices, method: Method, call: CriCall) -> None:
    """Asks the runtime for the outcome of a call; after a success its post hooks run."""
    await _guarded(services, method, partial(_settle, services, method, call))


async def write_due(services: CallServices, due: DueWrites, origin: Origin = NO_ORIGIN) -> None:
    """Writes and audits cgroup values that have waited for the success of a call."""
    run = asyncio.get_running_loop().run_in_executor
    view = due.make_view()
    written = await run(services.executor, _write_due, services.ledger, due, view)
    subject = Subject(due.hook, view, time.time(), origin=origin)
    audit_late_writes(services.chain, subject, due.owners, written)
    if due.evaluation is not None:
        # After the write: that undoes what an evaluation since the answer has claimed.
        services.catch_up((view.pod if isinstance(view, ContainerView) else view).id, due.evaluation)


def _write_due(ledger: CgroupLedger, due: DueWrites, view: PodView | ContainerView) -> Mapping[str, Written]:
    if not due.cgroup:
        why = "the cgroup is not known"
        return {name: Written(new=str(value), skipped=why) for name, value in due.values.items()}
    if due.wanted is None:
        claims = {
            name: (Claim(_owner_of(name, due.owners), Role.SET, value),) for name, value in due.values.items()
        }
        return _written(ledger.start(Wanted(target_of_view(view, due.cgroup), claims)))
    if isinstance(view, PodView):
        # The kubelet may have written there before the call; that is the original then.
        ledger.on_resized(due.cgroup)
    return _written(ledger.change([due.wanted]))


def _owner_of(name: str, owners: Mapping[str, str]) -> Claimant:
    return claimant_of_record(owners.get(str(Field(CGROUP, name)), ""))


def has_writes(question: Question, decision: Decision) -> bool:
    """Whether `write_decision` writes files: values of a cgroup that exists, or bursts before an update."""
    change = decision.change
    if change is None or not plain_cgroup_values(change):
        return False
    is_container = isinstance(decision.merged.start, ContainerView)
    is_waiting = question.is_deferred or (is_container and not question.cgroup)
    return not is_waiting or bool(question.new_quotas_us())


def write_decision(ledger: CgroupLedger, question: Question, decision: Decision) -> Mapping[str, Written]:
    """Writes the cgroup values of a decision, in a worker thread, but those that have to wait.

    Returns:
        The results by parameter.
    """
    change, view = decision.change, decision.merged.start
    values = plain_cgroup_values(change) if change is not None else {}
    if not values or not isinstance(view, PodView | ContainerView):
        return {}
    target = (change.cgroup_parent if isinstance(change, PodChange) else None) or question.cgroup
    if question.is_deferred or (not target and isinstance(view, ContainerView)):
        for cgroup, quota_us in question.new_quotas_us().items():
            ledger.before_update(cgroup, quota_us)
        return dict.fromkeys(values, Written(is_pending=True))
    if target:
        return _written(ledger.change([wanted_of(decision, target_of_view(view, target))]))
    return dict.fromkeys(values, Written(skipped="the pod's cgroup is not known"))


def _written(results: Iterable[WriteResult]) -> Mapping[str, Written]:
    return {
        result.name: Written(
            new=str(result.value),
            old="" if result.old is None else str(result.old),
            failed=result.error if result.outcome in _ERRORS else "",
            skipped=result.error if result.outcome is WriteOutcome.MISSING else "",
            is_unchanged=result.outcome is WriteOutcome.UNCHANGED,
        )
        for result in results
    }


def audit_late_writes(
    chain: Chain, subject: Subject, owners: Mapping[str, str], written: Mapping[str, Written]
) -> None:
    """Audits values that were pending when they were decided.

    Args:
        chain: Takes the entries.
        subject: The pod or container of the decision.
        owners: The policy that owns each field.
        written: The results by parameter.
    """
    for name, result in written.items():
        if not (result.is_unchanged or result.is_pending):
            field = Field(CGROUP, name)
            update = FieldUpdate(field, result.old or None, result.new)
            reason = result.failed or result.skipped or "the cgroup is there now"
            chain.audit(subject.entry(result.kind(), owners.get(str(field), ""), reason, update))


async def _run_post_hooks(services: CallServices, method: Method, call: CriCall) -> None:
    """Writes lost and due values, then runs the policies; a failed write does not skip them."""
    if call.disturbed_cgroup and services.ledger.books.is_managed(call.disturbed_cgroup):
        run = asyncio.get_running_loop().run_in_executor
        await run(services.executor, services.ledger.repair, call.disturbed_cgroup)
    for due in call.due_writes:
        await write_due(services, due, call.origin)
    chain = services.chain
    if chain.hooks.isdisjoint(method.after):
        return
    if not call.find_records():
        await call.fetch_records()
    questions = call.post_questions()
    question = next(questions, None)
    while question is not None:
        policies, decision = chain.policies_for(question.hook, question.pod), None
        if policies:
            decision = await chain.decide(
                question.hook,
                question.make_view(),
                policies,
                budget_s=services.settings.budget_s,
                origin=call.origin,
            )
        question = next_question(questions, decision)


async def _settle(services: CallServices, method: Method, call: CriCall) -> None:
    try:
        if await call.confirm():
            start_post_hooks(services, method, call)
    except RuntimeUnavailableError as error:
        services.failures.report(method.kind, "unsettled", f"outcome of the call unknown: {error}")
        services.on_unsettled()


async def _guarded(services: CallServices, method: Method, work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except Exception as error:  # noqa: BLE001 - a bug costs one call's post hooks, not the daemon
        services.internal_errors += 1
        cause = type(error).__name__
        services.failures.report(method.kind, f"after {cause}", f"{cause} after the call")
