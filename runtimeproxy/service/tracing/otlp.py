"""Spans of intercepted calls by OTLP over gRPC, made with OpenTelemetry's SDK; the extra `otel` has it.

The SDK's own exporter needs the gRPC library, whose core ends the process at some GOAWAYs of a collector, so
spans are sent by this program's client. Names follow OpenTelemetry's conventions for RPC and Kubernetes, the
proxy's own begin with `runtimeproxy.`. Values of fields are not in a span, and so no environment
variable's.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import DESCRIPTOR
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context
from opentelemetry.trace.status import Status
from opentelemetry.trace.status import StatusCode as SpanStatus
from opentelemetry.util.re import parse_env_headers

from runtimeproxy import __version__
from runtimeproxy.errors import StatusCode
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.http2.client import RpcError, Server
from runtimeproxy.stubs import BlockingClient

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    from runtimeproxy.frontends.cri_proxy.calls.call_trace import CallTrace, TracedDecision
    from runtimeproxy.hooks.audit import AuditEntry
    from runtimeproxy.hooks.traceparent import TraceParent
    from runtimeproxy.logs import FailureLog

SERVICE: Final = "koord-runtime-proxy"
TIMEOUT_S: Final = 10.0
"""Of one batch, with all attempts. Source: the default of OTLP exporters."""
FIRST_PAUSE_S: Final = 1.0
"""Before a batch is sent again; doubled each time. Source: OpenTelemetry's exporters."""
MOST_FIELDS: Final = 64
"""Fields that one event names; a hook server may set any number of annotations."""

_RETRYABLE: Final = frozenset(
    {
        StatusCode.CANCELLED,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.RESOURCE_EXHAUSTED,
        StatusCode.ABORTED,
        StatusCode.OUT_OF_RANGE,
        StatusCode.UNAVAILABLE,
        StatusCode.DATA_LOSS,
    }
)
"""Source: the OTLP specification, "OTLP/gRPC Response", "Failures"."""
_OWN: Final = "runtimeproxy."
_CHANGES: Final = frozenset({AuditKind.CHANGED, AuditKind.WOULD_CHANGE, AuditKind.PENDING})
_OUTCOMES: Final = (
    (AuditKind.REFUSED, "refused"),
    (AuditKind.FAILED, "failed"),
    (AuditKind.INVALID, "invalid"),
    (AuditKind.CHANGED, "changed"),
    (AuditKind.PENDING, "changed"),
    (AuditKind.WOULD_CHANGE, "would-change"),
    (AuditKind.OFF, "off"),
)
"""What a policy's entries come to: the first kind that is among them."""

Attributes = dict[str, "AttributeValue"]


class OtlpSender:
    """Sends spans; used in one thread, but for `close`.

    Certificates, headers and compression are those of OpenTelemetry's variables, `OTEL_EXPORTER_OTLP_HEADERS`
    and others.

    Args:
        endpoint: `http://host:port`, `https://host:port`, or the path of a Unix socket.
        failures: logs why spans could not be sent.
    """

    def __init__(self, endpoint: str, failures: FailureLog) -> None:
        self._ended: list[ReadableSpan] = []
        library = logging.getLogger("opentelemetry")
        library.handlers, library.propagate = [_LibraryLog(failures)], False
        self._endpoint = endpoint
        self._failures = failures
        self._is_closed = threading.Event()
        self._client = BlockingClient(server_of(endpoint, os.environ))
        self._service: Any = self._client.stub(DESCRIPTOR.services_by_name["TraceService"])
        about: Attributes = {
            "service.name": SERVICE,
            "service.version": __version__,
            "host.name": socket.gethostname(),
            "process.pid": os.getpid(),
        }
        provider = TracerProvider(
            sampler=ALWAYS_ON, resource=Resource.create(dict(about)), shutdown_on_exit=False
        )
        provider.add_span_processor(_Collecting(self._ended))
        self._tracer = provider.get_tracer(SERVICE, __version__)

    def send(self, traces: Sequence[CallTrace]) -> bool:
        """Sends spans of these calls; returns whether the collector has taken them."""
        for trace in traces:
            self._make_span(trace)
        request = encode_spans(self._ended)
        self._ended.clear()
        until_s, pause_s = time.monotonic() + TIMEOUT_S, FIRST_PAUSE_S
        while True:
            try:
                self._service.Export(request, timeout=max(until_s - time.monotonic(), 0.001))
            except RpcError as error:
                is_last = error.code not in _RETRYABLE or time.monotonic() + pause_s > until_s
                if is_last or self._is_closed.wait(pause_s):
                    text = f"Failed to export traces to {self._endpoint}: {error}"
                    self._failures.report("traces", error.code.name, text)
                    return False
                pause_s *= 2
            else:
                return True

    def close(self) -> None:
        """Ends a call of `send` that is under way in another thread."""
        self._is_closed.set()
        self._client.close()

    def _make_span(self, trace: CallTrace) -> None:
        span = self._tracer.start_span(
            trace.path.removeprefix("/"),
            context=_context(trace.parent),
            kind=SpanKind.SERVER,
            attributes=attributes_of(trace),
            start_time=trace.began_ns,
        )
        for decision in trace.decisions:
            for ended_s, attributes in policy_events(decision):
                span.add_event(f"{_OWN}policy", attributes, _time_ns(trace, ended_s))
        if trace.decided_s is not None:
            name = "refused" if trace.code is not None else "forwarded"
            span.add_event(f"{_OWN}{name}", timestamp=_time_ns(trace, trace.decided_s))
        if trace.code is not None:
            span.set_status(Status(SpanStatus.ERROR, trace.reason))
        elif trace.outcome == "failed":
            span.set_status(Status(SpanStatus.ERROR, "the runtime answered with an error"))
        span.end(_time_ns(trace, trace.ended_s))


