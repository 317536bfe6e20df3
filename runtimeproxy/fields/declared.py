"""All fields: data only.

Cgroup parameters come first, in the order in which looser values of one cgroup are written. Sources:

- names: Koordinator pkg/koordlet/util/system/cgroup_resource.go; CRI v1, message LinuxContainerResources;
  opencontainers/runtime-spec, config-linux.md;
- ranges and neutral values of mainline files, after the kernel's own checks: kernel/sched/core.c,
  kernel/sched/sched.h, mm/memcontrol.c, Documentation/admin-guide/cgroup-v2.rst; of files that only Anolis
  kernels have, Koordinator's values of a disabled class (pkg/util/sloconfig, NoneMemoryQOS);
- what the kubelet writes: pkg/kubelet/cm/helpers_linux.go, ResourceConfigForPod; from 1.36 on memory.low of
  Burstable pods, from 1.37 on memory.high (ApplyPodLevelMemoryHigh); qos_container_manager_linux.go,
  UpdateCgroups. What its feature MemoryQoS writes to classes depends on its version (`node/kubelet.py`): the
  policy `memory-qos` leaves it out;
- what koordlet writes: Koordinator pkg/koordlet/runtimehooks/hooks (groupidentity, coresched, tc and
  oomscoreadj) and pkg/koordlet/qosmanager/plugins (blkio, cpuburst, cpusuppress, cgreconcile); gates:
  pkg/features.
"""

from __future__ import annotations

from typing import Any, Final

from runtimeproxy.fields import formats, network
from runtimeproxy.fields.anolis import ANOLIS_FILE
from runtimeproxy.fields.declaration import ALL_LEVELS, PAGE_BYTES, Declaration, Direction, Kind, Rounding
from runtimeproxy.fields.formats import number
from runtimeproxy.fields.kernel_settings import RESCTRL_SCHEMATA
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
from runtimeproxy.vocabulary import ClaimLevel

_ON_PODS: Final = frozenset({ClaimLevel.POD})
_RECONCILE: Final = "CgroupReconcile"
_CLASS_NAME: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
"""Of a class that the runtime's configuration or a folder of resctrl has: no path, and no option."""
_POD_NAME: Final = r"pod-[A-Za-z0-9-]{1,64}"
_COST_QOS: Final = r"enable=[01](?: (?:ctrl|[rw]pct|[rw]lat|min|max)=\S+)*"
_COST_MODEL: Final = r"ctrl=(?:auto|user)(?: (?:model|[rw](?:bps|seqiops|randiops))=\S+)*"
MAX_BPS: Final = 2**64 - 2
MAX_IOPS: Final = 2**32 - 2
"""One more is no limit. Source: Linux block/blk-throttle.c, struct throtl_grp, and tg_set_conf, which takes
the lower 32 bits of a larger number of operations."""


def _number(name: str, neutral: int, **others: Any) -> Declaration:  # noqa: ANN401 - a dataclass checks names
    return Declaration(name=name, neutral=neutral, **{"v1": number(name), "v2": number(name), **others})


def _anolis(name: str, neutral: int, **others: Any) -> Declaration:  # noqa: ANN401
    # A number in a file of `anolis.py`.
    others = {"feature": ANOLIS_FILE[name].feature, "koordlet": _RECONCILE, **others}
    return _number(name, neutral, **others)


def _in_cri(resource: str, cri: str, *oci: str) -> dict[str, Any]:
    return {"resource": resource, "cri": cri, "oci": oci}


def _list(name: str, kind: Kind, **others: Any) -> Declaration:  # noqa: ANN401
    file, key = formats.cpu_list(name), name.replace(".", "_")
    others |= _in_cri(key, key, "cpu", name.partition(".")[2])
    return Declaration(
        name=name, kind=kind, neutral="", v1=file, v2=file, direction=Direction.UNION, **others
    )


def _memory(name: str, neutral: int) -> Declaration:
    # memory.min, memory.low, memory.high: mainline on version 2, Anolis kernels on version 1.
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
        feature=ANOLIS_FILE[name].feature,
    )


def _class_name(name: str) -> Declaration:
    return Declaration(
        name=name, kind=Kind.TEXT, pattern=_CLASS_NAME, only_set=True, resource=name, creation_only=True
    )


