"""What koordlet writes to cgroups itself, and its feature gates for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

KOORDLET: Final = "koordlet"
"""Begins the name of the registration of koordlet's hook server. Source: Koordinator, koordlet.json."""
KOORDLETS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cpu.bvt_warp_ns": "GroupIdentity",
        "cpu.cfs_burst_us": "CPUBurst",
        "cpu.idle": "CoreSched",
        "memory.high": "CgroupReconcile",
        "memory.low": "CgroupReconcile",
        "memory.min": "CgroupReconcile",
        "memory.oom.group": "CgroupReconcile",
        "memory.pagecache_limit.enable": "CgroupReconcile",
        "memory.pagecache_limit.size": "CgroupReconcile",
        "memory.pagecache_limit.sync": "CgroupReconcile",
        "memory.priority": "CgroupReconcile",
        "memory.use_priority_oom": "CgroupReconcile",
        "memory.wmark_min_adj": "CgroupReconcile",
        "memory.wmark_ratio": "CgroupReconcile",
        "memory.wmark_scale_factor": "CgroupReconcile",
        "net_cls.classid": "TCNetworkQoS",
    }
)
"""What koordlet writes to files itself, from time to time, and its feature gate for it. Source: Koordinator
pkg/koordlet/runtimehooks/hooks (groupidentity, coresched, tc) and pkg/koordlet/qosmanager/plugins (cpuburst,
cgreconcile); policies spec 2 and 3, feature gates."""


KOORDLETS_CLAIMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **KOORDLETS,
        "cpu.cfs_quota_us": "BECPUSuppress, CPUBurst",
        "cpuset.cpus": "BECPUSuppress",
    }
)
"""The same, and what koordlet's plugins move from second to second: claims with a lease would stand in their
way, and policies do not. Source: policies spec 3.1 and 3.2."""


def gates_of(names: Collection[str]) -> str:
    """What koordlet writes, by its feature gates, for people."""
    gates: dict[str, list[str]] = {}
    for name in sorted(names):
        gates.setdefault(KOORDLETS[name], []).append(name)
    return "; ".join(f"{gate}: {', '.join(found)}" for gate, found in sorted(gates.items()))
