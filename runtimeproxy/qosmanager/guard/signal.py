"""What a pod feels in one second: how long it waited for CPUs, and whether that says anything. Pure.

Waits are in thousandths: of the second, by PSI (so milliseconds in a second), or of the time that threads ran
or waited, by their run delay. The two are not alike, and each has targets of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

SHORTEST_S: Final = 0.8
LONGEST_S: Final = 1.5
"""A pass of another length gives no sample: PSI's total is a mean over CPUs, which is right over a second."""
YOUNGEST_S: Final = 30.0
"""A pod that starts waits for itself."""
LEAST_USED_CORES: Final = 0.02
"""20 ms in a second: with less, a single wait would be all there is."""
SAMPLES: Final = 3
"""The median of so many counts."""
KEPT_S: Final = 10.0
"""Samples that are older do not count."""
BLIND_S: Final = 10.0
"""Without a sample of any pod for so long the guard sees nothing."""


class WaitKind(StrEnum):
    """Where a wait comes from."""

    PRESSURE = "pressure"
    """`full` of cpu.pressure: the pod has runnable tasks on a CPU, and none runs there. Linux 5.13."""
    RUN_DELAY = "run delay"
    """Of its threads, by schedstat."""


class NoSample(StrEnum):
    """Why a second of a pod gives no sample."""

    NOTHING_READ = "nothing was read"
    LENGTH = "the pass took too short or too long"
    COUNTER_BACK = "a counter fell"
    THROTTLED = "throttled by its own limit, or by one above"
    YOUNG = "younger than 30 s"
    IDLE = "used less than 20 ms of CPU"
    BOOSTED = "its start is boosted"
    BOUNDED = "of the class BestEffort itself, which would be bounded"


class PodSecond(NamedTuple):
    """What was read of one pod over one pass."""

    at_s: float
    """Monotonic, the end of the pass."""
    elapsed_s: float | None
    """Since the sample before; None: there is none."""
    waited: float | None
    """In thousandths; None: not read. Below 0: a counter fell."""
    used_cores: float | None
    """None: not read."""
    is_throttled: bool = False
    """The pod, one of its containers, or a cgroup above it."""
    age_s: float | None = None
    """None: not known, and it counts as old."""
    is_boosted: bool = False
    is_bounded: bool = False
    """Whether it is of the class that is bounded: with less for BE pods it would wait more."""


def no_sample(second: PodSecond) -> NoSample | None:
    """Return why this second is no sample; None if it is one."""
    if second.waited is None or second.used_cores is None:
        return NoSample.NOTHING_READ
    if second.waited < 0:
        return NoSample.COUNTER_BACK
    if second.elapsed_s is None or not SHORTEST_S <= second.elapsed_s <= LONGEST_S:
        return NoSample.LENGTH
    if second.is_bounded:
        return NoSample.BOUNDED
    if second.is_boosted:
        return NoSample.BOOSTED
    if second.age_s is not None and second.age_s < YOUNGEST_S:
        return NoSample.YOUNG
    if second.is_throttled:
        return NoSample.THROTTLED
    return NoSample.IDLE if second.used_cores < LEAST_USED_CORES else None


class WaitSample(NamedTuple):
    """The wait of one second that counts."""

    at_s: float
    waited: float
    target: float
    """At the load of that second; above 0."""


class RecentWaits(NamedTuple):
    """The last samples of one pod; those of another kind never stand beside them."""

    kind: WaitKind
    samples: tuple[WaitSample, ...] = ()

    def after(self, kind: WaitKind, sample: WaitSample) -> RecentWaits:
        """With one more sample."""
        before = self.samples if kind is self.kind else ()
        return RecentWaits(kind, (*before, sample)[-SAMPLES:])

    def error(self, now_s: float) -> float | None:
        """The median of the last three samples over their targets; None with fewer of the last seconds.

        Each second counts by its own target: a pod at the edge of two loads has now the one, now the other.
        """
        errors = sorted(each.waited / each.target for each in self.samples if each.at_s > now_s - KEPT_S)
        return errors[SAMPLES // 2] if len(errors) == SAMPLES else None


NS: Final = 1_000_000_000
Threads = Mapping[int, tuple[int, int]]
"""By thread: the time that it ran, and that it waited while runnable, in ns. Source: Linux
Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat."""


def run_delay_share(before: Threads, after: Threads) -> float | None:
    """Return waits over waits and run time between two readings, 0 to 1; None: nothing ran or waited.

    Threads that are in one reading only are left out: the last part of those that ended is not known.
    Below 0: a counter fell.
    """
    ran = waited = 0
    for thread, (ran_ns, waited_ns) in after.items():
        was = before.get(thread)
        if was is None:
            continue
        if ran_ns < was[0] or waited_ns < was[1]:
            return -1.0
        ran += ran_ns - was[0]
        waited += waited_ns - was[1]
    return waited / (ran + waited) if ran + waited else None


def is_blind(now_s: float, sampled_s: float) -> bool:
    """Whether the last sample of any pod is too old."""
    return now_s - sampled_s >= BLIND_S
