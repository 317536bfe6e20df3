"""The QoS manager in a status, its reports, and what is wrong with it. Used in the event loop's thread."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.api_names import plugin_report, plugin_status
from runtimeproxy.service.api.values import timestamp
from runtimeproxy.service.qos_manager import MANAGER, ManagerReport, NodeResource, State
from runtimeproxy.vocabulary import (
    MOST_LEFT_OUT_PODS,
    MOST_LEFT_OUT_REASONS,
    MOST_POD_NOTE_BYTES,
    MOST_POD_NOTES,
    MOST_TARGET,
    Mode,
)

if TYPE_CHECKING:
    from runtimeproxy.service.qos_manager import QosManagerWatch

MOST_PLUGINS: Final = 64
MOST_TEXT: Final = 1_024
"""Characters of a text in a report."""

_STATES: Final = {
    State.NOT_WANTED: api_pb2.QosManagerStatus.STATE_NOT_WANTED,
    State.RUNNING: api_pb2.QosManagerStatus.STATE_RUNNING,
    State.STARTING: api_pb2.QosManagerStatus.STATE_STARTING,
    State.MISSING: api_pb2.QosManagerStatus.STATE_MISSING,
    State.LEFT: api_pb2.QosManagerStatus.STATE_LEFT,
}


def report_of(message: api_pb2.QosManagerReport) -> ManagerReport:
    """What a manager says; long texts are cut, and plugins beyond the bound are left out."""
    plugins = tuple(
        each._replace(
            name=_line(each.name),
            problem=_line(each.problem),
            explanation=_line(each.explanation),
            left_out=_left_out(each.left_out),
            pod_notes=_pod_notes(each.pod_notes),
        )
        for each in map(plugin_report, itertools.islice(message.plugins, MOST_PLUGINS))
    )
    # Not later than now, and a time that a reader can show.
    started_s = min(max(message.started_at.seconds, 0), int(time.time()))
    return ManagerReport(
        _line(message.version),
        message.pid,
        started_s,
        plugins,
        _line(message.metrics_source),
        _line(message.metrics_problem),
    )


def _left_out(given: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """By reason, the pods that a plugin leaves out; those beyond the bounds are dropped."""
    found: dict[str, tuple[str, ...]] = {}
    left = MOST_LEFT_OUT_PODS
    for reason, uids in itertools.islice(given.items(), MOST_LEFT_OUT_REASONS):
        found[_line(reason)] = tuple(uid[:MOST_TARGET] for uid in uids[:left])
        left = max(left - len(uids), 0)
    return found


def _pod_notes(given: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """By text, the pods that a plugin says this of; what is beyond the bounds is dropped."""
    return {
        _line(text[:MOST_POD_NOTE_BYTES]): tuple(uid[:MOST_TARGET] for uid in uids[:MOST_POD_NOTES])
        for text, uids in itertools.islice(given.items(), MOST_POD_NOTES)
    }


def pod_notes(watch: QosManagerWatch, uid: str) -> Iterator[str]:
    """What plugins say of a pod, and those that leave it out, each with the reason."""
    for each in watch.report.plugins if watch.report is not None and watch.is_heard else ():
        for reason, uids in each.left_out.items():
            if uid in uids:
                yield f"{MANAGER}: {each.name} leaves this pod out: {reason}"
        name = f"{each.name} in dry-run" if each.mode is Mode.DRY_RUN else each.name
        yield from (f"{MANAGER}: {name}: {text}" for text, uids in each.pod_notes.items() if uid in uids)


def node_resource_of(request: api_pb2.ReportQosManagerRequest) -> NodeResource | None:
    """What a manager reports of the node; None: as before."""
    if not request.HasField("node_resource"):
        return None
    given = request.node_resource
    return NodeResource(given.json, tuple(map(_line, itertools.islice(given.problems, MOST_PLUGINS))))


def node_resource(watch: QosManagerWatch) -> api_pb2.GetCustomNodeResourceResponse:
    """What was reported of the node last."""
    found, reason = watch.node_resource, ""
    if not watch.is_heard:
        reason = f"{MANAGER} does not run"
    elif not found.json:
        reason = "; ".join(found.problems) or f"{MANAGER} reports none: its plugin katalyst-reporter is off"
    return api_pb2.GetCustomNodeResourceResponse(
        report=api_pb2.NodeResourceReport(json=found.json, problems=found.problems),
        reported_at=timestamp(found.wall_s),
        is_current=not reason,
        reason=reason,
    )


def _line(text: str) -> str:
    text = text[:MOST_TEXT]
    return text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)


def qos_manager_status(watch: QosManagerWatch) -> api_pb2.QosManagerStatus:
    """Whether one runs, and has to."""
    found, report = watch.look(), watch.report
    return api_pb2.QosManagerStatus(
        state=_STATES[found.state],
        report=None if report is None else _message(report),
        last_heard=timestamp(watch.heard_s),
        wanted=sorted(watch.wanted),
        missing=found.missing,
        left=found.left,
        note=found.note,
    )


def _message(report: ManagerReport) -> api_pb2.QosManagerReport:
    return api_pb2.QosManagerReport(
        version=report.version,
        pid=report.pid,
        started_at=timestamp(report.started_s),
        plugins=(plugin_status(each._replace(left_out={}, pod_notes={})) for each in report.plugins),
        metrics_source=report.metrics_source,
        metrics_problem=report.metrics_problem,
    )


def problems_of_manager(status: api_pb2.QosManagerStatus) -> Iterator[str]:
    """What needs an operator's attention."""
    if status.state == api_pb2.QosManagerStatus.STATE_MISSING:
        yield status.note
    if status.state != api_pb2.QosManagerStatus.STATE_RUNNING:
        return
    for each in status.report.plugins:
        if each.problem and each.is_wanted and each.mode != api_pb2.MODE_OFF:
            yield f"{MANAGER}: {each.name} does nothing: {each.problem}."


def notes_of_manager(status: api_pb2.QosManagerStatus) -> Iterator[str]:
    if status.note and status.state != api_pb2.QosManagerStatus.STATE_MISSING:
        yield status.note
    if status.report.metrics_problem and status.state == api_pb2.QosManagerStatus.STATE_RUNNING:
        yield f"{MANAGER}: {status.report.metrics_problem}."
