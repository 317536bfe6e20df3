"""What an advisor decides by, kept for a replay: a line of JSON for each moment, a file for each day.

A replay makes the same snapshots again, as far as an advisor depends on them: the pods in pools with their
requests and samples, pools and settings, the node.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from runtimeproxy.documents.reading import InputError, parse_json
from runtimeproxy.qosmanager.plugin import Need
from runtimeproxy.qosmanager.snapshot import (
    NODE_CGROUP,
    Container,
    Cpu,
    CpuPools,
    Level,
    Metric,
    Metrics,
    Node,
    Pod,
    PoolMember,
    Snapshot,
    Window,
)
from runtimeproxy.units import format_cpu_list, parse_cpu_list

VERSION: Final = 1
INTERVAL_S: Final = 10.0
"""Between two lines."""
MOST_BYTES: Final = 256 << 20
"""Of one day: 250 pods make about half of it."""
MOST_FILES: Final = 8
"""Older days are removed."""
_PATTERN: Final = "advisor-*.jsonl"


class InputRecorder:
    """Writes the files below a folder; none if that is empty."""

    def __init__(self, folder: str, needs: Iterable[Need]) -> None:
        self._folder = folder
        self._needs = frozenset(needs)
        self._due_s = float("-inf")
        self._problem = ""

    def write(self, snapshot: Snapshot) -> str:
        """Write a line if one is due; returns why the last one could not be written, else an empty text."""
        is_due = snapshot.now_s >= self._due_s
        if self._folder and is_due and snapshot.node.cpu_pools is not None:
            self._due_s = snapshot.now_s + INTERVAL_S
            self._problem = self._write(snapshot)
        return self._problem

    def _write(self, snapshot: Snapshot) -> str:
        folder = Path(self._folder)
        day = time.strftime("%Y-%m-%d", time.gmtime(snapshot.wall_s))
        line = json.dumps(as_document(snapshot, self._needs), separators=(",", ":")) + "\n"
        try:
            file = folder / f"advisor-{day}.jsonl"
            is_new = not file.exists()
            if not is_new and file.stat().st_size + len(line) > MOST_BYTES:
                return f"{file} is full: nothing more of this day is recorded"
            descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "a", encoding="utf-8") as stream:
                stream.write(line)
            if is_new:
                for old in sorted(folder.glob(_PATTERN))[:-MOST_FILES]:
                    old.unlink()
        except OSError as error:
            return f"{folder} cannot be written: {error.strerror}"
        return ""


def as_document(snapshot: Snapshot, needs: Iterable[Need]) -> dict[str, Any]:
    """Return a moment as JSON values; only pods that are in pools."""
    node, pools = snapshot.node, snapshot.node.cpu_pools or CpuPools()
    cgroups = {NODE_CGROUP: Level.NODE}
    pods = [pod for pod in snapshot.pods if pod.uid in pools.members]
    cgroups |= {pod.cgroup: Level.POD for pod in pods if pod.cgroup}
    samples: dict[str, dict[str, tuple[float, float]]] = {}
    for need in sorted(needs):
        for cgroup in (each for each, level in cgroups.items() if level is need.level):
            window = snapshot.metrics.window(cgroup, need.metric, INTERVAL_S)
            if window is not None:
                samples.setdefault(cgroup, {})[need.metric] = round(window.last, 4), round(window.avg, 4)
    numa = snapshot.metrics.numa_windows(NODE_CGROUP, INTERVAL_S)
    return {
        "version": VERSION,
        "now_s": round(snapshot.now_s, 3),
        "wall_s": round(snapshot.wall_s, 3),
        "node": {
            "cpus": [list(cpu) for cpu in node.cpus],
            "capacity": dict(node.capacity),
            "reserved": dict(node.reserved),
            "cgroup_version": node.cgroup_version,
            "memory_bytes": {str(number): size for number, size in node.memory_bytes.items()},
        },
        "pools": {name: format_cpu_list(cpus) for name, cpus in pools.pools.items()},
        "settings": {
            "enable_reclaim": pools.enable_reclaim,
            "overlap": pools.overlap,
            "least_reclaim_cpus": pools.least_reclaim_cpus,
            "reserved_cpus": format_cpu_list(pools.reserved_cpus),
        },
        "pods": [
            {
                "uid": pod.uid,
                "namespace": pod.namespace,
                "name": pod.name,
                "cgroup": pod.cgroup,
                "containers": {each.name: dict(each.requests) for each in pod.containers},
                **_member_document(pools.members[pod.uid]),
            }
            for pod in pods
        ],
        "samples": samples,
        "numa": {str(number): [window.last, window.avg] for number, window in numa.items()},
    }


def _member_document(member: PoolMember) -> dict[str, Any]:
    return {
        "level": member.level,
        "pool": member.pool,
        "cpus": format_cpu_list(member.cpus),
        "own_cpus": format_cpu_list(member.own_cpus),
        "numa_nodes": format_cpu_list(member.numa_nodes),
        "is_ramping_up": member.is_ramping_up,
    }


def moments(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the moments of a recording; a last line that was cut is left out.

    Raises:
        ValueError: A line is of another version, or none.
    """
    waiting: ValueError | None = None
    for number, line in enumerate(lines, 1):
        if waiting is not None:
            raise waiting
        try:
            found = parse_json(line)
        except InputError:
            waiting = ValueError(f"line {number} is no JSON")
            continue
        if not isinstance(found, dict) or found.get("version") != VERSION:
            raise ValueError(f"line {number} is no moment of version {VERSION}")
        yield found


