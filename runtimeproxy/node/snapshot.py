"""The known facts of this node, as one frozen value: the input of policies beside the pod or container."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from runtimeproxy.fields.anolis import lacking_text
from runtimeproxy.katalyst.burst import with_level
from runtimeproxy.katalyst.dynamic_config import NO_CONFIG, KatalystConfig
from runtimeproxy.katalyst.levels import KatalystQos, LevelRules
from runtimeproxy.node.block_devices import BlockDevices
from runtimeproxy.node.devices import HostDevices
from runtimeproxy.node.facts import ANY_NODE, NodeFacts
from runtimeproxy.node.resctrl import Resctrl
from runtimeproxy.qos import PRIORITY_CLASS_LABEL, KubeQoSClass, QoSClass
from runtimeproxy.slo.strategies import PodStrategy, Strategies, StrategyTraits

if TYPE_CHECKING:
    from runtimeproxy.katalyst.transition import PlacedPools

EMPTY: Final[Mapping[Any, Any]] = MappingProxyType({})


class Input(StrEnum):
    """Parts of the facts of a node, each with a state and a generation of its own; see `FIELDS`."""

    CPUS = "cpus"
    MEMORY = "memory"
    CGROUPS = "cgroups"
    """`cgroup_driver`, `features`, `resctrl`, and the files and controllers of `facts`."""
    BLOCK_DEVICES = "block-devices"
    DEVICES = "devices"
    """The devices of the host that containers may get."""
    KUBELET = "kubelet"
    NODE_OBJECT = "node-object"
    POOLS = "pools"
    CPU_POOLS = "katalyst-pools"
    """Katalyst's pools, `cpu_pools`; each pod's part of them is no change of it: their keeper has that pod
    evaluated."""
    STRATEGIES = "strategies"
    NORMALIZATION = "normalization"
    KATALYST = "katalyst"
    """Katalyst's dynamic configuration: what the target that applies to this node sets. Before it is known it
    is that of the last run."""
    POD_REQUESTS = "pod-requests"
    """`requests`; known or not for each pod."""
    PRIORITY = "priority"
    """The pod's priority class; known or not for each pod."""


class InputState(StrEnum):
    """Whether an input is used.

    What depends on an unknown input is left alone: new pods get nothing of it, and old ones keep what they
    have. What depended on a withdrawn one is given back.
    """

    UNKNOWN = "unknown"
    KNOWN = "known"
    WITHDRAWN = "withdrawn"


class Feature(StrEnum):
    """Features of kernels: files, those of fields as declared, and sysctls.

    Source: Koordinator pkg/koordlet/util/system.
    """

    BVT = "bvt"
    """Group identity."""
    BURST = "burst"
    IDLE = "idle"
    PSI = "psi"
    """Pressure of cgroups: `cpu.pressure`."""
    RESCTRL = "resctrl"
    """The file system resctrl, mounted or not."""
    RESCTRL_MOUNTED = "resctrl-mounted"
    CORE_SCHED = "core-sched"
    """Core scheduling: tasks can have cookies, or one of the switches of Anolis kernels is there: the sysctl
    `kernel.sched_core`, or `CORE_SCHED` in the scheduler's features."""
    CORE_SCHED_SYSCTL = "core-sched-sysctl"
    """The sysctl `kernel.sched_core`; mainline kernels have none."""
    CORE_SCHED_FEATURE = "core-sched-feature"
    """`CORE_SCHED` in the scheduler's features, of kernels without that sysctl."""
    GROUP_IDENTITY_SYSCTL = "group-identity-sysctl"
    """The sysctl `kernel.sched_group_identity_enabled`; without it group identity is always on."""
    SLICE = "slice"
    """Slices of tasks, from Linux 6.12 on, that this process may set: see `cgroups/slices.py`."""
    CLASS_IDLE = "class-idle"
    """Cgroup version 2 with `cpu.idle`, and a systemd that ends it before it writes a weight."""
    IO_LIMITS = "io-limits"
    """`blkio.throttle.*`, `io.max`."""
    IO_WEIGHT = "io-weight"
    """`blkio.cost.weight`, `io.weight`."""
    IO_COST = "io-cost"
    """`blkio.cost.qos`, `io.cost.qos`."""
    TC = "tc"
    """The program `tc`, and the node's own procfs; network QoS needs it, as the next two."""
    NFT = "nft"
    """The program `nft`."""
    NET_ADMIN = "net-admin"
    """The capability CAP_NET_ADMIN of this process."""
    MEMORY_PROTECTION = "memory-protection"
    MEMORY_WMARK = "memory-wmark"
    MEMORY_PRIORITY = "memory-priority"
    MEMORY_OOM_GROUP = "memory-oom-group"
    MEMORY_PAGECACHE_LIMIT = "memory-pagecache-limit"


