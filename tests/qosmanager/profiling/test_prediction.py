"""Histograms and predictions: beside the definition computed directly, the formulas, the saved text."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.qos import PriorityClass, QoSClass
from runtimeproxy.qosmanager.profiling.histogram import CPU_BUCKETS, MEMORY_BUCKETS, Buckets, UsageHistogram
from runtimeproxy.qosmanager.profiling.prediction import (
    ALL_PODS,
    COLD_START_S,
    EXPIRY_S,
    NODE,
    SYSTEM,
    Models,
    PredictedPod,
    class_key,
    pod_key,
    reclaimable_by_class,
    reclaimable_by_pods,
    with_margin,
)
from runtimeproxy.qosmanager.profiling.reclaimable import NOTHING, NodeUse, PodUse, ResourceAmounts

DAY_S = 86_400
GIB = 1 << 30
NOW_S = 1_700_000_000.0


def weighted_percentile(samples: Sequence[tuple[float, float]], share: float, half_life_s: float) -> float:
    """The definition: the least value such that values up to it have `share` of all weight."""
    last_s = samples[-1][0]
    weighted = sorted((value, 2.0 ** ((at_s - last_s) / half_life_s)) for at_s, value in samples)
    threshold = share * math.fsum(weight for _, weight in weighted)
    total = 0.0
    for value, weight in weighted:
        total += weight
        if total >= threshold:
            return value
    return weighted[-1][0]


@pytest.mark.parametrize("buckets", [CPU_BUCKETS, MEMORY_BUCKETS])
def test_buckets(buckets: Buckets) -> None:
    assert buckets.start(0) == 0
    assert buckets.start(1) == pytest.approx(buckets.first)
    assert buckets.start(buckets.count - 1) >= buckets.most * 0.95
    for bucket in range(1, buckets.count - 1):
        width = buckets.start(bucket + 1) - buckets.start(bucket)
        assert width == pytest.approx(1.05 * (buckets.start(bucket) - buckets.start(bucket - 1)))
        assert buckets.of((buckets.start(bucket) + buckets.start(bucket + 1)) / 2) == bucket
    assert buckets.of(-1.0) == 0
    assert buckets.of(buckets.most * 9) == buckets.count - 1


@given(
    st.lists(st.tuples(st.floats(0, 7_200), st.floats(0.5, 500)), min_size=1, max_size=60),
    st.sampled_from([0.5, 0.9, 0.95, 0.98, 1.0]),
)
def test_percentile_beside_the_definition(steps: list[tuple[float, float]], share: float) -> None:
    histogram, samples, at_s = UsageHistogram(CPU_BUCKETS), [], NOW_S
    for step_s, value in steps:
        at_s += step_s
        histogram.add(value, at_s)
        samples.append((at_s, value))
    found = histogram.percentile(share)
    assert found is not None
    # A rounding error decides where the share is exactly reached.
    exact = [
        weighted_percentile(samples, share + error, CPU_BUCKETS.half_life_s) for error in (-1e-9, 0, 1e-9)
    ]
    assert any(value <= found * (1 + 1e-9) and found <= value * 1.10 + 1e-9 for value in exact)


def test_an_empty_histogram_has_no_percentile() -> None:
    assert UsageHistogram(CPU_BUCKETS).percentile(0.5) is None


def test_old_samples_fade() -> None:
    histogram = UsageHistogram(CPU_BUCKETS)
    for minute in range(24 * 60):
        histogram.add(8.0, NOW_S + minute * 60)
    for minute in range(24 * 60, 5 * 24 * 60):
        histogram.add(1.0, NOW_S + minute * 60)
    found = histogram.percentile(0.95)
    assert found == pytest.approx(1.0, rel=0.1)


def test_a_clock_that_jumps_makes_no_error() -> None:
    histogram = UsageHistogram(CPU_BUCKETS)
    for at_s in (NOW_S, 0.0, -1e12, NOW_S, 1e12, 1e12 + 60, NOW_S, 5e12):
        histogram.add(2.0, at_s)
        assert histogram.percentile(0.95) == pytest.approx(2.0, rel=0.1)


class Day:
    """A day of a service: more load in the afternoon, noise, and a peak of some minutes now and then."""

    def __init__(self, seed: int) -> None:
        generator = random.Random(seed)
        base, swing = generator.uniform(0.5, 4), generator.uniform(0.5, 6)
        self.cores: list[float] = []
        self.memory_bytes: list[float] = []
        burst_minutes = 0
        memory_bytes = generator.uniform(1, 4) * GIB
        for minute in range(DAY_S // 60):
            load = base + swing * max(math.sin((minute / 1_440 - 0.25) * 2 * math.pi), 0)
            burst_minutes = (
                generator.randint(1, 8) if generator.random() < 0.005 else max(burst_minutes - 1, 0)
            )
            self.cores.append(max(load * generator.gauss(1, 0.1), 0) * (2.5 if burst_minutes else 1))
            memory_bytes = max(memory_bytes * generator.gauss(1.0002, 0.01), 0.2 * GIB)
            self.memory_bytes.append(memory_bytes)


@pytest.mark.parametrize("seed", range(2))
def test_the_prediction_of_a_day_is_within_a_tenth_of_the_definition(seed: int) -> None:
    days = [Day(seed * 10 + pod) for pod in range(4)]
    models = Models()
    uses: list[NodeUse] = []
    for minute in range(DAY_S // 60):
        pods = tuple(
            PodUse(
                uid=str(number),
                priority_class=PriorityClass.PROD,
                qos=QoSClass.LS,
                request=ResourceAmounts(20_000, 16 * GIB),
                usage=ResourceAmounts(day.cores[minute] * 1_000, day.memory_bytes[minute]),
            )
            for number, day in enumerate(days)
        )
        used = ResourceAmounts(
            sum(day.cores[minute] for day in days) * 1_000 + 2_000,
            sum(day.memory_bytes[minute] for day in days) + GIB,
        )
        capacity = ResourceAmounts(200_000, 256 * GIB)
        uses.append(NodeUse(capacity=capacity, allocatable=capacity, reserved=NOTHING, usage=used, pods=pods))
        models.train(uses[-1], NOW_S + minute * 60)
        if minute % 500 == 250:
            models = Models.restored(models.saved(), NOW_S + minute * 60)

    def exact(usages: Sequence[ResourceAmounts]) -> ResourceAmounts:
        cpu = [(NOW_S + 60 * minute, usage.cpu_millicores) for minute, usage in enumerate(usages)]
        memory = [(NOW_S + 60 * minute, usage.memory_bytes) for minute, usage in enumerate(usages)]
        return ResourceAmounts(
            weighted_percentile(cpu, 0.95, CPU_BUCKETS.half_life_s) * 1.1,
            weighted_percentile(memory, 0.98, MEMORY_BUCKETS.half_life_s) * 1.1,
        )

    peaks: list[ResourceAmounts] = []
    for number in range(len(days)):
        peaks.append(exact([use.pods[number].usage or NOTHING for use in uses]))
        found = with_margin(models.percentiles(pod_key(str(number))))
        assert found == pytest.approx(peaks[-1], rel=0.1)
    together = exact([use.usage.minus(ResourceAmounts(2_000, GIB)) for use in uses])
    for key in (ALL_PODS, class_key(PriorityClass.PROD)):
        assert with_margin(models.percentiles(key)) == pytest.approx(together, rel=0.1)
    system = exact([ResourceAmounts(2_000, GIB)] * len(uses))
    assert with_margin(models.percentiles(SYSTEM)) == pytest.approx(system, rel=0.1)

    requested = ResourceAmounts(80_000, 64 * GIB)
    by_pods = requested.minus(ResourceAmounts(*(sum(each) for each in zip(*peaks, strict=True))))
    by_class = requested.minus(together).minus(system)
    ages_s: dict[str, float | None] = {str(number): COLD_START_S + 1 for number in range(len(days))}
    found_reclaimable = models.prod_reclaimable(uses[-1], ages_s)
    assert found_reclaimable == pytest.approx(by_pods.at_most(by_class), rel=0.1)
    young = dict.fromkeys(ages_s, COLD_START_S)
    assert models.prod_reclaimable(uses[-1], young) == NOTHING
    assert models.prod_reclaimable(uses[-1], {}) == NOTHING


OLD = PredictedPod(
    request=ResourceAmounts(4_000, 40), peak=ResourceAmounts(1_000, 50), age_s=COLD_START_S + 1
)


@pytest.mark.parametrize(
    ("pod", "reclaimable", "unreclaimable"),
    [
        (OLD, ResourceAmounts(3_000, 0), ResourceAmounts(1_000, 50)),
        (replace(OLD, age_s=COLD_START_S), NOTHING, ResourceAmounts(1_000, 50)),
        (replace(OLD, age_s=None), NOTHING, ResourceAmounts(1_000, 50)),
        (replace(OLD, is_ending=True), NOTHING, ResourceAmounts(1_000, 50)),
        (replace(OLD, peak=None), NOTHING, ResourceAmounts(4_000, 40)),
    ],
)
def test_a_pod(pod: PredictedPod, reclaimable: ResourceAmounts, unreclaimable: ResourceAmounts) -> None:
    assert pod.reclaimable == reclaimable
    assert pod.unreclaimable == unreclaimable


@pytest.mark.parametrize(
    ("allocatable", "pods", "expected"),
    [
        (ResourceAmounts(10_000, 100), [], NOTHING),
        (ResourceAmounts(10_000, 100), [OLD, OLD], ResourceAmounts(6_000, 0)),
        (ResourceAmounts(5_000, 100), [OLD, OLD], ResourceAmounts(3_000, 0)),
        (ResourceAmounts(1_000, 10), [OLD, OLD], NOTHING),
        (ResourceAmounts(10_000, 100), [OLD, replace(OLD, peak=None)], ResourceAmounts(3_000, 0)),
    ],
)
def test_by_pods(allocatable: ResourceAmounts, pods: list[PredictedPod], expected: ResourceAmounts) -> None:
    assert reclaimable_by_pods(allocatable, pods) == expected


@pytest.mark.parametrize(
    ("allocatable", "requested", "expected"),
    [
        # The peak is 1.1 * (1 + 4) CPUs and 1.1 * (10 + 40) bytes.
        (ResourceAmounts(20_000, 200), ResourceAmounts(10_000, 100), ResourceAmounts(4_500, 45)),
        (ResourceAmounts(8_000, 200), ResourceAmounts(10_000, 100), ResourceAmounts(2_500, 45)),
        (ResourceAmounts(20_000, 200), ResourceAmounts(5_000, 100), ResourceAmounts(0, 45)),
        (ResourceAmounts(1_000, 10), ResourceAmounts(10_000, 100), NOTHING),
    ],
)
def test_by_class(
    allocatable: ResourceAmounts, requested: ResourceAmounts, expected: ResourceAmounts
) -> None:
    found = reclaimable_by_class(
        allocatable, requested, ResourceAmounts(1_000, 10), ResourceAmounts(4_000, 40)
    )
    assert found == pytest.approx(expected)


def use_of(*uids: str) -> NodeUse:
    pods = tuple(
        PodUse(
            uid=uid,
            priority_class=PriorityClass.PROD,
            qos=QoSClass.LS,
            request=ResourceAmounts(1_000, GIB),
            usage=ResourceAmounts(500, GIB / 2),
        )
        for uid in uids
    )
    return NodeUse(
        capacity=ResourceAmounts(8_000, 8 * GIB),
        allocatable=ResourceAmounts(8_000, 8 * GIB),
        reserved=NOTHING,
        usage=ResourceAmounts(2_000, 2 * GIB),
        pods=pods,
    )


def test_the_model_of_a_pod_that_went_is_dropped_after_a_day() -> None:
    models = Models()
    models.train(use_of("a", "b"), NOW_S)
    models.train(use_of("b"), NOW_S + EXPIRY_S)
    assert models.percentiles(pod_key("a")) is not None
    models.train(use_of("b"), NOW_S + EXPIRY_S + 1)
    assert models.percentiles(pod_key("a")) is None
    assert models.percentiles(pod_key("b")) is not None


def test_a_clock_that_was_ahead_leaves_no_samples_that_never_fade() -> None:
    """As of a node that boots with a wrong clock: what is learnt then is as old as it was."""
    models, years = Models(), 50 * 365 * EXPIRY_S
    idle = replace(use_of("a"), usage=ResourceAmounts(100, GIB))
    models.train(use_of("gone"), NOW_S + years)
    models.train(idle, NOW_S + years + 60)
    for minute in range(5 * 24 * 60):
        models.train(replace(use_of("a"), usage=ResourceAmounts(7_000, GIB)), NOW_S + 60 * minute)
    found = models.percentiles(NODE)
    assert found is not None
    assert found.cpu_millicores == pytest.approx(7_000, rel=0.1)
    assert models.percentiles(pod_key("gone")) is None


def test_saved_models_predict_the_same() -> None:
    models = Models()
    for minute in range(100):
        models.train(use_of("a"), NOW_S + 60 * minute)
    now_s = NOW_S + 6_000
    restored = Models.restored(models.saved(), now_s)
    assert {key: restored.percentiles(key) for key in restored.by_key} == {
        key: models.percentiles(key) for key in models.by_key
    }
    assert restored.saved() == models.saved()
    assert Models.restored(models.saved(), now_s + 2 * EXPIRY_S).by_key == {}
    # Saved by a clock that was ahead: models do not live on for ever.
    assert Models.restored(models.saved(), 60.0).by_key[SYSTEM].updated_s == 60


def spoiled(**changes: object) -> object:
    models = Models()
    models.train(use_of("a"), NOW_S)
    saved = models.saved()
    saved["models"][SYSTEM]["cpu"].update(changes)
    return saved


@pytest.mark.parametrize(
    "saved",
    [
        [],
        None,
        {"format": 2, "models": {}},
        {"format": 1},
        {"format": 1, "models": []},
        {"format": 1, "models": {"a": 1}},
        {"format": 1, "models": {"a": {"updated_s": 1, "cpu": {}, "memory": {}}}},
        spoiled(reference_s="x"),
        spoiled(reference_s=math.inf),
        spoiled(weights={"-1": 1}),
        spoiled(weights={"9999": 1}),
        spoiled(weights={"1": -1}),
        spoiled(weights={"1": math.nan}),
        spoiled(weights={"1": 10**400}),
        spoiled(weights=[1]),
    ],
)
def test_other_values_are_refused(saved: object) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Models.restored(saved, NOW_S)
