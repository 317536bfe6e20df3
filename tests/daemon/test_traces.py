"""Traces of a daemon: off by default, below the kubelet's spans, and no matter to calls or the end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.driving import BATCH_SHARES, batch_pod, pod, shares_of
from tests.daemon.installed import MODULES_IN
from tests.daemon.scraping import socket_of, wait_for
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.service.tracing.collector import Collector, attributes

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = ("traceparent", f"00-{TRACE}-{SPAN}-01")
UNSAMPLED = ("traceparent", f"00-{TRACE}-{SPAN}-00")


@pytest.fixture
def collector(socket_folder: Path) -> Iterator[Collector]:
    with Collector(socket_folder / "otel.sock") as serving:
        yield serving


def test_spans_below_the_kubelets(daemons: Daemons, runtime: FakeRuntime, collector: Collector) -> None:
    daemon = daemons.prepare(f"[tracing]\nendpoint = '{collector.endpoint}'\nratio = 0\n")
    daemon.options.environment["KOORD_RUNTIMEPROXY_METRICS_LISTEN"] = str(socket_of(daemon))  # type: ignore[index]
    daemon.start()
    with CriClient(daemon.socket) as client:
        made = batch_pod(client, "first")
        made.envs = {"TOKEN": "s3cr3t-value"}
        made.run()
        answer = client.runtime.CreateContainer(
            made.create_request, timeout=CALL_TIMEOUT_S, metadata=(SAMPLED,)
        )
        made.container = answer.container_id
        client.runtime.StartContainer(made.start_request, timeout=CALL_TIMEOUT_S, metadata=(UNSAMPLED,))
        (span,) = collector.wait_for(1)
        assert wait_for(daemon, "spans_total", outcome="sent").of("spans_total", outcome="lost") == 0
        # The runtime's own spans stay below the kubelet's.
        (created,) = runtime.recorded.of("CreateContainer")
        assert SAMPLED in created.metadata
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
        found = attributes(span)
        assert found["rpc.method"] == "runtime.v1.RuntimeService/CreateContainer"
        assert (found["k8s.pod.name"], found["k8s.container.name"]) == ("first", "main")
        assert (found["runtimeproxy.outcome"], found["runtimeproxy.changed"]) == ("succeeded", True)
        policies = {
            attributes(each).get("runtimeproxy.policy.name"): attributes(each) for each in span.events
        }
        batch = policies["batch-resource"]
        assert batch["runtimeproxy.policy.outcome"] == "changed"
        assert "resources.cpu_shares" in str(batch["runtimeproxy.policy.changed_fields"])
        # The ratio counts at a reload, and what is left goes out at the end.
        config = daemon.folder / "config.toml"
        config.write_text(config.read_text().replace("ratio = 0", "ratio = 1"))
        daemon.forget_states()
        daemon.signal(signal.SIGHUP)
        daemon.wait_for_state("READY=1")
        batch_pod(client, "second").run()
    assert daemon.terminate() == 0
    *_, last = collector.spans
    assert (last.parent_span_id, attributes(last)["k8s.pod.name"]) == (b"", "second")
    assert b"s3cr3t" not in b"".join(request.SerializeToString() for request in collector.requests)


def test_a_collector_that_is_away_is_no_matter(daemons: Daemons, socket_folder: Path) -> None:
    daemon = daemons.start(f"[tracing]\nendpoint = '{socket_folder}/nothing.sock'\n")
    with CriClient(daemon.socket) as client:
        assert shares_of(batch_pod(client).run().create()) == BATCH_SHARES
    assert daemon.terminate() == 0
    assert not any("Traceback" in line for line in daemon.log)


def test_without_an_endpoint_nothing_of_it_is_imported(daemons: Daemons, socket_folder: Path) -> None:
    path = socket_folder / "modules"
    daemon = daemons.start(is_forked=False)
    with CriClient(daemon.socket) as client:
        pod(client, annotations={MODULES_IN: str(path)}).run().create()
        client.runtime.Version(api_pb2.VersionRequest(), timeout=CALL_TIMEOUT_S)
    modules = path.read_text().split()
    assert "runtimeproxy.frontends.cri_proxy.calls.intercepted_call" in modules
    names = ("opentelemetry", "tracing", "call_trace", "traced_call")
    assert not [each for each in modules if any(name in each for name in names)]


def test_an_endpoint_without_the_extra_ends_the_start(daemons: Daemons, socket_folder: Path) -> None:
    empty = socket_folder / "site" / "opentelemetry"
    empty.mkdir()
    (empty / "__init__.py").touch()
    daemon = daemons.prepare("[tracing]\nendpoint = 'http://127.0.0.1:4317'\n")
    daemon.spawn()
    assert daemon.wait() == 2
    (line,) = [each for each in daemon.log if "tracing" in each]
    reason = "tracing.endpoint: needs the extra otel: pip install 'koord-runtime-proxy[otel]'"
    assert line.endswith(f"{daemon.folder}/config.toml: {reason}")
