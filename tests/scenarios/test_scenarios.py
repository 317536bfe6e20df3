"""What plugins do to a node with load, in simulated time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest

from runtimeproxy.cgroups.mounts import find_mounts
from runtimeproxy.cgroups.order import Key
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.qosmanager.plugins.cpu_burst import CpuBurstPlugin
from runtimeproxy.qosmanager.plugins.cpu_suppress import CpuSuppress
from runtimeproxy.qosmanager.samples.reader import PassReader
from runtimeproxy.qosmanager.samples.sampler import Sampler
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, Metric, Strategies
from runtimeproxy.slo.schema import CpuSuppressPolicy, PodCpuBurst, Threshold
from runtimeproxy.testing.node.kernel import BURST, CPUS, QUOTA, Workload, constant
from runtimeproxy.testing.node.simulation import (
    SimulatedContainer,
    SimulatedNode,
    SimulatedPod,
    changes_of_direction,
)
from runtimeproxy.units import parse_cpu_list
from tests.scenarios.scenarios import (
    AUTO,
    FLAPPING,
    best_effort,
    buckets,
    burst_node,
    day,
    flapping,
    latency_sensitive,
    memory_pressure,
    quota_cores,
    surge,
)
from tests.scenarios.upstream import UpstreamBurst


@pytest.mark.parametrize("policy", CpuSuppressPolicy)
def test_a_surge_of_ls_load_squeezes_be_pods_and_gives_back(policy: CpuSuppressPolicy) -> None:
    scenario = surge(policy)
    used, wanted, best_effort = (scenario.series(name) for name in ("LS used", "LS wanted", "BE used"))
    # Threshold 65 % of 16 CPUs: 10.4 cores, of which LS pods have 2, then 9, then 2 again.
    assert sum(best_effort[30:59]) / 29 == pytest.approx(8.4, abs=0.7)
    assert max(best_effort[62:179]) <= 2.0
    assert sum(best_effort[200:]) / 100 == pytest.approx(8.4, abs=0.7)
    for second in range(61, 180):
        assert used[second] >= 0.98 * wanted[second]
    # A tenth of the node per second.
    gained = [after - before for before, after in pairwise(best_effort[180:])]
    assert max(gained) <= 2.0 + 1e-6
    assert not scenario.node.kernel.violations


@pytest.mark.parametrize("policy", CpuSuppressPolicy)
def test_without_the_strategy_all_is_given_back(policy: CpuSuppressPolicy) -> None:
    node = surge(policy, seconds=100).node
    assert node.value(QUOTA) != -1 or node.value(CPUS) != ""
    node.strategies = Strategies()
    node.advance(1)
    assert (node.value(QUOTA), node.value(CPUS)) == (-1, "")
    for name in ("batch", "crawler"):
        assert node.value(QUOTA, name) == node.value(QUOTA, name, 0) == 800_000
    node.advance(5)
    assert node.used_cores() > 6.5


def test_a_full_bucket_lasts_and_an_empty_one_does_not() -> None:
    """Capacity 60 s times 200 %: at 150 % of the limit a full bucket lasts for 240 s."""
    scenario = buckets()
    rested, busy = scenario.series("rested quota"), scenario.series("busy quota")
    bursts_s = sum(quota > 2.9 for quota in rested[300:])
    assert 200 <= bursts_s <= 260
    assert rested[298] == 2.0
    assert max(busy[310:]) < 2.3
    assert min(rested[-60:]) == max(rested[-60:]) == 2.0
    assert changes_of_direction(rested) == 1


def test_around_the_threshold_quotas_swing_less_than_by_koordinators_rule() -> None:
    """#2164: as much CPU in total, a tenth of the swings, and the important pod first."""
    scenario = flapping(UpstreamBurst, seconds=360)
    other = scenario.compared
    assert other is not None

    def swings(of: dict[str, list[float]]) -> int:
        return sum(changes_of_direction(of[f"{name} quota"]) for name in FLAPPING)

    ours, theirs = scenario.node.series, other.series
    assert swings(theirs) > 150
    assert swings(ours) * 10 <= swings(theirs)
    assert sum(ours["used"]) >= 0.97 * sum(theirs["used"])
    overloaded, overloaded_there = (sum(cores >= 8.0 for cores in of["used"]) for of in (ours, theirs))
    assert overloaded * 2 <= overloaded_there
    gold, silver, bronze = (sum(ours[f"{name} quota"]) for name in FLAPPING)
    assert gold > silver > bronze
    assert gold > 1.3 * sum(theirs["gold quota"])
    assert len(scenario.node.writes) * 5 <= len(other.writes)
    assert not scenario.node.kernel.violations


