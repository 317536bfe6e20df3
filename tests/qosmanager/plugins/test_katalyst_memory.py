"""Katalyst's memory pressure, RSS overuse and reclaimed resource pressure: at thresholds and just below."""

from __future__ import annotations

from typing import Any

import pytest

from runtimeproxy.katalyst.names import RECLAIMED_MEMORY, RECLAIMED_MILLICPU
from runtimeproxy.qosmanager.plugin import EvictionOutcome, EvictionResult
from runtimeproxy.qosmanager.plugins.katalyst_memory_pressure import KatalystMemoryPressure, watermark_bytes
from runtimeproxy.qosmanager.plugins.katalyst_reclaimed_pressure import KatalystReclaimedPressure, is_above
from runtimeproxy.qosmanager.plugins.katalyst_rss_overuse import KatalystRssOveruse, is_overuse
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, KatalystTraits, Metric, Pod, Snapshot
from tests.qosmanager.plugins.katalyst import GIB, SHARED, Driver, pools_of, reclaimed, shared
from tests.qosmanager.snapshots import container_of, pod_of

# Memory pressure


@pytest.mark.parametrize(
    ("total", "scale", "least", "expected"),
    [(100 * GIB, 10, 0, 0.1 * GIB), (100 * GIB, 500, 0, 5 * GIB), (100 * GIB, 10, 2 * GIB, 2 * GIB)],
)
def test_watermark(total: float, scale: float, least: float, expected: float) -> None:
    assert watermark_bytes(total, scale, least) == pytest.approx(expected)


def memory(free_gib: float, *, steal: float = 0.0, **options: Any) -> Driver:
    """100 GiB, two NUMA nodes, watermarks of 1 %."""
    driver = Driver(KatalystMemoryPressure(), **options)
    driver.metrics.values = {
        (NODE_CGROUP, Metric.MEMORY_FREE): free_gib * GIB,
        (NODE_CGROUP, Metric.MEMORY_TOTAL): 100.0 * GIB,
        (NODE_CGROUP, Metric.WATERMARK_SCALE): 100.0,
        (NODE_CGROUP, Metric.KSWAPD_STEAL): steal,
    }
    driver.node = {"memory_bytes": {0: 50 * GIB, 1: 50 * GIB}}
    driver.metrics.numa[NODE_CGROUP] = {0: 40 * GIB, 1: 40 * GIB}
    return driver


def use(driver: Driver, pod: Pod, gib: float, numa_node: int = 0) -> None:
    driver.pods.append(pod)
    driver.metrics.values[pod.cgroup, Metric.MEMORY_USAGE] = gib * GIB
    driver.metrics.numa[pod.cgroup] = {numa_node: gib * GIB}


def test_below_the_watermark_a_reclaimed_pod_goes() -> None:
    driver = memory(0.75)
    use(driver, reclaimed("large-0"), 9)
    use(driver, reclaimed("near-0"), 0.3)
    use(driver, shared("web"), 20)
    decision = driver.at(0)
    assert [each.pod_uid for each in decision.evictions] == ["near-0"]
    assert decision.evictions[0].reason == (
        "memory of the node: 768 MiB free of 102400, watermark 1024; this pod uses 307 MiB"
    )


@pytest.mark.parametrize(("free_gib", "is_short"), [(1.0, False), (0.999, True)])
def test_the_watermark_itself_is_enough(free_gib: float, is_short: bool) -> None:
    driver = memory(free_gib)
    use(driver, reclaimed("a"), 1)
    assert bool(driver.at(0).evictions) is is_short


def test_one_pod_at_a_time() -> None:
    """One that terminates is taken for released; the next one goes if that was not enough."""
    driver = memory(0.5)
    for name in ("a-0", "b-0", "c-0"):
        use(driver, reclaimed(name), 0.3)
    assert [each.pod_uid for each in driver.at(0).evictions] == ["a-0"]
    # 0.2 GiB are missing still.
    assert [each.pod_uid for each in driver.at(5).evictions] == ["b-0"]
    assert driver.at(10).explanation.startswith(
        "memory of the node: 512 MiB free of 102400, watermark 1024: no pod"
    )


def test_only_pods_of_reclaimed_cores_go_for_the_watermark() -> None:
    driver = memory(0.5)
    use(driver, shared("web"), 5)
    use(driver, pod_of("plain"), 5)
    assert not driver.at(0).evictions


@pytest.mark.parametrize(
    ("steal", "end_s", "expected"),
    [
        pytest.param(2_000, 115, [], id="115-s"),
        pytest.param(2_000, 120, [(120.0, "web")], id="120-s"),
        pytest.param(1_999, 300, [], id="below"),
    ],
)
def test_kswapd(steal: float, end_s: float, expected: list[tuple[float, str]]) -> None:
    driver = memory(50, steal=steal)
    use(driver, shared("web", priority=1), 5)
    use(driver, shared("db", priority=9_000), 50)
    use(driver, pod_of("plain"), 60)
    assert driver.through(0, end_s) == expected


