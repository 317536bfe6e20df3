"""Katalyst's eviction plugins on a simulated node: at their thresholds, and just below."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from runtimeproxy.cgroups.mounts import find_mounts
from runtimeproxy.katalyst.names import RECLAIMED_MEMORY, RECLAIMED_MILLICPU, QosLevel
from runtimeproxy.qos import QoSClass
from runtimeproxy.qosmanager.plugin import AnyPlugin
from runtimeproxy.qosmanager.plugins.katalyst_cpu_load import KatalystCpuLoad
from runtimeproxy.qosmanager.plugins.katalyst_cpu_suppression import KatalystCpuSuppression
from runtimeproxy.qosmanager.plugins.katalyst_memory_pressure import KatalystMemoryPressure
from runtimeproxy.qosmanager.plugins.katalyst_reclaimed_pressure import KatalystReclaimedPressure
from runtimeproxy.qosmanager.plugins.katalyst_rss_overuse import KatalystRssOveruse
from runtimeproxy.qosmanager.samples.reader import PassReader
from runtimeproxy.qosmanager.samples.sampler import Sampler
from runtimeproxy.qosmanager.snapshot import CpuPools, KatalystTraits, PoolAdvice, PoolMember
from runtimeproxy.testing.node.kernel import Workload, constant
from runtimeproxy.testing.node.simulation import SimulatedContainer, SimulatedNode, SimulatedPod
from tests.scenarios.scenarios import Scenario

GIB: Final = 1 << 30
SHARED: Final = "shared_cores"
STEP_S: Final = 5.0
"""As often as the plugins check."""


@contextmanager
def node_with(plugin: AnyPlugin, folder: Path, **fields: Any) -> Iterator[SimulatedNode]:
    """A node of 8 CPUs and 64 GiB with a pool `share` of 4 and `reclaim` of 4."""
    node = SimulatedNode(8, memory_bytes=64 * GIB, plugins=[plugin], folder=folder, **fields)
    pools = {"share": frozenset(range(4)), "reclaim": frozenset(range(4, 8))}
    node.facts = replace(node.facts, cpu_pools=CpuPools(pools=pools))
    mounts = find_mounts(folder / "sys/fs/cgroup")
    sampler = Sampler(
        mounts,
        most_cpus=8,
        procfs=folder / "proc",
        sysfs=folder / "sys",
        reader=PassReader(clock=lambda: node.now_s),
    )
    node.sampler = sampler
    try:
        yield node
    finally:
        sampler.close()


def add(
    node: SimulatedNode,
    name: str,
    level: str = QosLevel.RECLAIMED,
    *,
    cores: float = 0.1,
    gib: float = 1.0,
    tolerance: float | None = None,
    **requests: int,
) -> None:
    is_reclaimed = level == QosLevel.RECLAIMED
    workload = Workload(cores=constant(cores), memory_bytes=constant(gib * GIB))
    names = {"millicpu": RECLAIMED_MILLICPU, "reclaimed_memory": RECLAIMED_MEMORY}
    node.add_pod(
        SimulatedPod(
            name=name,
            qos=QoSClass.BE if is_reclaimed else QoSClass.LS,
            priority=5_500 if is_reclaimed else 9_000,
            katalyst=KatalystTraits(level, tolerance),
            cpus=frozenset(range(4, 8)) if is_reclaimed else frozenset(range(4)),
            containers=[
                SimulatedContainer(
                    workload=workload,
                    requests={names.get(key, key): amount for key, amount in requests.items()},
                )
            ],
        )
    )
    pools = node.facts.cpu_pools
    assert pools is not None
    pool = "reclaim" if is_reclaimed else "share"
    members = {**pools.members, name: PoolMember(level, pool)}
    node.facts = replace(node.facts, cpu_pools=replace(pools, members=members))


@dataclass(frozen=True, slots=True)
class EvictionCase:
    """A load by which one plugin evicts, or just not."""

    title: str
    plugin: Callable[[], AnyPlugin]
    load: Callable[[SimulatedNode, bool], None]
    """Prepares the node; the second argument: whether the load is above the threshold."""
    evicted: tuple[str, ...]
    """The pods that go then, in their order."""
    hold_s: float
    """Until then none does."""
    panel: Callable[[SimulatedNode], Mapping[str, Callable[[], float]]]
    """What is compared: the load and its threshold."""
    seconds: float = 320.0


def suppression(node: SimulatedNode, is_above: bool) -> None:
    add(node, "batch", millicpu=6_001 if is_above else 6_000, tolerance=1.5, cores=8.0)
    add(node, "patient", cores=1.0, millicpu=0)


def load(node: SimulatedNode, is_above: bool) -> None:
    for name in ("a-0", "b-0"):
        add(node, name, SHARED, cores=3.7 if is_above else 3.5)
    add(node, "batch", cores=40.0)


def pressure(node: SimulatedNode, is_above: bool) -> None:
    add(node, "large", millicpu=4_000, reclaimed_memory=GIB)
    add(node, "small", millicpu=2_000, reclaimed_memory=GIB)
    pools = node.facts.cpu_pools
    assert pools is not None
    advice = {"reclaim": PoolAdvice(None, None, 1_199 if is_above else 1_200, 8 * GIB)}
    node.facts = replace(node.facts, cpu_pools=replace(pools, advice=advice))


def memory(node: SimulatedNode, is_above: bool) -> None:
    """The watermark is 3.2 GiB of 64, or 500 ten thousandths."""
    node.kernel.watermark_scale = 500
    add(node, "web", SHARED, gib=56.0)
    add(node, "batch", gib=5.5 if is_above else 4.5)


def kswapd(node: SimulatedNode, is_above: bool) -> None:
    node.kernel.kswapd_pages = constant(2_000.0 if is_above else 1_990.0)
    add(node, "web", SHARED, gib=20.0)


def overuse(node: SimulatedNode, is_above: bool) -> None:
    add(node, "web", SHARED, gib=10.51 if is_above else 10.5, memory=10 * GIB)
    add(node, "no-request", SHARED, gib=20.0)


def _requested(node: SimulatedNode) -> float:
    return sum(
        each.requests.get(RECLAIMED_MILLICPU, 0) / 1_000 for pod in node.pods for each in pod.containers
    )


def _has(node: SimulatedNode, name: str) -> bool:
    return any(pod.name == name for pod in node.pods)


CASES: Final[Mapping[str, EvictionCase]] = {
    "cpu-suppression": EvictionCase(
        "requests of reclaimed_cores above 1.5 times 4 CPUs",
        KatalystCpuSuppression,
        suppression,
        ("batch",),
        300.0,
        lambda node: {"requested cores": lambda: _requested(node), "threshold": lambda: 6.0},
    ),
    "cpu-load": EvictionCase(
        "load of the pool share above 1.8 times 4 CPUs",
        KatalystCpuLoad,
        load,
        ("a-0",),
        200.0,
        lambda node: {
            "wanted cores": lambda: sum(3.7 for name in ("a-0", "b-0") if _has(node, name)),
            "threshold": lambda: 7.2,
        },
        # Then five minutes of rest.
        320.0,
    ),
    "reclaimed-pressure": EvictionCase(
        "requests of reclaimed_cores above 5 times the headroom",
        KatalystReclaimedPressure,
        pressure,
        ("large",),
        60.0,
        lambda node: {"requested cores": lambda: _requested(node), "threshold": lambda: 6.0},
        120.0,
    ),
    "memory-pressure": EvictionCase(
        "free memory below the watermark",
        KatalystMemoryPressure,
        memory,
        ("batch",),
        0.0,
        lambda node: {"free GiB": lambda: 64 - node.memory_bytes() / GIB, "threshold": lambda: 3.2},
        60.0,
    ),
    "kswapd": EvictionCase(
        "kswapd reclaims 2,000 pages a second",
        KatalystMemoryPressure,
        kswapd,
        ("web",),
        120.0,
        lambda node: {
            "pages in a second": lambda: node.kernel.kswapd_pages(node.now_s),
            "threshold": lambda: 2_000.0,
        },
        150.0,
    ),
    "rss-overuse": EvictionCase(
        "memory without page cache above 1.05 times its request",
        KatalystRssOveruse,
        overuse,
        ("web",),
        0.0,
        lambda node: {
            "GiB": lambda: node.cgroup("web").memory_bytes / GIB if _has(node, "web") else 0.0,
            "threshold": lambda: 10.5,
        },
        30.0,
    ),
}


@contextmanager
def running(case: EvictionCase, folder: Path, *, is_above: bool) -> Iterator[SimulatedNode]:
    """A node with the load of a case, before its first moment."""
    with node_with(case.plugin(), folder) as node:
        case.load(node, is_above)
        for name, amount in case.panel(node).items():
            node.watch(name, amount)
        node.watch("pods", lambda: len(node.pods))
        yield node


def eviction(name: str, folder: Path) -> Scenario:
    """A case above its threshold, and beside it just below."""
    case, nodes = CASES[name], list[SimulatedNode]()
    for is_above in (True, False):
        with running(case, folder / f"{name}-{is_above}", is_above=is_above) as node:
            node.advance(case.seconds, STEP_S)
            nodes.append(node)
    above, below = nodes
    panels = {"load": tuple(case.panel(above)), "pods": ("pods",)}
    return Scenario(f"Katalyst: {case.title}", above, panels, below, "at the threshold or below")
