"""Answers of Malachite as numbers of the kernel's files: both versions, the node, and what else is sent."""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.qosmanager.samples.malachite_answers import (
    COMPUTE,
    IO,
    MEMORY,
    AnswerError,
    Reading,
    Readings,
    cgroup_path,
    cgroup_readings,
    data_of,
    node_readings,
)
from runtimeproxy.qosmanager.snapshot import Metric

PAGE = os.sysconf("SC_PAGE_SIZE")
POD = "/kubepods/burstable/pod1"


def pressure() -> dict[str, Any]:
    return {"some": {"avg10": 1.5, "total": 700.0}, "full": {"avg10": 0.5, "total": 300.0}}


V1 = {
    "mount_point": "/sys/fs/cgroup",
    "user_path": POD,
    "cgroup_type": "V1",
    "sub_system_groups": {
        "Cpuacct": {
            "Cpu": {
                "V1": {
                    "new_cpu_basic_info": {"cpu_usage": 5_000_000_000, "update_time": 100},
                    "cpu_nr_periods": 40,
                    "cpu_nr_throttled": 4,
                    "cpu_usage_ratio": 0.5,
                    "update_time": 101,
                }
            }
        },
        "Memory": {
            "Memory": {
                "V1": {
                    "memory_usage_in_bytes": 900,
                    "total_rss": 300,
                    "total_shmem": 20,
                    "total_inactive_file": 100,
                    "numa_stat": [
                        {"numa_name": "N1", "total": 1, "hierarchical_total": 5},
                        {"numa_name": "N0", "total": 1, "hierarchical_total": 3},
                    ],
                    "update_time": 102,
                }
            }
        },
        "Cpuset": {"CpuSet": {"V1": {"cpus": {"meta": "0-1", "inner": [0, 1]}, "update_time": 1}}},
        "NetCls": {"Net": {"bpf_net_data": {}, "update_time": 1}},
    },
}
V2 = {
    "mount_point": "/sys/fs/cgroup",
    "user_path": POD.strip("/"),
    "cgroup_type": "V2",
    "sub_system_groups": {
        "Cpuacct": {
            "Cpu": {
                "V2": {
                    "cpu_stats": {"usage_usec": 7_000, "nr_periods": 30, "nr_throttled": 3},
                    "cpu_pressure": {"some": {"total": 70.0}, "full": None},
                    "max": 2**64 - 1,
                    "update_time": 103,
                }
            }
        },
        "Memory": {
            "Memory": {
                "V2": {
                    "mem_stats": {
                        "inactive_anon": 100,
                        "active_anon": 20,
                        "unevictable": 3,
                        "inactive_file": 50,
                    },
                    "mem_numa_stats": {"N0": {"anon": 7, "file": 8}, "N1": {"anon": 1, "file": 2}},
                    "mem_pressure": pressure(),
                    "memory_usage_in_bytes": 900,
                    "max": 2**64 - 1,
                    "update_time": 104,
                }
            }
        },
        "Blkio": {"BlkIO": {"V2": {"io_pressure": pressure(), "update_time": 105}}},
    },
}
EXPECTED_V1 = {
    Metric.CPU_USAGE: Reading(100, (5_000_000_000,)),
    Metric.CPU_THROTTLED: Reading(101, (40, 4)),
    Metric.MEMORY_WITH_CACHE: Reading(102, (900, 100, 320)),
    Metric.MEMORY_NUMA: Reading(102, (3 * PAGE, 5 * PAGE)),
}
EXPECTED_V2 = {
    Metric.CPU_USAGE: Reading(103, (7_000, 30, 3)),
    Metric.MEMORY_WITH_CACHE: Reading(104, (900, 50, 123)),
    Metric.MEMORY_NUMA: Reading(104, (15, 3)),
    Metric.CPU_PRESSURE: Reading(103, (70,)),
    Metric.MEMORY_PRESSURE: Reading(104, (700, 300)),
    Metric.IO_PRESSURE: Reading(105, (700, 300)),
}
NODE: dict[str, dict[str, Any]] = {
    COMPUTE: {
        "global_cpu": {"cpu_usage": 25.0},
        "cpu": [{"name": "cpu0"}, {"name": "cpu1"}],
        "pressure": pressure(),
        "update_time": 106,
    },
    MEMORY: {
        "system": {"mem_total": 100, "mem_free": 40, "mem_available": 60, "mem_inactive_file": 10},
        "numa": [{"id": 1, "mem_used": 5}, {"id": 0, "mem_used": 3}],
        "update_time": 107,
    },
    IO: {"disk_io": [], "pressure": pressure(), "update_time": 108},
}


def readings(document: Any, version: int = 0) -> Readings:
    metrics = EXPECTED_V1 if document["cgroup_type"] == "V1" else EXPECTED_V2
    return cgroup_readings(document, POD, dict.fromkeys(metrics, version or metrics_version(document)), 2)


