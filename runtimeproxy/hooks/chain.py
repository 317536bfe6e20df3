"""The chain of policies: runs them for one pod or container, and merges their changes into a decision.

Each policy is given the requested values, and never sees what others make of them; but at RunPodSandbox it
sees the labels, annotations and cgroup parent that earlier ones have changed. Hook servers come last, and see
the merged result.

Everything here runs in the event loop's thread. So do quick policies, when a call is short: a worker thread
would take longer to begin than they take to end. `CpuLimit` interrupts one that is not quick after all.

The other policies of this process run in one worker thread, in sequence (`workers`), so a call costs one hop
there and back. The loop keeps the time: a policy that takes too long is left behind with its thread, stays
disabled until that thread returns, and those after it continue in another thread, from the state before it.
No thread waits for a hook server: the loop sends the request, and evaluates the response.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from runtimeproxy.cgroups.writer import FAILURES, WriteOutcome, WriteResult
from runtimeproxy.errors import RuntimeProxyError, StatusCode
from runtimeproxy.hooks.audit import (
    NO_ORIGIN,
    AuditEntry,
    AuditKind,
    AuditSink,
    Origin,
    PolicyRun,
    Subject,
    WrittenAudit,
)
from runtimeproxy.hooks.carried import BY_CALLS, NOT_CARRIED, CarriedFields
from runtimeproxy.hooks.claimants import labels_of
from runtimeproxy.hooks.counts import PolicyCounts, field_label
from runtimeproxy.hooks.cpu_limit import CPU_LIMIT_S, CpuLimit, OverCpuLimitError
from runtimeproxy.hooks.decision import (
    HANGS,
    Decision,
    Failure,
    FailureKind,
    Progress,
    Refusal,
    add_failure,
    error_texts,
    evaluation_of,
    make_decision,
    refuse,
    run_policy,
    unmet_features,
    unsettled,
)
from runtimeproxy.hooks.fields import CGROUP, Merged, View, plain_cgroup_values, pod_of
from runtimeproxy.hooks.loaded import (
    Cancellable,
    LoadedPolicy,
    ReadResponse,
    RemoteHook,
    RemoteRequest,
)
from runtimeproxy.hooks.policy import HOOKS_BEFORE, Hook, Mode
from runtimeproxy.hooks.selector import PodSelector, PodTraits
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.hooks.validation import HOOKS_WITHOUT_ANSWER
from runtimeproxy.hooks.views import ContainerView, PodView
from runtimeproxy.hooks.workers import ApplyDecision, Stage, WorkerRun, Workers, WorkerTask
from runtimeproxy.logs import FailureLog
from runtimeproxy.node.snapshot import FixedNode, Node, NodeSource

GRACE_S: Final = 0.25
"""How long writes, or reading a response, may take when the chain's budget is spent: results that came in
time still count."""
REPORT_S: Final = 0.02
"""How long audit and counts wait in the daemon: most calls are answered by then."""
SMALL_BYTES: Final = 64 * 1024
"""The most that the loop's thread works with; more goes to a worker thread."""

_ENTRY_BYTES: Final = 64
"""Approximate size of a map's entry beside its value."""
_MAX_TOLD: Final = 4096
"""Bound on the remembered reports of policies that are off; the oldest are forgotten first."""
_REPORTED: Final = frozenset({AuditKind.FAILED, AuditKind.INVALID, AuditKind.OFF})
"""The entries that are audited outside of calls, where the changes are not applied yet."""
EVALUATION_S: Final = 10.0
"""How long all policies together may take for one pod or container outside of calls."""
_NO_WORKER: Final = "no worker thread is left"
_NO_TIME: Final = "the time for this call's policies is spent"


OVER_CPU_LIMIT: Final = 3
"""As often a policy may be too slow for the loop's thread, as its first call may import something; from then
on it runs in worker threads."""


