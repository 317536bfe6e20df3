"""The order of writes in which no child ever exceeds its parent; pure.

Two passes: from the top down every value is loosened to the looser of old and new value, then from the
bottom up every value is tightened to its new one. In one cgroup the burst never exceeds the quota, and while
quota and period both change the quota is unlimited: half of the change would be another share of a CPU, which
the kernel might refuse.

Source: Koordinator's leveled update (pkg/koordlet/resourceexecutor/executor.go, LeveledUpdateBatch); Linux
kernel/sched/core.c, tg_cfs_schedulable_down, tg_set_cfs_bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runtimeproxy.fields.declaration import Direction
from runtimeproxy.fields.formats import Value
from runtimeproxy.fields.tables import PARAMETERS, PERIOD, QUOTA
from runtimeproxy.units import UNLIMITED, format_cpu_list, parse_cpu_list

_RANK = {name: rank for rank, name in enumerate(PARAMETERS)}


class Key(NamedTuple):
    """One value of one cgroup."""

    path: tuple[str, ...]
    """The cgroup's path below a controller's mount."""
    name: str
    """A parameter's name."""


@dataclass(frozen=True, slots=True)
class Step:
    """One write."""

    key: Key
    value: Value
    is_final: bool
    """False: a looser value on the way, and a later step writes the wanted one."""


def loosened(name: str, current: Value, wanted: Value) -> Value:
    # The tightest value that allows both; `wanted` if no order is needed.
    match PARAMETERS[name].direction:
        case Direction.LARGER:
            return max(current, wanted, key=_with_infinity)
        case Direction.SMALLER:
            return min(current, wanted, key=int)
        case Direction.UNION:
            return _union(str(current), str(wanted))
        case Direction.NONE:
            return wanted


def write_steps(levels: Sequence[Mapping[Key, Value]], current: Mapping[Key, Value | None]) -> list[Step]:
    """The writes that lead from the current to the wanted values.

    Args:
        levels: wanted values, parents' level first.
        current: the values in the files; one that is None or absent is not known, and is written at once.

    Returns:
        Steps in order. Every wanted value has exactly one final step; a list whose looser form is neither the
        current nor the wanted one has another step before it.
    """
    down: list[Step] = []
    up: list[Step] = []
    for level in levels:
        tighten: list[Step] = []
        for key in sorted(level, key=lambda each: (_RANK[each.name], each.path)):
            wanted, now = level[key], current.get(key)
            first = wanted if now is None else loosened(key.name, now, wanted)
            if key.name == QUOTA and now is not None and _changes_period(level, current, key):
                first = UNLIMITED
            if _equal(key.name, first, wanted):
                down.append(Step(key, wanted, is_final=True))
                continue
            if not _equal(key.name, first, now):
                down.append(Step(key, first, is_final=False))
            tighten.append(Step(key, wanted, is_final=True))
        up[:0] = reversed(tighten)
    return down + up


def _changes_period(level: Mapping[Key, Value], current: Mapping[Key, Value | None], quota: Key) -> bool:
    period = quota._replace(name=PERIOD)
    now = current.get(period)
    return period in level and now is not None and now != level[period]


def _with_infinity(value: Value) -> float:
    return float("inf") if value == UNLIMITED else int(value)


def _union(current: str, wanted: str) -> str:
    old, new = parse_cpu_list(current), parse_cpu_list(wanted)
    # An empty list has all that the parent has.
    return wanted if old <= new or not new else format_cpu_list(old | new)


def _equal(name: str, one: Value, other: Value | None) -> bool:
    if PARAMETERS[name].is_list and other is not None:
        return parse_cpu_list(str(one)) == parse_cpu_list(str(other))
    return one == other
