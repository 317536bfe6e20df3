"""The strategies' fields as data: names, types, units, ranges, defaults.

An attribute's name is Koordinator's JSON key in snake_case, and its value has Koordinator's unit. Ranges are
marks in the annotations, which `reading` checks. None means that nothing is set. A dataclass without
arguments holds the values of a node without configuration.

Source: Koordinator apis/slo/v1alpha1 and apis/configuration; defaults: pkg/util/sloconfig.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar, Final, NamedTuple, TypeAlias

from runtimeproxy.qos import QoSClass


class Range(NamedTuple):
    """Mark of a number: the range that it must lie in."""

    minimum: float = -math.inf
    maximum: float = math.inf
    is_above: bool = False
    """The minimum itself is outside."""


class Quantity(NamedTuple):
    """Mark of a number that is written as a Kubernetes quantity, as a text or a number; rounded up."""


class Duration(NamedTuple):
    """Mark of a text that is a duration in Go's syntax, such as `5m`."""


class Bandwidth(NamedTuple):
    """Mark of a share of a bandwidth: a whole number is percent (0 to 100), a text a quantity in bits/s."""


class Bound(NamedTuple):
    """Mark of a class: one field must be below another one where both are set."""

    lower: str
    upper: str


_INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1

Percent: TypeAlias = Annotated[int, Range(0, 100)]
Switch: TypeAlias = Annotated[int, Range(0, 1)]
Natural: TypeAlias = Annotated[int, Range(0, _INT64_MAX)]
Positive: TypeAlias = Annotated[int, Range(1, _INT64_MAX)]
Ratio: TypeAlias = Annotated[float, Range(1, 5)]
"""Source: Koordinator pkg/slo-controller/noderesource/plugins/cpunormalization/plugin.go."""
BandwidthShare: TypeAlias = Annotated[int | str, Bandwidth()]


class CpuBurstPolicy(StrEnum):
    """How containers may use more CPU than their limit for a short time."""

    NONE = "none"
    CPU_BURST_ONLY = "cpuBurstOnly"
    """The kernel's burst, `cpu.cfs_burst_us`."""
    CFS_QUOTA_BURST_ONLY = "cfsQuotaBurstOnly"
    """A larger quota while a container is throttled."""
    AUTO = "auto"
    """Both."""


class CpuPolicy(StrEnum):
    """Which mechanism carries the CPU QoS."""

    GROUP_IDENTITY = "groupIdentity"
    CORE_SCHED = "coreSched"


class NetQoSPolicy(StrEnum):
    """Which mechanism carries the network QoS."""

    TC = "tc"
    TERWAY_QOS = "terway-qos"


class MemoryQoSPolicy(StrEnum):
    """The base of a pod's own memory QoS."""

    DEFAULT = "default"
    """The values of the node's class."""
    NONE = "none"
    """No memory QoS."""
    AUTO = "auto"
    """Koordinator's defaults for the pod's class, whether the node's class is enabled or not."""


class BlockType(StrEnum):
    """Kinds of names of block devices."""

    DEVICE = "device"
    VOLUME_GROUP = "volumegroup"
    POD_VOLUME = "podvolume"


class CpuSuppressPolicy(StrEnum):
    """How the CPU of BE pods is suppressed."""

    CPUSET = "cpuset"
    CFS_QUOTA = "cfsQuota"


class CpuEvictPolicy(StrEnum):
    """The measure of the CPU satisfaction of BE pods."""

    REAL_LIMIT = "evictByRealLimit"
    ALLOCATABLE = "evictByAllocatable"


class CalculatePolicy(StrEnum):
    """The amount of pods of higher priority that a node's batch resources lack."""

    USAGE = "usage"
    REQUEST = "request"
    MAX_USAGE_REQUEST = "maxUsageRequest"


class MemoryCollectPolicy(StrEnum):
    """The measure of used memory. Source: Koordinator apis/slo/v1alpha1/nodemetric_types.go."""

    WITH_HOT_PAGE_CACHE = "usageWithHotPageCache"
    WITHOUT_PAGE_CACHE = "usageWithoutPageCache"
    WITH_PAGE_CACHE = "usageWithPageCache"


class MidReclaimMode(StrEnum):
    """How mid resources are computed if not from the usage."""

    STATIC = "static"


