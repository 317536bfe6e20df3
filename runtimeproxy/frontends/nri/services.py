"""What all events of the runtime need: the core, the policies' decision, and work after the reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Self

from runtimeproxy.core.events import write_before
from runtimeproxy.core.questions import decide
from runtimeproxy.errors import RuntimeProxyError, StatusCode
from runtimeproxy.hooks import FailurePolicy
from runtimeproxy.hooks.audit import NO_ORIGIN, Origin

if TYPE_CHECKING:
    from runtimeproxy.cgroups.writer import WriteResult
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.core.questions import Question
    from runtimeproxy.core.services import CoreServices, Work
    from runtimeproxy.frontends.nri.state import NriState
    from runtimeproxy.hooks.audit import AuditSink
    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.pods.lookup import Lookups
    from runtimeproxy.pods.records import PodRecord


class RefusedError(RuntimeProxyError):
    """Policies refuse a pod or container.

    Attributes:
        code: For the runtime.
    """

    def __init__(self, code: StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class EventSettings:
    """How requests of the runtime are treated.

    Attributes:
        budget_s: Longest time for the policies of one request; half of the runtime's time for it, if that is
            less.
        on_unparsable: Whether a request that cannot be read is answered without a change or refused.
        on_failure: The same if the daemon itself fails.
    """

    budget_s: float
    on_unparsable: FailurePolicy
    on_failure: FailurePolicy

    @classmethod
    def of(cls, settings: Settings) -> Self:
        hooks = settings.hooks
        return cls(
            hooks.budget_s,
            FailurePolicy.FAIL if hooks.on_unparsable == "refuse" else FailurePolicy.IGNORE,
            FailurePolicy.FAIL if hooks.on_failure == "refuse" else FailurePolicy.IGNORE,
        )


@dataclass(slots=True, kw_only=True)
class EventServices:
    """Used in the event loop's thread.

    Attributes:
        core: What acts on events.
        state: For the status.
        lookups: Asks the runtime for single records.
        is_standby: Whether the bypass is on: nothing is asked or written then.
        audit: Takes what other plugins do to the policies' values.
        undecided: Ids of containers whose policies are asked again when they start.
    """

    core: CoreServices
    state: NriState
    lookups: Lookups
    settings: EventSettings
    is_standby: Callable[[], bool]
    audit: AuditSink
    undecided: set[str] = field(default_factory=set)

    def note_undecided(self, container_id: str) -> None:
        """The runtime creates a container without the answers of all policies: they follow by file."""
        self.undecided.add(container_id)
        self.core.evaluator.undecided.add(container_id)

    async def ask(self, question: Question, until_s: float, origin: Origin = NO_ORIGIN) -> Decision | None:
        """Has the policies decide, and applies the decision; None if none is about the pod.

        Args:
            question: About one hook of the event.
            until_s: When the decision has to be there, by the loop's clock.
            origin: The event, for the audit.

        Raises:
            RefusedError: Policies refuse the event.
        """
        chain = self.core.chain
        if self.is_standby() or question.hook not in chain.hooks:
            return None
        policies = chain.policies_for(question.hook, question.pod)
        if not policies:
            return None
        decision = await chain.decide(
            question.hook,
            question.make_view(),
            policies,
            budget_s=max(0.0, until_s - asyncio.get_running_loop().time()),
            apply=partial(self._apply, question),
            has_writes=question.has_writes,
            origin=origin,
        )
        if decision.refusal is not None:
            raise RefusedError(decision.refusal.code, decision.refusal.text)
        return decision

    def _apply(self, question: Question, decision: Decision) -> Mapping[str, WriteResult]:
        if decision.change is not None:
            question.edit(decision.change)
        return write_before(self.core.ledger, decision, question.cgroup, is_deferred=question.is_deferred)

    def start_after(self, kind: str, pod: PodRecord, works: Sequence[Work], *questions: Question) -> None:
        """Starts the work that an event has left, then its post hooks; the pod's next events wait for it."""
        chain = self.core.chain
        if self.is_standby():
            return
        asked = [each for each in questions if each.hook in chain.hooks]
        if works or asked:
            self.core.start_after(kind, (pod.id,), partial(self._after, works, asked))

    async def _after(self, works: Sequence[Work], questions: Sequence[Question]) -> None:
        for work in works:
            await work()
        for question in questions:
            await decide(self.core.chain, question, self.settings.budget_s)