def numa(below: float, **options: Any) -> Driver:
    """NUMA node 1 has so many GiB less free than its watermark of 0.5 GiB."""
    driver = memory(50, **options)
    driver.metrics.numa[NODE_CGROUP] = {0: 40 * GIB, 1: (49.5 + below) * GIB}
    use(driver, reclaimed("zero"), 8, 0)
    use(driver, reclaimed("one"), 2, 1)
    use(driver, shared("web"), 2, 1)
    return driver


def test_a_short_numa_node_costs_a_pod_with_memory_there() -> None:
    assert numa(0.0).through(0, 100) == []
    driver = numa(0.1)
    assert driver.through(0, 10) == [(0.0, "one")]
    # The fourth look in a row below the watermark: any pod; what terminates is no longer credited.
    assert driver.through(15, 30) == [(15.0, "web")]


def test_looks_that_are_not_in_a_row_do_not_add_up() -> None:
    driver = numa(0.1)
    driver.pods = [pod for pod in driver.pods if pod.uid != "one"]
    short = driver.metrics.numa[NODE_CGROUP]
    for round_s in (0, 20, 40):
        assert driver.through(round_s, round_s + 10) == []
        driver.metrics.numa[NODE_CGROUP] = {0: 0.0, 1: 0.0}
        assert driver.through(round_s + 15, round_s + 15) == []
        driver.metrics.numa[NODE_CGROUP] = short


def test_each_look_can_be_switched_off() -> None:
    driver = numa(0.1, numa=False, system=False)
    driver.metrics.values[NODE_CGROUP, Metric.MEMORY_FREE] = 0.0
    assert driver.through(0, 60) == []


def test_without_samples_no_memory_is_short() -> None:
    driver = numa(0.1)
    driver.metrics.values[NODE_CGROUP, Metric.MEMORY_FREE] = 0.0
    driver.metrics.values = {
        key: value for key, value in driver.metrics.values.items() if key[0] != NODE_CGROUP
    }
    assert driver.through(0, 300) == []
    assert driver.at(305).explanation == (
        "the node's free memory or watermark has no fresh sample; what kswapd reclaims has no fresh sample; "
        "the NUMA nodes' free memory or watermark has no fresh sample"
    )


# RSS overuse


@pytest.mark.parametrize(("rss", "expected"), [(1_050, False), (1_051, True)])
def test_overuse(rss: float, expected: bool) -> None:
    assert is_overuse(rss, 1_000, 1.05) is expected


def rss(*pods: tuple[Pod, float]) -> Driver:
    driver = Driver(KatalystRssOveruse())
    for pod, gib in pods:
        use(driver, pod, gib)
    return driver


def own(threshold: float | None = None, problem: str = "") -> KatalystTraits:
    return KatalystTraits(SHARED, None, threshold, problem)


def test_pods_above_their_threshold_go_the_furthest_first() -> None:
    driver = rss(
        (shared("at", 100 * GIB), 105),
        (shared("above", 10 * GIB), 10.6),
        (shared("far", 10 * GIB), 30),
        (shared("own", 10 * GIB, katalyst=own(2.0)), 20),
        (shared("own-above", 10 * GIB, katalyst=own(0.5)), 5.1),
    )
    decision = driver.at(0)
    assert [each.pod_uid for each in decision.evictions] == ["far", "above", "own-above"]
    assert decision.evictions[0].reason == (
        "RSS: pods above their threshold: 3; 30720 MiB used, above 1.05 times 10240 requested"
    )


def test_skipped_pods_are_said() -> None:
    two = pod_of(
        "two",
        containers=(container_of("a", requests={"memory": GIB}), container_of("b")),
        has_known_requests=True,
        katalyst=own(),
    )
    driver = rss(
        (shared("invalid", GIB, katalyst=own(problem="is not above 0, and is not used")), 9),
        (shared("unknown"), 9),
        (two, 9),
        (pod_of("plain", requests={"memory": 1}), 9),
    )
    driver.pods.append(shared("stale", GIB))
    decision = driver.at(0)
    assert not decision.evictions
    assert decision.explanation.split("; ") == [
        "left out: default/invalid: the annotation rss_overuse_threshold cannot be used",
        (
            "left out: default/unknown: the memory request is not known: neither the API server, nor the "
            "kubelet's state, nor an annotation tells"
        ),
        "left out: default/two: a container has no memory request",
        "left out: default/stale: there is no fresh sample",
    ]


