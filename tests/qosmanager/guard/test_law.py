"""The law: how the bound on BE pods follows what others feel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtimeproxy.qosmanager.guard.law import (
    BLIND_HOLD_S,
    LawInputs,
    LawState,
    LawStep,
    Rise,
    cut_of,
    decide,
    floor_of,
    given_back,
    is_held,
    step_of,
)

WEB = "web"


def facts(now_s: float, error: float | None = None, **fields: Any) -> LawInputs:
    errors = {} if error is None else {WEB: error}
    values = {"be_used": 4_000.0, "be_asked": 4_000.0, "cpus": 8, "floor": 0, **fields}
    return LawInputs(
        now_s=now_s, errors=fields.pop("errors", errors), **{k: values[k] for k in values if k != "errors"}
    )


def run(
    state: LawState, errors: list[float | None], start_s: float = 1_000.0, **fields: Any
) -> list[LawStep]:
    steps: list[LawStep] = []
    for number, error in enumerate(errors):
        step = decide(state, facts(start_s + number, error, **fields))
        steps.append(step)
        state = step.state
    return steps


@pytest.mark.parametrize(
    ("cpus", "floor", "expected", "by_cpus"),
    [
        *((1, 0, 200, 200), (2, 0, 200, 200), (4, 0, 400, 400), (8, 0, 800, 800)),
        *((8, 2_000, 2_000, 2_000), (8, 9_000, 8_000, 8_000), (1, 10**18, 1_000, 1_000)),
        # Whole CPUs, and no less; below two it is a quota.
        *((16, 0, 1_600, 1_600), (24, 0, 2_400, 3_000), (64, 0, 6_400, 7_000), (8, 7_001, 7_001, 8_000)),
    ],
)
def test_floor(cpus: int, floor: int, expected: int, by_cpus: int) -> None:
    assert floor_of(cpus, floor) == expected
    assert floor_of(cpus, floor, by_cpus=True) == by_cpus


@pytest.mark.parametrize(
    ("cpus", "is_whole", "expected"),
    [
        *((1, False, 100), (2, False, 100), (8, False, 400), (64, False, 3_200)),
        *((8, True, 1_000), (24, True, 2_000), (64, True, 4_000)),
    ],
)
def test_step(cpus: int, is_whole: bool, expected: int) -> None:
    assert step_of(cpus, is_whole=is_whole) == expected


@pytest.mark.parametrize(
    ("error", "decreases", "cut"),
    [
        *((1.01, 0, 0.1), (1.4, 0, 0.1), (2.0, 0, 0.25), (3.0, 0, 0.5), (99.0, 0, 0.5)),
        # After others a tenth more each time, as far as a wait needs that falls with the bound.
        *((1.2, 1, 0.2), (1.2, 2, 0.25), (1.2, 9, 0.25), (1.01, 9, 0.109), (2.0, 3, 0.4), (99.0, 9, 0.5)),
    ],
)
def test_cut(error: float, decreases: int, cut: float) -> None:
    assert cut_of(error, decreases) == pytest.approx(cut, abs=0.001)


@pytest.mark.parametrize(
    ("bound", "error", "fields", "expected", "rule"),
    [
        pytest.param(None, 0.5, {}, None, 0, id="nothing-to-do"),
        pytest.param(None, None, {}, None, 0, id="no-sample"),
        pytest.param(None, 2.0, {}, 3_000, 1, id="begins-at-what-they-use"),
        pytest.param(None, 2.0, {"be_asked": 500.0, "be_used": 450.0}, 800, 1, id="begins-at-the-floor"),
        pytest.param(4_000, 2.0, {}, 3_000, 1, id="a-quarter-less"),
        pytest.param(4_000, 1.1, {}, 3_600, 1, id="a-tenth-at-least"),
        pytest.param(4_000, 50.0, {}, 2_000, 1, id="half-at-most"),
        pytest.param(1_000, 50.0, {}, 800, 1, id="not-below-the-floor"),
        pytest.param(1_000, 50.0, {"floor": 900}, 900, 1, id="not-below-the-strategys-floor"),
        pytest.param(800, 50.0, {}, 800, 3, id="at-the-floor"),
        pytest.param(None, 2.0, {"be_used": 400.0}, None, 0, id="be-pods-use-five-percent"),
        pytest.param(4_000, 2.0, {"be_used": 401.0}, 3_000, 1, id="be-pods-use-more"),
        pytest.param(4_000, 2.0, {"be_asked": 2_000.0}, 1_500, 1, id="no-more-than-they-use"),
        pytest.param(4_000, 1.1, {"by_cpus": True}, 3_000, 1, id="whole-cpus-one-less"),
        pytest.param(3_900, 1.1, {"by_cpus": True}, 3_000, 1, id="whole-cpus-from-a-part-of-one"),
        pytest.param(2_000, 1.1, {"by_cpus": True}, 1_000, 1, id="below-two-cpus-a-quota"),
        pytest.param(
            None, 1.1, {"by_cpus": True, "others_used": 4_000.0}, 7_000, 1, id="cpus-that-others-share"
        ),
        pytest.param(
            None, 1.1, {"by_cpus": True, "others_used": 2_000.0}, 5_000, 1, id="cpus-of-a-node-with-room"
        ),
        pytest.param(4_000, 1.0, {}, 4_000, 2, id="right"),
        pytest.param(4_000, 0.8, {}, 4_000, 2, id="just-right"),
        pytest.param(4_000, 0.79, {}, 4_000, 2, id="calm-not-long-enough"),
    ],
)
def test_one_decision(
    bound: int | None, error: float | None, fields: dict[str, Any], expected: int | None, rule: int
) -> None:
    step = decide(LawState(bound=bound), facts(1_000.0, error, **fields))
    assert (step.state.bound, step.rule) == (expected, rule)


BUSY: dict[str, Any] = {"be_asked": 8_000.0, "be_used": 8_000.0}
"""BE pods that use all that they may."""


def test_a_decrease_waits_for_its_effect() -> None:
    bounds = [step.state.bound for step in run(LawState(bound=8_000), [2.0] * 6, **BUSY)]
    assert bounds == [6_000, 6_000, 6_000, 4_500, 4_500, 4_500]


def test_whole_cpus_wait_longer() -> None:
    bounds = [step.state.bound for step in run(LawState(bound=8_000), [2.0] * 7, **BUSY, by_cpus=True)]
    assert bounds == [6_000] * 5 + [4_000] * 2


def test_whole_cpus_that_change_later_are_waited_for() -> None:
    """They change once in 5 s at most; a rise that fails waits for nothing."""
    arguments: dict[str, Any] = {**BUSY, "by_cpus": True, "moved_s": 1_003.0}
    bounds = [
        step.state.bound for step in run(LawState(bound=8_000, decreased_s=1_000.0), [2.0] * 9, **arguments)
    ]
    assert bounds == [8_000] * 8 + [6_000]
    state = LawState(bound=8_000, rise=Rise(7_000, 1_003.0, 0.0))
    assert decide(state, facts(1_004.0, 2.0, **arguments)).state.bound == 7_000


def test_be_pods_get_more_after_ten_calm_seconds() -> None:
    bounds = [step.state.bound for step in run(LawState(bound=4_000), [0.5] * 21)]
    assert bounds == [4_000] * 10 + [4_400] * 10 + [4_800]


def test_a_bound_that_was_too_much_waits() -> None:
    state = LawState(bound=3_000, bad=4_000, bad_s=1_000.0, over_s=1_000.0, wait_s=60.0, bad_load=3_000.0)
    steps = run(state, [0.5] * 70, start_s=1_001.0, others_used=2_700.0)
    times = [n for n in range(1, 70) if steps[n].state.bound != steps[n - 1].state.bound]
    # 3,400 is below nine tenths of 4,000; 3,800 is not.
    assert [steps[n].state.bound for n in times[:2]] == [3_400, 3_800]
    assert times[0] == 10
    assert times[1] == 59
    assert "59m" not in steps[30].reason
    assert "was too much before" in steps[30].reason
    # With less load of others there is nothing to wait for.
    less = [step.state.bound for step in run(state, [0.5] * 30, start_s=1_001.0, others_used=2_600.0)]
    assert (less[10], less[20]) == (3_400, 3_800)
    # A load that is not known is not less.
    unknown = run(state, [0.5] * 30, start_s=1_001.0, others_used=None)
    assert unknown[-1].state.bound == 3_400


def test_the_bound_that_was_too_much_need_not_be_when_the_pod_that_waited_uses_less() -> None:
    """Of all others that is little; a pod that is gone uses nothing. What is not known is not less."""
    state = run(LawState(bound=4_000), [2.0], others_used=9_000.0, loads={WEB: 500.0}, **BUSY)[0].state
    assert (state.bound, state.bad, state.bad_pod, state.bad_pod_load) == (3_000, 4_000, WEB, 500.0)

    def after_22_s(loads: dict[str, float]) -> int | None:
        return run(state, [0.5] * 22, start_s=1_003.0, others_used=9_000.0, loads=loads)[-1].state.bound

    loads: tuple[dict[str, float], ...] = ({WEB: 450.0}, {WEB: 449.0}, {WEB: 0.0}, {})
    assert [after_22_s(each) for each in loads] == [3_400, 3_800, 3_800, 3_400]


RETRY = LawState(bound=3_800, bad=4_000, bad_s=990.0, rise=Rise(3_400, 995.0, 3_000.0), wait_s=240.0)
"""A rise above the bound that was too much, 5 s ago."""


@pytest.mark.parametrize(
    ("fields", "expected", "wait_s"),
    [
        pytest.param({}, 3_400, 480.0, id="back-to-what-held"),
        pytest.param({"rise": Rise(2_000, 995.0, 3_000.0)}, 2_000, 480.0, id="also-if-it-is-far"),
        pytest.param({"wait_s": 1_800.0}, 3_400, 1_800.0, id="half-an-hour-at-most"),
        pytest.param({"bad": None}, 3_400, 240.0, id="a-first-rise"),
        pytest.param({"bad": 6_000}, 3_400, 240.0, id="a-rise-far-below-the-bad-bound"),
        pytest.param({"rise": Rise(3_400, 760.0, 3_000.0)}, 3_325, 240.0, id="it-has-held"),
        pytest.param({"rise": Rise(3_400, 995.0, 2_600.0)}, 3_325, 240.0, id="the-load-has-grown"),
        pytest.param({"rise": None}, 3_325, 240.0, id="no-rise"),
        pytest.param({"bound": None, "bad": 7_000}, 3_400, 480.0, id="the-end-of-a-bound"),
    ],
)
def test_a_rise_that_fails_is_taken_back_at_once(
    fields: dict[str, Any], expected: int, wait_s: float
) -> None:
    step = run(replace(RETRY, **fields), [1.5], others_used=3_000.0, **BUSY)[0]
    assert (step.state.bound, step.state.wait_s, step.state.rise) == (expected, wait_s, None)
    # The end of a bound shows nothing new of smaller ones.
    assert step.state.bad == (7_000 if fields.get("bound", 3_800) is None else 3_800)


def test_a_bound_does_not_end_just_after_a_rise() -> None:
    """If waits come then, it is not known what of both was too much."""
    state = LawState(bound=4_000, bad_s=900.0, calm_s=990.0, spare_s=900.0, spare_wait_s=101.0)
    bounds = [step.state.bound for step in run(state, [0.5, *[0.9] * 102], be_asked=1_000.0)]
    assert bounds == [4_400] * 102 + [None]


def test_a_rise_that_fails_is_not_taken_back_to_more_than_be_pods_use() -> None:
    step = run(RETRY, [1.5], be_asked=3_000.0, be_used=3_000.0)[0]
    assert step.state.bound == 2_625


def test_a_rise_is_right_when_it_has_held_as_long_as_it_waited() -> None:
    steps = run(RETRY, [0.9] * 236, start_s=1_000.0)
    assert steps[234].state.rise == RETRY.rise
    assert (steps[235].state.rise, steps[235].state.bad, steps[235].state.wait_s) == (None, None, 120.0)


def test_trials_at_constant_load_come_less_and_less_often() -> None:
    """The error is 0.7 at 3,000, and 1.4 above: up and straight down again, after 2, 4, 8 ... minutes."""
    state, changes = LawState(bound=3_000), list[tuple[int, int | None]]()
    for number in range(5_500):
        bound = state.bound or 8_000
        step = decide(
            state, facts(float(number), 0.7 if bound <= 3_000 else 1.4, be_used=bound, be_asked=bound)
        )
        if step.state.bound != state.bound:
            changes.append((number, step.state.bound))
        state = step.state
    assert [bound for _, bound in changes] == [3_400, 3_000] * (len(changes) // 2)
    rises, backs = [at_s for at_s, _ in changes[::2]], [at_s for at_s, _ in changes[1::2]]
    assert {back - rise for rise, back in zip(rises, backs, strict=True)} == {1}
    waits = [rise - back for back, rise in zip(backs, rises[1:], strict=False)]
    assert waits[:5] == [120, 240, 480, 960, 1_800]
    assert set(waits[5:]) == {1_800}


def test_what_was_bad_is_forgotten() -> None:
    state = LawState(bound=3_800, bad=4_000, bad_s=1_000.0, wait_s=480.0)
    assert run(state, [0.9], start_s=4_599.0)[0].state.bad == 4_000
    forgotten = run(state, [0.9], start_s=4_600.0)[0].state
    assert (forgotten.bad, forgotten.wait_s) == (None, 120.0)


@pytest.mark.parametrize(("before", "end"), [(8_000, 8_000), (None, None)])
def test_futile_decreases_are_taken_back_in_three_steps(before: int | None, end: int | None) -> None:
    steps = run(LawState(bound=before), [5.0] * 10, **BUSY)
    bounds = [step.state.bound for step in steps]
    assert bounds == [4_000] * 3 + [2_000] * 3 + [4_000, 6_000, end, end]
    assert [step.rule for step in steps[6:9]] == [3, 3, 3]
    assert steps[6].state.futile == {WEB: 1_306.0}
    assert "waits, but not behind BE pods" in steps[6].reason
    assert steps[8].error is None


def test_a_futile_pod_drives_again_after_five_minutes_and_later_each_time() -> None:
    state = LawState(bound=8_000, futile={WEB: 1_300.0}, futile_s={WEB: 600.0})
    assert decide(state, facts(1_299.0, 5.0, **BUSY)).state.bound == 8_000
    assert decide(state, facts(1_300.0, 5.0, **BUSY)).state.bound == 4_000
    again = run(state, [5.0] * 7, start_s=1_300.0, **BUSY)[-1].state
    assert again.futile == {WEB: 1_906.0}
    assert again.futile_s == {WEB: 1_200.0}


def test_other_pods_still_drive() -> None:
    state, bounds = LawState(bound=8_000), list[int | None]()
    for number in range(7):
        errors = {WEB: 5.0, "db": 4.0 - number * 0.3}
        state = decide(state, facts(1_000.0 + number, errors=errors, **BUSY)).state
        bounds.append(state.bound)
    assert list(state.futile) == [WEB]
    # The last one by the error of the other pod: 2.2.
    assert bounds == [4_000] * 3 + [2_000] * 3 + [1_400]


def test_a_wait_that_has_only_begun_is_no_measure() -> None:
    """BE pods have just come: the first samples say less than what they cause, and decreases seem futile."""
    steps = run(LawState(), [3.0, 5.0, 6.0, 6.0, 4.0, 3.0, 3.0], **BUSY)
    assert not steps[-1].state.futile
    assert steps[-1].state.bound == 1_000


def test_the_floor_is_judged_as_well() -> None:
    """A fifth less waiting is not worth nine tenths of what BE pods do."""
    errors: list[float | None] = [*[5.0] * 3, *[4.7] * 3, *[4.2] * 9]
    steps = run(LawState(bound=8_000), errors, **BUSY)
    assert steps[-1].state.bound == 8_000
    assert list(steps[-1].state.futile) == [WEB]


@pytest.mark.parametrize(("behind_be", "end"), [(True, 800), (False, None)])
def test_a_bound_that_began_at_its_floor_is_compared_with_more(behind_be: bool, end: int | None) -> None:
    """After a restart at the floor nothing is known of decreases."""
    state, bounds = LawState(bound=800), list[int | None]()
    for number in range(150):
        bound = state.bound or 8_000
        now = facts(1_000.0 + number, bound / 400 if behind_be else 9.0, be_used=bound, be_asked=bound)
        state = decide(state, now).state
        bounds.append(state.bound)
    assert max(bound or 8_000 for bound in bounds) > 2_000
    assert bounds[-1] == end or (not behind_be and bounds[-1] is not None and bounds[-1] >= 3_200)


def test_decreases_with_an_effect_hold_at_the_floor() -> None:
    state, bounds = LawState(bound=8_000), list[int | None]()
    for number in range(300):
        error = 0.3 + (state.bound or 8_000) / 500
        state = decide(state, facts(1_000.0 + number, error)).state
        bounds.append(state.bound)
    assert set(bounds[30:]) == {800}
    assert not state.futile
    # A load that grows later says nothing of the decreases.
    later = run(state, [20.0] * 30, start_s=2_000.0)
    assert {step.state.bound for step in later} == {800}


def test_a_pod_for_which_the_first_decreases_had_an_effect_is_not_futile() -> None:
    """It waits behind BE pods above 3,000, and behind itself below."""
    state, bounds = LawState(bound=16_000), list[int | None]()
    for number in range(280):
        error = max((state.bound or 16_000) / 1_500, 2.6)
        used = float(state.bound or 16_000)
        now = facts(1_000.0 + number, error, cpus=16, be_used=used, be_asked=used)
        state = decide(state, now).state
        bounds.append(state.bound)
    assert not state.futile
    assert list(state.settled) == [WEB]
    # Back to where less began to have no effect, and not to where it waited more.
    assert len(set(bounds[40:])) == 1
    assert 3_500 <= (bounds[-1] or 0) <= 4_500


def test_a_bound_that_bounds_nothing_ends() -> None:
    steps = run(LawState(bound=4_000), [0.9] * 61, be_asked=3_000.0)
    assert [step.state.bound for step in steps[:60]] == [4_000] * 60
    assert (steps[60].state.bound, steps[60].rule) == (None, 4)


def test_be_pods_that_wait_ask_for_more_than_they_use() -> None:
    """On CPUs that others share they use less than their bound."""
    steps = run(LawState(bound=4_000), [0.9] * 200, be_asked=2_000.0, be_waits=0.5)
    assert {step.state.bound for step in steps} == {4_000}
    assert run(LawState(bound=4_000), [0.9] * 61, be_asked=2_000.0, be_waits=0.05)[-1].state.bound is None


def test_a_bound_that_was_needed_ends_later_the_next_time() -> None:
    state, waits = LawState(bound=4_000), list[float]()
    for number in range(4_000):
        error = 0.9 if state.bound is not None else 2.0
        state = decide(state, facts(1_000.0 + number, error, be_asked=500.0)).state
        waits.append(state.spare_wait_s)
    assert sorted(set(waits)) == [60.0, 120.0, 240.0, 480.0, 600.0]
    assert waits == sorted(waits)


def test_blind_holds_and_then_gives_back() -> None:
    state, bounds, held = LawState(bound=6_000), list[int | None](), list[bool]()
    for number in range(120):
        held.append(is_held(state, 1_000.0 + number, 1_000.0))
        state, _ = given_back(state, 1_000.0 + number, 1_000.0, 8)
        bounds.append(state.bound)
    assert held == [True] * int(BLIND_HOLD_S) + [False] * 60
    assert not is_held(LawState(), 1_000.0, 1_000.0)
    assert bounds[:60] == [6_000] * int(BLIND_HOLD_S)
    assert bounds[60] == 6_400
    assert bounds[70] == 6_800
    assert bounds[119] is None or bounds[119] > 8_000 - 400


@settings(max_examples=100, deadline=None)
@given(
    seconds=st.lists(st.tuples(st.floats(0, 50), st.floats(0, 64_000)), max_size=120),
    cpus=st.integers(1, 128),
    floor=st.integers(0, 200_000),
    by_cpus=st.booleans(),
)
@example(seconds=[(2.0, 1_338.0), (2.0, 0.0), (2.0, 0.0), (2.0, 0.0)], cpus=1, floor=1_003, by_cpus=False)
def test_never_below_the_floor(
    seconds: list[tuple[float, float]], cpus: int, floor: int, by_cpus: bool
) -> None:
    state = LawState()
    for number, (error, used) in enumerate(seconds):
        given_facts = facts(
            float(number), error, be_used=used, be_asked=used, cpus=cpus, floor=floor, by_cpus=by_cpus
        )
        state = decide(state, given_facts).state
        assert state.bound is None or state.bound >= floor_of(cpus, floor)


def test_unbounded_within_five_minutes_after_the_last_wait() -> None:
    state = run(LawState(), [8.0] * 30, be_asked=8_000.0, be_used=6_000.0)[-1].state
    steps = run(state, [0.3] * 300, start_s=1_030.0, be_asked=8_000.0, be_used=6_000.0)
    assert steps[-1].state.bound is None


@pytest.mark.parametrize(
    ("cpus", "by_cpus"), [(1, False), (2, False), (8, True), (24, True), (64, True), (64, False)]
)
@pytest.mark.parametrize(("others_used", "loads"), [(500.0, {WEB: 0.0}), (400.0, {WEB: 300.0})])
def test_unbounded_within_five_minutes_however_long_a_retry_would_wait(
    cpus: int, by_cpus: bool, others_used: float, loads: dict[str, float]
) -> None:
    """The pod that waited is gone, or the load of all others fell: BE pods stay."""
    state = LawState(
        bound=floor_of(cpus),
        bad=floor_of(cpus) + 1,
        bad_s=999.0,
        bad_load=500.0,
        bad_pod=WEB,
        bad_pod_load=300.0,
        wait_s=1_800.0,
        over_s=999.0,
    )
    used = cpus * 1_000.0
    arguments: dict[str, Any] = {"cpus": cpus, "by_cpus": by_cpus, "be_asked": used, "be_used": used}
    steps = run(state, [0.3] * 300, others_used=others_used, loads=loads, **arguments)
    assert steps[-1].state.bound is None
    same_load = run(state, [0.3] * 300, others_used=500.0, loads={WEB: 300.0}, **arguments)
    assert same_load[-1].state.bound == state.bound


def test_a_constant_load_ends_with_few_changes() -> None:
    """The error follows the bound: 1 at 3,000."""
    state, changes = LawState(), list[int]()
    for number in range(3_600):
        error = (state.bound or 8_000) / 3_000
        before = state.bound
        used = float(state.bound or 8_000)
        state = decide(state, facts(float(number), error, be_used=used, be_asked=used)).state
        if state.bound != before:
            changes.append(number)
    assert not [number for number in changes if number >= 60]
