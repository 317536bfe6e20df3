"""The input of plugins: pods, node and strategies at one moment, and samples. Frozen; data only.

Amounts of CPU are millicores or cores as their names say, memory is bytes. A cgroup is its path below the
mount of its controllers, with a slash in front (`/kubepods.slice/kubepods-besteffort.slice`); `/` is the
node. Samples are kept by that path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from runtimeproxy.katalyst.eviction_config import NO_EVICTION_CONFIG, EvictionConfig
from runtimeproxy.katalyst.names import RECLAIM, pool_and_numa_node
from runtimeproxy.qos import DEFAULT_PRIORITIES, KubeQoSClass, PriorityClass, QoSClass
from runtimeproxy.slo.dynamic import asked_plugins
from runtimeproxy.slo.schema import (
    CgroupBase,
    Colocation,
    CpuBurstStrategy,
    CpuGuard,
    PodCpuBurst,
    PodCpuGuard,
    Threshold,
)
from runtimeproxy.slo.schema import PodEviction as PodEviction
from runtimeproxy.vocabulary import ClaimLevel

if TYPE_CHECKING:
    from cri_api.runtimeproxy.v1 import api_pb2

Level: TypeAlias = ClaimLevel
"""Plugins know it by this name."""
NODE_CGROUP: Final = "/"
"""Stands for the node in samples."""
LOOK_BACK_S: Final = 3.0
"""How old the last sample may be that a plugin decides by."""

_EMPTY: Final[Mapping[Any, Any]] = MappingProxyType({})


class ContainerState(StrEnum):
    """The state of a container."""

    CREATED = "created"
    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container that the runtime has. Empty fields are not known."""

    id: str
    name: str
    cgroup: str = ""
    state: ContainerState = ContainerState.RUNNING
    requests: Mapping[str, int] = field(default_factory=lambda: _EMPTY)
    """By resource: `cpu` and `kubernetes.io/batch-cpu` in millicores, all else in bytes or numbers; a
    resource that is not in it is not requested, or not known."""
    limits: Mapping[str, int] = field(default_factory=lambda: _EMPTY)
    cpu_quota_us: int | None = None
    """The quota per 100 ms that the claims of policies lead to, without what is added or bounded; -1:
    unlimited, None: not known."""


class KatalystTraits(NamedTuple):
    """What Katalyst's annotations say of a pod, as far as plugins decide by it."""

    level: str
    """Such as `reclaimed_cores`."""
    suppression_tolerance_rate: float | None = None
    """Of the requests to the supply of reclaimed CPU; None: not said."""
    rss_overuse_threshold: float | None = None
    """Of the memory requests; None: not said, or not a number above 0."""
    rss_overuse_problem: str = ""
    """Why what the annotation says of it cannot be used; empty if it can, or says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod sandbox that is ready, with its containers. Empty fields are not known."""

    sandbox_id: str
    """The key of a pod: a sandbox that is made anew is another one."""
    uid: str
    namespace: str
    name: str
    qos: QoSClass = QoSClass.NONE
    """By the label alone."""
    kube_qos: KubeQoSClass = KubeQoSClass.BURSTABLE
    priority_class: PriorityClass = PriorityClass.NONE
    """By the label, or by the priority where that is known, else by the QoS class."""
    priority: int | None = None
    """`spec.priority`; None: it has none, or it is not known. See `priority_value`."""
    sub_priority: int | None = None
    """Within its priority, by the label `koordinator.sh/priority`; None: it has none, or not a number."""
    cgroup: str = ""
    containers: tuple[Container, ...] = ()
    cpus: frozenset[int] = frozenset()
    """CPUs that it has for itself."""
    cpu_burst: PodCpuBurst = field(default_factory=PodCpuBurst)
    """With the pod's own annotation."""
    eviction: PodEviction = field(default_factory=PodEviction)
    cpu_guard: PodCpuGuard = field(default_factory=PodCpuGuard)
    """With the pod's own annotation."""
    annotated_guard: frozenset[str] = frozenset()
    """The fields of `cpu_guard` that the pod's own annotation gives."""
    is_boosted: bool = False
    """Whether a container of it starts with a larger limit than its own."""
    created_s: float | None = None
    """By `Snapshot.wall_s`; None: not known."""
    katalyst: KatalystTraits | None = None
    """None: it has no level of Katalyst's."""
    has_known_requests: bool = False
    """Whether its specification is known: what the requests of its containers lack is not requested."""
    requests: Mapping[str, int] = field(default_factory=lambda: _EMPTY)
    """Of the whole pod, by annotations, in the units of `Container.requests`; empty where those are known."""

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def priority_value(self) -> int:
        return self.priority or DEFAULT_PRIORITIES[self.priority_class]


