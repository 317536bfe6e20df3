"""From a call's request to what becomes of it: order, missing records, policies, edits, cgroup values."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from runtimeproxy.calls.answers import audit_late_writes, edited_request, write_answer
from runtimeproxy.calls.cri_call import answered
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.hooks.audit import Subject, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from runtimeproxy.calls.call_order import Turn
    from runtimeproxy.calls.cri_call import Operation, Question, Questions
    from runtimeproxy.calls.desk import Desk
    from runtimeproxy.calls.methods import Method
    from runtimeproxy.hooks.chain import Chain, ChainRun
    from runtimeproxy.hooks.decision import Decision, Refusal
    from runtimeproxy.hooks.fields import View
    from runtimeproxy.hooks.loaded import LoadedPolicy


class NoDecisionError(RuntimeProxyError):
    """The proxy itself cannot decide; the text says why."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a call.

    Attributes:
        frame: The edited request; None stands for the request as it came.
        refusal: The refusal of a policy; None if the call goes on.
    """

    frame: bytes | None = None
    refusal: Refusal | None = None


class Readiness(Enum):
    """What a call needs before it can go on."""

    NEEDLESS = "needless"
    """Nothing: nobody is concerned with it and nobody to be waited for."""
    ASKS = "asks"
    """The answer to one question, which can be put at once."""
    WAITS = "waits"
    """Others come first, something is not known yet, or there are several questions: it takes a task."""


class Deciding:
    """The decision on one call: what `readiness` says, then either `ask` and `verdict_on`, or `verdict`."""

    def __init__(self, desk: Desk, method: Method, operation: Operation, until_s: float) -> None:
        """Prepares the decision.

        Args:
            desk: What all calls share.
            method: Which call it is.
            operation: The call.
            until_s: When it has to be decided, by the loop's clock.
        """
        self._desk = desk
        self._method = method
        self._operation = operation
        self._until_s = until_s
        self._first: Question | None = None
        self._policies: Sequence[LoadedPolicy] = ()
        self._questions: Questions | None = None
        self._answers: list[tuple[Question, Decision]] = []
        self._carried = False
        self._edit_begun = False
        self._is_edited = False
        self._frame: bytes | None = None

    def readiness(self) -> Readiness:
        """Says at once what the call needs. What it finds out for that is kept for the decision."""
        chain, operation = self._desk.chain, self._operation
        if chain is None or operation.must_carry or not self._is_complete(chain):
            return Readiness.WAITS
        if not self._desk.lanes.is_idle(operation.turn_key, operation.pod_key):
            return Readiness.WAITS
        if not any(map(chain.has_policies, self._method.before)):
            return Readiness.NEEDLESS
        self._questions = operation.questions()
        self._first = next(self._questions, None)
        if self._first is None:
            return Readiness.NEEDLESS
        if not operation.asks_once:
            return Readiness.WAITS
        self._policies = self._desk.policies_for(chain, self._first)
        return Readiness.ASKS if self._policies else Readiness.NEEDLESS

    def ask(self, decided: Callable[[Decision], None]) -> ChainRun:
        """Puts the one question of a call that `ASKS`; no task waits for the decision.

        Raises:
            NoDecisionError: There is nothing to ask; never after `readiness` has said `ASKS`.
        """
        chain, question = self._desk.chain, self._first
        if chain is None or question is None:
            raise NoDecisionError("there is nothing to ask")
        return chain.begin(
            question.hook,
            question.view(),
            self._policies,
            decided,
            budget_s=self._left_s(),
            apply=partial(self._carry_out, question),
        )

    def verdict_on(self, decision: Decision) -> Verdict | None:
        """What becomes of the call now that its one question is decided.

        Returns:
            None if the request still has to be edited, which takes a task: `edited` does it.

        Raises:
            NoDecisionError: The policies' answer cannot be carried out.
        """
        if self._questions is None or self._first is None:
            raise NoDecisionError("nothing was asked")
        if decision.refusal is not None:
            return Verdict(refusal=decision.refusal)
        self._note(self._first, decision)
        answered(self._questions, decision)
        return Verdict(self._frame) if self._needs_no_edit() else None

    async def verdict(self, turn: Turn) -> Verdict:
        """Waits for whom it has to wait for, then asks the policies.

        Raises:
            NoDecisionError: The policies are not loaded in time, or their answer cannot be carried out.
        """
        patience_s = self._patience_s()
        await turn.come(patience_s)
        chain = await self._desk.policies(patience_s)
        if chain is None:
            raise NoDecisionError("the policies are not loaded yet")
        await self._complete(chain, patience_s)
        await self._desk.lanes.hooks_done(self._operation.pod_key, patience_s)
        self._carried = self._operation.carry()
        refusal = await self._ask_all(chain)
        return Verdict(refusal=refusal) if refusal is not None else await self.edited()

    async def edited(self) -> Verdict:
        """The verdict with the edited request, wherever it was edited or still has to be.

        Raises:
            NoDecisionError: The policies' answer cannot be carried out.
        """
        if not self._needs_no_edit():
            loop, executor = asyncio.get_running_loop(), self._desk.executor
            await loop.run_in_executor(executor, self._edit, self._answers)
            if not self._operation.asks_once:
                self._audit_all(await loop.run_in_executor(executor, self._write_all))
        return Verdict(self._frame)

    def _needs_no_edit(self) -> bool:
        if self._is_edited:
            return True
        if self._edit_begun:
            raise NoDecisionError("what the policies answered cannot be put into the request")
        return not self._answers and not self._carried

    def _patience_s(self) -> float:
        if not self._method.ends:
            return self._until_s
        return min(self._until_s, asyncio.get_running_loop().time() + self._desk.settings.end_wait_s)

    async def _complete(self, chain: Chain, until_s: float) -> None:
        if self._is_complete(chain):
            return
        self._desk.counts["looked_up"] += 1
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await self._operation.complete()

    def _is_complete(self, chain: Chain) -> bool:
        """Whether there are the records that the policies' questions need, if there are any questions."""
        if self._operation.is_complete:
            return True
        return not any(map(chain.has_policies, (*self._method.before, *self._method.after)))

    async def _ask_all(self, chain: Chain) -> Refusal | None:
        """Puts all questions; returns the first refusal."""
        questions, question = self._questions, self._first
        if questions is None:
            questions = self._operation.questions()
            question = next(questions, None)
        while question is not None:
            decision = await self._ask(chain, question)
            if decision is not None and decision.refusal is not None:
                return decision.refusal
            question = answered(questions, decision)
        return None

    async def _ask(self, chain: Chain, question: Question) -> Decision | None:
        policies = self._desk.policies_for(chain, question)
        if not policies:
            return None
        decision = await chain.decide(
            question.hook,
            await self._view(question),
            policies,
            budget_s=self._left_s(),
            apply=partial(self._carry_out, question) if self._operation.asks_once else _put_off,
            is_short=self._operation.elsewhere is None,
        )
        self._note(question, decision)
        return decision

    async def _view(self, question: Question) -> View:
        elsewhere = self._operation.elsewhere
        if elsewhere is None:
            return question.view()
        try:
            async with asyncio.timeout_at(self._until_s):
                return await elsewhere(question.view)
        except TimeoutError:
            raise NoDecisionError("the request could not be made ready for policies in time") from None

    def _left_s(self) -> float:
        return max(0.0, self._until_s - asyncio.get_running_loop().time())

    def _note(self, question: Question, decision: Decision) -> None:
        if decision.refusal is None and decision.change is not None:
            self._answers.append((question, decision))

    def _carry_out(self, question: Question, decision: Decision) -> Mapping[str, Written]:
        """Edits, and in a worker thread writes, once all policies agreed; returns what became of values."""
        if decision.change is None:
            return {}
        self._edit_begun = True
        self._edit([(question, decision)])
        return write_answer(self._desk.writer, self._operation, question, decision)

    def _edit(self, answers: list[tuple[Question, Decision]]) -> None:
        self._frame = edited_request(self._operation, answers, carried=self._carried)
        self._is_edited = True

    def _write_all(self) -> list[Mapping[str, Written]]:
        writer, operation = self._desk.writer, self._operation
        return [write_answer(writer, operation, *answer) for answer in self._answers]

    def _audit_all(self, all_written: list[Mapping[str, Written]]) -> None:
        """Audits what became of the values that `_put_off` called pending."""
        chain = self._desk.chain
        if chain is None:
            return
        for (question, decision), written in zip(self._answers, all_written, strict=True):
            subject = Subject(question.hook, decision.merged.start, time.time())
            audit_late_writes(chain.audit, subject, decision.owners, written)


def _put_off(decision: Decision) -> Mapping[str, Written]:
    """Writes nothing: of a call with several questions, the values are written when all are answered."""
    cgroup = decision.change.cgroup if decision.change is not None else {}
    return dict.fromkeys(cgroup, Written(is_pending=True))
