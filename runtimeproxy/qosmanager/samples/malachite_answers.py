"""Answers of Malachite as the numbers that the kernel's files have: endpoints, keys, and their time. Pure.

An answer gives the same numbers as the files of a `FileGroup`, in the same order, so that samples are made
of them as of the files. What is missing or of a wrong type costs its group of metrics, not the answer.
Source of the formats: Malachite server/src/system/response_mod.rs, lib/src/psi.rs,
lib/src/cgroup/{cg,cpu_cg,memory_cg,blkio_cg}.rs, lib/src/system/{memory,numa_node}.rs; katalyst-core
pkg/metaserver/agent/metric/provisioner/malachite/types.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

from runtimeproxy.documents.reading import InputError, parse_json
from runtimeproxy.qosmanager.samples.kernel_files import Numbers
from runtimeproxy.qosmanager.snapshot import Metric

COMPUTE: Final = "/api/v1/system/compute"
MEMORY: Final = "/api/v1/system/memory"
IO: Final = "/api/v1/system/io"
_CGROUP: Final = "/api/v1/cgroup/groups?cgroup_user_path="

_MOST: Final = 2**64 - 1
"""Malachite's numbers are of 64 bits."""
_KIB: Final = 1024
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class AnswerError(Exception):
    """An answer, or a part of it, that cannot be used; the text says why."""


class Reading(NamedTuple):
    """What an answer has of one group of metrics."""

    updated_s: int
    """When Malachite read it, in seconds since the epoch; the fraction is cut off."""
    numbers: Numbers = ()
    """As those of the kernel's files. Empty if there is a rate."""
    rate: float | None = None
    """A rate over Malachite's own interval, where an answer has no counter."""


Readings: TypeAlias = Mapping[Metric, Reading | str]
"""By the first metric of the group; a text says why there is none."""


def cgroup_path(cgroup: str) -> str:
    """The path and query of a cgroup's answer."""
    return _CGROUP + quote(cgroup)


def data_of(body: bytes) -> Mapping[str, Any]:
    """The data of an answer whose status is 0. Raises AnswerError."""
    try:
        document = parse_json(body)
    except InputError as error:
        raise AnswerError(f"the answer is not JSON: {str(error)[:80]}") from None
    if not isinstance(document, dict):
        raise AnswerError("the answer is not an object of JSON")
    status = document.get("status")
    if isinstance(status, bool) or status != 0:
        message = document.get("message")
        # Escaped: it goes to logs and reports.
        more = f": {json.dumps(message)[:80]}" if isinstance(message, str) else ""
        raise AnswerError(f"status is {json.dumps(status)[:40]}{more}")
    data = document.get("data")
    if not isinstance(data, dict):
        raise AnswerError("the answer has no data")
    return data


def cgroup_readings(
    data: Mapping[str, Any], cgroup: str, versions: Mapping[Metric, int], numa_nodes: int
) -> Readings:
    """The readings of a cgroup.

    Args:
        data: Of the answer.
        cgroup: The one that was asked for.
        versions: The cgroup version of each group that is wanted.
        numa_nodes: How many this node has: 0 to n.

    Raises:
        AnswerError: it is of another cgroup.
    """
    path = data.get("user_path", cgroup)
    if not isinstance(path, str) or path.strip("/") != cgroup.strip("/"):
        raise AnswerError("the answer is of another cgroup")
    kind = data.get("cgroup_type")
    if not isinstance(kind, str) or kind not in _CGROUP_GROUPS:
        raise AnswerError(f"cgroup_type is {json.dumps(kind)[:40]}")
    version, groups = _CGROUP_GROUPS[kind]
    found: dict[Metric, Reading | str] = {}
    for metric, wanted in versions.items():
        if wanted != version:
            found[metric] = f"cgroup_type is {kind}, and this node's is version {wanted}"
        elif metric in groups:
            part, key, reader = groups[metric]
            found[metric] = _tried(partial(_cgroup_part, data, part, key, kind), reader, numa_nodes)
        else:
            found[metric] = "Malachite does not have it"
    return found


def node_readings(path: str, data: Mapping[str, Any], numa_nodes: int) -> Readings:
    """The readings of the answer of one endpoint of the node."""
    return {
        metric: _tried(lambda: data, reader, numa_nodes)
        for metric, (endpoint, reader) in NODE_GROUPS.items()
        if endpoint == path
    }


