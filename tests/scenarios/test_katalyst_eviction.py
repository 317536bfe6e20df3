"""Katalyst's eviction plugins on a simulated node, with the product's own sampler on the node's files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

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

GIB = 1 << 30
SHARED = "shared_cores"
STEP_S = 5.0


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


def gone(node: SimulatedNode, seconds: float) -> list[str]:
    node.advance(seconds, STEP_S)
    return [each.pod for each in node.evictions]


def without_samples(node: SimulatedNode) -> None:
    """From now on no pass ends: all samples grow old."""
    sampler = node.sampler
    assert isinstance(sampler, Sampler)
    sampler.read = lambda targets, needs: None  # type: ignore[method-assign, assignment, return-value]


@pytest.mark.parametrize(("tolerance", "expected"), [(1.5, []), (1.49, ["batch"])])
def test_cpu_suppression(tolerance: float, expected: list[str], tmp_path: Path) -> None:
    with node_with(KatalystCpuSuppression(), tmp_path) as node:
        add(node, "batch", millicpu=6_000, tolerance=tolerance, cores=8.0)
        assert gone(node, 300) == []
        assert gone(node, 15) == expected


@pytest.mark.parametrize(("cores", "expected"), [(3.5, []), (3.7, ["a"])])
def test_cpu_load(cores: float, expected: list[str], tmp_path: Path) -> None:
    """Two pods want so much of four CPUs each; `reclaim` is busy, too, which does not matter."""
    with node_with(KatalystCpuLoad(), tmp_path) as node:
        add(node, "a", SHARED, cores=cores)
        add(node, "b", SHARED, cores=cores)
        add(node, "batch", cores=40.0)
        assert gone(node, 200) == []
        # Then five minutes of rest.
        assert gone(node, 200) == expected


def test_load_without_samples(tmp_path: Path) -> None:
    """They end before the eighth sample: the load of before is not that of now."""
    with node_with(KatalystCpuLoad(), tmp_path) as node:
        for name in "ab":
            add(node, name, SHARED, cores=9.0)
        node.advance(150, STEP_S)
        without_samples(node)
        assert gone(node, 600) == []


@pytest.mark.parametrize(("reclaimed_gib", "expected"), [(1.0, []), (5.5, ["batch"])])
def test_memory_below_the_watermark(reclaimed_gib: float, expected: list[str], tmp_path: Path) -> None:
    """64 GiB, 500 ten thousandths: 3.2 GiB. The node and its one NUMA node are short; one pod goes."""
    with node_with(KatalystMemoryPressure(), tmp_path) as node:
        node.kernel.watermark_scale = 500
        add(node, "web", SHARED, gib=56.0)
        add(node, "batch", gib=reclaimed_gib)
        assert gone(node, 60) == expected


def test_memory_without_samples(tmp_path: Path) -> None:
    with node_with(KatalystMemoryPressure(), tmp_path) as node:
        node.kernel.watermark_scale = 500
        add(node, "web", SHARED, gib=40.0)
        node.advance(10, STEP_S)
        without_samples(node)
        add(node, "batch", gib=22.0)
        assert gone(node, 600) == []


@pytest.mark.parametrize(("pages", "expected"), [(1_990.0, []), (2_000.0, ["web"])])
def test_kswapd(pages: float, expected: list[str], tmp_path: Path) -> None:
    with node_with(KatalystMemoryPressure(), tmp_path) as node:
        node.kernel.kswapd_pages = constant(pages)
        add(node, "web", SHARED, gib=20.0)
        assert gone(node, 120) == []
        assert gone(node, 30) == expected


@pytest.mark.parametrize(("gib", "expected"), [(10.5, []), (10.51, ["web"])])
def test_rss_overuse(gib: float, expected: list[str], tmp_path: Path) -> None:
    with node_with(KatalystRssOveruse(), tmp_path) as node:
        add(node, "web", SHARED, gib=gib, memory=10 * GIB)
        add(node, "no-request", SHARED, gib=gib)
        assert gone(node, 20) == expected


def test_rss_without_samples(tmp_path: Path) -> None:
    with node_with(KatalystRssOveruse(), tmp_path) as node:
        without_samples(node)
        add(node, "web", SHARED, gib=20.0, memory=10 * GIB)
        assert gone(node, 60) == []


@pytest.mark.parametrize(("headroom_millicpu", "expected"), [(1_200, []), (1_199, ["large"])])
def test_reclaimed_pressure(headroom_millicpu: int, expected: list[str], tmp_path: Path) -> None:
    with node_with(KatalystReclaimedPressure(), tmp_path) as node:
        add(node, "large", millicpu=4_000, reclaimed_memory=GIB)
        add(node, "small", millicpu=2_000, reclaimed_memory=GIB)
        pools = node.facts.cpu_pools
        assert pools is not None
        advice = {"reclaim": PoolAdvice(None, None, headroom_millicpu, 8 * GIB)}
        node.facts = replace(node.facts, cpu_pools=replace(pools, advice=advice))
        assert gone(node, 60) == []
        assert gone(node, 15) == expected


def test_dry_run_evicts_nothing(tmp_path: Path) -> None:
    with node_with(KatalystRssOveruse(), tmp_path, dry_run=[KatalystRssOveruse.name]) as node:
        add(node, "web", SHARED, gib=20.0, memory=10 * GIB)
        node.advance(60, STEP_S)
        assert [each.is_done for each in node.evictions] == [False]
        assert [pod.name for pod in node.pods] == ["web"]
