"""The advisor of Katalyst's pools."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.qos import QoSClass
from runtimeproxy.qosmanager.advisor.recording import moments
from runtimeproxy.qosmanager.plugin import (
    BE_CLASS,
    QUOTA,
    Claim,
    Decision,
    PluginContext,
    Role,
    Target,
)
from runtimeproxy.qosmanager.plugins.katalyst_advisor import (
    DROPPING_S,
    STALE_S,
    AdvisorState,
    KatalystAdvisor,
    KatalystAdvisorOptions,
)
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, CpuPools, Level, Metric, Pod, PoolMember, Snapshot
from runtimeproxy.testing.node.replay import replayed
from runtimeproxy.vocabulary import PoolField
from tests.qosmanager.snapshots import FixedMetrics, container_of, cpus_of, node_of, pod_of

GIB = 1 << 30
WEB, BATCH = "/kubepods/burstable/podweb", "/kubepods/besteffort/podbatch"
USED = {
    (NODE_CGROUP, Metric.CPU_USAGE): 6.0,
    (NODE_CGROUP, Metric.MEMORY_USAGE): 20.0 * GIB,
    (NODE_CGROUP, Metric.MEMORY_WITH_CACHE): 30.0 * GIB,
    (WEB, Metric.CPU_USAGE): 3.0,
    (BATCH, Metric.CPU_USAGE): 2.0,
    (BATCH, Metric.MEMORY_USAGE): 8.0 * GIB,
    (BATCH, Metric.MEMORY_WITH_CACHE): 12.0 * GIB,
    (BATCH, Metric.MEMORY_WORKING_SET): 9.0 * GIB,
}
POOLS = CpuPools(
    pools={
        "share": frozenset(range(2, 8)),
        "reclaim": frozenset(range(8, 16)),
        "reserve": frozenset({0, 1}),
        "dedicated": frozenset(),
    },
    members={
        "web": PoolMember("shared_cores", "share", frozenset(range(2, 8))),
        "batch": PoolMember("reclaimed_cores", "reclaim", frozenset(range(8, 16))),
    },
    enable_reclaim=True,
    least_reclaim_cpus=4,
    reserved_cpus=frozenset({0, 1}),
)


def service(millicpu: int = 6_000, **fields: Any) -> Pod:
    return pod_of("web", containers=(container_of("web", WEB, requests={"cpu": millicpu}),), **fields)


def snapshot(
    now_s: float = 100.0,
    pools: CpuPools | None = POOLS,
    used: Mapping[tuple[str, Metric], float] = USED,
    pods: tuple[Pod, ...] = (),
    **node: Any,
) -> Snapshot:
    there = pods or (service(), pod_of("batch", QoSClass.BE))
    fields = {"capacity": {"cpu": 16_000, "memory": 64 * GIB}, "cpu_pools": pools, **node}
    cpus = fields.pop("cpus", 16)
    return Snapshot(
        now_s=now_s, wall_s=now_s, pods=there, node=node_of(cpus, **fields), metrics=FixedMetrics(used)
    )


def advisor(held: tuple[Claim, ...] = (), **options: Any) -> tuple[KatalystAdvisor, AdvisorState]:
    """One that follows each look at once, unless the options say more."""
    plugin = KatalystAdvisor()
    made = KatalystAdvisorOptions(**{"hold_s": 0.0, "fall_percent": 100, **options})
    assert not plugin.option_problems(made)
    return plugin, plugin.setup(PluginContext(gates={}, options=made, held=held))


def said(claims: Any) -> dict[tuple[str, str], int | str]:
    return {(each.target.id, str(each.field)): each.value for each in claims}


def run(moment: Snapshot, **options: Any) -> dict[tuple[str, str], int | str]:
    plugin, state = advisor(**options)
    return said(plugin.run(moment, state).claims)


def test_requirement_and_headroom_of_a_moment() -> None:
    plugin, state = advisor()
    assert plugin.is_enabled(snapshot())
    decision = plugin.run(snapshot(), state)
    assert said(decision.claims) == {
        # 3 x 1.2 cores.
        ("share", PoolField.REQUIRED_CPUS): 4,
        # 14 CPUs without the pool's 4; others leave 14 - (6 - 2) cores.
        ("reclaim", PoolField.HEADROOM_MILLICPU): 10_000,
        # 64 GiB, 5 % of them free, others use 20 - 8.
        ("reclaim", PoolField.HEADROOM_BYTES): int(48.75 * GIB),
    }
    reasons = {str(each.field): each.reason for each in decision.claims}
    assert "used 3.00, load 3.00, with the margin 3.60 of at most 6 CPUs" in reasons[PoolField.REQUIRED_CPUS]
    assert all(len(each.encode()) <= 256 for each in reasons.values())
    assert decision.explanation == "share needs 4 CPUs; headroom 10 CPUs and 48.8 GiB"


@pytest.mark.parametrize(
    ("used", "options", "expected"),
    [
        # Tasks wait for CPUs although the pool uses few of them.
        ({(WEB, Metric.CPU_PRESSURE): 0.9}, {}, 5),
        # A source that knows the load.
        ({(WEB, Metric.CPU_LOAD): 4.1}, {"margin": 0.0}, 5),
        # Never above the requests, unless that is wanted: then within the node.
        ({(WEB, Metric.CPU_USAGE): 7.0}, {}, 6),
        ({(WEB, Metric.CPU_USAGE): 7.0}, {"beyond_requests": True}, 9),
        ({(WEB, Metric.CPU_USAGE): 70.0}, {"beyond_requests": True}, 10),
    ],
)
def test_what_a_pool_needs(
    used: dict[tuple[str, Metric], float], options: dict[str, Any], expected: int
) -> None:
    assert run(snapshot(used={**USED, **used}), **options)["share", PoolField.REQUIRED_CPUS] == expected


def test_a_pod_without_samples_has_its_request() -> None:
    used = {key: value for key, value in USED.items() if key[0] != WEB}
    assert run(snapshot(used=used))["share", PoolField.REQUIRED_CPUS] == 6


def test_a_busy_node_has_no_headroom_and_reclaim_that_is_off_neither() -> None:
    busy = {**USED, (NODE_CGROUP, Metric.CPU_USAGE): 20.0, (NODE_CGROUP, Metric.MEMORY_USAGE): 72.0 * GIB}
    off = replace(POOLS, enable_reclaim=False)
    for moment in (snapshot(used=busy), snapshot(pools=off)):
        found = run(moment)
        assert found["reclaim", PoolField.HEADROOM_MILLICPU] == 0
        assert found["reclaim", PoolField.HEADROOM_BYTES] == 0


def test_headroom_by_numa_node_is_at_most_that_of_the_node() -> None:
    numa = snapshot(cpus=cpus_of(16, 8), memory_bytes={0: 16 * GIB, 1: 48 * GIB})
    found = run(numa)
    for name in (PoolField.HEADROOM_MILLICPU, PoolField.HEADROOM_BYTES):
        parts = [int(found[f"reclaim-NUMA{number}", name]) for number in (0, 1)]
        assert 0 < parts[0] < parts[1]
        assert sum(parts) <= int(found["reclaim", name])


def test_dynamic_quota_bounds_reclaimed_pods_by_what_no_pool_needs() -> None:
    found = run(snapshot(pools=replace(POOLS, overlap=True)), policy="dynamic-quota")
    assert found[BE_CLASS.id, QUOTA] == 1_000_000
    assert found["share", PoolField.OVERLAP_CPUS] == 6
    plugin, state = advisor(policy="dynamic-quota")
    decision = plugin.run(snapshot(), state)
    assert "needs overlap of the pools, which is off" in decision.explanation


def test_the_policy_none_claims_nothing() -> None:
    assert run(snapshot(), policy="none") == {}


def test_without_pools_it_claims_nothing_and_says_so() -> None:
    plugin, state = advisor()
    decision = plugin.run(snapshot(pools=None), plugin.run(snapshot(), state).state)
    assert decision.claims == ()
    assert decision.explanation.startswith("there are no pools: the policy katalyst-pools is off")


def test_without_a_node_object_memory_is_that_of_the_numa_nodes() -> None:
    def headroom(capacity: dict[str, int], memory_bytes: dict[int, int]) -> int | str | None:
        node = replace(snapshot().node, capacity=capacity, memory_bytes=memory_bytes)
        return run(replace(snapshot(), node=node)).get(("reclaim", PoolField.HEADROOM_BYTES))

    assert headroom({}, {0: 64 * GIB}) == headroom({"memory": 64 * GIB}, {}) is not None
    assert headroom({}, {}) is None


def test_without_samples_what_was_said_before_stays_for_half_a_minute() -> None:
    plugin, state = advisor()
    first = plugin.run(snapshot(100.0), state)
    empty = snapshot(101.0, used={})
    held = plugin.run(empty, first.state)
    assert held.claims == first.claims
    late = plugin.run(replace(empty, now_s=100.0 + STALE_S), held.state)
    assert late.claims == ()
    assert "no samples for 30 s" in late.explanation
    assert plugin.run(snapshot(140.0), late.state).claims


def test_a_restart_goes_on_from_what_counts() -> None:
    held = Claim(Target(Level.POOL, "share"), PoolField.REQUIRED_CPUS, Role.SET, 6)
    plugin, state = advisor((held,), hold_s=60.0, fall_percent=10)
    decision = plugin.run(snapshot(), state)
    assert said(decision.claims)["share", PoolField.REQUIRED_CPUS] == 6
    decision = plugin.run(snapshot(161.0), decision.state)
    assert said(decision.claims)["share", PoolField.REQUIRED_CPUS] == 5


def test_one_look_takes_no_cpus_from_a_pool() -> None:
    plugin, state = advisor(hold_s=60.0, fall_percent=10)
    sizes = []
    for at_s in (100.0, 159.0, 160.0, 219.0, 220.0):
        decision = plugin.run(snapshot(at_s), state)
        state = decision.state
        sizes.append(said(decision.claims)["share", PoolField.REQUIRED_CPUS])
    assert sizes == [6, 6, 5, 5, 4]
    # What it uses beyond its present CPUs it gets at once.
    plugin, state = advisor(hold_s=60.0)
    small = replace(POOLS, pools={**POOLS.pools, "share": frozenset({2, 3})})
    assert said(plugin.run(snapshot(pools=small), state).claims)["share", PoolField.REQUIRED_CPUS] == 4


def test_page_cache_of_reclaimed_pods_is_dropped_for_some_seconds_while_memory_is_short() -> None:
    short = {**USED, (NODE_CGROUP, Metric.MEMORY_WITH_CACHE): 60.0 * GIB}
    key = "batch", "memory.high"
    assert key not in run(snapshot(used=short))
    assert key not in run(snapshot(), drop_cache=True)
    plugin, state = advisor(drop_cache=True)
    decision = plugin.run(snapshot(100.0, used=short), state)
    assert said(decision.claims)[key] == 9 * GIB
    decision = plugin.run(snapshot(100.0 + DROPPING_S, used=short), decision.state)
    assert key not in said(decision.claims)
    decision = plugin.run(snapshot(161.0, used=short), decision.state)
    assert said(decision.claims)[key] == 9 * GIB
    old = plugin.run(snapshot(used=short, cgroup_version=1), state)
    assert key not in said(old.claims)
    assert "drop_cache needs cgroup version 2" in old.explanation


@pytest.mark.parametrize(
    "options",
    [{"margin": -1.0}, {"window_s": 0.5}, {"fall_percent": 0}, {"record_folder": "here"}, {"hold_s": 1e9}],
)
def test_options_that_cannot_be_used(options: dict[str, Any]) -> None:
    ((key, _),) = KatalystAdvisor().option_problems(KatalystAdvisorOptions(**options))
    assert [key] == list(options)


def test_a_recording_leads_to_the_same_claims(tmp_path: Path) -> None:
    plugin, state = advisor(record_folder=str(tmp_path), hold_s=0.0)
    live: list[int | str] = []
    headroom: list[float] = []
    for step in range(20):
        used = {**USED, (WEB, Metric.CPU_USAGE): 1.0 + step % 5}
        decision = plugin.run(snapshot(100.0 + 10.0 * step, used=used), state)
        state = decision.state
        live.append(said(decision.claims)["share", PoolField.REQUIRED_CPUS])
        headroom.append(int(said(decision.claims)["reclaim", PoolField.HEADROOM_MILLICPU]) / 1_000)
    (file,) = tmp_path.iterdir()
    assert file.name == "advisor-1970-01-01.jsonl"
    assert file.stat().st_mode & 0o777 == 0o600
    lines = file.read_text().splitlines()
    # A line that was cut at the end is left out.
    options = {"hold_s": 0.0, "fall_percent": 100}
    replay = replayed([*lines, lines[0][:50]], KatalystAdvisor(), options)
    assert replay.required["share"] == live
    assert replay.used["share"] == [1.0 + step % 5 for step in range(20)]
    assert not replay.problems
    assert replay.too_much == 0
    assert replay.short == 0
    assert replay.headroom == headroom


class Wrong(KatalystAdvisor):
    """A model that raises, and then returns NaN."""

    def run(self, snapshot: Snapshot, state: AdvisorState) -> Decision[AdvisorState]:
        if snapshot.now_s < 105.0:
            raise ZeroDivisionError
        said = Claim(Target(Level.POOL, "share"), PoolField.REQUIRED_CPUS, Role.SET, math.nan)  # type: ignore[arg-type]
        return Decision(state, (said,))


def test_a_model_that_fails_or_says_nonsense_is_judged_so(tmp_path: Path) -> None:
    plugin, state = advisor(record_folder=str(tmp_path))
    for now_s in (100.0, 110.0):
        plugin.run(snapshot(now_s), state)
    (file,) = tmp_path.iterdir()
    replay = replayed(file.read_text().splitlines(), Wrong())
    assert replay.problems == ["ZeroDivisionError", "'pool.required_cpus' of pool share is nan"]
    assert (replay.required, replay.headroom) == ({}, [0.0, 0.0])


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    plugin, state = advisor(record_folder=str(tmp_path / "missing"))
    decision = plugin.run(snapshot(), state)
    assert decision.claims
    assert "missing cannot be written: No such file or directory" in decision.explanation
    # It is said until a line can be written.
    decision = plugin.run(snapshot(101.0), decision.state)
    assert "missing cannot be written" in decision.explanation
    (tmp_path / "missing").mkdir()
    decision = plugin.run(snapshot(110.0), decision.state)
    assert "missing" not in decision.explanation


@pytest.mark.parametrize("text", ["[]", '{"version": 2}', "nothing\n{}"])
def test_what_is_no_recording(text: str) -> None:
    with pytest.raises(ValueError, match=r"line \d"):
        list(moments(text.splitlines()))


def test_a_moment_that_lacks_something_is_named() -> None:
    line = json.dumps({"version": 1, "now_s": 1.0, "samples": {}, "numa": {}})
    with pytest.raises(ValueError, match="a moment lacks"):
        replayed([line], KatalystAdvisor())
