"""Batch resources. Cases Vnnn are those of Koordinator's batch_resource_test.go (CONTRIBUTING.md)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.annotations import (
    EXTENDED_RESOURCE_SPEC,
    AnnotationError,
    BatchContainer,
    batch_specification,
)
from policies.batch_resource import (
    BatchResource,
    BatchResourceOptions,
    BatchValues,
    QuotaRule,
    container_values,
    memory_swap_limit_bytes,
    pod_values,
    quota_rule,
)
from runtimeproxy.hooks import ContainerView, PodChange, PodView, ResourceChange, Resources
from runtimeproxy.node.snapshot import Node
from runtimeproxy.qos import QoSClass
from runtimeproxy.slo.schema import CpuSuppressPolicy, Threshold
from runtimeproxy.slo.strategies import Strategies
from runtimeproxy.units import MAX_CPU_QUOTA_US, MAX_INT64

GI = 1 << 30
DEFAULTS = QuotaRule()
NO_QUOTA = QuotaRule(has_quotas=False)
NODE = Node()
SUPPRESSED = Threshold(enable=True, cpu_suppress_policy=CpuSuppressPolicy.CFS_QUOTA)


def batch(
    cpu: int = 0, memory: int = 0, *, request: int | None = None, memory_request: int | None = None
) -> BatchContainer:
    """A container whose request equals its limit unless another is given."""
    return BatchContainer(
        request_cpu_millicores=cpu if request is None else request,
        limit_cpu_millicores=cpu,
        request_memory_bytes=memory if memory_request is None else memory_request,
        limit_memory_bytes=memory,
    )


def amounts(cpu: object, memory: object) -> dict[str, object]:
    return {"kubernetes.io/batch-cpu": cpu, "kubernetes.io/batch-memory": memory}


def spec(**containers: Any) -> dict[str, str]:
    return {EXTENDED_RESOURCE_SPEC: json.dumps({"containers": containers})}


MAIN = {"requests": amounts("500", "2Gi"), "limits": amounts("500", "2Gi")}


def be_pod(annotations: dict[str, str], qos: QoSClass = QoSClass.BE) -> PodView:
    return PodView(name="p", qos=qos, annotations=annotations)


@pytest.mark.parametrize(
    ("containers", "rule", "expected"),
    [
        pytest.param([batch(500, 2 * GI)], DEFAULTS, (512, 50_000, 2 * GI), id="V019"),
        pytest.param([batch(500, 2 * GI)], NO_QUOTA, (512, -1, 2 * GI), id="V020"),
        pytest.param(
            [batch(500, 2 * GI), batch(1_000, 2 * GI, request=0)], DEFAULTS, (512, 150_000, 4 * GI), id="V022"
        ),
        pytest.param([batch(0, 0, request=500)], DEFAULTS, (512, -1, -1), id="V023"),
        pytest.param([batch(500, GI), batch(0, GI)], DEFAULTS, (512, -1, 2 * GI), id="one-without-cpu-limit"),
        pytest.param(
            [batch(500, GI), batch(500, 0)], DEFAULTS, (1_024, 100_000, -1), id="one-without-memory"
        ),
        pytest.param([batch(0, MAX_INT64), batch(0, GI)], DEFAULTS, (2, -1, MAX_INT64), id="sum-too-large"),
    ],
)
def test_pod_values(
    containers: list[BatchContainer], rule: QuotaRule, expected: tuple[int, int, int]
) -> None:
    shares, quota_us, memory_bytes = expected
    assert pod_values(containers, rule) == BatchValues(
        cpu_shares=shares, cpu_quota_us=quota_us, memory_limit_bytes=memory_bytes
    )


def test_a_pod_without_listed_containers_has_no_values() -> None:
    assert pod_values([], DEFAULTS) is None


@pytest.mark.parametrize(
    ("container", "rule", "expected"),
    [
        pytest.param(batch(500, 2 * GI), DEFAULTS, (512, 50_000, 2 * GI), id="V028"),
        pytest.param(batch(500, 2 * GI), NO_QUOTA, (512, -1, 2 * GI), id="V029"),
        pytest.param(batch(1_000, 2 * GI, request=0), DEFAULTS, (2, 100_000, 2 * GI), id="V031"),
        pytest.param(batch(), DEFAULTS, (2, -1, -1), id="nothing-asked"),
        pytest.param(batch(-5, -5), DEFAULTS, (2, -1, -1), id="negative"),
        pytest.param(
            batch(2_000, GI),
            QuotaRule(ratio=1.5),
            (2_048, 133_334, GI),
            id="ratio",
        ),
        pytest.param(
            batch(2_000, GI),
            QuotaRule(ratio=0.5),
            (2_048, 200_000, GI),
            id="below-1",
        ),
        pytest.param(
            batch(10, GI),
            QuotaRule(ratio=4.0),
            (10, 1_000, GI),
            id="kernel-minimum",
        ),
    ],
)
def test_container_values(container: BatchContainer, rule: QuotaRule, expected: tuple[int, int, int]) -> None:
    shares, quota_us, memory_bytes = expected
    assert container_values(container, rule) == BatchValues(
        cpu_shares=shares, cpu_quota_us=quota_us, memory_limit_bytes=memory_bytes
    )


@given(
    st.lists(st.builds(batch, st.integers(-5, MAX_INT64), st.integers(-5, 2**62)), min_size=1, max_size=5),
    st.floats(0.5, 5.0),
)
def test_values_are_always_what_kernels_take(containers: list[BatchContainer], ratio: float) -> None:
    rule = QuotaRule(ratio=ratio)
    pod = pod_values(containers, rule)
    assert pod is not None
    for values in (pod, *(container_values(each, rule) for each in containers)):
        assert values.cpu_shares is not None
        assert values.cpu_quota_us is not None
        assert values.memory_limit_bytes is not None
        assert 2 <= values.cpu_shares <= 262_144
        assert values.cpu_quota_us == -1 or 1_000 <= values.cpu_quota_us <= MAX_CPU_QUOTA_US
        assert values.memory_limit_bytes == -1 or 0 < values.memory_limit_bytes <= MAX_INT64


def test_a_ratio_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="cpu_normalization_ratio"):
        BatchResourceOptions(cpu_normalization_ratio=float("nan"))


@pytest.mark.parametrize(
    ("requested", "memory_limit_bytes", "swap_bytes"),
    [
        pytest.param(Resources(), GI, None, id="none-requested"),
        pytest.param(Resources(memory_swap_limit_bytes=-1), GI, None, id="unlimited-stays"),
        pytest.param(
            Resources(memory_limit_bytes=GI, memory_swap_limit_bytes=GI), 2 * GI, 2 * GI, id="no-swap"
        ),
        pytest.param(
            Resources(memory_limit_bytes=GI, memory_swap_limit_bytes=3 * GI), GI, 3 * GI, id="keeps-swap"
        ),
        pytest.param(
            Resources(memory_limit_bytes=GI, memory_swap_limit_bytes=GI), -1, -1, id="unlimited-memory"
        ),
    ],
)
def test_swap_goes_with_memory(requested: Resources, memory_limit_bytes: int, swap_bytes: int | None) -> None:
    assert memory_swap_limit_bytes(requested, memory_limit_bytes) == swap_bytes


def test_the_specification_is_read() -> None:
    limits_only = {"Limits": amounts(1000, "2Gi")}
    assert batch_specification(spec(main=MAIN, Side=limits_only)).containers == {
        "main": batch(500, 2 * GI),
        "Side": batch(1_000, 2 * GI, request=0, memory_request=0),
    }


@pytest.mark.parametrize("text", ["{", '{"containers": []}', "[]"])
def test_of_a_malformed_specification_nothing_is_used(text: str) -> None:
    annotations = {EXTENDED_RESOURCE_SPEC: text}
    with pytest.raises(AnnotationError, match="extended-resource-spec"):
        batch_specification(annotations)
    pod = be_pod(annotations)
    for change in (
        BatchResource().pod(pod, NODE),
        BatchResource().container(ContainerView(name="main", pod=pod), NODE),
    ):
        assert change is not None
        assert not change.cgroup
        assert "extended-resource-spec" in change.problems[0]


@pytest.mark.parametrize(
    ("main", "container", "pod"),
    [
        pytest.param(
            {"requests": amounts("500", "2Gi"), "limits": amounts("half", "2Gi")},
            ResourceChange(cpu_shares=512, memory_limit_bytes=2 * GI),
            {"cpu.shares": 1024, "memory.limit_in_bytes": 3 * GI},
            id="cpu-limit",
        ),
        pytest.param(
            {"requests": amounts(True, "2Gi"), "limits": amounts("500", "2Gi")},
            ResourceChange(cpu_quota_us=50_000, memory_limit_bytes=2 * GI),
            {"cpu.cfs_quota_us": 100_000, "memory.limit_in_bytes": 3 * GI},
            id="cpu-request",
        ),
        pytest.param(
            {"requests": amounts("500", "2Gi"), "limits": amounts("500", "lots")},
            ResourceChange(cpu_shares=512, cpu_quota_us=50_000),
            {"cpu.shares": 1024, "cpu.cfs_quota_us": 100_000},
            id="memory-limit",
        ),
        pytest.param([], ResourceChange(), {}, id="the-whole-container"),
    ],
)
def test_an_amount_that_cannot_be_read_costs_what_depends_on_it(
    main: object, container: ResourceChange, pod: dict[str, int]
) -> None:
    side = {"requests": amounts("500", "1Gi"), "limits": amounts("500", "1Gi")}
    view = be_pod(spec(main=main, side=side))
    change = BatchResource().container(ContainerView(name="main", pod=view), NODE)
    assert change is not None
    assert change.resources == container
    assert "extended-resource-spec" in change.problems[0]
    other = BatchResource().container(ContainerView(name="side", pod=view), NODE)
    assert other is not None
    assert other.problems == ()
    found = BatchResource().pod(view, NODE)
    assert found is not None
    assert found.cgroup == pod
    assert found.problems == change.problems


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(be_pod({}), id="V025-no-extended-resources"),
        pytest.param(be_pod(spec(main=MAIN), QoSClass.LS), id="V026-V034-not-be"),
        pytest.param(be_pod(spec(main=MAIN), QoSClass.NONE), id="V034-no-label"),
        pytest.param(be_pod(spec()), id="no-container-listed"),
        pytest.param(be_pod({EXTENDED_RESOURCE_SPEC: "null"}), id="null"),
    ],
)
def test_pods_that_get_nothing(pod: PodView) -> None:
    assert BatchResource().pod(pod, NODE) is None
    assert BatchResource().container(ContainerView(name="main", pod=pod), NODE) is None


def test_a_container_that_the_specification_does_not_name_gets_nothing() -> None:
    """V032."""
    container = ContainerView(name="other", pod=be_pod(spec(main=MAIN)))
    assert BatchResource().container(container, NODE) is None


def test_the_pods_cgroup_is_set() -> None:
    pod = be_pod(spec(main=MAIN))
    values = {"cpu.shares": 512, "cpu.cfs_quota_us": 50_000, "memory.limit_in_bytes": 2 * GI}
    reasons = {
        "cpu.shares": "batch-cpu request 500m = 512",
        "cpu.cfs_quota_us": "batch-cpu limit 500m = 50000",
        "memory.limit_in_bytes": f"batch-memory limit = {2 * GI}",
    }
    reason = "batch resources of a best-effort pod"
    assert BatchResource().pod(pod, NODE) == PodChange(cgroup=values, reason=reason, reasons=reasons)


def test_the_containers_resources_are_set() -> None:
    container = ContainerView(name="main", pod=be_pod(spec(main=MAIN)))
    change = BatchResource().container(container, NODE)
    assert change is not None
    assert change.resources == ResourceChange(cpu_shares=512, cpu_quota_us=50_000, memory_limit_bytes=2 * GI)


@pytest.mark.parametrize(
    ("threshold", "ratio", "options", "expected"),
    [
        pytest.param(Threshold(), None, BatchResourceOptions(), QuotaRule(), id="defaults"),
        pytest.param(SUPPRESSED, None, BatchResourceOptions(), NO_QUOTA, id="V035"),
        pytest.param(Threshold(enable=True), None, BatchResourceOptions(), QuotaRule(), id="by-cpuset"),
        pytest.param(
            Threshold(cpu_suppress_policy=CpuSuppressPolicy.CFS_QUOTA),
            None,
            BatchResourceOptions(),
            QuotaRule(),
            id="not-enabled",
        ),
        pytest.param(Threshold(), 1.5, BatchResourceOptions(), QuotaRule(ratio=1.5), id="ratio-of-the-node"),
        pytest.param(
            SUPPRESSED,
            1.5,
            BatchResourceOptions(cfs_quota_enabled=True, cpu_normalization_ratio=-1.0),
            QuotaRule(),
            id="own-options-first",
        ),
        pytest.param(
            Threshold(), None, BatchResourceOptions(cfs_quota_enabled=False), NO_QUOTA, id="own-option"
        ),
    ],
)
def test_the_rule_comes_from_the_node(
    threshold: Threshold, ratio: float | None, options: BatchResourceOptions, expected: QuotaRule
) -> None:
    assert quota_rule(threshold, ratio, options) == expected


def test_a_suppressed_quota_leaves_quotas_unlimited() -> None:
    """V020, V029, V035, through the policy."""
    pod = be_pod(spec(main=MAIN))
    node = Node(strategies=Strategies(threshold=SUPPRESSED))
    change = BatchResource().pod(pod, node)
    assert change is not None
    assert change.cgroup["cpu.cfs_quota_us"] == -1
    changed = BatchResource().container(ContainerView(name="main", pod=pod), node)
    assert changed is not None
    assert changed.resources is not None
    assert changed.resources.cpu_quota_us == -1


def test_the_nodes_ratio_divides_quotas() -> None:
    change = BatchResource().pod(be_pod(spec(main=MAIN)), Node(normalization_ratio=1.1))
    assert change is not None
    assert change.cgroup["cpu.cfs_quota_us"] == 45_455


# --- sidecars ----------------------------------------------------------------------------------------------

SIDECAR = {"limits": amounts("250", "1Gi")}
NATIVE = Resources(cpu_shares=102, cpu_quota_us=200_000, memory_limit_bytes=GI)
"""What the kubelet asks for the sandbox where a container has 100m, 2 CPUs and 1Gi of native resources."""


def test_a_listed_sidecar_counts_as_every_container() -> None:
    """#2115, #2350: koordlet ignores init containers and sidecars, at both levels."""
    pod = be_pod(spec(main=MAIN, sidecar=SIDECAR))
    change = BatchResource().pod(pod, NODE)
    assert change is not None
    assert change.cgroup == {
        "cpu.shares": 512,
        "cpu.cfs_quota_us": 75_000,
        "memory.limit_in_bytes": 3 * GI,
    }
    changed = BatchResource().container(ContainerView(name="sidecar", pod=pod), NODE)
    assert changed is not None
    assert changed.resources == ResourceChange(cpu_shares=2, cpu_quota_us=25_000, memory_limit_bytes=GI)


