"""A collector of spans: a real OTLP server on a Unix socket or a TCP port."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import trustme
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.lab.deadline import wait_until


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Serves from `with` to the end of its block, and keeps what it gets.

    Args:
        path: of its socket; None for a port.
        tls: signs the certificate of the port, and those of clients; None for plaintext.

    Attributes:
        failures: the codes of its next answers.
        metadata: what came with the requests.
    """

    def __init__(self, path: Path | None = None, tls: trustme.CA | None = None) -> None:
        self.requests: list[trace_service_pb2.ExportTraceServiceRequest] = []
        self.metadata: list[dict[str, str | bytes]] = []
        self.failures: list[grpc.StatusCode] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._server = grpc.server(ThreadPoolExecutor(1))
        add = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
        add(self, self._server)  # type: ignore[no-untyped-call]
        if path is not None:
            self._server.add_insecure_port(f"unix://{path}")
            self.endpoint = str(path)
        elif tls is None:
            self.endpoint = f"http://localhost:{self._server.add_insecure_port('localhost:0')}"
        else:
            own = tls.issue_cert("localhost")
            pair = (own.private_key_pem.bytes(), own.cert_chain_pems[0].bytes())
            credentials = grpc.ssl_server_credentials([pair], tls.cert_pem.bytes(), require_client_auth=True)
            self.endpoint = f"https://localhost:{self._server.add_secure_port('localhost:0', credentials)}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.may_answer.set()
        self._server.stop(None).wait()

    def Export(  # noqa: N802 - gRPC's name
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        if self.failures:
            context.abort(self.failures.pop(0), "as scripted")
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.may_answer.wait(30)
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Span]:
        """In the order in which they were sent."""
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def wait_for(self, count: int) -> list[Span]:
        """The spans, when there are that many."""
        return wait_until(lambda: self.spans if len(self.spans) >= count else None, "spans")


def attributes(of: Any) -> dict[str, object]:
    """The attributes of a span, an event or a resource."""
    return {each.key: _plain(each.value) for each in of.attributes}


def _plain(value: Any) -> object:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [_plain(each) for each in found.values] if kind == "array_value" else found
