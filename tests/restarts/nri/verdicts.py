"""What a kubelet beside the NRI plugin must show, and what it has shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.restarts.nri.resizes import Resized
from tests.restarts.nri.turnover import RIGHT_S, Event, Report

_AWAY = "code = Unavailable"
"""In the text of a call while the runtime is away; how many there are depends on the moment."""
_LEFT_BY_A_KILL = ("failed to rename", "file exists")
"""In the text of a call after the runtime was killed between the rename of a new snapshot's folder and the
commit of its number, which is given again then. Source: containerd plugins/snapshots/overlay, createSnapshot.
"""
_EXPECTED_OF_RESIZES = ("not implemented yet", "code = NotFound")
"""containerd 2.2 has no UpdatePodSandboxResources; a kubelet asks about containers that it has removed."""


def lines_of(report: Report, direct: Report) -> list[str]:
    """The figures, and the failed calls with the plugin and without."""
    lines = [f"{report.pods} pods came and went in {report.seconds:.0f} s"]
    if report.right_s:
        lines.append(
            f"{len(report.right_s)} restarts; all values right after {_mean_and_most(report.right_s)}"
        )
    counts = [(report.reasons[each], direct.reasons[each], each) for each in report.reasons | direct.reasons]
    lines += [f"{count} (without the plugin {before}) x {each}" for count, before, each in sorted(counts)]
    return lines


def faults_of(report: Report, direct: Report) -> list[str]:
    """What is wrong."""
    return [f"{report.event}: {fault}" for fault in _faults_of(report, direct)]


def _faults_of(report: Report, direct: Report) -> Iterator[str]:
    yield from (f"wrong when its container began to run: {each}" for each in report.first)
    yield from (f"values right after {each:.2f} s only" for each in report.right_s if each > RIGHT_S)
    yield from (f"in the log: {line}" for line in report.complaints)
    for reason in report.reasons.keys() - direct.reasons.keys():
        if not (report.event is Event.RUNTIME and _is_of_the_runtime(reason)):
            yield f"failed, and does not without the plugin: {reason}"


def _is_of_the_runtime(reason: str) -> bool:
    """Whether a call fails so after a kill of the runtime with any plugin and without."""
    return _AWAY in reason or all(text in reason for text in _LEFT_BY_A_KILL)


def resize_lines(report: Resized) -> list[str]:
    """The figures, and the failed calls."""
    counts = [f"{count} x {reason}" for reason, count in sorted(report.reasons.items())]
    return [f"{report.pods} pods; values right after {_mean_and_most(report.right_s)}", *counts]


def resize_faults(report: Resized) -> list[str]:
    """What is wrong."""
    failed = [reason for reason in report.reasons if not any(text in reason for text in _EXPECTED_OF_RESIZES)]
    anew = [f"{report.containers} containers were started anew"] if report.containers else []
    return [*report.wrong, *anew, *failed, *report.complaints]


def _mean_and_most(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.2f} s, at most {max(values):.2f} s"
