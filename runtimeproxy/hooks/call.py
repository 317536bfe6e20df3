"""One call's way through the chain: legs in worker threads, questions to other processes, the conclusion."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from runtimeproxy.errors import RuntimeProxyError, StatusCode
from runtimeproxy.hooks.audit import Subject
from runtimeproxy.hooks.decision import Decision, Refusal
from runtimeproxy.hooks.evaluation import (
    Outcome,
    OutcomeKind,
    Progress,
    decision_of,
    evaluate,
    explained,
    failed,
    is_refusable,
    refused_decision,
)
from runtimeproxy.hooks.fields import CGROUP, View
from runtimeproxy.hooks.leg import Leg, Stage, Work, hangs
from runtimeproxy.hooks.loaded import Asking, HookMethod, LoadedPolicy, RemoteHook, RemoteQuestion
from runtimeproxy.hooks.merge import Fold
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.views import ContainerView
from runtimeproxy.hooks.written import Written, with_written

if TYPE_CHECKING:
    from runtimeproxy.hooks.chain import Chain, Plan

Finish = Callable[[Decision], Mapping[str, Written] | None]
"""Carries out a decision and writes what it holds beyond the message; runs in a worker thread.

Of a short call whose decision holds nothing beyond the message, it may run in the loop's thread. May return
what became of the cgroup values, by parameter."""

GRACE_S: Final = 0.25
"""How long writes, or reading an answer, may take when the chain's budget is spent: what came in time still
counts."""

SMALL_BYTES: Final = 64 * 1024
"""What the loop's thread may work with; more goes to a worker thread."""
_ENTRY_BYTES: Final = 64
"""About what an entry of a map takes beside its value."""

_NO_WORKER: Final = "no worker thread is left"
_NO_TIME: Final = "the time for this call's policies is spent"


class Order(NamedTuple):
    """What the chain is asked to decide."""

    hook: Hook
    view: View
    """The pod or container that the hook is about."""
    budget_s: float
    """The time for the whole chain."""
    finish: Finish | None = None
    """Called after the last policy agreed, for the cgroup writes. Not called when the call is refused or
    nothing is to change."""
    is_short: bool = True
    """Whether the call's message is so short that the loop's thread may work with all of it."""


