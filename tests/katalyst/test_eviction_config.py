"""`evictionConfig`: what is read, what does not apply and why, and which plugins it is for."""

from __future__ import annotations

from typing import Any

import pytest

from runtimeproxy.katalyst.dynamic_config import read_config
from runtimeproxy.katalyst.eviction_config import (
    NO_EVICTION_CONFIG,
    OF_PLUGINS,
    PATHS,
    EvictionConfig,
    asked_evictions,
    duration_s,
    is_dry_run,
    is_switched_off,
)
from runtimeproxy.katalyst.names import RECLAIMED_MEMORY, RECLAIMED_MILLICPU

CPU, MEMORY, RECLAIMED = (
    f"{name}EvictionConfig" for name in ("cpuPressure", "memoryPressure", "reclaimedResources")
)


def read(**config: Any) -> tuple[EvictionConfig, dict[str, str]]:
    """The configuration, and what of it does not apply, by path."""
    found = read_config({"evictionConfig": config}, target="t")
    assert not found.error
    prefix = "spec.config.evictionConfig."
    return found.config.eviction, {each.path.removeprefix(prefix): each.reason for each in found.problems}


def test_all_keys() -> None:
    """Each is read as it is documented, and told by its path."""
    given = {
        "dryRun": ["-rss-overuse-eviction-plugin", "*"],
        CPU: {
            "enableLoadEviction": True,
            "loadUpperBoundRatio": 2.5,
            "loadLowerBoundRatio": 1.2,
            "loadThresholdMetPercentage": 0.5,
            "loadMetricRingSize": 20,
            "loadEvictionCoolDownTime": "10m",
            "enableSuppressionEviction": False,
            "maxSuppressionToleranceRate": 4,
            "minSuppressionToleranceDuration": "1m30s",
            "gracePeriod": 30,
        },
        MEMORY: {
            "enableNumaLevelEviction": False,
            "enableSystemLevelEviction": True,
            "numaVictimMinimumUtilizationThreshold": 0.01,
            "numaFreeBelowWatermarkTimesThreshold": 6,
            "systemKswapdRateThreshold": 3000,
            "systemKswapdRateExceedDurationThreshold": 60,
            "systemFreeMemoryThresholdMinimum": "5Gi",
            "numaEvictionRankingMetrics": ["qos.pod", "priority.pod", "mem.total.numa.container"],
            "systemEvictionRankingMetrics": ["qos.pod", "priority.pod", "mem.usage.container"],
            "enableRSSOveruseEviction": True,
            "rssOveruseRateThreshold": 1.2,
            "gracePeriod": -1,
        },
        RECLAIMED: {
            "evictionThreshold": {RECLAIMED_MILLICPU: 3, RECLAIMED_MEMORY: 4},
            "softEvictionThreshold": {RECLAIMED_MEMORY: 1.1},
            "gracePeriod": 5,
            "thresholdMetToleranceDuration": 15,
        },
    }
    found = read_config({"evictionConfig": given})
    assert found.problems == ()
    expected: dict[str, Any] = {"evictionConfig.dryRun": ("-rss-overuse-eviction-plugin", "*")}
    for part, values in given.items():
        if isinstance(values, dict):
            expected |= {f"evictionConfig.{part}.{key}": value for key, value in values.items()}
    expected = {key: tuple(value) if isinstance(value, list) else value for key, value in expected.items()}
    expected[f"evictionConfig.{MEMORY}.systemFreeMemoryThresholdMinimum"] = 5 << 30
    assert dict(found.config.fields()) == expected
    assert expected.keys() == set(PATHS.values())


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({CPU: {"loadThresholdMetPercentage": 0.001}}, {f"{CPU}.loadThresholdMetPercentage": "any load"}),
        ({CPU: {"loadMetricRingSize": 1001}}, {f"{CPU}.loadMetricRingSize": "above 1000"}),
        ({CPU: {"numaCPUPressureEvictionConfig": {}}}, {f"{CPU}.numaCPUPressureEvictionConfig": "not there"}),
        ({MEMORY: {"rssOveruseRateThreshold": 0}}, {f"{MEMORY}.rssOveruseRateThreshold": "each pod"}),
        (
            {MEMORY: {"numaFreeBelowWatermarkTimesThreshold": 0}},
            {f"{MEMORY}.numaFreeBelowWatermarkTimesThreshold": "nothing is short"},
        ),
        ({MEMORY: {"systemKswapdRateThreshold": 0}}, {f"{MEMORY}.systemKswapdRateThreshold": "does nothing"}),
        (
            {MEMORY: {"systemEvictionRankingMetrics": ["owner.pod"]}},
            {f"{MEMORY}.systemEvictionRankingMetrics": "the order is always"},
        ),
        ({MEMORY: {"reclaimedGracePeriod": 5}}, {f"{MEMORY}.reclaimedGracePeriod": "all levels"}),
        ({RECLAIMED: {"evictionThreshold": {"cpu": 2}}}, {f"{RECLAIMED}.evictionThreshold.cpu": "only"}),
        ({"rootfsPressureEvictionConfig": {"gracePeriod": 1}}, {"rootfsPressureEvictionConfig": "not there"}),
        ({"dryRun": ["rootfs-pressure-eviction-plugin"]}, {"dryRun": "no plugin here"}),
        (
            {MEMORY: {"rssOveruseRateTreshold": 1}},
            {f"{MEMORY}.rssOveruseRateTreshold": "did you mean rssOver"},
        ),
    ],
)
def test_what_does_not_apply_is_named(config: dict[str, Any], expected: dict[str, str]) -> None:
    found, problems = read(**config)
    assert problems.keys() == expected.keys()
    assert all(part in problems[path] for path, part in expected.items())
    # Without it nothing is set: thresholds are those of the node's own file.
    assert found == NO_EVICTION_CONFIG or found.dry_run is not None


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({CPU: {"loadUpperBoundRatio": 0.9}}, f"{CPU}.loadUpperBoundRatio"),
        ({CPU: {"loadEvictionCoolDownTime": 300}}, f"{CPU}.loadEvictionCoolDownTime"),
        ({CPU: {"gracePeriod": 3601}}, f"{CPU}.gracePeriod"),
        ({MEMORY: {"enableNumaLevelEviction": "true"}}, f"{MEMORY}.enableNumaLevelEviction"),
        ({RECLAIMED: {"evictionThreshold": {RECLAIMED_MEMORY: -1}}}, f"{RECLAIMED}.evictionThreshold"),
        ({MEMORY: 5}, MEMORY),
    ],
)
def test_what_katalyst_refuses_is_an_error(config: dict[str, Any], path: str) -> None:
    """The node keeps what it has."""
    assert f"spec.config.evictionConfig.{path}" in read_config({"evictionConfig": config}).error


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, set()),
        ({CPU: {"enableLoadEviction": True}}, {"katalyst-cpu-load"}),
        ({CPU: {"enableLoadEviction": False, "loadUpperBoundRatio": 2}}, set()),
        ({CPU: {"loadUpperBoundRatio": 2, "gracePeriod": 5}}, {"katalyst-cpu-load"}),
        ({CPU: {"maxSuppressionToleranceRate": 2}}, {"katalyst-cpu-suppression"}),
        (
            {MEMORY: {"enableSystemLevelEviction": False, "systemKswapdRateThreshold": 9}},
            {"katalyst-memory-pressure"},
        ),
        ({MEMORY: {"enableSystemLevelEviction": False, "enableNumaLevelEviction": False}}, set()),
        ({MEMORY: {"enableRSSOveruseEviction": True}}, {"katalyst-rss-overuse"}),
        ({RECLAIMED: {"thresholdMetToleranceDuration": 5}}, {"katalyst-reclaimed-pressure"}),
    ],
)
def test_which_plugins_it_asks_for(config: dict[str, Any], expected: set[str]) -> None:
    assert asked_evictions(read(**config)[0]) == expected


