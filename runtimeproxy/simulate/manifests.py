"""Reads the pods of Kubernetes manifests: a Pod, or the pod template of what makes pods. Pure.

Values that the API server fills in are filled in here, too: the namespace, and requests where there are only
limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from runtimeproxy.cgroups.pace import rest
from runtimeproxy.documents.reading import (
    InputError,
    kind_of,
    list_of,
    mapping_of,
    quantities_of,
    shortened,
    text_of,
    within,
)
from runtimeproxy.qos import KubeQoSClass

_TEMPLATES: Final[Mapping[str, tuple[str, ...]]] = {
    "Pod": (),
    "PodTemplate": ("template",),
    "Deployment": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
"""Where each kind has the pod. Source: Kubernetes API reference, workload resources."""
KINDS: Final = tuple(_TEMPLATES)
"""The kinds that have a pod."""

NODE_CRITICAL: Final = "system-node-critical"
_NODE_CRITICAL_PRIORITY: Final = 2_000_001_000
"""Source: Kubernetes pkg/apis/scheduling/types.go, SystemCriticalPriority + 1000."""
_QOS_RESOURCES: Final = ("cpu", "memory")
"""The resources that decide the QoS class. Source: Kubernetes pkg/apis/core/v1/helper/qos."""

Quantities = Mapping[str, int]
"""By resource: `cpu` in millicores, all else in bytes or numbers."""


class ContainerKind(StrEnum):
    """When the kubelet runs a container."""

    INIT = "init"
    SIDECAR = "sidecar"
    """An init container that is restarted always: it runs beside the others."""
    REGULAR = "container"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestContainer:
    """A container of a manifest."""

    name: str
    kind: ContainerKind = ContainerKind.REGULAR
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """The variables with a literal value."""
    requests: Quantities = field(default_factory=dict)
    """With the limits in place of missing ones."""
    limits: Quantities = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestPod:
    """A pod of a manifest."""

    source: str = ""
    """Kind and name of the object that it is from, such as `Deployment default/web`."""
    namespace: str = "default"
    name: str = ""
    uid: str = ""
    """Empty before the API server has given one."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[ManifestContainer, ...] = ()
    """In the order in which the kubelet creates them: those of initialization first."""
    overhead: Quantities = field(default_factory=dict)
    priority: int | None = None
    """`spec.priority`; None: not given."""
    priority_class: str = ""
    """`spec.priorityClassName`."""
    qos: KubeQoSClass = KubeQoSClass.BEST_EFFORT
    has_host_network: bool = False
    notes: tuple[str, ...] = ()
    """About parts of the manifest that are not simulated."""

    @property
    def is_node_critical(self) -> bool:
        """Whether the kubelet ends it last. Source: Kubernetes pkg/kubelet/types/pod_update.go."""
        if self.priority is not None:
            return self.priority >= _NODE_CRITICAL_PRIORITY
        return self.priority_class == NODE_CRITICAL


def read_pods(documents: Sequence[object]) -> list[ManifestPod]:
    """Reads the pods of all objects, those in lists included.

    Raises:
        InputError: An object cannot be read, or none has a pod.
    """
    pods: list[ManifestPod] = []
    others: list[str] = []
    for place, document in _flattened(documents):
        rest()
        with within(place):
            kind = _kind(document)
            if kind in _TEMPLATES:
                pods.append(_pod_of(kind, mapping_of(document)))
            else:
                others.append(shortened(kind))
    if not pods:
        found = f"found {', '.join(dict.fromkeys(others))}" if others else "it is empty"
        raise InputError(f"has no pod: {found}; give one of {', '.join(KINDS)}")
    return pods


def _flattened(documents: Sequence[object]) -> Iterator[tuple[str, object]]:
    for index, document in enumerate(documents):
        place = f"document {index + 1}" if len(documents) > 1 else ""
        items = document.get("items") if isinstance(document, dict) else None
        if isinstance(document, dict) and str(document.get("kind")).endswith("List"):
            with within(place), within("items"):
                items = list_of(items)
            yield from (
                (f"{place + ': ' if place else ''}items[{number}]", each) for number, each in enumerate(items)
            )
        else:
            yield place, document


def _kind(document: object) -> str:
    if not isinstance(document, dict):
        raise InputError(f"is {kind_of(document)}, not a Kubernetes object")
    kind = document.get("kind")
    if not isinstance(kind, str) or not kind:
        raise InputError("has no kind, so it is not a Kubernetes object")
    return kind


def _pod_of(kind: str, document: Mapping[str, Any]) -> ManifestPod:
    """Reads the pod of an object, which has the name of that object if its template has none."""
    with within("metadata"):
        owner = mapping_of(document.get("metadata"))
        name = _text(owner, "name") or _text(owner, "generateName")
        namespace = _text(owner, "namespace")
    path = _TEMPLATES[kind]
    template: Mapping[str, Any] = document
    for depth, part in enumerate(path):
        with within(".".join(path[: depth + 1])):
            template = mapping_of(template.get(part))
    source = f"{kind} {namespace or 'default'}/{name or '(without a name)'}"
    with within(".".join(path)):
        return _pod(template, name, namespace, source)


