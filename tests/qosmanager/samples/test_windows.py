"""Rings and windows, beside a list that keeps everything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.qosmanager.samples.windows import Ring, percentile, summarize
from runtimeproxy.qosmanager.snapshot import Window

VALUES = st.floats(min_value=0, max_value=1e15)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], None),
        ([7.0], Window(7, 7, 7, 7, 7, 7, 1)),
        ([4.0, 1.0, 3.0, 2.0], Window(2, 2.5, 2, 4, 4, 4, 4)),
        ([float(each) for each in range(1, 101)], Window(100, 50.5, 50, 90, 95, 99, 100)),
        ([0.0] * 99 + [5.0], Window(5, 0.05, 0, 0, 0, 0, 100)),
        ([0.0] * 19 + [5.0], Window(5, 0.25, 0, 0, 0, 5, 20)),
    ],
)
def test_windows(values: list[float], expected: Window | None) -> None:
    assert summarize(values) == expected


@given(st.lists(VALUES, min_size=1), st.sampled_from([0.5, 0.55, 0.9, 0.95, 0.99, 1.0]))
def test_percentile_is_the_least_value_that_covers_the_share(values: list[float], share: float) -> None:
    covering = [
        each for each in values if sum(other <= each for other in values) >= share * len(values) - 1e-9
    ]
    assert percentile(sorted(values), share) == min(covering)


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.floats(0, 3), VALUES), max_size=40),
    st.floats(0, 60),
    st.integers(1, 20),
)
def test_ring_beside_a_list(
    capacity: int, steps: list[tuple[float, float]], since_s: float, new_capacity: int
) -> None:
    ring, everything, now_s = Ring(capacity, 2), [], 0.0
    for step_s, value in steps:
        now_s += step_s
        ring.append(now_s, (value, -value))
        everything.append((now_s, value))
    kept = everything[-capacity:]
    expected = [value for at_s, value in kept if at_s > since_s]
    assert list(ring.values_after(since_s)) == expected
    assert list(ring.values_after(since_s, 1)) == [-value for value in expected]
    assert ring.last_after(since_s, 1) == (-expected[-1] if expected else None)
    resized = ring.resized(new_capacity)
    assert resized.capacity == new_capacity
    assert list(resized.values_after(since_s)) == [
        value for at_s, value in kept[-new_capacity:] if at_s > since_s
    ]
