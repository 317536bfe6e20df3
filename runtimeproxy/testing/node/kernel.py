"""The kernel of a simulated node: cgroups whose workloads share CPUs and memory, in simulated time.

Limits are read from the texts of cgroup files, and counters are written there, in the layout of version 1 or
2; the files lie in memory or in a folder. In one step each workload gets CPU time by demand, weights, quotas
and lists of CPUs, all cgroups above it included.

What is modelled of the scheduler: shares by weight that others may use up (work conserving), quotas with the
credit of `cpu.max.burst`, periods that throttle before the average of a second reaches the quota
(`Workload.peak`), lists of CPUs; with `waits`, how long tasks wait for a CPU (see `waiting.py`), and idle
cgroups. What is not: caches, NUMA, I/O.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

from runtimeproxy.fields.formats import Value
from runtimeproxy.fields.tables import PARAMETERS
from runtimeproxy.testing.cgroups import CgroupFiles, default_values
from runtimeproxy.testing.node import waiting
from runtimeproxy.testing.node.wait_files import WaitFiles
from runtimeproxy.units import UNLIMITED, format_cpu_list, parse_cpu_list

CgroupPath: TypeAlias = tuple[str, ...]
OverTime: TypeAlias = Callable[[float], float]
"""An amount by the seconds since the start of the workload."""

QUOTA: Final = "cpu.cfs_quota_us"
PERIOD: Final = "cpu.cfs_period_us"
BURST: Final = "cpu.cfs_burst_us"
SHARES: Final = "cpu.shares"
CPUS: Final = "cpuset.cpus"
IDLE: Final = "cpu.idle"
MEMORY_LIMIT: Final = "memory.limit_in_bytes"

_LIMITS: Final = (QUOTA, PERIOD, BURST, SHARES, CPUS, MEMORY_LIMIT)
_EPSILON: Final = 1e-9
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def constant(amount: float) -> OverTime:
    """An amount that never changes."""
    return lambda _elapsed_s: amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the tasks of one container, or of one host application, want."""

    cores: OverTime = field(default_factory=lambda: constant(0.0))
    """CPU time per second."""
    peak: float = 1.2
    """How much more it wants for a moment than on the average of a second: the quota throttles it then."""
    threads: float = math.inf
    """How many CPUs it can use at once. With waits also how many tasks it has; without a number of them: as
    many as requests come at once, or as it wants CPUs."""
    request_s: float = 0.002
    """With waits: CPU time of a task from waking up to its next sleep. Tasks of a workload that wants as many
    CPUs as it has threads, or more than it gets, never sleep."""
    backlog_s: float = 0.0
    """How much work waits at most, in seconds of what it wants; the rest is lost, as with clients that give
    up. 0: nothing waits."""
    memory_bytes: OverTime = field(default_factory=lambda: constant(0.0))
    """Without page cache."""
    cache_bytes: OverTime = field(default_factory=lambda: constant(0.0))
    """Page cache: the kernel takes it back before it kills a task."""


