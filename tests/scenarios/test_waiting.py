"""Waits for CPUs on the simulated kernel, beside recorded runs of a real one, and what a service feels."""

from __future__ import annotations

import pytest

from runtimeproxy.testing.node.kernel import QUOTA
from tests.scenarios.record_waiting import RUNS, load
from tests.scenarios.scenarios import guard, waits
from tests.scenarios.waiting import recorded, simulated


@pytest.mark.parametrize("name", [run.name for run in RUNS])
def test_simulated_runs_are_like_recorded_ones(name: str) -> None:
    """As near as recordings of one load are to each other."""
    recording = load(name)
    real, model = recorded(recording)[0], simulated(recording)[0]
    assert model.used == pytest.approx(real.used, abs=0.15)
    assert model.be_used == pytest.approx(real.be_used, abs=0.4)
    assert model.wait == pytest.approx(real.wait, abs=0.2)
    assert model.some == pytest.approx(real.some, abs=0.15)
    assert model.full == pytest.approx(real.full, abs=0.12)
    assert model.throttled == pytest.approx(real.throttled, abs=0.15)
    assert model.be_wait == pytest.approx(real.be_wait, abs=0.15)
    assert model.be_throttled == pytest.approx(real.be_throttled, abs=0.3)
    if real.p50_ms:
        assert real.p50_ms / 1.7 <= model.p50_ms <= real.p50_ms * 1.7
        assert real.p99_ms / 2.2 <= model.p99_ms <= real.p99_ms * 2.2


def test_a_service_feels_be_pods_of_its_weight_less_with_cpu_suppress() -> None:
    scenario = waits(seconds=180)
    assert scenario.compared is not None
    ours, nothing = scenario.node.series, scenario.compared.series
    for series in (ours, nothing):
        assert max(series["p99"][5:120]) < 8.0
        assert max(series["run delay"][5:120]) < 20.0
    assert sum(nothing["p99"][125:]) > 2.0 * sum(ours["p99"][125:])
    assert sum(nothing["pressure, full"][125:]) > 1.5 * sum(ours["pressure, full"][125:]) > 0.0
    assert sum(nothing["BE used"][125:]) > sum(ours["BE used"][125:])


@pytest.mark.parametrize("has_pressure", [True, False])
def test_the_guard_reaches_its_target(has_pressure: bool) -> None:
    """By either signal: what a service feels comes to its target, and stays there."""
    node = guard(seconds=235, has_pressure=has_pressure).node
    said = node.explanation("cpu-guard")
    assert "rule 2" in said, said
    changes = [
        write.at_s for write in node.writes if write.cgroup == "/kubepods/besteffort" and write.name == QUOTA
    ]
    assert len([at_s for at_s in changes if at_s > 175]) <= 1
    assert sum(node.series["BE used"][175:]) / 60 > 1.6
