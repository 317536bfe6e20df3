"""Nodes with Katalyst's pools, for tests of what is reported of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtimeproxy.qos import QoSClass
from runtimeproxy.qosmanager.snapshot import (
    NODE_CGROUP,
    Cpu,
    CpuPools,
    Metric,
    Pod,
    PoolAdvice,
    PoolMember,
    Snapshot,
    Window,
)
from tests.qosmanager.snapshots import FixedMetrics, container_of, node_of, pod_of

GIB = 1 << 30
CPUS = tuple(Cpu(id=n, core=n % 8, socket=n % 8 // 4, numa_node=n % 8 // 2, l3=n % 8 // 4) for n in range(16))
"""2 sockets with a cache each, 4 NUMA nodes: NUMA node k has 2k, 2k + 1, 2k + 8, 2k + 9."""
MEMORY = dict.fromkeys(range(4), 8 * GIB)
POOLS = {
    "reserve": {0, 2},
    "dedicated": {1, 9},
    "share": {4, 5, 12, 13},
    "reclaim": {3, 6, 7, 8, 10, 11, 14, 15},
}
HEADROOM = PoolAdvice(headroom_millicpu=6_000, headroom_bytes=12 * GIB)
WEB = PoolMember("shared_cores", "share", frozenset(POOLS["share"]))
JOB = PoolMember("reclaimed_cores", "reclaim", frozenset(POOLS["reclaim"]))
DATABASE = PoolMember("dedicated_cores", "dedicated", frozenset({1, 9}), frozenset({1, 9}), frozenset({0}))
CACHE = PoolMember("shared_cores", "share-NUMA1", frozenset({3, 10, 11}), numa_nodes=frozenset({1}))
REQUESTS: Mapping[str, int] = {"cpu": 2_000, "memory": GIB}


def pod(name: str, qos: QoSClass = QoSClass.LS, requests: Mapping[str, int] = REQUESTS) -> Pod:
    return pod_of(name, qos, containers=(container_of(name, requests=requests),))


PODS = (pod("cache"), pod("database"), pod("job", QoSClass.BE), pod("web"))
MEMBERS = {"cache": CACHE, "database": DATABASE, "job": JOB, "web": WEB}
USAGE: Mapping[tuple[str, Metric], float | Window] = {
    (NODE_CGROUP, Metric.CPU_USAGE): 9.0,
    (NODE_CGROUP, Metric.MEMORY_USAGE): 10.0 * GIB,
    ("/kubepods/burstable/poddatabase", Metric.CPU_USAGE): 2.0,
    ("/kubepods/burstable/podcache", Metric.CPU_USAGE): 1.0,
    ("/kubepods/burstable/podweb", Metric.CPU_USAGE): 2.0,
    ("/kubepods/besteffort/podjob", Metric.CPU_USAGE): 2.0,
    ("/kubepods/burstable/podcache", Metric.MEMORY_USAGE): 1.0 * GIB,
    ("/kubepods/burstable/podweb", Metric.MEMORY_USAGE): 4.0 * GIB,
    ("/kubepods/besteffort/podjob", Metric.MEMORY_USAGE): 2.0 * GIB,
}
"""What is left of the node's 9 CPUs is 2 of the system, which has 2 for itself."""


def with_web(cores: float) -> Mapping[tuple[str, Metric], float | Window]:
    """Usage with so many CPUs of the pod web; all else is as usual."""
    node, web = (NODE_CGROUP, Metric.CPU_USAGE), ("/kubepods/burstable/podweb", Metric.CPU_USAGE)
    return {**USAGE, node: 7.0 + cores, web: cores}


def pools(**fields: Any) -> CpuPools:
    """Katalyst's pools with an advisor's headroom; fields differ."""
    made: dict[str, Any] = {
        "pools": {name: frozenset(cpus) for name, cpus in POOLS.items()},
        "members": MEMBERS,
        "enable_reclaim": True,
        "advice": {"reclaim": HEADROOM},
    }
    return CpuPools(**{**made, **fields})


def snapshot(
    *,
    usage: Mapping[tuple[str, Metric], float | Window] = USAGE,
    of_pods: tuple[Pod, ...] = PODS,
    **fields: Any,
) -> Snapshot:
    """The node; fields of it differ."""
    made: dict[str, Any] = {
        "memory_bytes": MEMORY,
        "reserved": {"cpu": 2_000, "memory": 2 * GIB},
        "cpu_pools": pools(),
        "labels": {"kubernetes.io/hostname": "node-1"},
    }
    node = node_of(CPUS, **{**made, **fields})
    return Snapshot(now_s=1.0, wall_s=1_700_000_000.0, pods=of_pods, node=node, metrics=FixedMetrics(usage))
