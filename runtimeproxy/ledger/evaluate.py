"""Evaluates running pods and containers again when something has changed: strategies, the node, the policies.

What follows is written by file, pod after pod. A change that touches many pods goes at a bounded rate, and
ends when too many of them cannot be written. Nothing here waits for the runtime.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from runtimeproxy.cgroups.paths import cgroup_path
from runtimeproxy.cgroups.writer import WriteOutcome, WriteResult
from runtimeproxy.hooks.algebra import Claim
from runtimeproxy.hooks.fields import RESOURCE_PARAMETERS
from runtimeproxy.hooks.views import Resources
from runtimeproxy.ledger.books import Target, Value, Wanted
from runtimeproxy.ledger.executor import LIMIT
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.pods.records import Book, ContainerRecord, Level, Lifecycle, PodRecord
from runtimeproxy.pods.store import PodStore
from runtimeproxy.units import UNLIMITED

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
"""Least time between the starts of two evaluations of everything."""
SLICE_S: Final = 0.005
"""How long the loop works on it at a time; the pause is as long."""
FEW_PODS: Final = 10
"""A change of fewer pods is never a large one."""


class Answer(NamedTuple):
    """What all policies want of one pod, container or QoS class."""

    claims: Mapping[str, tuple[Claim, ...]]
    """By cgroup parameter."""
    silent: frozenset[str] = frozenset()
    """Policies without an answer this time; see `Wanted`."""
    problems: tuple[str, ...] = ()
    """Why no policy could be asked; then everything stays."""


class ClassAnswer(NamedTuple):
    """The answer about one QoS class."""

    cgroup: str
    answer: Answer


EvaluatePod: TypeAlias = Callable[
    [PodRecord, Sequence[ContainerRecord]], Awaitable[tuple[Answer, Sequence[Answer]]]
]
"""Asks all policies about a pod and its containers."""
EvaluateClasses: TypeAlias = Callable[[Sequence[Wanted]], Awaitable[Sequence[ClassAnswer]]]
"""Asks all policies about the QoS classes; it is given what is wanted of the pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How changes of running pods are made.

    Attributes:
        pods_per_s: How many pods a large change may touch in a second.
        large_percent: From this share of the running pods on a change is a large one.
        failed_percent: A large change ends when the values of more than this share of its pods cannot be
            written.
        lowers_memory: Whether a new answer may lower the memory limit of a running pod or container.
    """

    pods_per_s: float = 50.0
    large_percent: float = 10.0
    failed_percent: float = 10.0
    lowers_memory: bool = False


class _Changed(NamedTuple):
    """A pod of which something else is wanted now."""

    pod: PodRecord
    containers: tuple[ContainerRecord, ...]
    wanted: tuple[Wanted, ...]
    books: tuple[Book | None, ...]


class Evaluator:
    """Evaluates everything again on request. Used in the event loop's thread.

    Args:
        store: The records.
        ledger: The books.
        evaluate: Asks the policies.
        cgroup_of: The cgroup of a container; empty if it is not known.
        in_worker: Runs something in a worker thread.
        is_standby: Whether this process leaves the cgroups alone.
        evaluate_classes: Asks the policies about QoS classes; None for no such question.
        clock: In seconds.
        sleep: Waits for so many seconds.

    Attributes:
        rates: How changes are made.
        problem: Why the last change was not made to the end; empty if it was.
        rounds: Number of evaluations of everything.
    """

    def __init__(
        self,
        store: PodStore,
        ledger: Ledger,
        evaluate: EvaluatePod,
        cgroup_of: Callable[[PodRecord, ContainerRecord], str],
        in_worker: Callable[[Callable[[], tuple[WriteResult, ...]]], Awaitable[tuple[WriteResult, ...]]],
        is_standby: Callable[[], bool] = lambda: False,
        evaluate_classes: EvaluateClasses | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._evaluate = evaluate
        self._cgroup_of = cgroup_of
        self._in_worker = in_worker
        self._is_standby = is_standby
        self._evaluate_classes = evaluate_classes
        self._now_s = clock
        self._sleep = sleep
        self._requested = asyncio.Event()
        self._reasons: list[str] = []
        self.rates = Rates()
        self.problem = ""
        self.rounds = 0

    def request(self, reason: str) -> None:
        """Something has changed; requests of one second are one."""
        if reason not in self._reasons:
            self._reasons.append(reason)
        self._requested.set()

    async def run(self) -> None:
        """Evaluates on request until it is cancelled."""
        while True:
            await self._requested.wait()
            started_s = self._now_s()
            self._requested.clear()
            reasons, self._reasons = self._reasons, []
            if not self._is_standby():
                try:
                    await self.evaluate_all(reasons)
                except Exception:  # a bug costs this evaluation, not the next one
                    logger.exception("running pods could not be evaluated")
            await self._sleep(max(0.0, started_s + INTERVAL_S - self._now_s()))

    async def evaluate_all(self, reasons: Sequence[str] = ()) -> None:
        """Evaluates all running pods, and makes what has changed; ends early if it is requested anew."""
        self.rounds += 1
        since_s = self._now_s()
        running = [pod for pod in self._store.pods if _is_evaluated(pod)]
        changed: list[_Changed] = []
        all_wanted: list[Wanted] = []
        for pod in running:
            if self._now_s() - since_s > SLICE_S:
                await self._sleep(SLICE_S)
                since_s = self._now_s()
            found = await self._wanted(pod)
            all_wanted += found.wanted
            if any(map(self._ledger.differs, found.wanted)):
                changed.append(found)
        if changed:
            why = ", ".join(reasons)
            about = {"pods": len(changed), "of": len(running), "reasons": reasons}
            logger.info("policies want other values of %d running pods: %s", len(changed), why, extra=about)
        large = max(FEW_PODS, len(running) * self.rates.large_percent / 100)
        await self._make(changed, is_large=len(changed) > large)
        await self._evaluate_all_classes(all_wanted)

    async def _make(self, changed: Sequence[_Changed], *, is_large: bool) -> None:
        """Writes the values of one pod after the other."""
        self.problem = ""
        failed, begun_s = 0, self._now_s()
        for number, each in enumerate(changed):
            if self._requested.is_set() and number:
                return
            if is_large:
                await self._sleep(max(0.0, begun_s + number / self.rates.pods_per_s - self._now_s()))
            wanted = each.wanted
            if not self._is_current(each):
                # A call has changed it meanwhile.
                pod = self._store.pods.get(each.pod.id)
                if pod is None or not _is_evaluated(pod):
                    continue
                wanted = (await self._wanted(pod)).wanted
            results = await self._in_worker(lambda wanted=wanted: self._ledger.claim(wanted))  # type: ignore[misc]
            _log_changes(each.pod, wanted, results)
            failed += any(result.outcome is WriteOutcome.FAILED for result in results)
            if is_large and number >= FEW_PODS and failed * 100 > (number + 1) * self.rates.failed_percent:
                left = len(changed) - number - 1
                self.problem = f"a change ended: {failed} of {number + 1} pods failed, {left} are left"
                logger.error(self.problem, extra={"failed": failed, "done": number + 1, "left": left})
                return

    async def _wanted(self, pod: PodRecord) -> _Changed:
        """What the policies want of a pod and its containers now."""
        containers = tuple(
            found
            for found in self._store.containers.members(pod.id)
            if found.state is Lifecycle.RUNNING and found.detailed
        )
        answer, answers = await self._evaluate(pod, containers)
        name = f"{pod.namespace}/{pod.name}"
        target = Target(Level.POD, pod.cgroup_parent, name, pod.uid)
        wanted = [Wanted(target, answer.claims, pod_values(containers), silent=answer.silent)]
        for record, each in zip(containers, answers, strict=True):
            cgroup = self._cgroup_of(pod, record)
            if cgroup:
                target = Target(Level.CONTAINER, cgroup, f"{name}/{record.name}", pod.uid)
                requested, booked = by_parameter(record.requested), by_parameter(record.booked)
                wanted.append(Wanted(target, each.claims, requested, booked, silent=each.silent))
        found = [self._ledger.record(each.target.cgroup) for each in wanted]
        if not self.rates.lowers_memory:
            wanted = [without_lower_limit(*pair) for pair in zip(wanted, found, strict=True)]
        return _Changed(pod, containers, tuple(wanted), tuple(found))

    def _is_current(self, changed: _Changed) -> bool:
        """Whether no call has changed a pod or its containers since they were evaluated."""
        return (
            self._store.pods.get(changed.pod.id) is changed.pod
            and all(self._store.containers.get(box.id) is box for box in changed.containers)
            and all(
                self._ledger.record(wanted.target.cgroup) is book
                for wanted, book in zip(changed.wanted, changed.books, strict=True)
            )
        )

    async def _evaluate_all_classes(self, all_wanted: Sequence[Wanted]) -> None:
        if self._evaluate_classes is None:
            return
        found = await self._evaluate_classes(all_wanted)
        wanted = [
            Wanted(Target(Level.QOS_CLASS, cgroup), answer.claims, silent=answer.silent)
            for cgroup, answer in found
        ]
        if any(map(self._ledger.differs, wanted)):
            await self._in_worker(lambda: self._ledger.claim(wanted))


def by_parameter(resources: Resources) -> dict[str, Value]:
    """The values of a container's resources, by cgroup parameter."""
    found: dict[str, Value] = dict(resources.unified)
    for name, parameter in RESOURCE_PARAMETERS.items():
        value: Value | None = getattr(resources, name)
        if value is not None:
            found[parameter] = value
    return found