class _OnNode:
    """The policies on a node.

    Attributes:
        by_hook: Those that may have an answer, with the pods that each is for.
        unsettled: See `Chain.unsettled`.
    """

    __slots__ = ("by_hook", "node", "unsettled")

    def __init__(self, node: Node, policies: Iterable[LoadedPolicy] = ()) -> None:
        self.node = node
        self.unsettled = unsettled(policies, node)
        self.by_hook: dict[Hook, tuple[tuple[LoadedPolicy, PodSelector], ...]] = {}
        for policy in policies:
            selected = policy, policy.selector_on(node)
            is_off = unmet_features(policy, node) is not None
            for hook in (*policy.methods, *policy.remote_hooks):
                # What it has begun it may have to end.
                if not is_off or hook in HOOKS_WITHOUT_ANSWER:
                    self.by_hook[hook] = (*self.by_hook.get(hook, ()), selected)


class Chain:
    """All loaded policies. Used in one event loop's thread.

    Args:
        policies: any order; they run by (priority, name).
        rule: whose value counts when two policies set one field.
        node: the node that policies see and changes have to suit.
        skip_label: key and value of the label of pods that policies leave alone; None for none.
        counts: counts the runs; other chains may use the same ones.
        report_s: how long audit and counts of a decision wait, so that they do not delay the call's answer.
        carried: what the front end carries.

    Attributes:
        cpu_limit: of quick policies in this thread.
        over_cpu_limit: how often it has interrupted each of them.
        hooks: those that any policy implements.
    """

    def __init__(
        self,
        policies: Iterable[LoadedPolicy],
        workers: Workers,
        *,
        sink: AuditSink | None = None,
        rule: ConflictRule = ConflictRule.LATER,
        node: NodeSource | None = None,
        failures: FailureLog | None = None,
        skip_label: tuple[str, str] | None = None,
        counts: PolicyCounts | None = None,
        report_s: float = 0.0,
        carried: CarriedFields = BY_CALLS,
    ) -> None:
        self.workers = workers
        self.carried = carried
        self.rule = rule
        self.node = node or FixedNode()
        self.failures = failures or FailureLog()
        self.counts = counts or PolicyCounts()
        self.over_cpu_limit: Counter[str] = Counter()
        self.cpu_limit = CpuLimit()
        self.timer = workers.timer
        self._sink = sink
        self._skip_label = skip_label
        self.policies: tuple[LoadedPolicy, ...] = ()
        self.hooks: frozenset[Hook] = frozenset()
        self._has_dry_run = False
        self._report_s = report_s
        self._reports: deque[tuple[ChainRun, Decision]] = deque()
        self._told: dict[tuple[str, ...], None] = {}
        self._on_node = _OnNode(Node())
        self.use(policies)

    def use(self, policies: Iterable[LoadedPolicy]) -> None:
        """Run other policies from the next call on."""
        self.policies = tuple(sorted(policies, key=lambda policy: (policy.priority, policy.name)))
        self._has_dry_run = any(policy.mode is Mode.DRY_RUN for policy in self.policies)
        self.hooks = frozenset(hook for each in self.policies for hook in (*each.methods, *each.remote_hooks))
        self._on_node = _OnNode(self._on_node.node, self.policies)
        self._servers = frozenset(each.name for each in self.policies if each.remote_hooks)
        self.counts.uncarried.keep(self._servers)

    @property
    def hung(self) -> Mapping[str, int]:
        """The policies that are skipped at present, with the number of threads that hang in each."""
        hanging = self.workers.hanging
        return {each.name: hanging[id(each.policy)].threads for each in self.policies if self.is_hung(each)}

    def has_hung_since(self, since_s: float) -> bool:
        """Whether a policy hangs that does so only since this time, in seconds since the epoch."""
        return any(each.since_s >= since_s for each in self.workers.hanging.values())

    def is_hung(self, policy: LoadedPolicy) -> bool:
        # In any thread.
        return id(policy.policy) in self.workers.hanging

    @property
    def unsettled(self) -> frozenset[str]:
        # The policies that may want more once all that they depend on is known of the node.
        return self._present().unsettled

    def _present(self) -> _OnNode:
        """Derived from the present inputs, even if the facts read from files are old."""
        node, present = self.node.latest, self._on_node
        if node.inputs is not present.node.inputs:
            present = self._on_node = _OnNode(node, self.policies)
        return present

    def policies_for(self, hook: Hook, pod: PodTraits) -> Sequence[LoadedPolicy]:
        """Return the policies to run at a hook for this pod; if there are none, `begin` is needless.

        At RunPodSandbox an earlier policy may change labels and annotations. So there all policies of the
        hook are returned as soon as one matches, and each selector is matched again at its policy's turn.
        """
        selected = self._present().by_hook.get(hook, ())
        skip = self._skip_label
        if not selected:
            return ()
        is_named = skip is not None and (skip[0] in pod.labels or skip[0] in pod.annotations)
        if skip is not None and is_named and self._is_skipped(*skip, pod):
            return ()
        matching = [policy for policy, selector in selected if selector.matches(pod)]
        if matching and hook is Hook.PRE_RUN_POD_SANDBOX:
            return [policy for policy, _ in selected]
        return matching

    def _is_skipped(self, key: str, value: str, pod: PodTraits) -> bool:
        label = pod.labels.get(key)
        if pod.annotations.get(key) == value != label:
            name = f"{pod.namespace}/{pod.name}"
            text = f"{name} has {key} as an annotation: only a label counts"
            self.failures.report("skip label", name, text)
        return label == value

    async def evaluate(self, view: View, *, budget_s: float = EVALUATION_S) -> Decision:
        """Run the policies of this process for something that exists, outside of any call.

        They run as in a call. Only failures are audited: the changes are not made yet.

        Args:
            view: a recorded pod or container, the pods of a QoS class, or the node.
            budget_s: the time for all policies.
        """
        hook, pod = evaluation_of(view), pod_of(view)
        if pod is None:
            policies: Sequence[LoadedPolicy] = [each for each, _ in self._present().by_hook.get(hook, ())]
        else:
            policies = self.policies_for(hook, pod)
        if not policies:
            return Decision(hook=hook, merged=Merged(view), without_answer=self.unsettled)
        return await self.decide(hook, view, policies, budget_s=budget_s)

    async def decide(
        self,
        hook: Hook,
        view: View,
        policies: Sequence[LoadedPolicy],
        *,
        budget_s: float,
        apply: ApplyDecision | None = None,
        has_writes: Callable[[Decision], bool] | None = None,
        is_short: bool = True,
        origin: Origin = NO_ORIGIN,
    ) -> Decision:
        """Run the policies; as `begin`, for callers that can wait.

        If cancelled, nothing more happens: `apply` is not called, nothing is audited.
        """
        decided: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()

        def on_decided(decision: Decision) -> None:
            # The waiting task may be cancelled in this very turn of the loop.
            if not decided.done():
                decided.set_result(decision)

        run = self.begin(
            hook,
            view,
            policies,
            on_decided,
            budget_s=budget_s,
            apply=apply,
            has_writes=has_writes,
            is_short=is_short,
            origin=origin,
        )
        try:
            return await decided
        except asyncio.CancelledError:
            run.cancel()
            raise

    def begin(
        self,
        hook: Hook,
        view: View,
        policies: Sequence[LoadedPolicy],
        on_decided: Callable[[Decision], None],
        *,
        budget_s: float,
        apply: ApplyDecision | None = None,
        has_writes: Callable[[Decision], bool] | None = None,
        is_short: bool = True,
        origin: Origin = NO_ORIGIN,
    ) -> ChainRun:
        """Run the policies in order and merge their changes. Never raises for a policy.

        Args:
            hook: the hook point of the call.
            view: the pod or container that the hook is about.
            policies: from `policies_for`.
            on_decided: called once with the decision, unless the run is cancelled; maybe before this returns.
            budget_s: the time for the whole chain.
            apply: called after the last policy, unless the call is refused or nothing changes.
            has_writes: whether `apply` writes cgroup values, which takes a worker thread; None if it writes
                all that a decision has.
            is_short: whether the call's message is so short that the loop's thread may work with all of it.
            origin: the call, for the audit.
        """
        subject = Subject(hook, view, time.time(), self.rule, origin, self.carried)
        deadline_s = time.monotonic() + budget_s
        run = ChainRun(self, subject, apply, has_writes or _has_values, on_decided, deadline_s, is_short)
        merged = Merged(view)
        dry_run = merged if self._has_dry_run else None
        progress = Progress(merged, dry_run, without_answer=self._on_node.unsettled)
        if self.workers.hanging:
            hung = [policy for policy in policies if self.is_hung(policy)]
            policies = [policy for policy in policies if not self.is_hung(policy)]
            progress = run.skip(hung, progress, HANGS)
        run.proceed(policies, progress)
        return run

    def report_later(self, run: ChainRun, decision: Decision) -> None:
        """Report a decision when its call has gone on, at best after its answer."""
        loop = asyncio.get_running_loop()
        if not self._report_s or run.subject.origin.trace is not None:
            loop.call_soon(self._report, run, decision)
            return
        if not self._reports:
            loop.call_later(self._report_s, self.flush)
        self._reports.append((run, decision))

    def flush(self) -> None:
        while self._reports:
            self._report(*self._reports.popleft())

    def _report(self, run: ChainRun, decision: Decision) -> None:
        """Audit a decision, count what has run, and log conflicts and failed writes."""
        subject = run.subject
        self.counts.count_runs(subject.hook, run.runs)
        entries = [each for each in decision.audit if each.note != NOT_CARRIED]
        # What the mode lacks is no fault of a policy's answer.
        self.counts.left_out.on_decision(subject, run.runs, entries)
        if len(entries) < len(decision.audit):
            entries += self._uncarried(subject, decision.audit)
        if subject.origin.trace is not None:
            # Without the decision, which leads back to the trace.
            subject.origin.trace.on_decision(subject, run.runs, tuple(decision.audit))
        is_evaluation = subject.hook.startswith("evaluate_")
        for entry in entries:
            if is_evaluation and entry.kind not in _REPORTED:
                continue
            if entry.kind is AuditKind.OFF and not self._is_new(entry):
                continue
            if entry.kind is AuditKind.CONFLICT:
                text = f"{entry.field}: {entry.reason}"
                self.failures.report(entry.policy, f"conflict {entry.field}", text, **subject.names)
            self._audit(entry)
        if decision.unwritten:
            self.failures.report("cgroup writes", decision.unwritten, decision.unwritten, **subject.names)

    def _uncarried(self, subject: Subject, audit: Iterable[AuditEntry]) -> Iterator[AuditEntry]:
        """Yield what the front end does not carry; of hook servers once of each, with a line in the log."""
        for entry in audit:
            if entry.note != NOT_CARRIED:
                continue
            if entry.policy not in self._servers:
                yield entry
                continue
            label = field_label(entry.field)
            if self.counts.uncarried.add(entry.policy, entry.hook, label):
                text = f"mode {self.carried.mode} does not carry {label} of its answers to {entry.hook}"
                self.failures.report(entry.policy, (NOT_CARRIED, entry.hook, label), text, **subject.names)
                yield entry._replace(field=label, new="")

    def _is_new(self, entry: AuditEntry) -> bool:
        """Return whether this has not been reported for the pod."""
        key = (entry.pod_uid or entry.target, entry.policy, entry.reason)
        if key in self._told:
            return False
        if len(self._told) >= _MAX_TOLD:
            del self._told[next(iter(self._told))]
        self._told[key] = None
        return True

    def audit(self, entry: AuditEntry) -> None:
        """Hand one entry to the audit sink, behind those of earlier decisions, which need no call."""
        self.flush()
        self._audit(entry)

    def _audit(self, entry: AuditEntry) -> None:
        if self._sink is None:
            return
        try:
            self._sink(entry)
        except Exception as error:  # noqa: BLE001 - an audit that fails must not fail the call
            self.failures.report("audit", type(error).__name__, f"the sink raised {type(error).__name__}")

    def log_failure(self, subject: Subject, failure: Failure) -> None:
        """Log that a policy failed; one that was skipped has been logged when it began to hang."""
        self.counts.failures[failure.policy.name, subject.hook, failure.kind] += 1
        if failure.kind is not FailureKind.SKIPPED:
            text = f"policy {failure.kind.replace('_', ' ')} in {subject.hook}: {failure.reason}"
            cause = f"{subject.hook} {failure.cause}"
            self.failures.report(failure.policy.name, cause, text, **subject.names)