class _Texts(Protocol):
    """The files of cgroups; a path is that below the mount of a controller, with a slash in front."""

    def make(self, path: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def read(self, path: str, name: str) -> str: ...
    def write(self, path: str, name: str, value: str) -> None: ...


class _TextsInMemory:
    """Files of cgroups as a mapping: for runs over many hours."""

    def __init__(self, version: Literal[1, 2] = 2) -> None:
        self._defaults = {
            name: value for files in default_values(version).values() for name, value in files.items()
        }
        self._texts: dict[str, dict[str, str]] = {}

    def make(self, path: str) -> None:
        self._texts.setdefault(path, dict(self._defaults))

    def remove(self, path: str) -> None:
        del self._texts[path]

    def read(self, path: str, name: str) -> str:
        return self._texts[path][name]

    def write(self, path: str, name: str, value: str) -> None:
        self._texts[path][name] = value


@dataclass(slots=True)
class Cgroup:
    """A cgroup with its counters. Limits are in its files.

    Attributes:
        path: Below the mount.
        workload: Of its tasks; None for a cgroup that only has others below it.
        usage_us: CPU time so far, that of cgroups below included.
        periods: Periods of its quota so far; 0 without one.
        throttled_periods: Those in which it was throttled.
        wanted_cores: In the last step: what its workloads wanted.
        used_cores: In the last step: what they got.
        waiting_s: How long new work of its own workload waits.
        memory_bytes: Without page cache, that of cgroups below included.
        cache_bytes: Page cache, likewise.
        oom_kills: How often the kernel has killed its workload.
        wait: With waits, those of its own workload in the last step; None: it wanted nothing.
        delay_us: With waits, the run delay of its own workload's tasks so far.
        turns: With waits, how often they began to run.
        pressure: With waits, that of its tasks and of those below it.
        throttled_us: With waits, how long its quota stopped its tasks so far.
    """

    path: CgroupPath
    workload: Workload | None = None
    started_s: float = 0.0
    usage_us: float = 0.0
    periods: float = 0.0
    throttled_periods: float = 0.0
    wanted_cores: float = 0.0
    used_cores: float = 0.0
    waiting_s: float = 0.0
    memory_bytes: float = 0.0
    cache_bytes: float = 0.0
    oom_kills: int = 0
    backlog_cores: float = 0.0
    credit_us: float = 0.0
    wait: waiting.Wait | None = None
    delay_us: float = 0.0
    turns: float = 0.0
    pressure: waiting.Pressure = field(default_factory=waiting.Pressure)
    throttled_us: float = 0.0
    left_s: float = 0.0
    limits: dict[str, Value] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its path as text."""
        return "/" + "/".join(self.path)

    @property
    def bound_cores(self) -> float:
        """What its quota allows on the average; without end if it has none."""
        quota = int(self.limits[QUOTA])
        return math.inf if quota == UNLIMITED else quota / int(self.limits[PERIOD])

    def response_s(self, part: float) -> float:
        """With waits: within which time this part of its workload's requests was answered in the last step.

        What waits because the workload gets less than it wants (`waiting_s`) is in it.
        """
        return self.waiting_s + (self.wait.response_s(part) if self.wait is not None else 0.0)


@dataclass(slots=True)
class _Leaf:
    """A workload while CPU time is shared out."""

    cgroup: Cgroup
    demand: float
    weight: float
    bounded_by: list[int]
    cpus: frozenset[int]
    got: float = 0.0


class Kernel:
    """CPUs, memory and cgroups of one node.

    Attributes:
        now_s: Simulated time.
        cgroups: By path.
        violations: What a real kernel would have refused, in the files at the beginning of a step.
        system_cores: What programs use that are in none of these cgroups.
        used_cores: What all programs got in the last step.
        load: How many tasks wanted a CPU in the last step, on average.
        kswapd_pages: What kswapd reclaims in a second.
        watermark_scale: `vm.watermark_scale_factor`.
        usage_us: CPU time of the node so far.
        has_waits: Whether tasks wait for CPUs.
        pressure: Of the node, with waits.
    """

    def __init__(
        self,
        cpus: Iterable[int],
        memory_bytes: int = 64 << 30,
        version: Literal[1, 2] = 2,
        folder: Path | None = None,
        *,
        waits: bool = False,
        has_pressure: bool = True,
    ) -> None:
        """Makes a node without cgroups.

        Args:
            cpus: ids of the CPUs.
            memory_bytes: of the node.
            version: of the cgroup files.
            folder: stands for `/`: cgroups lie in its `sys/fs/cgroup`, counters of the node in its `proc`;
                None: the files are in memory only.
            waits: whether tasks wait for CPUs, and cgroups may be idle.
            has_pressure: whether the kernel has PSI; with version 1 its files are in a tree of version 2
                beside the others.
        """
        self.cpus = frozenset(cpus)
        self.memory_bytes = memory_bytes
        self.version: Literal[1, 2] = version
        self.now_s = 0.0
        self.cgroups: dict[CgroupPath, Cgroup] = {}
        self.violations: list[str] = []
        self.system_cores: OverTime = constant(0.0)
        self.used_cores = 0.0
        self.load = 0.0
        self.kswapd_pages: OverTime = constant(0.0)
        self.watermark_scale = 10
        self._kswapd_pages = 0.0
        self._waited_ns = dict.fromkeys(self.cpus, 0.0)
        self.usage_us = 0.0
        self.pressure = waiting.Pressure()
        self.has_waits = waits
        self._limits = (*_LIMITS, IDLE) if waits else _LIMITS
        # The same in each run: of when requests come.
        self._randomness = random.Random(0)  # noqa: S311 - no secret
        self._wait_files: WaitFiles | None = None
        self._texts: _Texts = _TextsInMemory(version)
        self._procfs: Path | None = None
        if folder is not None:
            self._texts = CgroupFiles(folder / "sys/fs/cgroup", version)
            self._procfs = folder / "proc"
            (self._procfs / "sys/vm").mkdir(parents=True, exist_ok=True)
            self._numa_node = folder / "sys/devices/system/node/node0"
            self._numa_node.mkdir(parents=True, exist_ok=True)
            (self._numa_node / "meminfo").touch()
            if waits:
                self._wait_files = WaitFiles(folder, version, has_pressure=has_pressure)

    def make(self, path: CgroupPath, workload: Workload | None = None) -> Cgroup:
        """Makes a cgroup, and those above it where they are missing."""
        for depth in range(1, len(path) + 1):
            part = path[:depth]
            if part not in self.cgroups:
                self.cgroups[part] = Cgroup(part, started_s=self.now_s)
                self._texts.make("/" + "/".join(part))
                self._read(self.cgroups[part])
                if self._wait_files is not None:
                    self._wait_files.make("/" + "/".join(part))
        made = self.cgroups[path]
        made.workload = workload
        if self._wait_files is not None and workload is not None:
            self._wait_files.start(made.name, _count(workload, workload.cores(0.0)))
        return made

    def remove(self, path: CgroupPath) -> None:
        """Removes a cgroup with all below it."""
        for each in [each for each in self.cgroups if each[: len(path)] == path]:
            if self._wait_files is not None:
                self._wait_files.end(self.cgroups[each].name)
            del self.cgroups[each]
        self._texts.remove("/" + "/".join(path))

    def restart(self, path: CgroupPath) -> None:
        """Starts a cgroup's workload again: its memory is free, and what waited is lost."""
        cgroup = self.cgroups[path]
        cgroup.started_s, cgroup.backlog_cores = self.now_s, 0.0

    def value(self, path: CgroupPath, name: str) -> Value:
        """The value of a parameter in the files."""
        found = PARAMETERS[name].format_for(self.version)
        assert found is not None, name  # noqa: S101 - a parameter that the simulated kernel has
        return found.decode(self._texts.read("/" + "/".join(path), found.file))

    def write(self, path: CgroupPath, name: str, value: Value) -> None:
        """Writes a parameter to its file, as the kernel keeps it."""
        found = PARAMETERS[name].format_for(self.version)
        assert found is not None, name  # noqa: S101 - as above
        cgroup = "/" + "/".join(path)
        if name == SHARES and self._is_idle(path):
            # Source: Linux kernel/sched/fair.c, sched_group_set_shares.
            self.violations.append(f"{cgroup}: weight written to an idle cgroup")
        text = found.encode(value)
        if found.compose is not None:
            text = found.compose(value, self._texts.read(cgroup, found.file))
        elif found.file == "cpu.max":
            text = f"{text} {self.value(path, PERIOD)}"
        self._texts.write(cgroup, found.file, text)
        self._read(self.cgroups[path])

    def advance(self, seconds: float) -> None:
        """Lets the workloads run for one step."""
        self.now_s += seconds
        for cgroup in self.cgroups.values():
            self._read(cgroup)
            cgroup.used_cores = cgroup.wanted_cores = cgroup.memory_bytes = cgroup.cache_bytes = 0.0
        self._check()
        leaves = list(self._leaves(seconds))
        bounded = [each for each in self.cgroups.values() if each.limits[QUOTA] != UNLIMITED]
        allowed = [each.bound_cores + each.credit_us / (seconds * 1_000_000) for each in bounded]
        places = {each.path: index for index, each in enumerate(bounded)}
        for leaf in leaves:
            leaf.bounded_by = [
                places[above] for above in _with_ancestors(leaf.cgroup.path) if above in places
            ]
        _share_out(leaves, allowed, self.cpus)
        for leaf in leaves:
            for cpu in leaf.cpus:
                self._waited_ns[cpu] += leaf.demand / len(leaf.cpus) * seconds * 1e9
        self._kswapd_pages += self.kswapd_pages(self.now_s) * seconds
        for leaf in leaves:
            self._account(leaf, seconds)
        stopped = self._wait(leaves, bounded, seconds) if self.has_waits else None
        for cgroup, cores in zip(bounded, allowed, strict=True):
            _throttle(cgroup, cores, seconds, None if stopped is None else stopped[cgroup.path])
        top = [each for each in self.cgroups.values() if len(each.path) == 1]
        system = self.system_cores(self.now_s)
        self.used_cores = system + sum(each.used_cores for each in top)
        self.load = system + sum(each.wanted_cores for each in top)
        self.usage_us += self.used_cores * seconds * 1_000_000
        if self._procfs is not None:
            for cgroup in self.cgroups.values():
                self._publish(cgroup)
            self._publish_node(self._procfs, top)

    def _leaves(self, seconds: float) -> Iterator[_Leaf]:
        running = [each for each in self.cgroups.values() if each.workload is not None]
        wanted: dict[CgroupPath, float] = {}
        for cgroup in running:
            assert cgroup.workload is not None  # noqa: S101 - see above; for the type checker
            self._use_memory(cgroup, cgroup.workload)
            elapsed_s = self.now_s - cgroup.started_s
            wanted[cgroup.path] = cgroup.workload.cores(elapsed_s) + cgroup.backlog_cores / seconds
        busy = {above for path, cores in wanted.items() if cores > 0 for above in _with_ancestors(path)}
        shares_below: dict[CgroupPath, float] = {}
        for path in busy:
            shares_below[path[:-1]] = shares_below.get(path[:-1], 0) + self._shares(path)
        for cgroup in running:
            if wanted[cgroup.path] > 0:
                assert cgroup.workload is not None  # noqa: S101 - as above
                demand = min(wanted[cgroup.path], cgroup.workload.threads)
                weight = math.prod(
                    self._shares(above) / shares_below[above[:-1]] for above in _with_ancestors(cgroup.path)
                )
                yield _Leaf(cgroup, demand, weight, [], self.effective_cpus(cgroup.path))

    def effective_cpus(self, path: CgroupPath) -> frozenset[int]:
        """The CPUs that the tasks of a cgroup may run on."""
        cpus = self.cpus
        for above in reversed(list(_with_ancestors(path))):
            own = parse_cpu_list(str(self.cgroups[above].limits[CPUS])) & self.cpus
            # Version 2 leaves a list that shares nothing with the one above without effect.
            cpus = own & cpus or cpus if self.version == 2 else own or cpus
        return cpus

    def _shares(self, path: CgroupPath) -> float:
        limits = self.cgroups[path].limits
        return waiting.IDLE_WEIGHT if limits.get(IDLE) else int(limits[SHARES])

    def _is_idle(self, path: CgroupPath) -> bool:
        return bool(self.cgroups[path].limits.get(IDLE))

    def _wait(
        self, leaves: Iterable[_Leaf], bounded: Iterable[Cgroup], seconds: float
    ) -> dict[CgroupPath, waiting.Throttling]:
        """Makes run delay and pressure of the step; returns what the quotas did."""
        tasks = {leaf.cgroup.path: self._tasks(leaf) for leaf in leaves}
        below = waiting.by_cgroup((each.path, each) for each in tasks.values())
        system = self.system_cores(self.now_s)
        used = waiting.used_for_requests(tasks.values(), self.cpus, system)
        stopped = {each.path: self._stop(each, below.get(each.path, ()), used, seconds) for each in bounded}
        found = waiting.Waiting(
            tuple(tasks.values()), self.cpus, system, lambda path: (self._shares(path), self._is_idle(path))
        )
        waits: dict[CgroupPath, tuple[waiting.Tasks, waiting.Wait]] = {}
        for path, each in tasks.items():
            wait = found.of(each, waiting.noise(each, seconds, self._randomness))
            waits[path] = each, wait
            cgroup = self.cgroups[path]
            cgroup.delay_us += wait.delay * seconds * 1_000_000
            cgroup.turns += wait.turns * seconds
        members = waiting.by_cgroup(waits.items())
        for path, cgroup in self.cgroups.items():
            cgroup.wait = waits[path][1] if path in waits else None
            there = members.get(path)
            cgroup.pressure.add(
                *(waiting.pressure(there, len(path)) if there else (0.0, 0.0)), seconds=seconds
            )
        some, _ = waiting.pressure(list(waits.values()), 0) if waits else (0.0, 0.0)
        # Of the node `full` has no meaning, and is 0. Source: Linux kernel/sched/psi.c, psi_show.
        self.pressure.add(some, 0.0, seconds)
        return stopped

    def _tasks(self, leaf: _Leaf) -> waiting.Tasks:
        workload, path = leaf.cgroup.workload, leaf.cgroup.path
        assert workload is not None  # noqa: S101 - a leaf has one; for the type checker
        is_busy = leaf.got < leaf.demand * (1 - 1e-3) or leaf.demand >= workload.threads
        return waiting.Tasks(
            path=path,
            cpus=leaf.cpus,
            count=_count(workload, leaf.demand) if is_busy else workload.threads,
            got=max(leaf.got, _EPSILON),
            request_s=workload.request_s,
            is_busy=is_busy,
            is_idle=any(self._is_idle(above) for above in _with_ancestors(path)),
        )

    def _stop(
        self,
        cgroup: Cgroup,
        tasks: Sequence[waiting.Tasks],
        used: Mapping[frozenset[int], float],
        seconds: float,
    ) -> waiting.Throttling:
        """What a quota does to its tasks in a step."""
        period_s = int(cgroup.limits[PERIOD]) / 1_000_000
        periods = seconds / period_s
        quota_s = cgroup.bound_cores * period_s + cgroup.credit_us / 1_000_000 / periods
        speed = waiting.speed(tasks, used)
        if any(each.is_busy for each in tasks):
            found = waiting.throttled(quota_s, period_s, periods, speed)
        else:
            found = waiting.throttled_at_times(
                quota_s, period_s, periods, tasks, speed, cgroup.left_s, self._randomness
            )
        cgroup.left_s = found.left_s
        cgroup.throttled_us += found.stopped_s * 1_000_000
        for each in tasks:
            waiting.stop(each, found, periods, seconds)
        return found

    def _use_memory(self, cgroup: Cgroup, workload: Workload) -> None:
        elapsed_s = self.now_s - cgroup.started_s
        used, cache = workload.memory_bytes(elapsed_s), workload.cache_bytes(elapsed_s)
        limit = int(cgroup.limits[MEMORY_LIMIT])
        if limit != UNLIMITED:
            if used > limit:
                cgroup.oom_kills += 1
                self.restart(cgroup.path)
                used, cache = workload.memory_bytes(0.0), 0.0
            cache = min(cache, limit - used)
        for above in _with_ancestors(cgroup.path):
            self.cgroups[above].memory_bytes += used
            self.cgroups[above].cache_bytes += cache

    def _account(self, leaf: _Leaf, seconds: float) -> None:
        cgroup, workload = leaf.cgroup, leaf.cgroup.workload
        assert workload is not None  # noqa: S101 - a leaf has one; for the type checker
        fresh = workload.cores(self.now_s - cgroup.started_s)
        left = fresh * seconds + cgroup.backlog_cores - leaf.got * seconds
        cgroup.backlog_cores = min(max(left, 0.0), fresh * workload.backlog_s)
        cgroup.waiting_s = cgroup.backlog_cores / leaf.got if leaf.got > _EPSILON else workload.backlog_s
        for above in _with_ancestors(cgroup.path):
            there = self.cgroups[above]
            there.usage_us += leaf.got * seconds * 1_000_000
            there.used_cores += leaf.got
            there.wanted_cores += leaf.demand * workload.peak

    def _read(self, cgroup: Cgroup) -> None:
        for name in self._limits:
            found = PARAMETERS[name].format_for(self.version)
            if found is not None:
                text = self._texts.read(cgroup.name, found.file)
                if cgroup.texts.get(name) != text:
                    cgroup.texts[name] = text
                    cgroup.limits[name] = found.decode(text)

    def _check(self) -> None:
        for cgroup in self.cgroups.values():
            quota, burst = int(cgroup.limits[QUOTA]), int(cgroup.limits[BURST])
            if quota != UNLIMITED and burst > quota:
                self.violations.append(f"{cgroup.name}: burst {burst} above quota {quota}")
            above = self.cgroups.get(cgroup.path[:-1])
            if above is None:
                continue
            own = parse_cpu_list(str(cgroup.limits[CPUS]))
            if self.version == 1:
                if cgroup.bound_cores > above.bound_cores and quota != UNLIMITED:
                    self.violations.append(f"{cgroup.name}: quota {quota} above that of {above.name}")
                if not own <= (parse_cpu_list(str(above.limits[CPUS])) or self.cpus):
                    self.violations.append(f"{cgroup.name}: CPUs {format_cpu_list(own)} beyond {above.name}")

    def _publish(self, cgroup: Cgroup) -> None:
        throttled_us = cgroup.throttled_us
        if not self.has_waits:
            throttled_us = cgroup.throttled_periods * int(cgroup.limits[PERIOD])
        stat = {"nr_periods": int(cgroup.periods), "nr_throttled": int(cgroup.throttled_periods)}
        if self.version == 2:
            stat |= {"throttled_usec": int(throttled_us), "nr_bursts": 0, "burst_usec": 0}
        else:
            stat |= {"throttled_time": int(throttled_us * 1_000), "nr_bursts": 0, "burst_time": 0}
        memory, cache = int(cgroup.memory_bytes), int(cgroup.cache_bytes)
        if self.version == 2:
            usage_us = int(cgroup.usage_us)
            stat = {"usage_usec": usage_us, "user_usec": usage_us, "system_usec": 0, "nice_usec": 0, **stat}
            self._texts.write(cgroup.name, "memory.current", str(memory + cache))
            self._texts.write(cgroup.name, "memory.stat", _table({"anon": memory, **_pages(memory, cache)}))
            self._texts.write(cgroup.name, "memory.numa_stat", f"anon N0={memory}\nfile N0={cache}\n")
        else:
            self._texts.write(cgroup.name, "cpuacct.usage", str(int(cgroup.usage_us) * 1_000))
            self._texts.write(cgroup.name, "memory.usage_in_bytes", str(memory + cache))
            pages = {f"total_{name}": amount for name, amount in _pages(memory, cache).items()}
            self._texts.write(cgroup.name, "memory.stat", _table(pages))
        self._texts.write(cgroup.name, "cpu.stat", _table(stat))
        if self._wait_files is not None:
            self._wait_files.publish(cgroup.name, cgroup.pressure.text())
            if cgroup.workload is not None:
                self._wait_files.run(cgroup.name, cgroup.usage_us, cgroup.delay_us, cgroup.turns)

    def _publish_node(self, procfs: Path, top: Iterable[Cgroup]) -> None:
        ticks = int(self.usage_us / 1_000_000 * _TICKS_PER_S)
        (procfs / "stat").write_text(f"cpu  {ticks} 0 0 0 0 0 0 0 0 0\n", encoding="ascii")
        (procfs / "loadavg").write_text(f"{self.load:.2f} 0.00 0.00 1/1 1\n", encoding="ascii")
        memory = int(sum(each.memory_bytes for each in top))
        cache = int(sum(each.cache_bytes for each in top))
        amounts = {
            "MemTotal": self.memory_bytes,
            "MemFree": self.memory_bytes - memory - cache,
            "MemAvailable": self.memory_bytes - memory,
            "Inactive(file)": cache,
        }
        lines = "".join(f"{name}: {amount // 1_024} kB\n" for name, amount in amounts.items())
        (procfs / "meminfo").write_text(lines, encoding="ascii")
        used = (memory + cache) // 1_024
        (self._numa_node / "meminfo").write_text(f"Node 0 MemUsed: {used} kB\n", encoding="ascii")
        (procfs / "vmstat").write_text(f"pgsteal_kswapd {int(self._kswapd_pages)}\n", encoding="ascii")
        (procfs / "sys/vm/watermark_scale_factor").write_text(f"{self.watermark_scale}\n", encoding="ascii")
        # All that tasks want of a CPU stands for time in which they wait for it.
        waited = (f"cpu{cpu} 0 0 0 0 0 0 0 {int(ns)} 0\n" for cpu, ns in sorted(self._waited_ns.items()))
        (procfs / "schedstat").write_text("".join(("version 15\n", *waited)), encoding="ascii")
        if self._wait_files is not None:
            self._wait_files.publish_node(self.pressure.text())


def _pages(memory: int, cache: int) -> dict[str, int]:
    """The parts of memory.stat by which the kernel takes pages back, in its order."""
    return {
        "inactive_anon": 0,
        "active_anon": memory,
        "inactive_file": cache,
        "active_file": 0,
        "unevictable": 0,
    }


def _table(values: Mapping[str, int]) -> str:
    return "\n".join(f"{name} {value}" for name, value in values.items())


def _with_ancestors(path: CgroupPath) -> Iterator[CgroupPath]:
    for length in range(len(path), 0, -1):
        yield path[:length]


def _count(workload: Workload, cores: float) -> float:
    """How many tasks want to run at once."""
    return workload.threads if math.isfinite(workload.threads) else max(math.ceil(cores), 1)


def _throttle(
    cgroup: Cgroup, allowed_cores: float, seconds: float, stopped: waiting.Throttling | None
) -> None:
    """Counts the periods of a quota, and those in which it throttles; saves what was not used."""
    periods = seconds * 1_000_000 / int(cgroup.limits[PERIOD])
    cgroup.periods += periods
    if stopped is not None:
        cgroup.throttled_periods += stopped.periods
    elif cgroup.wanted_cores > allowed_cores + _EPSILON:
        share = 1.0 - allowed_cores / cgroup.wanted_cores
        cgroup.throttled_periods += min(max(share * periods, 1.0), periods)
    unused_us = (cgroup.bound_cores - cgroup.used_cores) * seconds * 1_000_000
    cgroup.credit_us = min(max(cgroup.credit_us + unused_us, 0.0), float(cgroup.limits[BURST]))


def _share_out(leaves: Sequence[_Leaf], allowed: Sequence[float], cpus: frozenset[int]) -> None:
    """Gives the time of all CPUs to the workloads: by weight, until demand, quotas or CPUs end it.

    All grow at once, as fast as their weights say; what ends the growth of one of them leaves the rest to
    the others.
    """
    regions: dict[frozenset[int], float] = {}
    for cpu in cpus:
        members = frozenset(index for index, leaf in enumerate(leaves) if cpu in leaf.cpus)
        if members:
            regions[members] = regions.get(members, 0.0) + 1.0
    left = list(allowed)
    active = set(range(len(leaves)))
    while active:
        rates = _rates(leaves, active, regions)
        active &= rates.keys()
        if not active:
            return
        step = min((leaves[index].demand - leaves[index].got) / leaves[index].weight for index in active)
        speeds = [0.0] * len(left)
        for index in active:
            for bound in leaves[index].bounded_by:
                speeds[bound] += leaves[index].weight
        step = min([step, *(left[bound] / speed for bound, speed in enumerate(speeds) if speed > 0)])
        flows = {
            members: sum(rates[index].get(members, 0.0) for index in active & members) for members in regions
        }
        step = min([step, *(regions[each] / flow for each, flow in flows.items() if flow > 0)])
        for index in active:
            leaves[index].got += leaves[index].weight * step
        for bound, speed in enumerate(speeds):
            left[bound] -= speed * step
        for members, flow in flows.items():
            regions[members] -= flow * step
        active = {
            index
            for index in active
            if leaves[index].demand - leaves[index].got > _EPSILON
            and all(left[bound] > _EPSILON for bound in leaves[index].bounded_by)
        }


def _rates(
    leaves: Sequence[_Leaf], active: set[int], regions: Mapping[frozenset[int], float]
) -> dict[int, dict[frozenset[int], float]]:
    """How fast each workload fills the CPUs that it shares with the same others; none without a free one."""
    rates: dict[int, dict[frozenset[int], float]] = {}
    for index in active:
        free = {members: room for members, room in regions.items() if index in members and room > _EPSILON}
        total = sum(free.values())
        if total > 0:
            weight = leaves[index].weight
            rates[index] = {members: weight * room / total for members, room in free.items()}
    return rates