_OF_THE_NODE: Final[Mapping[str, str]] = {
    Feature.TC: "the program tc (iproute2)",
    Feature.NFT: "the program nft (nftables)",
    Feature.NET_ADMIN: "CAP_NET_ADMIN, which the unit has with the drop-in 60-network.conf",
}
"""Features that are none of the kernel's."""


def lacks(features: Collection[str]) -> str:
    """Return who lacks these features, for people, such as `the kernel lacks bvt`."""
    of_kernel = [each for each in features if each not in _OF_THE_NODE]
    of_node = [text for each, text in _OF_THE_NODE.items() if each in features]
    texts = [f"the kernel lacks {lacking_text(of_kernel)}"] if of_kernel else []
    texts += [f"the node lacks {', '.join(of_node)}"] if of_node else []
    return "; ".join(texts)


class Cpu(NamedTuple):
    """One logical CPU."""

    id: int
    core: int
    """Number of the core; counted anew in each socket, as sysfs does."""
    socket: int
    numa_node: int
    l3: int
    """Id of the last-level cache; -1: not known."""
    is_online: bool = True


class KubeletFacts(NamedTuple):
    """Facts of the kubelet's own files."""

    cpu_manager_policy: str | None = None
    """`none` or `static`; None: not known."""
    reserved_cpus: frozenset[int] = frozenset()
    """CPUs that are reserved by number (`reservedSystemCPUs`)."""
    reserved: Mapping[str, int] = EMPTY
    """`kubeReserved` and `systemReserved` together: `cpu` in millicores, all else in bytes or numbers."""
    static_cpus: Mapping[tuple[str, str], frozenset[int]] = EMPTY
    """CPUs that the CPU manager has given to one container alone, by pod uid and container name."""
    class_memory: Mapping[KubeQoSClass, frozenset[str]] = EMPTY
    """Parameters that its feature MemoryQoS writes to the cgroups of QoS classes each minute, on cgroup
    version 2; GUARANTEED stands for that of all pods. All that it may write if `version` is empty."""
    version: str = ""
    """Such as `v1.37.2`; empty: not known."""
    memory_manager_policy: str | None = None
    """`None`, `Static` or `BestEffort`; None: not known."""


class Pool(NamedTuple):
    """CPUs of one NUMA node that containers share."""

    socket: int
    numa_node: int
    cpus: frozenset[int]


class Pools(NamedTuple):
    """The shared CPUs of a node, by class of pods."""

    ls: tuple[Pool, ...] = ()
    """For LS pods and those without a QoS class, in the order of their source."""
    be: tuple[Pool, ...] = ()
    system_cpus: frozenset[int] = frozenset()
    is_system_exclusive: bool = True
    """Whether `system_cpus` are for SYSTEM pods alone."""


FIELDS: Final[Mapping[Input, tuple[str, ...]]] = {
    Input.CPUS: ("cpus",),
    Input.MEMORY: ("memory_bytes",),
    Input.CGROUPS: ("cgroup_driver", "features", "resctrl"),
    Input.BLOCK_DEVICES: ("block_devices",),
    Input.DEVICES: ("devices",),
    Input.KUBELET: ("kubelet",),
    Input.NODE_OBJECT: ("labels", "annotations", "capacity", "allocatable"),
    Input.POOLS: ("pools", "claimed_cpus"),
    Input.STRATEGIES: ("strategies",),
    Input.NORMALIZATION: ("normalization_ratio", "normalization_path"),
    Input.POD_REQUESTS: ("requests",),
    Input.KATALYST: ("katalyst",),
}
"""The fields of `Node` that belong to an input."""


class PodCpus(NamedTuple):
    """CPUs that are allocated to one pod."""

    qos: QoSClass
    cpus: frozenset[int]


