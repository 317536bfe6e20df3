"""The trace of an intercepted call: times, decisions and outcome, for a span.

Nothing here knows OpenTelemetry: another thread makes the span.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, cast

from runtimeproxy.errors import StatusCode
from runtimeproxy.frontends.cri_proxy.calls.create_container import CreateContainer
from runtimeproxy.frontends.cri_proxy.calls.cri_call import ContainerCall, PodCall
from runtimeproxy.frontends.cri_proxy.calls.methods import BY_PATH
from runtimeproxy.frontends.cri_proxy.calls.run_pod_sandbox import NewSandbox
from runtimeproxy.hooks.audit import Origin
from runtimeproxy.hooks.fields import pod_of
from runtimeproxy.hooks.traceparent import TraceParent
from runtimeproxy.hooks.views import ContainerView

if TYPE_CHECKING:
    from cri_api.runtime.v1 import api_pb2
    from runtimeproxy.frontends.cri_proxy.calls.cri_call import CriCall
    from runtimeproxy.hooks.audit import AuditEntry, PolicyRun, Subject
    from runtimeproxy.hooks.policy import Hook
    from runtimeproxy.hooks.views import PodView
    from runtimeproxy.pods.records import PodRecord

    _PodRequest: TypeAlias = api_pb2.RunPodSandboxRequest | api_pb2.RestorePodRequest

CANCELLED: Final = "cancelled"
"""As an outcome: the call ended before the runtime had its message."""
REFUSED: Final = "refused"
"""As an outcome: the proxy refused the call."""


class TraceSink(Protocol):
    """Where finished traces go; in the event loop's thread."""

    def samples(self) -> bool:
        """Whether to trace a call of a client that does not trace."""

    def take(self, trace: CallTrace) -> None:
        """Takes a call that has ended; never blocks."""


class TracedDecision(NamedTuple):
    """What the policies of one hook have decided."""

    hook: Hook
    runs: Sequence[PolicyRun]
    entries: Sequence[AuditEntry]


class CallTrace:
    """The notes on one call. Written in the event loop's thread, and read in another one when it has ended.

    Args:
        path: `/package.Service/Method`.
        parent: the client's span; None if it does not trace.
        waited_s: how long the call has waited already.

    Attributes:
        began_ns: when its headers came, in nanoseconds since the epoch.
        began_s: the same by the monotonic clock, as the other times.
        message_s: when its whole message was there; None if it never was.
        decided_s: when it was forwarded or refused; None if it was not.
        ended_s: when the response went on.
        is_changed: whether the message was edited.
        outcome: `succeeded`, `failed` (in the runtime), `unknown`, or one of the constants above.
        code: of a refusal.
        namespace, pod, uid, container: names; empty if not known, or of a pod's call.
        sandbox_id, container_id: ids; empty if not known.
    """

    __slots__ = (
        "_sink",
        "began_ns",
        "began_s",
        "code",
        "container",
        "container_id",
        "decided_s",
        "decisions",
        "ended_s",
        "is_changed",
        "message_s",
        "namespace",
        "outcome",
        "parent",
        "path",
        "pod",
        "reason",
        "sandbox_id",
        "uid",
    )

    def __init__(self, path: str, parent: TraceParent | None, sink: TraceSink, waited_s: float = 0.0) -> None:
        self._sink = sink
        self.path = path
        self.parent = parent
        self.began_ns = time.time_ns() - int(waited_s * 1e9)
        self.began_s = time.monotonic() - waited_s
        self.message_s: float | None = None
        self.decided_s: float | None = None
        self.ended_s = 0.0
        self.is_changed = False
        self.outcome = ""
        self.code: StatusCode | None = None
        self.reason = ""
        self.namespace = self.pod = self.uid = self.container = self.sandbox_id = self.container_id = ""
        self.decisions: list[TracedDecision] = []

    @property
    def origin(self) -> Origin:
        # Not kept, as it leads back here.
        return Origin(BY_PATH[self.path].kind, self._trace_id, self)

    def _trace_id(self) -> str:
        return "" if self.parent is None else self.parent.trace_id

    def name(self, call: CriCall) -> None:
        if isinstance(call, NewSandbox):
            self._name_pod(cast("_PodRequest", call.request).config.metadata)
        elif isinstance(call, CreateContainer):
            request = cast("api_pb2.CreateContainerRequest", call.request)
            self._name_pod(request.sandbox_config.metadata)
            self.container, self.sandbox_id = request.config.metadata.name, request.pod_sandbox_id
        elif isinstance(call, ContainerCall):
            container = call.record
            self.container_id = call.container_id if container is None else container.id
            self.container = "" if container is None else container.name
            self._name_recorded(call.pod)
        elif isinstance(call, PodCall):
            self.sandbox_id = call.pod_id
            self._name_recorded(call.record)

    def _name_pod(self, pod: api_pb2.PodSandboxMetadata | PodRecord | PodView) -> None:
        self.namespace, self.pod, self.uid = pod.namespace, pod.name, pod.uid

    def _name_recorded(self, pod: PodRecord | PodView | None) -> None:
        if pod is not None:
            self._name_pod(pod)
            self.sandbox_id = pod.id or self.sandbox_id

    def on_decision(self, subject: Subject, runs: Sequence[PolicyRun], entries: Sequence[AuditEntry]) -> None:
        """Takes the decision of one hook, unless the call has ended, as for post hooks."""
        if self.outcome:
            return
        self.decisions.append(TracedDecision(subject.hook, runs, entries))
        if not self.uid:
            # The records were fetched meanwhile.
            self._name_recorded(pod_of(subject.view))
            if isinstance(subject.view, ContainerView):
                self.container = subject.view.name

    def end(self, outcome: str) -> None:
        """The call has ended; only the first end counts."""
        if self.ended_s:
            return
        self.ended_s = time.monotonic()
        # The response goes on first, and a decision that was just made is reported first.
        asyncio.get_running_loop().call_soon(self._finish, outcome)

    def _finish(self, outcome: str) -> None:
        self.outcome = outcome
        self._sink.take(self)
