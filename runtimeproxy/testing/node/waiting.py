"""How long tasks wait for a CPU on a simulated node: run delay, pressure, throttling, responses of services.

A model in closed form, by rates and means of one step, no queue of single tasks: some microseconds for each
workload. Tasks that take requests run for a short time and sleep; others never sleep, or want more than they
get. A task that wakes up takes a free CPU. Where others leave none, it stays on the one where it ran last,
and waits there behind

- tasks of its own workload, even if on another CPU only light tasks run;
- tasks of other cgroups, by weight, compared between siblings of the tree: those of little weight hardly
  ever, as they have had their share soon; those of idle cgroups never;
- the quota of its own cgroup or of one above, by the periods in which requests happened to be many.

The factors below were fitted to recordings of a real kernel (Linux 6.18, EEVDF, 250 Hz, 2 CPUs), which the
project's tests keep. What is left out: a CPU's own share of a group's weight, migrations, run queues that
differ from CPU to CPU, slices of tasks, and preemption by interrupts.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar

CgroupPath: TypeAlias = tuple[str, ...]
CpuSet: TypeAlias = frozenset[int]

_OWN: Final = 0.9
"""Wait behind own tasks on the same CPU, of the CPU's load by them."""
_BEHIND: Final = 0.4
"""Wait behind tasks of siblings, of a request's own time, where their weight is the same."""
_WAKE_UP_S: Final = 30e-6
"""From waking up to running, where the CPU runs something else."""
_LIGHT: Final = 10.0
"""By how much others must outweigh tasks that the kernel spreads over the CPUs less evenly than others."""
_LIGHT_SPREAD: Final = 1.15
_THROTTLED: Final = 1.5
"""Wait of requests by throttling, of what those have waited when the period ends: they run one after another
then."""
_STOPPED: Final = 0.66
"""How many requests of a throttled period wait for the next one."""
_LATE: Final = 2.2
"""How many requests wait, of the share that waits are of their time: not each one does, but some long."""
_EACH_PERIOD: Final = 0.25
"""Of a period: a quota that would stop its tasks for so long does so in each of them."""
_NOISE: Final = 1.2
"""How much the waits of one request vary, of their mean."""
_NOISE_OF_WAKE_UPS: Final = 5.0
IDLE_WEIGHT: Final = 3.0
"""Of a cgroup with cpu.idle. Source: Linux kernel/sched/sched.h, WEIGHT_IDLEPRIO."""
_SYSTEM_WEIGHT: Final = 1_024.0
"""Of tasks in no cgroup. Source: Linux kernel/sched/core.c, sched_prio_to_weight of nice 0."""


@dataclass(slots=True)
class Tasks:
    """The tasks of one workload in one step.

    Attributes:
        path: Of its cgroup.
        cpus: Where they may run.
        count: How many they are; those that want more than they get are all runnable.
        got: CPU time per second.
        request_s: CPU time between two sleeps.
        is_busy: Whether they never sleep.
        is_idle: Whether a cgroup of theirs has `cpu.idle`.
        duty: Share of the time in which no quota stops them.
        throttled: Share of the time in which a quota stops them.
        throttled_delay: Time per second that they wait for it, summed up over tasks.
        throttled_periods: Share of the periods in which it does.
        stop_s: For how long, in each of them.
    """

    path: CgroupPath
    cpus: CpuSet
    count: float
    got: float
    request_s: float
    is_busy: bool
    is_idle: bool
    duty: float = 1.0
    throttled: float = 0.0
    throttled_delay: float = 0.0
    throttled_periods: float = 0.0
    stop_s: float = 0.0

    @property
    def places(self) -> float:
        """On how many CPUs they run or wait."""
        return min(float(len(self.cpus)), max(self.count, 1.0))

    @property
    def requests_per_s(self) -> float:
        """How many begin."""
        return self.got / self.request_s


class Wait(NamedTuple):
    """What the tasks of one workload wait for, per second.

    Attributes:
        delay: Run delay, summed up over all tasks.
        outside: Time in which a task waits and none of its cgroup runs on that CPU, summed up over CPUs; by
            the depth of the cgroup, that of the workload last.
        is_light: Whether others outweigh it by far.
        turns: How often a task begins to run.
        request_s: CPU time of a request.
        wait_s: Mean time that a request waits, in the queue of its task and for a CPU.
        waits: Share of the requests that do.
        throttled_s: Mean time that a throttled request waits more.
        throttled: Share of the requests that are.
    """

    delay: float
    outside: tuple[float, ...]
    is_light: bool
    turns: float
    request_s: float
    wait_s: float
    waits: float
    throttled_s: float
    throttled: float

    def response_s(self, part: float) -> float:
        """The time within which this part of the requests is answered, such as 0.99."""

        def longer(than_s: float) -> float:
            found = self.waits * math.exp(-than_s / self.wait_s * self.waits) if self.wait_s > 0 else 0.0
            if self.throttled_s > 0:
                found += self.throttled * math.exp(-than_s / self.throttled_s)
            return found

        low, high = 0.0, 1.0
        while longer(high) > 1.0 - part and high < 1e6:
            high *= 2
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if longer(middle) > 1.0 - part else (low, middle)
        return self.request_s + high


