"""What the restarts must show, and where they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tests.restarts.load import CREATE
from tests.restarts.managed import ManagedKind, ManagedReport
from tests.restarts.orders import Workers
from tests.restarts.proxy_restarts import Report, Seen
from tests.restarts.runtime_restarts import SeenBeyond
from tests.restarts.supervisors import Kind
from tests.restarts.versions import VersionsReport

FAULTLESS = frozenset({Kind.UPGRADE, Kind.SIGTERM, ManagedKind.MANAGER, ManagedKind.STRATEGIES})
"""Kinds of restarts that no call may notice."""
MOST_LOST = 2 * len(Workers().names)
"""Of each worker the call on its way, and one that is sent before the client sees the connection's end."""
RECONNECT_S = 5.0
"""Longest time after a restart until calls are answered. Source: cri-client's minConnectionTimeout."""
DIAL_S = 0.25
"""How much later than its clients the proxy may find the runtime, on average: its pace of connecting."""
EVENTS_BACK_S = 1.0


def proxy_faults(report: Report) -> list[str]:
    """What is wrong with the restarts of one kind."""
    return [f"{report.kind}: {fault}" for fault in _proxy_faults(report)]


def _proxy_faults(report: Report) -> Iterator[str]:
    for seen in report.seen:
        yield from _untried(seen)
        most = max(seen.failed_by_restart)
        if report.kind in FAULTLESS and seen.failed:
            yield f"{seen.client}: {len(seen.failed)} calls failed: {seen.failed[0]}"
        if report.kind in (Kind.KILL, ManagedKind.MANAGED) and most > MOST_LOST:
            yield f"{seen.client}: {most} calls failed in one restart, of at most {MOST_LOST} on their way"
        for window, outage_s in zip(seen.windows, seen.outages_s, strict=True):
            if outage_s > window.seconds + RECONNECT_S:
                yield f"{seen.client}: {outage_s:.1f} s without an answer"
    yield from (f"container: {wrong}" for wrong in report.wrong)
    yield from (f"in the log: {line}" for line in report.complaints)


def managed_faults(managed: ManagedReport) -> list[str]:
    """What is wrong with kills or strategies beside a QoS manager."""
    return [*proxy_faults(managed.report), *(f"{managed.report.kind}: {fault}" for fault in managed.faults)]


def versions_faults(versions: VersionsReport) -> list[str]:
    """What is wrong with restarts that change the version."""
    return [
        *proxy_faults(versions.report),
        *(f"{versions.report.kind}: {fault}" for fault in versions.faults),
    ]


def runtime_faults(all_seen: Sequence[SeenBeyond]) -> list[str]:
    """Where a client of the proxy is worse off than one of the runtime itself."""
    return [*_compared(all_seen, _runtime_faults), *runtime_delays(all_seen)]


def runtime_delays(all_seen: Sequence[SeenBeyond]) -> list[str]:
    """Those of the faults that are times, which a busy machine may make longer."""
    return _compared(all_seen, _runtime_delays)


def _compared(
    all_seen: Sequence[SeenBeyond], faults: Callable[[SeenBeyond, SeenBeyond], Iterator[str]]
) -> list[str]:
    direct = {seen.client: seen for seen in all_seen if seen.way == "direct"}
    return [
        f"{seen.way}, {seen.client}: {fault}"
        for seen in all_seen
        for fault in faults(seen, direct[seen.client])
    ]


def _runtime_faults(seen: SeenBeyond, direct: SeenBeyond) -> Iterator[str]:
    yield from _untried(seen)
    yield from (f"container: {wrong}" for wrong in seen.wrong)
    if len(seen.failed) > len(direct.failed):
        yield f"{len(seen.failed)} calls failed, {len(direct.failed)} without the proxy"


def _runtime_delays(seen: SeenBeyond, direct: SeenBeyond) -> Iterator[str]:
    if sum(seen.outages_s) > sum(direct.outages_s) + DIAL_S * len(seen.windows):
        yield f"outages of {sum(seen.outages_s):.1f} s, {sum(direct.outages_s):.1f} s without the proxy"
    for back_s, direct_s in zip(seen.events_back_s, direct.events_back_s, strict=True):
        if back_s > max(EVENTS_BACK_S, direct_s):
            yield f"events after {back_s:.1f} s, {direct_s:.1f} s without the proxy"


def _untried(seen: Seen) -> Iterator[str]:
    """A restart that met no call proves nothing."""
    if not any(call.method == CREATE for call in seen.calls_in_restarts):
        yield f"{seen.client}: no restart met a {CREATE}"
    for number, kind in seen.untried:
        yield f"{seen.client}: no call of kind {kind!r} during restart {number + 1}"
