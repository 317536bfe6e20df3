"""Katalyst's CPU suppression and CPU load: each at its thresholds and just below."""

from __future__ import annotations

from typing import Any

import pytest

from runtimeproxy.qosmanager.plugins.katalyst_cpu_load import KatalystCpuLoad, LoadOptions, is_over
from runtimeproxy.qosmanager.plugins.katalyst_cpu_suppression import (
    KatalystCpuSuppression,
    Reclaimed,
    suppressed,
    tolerance_of,
)
from runtimeproxy.qosmanager.snapshot import Metric
from tests.qosmanager.plugins.katalyst import Driver, pools_of, reclaimed, shared
from tests.qosmanager.snapshots import pod_of

# CPU suppression


@pytest.mark.parametrize(
    ("pods", "held_s", "expected"),
    [
        # 4 CPUs; 12 requested: rate 3.
        pytest.param([("a", 12_000, 3.0, 0)], 301, {}, id="at-the-rate"),
        pytest.param([("a", 12_001, 3.0, 0)], 301, {"a": 3.00025}, id="above"),
        pytest.param([("a", 12_001, 3.0, 0)], 300, {}, id="300-s"),
        pytest.param(
            [("a", 8_000, 1.0, 0), ("b", 9_000, 1.0, 0)], 301, {"b": 4.25, "a": 2.0}, id="larger-first"
        ),
        pytest.param(
            [("a", 8_000, 3.0, 9), ("b", 8_000, 3.0, 5)], 301, {"b": 4.0}, id="lower-priority-first"
        ),
        pytest.param([("a", 9_000, 9.0, 0), ("b", 1_000, 2.0, 0)], 301, {"b": 2.5}, id="tolerates-more"),
        pytest.param([], 301, {}, id="none"),
    ],
)
def test_suppressed(pods: list[tuple[Any, ...]], held_s: float, expected: dict[str, float]) -> None:
    since_s = {pod[0]: 1_000.0 for pod in pods}
    result = suppressed([Reclaimed(*pod) for pod in pods], 4_000, since_s, 1_000.0 + held_s, 300)
    assert dict(result.victims) == expected
    assert list(result.victims) == list(expected)


def test_one_that_goes_frees_its_request() -> None:
    pods = [Reclaimed("a", 8_000, 1.5), Reclaimed("b", 6_000, 1.5)]
    since_s = {"a": 0.0, "b": 0.0}
    first = suppressed(pods, 4_000, since_s, 301, 300)
    assert dict(first.victims) == {"a": 3.5}
    # The rate is 1.5 without it: what `b` has waited is forgotten.
    assert dict(first.since_s) == {"a": 0.0}
    assert suppressed(pods, 4_000, first.since_s, 306, 300, going={"a"}) == ({}, {})
    # One that cannot go still counts, and does not make room for others.
    stays = [pods[0]._replace(is_victim=False), pods[1]]
    assert dict(suppressed(stays, 4_000, since_s, 301, 300).victims) == {"b": 3.5}


@pytest.mark.parametrize(("said", "expected"), [(None, 5.0), (1.2, 1.2), (7.0, 5.0), (0.0, 0.0)])
def test_tolerance(said: float | None, expected: float) -> None:
    assert tolerance_of(reclaimed("a", tolerance=said), 5.0) == expected


def suppression(*, requested: int = 8_000, **node: Any) -> Driver:
    """Two pods of 4 CPUs' pool; one tolerates 1.9, one what it may at most."""
    driver = Driver(KatalystCpuSuppression())
    driver.pods = [reclaimed("a", requested // 2, tolerance=1.9), reclaimed("b", requested // 2)]
    driver.node = {"cpu_pools": pools_of({"share": 8, "reclaim": 4}, **node)}
    return driver


def test_a_suppressed_pod_goes_after_five_minutes() -> None:
    assert suppression().through(0, 400) == [(305.0, "a")]
    assert suppression(requested=7_600).through(0, 400) == []


def test_the_reason_has_the_arithmetic() -> None:
    driver = suppression()
    driver.through(0, 300)
    decision = driver.at(305)
    assert decision.evictions[0].reason == (
        "CPU suppression: reclaimed_cores request 8000m of 4000m (4 CPUs in the pool reclaim), rate 2.00; "
        "rate 2.00 above its tolerance 1.9 for 305 s, this pod requests 4000m"
    )
    below = suppression(requested=4_000).at(0)
    assert below.explanation == (
        "reclaimed_cores request 4000m of 4000m (4 CPUs in the pool reclaim), rate 1.00"
    )
    assert suppression().at(0).explanation.endswith("rate 2.00: above what 1 pods tolerate, for 0 s of 300 s")


def test_a_pod_whose_request_is_not_known_is_left_out() -> None:
    driver = suppression(requested=7_600)
    driver.pods.append(reclaimed("c", None, tolerance=0.1))
    assert driver.through(0, 400) == []
    assert (
        "left out: default/c: its resource.katalyst.kubewharf.io/reclaimed_millicpu is not known: "
        "neither the API server, nor the kubelet's state, nor an annotation tells"
    ) in driver.at(405).explanation
    # With an annotation it counts, and is the first to go: the rate is 2.9, then 1.9 again.
    driver.pods[-1] = reclaimed("c", None, tolerance=0.1, requests={_MILLICPU: 4_000})
    assert driver.through(410, 800)[0] == (715.0, "c")


_MILLICPU = "resource.katalyst.kubewharf.io/reclaimed_millicpu"


@pytest.mark.parametrize(
    ("fields", "limit", "expected"),
    [
        pytest.param({}, None, "of 4000m (4 CPUs in the pool reclaim), rate 2.00", id="pool"),
        pytest.param({}, 2.0, "of 2000m (2 CPUs by the bound on all BE pods), rate 4.00", id="quota"),
        pytest.param({"headroom": (1_000, 0)}, None, "of 4000m (4 CPUs", id="headroom-of-own-cpus"),
        # Katalyst's PR #660: with overlap the pool has CPUs that `shared_cores` use.
        pytest.param(
            {"headroom": (1_000, 0), "overlap": True},
            None,
            "of 1000m (1000m headroom), rate 8.00",
            id="overlap",
        ),
        pytest.param(
            {"headroom": (0, 0), "overlap": True},
            None,
            "there is nothing for them: 0m headroom",
            id="nothing",
        ),
    ],
)
def test_supply(fields: dict[str, Any], limit: float | None, expected: str) -> None:
    driver = suppression(**fields)
    driver.be_limit_cores = limit
    assert expected in driver.at(0).explanation


def test_without_pools_nothing_is_evicted() -> None:
    driver = suppression()
    driver.node = {}
    assert driver.through(0, 400) == []
    assert driver.at(405).explanation == "the pool reclaim is not known: the policy katalyst-pools is off"


def test_pods_of_other_levels_do_not_count() -> None:
    driver = suppression(requested=4_000)
    driver.pods += [shared("web", requests={_MILLICPU: 90_000}), pod_of("be", requests={_MILLICPU: 90_000})]
    assert driver.through(0, 400) == []


# CPU load


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([1.81] * 8 + [0.0] * 2, True),
        ([1.81] * 7 + [0.0] * 3, False),
        ([1.8] * 10, False),
        ([1.81] * 8, True),
        ([1.81] * 7, False),
        ([], False),
    ],
)
def test_ring(ratios: list[float], expected: bool) -> None:
    assert is_over(ratios, 1.8, 10, 80.0) is expected