@functools.lru_cache(maxsize=16)
def _kept(seconds: float) -> tuple[float, ...]:
    """What a step leaves of averages over 10, 60 and 300 s. Source: Linux kernel/sched/psi.c, calc_avgs."""
    return tuple(math.exp(-seconds / length_s) for length_s in (10.0, 60.0, 300.0))


@dataclass(slots=True)
class Pressure:
    """The content of a pressure file of the CPU, as the kernel keeps it.

    Attributes:
        totals_us: Of `some` and `full`.
    """

    totals_us: list[float] = field(default_factory=lambda: [0.0, 0.0])
    _averages: list[list[float]] = field(default_factory=lambda: [[0.0] * 3, [0.0] * 3])

    def add(self, some: float, full: float, seconds: float) -> None:
        """Adds a step with these shares of its time."""
        kept = _kept(seconds)
        for index, share in enumerate((some, full)):
            self.totals_us[index] += share * seconds * 1_000_000
            self._averages[index] = [
                average * part + share * 100.0 * (1 - part)
                for average, part in zip(self._averages[index], kept, strict=True)
            ]

    def text(self) -> str:
        """Source of the shape: Linux Documentation/accounting/psi.rst."""
        return "\n".join(
            f"{kind} avg10={avg10:.2f} avg60={avg60:.2f} avg300={avg300:.2f} total={int(total)}"
            for kind, total, (avg10, avg60, avg300) in zip(
                ("some", "full"), self.totals_us, self._averages, strict=True
            )
        )


class Throttling(NamedTuple):
    """What a quota did in one step.

    Attributes:
        periods: Throttled ones.
        stopped_s: How long it stopped its tasks, in all of them.
        left_s: CPU time that waits at the end.
    """

    periods: float
    stopped_s: float
    left_s: float


def throttled(quota_s: float, period_s: float, periods: float, speed: float) -> Throttling:
    """Throttling of tasks that never sleep, or want more than they may: the same in each period.

    Args:
        quota_s: CPU time in a period.
        period_s: Length of a period.
        periods: How many.
        speed: How many CPUs they use while nothing stops them.
    """
    stopped_s = max(period_s - quota_s / speed, 0.0) if speed > 0 else 0.0
    # The kernel lends CPUs some milliseconds of a quota each: very little too little throttles now and then.
    share = min(stopped_s / (_EACH_PERIOD * period_s), 1.0)
    return Throttling(periods * share, periods * stopped_s, 0.0)


def throttled_at_times(
    quota_s: float,
    period_s: float,
    periods: float,
    tasks: Sequence[Tasks],
    speed: float,
    left_s: float,
    randomness: random.Random,
) -> Throttling:
    """Throttling of tasks with requests that come at random: of the periods in which they are many.

    Args:
        quota_s: CPU time in a period.
        period_s: Length of a period.
        periods: How many.
        tasks: Of the cgroup and those below it.
        speed: How many CPUs they use while nothing stops them.
        left_s: CPU time that waited at the end of the step before.
        randomness: Of the requests.
    """
    wanted_s = sum(each.got for each in tasks) * period_s
    if wanted_s <= 0:
        return Throttling(0.0, 0.0, 0.0)
    request_s = sum(each.request_s * each.got for each in tasks) * period_s / wanted_s
    deviation_s = math.sqrt(wanted_s * request_s)
    if left_s <= 0 and wanted_s + 5 * deviation_s < quota_s:
        return Throttling(0.0, 0.0, 0.0)
    count, stopped_s = 0, 0.0
    for _ in range(max(round(periods), 1)):
        new_s = max(randomness.gauss(wanted_s, deviation_s), 0.0)
        work_s = left_s + new_s
        left_s = min(max(work_s - quota_s, 0.0), quota_s)
        if work_s > quota_s:
            count += 1
            # What was left runs as fast as can be, the rest as it comes.
            stopped_s += min(work_s - quota_s, quota_s) * period_s / max(work_s, speed * period_s * 0.5)
    return Throttling(float(count), stopped_s, left_s)