def pod_values(containers: Collection[ContainerRecord]) -> dict[str, Value]:
    """What the requests of its containers come to for a pod: one unlimited container makes it unlimited.

    Source: kubelet, pkg/kubelet/cm/helpers_linux.go, ResourceConfigForPod.
    """
    if not containers:
        return {}
    requested = [record.requested for record in containers]
    shares = sum(each.cpu_shares or 0 for each in requested)
    found: dict[str, Value] = {
        "cpu.cfs_quota_us": _sum(each.cpu_quota_us for each in requested),
        "memory.limit_in_bytes": _sum(each.memory_limit_bytes for each in requested),
    }
    return found | ({"cpu.shares": shares} if shares else {})


def _sum(limits: Iterable[int | None]) -> int:
    total = 0
    for limit in limits:
        if limit is None or limit <= 0:
            return UNLIMITED
        total += limit
    return total


def without_lower_limit(wanted: Wanted, book: Book | None) -> Wanted:
    """The answer about something that runs, where a lower memory limit waits for the next call."""
    claims = wanted.claims.get(LIMIT, ())
    entry = book.entries.get(LIMIT) if book is not None else None
    before = wanted.requested.get(LIMIT) if entry is None else entry.resolved
    values = [claim.value for claim in claims if isinstance(claim.value, int)]
    if not values or (entry is not None and entry.claims == claims):
        return wanted
    lowest = min(_with_infinity(value) for value in values)
    if lowest >= _with_infinity(UNLIMITED if before is None else before):
        return wanted
    kept = {name: each for name, each in wanted.claims.items() if name != LIMIT}
    if entry is not None and entry.claims:
        kept[LIMIT] = entry.claims
    return wanted._replace(claims=kept)


