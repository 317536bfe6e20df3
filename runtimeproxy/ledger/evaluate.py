"""Evaluates running pods and containers again when something has changed: strategies, the node, the policies.

What follows is written by file, pod after pod. A change that touches many pods goes at a bounded rate, and
ends when too many of them cannot be written. Nothing here waits for the runtime.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from runtimeproxy.cgroups.pace import Pace, with_rests
from runtimeproxy.cgroups.paths import cgroup_id, cgroup_path, has_container_cgroups, path_or_none, paths_of
from runtimeproxy.errors import RuntimeProxyError, described
from runtimeproxy.hooks.audit import AuditSink
from runtimeproxy.hooks.carried import CarriedFields
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.ledger.answer_audit import AnswerAudit
from runtimeproxy.ledger.answers import (
    at_next_start,
    by_parameter,
    has_limit,
    owned_claims,
    requested_of_pod,
    target_of,
    wanted_of,
    without_cgroup,
    without_lower_limit,
)
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.change_log import Applied, ChangeLog
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.rates import Changes
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.unapplied import UnappliedCause, UnappliedStage, Withheld
from runtimeproxy.logs import FailureLog
from runtimeproxy.pods.records import Book, ContainerRecord, Level, Lifecycle, PodRecord
from runtimeproxy.pods.store import PodStore

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
"""Least time between the starts of two evaluations of everything."""
WAITS_FOR_TURN: Final = "its pod waits for its turn in a change of many pods (ledger.pods_per_s)"

EvaluatePod: TypeAlias = Callable[
    [PodRecord, Sequence[ContainerRecord]], Awaitable[tuple[Decision, Sequence[Decision]]]
]
"""Asks all policies about a pod and its containers."""
EvaluateOthers: TypeAlias = Callable[[], Awaitable[tuple[Sequence[Wanted], frozenset[str]]]]
"""Asks all policies about QoS classes and host applications, once all pods are written; returns also the
policies without an answer."""
Step: TypeAlias = Callable[[], Awaitable[None]]
"""Does what comes before, or after, all values."""


class _ChangedPod(NamedTuple):
    """A pod of which something else is wanted now."""

    pod: PodRecord
    containers: tuple[ContainerRecord, ...]
    wanted: tuple[Wanted, ...]
    books: tuple[Book | None, ...]
    request: int
    """Number of the last request before the policies were asked."""


class UnevaluatedPods:
    """The pods that cannot be evaluated, or written, as they are: each is a problem of that pod alone.

    Attributes:
        reasons: Why, by the id of the sandbox.
    """

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        # A change of everything may follow every second.
        self._failures = FailureLog(output=logger)

    def report(self, pod: PodRecord, error: Exception) -> None:
        # What is no error of the input is one of the code.
        bug = None if isinstance(error, RuntimeProxyError) else error
        reason = str(error) if bug is None else described(bug)
        self.reasons[pod.id] = reason
        name, text = f"{pod.namespace}/{pod.name}", f"cannot be evaluated, others are: {reason}"
        cause = pod.id, reason
        self._failures.report(f"pod {name}", cause, text, error=bug, pod=name, uid=pod.uid, sandbox=pod.id)

    def clear(self, pod: PodRecord) -> None:
        self.reasons.pop(pod.id, None)

    def keep(self, pods: Iterable[PodRecord]) -> None:
        """Forgets all but these pods."""
        ids = {pod.id for pod in pods}
        self.reasons = {identity: why for identity, why in self.reasons.items() if identity in ids}


class Evaluator:
    """Evaluates everything again on request. Used in the event loop's thread.

    Args:
        cgroup_of: The cgroup of a container; empty if it is not known.
        in_worker: Runs something in a worker thread.
        carried: What the front end carries.
        is_standby: Whether this process leaves the cgroups alone.
        evaluate_others: Asks the policies about cgroups of no pod; None for no such question.
        prepare: Before pods are asked about; None for nothing.
        finish: When all values are written; None for nothing.
        audit: Takes the audit entries of changed values; None for none.
        answers: Takes the decisions, for the audit; None for none.

    Attributes:
        unevaluated: The pods that could not be evaluated.
        since_s: When the front end began on this node, in seconds since the epoch: what is older may have got
            values from another one. Only for what policies are not asked about before it is created.
        undecided: Ids of pods and containers that were created without an answer of the policies which the
            front end otherwise asks about it.
        has_evaluated: Whether everything has been evaluated once, with an error or without. Before that the
            books may be older than the files.
    """

    def __init__(
        self,
        store: PodStore,
        ledger: Ledger,
        evaluate: EvaluatePod,
        cgroup_of: Callable[[PodRecord, ContainerRecord], str],
        in_worker: Callable[[Callable[[], tuple[Applied, ...]]], Awaitable[tuple[Applied, ...]]],
        carried: CarriedFields,
        is_standby: Callable[[], bool] = lambda: False,
        evaluate_others: EvaluateOthers | None = None,
        prepare: Step | None = None,
        finish: Step | None = None,
        audit: AuditSink | None = None,
        answers: AnswerAudit | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._books = ledger.books
        self._evaluate = evaluate
        self._cgroup_of = cgroup_of
        self._in_worker = in_worker
        self._carried = carried
        self._is_standby = is_standby
        self._evaluate_others = evaluate_others
        self._prepare = prepare
        self._finish = finish
        self._audit = audit
        self._answers = answers
        self._now_s = clock
        self._sleep = sleep
        self._pace = Pace(clock)
        self._requested = asyncio.Event()
        self._requests = 0
        self._reasons: list[str] = []
        self.changes = Changes(clock, sleep)
        self.rounds = 0
        self.unevaluated = UnevaluatedPods()
        self.since_s = math.inf
        self.undecided: set[str] = set()
        # Ids of such pods and containers that have their first values.
        self._with_first_values: set[str] = set()
        self.has_evaluated = False

    def request(self, reason: str) -> None:
        """Something has changed; requests of one second are one."""
        if reason not in self._reasons:
            self._reasons.append(reason)
        self._requests += 1
        self._requested.set()

    def request_others(self) -> None:
        # Values of pods have changed: QoS classes have other sums.
        self._requested.set()

    async def run(self) -> None:
        while True:
            await self._requested.wait()
            self._requested.clear()
            if self._is_standby():
                continue  # its end is the next request
            started_s = self._now_s()
            reasons, self._reasons = self._reasons, []
            try:
                await (self.evaluate_all(reasons) if reasons else self._make_others())
            except TimeoutError as error:
                logger.warning("running pods could not be evaluated to the end: %s", error)
            except Exception:  # a bug costs this evaluation, not the next one
                logger.exception("running pods could not be evaluated")
            self.has_evaluated = True
            await self._sleep(max(0.0, started_s + INTERVAL_S - self._now_s()))

    async def evaluate_all(self, reasons: Sequence[str] = ()) -> None:
        """Evaluates all running pods, and makes what has changed.

        Where it is requested anew meanwhile, pods that are not written yet are asked about again.
        """
        self.rounds += 1
        if self._prepare is not None:
            await self._prepare()
        self._pace.resume()
        running = [pod for pod in self._store.pods if _is_evaluated(pod)]
        self.unevaluated.keep(running)
        if self._answers is not None:
            self._answers.keep({pod.uid for pod in self._store.pods})
        await self._note_unknown()
        known = {each.id for each in (*self._store.pods, *self._store.containers)}
        self._with_first_values &= known
        self.undecided &= known
        changed: list[_ChangedPod] = []
        for pod in running:
            await self._rest()
            found = await self._wanted(pod)
            if found is None:
                continue
            if any(map(self._books.differs, found.wanted)):
                changed.append(found)
                self._note(found.wanted, UnappliedCause.TURN, WAITS_FOR_TURN)
            else:
                self._note_first_values(found)
        if changed:
            why = ", ".join(reasons)
            about = {"pods": len(changed), "of": len(running), "reasons": reasons}
            logger.info("policies want other values of %d running pods: %s", len(changed), why, extra=about)
        with closing(ChangeLog(self._audit)) as log:
            change = partial(self._change, log)
            is_complete = await self.changes.make("a change", changed, change, of=len(running))
        if not is_complete:
            self._books.unapplied.change_cause(
                UnappliedCause.TURN, UnappliedCause.CHANGE_ENDED, self.changes.problem
            )
        await self._make_others()
        if self._answers is not None:
            self._answers.close()
        if self._finish is not None and is_complete:
            await self._finish()

    async def _note_unknown(self) -> None:
        """Notes what policies want of what runs and cannot be written, as its cgroup is not known."""
        unapplied = self._books.unapplied
        for pod in self._store.pods:
            is_known = _is_evaluated(pod)
            containers = tuple(
                box
                for box in self._store.containers.members(pod.id)
                if box.state is Lifecycle.RUNNING and not (is_known and box.detailed)
            )
            if pod.state is not Lifecycle.RUNNING or (is_known and not containers):
                continue
            await self._rest()
            try:
                decision, decisions = await self._evaluate(pod, containers)
            except Exception as error:  # noqa: BLE001 - a bug that one pod shows must not affect the others
                self.unevaluated.report(pod, error)
                continue
            if not is_known:
                found = without_cgroup(decision, pod)
                unapplied.note(UnappliedStage.ASKED, target_of(pod), pod.id, found)
            for box, each in zip(containers, decisions, strict=True):
                unapplied.note(UnappliedStage.ASKED, target_of(pod, box), box.id, without_cgroup(each, box))

    async def evaluate_pod(self, identity: str) -> None:
        """Evaluates a pod that may have changed since everything was evaluated."""
        pod = self._store.pods.get(identity)
        if pod is not None and _is_evaluated(pod) and not self._is_standby():
            await self._evaluate_now(pod)

    async def move_off(self, cpus: frozenset[int]) -> bool:
        """Evaluates the pods and classes that our values let run on CPUs which now belong to one pod.

        This happens at once: the rate of changes does not apply.

        Returns:
            Whether all new values are written.
        """
        if self._is_standby():
            return False
        self.rounds += 1
        users = self._books.users_of(cpus)
        pods = {path for level, path in users if level is Level.POD}
        is_done = True
        for identity in [pod.id for pod in self._store.pods]:
            pod = self._store.pods.get(identity)
            if pod is not None and _is_evaluated(pod) and path_or_none(pod.cgroup_parent) in pods:
                # Also what was claimed before and could not be written.
                is_done = await self._evaluate_now(pod) and is_done
        if any(level < Level.POD for level, _ in users):
            await self._make_others()
        return is_done

    async def evaluate_now(self, uids: Iterable[str]) -> frozenset[str]:
        """Evaluates some pods at once, in this order: the rate of changes does not apply.

        Returns:
            The uids of those of which a value could not be written.
        """
        wanted = tuple(uids)
        if self._is_standby():
            return frozenset(wanted)
        self.rounds += 1
        failed: set[str] = set()
        for uid in wanted:
            for pod in self._store.pods.members(uid):
                if _is_evaluated(pod) and not await self._evaluate_now(pod):
                    failed.add(uid)
        return frozenset(failed)

    async def _evaluate_now(self, pod: PodRecord) -> bool:
        """Evaluates a pod and writes its values; returns whether none has failed."""
        found = await self._wanted(pod)
        if found is not None:
            found = await self._up_to_date(found)
        if found is None:
            return pod.id not in self.unevaluated.reasons
        change = partial(self._ledger.change, found.wanted)
        is_written = await self._write(pod, found.wanted, change, ChangeLog(self._audit))
        self._note_first_values(found)
        return is_written

    async def _up_to_date(self, found: _ChangedPod) -> _ChangedPod | None:
        """The wanted values of a pod after changes meanwhile; None if it is gone or cannot be evaluated."""
        is_old = found.request != self._requests
        while is_old or not self._is_current(found):
            await self._rest()
            pod = self._store.pods.get(found.pod.id)
            if pod is None or not _is_evaluated(pod):
                return None
            # Of requests that never end each is for the next evaluation; calls that change a pod do end.
            newer = await self._wanted(pod)
            if newer is None:
                return None
            found, is_old = newer, False
        return found

    async def _change(self, log: ChangeLog, changed: _ChangedPod) -> bool | None:
        """Writes the values of a pod, with rests; see `Changes.make`."""
        # Requests that never end leave no pod without an answer: those that were written wait for the next
        # evaluation, the others get the newest values now.
        found = await self._up_to_date(changed)
        if found is None:
            return None
        if not any(map(self._books.differs, found.wanted)):
            self._note_first_values(found)
            self._note(found.wanted)
            return None
        change = partial(with_rests, partial(self._ledger.change, found.wanted))
        is_written = await self._write(changed.pod, found.wanted, change, log)
        self._note_first_values(found)
        return is_written

    async def _rest(self) -> None:
        if rest_s := self._pace.rest_s():
            await self._sleep(rest_s)
            self._pace.resume()

    async def _write(
        self,
        pod: PodRecord,
        wanted: Sequence[Wanted],
        change: Callable[[], tuple[Applied, ...]],
        log: ChangeLog,
    ) -> bool:
        """Has the values of a pod and its containers written; returns whether none has failed."""
        try:
            applied = await self._in_worker(change)
        except TimeoutError as error:
            # The others go on. What is booked is written by the next comparison.
            self._note(wanted, UnappliedCause.HANGS, str(error))
            return False
        except Exception as error:  # noqa: BLE001 - a bug that one pod shows must not affect the others
            self.unevaluated.report(pod, error)
            return False
        return log.add(applied, sandbox=pod.id)

    async def _wanted(self, pod: PodRecord) -> _ChangedPod | None:
        """Asks the policies about a pod and its containers; None if it cannot be evaluated."""
        try:
            cgroup_path(pod.cgroup_parent)
            found = await self._ask(pod)
        except Exception as error:  # noqa: BLE001 - a bug that one pod shows must not affect the others
            self.unevaluated.report(pod, error)
            return None
        self.unevaluated.clear(pod)
        return found

    async def _ask(self, pod: PodRecord) -> _ChangedPod:
        """Asks the policies about a pod and its containers.

        Raises:
            Exception: A bug, of policies or ours.
        """
        request = self._requests
        containers = tuple(
            found
            for found in self._store.containers.members(pod.id)
            if found.state is Lifecycle.RUNNING and found.detailed
        )
        decision, decisions = await self._evaluate(pod, containers)
        if self._answers is not None:
            cgroups = (self._cgroup_of(pod, each) for each in containers)
            await self._answers.add([(decision, pod.cgroup_parent), *zip(decisions, cgroups, strict=True)])
        requested, is_known, carried = requested_of_pod(containers), not pod.recovered, self._carried
        asked = wanted_of(decision, target_of(pod), requested, is_base_known=is_known)
        wanted = [_with_withheld(asked, at_next_start(decision, pod, carried))]
        are_new = [self._is_new(pod)]
        for record, each in zip(containers, decisions, strict=True):
            cgroup = self._cgroup_of(pod, record)
            if not has_container_cgroups(pod.runtime_handler):
                missing = without_cgroup(each, record, has_none=True)
                self._books.unapplied.note(UnappliedStage.ASKED, target_of(pod, record), record.id, missing)
            elif cgroup:
                target = target_of(pod, record, cgroup)
                requested, booked = by_parameter(record.requested), by_parameter(record.booked)
                if record.owners and self._books.record(cgroup) is None:
                    self._books.book(Wanted(target, owned_claims(record), requested, booked))
                is_known = not record.recovered
                asked = wanted_of(each, target, requested, booked, is_base_known=is_known)
                wanted.append(_with_withheld(asked, at_next_start(each, record, carried)))
                are_new.append(self._is_new(record))
        found = [self._books.record(each.target.cgroup) for each in wanted]
        if not self.changes.rates.lowers_memory:
            wanted = [
                each if is_new and not has_limit(book) else without_lower_limit(each, book)
                for each, book, is_new in zip(wanted, found, are_new, strict=True)
            ]
        self._note(wanted)
        return _ChangedPod(pod, containers, tuple(wanted), tuple(found), request)

    def _is_new(self, record: PodRecord | ContainerRecord) -> bool:
        """Whether something is evaluated for the first time, and was not created with values of policies."""
        if record.id in self._with_first_values:
            return False
        if self._carried.asks_about_creation(is_container=isinstance(record, ContainerRecord)):
            return record.id in self.undecided
        return record.created_s >= self.since_s

    def _note_first_values(self, changed: _ChangedPod) -> None:
        """Notes that a pod and its containers have their first values, or that there are none to write.

        Called after the write: a second evaluation meanwhile must still find them new.
        """
        records: tuple[PodRecord | ContainerRecord, ...] = (changed.pod, *changed.containers)
        self._with_first_values.update(each.id for each in records if self._is_new(each))

    def _note(self, wanted: Sequence[Wanted], cause: UnappliedCause | None = None, reason: str = "") -> None:
        # The cause is why the rest of the answers is not booked either.
        for each in wanted:
            self._books.note_asked(each, None if cause is None else (cause, reason))

    def _is_current(self, changed: _ChangedPod) -> bool:
        # No call has changed the pod since it was evaluated.
        return (
            self._store.pods.get(changed.pod.id) is changed.pod
            and all(self._store.containers.get(each.id) is each for each in changed.containers)
            and all(
                self._books.record(wanted.target.cgroup) is book
                for wanted, book in zip(changed.wanted, changed.books, strict=True)
            )
        )

    async def _make_others(self) -> None:
        """Writes the values of QoS classes and host applications; those without an answer are given back.

        Not in one batch with the pods, since sums of classes are those of what the pods have by now. No write
        can fail for that: the kernel takes a memory.min and memory.low of a child above its parent's, and
        what is above has no effect until the parent has it, too. A bound of a class over quotas or lists of
        its pods would need one batch.
        Source: Linux, Documentation/admin-guide/cgroup-v2.rst, memory.min.
        """
        if self._evaluate_others is None:
            return
        answers, unanswered = await self._evaluate_others()
        wanted = list(answers)
        answered = set(map(cgroup_id, paths_of(each.target.cgroup for each in wanted)))
        wanted += [
            Wanted(CgroupTarget(level, identity), {}, unanswered=unanswered)
            for identity, level in self._books.above_pods().items()
            if identity not in answered
        ]
        self._note(wanted)
        if any(map(self._books.differs, wanted)):
            ChangeLog(self._audit).add(await self._in_worker(partial(self._ledger.change, wanted)))


def _with_withheld(wanted: Wanted, more: Mapping[str, Withheld]) -> Wanted:
    return wanted._replace(withheld={**wanted.withheld, **more}) if more else wanted


def unknown_cgroups(store: PodStore) -> Iterator[str]:
    """The ids of running sandboxes and containers whose cgroup is not known, or which have none."""
    evaluated = {pod.id for pod in store.pods if _is_evaluated(pod)}
    yield from (pod.id for pod in store.pods if pod.state is Lifecycle.RUNNING and pod.id not in evaluated)
    with_cgroups = {pod.id for pod in store.pods if has_container_cgroups(pod.runtime_handler)}
    for box in store.containers:
        is_known = box.detailed and box.pod_id in evaluated and box.pod_id in with_cgroups
        if box.state is Lifecycle.RUNNING and not is_known:
            yield box.id


def _is_evaluated(pod: PodRecord) -> bool:
    return pod.state is Lifecycle.RUNNING and pod.detailed and bool(pod.cgroup_parent)
