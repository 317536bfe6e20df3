"""How a bound on all BE pods is made: by CPUs of their QoS class, or by its quota. Pure.

Where there are enough CPUs, whole ones: a quota throttles tasks that may hold locks of the kernel. What is
less than two CPUs is a quota. The two never change in the same second.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from runtimeproxy.units import CPU_PERIOD_US, UNLIMITED

LEAST_NODE_CPUS: Final = 8
LEAST_MILLICORES: Final = 2_000
"""A smaller bound is a quota."""
HOLD_S: Final = 5.0
"""Between two changes of the CPUs."""
STEP_PERCENT: Final = 1
"""Of the quota: smaller changes are left out."""


class Position(NamedTuple):
    """What the class BestEffort has."""

    quota_us: int = UNLIMITED
    """For a period of 100 ms; -1: not bounded."""
    cpus: int = 0
    """How many; 0: not bounded."""
    changed_s: float = float("-inf")
    """When the number of CPUs changed last."""


def is_by_cpus(millicores: int, node_cpus: int, cpu_manager_policy: str) -> bool:
    """Return whether a bound of this size is whole CPUs. Not known, the kubelet's policy may be static."""
    return node_cpus >= LEAST_NODE_CPUS and cpu_manager_policy == "none" and millicores >= LEAST_MILLICORES


def moved(now: Position, bound: int | None, *, by_cpus: bool, now_s: float) -> Position:
    """Return the next position on the way to a bound, in millicores; None: no bound."""
    quota_us, cpus = _wanted(now, bound, by_cpus=by_cpus)
    if cpus != now.cpus and (now_s - now.changed_s >= HOLD_S or not cpus):
        # The CPUs go last: a quota that is to come in their place comes first.
        is_quota_to_move = UNLIMITED in (quota_us, now.quota_us) and quota_us != now.quota_us
        if cpus or not is_quota_to_move:
            return now._replace(cpus=cpus, changed_s=now_s)
    if cpus and not now.cpus:
        # Without its quota it would be unbounded.
        return now
    if quota_us != now.quota_us and not _is_small(now.quota_us, quota_us):
        return now._replace(quota_us=quota_us)
    return now


def _wanted(now: Position, bound: int | None, *, by_cpus: bool) -> tuple[int, int]:
    if bound is None:
        return UNLIMITED, 0
    if by_cpus:
        return UNLIMITED, bound // 1_000
    quota_us = bound * CPU_PERIOD_US // 1_000
    if bound >= LEAST_MILLICORES:
        # The node has too few CPUs now, or another policy: fewer CPUs than the bound would bound more.
        return quota_us, 0
    # With two CPUs left a quota alone changes; more of them come back only with the bound.
    return quota_us, min(now.cpus, LEAST_MILLICORES // 1_000)


def _is_small(now_us: int, wanted_us: int) -> bool:
    if UNLIMITED in (now_us, wanted_us):
        return False
    return abs(wanted_us - now_us) * 100 < now_us * STEP_PERCENT


def held_bound(quota_us: int, cpus: int) -> int | None:
    """Return the bound that claims of before make, in millicores; None: none."""
    bounds = [cpus * 1_000] if cpus else []
    if quota_us != UNLIMITED:
        bounds.append(quota_us * 1_000 // CPU_PERIOD_US)
    return min(bounds, default=None)
