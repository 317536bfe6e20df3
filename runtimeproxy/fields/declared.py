"""All fields: data only.

Cgroup parameters come first, in the order in which looser values of one cgroup are written. Sources:

- names: Koordinator pkg/koordlet/util/system/cgroup_resource.go; CRI v1, message LinuxContainerResources;
  opencontainers/runtime-spec, config-linux.md;
- ranges and neutral values of mainline files, after the kernel's own checks: kernel/sched/core.c,
  kernel/sched/sched.h, mm/memcontrol.c, Documentation/admin-guide/cgroup-v2.rst; of files that only Anolis
  kernels have, Koordinator's values of a disabled class (policies spec 3.6);
- what the kubelet writes: pkg/kubelet/cm/helpers_linux.go, ResourceConfigForPod; from 1.36 on memory.low of
  Burstable pods, from 1.37 on memory.high (ApplyPodLevelMemoryHigh); qos_container_manager_linux.go,
  UpdateCgroups. What its feature MemoryQoS writes to classes depends on its version (`node/kubelet.py`): the
  policy `memory-qos` leaves it out;
- what koordlet writes: Koordinator pkg/koordlet/runtimehooks/hooks (groupidentity, coresched, tc) and
  pkg/koordlet/qosmanager/plugins (cpuburst, cpusuppress, cgreconcile); policies spec 2 and 3, feature gates.
"""

from __future__ import annotations

from typing import Final

from runtimeproxy.fields import formats
from runtimeproxy.fields.declaration import ALL_LEVELS, PAGE_BYTES, Declaration, Direction, Kind, Rounding
from runtimeproxy.fields.formats import number
from runtimeproxy.units import (
    CPU_PERIOD_US,
    MAX_CPU_PERIOD_US,
    MAX_CPU_QUOTA_US,
    MAX_CPU_SHARES,
    MAX_INT64,
    MIN_CPU_PERIOD_US,
    MIN_CPU_QUOTA_US,
    MIN_CPU_SHARES,
    SHARES_PER_CPU,
    UNLIMITED,
)
from runtimeproxy.vocabulary import Level

_ON_PODS: Final = frozenset({Level.POD})
_RECONCILE: Final = "CgroupReconcile"


def _memory(name: str, neutral: int) -> Declaration:
    """memory.min, memory.low, memory.high: mainline on version 2, Anolis kernels on version 1."""
    return Declaration(
        name=name,
        neutral=neutral,
        unlimited=True,
        rounding=Rounding.PAGES,
        v1=formats.memory_v1(name, unlimited=str(MAX_INT64)),
        v2=formats.memory_v2(name),
        direction=Direction.LARGER,
        kubelet=_ON_PODS,
        koordlet=_RECONCILE,
    )


def _anolis(name: str, minimum: int, maximum: int, neutral: int = 0, *, on_v1: bool = True) -> Declaration:
    """Plain numbers that only Anolis kernels (and, for memory.oom.group, mainline version 2) have."""
    return Declaration(
        name=name,
        neutral=neutral,
        minimum=minimum,
        maximum=maximum,
        v1=number(name) if on_v1 else None,
        v2=number(name),
        koordlet=_RECONCILE,
    )


def _unified(file: formats.FileFormat) -> Declaration:
    """A limit of version 2 that messages set in `unified`."""
    return Declaration(name=file.file, neutral=UNLIMITED, unlimited=True, v2=file, only_unified=True)