def used_for_requests(tasks: Iterable[Tasks], cpus: CpuSet, system: float) -> dict[CpuSet, float]:
    """What tasks that sleep use, and programs in no cgroup, by list of CPUs."""
    used = {cpus: system}
    for each in tasks:
        if not each.is_busy:
            used[each.cpus] = used.get(each.cpus, 0.0) + each.got
    return used


def speed(tasks: Sequence[Tasks], used: Mapping[CpuSet, float]) -> float:
    """How many CPUs tasks use while no quota stops them; `used` is for the requests of all."""
    cpus = frozenset[int]().union(*(each.cpus for each in tasks))
    own = sum(each.got for each in tasks if not each.is_busy)
    others = sum(cores * len(cpus & of) / len(of) for of, cores in used.items()) - own
    most = max(len(cpus) - max(others, 0.0), sum(each.got for each in tasks))
    return min(sum(each.count for each in tasks), most)


def stop(tasks: Tasks, throttling: Throttling, periods: float, seconds: float) -> None:
    """Makes tasks wait for a quota of theirs, or of a cgroup above."""
    share = min(throttling.stopped_s / seconds, 1.0)
    tasks.duty = min(tasks.duty, 1.0 - share)
    if tasks.is_busy or throttling.periods <= 0:
        return
    if share <= tasks.throttled:
        return
    tasks.throttled, tasks.stop_s = share, throttling.stopped_s / throttling.periods
    tasks.throttled_periods = throttling.periods / periods
    # Requests come while it is stopped, too, for each of its tasks one.
    come = 1.0 + tasks.requests_per_s * tasks.stop_s / 2
    tasks.throttled_delay = _THROTTLED * share * min(tasks.count, come)


@dataclass(frozen=True, slots=True)
class _Load:
    """What runs on the CPUs of one list: tasks that never sleep, and the CPU time of those that do."""

    busy: float = 0.0
    requests: float = 0.0

    def __add__(self, other: _Load) -> _Load:
        return _Load(self.busy + other.busy, self.requests + other.requests)

    def __sub__(self, other: _Load) -> _Load:
        return _Load(max(self.busy - other.busy, 0.0), max(self.requests - other.requests, 0.0))

    def __mul__(self, factor: float) -> _Load:
        return _Load(self.busy * factor, self.requests * factor)


_Key: TypeAlias = tuple[CpuSet, bool]
"""A list of CPUs, and whether its tasks are idle ones."""


class Noise(NamedTuple):
    """By which factors the waits of one step differ from their means: the more, the fewer requests."""

    waits: float = 1.0
    wake_ups: float = 1.0


