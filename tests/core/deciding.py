"""A front end that carries decisions, as short as it can be; CONTRIBUTING.md goes through it step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from runtimeproxy.cgroups.writer import WriteResult
from runtimeproxy.core.events import book_container, on_container_started, write_before
from runtimeproxy.core.questions import (
    NOTHING_DECIDED,
    Question,
    container_question,
    decide,
    decided_values,
    make_room,
    owners_with_fitted,
    values_within_bounds,
)
from runtimeproxy.core.services import CoreServices, Work
from runtimeproxy.hooks import ContainerChange, Hook
from runtimeproxy.hooks.changes import Change, ResourceChange
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.ledger.answers import by_parameter
from runtimeproxy.pods.record_views import recorded_container, recorded_pod, recorded_summary
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.pods.updates import fitted_change

BUDGET_S = 30.0


class RefusedError(Exception):
    """Policies refuse it."""


@dataclass
class Message:
    """What a runtime is asked to make: a container with these booked resources."""

    record: ContainerRecord

    def put(self, change: ResourceChange) -> None:
        values = {name: value for name in ("cpu_shares", "cpu_quota_us") if (value := getattr(change, name))}
        self.record = replace(self.record, booked=replace(self.record.booked, **values))

    def edit(self, change: Change) -> bool:
        resources = cast("ContainerChange", change).resources
        if resources is not None:
            self.put(resources)
        return resources is not None


async def create_container(
    core: CoreServices, pod: PodRecord, message: Message, send: Callable[[Message], Awaitable[str]]
) -> ContainerRecord:
    """Decides on a container, has the runtime make it, and records it."""
    key, until_s = f"{pod.id}/{message.record.name}", asyncio.get_running_loop().time() + BUDGET_S
    turn = core.order.enter(key)
    try:
        await turn
        await core.order.wait_for_post_hooks(pod.id, until_s)
        chain, evaluation, decided = core.chain, core.evaluator.rounds, NOTHING_DECIDED
        make_view = partial(recorded_container, message.record, recorded_pod(pod))
        question = Question(Hook.PRE_CREATE_CONTAINER, recorded_summary(pod), make_view, edit=message.edit)
        if policies := chain.policies_for(question.hook, question.pod):
            decision = await chain.decide(
                question.hook,
                make_view(),
                policies,
                budget_s=BUDGET_S,
                apply=partial(_apply, core, question),
                has_writes=question.has_writes,
            )
            if decision.refusal is not None:
                raise RefusedError(decision.refusal.text)
            decided = decided_values(decision)
        fitted = values_within_bounds(core.ledger, pod.cgroup_parent, lambda: message.record.booked)
        message.put(fitted_change(fitted))
        for work in make_room(core, pod, lambda: by_parameter(message.record.booked)):
            await work()
    finally:
        core.order.leave(key, turn)
    record = replace(
        message.record,
        id=await send(message),
        owners=owners_with_fitted(decided.owners, fitted),
        pending_cgroup=decided.pending,
        evaluation=evaluation,
    )
    core.store.containers.put(record)
    book_container(core, pod, record, decided.fields, fitted)
    return record


def _apply(core: CoreServices, question: Question, decision: Decision) -> Mapping[str, WriteResult]:
    if decision.change is not None:
        question.edit(decision.change)
    return write_before(core.ledger, decision, question.cgroup, is_deferred=question.is_deferred)


def on_start(core: CoreServices, record: ContainerRecord) -> None:
    """A container has started: what waits for that is written, then post hooks run."""
    works = on_container_started(core, record, NOTHING_DECIDED)
    core.start_after("start", (record.pod_id,), partial(_after, core, record, works))


async def _after(core: CoreServices, record: ContainerRecord, works: Sequence[Work]) -> None:
    for work in works:
        await work()
    pod = core.store.pods.get(record.pod_id)
    question = container_question(core.inventory, Hook.POST_START_CONTAINER, record, pod)
    await decide(core.chain, question, BUDGET_S)