def _tried(
    part: Callable[[], Mapping[str, Any]],
    reader: Callable[[Mapping[str, Any], int], Reading],
    numa_nodes: int,
) -> Reading | str:
    try:
        return reader(part(), numa_nodes)
    except AnswerError as error:
        return str(error)


def _cgroup_part(data: Mapping[str, Any], part: str, key: str, kind: str) -> Mapping[str, Any]:
    return _object(_object(_object(_object(data, "sub_system_groups"), part), key), kind)


def _object(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = of.get(key)
    if not isinstance(found, dict):
        raise AnswerError(f"the answer has no {key}")
    return found


def _number(of: Mapping[str, Any], key: str) -> int:
    """A whole number; totals of pressure are floating-point numbers there."""
    found = of.get(key)
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= _MOST:
        raise AnswerError(
            f"the answer has no {key}" if found is None else f"{key} is not a number of 64 bits"
        )
    return found


def _updated_s(*parts: Mapping[str, Any]) -> int:
    """The time of the first part that has one: Malachite has 0 where it does not know it."""
    for part in parts:
        found = part.get("update_time")
        if isinstance(found, int) and not isinstance(found, bool) and 0 < found <= _MOST:
            return found
    raise AnswerError("the answer has no update_time, so its age is not known")


def _cpu_v1(cpu: Mapping[str, Any], _: int) -> Reading:
    usage = _object(cpu, "new_cpu_basic_info")
    return Reading(_updated_s(usage, cpu), (_number(usage, "cpu_usage"),))


def _throttled_v1(cpu: Mapping[str, Any], _: int) -> Reading:
    return Reading(_updated_s(cpu), (_number(cpu, "cpu_nr_periods"), _number(cpu, "cpu_nr_throttled")))


def _cpu_v2(cpu: Mapping[str, Any], _: int) -> Reading:
    stats = _object(cpu, "cpu_stats")
    numbers = tuple(_number(stats, key) for key in ("usage_usec", "nr_periods", "nr_throttled"))
    return Reading(_updated_s(stats, cpu), numbers)


def _memory_v1(memory: Mapping[str, Any], _: int) -> Reading:
    # It has no total_unevictable. These are the same pages, of anonymous memory and of tmpfs, on any list.
    without_cache = _number(memory, "total_rss") + _number(memory, "total_shmem")
    numbers = _number(memory, "memory_usage_in_bytes"), _number(memory, "total_inactive_file"), without_cache
    return Reading(_updated_s(memory), numbers)


def _memory_v2(memory: Mapping[str, Any], _: int) -> Reading:
    stats = _object(memory, "mem_stats")
    without_cache = sum(_number(stats, key) for key in ("inactive_anon", "active_anon", "unevictable"))
    numbers = _number(memory, "memory_usage_in_bytes"), _number(stats, "inactive_file"), without_cache
    return Reading(_updated_s(memory), numbers)


def _numa_v1(memory: Mapping[str, Any], numa_nodes: int) -> Reading:
    by_name = {str(each.get("numa_name")): each for each in _objects(memory, "numa_stat")}
    pages = [_number(_numa_node(by_name, node), "hierarchical_total") for node in range(numa_nodes)]
    return Reading(_updated_s(memory), tuple(each * _PAGE_BYTES for each in pages))


def _numa_v2(memory: Mapping[str, Any], numa_nodes: int) -> Reading:
    by_name = _object(memory, "mem_numa_stats")
    nodes = [_numa_node(by_name, node) for node in range(numa_nodes)]
    return Reading(_updated_s(memory), tuple(_number(each, "anon") + _number(each, "file") for each in nodes))


def _numa_node(by_name: Mapping[str, Any], node: int) -> Mapping[str, Any]:
    found = by_name.get(f"N{node}")
    if not isinstance(found, dict):
        raise AnswerError(f"the answer has no NUMA node {node}")
    return found


def _objects(of: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    found = of.get(key)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise AnswerError(f"the answer has no {key}")
    return found


def _pressure(key: str, of: Mapping[str, Any], *parts: Mapping[str, Any]) -> Reading:
    pressure = _object(of, key)
    kinds = [_object(pressure, "some")]
    if pressure.get("full") is not None:
        kinds.append(_object(pressure, "full"))
    return Reading(_updated_s(*parts, of), tuple(_number(each, "total") for each in kinds))


def _cpu_pressure_v2(cpu: Mapping[str, Any], _: int) -> Reading:
    return _pressure("cpu_pressure", cpu, _object(cpu, "cpu_stats"))


def _memory_pressure_v2(memory: Mapping[str, Any], _: int) -> Reading:
    return _pressure("mem_pressure", memory)


def _io_pressure_v2(blkio: Mapping[str, Any], _: int) -> Reading:
    return _pressure("io_pressure", blkio)


def _node_pressure(data: Mapping[str, Any], _: int) -> Reading:
    return _pressure("pressure", data)


def _node_cpu(compute: Mapping[str, Any], _: int) -> Reading:
    """Usage in cores. Malachite has it in percent of all CPUs, with steal, over its own interval."""
    usage = _object(compute, "global_cpu").get("cpu_usage")
    if isinstance(usage, bool) or not isinstance(usage, int | float) or not math.isfinite(usage):
        raise AnswerError("cpu_usage is not a number")
    if not 0 <= usage <= 100:
        raise AnswerError("cpu_usage is not a percentage")
    return Reading(_updated_s(compute), rate=usage / 100 * len(_objects(compute, "cpu")))


def _node_memory(memory: Mapping[str, Any], _: int) -> Reading:
    system = _object(memory, "system")
    keys = ("mem_total", "mem_free", "mem_available", "mem_inactive_file")
    return Reading(_updated_s(memory), tuple(_number(system, key) * _KIB for key in keys))


def _node_numa(memory: Mapping[str, Any], numa_nodes: int) -> Reading:
    by_name = {f"N{each.get('id')}": each for each in _objects(memory, "numa")}
    used = [_number(_numa_node(by_name, node), "mem_used") * _KIB for node in range(numa_nodes)]
    return Reading(_updated_s(memory), tuple(used))


_Reader: TypeAlias = Callable[[Mapping[str, Any], int], Reading]

_CGROUP_GROUPS: Final[Mapping[str, tuple[int, Mapping[Metric, tuple[str, str, _Reader]]]]] = {
    "V1": (
        1,
        {
            Metric.CPU_USAGE: ("Cpuacct", "Cpu", _cpu_v1),
            Metric.CPU_THROTTLED: ("Cpuacct", "Cpu", _throttled_v1),
            Metric.MEMORY_WITH_CACHE: ("Memory", "Memory", _memory_v1),
            Metric.MEMORY_NUMA: ("Memory", "Memory", _numa_v1),
        },
    ),
    "V2": (
        2,
        {
            Metric.CPU_USAGE: ("Cpuacct", "Cpu", _cpu_v2),
            Metric.MEMORY_WITH_CACHE: ("Memory", "Memory", _memory_v2),
            Metric.MEMORY_NUMA: ("Memory", "Memory", _numa_v2),
            Metric.CPU_PRESSURE: ("Cpuacct", "Cpu", _cpu_pressure_v2),
            Metric.MEMORY_PRESSURE: ("Memory", "Memory", _memory_pressure_v2),
            Metric.IO_PRESSURE: ("Blkio", "BlkIO", _io_pressure_v2),
        },
    ),
}
"""By cgroup_type: the version, and of each group the subsystem, the key below it, and what reads it."""

NODE_GROUPS: Final[Mapping[Metric, tuple[str, _Reader]]] = {
    Metric.CPU_USAGE: (COMPUTE, _node_cpu),
    Metric.CPU_PRESSURE: (COMPUTE, _node_pressure),
    Metric.MEMORY_WITH_CACHE: (MEMORY, _node_memory),
    Metric.MEMORY_NUMA: (MEMORY, _node_numa),
    Metric.MEMORY_PRESSURE: (MEMORY, _node_pressure),
    Metric.IO_PRESSURE: (IO, _node_pressure),
}
"""Of each group the endpoint, and what reads it."""


def covers(version: int, metric: Metric) -> bool:
    """Whether Malachite has a group of metrics of cgroups of this version."""
    return metric in _CGROUP_GROUPS[f"V{version}"][1]