class Waiting:
    """The waits of all workloads in one step.

    Args:
        tasks: Of all workloads that want CPU time.
        cpus: Of the node.
        system: What programs use that are in none of the cgroups.
        weight: Of a cgroup among its siblings, and whether it has `cpu.idle`.
    """

    def __init__(
        self,
        tasks: Sequence[Tasks],
        cpus: CpuSet,
        system: float,
        weight: Callable[[CgroupPath], tuple[float, bool]],
    ) -> None:
        self._weight = functools.cache(weight)
        self._overlaps: dict[tuple[CpuSet, CpuSet], float] = {}
        self._everywhere: dict[_Key, _Load] = {}
        self._steady: dict[_Key, float] = {}
        """Tasks that never sleep and that no quota stops."""
        self._stopped: dict[_Key, float] = {}
        """Tasks that never sleep while no quota stops them."""
        self._by_cgroup: dict[CgroupPath, dict[CpuSet, _Load]] = {}
        """Per CPU of the list."""
        self._below: dict[CgroupPath, dict[_Key, _Load]] = {}
        """Of the cgroups directly below, times their weights."""
        self._add(tasks)
        if system > 0:
            key = (cpus, False)
            self._everywhere[key] = self._everywhere.get(key, _Load()) + _Load(0.0, system)
            there = self._below.setdefault((), {})
            load = _Load(0.0, system / len(cpus)) * _SYSTEM_WEIGHT
            there[key] = there.get(key, _Load()) + load

    def _add(self, tasks: Iterable[Tasks]) -> None:
        for each in tasks:
            key = (each.cpus, each.is_idle)
            busy = min(each.count, float(len(each.cpus))) if each.is_busy else 0.0
            kind = self._steady if each.duty >= 1.0 else self._stopped
            kind[key] = kind.get(key, 0.0) + busy
            load = _Load(busy * each.duty, 0.0) if each.is_busy else _Load(0.0, each.got)
            self._everywhere[key] = self._everywhere.get(key, _Load()) + load
            per_cpu = load * (1.0 / len(each.cpus))
            for depth in range(1, len(each.path) + 1):
                there = self._by_cgroup.setdefault(each.path[:depth], {})
                there[each.cpus] = there.get(each.cpus, _Load()) + per_cpu
        for path, loads in self._by_cgroup.items():
            weight, is_idle = self._weight(path)
            below = self._below.setdefault(path[:-1], {})
            for cpus, load in loads.items():
                key = (cpus, is_idle)
                below[key] = below.get(key, _Load()) + _limited(load) * weight

    def _overlap(self, cpus: CpuSet, of: CpuSet) -> float:
        """How much of a list of CPUs another one covers."""
        found = self._overlaps.get((cpus, of))
        if found is None:
            found = self._overlaps[cpus, of] = len(cpus & of) / len(of)
        return found

    def of(self, tasks: Tasks, noise: Noise) -> Wait:
        """The waits of one workload's tasks."""
        behind, is_light = self._behind(tasks)
        if tasks.is_busy:
            return self._busy(tasks, is_light=is_light)
        request_s, rate = tasks.request_s, tasks.requests_per_s
        no_free, free_wait = self._free(tasks)
        load = tasks.got / tasks.places
        # Shares of a request's time.
        other = [(each_busy + each_requests * no_free) for each_busy, each_requests in behind]
        crowded = 0.5 * min(load * (1.0 + sum(other)), 1.0)
        other_s = [noise.waits * _BEHIND * each * request_s / (1.0 - crowded) for each in other]
        other_s[0] += noise.wake_ups * _WAKE_UP_S * no_free
        stretched_s = request_s + sum(other_s)
        own_load = min(rate * stretched_s / tasks.places, 0.98)
        alike = 1.0 - 1.0 / max(tasks.count, 1.0)
        own_s = no_free * _OWN * alike * own_load * stretched_s / (1.0 - own_load**8)
        own_s = noise.waits * (own_s + (1.0 - no_free) * free_wait * request_s)
        most = max(tasks.count - tasks.got, 0.0)
        delay = min(rate * (own_s + sum(other_s)), most)
        total = min(delay + tasks.throttled_delay, most)
        outside = self._outside(tasks, [rate * each for each in other_s])
        wait_s = delay / rate
        # A request also waits for its task to end the one before.
        worker = min(rate * (request_s + wait_s) / tasks.count, 0.98)
        variance = 1.0 + 2.0 * (wait_s / (request_s + wait_s)) ** 2
        queue_s = worker * (request_s + wait_s) / (2.0 * (1.0 - worker)) * variance
        runs_late = min(_LATE * wait_s / (request_s + wait_s), 1.0)
        return Wait(
            delay=total,
            outside=outside,
            is_light=is_light,
            turns=rate * (1.0 + total / tasks.got),
            request_s=request_s,
            wait_s=wait_s + queue_s,
            waits=max(1.0 - (1.0 - worker) * (1.0 - runs_late), 1e-9),
            throttled_s=tasks.stop_s,
            throttled=_STOPPED * tasks.throttled_periods,
        )

    def _busy(self, tasks: Tasks, *, is_light: bool) -> Wait:
        delay = max(tasks.count - tasks.got, 0.0)
        spread = _spread(tasks.count / len(tasks.cpus), is_light=is_light) * tasks.places
        alone = max(spread - tasks.got, 0.0)
        turn_s = max(tasks.got, 1e-9) / tasks.count * tasks.request_s
        return Wait(
            delay=delay,
            outside=(alone,) * len(tasks.path),
            is_light=is_light,
            turns=tasks.got / 0.004 + min(delay / 0.004, 100.0) * tasks.got / len(tasks.cpus),
            request_s=tasks.request_s,
            wait_s=tasks.request_s * tasks.count / max(tasks.got, 1e-9) + turn_s,
            waits=1.0,
            throttled_s=0.0,
            throttled=0.0,
        )

    def _behind(self, tasks: Tasks) -> tuple[list[tuple[float, float]], bool]:
        """By how much others outweigh the tasks, for each cgroup from the top; and whether by far.

        Those that never sleep, and the rest, each as weight times the share of the time that they are there.
        """
        found, is_light = [], False
        for depth in range(1, len(tasks.path) + 1):
            path = tasks.path[:depth]
            weight, is_idle = self._weight(path)
            own = self._by_cgroup[path]
            busy = requests = 0.0
            for (cpus, others_are_idle), load in self._below[path[:-1]].items():
                if others_are_idle and not is_idle:
                    continue
                left = load
                if others_are_idle == is_idle and cpus in own:
                    left = load - _limited(own[cpus]) * weight
                overlap = self._overlap(cpus, tasks.cpus)
                busy += left.busy * overlap / weight
                requests += left.requests * overlap / weight
            is_light = is_light or busy + requests > _LIGHT
            found.append((busy, requests))
        return found, is_light

    def _free(self, tasks: Tasks) -> tuple[float, float]:
        """How often others leave no CPU free for a task that wakes up.

        And else its mean wait for tasks of its own workload, in requests.
        """
        busy, steady, stopped, requests = 0.0, 0.0, 0.0, -tasks.got
        for key, load in self._everywhere.items():
            cpus, others_are_idle = key
            if tasks.is_idle or not others_are_idle:
                overlap = self._overlap(tasks.cpus, cpus)
                # Several workloads on the same CPUs leave all others free.
                most = float(len(cpus))
                fixed = min(self._steady.get(key, 0.0), most)
                at_times = min(self._stopped.get(key, 0.0), most - fixed)
                busy += min(load.busy, most) * overlap
                steady += fixed * overlap
                stopped += at_times * overlap
                requests += load.requests * overlap
        count = len(tasks.cpus)
        # A quota stops its tasks on all CPUs at once.
        duty = min(max(busy - steady, 0.0) / stopped, 1.0) if stopped > 0 else 0.0
        steady += max(requests, 0.0)
        with_them, without = (min(each / count, 1.0) ** count for each in (steady + stopped, steady))
        used = min(tasks.got / count, 0.98)
        # Source: Sakasegawa 1977, the wait in a queue with several servers; half of it at constant service.
        exponent = math.sqrt(2.0 * (count + 1.0)) - 1.0
        wait = 0.5 * used**exponent / (count * (1.0 - used))
        return duty * with_them + (1.0 - duty) * without, wait

    def _outside(self, tasks: Tasks, by_level: Sequence[float]) -> tuple[float, ...]:
        """Waits behind tasks that are not in the cgroup, for each cgroup from the top."""
        stopped = tasks.throttled * tasks.places
        waited, found = stopped, []
        for each in by_level:
            waited += each
            found.append(min(waited, tasks.places - tasks.got))
        return tuple(max(each, 0.0) for each in found)