def _pod(template: Mapping[str, Any], name: str, namespace: str, source: str) -> ManifestPod:
    with within("metadata"):
        metadata = mapping_of(template.get("metadata"))
        labels, annotations = _texts(metadata, "labels"), _texts(metadata, "annotations")
        own_name, uid = _text(metadata, "name"), _text(metadata, "uid")
        own_namespace = _text(metadata, "namespace")
    with within("status"):
        status_qos = _text(mapping_of(template.get("status")), "qosClass")
    with within("spec"):
        spec = mapping_of(template.get("spec"))
        containers = _containers(spec)
        with within("overhead"):
            overhead = quantities_of(spec.get("overhead"))
        priority = spec.get("priority")
        if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
            raise InputError(f"is {kind_of(priority)}, not a whole number", "priority")
        notes = []
        if spec.get("resources") is not None:
            notes.append("spec.resources: resources of the whole pod are not simulated")
        priority_class = _text(spec, "priorityClassName")
    qos = KubeQoSClass(status_qos) if status_qos in set(KubeQoSClass) else kube_qos(containers)
    return ManifestPod(
        source=source,
        namespace=own_namespace or namespace or "default",
        name=own_name or name or "pod",
        uid=uid,
        labels=labels,
        annotations=annotations,
        containers=containers,
        overhead=overhead,
        priority=priority,
        priority_class=priority_class,
        qos=qos,
        has_host_network=spec.get("hostNetwork") is True,
        notes=tuple(notes),
    )


def _containers(spec: Mapping[str, Any]) -> tuple[ManifestContainer, ...]:
    found: dict[str, ManifestContainer] = {}
    for key in ("initContainers", "containers"):
        with within(key):
            for index, each in enumerate(list_of(spec.get(key))):
                with within(f"[{index}]"):
                    container = _container(mapping_of(each), is_init=key == "initContainers")
                    if container.name in found:
                        raise InputError(f"{shortened(repr(container.name))} is there twice", "name")
                    found[container.name] = container
    return tuple(found.values())


def _container(values: Mapping[str, Any], *, is_init: bool) -> ManifestContainer:
    name = _text(values, "name")
    if not name:
        raise InputError("is missing", "name")
    kind = ContainerKind.REGULAR
    if is_init:
        is_sidecar = values.get("restartPolicy") == "Always"
        kind = ContainerKind.SIDECAR if is_sidecar else ContainerKind.INIT
    with within("resources"):
        resources = mapping_of(values.get("resources"))
        with within("limits"):
            limits = quantities_of(resources.get("limits"))
        with within("requests"):
            requests = quantities_of(resources.get("requests"))
            for resource in requests.keys() & limits.keys():
                if requests[resource] > limits[resource]:
                    raise InputError("is above the limit", shortened(resource))
    return ManifestContainer(
        name=name,
        kind=kind,
        image=_text(values, "image"),
        command=_list_of_texts(values, "command"),
        args=_list_of_texts(values, "args"),
        env=_env(values),
        requests={**limits, **requests},
        limits=limits,
    )


def _env(values: Mapping[str, Any]) -> dict[str, str]:
    env: dict[str, str] = {}
    with within("env"):
        for index, each in enumerate(list_of(values.get("env"))):
            with within(f"[{index}]"):
                variable = mapping_of(each)
                if variable.get("valueFrom") is None:
                    env[_text(variable, "name")] = _text(variable, "value")
    return env


def _list_of_texts(values: Mapping[str, Any], key: str) -> tuple[str, ...]:
    with within(key):
        return tuple(text_of(each) for each in list_of(values.get(key)))


def _text(values: Mapping[str, Any], key: str) -> str:
    with within(key):
        return text_of(values.get(key))


def _texts(values: Mapping[str, Any], key: str) -> dict[str, str]:
    with within(key):
        found: dict[str, str] = {}
        for name, text in mapping_of(values.get(key)).items():
            with within(f"[{shortened(str(name))}]"):
                found[str(name)] = text_of(text)
    return found


def kube_qos(containers: Sequence[ManifestContainer]) -> KubeQoSClass:
    """Returns the QoS class that Kubernetes derives from containers.

    Source: Kubernetes pkg/apis/core/v1/helper/qos.
    """
    amounts = [(_counting(each.requests), _counting(each.limits)) for each in containers]
    if not any(requests or limits for requests, limits in amounts):
        return KubeQoSClass.BEST_EFFORT
    is_guaranteed = all(
        limits.keys() == set(_QOS_RESOURCES) and requests == limits for requests, limits in amounts
    )
    return KubeQoSClass.GUARANTEED if is_guaranteed else KubeQoSClass.BURSTABLE


def _counting(quantities: Quantities) -> dict[str, int]:
    return {name: quantities[name] for name in _QOS_RESOURCES if quantities.get(name)}