class Call:
    """One call, seen from the loop's thread.

    Attributes:
        is_over: whether it is decided or cancelled.
    """

    __slots__ = (
        "_asking",
        "_chain",
        "_deadline_s",
        "_decided",
        "_finish",
        "_is_short",
        "_leg",
        "_subject",
        "is_over",
    )

    def __init__(self, chain: Chain, order: Order, decided: Callable[[Decision], None]) -> None:
        self._chain = chain
        self._decided = decided
        self._subject = Subject(order.hook, order.view, time.time(), chain.node)
        self._deadline_s = time.monotonic() + order.budget_s
        self._finish = order.finish
        self._is_short = order.is_short
        self._leg: Leg | None = None
        self._asking: Asking | None = None
        self.is_over = False

    def begin(self, plan: Plan) -> None:
        """Start the first leg; policies that hang just now are left out."""
        fold = Fold(self._subject.view)
        progress = Progress(fold, fold if plan.has_dry_run else None)
        policies: Sequence[LoadedPolicy] = plan.policies
        if isinstance(self._subject.view, ContainerView):
            # Of no policy's answer depends which others are concerned, so a thread need not look again.
            policies = [each for each in policies if each.concern.matches(fold.pod)]
        if self._chain.hung:
            skipped = [policy for policy in policies if policy.name in self._chain.hung]
            policies = [policy for policy in policies if policy.name not in self._chain.hung]
            progress = self._failed(progress, [hangs(policy) for policy in skipped])
        self._go_on(policies, progress)

    def cancel(self) -> None:
        """Nothing counts any more; the timer stays to find a thread that hangs."""
        if not self.is_over:
            self.is_over = True
            self._chain.stats.cancelled += 1
        if self._leg is not None:
            self._leg.give_up()
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _go_on(self, policies: Sequence[LoadedPolicy], progress: Progress) -> None:
        """Do what is left to do, each part where it belongs, or conclude if that is nothing."""
        if progress.refusal is not None or not (policies or (self._finish and progress.real.claims)):
            self._conclude(decision_of(self._subject, progress))
            return
        now_s = time.monotonic()
        if policies and now_s >= self._deadline_s:
            self._go_on((), self._skipped(progress, policies, _NO_TIME))
        elif policies and self._subject.hook in policies[0].remote_hooks:
            self._ask(policies, progress)
        elif policies or not self._finishes_here(progress):
            self._run(policies, progress, now_s)

    def _run(self, policies: Sequence[LoadedPolicy], progress: Progress, now_s: float) -> None:
        """Have a worker thread run the policies before the first one in another process, or the writes."""
        hook = self._subject.hook
        count = next((i for i, each in enumerate(policies) if hook in each.remote_hooks), len(policies))
        until_s = self._deadline_s if policies else max(self._deadline_s, now_s + GRACE_S)
        # Only the leg knows its call by it, so that none of them has to be found by a collector.
        work = Work(
            self._subject, self._chain.rule, self._chain.hung, self._finish, self._ended, self._dropped
        )
        self._leg = leg = Leg(work, policies[:count], progress, until_s, policies[count:])
        self._chain.watch.add(self, now_s, leg.wait_s(now_s))
        self._chain.turns.begin()
        # Submitting comes last: the thread cannot start before this one lets go of the interpreter.
        if not self._chain.workers.submit(leg):
            self._dropped(leg)

    def _finishes_here(self, progress: Progress) -> bool:
        """Conclude if nothing is to be written, and the call is short."""
        decision = decision_of(self._subject, progress)
        if decision.change is not None and self._finish is not None:
            if decision.change.cgroup or not self._is_short:
                return False
            try:
                self._finish(decision)
            except Exception as error:  # noqa: BLE001 - whatever it raises, the call has an answer
                decision = self._unwritten(decision, explained(error, self._subject.view)[0])
        self._conclude(decision)
        return True

    # --- policies in other processes ----------------------------------------------------------------------

    def _ask(self, policies: Sequence[LoadedPolicy], progress: Progress) -> None:
        """Ask the first policy, if it is concerned with what the earlier ones have left of the pod."""
        if not policies[0].concern.matches(progress.real.pod):
            self._go_on(policies[1:], progress)
            return
        view = progress.real.view
        make = partial(_question, policies[0].remote_hooks[self._subject.hook], view)
        if self._is_short and _is_small(view):
            self._put(policies, progress, make())
        else:
            self._elsewhere(make, partial(self._put, policies, progress), RuntimeProxyError)

    def _put(
        self, policies: Sequence[LoadedPolicy], progress: Progress, question: RemoteQuestion | Exception
    ) -> None:
        self._asking = None
        if self.is_over:
            return
        now_s = time.monotonic()
        answered = partial(self._answered, policies, progress, now_s)
        if isinstance(question, Exception):
            answered(partial(_raise, question), False)
            return
        timeout_s = min(policies[0].timeout_s, self._deadline_s - now_s)
        if timeout_s <= 0:
            self._go_on(policies, progress)
            return
        self._asking = question.put(timeout_s, answered)

    def _answered(
        self,
        policies: Sequence[LoadedPolicy],
        progress: Progress,
        begun_s: float,
        answer: HookMethod,
        is_long: bool,
    ) -> None:
        self._asking = None
        if self.is_over:
            return
        look = partial(evaluate, policies[0], self._subject, progress, self._chain.rule, answer)
        if is_long or not self._chain.node.is_fresh:
            then = partial(self._evaluated, policies, begun_s)
            self._elsewhere(look, then, partial(self._unread, policies[0], progress))
        else:
            self._evaluated(policies, begun_s, look())

    def _evaluated(
        self, policies: Sequence[LoadedPolicy], begun_s: float, result: tuple[Progress, Outcome]
    ) -> None:
        self._asking = None
        if self.is_over:
            return
        progress, outcome = result
        self._chain.count(self._subject, outcome, time.monotonic() - begun_s)
        self._go_on(policies[1:], progress)

    def _unread(self, policy: LoadedPolicy, progress: Progress, reason: str) -> tuple[Progress, Outcome]:
        return failed(self._subject, progress, Outcome(policy, OutcomeKind.SKIPPED, reason, reason))

    def _elsewhere(
        self, work: Callable[[], Any], then: Callable[[Any], None], lost: Callable[[str], object]
    ) -> None:
        """Have a worker thread do what takes long.

        Args:
            work: what to do.
            then: gets the result.
            lost: makes another result, from the reason why there is none in time.
        """
        errand = _Errand(work, then, lost)
        self._asking = errand
        errand.limit(max(self._deadline_s - time.monotonic(), GRACE_S))
        if not self._chain.workers.submit(errand):
            errand.dropped()

    # --- legs ---------------------------------------------------------------------------------------------

    def postpone(self, paused_s: float) -> None:
        """Nothing could run for so long, which is nobody's fault."""
        self._deadline_s += paused_s
        if self._leg is not None:
            self._leg.postpone(paused_s)

    def look(self, now_s: float) -> float | None:
        """The time of something may be up; find out of what."""
        leg = self._leg
        wait_s = leg.wait_s(now_s) if leg is not None else None
        if leg is None or wait_s:
            return wait_s
        self._part()
        if leg.stage is Stage.POLICIES and leg.index < len(leg.policies):
            leg.blamed = leg.policies[leg.index]
            self._chain.disable(leg.blamed)
        if leg.stage is not Stage.WAITING:
            self._chain.workers.give_up(leg)
        if not self.is_over:
            self._leave(leg)
        return None

    def _part(self) -> None:
        self._leg = None
        self._chain.watch.discard(self)

    def _leave(self, leg: Leg) -> None:
        """Go on without the thread of a leg that is overdue."""
        self._count(leg)
        if leg.decision is not None or not leg.policies:
            decision = leg.decision or decision_of(self._subject, leg.progress)
            self._conclude(self._unwritten(decision, "the cgroup writes take too long"))
            return
        if leg.blamed is None:
            self._go_on((*leg.policies[leg.index :], *leg.following), leg.progress)
            return
        reason = f"no answer within {leg.blamed.timeout_s:g} s"
        if time.monotonic() >= self._deadline_s:
            reason = f"no answer before {_NO_TIME}"
        late = Outcome(leg.blamed, OutcomeKind.TIMED_OUT, reason, "timeout")
        left = (*leg.policies[leg.index + 1 :], *leg.following)
        self._go_on(left, self._failed(leg.progress, [late]))

    def _ended(self, leg: Leg) -> None:
        """A leg's thread is back, in time or long after it was left behind."""
        if leg.blamed is not None:
            self._chain.enable(leg.blamed)
        if leg is not self._leg:
            return
        self._part()
        if self.is_over:
            return
        self._count(leg)
        if leg.decision is None:
            progress = self._skipped(leg.progress, leg.policies[leg.index :], "internal error")
            self._go_on(leg.following, progress)
        elif leg.following:
            self._go_on(leg.following, leg.progress)
        elif leg.unwritten:
            self._conclude(self._unwritten(leg.decision, leg.unwritten))
        else:
            self._conclude(self._written(leg.decision, leg.written))

    def _dropped(self, leg: Leg) -> None:
        """No thread is left: what is still to do follows the failure policies at once."""
        if leg.given_up or self.is_over:
            return
        self._part()
        self._chain.stats.exhausted += 1
        progress = self._skipped(leg.progress, leg.policies, _NO_WORKER)
        if leg.following:
            self._go_on(leg.following, progress)
            return
        decision = decision_of(self._subject, progress)
        self._conclude(self._unwritten(decision, _NO_WORKER))

    def _skipped(self, progress: Progress, policies: Sequence[LoadedPolicy], reason: str) -> Progress:
        return self._failed(
            progress, [Outcome(each, OutcomeKind.SKIPPED, reason, reason) for each in policies]
        )

    def _failed(self, progress: Progress, outcomes: Sequence[Outcome]) -> Progress:
        for outcome in outcomes:
            progress, _ = failed(self._subject, progress, outcome)
            self._chain.count(self._subject, outcome)
        return progress

    def _unwritten(self, decision: Decision, reason: str) -> Decision:
        """Return the decision when its writes were not made, or not to the end."""
        if decision.change is None or self._finish is None:
            return decision
        lost = {name: Written(failed=reason) for name in decision.change.cgroup}
        return self._written(replace(decision, unwritten=reason), lost)

    def _written(self, decision: Decision, written: Mapping[str, Written]) -> Decision:
        """Return the decision after its writes; refused if one failed whose policy must not fail."""
        decision = with_written(decision, written)
        failed = {name: value.failed for name, value in written.items() if value.failed}
        if not failed or not is_refusable(self._subject):
            return decision
        strict = {policy.name for policy in self._chain.policies if policy.refuses_on_failure}
        for name, reason in failed.items():
            owner = decision.owners.get(f"{CGROUP}[{name}]", "")
            if owner in strict:
                refusal = Refusal(StatusCode.UNAVAILABLE, f"{owner}: {name}: {reason}", owner)
                return refused_decision(self._subject, decision.audit, refusal)
        return decision

    def _count(self, leg: Leg) -> None:
        for outcome, duration_s in leg.outcomes:
            self._chain.count(self._subject, outcome, duration_s)

    def _conclude(self, decision: Decision) -> None:
        if self.is_over:
            return
        self.is_over = True
        # What waits for the decision goes on first; the audit has its turn right after it.
        asyncio.get_running_loop().call_soon(self._chain.concluded, decision, self._subject)
        self._decided(decision)


