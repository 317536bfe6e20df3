"""What counts as a sample of a pod's waits, and what threads' waits come to."""

from __future__ import annotations

from typing import Any

import pytest

from runtimeproxy.qosmanager.guard.signal import (
    NoSample,
    PodSecond,
    RecentWaits,
    WaitKind,
    WaitSample,
    is_blind,
    no_sample,
    run_delay_share,
)

WHOLE = PodSecond(at_s=100.0, elapsed_s=1.0, waited=12.0, used_cores=0.5, age_s=300.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"age_s": None}, None),
        ({"elapsed_s": 0.8}, None),
        ({"elapsed_s": 0.79}, NoSample.LENGTH),
        ({"elapsed_s": 1.5}, None),
        ({"elapsed_s": 1.51}, NoSample.LENGTH),
        ({"elapsed_s": None}, NoSample.LENGTH),
        ({"waited": 0.0}, None),
        ({"waited": None}, NoSample.NOTHING_READ),
        ({"used_cores": None}, NoSample.NOTHING_READ),
        ({"waited": -1.0}, NoSample.COUNTER_BACK),
        ({"is_throttled": True}, NoSample.THROTTLED),
        ({"age_s": 29.9}, NoSample.YOUNG),
        ({"age_s": 30.0}, None),
        ({"used_cores": 0.019}, NoSample.IDLE),
        ({"used_cores": 0.02}, None),
        ({"is_boosted": True}, NoSample.BOOSTED),
        ({"is_boosted": True, "elapsed_s": 3.0}, NoSample.LENGTH),
        ({"is_bounded": True}, NoSample.BOUNDED),
    ],
)
def test_which_seconds_count(changes: dict[str, Any], expected: NoSample | None) -> None:
    assert no_sample(WHOLE._replace(**changes)) is expected


@pytest.mark.parametrize(
    ("samples", "now_s", "expected"),
    [
        ([(1.0, 5.0, 10.0), (2.0, 9.0, 10.0)], 3.0, None),
        ([(1.0, 5.0, 10.0), (2.0, 9.0, 10.0), (3.0, 1.0, 10.0)], 3.0, 0.5),
        ([(1.0, 5.0, 10.0), (2.0, 9.0, 10.0), (3.0, 1.0, 10.0), (4.0, 8.0, 10.0)], 4.0, 0.8),
        ([(1.0, 5.0, 10.0), (2.0, 9.0, 10.0), (3.0, 1.0, 10.0)], 11.5, None),
        # At the edge of two loads: as much as is usual at each is never too much.
        ([(1.0, 400.0, 421.0), (2.0, 390.0, 421.0), (3.0, 19.0, 20.0)], 3.0, 19.0 / 20.0),
        ([(1.0, 19.0, 20.0), (2.0, 18.0, 20.0), (3.0, 400.0, 421.0)], 3.0, 19.0 / 20.0),
        ([(1.0, 400.0, 421.0), (2.0, 40.0, 20.0), (3.0, 50.0, 20.0)], 3.0, 2.0),
    ],
)
def test_the_error_is_the_median_of_three(
    samples: list[tuple[float, float, float]], now_s: float, expected: float | None
) -> None:
    recent = RecentWaits(WaitKind.PRESSURE)
    for each in samples:
        recent = recent.after(WaitKind.PRESSURE, WaitSample(*each))
    assert recent.error(now_s) == expected


def test_samples_of_another_kind_begin_anew() -> None:
    waits = RecentWaits(WaitKind.PRESSURE, (WaitSample(1.0, 5.0, 20.0), WaitSample(2.0, 5.0, 20.0)))
    assert waits.after(WaitKind.RUN_DELAY, WaitSample(3.0, 90.0, 200.0)) == RecentWaits(
        WaitKind.RUN_DELAY, (WaitSample(3.0, 90.0, 200.0),)
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({1: (0, 0), 2: (10, 10)}, {1: (60, 20), 2: (20, 30)}, 40 / 110),
        ({1: (5, 5)}, {1: (5, 5)}, None),
        ({1: (5, 5)}, {2: (500, 500)}, None),
        ({1: (0, 0), 2: (0, 0)}, {1: (75, 25), 3: (9, 9)}, 0.25),
        ({1: (50, 5)}, {1: (60, 4)}, -1.0),
        ({1: (50, 5)}, {1: (40, 9)}, -1.0),
        ({1: (0, 0)}, {1: (0, 80)}, 1.0),
        ({}, {}, None),
    ],
)
def test_run_delay(
    before: dict[int, tuple[int, int]], after: dict[int, tuple[int, int]], expected: float | None
) -> None:
    assert run_delay_share(before, after) == expected


def test_blind() -> None:
    assert not is_blind(109.9, 100.0)
    assert is_blind(110.0, 100.0)
