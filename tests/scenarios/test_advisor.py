"""A service's day with reclaimed pods: pools by usage, in simulated time; and a replay of a recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimeproxy.katalyst.pools import PoolSettings
from runtimeproxy.qosmanager.plugins.katalyst_advisor import KatalystAdvisor
from runtimeproxy.testing.node.kernel import constant
from runtimeproxy.testing.node.pools import SimulatedPools
from runtimeproxy.testing.node.replay import replayed
from runtimeproxy.testing.node.simulation import SimulatedNode, changes_of_direction
from tests.scenarios.scenarios import best_effort, latency_sensitive, service_day

MARGIN = 1.2


def check_headroom(node: SimulatedNode) -> None:
    """It is never above what the step before it, by which it was said, has left idle."""
    series = node.series
    for said, idle in zip(series["headroom"][1:], series["idle"], strict=False):
        assert said <= idle + 1e-6


def test_the_pool_follows_the_load_of_a_day_and_is_recorded(tmp_path: Path) -> None:
    scenario = service_day(step_s=240.0, folder=str(tmp_path))
    node, series = scenario.node, scenario.node.series
    steps_per_hour = 15
    # It begins with the size by requests, and falls by steps.
    day = slice(5 * steps_per_hour, None)
    falling = series["share needs"][1 : 2 * steps_per_hour]
    assert falling[0] == 22
    assert falling == sorted(falling, reverse=True)
    needs, used = series["share needs"][day], series["share used"][day]
    assert min(needs) <= 6
    assert max(needs) == 22
    # Never below the use, and within the margin, rounding and the steps of the fall above it.
    assert all(size >= cores for size, cores in zip(needs, used, strict=True))
    assert sum(needs) <= sum(used) * MARGIN + 2.5 * len(needs)
    # Down, up and down again: no more than noise at the turns adds.
    assert changes_of_direction(needs) <= 8
    check_headroom(node)
    # Reclaimed pods want 16 cores, and get what there is.
    assert max(series["reclaimed used"]) == pytest.approx(16.0)
    assert sum(series["reclaimed used"][day]) >= 0.75 * sum(
        min(16.0, each) for each in series["headroom"][day]
    )
    assert not node.kernel.violations
    # The last moment is the first of the next day.
    lines = [line for file in sorted(tmp_path.iterdir()) for line in file.read_text().splitlines()]
    replay = replayed(lines, KatalystAdvisor(), {"window_s": 10.0})
    assert replay.too_much == 0
    assert len(replay.times_s) == len(series["headroom"])
    # By short windows and without the memory of the live one it needs about the same.
    assert sum(replay.required["share"]) == pytest.approx(sum(series["share needs"]), rel=0.3)


@pytest.mark.slow
def test_a_day_with_the_quota_of_dynamic_quota() -> None:
    scenario = service_day("dynamic-quota", step_s=120.0)
    node, series = scenario.node, scenario.node.series
    for used, quota in zip(series["reclaimed used"][1:], series["BE quota"], strict=False):
        assert used <= quota + 1e-6
    assert min(series["BE quota"]) == 8.0
    # The service has all CPUs at any time.
    assert set(series["share needs"][1:]) == {30}
    check_headroom(node)
    assert not node.kernel.violations


def test_constant_load_moves_nothing_and_the_end_of_the_lease_gives_requests_back() -> None:
    node = SimulatedNode(16, plugins=[KatalystAdvisor()])
    pools = SimulatedPools(node, PoolSettings(enable_reclaim=True))
    node.add_pod(latency_sensitive("web", constant(3.1), request=8_000))
    node.add_pod(best_effort("batch", 16.0))
    node.watch("size", lambda: pools.size("share"))
    node.watch("headroom", pools.headroom_cores)
    pools.advance(600, 2.0)
    assert set(node.series["size"][180:]) == {4}
    assert len(set(node.series["headroom"][180:])) == 1
    pools.is_advised = False
    pools.advance(4, 2.0)
    assert pools.size("share") == 8
