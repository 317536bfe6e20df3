"""CPU evict. Cases Vnnn are those of Koordinator's cpu_evict_test.go (CONTRIBUTING.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.qos import KubeQoSClass, PriorityClass, QoSClass
from runtimeproxy.qosmanager.eviction import EvictOptions, beyond_allocatable, usage_release
from runtimeproxy.qosmanager.plugin import Decision, EvictionOutcome, EvictionResult, Mode, PluginContext
from runtimeproxy.qosmanager.plugins.cpu_evict import (
    BATCH_CPU,
    COOL_S,
    BeCpu,
    CpuEvict,
    CpuEvictState,
    both_releases,
    has_enough_samples,
    satisfaction_release,
    window_of,
)
from runtimeproxy.qosmanager.snapshot import (
    NODE_CGROUP,
    Metric,
    Pod,
    PodEviction,
    Snapshot,
    Strategies,
    Window,
)
from runtimeproxy.slo.schema import CpuEvictPolicy, Threshold
from tests.qosmanager.snapshots import FixedMetrics, container_of, node_of, pod_of

PLUGIN = CpuEvict()
USAGE = Metric.CPU_USAGE
ALL_GATES = dict.fromkeys(CpuEvict.gates, True)
MID_CPU = "kubernetes.io/mid-cpu"


@pytest.mark.parametrize(
    ("average", "last", "expected"),
    [
        pytest.param((10_000, 9_500), (14_000, 13_000), 6_000, id="V187"),
        pytest.param((13_000, 12_000), (11_000, 10_500), 7_000, id="V188"),
        pytest.param((10_000, 9_500), (15_001, 15_000), 0, id="above-the-lower-rate-now"),
        pytest.param((15_001, 15_000), (10_000, 9_500), 0, id="above-the-lower-rate-on-average"),
        pytest.param((15_000, 14_000), (15_000, 0), 5_000, id="same-limit-is-not-checked-twice"),
        pytest.param((10_000, 8_999), (10_001, 10_000), 0, id="not-busy"),
        pytest.param((0, 0), (10_000, 10_000), 0, id="no-limit"),
    ],
)
def test_satisfaction(average: tuple[int, int], last: tuple[int, int], expected: int) -> None:
    """50,000 millicores requested; 30 % to 40 % wanted."""
    first, second = (BeCpu(limit, used, 50_000) for limit, used in (average, last))
    assert both_releases(first, second, 30, 40) == expected


@pytest.mark.parametrize(
    ("cpu", "percent", "expected"),
    [
        pytest.param(BeCpu(10_000, 9_000, 50_000), 90, 10_000, id="V190"),
        pytest.param(BeCpu(10_000, 8_999, 50_000), 90, 0, id="V190-just-not"),
        pytest.param(BeCpu(800, 0, 50_000), 90, 19_200, id="V191"),
        pytest.param(BeCpu(999, 0, 50_000), 90, 19_001, id="V191-just-below"),
        pytest.param(BeCpu(1_000, 0, 50_000), 90, 0, id="V191-just-not"),
        pytest.param(BeCpu(8_000, 4_000, 50_000), 50, 12_000, id="V194"),
        pytest.param(BeCpu(8_000, 8_000, 0), 50, 0, id="no-request"),
        pytest.param(BeCpu(15_000, 15_000, 50_000), 90, 5_000, id="lower-rate"),
        pytest.param(BeCpu(15_001, 15_001, 50_000), 90, 0, id="above-the-lower-rate"),
    ],
)
def test_one_satisfaction(cpu: BeCpu, percent: int, expected: int) -> None:
    assert satisfaction_release(cpu, 30, 40, percent) == expected


@pytest.mark.parametrize(
    ("count", "window_s", "expected"),
    [
        pytest.param(19, 60, False, id="V193"),
        pytest.param(20, 60, True, id="V193-enough"),
        pytest.param(1, 3, True, id="short"),
        pytest.param(1, 4, False, id="not-short"),
    ],
)
def test_samples_of_a_window(count: int, window_s: float, expected: bool) -> None:
    assert has_enough_samples(count, window_s) is expected


@pytest.mark.parametrize(
    ("used", "threshold", "lower", "expected"),
    [
        pytest.param(81.0, 80, 78, 3_000, id="V196"),
        pytest.param(81.0, 80, 80, 1_000, id="V197"),
        pytest.param(80.0, 80, 78, 2_000, id="threshold"),
        pytest.param(79.999, 80, 78, 0, id="below-the-threshold"),
        pytest.param(80.999, 80, 78, 2_000, id="whole-percent"),
        pytest.param(0.0, 0, 0, 0, id="nothing"),
        pytest.param(0.0, 0, -2, 2_000, id="threshold-0"),
        pytest.param(40.0, 1, -1, 41_000, id="lower-below-0"),
    ],
)
def test_usage(used: float, threshold: int, lower: int, expected: int) -> None:
    assert usage_release(used * 1_000, 100_000, threshold, lower) == expected


@pytest.mark.parametrize(
    ("requested", "allocatable", "threshold", "lower", "expected"),
    [
        pytest.param(85_000, 100_000, 80, 70, 15_000, id="V199"),
        pytest.param(85_000, 100_000, 0, 0, 85_000, id="V202"),
        pytest.param(80_000, 100_000, 80, 70, 0, id="threshold"),
        pytest.param(80_001, 100_000, 80, 70, 10_001, id="above-the-threshold"),
        pytest.param(85_000, 0, 80, 70, 85_000, id="nothing-allocatable"),
        pytest.param(0, 100_000, 0, 0, 0, id="nothing-requested"),
        pytest.param(85 << 30, 100 << 30, 80, 70, 16_106_127_360, id="V208"),
    ],
)
def test_allocatable(requested: int, allocatable: int, threshold: int, lower: int, expected: int) -> None:
    assert beyond_allocatable(requested, allocatable, threshold, lower) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(None, 1), (1, 1), (60, 60), (10_000, 300)])
def test_window(seconds: int | None, expected: float) -> None:
    assert window_of(Threshold(cpu_evict_time_window_seconds=seconds)) == expected


def be(name: str, request: int = 10_000, **fields: Any) -> Pod:
    container = container_of(name, requests={BATCH_CPU: request})
    return pod_of(name, QoSClass.BE, containers=(container,), **{"priority": 5_500, **fields})


def low(name: str, resource: str = "cpu", request: int = 0, **fields: Any) -> Pod:
    """A pod that allows evictions by priority."""
    eviction = fields.pop("eviction", PodEviction(is_enabled=True))
    container = container_of(name, requests={resource: request})
    return pod_of(name, fields.pop("qos", QoSClass.LS), containers=(container,), eviction=eviction, **fields)


def decided(
    pods: Sequence[Pod],
    *,
    used: float = 1.0,
    usage: Mapping[str, float] | None = None,
    state: CpuEvictState | None = None,
    now_s: float = 1_000.0,
    gates: Mapping[str, bool] | None = None,
    be_limit_cores: float | None = None,
    allocatable: Mapping[str, int] | None = None,
    count: int = 60,
    options: EvictOptions | None = None,
    **threshold: Any,
) -> Decision[CpuEvictState]:
    """A decision of a node with 100 CPUs, out of its cool time unless `state` says otherwise."""
    values: dict[tuple[str, Metric], float | Window] = {(NODE_CGROUP, USAGE): Window(*(used,) * 6, count)}
    for pod in pods:
        if usage is None or pod.name in usage:
            cores = 1.0 if usage is None else usage[pod.name]
            values[pod.cgroup, USAGE] = Window(*(cores,) * 6, count)
    snapshot = Snapshot(
        now_s=now_s,
        pods=tuple(pods),
        node=node_of(100, allocatable=dict(allocatable or {})),
        strategies=Strategies(threshold=Threshold(enable=True, **threshold)),
        metrics=FixedMetrics(values),
        be_limit_cores=be_limit_cores,
    )
    if state is None:
        state = PLUGIN.setup(PluginContext(gates=ALL_GATES if gates is None else gates, options=options))
        state = replace(state, cool_until_s=0.0)
    return PLUGIN.run(snapshot, state)


def uids(decision: Decision[CpuEvictState]) -> list[str]:
    return [each.pod_uid for each in decision.evictions]


SATISFACTION: Mapping[str, Any] = {
    "cpu_evict_be_satisfaction_lower_percent": 30,
    "cpu_evict_be_satisfaction_upper_percent": 40,
}


class TestBySatisfaction:
    PODS = be("a"), be("b"), be("c", priority=5_000), be("d"), be("e")
    """50,000 millicores requested."""

    def test_the_lowest_priority_and_then_the_busiest_goes(self) -> None:
        """10 cores are left: 10,000 millicores of requests too many, and then the next."""
        usage = {"a": 1.0, "b": 4.0, "c": 1.0, "d": 2.0, "e": 2.0}
        decision = decided(self.PODS, usage=usage, be_limit_cores=10.0, **SATISFACTION)
        assert uids(decision) == ["c"]
        decision = decided(self.PODS, usage=usage, be_limit_cores=9.5, **SATISFACTION)
        assert uids(decision) == ["c", "b"]
        assert decision.state.cool_until_s == 1_000.0 + COOL_S

    def test_a_pod_without_a_priority_has_that_of_its_class(self) -> None:
        pods = (
            be("a", priority=0),
            be("b", priority=None),
            be("c"),
            be("d", priority=5_501),
            be("e", priority=5_000),
        )
        usage = {"a": 2.0, "b": 4.0, "c": 1.0, "d": 2.0, "e": 1.0}
        decision = decided(pods, usage=usage, be_limit_cores=9.5, **SATISFACTION)
        assert uids(decision) == ["e", "b"]

    def test_the_reason_has_the_arithmetic(self) -> None:
        decision = decided(self.PODS, usage=dict.fromkeys("abcde", 2.0), be_limit_cores=10.0, **SATISFACTION)
        assert decision.evictions[0].reason == (
            "BECPUEvict: BE pods have 10000m and use 10000m of 50000m requested, 30 % to 40 % wanted; "
            "requested kubernetes.io/batch-cpu: 10000m to release, this pod 10000m, then 0m"
        )
        assert decision.explanation.endswith("pods to evict: 1")

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"be_limit_cores": None}, id="not-bounded"),
            pytest.param({"usage": dict.fromkeys("abcde", 1.0)}, id="not-busy"),
            pytest.param({"usage": {}}, id="no-samples"),
            pytest.param({"cpu_evict_time_window_seconds": 60}, id="V193"),
            pytest.param({"cpu_evict_be_satisfaction_lower_percent": None}, id="no-lower"),
            pytest.param({"cpu_evict_be_satisfaction_lower_percent": 0}, id="lower-0"),
            pytest.param(
                {
                    "cpu_evict_be_satisfaction_lower_percent": 61,
                    "cpu_evict_be_satisfaction_upper_percent": 70,
                },
                id="lower-61",
            ),
            pytest.param({"cpu_evict_be_satisfaction_upper_percent": 29}, id="upper-below-lower"),
            pytest.param({"cpu_evict_be_satisfaction_upper_percent": 100}, id="upper-100"),
            pytest.param({"gates": {"CPUEvict": True}}, id="gate-off"),
        ],
    )
    def test_nothing_goes(self, fields: Mapping[str, Any]) -> None:
        given: dict[str, Any] = {"usage": dict.fromkeys("abcde", 2.0), "be_limit_cores": 10.0, **SATISFACTION}
        assert not decided(self.PODS, **{**given, **fields}).evictions

    def test_by_what_is_allocatable(self) -> None:
        """V194."""
        given: dict[str, Any] = {
            "cpu_evict_policy": CpuEvictPolicy.ALLOCATABLE,
            "cpu_evict_be_usage_threshold_percent": 50,
            **SATISFACTION,
        }
        usage = dict.fromkeys("abcde", 1.0)
        assert len(uids(decided(self.PODS, usage=usage, allocatable={BATCH_CPU: 8_000}, **given))) == 2
        assert len(uids(decided(self.PODS, usage=usage, allocatable={BATCH_CPU: 0}, **given))) == 2
        for allocatable in ({}, {BATCH_CPU: -5}):
            assert not decided(self.PODS, usage=usage, allocatable=allocatable, **given).evictions

    def test_the_average_over_the_window_counts(self) -> None:
        """The limit has just fallen: the average of 20 rounds is still above."""
        given: dict[str, Any] = {
            "usage": dict.fromkeys("abcde", 5.0),
            "cpu_evict_time_window_seconds": 60,
            **SATISFACTION,
        }
        state = None
        decision = decided(self.PODS, be_limit_cores=30.0, **given)
        for second in range(1, 60):
            state = decision.state
            limit = 30.0 if second < 30 else 10.0
            decision = decided(self.PODS, be_limit_cores=limit, state=state, now_s=1_000.0 + second, **given)
            assert not decision.evictions
        for second in range(60, 80):
            state = decision.state
            decision = decided(self.PODS, be_limit_cores=10.0, state=state, now_s=1_000.0 + second, **given)
            if decision.evictions:
                break
        assert 70 < second < 80
        assert len(decision.state.samples) == 60


ONLY_MEMORY = PodEviction(is_enabled=True, allowed=frozenset({"MemoryEvict"}))
USAGE_RULE: Mapping[str, Any] = {"cpu_evict_threshold_percent": 80, "evict_enabled_priority_threshold": 7_000}


class TestByUsage:
    def test_order(self) -> None:
        """By eviction priority, priority, sub-priority, then usage; 3,000 millicores too many (V196)."""
        pods = [
            low("a", priority=100),
            low("b", priority=100, sub_priority=50),
            low("c", priority=90),
            low("d", priority=100),
            low("e", priority=7_000, eviction=PodEviction(is_enabled=True, priority=-1)),
        ]
        usage = {"a": 0.5, "b": 0.5, "c": 0.5, "d": 0.6, "e": 0.5}
        options = EvictOptions(most_pods=9)
        decision = decided(pods, used=81.0, usage=usage, options=options, **USAGE_RULE)
        assert uids(decision) == ["e", "c", "b", "d", "a"]

    def test_it_ends_with_enough(self) -> None:
        pods = [low(name, priority=1) for name in "abcd"]
        assert uids(decided(pods, used=81.0, usage=dict.fromkeys("abcd", 1.5), **USAGE_RULE)) == ["a", "b"]

    def test_the_reason_has_the_arithmetic(self) -> None:
        decision = decided([low("a", priority=1)], used=81.0, usage={"a": 1.5}, **USAGE_RULE)
        assert decision.evictions[0].reason == (
            "CPUEvict: 81000m used of 100000m (81 %), threshold 80 %, down to 78 %; "
            "used cpu: 3000m to release, this pod 1500m, then 1500m"
        )

    @pytest.mark.parametrize(
        "pod",
        [
            pytest.param(low("x", priority=7_001), id="priority"),
            pytest.param(low("x", priority=None), id="without-priority-prod"),
            pytest.param(low("x", priority=0), id="priority-0-prod"),
            pytest.param(low("x", priority=1, eviction=PodEviction()), id="not-enabled"),
            pytest.param(
                low(
                    "x", priority=1, eviction=PodEviction(is_enabled=True, allowed=frozenset({"MemoryEvict"}))
                ),
                id="not-allowed",
            ),
            pytest.param(low("x", priority=1, qos=QoSClass.SYSTEM), id="SYSTEM"),
            pytest.param(low("x", priority=1, qos=QoSClass.LSE), id="LSE"),
            pytest.param(low("idle", priority=1), id="uses-nothing"),
            pytest.param(low("unknown", priority=1), id="usage-not-known"),
        ],
    )
    def test_pods_that_stay(self, pod: Pod) -> None:
        assert not decided([pod], used=95.0, usage={"x": 2.0, "idle": 0.0}, **USAGE_RULE).evictions

    def test_a_pod_without_a_priority_has_that_of_its_class(self) -> None:
        """Of BE and of unlabelled BestEffort pods 5,500."""
        best_effort: dict[str, Any] = {"qos": QoSClass.NONE, "kube_qos": KubeQoSClass.BEST_EFFORT}
        pods = [
            low("a", priority=5_501),
            low("b", priority=0, **best_effort),
            low("c", priority=None, qos=QoSClass.BE),
            low("d", priority=5_499),
        ]
        usage = {"a": 0.5, "b": 0.6, "c": 0.5, "d": 0.5}
        options = EvictOptions(most_pods=9)
        given = {**USAGE_RULE, "evict_enabled_priority_threshold": 5_500}
        decision = decided(pods, used=81.0, usage=usage, options=options, **given)
        assert uids(decision) == ["d", "b", "c"]

    def test_a_threshold_of_0_counts(self) -> None:
        """Down to -2 %: one of 100 cores is used, three are to be released."""
        pods = [low(name, priority=1) for name in "abcd"]
        given = {**USAGE_RULE, "cpu_evict_threshold_percent": 0}
        decision = decided(pods, used=1.0, usage=dict.fromkeys("abcd", 1.5), **given)
        assert uids(decision) == ["a", "b"]

    def test_only_allowed_features(self) -> None:
        eviction = PodEviction(is_enabled=True, allowed=frozenset({"CPUEvict"}))
        assert uids(decided([low("x", priority=1, eviction=eviction)], used=95.0, **USAGE_RULE)) == ["x"]

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"cpu_evict_lower_percent": 80}, id="V203"),
            pytest.param({"cpu_evict_threshold_percent": None}, id="no-threshold"),
            pytest.param({"evict_enabled_priority_threshold": None}, id="no-priority"),
            pytest.param({"cpu_evict_time_window_seconds": 60, "count": 19}, id="V193"),
            pytest.param({"gates": {"BECPUEvict": True}}, id="gate-off"),
            pytest.param({"used": 79.9}, id="below"),
        ],
    )
    def test_nothing_goes(self, fields: Mapping[str, Any]) -> None:
        given: dict[str, Any] = {"used": 81.0, **USAGE_RULE}
        assert decided([low("x", priority=1)], **given).evictions
        assert not decided([low("x", priority=1)], **{**given, **fields}).evictions


REQUEST_RULE: Mapping[str, Any] = {
    "cpu_allocatable_evict_threshold_percent": 80,
    "cpu_allocatable_evict_lower_percent": 70,
    "allocatable_evict_priority_threshold": 7_999,
}
ALLOCATABLE = {BATCH_CPU: 100_000, MID_CPU: 100_000, "cpu": 100_000}


class TestByRequests:
    def batch(self, name: str, request: int, **fields: Any) -> Pod:
        given = {"priority": 5_500, "priority_class": PriorityClass.BATCH, "qos": QoSClass.BE}
        return low(name, BATCH_CPU, request, **{**given, **fields})

    def mid(self, name: str, request: int) -> Pod:
        return low(name, MID_CPU, request, priority=7_500, priority_class=PriorityClass.MID)

    def test_both_resources(self) -> None:
        """V200: 15,000 millicores of each; a pod of the other resource releases nothing of it."""
        pods = [
            self.batch("b1", 70_000),
            self.batch("b2", 15_000),
            self.mid("m1", 8_000),
            self.mid("m2", 77_000),
        ]
        decision = decided(pods, allocatable=ALLOCATABLE, **REQUEST_RULE)
        assert uids(decision) == ["b1", "m2"]
        assert "requested kubernetes.io/batch-cpu: 15000m to release, this pod 70000m, then 0m" in (
            decision.evictions[0].reason
        )
        assert "85000m kubernetes.io/batch-cpu requested of 100000m" in decision.evictions[0].reason

    def test_pods_of_low_priority_count_whether_they_may_be_evicted_or_not(self) -> None:
        pods = [
            self.batch("b1", 80_000, eviction=PodEviction()),
            self.batch("b2", 5_000),
            self.batch("b3", 5_000, priority=9_000),
        ]
        assert uids(decided(pods, allocatable=ALLOCATABLE, **REQUEST_RULE)) == ["b2"]

    def test_pods_without_a_priority(self) -> None:
        """Unlabelled BestEffort pods are batch: they request it, and count up to its priority."""
        unlabelled: dict[str, Any] = {"qos": QoSClass.NONE, "kube_qos": KubeQoSClass.BEST_EFFORT}
        pods = [
            low("b1", BATCH_CPU, 50_000, **unlabelled),
            low("b2", BATCH_CPU, 35_000, priority=0, qos=QoSClass.BE),
            low("prod", "cpu", 99_000),
        ]
        given = {**REQUEST_RULE, "allocatable_evict_priority_threshold": 5_500}
        decision = decided(pods, allocatable=ALLOCATABLE, **given)
        assert uids(decision) == ["b1"]
        assert "85000m kubernetes.io/batch-cpu requested" in decision.explanation

    def test_native_cpu_is_counted_in_millicores(self) -> None:
        """Koordinator evicts one pod of 15,000, as if 15 cores were 15 millicores."""
        pods = [low(f"n{n}", "cpu", 8_500, priority=1) for n in range(10)]
        options = EvictOptions(most_pods=9)
        assert uids(decided(pods, allocatable=ALLOCATABLE, options=options, **REQUEST_RULE)) == ["n0", "n1"]

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"cpu_allocatable_evict_lower_percent": 80}, id="V203"),
            pytest.param({"allocatable_evict_priority_threshold": 9_999}, id="V203-priority"),
            pytest.param({"allocatable_evict_priority_threshold": None}, id="no-priority"),
            pytest.param({"cpu_allocatable_evict_lower_percent": None}, id="no-lower"),
            pytest.param({"gates": {"CPUEvict": True, "BECPUEvict": True}}, id="gate-off"),
        ],
    )
    def test_nothing_goes(self, fields: Mapping[str, Any]) -> None:
        pods = [self.batch("b1", 85_000)]
        assert decided(pods, allocatable=ALLOCATABLE, **REQUEST_RULE).evictions
        assert not decided(pods, allocatable=ALLOCATABLE, **{**REQUEST_RULE, **fields}).evictions


class TestSafety:
    """What holds for all features."""

    PODS = tuple(low(name, priority=1) for name in "abcdef")
    GIVEN: Mapping[str, Any] = {"used": 100.0, **USAGE_RULE}

    def test_so_many_in_an_interval(self) -> None:
        first = decided(self.PODS, **self.GIVEN)
        assert uids(first) == ["a", "b", "c"]
        assert "no more than 3 pods in 60 s" in first.explanation
        second = decided(self.PODS, state=first.state, now_s=1_030.0, **self.GIVEN)
        assert not second.evictions
        third = decided(self.PODS, state=second.state, now_s=1_060.0, **self.GIVEN)
        assert uids(third) == ["d", "e", "f"]

    def test_not_the_same_pod_again_at_once(self) -> None:
        """Its containers were restarted, so it is still there."""
        options = EvictOptions(most_pods=9)
        first = decided(self.PODS[:2], options=options, **self.GIVEN)
        assert uids(first) == ["a", "b"]
        for now_s in (1_020.0, 1_100.0, 1_299.0):
            assert not decided(self.PODS[:2], state=first.state, now_s=now_s, **self.GIVEN).evictions
        assert uids(decided(self.PODS[:2], state=first.state, now_s=1_300.0, **self.GIVEN)) == ["a", "b"]

    def test_what_is_about_to_end_counts_as_released(self) -> None:
        given: dict[str, Any] = {"used": 81.0, "usage": dict.fromkeys("abcdef", 3.0), **USAGE_RULE}
        first = decided(self.PODS, **given)
        assert uids(first) == ["a"]
        assert not decided(self.PODS, state=first.state, now_s=1_020.0, **given).evictions
        assert uids(decided(self.PODS, state=first.state, now_s=1_031.0, **given)) == ["b"]

    @pytest.mark.parametrize(
        "outcome", [EvictionOutcome.REFUSED, EvictionOutcome.FAILED, EvictionOutcome.NOTHING]
    )
    def test_what_was_refused_was_not_released(self, outcome: EvictionOutcome) -> None:
        """The next pod is chosen at once, and this one not again for some time."""
        given: dict[str, Any] = {"used": 81.0, "usage": dict.fromkeys("abcdef", 3.0), **USAGE_RULE}
        first = decided(self.PODS, **given)
        results = [EvictionResult(each, outcome) for each in first.evictions]
        state = PLUGIN.on_evictions(results, Snapshot(now_s=1_000.5), first.state)
        second = decided(self.PODS, state=state, now_s=1_001.0, **given)
        assert uids(second) == ["b"]
        state = PLUGIN.on_evictions(
            [EvictionResult(each, EvictionOutcome.EVICTED) for each in second.evictions],
            Snapshot(now_s=1_001.5),
            second.state,
        )
        assert state == second.state
        third = decided(self.PODS[:2], state=state, now_s=1_300.0, **given)
        assert not third.evictions
        assert uids(decided(self.PODS[:2], state=state, now_s=1_300.5, **given)) == ["a"]

    def test_pods_of_a_dry_run_stay_and_are_proposed_once(self) -> None:
        given: dict[str, Any] = {"used": 81.0, "usage": dict.fromkeys("abcdef", 3.0), **USAGE_RULE}
        first = decided(self.PODS, **given)
        assert uids(first) == ["a"]
        results = [EvictionResult(each, EvictionOutcome.DRY_RUN) for each in first.evictions]
        state = PLUGIN.on_evictions(results, Snapshot(now_s=1_000.5), first.state)
        # It releases what it uses each time, so no other one has to go.
        for now_s in (1_020.0, 1_100.0, 1_299.0):
            again = decided(self.PODS, state=state, now_s=now_s, **given)
            assert not again.evictions
            assert again.explanation.endswith("pods to evict: 1, 1 of them proposed before in dry-run")
        more = decided(self.PODS, state=state, now_s=1_020.0, **{**given, "used": 84.0})
        assert uids(more) == ["b"]
        assert uids(decided(self.PODS, state=state, now_s=1_300.0, **given)) == ["a"]

    def test_cool_time(self) -> None:
        state = PLUGIN.setup(PluginContext(gates=ALL_GATES))
        started = decided(self.PODS, state=state, **self.GIVEN)
        assert not started.evictions
        assert started.explanation == "cooling for 20 s"
        waiting = decided(self.PODS, state=started.state, now_s=1_019.9, **self.GIVEN)
        assert not waiting.evictions
        first = decided(self.PODS[:1], state=waiting.state, now_s=1_020.0, **self.GIVEN)
        assert first.evictions
        assert not decided(self.PODS, state=first.state, now_s=1_039.9, **self.GIVEN).evictions
        assert decided(self.PODS, state=first.state, now_s=1_040.0, **self.GIVEN).evictions

    def test_a_round_without_evictions_does_not_cool(self) -> None:
        state = decided(self.PODS, used=1.0, **USAGE_RULE).state
        assert state.cool_until_s == 0.0

    def test_one_pod_serves_several_features(self) -> None:
        """A BE pod is evicted for its request, and its usage counts, too."""
        pods = [
            be("a", 50_000, eviction=PodEviction(is_enabled=True)),
            be("b", 50_000, eviction=PodEviction(is_enabled=True)),
        ]
        given: dict[str, Any] = {"usage": {"a": 5.0, "b": 5.0}, "used": 81.0, "be_limit_cores": 10.0}
        assert uids(decided(pods, **given, **SATISFACTION)) == ["a"]
        assert uids(decided(pods, **given, **SATISFACTION, **USAGE_RULE)) == ["a"]

    def test_it_is_enabled_by_the_strategy_and_dry_by_default(self) -> None:
        assert not PLUGIN.is_enabled(Snapshot(now_s=0.0))
        strategies = Strategies(threshold=Threshold(enable=True))
        assert PLUGIN.is_enabled(Snapshot(now_s=0.0, strategies=strategies))
        assert PLUGIN.default_mode is Mode.DRY_RUN

    def test_without_anything_known_nothing_happens(self) -> None:
        strategies = Strategies(
            threshold=Threshold(enable=True, **SATISFACTION, **USAGE_RULE, **REQUEST_RULE)
        )
        state = replace(PLUGIN.setup(PluginContext(gates=ALL_GATES)), cool_until_s=0.0)
        decision = PLUGIN.run(Snapshot(now_s=1.0, strategies=strategies), state)
        assert not decision.evictions
        assert decision.explanation == ""
