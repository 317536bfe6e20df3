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
"""Headroom is rounded down to these. Source: minIgnoredReclaimedResourceForReport is 0.1 CPUs and 100 MiB."""


def required_cores(usage: float, load: float | None, margin: float) -> float:
    """Return what a pool needs: the larger one of its usage and its load, and a margin."""
    return max(usage, load if load is not None else 0.0, 0.0) * (1.0 + margin)


def required_cpus(cores: float, most: int) -> int:
    """Return the CPUs for so many cores: 1 at least, and at most `most`."""
    return max(1, min(ceil(cores - 1e-9), max(1, most)))


class Limits(NamedTuple):
    """How fast a regulated number may change."""

    rise: int
    """At most so much in one step up; 0: at once."""
    fall: int
    """At most so much in one step down; 0: at once."""
    hold_s: float
    """The time between two steps in the direction that is held, for which the target has to stay there."""


class PoolNeed(NamedTuple):
    """A requirement as it is given out."""

    size: int
    since_s: float
    """When the hold began, by any clock that goes on."""
    peak: float
    """The largest number of cores since then, without that look."""


def regulated_requirement(
    before: PoolNeed | None, cores: float, most: int, now_s: float, limits: Limits
) -> PoolNeed:
    """Return the requirement after another look at a pool.

    It follows a larger one by `rise` at once, and a smaller one by `fall` after `hold_s` in which all were
    smaller. It is never above `most`, and never below 1.

    Args:
        before: Of the last look; None: there was none.
        cores: What the pool needs now.
        most: The largest possible number of CPUs.
        now_s: The present time.
        limits: How fast it may change.
    """
    wanted = required_cpus(cores, most)
    if before is None:
        return PoolNeed(wanted, now_s, 0.0)
    size = min(before.size, max(1, most))
    if wanted > size:
        step = limits.rise or wanted - size
        return PoolNeed(min(wanted, size + step), now_s, 0.0)
    peak = max(before.peak, cores)
    if now_s - before.since_s < limits.hold_s:
        return PoolNeed(size, before.since_s, peak)
    target = required_cpus(peak + DEADBAND_CPUS, most)
    if target < size:
        size = max(target, size - (limits.fall or size))
    return PoolNeed(size, now_s, 0.0)


class HeldHeadroom(NamedTuple):
    """A headroom as it is given out."""

    amount: int
    since_s: float
    least: int
    """The smallest one since then."""


def regulated_headroom(
    before: HeldHeadroom | None, idle: float, step: int, now_s: float, hold_s: float
) -> HeldHeadroom:
    """Return the headroom after another look: never above what is idle now.

    It falls at once, and rises after `hold_s` to the least that was idle in that time. It is a multiple of
    `step`.
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
    """Return the CPU that pods of `reclaimed_cores` can use in all; never above what the others leave.

    Args:
        capacity_millicpu: Of the node, without reserved CPUs.
        used_millicpu: What everything on the node uses.
        reclaimed_millicpu: The part of it that these pods use.
        supply_cpus: CPUs that no pool requires and no pod has alone.
    """
    others = max(used_millicpu - reclaimed_millicpu, 0.0)
    return max(0.0, min(1_000.0 * supply_cpus, capacity_millicpu - others))


def idle_bytes(
    capacity_bytes: float, used_bytes: float, reclaimed_bytes: float, reserved_bytes: float
) -> float:
    """Return the memory that pods of `reclaimed_cores` can use in all; usage is without page cache.

    Source: memory headroom canonical: what is free or can be reclaimed, and what these pods have, without
    what is reserved.
    """
    others = max(used_bytes - reclaimed_bytes, 0.0)
    return max(0.0, capacity_bytes - reserved_bytes - others)


def split(amount: int, weights: Mapping[int, float], step: int) -> dict[int, int]:
    """Share an amount out by weights, in multiples of `step`; the sum is at most the amount."""
    whole = sum(max(each, 0.0) for each in weights.values())
    if not whole:
        return dict.fromkeys(sorted(weights), 0)
    return {key: floor(amount * max(weights[key], 0.0) / whole / step) * step for key in sorted(weights)}


def quota_us(supply_cpus: int, least_cpus: int) -> int:
    """Return the quota of all pods of `reclaimed_cores`, for a period of 100 ms.

    Source: quota mode, `cpu.max` of the reclaim root is the larger one of reserved and reclaim size.
    """
    return max(supply_cpus, least_cpus, 1) * CPU_PERIOD_US