def test_the_pod_has_room_for_a_sidecar_with_native_resources() -> None:
    """#2115: koordlet gives the pod the listed 50000 alone, less than the sidecar's own quota of 200000:
    cgroup version 1 then refuses to start the sidecar, and on version 2 it takes the time of the others."""
    pod = PodView(qos=QoSClass.BE, annotations=spec(main=MAIN), resources=NATIVE)
    change = BatchResource().pod(pod, NODE)
    assert change is not None
    assert change.cgroup == {
        "cpu.shares": 614,
        "cpu.cfs_quota_us": 250_000,
        "memory.limit_in_bytes": 3 * GI,
    }


def test_the_pod_is_unlimited_for_a_sidecar_without_limits() -> None:
    """#2115: koordlet bounds both by the listed container's limits."""
    pod = PodView(uid="u", qos=QoSClass.BE, annotations=spec(main=MAIN))
    change = BatchResource().pod(pod, Node(requests={("u", "main"): {}, ("u", "sidecar"): {"cpu": 100}}))
    assert change is not None
    assert change.cgroup == {"cpu.shares": 512, "cpu.cfs_quota_us": -1, "memory.limit_in_bytes": -1}
    alone = BatchResource().pod(pod, Node(requests={("u", "main"): {}, ("v", "sidecar"): {"cpu": 100}}))
    assert alone is not None
    assert alone.cgroup["cpu.cfs_quota_us"] == 50_000


@given(
    st.lists(st.integers(1, 10_000), min_size=1, max_size=4),
    st.integers(0, 2_000_000),
    st.floats(1.0, 5.0),
)
def test_a_pods_quota_is_never_below_its_containers(limits: list[int], native_us: int, ratio: float) -> None:
    rule = QuotaRule(ratio=ratio)
    listed = [batch(each, GI) for each in limits]
    pod = pod_values(listed, rule, Resources(cpu_quota_us=native_us))
    quotas_us = [container_values(each, rule).cpu_quota_us for each in listed]
    assert pod is not None
    assert pod.cpu_quota_us is not None
    assert all(each is not None and each <= pod.cpu_quota_us for each in (*quotas_us, native_us))