def test_requests_of_an_annotation_count() -> None:
    driver = rss((shared("a", requests={"memory": GIB}), 1.1))
    assert [each.pod_uid for each in driver.at(0).evictions] == ["a"]


# Reclaimed resource pressure


@pytest.mark.parametrize(("requested", "expected"), [(5_000, False), (5_001, True)])
def test_above(requested: int, expected: bool) -> None:
    assert is_above(requested, 1_000, 5.0) is expected


def pressure(*pods: Pod, headroom: tuple[int, int] | None = (1_000, GIB), **node: Any) -> Driver:
    driver = Driver(KatalystReclaimedPressure())
    driver.pods = list(pods)
    driver.node = {"cpu_pools": pools_of({"reclaim": 4}, headroom=headroom), **node}
    return driver


@pytest.mark.parametrize(
    ("millicpu", "memory_gib", "expected"),
    [
        pytest.param((4_000, 1_000), (0, 0), [], id="cpu-at"),
        pytest.param((4_000, 1_001), (0, 0), [(60.0, "a")], id="cpu-above"),
        pytest.param((1, 1), (2, 3), [], id="memory-at"),
        pytest.param((1, 1), (2.1, 3), [(60.0, "b")], id="memory-above"),
    ],
)
def test_pressure(
    millicpu: tuple[int, int], memory_gib: tuple[float, float], expected: list[tuple[float, str]]
) -> None:
    pods = (
        reclaimed(name, cpu, int(gib * GIB))
        for name, cpu, gib in zip("ab", millicpu, memory_gib, strict=True)
    )
    assert pressure(*pods).through(0, 120) == expected


@pytest.mark.parametrize(
    ("millicpu", "gib", "is_soft"), [(1_500, 0, False), (1_501, 0, True), (0, 1.2, False), (0, 1.3, True)]
)
def test_soft_pressure(millicpu: int, gib: float, is_soft: bool) -> None:
    driver = pressure(reclaimed("a", millicpu, int(gib * GIB)))
    assert driver.through(0, 120) == []
    assert ("soft threshold, nothing is evicted" in driver.at(125).explanation) is is_soft


def test_one_that_terminates_counts_no_more() -> None:
    driver = pressure(*(reclaimed(name, 2_000, 0) for name in "abc"))
    driver.through(0, 55)
    assert [each.pod_uid for each in driver.at(60).evictions] == ["a"]
    # It is still there, and 4 times as much as is allocatable is left.
    assert "soft threshold" in driver.at(65).explanation


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, "7000m requested of 1000m allocatable (headroom), above 5 times", id="advisor"),
        pytest.param(
            {"headroom": None, "allocatable": {RECLAIMED_MILLICPU: 1_200, RECLAIMED_MEMORY: GIB}},
            "7000m requested of 1200m allocatable (of the Node object), above 5 times",
            id="node",
        ),
        pytest.param(
            {"headroom": None},
            "7000m requested of 4000m allocatable (the pool reclaim), above 1.5",
            id="pool",
        ),
    ],
)
def test_where_the_allocatable_comes_from(fields: dict[str, Any], expected: str) -> None:
    assert expected in pressure(reclaimed("a", 7_000, 0), **fields).at(0).explanation


def test_what_is_not_known_evicts_nothing() -> None:
    driver = pressure(reclaimed("a", 7_000, 90 * GIB), reclaimed("b"), headroom=None)
    driver.node = {}
    assert driver.through(0, 300) == []
    assert driver.at(305).explanation.count("what is allocatable is not known") == 2
    driver = pressure(reclaimed("a", 1_000, 1), reclaimed("b"))
    assert driver.through(0, 300) == []
    assert "left out: default/b: its reclaimed_memory is not known" in driver.at(305).explanation


def test_nothing_allocatable_and_nothing_requested_is_no_pressure() -> None:
    driver = pressure(reclaimed("a", 0, 0), headroom=(0, 0))
    assert driver.through(0, 120) == []
    assert pressure(reclaimed("a", 1, 0), headroom=(0, 0)).through(0, 120) == [(60.0, "a")]


def test_a_dry_run_goes_on_with_the_pod_that_would_go() -> None:
    driver = pressure(reclaimed("a", 5_001, 0), reclaimed("b", 5_000, 0), headroom=(1_000, GIB))
    driver.through(0, 55)
    decision = driver.at(60)
    results = [EvictionResult(each, EvictionOutcome.DRY_RUN) for each in decision.evictions]
    assert [each.eviction.pod_uid for each in results] == ["a"]
    driver.state = driver.plugin.on_evictions(results, Snapshot(now_s=60), driver.state)
    decision = driver.at(65)
    assert not decision.evictions
    assert decision.explanation.startswith("reclaimed_millicpu: 10001m requested of 1000m allocatable")
