"""Evaluates running pods and containers again when something has changed: strategies, the node, the policies.

What follows is written by file, pod after pod. A change that touches many pods goes at a bounded rate, and
ends when too many of them cannot be written. Nothing here waits for the runtime.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from runtimeproxy.cgroups.pace import Pace, with_rests
from runtimeproxy.cgroups.paths import cgroup_path
from runtimeproxy.hooks.audit import AuditSink
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.ledger.answers import (
    by_parameter,
    owned_claims,
    pod_values,
    target_of,
    wanted_of,
    without_lower_limit,
)
from runtimeproxy.ledger.books import Target, Wanted
from runtimeproxy.ledger.change_log import Applied, ChangeLog
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.rates import Changes
from runtimeproxy.pods.records import Book, ContainerRecord, Level, Lifecycle, PodRecord
from runtimeproxy.pods.store import PodStore

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
"""Least time between the starts of two evaluations of everything."""

EvaluatePod: TypeAlias = Callable[
    [PodRecord, Sequence[ContainerRecord]], Awaitable[tuple[Decision, Sequence[Decision]]]
]
"""Asks all policies about a pod and its containers."""
EvaluateOthers: TypeAlias = Callable[[], Awaitable[tuple[Sequence[Wanted], frozenset[str]]]]
"""Asks all policies about QoS classes and host applications, once all pods are written; returns also the
policies without an answer."""
Step: TypeAlias = Callable[[], Awaitable[None]]
"""Does what comes before, or after, all values."""


class _Changed(NamedTuple):
    """A pod of which something else is wanted now."""

    pod: PodRecord
    containers: tuple[ContainerRecord, ...]
    wanted: tuple[Wanted, ...]
    books: tuple[Book | None, ...]
    request: int
    """Number of the last request before the policies were asked."""


class Evaluator:
    """Evaluates everything again on request. Used in the event loop's thread.

    Args:
        store: The records.
        ledger: The books.
        evaluate: Asks the policies.
        cgroup_of: The cgroup of a container; empty if it is not known.
        in_worker: Runs something in a worker thread.
        is_standby: Whether this process leaves the cgroups alone.
        evaluate_others: Asks the policies about cgroups of no pod; None for no such question.
        prepare: Before pods are asked about; None for nothing.
        finish: When all values are written; None for nothing.
        audit: Takes the audit entries of changed values; None for none.
        clock: In seconds.
        sleep: Waits for so many seconds.

    Attributes:
        changes: Makes them.
        rounds: Number of evaluations of more than one pod that have begun.
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
        is_standby: Callable[[], bool] = lambda: False,
        evaluate_others: EvaluateOthers | None = None,
        prepare: Step | None = None,
        finish: Step | None = None,
        audit: AuditSink | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._evaluate = evaluate
        self._cgroup_of = cgroup_of
        self._in_worker = in_worker
        self._is_standby = is_standby
        self._evaluate_others = evaluate_others
        self._prepare = prepare
        self._finish = finish
        self._audit = audit
        self._now_s = clock
        self._sleep = sleep
        self._pace = Pace(clock)
        self._requested = asyncio.Event()
        self._requests = 0
        self._reasons: list[str] = []
        self.changes = Changes(clock, sleep)
        self.rounds = 0
        self.has_evaluated = False

    def request(self, reason: str) -> None:
        """Something has changed; requests of one second are one."""
        if reason not in self._reasons:
            self._reasons.append(reason)
        self._requests += 1
        self._requested.set()

    def request_others(self) -> None:
        """Values of pods have changed: QoS classes have other sums."""
        self._requested.set()

    async def run(self) -> None:
        """Evaluates on request until it is cancelled."""
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
        changed: list[_Changed] = []
        for pod in running:
            await self._rest()
            found = await self._wanted(pod)
            if any(map(self._ledger.differs, found.wanted)):
                changed.append(found)
        if changed:
            why = ", ".join(reasons)
            about = {"pods": len(changed), "of": len(running), "reasons": reasons}
            logger.info("policies want other values of %d running pods: %s", len(changed), why, extra=about)
        with closing(ChangeLog(self._audit)) as log:
            change = partial(self._change, log)
            is_complete = await self.changes.make("a change", changed, change, of=len(running))
        await self._make_others()
        if self._finish is not None and is_complete:
            await self._finish()

    async def evaluate_pod(self, identity: str) -> None:
        """Evaluates a pod of which the last evaluation of everything has not seen all."""
        pod = self._store.pods.get(identity)
        if pod is not None and _is_evaluated(pod) and not self._is_standby():
            await self._evaluate_now(pod)

    async def leave(self, cpus: frozenset[int]) -> bool:
        """Evaluates at once, at no bounded rate, what values of ours let run on some CPUs.

        Args:
            cpus: They belong to a pod now.

        Returns:
            Whether all values that follow are written.
        """
        if self._is_standby():
            return False
        self.rounds += 1
        users = self._ledger.users_of(cpus)
        pods = {path for level, path in users if level is Level.POD}
        is_done = True
        for identity in [pod.id for pod in self._store.pods]:
            pod = self._store.pods.get(identity)
            if pod is not None and _is_evaluated(pod) and cgroup_path(pod.cgroup_parent) in pods:
                # Also what was claimed before and could not be written.
                is_done = await self._evaluate_now(pod) and is_done
        if any(level < Level.POD for level, _ in users):
            await self._make_others()
        return is_done

    async def _evaluate_now(self, pod: PodRecord) -> bool:
        """Evaluates a pod and writes its values; returns whether none has failed."""
        found = await self._up_to_date(await self._wanted(pod))
        return found is None or await self._write(
            pod, partial(self._ledger.change, found.wanted), ChangeLog(self._audit)
        )

    async def _up_to_date(self, found: _Changed) -> _Changed | None:
        """What is wanted of a pod now, if something has changed meanwhile; None if it is gone."""
        is_old = found.request != self._requests
        while is_old or not self._is_current(found):
            await self._rest()
            pod = self._store.pods.get(found.pod.id)
            if pod is None or not _is_evaluated(pod):
                return None
            # Of requests that never end each is for the next evaluation; calls that change a pod do end.
            found, is_old = await self._wanted(pod), False
        return found

    async def _change(self, log: ChangeLog, changed: _Changed) -> bool | None:
        """Writes the values of a pod, with rests; see `Changes.make`."""
        # Requests that never end leave no pod without an answer: those that were written wait for the next
        # evaluation, the others get the newest values now.
        found = await self._up_to_date(changed)
        if found is None or not any(map(self._ledger.differs, found.wanted)):
            return None
        change = partial(with_rests, partial(self._ledger.change, found.wanted))
        return await self._write(changed.pod, change, log)

    async def _rest(self) -> None:
        """Leaves the CPU to others from time to time."""
        if rest_s := self._pace.rest_s():
            await self._sleep(rest_s)
            self._pace.resume()

    async def _write(self, pod: PodRecord, change: Callable[[], tuple[Applied, ...]], log: ChangeLog) -> bool:
        """Has the values of a pod and its containers written; returns whether none has failed."""
        try:
            applied = await self._in_worker(change)
        except TimeoutError:
            # The others go on. What is wanted is booked: the next comparison writes it.
            return False
        return log.add(applied, sandbox=pod.id)

    async def _wanted(self, pod: PodRecord) -> _Changed:
        """What the policies want of a pod and its containers now."""
        request = self._requests
        containers = tuple(
            found
            for found in self._store.containers.members(pod.id)
            if found.state is Lifecycle.RUNNING and found.detailed
        )
        decision, decisions = await self._evaluate(pod, containers)
        requested, is_known = pod_values(containers), not pod.recovered
        wanted = [wanted_of(decision, target_of(pod), requested, is_base_known=is_known)]
        for record, each in zip(containers, decisions, strict=True):
            cgroup = self._cgroup_of(pod, record)
            if cgroup:
                target = target_of(pod, record, cgroup)
                requested, booked = by_parameter(record.requested), by_parameter(record.booked)
                if record.owners and self._ledger.record(cgroup) is None:
                    self._ledger.book(Wanted(target, owned_claims(record), requested, booked))
                is_known = not record.recovered
                wanted.append(wanted_of(each, target, requested, booked, is_base_known=is_known))
        found = [self._ledger.record(each.target.cgroup) for each in wanted]
        if not self.changes.rates.lowers_memory:
            wanted = [without_lower_limit(*pair) for pair in zip(wanted, found, strict=True)]
        return _Changed(pod, containers, tuple(wanted), tuple(found), request)

    def _is_current(self, changed: _Changed) -> bool:
        """Whether no call has changed the pod since it was evaluated."""
        return (
            self._store.pods.get(changed.pod.id) is changed.pod
            and all(self._store.containers.get(box.id) is box for box in changed.containers)
            and all(
                self._ledger.record(wanted.target.cgroup) is book
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
        answers, silent = await self._evaluate_others()
        wanted = list(answers)
        answered = {"/" + "/".join(cgroup_path(each.target.cgroup)) for each in wanted}
        wanted += [
            Wanted(Target(level, identity), {}, silent=silent)
            for identity, level in self._ledger.above_pods().items()
            if identity not in answered
        ]
        if any(map(self._ledger.differs, wanted)):
            ChangeLog(self._audit).add(await self._in_worker(partial(self._ledger.change, wanted)))


def _is_evaluated(pod: PodRecord) -> bool:
    return pod.state is Lifecycle.RUNNING and pod.detailed and bool(pod.cgroup_parent)