def _with_infinity(value: Value) -> float:
    return float("inf") if value == UNLIMITED else float(value)


def _is_evaluated(pod: PodRecord) -> bool:
    return pod.state is Lifecycle.RUNNING and pod.detailed and bool(pod.cgroup_parent)


def _log_changes(pod: PodRecord, wanted: Iterable[Wanted], results: Iterable[WriteResult]) -> None:
    """Logs what has become of the values of one pod and its containers, a line for each."""
    names = {"/" + "/".join(cgroup_path(each.target.cgroup)): each.target.name for each in wanted}
    about = {"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid, "sandbox": pod.id}
    texts: dict[str, list[str]] = {}
    for result in results:
        if result.outcome is WriteOutcome.WRITTEN:
            texts.setdefault(result.cgroup, []).append(f"{result.name} {result.old} -> {result.value}")
        elif result.outcome in (WriteOutcome.FAILED, WriteOutcome.INVALID):
            fields = {**about, "cgroup": result.cgroup, "field": result.name, "value": result.value}
            text, name = "a value of %s could not be changed: %s: %s", names.get(result.cgroup, "")
            logger.warning(text, name, result.name, result.error, extra=fields)
    for cgroup, changes in texts.items():
        fields = {**about, "cgroup": cgroup}
        logger.info("changed values of %s: %s", names.get(cgroup, ""), ", ".join(changes), extra=fields)
