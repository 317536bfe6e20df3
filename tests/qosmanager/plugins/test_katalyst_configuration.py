"""Katalyst's evictions by the configuration of the cluster, and by samples that were measured earlier."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.config.sources import read
from runtimeproxy.config.validation import CombinedConfigError
from runtimeproxy.katalyst.dynamic_config import read_config
from runtimeproxy.katalyst.eviction_config import OF_PLUGINS
from runtimeproxy.katalyst.names import RECLAIMED_MEMORY, RECLAIMED_MILLICPU
from runtimeproxy.qosmanager.conditions import STALE_S, ConditionPlugin
from runtimeproxy.qosmanager.manager import configured
from runtimeproxy.qosmanager.plugins.katalyst_cpu_load import KatalystCpuLoad
from runtimeproxy.qosmanager.plugins.katalyst_cpu_suppression import KatalystCpuSuppression
from runtimeproxy.qosmanager.plugins.katalyst_memory_pressure import KatalystMemoryPressure
from runtimeproxy.qosmanager.plugins.katalyst_reclaimed_pressure import KatalystReclaimedPressure
from runtimeproxy.qosmanager.plugins.katalyst_rss_overuse import KatalystRssOveruse
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, Metric
from tests.qosmanager.plugins.katalyst import GIB, Driver, reclaimed, shared
from tests.qosmanager.plugins.test_katalyst_cpu import load, suppression
from tests.qosmanager.plugins.test_katalyst_memory import memory, numa, pressure, rss, use

CPU, MEMORY, RECLAIMED = (
    f"{name}EvictionConfig" for name in ("cpuPressure", "memoryPressure", "reclaimedResources")
)


def configure(driver: Driver, **config: Any) -> Driver:
    found = read_config({"evictionConfig": config})
    assert found.problems == ()
    driver.node |= {"eviction": found.config.eviction, "eviction_target": "AdminQoSConfiguration gold"}
    return driver


PLUGINS: list[type[ConditionPlugin[Any]]] = [
    KatalystCpuLoad,
    KatalystCpuSuppression,
    KatalystMemoryPressure,
    KatalystReclaimedPressure,
    KatalystRssOveruse,
]


@pytest.mark.parametrize("plugin", PLUGINS)
def test_each_value_for_a_plugin_is_one_of_its_options(plugin: type[ConditionPlugin[Any]]) -> None:
    own = OF_PLUGINS[plugin.name]
    options = {each.name for each in fields(plugin.options_type)}  # type: ignore[arg-type]
    assert {each.option for each in plugin.settings.values()} <= options
    given = {path for path in (*own.values, *own.switches) if not path.endswith("eviction_threshold")}
    switch = {path for path in own.switches if path not in plugin.settings}
    assert plugin.settings.keys() == given - switch


@pytest.mark.parametrize(
    ("driver", "config", "expected"),
    [
        # Without it at 305 s.
        pytest.param(
            suppression,
            {CPU: {"minSuppressionToleranceDuration": "1m"}},
            [(65.0, "a")],
            id="suppression-for-a-minute",
        ),
        pytest.param(
            suppression,
            {CPU: {"maxSuppressionToleranceRate": 1.95}},
            [(305.0, "a")],
            id="suppression-b-tolerates-what-is-left",
        ),
        pytest.param(
            lambda: suppression(requested=7_600),
            {CPU: {"maxSuppressionToleranceRate": 1.5}},
            [(305.0, "a")],
            id="suppression-less-is-tolerated",
        ),
        pytest.param(
            suppression, {CPU: {"enableSuppressionEviction": False}}, [], id="suppression-switched-off"
        ),
        # Without it at 210 s.
        pytest.param(
            lambda: load(1.85),
            {CPU: {"loadThresholdMetPercentage": 0.5, "loadMetricRingSize": 4}},
            [(30.0, "a-0"), (330.0, "b-0")],
            id="load-two-of-four",
        ),
        pytest.param(lambda: load(1.85), {CPU: {"loadUpperBoundRatio": 1.85}}, [], id="load-at-the-bound"),
        pytest.param(
            lambda: load(1.85),
            {CPU: {"loadEvictionCoolDownTime": "100s"}},
            [(210.0, "a-0"), (310.0, "b-0")],
            id="load-cools-for-100-s",
        ),
        pytest.param(lambda: load(9.0), {CPU: {"enableLoadEviction": False}}, [], id="load-switched-off"),
        pytest.param(
            lambda: pressure(reclaimed("a", 3_000, 0)),
            {RECLAIMED: {"evictionThreshold": {RECLAIMED_MILLICPU: 2.9}}},
            [(60.0, "a")],
            id="pressure-of-cpu",
        ),
        pytest.param(
            lambda: pressure(reclaimed("a", 0, 3 * GIB)),
            {
                RECLAIMED: {
                    "evictionThreshold": {RECLAIMED_MEMORY: 2.9},
                    "thresholdMetToleranceDuration": 10,
                }
            },
            [(10.0, "a")],
            id="pressure-of-memory-for-10-s",
        ),
        pytest.param(
            lambda: pressure(reclaimed("a", 3_000, 0)),
            {RECLAIMED: {"evictionThreshold": {RECLAIMED_MILLICPU: 3.0}}},
            [],
            id="pressure-at-the-threshold",
        ),
        pytest.param(
            lambda: rss((shared("a", 10 * GIB), 12)),
            {MEMORY: {"rssOveruseRateThreshold": 1.2}},
            [],
            id="rss-at-the-threshold",
        ),
        pytest.param(
            lambda: rss((shared("a", 10 * GIB), 12)),
            {MEMORY: {"rssOveruseRateThreshold": 1.19}},
            [(0.0, "a")],
            id="rss-above",
        ),
        pytest.param(
            lambda: rss((shared("a", 10 * GIB), 90)),
            {MEMORY: {"enableRSSOveruseEviction": False}},
            [],
            id="rss-switched-off",
        ),
    ],
)
def test_values_of_the_cluster(
    driver: Callable[[], Driver], config: dict[str, Any], expected: list[tuple[float, str]]
) -> None:
    assert configure(driver(), **config).through(0, 400) == expected


def short(**config: Any) -> Driver:
    """0.9 GiB are free of 100, the watermark is 1 GiB, kswapd reclaims 2,500 pages a second."""
    driver = memory(0.9, steal=2_500)
    use(driver, reclaimed("batch"), 0.2)
    use(driver, shared("web"), 5)
    return configure(driver, **{MEMORY: config})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [(0.0, "batch"), (120.0, "web")]),
        ({"enableSystemLevelEviction": False, "enableNumaLevelEviction": False}, []),
        ({"systemKswapdRateThreshold": 2_501}, [(0.0, "batch")]),
        ({"systemKswapdRateExceedDurationThreshold": 60}, [(0.0, "batch"), (60.0, "web")]),
    ],
)
def test_memory_of_the_node(config: dict[str, Any], expected: list[tuple[float, str]]) -> None:
    assert short(**config).through(0, 150) == expected


def test_the_least_free_memory() -> None:
    driver = memory(5.0)
    use(driver, reclaimed("batch"), 0.2)
    assert driver.through(0, 20) == []
    configure(driver, **{MEMORY: {"systemFreeMemoryThresholdMinimum": "5Gi"}})
    assert driver.through(25, 40) == []
    configure(driver, **{MEMORY: {"systemFreeMemoryThresholdMinimum": "5121Mi"}})
    assert driver.through(45, 60) == [(45.0, "batch")]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"numaFreeBelowWatermarkTimesThreshold": 7}, [(0.0, "one"), (30.0, "web")]),
        # Both have 2 GiB of the 50 there.
        ({"numaVictimMinimumUtilizationThreshold": 0.04}, [(0.0, "one"), (15.0, "web")]),
        ({"numaVictimMinimumUtilizationThreshold": 0.041}, []),
        ({"enableNumaLevelEviction": False}, []),
    ],
)
def test_memory_of_numa_nodes(config: dict[str, Any], expected: list[tuple[float, str]]) -> None:
    driver = configure(numa(0.1), **{MEMORY: config})
    driver.node["eviction_target"] = "AdminQoSConfiguration gold"
    assert driver.through(0, 45) == expected


def test_the_values_are_told_and_go_with_the_target() -> None:
    driver = configure(rss((shared("a", 10 * GIB), 11)), **{MEMORY: {"rssOveruseRateThreshold": 1.2}})
    driver.node["eviction"] = read_config(
        {
            "evictionConfig": {
                "dryRun": ["*"],
                MEMORY: {"rssOveruseRateThreshold": 1.2, "gracePeriod": 30},
            }
        }
    ).config.eviction
    decision = driver.at(0)
    assert decision.explanation == (
        "by AdminQoSConfiguration gold: dry-run by evictionConfig.dryRun, threshold 1.2, grace_seconds 30"
    )
    assert decision.is_dry_run
    # 1.1 times is above the plugin's own threshold of 1.05.
    driver.node = {}
    (eviction,) = driver.at(5).evictions
    assert (eviction.pod_uid, eviction.grace_s) == ("a", 0.0)


@pytest.mark.parametrize(
    ("plugin", "options", "problem"),
    [
        ("katalyst-cpu-load", "lower_ratio = 1.9", "lower_ratio: is 1.9, which is above upper_ratio, 1.8"),
        ("katalyst-cpu-load", "upper_ratio = 1.9\nlower_ratio = 1.9", ""),
        (
            "katalyst-reclaimed-pressure",
            "cpu_threshold = 1.2",
            "cpu_threshold: is 1.2, which is below cpu_soft_threshold, 1.5",
        ),
        (
            "katalyst-reclaimed-pressure",
            "memory_soft_threshold = 6",
            "memory_soft_threshold: is 6, which is above memory_threshold, 5",
        ),
    ],
)
def test_a_soft_threshold_above_the_hard_one_ends_the_start(
    plugin: str, options: str, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[plugins.{plugin}.options]\n{options}\n")
    reading = read(argparse.Namespace(config=str(file)), {})
    plugins = [each() for each in PLUGINS]
    if not problem:
        assert configured(reading, plugins).plugins.keys() >= {plugin}
        return
    with pytest.raises(CombinedConfigError) as raised:
        configured(reading, plugins)
    assert [str(each) for each in raised.value.errors] == [
        f"{file}: plugins.{plugin}.options.{problem}",
    ]


def test_a_soft_threshold_of_the_cluster_above_its_hard_one_is_not_used() -> None:
    found = read_config(
        {
            "evictionConfig": {
                CPU: {"loadLowerBoundRatio": 2, "loadUpperBoundRatio": 1.5},
                RECLAIMED: {
                    "evictionThreshold": {RECLAIMED_MILLICPU: 2, RECLAIMED_MEMORY: 2},
                    "softEvictionThreshold": {RECLAIMED_MILLICPU: 2.5, RECLAIMED_MEMORY: 2},
                },
            }
        }
    )
    unused = "and is not used: it is above evictionConfig"
    assert [f"{each.path} {each.reason}" for each in found.problems] == [
        f"spec.config.evictionConfig.{CPU}.loadLowerBoundRatio is 2, {unused}.{CPU}.loadUpperBoundRatio, 1.5",
        (
            f"spec.config.evictionConfig.{RECLAIMED}.softEvictionThreshold.{RECLAIMED_MILLICPU} is 2.5, "
            f"{unused}.{RECLAIMED}.evictionThreshold, 2"
        ),
    ]
    assert not found.error
    eviction = found.config.eviction
    assert eviction.cpu_pressure_eviction_config.load_upper_bound_ratio == 1.5
    assert eviction.cpu_pressure_eviction_config.load_lower_bound_ratio is None
    soft = eviction.reclaimed_resources_eviction_config.soft_eviction_threshold
    assert soft == {RECLAIMED_MEMORY: 2}


def test_a_hard_threshold_of_the_cluster_below_the_soft_one_here_bounds_it() -> None:
    driver = pressure(reclaimed("a", 1_300, 0))
    assert driver.at(0).explanation.startswith("reclaimed_millicpu: 1300m requested")
    configure(driver, **{RECLAIMED: {"evictionThreshold": {RECLAIMED_MILLICPU: 1.2}}})
    decision = driver.at(5)
    assert "above 1.2 times: met for 0 s of 60 s" in decision.explanation
    assert decision.explanation.endswith(
        "by AdminQoSConfiguration gold: cpu_threshold 1.2, "
        "cpu_soft_threshold 1.2, as 1.5 is above cpu_threshold"
    )


# Samples that were measured earlier


def test_one_measurement_counts_once_for_a_numa_node() -> None:
    """Malachite reads each 10 s: two looks see the same numbers."""
    driver = numa(0.1)
    driver.pods = [pod for pod in driver.pods if pod.uid == "web"]
    found: list[tuple[float, str]] = []
    for second in range(0, 50, 5):
        driver.metrics.measured_s = second // 10 * 10.0
        found += driver.through(second, second)
    # The fourth measurement is of 30 s; with the kernel's samples it is that of 15 s.
    assert found == [(30.0, "web")]


@pytest.mark.parametrize(("age_s", "expected"), [(STALE_S, ["batch"]), (STALE_S + 0.1, [])])
def test_old_measurements_evict_nothing(age_s: float, expected: list[str]) -> None:
    for driver in (short(), rss((reclaimed("batch", requests={"memory": GIB}), 2))):
        driver.metrics.measured_s = 1_000.0 - age_s
        assert [uid for _, uid in driver.through(1_000, 1_000)] == expected
    driver = numa(0.1)
    driver.metrics.measured_s = 1_000.0 - age_s
    assert [uid for _, uid in driver.through(1_000, 1_000)] == (["one"] if expected else [])
    busy = load(9.0)
    busy.metrics.values |= {(pod.cgroup, Metric.CPU_LOAD): 9.0 for pod in busy.pods}
    busy.metrics.cpus = {}
    found = []
    for second in range(0, 300, 5):
        busy.metrics.measured_s = second - age_s
        found += busy.through(second, second)
    assert bool(found) is bool(expected)


def test_no_second_pod_goes_by_what_was_measured_before_the_first_had_gone() -> None:
    driver = memory(0.9)
    use(driver, reclaimed("a-0"), 0.2)
    use(driver, reclaimed("b-0"), 0.2)
    driver.metrics.measured_s = 0.0
    assert driver.through(0, 0) == [(0.0, "a-0")]
    # It had gone within seconds; what Malachite has said before does not know of it.
    assert driver.through(5, 25) == []
    assert "before the last pod had gone" in driver.at(26).explanation
    driver.metrics.measured_s = 28.0
    assert driver.through(30, 30) == [(30.0, "b-0")]


def test_pods_have_memory_by_their_own_samples() -> None:
    driver = short()
    del driver.metrics.values[driver.pods[0].cgroup, Metric.MEMORY_USAGE]
    assert driver.through(0, 20) == []
    assert driver.metrics.values[NODE_CGROUP, Metric.MEMORY_FREE] == 0.9 * GIB
