"""`koord-qos-manager resources`: its table, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.qosmanager.__main__ import main
from runtimeproxy.qosmanager.plugin import PluginContext
from runtimeproxy.qosmanager.plugins.katalyst_reporter import KatalystReporter
from runtimeproxy.qosmanager.resources import table
from runtimeproxy.qosmanager.status import NO_DAEMON, OK, PROBLEM
from tests.qosmanager.reporter.nodes import snapshot

Response = api_pb2.GetCustomNodeResourceResponse
Report = api_pb2.NodeResourceReport
NO_TABLE = "another shape than this table: -o json shows it"


def document() -> str:
    plugin = KatalystReporter()
    report = plugin.run(snapshot(), plugin.setup(PluginContext(gates={}))).node_report
    assert report is not None
    return report.document


def test_the_table() -> None:
    lines = [" ".join(line.split()) for line in table(json.loads(document()))]

    assert lines[0] == "total reserved dedicated used free reclaimable allocatable requested left"
    assert lines[1] == "node cpu 16.00 2.00 2.00 3.00 9.00 12.00 6.00 2.00 4.00"
    assert lines[3] == "NUMA 0 cpu 4.00 1.00 2.00 0.00 1.00 1.00 0.67 0.25 0.42"
    assert lines[10].startswith("NUMA 3 memory 8.00Gi ")
    assert len(lines) == 11


def test_what_is_not_known_is_a_dash() -> None:
    found = {"metadata": {}, "status": {"resources": {"capacity": {"cpu": "1"}}}}

    assert [line.split()[2:] for line in table(found)][1:] == [["-"] * 9] * 2


class Api(api_pb2_grpc.RuntimeProxyServicer):
    """Answers what the test says."""

    answer = Response()

    def GetCustomNodeResource(self, request: Any, context: Any) -> Response:  # noqa: N802
        return self.answer

    def _none(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    GetStatus = GetNode = GetResctrl = Explain = Simulate = WatchPods = WatchAudit = _none


@pytest.fixture
def api(socket_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setenv("KOORD_RUNTIMEPROXY_CONFIG", "")
    monkeypatch.setenv("KOORD_RUNTIMEPROXY_PROXY_ENDPOINT", str(socket_folder / "api.sock"))
    made = Api()
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        api_pb2_grpc.add_RuntimeProxyServicer_to_server(made, server)
        server.add_insecure_port(f"unix:{socket_folder / 'api.sock'}")
        server.start()
        yield made
        server.stop(None).wait()


def test_the_object_as_json_and_as_a_table(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.answer = Response(report=Report(json=document(), problems=["gpus: no GPU"]), is_current=True)

    assert main(["resources", "--output", "json"]) == OK
    assert capsys.readouterr().out == document() + "\n"

    assert main(["resources"]) == OK
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    assert lines[-1] == "gpus: no GPU"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Response(reason="it is off"), "koord-qos-manager: nothing is reported: it is off"),
        (
            Response(report=Report(json="{}", problems=["x"]), is_current=True),
            NO_TABLE,
        ),
        (Response(report=Report(json="[1]"), is_current=True), NO_TABLE),
        (Response(report=Report(json="no"), is_current=True), NO_TABLE),
        (Response(report=Report(json=document()), reason="it has died"), "not up to date: it has died"),
    ],
)
def test_what_is_a_problem(api: Api, capsys: pytest.CaptureFixture[str], answer: Response, text: str) -> None:
    api.answer = answer

    assert main(["resources"]) == PROBLEM
    assert capsys.readouterr().out.splitlines()[-1].endswith(text)


def test_no_daemon(
    socket_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOORD_RUNTIMEPROXY_CONFIG", "")
    monkeypatch.setenv("KOORD_RUNTIMEPROXY_PROXY_ENDPOINT", str(socket_folder / "none.sock"))

    assert main(["resources"]) == NO_DAEMON
    assert "none.sock: koord-runtime-proxy does not answer" in capsys.readouterr().err
