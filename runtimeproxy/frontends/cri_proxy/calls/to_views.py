"""The views of policies, made from requests; those made from records are in `pods.record_views`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING

from runtimeproxy.hooks.views import ContainerView, PodView, Resources
from runtimeproxy.pods.record_views import PodSummary
from runtimeproxy.pods.records import PodRecord
from runtimeproxy.pods.resources import NO_RESOURCES, read_entries, read_resources
from runtimeproxy.qos import kube_qos_class, priority_class, qos_class

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cri_api.runtime.v1 import api_pb2


class LastValues(Mapping[str, bytes]):
    """Environment variables by name, the last value of each; read at the first access.

    A policy that has timed out may read them while the request is being edited: `read` comes before that.
    """

    __slots__ = ("_found", "_lock", "_variables")

    def __init__(self, variables: Sequence[api_pb2.KeyValue]) -> None:
        self._variables: Sequence[api_pb2.KeyValue] = variables
        self._lock = Lock()
        self._found: dict[str, bytes] | None = None

    def read(self) -> None:
        """Makes the copy; from now on the request may change."""
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


def requested_summary(config: api_pb2.PodSandboxConfig, known: PodRecord | None) -> PodSummary:
    """A pod as a request describes it; `known` is the record of the sandbox, if there is one."""
    about = config.metadata
    labels: Mapping[str, str] = config.labels
    annotations: Mapping[str, str] = config.annotations
    if known is not None:
        labels = labels or known.labels
        annotations = annotations or known.annotations
        # Most records have no changes, and the request's own entries are copied three times as fast.
        if known.label_changes and labels is not known.labels:
            labels = _ChangedEntries(labels, known.label_changes)
        if known.annotation_changes and annotations is not known.annotations:
            annotations = _ChangedEntries(annotations, known.annotation_changes)
    return PodSummary(about.namespace, about.name, labels, annotations, qos_class(labels))


def requested_pod(
    config: api_pb2.PodSandboxConfig,
    known: PodRecord | None,
    summary: PodSummary,
    handler: str = "",
    priority: int | None = None,
) -> PodView:
    """A pod as a request describes it, with the changes that policies made when its sandbox was run.

    Annotations of a pod may change while it runs, so the request's count; but the values that a policy set at
    the start hold, and so does the cgroup parent: the sandbox lives there. Labels, annotations, resources and
    overhead are each taken from the record if the request has none.

    Args:
        config: The request's.
        known: The record of the sandbox, if there is one.
        summary: Of `requested_summary`.
        handler: The runtime handler, if there is no record.
        priority: The pod's `spec.priority`, if there is no record; None if it is not known.
    """
    about, linux = config.metadata, config.linux
    parent, overhead, resources = linux.cgroup_parent, NO_RESOURCES, NO_RESOURCES
    if known is not None:
        handler, overhead, resources = known.runtime_handler, known.overhead, known.requested
        parent, priority = known.cgroup_parent or parent, known.priority
    labels = _copied(summary.labels)
    return PodView(
        id=known.id if known is not None else "",
        name=summary.name,
        namespace=summary.namespace,
        uid=about.uid,
        attempt=about.attempt,
        labels=labels,
        annotations=_copied(summary.annotations),
        runtime_handler=handler,
        cgroup_parent=parent,
        overhead=read_resources(linux.overhead) if linux.HasField("overhead") else overhead,
        resources=read_resources(linux.resources) if linux.HasField("resources") else resources,
        qos=summary.qos,
        kube_qos=kube_qos_class(parent),
        priority=priority_class(labels, priority),
    )


def requested_container(config: api_pb2.ContainerConfig, pod: PodView, resources: Resources) -> ContainerView:
    """A container as the request for its creation describes it; `resources` are the request's."""
    return ContainerView(
        name=config.metadata.name,
        attempt=config.metadata.attempt,
        pod=pod,
        labels=_copied(config.labels),
        annotations=_copied(config.annotations),
        env=LastValues(config.envs),
        requested=resources,
        current=resources,
    )


class _ChangedEntries(Mapping[str, str]):
    """Entries of a request with some set and some (None) removed; nothing is copied."""

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


def _copied(entries: Mapping[str, str]) -> Mapping[str, str]:
    """Entries for a view; those of a record never change and need no copy."""
    if type(entries) not in (dict, MappingProxyType):
        entries = read_entries(entries)
    return entries if type(entries) is MappingProxyType else MappingProxyType(entries)
