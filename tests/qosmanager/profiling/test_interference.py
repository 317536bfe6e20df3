"""Interference: against a pod's own history, explained by its own work, with a confidence."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.qosmanager.profiling.interference import (
    HISTORY_SAMPLES,
    LEAST_SAMPLES,
    Interference,
    PodHistory,
    Signal,
    confidence,
    judged,
)

USUAL = {
    Signal.CPU_USAGE: 2.0,
    Signal.CYCLES_PER_INSTRUCTION: 1.0,
    Signal.CPU_PRESSURE: 0.02,
    Signal.MEMORY_PRESSURE: 0.0,
    Signal.IO_PRESSURE: 0.01,
    Signal.CPU_THROTTLED: 0.0,
}


def learned(samples: int = HISTORY_SAMPLES, seed: int = 1) -> PodHistory:
    """A pod that worked for a while, with noise of a tenth, alone."""
    generator = random.Random(seed)
    history = PodHistory()
    for _ in range(samples):
        values = {signal: max(value * generator.gauss(1, 0.1), 0) for signal, value in USUAL.items()}
        history, _ = judged(history, values)
    return history


def signals(found: Interference | None) -> set[Signal]:
    return {each.signal for each in found.raised} if found is not None else set()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, set()),
        ({Signal.CYCLES_PER_INSTRUCTION: 1.15}, set()),
        ({Signal.CYCLES_PER_INSTRUCTION: 2.0}, {Signal.CYCLES_PER_INSTRUCTION}),
        ({Signal.CPU_PRESSURE: 0.3}, {Signal.CPU_PRESSURE}),
        # Far above the usual, and too little to hurt.
        ({Signal.CPU_PRESSURE: 0.049, Signal.MEMORY_PRESSURE: 0.019}, set()),
        ({Signal.MEMORY_PRESSURE: 0.05}, {Signal.MEMORY_PRESSURE}),
        ({Signal.CPU_THROTTLED: 0.3, Signal.IO_PRESSURE: 0.3}, {Signal.CPU_THROTTLED, Signal.IO_PRESSURE}),
        # It works twice as much as usual: that explains waiting, and not that instructions take longer.
        ({Signal.CPU_USAGE: 4.0, Signal.CPU_PRESSURE: 0.3, Signal.CPU_THROTTLED: 0.5}, set()),
        (
            {Signal.CPU_USAGE: 4.0, Signal.CPU_PRESSURE: 0.3, Signal.CYCLES_PER_INSTRUCTION: 2.0},
            {Signal.CYCLES_PER_INSTRUCTION},
        ),
        ({Signal.CPU_USAGE: 1.0, Signal.CPU_PRESSURE: 0.3}, {Signal.CPU_PRESSURE}),
        ({Signal.CPU_USAGE: 9.0}, set()),
    ],
)
def test_signals(changes: dict[Signal, float], expected: set[Signal]) -> None:
    _, found = judged(learned(), USUAL | changes)
    assert signals(found) == expected


def test_a_signal_that_is_not_known_says_nothing() -> None:
    _, found = judged(learned(), {Signal.CPU_PRESSURE: 0.3})
    assert signals(found) == {Signal.CPU_PRESSURE}
    assert judged(learned(), {})[1] is None


def test_a_short_history_raises_nothing_and_a_longer_one_is_more_confident() -> None:
    high = USUAL | {Signal.CYCLES_PER_INSTRUCTION: 3.0}
    assert judged(learned(LEAST_SAMPLES - 1), high)[1] is None
    found = [judged(learned(count), high)[1] for count in (LEAST_SAMPLES, 60, HISTORY_SAMPLES)]
    confidences = [each.confidence for each in found if each is not None]
    assert len(confidences) == 3
    assert confidences == sorted(confidences)
    assert confidences[0] < 0.3
    assert confidences[-1] > 0.95


@pytest.mark.parametrize(
    ("deviations", "count", "expected"),
    [(-1, 500, 0), (0, 500, 0), (1, 500, 0.5), (3, 500, 0.9), (3, 60, 0.45), (7, 500, 0.98)],
)
def test_confidence(deviations: float, count: int, expected: float) -> None:
    assert confidence(deviations, count) == pytest.approx(expected)


def test_the_most_confident_signal_comes_first() -> None:
    changes = {Signal.CYCLES_PER_INSTRUCTION: 1.5, Signal.CPU_PRESSURE: 0.9}
    _, found = judged(learned(), USUAL | changes)
    assert found is not None
    assert [each.signal for each in found.raised] == [Signal.CPU_PRESSURE, Signal.CYCLES_PER_INSTRUCTION]
    assert found.confidence == found.raised[0].confidence > found.raised[1].confidence
    assert found.raised[1].usual == pytest.approx(1.0, rel=0.05)


def test_trouble_stays_reported_for_an_hour_and_a_new_normal_is_learned() -> None:
    history, high = learned(720), USUAL | {Signal.CYCLES_PER_INSTRUCTION: 1.6}
    found: Interference | None = None
    for _ in range(60):
        history, found = judged(history, high)
        assert signals(found) == {Signal.CYCLES_PER_INSTRUCTION}
    for _ in range(2 * 24 * 60):
        history, found = judged(history, high)
    assert found is None


def test_quiet_pods_are_not_accused() -> None:
    """A day of noise of a fifth: few false alarms, and none of high confidence."""
    generator = random.Random(3)
    history, raised = learned(), 0
    for _ in range(1_440):
        values = {signal: max(value * generator.gauss(1, 0.2), 0) for signal, value in USUAL.items()}
        history, found = judged(history, values)
        raised += found is not None
        assert found is None or found.confidence < 0.96
    assert raised < 15


@given(st.lists(st.dictionaries(st.sampled_from(Signal), st.floats(0, 1e6)), max_size=80))
def test_whatever_comes_confidence_is_a_share(samples: list[dict[Signal, float]]) -> None:
    history = PodHistory()
    for values in samples:
        history, found = judged(history, values)
        assert found is None or all(0 < each.confidence < 1 for each in found.raised)
        assert all(each.variance >= 0 for each in history.signals.values())