def test_which_plugins_it_switches_off() -> None:
    system_off, _ = read(**{MEMORY: {"enableSystemLevelEviction": False}})
    off, _ = read(
        **{
            CPU: {"enableLoadEviction": False},
            MEMORY: {"enableSystemLevelEviction": False, "enableNumaLevelEviction": False},
        }
    )
    assert not any(
        is_switched_off(config, name) for config in (NO_EVICTION_CONFIG, system_off) for name in OF_PLUGINS
    )
    assert {name for name in OF_PLUGINS if is_switched_off(off, name)} == {
        "katalyst-cpu-load",
        "katalyst-memory-pressure",
    }


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], set()),
        (["*"], set(OF_PLUGINS)),
        (["-rss-overuse-eviction-plugin", "*"], set(OF_PLUGINS) - {"katalyst-rss-overuse"}),
        # The first item for a name counts.
        (["rss-overuse-eviction-plugin", "-katalyst-rss-overuse"], {"katalyst-rss-overuse"}),
        (["cpu-pressure-eviction-plugin"], {"katalyst-cpu-load", "katalyst-cpu-suppression"}),
        (["cpu-pressure-load-plugin"], {"katalyst-cpu-load"}),
        (["numa-memory-pressure-eviction-plugin"], {"katalyst-memory-pressure"}),
    ],
)
def test_dry_run(names: list[str], expected: set[str]) -> None:
    config, _ = read(dryRun=names)
    assert {name for name in OF_PLUGINS if is_dry_run(config, name)} == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("300s", 300), ("1h2m3s", 3_723), ("1.5m", 90), ("100ms", 0.1), ("0", 0), ("-5m", 0), ("+2s", 2)],
)
def test_durations(text: str, expected: float) -> None:
    assert duration_s(text) == pytest.approx(expected)