DECLARED: tuple[Declaration, ...] = (
    # The kernel refuses a weight while a group is idle, and kubelet and runtime write weights. 0 comes before
    # a weight, 1 after it.
    Declaration(
        name="cpu.idle",
        neutral=0,
        maximum=1,
        levels=frozenset({Level.HOST_APPLICATION}),
        v1=number("cpu.idle"),
        v2=number("cpu.idle"),
        direction=Direction.SMALLER,
        koordlet="CoreSched",
    ),
    # The kernel clamps shares itself, but runc fails the container if the value that it reads back differs.
    Declaration(
        name="cpu.shares",
        neutral=SHARES_PER_CPU,
        minimum=MIN_CPU_SHARES,
        maximum=MAX_CPU_SHARES,
        clamps=True,
        rounding=Rounding.WEIGHTS,
        levels=ALL_LEVELS - {Level.QOS_CLASS},
        v1=number("cpu.shares"),
        v2=formats.weight_v2("cpu.weight"),
        resource="cpu_shares",
        cri="cpu_shares",
        oci=("cpu", "shares"),
        kubelet=frozenset({Level.POD, Level.QOS_CLASS}),
    ),
    # A small quota means "the minimum", a huge one "no limit in practice".
    Declaration(
        name="cpu.cfs_quota_us",
        neutral=UNLIMITED,
        minimum=MIN_CPU_QUOTA_US,
        maximum=MAX_CPU_QUOTA_US,
        unlimited=True,
        clamps=True,
        v1=number("cpu.cfs_quota_us"),
        v2=formats.quota_v2("cpu.max"),
        direction=Direction.LARGER,
        resource="cpu_quota_us",
        cri="cpu_quota",
        oci=("cpu", "quota"),
        kubelet=_ON_PODS,
        koordlet_moves="BECPUSuppress, CPUBurst",
    ),
    # The same quota is more of a CPU in a smaller period. It rises before the period shrinks, see `order`.
    # Not clamped: with another period the quota would be another share of a CPU.
    Declaration(
        name="cpu.cfs_period_us",
        neutral=CPU_PERIOD_US,
        minimum=MIN_CPU_PERIOD_US,
        maximum=MAX_CPU_PERIOD_US,
        only_set=True,
        v1=number("cpu.cfs_period_us"),
        v2=formats.period_v2("cpu.max"),
        direction=Direction.SMALLER,
        resource="cpu_period_us",
        cri="cpu_period",
        oci=("cpu", "period"),
        kubelet=_ON_PODS,
    ),
    # The kernel refuses a burst above the quota, so it rises after the quota and falls before it.
    Declaration(
        name="cpu.cfs_burst_us",
        neutral=0,
        v1=number("cpu.cfs_burst_us"),
        v2=number("cpu.max.burst"),
        direction=Direction.LARGER,
        koordlet="CPUBurst",
    ),
    Declaration(
        name="cpu.bvt_warp_ns",
        neutral=0,
        minimum=-1,
        maximum=2,
        v1=number("cpu.bvt_warp_ns"),
        v2=number("cpu.bvt_warp_ns"),
        koordlet="GroupIdentity",
    ),
    Declaration(
        name="cpuset.cpus",
        kind=Kind.CPUS,
        neutral="",
        v1=formats.cpu_list("cpuset.cpus"),
        v2=formats.cpu_list("cpuset.cpus"),
        direction=Direction.UNION,
        resource="cpuset_cpus",
        cri="cpuset_cpus",
        oci=("cpu", "cpus"),
        koordlet_moves="BECPUSuppress",
    ),
    Declaration(
        name="cpuset.mems",
        kind=Kind.MEMORY_NODES,
        neutral="",
        v1=formats.cpu_list("cpuset.mems"),
        v2=formats.cpu_list("cpuset.mems"),
        direction=Direction.UNION,
        resource="cpuset_mems",
        cri="cpuset_mems",
        oci=("cpu", "mems"),
    ),
    # Nothing can run in one page, so the unit of a smaller limit must be wrong.
    Declaration(
        name="memory.limit_in_bytes",
        neutral=UNLIMITED,
        unlimited=True,
        policy_minimum=PAGE_BYTES,
        rounding=Rounding.PAGES,
        v1=formats.memory_v1("memory.limit_in_bytes"),
        v2=formats.memory_v2("memory.max"),
        direction=Direction.LARGER,
        resource="memory_limit_bytes",
        cri="memory_limit_in_bytes",
        oci=("memory", "limit"),
        unlimited_is_absent=True,
        kubelet=_ON_PODS,
    ),
    Declaration(
        name="memory.usage_in_bytes",
        v1=number("memory.usage_in_bytes"),
        v2=number("memory.current"),
        writable=False,
    ),
    _memory("memory.min", 0),
    _memory("memory.low", 0),
    _memory("memory.high", UNLIMITED),
    _anolis("memory.wmark_ratio", 0, 100),
    _anolis("memory.wmark_scale_factor", 1, 1000, 50),
    _anolis("memory.wmark_min_adj", -25, 50),
    _anolis("memory.priority", 0, 12),
    _anolis("memory.use_priority_oom", 0, 1),
    _anolis("memory.oom.group", 0, 1),
    _anolis("memory.pagecache_limit.enable", 0, 1, on_v1=False),
    _anolis("memory.pagecache_limit.size", 0, MAX_INT64, on_v1=False),
    _anolis("memory.pagecache_limit.sync", 0, 1, on_v1=False),
    Declaration(
        name="net_cls.classid",
        neutral=0,
        maximum=0xFFFF_FFFF,
        v1=number("net_cls.classid"),
        koordlet="TCNetworkQoS",
    ),
    # Memory and swap together. No file of version 2 has that.
    Declaration(
        name="memory_swap_limit_bytes",
        neutral=UNLIMITED,
        unlimited=True,
        policy_minimum=PAGE_BYTES,
        rounding=Rounding.PAGES,
        resource="memory_swap_limit_bytes",
        cri="memory_swap_limit_in_bytes",
        oci=("memory", "swap"),
        unlimited_is_absent=True,
    ),
    # Source: Linux include/uapi/linux/oom.h; containerd, updateOCIResource of the CRI plugin, which leaves
    # the score of a running container alone, and its option restrict_oom_score_adj, which bounds a new one's.
    Declaration(
        name="oom_score_adj",
        neutral=0,
        minimum=-1_000,
        maximum=1_000,
        only_set=True,
        resource="oom_score_adj",
        cri="oom_score_adj",
        creation_only=True,
    ),
    _unified(formats.memory_v2("memory.swap.max")),
    _unified(formats.memory_v2("memory.swap.high")),
    _unified(formats.number_or_max("pids.max")),
)
