"""Evicts pods: decides whether a pod may be evicted now, and ends all its containers.

A QoS manager proposes; only this process carries it out. Used in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from runtimeproxy.background import ShieldedTasks
from runtimeproxy.core.eviction_history import UNKNOWN_UID, Evicted, EvictionHistory
from runtimeproxy.counts import Counts
from runtimeproxy.hooks.audit import AuditEntry, AuditKind, AuditSink
from runtimeproxy.hooks.owners import Owner
from runtimeproxy.hooks.policy import Hook, Mode
from runtimeproxy.pods.inventory import RuntimeUnavailableError
from runtimeproxy.pods.record_views import recorded_class
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.qos import NEVER_EVICTED, QoSClass

if TYPE_CHECKING:
    from runtimeproxy.pods.store import PodStore

logger = logging.getLogger(__name__)

MOST_GRACE_S: Final = 3600.0
STOP_S: Final = 30.0
"""How long the runtime may take beyond the grace period to end a container. Source: the kubelet's own calls
of StopContainer have the grace period and 2 minutes, in which it waits for nothing else."""
HANDED_OVER_S: Final = 5.0
"""After how long an eviction may be tried again while another process takes over."""
REMEMBERED: Final = 20
"""Evictions, for the status."""


class PodEvictionOutcome(StrEnum):
    """What has become of an eviction."""

    EVICTED = "evicted"
    DRY_RUN = "dry-run"
    REFUSED = "refused"
    FAILED = "failed"
    NOTHING_TO_STOP = "nothing-to-stop"


OF_API_SERVER: Final = {
    "evicted": PodEvictionOutcome.EVICTED,
    "blocked": PodEvictionOutcome.REFUSED,
    "gone": PodEvictionOutcome.NOTHING_TO_STOP,
    "refused": PodEvictionOutcome.REFUSED,
    "failed": PodEvictionOutcome.FAILED,
}
"""By `runtimeproxy.kubernetes.eviction.EvictionOutcome`, whose module needs an extra."""


class EvictionMethod(StrEnum):
    """How it was carried out."""

    NONE = ""
    STOP_CONTAINERS = "stop-containers"
    EVICTION_API = "eviction-api"


class Stopped(NamedTuple):
    """What has become of one container."""

    id: str
    name: str
    error: str = ""
    """Empty if it was stopped."""


class Result(NamedTuple):
    """What has become of an eviction."""

    outcome: PodEvictionOutcome
    reason: str = ""
    containers: tuple[Stopped, ...] = ()
    method: EvictionMethod = EvictionMethod.NONE
    retry_s: float | None = None
    """In how many seconds it may be tried again; None if that is not known."""


class Bounds(NamedTuple):
    """How many pods may be evicted."""

    most_pods: int
    """In `interval_s`."""
    interval_s: float
    same_pod_s: float
    """How long a pod is not evicted again."""


class Remembered(NamedTuple):
    """An eviction that ended, for people."""

    time_s: float
    """Since the epoch."""
    owner: str
    pod: str
    uid: str
    result: Result


def refusal(
    qos: QoSClass, uid: str, history: Iterable[Evicted], bounds: Bounds, now_s: float
) -> Result | None:
    """Return why a pod may not be evicted now; None if it may. Pure.

    `history`: the evictions of before, oldest first. `now_s`: by the clock of the history.
    """
    if qos in NEVER_EVICTED:
        return Result(PodEvictionOutcome.REFUSED, f"pods of class {qos} are never evicted")
    known = list(history)
    if left_s := unknown_s(known, bounds, now_s):
        text = f"which pods were evicted before is not known; none is for {left_s:.0f} s"
        return Result(PodEvictionOutcome.REFUSED, text, retry_s=left_s)
    again_s = max((each.at_s for each in known if each.uid == uid), default=None)
    if again_s is not None and now_s < again_s + bounds.same_pod_s:
        left_s = again_s + bounds.same_pod_s - now_s
        text = f"it was evicted {now_s - again_s:.0f} s ago, and is not again for {bounds.same_pod_s:.0f} s"
        return Result(PodEvictionOutcome.REFUSED, text, retry_s=left_s)
    recent = [each.at_s for each in known if now_s < each.at_s + bounds.interval_s]
    if len(recent) >= bounds.most_pods:
        most = f"at most {bounds.most_pods} in {bounds.interval_s:.0f} s"
        text = f"{len(recent)} pods were evicted just now, and {most} may be"
        retry_s = recent[-bounds.most_pods] + bounds.interval_s - now_s if bounds.most_pods else None
        return Result(PodEvictionOutcome.REFUSED, text, retry_s=retry_s)
    return None


def unknown_s(history: Iterable[Evicted], bounds: Bounds, now_s: float) -> float:
    """Return how long bounds still count for evictions that are not known: 0 for none. Pure."""
    ends_s = (
        each.at_s + max(bounds.interval_s, bounds.same_pod_s) for each in history if each.uid == UNKNOWN_UID
    )
    return max(0.0, max(ends_s, default=now_s) - now_s)


class ContainerStopper(Protocol):
    """Ends containers; see `GrpcRuntimeClient`."""

    async def stop_container(self, identity: str, grace_s: int, timeout_s: float) -> None: ...


EvictByApi = Callable[[PodRecord, str], Awaitable[Result]]
"""Evicts a pod by the API server, for a reason; never raises."""


class Evictor:
    """Carries out evictions, one of a pod at a time.

    Args:
        audit: Takes an entry for each.

    Attributes:
        by_api: Evicts by the API server; None: by the runtime.
        counts: By owner and outcome.
        recent: The last ones, oldest first.
    """

    def __init__(
        self,
        store: PodStore,
        runtime: ContainerStopper,
        audit: AuditSink,
        bounds: Bounds,
        history: EvictionHistory,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._audit = audit
        # An eviction goes on when its client is gone.
        self._running = ShieldedTasks()
        self.by_api: EvictByApi | None = None
        self.history = history
        self.bounds = bounds
        self.counts: Counts[tuple[str, PodEvictionOutcome]] = Counts()
        self.recent: deque[Remembered] = deque(maxlen=REMEMBERED)

    @property
    def problem(self) -> str:
        """Why all evictions are refused now, or are not saved; empty for neither."""
        if left_s := unknown_s(self.history.evictions, self.bounds, self.history.now_s()):
            return f"which pods were evicted before is not known; none is for {left_s:.0f} s"
        return self.history.problem

    def find(self, uid: str) -> PodRecord | None:
        """The newest sandbox of a pod; None if there is none."""
        found = self._store.pods.members(uid) if uid else ()
        return max(found, key=lambda pod: (pod.state is not Lifecycle.STOPPED, pod.attempt), default=None)

    async def evict(
        self, pod: PodRecord, owner: Owner, reason: str, *, is_dry_run: bool, grace_s: float = 0.0
    ) -> Result:
        """Evicts a pod if that is allowed; the whole of it, also when the caller is cancelled.

        `pod`: any sandbox of it. `is_dry_run`: whether everything is decided, and nothing done. `grace_s`:
        how long containers may take to end.
        """
        result = self._refusal(pod, owner)
        if result is None and (is_dry_run or owner.mode is Mode.DRY_RUN):
            result = Result(PodEvictionOutcome.DRY_RUN)
        if result is None:
            # Counted before it is done: others may ask meanwhile.
            evicted = self.history.add(pod.uid)
            return await self._running.run(self._carry_out(pod, owner, reason, grace_s, evicted))
        self._note(pod, owner, reason, result)
        return result

    def _refusal(self, pod: PodRecord, owner: Owner) -> Result | None:
        if owner.mode is Mode.OFF or not owner.may_evict:
            why = "is off" if owner.mode is Mode.OFF else "may not evict pods"
            return Result(PodEvictionOutcome.REFUSED, f"owner {owner.name} {why}")
        history = self.history
        if history.is_handed_over:
            return Result(PodEvictionOutcome.REFUSED, "another process takes over", retry_s=HANDED_OVER_S)
        return refusal(recorded_class(pod), pod.uid, history.evictions, self.bounds, history.now_s())

    async def _carry_out(
        self, pod: PodRecord, owner: Owner, reason: str, grace_s: float, evicted: Evicted
    ) -> Result:
        # On disk before it is done: a process that is killed meanwhile has evicted it all the same.
        await self.history.save()
        # The one place where evictions by the API server join.
        if self.by_api is not None:
            result = await self.by_api(pod, reason)
        else:
            result = await self._stop_all(pod, grace_s)
        if result.outcome in (PodEvictionOutcome.REFUSED, PodEvictionOutcome.NOTHING_TO_STOP):
            self.history.remove(evicted)
            await self.history.save()
        self._note(pod, owner, reason, result)
        return result

    async def _stop_all(self, pod: PodRecord, grace_s: float) -> Result:
        """Stops all containers of all sandboxes of a pod at once; one that fails does not stop the others."""
        boxes = [
            box
            for sandbox in self._store.pods.members(pod.uid)
            for box in self._store.containers.members(sandbox.id)
            if box.state is not Lifecycle.STOPPED
        ]
        if not boxes:
            return Result(PodEvictionOutcome.NOTHING_TO_STOP, "no container of it runs")
        stopped = await asyncio.gather(*(self._stop(box, grace_s) for box in boxes))
        failed = [each for each in stopped if each.error]
        if not failed:
            return Result(PodEvictionOutcome.EVICTED, "", tuple(stopped), EvictionMethod.STOP_CONTAINERS)
        reason = f"{len(failed)} of {len(stopped)} containers could not be stopped: {failed[0].error}"
        return Result(PodEvictionOutcome.FAILED, reason, tuple(stopped), EvictionMethod.STOP_CONTAINERS)

    async def _stop(self, box: ContainerRecord, grace_s: float) -> Stopped:
        try:
            await self._runtime.stop_container(box.id, round(grace_s), grace_s + STOP_S)
        except RuntimeUnavailableError as error:
            return Stopped(box.id, box.name, str(error))
        except Exception as error:  # a bug costs this container, not the others
            logger.exception("container %s could not be stopped", box.id)
            return Stopped(box.id, box.name, f"{type(error).__name__}: {error}")
        now = self._store.containers.get(box.id)
        if now is not None and now.state is not Lifecycle.STOPPED:
            self._store.containers.put(replace(now, state=Lifecycle.STOPPED))
        return Stopped(box.id, box.name)

    def _note(self, pod: PodRecord, owner: Owner, reason: str, result: Result) -> None:
        self.counts.add((owner.name, result.outcome))
        name = f"{pod.namespace}/{pod.name}"
        shown = result._replace(reason=result.reason or reason)
        self.recent.append(Remembered(time.time(), owner.name, name, pod.uid, shown))
        kind = _KINDS[result.outcome]
        note = f"; {result.reason}" if result.reason else ""
        self._audit(
            AuditEntry(
                time.time(),
                Hook.EVALUATE_POD,
                kind,
                str(owner.claimant),
                Mode.DRY_RUN if result.outcome is PodEvictionOutcome.DRY_RUN else Mode.ENFORCE,
                pod.namespace,
                pod.name,
                pod.uid,
                "",
                pod.id,
                field="eviction",
                old="",
                new=result.outcome,
                reason=f"{reason}{note}",
                note=f"by {result.method}" if result.method else "",
            )
        )


_KINDS: Final = {
    PodEvictionOutcome.EVICTED: AuditKind.CHANGED,
    PodEvictionOutcome.DRY_RUN: AuditKind.WOULD_CHANGE,
    PodEvictionOutcome.REFUSED: AuditKind.LEFT_OUT,
    PodEvictionOutcome.FAILED: AuditKind.FAILED,
    PodEvictionOutcome.NOTHING_TO_STOP: AuditKind.LEFT_OUT,
}