class Cpu(NamedTuple):
    """One logical CPU that is online."""

    id: int
    core: int
    """Counted anew in each socket."""
    socket: int
    numa_node: int
    l3: int = -1
    """Id of the last-level cache; -1: not known."""


class HostApplication(NamedTuple):
    """A program of the host that takes part in QoS, by the strategies of the node."""

    name: str
    qos: QoSClass = QoSClass.NONE
    priority_class: PriorityClass = PriorityClass.NONE
    cgroup: str = ""
    base: CgroupBase = CgroupBase.CGROUP_ROOT
    """The base of the strategy's path."""


class PoolMember(NamedTuple):
    """A pod in Katalyst's pools."""

    level: str
    """Such as `shared_cores`."""
    pool: str
    """Such as `share`, `share-NUMA0`, `reclaim`, `dedicated`, `system-NAME`; empty while it ramps up."""
    cpus: frozenset[int] = frozenset()
    """Those that its containers may run on."""
    own_cpus: frozenset[int] = frozenset()
    """The part of `cpus` that it has alone."""
    numa_nodes: frozenset[int] = frozenset()
    """Those that it is bound to; empty: none."""
    is_ramping_up: bool = False
    """Whether it is new, and runs on all CPUs that are not bound before it joins its pool."""


class Headroom(NamedTuple):
    """What pods of `reclaimed_cores` can use in all, those that run included."""

    cpu_millicores: int
    memory_bytes: int


class PoolAdvice(NamedTuple):
    """What an advisor says of one pool, within the daemon's bounds; None: nothing."""

    required_cpus: int | None = None
    """CPUs that a pool of `shared_cores` needs."""
    overlap_cpus: int | None = None
    """How many of its CPUs `reclaim` is to have, too."""
    headroom_millicpu: int | None = None
    """Of `reclaim` or `reclaim-NUMA0`; see `Headroom`."""
    headroom_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuPools:
    """Katalyst's CPU pools of the node, and the effective claims of advisors, as the daemon reports them."""

    pools: Mapping[str, frozenset[int]] = field(default_factory=lambda: _EMPTY)
    """CPUs by name; `dedicated` are those that pods have alone."""
    members: Mapping[str, PoolMember] = field(default_factory=lambda: _EMPTY)
    """By uid of the pod."""
    enable_reclaim: bool = False
    """Whether `reclaimed_cores` have all that the pools of `shared_cores` do not need."""
    overlap: bool = False
    """Whether they share CPUs with `shared_cores`."""
    least_reclaim_cpus: int = 0
    """CPUs that `reclaim` has at least, and pools of `shared_cores` never get."""
    reserved_cpus: frozenset[int] = frozenset()
    """Those of the pool `reserve`."""
    advice: Mapping[str, PoolAdvice] = field(default_factory=lambda: _EMPTY)
    """By pool; empty: no advisor has a lease, and sizes follow from requests."""

    @property
    def headroom(self) -> Headroom | None:
        """Of the whole node; None: no advisor claims it, or that of memory or CPU only."""
        return _headroom(self.advice.get(RECLAIM))

    @property
    def numa_headroom(self) -> Mapping[int, Headroom]:
        """By NUMA node; empty: no advisor claims it."""
        found: dict[int, Headroom] = {}
        for name, advice in self.advice.items():
            pool, numa_node = pool_and_numa_node(name)
            headroom = _headroom(advice)
            if pool == RECLAIM and numa_node is not None and headroom is not None:
                found[numa_node] = headroom
        return found