def server_of(endpoint: str, environment: Mapping[str, str]) -> Server:
    """The collector, with certificates, headers and compression of OpenTelemetry's variables.

    Raises:
        OSError: a certificate cannot be read.
        ValueError: a compression that there is not.
    """

    def setting(name: str) -> str:
        for_traces = environment.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}", "")
        return for_traces or environment.get(f"OTEL_EXPORTER_OTLP_{name}", "")

    compression = setting("COMPRESSION").strip().lower()
    if compression not in ("", "none", "gzip"):
        raise ValueError(f"OTEL_EXPORTER_OTLP_COMPRESSION: {compression!r} is neither gzip nor none")
    headers = parse_env_headers(setting("HEADERS"), liberal=True)
    server = Server(
        fields=tuple((name.encode(), value.encode()) for name, value in headers.items()),
        is_compressed=compression == "gzip",
    )
    if endpoint.startswith("/"):
        return server._replace(path=endpoint)
    url = urlsplit(endpoint)
    tls = None
    if url.scheme == "https":
        tls = ssl.create_default_context(cafile=setting("CERTIFICATE") or None)
        tls.set_alpn_protocols(["h2"])
        if certificate := setting("CLIENT_CERTIFICATE"):
            tls.load_cert_chain(certificate, setting("CLIENT_KEY") or None)
    return server._replace(host=url.hostname or "", port=url.port or 0, tls=tls)


def attributes_of(trace: CallTrace) -> Attributes:
    """The attributes of a call's span; unknown ones are left out.

    The proxy does not read the headers of responses, so it knows the status of a successful call, and of one
    that it refused itself.
    """
    attributes: Attributes = {
        "rpc.system.name": "grpc",
        "rpc.method": trace.path.removeprefix("/"),
        f"{_OWN}outcome": trace.outcome,
        f"{_OWN}changed": trace.is_changed,
    }
    if trace.outcome == "succeeded":
        attributes["rpc.response.status_code"] = "OK"
    elif trace.code is not None:
        attributes["rpc.response.status_code"] = attributes["error.type"] = trace.code.name
    elif trace.outcome == "failed":
        attributes["error.type"] = "_OTHER"
    if trace.decided_s is not None:
        began_s = trace.began_s if trace.message_s is None else trace.message_s
        attributes[f"{_OWN}held_seconds"] = trace.decided_s - began_s
        if trace.code is None:
            attributes[f"{_OWN}runtime_seconds"] = trace.ended_s - trace.decided_s
    names = {
        "k8s.namespace.name": trace.namespace,
        "k8s.pod.name": trace.pod,
        "k8s.pod.uid": trace.uid,
        "k8s.container.name": trace.container,
        "container.id": trace.container_id,
        f"{_OWN}sandbox_id": trace.sandbox_id,
    }
    return attributes | {key: name for key, name in names.items() if name}


def policy_events(decision: TracedDecision) -> Iterator[tuple[float | None, Attributes]]:
    """For each policy of a decision, when it ended by the monotonic clock, and the attributes of its event.

    A policy that was skipped, or that did not return in time, has neither a time of its own nor a duration.
    """
    entries: dict[str, list[AuditEntry]] = {run.policy: [] for run in decision.runs}
    for entry in decision.entries:
        if entry.policy:
            entries.setdefault(entry.policy, []).append(entry)
    returned = {run.policy: run for run in decision.runs}
    for policy, found in entries.items():
        attributes: Attributes = {
            f"{_OWN}policy.name": policy,
            f"{_OWN}policy.hook": str(decision.hook),
            f"{_OWN}policy.outcome": _outcome_of(found),
        }
        fields = [entry.field for entry in found if entry.kind in _CHANGES]
        if fields:
            attributes[f"{_OWN}policy.changed_fields"] = fields[:MOST_FIELDS]
        run = returned.get(policy)
        if run is not None:
            attributes[f"{_OWN}policy.duration_seconds"] = run.duration_s
        yield run.ended_s if run is not None else None, attributes


def _outcome_of(entries: Iterable[AuditEntry]) -> str:
    kinds = {entry.kind for entry in entries if not (entry.kind is AuditKind.FAILED and entry.field)}
    return next((name for kind, name in _OUTCOMES if kind in kinds), "unchanged")


def _time_ns(trace: CallTrace, time_s: float | None) -> int:
    """A time of the monotonic clock since the epoch, as of the call's begin; None is the decision's time."""
    if time_s is None:
        time_s = trace.ended_s if trace.decided_s is None else trace.decided_s
    return trace.began_ns + int((time_s - trace.began_s) * 1e9)


def _context(parent: TraceParent | None) -> Context:
    if parent is None:
        return Context()
    context = SpanContext(
        int(parent.trace_id, 16),
        int(parent.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
    return set_span_in_context(NonRecordingSpan(context), Context())


class _Collecting(SpanProcessor):
    """Takes ended spans."""

    def __init__(self, spans: list[ReadableSpan]) -> None:
        self._spans = spans

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)


class _LibraryLog(logging.Handler):
    """In place of the library's log: its errors, each once per interval, and none of its other lines."""

    def __init__(self, failures: FailureLog) -> None:
        super().__init__(logging.ERROR)
        self._failures = failures

    def emit(self, record: logging.LogRecord) -> None:
        self._failures.report("traces", record.msg, record.getMessage())
