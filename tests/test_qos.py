"""QoS and priority classes. Cases Vnnn are those of Koordinator's apis/extension (CONTRIBUTING.md)."""

from __future__ import annotations

import pytest

from runtimeproxy.qos import (
    DEFAULT_PRIORITIES,
    PRIORITY_BANDS,
    PRIORITY_CLASS_LABEL,
    QOS_CLASS_LABEL,
    KubeQoSClass,
    PriorityClass,
    QoSClass,
    kube_qos_class,
    priority_class,
    priority_class_with_default,
    qos_class,
    qos_class_with_default,
)


@pytest.mark.parametrize(
    ("label", "qos"),
    [
        *((qos.value, qos) for qos in QoSClass),
        ("be", QoSClass.NONE),
        ("LSX", QoSClass.NONE),
        (None, QoSClass.NONE),
    ],
)
def test_raw_qos_class_is_the_label(label: str | None, qos: QoSClass) -> None:
    assert qos_class({} if label is None else {QOS_CLASS_LABEL: label}) is qos


@pytest.mark.parametrize(
    ("label", "kube_qos", "qos"),
    [
        ("BE", KubeQoSClass.GUARANTEED, QoSClass.BE),
        ("", KubeQoSClass.GUARANTEED, QoSClass.LSR),
        ("", KubeQoSClass.BURSTABLE, QoSClass.LS),
        ("", KubeQoSClass.BEST_EFFORT, QoSClass.BE),
        ("unknown", KubeQoSClass.BEST_EFFORT, QoSClass.BE),
    ],
)
def test_qos_class_with_default(label: str, kube_qos: KubeQoSClass, qos: QoSClass) -> None:
    assert qos_class_with_default({QOS_CLASS_LABEL: label}, kube_qos) is qos


def test_the_default_of_guaranteed_pods_can_be_chosen() -> None:
    assert qos_class_with_default({}, KubeQoSClass.GUARANTEED, guaranteed=QoSClass.LSE) is QoSClass.LSE


@pytest.mark.parametrize(
    ("cgroup_parent", "kube_qos"),
    [
        ("/kubepods/besteffort/pod1", KubeQoSClass.BEST_EFFORT),
        ("kubepods-besteffort-pod1.slice", KubeQoSClass.BEST_EFFORT),
        ("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice", KubeQoSClass.BURSTABLE),
        ("/kubepods/pod1", KubeQoSClass.GUARANTEED),
        ("", KubeQoSClass.GUARANTEED),
    ],
)
def test_kube_qos_class_of_a_cgroup_parent(cgroup_parent: str, kube_qos: KubeQoSClass) -> None:
    assert kube_qos_class(cgroup_parent) is kube_qos


@pytest.mark.parametrize(
    ("label", "priority", "expected"),
    [
        pytest.param("koord-prod", 5500, PriorityClass.PROD, id="label-wins"),
        pytest.param("other", 5500, PriorityClass.NONE, id="unknown-label-wins-too"),
        pytest.param(None, 9000, PriorityClass.PROD, id="prod-low-end"),
        pytest.param(None, 9999, PriorityClass.PROD, id="prod-high-end"),
        pytest.param(None, 7500, PriorityClass.MID, id="mid"),
        pytest.param(None, 5000, PriorityClass.BATCH, id="batch"),
        pytest.param(None, 3999, PriorityClass.FREE, id="free"),
        pytest.param(None, 10_000, PriorityClass.NONE, id="above-all-bands"),
        pytest.param(None, 8500, PriorityClass.NONE, id="between-bands"),
        pytest.param(None, None, PriorityClass.NONE, id="nothing"),
    ],
)
def test_raw_priority_class(label: str | None, priority: int | None, expected: PriorityClass) -> None:
    assert priority_class({} if label is None else {PRIORITY_CLASS_LABEL: label}, priority) is expected


def test_unknown_qos_label_with_batch_priority_is_batch_without_qos() -> None:
    """V235."""
    labels = {QOS_CLASS_LABEL: "unknown"}
    assert qos_class(labels) is QoSClass.NONE
    assert priority_class_with_default(labels, 5500) is PriorityClass.BATCH


@pytest.mark.parametrize(
    ("qos", "expected"),
    [
        pytest.param("LSR", PriorityClass.PROD, id="V236"),
        ("LSE", PriorityClass.PROD),
        ("LS", PriorityClass.PROD),
        ("SYSTEM", PriorityClass.PROD),
        ("BE", PriorityClass.BATCH),
        ("", PriorityClass.NONE),
    ],
)
def test_priority_class_falls_back_on_the_qos_class(qos: str, expected: PriorityClass) -> None:
    assert priority_class_with_default({QOS_CLASS_LABEL: qos}) is expected


@pytest.mark.parametrize(
    ("labels", "priority", "kube_qos", "expected"),
    [
        ({}, None, KubeQoSClass.BEST_EFFORT, PriorityClass.BATCH),
        ({}, 0, KubeQoSClass.BEST_EFFORT, PriorityClass.BATCH),
        ({}, None, KubeQoSClass.BURSTABLE, PriorityClass.PROD),
        ({}, 1_000_000, KubeQoSClass.GUARANTEED, PriorityClass.PROD),
        ({}, 7_500, KubeQoSClass.BEST_EFFORT, PriorityClass.MID),
        ({QOS_CLASS_LABEL: "LS"}, None, KubeQoSClass.BEST_EFFORT, PriorityClass.PROD),
        ({QOS_CLASS_LABEL: "other"}, None, KubeQoSClass.BEST_EFFORT, PriorityClass.BATCH),
        ({PRIORITY_CLASS_LABEL: "other"}, 7_500, KubeQoSClass.BEST_EFFORT, PriorityClass.BATCH),
    ],
)
def test_priority_class_of_a_pod_without_label_falls_back_on_its_kube_qos_class(
    labels: dict[str, str], priority: int | None, kube_qos: KubeQoSClass, expected: PriorityClass
) -> None:
    assert priority_class_with_default(labels, priority, kube_qos) is expected


@pytest.mark.parametrize("name", PRIORITY_BANDS)
def test_each_default_priority_lies_in_its_band(name: PriorityClass) -> None:
    assert DEFAULT_PRIORITIES[name] in PRIORITY_BANDS[name]
