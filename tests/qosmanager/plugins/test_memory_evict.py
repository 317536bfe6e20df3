"""Memory evict. Cases Vnnn are those of Koordinator's memory_evict_test.go (CONTRIBUTING.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.qos import KubeQoSClass, PriorityClass, QoSClass
from runtimeproxy.qosmanager.eviction import EvictOptions, EvictState, usage_release
from runtimeproxy.qosmanager.plugin import Decision, Mode, PluginContext
from runtimeproxy.qosmanager.plugins.memory_evict import COOL_S, MemoryEvict
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, Metric, Pod, PodEviction, Snapshot, Strategies
from runtimeproxy.slo.schema import Threshold
from tests.qosmanager.snapshots import FixedMetrics, container_of, node_of, pod_of

PLUGIN = MemoryEvict()
USAGE = Metric.MEMORY_USAGE
GIB = 1 << 30
BATCH_MEMORY = "kubernetes.io/batch-memory"
YES = PodEviction(is_enabled=True)


@pytest.mark.parametrize(
    ("used", "lower", "expected"),
    [
        pytest.param(115e9, 78, 20_400_000_000, id="V205"),
        pytest.param(115e9, 80, 18_000_000_000, id="V206"),
        pytest.param(96e9, 78, 2_400_000_000, id="threshold"),
        pytest.param(95.9e9, 78, 0, id="below-the-threshold"),
        pytest.param(97.1e9, 78, 2_400_000_000, id="whole-percent"),
        pytest.param(120e9, 0, 120_000_000_000, id="all"),
    ],
)
def test_usage(used: float, lower: int, expected: int) -> None:
    assert usage_release(used, 120_000_000_000, 80, lower) == expected


def be(name: str, **fields: Any) -> Pod:
    return pod_of(name, QoSClass.BE, **{"priority": 5_500, **fields})


def decided(
    pods: Sequence[Pod],
    *,
    used_gib: float = 90.0,
    usage_gib: Mapping[str, float] | None = None,
    feature: str = "BEMemoryEvict",
    state: EvictState | None = None,
    now_s: float = 1_000.0,
    allocatable: Mapping[str, int] | None = None,
    **threshold: Any,
) -> Decision[EvictState]:
    """A decision of a node with 100 GiB and a threshold of 80 %, out of its cool time."""
    values = {(NODE_CGROUP, USAGE): used_gib * GIB}
    for pod in pods:
        if usage_gib is None or pod.name in usage_gib:
            values[pod.cgroup, USAGE] = (1.0 if usage_gib is None else usage_gib[pod.name]) * GIB
    given: dict[str, Any] = {"memory_evict_threshold_percent": 80, **threshold}
    snapshot = Snapshot(
        now_s=now_s,
        pods=tuple(pods),
        node=node_of(16, capacity={"memory": 100 * GIB}, allocatable=dict(allocatable or {})),
        strategies=Strategies(threshold=Threshold(enable=True, **given)),
        metrics=FixedMetrics(values),
    )
    if state is None:
        context = PluginContext(gates={feature: True}, options=EvictOptions(most_pods=9))
        state = replace(PLUGIN.setup(context), cool_until_s=0.0)
    return PLUGIN.run(snapshot, state)


def uids(decision: Decision[EvictState]) -> list[str]:
    return [each.pod_uid for each in decision.evictions]


def test_be_pods_go_by_priority_usage_and_name() -> None:
    """12 GiB to release, and more of it than there is."""
    pods = [
        be("a"),
        be("b"),
        be("c", priority=9_000),
        be("d", priority=None),
        be("e"),
        be("f", priority=5_000),
        be("g", priority=0),
        be("h", priority=None, priority_class=PriorityClass.FREE),
    ]
    usage = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 1.5, "e": 1.0, "f": 0.5, "g": 1.7, "h": 0.1}
    assert uids(decided(pods, usage_gib=usage)) == ["h", "f", "b", "g", "d", "e", "a", "c"]


def test_bytes_are_counted_as_they_are() -> None:
    """Koordinator takes one pod for a thousand."""
    pods = [pod_of(f"p{n}", priority=1, eviction=YES) for n in range(20)]
    decision = decided(
        pods,
        used_gib=82.5,
        usage_gib={pod.name: 1.5 for pod in pods},
        feature="MemoryEvict",
        evict_enabled_priority_threshold=100,
    )
    # 82 % used, 78 % wanted: 4 GiB.
    assert len(decision.evictions) == 3
    assert decision.evictions[0].reason == (
        "MemoryEvict: 84480 MiB used of 102400 MiB (82 %), threshold 80 %, down to 78 %; "
        "used memory: 4096 MiB to release, this pod 1536 MiB, then 2560 MiB"
    )


def test_pods_by_priority_allow_it_themselves() -> None:
    pods = [
        pod_of("a", priority=1),
        pod_of("b", priority=1, eviction=PodEviction(is_enabled=True, allowed=frozenset({"CPUEvict"}))),
        pod_of("c", priority=101, eviction=YES),
        pod_of("d", QoSClass.LSE, priority=1, eviction=YES),
        pod_of("e", QoSClass.SYSTEM, priority=1, eviction=YES),
        pod_of("f", priority=100, eviction=YES),
        pod_of("g", priority=100, eviction=PodEviction(is_enabled=True, priority=-5)),
        be("h", priority=50, eviction=YES),
    ]
    decision = decided(pods, feature="MemoryEvict", evict_enabled_priority_threshold=100)
    assert uids(decision) == ["g", "h", "f"]
    assert not decided(pods, feature="MemoryEvict").evictions


def test_a_pod_without_a_priority_has_that_of_its_class() -> None:
    pods = [
        pod_of("prod", eviction=YES),
        pod_of("none", QoSClass.NONE, kube_qos=KubeQoSClass.BEST_EFFORT, eviction=YES),
        be("zero", priority=0, eviction=YES),
        be("low", priority=5_400, eviction=YES),
    ]
    usage = {"prod": 4.0, "none": 3.0, "zero": 2.0, "low": 1.0}
    decision = decided(pods, usage_gib=usage, feature="MemoryEvict", evict_enabled_priority_threshold=5_500)
    assert uids(decision) == ["low", "none", "zero"]


@pytest.mark.parametrize("feature", ["BEMemoryEvict", "MemoryEvict"])
def test_a_threshold_of_0_counts(feature: str) -> None:
    """Down to -2 %: 5 GiB with 3 GiB used."""
    pods = [be(name, eviction=YES) for name in "abc"]
    decision = decided(
        pods,
        used_gib=3.5,
        usage_gib=dict.fromkeys("abc", 2.5),
        feature=feature,
        memory_evict_threshold_percent=0,
        evict_enabled_priority_threshold=5_500,
    )
    assert len(decision.evictions) == 2


def test_be_pods_may_refuse_the_feature() -> None:
    pods = [be("a", eviction=PodEviction(allowed=frozenset())), be("b")]
    assert uids(decided(pods)) == ["b"]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"used_gib": 79.9}, id="below"),
        pytest.param({"memory_evict_lower_percent": 80}, id="lower-not-below"),
        pytest.param({"usage_gib": {}}, id="usage-not-known"),
        pytest.param({"usage_gib": {"a": 0.0}}, id="uses-nothing"),
        pytest.param({"feature": "MemoryAllocatableEvict"}, id="gate-off"),
    ],
)
def test_nothing_goes(fields: Mapping[str, Any]) -> None:
    assert decided([be("a")]).evictions
    assert not decided([be("a")], **fields).evictions


def test_requests_beyond_what_is_allocatable() -> None:
    """V208: 15 GiB."""

    def batch(name: str, gib: int) -> Pod:
        container = container_of(name, requests={BATCH_MEMORY: gib * GIB})
        return be(name, containers=(container,), priority_class=PriorityClass.BATCH, eviction=YES)

    decision = decided(
        [batch("small", 10), batch("large", 12), batch("middle", 11), batch("rest", 52)],
        used_gib=1.0,
        feature="MemoryAllocatableEvict",
        allocatable={BATCH_MEMORY: 100 * GIB},
        memory_allocatable_evict_threshold_percent=80,
        memory_allocatable_evict_lower_percent=70,
        allocatable_evict_priority_threshold=7_999,
    )
    assert uids(decision) == ["rest"]
    assert (
        f"requested {BATCH_MEMORY}: 15360 MiB to release, this pod 53248 MiB" in decision.evictions[0].reason
    )


def test_a_pod_that_would_release_nothing_to_speak_of_stays() -> None:
    usage = {"tiny": 0.9 / 1024, "small": 1.0 / 1024, "large": 1.0}
    # The lowest priority would go first.
    pods = [be("tiny", priority=5_000), be("small", priority=5_100), be("large")]
    assert uids(decided(pods, usage_gib=usage)) == ["small", "large"]


def test_a_reason_names_what_the_pod_releases_only() -> None:
    mid_memory = "kubernetes.io/mid-memory"

    def pod(name: str, resource: str, priority_class: PriorityClass) -> Pod:
        container = container_of(name, requests={resource: 60 * GIB})
        return be(name, containers=(container,), priority_class=priority_class, eviction=YES)

    decision = decided(
        [pod("a", BATCH_MEMORY, PriorityClass.BATCH), pod("b", mid_memory, PriorityClass.MID)],
        used_gib=1.0,
        feature="MemoryAllocatableEvict",
        allocatable={BATCH_MEMORY: 50 * GIB, mid_memory: 50 * GIB},
        memory_allocatable_evict_threshold_percent=80,
        memory_allocatable_evict_lower_percent=70,
        allocatable_evict_priority_threshold=7_999,
    )
    assert uids(decision) == ["a", "b"]
    for each in decision.evictions:
        assert each.reason.count(" to release, this pod 61440 MiB") == 1
        assert "this pod 0 MiB" not in each.reason


def test_usage_and_requests_are_released_together() -> None:
    """What BEMemoryEvict has evicted is not evicted for its usage by MemoryEvict again."""
    pods = [be("a", eviction=YES), be("b", eviction=YES), pod_of("c", priority=1, eviction=YES)]
    context = PluginContext(gates={"BEMemoryEvict": True, "MemoryEvict": True})
    state = replace(PLUGIN.setup(context), cool_until_s=0.0)
    usage = {"a": 3.0, "b": 2.0, "c": 5.0}
    decision = decided(
        pods, used_gib=82.0, usage_gib=usage, state=state, evict_enabled_priority_threshold=9_000
    )
    assert uids(decision) == ["a", "b"]


def test_cool_time_and_mode() -> None:
    started = decided([be("a")], state=PLUGIN.setup(PluginContext(gates={"BEMemoryEvict": True})))
    assert not started.evictions
    first = decided([be("a"), be("b")], state=started.state, now_s=1_000.0 + COOL_S)
    assert first.evictions
    assert first.state.cool_until_s == 1_000.0 + 2 * COOL_S
    assert PLUGIN.default_mode is Mode.DRY_RUN
    assert not PLUGIN.is_enabled(Snapshot(now_s=0.0))


def test_without_anything_known_nothing_happens() -> None:
    state = replace(PLUGIN.setup(PluginContext(gates=dict.fromkeys(PLUGIN.gates, True))), cool_until_s=0.0)
    strategies = Strategies(threshold=Threshold(enable=True, evict_enabled_priority_threshold=1))
    assert not PLUGIN.run(Snapshot(now_s=1.0, strategies=strategies), state).evictions
