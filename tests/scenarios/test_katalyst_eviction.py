"""Katalyst's eviction plugins on a simulated node, with the product's own sampler on the node's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimeproxy.qosmanager.plugins.katalyst_cpu_load import KatalystCpuLoad
from runtimeproxy.qosmanager.plugins.katalyst_memory_pressure import KatalystMemoryPressure
from runtimeproxy.qosmanager.plugins.katalyst_rss_overuse import KatalystRssOveruse
from runtimeproxy.qosmanager.samples.sampler import Sampler
from runtimeproxy.testing.node.simulation import SimulatedNode
from tests.scenarios.evictions import CASES, GIB, SHARED, STEP_S, add, node_with, running


def gone(node: SimulatedNode, seconds: float) -> list[str]:
    node.advance(seconds, STEP_S)
    return [each.pod for each in node.evictions]


def without_samples(node: SimulatedNode) -> None:
    """From now on no pass ends: all samples grow old."""
    sampler = node.sampler
    assert isinstance(sampler, Sampler)
    sampler.read = lambda targets, needs: None  # type: ignore[method-assign, assignment, return-value]


def test_load_without_samples(tmp_path: Path) -> None:
    """They end before the eighth sample: the load of before is not that of now."""
    with node_with(KatalystCpuLoad(), tmp_path) as node:
        for name in "ab":
            add(node, name, SHARED, cores=9.0)
        node.advance(150, STEP_S)
        without_samples(node)
        assert gone(node, 120) == []


def test_memory_without_samples(tmp_path: Path) -> None:
    with node_with(KatalystMemoryPressure(), tmp_path) as node:
        node.kernel.watermark_scale = 500
        add(node, "web", SHARED, gib=40.0)
        node.advance(10, STEP_S)
        without_samples(node)
        add(node, "batch", gib=22.0)
        assert gone(node, 120) == []


def test_rss_without_samples(tmp_path: Path) -> None:
    with node_with(KatalystRssOveruse(), tmp_path) as node:
        without_samples(node)
        add(node, "web", SHARED, gib=20.0, memory=10 * GIB)
        assert gone(node, 60) == []


def test_dry_run_evicts_nothing(tmp_path: Path) -> None:
    with node_with(KatalystRssOveruse(), tmp_path, dry_run=[KatalystRssOveruse.name]) as node:
        add(node, "web", SHARED, gib=20.0, memory=10 * GIB)
        node.advance(60, STEP_S)
        assert [each.is_done for each in node.evictions] == [False]
        assert [pod.name for pod in node.pods] == ["web"]


@pytest.mark.parametrize("name", CASES)
def test_above_its_threshold_after_its_hold_time(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    with running(case, tmp_path, is_above=True) as node:
        if case.hold_s:
            assert gone(node, case.hold_s) == []
        assert gone(node, case.seconds - case.hold_s) == list(case.evicted)


@pytest.mark.parametrize("name", CASES)
def test_at_its_threshold_never(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    with running(case, tmp_path, is_above=False) as node:
        assert gone(node, case.seconds) == []
