"""What policies are shown, made from requests and from records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from runtimeproxy.hooks.fields import RESOURCE_NAMES, RESOURCES, UNIFIED, Field
from runtimeproxy.hooks.remote.registrations import SUFFIX
from runtimeproxy.hooks.views import ContainerView, PodView, Resources
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.pods.resources import NO_RESOURCES, overlay, read_entries, read_resources
from runtimeproxy.qos import QoSClass, kube_qos_class, priority_class, qos_class

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cri_api.runtime.v1 import api_pb2


class LastValues(Mapping[str, bytes]):
    """Environment variables by name, the last value of each; read when a policy first looks.

    A policy that was given up may look while the request is changed for others: `read` comes before that.
    """

    __slots__ = ("_found", "_lock", "_variables")

    def __init__(self, variables: Sequence[api_pb2.KeyValue]) -> None:
        """Takes the variables of a request, which must not change before `read`."""
        self._variables: Sequence[api_pb2.KeyValue] = variables
        self._lock = Lock()
        self._found: dict[str, bytes] | None = None

    def read(self) -> None:
        """Makes the copy that is shown from now on; the request may change then."""
        self._values()

    def __getitem__(self, name: str) -> bytes:
        return self._values()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def __repr__(self) -> str:
        return f"<{len(self)} environment variables>"

    def _values(self) -> dict[str, bytes]:
        if self._found is None:
            with self._lock:
                if self._found is None:
                    self._found = {variable.key: variable.value for variable in self._variables}
                    self._variables = ()
        return self._found


class PodSketch(NamedTuple):
    """What decides whether policies are concerned with a pod: most pods are never looked at more closely.

    Labels and annotations may be the request's own, for `get` and `in` only: looking up a name that is not
    there would put it into the request. Policies are shown copies.
    """

    namespace: str
    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    qos: QoSClass


def sketched_pod(config: api_pb2.PodSandboxConfig, known: PodRecord | None) -> PodSketch:
    """The beginning of `requested_pod`."""
    about = config.metadata
    labels: Mapping[str, str] = config.labels
    annotations: Mapping[str, str] = config.annotations
    if known is not None:
        labels = _with_changes(labels, known.label_changes) if labels else known.labels
        annotations = (
            _with_changes(annotations, known.annotation_changes) if annotations else known.annotations
        )
    return PodSketch(about.namespace, about.name, labels, annotations, qos_class(labels))


def recorded_sketch(record: PodRecord) -> PodSketch:
    """The beginning of `recorded_pod`."""
    labels, annotations = _frozen(record.labels), _frozen(record.annotations)
    return PodSketch(record.namespace, record.name, labels, annotations, qos_class(labels))


def requested_pod(
    config: api_pb2.PodSandboxConfig,
    known: PodRecord | None,
    handler: str = "",
    sketch: PodSketch | None = None,
) -> PodView:
    """A pod as a request describes it, with what policies have changed when its sandbox was run.

    Annotations of a pod may change while it runs, so the request's count; but what a policy set at the start
    holds, and so does the cgroup parent: the sandbox lives there. What the request says nothing of is taken
    from the record: labels, annotations, resources and overhead, each for itself.

    Args:
        config: The request's.
        known: The record of the sandbox, if there is one.
        handler: The runtime handler, if there is no record.
        sketch: The pod's, if it is made already.
    """
    about, linux = config.metadata, config.linux
    sketch = sketch or sketched_pod(config, known)
    labels = _copied(sketch.labels)
    parent = (known.cgroup_parent if known is not None else "") or linux.cgroup_parent
    return PodView(
        id=known.id if known is not None else "",
        name=sketch.name,
        namespace=sketch.namespace,
        uid=about.uid,
        attempt=about.attempt,
        labels=_frozen(labels),
        annotations=_frozen(_copied(sketch.annotations)),
        runtime_handler=known.runtime_handler if known is not None else handler,
        cgroup_parent=parent,
        overhead=_asked(linux, "overhead", NO_RESOURCES if known is None else known.overhead),
        resources=_asked(linux, "resources", NO_RESOURCES if known is None else known.requested),
        qos=sketch.qos,
        kube_qos=kube_qos_class(parent),
        priority=priority_class(labels),
    )


def recorded_pod(record: PodRecord, resources: Resources | None = None) -> PodView:
    """A pod as it is remembered; `resources` are those of an update under way."""
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
        resources=record.requested if resources is None else resources,
        qos=qos_class(record.labels),
        kube_qos=kube_qos_class(record.cgroup_parent),
        priority=priority_class(record.labels),
    )


def requested_container(config: api_pb2.ContainerConfig, pod: PodView, resources: Resources) -> ContainerView:
    """A container as the request for its creation describes it; `resources` are the request's."""
    return ContainerView(
        name=config.metadata.name,
        attempt=config.metadata.attempt,
        pod=pod,
        labels=_frozen(read_entries(config.labels)),
        annotations=_frozen(read_entries(config.annotations)),
        env=LastValues(config.envs),
        requested=resources,
        current=resources,
    )


def recorded_container(
    record: ContainerRecord, pod: PodView, updated: Resources | None = None
) -> ContainerView:
    """A container as it is remembered; `updated` is what an update under way asks for."""
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
    )


def _without_servers(record: ContainerRecord) -> Resources:
    """What is in force, but for the fields that hook servers own: there it is what the kubelet asked for.

    Servers run last, so this is what they change. A server that divides a quota, and is shown its own value,
    would divide it again with each update.
    """
    owned = [name for name, owner in record.owners.items() if owner.endswith(SUFFIX)]
    if not owned:
        return record.applied
    asked, applied = record.requested, record.applied
    changed: dict[str, Any] = {
        name: getattr(asked, name) for name in RESOURCE_NAMES if f"{RESOURCES}.{name}" in owned
    }
    keys = {key for key in {*asked.unified, *applied.unified} if str(Field(UNIFIED, key)) in owned}
    if keys:
        kept = {key: value for key, value in applied.unified.items() if key not in keys}
        kept.update((key, value) for key, value in asked.unified.items() if key in keys)
        changed["unified"] = kept
    return replace(applied, **changed)


class _Changed(Mapping[str, str]):
    """Entries of a request with some set and some (None) taken away; nothing is copied."""

    __slots__ = ("_changes", "_entries")

    def __init__(self, entries: Mapping[str, str], changes: Mapping[str, str | None]) -> None:
        self._entries = entries
        self._changes = changes

    def __getitem__(self, key: str) -> str:
        value = self._changes[key] if key in self._changes else self._entries.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        yield from (key for key in self._entries if key not in self._changes)
        yield from (key for key, value in self._changes.items() if value is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _with_changes(entries: Mapping[str, str], changes: Mapping[str, str | None]) -> Mapping[str, str]:
    # Of most pods there are none, and the request's own entries are copied three times as fast.
    return _Changed(entries, changes) if changes else entries


def _copied(entries: Mapping[str, str]) -> Mapping[str, str]:
    """Entries for a view; those of a record need no copy, for nobody changes them."""
    return entries if type(entries) in (dict, MappingProxyType) else read_entries(entries)


def _asked(
    linux: api_pb2.LinuxPodSandboxConfig, field: Literal["overhead", "resources"], known: Resources
) -> Resources:
    """The resources in a field of a request; those of the record if it has none."""
    return read_resources(getattr(linux, field)) if linux.HasField(field) else known


def _frozen(entries: Mapping[str, str]) -> Mapping[str, str]:
    """A view of entries through which nobody can change a record."""
    return entries if type(entries) is MappingProxyType else MappingProxyType(entries)