def load(ratio: float, **options: Any) -> Driver:
    """Three services in a pool of 4 CPUs, whose load is `ratio` times as much."""
    driver = Driver(KatalystCpuLoad(), **options)
    driver.pods = [shared("a-0"), shared("b-0"), shared("c-0")]
    pods = list(driver.pods)
    driver.node = {"cpu_pools": pools_of({"share": 4, "reclaim": 4}, {"share": pods})}
    driver.metrics.cpus = {cpu: ratio if cpu < 4 else 90.0 for cpu in range(16)}
    driver.metrics.values = {(pod.cgroup, Metric.CPU_USAGE): 1.0 + index for index, pod in enumerate(pods)}
    return driver


def test_a_pod_of_an_overloaded_pool_goes() -> None:
    """The eighth sample of ten is taken after 210 s; then five minutes of rest."""
    driver = load(1.85)
    # 0.2 too much: `a` is nearest. No other pod for five minutes.
    assert driver.through(0, 505) == [(210.0, "a-0")]
    assert driver.through(510, 520) == [(510.0, "b-0")]


@pytest.mark.parametrize(("ratio", "is_condition"), [(1.8, True), (1.01, True), (1.0, False)])
def test_below_the_upper_bound_it_is_a_condition_only(ratio: float, is_condition: bool) -> None:
    driver = load(ratio)
    assert driver.through(0, 600) == []
    assert ("soft threshold, nothing is evicted" in driver.at(605).explanation) is is_condition


def test_the_load_of_pods_comes_first_where_a_source_has_it() -> None:
    driver = load(9.0)
    driver.metrics.values |= {(pod.cgroup, Metric.CPU_LOAD): 1.0 for pod in driver.pods}
    assert driver.through(0, 300) == []
    assert "share: load 3.0 of 4 CPUs" in driver.at(305).explanation
    driver.metrics.values |= {(pod.cgroup, Metric.CPU_LOAD): 9.0 for pod in driver.pods}
    assert driver.through(310, 600)[0][0] == 540.0


def test_without_samples_nothing_is_evicted() -> None:
    """They went after seven loads of ten; those of before do not count once they are back."""
    driver = load(5.0)
    driver.through(0, 200)
    back, driver.metrics.cpus = driver.metrics.cpus, {}
    assert driver.through(205, 400) == []
    assert "the load of share is not known: there is no fresh sample" in driver.at(405).explanation
    driver.metrics.cpus = {cpu: 1.0 for cpu in back if cpu != 2}
    assert "the load of share is not known: /proc/schedstat has no CPU 2" in driver.at(406).explanation
    driver.metrics.cpus = back
    assert driver.through(410, 600) == []
    assert driver.through(605, 630) == [(630.0, "c-0")]


def test_pods_without_samples_are_no_victims() -> None:
    driver = load(5.0)
    driver.metrics.values = {}
    assert driver.through(0, 300) == []
    assert "pool share: " in driver.at(305).explanation


def test_a_pod_that_ramps_up_or_is_of_another_pool_stays() -> None:
    driver = load(5.0)
    driver.node = {
        "cpu_pools": pools_of({"share": 4, "batch": 4}, {"": driver.pods[:1], "batch": driver.pods[1:]})
    }
    driver.metrics.cpus = {cpu: 5.0 if cpu < 4 else 0.0 for cpu in range(16)}
    assert driver.through(0, 400) == []


def test_options_have_ranges() -> None:
    assert LoadOptions(ring_size=1, sample_seconds=5).upper_ratio == 1.8
    driver = load(1.85, ring_size=1, sample_seconds=5)
    assert driver.through(0, 10)[0] == (0.0, "a-0")
