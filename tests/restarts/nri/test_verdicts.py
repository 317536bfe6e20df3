"""Which failed calls of a kubelet are faults."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.restarts.nri.turnover import Event, Report
from tests.restarts.nri.verdicts import faults_of

AWAY = "CreateContainer: rpc error: code = Unavailable desc = connection error"
LEFT = "RunPodSandbox: rpc error: code = Unknown desc = failed to rename: rename * *: file exists"
OTHER = (
    "CreateContainer: rpc error: code = Unknown desc = failed to rename: rename * *: no space left on device"
)


def report(event: Event, *reasons: str) -> Report:
    return Report(event, 4, 1.0, (), (), Counter(reasons), ())


@pytest.mark.parametrize(
    ("event", "reason", "is_fault"),
    [
        (Event.RUNTIME, AWAY, False),
        (Event.RUNTIME, LEFT, False),
        (Event.RUNTIME, OTHER, True),
        (Event.KILL, AWAY, True),
        (Event.KILL, LEFT, True),
    ],
)
def test_calls_that_fail(event: Event, reason: str, is_fault: bool) -> None:
    assert bool(faults_of(report(event, reason), report(Event.NOTHING))) == is_fault
    assert faults_of(report(event, reason), report(Event.NOTHING, reason)) == []