@pytest.mark.parametrize("load", [0.5, 2.4, 4.0, 6.9, 7.3, 7.9, 8.5, 12.0])
def test_at_constant_load_quotas_do_not_oscillate(load: float) -> None:
    """Below, within and above the threshold of 8 cores: quotas reach their end and stay there."""
    node = burst_node(CpuBurstPlugin())
    node.add_pod(latency_sensitive("steady", constant(load)))
    for name, priority in (("a", 9_000), ("b", 9_000), ("c", 5_000)):
        node.add_pod(
            latency_sensitive(name, constant(2.0), 1_000, cpu_burst=AUTO, priority=priority, request=1_000)
        )
        node.watch(name, lambda name=name: quota_cores(node, name))  # type: ignore[misc]
    node.advance(240)
    for name in "abc":
        assert changes_of_direction(node.series[name]) <= 1
        assert len(set(node.series[name][120:])) == 1


def test_burst_and_normalization_do_not_fight() -> None:
    """#2306: a scaled quota stays scaled; nothing is written once both have said what they want."""
    node = burst_node(CpuBurstPlugin())
    node.add_pod(latency_sensitive("web", constant(1.5), 1_000, cpu_burst=AUTO))
    key = Key(node.cgroup("web", 0).path, QUOTA)
    node.policies = {key: (Claim(Claimant("cpu-normalization"), Role.SCALE, 1.25),)}
    node.watch("quota", lambda: int(node.value(QUOTA, "web", 0)))
    node.advance(60)
    quotas = node.series["quota"]
    assert quotas[0] in (80_000, 96_000)
    assert quotas == sorted(quotas)
    assert 180_000 <= quotas[-1] <= 240_000
    written = len(node.writes)
    node.advance(60)
    assert len(node.writes) == written
    # Twice as fast: half of the limit, at once, with its own ceiling.
    node.policies = {key: (Claim(Claimant("cpu-normalization"), Role.SCALE, 2.0),)}
    node.advance(1)
    assert node.series["quota"][-1] <= 150_000


def test_the_kernels_burst_stays_within_the_quota() -> None:
    """#2326: 1000 % of the limit is above the quota, which a kernel refuses; it grows with the quota."""
    node = burst_node(CpuBurstPlugin())
    node.add_pod(latency_sensitive("web", constant(1.5), 1_000, cpu_burst=AUTO))
    # What the policy `cpu-burst` claims.
    container, pod = node.cgroup("web", 0).path, node.cgroup("web").path
    burst = Claim(Claimant("cpu-burst"), Role.SET, 1_000_000)
    node.policies = {Key(container, BURST): (burst,), Key(pod, BURST): (burst,)}
    for _ in range(30):
        node.advance(1)
        assert node.value(BURST, "web", 0) == node.value(QUOTA, "web", 0)
    assert int(node.value(BURST, "web", 0)) > 100_000
    node.strategies, node.policies = Strategies(), {}
    node.set_cpu_burst(PodCpuBurst())
    node.advance(1)
    assert (node.value(BURST, "web", 0), node.value(QUOTA, "web", 0)) == (0, 100_000)
    node.advance(1)
    assert not node.kernel.violations


