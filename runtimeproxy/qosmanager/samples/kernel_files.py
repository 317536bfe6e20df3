"""CPU, memory and pressure in the kernel's files: which file, its content, and the samples that it makes.

Version 1 and 2 of cgroups; of the node procfs and sysfs. All functions are pure. Source of the formats: Linux
Documentation/admin-guide/cgroup-v1/{cpuacct,memory}.rst and cgroup-v2.rst, scheduler/sched-bwc.rst,
accounting/psi.rst, filesystems/proc.rst.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from runtimeproxy.cgroups.mounts import Mount
from runtimeproxy.qosmanager.snapshot import Metric

Numbers: TypeAlias = tuple[int, ...]
"""The numbers in a source's files, in the order of its decoder."""
Values: TypeAlias = tuple[float, ...]
"""A sample for each of a source's metrics, the last ones of which may be missing; of `MEMORY_NUMA` for each
NUMA node, of `CPU_RUNNABLE` for each CPU."""


class ImplausibleError(Exception):
    """The difference of two counters that cannot be."""


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files that are read together, and the metrics that they give."""

    metrics: tuple[Metric, ...]
    files: tuple[tuple[str, str], ...]
    """Folder and name: the controller of cgroup version 1, or a path below procfs or sysfs."""
    decode: Callable[[Sequence[bytes]], Numbers]
    """The contents of the files to numbers; ValueError for other contents."""
    gauge: Callable[[Numbers], Values] | None = None
    """Numbers to samples; None if they are counters."""
    rate: Callable[[Numbers, float], Values] | None = None
    """Growth of the counters and the seconds that it took, to samples. Raises ImplausibleError."""
    is_on_demand: bool = False
    """Whether it is read only while a plugin needs it: some kernels lack it, or it is large."""
    kernel_option: str = ""
    """The option that a kernel is built with to have the files; empty: it has them, or that is not told."""


_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_LONGEST_NUMBER: Final = 20
_LONGEST_STAT: Final = 16_384
"""Bytes: several times the largest cpu.stat or memory.stat."""
_KIB: Final = 1024
_MOST_CLOCK_SKEW: Final = 1.5
"""A share of time may exceed 1, as the kernel's clock and ours are not read at the same moment; not this."""
_NUMA_ID_LIMIT: Final = 1024
"""Source: Linux include/linux/numa.h with NODES_SHIFT 10, the largest of all architectures."""


def _number(field: bytes) -> int:
    """A decimal number; `int` would also take signs, spaces and underscores."""
    if not field.isdigit() or len(field) > _LONGEST_NUMBER:
        raise ValueError(f"not a number: {field[:64]!r}")
    return int(field)


def _one_number(contents: Sequence[bytes]) -> Numbers:
    return (_number(contents[0].rstrip(b"\n")),)


def _in_order(*keys: str) -> re.Pattern[bytes]:
    """Finds lines `key number` in this order, which is the kernel's, with or without others between them."""
    # No anchor in front: the search is ten times as fast for a text than for a choice. What a group has
    # passed is not tried again: with a key that is there a hundred times this would take seconds.
    first, *others = (rf"{key} ([0-9]{{1,20}})\n" for key in keys)
    return re.compile("".join([first, *(rf"(?>(?:.*\n)*?{other})" for other in others)]).encode())


_CPU_STAT: Final = _in_order("nr_periods", "nr_throttled")
_USAGE_US: Final = _in_order("usage_usec")
_CPU_STAT_V2: Final = _in_order("usage_usec", "nr_periods", "nr_throttled")
_MEMORY_STAT_V1: Final = _in_order(
    "total_inactive_anon", "total_active_anon", "total_inactive_file", "total_unevictable"
)
_MEMORY_STAT_V2: Final = _in_order(r"\ninactive_anon", "active_anon", "inactive_file", "unevictable")
_KSWAPD: Final = _in_order("pgsteal_kswapd")
_SCHEDSTAT: Final = re.compile(
    rb"^cpu([0-9]{1,4}) (?:[0-9]{1,20} ){6}([0-9]{1,20}) ([0-9]{1,20}) [0-9]{1,20}$", re.MULTILINE
)
"""The seventh and eighth number. Source: Linux Documentation/scheduler/sched-stats.rst, stats.c."""
_PRESSURE: Final = re.compile(rb"some .*total=([0-9]{1,20})\n(?:full .*total=([0-9]{1,20})\n)?")


