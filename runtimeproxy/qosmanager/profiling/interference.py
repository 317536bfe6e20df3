"""Finds pods that suffer from their neighbours, compared with their own history. Pure.

Signals are cycles per instruction (a shared cache or memory bus), the time in which tasks wait for CPU,
memory or storage, and throttling. A signal is raised if it is far above what it was before, in units of its
own deviation. Waiting and throttling count only while the pod does not work more than usual itself, which
would explain them. What is found is reported, and claims nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple


class Signal(StrEnum):
    """A measure of one pod."""

    CPU_USAGE = "cpu_usage"
    """No sign of interference, but of work of its own."""
    CYCLES_PER_INSTRUCTION = "cycles_per_instruction"
    CPU_PRESSURE = "cpu_pressure"
    MEMORY_PRESSURE = "memory_pressure"
    IO_PRESSURE = "io_pressure"
    CPU_THROTTLED = "cpu_throttled"


class _Kind(NamedTuple):
    least_deviation: float
    """The least deviation: with a history without any noise each value would be a surprise."""
    least_deviation_share: float
    """The same, as a share of the mean."""
    least_value: float
    """Below, it hurts no one."""
    is_own_work: bool
    """Whether more work of its own explains it."""


_KINDS: Final[Mapping[Signal, _Kind]] = {
    Signal.CPU_USAGE: _Kind(0.05, 0.10, 0.0, is_own_work=False),
    Signal.CYCLES_PER_INSTRUCTION: _Kind(0.02, 0.05, 0.0, is_own_work=False),
    Signal.CPU_PRESSURE: _Kind(0.01, 0.10, 0.05, is_own_work=True),
    Signal.MEMORY_PRESSURE: _Kind(0.005, 0.10, 0.02, is_own_work=True),
    Signal.IO_PRESSURE: _Kind(0.01, 0.10, 0.05, is_own_work=True),
    Signal.CPU_THROTTLED: _Kind(0.01, 0.10, 0.05, is_own_work=True),
}
RAISED_DEVIATIONS: Final = 3.0
"""So far above the mean a signal is raised."""
BUSY_DEVIATIONS: Final = 2.0
"""So far above its mean CPU usage means that the pod works more than usual."""
HISTORY_SAMPLES: Final = 120
"""With as many samples the history has its full weight; two hours, with one a minute."""
LEAST_SAMPLES: Final = 30
"""With fewer nothing is raised."""
_MEMORY_SAMPLES: Final = 720
"""The weight of a sample in the history is one over the number so far, and never less than one over this."""


@dataclass(frozen=True, slots=True)
class History:
    """Mean and variance of one signal of one pod."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def deviation(self, kind: _Kind) -> float:
        """The standard deviation, or its lower bound."""
        least = max(kind.least_deviation, kind.least_deviation_share * self.mean)
        return max(math.sqrt(self.variance), least)

    def with_sample(self, value: float, kind: _Kind) -> History:
        """Learns a value, at most one that is just raised: trouble does not soon become usual."""
        if self.count >= LEAST_SAMPLES:
            value = min(value, self.mean + RAISED_DEVIATIONS * self.deviation(kind))
        weight = 1 / min(self.count + 1, _MEMORY_SAMPLES)
        difference = value - self.mean
        return History(
            self.count + 1,
            self.mean + weight * difference,
            (1 - weight) * (self.variance + weight * difference * difference),
        )


class Raised(NamedTuple):
    """A signal far above its mean."""

    signal: Signal
    value: float
    usual: float
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """A pod that suffers."""

    raised: tuple[Raised, ...]
    """The most confident one first."""

    @property
    def confidence(self) -> float:
        return self.raised[0].confidence


@dataclass(frozen=True, slots=True)
class PodHistory:
    """The history of all signals of a pod; the state."""

    signals: Mapping[Signal, History] = field(default_factory=lambda: MappingProxyType({}))


def confidence(deviations: float, count: int) -> float:
    """The least probability that a value so far above the mean is no chance."""
    if deviations <= 0:
        return 0.0
    # Cantelli's inequality, for any distribution: P(X - mean >= k deviations) <= 1 / (1 + k^2).
    return deviations**2 / (1 + deviations**2) * min(count / HISTORY_SAMPLES, 1.0)


def judged(history: PodHistory, values: Mapping[Signal, float]) -> tuple[PodHistory, Interference | None]:
    """Judges a pod's signals, means of about a minute, by its history, and learns them."""
    is_busy = _deviations(history, Signal.CPU_USAGE, values) >= BUSY_DEVIATIONS
    raised: list[Raised] = []
    for signal, value in values.items():
        kind = _KINDS[signal]
        own = history.signals.get(signal, History())
        is_explained = signal is Signal.CPU_USAGE or (kind.is_own_work and is_busy)
        deviations = _deviations(history, signal, values)
        if deviations >= RAISED_DEVIATIONS and value >= kind.least_value and not is_explained:
            raised.append(Raised(signal, value, own.mean, confidence(deviations, own.count)))
    learned = dict(history.signals)
    for signal, value in values.items():
        learned[signal] = learned.get(signal, History()).with_sample(value, _KINDS[signal])
    raised.sort(key=lambda each: -each.confidence)
    found = Interference(raised=tuple(raised)) if raised else None
    return PodHistory(MappingProxyType(learned)), found


def _deviations(history: PodHistory, signal: Signal, values: Mapping[Signal, float]) -> float:
    """How raised a signal is; 0 while its history is too short."""
    own = history.signals.get(signal)
    if own is None or signal not in values or own.count < LEAST_SAMPLES:
        return 0.0
    return (values[signal] - own.mean) / own.deviation(_KINDS[signal])
