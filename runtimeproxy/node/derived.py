"""Values of several inputs, as Koordinator computes them: shared pools, normalization ratio. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from runtimeproxy.documents.reading import (
    InputError,
    cpus_of,
    mapping_of,
    member,
    parse_json,
    quantities_of,
    shortened,
    text_of,
    within,
)
from runtimeproxy.node.machine import Processor
from runtimeproxy.node.objects import RESERVATION, SYSTEM_QOS, TopologyFacts, parse_topology
from runtimeproxy.node.snapshot import EMPTY, Cpu, PodCpus, Pool, Pools
from runtimeproxy.qos import EXCLUSIVE, QoSClass, qos_class
from runtimeproxy.slo.names import CPU_NORMALIZATION_RATIO, MAX_ANNOTATION_LENGTH, RESOURCE_STATUS
from runtimeproxy.slo.schema import CpuNormalizationStrategy


def pod_cpus(
    labels: Mapping[str, str], annotations: Mapping[str, str], last_cpu: int | None = None
) -> PodCpus | None:
    """The CPUs that a pod has for itself, by its annotation; None without any."""
    text, qos = annotations.get(RESOURCE_STATUS), qos_class(labels)
    # The scheduler allocates CPUs to these classes only: others could take CPUs from all by the annotation.
    if qos not in EXCLUSIVE or text is None or len(text) > MAX_ANNOTATION_LENGTH:
        return None
    try:
        cpus = cpus_of(text_of(member(mapping_of(parse_json(text)), "cpuset")), last_cpu)
    except InputError:
        return None  # which policies report
    return PodCpus(qos, cpus) if cpus else None


def published_pools(topology: TopologyFacts) -> Pools | None:
    """The pools of the annotations; None if there are none."""
    if topology.ls_pools is None and topology.be_pools is None and topology.system_cpus is None:
        return None
    return Pools(
        ls=tuple(pool for pool in topology.ls_pools or () if pool.cpus),
        be=tuple(pool for pool in topology.be_pools or () if pool.cpus),
        system_cpus=topology.system_cpus or frozenset(),
        is_system_exclusive=topology.is_system_exclusive,
    )


def empty_pools(pools: Pools | None, *, is_computed: bool) -> tuple[str, ...]:
    """A problem for each shared pool without a CPU; of published ones some may be left out."""
    if pools is None:
        return ()
    found = {"LS": not pools.ls and (is_computed or bool(pools.be)), "BE": not pools.be and is_computed}
    return tuple(
        f"no CPU is left in the shared pool of {name} pods, which are bound to none now"
        for name, is_empty in found.items()
        if is_empty
    )


def computed_pools(
    cpus: Iterable[Cpu],
    static_cpus: Iterable[frozenset[int]],
    pods: Iterable[PodCpus],
    topology: TopologyFacts,
) -> Pools:
    """The pools as koordlet computes them. Source: pkg/koordlet/statesinformer/impl, calCPUSharePools."""
    system = topology.system_cpus or frozenset()
    # The kubelet's reserved CPUs stay in: else a full node would have none for pods without a request.
    taken = frozenset[int]().union(*static_cpus, topology.reserved_cpus)
    if topology.is_system_exclusive:
        taken |= system
    there = tuple(pods)
    bound = frozenset[int]().union(*(pod.cpus for pod in there))
    exclusive = frozenset[int]().union(*(pod.cpus for pod in there if pod.qos is QoSClass.LSE))
    online = [cpu for cpu in cpus if cpu.is_online]
    return Pools(
        ls=_by_numa_node(cpu for cpu in online if cpu.id not in taken | bound),
        be=_by_numa_node(cpu for cpu in online if cpu.id not in taken | exclusive),
        system_cpus=system,
        is_system_exclusive=topology.is_system_exclusive,
    )


def without_claimed(pools: Pools, claimed: frozenset[int]) -> Pools:
    """The pools without the CPUs of DRA claims, which are for these alone; koordlet does not know them."""
    if not claimed:
        return pools
    ls, be = (
        tuple(rest for pool in each if (rest := pool._replace(cpus=pool.cpus - claimed)).cpus)
        for each in (pools.ls, pools.be)
    )
    return pools._replace(ls=ls, be=be, system_cpus=pools.system_cpus - claimed)


class SharedCpus(NamedTuple):
    """The inputs of computed pools, apart from the pods."""

    cpus: tuple[Cpu, ...]
    static_cpus: tuple[frozenset[int], ...]
    topology: TopologyFacts
    claimed: frozenset[int] = frozenset()

    def pools(self, pods: Iterable[PodCpus]) -> Pools:
        found = computed_pools(self.cpus, self.static_cpus, pods, self.topology)
        return without_claimed(found, self.claimed)


def topology_of(topology: TopologyFacts | None, node_annotations: Mapping[str, str]) -> TopologyFacts:
    """The node's own annotations about pools, else koordlet's copies of them. Raises InputError."""
    own = {name: node_annotations[name] for name in (SYSTEM_QOS, RESERVATION) if name in node_annotations}
    copies = topology.source if topology is not None else {}
    others = {name: copies[name] for name in (SYSTEM_QOS, RESERVATION) if name in copies}
    with within("metadata.annotations"):
        return parse_topology({**others, **own}, None)


class NodeReservation(NamedTuple):
    """The part of the node that an annotation keeps from pods."""

    amounts: Mapping[str, int] = EMPTY
    """By resource: `cpu` in millicores, all else in bytes or numbers."""
    cpus: frozenset[int] = frozenset()


def reservation_of(node_annotations: Mapping[str, str]) -> NodeReservation:
    """The reservation in a Node's annotation; nothing without it. Raises InputError."""
    text = node_annotations.get(RESERVATION)
    if not text:
        return NodeReservation()
    with within("metadata.annotations"), within(RESERVATION):
        annotation = mapping_of(parse_json(text))
        with within("resources"):
            amounts = quantities_of(member(annotation, "resources"))
        with within("reservedCPUs"):
            cpus = cpus_of(text_of(member(annotation, "reservedCPUs")))
    # CPUs replace the amount of CPU, and `applyPolicy` is for the scheduler only.
    # Source: Koordinator pkg/util, GetNodeReservationResources.
    return NodeReservation({**amounts, "cpu": len(cpus) * 1_000} if cpus else amounts, cpus)