def test_memory_pressure_evicts_the_largest_pods_until_it_is_over() -> None:
    node = memory_pressure().node
    # Of one priority; batch1 grows fastest.
    assert [each.pod for each in node.evictions] == ["batch1", "batch0"]
    assert all(each.is_done for each in node.evictions)
    first, second = (each.at_s for each in node.evictions)
    assert second - first >= 4
    assert max(node.series["used"]) < 0.83 * 64
    assert node.series["used"][-1] < 0.8 * 64
    assert "BEMemoryEvict: " in node.evictions[0].reason
    assert "threshold 80 %, down to 78 %; used memory: " in node.evictions[0].reason


def test_a_dry_run_proposes_and_evicts_nothing() -> None:
    node = memory_pressure(is_enforced=False, seconds=400).node
    assert node.evictions
    assert not any(each.is_done for each in node.evictions)
    assert len(node.pods) == 4


@pytest.mark.parametrize("version", [1, 2])
def test_the_products_sampler_reads_the_simulated_files(version: Literal[1, 2], tmp_path: Path) -> None:
    """Cgroups and procfs lie in a folder; limits are written there, counters read, in simulated time."""
    node = SimulatedNode(4, memory_bytes=8 << 30, plugins=[CpuSuppress()], version=version, folder=tmp_path)
    node.strategies = Strategies(
        threshold=Threshold(enable=True, cpu_suppress_policy=CpuSuppressPolicy.CFS_QUOTA)
    )
    mounts = find_mounts(tmp_path / "sys/fs/cgroup")
    node.sampler = sampler = Sampler(
        mounts,
        most_cpus=4,
        procfs=tmp_path / "proc",
        sysfs=tmp_path / "sys",
        reader=PassReader(clock=lambda: node.now_s),
    )
    memory = Workload(
        cores=constant(1.0), memory_bytes=constant(float(1 << 30)), cache_bytes=constant(4_096.0)
    )
    node.add_pod(SimulatedPod(name="web", containers=[SimulatedContainer(workload=memory)]))
    node.add_pod(best_effort("batch", 8.0, 3_000))
    try:
        node.advance(6)
        pod, batch = node.pods[0].cgroup, node.pods[1].cgroup
        usage = sampler.window(pod, Metric.CPU_USAGE, 5.0)
        assert usage is not None
        assert usage.last == pytest.approx(1.0, rel=0.01)
        # 65 % of 4 CPUs, of which the LS pod has one.
        assert node.value(QUOTA) == pytest.approx(160_000, abs=4_000)
        squeezed = sampler.window(batch, Metric.CPU_USAGE, 1.5)
        assert squeezed is not None
        assert squeezed.last == pytest.approx(1.6, rel=0.05)
        node.advance(10)  # What no plugin needs is read in turns.
        used = sampler.window(pod, Metric.MEMORY_USAGE, 20.0)
        assert used is not None
        assert used.last == 1 << 30
        of_node = sampler.window(NODE_CGROUP, Metric.MEMORY_USAGE, 20.0)
        assert of_node is not None
        assert of_node.last == 1 << 30
    finally:
        sampler.close()


@pytest.mark.slow
def test_24_hours() -> None:
    scenario = day()
    node = scenario.node
    assert node.now_s == 24 * 3_600
    used, wanted = scenario.series("LS used"), scenario.series("LS wanted")
    assert sum(used) >= 0.97 * sum(wanted)
    best_effort = scenario.series("BE used")
    night, noon = best_effort[:120], best_effort[11 * 120 : 13 * 120]
    assert sum(night) / len(night) > 6.5
    assert sum(noon) / len(noon) < 3.0
    assert not node.kernel.violations
    bounds = [write for write in node.writes if write.name == CPUS and write.cgroup == "/kubepods/besteffort"]
    assert len(bounds) < 2_000
    for write in bounds:
        if 9 * 3_600 < write.at_s <= 17 * 3_600:
            assert not {4, 5} & parse_cpu_list(str(write.value))
