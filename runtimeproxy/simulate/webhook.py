"""Koordinator's mutating webhook: its changes of a new pod that reach the node. Pure.

A ClusterColocationProfile gives pods a QoS class and a priority class; here these are those of the manifest,
and each stands for the other where only one is given. Then CPU and memory of the class become extended
resources, and an annotation carries them to the node. Source: Koordinator pkg/webhook/pod/mutating,
cluster_colocation_profile.go and extended_resource_spec.go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from runtimeproxy.qos import (
    PRIORITY_CLASS_LABEL,
    QOS_CLASS_LABEL,
    PriorityClass,
    QoSClass,
    priority_class,
    priority_class_with_default,
    qos_class,
)
from runtimeproxy.simulate.manifests import (
    ContainerKind,
    ManifestContainer,
    ManifestPod,
    Quantities,
    kube_qos,
)
from runtimeproxy.slo.names import EXTENDED_RESOURCE_SPEC

_BATCH: Final = ("kubernetes.io/batch-cpu", "kubernetes.io/batch-memory")
_NAMES: Final[Mapping[PriorityClass, Mapping[str, str]]] = {
    PriorityClass.BATCH: {"cpu": _BATCH[0], "memory": _BATCH[1]},
    PriorityClass.MID: {"cpu": "kubernetes.io/mid-cpu", "memory": "kubernetes.io/mid-memory"},
}
"""The extended resources in place of the native ones. Source: apis/extension/resource.go, ResourceNameMap."""


def mutated(pod: ManifestPod) -> tuple[ManifestPod, tuple[str, ...]]:
    """Returns the pod as the webhook leaves it, and what it has added, for people."""
    added: list[str] = []
    priority = _priority(pod)
    labels = dict(pod.labels)
    if priority is PriorityClass.BATCH and QOS_CLASS_LABEL not in labels:
        labels[QOS_CLASS_LABEL] = QoSClass.BE.value
        added.append(f"label {QOS_CLASS_LABEL}: {QoSClass.BE}")
    names = _NAMES.get(priority, {})
    containers = tuple(_replaced(each, names) for each in pod.containers)
    if containers != pod.containers:
        added.append(f"{' and '.join(names)} become {' and '.join(names.values())}")
    annotations = dict(pod.annotations)
    specification = _specification(containers)
    if specification and annotations.get(EXTENDED_RESOURCE_SPEC) != specification:
        annotations[EXTENDED_RESOURCE_SPEC] = specification
        added.append(f"annotation {EXTENDED_RESOURCE_SPEC}: {specification}")
    qos = kube_qos(containers) if containers != pod.containers else pod.qos
    changed = replace(
        pod,
        labels=labels,
        annotations=annotations,
        containers=containers,
        overhead=_renamed(pod.overhead, names),
        qos=qos,
    )
    return changed, tuple(added)


def _priority(pod: ManifestPod) -> PriorityClass:
    """By label, priority or the class's name, else by the QoS class `BE`: others keep native resources."""
    named = pod.priority_class
    found = priority_class(pod.labels, pod.priority)
    if found is PriorityClass.NONE and PRIORITY_CLASS_LABEL not in pod.labels and named in set(PriorityClass):
        found = PriorityClass(named)
    if found is PriorityClass.NONE and qos_class(pod.labels) is QoSClass.BE:
        found = priority_class_with_default(pod.labels, pod.priority)
    return found


def _replaced(container: ManifestContainer, names: Mapping[str, str]) -> ManifestContainer:
    requests, limits = _renamed(container.requests, names), _renamed(container.limits, names)
    for name in names.values():
        # Of an extended resource, request and limit are the same where only one is given.
        if name in requests and name not in limits:
            limits = {**limits, name: requests[name]}
    return replace(container, requests=requests, limits=limits)


def _renamed(amounts: Quantities, names: Mapping[str, str]) -> dict[str, int]:
    return {names.get(name, name): amount for name, amount in amounts.items()}


def _specification(containers: tuple[ManifestContainer, ...]) -> str:
    """The annotation; empty without batch resources. Init containers are not in it."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for container in containers:
        if container.kind is not ContainerKind.REGULAR:
            continue
        parts = {
            which: {name: str(amounts[name]) for name in _BATCH if name in amounts}
            for which, amounts in (("requests", container.requests), ("limits", container.limits))
        }
        if any(parts.values()):
            found[container.name] = {which: each for which, each in parts.items() if each}
    return json.dumps({"containers": found}, separators=(",", ":")) if found else ""
