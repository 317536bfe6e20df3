"""The chain of policies: decides on one call in one worker thread, and watches that it comes back.

All policies of this process run in one thread in sequence, so a call costs one hop there and back. The loop's
thread keeps the time: a policy that takes too long is left behind with its thread, stays disabled until that
thread returns, and the policies after it go on in another thread, from where the call was before it. For a
policy in another process no thread waits: the loop's thread asks it, and looks at its answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from runtimeproxy.hooks.audit import AuditEntry, AuditKind, AuditSink, Subject
from runtimeproxy.hooks.call import Call, Order
from runtimeproxy.hooks.deadlines import Watch
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.evaluation import Outcome, OutcomeKind
from runtimeproxy.hooks.fields import View
from runtimeproxy.hooks.loaded import LoadedPolicy
from runtimeproxy.hooks.merge import Fold
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.reports import ChainStats
from runtimeproxy.hooks.selector import PodTraits
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.hooks.switch_interval import Turns
from runtimeproxy.hooks.workers import Workers
from runtimeproxy.logs import FailureLog
from runtimeproxy.node import FixedNode, Node

_REPORTED: Final = frozenset({OutcomeKind.FAILED, OutcomeKind.INVALID, OutcomeKind.TIMED_OUT})


@dataclass(frozen=True, slots=True)
class Plan:
    """The policies of one hook, in their order."""

    policies: tuple[LoadedPolicy, ...]
    has_dry_run: bool


class Chain:
    """All loaded policies. Used in one event loop's thread.

    Args:
        policies: in the order in which they run.
        workers: threads for the policies of this process.
        sink: gets the audit entries.
        rule: whose value counts when two policies set one field.
        node: what the policies' answers have to suit.
        failures: logs failures.

    Attributes:
        policies: in the order in which they run.
        stats: counters.
    """

    def __init__(
        self,
        policies: Iterable[LoadedPolicy],
        workers: Workers,
        *,
        sink: AuditSink | None = None,
        rule: ConflictRule = ConflictRule.LATER,
        node: Node | None = None,
        failures: FailureLog | None = None,
    ) -> None:
        self.stats = ChainStats()
        self.workers = workers
        self.rule = rule
        self.node = node or FixedNode()
        self.failures = failures or FailureLog()
        self.watch = Watch()
        self._sink = sink
        self._hung: Counter[str] = Counter()
        self.turns = Turns(self.watch.calls, lambda: bool(self._hung))
        self.policies: tuple[LoadedPolicy, ...] = ()
        self._plans: dict[Hook, Plan] = {}
        self.use(policies)

    def use(self, policies: Iterable[LoadedPolicy]) -> None:
        """Take other policies from the next call on; counters and what hangs just now are kept."""
        self.policies = tuple(policies)
        self._plans = {hook: plan for hook in Hook if (plan := _plan(hook, self.policies)).policies}

    def wants(self, hook: Hook) -> bool:
        """Return whether any policy implements the hook; a look-up, to be asked before anything is parsed."""
        return hook in self._plans

    def concerns(self, hook: Hook, view: PodTraits | View) -> bool:
        """Return whether any policy that implements the hook is about this pod: else `decide` is in vain."""
        plan = self._plans.get(hook)
        return plan is not None and any(each.concern.matches(view) for each in plan.policies)

    @property
    def hung(self) -> Mapping[str, int]:
        """The policies that are disabled just now, with the number of threads that hang in each."""
        return MappingProxyType(self._hung)

    async def decide(self, order: Order) -> Decision:
        """Ask all policies of a hook, in order, and return their merged decision. Never raises for a policy.

        If cancelled, nothing more happens: `order.finish` is not begun, nothing is audited.
        """
        if order.hook not in self._plans:
            return Decision(hook=order.hook, fold=Fold(order.view))
        decided: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()

        def take(decision: Decision) -> None:
            # The one that waits may be cancelled in this very turn of the loop.
            if not decided.done():
                decided.set_result(decision)

        call = self.begin(order, take)
        try:
            return await decided
        except asyncio.CancelledError:
            call.cancel()
            raise

    def begin(self, order: Order, decided: Callable[[Decision], None]) -> Call:
        """Ask all policies of a hook that one of them implements; `decide` for who cannot wait for a task.

        Args:
            order: what to decide.
            decided: called once with the decision, unless the call is cancelled; maybe before this returns.
        """
        self.stats.calls[order.hook] += 1
        call = Call(self, order, decided)
        call.begin(self._plans[order.hook])
        return call

    def concluded(self, decision: Decision, subject: Subject) -> None:
        """Count and audit a decision."""
        for entry in decision.audit:
            if entry.kind is AuditKind.CONFLICT:
                self.stats.conflicts += 1
                text = f"{entry.field}: {entry.reason}"
                self.failures.report(entry.policy, f"conflict {entry.field}", text, **subject.names)
            self.audit(entry)
        self.stats.refused += decision.refusal is not None
        if decision.unwritten:
            self.stats.unwritten += 1
            self.failures.report("cgroup writes", decision.unwritten, decision.unwritten, **subject.names)

    def audit(self, entry: AuditEntry) -> None:
        """Count and audit what happened to one value; of a decision's values `concluded` does it."""
        if entry.kind is AuditKind.LEFT_OUT:
            # Keys of maps are the policies' own words, of which there is no end.
            self.stats.left_out[entry.policy, entry.field.partition("[")[0]] += 1
        if self._sink is None:
            return
        try:
            self._sink(entry)
        except Exception as error:  # noqa: BLE001 - an audit that fails must not fail the call
            self.failures.report("audit", type(error).__name__, f"the sink raised {type(error).__name__}")

    def count(self, subject: Subject, outcome: Outcome, duration_s: float = 0.0) -> None:
        """Count one policy's turn, and log it if it failed."""
        self.stats.count(outcome, duration_s)
        if outcome.kind in _REPORTED:
            kind = outcome.kind.replace("_", " ")
            text = f"policy {kind} in {subject.hook}: {outcome.reason}"
            self.failures.report(
                outcome.policy.name, f"{subject.hook} {outcome.cause}", text, **subject.names
            )

    def disable(self, policy: LoadedPolicy) -> None:
        """Leave a policy out while a thread hangs in it."""
        self._hung[policy.name] += 1

    def enable(self, policy: LoadedPolicy) -> None:
        """One of the threads that hang in the policy is back."""
        self._hung[policy.name] -= 1
        if not self._hung[policy.name]:
            del self._hung[policy.name]


def _plan(hook: Hook, policies: Sequence[LoadedPolicy]) -> Plan:
    wanted = tuple(policy for policy in policies if hook in policy.methods or hook in policy.remote_hooks)
    return Plan(wanted, has_dry_run=any(not policy.enforces for policy in wanted))
