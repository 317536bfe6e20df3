"""The command `koord-qos-manager status`: whether one runs, and has to, by what the daemon knows."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from runtimeproxy.vocabulary import MetricsSource

if TYPE_CHECKING:
    from cri_api.runtimeproxy.v1 import api_pb2
    from runtimeproxy.config.settings import Settings

PROGRAM: Final = "koord-qos-manager"
OK: Final = 0
PROBLEM: Final = 1
NO_DAEMON: Final = 3
"""Exit codes, as those of `koord-runtime-proxy`."""
TIMEOUT_S: Final = 10.0
"""How long the daemon may take to answer."""

_SENTENCES: Final = {
    "NOT_WANTED": "no strategy of this node asks for a QoS manager, and none runs",
    "RUNNING": "running",
    "STARTING": "no report of a QoS manager has come yet, which strategies ask for",
    "MISSING": "not running",
    "LEFT": "not running, and not needed here",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="text for people, or JSON"
    )


def shown(settings: Settings, output: str) -> tuple[int, str]:
    """Asks the daemon; returns the exit code and the output, `text` or `json`."""
    from cri_api.runtimeproxy.v1 import api_pb2
    from runtimeproxy.http2.client import RpcError
    from runtimeproxy.stubs import BlockingClient

    path = settings.proxy.endpoint
    with BlockingClient(path) as client:
        daemon = client.stub(api_pb2.DESCRIPTOR.services_by_name["RuntimeProxy"])
        try:
            found = daemon.GetStatus(api_pb2.GetStatusRequest(), timeout=TIMEOUT_S)
        except RpcError as error:
            return NO_DAEMON, f"{PROGRAM}: {path}: koord-runtime-proxy does not answer: {error.text}"
    if not found.HasField("qos_manager"):
        return NO_DAEMON, f"{PROGRAM}: {path}: a newer koord-runtime-proxy is needed"
    status = found.qos_manager
    if output == "json":
        from google.protobuf import json_format

        text = json_format.MessageToJson(status, indent=2)
    else:
        text = "\n".join(lines(status, datetime.now(UTC)))
    return PROBLEM if is_problem(status) else OK, text


def is_problem(status: api_pb2.QosManagerStatus) -> bool:
    """Whether something that strategies ask for is not done, or no sample comes from where it should."""
    from cri_api.runtimeproxy.v1 import api_pb2

    if status.state == api_pb2.QosManagerStatus.STATE_MISSING:
        return True
    report = status.report
    return status.state == api_pb2.QosManagerStatus.STATE_RUNNING and (
        is_source_lost(report)
        or any(each.problem and each.is_wanted and each.mode != api_pb2.MODE_OFF for each in report.plugins)
    )


def is_source_lost(report: api_pb2.QosManagerReport) -> bool:
    """Whether no sample at all comes from where the configuration says."""
    return bool(report.metrics_problem) and report.metrics_source == MetricsSource.KERNEL


def lines(status: api_pb2.QosManagerStatus, now: datetime) -> Iterator[str]:
    from cri_api.runtimeproxy.v1 import api_pb2

    state = api_pb2.QosManagerStatus.State.Name(status.state).removeprefix("STATE_")
    report, about = status.report, ""
    if state == "RUNNING" and status.HasField("report"):
        started = report.started_at.ToDatetime(UTC).astimezone().isoformat(sep=" ", timespec="seconds")
        about = f": version {report.version}, process {report.pid}, started {started}"
    elif status.HasField("last_heard"):
        ago_s = (now - status.last_heard.ToDatetime(UTC)).total_seconds()
        about = f"; last heard of process {report.pid} {ago_s:.0f} s ago"
    yield f"{PROGRAM}: {_SENTENCES.get(state, state.lower())}{about}"
    if status.wanted:
        yield f"asked for by the strategies: {', '.join(status.wanted)}"
    if status.note:
        yield status.note
    if state == "RUNNING" and report.metrics_problem:
        yield f"samples: {report.metrics_problem}"
    elif state == "RUNNING" and report.metrics_source == MetricsSource.MALACHITE:
        yield "samples: from Malachite"
    if state == "RUNNING":
        width = max((len(each.name) for each in report.plugins), default=0)
        for each in report.plugins:
            first, *others = _plugin(each).split("; ")
            yield f"  {each.name:{width}}  {first}"
            yield from (f"  {'':{width}}  {other}" for other in others)


def _plugin(each: api_pb2.QosPluginStatus) -> str:
    from cri_api.runtimeproxy.v1 import api_pb2

    mode = api_pb2.Mode.Name(each.mode).removeprefix("MODE_").lower().replace("_", "-")
    if each.mode == api_pb2.MODE_OFF:
        return mode
    if each.problem:
        return f"{mode}: does nothing: {each.problem}"
    if not each.is_wanted:
        return f"{mode}: not asked for"
    claims = f"{each.claims} claims" if each.claims else ""
    return ": ".join(filter(None, (mode, ", ".join(filter(None, (claims, each.explanation))))))
