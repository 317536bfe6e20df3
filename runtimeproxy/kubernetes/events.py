"""Events about pods in the API server: refusals by policies, and evictions.

Bounded in every way: the same Event again raises a count, at most each half minute; many different ones wait
for their turn, and what does not fit is counted as lost. Whoever reports something never waits.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from uuid import uuid4

from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.hooks.policy import Mode
from runtimeproxy.kubernetes.client import ApiClient, ApiError
from runtimeproxy.logs import FailureLog

COMPONENT: Final = "koord-runtime-proxy"
REFUSED: Final = "RefusedByPolicy"
EVICTED: Final = "EvictedForQoS"
MAX_MESSAGE: Final = 1024
"""Source: Kubernetes pkg/apis/core/validation, NoteLengthLimit."""
MAX_KEPT: Final = 256
"""Different Events that wait, or whose repetitions are counted."""
_NOT_FOUND: Final = 404


class EventRates(NamedTuple):
    """How many Events are sent."""

    burst: int = 20
    """At once."""
    each_s: float = 5.0
    """One more after so many seconds. Source: far below client-go's, 25 and one in 5 minutes per object."""
    repeat_s: float = 30.0
    """Least time between two updates of the count of one Event."""
    forget_s: float = 600.0
    """A repetition after so long is a new Event. Source: client-go, defaultAggregateIntervalInSeconds."""


USUAL_RATES: Final = EventRates()


class PodEvent(NamedTuple):
    """An Event of a pod; equal ones are counted together."""

    namespace: str
    pod: str
    uid: str
    reason: str
    """One word, as `REFUSED`."""
    message: str
    is_warning: bool = True


@dataclass(slots=True)
class _Sent:
    """An Event and its repetitions."""

    first_s: float
    last_s: float
    count: int = 1
    name: str = ""
    unsent: int = 1
    """Repetitions that the API server does not know yet."""
    due_s: float = 0.0
    """Monotonic: not sent before."""


class EventRecorder:
    """Sends Events from a thread of its own."""

    def __init__(
        self,
        client: ApiClient,
        node_name: str,
        rates: EventRates = USUAL_RATES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sent = self.lost = 0
        """Requests that the API server has taken, and reports that were dropped."""
        self._client = client
        self._node_name = node_name
        self._rates = rates
        self._clock = clock
        self._failures = FailureLog()
        self._events: OrderedDict[PodEvent, _Sent] = OrderedDict()
        self._tokens = float(rates.burst)
        self._filled_s = clock()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="kubernetes-events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Ends the thread; what waits is lost."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def on_audit(self, entry: AuditEntry) -> None:
        """An audit sink: reports pods that a policy has refused, and that were evicted by whatever means."""
        pod = entry.pod_namespace, entry.pod_name, entry.pod_uid
        if entry.field == "eviction":
            if entry.new == "evicted":
                self.report(PodEvent(*pod, EVICTED, f"{entry.policy}: {entry.reason}"))
        elif entry.kind is AuditKind.REFUSED and entry.mode is Mode.ENFORCE and entry.pod_name:
            what = f"container {entry.container}: " if entry.container else ""
            self.report(PodEvent(*pod, REFUSED, f"{what}policy {entry.policy}: {entry.reason}"))

    def report(self, event: PodEvent) -> None:
        """Takes an Event; never waits."""
        event = event._replace(message=event.message[:MAX_MESSAGE])
        now_s = time.time()
        with self._changed:
            known = self._events.get(event)
            if known is not None and now_s - known.last_s < self._rates.forget_s:
                known.count, known.unsent, known.last_s = known.count + 1, known.unsent + 1, now_s
            elif len(self._events) >= MAX_KEPT and not self._forget_one():
                self.lost += 1
                return
            else:
                self._events[event] = _Sent(now_s, now_s)
            self._events.move_to_end(event)
            self._changed.notify()

    def _forget_one(self) -> bool:
        """Forgets the oldest Event that is sent; returns whether there was one."""
        for event, sent in self._events.items():
            if not sent.unsent:
                del self._events[event]
                return True
        return False

    def _run(self) -> None:
        while True:
            with self._changed:
                while (due := self._next_due()) is None or due[1] > 0:
                    if self._is_closing:
                        return
                    self._changed.wait(None if due is None else due[1])
                if self._is_closing:
                    return
                event, sent = due[0], self._events[due[0]]
                count, unsent = sent.count, sent.unsent
                self._tokens -= 1
            self._send(event, sent, count, unsent)

    def _next_due(self) -> tuple[PodEvent, float] | None:
        """The Event that is sent next, and in how many seconds; None: there is none."""
        now_s = self._clock()
        earned = (now_s - self._filled_s) / self._rates.each_s
        self._tokens, self._filled_s = min(self._tokens + earned, self._rates.burst), now_s
        waiting = [(sent.due_s, event) for event, sent in self._events.items() if sent.unsent]
        if not waiting:
            return None
        due_s, event = min(waiting, key=lambda each: each[0])
        token_s = 0.0 if self._tokens >= 1 else (1 - self._tokens) * self._rates.each_s
        return event, max(due_s - now_s, token_s)

    def _send(self, event: PodEvent, sent: _Sent, count: int, unsent: int) -> None:
        try:
            name = self._request(event, sent, count)
        except ApiError as error:
            reason = f"an Event cannot be sent: {error}"
            self._failures.report("kubernetes events", str(error), reason)
            with self._changed:
                self.lost += unsent
                sent.unsent -= unsent
                sent.due_s = self._clock() + self._rates.repeat_s
            return
        with self._changed:
            self.sent += 1
            sent.name = name
            sent.unsent -= unsent
            sent.due_s = self._clock() + self._rates.repeat_s

    def _request(self, event: PodEvent, sent: _Sent, count: int) -> str:
        """Sends an Event, or the new count of one; returns its name."""
        path = f"/api/v1/namespaces/{event.namespace}/events"
        if sent.name:
            patch = {"count": count, "lastTimestamp": _time(sent.last_s)}
            try:
                self._client.send("PATCH", f"{path}/{sent.name}", patch, "application/merge-patch+json")
            except ApiError as error:
                # Events are deleted after an hour.
                if error.status != _NOT_FOUND:
                    raise
            else:
                return sent.name
        name = f"{event.pod[:200]}.{uuid4().hex[:16]}"
        self._client.send("POST", path, self._body(event, sent, count, name))
        return name

    def _body(self, event: PodEvent, sent: _Sent, count: int, name: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": event.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": event.namespace,
                "name": event.pod,
                "uid": event.uid,
            },
            "type": "Warning" if event.is_warning else "Normal",
            "reason": event.reason,
            "message": event.message,
            "count": count,
            "firstTimestamp": _time(sent.first_s),
            "lastTimestamp": _time(sent.last_s),
            "source": {"component": COMPONENT, "host": self._node_name},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._node_name,
        }


def _time(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
