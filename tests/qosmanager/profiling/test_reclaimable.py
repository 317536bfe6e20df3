"""Batch and mid resources: each formula as a table."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from runtimeproxy.qos import PriorityClass, QoSClass
from runtimeproxy.qosmanager.profiling.reclaimable import (
    NOTHING,
    THIRD_PARTY_ALLOCATIONS,
    NodeUse,
    PodUse,
    ResourceAmounts,
    batch_resources,
    high_priority_max,
    high_priority_requested,
    high_priority_used,
    is_degraded,
    is_to_publish,
    mid_resources,
    published_batch,
    third_party_batch,
)
from runtimeproxy.slo.schema import CalculatePolicy, Colocation, MidReclaimMode


def pod(
    request: ResourceAmounts,
    usage: ResourceAmounts | None,
    priority_class: PriorityClass = PriorityClass.PROD,
    qos: QoSClass = QoSClass.LS,
) -> PodUse:
    return PodUse(uid="", priority_class=priority_class, qos=qos, request=request, usage=usage)


PODS = (
    pod(ResourceAmounts(4_000, 40), ResourceAmounts(1_000, 50)),
    pod(ResourceAmounts(2_000, 20), None),
    pod(ResourceAmounts(8_000, 80), ResourceAmounts(3_000, 30), qos=QoSClass.LSE),
    pod(ResourceAmounts(1_000, 10), ResourceAmounts(500, 5), PriorityClass.MID),
    pod(ResourceAmounts(1_000, 10), ResourceAmounts(500, 5), PriorityClass.NONE, QoSClass.NONE),
    pod(ResourceAmounts(9_000, 90), ResourceAmounts(9_000, 90), PriorityClass.BATCH, QoSClass.BE),
    pod(ResourceAmounts(9_000, 90), ResourceAmounts(9_000, 90), PriorityClass.FREE, QoSClass.BE),
)


def test_pods_of_high_priority() -> None:
    assert high_priority_used(PODS) == ResourceAmounts(
        1_000 + 2_000 + 8_000 + 500 + 500, 50 + 20 + 30 + 5 + 5
    )
    assert high_priority_requested(PODS) == ResourceAmounts(16_000, 160)
    assert high_priority_max(PODS) == ResourceAmounts(16_000, 50 + 20 + 80 + 10 + 10)
    assert high_priority_used(()) == NOTHING


NODE = NodeUse(
    capacity=ResourceAmounts(100_000, 1_000),
    allocatable=ResourceAmounts(98_000, 980),
    reserved=ResourceAmounts(2_000, 20),
    usage=ResourceAmounts(45_000, 450),
    pods=(
        pod(ResourceAmounts(30_000, 300), ResourceAmounts(20_000, 250)),
        pod(ResourceAmounts(9_000, 90), ResourceAmounts(10_000, 100), PriorityClass.BATCH, QoSClass.BE),
    ),
    applications=ResourceAmounts(5_000, 50),
    high_priority_applications=ResourceAmounts(3_000, 30),
)
"""System: 45 - 30 - 5 = 10 CPUs, 450 - 350 - 50 = 50 bytes; with applications of high priority 13 and 80."""
USAGE, REQUEST = CalculatePolicy.USAGE, CalculatePolicy.REQUEST
MAX = CalculatePolicy.MAX_USAGE_REQUEST


def test_system() -> None:
    assert NODE.system_usage == ResourceAmounts(10_000, 50)
    assert NODE.system_used == ResourceAmounts(13_000, 80)
    assert replace(NODE, reserved=ResourceAmounts(20_000, 0)).system_used == ResourceAmounts(20_000, 80)
    assert replace(NODE, usage=NOTHING).system_usage == NOTHING


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        # 60 % and 65 % of capacity, less system 13 and 80, less pods 20 and 250.
        (Colocation(), ResourceAmounts(60_000 - 13_000 - 20_000, 650 - 80 - 250)),
        (Colocation(memory_calculate_policy=REQUEST), ResourceAmounts(27_000, 650 - 20 - 300)),
        (Colocation(cpu_calculate_policy=REQUEST), ResourceAmounts(27_000, 320)),
        (
            Colocation(cpu_calculate_policy=MAX, memory_calculate_policy=MAX),
            ResourceAmounts(60_000 - 13_000 - 30_000, 650 - 80 - 300),
        ),
        (
            Colocation(batch_cpu_threshold_percent=20, batch_memory_threshold_percent=99),
            ResourceAmounts(20_000, 320),
        ),
        (Colocation(batch_cpu_threshold_percent=0), ResourceAmounts(0, 320)),
        (Colocation(cpu_reclaim_threshold_percent=30, memory_reclaim_threshold_percent=30), NOTHING),
        (
            Colocation(cpu_reclaim_threshold_percent=100, memory_reclaim_threshold_percent=100),
            ResourceAmounts(100_000 - 33_000, 1_000 - 330),
        ),
    ],
)
def test_batch(strategy: Colocation, expected: ResourceAmounts) -> None:
    assert batch_resources(NODE, strategy) == expected


RECLAIMABLE = ResourceAmounts(15_000, 150)


@pytest.mark.parametrize(
    ("strategy", "reclaimable", "expected"),
    [
        (Colocation(), RECLAIMABLE, RECLAIMABLE),
        # At most what the node does not use: 55 and 550.
        (Colocation(), ResourceAmounts(90_000, 900), ResourceAmounts(55_000, 550)),
        # A tenth of what prod pods have not requested: 68 and 680.
        (Colocation(mid_unallocated_percent=10), RECLAIMABLE, ResourceAmounts(21_800, 218)),
        (
            Colocation(mid_cpu_threshold_percent=10, mid_memory_threshold_percent=12),
            RECLAIMABLE,
            ResourceAmounts(10_000, 120),
        ),
        (Colocation(), NOTHING, NOTHING),
        (
            Colocation(
                mid_reclaim_mode=MidReclaimMode.STATIC,
                mid_static_cpu_reserved_percent=7,
                mid_static_memory_reserved_percent=30,
                mid_memory_threshold_percent=20,
            ),
            RECLAIMABLE,
            ResourceAmounts(7_000, 200),
        ),
    ],
)
def test_mid(strategy: Colocation, reclaimable: ResourceAmounts, expected: ResourceAmounts) -> None:
    assert mid_resources(NODE, reclaimable, strategy) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("batch", "ratio", "allocated", "expected"),
    [
        (ResourceAmounts(1_000.9, 99.9), None, NOTHING, ResourceAmounts(1_000, 99)),
        (ResourceAmounts(1_000, 100), 1.2, NOTHING, ResourceAmounts(1_200, 100)),
        (ResourceAmounts(1_000, 100), 0.8, NOTHING, ResourceAmounts(1_000, 100)),
        (ResourceAmounts(1_000, 100), 1.5, ResourceAmounts(300, 20), ResourceAmounts(1_200, 80)),
        (ResourceAmounts(1_000, 100), None, ResourceAmounts(3_000, 20), ResourceAmounts(0, 80)),
    ],
)
def test_published(
    batch: ResourceAmounts, ratio: float | None, allocated: ResourceAmounts, expected: ResourceAmounts
) -> None:
    assert published_batch(batch, ratio, allocated) == expected


def allocations_of(*each: Mapping[str, object]) -> dict[str, str]:
    return {THIRD_PARTY_ALLOCATIONS: json.dumps({"allocations": each})}


YARN: dict[str, object] = {
    "name": "yarn",
    "priority": "koord-batch",
    "resources": {"kubernetes.io/batch-cpu": "2k", "kubernetes.io/batch-memory": "1Gi"},
}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, NOTHING),
        ({THIRD_PARTY_ALLOCATIONS: ""}, NOTHING),
        (allocations_of(), NOTHING),
        (allocations_of(YARN), ResourceAmounts(2_000, 1 << 30)),
        (allocations_of(YARN, YARN | {"name": "b"}), ResourceAmounts(4_000, 2 << 30)),
        (allocations_of(YARN | {"priority": "koord-mid"}), NOTHING),
        (allocations_of(YARN | {"resources": {"kubernetes.io/batch-cpu": 500}}), ResourceAmounts(500, 0)),
        (allocations_of(YARN | {"resources": None}), NOTHING),
    ],
)
def test_allocations_of_other_schedulers(annotations: dict[str, str], expected: ResourceAmounts) -> None:
    assert third_party_batch(annotations) == expected


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"allocations": [1]}', '{"allocations": [{"name": "a"}]}', "[" * 100_000]
)
def test_allocations_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError, match="thirdPartyAllocations of the node"):
        third_party_batch({THIRD_PARTY_ALLOCATIONS: text})


def test_an_amount_that_is_no_quantity_cannot_be_read() -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        third_party_batch(allocations_of(YARN | {"resources": {"kubernetes.io/batch-cpu": "much"}}))


@pytest.mark.parametrize(
    ("before", "age_s", "now", "expected"),
    [
        (None, 0, NOTHING, True),
        (ResourceAmounts(1_000, 100), 10, ResourceAmounts(1_100, 100), False),
        (ResourceAmounts(1_000, 100), 10, ResourceAmounts(1_101, 100), True),
        (ResourceAmounts(1_000, 100), 10, ResourceAmounts(1_000, 89), True),
        (ResourceAmounts(0, 0), 10, ResourceAmounts(1, 0), True),
        (ResourceAmounts(1_000, 100), 299, ResourceAmounts(1_000, 100), False),
        (ResourceAmounts(1_000, 100), 300, ResourceAmounts(1_000, 100), True),
    ],
)
def test_when_to_publish(
    before: ResourceAmounts | None, age_s: float, now: ResourceAmounts, *, expected: bool
) -> None:
    assert is_to_publish(before, age_s, now, Colocation()) is expected


def test_degraded() -> None:
    assert not is_degraded(15 * 60, Colocation())
    assert is_degraded(15 * 60 + 1, Colocation())