def metrics_version(document: Any) -> int:
    return 1 if document["cgroup_type"] == "V1" else 2


def changed(document: Any, path: str, value: object) -> Any:
    """A copy with another value at a path; of a list the number is a key."""
    made = copy.deepcopy(document)
    *keys, last = path.split(".")
    at = made
    for key in keys:
        at = at[int(key)] if isinstance(at, list) else at[key]
    at[last] = value
    return made


def test_cgroups_of_both_versions() -> None:
    assert readings(V1) == EXPECTED_V1
    assert readings(V2) == EXPECTED_V2


def test_the_node() -> None:
    assert node_readings(COMPUTE, NODE[COMPUTE], 2) == {
        Metric.CPU_USAGE: Reading(106, rate=0.5),
        Metric.CPU_PRESSURE: Reading(106, (700, 300)),
    }
    assert node_readings(MEMORY, NODE[MEMORY], 2) == {
        Metric.MEMORY_WITH_CACHE: Reading(107, (102_400, 40_960, 61_440, 10_240)),
        Metric.MEMORY_NUMA: Reading(107, (3_072, 5_120)),
        Metric.MEMORY_PRESSURE: "the answer has no pressure",
    }
    assert node_readings(IO, NODE[IO], 2) == {Metric.IO_PRESSURE: Reading(108, (700, 300))}


CPU_V1 = "sub_system_groups.Cpuacct.Cpu.V1"
CPU_V2 = "sub_system_groups.Cpuacct.Cpu.V2"
MEMORY_V1 = "sub_system_groups.Memory.Memory.V1"
MEMORY_V2 = "sub_system_groups.Memory.Memory.V2"
_MEMORY_GROUPS = {Metric.MEMORY_WITH_CACHE, Metric.MEMORY_NUMA}


@pytest.mark.parametrize(
    ("document", "path", "value", "lost", "reason"),
    [
        (V1, f"{CPU_V1}.cpu_nr_periods", None, {Metric.CPU_THROTTLED}, "the answer has no cpu_nr_periods"),
        (V1, f"{CPU_V1}.cpu_nr_periods", "40", {Metric.CPU_THROTTLED}, "not a number"),
        (V1, f"{CPU_V1}.cpu_nr_periods", True, {Metric.CPU_THROTTLED}, "not a number"),
        (V1, f"{CPU_V1}.cpu_nr_periods", -1, {Metric.CPU_THROTTLED}, "not a number"),
        (V1, f"{CPU_V1}.cpu_nr_periods", 2**64, {Metric.CPU_THROTTLED}, "not a number"),
        (V1, f"{CPU_V1}.cpu_nr_periods", 0.5, {Metric.CPU_THROTTLED}, "not a number"),
        (V1, f"{CPU_V1}.cpu_nr_periods", 1e400, {Metric.CPU_THROTTLED}, "not a number"),
        (V1, f"{CPU_V1}.new_cpu_basic_info", [], {Metric.CPU_USAGE}, "no new_cpu_basic_info"),
        # Earlier versions of Malachite do not have it: the whole group is the kernel's then.
        (V1, f"{MEMORY_V1}.total_inactive_file", None, {Metric.MEMORY_WITH_CACHE}, "no total_inactive_file"),
        (V1, f"{MEMORY_V1}.numa_stat", None, {Metric.MEMORY_NUMA}, "no numa_stat"),
        (V1, f"{MEMORY_V1}.numa_stat", [{"numa_name": "N0"}], {Metric.MEMORY_NUMA}, "no hierarchical_total"),
        (V1, f"{MEMORY_V1}.update_time", 0, _MEMORY_GROUPS, "no update_time"),
        (V1, "sub_system_groups.Memory", None, _MEMORY_GROUPS, "no Memory"),
        (V1, "sub_system_groups.Memory.Memory", {"V2": {}}, _MEMORY_GROUPS, "no V1"),
        (V1, "sub_system_groups", [1], set(EXPECTED_V1), "no sub_system_groups"),
        (V2, f"{CPU_V2}.cpu_stats.usage_usec", None, {Metric.CPU_USAGE}, "no usage_usec"),
        (V2, f"{CPU_V2}.update_time", "now", {Metric.CPU_USAGE, Metric.CPU_PRESSURE}, "no update_time"),
        (V2, f"{MEMORY_V2}.mem_stats.unevictable", {}, {Metric.MEMORY_WITH_CACHE}, "unevictable"),
        (V2, f"{MEMORY_V2}.mem_numa_stats.N1", None, {Metric.MEMORY_NUMA}, "no NUMA node 1"),
        (V2, f"{MEMORY_V2}.mem_pressure.some", None, {Metric.MEMORY_PRESSURE}, "no some"),
        (V2, f"{MEMORY_V2}.mem_pressure.full", 7, {Metric.MEMORY_PRESSURE}, "no full"),
    ],
)
def test_a_wrong_value_costs_its_group(
    document: Any, path: str, value: object, lost: set[Metric], reason: str
) -> None:
    expected = EXPECTED_V1 if document is V1 else EXPECTED_V2
    found = readings(changed(document, path, value))
    assert {metric for metric, each in found.items() if isinstance(each, str)} == lost
    assert all(reason in str(found[metric]) for metric in lost), found
    assert {metric: each for metric, each in found.items() if metric not in lost} == {
        metric: each for metric, each in expected.items() if metric not in lost
    }