class RecordedMetrics(Metrics):
    """The samples of a recording, up to the present moment."""

    def __init__(self, longest_s: float = 3_600.0) -> None:
        self._longest_s = longest_s
        self._moments: list[tuple[float, Mapping[str, Mapping[str, tuple[float, float]]]]] = []
        self._numa: Mapping[str, tuple[float, float]] = {}

    def add(self, moment: Mapping[str, Any]) -> None:
        """The next moment is the present one."""
        now_s = float(moment["now_s"])
        self._moments = [each for each in self._moments if each[0] > now_s - self._longest_s]
        self._moments.append((now_s, moment["samples"]))
        self._numa = moment["numa"]

    def window(self, cgroup: str, metric: Metric, length_s: float) -> Window | None:
        now_s = self._moments[-1][0]
        # The last moment is of now, however short the window is.
        found = [
            samples[cgroup][metric]
            for at_s, samples in self._moments
            if (at_s > now_s - length_s or at_s == now_s) and metric in samples.get(cgroup, {})
        ]
        if not found or metric not in self._moments[-1][1].get(cgroup, {}):
            return None
        means = sorted(avg for _, avg in found)
        p50, p90, p95, p99 = (means[min(int(len(means) * p), len(means) - 1)] for p in (0.5, 0.9, 0.95, 0.99))
        return Window(found[-1][0], sum(means) / len(means), p50, p90, p95, p99, len(means))

    def numa_windows(self, cgroup: str, length_s: float) -> Mapping[int, Window]:
        if cgroup != NODE_CGROUP:
            return {}
        return {
            int(number): Window(last, avg, avg, avg, avg, avg, 1)
            for number, (last, avg) in self._numa.items()
        }


def snapshot_of(moment: Mapping[str, Any], metrics: RecordedMetrics) -> Snapshot:
    """Return the snapshot of a moment, which `metrics` has already.

    Raises:
        One of KeyError, TypeError, ValueError: It is none.
    """
    node, settings = moment["node"], moment["settings"]
    members = {
        pod["uid"]: PoolMember(
            pod["level"],
            pod["pool"],
            parse_cpu_list(pod["cpus"]),
            parse_cpu_list(pod["own_cpus"]),
            parse_cpu_list(pod["numa_nodes"]),
            pod["is_ramping_up"],
        )
        for pod in moment["pods"]
    }
    pools = CpuPools(
        pools={name: parse_cpu_list(cpus) for name, cpus in moment["pools"].items()},
        members=members,
        enable_reclaim=settings["enable_reclaim"],
        overlap=settings["overlap"],
        least_reclaim_cpus=settings["least_reclaim_cpus"],
        reserved_cpus=parse_cpu_list(settings["reserved_cpus"]),
    )
    return Snapshot(
        now_s=float(moment["now_s"]),
        wall_s=float(moment["wall_s"]),
        pods=tuple(
            Pod(
                sandbox_id=pod["uid"],
                uid=pod["uid"],
                namespace=pod["namespace"],
                name=pod["name"],
                cgroup=pod["cgroup"],
                containers=tuple(
                    Container(id=f"{pod['uid']}/{name}", name=name, requests=requests)
                    for name, requests in pod["containers"].items()
                ),
            )
            for pod in moment["pods"]
        ),
        node=Node(
            cpus=tuple(Cpu(*cpu) for cpu in node["cpus"]),
            capacity=node["capacity"],
            reserved=node["reserved"],
            cgroup_version=node["cgroup_version"],
            memory_bytes={int(number): size for number, size in node["memory_bytes"].items()},
            cpu_pools=pools,
        ),
        metrics=metrics,
    )
