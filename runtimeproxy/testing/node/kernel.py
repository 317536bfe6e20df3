"""The kernel of a simulated node: cgroups whose workloads share CPUs and memory, in simulated time.

Limits are read from the texts of cgroup files, and counters are written there, in the layout of version 1 or
2; the files lie in memory or in a folder. In one step each workload gets CPU time by demand, weights, quotas
and lists of CPUs, all cgroups above it included.

What is modelled of the scheduler: shares by weight that others may use up (work conserving), quotas with the
credit of `cpu.max.burst`, periods that throttle before the average of a second reaches the quota
(`Workload.peak`), lists of CPUs. What is not: latency of single tasks, caches, NUMA, I/O.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

from runtimeproxy.fields.formats import Value
from runtimeproxy.fields.tables import PARAMETERS
from runtimeproxy.testing.cgroups import CgroupFiles, default_values
from runtimeproxy.units import UNLIMITED, format_cpu_list, parse_cpu_list

CgroupPath: TypeAlias = tuple[str, ...]
OverTime: TypeAlias = Callable[[float], float]
"""An amount by the seconds since the start of the workload."""

QUOTA: Final = "cpu.cfs_quota_us"
PERIOD: Final = "cpu.cfs_period_us"
BURST: Final = "cpu.cfs_burst_us"
SHARES: Final = "cpu.shares"
CPUS: Final = "cpuset.cpus"
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
    """How many CPUs it can use at once."""
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
    """

    def __init__(
        self,
        cpus: Iterable[int],
        memory_bytes: int = 64 << 30,
        version: Literal[1, 2] = 2,
        folder: Path | None = None,
    ) -> None:
        """Makes a node without cgroups.

        Args:
            cpus: ids of the CPUs.
            memory_bytes: of the node.
            version: of the cgroup files.
            folder: stands for `/`: cgroups lie in its `sys/fs/cgroup`, counters of the node in its `proc`;
                None: the files are in memory only.
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
        self._texts: _Texts = _TextsInMemory(version)
        self._procfs: Path | None = None
        if folder is not None:
            self._texts = CgroupFiles(folder / "sys/fs/cgroup", version)
            self._procfs = folder / "proc"
            (self._procfs / "sys/vm").mkdir(parents=True, exist_ok=True)
            self._numa_node = folder / "sys/devices/system/node/node0"
            self._numa_node.mkdir(parents=True, exist_ok=True)
            (self._numa_node / "meminfo").touch()

    def make(self, path: CgroupPath, workload: Workload | None = None) -> Cgroup:
        """Makes a cgroup, and those above it where they are missing."""
        for depth in range(1, len(path) + 1):
            part = path[:depth]
            if part not in self.cgroups:
                self.cgroups[part] = Cgroup(part, started_s=self.now_s)
                self._texts.make("/" + "/".join(part))
                self._read(self.cgroups[part])
        made = self.cgroups[path]
        made.workload = workload
        return made

    def remove(self, path: CgroupPath) -> None:
        """Removes a cgroup with all below it."""
        for each in [each for each in self.cgroups if each[: len(path)] == path]:
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
        for cgroup, cores in zip(bounded, allowed, strict=True):
            _throttle(cgroup, cores, seconds)
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
        shares_below: dict[CgroupPath, int] = {}
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

    def _shares(self, path: CgroupPath) -> int:
        return int(self.cgroups[path].limits[SHARES])

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
        for name in _LIMITS:
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
        throttled_us = int(cgroup.throttled_periods * int(cgroup.limits[PERIOD]))
        stat = {
            "nr_periods": int(cgroup.periods),
            "nr_throttled": int(cgroup.throttled_periods),
            "throttled_usec" if self.version == 2 else "throttled_time": throttled_us,
        }
        memory, cache = int(cgroup.memory_bytes), int(cgroup.cache_bytes)
        if self.version == 2:
            stat = {"usage_usec": int(cgroup.usage_us), **stat}
            self._texts.write(cgroup.name, "memory.current", str(memory + cache))
            self._texts.write(cgroup.name, "memory.stat", _table({"anon": memory, **_pages(memory, cache)}))
            self._texts.write(cgroup.name, "memory.numa_stat", f"anon N0={memory}\nfile N0={cache}\n")
        else:
            self._texts.write(cgroup.name, "cpuacct.usage", str(int(cgroup.usage_us) * 1_000))
            self._texts.write(cgroup.name, "memory.usage_in_bytes", str(memory + cache))
            pages = {f"total_{name}": amount for name, amount in _pages(memory, cache).items()}
            self._texts.write(cgroup.name, "memory.stat", _table(pages))
        self._texts.write(cgroup.name, "cpu.stat", _table(stat))

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


def _throttle(cgroup: Cgroup, allowed_cores: float, seconds: float) -> None:
    """Counts the periods of a quota, and those in which it throttles; saves what was not used."""
    periods = seconds * 1_000_000 / int(cgroup.limits[PERIOD])
    cgroup.periods += periods
    if cgroup.wanted_cores > allowed_cores + _EPSILON:
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
