"""The resolved strategies of a node, each value with its provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runtimeproxy.slo.pods import PodBasis, PodEviction, PodResctrl, PodResolver, PodStrategy, PodTraits
from runtimeproxy.slo.problems import Problem
from runtimeproxy.slo.provenance import BY_DEFAULT, Provenance, Source
from runtimeproxy.slo.schema import (
    Colocation,
    CpuBurst,
    CpuNormalization,
    HostApplication,
    PodNetwork,
    QoSStrategy,
    System,
    Threshold,
)

__all__ = [
    "BY_DEFAULT",
    "PodEviction",
    "PodNetwork",
    "PodResctrl",
    "PodStrategy",
    "PodTraits",
    "Problem",
    "Provenance",
    "Source",
    "Strategies",
]


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
    pod_basis: PodBasis | None = field(default=None, repr=False)
    """What pods' strategies stand on; None: on `qos`, without pod strategies."""
    pod_parts: frozenset[str] = field(init=False, repr=False, compare=False)
    """The parts of `PodStrategy`, such as `cpu_burst`, that some pod strategy of this node sets."""
    _pods: PodResolver = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        basis = self.pod_basis or PodBasis(classes=self.qos, provenance=self.provenance)
        object.__setattr__(self, "pod_parts", basis.parts())
        object.__setattr__(self, "_pods", PodResolver(self.cpu_burst, basis))

    def provenance_of(self, path: str) -> Provenance:
        """Return where a value comes from, by its dotted path, such as `qos.ls_class.cpu_qos.enable`."""
        return self.provenance.get(path, BY_DEFAULT)

    def for_pod(self, pod: PodTraits) -> PodStrategy:
        """Return what counts for a pod; in any thread, and quick: pods that differ in nothing share it."""
        return self._pods.resolve(pod)
