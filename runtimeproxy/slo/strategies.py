"""The resolved strategies of a node and of its pods, each value with its provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.slo.schema import (
    BlkioQoS,
    Colocation,
    CpuBurst,
    CpuNormalization,
    CpuQoS,
    HostApplication,
    MemoryQoS,
    QoSStrategy,
    System,
    Threshold,
)


class PodTraits(Protocol):
    """The attributes of a pod that its strategy depends on; a `PodView` has them."""

    @property
    def namespace(self) -> str:
        """Its namespace."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""

    @property
    def annotations(self) -> Mapping[str, str]:
        """Its annotations."""

    @property
    def qos(self) -> QoSClass:
        """Its QoS class, by the raw label."""

    @property
    def kube_qos(self) -> KubeQoSClass:
        """Kubernetes' QoS class."""


class Source(StrEnum):
    """The layer that a value comes from; a later one wins, except as `overridePod` says."""

    DEFAULT = "default"
    CLUSTER = "cluster strategy"
    NODE = "node strategy"
    NODE_SLO = "NodeSLO"
    NODE_LABEL = "node label"
    NODE_ANNOTATION = "node annotation"
    POD = "pod strategy"
    POD_LABEL = "pod label"
    ANNOTATION = "annotation"


class Provenance(NamedTuple):
    """Where a value comes from."""

    source: Source = Source.DEFAULT
    file: str = ""
    """Path of the file; empty for labels, annotations and defaults."""
    key: str = ""
    """Key of the ConfigMap, or of the label or annotation; for a NodeSLO, the name of its section."""
    strategy: str = ""
    """Name of the node strategy or pod strategy."""
    is_off: bool = False
    """The layer did not give this value, it disabled the class or the pod's QoS, whose values these are."""

    def __str__(self) -> str:
        text = f"{self.source} {self.strategy}" if self.strategy else str(self.source)
        if self.key:
            text += f" {self.key}" if self.source in _BY_KEY else f" of {self.key}"
        if self.file:
            text += f" in {self.file}"
        return f"disabled by {text}" if self.is_off else text


_BY_KEY: Final = frozenset(
    {Source.NODE_LABEL, Source.NODE_ANNOTATION, Source.POD_LABEL, Source.ANNOTATION, Source.NODE_SLO}
)

BY_DEFAULT: Final = Provenance()


class Problem(NamedTuple):
    """Something in a configuration that cannot be used, or is not used."""

    file: str
    """Path of the file; empty for labels and annotations."""
    key: str
    """Key of the ConfigMap, or of the label or annotation."""
    path: str
    """The place in the key's JSON, such as `nodeStrategies[0].cpuBurstPercent`; empty for the whole key."""
    reason: str
    is_warning: bool = False
    """The key counts all the same."""

    def __str__(self) -> str:
        place = f"{self.key}.{self.path}" if self.path else self.key
        return ": ".join(part for part in (self.file, place, self.reason) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodResctrl:
    """A pod's part of the last-level cache and of the memory bandwidth."""

    class_name: str = ""
    """The class whose resctrl group the pod belongs to: `LSR`, `LS`, `BE`; empty: none."""
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
class PodNetwork:
    """A pod's own limits of network bandwidth, in bits/s; None: no own limit."""

    ingress_limit: int | None = None
    egress_limit: int | None = None


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
        """Return whether a feature, by the name of its gate, may evict the pod."""
        return self.allowed is None or feature in self.allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStrategy:
    """All that strategies and the pod's own annotations say for one pod.

    Whether a value applies to the pod's QoS class (as CPU burst does not for BE) is the policies' affair.
    """

    cpu_burst: CpuBurst = field(default_factory=CpuBurst)
    cpu_qos: CpuQoS = field(default_factory=CpuQoS)
    """Of the class that counts for the pod's group identity (policies spec 2.1)."""
    memory_qos: MemoryQoS = field(default_factory=MemoryQoS)
    """Of the pod's class by label, or else by its Kubernetes QoS class (policies spec 3.6)."""
    resctrl_qos: PodResctrl = field(default_factory=PodResctrl)
    network_qos: PodNetwork = field(default_factory=PodNetwork)
    blkio_qos: BlkioQoS = field(default_factory=BlkioQoS)
    """Of the pod's annotation only."""
    eviction: PodEviction = field(default_factory=PodEviction)
    problems: tuple[Problem, ...] = ()
    """Annotations of the pod that are invalid, and so ignored."""
    provenance: Mapping[str, Provenance] = field(default_factory=dict, repr=False, compare=False)
    """By dotted path, such as `cpu_burst.cpu_burst_percent`; a missing one is a default."""

    def provenance_of(self, path: str) -> Provenance:
        """Return where a value comes from, by its dotted path, such as `cpu_burst.cpu_burst_percent`."""
        return self.provenance.get(path, BY_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategies:
    """The strategies of one node, merged and checked. Without arguments: of a node that nobody configured."""

    threshold: Threshold = field(default_factory=Threshold)
    qos: QoSStrategy = field(default_factory=QoSStrategy)
    cpu_burst: CpuBurst = field(default_factory=CpuBurst)
    system: System = field(default_factory=System)
    host_applications: tuple[HostApplication, ...] = ()
    colocation: Colocation = field(default_factory=Colocation)
    cpu_normalization: CpuNormalization = field(default_factory=CpuNormalization)
    provenance: Mapping[str, Provenance] = field(default_factory=dict, repr=False, compare=False)
    """By dotted path, such as `qos.ls_class.cpu_qos.enable`; a missing one is a default."""

    def provenance_of(self, path: str) -> Provenance:
        """Return where a value comes from, by its dotted path, such as `qos.ls_class.cpu_qos.enable`."""
        return self.provenance.get(path, BY_DEFAULT)

    def for_pod(self, pod: PodTraits) -> PodStrategy:
        """Return what counts for a pod; in any thread, and quick."""
        return PodStrategy(cpu_burst=self.cpu_burst)
