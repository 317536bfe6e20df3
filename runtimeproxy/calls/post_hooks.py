"""What follows a call that has succeeded, or whose end was not seen."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

from runtimeproxy.calls.answers import audit_late_writes, write_answer, write_values
from runtimeproxy.calls.cri_call import answered
from runtimeproxy.calls.desk import INTERNAL_ERROR
from runtimeproxy.calls.to_views import recorded_container, recorded_pod
from runtimeproxy.hooks import Hook, PodView
from runtimeproxy.hooks.audit import Subject
from runtimeproxy.pods.runtime_client import RuntimeUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtimeproxy.calls.cri_call import DueWrites, Operation, Question
    from runtimeproxy.calls.desk import Desk
    from runtimeproxy.calls.methods import Method
    from runtimeproxy.hooks.audit import Written
    from runtimeproxy.hooks.chain import Chain
    from runtimeproxy.hooks.decision import Decision


def follow_up(desk: Desk, method: Method, operation: Operation) -> None:
    """Starts the post hooks and due cgroup writes of a call; the next calls of its pod wait for them."""
    if operation.due_writes() or _is_disturbed(desk, operation) or _is_asked(desk, method, operation):
        hooks = desk.spawn(_follow_up(desk, method, operation))
        desk.lanes.hold_back(operation.pod_keys, hooks)


def renew_resized(desk: Desk, method: Method, operation: Operation) -> None:
    """Writes again what policies own in a pod's cgroup that the kubelet resized. The pod's calls wait."""
    cgroup = operation.resized_cgroup
    if cgroup and desk.writer.is_managed(cgroup):
        desk.lanes.hold_back(operation.pod_keys, desk.spawn(_renew(desk, method, cgroup)))


async def _renew(desk: Desk, method: Method, cgroup: str) -> None:
    try:
        await asyncio.get_running_loop().run_in_executor(desk.executor, desk.writer.reapply, cgroup)
    except Exception as error:  # noqa: BLE001 - a bug costs one comparison, not the task's group
        _bug(desk, method, error)


def _is_disturbed(desk: Desk, operation: Operation) -> bool:
    """Whether values that policies wrote to the pod's cgroup have to be looked after."""
    cgroup = operation.disturbed_cgroup
    return bool(cgroup) and desk.writer.is_managed(cgroup)


def _is_asked(desk: Desk, method: Method, operation: Operation) -> bool:
    """Whether any policy has to be asked, as far as that can be told at once."""
    chain = desk.chain
    if chain is None or not any(map(chain.has_policies, method.after)):
        return False
    if not operation.asks_once or not operation.is_complete:
        return True
    question = next(operation.afterwards(), None)
    return question is not None and bool(desk.policies_for(chain, question))


async def settle(desk: Desk, method: Method, operation: Operation) -> None:
    """Asks the runtime how a call ended; after a success its post hooks run."""
    try:
        if await operation.confirm():
            follow_up(desk, method, operation)
    except RuntimeUnavailableError as error:
        desk.failures.report(method.kind, "unsettled", f"how the call ended is not known: {error}")
        desk.unsettled()
    except Exception as error:  # noqa: BLE001 - a bug costs one record, not the task's group
        _bug(desk, method, error)


async def _follow_up(desk: Desk, method: Method, operation: Operation) -> None:
    try:
        await _look_after_cgroups(desk, operation)
        if desk.chain is not None:
            await _ask_all(desk, desk.chain, method, operation)
    except Exception as error:  # noqa: BLE001 - a bug costs one call's post hooks, not the task's group
        _bug(desk, method, error)


def _bug(desk: Desk, method: Method, error: Exception) -> None:
    desk.counts[INTERNAL_ERROR] += 1
    cause = type(error).__name__
    desk.failures.report(method.kind, f"after {cause}", f"{cause} after the call")


async def write_due(desk: Desk, due: DueWrites) -> None:
    """Writes values that waited for their cgroup, and audits what became of them."""
    run = asyncio.get_running_loop().run_in_executor
    written = await run(desk.executor, write_values, desk.writer, due.cgroup, due.values)
    if desk.chain is not None:
        pod = recorded_pod(due.pod) if due.pod is not None else PodView()
        subject = Subject(Hook.POST_START_CONTAINER, recorded_container(due.container, pod), time.time())
        audit_late_writes(desk.chain.audit, subject, due.owners, written)


async def _look_after_cgroups(desk: Desk, operation: Operation) -> None:
    """Writes what was lost and what is due; a failed write does not skip the post hooks."""
    run = asyncio.get_running_loop().run_in_executor
    if _is_disturbed(desk, operation):
        await run(desk.executor, desk.writer.reapply, operation.disturbed_cgroup)
    due = operation.due_writes()
    if due is not None:
        await write_due(desk, due)


async def _ask_all(desk: Desk, chain: Chain, method: Method, operation: Operation) -> None:
    """Puts the questions after success; there is nothing left to refuse."""
    if not any(map(chain.has_policies, method.after)):
        return
    if not operation.is_complete:
        await operation.complete()
    questions = operation.afterwards()
    question = next(questions, None)
    while question is not None:
        question = answered(questions, await _ask(desk, chain, operation, question))


async def _ask(desk: Desk, chain: Chain, operation: Operation, question: Question) -> Decision | None:
    policies = desk.policies_for(chain, question)
    if not policies:
        return None
    return await chain.decide(
        question.hook,
        question.view(),
        policies,
        budget_s=desk.settings.budget_s,
        apply=partial(_write, desk, operation, question),
    )


def _write(desk: Desk, operation: Operation, question: Question, decision: Decision) -> Mapping[str, Written]:
    return write_answer(desk.writer, operation, question, decision)