def _headroom(advice: PoolAdvice | None) -> Headroom | None:
    if advice is None or advice.headroom_millicpu is None or advice.headroom_bytes is None:
        return None
    return Headroom(advice.headroom_millicpu, advice.headroom_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The node, as far as it is known."""

    cpus: tuple[Cpu, ...] = ()
    """By id; empty: not known."""
    capacity: Mapping[str, int] = field(default_factory=lambda: _EMPTY)
    """By resource: `cpu` and `kubernetes.io/batch-cpu` in millicores, all else in bytes or numbers. Empty:
    not known."""
    allocatable: Mapping[str, int] = field(default_factory=lambda: _EMPTY)
    annotations: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    """Koordinator's only."""
    labels: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    """Koordinator's and topology's only."""
    cgroup_version: int = 2
    """1 or 2; 0: not known."""
    features: frozenset[str] = frozenset()
    """Of the kernel, such as `burst`."""
    cpu_manager_policy: str = ""
    """The kubelet's: `none` or `static`; empty: not known."""
    reserved_cpus: frozenset[int] = frozenset()
    """CPUs that the kubelet, or Koordinator's annotation, reserves by number."""
    reserved: Mapping[str, int] = field(default_factory=lambda: _EMPTY)
    """Kept from pods, in the units of `capacity`: the larger one of what is not
    allocatable, and of the reservation in Koordinator's annotation."""
    static_cpus: Mapping[tuple[str, str], frozenset[int]] = field(default_factory=lambda: _EMPTY)
    """CPUs that the kubelet's CPU manager has given to one container alone, by pod uid and container name."""
    claimed_cpus: frozenset[int] = frozenset()
    """CPUs that a DRA driver has given to claims."""
    system_cpus: frozenset[int] = frozenset()
    """CPUs that are set apart for SYSTEM pods."""
    is_system_exclusive: bool = True
    """Whether `system_cpus` are for SYSTEM pods alone."""
    normalization_ratio: float | None = None
    """How much faster its CPUs are than those that requests are meant for; None: not known, or disabled."""
    qos_cgroups: Mapping[KubeQoSClass, str] = field(default_factory=lambda: _EMPTY)
    """The cgroup of each QoS class of Kubernetes; one that is not in it is not known. That of Guaranteed is
    the parent of the other two."""
    memory_bytes: Mapping[int, int] = field(default_factory=lambda: _EMPTY)
    """By NUMA node; empty: not known."""
    cpu_pools: CpuPools | None = None
    """None: there are none, or they are off."""
    eviction: EvictionConfig = NO_EVICTION_CONFIG
    """What Katalyst's dynamic configuration says of evictions."""
    eviction_target: str = ""
    """The target that says so; empty: none."""
    is_eviction_unknown: bool = False
    """Whether there may be such a target that the daemon does not know yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategies:
    """The strategies of the node, merged. Without arguments: of a node without configuration."""

    threshold: Threshold = field(default_factory=Threshold)
    cpu_burst: CpuBurstStrategy = field(default_factory=CpuBurstStrategy)
    colocation: Colocation = field(default_factory=Colocation)
    cpu_guard: CpuGuard = field(default_factory=CpuGuard)
    host_applications: tuple[HostApplication, ...] = ()


class Metric(StrEnum):
    """A sampled value. A rate or share is over the time since the sample before."""

    CPU_USAGE = "cpu_usage"
    """In cores."""
    CPU_STEAL = "cpu_steal"
    """Of the node only: CPU time that the hypervisor did not give although it was wanted, in cores."""
    CPU_LOAD = "cpu_load"
    """Mean number of tasks that run or wait for a CPU, over about a minute. The kernel tells it of the node
    only."""
    CPU_THROTTLED = "cpu_throttled"
    """Share of the CFS periods in which it was throttled, 0 to 1; 0 if there was no period, as without a
    quota."""
    MEMORY_USAGE = "memory_usage"
    """In bytes, without page cache: anonymous and unevictable pages; of the node MemTotal - MemAvailable."""
    MEMORY_WITH_CACHE = "memory_with_cache"
    """In bytes, with page cache; of the node MemTotal - MemFree."""
    MEMORY_WORKING_SET = "memory_working_set"
    """In bytes, with page cache less its inactive part, by which the kubelet evicts."""
    MEMORY_FREE = "memory_free"
    """Of the node only: MemFree, in bytes."""
    MEMORY_TOTAL = "memory_total"
    """Of the node only: MemTotal, in bytes."""
    WATERMARK_SCALE = "watermark_scale"
    """Of the node only: `vm.watermark_scale_factor`, in ten thousandths of the memory."""
    KSWAPD_STEAL = "kswapd_steal"
    """Of the node only: pages that kswapd reclaims in a second."""
    CPU_RUNNABLE = "cpu_runnable"
    """Of the node only, by CPU: mean number of tasks that run on it or wait for it."""
    MEMORY_NUMA = "memory_numa"
    """In bytes, on one NUMA node: anonymous and file pages; of the node MemUsed."""
    CPU_PRESSURE = "cpu_pressure"
    """Share of the time in which some task waited for CPU, 0 to 1 (PSI)."""
    CPU_PRESSURE_FULL = "cpu_pressure_full"
    """Share of the time in which all tasks that had work waited for CPU, 0 to 1 (PSI); none of the node."""
    CPU_RUN_DELAY = "cpu_run_delay"
    """Of pods: what their threads waited for a CPU, of the time that they ran or waited, 0 to 1; below 0: a
    counter fell. Only of pods that a plugin names: `Decision.threads_of`."""
    MEMORY_PRESSURE = "memory_pressure"
    """Share of the time in which some task waited for memory, 0 to 1 (PSI)."""
    MEMORY_PRESSURE_FULL = "memory_pressure_full"
    """As `CPU_PRESSURE_FULL`, for memory; also of the node."""
    IO_PRESSURE = "io_pressure"
    """Share of the time in which some task waited for input or output, 0 to 1 (PSI)."""
    IO_PRESSURE_FULL = "io_pressure_full"
    """As `CPU_PRESSURE_FULL`, for input and output; also of the node."""
    CYCLES_PER_INSTRUCTION = "cycles_per_instruction"
    """Only where the kernel allows perf events."""


@dataclass(frozen=True, slots=True)
class Window:
    """The samples of one metric of one cgroup over some time, up to now."""

    last: float
    avg: float
    """Mean of the samples, of equal weight."""
    p50: float
    """A percentile is the sample of the nearest rank: no interpolation, so it was really measured."""
    p90: float
    p95: float
    p99: float
    count: int
    """How many samples; at least 1."""


class Measured(NamedTuple):
    """The last sample of one metric of one cgroup."""

    value: float
    at_s: float | None = None
    """When it was measured, by `Snapshot.now_s`: where the samples come from Malachite some seconds before it
    became a sample, and several samples may say what was measured once. None: with its sample."""


NO_FRESH_SAMPLE: Final = "there is no fresh sample"


class Metrics(Protocol):
    """The samples."""

    def window(self, cgroup: str, metric: Metric, length_s: float) -> Window | None:
        """The samples of the last `length_s` seconds; None: there are none.

        Args:
            cgroup: `NODE_CGROUP`, or the path of a QoS class, pod, container or host application.
            metric: one that some plugin in use needs.
            length_s: at most as long as the plugin said that it needs.
        """

    def last(self, cgroup: str, metric: Metric, length_s: float) -> float | None:
        """The last sample; None: there is none of the last `length_s` seconds. Arguments as of `window`."""
        window = self.window(cgroup, metric, length_s)
        return None if window is None else window.last

    def mean(self, cgroup: str, metric: Metric, length_s: float) -> float | None:
        """The mean of the samples of `window`, for less work; None: there are none."""
        window = self.window(cgroup, metric, length_s)
        return None if window is None else window.avg

    def measured(self, cgroup: str, metric: Metric, length_s: float) -> Measured | None:
        """The last sample and when it was measured; of parts, those of the first. Otherwise as `last`."""
        value = self.last(cgroup, metric, length_s)
        return None if value is None else Measured(value)

    def timed(self, cgroup: str, metric: Metric, length_s: float) -> Sequence[tuple[float, float]]:
        """Times and samples of the last `length_s` seconds, oldest first. Arguments as of `window`."""
        return ()

    def absence(self, cgroup: str, metric: Metric) -> str:
        """Why there are no samples, as far as the node's files tell; empty: they do not. It reads files."""
        return ""

    def follow_threads(self, cgroups: Sequence[str]) -> None:
        """Has the run delay of these cgroups' threads sampled from the next pass on, in this order."""
        return

    def numa_windows(self, cgroup: str, length_s: float) -> Mapping[int, Window]:
        """The samples of `MEMORY_NUMA` by NUMA node; empty: there are none. Arguments as of `window`."""
        return {}

    def cpu_windows(self, length_s: float) -> Mapping[int, Window]:
        """The samples of the node's `CPU_RUNNABLE` by CPU; empty: there are none."""
        return {}

    def missing_reason(self, cgroup: str, metric: Metric) -> str:
        """Why there is no fresh sample of a metric; asked where there is none."""
        return NO_FRESH_SAMPLE


class NoMetrics(Metrics):
    """Nothing is sampled."""

    def window(self, cgroup: str, metric: Metric, length_s: float) -> Window | None:
        return None


class CacheUse(NamedTuple):
    """What a pod uses of the last-level caches and of the memory bandwidth, by counters of resctrl."""

    group: str
    """The resctrl group of its tasks, such as `BE`, or `pod-UID`."""
    counters: Mapping[tuple[int, str], int] = MappingProxyType({})
    """By the cache's id and name: `llc_occupancy`, in bytes now; `mbm_total_bytes`, `mbm_local_bytes`, in
    bytes since some time: they begin anew when the pod gets another group."""
    missing: Mapping[tuple[int, str], str] = MappingProxyType({})
    """Those that the kernel does not show, with the reason, such as `Unavailable`."""


class SnapshotSource(NamedTuple):
    """The messages of the daemon that a snapshot was made of, for plugins in other processes."""

    pods: Sequence[api_pb2.Pod]
    """The same object as long as nothing has changed; so is `node`."""
    node: api_pb2.GetNodeResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that a plugin decides by."""

    now_s: float
    """Monotonic; only differences have a meaning."""
    wall_s: float = 0.0
    """Since the epoch, for the age of pods."""
    pods: tuple[Pod, ...] = ()
    """By namespace, name and sandbox; none that is stopped."""
    node: Node = field(default_factory=Node)
    strategies: Strategies = field(default_factory=Strategies)
    metrics: Metrics = field(default_factory=NoMetrics)
    cache_use: Mapping[str, CacheUse] = field(default_factory=dict)
    """By uid, of pods that the policy `resctrl` monitors; some seconds old."""
    be_limit_cores: float | None = None
    """The bound of CPU suppress on all BE pods, by its effective claims; None: it bounds nothing. That of the
    CPU guard is none: it follows from load to load."""
    is_guarded: bool = False
    """Whether the CPU guard bounds BE pods, by what others feel or felt until just now: CPU suppress claims
    nothing meanwhile."""
    source: SnapshotSource | None = field(default=None, repr=False, compare=False)
    """None: it was not made of messages, as in tests."""

    def asks_for(self, plugin: str) -> bool:
        """Whether the strategies ask for one of Koordinator's plugins, by its name."""
        bursts = (pod.cpu_burst.policy for pod in self.pods)
        strategies = self.strategies
        return plugin in asked_plugins(
            has_thresholds=strategies.threshold.enable, bursts=bursts, has_guard=strategies.cpu_guard.enable
        )


def sample_targets(pods: Iterable[Pod], node: Node, strategies: Strategies) -> dict[str, Level]:
    """The cgroups of which there are to be samples, beside the node's."""
    targets = dict.fromkeys(node.qos_cgroups.values(), Level.QOS_CLASS)
    for application in strategies.host_applications:
        targets[application.cgroup] = Level.HOST_APPLICATION
    for pod in pods:
        targets[pod.cgroup] = Level.POD
        for container in pod.containers:
            if container.state is ContainerState.RUNNING:
                targets[container.cgroup] = Level.CONTAINER
    targets.pop("", None)
    return targets