def _numbers(pattern: re.Pattern[bytes], content: bytes) -> Numbers:
    found = pattern.search(content, 0, _LONGEST_STAT)
    if found is None:
        raise ValueError(f"not as expected: {content[:64]!r}")
    return tuple(map(int, found.groups()))


def decode_cpu_stat_v1(contents: Sequence[bytes]) -> Numbers:
    return _numbers(_CPU_STAT, contents[0])


def decode_cpu_stat_v2(contents: Sequence[bytes]) -> Numbers:
    """cpu.stat of version 2: usage_usec and, where the controller is on, nr_periods and nr_throttled."""
    # One search where all are there, as in each pod's and container's file.
    if (found := _CPU_STAT_V2.search(contents[0], 0, _LONGEST_STAT)) is not None:
        return tuple(map(int, found.groups()))
    usage = _numbers(_USAGE_US, contents[0])
    return usage + _numbers(_CPU_STAT, contents[0]) if b"nr_periods" in contents[0] else usage


def decode_memory_stat_v1(contents: Sequence[bytes]) -> Numbers:
    return _memory(contents[0], _numbers(_MEMORY_STAT_V1, contents[1]))


def decode_memory_stat_v2(contents: Sequence[bytes]) -> Numbers:
    return _memory(contents[0], _numbers(_MEMORY_STAT_V2, contents[1]))


def _memory(usage: bytes, stat: Numbers) -> Numbers:
    """Usage, inactive file, and pages other than page cache."""
    inactive_anon, active_anon, inactive_file, unevictable = stat
    return *_one_number((usage,)), inactive_file, inactive_anon + active_anon + unevictable


def decode_numa_stat_v1(contents: Sequence[bytes]) -> Numbers:
    """memory.numa_stat of version 1: pages of each NUMA node, of the cgroup and those below it, as bytes."""
    for line in contents[0].split(b"\n"):
        if line.startswith(b"hierarchical_total="):
            return tuple(pages * _PAGE_BYTES for pages in _by_numa_node(line.split()[1:]))
    raise ValueError("memory.numa_stat has no hierarchical_total")


def decode_numa_stat_v2(contents: Sequence[bytes]) -> Numbers:
    """memory.numa_stat of version 2: anonymous and file pages of each NUMA node, in bytes."""
    # Two lines of forty.
    anon, file = (_by_numa_node(_line_of(contents[0], key).split()) for key in (b"anon ", b"file "))
    return tuple(of_anon + of_file for of_anon, of_file in zip(anon, file, strict=True))


def _line_of(content: bytes, key: bytes) -> bytes:
    """What follows a key at the beginning of a line."""
    start = len(key) if content.startswith(key) else content.index(b"\n" + key) + 1 + len(key)
    end = content.find(b"\n", start)
    return content[start:] if end < 0 else content[start:end]


def _by_numa_node(fields: Sequence[bytes]) -> list[int]:
    """`N0=1 N2=3` to a list by number of the NUMA node; 0 for numbers that are not there."""
    numbers: dict[int, int] = {}
    for each in fields:
        name, _, value = each.partition(b"=")
        numa_node = _number(name.removeprefix(b"N"))
        if numa_node >= _NUMA_ID_LIMIT:
            raise ValueError(f"NUMA node {numa_node}")
        numbers[numa_node] = _number(value)
    if not numbers:
        raise ValueError("no NUMA node")
    return [numbers.get(numa_node, 0) for numa_node in range(max(numbers) + 1)]


