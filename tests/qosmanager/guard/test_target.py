"""Targets that are learnt of quiet seconds, their file, and probes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtimeproxy.qosmanager.guard.signal import WaitKind
from runtimeproxy.qosmanager.guard.target import (
    MOST_WORKLOADS,
    QuietHistory,
    annotated,
    configured,
    load_of,
    wants_probe,
)

DAY_S = 86_400.0


def learnt(waits: dict[float, int], *, kind: WaitKind = WaitKind.PRESSURE, used: float = 1.0) -> QuietHistory:
    history = QuietHistory()
    for waited, seconds in waits.items():
        for _ in range(seconds):
            history.add("web", kind, used, waited, 1_000.0)
    return history


@pytest.mark.parametrize(
    ("waits", "kind", "expected"),
    [
        pytest.param({}, WaitKind.PRESSURE, 20.0, id="nothing-known"),
        pytest.param({10.0: 59}, WaitKind.PRESSURE, 20.0, id="not-enough"),
        pytest.param({0.0: 60}, WaitKind.PRESSURE, 5.0, id="least"),
        pytest.param({39.0: 60}, WaitKind.PRESSURE, 50.0, id="most"),
        pytest.param({}, WaitKind.RUN_DELAY, 200.0, id="run-delay-nothing-known"),
        pytest.param({0.0: 60}, WaitKind.RUN_DELAY, 50.0, id="run-delay-least"),
        pytest.param({315.0: 60}, WaitKind.RUN_DELAY, 400.0, id="run-delay-most"),
    ],
)
def test_bounds(waits: dict[float, int], kind: WaitKind, expected: float) -> None:
    assert learnt(waits, kind=kind).target("web", kind, 1.0).waited == expected


def test_a_target_is_a_margin_over_the_usual_wait() -> None:
    # A quarter of the seconds may be worse; buckets are 15 % wide.
    target = learnt({10.0: 80, 40.0: 20}).target("web", WaitKind.PRESSURE, 1.0)
    assert 13.0 <= target.waited <= 13.0 * 1.15
    assert target.source.startswith("1.3 x ")
    assert learnt({10.0: 70, 30.0: 30}).target("web", WaitKind.PRESSURE, 1.0).waited > 39.0


@pytest.mark.parametrize(("kind", "usual"), [(WaitKind.PRESSURE, 150.0), (WaitKind.RUN_DELAY, 600.0)])
def test_what_is_usual_is_allowed_however_long_it_is(kind: WaitKind, usual: float) -> None:
    # It waits behind the system, or itself: bounding BE pods could not bring it below.
    target = learnt({usual: 60}, kind=kind).target("web", kind, 1.0)
    assert usual * 1.1 <= target.waited <= usual * 1.1 * 1.15
    assert target.source.startswith("1.1 x ")


def test_loads_workloads_and_kinds_are_apart() -> None:
    history = learnt({10.0: 60}, used=1.0)
    assert history.target("web", WaitKind.PRESSURE, 1.9).waited < 20.0
    assert history.target("web", WaitKind.PRESSURE, 2.0).waited == 20.0
    assert history.target("web", WaitKind.RUN_DELAY, 1.0).waited == 200.0
    assert history.target("other", WaitKind.PRESSURE, 1.0).waited == 20.0


@pytest.mark.parametrize(
    ("usual", "used", "expected", "source"),
    [
        pytest.param(300.0, 2.0, 300.0 * 1.1, "at another load", id="the-next-larger-one"),
        pytest.param(300.0, 64.0, 300.0 * 1.1, "at another load", id="a-much-larger-one"),
        pytest.param(300.0, 0.9, 300.0 * 1.1, "at another load", id="the-next-smaller-one"),
        pytest.param(300.0, 0.4, 20.0, "default", id="a-much-smaller-one"),
        pytest.param(30.0, 2.0, 30.0 * 1.3, "at another load", id="within-the-limits"),
        pytest.param(10.0, 2.0, 20.0, "default", id="no-less-than-the-default"),
    ],
)
def test_a_load_that_is_not_known_has_the_target_of_another_one(
    usual: float, used: float, expected: float, source: str
) -> None:
    """A service at the edge of two loads, of which one is known, is not over its target each other second."""
    history = learnt({usual: 60}, used=1.0)
    for _ in range(59):
        history.add("web", WaitKind.PRESSURE, used, 0.0, 1_000.0)
    target = history.target("web", WaitKind.PRESSURE, used)
    assert expected <= target.waited <= expected * 1.15
    assert source in target.source


def test_the_next_smaller_load_that_is_known_counts() -> None:
    history = learnt({30.0: 60}, used=1.0)
    for used, waited in ((2.0, 100.0), (16.0, 300.0)):
        for _ in range(60):
            history.add("web", WaitKind.PRESSURE, used, waited, 1_000.0)
    assert 110.0 <= history.target("web", WaitKind.PRESSURE, 8.0).waited <= 110.0 * 1.15
    # An annotation asks for no less than is usual, also where only another load is known.
    usual = history.usual("web", WaitKind.PRESSURE, 8.0)
    assert annotated(WaitKind.PRESSURE, 8.0, usual).waited >= 110.0


@pytest.mark.parametrize(
    ("used", "load"),
    [
        (0.0, 0),
        (0.0625, 0),
        (0.124, 0),
        (0.125, 1),
        (1.0, 4),
        (1.99, 4),
        (2.0, 5),
        (127.0, 10),
        (9_999.0, 11),
    ],
)
def test_load(used: float, load: int) -> None:
    assert load_of(used) == load


def test_weights_lose_half_in_a_day() -> None:
    history = learnt({30.0: 60})
    for _ in range(60):
        history.add("web", WaitKind.PRESSURE, 1.0, 10.0, 1_000.0 + 3 * DAY_S)
    # The old minute weighs an eighth: a ninth of all lies above.
    assert history.target("web", WaitKind.PRESSURE, 1.0).waited < 16.0


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_clock_that_was_set_back(is_restored: bool) -> None:
    """What was learnt in a time to come weighs as if it were of now, and fades."""
    history = QuietHistory()
    for waited, seconds, wall_s in ((30.0, 1, 0.0), (30.0, 60, 50 * DAY_S), (10.0, 240, DAY_S)):
        for _ in range(seconds):
            history.add("web", WaitKind.PRESSURE, 1.0, waited, wall_s)
        if is_restored:
            history = QuietHistory.restored(json.loads(json.dumps(history.saved())))
    assert history.target("web", WaitKind.PRESSURE, 1.0).waited < 16.0


def test_a_file_from_before_times_were_saved() -> None:
    saved = learnt({10.0: 60}).saved()
    del saved["web"]["pressure/4"]["updated_s"]
    assert QuietHistory.restored(saved).target("web", WaitKind.PRESSURE, 1.0).waited < 16.0


def test_saved_and_restored() -> None:
    history = learnt({10.0: 80, 40.0: 20})
    restored = QuietHistory.restored(json.loads(json.dumps(history.saved())))
    assert restored.target("web", WaitKind.PRESSURE, 1.0) == history.target("web", WaitKind.PRESSURE, 1.0)
    assert restored.saved() == history.saved()


@pytest.mark.parametrize(
    "saved",
    [
        [],
        {"web": 3},
        {"web": {"pressure/4": {}}},
        {"web": {"pressure": {"seconds": 1, "reference_s": 0, "weights": {}}}},
        {"web": {"pressure/99": {"seconds": 1, "reference_s": 0, "weights": {}}}},
        {"web": {"luck/4": {"seconds": 1, "reference_s": 0, "weights": {}}}},
        {"web": {"pressure/4": {"seconds": None, "reference_s": 0, "weights": {}}}},
        {"web": {"pressure/4": {"seconds": 1, "updated_s": "no", "reference_s": 0, "weights": {}}}},
        # Their sum overflows.
        {"web": {"pressure/4": {"seconds": 60, "reference_s": 0, "weights": {"0": 1e308, "1": 1e308}}}},
    ],
)
def test_files_of_others_are_refused(saved: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        QuietHistory.restored(saved)


def test_workloads_are_bounded() -> None:
    history = QuietHistory()
    for number in range(MOST_WORKLOADS + 5):
        history.add(f"web-{number}", WaitKind.PRESSURE, 1.0, 1.0, 0.0)
    assert len(history) == MOST_WORKLOADS
    assert "web-0" not in history.saved()


@pytest.mark.parametrize(
    ("kind", "pressure", "delay", "expected"),
    [
        (WaitKind.PRESSURE, 8.0, None, 8.0),
        (WaitKind.PRESSURE, None, 10.0, None),
        (WaitKind.RUN_DELAY, 8.0, None, None),
        (WaitKind.RUN_DELAY, None, 10.0, 100.0),
    ],
)
def test_configured(
    kind: WaitKind, pressure: float | None, delay: float | None, expected: float | None
) -> None:
    target = configured(kind, pressure, delay, "strategy")
    assert (target and target.waited) == expected


@pytest.mark.parametrize(
    ("kind", "asked", "usual", "expected", "source"),
    [
        (WaitKind.PRESSURE, 8.0, None, 8.0, "annotation"),
        (WaitKind.PRESSURE, 5.0, None, 5.0, "annotation"),
        (WaitKind.PRESSURE, 1.0, None, 5.0, "asks for 1 ms/s, at least 5 ms/s by annotation"),
        (WaitKind.PRESSURE, 1_000.0, 9.0, 1_000.0, "annotation"),
        (WaitKind.PRESSURE, 9.9, 9.0, 9.9, "annotation"),
        (
            WaitKind.PRESSURE,
            9.0,
            9.0,
            9.9,
            "asks for 9 ms/s, at least 1.1 x 9.0, usual while BE pods are quiet",
        ),
        (WaitKind.PRESSURE, 1.0, 4.0, 5.0, "asks for 1 ms/s, at least 5 ms/s by annotation"),
        (WaitKind.RUN_DELAY, 50.0, None, 50.0, "annotation"),
        (WaitKind.RUN_DELAY, 10.0, 0.0, 50.0, "asks for 10 permille, at least 50 permille by annotation"),
        (
            WaitKind.RUN_DELAY,
            100.0,
            200.0,
            220.0,
            "asks for 100 permille, at least 1.1 x 200.0, usual while BE pods are quiet",
        ),
    ],
)
def test_targets_of_annotations(
    kind: WaitKind, asked: float, usual: float | None, expected: float, source: str
) -> None:
    target = annotated(kind, asked, usual)
    assert target.waited == pytest.approx(expected)
    assert target.source == source


@pytest.mark.parametrize(
    ("quiet_s", "probed_s", "waits", "expected"),
    [
        (1_800.0, 600.0, {"a": (11.0, 20.0)}, True),
        (1_799.0, 600.0, {"a": (11.0, 20.0)}, False),
        (1_800.0, 599.0, {"a": (11.0, 20.0)}, False),
        (1_800.0, 600.0, {"a": (10.0, 20.0)}, False),
        (1_800.0, 600.0, {}, False),
    ],
)
def test_probes(
    quiet_s: float, probed_s: float, waits: dict[str, tuple[float, float]], expected: bool
) -> None:
    now_s = 10_000.0
    assert wants_probe(now_s, now_s - quiet_s, now_s - probed_s, waits) is expected
