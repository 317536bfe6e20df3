"""The views of policies, made from records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from runtimeproxy.fields.tables import RESOURCE_FIELDS
from runtimeproxy.hooks.claimants import ClaimantKind
from runtimeproxy.hooks.fields import RESOURCES, UNIFIED, Field
from runtimeproxy.hooks.views import ContainerView, PodView, Resources
from runtimeproxy.katalyst.levels import KatalystQos, class_of
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.pods.resources import NO_RESOURCES, overlay
from runtimeproxy.qos import QoSClass, kube_qos_class, priority_class, qos_class


class PodSummary(NamedTuple):
    """The part of a pod that selectors read: for most pods no policy needs a whole view.

    Labels and annotations may be the request's own, for `get` and `in` only: subscription with a missing name
    would put it into the request. Views have copies.
    """

    namespace: str
    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    qos: QoSClass
    katalyst: KatalystQos | None = None


def recorded_summary(record: PodRecord) -> PodSummary:
    labels, annotations = _frozen(record.labels), _frozen(record.annotations)
    qos, katalyst = qos_class(labels), record.katalyst
    if katalyst is not None:
        qos = class_of(labels, katalyst)
    return PodSummary(record.namespace, record.name, labels, annotations, qos, katalyst)


def recorded_class(record: PodRecord) -> QoSClass:
    """The pod's class: the raw label's, or that of its level in Katalyst's terms."""
    return qos_class(record.labels) if record.katalyst is None else class_of(record.labels, record.katalyst)


def recorded_pod(record: PodRecord) -> PodView:
    qos, katalyst = qos_class(record.labels), record.katalyst
    if katalyst is not None:
        qos = class_of(record.labels, katalyst)
    return PodView(
        id=record.id,
        name=record.name,
        namespace=record.namespace,
        uid=record.uid,
        attempt=record.attempt,
        labels=_frozen(record.labels),
        annotations=_frozen(record.annotations),
        runtime_handler=record.runtime_handler,
        cgroup_parent=record.cgroup_parent,
        overhead=record.overhead,
        resources=record.requested,
        qos=qos,
        kube_qos=kube_qos_class(record.cgroup_parent),
        priority=priority_class(record.labels, record.priority),
        katalyst=katalyst,
        is_recovered=record.recovered,
    )


def recorded_container(
    record: ContainerRecord, pod: PodView, updated: Resources | None = None
) -> ContainerView:
    """A container as recorded; `updated` are the resources that an update asks for."""
    newer = NO_RESOURCES if updated is None else updated
    return ContainerView(
        id=record.id,
        name=record.name,
        attempt=record.attempt,
        pod=pod,
        labels=_frozen(record.labels),
        annotations=_frozen(record.annotations),
        requested=overlay(record.requested, newer),
        current=overlay(_without_servers(record), newer),
        updated=updated,
        cpu_claims=record.cpu_claims,
        is_recovered=record.recovered and not is_resize(newer),
    )


def container_in_force(record: ContainerRecord, pod: PodView) -> ContainerView:
    # With the values that the runtime has: hook servers see their own, too.
    return replace(recorded_container(record, pod), current=record.booked)


def is_resize(updated: Resources) -> bool:
    """Whether an update resizes a container: the kubelet then sends all of its values.

    Those of the CPU manager have nothing but CPUs and memory nodes. Source: kubelet 1.27 to 1.33,
    pkg/kubelet/kuberuntime, updateContainerResources; pkg/kubelet/cm/cpumanager.
    """
    return bool(updated.cpu_shares or updated.cpu_quota_us or updated.memory_limit_bytes)


def _without_servers(record: ContainerRecord) -> Resources:
    """The booked resources; of fields that hook servers own, the requested ones.

    Servers run last, so these are the values that they change. A server that divides a quota, and gets its
    own value, would divide it again with each update.
    """
    owned = [
        name
        for name, owners in record.owners.items()
        if any(each.kind is ClaimantKind.SERVER for each in owners)
    ]
    if not owned:
        return record.booked
    asked, booked = record.requested, record.booked
    changed: dict[str, Any] = {
        name: getattr(asked, name) for name in RESOURCE_FIELDS if f"{RESOURCES}.{name}" in owned
    }
    keys = {key for key in {*asked.unified, *booked.unified} if str(Field(UNIFIED, key)) in owned}
    if keys:
        kept = {key: value for key, value in booked.unified.items() if key not in keys}
        kept.update((key, value) for key, value in asked.unified.items() if key in keys)
        changed["unified"] = kept
    return replace(booked, **changed)


def _frozen(entries: Mapping[str, str]) -> Mapping[str, str]:
    return entries if type(entries) is MappingProxyType else MappingProxyType(entries)