class LivePod(NamedTuple):
    """The used fields of a pod as the API server has it now."""

    uid: str
    """The uid that kubelet and runtime know it by."""
    namespace: str
    name: str
    priority: int | None = None
    """`spec.priority`; None: it has none."""
    annotations: Mapping[str, str] = EMPTY
    requests: Mapping[str, Mapping[str, int]] = EMPTY
    """By container, in the units of `Node.capacity`."""
    is_static: bool = False
    """Whether the kubelet runs it from a file: the API server cannot evict it."""
    ready: frozenset[str] = frozenset()
    """Ids of its containers that are ready, as probes say; of those without a probe nothing is known."""


class PodLike(StrategyTraits, Protocol):
    """A pod, as far as a node's inputs depend on it; a `PodView` is one."""

    @property
    def uid(self) -> str: ...

    @property
    def katalyst(self) -> KatalystQos | None: ...


NO_STRATEGIES: Final = Strategies()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node at one moment; None: not known. Without arguments nothing is known, and no value is refused."""

    facts: NodeFacts = ANY_NODE
    """Limits on the values of cgroup parameters."""
    cpus: tuple[Cpu, ...] | None = None
    """By id, those that are offline included; None: not known."""
    memory_bytes: Mapping[int, int] = field(default_factory=dict)
    """Size by NUMA node; empty: not known."""
    block_devices: BlockDevices | None = None
    """None: not known."""
    cgroup_driver: str | None = None
    """The kubelet's: `systemd` or `cgroupfs`; None: not known."""
    features: frozenset[str] = frozenset()
    """Of the kernel: `Feature`."""
    resctrl: Resctrl | None = None
    """The caches and bandwidths that groups can have parts of; None: resctrl is not mounted, or not known."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, int] | None = None
    """By resource: `cpu` in millicores, all else in bytes or numbers; None: not known."""
    allocatable: Mapping[str, int] | None = None
    kubelet: KubeletFacts | None = None
    pools: Pools | None = None
    """Without claimed CPUs."""
    claimed_cpus: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """CPUs of DRA claims, by the name of the CDI device that stands for one in a container's request; empty
    for a claim whose CPUs are not known."""
    normalization_ratio: float | None = None
    """How much faster this node's CPUs are than those that requests are meant for, 1.0 to 5.0; None: not
    known, or normalization is disabled."""
    normalization_path: str = ""
    """The field of the strategies that the ratio follows from; empty: the Node's annotation."""
    requests: Mapping[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)
    """Requests by pod uid and container name, in the units of `capacity`, from the kubelet's own state."""
    allocations: Mapping[str, PodCpus] = field(default_factory=dict)
    """CPUs of pods that have some of their own, by pod uid."""
    cpu_pools: PlacedPools | None = None
    """Katalyst's pools, and what each pod has of them; None: they are off, or not known."""
    live_pods: Mapping[str, LivePod] = field(default_factory=dict)
    """The pods of this node as the API server has them, by uid; empty without it."""
    strategies: Strategies = NO_STRATEGIES
    katalyst: KatalystConfig = NO_CONFIG
    """Katalyst's dynamic configuration."""
    levels: LevelRules | None = None
    """Of Katalyst's levels, as configured; None: not known."""
    states: Mapping[Input, InputState] = field(default_factory=dict)
    """An input that is not in it is known if its values are there, else unknown."""
    generations: Mapping[Input, int] = field(default_factory=dict)
    """By input, a number that is larger after each change; an input that is not in it has 0."""
    unsure: frozenset[Input] = field(init=False, repr=False, compare=False, default=frozenset())
    """The inputs that may be unknown for some pod."""
    inputs: object = field(init=False, repr=False, compare=False, default_factory=object)
    """The same one in nodes that differ in what is in `cpu_pools` alone."""
    _requests_by_pod: Mapping[str, Mapping[str, Mapping[str, int]]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    _unknown: frozenset[Input] = field(init=False, repr=False, compare=False, default=frozenset())

    def __post_init__(self) -> None:
        by_pod: dict[str, dict[str, Mapping[str, int]]] = {}
        for (uid, name), requests in self.requests.items():
            by_pod.setdefault(uid, {})[name] = requests
        object.__setattr__(self, "_requests_by_pod", by_pod)
        unknown = frozenset(each for each in Input if self.state_of(each) is InputState.UNKNOWN)
        object.__setattr__(self, "_unknown", unknown)
        is_withdrawn = self.states.get(Input.POD_REQUESTS) is InputState.WITHDRAWN
        of_pods = {Input.PRIORITY} if is_withdrawn else {Input.PRIORITY, Input.POD_REQUESTS}
        object.__setattr__(self, "unsure", unknown | of_pods)

    def with_cpu_pools(self, pools: PlacedPools | None, state: InputState) -> Node:
        """The same node with other pools of Katalyst's, and their state.

        Calls wait for it: what the other inputs tell is not computed again.
        """
        if self.states.get(Input.CPU_POOLS) is not state:
            return replace(self, cpu_pools=pools, states={**self.states, Input.CPU_POOLS: state})
        node = object.__new__(Node)
        for name in Node.__slots__:
            object.__setattr__(node, name, getattr(self, name))
        object.__setattr__(node, "cpu_pools", pools)
        return node

    @property
    def devices(self) -> HostDevices | None:
        """The devices of the host that containers may get; None: not known."""
        return self.facts.devices

    def strategy_for(self, pod: PodLike) -> PodStrategy:
        strategy = self.strategies.for_pod(pod)
        return strategy if pod.katalyst is None else with_level(strategy, pod.katalyst, self.katalyst)

    def requests_of(self, pod: PodLike) -> Mapping[str, Mapping[str, int]]:
        """The requests of a pod's containers by name, as in `requests`; empty if they are not known."""
        # The kubelet's come first: it allocates them.
        found = self._requests_by_pod.get(pod.uid)
        if found is None and (live := self.live_pods.get(pod.uid)) is not None:
            found = live.requests
        return found or {}

    def knows_requests_of(self, pod: PodLike) -> bool:
        """Whether the kubelet's state or the API server tells the requests of this pod."""
        return pod.uid in self._requests_by_pod or pod.uid in self.live_pods

    def priority_of(self, pod: PodLike) -> int | None:
        """The pod's `spec.priority`; None if it is not known."""
        live = self.live_pods.get(pod.uid)
        return live.priority if live is not None else None

    def state_of(self, of: Input) -> InputState:
        """The state of an input; of `PRIORITY` and `POD_REQUESTS` apart from any pod."""
        state = self.states.get(of)
        if state is None:
            state = InputState.KNOWN if self._has_values(of) else InputState.UNKNOWN
        return state

    def unknown_inputs(self, inputs: Iterable[Input], pod: PodLike | None) -> tuple[Input, ...]:
        """The unknown ones of `inputs` for this pod, in their order; None: apart from any pod."""
        unknown: list[Input] = []
        for each in inputs:
            if pod is not None and each is Input.PRIORITY:
                is_known = PRIORITY_CLASS_LABEL in pod.labels or self.priority_of(pod) is not None
            elif pod is not None and each is Input.POD_REQUESTS:
                is_withdrawn = self.states.get(each) is InputState.WITHDRAWN
                is_known = is_withdrawn or self.knows_requests_of(pod)
            else:
                is_known = each not in self._unknown
            if not is_known:
                unknown.append(each)
        return tuple(unknown)

    def _has_values(self, of: Input) -> bool:
        if of is Input.STRATEGIES:
            return self.strategies is not NO_STRATEGIES
        if of is Input.POOLS:
            return bool(self.pools)
        if of is Input.KATALYST:
            return bool(self.katalyst.target)
        if of is Input.CPU_POOLS:
            return self.cpu_pools is not None
        return any(getattr(self, name) for name in FIELDS.get(of, ()))


class NodeSource(Protocol):
    """Where the present node comes from."""

    @property
    def latest(self) -> Node:
        """The present inputs, and the facts that were read last; no file is read for it."""

    @property
    def fresh_until_s(self) -> float:
        """By `time.monotonic`: until then `latest` is the present node."""

    def snapshot(self) -> Node:
        """The present node; may read files, so not for the event loop's thread."""


class FixedNode:
    """A node that never changes."""

    fresh_until_s = math.inf

    def __init__(self, node: Node | None = None) -> None:
        self.latest = node or Node()

    def snapshot(self) -> Node:
        return self.latest