def _by_numa_node(cpus: Iterable[Cpu]) -> tuple[Pool, ...]:
    pools: dict[tuple[int, int], set[int]] = {}
    for cpu in cpus:
        pools.setdefault((cpu.socket, cpu.numa_node), set()).add(cpu.id)
    return tuple(
        Pool(socket=socket, numa_node=numa_node, cpus=frozenset(members))
        for (socket, numa_node), members in sorted(pools.items())
    )


MIN_RATIO: Final = 1.0
MAX_RATIO: Final = 5.0
"""Source: Koordinator pkg/slo-controller/noderesource/plugins/cpunormalization/plugin.go."""
_OF_ALL_MODELS: Final = "cpu_normalization.default_ratio"
_OF_MODEL: Final = "cpu_normalization.ratio_model"
_DECIMALS: Final = 2
"""In the ratio that koord-manager publishes."""


class NormalizationRatio(NamedTuple):
    """How much faster the node's CPUs are, and where that comes from."""

    ratio: float
    path: str
    """The field of a strategy that it follows from; empty: the Node's annotation."""


def normalization_ratio(
    annotations: Mapping[str, str], strategy: CpuNormalizationStrategy, processor: Processor
) -> NormalizationRatio | None:
    """The ratio; None if normalization is disabled. Source: the same, Calculate. Raises InputError."""
    # The node's annotation wins over the strategy.
    text = annotations.get(CPU_NORMALIZATION_RATIO)
    if text is not None:
        return NormalizationRatio(_published(text), "")
    if not strategy.enable:
        return None
    cpu = shortened(repr(processor.model))
    model = strategy.ratio_model.get(processor.model)
    if model is None:
        if strategy.default_ratio is None:
            raise InputError(f"has nothing for the CPU {cpu}, and there is no defaultRatio", "ratioModel")
        return NormalizationRatio(round(strategy.default_ratio, _DECIMALS), _OF_ALL_MODELS)
    name, ratio = {
        (False, False): ("baseRatio", model.base_ratio),
        (True, False): ("hyperThreadEnabledRatio", model.hyper_thread_enabled_ratio),
        (False, True): ("turboEnabledRatio", model.turbo_enabled_ratio),
        (True, True): ("hyperThreadTurboEnabledRatio", model.hyper_thread_turbo_enabled_ratio),
    }[processor.has_hyper_threads, processor.has_turbo]
    if ratio is None:
        raise InputError(f"of the CPU {cpu} is missing", f"ratioModel.{name}")
    if not MIN_RATIO <= ratio <= MAX_RATIO:
        raise InputError(f"is {ratio:g}, not in {MIN_RATIO:g} to {MAX_RATIO:g}", f"ratioModel.{name}")
    return NormalizationRatio(round(ratio, _DECIMALS), f"{_OF_MODEL}.{processor.model}")


def _published(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        raise InputError(f"is not a number: {shortened(repr(text))}", CPU_NORMALIZATION_RATIO) from None
    # NaN is in no range.
    if not MIN_RATIO <= ratio <= MAX_RATIO:
        reason = f"is {shortened(text)}, not in {MIN_RATIO:g} to {MAX_RATIO:g}"
        raise InputError(reason, CPU_NORMALIZATION_RATIO)
    return ratio
