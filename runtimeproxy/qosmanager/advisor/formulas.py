"""How many CPUs a pool needs, and what is left for `reclaimed_cores`. Pure.

A requirement rises at once and falls in steps, a headroom the other way round: so that neither oscillates,
and an error costs reclaimed pods before it costs services.

Source: katalyst-core pkg/agent/sysadvisor/plugin/qosaware/resource/cpu/region (canonical and dynamic-quota
policies, provision and headroom), pkg/agent/sysadvisor/plugin/qosaware/resource/helper/regulator.go, and
pkg/agent/sysadvisor/plugin/qosaware/resource/memory/headroompolicy.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor, isfinite
from typing import Final, NamedTuple

from runtimeproxy.units import CPU_PERIOD_US

DEADBAND_CPUS: Final = 0.25
"""A requirement falls only if it stays so far below a smaller number: noise of this size moves nothing."""
HEADROOM_STEP_MILLICPU: Final = 100
HEADROOM_STEP_BYTES: Final = 64 << 20
"""Headroom is rounded down to multiples of these. Source: near minIgnoredReclaimedResourceForReport, 0.1 CPUs
and 100 MiB."""


def required_cores(usage: float, load: float | None, margin: float) -> float:
    """Return the cores that a pool needs, 0 or more: the larger one of usage and load, and a margin.

    Args:
        usage: Of the pool's pods, in cores.
        load: Tasks of these pods that run or wait; None: not known.
        margin: As a part of the larger one, 0 or more.
    """
    return max(usage, load if load is not None else 0.0, 0.0) * (1.0 + margin)


def required_cpus(cores: float, most: int) -> int:
    """Return the whole CPUs for a need in cores: at least 1, at most `most`."""
    return max(1, min(ceil(cores - 1e-9), max(1, most)))


class Limits(NamedTuple):
    """How fast a requirement may fall; it rises at once."""

    fall: int
    """At most so much in one step down; 0: at once."""
    hold_s: float
    """The time between two steps, for which the need has to stay below."""


class PoolNeed(NamedTuple):
    """The requirement of a pool that was given out last."""

    size: int
    """CPUs, at least 1."""
    since_s: float
    """When the hold began, by any monotonic clock."""
    peak: float
    """The largest need in cores since then; that of the moment in which the hold began is not part of it."""


def regulated_requirement(
    before: PoolNeed | None, cores: float, most: int, now_s: float, limits: Limits
) -> PoolNeed:
    """Return the next requirement of a pool, from 1 to `most` CPUs.

    It rises as soon as the pool needs more, and falls by `fall` after `hold_s` in which the pool
    needed less all the time.

    Args:
        before: The last requirement; None: there was none.
        cores: The pool's need now, in cores.
        most: The largest possible number of CPUs.
        now_s: The present time, by the clock of `before.since_s`.
        limits: How fast it may change.
    """
    wanted = required_cpus(cores, most)
    if before is None:
        return PoolNeed(wanted, now_s, 0.0)
    size = min(before.size, max(1, most))
    if wanted > size:
        return PoolNeed(wanted, now_s, 0.0)
    peak = max(before.peak, cores)
    if now_s - before.since_s < limits.hold_s:
        return PoolNeed(size, before.since_s, peak)
    target = required_cpus(peak + DEADBAND_CPUS, most)
    if target < size:
        size = max(target, size - (limits.fall or size))
    return PoolNeed(size, now_s, 0.0)


class HeldHeadroom(NamedTuple):
    """The headroom that was given out last, in millicores or bytes."""

    amount: int
    since_s: float
    """When the hold began, by any monotonic clock."""
    least: int
    """The smallest amount that was idle since then."""


def regulated_headroom(
    before: HeldHeadroom | None, idle: float, step: int, now_s: float, hold_s: float
) -> HeldHeadroom:
    """Return the next headroom: a multiple of `step`, and never above what is idle now.

    It falls at once, and rises after `hold_s` to the least that was idle in that time.

    Args:
        before: The last headroom; None: there was none.
        idle: Millicores or bytes that are idle now; nothing is if it is not finite.
        step: The same unit, above 0.
        now_s: The present time, by the clock of `before.since_s`.
        hold_s: How long more has to be idle before it rises.
    """
    now = max(0, floor(idle / step) * step) if isfinite(idle) else 0
    if before is None or now <= before.amount:
        return HeldHeadroom(now, now_s, now)
    least = min(before.least, now) if before.least > before.amount else now
    if now_s - before.since_s < hold_s:
        return HeldHeadroom(before.amount, before.since_s, least)
    return HeldHeadroom(least, now_s, now)


def idle_millicpu(
    capacity_millicpu: float, used_millicpu: float, reclaimed_millicpu: float, supply_cpus: int
) -> float:
    """Return the millicores that all pods of `reclaimed_cores` can use; at most what the others leave.

    Args:
        capacity_millicpu: Of the node, without reserved CPUs.
        used_millicpu: The usage of the whole node.
        reclaimed_millicpu: The part of it by these pods.
        supply_cpus: CPUs that no pool requires and no pod has alone.
    """
    others = max(used_millicpu - reclaimed_millicpu, 0.0)
    return max(0.0, min(1_000.0 * supply_cpus, capacity_millicpu - others))


def idle_bytes(
    capacity_bytes: float, used_bytes: float, reclaimed_bytes: float, reserved_bytes: float
) -> float:
    """Return the bytes that all pods of `reclaimed_cores` can use; usage is without page cache.

    Source: headroompolicy, canonical: memory that is free or can be reclaimed, and that of these pods, less
    the reserved memory.
    """
    others = max(used_bytes - reclaimed_bytes, 0.0)
    return max(0.0, capacity_bytes - reserved_bytes - others)


def split(amount: int, weights: Mapping[int, float], step: int) -> dict[int, int]:
    """Divide an amount by weights, into multiples of `step`; all 0 without weights. The sum is at most it."""
    whole = sum(max(each, 0.0) for each in weights.values())
    if not whole:
        return dict.fromkeys(sorted(weights), 0)
    return {key: floor(amount * max(weights[key], 0.0) / whole / step) * step for key in sorted(weights)}


def quota_us(supply_cpus: int, least_cpus: int) -> int:
    """Return the quota of all pods of `reclaimed_cores` for a period of 100 ms; at least that of one CPU.

    Source: quota mode, `cpu.max` of the reclaim root is the larger one of reserved and reclaim size.
    """
    return max(supply_cpus, least_cpus, 1) * CPU_PERIOD_US