@dataclass(slots=True, eq=False)
class ChainRun:
    """One call's run through the chain, in the event loop's thread."""

    # Set once; worker threads read them.
    chain: Chain
    subject: Subject
    apply: ApplyDecision | None
    _has_writes: Callable[[Decision], bool]

    _on_decided: Callable[[Decision], None]
    _deadline_s: float
    _is_short: bool
    _worker: WorkerRun | None = None
    _pending: Cancellable | None = None
    """The request to a hook server, or the long task of a worker thread, that is under way."""
    is_over: bool = False
    """Whether the call is decided or cancelled."""
    runs: list[PolicyRun] = field(default_factory=list)
    """The policies that have returned."""
    _sent_s: float = 0.0

    def cancel(self) -> None:
        """Discard the result; the timer still looks for a thread that hangs."""
        self.is_over = True
        if self._worker is not None:
            self._worker.give_up()
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None

    def proceed(self, policies: Sequence[LoadedPolicy], progress: Progress) -> None:
        """Run the remaining policies, each where it belongs; after the last one, apply the decision."""
        now_s = time.monotonic()
        if progress.refusal is not None or not policies:
            self._apply(progress, now_s)
        elif now_s >= self._deadline_s:
            self._apply(self.skip(policies, progress, _NO_TIME), now_s)
        elif self.subject.hook in policies[0].remote_hooks:
            self._make_request(policies, progress)
        elif self._is_short and self._are_quick(policies, now_s):
            self._run_here(policies, progress)
        else:
            self._start_worker(policies, progress, now_s)

    def _apply(self, progress: Progress, now_s: float) -> None:
        """Apply the decision here if that is short, else in a worker thread, and conclude."""
        decision = make_decision(self.subject, progress)
        if decision.change is not None and self.apply is not None:
            if not self._is_short or self._has_writes(decision):
                self._start_worker((), progress, now_s)
                return
            try:
                decision = self._with_written(decision, self.apply(decision) or {})
            except Exception as error:  # noqa: BLE001 - whatever it raises, the call gets an answer
                decision = self._with_unwritten(decision, error_texts(error, self.subject.view)[0])
        self._conclude(decision)

    # --- quick policies: in the loop's thread ---------------------------------------------------------------

    def _are_quick(self, policies: Sequence[LoadedPolicy], now_s: float) -> bool:
        """Return whether the policies before the first hook server may run in this thread."""
        chain, hook = self.chain, self.subject.hook
        # Old facts of the node are read again in a worker thread. No call waits for an evaluation.
        is_old = now_s >= chain.node.fresh_until_s
        if is_old or hook not in HOOKS_BEFORE or not chain.cpu_limit.is_usable:
            return False
        for policy in policies:
            if hook in policy.remote_hooks:
                break
            is_slow = chain.over_cpu_limit.get(policy.name, 0) >= OVER_CPU_LIMIT
            if is_slow or not policy.is_quick or (chain.workers.hanging and chain.is_hung(policy)):
                return False
        return True

    def _run_here(self, policies: Sequence[LoadedPolicy], progress: Progress) -> None:
        """Run the policies before the first hook server, or until one is not quick."""
        results: list[tuple[Progress, Failure | None]] = []
        with suppress(OverCpuLimitError):
            self.chain.cpu_limit.run(self._run_quick, policies, progress, results)
        for _, failure in results:
            if failure is not None:
                self.chain.log_failure(self.subject, failure)
        if results:
            progress = results[-1][0]
        following = policies[len(results) :]
        hook = self.subject.hook
        if progress.refusal is not None or not following or hook in following[0].remote_hooks:
            self.proceed(following, progress)
            return
        self._report_slow(following[0])
        self._start_worker(following, progress, time.monotonic())

    def _run_quick(
        self,
        policies: Sequence[LoadedPolicy],
        progress: Progress,
        results: list[tuple[Progress, Failure | None]],
    ) -> None:
        """Run policies within the CPU limit; the result of each is there as soon as it has one."""
        hook, node = self.subject.hook, self.chain.node.latest
        started_s = time.monotonic()
        for policy in policies:
            if hook in policy.remote_hooks:
                return
            result = run_policy(policy, self.subject, node, progress)
            ended_s = time.monotonic()
            self.runs.append(PolicyRun(policy.name, ended_s - started_s, ended_s))
            started_s = ended_s
            results.append(result)
            progress = result[0]
            if progress.refusal is not None:
                return

    def _report_slow(self, policy: LoadedPolicy) -> None:
        self.chain.over_cpu_limit[policy.name] += 1
        text = f"policy has used {CPU_LIMIT_S * 1000:g} ms of CPU time in {self.subject.hook}"
        is_last = self.chain.over_cpu_limit[policy.name] >= OVER_CPU_LIMIT
        if is_last:
            text += ": until policies are loaded again it runs in worker threads"
        # A cause of its own: the log leaves out repetitions of one.
        self.chain.failures.report(policy.name, ("CPU limit", is_last), text, **self.subject.names)

    # --- other policies of this process, and writes: in a worker thread -------------------------------------

    def _start_worker(self, policies: Sequence[LoadedPolicy], progress: Progress, now_s: float) -> None:
        """Run the policies before the first hook server, or the writes, in a worker thread."""
        count = 0
        for policy in policies:
            if self.subject.hook in policy.remote_hooks:
                break
            count += 1
        until_s = self._deadline_s if policies else max(self._deadline_s, now_s + GRACE_S)
        chain = self.chain
        self._worker = worker = WorkerRun(
            self,
            self.subject,
            chain.node,
            chain.is_hung,
            policies[:count],
            policies[count:],
            self.apply,
            progress,
            until_s,
        )
        self.chain.timer.add(self)
        # Submitting comes last: the thread cannot start before this one releases the interpreter.
        if not self.chain.workers.submit(worker):
            self.on_worker_dropped(worker)

    def on_worker_done(self, worker: WorkerRun) -> None:
        """A worker thread is back, in time or long after it was left behind."""
        if worker is not self._worker:
            return
        self._detach_worker()
        if self.is_over:
            return
        self.runs += worker.runs
        for failure in worker.failures:
            self.chain.log_failure(self.subject, failure)
        if worker.decision is None:  # a bug of the proxy's own
            remaining = worker.policies[worker.index :]
            self.proceed(worker.following, self.skip(remaining, worker.progress, "internal error"))
        elif worker.following:
            self.proceed(worker.following, worker.progress)
        elif worker.unwritten:
            self._conclude(self._with_unwritten(worker.decision, worker.unwritten))
        else:
            self._conclude(self._with_written(worker.decision, worker.written))

    def on_worker_dropped(self, worker: WorkerRun) -> None:
        """No thread is left: the failure policies decide on the remaining policies at once."""
        if worker.is_given_up or self.is_over:
            return
        self._detach_worker()
        progress = self.skip(worker.policies, worker.progress, _NO_WORKER)
        if worker.following:
            self.proceed(worker.following, progress)
        else:
            self._conclude(self._with_unwritten(make_decision(self.subject, progress), _NO_WORKER))

    def on_tick(self, now_s: float) -> None:
        """Leave the worker thread behind if its time is up; called every few milliseconds."""
        worker = self._worker
        if worker is None or not worker.is_overdue(now_s):
            return
        self._detach_worker()
        if worker.stage is Stage.POLICIES and worker.index < len(worker.policies):
            worker.blamed = worker.policies[worker.index]
        if worker.stage is not Stage.WAITING:
            self.chain.workers.give_up(worker, worker.blamed)
        if not self.is_over:
            self._proceed_without(worker)

    def _proceed_without(self, worker: WorkerRun) -> None:
        self.runs += worker.runs
        for failure in worker.failures:
            self.chain.log_failure(self.subject, failure)
        if worker.decision is not None or not worker.policies:
            decision = worker.decision or make_decision(self.subject, worker.progress)
            self._conclude(self._with_unwritten(decision, "the cgroup writes take too long"))
            return
        remaining, progress = worker.policies[worker.index :], worker.progress
        if worker.blamed is not None:
            reason = f"no answer within {worker.blamed.timeout_s:g} s"
            if time.monotonic() >= self._deadline_s:
                reason = f"no answer before {_NO_TIME}"
            failure = Failure(worker.blamed, FailureKind.TIMED_OUT, reason, "timeout")
            progress = add_failure(self.subject, progress, failure)
            self.chain.log_failure(self.subject, failure)
            remaining = remaining[1:]
        self.proceed((*remaining, *worker.following), progress)

    def _detach_worker(self) -> None:
        self._worker = None
        self.chain.timer.runs.discard(self)

    def postpone(self, paused_s: float) -> None:
        """Move all deadlines: no thread of this process ran for that time."""
        self._deadline_s += paused_s
        if self._worker is not None:
            self._worker.postpone(paused_s)

    # --- a hook server --------------------------------------------------------------------------------------

    def _make_request(self, policies: Sequence[LoadedPolicy], progress: Progress) -> None:
        """Make the request to the first server, if it is still about the pod as earlier policies left it."""
        policy, view = policies[0], progress.enforced.view
        pod = progress.enforced.new_pod
        if not policy.selector.matches(pod):
            self.proceed(policies[1:], progress)
            return
        make = partial(_made_request, policy.remote_hooks[self.subject.hook], view)
        if self._is_short and _is_small(view):
            self._send(policies, progress, make())
        else:
            self._run_elsewhere(make, partial(self._send, policies, progress), RuntimeProxyError)

    def _send(
        self, policies: Sequence[LoadedPolicy], progress: Progress, request: RemoteRequest | Exception
    ) -> None:
        self._pending = None
        on_response = partial(self._on_response, policies, progress)
        timeout_s = min(policies[0].timeout_s, self._deadline_s - time.monotonic())
        if isinstance(request, Exception):
            on_response(partial(_raise, request), False)
        elif timeout_s <= 0:
            self.proceed(policies, progress)
        else:
            self._sent_s = time.monotonic()
            self._pending = request.send(timeout_s, on_response)

    def _on_response(
        self, policies: Sequence[LoadedPolicy], progress: Progress, response: ReadResponse, is_long: bool
    ) -> None:
        self._pending = None
        if self.is_over:
            return
        policy, source = policies[0], self.chain.node
        now_s = time.monotonic()
        self.runs.append(PolicyRun(policy.name, now_s - self._sent_s, now_s))
        on_evaluated = partial(self._on_evaluated, policies[1:])
        if is_long or time.monotonic() >= source.fresh_until_s:
            evaluate = partial(self._evaluate, policy, progress, response)
            self._run_elsewhere(evaluate, on_evaluated, partial(self._unread, policy, progress))
        else:
            on_evaluated(run_policy(policy, self.subject, source.latest, progress, response))

    def _evaluate(
        self, policy: LoadedPolicy, progress: Progress, response: ReadResponse
    ) -> tuple[Progress, Failure | None]:
        # In a worker thread.
        return run_policy(policy, self.subject, self.chain.node.snapshot(), progress, response)

    def _on_evaluated(
        self, following: Sequence[LoadedPolicy], result: tuple[Progress, Failure | None]
    ) -> None:
        self._pending = None
        progress, failure = result
        if failure is not None:
            self.chain.log_failure(self.subject, failure)
        self.proceed(following, progress)

    def _unread(
        self, policy: LoadedPolicy, progress: Progress, reason: str
    ) -> tuple[Progress, Failure | None]:
        return self.skip((policy,), progress, reason), None

    def _run_elsewhere(
        self, work: Callable[[], Any], on_result: Callable[[Any], None], without: Callable[[str], object]
    ) -> None:
        """Do something long in a worker thread; see `WorkerTask`."""
        self._pending = task = WorkerTask(work, on_result, without)
        task.limit(max(self._deadline_s - time.monotonic(), GRACE_S), _NO_TIME)
        if not self.chain.workers.submit(task):
            task.end_without(_NO_WORKER)

    # --- the end --------------------------------------------------------------------------------------------

    def skip(self, policies: Iterable[LoadedPolicy], progress: Progress, reason: str) -> Progress:
        """Let policies fail without running them."""
        for policy in policies:
            progress = add_failure(self.subject, progress, Failure(policy, FailureKind.SKIPPED, reason))
            self.chain.counts.failures[policy.name, self.subject.hook, FailureKind.SKIPPED] += 1
        return progress

    def _with_unwritten(self, decision: Decision, reason: str) -> Decision:
        """Return the decision when its writes were not made, or not to the end."""
        if decision.change is None or self.apply is None:
            return decision
        values, outcome = plain_cgroup_values(decision.change), WriteOutcome.FAILED
        failed = {name: WriteResult("", name, value, outcome, error=reason) for name, value in values.items()}
        return self._with_written(replace(decision, unwritten=reason), failed)

    def _with_written(self, decision: Decision, written: Mapping[str, WriteResult]) -> Decision:
        """Return the decision after its writes; refused if one failed whose policy must not fail."""
        if not written:
            return decision
        decision = replace(decision, audit=WrittenAudit(decision.audit, decision.owners, written))
        failed = [each for each in written.values() if each.outcome in FAILURES]
        if not failed or not self.subject.is_refusable:
            return decision
        strict = {policy.name for policy in self.chain.policies if policy.refuses_on_failure}
        for each in failed:
            owners = decision.owners.get(f"{CGROUP}[{each.name}]", ())
            if any(owner.name in strict for owner in owners):
                label = labels_of(owners)
                text = f"{label}: {each.name}: {each.error}"
                return refuse(self.subject, decision.audit, Refusal(StatusCode.UNAVAILABLE, text, label))
        return decision

    def _conclude(self, decision: Decision) -> None:
        if not self.is_over:
            self.is_over = True
            self.chain.report_later(self, decision)
            self._on_decided(decision)


def _has_values(decision: Decision) -> bool:
    return decision.change is not None and bool(plain_cgroup_values(decision.change))


def _is_small(view: View) -> bool:
    """Return whether a view is of the size of a short message; one of a record may be long all the same."""
    if not isinstance(view, ContainerView | PodView):
        return False
    pod = view.pod if isinstance(view, ContainerView) else view
    size = 0
    for entries in (pod.labels, pod.annotations, view.annotations):
        size += sum(map(len, entries)) + sum(map(len, entries.values())) + _ENTRY_BYTES * len(entries)
    return size <= SMALL_BYTES


def _made_request(hook: RemoteHook, view: View) -> RemoteRequest | Exception:
    try:
        return hook(view)
    except Exception as error:  # noqa: BLE001 - a failure of that policy, whatever it is
        return error


def _raise(error: Exception, _: View) -> object:
    raise error
