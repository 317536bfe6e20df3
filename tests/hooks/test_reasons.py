"""Reasons that are put together when they are read."""

from __future__ import annotations

from runtimeproxy.hooks.reasons import LateReason, Reason, Source
from runtimeproxy.slo.strategies import BY_DEFAULT

RATIO = Source("cpu_normalization.ratio", BY_DEFAULT)


def scaled(quota_us: int, ratio: float) -> Reason:
    return Reason("CPU quota ", quota_us, " / ", ratio, " ", RATIO)


def test_nothing_is_made_before_it_is_read() -> None:
    made: list[int] = []

    def make(value: int) -> Reason:
        made.append(value)
        return Reason("value = ", value)

    reason = LateReason(make, (7,))
    assert reason == LateReason(make, (7,))
    assert made == []
    assert str(reason) == "value = 7"
    assert made == [7]


def test_a_late_reason_is_the_reason_that_it_makes() -> None:
    reason = LateReason(scaled, (60_000, 1.5))
    assert reason == scaled(60_000, 1.5)
    assert scaled(60_000, 1.5) == reason
    assert reason == f"CPU quota 60000 / 1.5 {RATIO}"
    assert hash(reason) == hash(str(reason))
    assert reason != LateReason(scaled, (60_000, 2.0))
    assert reason < LateReason(scaled, (60_000, 2.0))
    assert reason.sources == (RATIO,)
    assert str(reason.then(" = ", 40_000)) == f"CPU quota 60000 / 1.5 {RATIO} = 40000"
