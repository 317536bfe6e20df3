"""CPU normalization. Cases Vnnn are those of Koordinator's cpu_normalization_test.go (CONTRIBUTING.md)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.annotations import RESOURCE_STATUS
from policies.cpu_normalization import CpuNormalization, quota_scale, shares_cpus
from runtimeproxy.hooks import ContainerView, PodView, Resources, Scale
from runtimeproxy.hooks.algebra import claims_of, resolve
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.node.snapshot import Input, Node
from runtimeproxy.qos import QoSClass

QUOTA = "cpu.cfs_quota_us"
CPUS = {RESOURCE_STATUS: '{"cpuset": "2-3,34-35"}'}


def node(ratio: float | None = 1.2) -> Node:
    return Node(normalization_ratio=ratio)


def resolved(base: int, scale: Scale | None) -> object:
    """What the algebra makes of the quota that the kubelet asks for."""
    return resolve(
        QUOTA, base, () if scale is None else claims_of(Claimant("cpu-normalization"), scale)
    ).value


@pytest.mark.parametrize(
    ("quota_us", "ratio", "expected_us"),
    [
        pytest.param(100_000, 1.2, 83_334, id="V037"),
        pytest.param(100_000, 1.0, 100_000, id="V038"),
        pytest.param(100_000, -1.0, 100_000, id="V040"),
        pytest.param(200_000, 1.5, 133_334, id="V046"),
        pytest.param(100_000, 0.5, 100_000, id="never-raised"),
        pytest.param(100_000, None, 100_000, id="no-ratio"),
        pytest.param(100_000, math.inf, 100_000, id="no-number"),
        pytest.param(2_000, 5.0, 1_000, id="kernel-minimum"),
        pytest.param(-1, 1.2, -1, id="unlimited"),
    ],
)
def test_quotas_are_divided_by_the_ratio(quota_us: int, ratio: float | None, expected_us: int) -> None:
    assert resolved(quota_us, quota_scale(ratio)) == expected_us


@pytest.mark.parametrize(
    ("qos", "has_cpuset", "expected"),
    [
        pytest.param(QoSClass.LS, False, True, id="V037"),
        pytest.param(QoSClass.LS, True, True, id="LS-with-cpus"),
        pytest.param(QoSClass.BE, False, False, id="V041"),
        pytest.param(QoSClass.NONE, True, False, id="V043"),
        pytest.param(QoSClass.NONE, False, True, id="V044"),
        pytest.param(QoSClass.LSR, False, False, id="LSR"),
        pytest.param(QoSClass.SYSTEM, False, False, id="SYSTEM"),
    ],
)
def test_pods_that_share_cpus(qos: QoSClass, *, has_cpuset: bool, expected: bool) -> None:
    assert shares_cpus(qos, has_cpuset=has_cpuset) is expected


@given(
    st.lists(st.integers(1_000, 10_000_000), min_size=1, max_size=6),
    st.floats(1.0, 5.0),
    st.integers(0, 1_000_000),
)
def test_a_pods_quota_is_never_below_that_of_a_container(
    quotas_us: list[int], ratio: float, overhead_us: int
) -> None:
    """#2047: in koordlet the reconciler lowered the pod's quota while containers were still created with
    theirs undivided, which cgroup version 1 refuses. Here both levels have the same division at once."""
    scale = quota_scale(ratio)
    pod_us = resolved(sum(quotas_us) + overhead_us, scale)
    containers_us = [resolved(each, scale) for each in quotas_us]
    assert isinstance(pod_us, int)
    assert all(isinstance(each, int) and each <= pod_us for each in containers_us)


def test_pod_and_container_get_the_same_division() -> None:
    """#2306, #2047: koordlet's hook has no effect on the pod at its creation."""
    pod = PodView(qos=QoSClass.LS)
    change = CpuNormalization().pod(pod, node())
    assert change is not None
    assert change.cgroup == {QUOTA: Scale(1.2)}
    container = ContainerView(name="main", pod=pod, requested=Resources(cpu_quota_us=100_000))
    changed = CpuNormalization().container(container, node())
    assert changed is not None
    assert changed.resources is not None
    assert changed.resources.cpu_quota_us == Scale(1.2)


def test_a_division_does_not_fight_with_a_burst() -> None:
    """#2306: in koordlet both own the file: the burst starts from the limit, and their values flap. Here the
    burst is added to the divided quota, and the kubelet's value stays the base of both."""
    from runtimeproxy.hooks import Add

    claims = (
        *claims_of(Claimant("cpu-normalization"), Scale(2.0)),
        *claims_of(Claimant("burst"), Add(20_000, at_most=90_000)),
    )
    assert resolve(QUOTA, 100_000, claims).value == 70_000
    assert resolve(QUOTA, 100_000, tuple(reversed(claims))).value == 70_000


@pytest.mark.parametrize("name", ["main", "init-database", "istio-proxy"])
def test_init_containers_and_sidecars_are_containers(name: str) -> None:
    """#2115, #2350: koordlet looks only at regular containers."""
    view = ContainerView(name=name, pod=PodView(), requested=Resources(cpu_quota_us=50_000))
    assert CpuNormalization().container(view, node()) is not None


@pytest.mark.parametrize("quota_us", [None, -1])
def test_a_container_without_a_quota_is_left_alone(quota_us: int | None) -> None:
    view = ContainerView(pod=PodView(qos=QoSClass.LS), requested=Resources(cpu_quota_us=quota_us))
    assert CpuNormalization().container(view, node()) is None


@pytest.mark.parametrize(
    ("pod", "ratio"),
    [
        pytest.param(PodView(qos=QoSClass.LS), None, id="V040"),
        pytest.param(PodView(qos=QoSClass.LS), 1.0, id="V038"),
        pytest.param(PodView(qos=QoSClass.BE), 1.2, id="V041"),
        pytest.param(PodView(annotations=CPUS), 1.2, id="V043"),
    ],
)
def test_pods_that_get_nothing(pod: PodView, ratio: float | None) -> None:
    container = ContainerView(pod=pod, requested=Resources(cpu_quota_us=100_000))
    assert CpuNormalization().pod(pod, node(ratio)) is None
    assert CpuNormalization().container(container, node(ratio)) is None


def test_an_unreadable_allocation_is_reported() -> None:
    pod = PodView(annotations={RESOURCE_STATUS: "{"})
    change = CpuNormalization().pod(pod, node())
    assert change is not None
    assert not change.cgroup
    assert "resource-status" in change.problems[0]


def test_it_is_off_by_default_and_needs_the_ratio() -> None:
    """Koordinator's gate CPUNormalization is off."""
    assert not CpuNormalization.is_default
    assert Input.NORMALIZATION in CpuNormalization.inputs


def test_an_unreadable_allocation_does_not_matter_for_pods_that_share_cpus_anyway() -> None:
    pod = PodView(qos=QoSClass.LS, annotations={RESOURCE_STATUS: "{"})
    change = CpuNormalization().pod(pod, node())
    assert change is not None
    assert (change.cgroup, change.problems) == ({QUOTA: Scale(1.2)}, ())


def test_an_unreadable_allocation_is_not_reported_for_pods_of_other_classes() -> None:
    pod = PodView(qos=QoSClass.BE, annotations={RESOURCE_STATUS: "{"})
    assert CpuNormalization().pod(pod, node()) is None