def decode_pressure(contents: Sequence[bytes]) -> Numbers:
    """A pressure file: the totals of `some` and, where there is one, of `full`, in microseconds."""
    found = _PRESSURE.match(contents[0])
    if found is None:
        raise ValueError("no pressure")
    return tuple(int(total) for total in found.groups() if total is not None)


def decode_pressure_of_hybrid(contents: Sequence[bytes]) -> Numbers:
    """A pressure file beside hierarchies of version 1, and cgroup.events: without processes it is empty."""
    if b"populated 1" not in contents[1]:
        raise ValueError("no processes in this hierarchy")
    return decode_pressure(contents)


def decode_proc_stat(contents: Sequence[bytes]) -> Numbers:
    """/proc/stat: ticks of all CPUs, idle, iowait and steal not included."""
    fields = _ticks(contents[0], 8)
    # User (which includes guest), nice, system, irq, softirq. Source: Koordinator pkg/koordlet/util/cpuinfo.
    return (sum(_number(fields[index]) for index in (1, 2, 3, 6, 7)),)


def decode_steal(contents: Sequence[bytes]) -> Numbers:
    """/proc/stat: ticks of all CPUs that the hypervisor took."""
    return (_number(_ticks(contents[0], 9)[8]),)


def _ticks(content: bytes, least: int) -> list[bytes]:
    """The fields of the line of all CPUs, so many at least."""
    fields = content[: content.index(b"\n")].split()
    if len(fields) < least or fields[0] != b"cpu":
        raise ValueError("/proc/stat does not begin with all CPUs")
    return fields


def decode_loadavg(contents: Sequence[bytes]) -> Numbers:
    """/proc/loadavg: the load of the last minute, in hundredths."""
    whole, point, hundredths = contents[0].partition(b" ")[0].partition(b".")
    if not point or len(hundredths) != 2:
        raise ValueError("/proc/loadavg does not begin with a load")
    return (_number(whole) * 100 + _number(hundredths),)


def decode_meminfo(contents: Sequence[bytes]) -> Numbers:
    """/proc/meminfo: MemTotal, MemFree, MemAvailable, Inactive(file), in bytes."""
    keys = (b"MemTotal", b"MemFree", b"MemAvailable", b"Inactive(file)")
    return tuple(_kib_of(contents[0], key) for key in keys)


def decode_kswapd(contents: Sequence[bytes]) -> Numbers:
    """/proc/vmstat: pages that kswapd has reclaimed."""
    return _numbers(_KSWAPD, contents[0])


def decode_schedstat(contents: Sequence[bytes]) -> Numbers:
    """/proc/schedstat: for each CPU the time that tasks ran on it, then the time that they waited, in ns."""
    found = {int(cpu): (int(ran), int(waited)) for cpu, ran, waited in _SCHEDSTAT.findall(contents[0])}
    if not found:
        raise ValueError("no CPU")
    times = [found.get(cpu, (0, 0)) for cpu in range(max(found) + 1)]
    return tuple(each for pair in times for each in pair)


def decode_numa_meminfo(contents: Sequence[bytes]) -> Numbers:
    return tuple(_kib_of(content, b"MemUsed") for content in contents)


def _kib_of(content: bytes, key: bytes) -> int:
    start = content.index(key + b":") + len(key) + 1
    end = content.index(b" kB", start)
    return _number(content[start:end].strip(b" ")) * _KIB


def _cpu_rate(per_s: int) -> Callable[[Numbers, float], Values]:
    return lambda growth, elapsed_s: (growth[0] / per_s / elapsed_s,)


def throttled_share(periods: int, throttled: int) -> float:
    """Return the share of throttled CFS periods; 0 if there was none. Raises ImplausibleError."""
    if throttled > periods:
        raise ImplausibleError(f"{throttled} of {periods} periods throttled")
    return throttled / periods if periods else 0.0


def _rate_of_cpu_stat_v2(growth: Numbers, elapsed_s: float) -> Values:
    usage = growth[0] / 1_000_000 / elapsed_s
    return (usage, throttled_share(growth[1], growth[2])) if len(growth) > 1 else (usage,)