class _Errand:
    """Some work for a worker thread, with a result at most once; a `workers.Task`, and an `Asking`."""

    def __init__(
        self, work: Callable[[], Any], then: Callable[[Any], None], lost: Callable[[str], object]
    ) -> None:
        self._work = work
        self._then: Callable[[Any], None] | None = then
        self._lost = lost
        self._result: object = None
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, left_s: float) -> None:
        """In the loop's thread: the work is not waited for any longer; a thread at it goes on."""
        self._timer = asyncio.get_running_loop().call_later(left_s, self._end_without, _NO_TIME)

    def run(self) -> None:
        """In a worker thread."""
        if self._then is not None:
            self._result = self._work()

    def done(self) -> None:
        """In the loop's thread: there is a result, unless the work raised."""
        if self._result is None:
            self._end_without("internal error")
        else:
            self._end(self._result)

    def dropped(self) -> None:
        """In the loop's thread: no thread will do it."""
        self._end_without(_NO_WORKER)

    def cancel(self) -> None:
        """In the loop's thread: the result no longer counts."""
        self._then = None
        if self._timer is not None:
            self._timer.cancel()

    def _end_without(self, reason: str) -> None:
        if self._then is not None:
            self._end(self._lost(reason))

    def _end(self, result: object) -> None:
        then = self._then
        self.cancel()
        if then is not None:
            then(result)


def _is_small(view: View) -> bool:
    """Return whether a view is of the size of a short message; one of a record may be long all the same."""
    pod = view.pod if isinstance(view, ContainerView) else view
    size = 0
    for entries in (pod.labels, pod.annotations, view.annotations):
        size += sum(map(len, entries)) + sum(map(len, entries.values())) + _ENTRY_BYTES * len(entries)
    return size <= SMALL_BYTES


def _question(hook: RemoteHook, view: View) -> RemoteQuestion | Exception:
    """Return the question to another process, or the error that making it ended with."""
    try:
        return hook(view)
    except Exception as error:  # noqa: BLE001 - a failure of that policy, whatever it is
        return error


def _raise(error: Exception, _: View) -> object:
    raise error
