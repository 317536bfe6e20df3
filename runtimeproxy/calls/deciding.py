"""From a call's request to what becomes of it: order, missing records, policies, edits, cgroup values."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from runtimeproxy.calls.answers import CgroupWriteError, edited_request, write_answer
from runtimeproxy.errors import RuntimeProxyError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtimeproxy.calls.desk import Desk
    from runtimeproxy.calls.lanes import Turn
    from runtimeproxy.calls.methods import Method
    from runtimeproxy.calls.operation import Operation, Question, Questions
    from runtimeproxy.hooks import CgroupChange
    from runtimeproxy.hooks.chain import Chain
    from runtimeproxy.hooks.decision import Decision, Refusal
    from runtimeproxy.hooks.written import Written


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


class Deciding:
    """The decision on one call."""

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
        self._questions: Questions | None = None
        self._answers: list[tuple[Question, CgroupChange]] = []
        self._carried = False
        self._edit_begun = False
        self._is_edited = False
        self._frame: bytes | None = None

    def is_needless(self) -> bool:
        """Whether nothing is to be decided and nobody to be waited for; says so at once.

        What it finds out for that is kept for the decision that follows otherwise.
        """
        chain, operation = self._desk.chain, self._operation
        if chain is None or operation.must_carry or not self._is_complete(chain):
            return False
        if not self._desk.lanes.is_idle(operation.turn_key, operation.pod_key):
            return False
        if not any(map(chain.wants, self._method.before)):
            return True
        self._questions = operation.questions()
        self._first = next(self._questions, None)
        if self._first is None:
            return True
        return operation.asks_once and not self._desk.concerns(chain, self._first)

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
        return Verdict(refusal=refusal) if refusal is not None else Verdict(await self._edited())

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
        return not any(map(chain.wants, (*self._method.before, *self._method.after)))

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
            try:
                question = questions.send(decision)
            except StopIteration:
                return None
        return None

    async def _ask(self, chain: Chain, question: Question) -> Decision | None:
        if not self._desk.concerns(chain, question):
            return None
        finish = partial(self._carry_out, question) if self._operation.asks_once else None
        left_s = max(0.0, self._until_s - asyncio.get_running_loop().time())
        decision = await chain.decide(question.hook, question.view(), budget_s=left_s, finish=finish)
        if decision.refusal is None and decision.change is not None:
            self._answers.append((question, decision.change))
        return decision

    def _carry_out(self, question: Question, decision: Decision) -> Mapping[str, Written]:
        """In the policies' worker thread, once all of them agreed; returns what became of cgroup values."""
        if decision.change is None:
            return {}
        self._edit_begun = True
        self._edit([(question, decision.change)])
        return write_answer(self._desk.writer, self._operation, question, decision.change)

    async def _edited(self) -> bytes | None:
        """The edited request, wherever it was edited or still has to be."""
        if self._is_edited:
            return self._frame
        if self._edit_begun:
            raise NoDecisionError("what the policies answered cannot be put into the request")
        if not self._answers and not self._carried:
            return None
        await asyncio.get_running_loop().run_in_executor(self._desk.executor, self._edit, self._answers)
        if not self._operation.asks_once:
            await asyncio.get_running_loop().run_in_executor(self._desk.executor, self._write_all)
        return self._frame

    def _edit(self, answers: list[tuple[Question, CgroupChange]]) -> None:
        self._frame = edited_request(self._operation, answers, carried=self._carried)
        self._is_edited = True

    def _write_all(self) -> None:
        for question, change in self._answers:
            try:
                write_answer(self._desk.writer, self._operation, question, change)
            except CgroupWriteError as error:
                self._desk.failures.report(self._method.kind, "cgroup", str(error))