def test_of_version_2_the_time_of_the_counters_counts_where_there_is_one() -> None:
    later = changed(V2, f"{CPU_V2}.cpu_stats.update_time", 200)
    assert readings(later)[Metric.CPU_USAGE] == Reading(200, (7_000, 30, 3))


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (changed(V1, "user_path", "/kubepods/pod2"), "of another cgroup"),
        (changed(V1, "user_path", 5), "of another cgroup"),
        (changed(V1, "cgroup_type", "V3"), 'cgroup_type is "V3"'),
        (changed(V1, "cgroup_type", ["V1"]), "cgroup_type is"),
    ],
)
def test_an_answer_that_is_of_something_else(document: Any, reason: str) -> None:
    with pytest.raises(AnswerError, match=reason):
        readings(document)


def test_the_other_version_of_cgroups_and_what_malachite_does_not_have() -> None:
    assert set(readings(V1, version=2).values()) == {"cgroup_type is V1, and this node's is version 2"}
    found = cgroup_readings(V1, POD, {Metric.CPU_PRESSURE: 1}, 2)
    assert found == {Metric.CPU_PRESSURE: "Malachite does not have it"}


@pytest.mark.parametrize(
    ("usage", "reason"),
    [
        (None, "not a number"),
        (True, "not a number"),
        (101, "percentage"),
        (-1, "percentage"),
        ("5", "number"),
    ],
)
def test_a_node_whose_usage_cannot_be(usage: object, reason: str) -> None:
    found = node_readings(COMPUTE, changed(NODE[COMPUTE], "global_cpu.cpu_usage", usage), 2)
    assert reason in str(found[Metric.CPU_USAGE])
    assert isinstance(found[Metric.CPU_PRESSURE], Reading)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"status": ' + b"9" * 5_000 + b"}", "not JSON"),
        (b"[]", "not an object"),
        (b'{"data": {}}', "status is null"),
        (b'{"status": false, "data": {}}', "status is false"),
        (b'{"status": NaN, "data": {}}', "NaN is not a number of JSON"),
        (b'{"status": 1, "data": {}}', "status is 1"),
        (b'{"status": 1, "message": "no \\ud800"}', r'status is 1: "no \\ud800"'),
        (b'{"status": 0}', "has no data"),
        (b'{"status": 0, "data": []}', "has no data"),
    ],
)
def test_an_answer_without_data(body: bytes, reason: str) -> None:
    with pytest.raises(AnswerError, match=reason):
        data_of(body)


def test_data_and_paths() -> None:
    assert data_of(b'{"status": 0, "data": {"a": null}}') == {"a": None}
    assert cgroup_path("/a b/c&d=e") == "/api/v1/cgroup/groups?cgroup_user_path=/a%20b/c%26d%3De"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(document: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    if path:
        yield ".".join(path)
    for key, value in document.items():
        if isinstance(value, dict):
            yield from places(value, (*path, key))
        else:
            yield ".".join((*path, key))


def checked(found: Readings) -> None:
    for reading in found.values():
        if isinstance(reading, str):
            assert reading
            continue
        assert 0 < reading.updated_s < 2**64
        assert {type(each) for each in reading.numbers} <= {int}
        assert min(reading.numbers, default=0) >= 0
        assert reading.numbers or reading.rate is not None


READERS: list[tuple[Any, Callable[[Any], Readings]]] = [
    (V1, lambda data: cgroup_readings(data, POD, dict.fromkeys(Metric, 1), 2)),
    (V2, lambda data: cgroup_readings(data, POD, dict.fromkeys(Metric, 2), 2)),
    *((NODE[path], lambda data, path=path: node_readings(path, data, 2)) for path in NODE),
]


@settings(max_examples=60)
@given(st.data())
def test_any_value_at_any_place(data: st.DataObject) -> None:
    document, reader = data.draw(st.sampled_from(READERS))
    made = changed(document, data.draw(st.sampled_from(sorted(places(document)))), data.draw(VALUES))
    body = json.dumps({"status": 0, "data": made}).encode()
    # Any other error fails the test.
    with contextlib.suppress(AnswerError):
        checked(reader(data_of(body)))


@settings(max_examples=25)
@given(st.binary(max_size=50) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes(body: bytes) -> None:
    with contextlib.suppress(AnswerError):
        assert isinstance(data_of(body), dict)