class CgroupBase(StrEnum):
    """The directory below which a host application's cgroup lies."""

    CGROUP_ROOT = "CgroupRoot"
    KUBEPODS = "Kubepods"
    KUBEPODS_BURSTABLE = "KubepodsBurstable"
    KUBEPODS_BEST_EFFORT = "KubepodsBesteffort"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEviction:
    """Whether a node may evict a pod, and in which order."""

    is_enabled: bool = False
    """For the evictions by priority. The label `koordinator.sh/eviction-enabled`, or a pod strategy."""
    allowed: frozenset[str] | None = None
    """The features that may evict it, such as `BECPUEvict`; None: all, empty: none."""
    priority: int = 0
    """A lower one is evicted first."""

    def allows(self, feature: str) -> bool:
        return self.allowed is None or feature in self.allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCpuBurst:
    """The part of CPU burst that a pod may have of its own: the annotation `koordinator.sh/cpuBurst`."""

    refused: ClassVar[Mapping[str, str]] = {
        "share_pool_threshold_percent": "is a threshold of the node, not of a pod"
    }

    policy: CpuBurstPolicy = CpuBurstPolicy.NONE
    cpu_burst_percent: Annotated[int, Range(1, 10_000)] = 1_000
    """The kernel's burst in percent of the limit."""
    cfs_quota_burst_percent: Annotated[int, Range(100, INT32_MAX)] = 300
    """The largest quota in percent of the limit."""
    cfs_quota_burst_period_seconds: Annotated[int, Range(-1, INT32_MAX)] = -1
    """How long a container can burst at the largest quota; -1: without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuBurstStrategy(PodCpuBurst):
    """`cpu-burst-config`, NodeSLO's `cpuBurstStrategy`."""

    share_pool_threshold_percent: Percent = 50
    """Of the shared CPUs' usage: above it quotas shrink. The same for all pods of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStartupBoost:
    """`startup-boost-config`, and the annotation `koordinator.sh/startupBoost`: keys of this project."""

    limit_percent: Annotated[int, Range(100, 10_000)] = 100
    """The CPU limit of a container that starts, in percent of its own; 100: no boost."""
    max_seconds: Annotated[int, Range(1, 600)] = 120
    """How long at most, from its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuQoS:
    """`cpuQOS` of a class, and the annotation `koordinator.sh/cpuQOS`. The defaults switch it off."""

    enable: bool = False
    group_identity: Annotated[int, Range(-1, 2)] | None = 0
    """`cpu.bvt_warp_ns`. None (for a pod only): leave the pod's value alone, its annotation is invalid."""
    sched_idle: Switch | None = 0
    """`cpu.idle`; applies under the CPU policy `coreSched`."""
    core_expeller: bool | None = False
    """Whether the class expels idle pods from a core's other CPU; applies under `coreSched`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryQoSValues:
    """The values of memory QoS. The defaults switch it off."""

    min_limit_percent: Percent | None = 0
    """`memory.min` in percent of the request."""
    low_limit_percent: Percent | None = 0
    """`memory.low` in percent of the request."""
    throttling_percent: Percent | None = 0
    """`memory.high` between request (0 %) and limit (100 %); 0 switches it off."""
    wmark_ratio: Percent | None = 0
    """`memory.wmark_ratio`."""
    wmark_scale_permill: Annotated[int, Range(1, 1_000)] | None = 50
    """`memory.wmark_scale_factor`."""
    wmark_min_adj: Annotated[int, Range(-25, 50)] | None = 0
    """`memory.wmark_min_adj`."""
    priority_enable: Switch | None = 0
    """`memory.use_priority_oom`."""
    priority: Annotated[int, Range(0, 12)] | None = 0
    """`memory.priority`."""
    oom_kill_group: Switch | None = 0
    """`memory.oom.group`."""
    page_cache_enable: bool | None = None
    page_cache_limit_percent: Percent | None = None
    """In percent of the pod's memory limit."""
    page_cache_limit_size: Natural | None = None
    """In bytes."""
    page_cache_reclaim_sync: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryQoSStrategy(MemoryQoSValues):
    """`memoryQOS` of a class, and of a pod strategy."""

    enable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IoCfg:
    """Limits and weights of one block device. None, and 0 for a limit: unlimited."""

    read_iops: Natural | None = None
    write_iops: Natural | None = None
    read_bps: Natural | None = None
    write_bps: Natural | None = None
    io_weight_percent: Annotated[int, Range(1, 100)] | None = None
    read_latency: Natural | None = None
    """In microseconds; this and the three that follow apply to `cgroup_root` only."""
    write_latency: Natural | None = None
    read_latency_percent: Percent | None = None
    write_latency_percent: Percent | None = None
    enable_user_model: bool | None = None
    model_read_bps: Positive | None = None
    model_write_bps: Positive | None = None
    model_read_seq_iops: Positive | None = None
    model_write_seq_iops: Positive | None = None
    model_read_rand_iops: Positive | None = None
    model_write_rand_iops: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block device, volume group or volume of a pod."""

    name: str = ""
    type: BlockType | None = None
    io_cfg: IoCfg = field(default_factory=IoCfg)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlkioQoS:
    """`blkioQOS` of a class, and the annotation `koordinator.sh/blkioQOS`."""

    enable: bool = False
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResctrlQoS:
    """`resctrlQOS` of a class: its part of the last-level cache and of the memory bandwidth."""

    bounds: ClassVar[tuple[Bound, ...]] = (Bound("cat_range_start_percent", "cat_range_end_percent"),)

    enable: bool = False
    cat_range_start_percent: Percent = 0
    cat_range_end_percent: Percent = 100
    mba_percent: Percent = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkQoS:
    """`networkQOS` of a class: a whole number is percent of the node's bandwidth, a text bits/s."""

    enable: bool = False
    ingress_request: BandwidthShare = 0
    ingress_limit: BandwidthShare = 0
    egress_request: BandwidthShare = 0
    egress_limit: BandwidthShare = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNetwork:
    """A pod's own bandwidth limits, in bits/s: its annotation, and `networkQOS` of a pod strategy."""

    refused: ClassVar[Mapping[str, str]] = {
        "enable": "applies to a whole class",
        "ingress_request": "applies to a whole class",
        "egress_request": "applies to a whole class",
    }

    ingress_limit: Annotated[int, Quantity(), Range(0, _INT64_MAX)] | None = None
    egress_limit: Annotated[int, Quantity(), Range(0, _INT64_MAX)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodResctrl:
    """A pod's part of the last-level cache and of the memory bandwidth."""

    class_name: str = ""
    """The class whose resctrl group the pod joins: `LSR`, `LS`, `BE`; empty: none."""
    llc_range: tuple[int, int] | None = None
    """By the annotation `resctrl`: start and end in percent, of a group of the pod's own."""
    llc_range_by_cache: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    mb_percent: int | None = None
    mb_percent_by_cache: Mapping[int, int] = field(default_factory=dict)

    @property
    def has_own_group(self) -> bool:
        """Whether the pod has a group of its own, which replaces the class's."""
        by_cache = bool(self.llc_range_by_cache or self.mb_percent_by_cache)
        return by_cache or self.llc_range is not None or self.mb_percent is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassQoS:
    """The QoS of one class of pods."""

    cpu_qos: CpuQoS = field(default_factory=CpuQoS)
    memory_qos: MemoryQoSStrategy = field(default_factory=MemoryQoSStrategy)
    blkio_qos: BlkioQoS = field(default_factory=BlkioQoS)
    resctrl_qos: ResctrlQoS = field(default_factory=ResctrlQoS)
    network_qos: NetworkQoS = field(default_factory=NetworkQoS)


@dataclass(frozen=True, slots=True, kw_only=True)
class QoSPolicies:
    """`policies` of `resource-qos-config`."""

    cpu_policy: CpuPolicy = CpuPolicy.GROUP_IDENTITY
    net_qos_policy: NetQoSPolicy = NetQoSPolicy.TC


@dataclass(frozen=True, slots=True, kw_only=True)
class QoSStrategy:
    """`resource-qos-config`, NodeSLO's `resourceQOSStrategy`.

    CPU, memory and resctrl QoS of `lsr_class`, `ls_class` and `be_class` that are not enabled hold the values
    that switch them off, as koordlet's mergeNoneResourceQOSIfDisabled does.
    """

    policies: QoSPolicies = field(default_factory=QoSPolicies)
    lsr_class: ClassQoS = field(default_factory=ClassQoS)
    """For LSE pods, too."""
    ls_class: ClassQoS = field(default_factory=ClassQoS)
    be_class: ClassQoS = field(default_factory=ClassQoS)
    system_class: ClassQoS = field(default_factory=ClassQoS)
    cgroup_root: ClassQoS = field(default_factory=ClassQoS)


def _class_default(
    group_identity: int, *, wmark: tuple[int, int, int], is_expeller: bool = False, cat_end: int = 100
) -> ClassQoS:
    ratio, scale, adj = wmark
    return ClassQoS(
        cpu_qos=CpuQoS(group_identity=group_identity, core_expeller=is_expeller),
        memory_qos=MemoryQoSStrategy(wmark_ratio=ratio, wmark_scale_permill=scale, wmark_min_adj=adj),
        resctrl_qos=ResctrlQoS(cat_range_end_percent=cat_end),
    )


PRODUCT_DEFAULTS: Final = QoSStrategy(
    lsr_class=_class_default(2, is_expeller=True, wmark=(95, 20, -25)),
    ls_class=_class_default(2, is_expeller=True, wmark=(95, 20, -25)),
    be_class=_class_default(-1, wmark=(95, 20, 50), cat_end=30),
)
"""The values that a class has once it is enabled and nothing else is said. Source: nodeslo_config.go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """`resource-threshold-config`, NodeSLO's `resourceUsedThresholdWithBE`, in percent of capacity."""

    bounds: ClassVar[tuple[Bound, ...]] = (
        Bound("memory_evict_lower_percent", "memory_evict_threshold_percent"),
        Bound("memory_allocatable_evict_lower_percent", "memory_allocatable_evict_threshold_percent"),
        Bound("cpu_evict_be_satisfaction_lower_percent", "cpu_evict_be_satisfaction_upper_percent"),
        Bound("cpu_evict_lower_percent", "cpu_evict_threshold_percent"),
        Bound("cpu_allocatable_evict_lower_percent", "cpu_allocatable_evict_threshold_percent"),
    )

    enable: bool = False
    cpu_suppress_threshold_percent: Percent = 65
    cpu_suppress_min_percent: Percent | None = None
    cpu_suppress_policy: CpuSuppressPolicy = CpuSuppressPolicy.CPUSET
    memory_evict_threshold_percent: Percent = 70
    memory_evict_lower_percent: Percent | None = None
    """None: two less than the threshold."""
    memory_allocatable_evict_threshold_percent: Natural | None = None
    memory_allocatable_evict_lower_percent: Natural | None = None
    cpu_evict_be_satisfaction_upper_percent: Percent | None = None
    cpu_evict_be_satisfaction_lower_percent: Percent | None = None
    cpu_evict_be_usage_threshold_percent: Percent | None = None
    """None: 90."""
    cpu_evict_time_window_seconds: Positive | None = None
    cpu_evict_threshold_percent: Percent | None = None
    cpu_evict_lower_percent: Percent | None = None
    cpu_allocatable_evict_threshold_percent: Natural | None = None
    cpu_allocatable_evict_lower_percent: Natural | None = None
    cpu_evict_policy: CpuEvictPolicy = CpuEvictPolicy.REAL_LIMIT
    evict_enabled_priority_threshold: Annotated[int, Range(_INT32_MIN, INT32_MAX)] | None = None
    allocatable_evict_priority_threshold: Annotated[int, Range(0, 7_999)] | None = None


_WHOLE_NODE: Final = "applies to the whole node"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCpuGuard:
    """The part of the CPU guard that a pod may have of its own: the annotation `koordinator.sh/cpuGuard`."""

    refused: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            "enable",
            "feedback",
            "floor_millicores",
            "idle_pods",
            "equal_weights",
            "class_idle",
            "slice",
            "probe",
        ),
        _WHOLE_NODE,
    )

    target_pressure_milliseconds: Annotated[int, Range(1, 1_000)] | None = None
    """How long in a second the pod may have runnable tasks on a CPU on which none of them runs, by PSI; None:
    learnt."""
    target_run_delay_percent: Annotated[int, Range(1, 100)] | None = None
    """What its threads may wait, of the time that they run or wait, where there is no PSI; None: learnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuGuard(PodCpuGuard):
    """`cpu-guard-config`, a key of this project: what the plugin `cpu-guard` does."""

    enable: bool = False
    feedback: bool = True
    """Whether BE pods are bounded by what others wait; else they are only made to yield."""
    floor_millicores: Natural = 0
    """What BE pods keep together in any case; at least 200, and a tenth of the node's CPUs."""
    idle_pods: bool = True
    """Whether BE pods run only when no other pod wants to: `cpu.idle`. Pods with batch resources keep the
    weights that these give them."""
    equal_weights: bool = False
    """Whether pods with batch resources are among these, too: all BE pods then share what is left alike."""
    class_idle: bool = False
    """Whether the class BestEffort is idle as a whole, too: with cgroup version 2, the kubelet's driver
    systemd, and systemd 252."""
    slice: bool = False
    """Whether tasks of LS, LSR and LSE pods have slices of 1 ms (Linux 6.12): they get a CPU sooner, and no
    more of it."""
    probe: bool = False
    """Whether BE pods are at the floor for 5 s now and then, where nothing else tells what is usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """`system-config`, NodeSLO's `systemStrategy`. None: the kernel's value is left alone."""

    min_free_kbytes_factor: Positive = 100
    """Of the node's memory, in ten thousandths."""
    watermark_scale_factor: Annotated[int, Range(1, 400)] = 150
    memcg_reap_back_ground: Switch = 0
    sched_group_identity_enabled: Switch | None = None
    sched_idle_saver_wmark: Annotated[int, Range(-_INT64_MAX - 1, _INT64_MAX)] | None = None
    sched_features: Mapping[str, bool] = field(default_factory=dict)
    """By the kernel's name; True: on."""
    page_cache_limit_enabled: Switch | None = None
    total_network_bandwidth: Annotated[int, Quantity(), Range(0, _INT64_MAX)] = 0
    """In bits/s; 0: not configured. The node's annotation `network-bandwidth` replaces it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupPath:
    """Where the cgroup of a host application lies."""

    base: CgroupBase = CgroupBase.CGROUP_ROOT
    parent_dir: str = ""
    relative_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostApplication:
    """A program of the host that takes part in QoS, of `host-application-config`."""

    unused: ClassVar[frozenset[str]] = frozenset({"strategy"})
    """Fields that Koordinator has and nothing here applies: this one has no fields of its own there."""

    name: str = ""
    priority: str = ""
    """A priority class, such as `koord-prod`."""
    qos: QoSClass = QoSClass.NONE
    cgroup_path: CgroupPath | None = None
    """None: `host-latency-sensitive/NAME` for LSE, LSR, LS, `host-best-effort/NAME` for BE, else `NAME`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatePolicy:
    """Over which times metrics are aggregated."""

    durations: tuple[Annotated[str, Duration()], ...] = ("5m", "10m", "30m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Colocation:
    """`colocation-config`: how batch and mid resources are computed. Percentages of the node's capacity."""

    unused: ClassVar[frozenset[str]] = frozenset({"extensions"})
    """Fields that Koordinator has and nothing here applies: this one is for third parties."""

    enable: bool = False
    metric_aggregate_duration_seconds: Positive = 300
    metric_report_interval_seconds: Positive = 60
    metric_aggregate_policy: AggregatePolicy = field(default_factory=AggregatePolicy)
    metric_memory_collect_policy: MemoryCollectPolicy = MemoryCollectPolicy.WITHOUT_PAGE_CACHE
    cpu_reclaim_threshold_percent: Natural = 60
    memory_reclaim_threshold_percent: Natural = 65
    cpu_calculate_policy: CalculatePolicy = CalculatePolicy.USAGE
    memory_calculate_policy: CalculatePolicy = CalculatePolicy.USAGE
    degrade_time_minutes: Positive = 15
    update_time_threshold_seconds: Positive = 300
    resource_diff_threshold: Annotated[float, Range(0, 1, is_above=True)] = 0.1
    mid_reclaim_mode: MidReclaimMode | None = None
    mid_cpu_threshold_percent: Percent = 100
    mid_memory_threshold_percent: Percent = 100
    mid_unallocated_percent: Percent = 0
    mid_static_cpu_reserved_percent: Percent = 0
    mid_static_memory_reserved_percent: Percent = 0
    batch_cpu_threshold_percent: Natural | None = None
    batch_memory_threshold_percent: Natural | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRatio:
    """The normalization ratios of one CPU model, by its features that are on."""

    base_ratio: Ratio | None = None
    hyper_thread_enabled_ratio: Ratio | None = None
    turbo_enabled_ratio: Ratio | None = None
    hyper_thread_turbo_enabled_ratio: Ratio | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuNormalizationStrategy:
    """`cpu-normalization-config`. The node's label `cpu-normalization-enabled` replaces `enable`."""

    enable: bool = False
    default_ratio: Ratio | None = None
    ratio_model: Mapping[str, ModelRatio] = field(default_factory=dict)
    """By the CPU's model name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostApplications:
    """`host-application-config`, NodeSLO's `hostApplications`."""

    applications: tuple[HostApplication, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAmplification:
    """`resource-amplification-config`, which changes what a node publishes: only its names are checked."""

    enable: bool = False
    resource_amplification_ratio: Mapping[str, float] = field(default_factory=dict)
    """By resource."""
