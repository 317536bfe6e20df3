"""Spans as a collector gets them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import trustme
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from runtimeproxy import __version__
from runtimeproxy.errors import StatusCode
from runtimeproxy.frontends.cri_proxy.calls.call_trace import CallTrace, TracedDecision
from runtimeproxy.hooks import Hook
from runtimeproxy.hooks.audit import AuditEntry, AuditKind, PolicyRun
from runtimeproxy.hooks.policy import Mode
from runtimeproxy.hooks.traceparent import TraceParent
from runtimeproxy.logs import FailureLog
from runtimeproxy.service.tracing import otlp
from runtimeproxy.service.tracing.otlp import MOST_FIELDS, OtlpSender, attributes_of, policy_events
from tests.peers.aio import RawServer
from tests.peers.error_codes import Codes
from tests.service.tracing.collector import Collector, attributes

CREATE = "runtime.v1.RuntimeService/CreateContainer"
PARENT = TraceParent("ab" * 16, "12" * 8, is_sampled=True)


class NoSink:
    """Takes nothing."""

    def samples(self) -> bool:
        return False

    def take(self, trace: CallTrace) -> None:
        raise AssertionError


@pytest.fixture
def collector(socket_folder: Path) -> Iterator[Collector]:
    with Collector(socket_folder / "otel.sock") as serving:
        yield serving


def ended(outcome: str = "succeeded", parent: TraceParent | None = PARENT) -> CallTrace:
    """A call that was held for half a second, and then took two in the runtime."""
    trace = CallTrace(f"/{CREATE}", parent, NoSink())
    trace.began_ns, trace.began_s = 1_000_000_000_000_000_000, 100.0
    trace.message_s, trace.decided_s, trace.ended_s = 100.25, 100.75, 102.75
    trace.outcome = outcome
    return trace


def entry(kind: AuditKind, policy: str = "a", field: str = "", new: str = "") -> AuditEntry:
    names = ("ns", "web", "u1", "main")
    return AuditEntry(
        0.0, Hook.PRE_CREATE_CONTAINER, kind, policy, Mode.ENFORCE, *names, field=field, new=new
    )


def test_a_span_below_the_clients_with_an_event_per_policy(collector: Collector) -> None:
    trace = ended()
    trace.is_changed = True
    trace.namespace, trace.pod, trace.uid, trace.container = "ns", "web", "u1", "main"
    trace.sandbox_id = "s1"
    runs = [PolicyRun("a", 0.125, 100.5), PolicyRun("b", 0.1, 100.625)]
    changed = entry(AuditKind.CHANGED, field="env[TOKEN]", new="s3cr3t")
    trace.decisions.append(TracedDecision(Hook.PRE_CREATE_CONTAINER, runs, (changed,)))
    sender = OtlpSender(collector.endpoint, FailureLog())
    assert sender.send([trace, ended(parent=None)])
    sender.close()
    span, root = collector.spans
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (PARENT.trace_id, PARENT.span_id)
    assert (span.name, span.kind) == (CREATE, Span.SPAN_KIND_SERVER)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (10**18, 10**18 + 2_750_000_000)
    assert attributes(span) == {
        "rpc.system.name": "grpc",
        "rpc.method": CREATE,
        "rpc.response.status_code": "OK",
        "k8s.namespace.name": "ns",
        "k8s.pod.name": "web",
        "k8s.pod.uid": "u1",
        "k8s.container.name": "main",
        "runtimeproxy.sandbox_id": "s1",
        "runtimeproxy.outcome": "succeeded",
        "runtimeproxy.changed": True,
        "runtimeproxy.held_seconds": 0.5,
        "runtimeproxy.runtime_seconds": 2.0,
    }
    first, second, forwarded = span.events
    assert (first.name, first.time_unix_nano) == ("runtimeproxy.policy", 10**18 + 500_000_000)
    assert attributes(first) == {
        "runtimeproxy.policy.name": "a",
        "runtimeproxy.policy.hook": "pre_create_container",
        "runtimeproxy.policy.outcome": "changed",
        "runtimeproxy.policy.duration_seconds": 0.125,
        "runtimeproxy.policy.changed_fields": ["env[TOKEN]"],
    }
    assert attributes(second)["runtimeproxy.policy.outcome"] == "unchanged"
    assert (forwarded.name, forwarded.time_unix_nano) == ("runtimeproxy.forwarded", 10**18 + 750_000_000)
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert (root.parent_span_id, len(root.trace_id), any(root.trace_id)) == (b"", 16, True)
    (request,) = collector.requests
    about = attributes(request.resource_spans[0].resource)
    assert (about["service.name"], about["service.version"]) == ("koord-runtime-proxy", __version__)
    assert b"s3cr3t" not in request.SerializeToString()


def test_a_refused_call(collector: Collector) -> None:
    trace = ended("refused")
    trace.code, trace.reason = StatusCode.PERMISSION_DENIED, "koord-runtime-proxy: a: not here"
    sender = OtlpSender(collector.endpoint, FailureLog())
    assert sender.send([trace])
    sender.close()
    (span,) = collector.spans
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, trace.reason)
    found = attributes(span)
    assert found["rpc.response.status_code"] == found["error.type"] == "PERMISSION_DENIED"
    assert "runtimeproxy.runtime_seconds" not in found
    assert [event.name for event in span.events] == ["runtimeproxy.refused"]


@pytest.mark.parametrize(
    ("outcome", "status", "error"),
    [
        ("succeeded", "OK", None),
        ("failed", None, "_OTHER"),
        ("unknown", None, None),
        ("cancelled", None, None),
    ],
)
def test_the_status_is_told_where_it_is_known(outcome: str, status: str | None, error: str | None) -> None:
    found = attributes_of(ended(outcome))
    assert (found.get("rpc.response.status_code"), found.get("error.type")) == (status, error)
    assert found["runtimeproxy.outcome"] == outcome


@pytest.mark.parametrize(
    ("entries", "outcome"),
    [
        ([], "unchanged"),
        ([entry(AuditKind.CONFLICT, field="labels[x]")], "unchanged"),
        ([entry(AuditKind.CHANGED, field="labels[x]")], "changed"),
        ([entry(AuditKind.PENDING, field="cgroup[cpu.idle]")], "changed"),
        ([entry(AuditKind.WOULD_CHANGE, field="labels[x]")], "would-change"),
        # The write of one value failed, not the policy.
        ([entry(AuditKind.CHANGED), entry(AuditKind.FAILED, field="cgroup[cpu.idle]")], "changed"),
        ([entry(AuditKind.FAILED)], "failed"),
        ([entry(AuditKind.INVALID)], "invalid"),
        ([entry(AuditKind.CHANGED, field="labels[x]"), entry(AuditKind.REFUSED)], "refused"),
        ([entry(AuditKind.OFF)], "off"),
    ],
)
def test_outcomes_of_policies(entries: list[AuditEntry], outcome: str) -> None:
    decision = TracedDecision(Hook.PRE_CREATE_CONTAINER, [PolicyRun("a", 0.0, 1.0)], entries)
    ((ended_s, found),) = policy_events(decision)
    assert (ended_s, found["runtimeproxy.policy.outcome"]) == (1.0, outcome)


def test_a_policy_that_did_not_return_and_one_with_very_many_fields() -> None:
    many = [entry(AuditKind.CHANGED, "b", f"annotations[{number}]") for number in range(1000)]
    hung = entry(AuditKind.FAILED, "hung")
    decision = TracedDecision(Hook.PRE_CREATE_CONTAINER, [PolicyRun("b", 0.0, 1.0)], (hung, *many))
    (_, first), (ended_s, second) = policy_events(decision)
    assert len(str(first["runtimeproxy.policy.changed_fields"]).split()) == MOST_FIELDS
    assert (second["runtimeproxy.policy.name"], ended_s) == ("hung", None)
    assert "runtimeproxy.policy.duration_seconds" not in second


def test_a_collector_that_is_away_is_one_line(
    socket_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp, "TIMEOUT_S", 1.0)
    sender = OtlpSender(f"{socket_folder}/nothing.sock", FailureLog())
    with caplog.at_level(logging.INFO):
        assert [sender.send([ended()]) for _ in range(3)] == [False, False, False]
    sender.close()
    (line,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert "Failed to export traces to" in line.getMessage()
    assert "UNAVAILABLE" in line.getMessage()


async def test_no_error_code_of_a_collector_ends_more_than_its_batch(
    socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(otlp, "TIMEOUT_S", 0.3)
    codes, path = Codes(), socket_folder / "codes.sock"
    async with RawServer(path, *codes.scripts):
        sender = OtlpSender(str(path), FailureLog())
        results = []
        while not codes.all_sent.is_set():
            results.append(await asyncio.to_thread(sender.send, [ended()]))
        sender.close()
    assert len(results) > 1
    assert not any(results)


def test_a_collector_that_comes_back_has_the_batch(
    socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "FIRST_PAUSE_S", 0.01)
    with Collector(socket_folder / "otel.sock") as collector:
        collector.failures = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED]
        sender = OtlpSender(collector.endpoint, FailureLog())
        assert sender.send([ended()])
        collector.failures = [grpc.StatusCode.INVALID_ARGUMENT]
        assert not sender.send([ended()])
        sender.close()
        assert len(collector.spans) == 1


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"])
def test_tls_with_certificates_headers_and_compression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    authority, names = trustme.CA(), ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")
    files = {name: str(tmp_path / name) for name in names}
    own = authority.issue_cert("node")
    authority.cert_pem.write_to_path(files["CERTIFICATE"])
    own.cert_chain_pems[0].write_to_path(files["CLIENT_CERTIFICATE"])
    own.private_key_pem.write_to_path(files["CLIENT_KEY"])
    for name, value in (files | {"HEADERS": "x-tenant=a%20b", "COMPRESSION": "gzip"}).items():
        monkeypatch.setenv(f"{variable}{name}", value)
    with Collector(tls=authority) as collector:
        assert collector.endpoint.startswith("https://localhost:")
        sender = OtlpSender(collector.endpoint, FailureLog())
        assert sender.send([ended(), ended()])
        sender.close()
        monkeypatch.delenv(f"{variable}CERTIFICATE")
        stranger = OtlpSender(collector.endpoint, failures := FailureLog())
        # Enough to connect once, also on a busy machine; as long as this it is tried again.
        monkeypatch.setattr(otlp, "TIMEOUT_S", 2.0)
        assert not stranger.send([ended()])
        stranger.close()
    assert "certificate" in failures.last.lower()
    assert [span.name for span in collector.spans] == [CREATE, CREATE]
    assert collector.metadata[0]["x-tenant"] == "a b"
    assert otlp.server_of("/run/otel.sock", os.environ).is_compressed


def test_a_collector_at_a_port_without_tls() -> None:
    with Collector() as collector:
        sender = OtlpSender(collector.endpoint, FailureLog())
        assert sender.send([ended()])
        sender.close()
        assert len(collector.spans) == 1


def test_a_compression_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd")
    with pytest.raises(ValueError, match="'zstd' is neither gzip nor none"):
        OtlpSender("http://127.0.0.1:4317", FailureLog())
