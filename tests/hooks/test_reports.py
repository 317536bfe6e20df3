"""Failures are logged once per cause and interval."""

from __future__ import annotations

import pytest

from runtimeproxy.hooks.reports import FailureLog


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_each_cause_is_logged_once_per_interval(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    failures = FailureLog(60, clock)
    for _ in range(5):
        failures.report("p", "cause", "text")
    failures.report("p", "other cause", "other text")
    failures.report("q", "cause", "text")
    assert caplog.messages == ["p: text", "p: other text", "q: text"]
    clock.now_s = 60
    failures.report("p", "cause", "text")
    assert caplog.messages[-1] == "p: text (4 more times since the last report)"


def test_the_number_of_causes_that_are_remembered_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(60, Clock())
    for number in range(2_500):
        failures.report("p", str(number), "text")
    assert len(caplog.messages) == 2_500
    assert len(failures) <= 1_000
