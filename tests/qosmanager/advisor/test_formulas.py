"""The laws of requirements and headroom, and their arithmetic."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.qosmanager.advisor.formulas import (
    DEADBAND_CPUS,
    HEADROOM_STEP_MILLICPU,
    HeldHeadroom,
    Limits,
    PoolNeed,
    idle_bytes,
    idle_millicpu,
    quota_us,
    regulated_headroom,
    regulated_requirement,
    required_cores,
    required_cpus,
    split,
)

LIMITS = Limits(1, 60.0)
CORES = st.floats(0, 300, allow_nan=False)
COUNTS = st.integers(1, 256)


@pytest.mark.parametrize(
    ("usage", "load", "margin", "most", "expected"),
    [
        (4.0, None, 0.0, 16, 4),
        (4.0, 4.0, 0.2, 16, 5),
        # Tasks wait: the load is more than the usage.
        (4.0, 7.5, 0.2, 16, 9),
        (0.0, 0.0, 0.2, 16, 1),
        (30.0, 30.0, 0.2, 16, 16),
        (2.0, 2.0, 0.0, 0, 1),
        # 2.5 x 1.2 is a little more than 3 as a number.
        (2.5, None, 0.2, 16, 3),
    ],
)
def test_what_a_pool_needs(usage: float, load: float | None, margin: float, most: int, expected: int) -> None:
    assert required_cpus(required_cores(usage, load, margin), most) == expected


def test_a_requirement_rises_at_once_and_falls_in_steps_after_the_hold() -> None:
    held = regulated_requirement(None, 3.5, 16, 0.0, LIMITS)
    assert held.size == 4
    held = regulated_requirement(held, 9.2, 16, 1.0, LIMITS)
    assert held.size == 10
    sizes = []
    for at_s in range(2, 200):
        held = regulated_requirement(held, 3.5, 16, float(at_s), LIMITS)
        sizes.append(held.size)
    # The hold begins with the last rise; each step has one of its own.
    assert [at_s for at_s, (one, other) in enumerate(pairwise(sizes), 3) if one != other] == [61, 121, 181]
    assert sizes[-1] == 7


def test_fewer_cpus_than_before_hold_at_once() -> None:
    assert regulated_requirement(PoolNeed(12, 0.0, 12.0), 12.0, 6, 1.0, LIMITS).size == 6


@given(st.lists(st.tuples(CORES, COUNTS), min_size=1, max_size=60), st.integers(0, 8), st.integers(0, 8))
@settings(max_examples=60, deadline=None)
def test_a_requirement_is_within_its_bounds_and_never_below_a_need_that_fits(
    needs: list[tuple[float, int]], fall: int, hold_s: int
) -> None:
    held = None
    for at_s, (cores, most) in enumerate(needs):
        held = regulated_requirement(held, cores, most, float(at_s), Limits(fall, float(hold_s)))
        assert required_cpus(cores, most) <= held.size <= most


@given(st.floats(0.1, 60), st.lists(st.floats(-1, 1), min_size=80, max_size=80), COUNTS)
@settings(max_examples=60, deadline=None)
def test_constant_load_with_noise_of_the_deadband_never_oscillates(
    cores: float, noise: list[float], most: int
) -> None:
    held, sizes = None, []
    for at_s, part in enumerate(noise):
        need = cores + part * DEADBAND_CPUS / 2
        held = regulated_requirement(held, need, most, float(at_s), Limits(1, 5.0))
        sizes.append(held.size)
    # It may rise to what the noise reaches, and never comes down again.
    assert sizes == sorted(sizes)
    assert len(set(sizes)) <= 2


@given(st.lists(st.floats(-10, 500_000), min_size=1, max_size=60), st.integers(0, 8))
@settings(max_examples=60, deadline=None)
def test_headroom_is_never_above_what_is_idle(idle: list[float], hold_s: int) -> None:
    held: HeldHeadroom | None = None
    for at_s, now in enumerate(idle):
        held = regulated_headroom(held, now, HEADROOM_STEP_MILLICPU, float(at_s), float(hold_s))
        assert 0 <= held.amount <= max(now, 0)
        assert held.amount % HEADROOM_STEP_MILLICPU == 0


def test_headroom_falls_at_once_and_rises_after_the_hold_to_the_least_of_it() -> None:
    held = regulated_headroom(None, 8_000, 100, 0.0, 60.0)
    held = regulated_headroom(held, 2_050, 100, 1.0, 60.0)
    assert held.amount == 2_000
    amounts = []
    for at_s in range(2, 70):
        held = regulated_headroom(held, 5_000 if at_s == 30 else 9_000, 100, float(at_s), 60.0)
        amounts.append(held.amount)
    assert amounts[:59] == [2_000] * 59
    assert amounts[59:] == [5_000] * 9


@given(CORES, CORES, CORES, st.integers(0, 300))
@settings(max_examples=60, deadline=None)
def test_idle_cpu_is_what_others_leave_and_no_pool_needs(
    capacity: float, used: float, reclaimed: float, supply: int
) -> None:
    idle = idle_millicpu(capacity * 1_000, used * 1_000, reclaimed * 1_000, supply)
    assert 0 <= idle <= supply * 1_000
    assert idle <= max(0.0, capacity * 1_000 - max(used - reclaimed, 0) * 1_000 + 1e-6)


def test_idle_memory() -> None:
    assert idle_bytes(64, 40, 10, 4) == 30
    assert idle_bytes(64, 80, 10, 4) == 0
    assert idle_bytes(64, 5, 10, 4) == 60


@given(st.integers(0, 10_000), st.dictionaries(st.integers(0, 7), st.floats(-5, 50), max_size=8))
@settings(max_examples=60, deadline=None)
def test_parts_are_at_most_the_whole(amount: int, weights: dict[int, float]) -> None:
    parts = split(amount, weights, 100)
    assert parts.keys() == weights.keys()
    assert sum(parts.values()) <= amount
    assert all(each >= 0 and each % 100 == 0 for each in parts.values())


def test_the_quota_leaves_reclaimed_pods_their_least_size() -> None:
    assert quota_us(6, 4) == 600_000
    assert quota_us(0, 4) == 400_000