def _unified(file: formats.FileFormat) -> Declaration:
    return Declaration(name=file.file, neutral=UNLIMITED, unlimited=True, v2=file, only_unified=True)


def _io_limit(name: str, key: str, maximum: int) -> Declaration:
    # No lease: the value of one is read back from the file, which may have lines of other programs.
    return Declaration(
        name=name,
        kind=Kind.DEVICES,
        neutral="",
        minimum=1,
        maximum=maximum,
        levels=frozenset(),
        v1=formats.by_device(name, "0"),
        v2=formats.by_device("io.max", "0", key, "max"),
        koordlet="BlkIOReconcile",
        feature="io-limits",
    )


def _io_cost(name: str, v2: str, reset: str, pattern: str) -> Declaration:
    return Declaration(
        name=name,
        kind=Kind.DEVICES,
        neutral="",
        pattern=pattern,
        reset=reset,
        is_of_root=True,
        levels=frozenset(),
        v1=formats.by_device(name, reset),
        v2=formats.by_device(v2, reset),
        koordlet="BlkIOReconcile",
        feature="io-cost",
    )


DECLARED: tuple[Declaration, ...] = (
    # The kernel refuses a weight while a group is idle, and kubelet and runtime write weights: of classes and
    # containers, and of pods with requests; see `ClaimPlaces.find`. 0 comes before a weight, 1 after it.
    _number(
        "cpu.idle",
        0,
        maximum=1,
        levels=frozenset({ClaimLevel.HOST_APPLICATION, ClaimLevel.POD, ClaimLevel.QOS_CLASS}),
        direction=Direction.SMALLER,
        koordlet="CoreSched",
        feature="idle",
    ),
    # The kernel clamps shares itself, but runc fails the container if the value that it reads back differs.
    _number(
        "cpu.shares",
        SHARES_PER_CPU,
        minimum=MIN_CPU_SHARES,
        maximum=MAX_CPU_SHARES,
        clamps=True,
        rounding=Rounding.WEIGHTS,
        levels=ALL_LEVELS - {ClaimLevel.QOS_CLASS},
        v2=formats.weight_v2("cpu.weight"),
        **_in_cri("cpu_shares", "cpu_shares", "cpu", "shares"),
        kubelet=frozenset({ClaimLevel.POD, ClaimLevel.QOS_CLASS}),
    ),
    # A small quota means "the minimum", a huge one "no limit in practice".
    _number(
        "cpu.cfs_quota_us",
        UNLIMITED,
        minimum=MIN_CPU_QUOTA_US,
        maximum=MAX_CPU_QUOTA_US,
        unlimited=True,
        clamps=True,
        v2=formats.quota_v2("cpu.max"),
        direction=Direction.LARGER,
        **_in_cri("cpu_quota_us", "cpu_quota", "cpu", "quota"),
        kubelet=_ON_PODS,
        koordlet_moves="BECPUSuppress, CPUBurst",
    ),
    # The same quota is more of a CPU in a smaller period. It rises before the period shrinks, see `order`.
    # Not clamped: with another period the quota would be another share of a CPU.
    _number(
        "cpu.cfs_period_us",
        CPU_PERIOD_US,
        minimum=MIN_CPU_PERIOD_US,
        maximum=MAX_CPU_PERIOD_US,
        only_set=True,
        v2=formats.period_v2("cpu.max"),
        direction=Direction.SMALLER,
        **_in_cri("cpu_period_us", "cpu_period", "cpu", "period"),
        kubelet=_ON_PODS,
    ),
    # The kernel refuses a burst above the quota, so it rises after the quota and falls before it.
    _number(
        "cpu.cfs_burst_us",
        0,
        v2=number("cpu.max.burst"),
        direction=Direction.LARGER,
        koordlet="CPUBurst",
        feature="burst",
    ),
    _anolis("cpu.bvt_warp_ns", 0, minimum=-1, maximum=2, koordlet="GroupIdentity"),
    _list("cpuset.cpus", Kind.CPUS, koordlet_moves="BECPUSuppress"),
    _list("cpuset.mems", Kind.MEMORY_NODES),
    # Nothing can run in one page, so the unit of a smaller limit must be wrong.
    Declaration(
        name="memory.limit_in_bytes",
        neutral=UNLIMITED,
        unlimited=True,
        policy_minimum=PAGE_BYTES,
        rounding=Rounding.PAGES,
        v1=formats.memory_v1("memory.limit_in_bytes", bounded_by="memory.memsw.limit_in_bytes"),
        v2=formats.memory_v2("memory.max"),
        direction=Direction.LARGER,
        **_in_cri("memory_limit_bytes", "memory_limit_in_bytes", "memory", "limit"),
        unlimited_is_absent=True,
        kubelet=_ON_PODS,
    ),
    Declaration(
        name="memory.usage_in_bytes",
        v1=number("memory.usage_in_bytes"),
        v2=number("memory.current"),
        writable=False,
    ),
    # In microseconds.
    Declaration(
        name="cpuacct.usage",
        v1=formats.usage_v1("cpuacct.usage"),
        v2=formats.usage_v2("cpu.stat"),
        writable=False,
    ),
    _memory("memory.min", 0),
    _memory("memory.low", 0),
    _memory("memory.high", UNLIMITED),
    _anolis("memory.wmark_ratio", 0, maximum=100),
    _anolis("memory.wmark_scale_factor", 50, minimum=1, maximum=1_000),
    _anolis("memory.wmark_min_adj", 0, minimum=-25, maximum=50),
    _anolis("memory.priority", 0, maximum=12),
    _anolis("memory.use_priority_oom", 0, maximum=1),
    _anolis("memory.oom.group", 0, maximum=1),
    _anolis("memory.pagecache_limit.enable", 0, maximum=1, v1=None),
    _anolis("memory.pagecache_limit.size", 0, v1=None),
    _anolis("memory.pagecache_limit.sync", 0, maximum=1, v1=None),
    _number("net_cls.classid", 0, maximum=0xFFFF_FFFF, v2=None, koordlet="TCNetworkQoS"),
    # On version 2 the four numbers of a device are in one line.
    _io_limit("blkio.throttle.read_bps_device", "rbps", MAX_BPS),
    _io_limit("blkio.throttle.write_bps_device", "wbps", MAX_BPS),
    _io_limit("blkio.throttle.read_iops_device", "riops", MAX_IOPS),
    _io_limit("blkio.throttle.write_iops_device", "wiops", MAX_IOPS),
    # Only kernels of Alibaba's have it on version 1. The kernel takes it for a disk whose cost model is on.
    Declaration(
        name="blkio.cost.weight",
        kind=Kind.DEVICES,
        neutral="",
        minimum=1,
        maximum=10_000,
        levels=frozenset(),
        v1=formats.by_device("blkio.cost.weight", "0", reset_text="default"),
        v2=formats.by_device("io.weight", "0", reset_text="default"),
        koordlet="BlkIOReconcile",
        feature="io-weight",
    ),
    _io_cost("blkio.cost.qos", "io.cost.qos", "enable=0", _COST_QOS),
    _io_cost("blkio.cost.model", "io.cost.model", "ctrl=auto", _COST_MODEL),
    # 0 is no limit for runtimes, and no process for the kernel. The class that the kubelet writes is that of
    # all pods. No order: children may have more than what is above them. Source: opencontainers/runc,
    # fs2/pids.go; kubelet, podPidsLimit and reserved PIDs.
    Declaration(
        name="pids.max",
        neutral=UNLIMITED,
        unlimited=True,
        policy_minimum=1,
        levels=ALL_LEVELS - {ClaimLevel.QOS_CLASS},
        v1=formats.number_or_max("pids.max"),
        v2=formats.number_or_max("pids.max"),
        resource="pids_limit",
        oci=("pids", "limit"),
        kubelet=frozenset({ClaimLevel.POD, ClaimLevel.QOS_CLASS}),
    ),
    # Memory and swap together. No file of version 2 has that.
    Declaration(
        name="memory_swap_limit_bytes",
        neutral=UNLIMITED,
        unlimited=True,
        policy_minimum=PAGE_BYTES,
        rounding=Rounding.PAGES,
        **_in_cri("memory_swap_limit_bytes", "memory_swap_limit_in_bytes", "memory", "swap"),
        unlimited_is_absent=True,
    ),
    # How long a task runs until another one that waits gets its turn. Source: `cgroups/slices.py`.
    Declaration(
        name="sched_slice_us",
        neutral=0,
        maximum=99_999,
        policy_minimum=100,
        levels=_ON_PODS,
        processes=formats.number_of_threads("sched_slice_us"),
        capability="CAP_SYS_NICE",
        feature="slice",
    ),
    # Tasks of one group may run on the threads of one core at the same time; the kernel has cookies for them.
    # Source: Linux, admin-guide/hw-vuln/core-scheduling.rst; kernel/sched/core_sched.c.
    Declaration(
        name="core_sched_group",
        kind=Kind.TEXT,
        neutral="none",
        pattern=r"none|(group:[A-Za-z0-9_.-]{0,63}|pod:[A-Za-z0-9-]{1,64})(:expeller)?",
        levels=frozenset({ClaimLevel.CONTAINER}),
        processes=formats.word_of_threads("core_sched_group"),
        capability="CAP_SYS_PTRACE",
        koordlet="CoreSched",
        feature="core-sched",
    ),
    # Tasks of one group have a part of the last-level cache and of the memory bandwidth, and those of one
    # monitoring group have counters. A pod's own group has its schemata here, those of a class are kernel
    # settings. Source: Linux Documentation/filesystems/resctrl.rst; Koordinator
    # pkg/koordlet/qosmanager/plugins/resctrl, pkg/koordlet/runtimehooks/hooks/resctrl.
    Declaration(
        name="resctrl_group",
        kind=Kind.TEXT,
        neutral="none",
        pattern=rf"none|LSR|LS|BE|{_POD_NAME},{RESCTRL_SCHEMATA}",
        levels=frozenset({ClaimLevel.POD}),
        processes=formats.word_of_threads("resctrl_group"),
        koordlet="RdtResctrl",
        feature="resctrl-mounted",
    ),
    Declaration(
        name="resctrl_monitor",
        kind=Kind.TEXT,
        neutral="none",
        pattern=rf"none|{_POD_NAME}",
        levels=frozenset({ClaimLevel.POD}),
        processes=formats.word_of_threads("resctrl_monitor"),
        feature="resctrl-mounted",
    ),
    # Source: Linux include/uapi/linux/oom.h; containerd, updateOCIResource of the CRI plugin, which leaves
    # the score of a running container alone, and its option restrict_oom_score_adj, which bounds a new one's;
    # fs/proc/base.c, __set_oom_adj: below the least that a process was given it needs the capability.
    Declaration(
        name="oom_score_adj",
        neutral=0,
        minimum=-1_000,
        maximum=1_000,
        only_set=True,
        levels=frozenset({ClaimLevel.CONTAINER}),
        processes=formats.number_of_processes("oom_score_adj"),
        capability="CAP_SYS_RESOURCE",
        koordlet="OOMScoreAdj",
        resource="oom_score_adj",
        cri="oom_score_adj",
        creation_only=True,
    ),
    # A pod's packets; `ledger/network.py` has it so. Source: Koordinator, as `fields/network.py`.
    Declaration(
        name=network.CLASS_FIELD,
        kind=Kind.TEXT,
        neutral=network.NO_CLASS,
        texts=(network.NO_CLASS, *network.NetworkClass),
        only_set=True,
        levels=_ON_PODS,
        processes=formats.word_of_cgroup(network.CLASS_FIELD),
    ),
    *(
        Declaration(
            name=name,
            neutral=0,
            only_set=True,
            levels=_ON_PODS,
            processes=formats.number_of_cgroup(name),
        )
        for name in (network.EGRESS_FIELD, network.INGRESS_FIELD)
    ),
    # Names of classes in messages of NRI. Containerd and CRI-O also know them as annotations of a container;
    # these are a policy's to set, as containerd refuses the container where it does not have such classes.
    # Source: containerd/nri, LinuxResources; intel/goresctrl, ContainerClassFromAnnotations.
    _class_name("rdt_class"),
    _class_name("blockio_class"),
    _unified(formats.memory_v2("memory.swap.max")),
    _unified(formats.memory_v2("memory.swap.high")),
)