def _limited(load: _Load) -> _Load:
    """What a cgroup has on a CPU is no more than always something."""
    busy = min(load.busy, 1.0)
    return _Load(busy, min(load.requests, 1.0 - busy))


def _spread(per_cpu: float, *, is_light: bool) -> float:
    """On which share of the CPUs a task of those that never sleep is."""
    return 1.0 - math.exp(-_LIGHT_SPREAD * per_cpu) if is_light else min(per_cpu, 1.0)


def pressure(members: Sequence[tuple[Tasks, Wait]], depth: int) -> tuple[float, float]:
    """`some` and `full` of a cgroup at a depth, by the workloads in it and below it, as shares of time."""
    count = sum(tasks.count for tasks, _ in members)
    places = min(float(len(frozenset[int]().union(*(tasks.cpus for tasks, _ in members)))), max(count, 1.0))
    used = sum(tasks.got for tasks, _ in members)
    waits = sum(wait.delay for _, wait in members) / places
    busy = [(tasks, wait) for tasks, wait in members if tasks.is_busy]
    if busy:
        is_light = all(wait.is_light for _, wait in busy)
        spread = _spread(sum(tasks.count for tasks, _ in busy) / places, is_light=is_light)
        full = max(spread - used / places, 0.0)
        return max(min(waits, 1.0) * spread**2, full), full
    some = waits / (1.0 + waits**1.7) ** (1 / 1.7)
    outside = sum(
        wait.outside[depth - 1] * (1.0 - min((used - tasks.got) / places, 1.0)) for tasks, wait in members
    )
    return some, min(outside / places, some, max(1.0 - used / places, 0.0))


def noise(tasks: Tasks, seconds: float, randomness: random.Random) -> Noise:
    """The noise of a workload's waits in a step."""
    root = math.sqrt(max(tasks.requests_per_s * seconds, 1.0))
    factors = (randomness.gauss(1.0, each / root) for each in (_NOISE, _NOISE_OF_WAKE_UPS))
    return Noise(*(min(max(each, 0.1), 3.0) for each in factors))


_Of = TypeVar("_Of")


def by_cgroup(found: Iterable[tuple[CgroupPath, _Of]]) -> dict[CgroupPath, list[_Of]]:
    """What belongs to workloads, for each cgroup that they are in or below."""
    below: dict[CgroupPath, list[_Of]] = {}
    for path, each in found:
        for depth in range(1, len(path) + 1):
            below.setdefault(path[:depth], []).append(each)
    return below
