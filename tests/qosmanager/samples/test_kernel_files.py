"""The kernel's formats: contents as kernels print them, and others."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.cgroups.mounts import Mount
from runtimeproxy.qosmanager.samples.kernel_files import (
    CPU_SOURCES,
    MEMORY_SOURCES,
    PRESSURE_SOURCES,
    FileGroup,
    ImplausibleError,
    Numbers,
    Values,
    cgroup_sources,
    decode_cpu_stat_v1,
    decode_cpu_stat_v2,
    decode_kswapd,
    decode_loadavg,
    decode_meminfo,
    decode_memory_stat_v1,
    decode_memory_stat_v2,
    decode_numa_meminfo,
    decode_numa_stat_v1,
    decode_numa_stat_v2,
    decode_pressure,
    decode_proc_stat,
    decode_schedstat,
    decode_steal,
    node_sources,
    throttled_share,
)
from runtimeproxy.qosmanager.snapshot import Metric

NOT_IN_FILES_OF_CGROUPS = {
    *(Metric.CYCLES_PER_INSTRUCTION, Metric.CPU_LOAD, Metric.CPU_RUNNABLE, Metric.KSWAPD_STEAL),
    Metric.CPU_STEAL,
    *(Metric.MEMORY_FREE, Metric.MEMORY_TOTAL, Metric.WATERMARK_SCALE, Metric.CPU_RUN_DELAY),
}
VMSTAT = b"nr_free_pages 7\npgsteal_kswapd 12\npgsteal_direct 3\n"
SCHEDSTAT = (
    b"version 15\ntimestamp 4295\ncpu0 0 0 0 0 0 0 500 70 9\ndomain0 3 0 0 0 0 0 0 0 0 0\n"
    b"cpu2 0 0 0 0 0 0 600 80 9\n"
)
PAGE = os.sysconf("SC_PAGE_SIZE")
CPU_V1 = b"nr_periods 20\nnr_throttled 5\nthrottled_time 700\nnr_bursts 0\nburst_time 0\n"
CPU_V2 = b"usage_usec 900\nuser_usec 600\nsystem_usec 300\nnr_periods 20\nnr_throttled 5\nthrottled_usec 7\n"
MEMORY_V1 = (
    b"cache 9\ninactive_anon 1\nactive_anon 1\ninactive_file 1\nactive_file 1\nunevictable 1\n"
    b"hierarchical_memory_limit 99\ntotal_cache 30\ntotal_inactive_anon 10\ntotal_active_anon 20\n"
    b"total_inactive_file 5\ntotal_active_file 25\ntotal_unevictable 3\n"
)
MEMORY_V2 = (
    b"anon 30\nfile 30\nkernel 4\nsock 0\nswapcached 0\nanon_thp 0\ninactive_anon 10\nactive_anon 20\n"
    b"inactive_file 5\nactive_file 25\nunevictable 3\nslab_reclaimable 1\n"
)
NUMA_V1 = (
    b"total=9 N0=9 N1=0\nfile=1 N0=1 N1=0\nanon=8 N0=8 N1=0\nunevictable=0 N0=0 N1=0\n"
    b"hierarchical_total=12 N0=10 N2=2\nhierarchical_file=1 N0=1 N2=0\n"
)
NUMA_V2 = b"anon N0=100 N1=7\nfile N0=20 N1=0\nkernel_stack N0=5 N1=5\n"
PRESSURE = (
    b"some avg10=1.00 avg60=0.00 avg300=0.00 total=400\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=100\n"
)
STAT = b"cpu  10 20 30 400 50 6 7 80 9 9\ncpu0 10 20 30 400 50 6 7 80 9 9\nintr 1 2\n"
MEMINFO = (
    b"MemTotal:        1000 kB\nMemFree:          300 kB\nMemAvailable:     600 kB\nBuffers: 1 kB\n"
    b"Inactive(anon):   50 kB\nInactive(file):  100 kB\n"
)
NODE0 = b"\nNode 0 MemTotal:  1000 kB\nNode 0 MemFree:  300 kB\nNode 0 MemUsed:         700 kB\n"

Decoder = Callable[[Sequence[bytes]], Numbers]


@pytest.mark.parametrize(
    ("decode", "contents", "expected"),
    [
        (decode_cpu_stat_v1, [CPU_V1], (20, 5)),
        (decode_cpu_stat_v2, [CPU_V2], (900, 20, 5)),
        (decode_cpu_stat_v2, [b"usage_usec 900\nuser_usec 600\nsystem_usec 300\n"], (900,)),
        (decode_memory_stat_v1, [b"100\n", MEMORY_V1], (100, 5, 33)),
        (decode_memory_stat_v2, [b"100\n", MEMORY_V2], (100, 5, 33)),
        (decode_numa_stat_v1, [NUMA_V1], (10 * PAGE, 0, 2 * PAGE)),
        (decode_numa_stat_v2, [NUMA_V2], (120, 7)),
        (decode_pressure, [PRESSURE], (400, 100)),
        (decode_pressure, [PRESSURE.partition(b"full")[0]], (400,)),
        (decode_proc_stat, [STAT], (10 + 20 + 30 + 6 + 7,)),
        (decode_steal, [STAT], (80,)),
        (decode_loadavg, [b"0.20 0.18 0.12 1/80 11206\n"], (20,)),
        (decode_loadavg, [b"123.45 0.18 0.12 1/80 11206\n"], (12_345,)),
        (decode_kswapd, [VMSTAT], (12,)),
        (decode_schedstat, [SCHEDSTAT], (500, 70, 0, 0, 600, 80)),
        (decode_meminfo, [MEMINFO], (1000 * 1024, 300 * 1024, 600 * 1024, 100 * 1024)),
        (decode_numa_meminfo, [NODE0, NODE0.replace(b"700", b"1")], (700 * 1024, 1024)),
    ],
)
def test_contents(decode: Decoder, contents: Sequence[bytes], expected: Numbers) -> None:
    assert decode(contents) == expected


@pytest.mark.parametrize(
    ("decode", "contents"),
    [
        (decode_cpu_stat_v1, [b""]),
        (decode_cpu_stat_v1, [CPU_V1.replace(b"20", b"-20")]),
        (decode_cpu_stat_v1, [CPU_V1.replace(b"20", b"2" * 21)]),
        (decode_cpu_stat_v2, [CPU_V1]),
        (decode_cpu_stat_v2, [CPU_V2.partition(b"nr_throttled")[0]]),
        (decode_memory_stat_v1, [b"max\n", MEMORY_V1]),
        (decode_memory_stat_v1, [b"1_0\n", MEMORY_V1]),
        (decode_memory_stat_v1, [b"100\n", MEMORY_V2]),
        (decode_memory_stat_v2, [b"100\n", MEMORY_V2[:100]]),
        (decode_numa_stat_v1, [b"total=9 N0=9\n"]),
        (decode_numa_stat_v1, [b"hierarchical_total=0\n"]),
        (decode_numa_stat_v1, [b"hierarchical_total=0 N99999=1\n"]),
        (decode_numa_stat_v2, [b"anon N0=1\n"]),
        (decode_numa_stat_v2, [b"anon N0=1 N1=1\nfile N0=1\n"]),
        (decode_pressure, [b"full avg10=0.00 avg60=0.00 avg300=0.00 total=100\n"]),
        (decode_pressure, [PRESSURE[:30]]),
        (decode_proc_stat, [b"cpu 1 2 3\n"]),
        (decode_proc_stat, [b"intr 1 2 3 4 5 6 7 8 9\n"]),
        (decode_steal, [b"cpu 1 2 3 4 5 6 7\n"]),
        (decode_steal, [b"cpu 1 2 3 4 5 6 7 -8 9\n"]),
        (decode_loadavg, [b"1 2 3 1/80 11206\n"]),
        (decode_loadavg, [b"-1.00 2 3 1/80 11206\n"]),
        (decode_kswapd, [b"pgsteal_direct 3\n"]),
        (decode_schedstat, [b"version 15\ncpu0 1 2 3\n"]),
        (decode_meminfo, [MEMINFO.replace(b"MemAvailable", b"MemUsable")]),
        (decode_numa_meminfo, [b""]),
    ],
)
def test_other_contents(decode: Decoder, contents: Sequence[bytes]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode(contents)


@pytest.mark.parametrize(
    ("decode", "line"),
    [
        (decode_cpu_stat_v1, b"nr_periods 1\n"),
        (decode_cpu_stat_v2, b"usage_usec 1\nnr_periods 1\n"),
        (decode_memory_stat_v1, b"total_inactive_anon 1\ntotal_active_anon 1\n"),
        (decode_memory_stat_v2, b"\ninactive_anon 1\nactive_anon 1\n"),
    ],
)
def test_a_megabyte_of_the_same_keys_does_not_hold_up_the_process(decode: Decoder, line: bytes) -> None:
    """The lock of the interpreter is held while a regular expression searches."""
    started_s = time.thread_time()
    with pytest.raises(ValueError, match="not as expected"):
        decode([b"1\n", line * ((1 << 20) // len(line))][-1 if "cpu" in decode.__name__ else 0 :])
    assert time.thread_time() - started_s < 2.0


EVERY_SOURCE = [
    *(
        each
        for sources in (CPU_SOURCES, MEMORY_SOURCES, PRESSURE_SOURCES)
        for each in [*sources[1], *sources[2]]
    ),
    *node_sources([0, 1]),
]
WORDS = st.sampled_from(
    [
        *(
            CPU_V1
            + CPU_V2
            + MEMORY_V1
            + MEMORY_V2
            + NUMA_V1
            + NUMA_V2
            + PRESSURE
            + STAT
            + MEMINFO
            + NODE0
            + VMSTAT
            + SCHEDSTAT
        ).split(),
        b"\n",
        b" ",
        b"=",
        b"-1",
        b"\xff",
    ]
)


@given(st.sampled_from(EVERY_SOURCE), st.lists(WORDS, max_size=40), st.sampled_from([b" ", b"\n"]))
def test_no_content_is_another_error(source: FileGroup, words: list[bytes], separator: bytes) -> None:
    content = separator.join(words)
    with contextlib.suppress(ValueError):
        assert all(number >= 0 for number in source.decode([content] * len(source.files)))


def source_of(sources: Sequence[FileGroup], metric: Metric) -> FileGroup:
    return next(each for each in sources if metric in each.metrics)


@pytest.mark.parametrize(
    ("source", "growth", "elapsed_s", "expected"),
    [
        (source_of(CPU_SOURCES[1], Metric.CPU_USAGE), (3_000_000_000,), 2.0, (1.5,)),
        (source_of(CPU_SOURCES[1], Metric.CPU_THROTTLED), (20, 5), 2.0, (0.25,)),
        (source_of(CPU_SOURCES[1], Metric.CPU_THROTTLED), (0, 0), 2.0, (0.0,)),
        (source_of(CPU_SOURCES[2], Metric.CPU_USAGE), (3_000_000, 20, 5), 2.0, (1.5, 0.25)),
        (source_of(CPU_SOURCES[2], Metric.CPU_USAGE), (3_000_000,), 2.0, (1.5,)),
        (source_of(PRESSURE_SOURCES[2], Metric.IO_PRESSURE), (500_000, 100_000), 1.0, (0.5, 0.1)),
        (source_of(PRESSURE_SOURCES[2], Metric.CPU_PRESSURE), (1_200_000,), 1.0, (1.0,)),
        (source_of(node_sources([]), Metric.CPU_USAGE), (3 * os.sysconf("SC_CLK_TCK"),), 2.0, (1.5,)),
        (source_of(node_sources([]), Metric.CPU_STEAL), (os.sysconf("SC_CLK_TCK"),), 2.0, (0.5,)),
        (source_of(node_sources([]), Metric.KSWAPD_STEAL), (9_000,), 2.0, (4_500.0,)),
        # A CPU runs one task half of the time, and on the average one and a half wait; the other one is idle.
        (
            source_of(node_sources([]), Metric.CPU_RUNNABLE),
            (1_000_000_000, 3_000_000_000, 0, 0),
            2.0,
            (2.0, 0.0),
        ),
    ],
)
def test_counters(source: FileGroup, growth: Numbers, elapsed_s: float, expected: Values) -> None:
    assert source.rate is not None
    assert source.rate(growth, elapsed_s) == expected


@pytest.mark.parametrize(
    ("source", "numbers", "expected"),
    [
        (source_of(MEMORY_SOURCES[1], Metric.MEMORY_USAGE), (100, 5, 33), (100.0, 95.0, 33.0)),
        (source_of(MEMORY_SOURCES[2], Metric.MEMORY_USAGE), (4, 5, 33), (4.0, 0.0, 33.0)),
        (source_of(MEMORY_SOURCES[2], Metric.MEMORY_NUMA), (4, 5), (4.0, 5.0)),
        (
            source_of(node_sources([]), Metric.MEMORY_USAGE),
            (1000, 300, 600, 100),
            (700.0, 600.0, 400.0, 300.0, 1000.0),
        ),
    ],
)
def test_gauges(source: FileGroup, numbers: Numbers, expected: Values) -> None:
    assert source.gauge is not None
    assert source.gauge(numbers) == expected


def test_what_cannot_be() -> None:
    with pytest.raises(ImplausibleError):
        throttled_share(4, 5)
    pressure = source_of(PRESSURE_SOURCES[2], Metric.CPU_PRESSURE)
    assert pressure.rate is not None
    with pytest.raises(ImplausibleError):
        pressure.rate((9_000_000, 0), 1.0)
    meminfo = source_of(node_sources([]), Metric.MEMORY_USAGE)
    assert meminfo.gauge is not None
    with pytest.raises(ImplausibleError):
        meminfo.gauge((100, 200, 50, 0))


@pytest.mark.parametrize(
    ("versions", "metrics"),
    [
        ({}, set()),
        ({"cpu": 1}, {Metric.CPU_THROTTLED}),
        (
            {"memory": 2},
            {Metric.MEMORY_WITH_CACHE, Metric.MEMORY_USAGE, Metric.MEMORY_WORKING_SET, Metric.MEMORY_NUMA},
        ),
        ({"cpu": 1, "cpuacct": 1, "memory": 1}, set(Metric) - NOT_IN_FILES_OF_CGROUPS),
        ({"cpu": 2, "memory": 2}, set(Metric) - NOT_IN_FILES_OF_CGROUPS),
    ],
)
def test_sources_of_the_mounts(versions: dict[str, int], metrics: set[Metric]) -> None:
    mounts = {controller: Mount(version, Path("/")) for controller, version in versions.items()}
    assert {metric for source in cgroup_sources(mounts) for metric in source.metrics} == metrics
