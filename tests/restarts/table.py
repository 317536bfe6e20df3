"""Prints what the clients have seen, side by side."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tests.restarts import figures
from tests.restarts.managed import ManagedReport
from tests.restarts.proxy_restarts import Report, Seen
from tests.restarts.runtime_restarts import SeenBeyond
from tests.restarts.versions import VersionsReport

_SEEN = ("client", "restarts", "calls", "in restarts", "failed", "most in one", "outage s", "longest")
_MOST_VALUES = 10
_FOLDER = re.compile(r"/\S*/")


def proxy_lines(report: Report) -> list[str]:
    """A table of one kind of restarts, and why calls failed."""
    rows = [(report.kind, *_cells(seen)) for seen in report.seen]
    reasons = [line for seen in report.seen for line in _reasons(report.kind, seen)]
    containers = f"{report.created} containers asked for, {len(report.wrong)} wrong"
    return [*_aligned([("kind", *_SEEN), *rows]), *reasons, containers]


def managed_lines(managed: ManagedReport) -> list[str]:
    """A table of one kind of kills beside the QoS manager, and what it wrote."""
    lines = [*proxy_lines(managed.report), f"values: {', '.join(managed.values[:_MOST_VALUES])}"]
    if managed.resumed_s:
        mean, longest = _mean_and_most(managed.resumed_s)
        lines.append(f"claims again after {mean} s, at most {longest} s")
    if managed.ended_s is not None:
        lines.append(f"without the manager the claim ended after {managed.ended_s:.1f} s")
    return lines


def versions_lines(versions: VersionsReport) -> list[str]:
    """A table of one kind of restarts that change the version, and how many files were watched."""
    watched = f"{versions.files} files of cgroups, written {versions.writes} times"
    return [*proxy_lines(versions.report), watched]


def runtime_lines(all_seen: Sequence[SeenBeyond]) -> list[str]:
    """A table of both ways to the runtime, and why calls failed."""
    head = ("way", *_SEEN, "events back s", "longest", "failed streams", "PLEG lost")
    rows = [
        (
            seen.way,
            *_cells(seen),
            *_mean_and_most(seen.events_back_s),
            str(sum(seen.failed_streams)),
            str(seen.pleg_lost),
        )
        for seen in all_seen
    ]
    reasons = [line for seen in all_seen for line in _reasons(seen.way, seen)]
    created = sum(len(seen.created) for seen in all_seen)
    wrong = sum(len(seen.wrong) for seen in all_seen)
    return [*_aligned([head, *rows]), *reasons, f"{created} containers asked for, {wrong} wrong"]


def _cells(seen: Seen) -> tuple[str, ...]:
    counts = (len(seen.windows), len(seen.calls), len(seen.calls_in_restarts), len(seen.failed))
    texts = (str(count) for count in (*counts, max(seen.failed_by_restart)))
    return (seen.client, *texts, *_mean_and_most(seen.outages_s))


def _mean_and_most(values: Sequence[float]) -> tuple[str, str]:
    return f"{sum(values) / len(values):.2f}", f"{max(values):.2f}"


def _reasons(kind: str, seen: Seen) -> Iterable[str]:
    counts = figures.reasons(seen.calls).most_common()
    return (f"{kind}, {seen.client}: {count} x {_FOLDER.sub('', reason)}" for reason, count in counts)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(_padded(row, widths)).rstrip() for row in rows]


def _padded(row: Sequence[str], widths: Sequence[int]) -> Iterable[str]:
    texts = 2
    for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.ljust(width) if column < texts else cell.rjust(width)