def _rate_of_pressure(growth: Numbers, elapsed_s: float) -> Values:
    shares = [each / 1_000_000 / elapsed_s for each in growth]
    if max(shares) > _MOST_CLOCK_SKEW:
        raise ImplausibleError(f"pressure of {max(shares):.3g}")
    return tuple(min(share, 1.0) for share in shares)


def _memory_of_stat(numbers: Numbers) -> Values:
    usage, inactive_file, without_cache = numbers
    # Version 1 counts usage in batches for each CPU, so it may be a little less than its parts.
    return float(usage), float(max(usage - inactive_file, 0)), float(without_cache)


def _memory_of_meminfo(numbers: Numbers) -> Values:
    total, free, available, inactive_file = numbers
    if max(free, available) > total:
        raise ImplausibleError("more free memory than there is")
    working_set = max(total - free - inactive_file, 0)
    return tuple(map(float, (total - free, working_set, total - available, free, total)))


def _rate_of_runnable(growth: Numbers, elapsed_s: float) -> Values:
    # A task that runs on is counted when it stops: a share of a short time may be far from the truth.
    return tuple(
        (ran + waited) / 1e9 / elapsed_s for ran, waited in zip(growth[::2], growth[1::2], strict=True)
    )


def _load_of_loadavg(numbers: Numbers) -> Values:
    return (numbers[0] / 100,)


def _as_floats(numbers: Numbers) -> Values:
    return tuple(map(float, numbers))


_PRESSURES: Final = (
    ("cpu.pressure", (Metric.CPU_PRESSURE, Metric.CPU_PRESSURE_FULL)),
    ("memory.pressure", (Metric.MEMORY_PRESSURE, Metric.MEMORY_PRESSURE_FULL)),
    ("io.pressure", (Metric.IO_PRESSURE, Metric.IO_PRESSURE_FULL)),
)
_MEMORY: Final = (Metric.MEMORY_WITH_CACHE, Metric.MEMORY_WORKING_SET, Metric.MEMORY_USAGE)


def _pressures(folder: Callable[[str], tuple[str, str]]) -> tuple[FileGroup, ...]:
    return tuple(
        FileGroup(metrics, (folder(file),), decode_pressure, rate=_rate_of_pressure)
        for file, metrics in _PRESSURES
    )


_MEMORY_V1: Final = ("memory", "memory.usage_in_bytes"), ("memory", "memory.stat")
_MEMORY_V2: Final = ("memory", "memory.current"), ("memory", "memory.stat")

CPU_SOURCES: Final[Mapping[int, tuple[FileGroup, ...]]] = {
    1: (
        FileGroup((Metric.CPU_USAGE,), (("cpuacct", "cpuacct.usage"),), _one_number, rate=_cpu_rate(10**9)),
        FileGroup(
            (Metric.CPU_THROTTLED,),
            (("cpu", "cpu.stat"),),
            decode_cpu_stat_v1,
            rate=lambda growth, _: (throttled_share(*growth),),
        ),
    ),
    2: (
        FileGroup(
            (Metric.CPU_USAGE, Metric.CPU_THROTTLED),
            (("cpu", "cpu.stat"),),
            decode_cpu_stat_v2,
            rate=_rate_of_cpu_stat_v2,
        ),
    ),
}

MEMORY_SOURCES: Final[Mapping[int, tuple[FileGroup, ...]]] = {
    1: (
        FileGroup(_MEMORY, _MEMORY_V1, decode_memory_stat_v1, _memory_of_stat),
        FileGroup((Metric.MEMORY_NUMA,), (("memory", "memory.numa_stat"),), decode_numa_stat_v1, _as_floats),
    ),
    2: (
        FileGroup(_MEMORY, _MEMORY_V2, decode_memory_stat_v2, _memory_of_stat),
        FileGroup((Metric.MEMORY_NUMA,), (("memory", "memory.numa_stat"),), decode_numa_stat_v2, _as_floats),
    ),
}

PRESSURE_SOURCES: Final[Mapping[int, tuple[FileGroup, ...]]] = {
    # Kernels that have pressure files in version 1 (Anolis, Alibaba Cloud Linux) have them there.
    1: _pressures(lambda file: ("cpuacct", file)),
    2: _pressures(lambda file: ("cpu", file)),
}


UNIFIED: Final = "unified"
"""Stands for a hierarchy of version 2 without controllers, beside those of version 1. runc joins it (runc
libcontainer/cgroups/fs/paths.go), and pressure needs no controller."""
HYBRID_PRESSURE_SOURCES: Final = tuple(
    FileGroup(
        metrics,
        ((UNIFIED, file), (UNIFIED, "cgroup.events")),
        decode_pressure_of_hybrid,
        rate=_rate_of_pressure,
    )
    for file, metrics in _PRESSURES
)


def hybrid_mount(root: Path) -> Mapping[str, Mount]:
    """The hierarchy of version 2 beside those of version 1, if it has pressure files; else nothing."""
    folder = root / "unified"
    return {UNIFIED: Mount(2, folder.resolve())} if (folder / "cpu.pressure").exists() else {}


def cgroup_sources(mounts: Mapping[str, Mount]) -> tuple[FileGroup, ...]:
    """The sources that cgroups have on a node with these mounts; of a controller that is not mounted none."""
    found: list[FileGroup] = []
    if "cpu" in mounts:
        found += CPU_SOURCES[mounts["cpu"].version]
        is_hybrid = mounts["cpu"].version == 1 and UNIFIED in mounts
        found += HYBRID_PRESSURE_SOURCES if is_hybrid else PRESSURE_SOURCES[mounts["cpu"].version]
    if "memory" in mounts:
        found += MEMORY_SOURCES[mounts["memory"].version]
    return tuple(each for each in found if all(controller in mounts for controller, _ in each.files))


def node_sources(numa_nodes: Sequence[int]) -> tuple[FileGroup, ...]:
    """The sources of the node itself, below procfs and, for NUMA nodes, which are 0 to n, below sysfs."""
    meminfos = tuple(("sysfs", f"devices/system/node/node{each}/meminfo") for each in numa_nodes)
    of_numa = FileGroup((Metric.MEMORY_NUMA,), meminfos, decode_numa_meminfo, _as_floats)
    return (
        FileGroup((Metric.CPU_USAGE,), (("procfs", "stat"),), decode_proc_stat, rate=_cpu_rate(_TICKS_PER_S)),
        # A group of its own: what a hypervisor counts may fall, and usage shall not be lost with it.
        FileGroup(
            (Metric.CPU_STEAL,),
            (("procfs", "stat"),),
            decode_steal,
            rate=_cpu_rate(_TICKS_PER_S),
            is_on_demand=True,
        ),
        FileGroup((Metric.CPU_LOAD,), (("procfs", "loadavg"),), decode_loadavg, _load_of_loadavg),
        FileGroup(
            (*_MEMORY, Metric.MEMORY_FREE, Metric.MEMORY_TOTAL),
            (("procfs", "meminfo"),),
            decode_meminfo,
            _memory_of_meminfo,
        ),
        FileGroup(
            (Metric.WATERMARK_SCALE,),
            (("procfs", "sys/vm/watermark_scale_factor"),),
            _one_number,
            gauge=_as_floats,
            is_on_demand=True,
        ),
        FileGroup(
            (Metric.KSWAPD_STEAL,),
            (("procfs", "vmstat"),),
            decode_kswapd,
            rate=lambda growth, elapsed_s: (growth[0] / elapsed_s,),
            is_on_demand=True,
        ),
        FileGroup(
            (Metric.CPU_RUNNABLE,),
            (("procfs", "schedstat"),),
            decode_schedstat,
            rate=_rate_of_runnable,
            is_on_demand=True,
            kernel_option="CONFIG_SCHEDSTATS",
        ),
        *_pressures(lambda file: ("procfs", f"pressure/{file.removesuffix('.pressure')}")),
        *((of_numa,) if numa_nodes else ()),
    )
