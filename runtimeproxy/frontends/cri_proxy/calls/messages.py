"""Request messages: the views that policies get of them, and the changes of policies in them.

Changes are made in place, field by field, and only where a value really differs.

Nothing is ever rebuilt: order, duplicates and unknown fields of everything else stay as they are, and no
empty message appears where the kubelet sent none. Each `edit_*` returns whether it changed the message.

In a CRI message a scalar that is 0 or empty has no bytes: it stands for "no value given". So:

- "leave alone" touches nothing;
- "set" assigns the value; a value of 0 (only `oom_score_adj` has one) is the same as none;
- "clear" in a request that creates something empties the field: the runtime uses its default;
- "clear" in an update cannot be an empty field, for that means "leave alone" there. Fields with a neutral
  value get that value; the others lose the value that this update would have set.

How values are read from messages is in `runtimeproxy.pods.resources`; views made from records are in
`runtimeproxy.pods.record_views`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy.fields.tables import CRI_FIELDS
from runtimeproxy.hooks.changes import (
    Clear,
    ContainerChange,
    DeviceSpec,
    MountSpec,
    PodChange,
    ResourceChange,
    TextEntries,
    plain_path,
)
from runtimeproxy.hooks.fields import entry_edits, scalar_edits
from runtimeproxy.hooks.levels import PodLevels
from runtimeproxy.hooks.views import ContainerView, PodView, Resources
from runtimeproxy.katalyst.levels import class_of
from runtimeproxy.node.cpu_claims import claims_among
from runtimeproxy.pods.record_views import PodSummary
from runtimeproxy.pods.records import PodRecord
from runtimeproxy.pods.resources import NO_RESOURCES, read_entries, read_resources
from runtimeproxy.qos import kube_qos_class, priority_class, qos_class

if TYPE_CHECKING:
    from collections.abc import MutableMapping, MutableSequence

    from cri_api.runtime.v1 import api_pb2

MAX_SINGLE_REMOVALS: Final = 16
"""Up to so many variables are removed one by one; a request may hold one name a hundred thousand times."""


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
        # From now on the request may change.
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


def requested_summary(
    config: api_pb2.PodSandboxConfig, known: PodRecord | None, levels: PodLevels | None = None
) -> PodSummary:
    """A pod as a request describes it; `known` is the record of the sandbox, if there is one.

    `levels`: those of `PodStore`; a pod with a record has the level of that.
    """
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
    summary = PodSummary(about.namespace, about.name, labels, annotations, qos_class(labels))
    if levels is not None:
        katalyst = levels.of(summary) if known is None else known.katalyst
        if katalyst is not None:
            return summary._replace(qos=class_of(labels, katalyst), katalyst=katalyst)
    return summary


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

    `summary`: of `requested_summary`. `priority`: the pod's `spec.priority`, if there is no record; None if
    it is not known.
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
        katalyst=summary.katalyst,
    )


def requested_container(config: api_pb2.ContainerConfig, pod: PodView, resources: Resources) -> ContainerView:
    devices = config.CDI_devices
    return ContainerView(
        name=config.metadata.name,
        attempt=config.metadata.attempt,
        pod=pod,
        labels=_copied(config.labels),
        annotations=_copied(config.annotations),
        env=LastValues(config.envs),
        cpu_claims=claims_among(each.name for each in devices) if devices else (),
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


# --- changes ---------------------------------------------------------------------------------------------


def edit_pod(config: api_pb2.PodSandboxConfig, change: PodChange) -> bool:
    changed = edit_entries(config.labels, change.labels)
    changed |= edit_entries(config.annotations, change.annotations)
    changed |= edit_cgroup_parent(config, change.cgroup_parent)
    if change.resources is not None:
        sent = read_resources(config.linux.resources)
        changed |= edit_resources(config.linux.resources, change.resources, sent)
    return changed


def edit_cgroup_parent(config: api_pb2.PodSandboxConfig, parent: str | None) -> bool:
    """Names another cgroup parent; None leaves it alone."""
    if not parent or config.linux.cgroup_parent == parent:
        return False
    config.linux.cgroup_parent = parent
    return True


def edit_container(config: api_pb2.ContainerConfig, change: ContainerChange, sent: Resources) -> bool:
    """Changes the configuration of a container to be created; `sent` are its resources as they came."""
    changed = False
    if change.mounts:
        changed |= _edit_mounts(config.mounts, change.mounts)
    if change.devices:
        changed |= _edit_devices(config.devices, change.devices)
    if change.annotations:
        changed |= edit_entries(config.annotations, change.annotations)
    if change.env:
        changed |= _edit_env(config.envs, change.env)
    if change.cdi_devices:
        changed |= _add_cdi_devices(config.CDI_devices, change.cdi_devices)
    if change.resources is not None:
        changed |= edit_resources(config.linux.resources, change.resources, sent)
    return changed


def _edit_mounts(mounts: MutableSequence[api_pb2.Mount], wanted: Iterable[MountSpec]) -> bool:
    """Adds mounts behind the others, in place of those of their paths: runtimes differ in which is on top."""
    places: dict[str, list[int]] = {plain_path(each.container_path): [] for each in wanted}
    for place, each in enumerate(mounts):
        found = places.get(plain_path(each.container_path))
        if found is not None:
            found.append(place)
    missing = [
        each for each in wanted if not _has_mount(mounts, places[plain_path(each.container_path)], each)
    ]
    _remove(mounts, [place for each in missing for place in places[plain_path(each.container_path)]])
    for new in missing:
        mounts.add(  # type: ignore[attr-defined]
            container_path=new.container_path, host_path=new.host_path, readonly=new.readonly
        )
    return bool(missing)


def _has_mount(mounts: Sequence[api_pb2.Mount], places: Sequence[int], wanted: MountSpec) -> bool:
    if len(places) != 1:
        return False
    found = mounts[places[0]]
    return (found.host_path, found.readonly) == (wanted.host_path, wanted.readonly)


def _edit_devices(devices: MutableSequence[api_pb2.Device], wanted: Iterable[DeviceSpec]) -> bool:
    """Adds devices behind the others, in place of those of their paths: a runtime would make both."""
    changed = False
    for new in wanted:
        places = [place for place, each in enumerate(devices) if each.container_path == new.container_path]
        if len(places) == 1 and _is_device(devices[places[0]], new):
            continue
        _remove(devices, places)
        devices.add(  # type: ignore[attr-defined]
            container_path=new.container_path, host_path=new.host_path, permissions=new.permissions
        )
        changed = True
    return changed


def _is_device(found: api_pb2.Device, wanted: DeviceSpec) -> bool:
    return (found.host_path, found.permissions) == (wanted.host_path, wanted.permissions)


def _add_cdi_devices(devices: MutableSequence[api_pb2.CDIDevice], names: Sequence[str]) -> bool:
    present = {device.name for device in devices}
    missing = [name for name in names if name not in present]
    for name in missing:
        devices.add(name=name)  # type: ignore[attr-defined]
    return bool(missing)


def edit_resources(
    message: api_pb2.LinuxContainerResources,
    change: ResourceChange,
    sent: Resources,
    in_force: Resources | None = None,
    *,
    update: bool = False,
) -> bool:
    """Changes resources; an absent message appears only if a value is set.

    `sent`: what the message gives now. `in_force`: what the runtime has; such a value is not sent again
    unless the kubelet sends the field. None if it is not known: every wanted value is sent. `update`: whether
    the message updates something that exists.
    """
    edits = scalar_edits(change, in_force, sent, update=update)
    scalars = {CRI_FIELDS[name].cri: value for name, value in edits.items() if name in CRI_FIELDS}
    for name, value in scalars.items():
        # Such as `cpu_quota`: `fields/declared.py`.
        setattr(message, name, value)
    if not change.unified:
        return bool(scalars)
    entries = entry_edits(change.unified, sent.unified, in_force.unified if in_force is not None else None)
    if entries:
        _assign(message.unified, entries)
    return bool(scalars or entries)


def edit_entries(entries: MutableMapping[str, str], changes: TextEntries) -> bool:
    edits = entry_edits(changes, entries) if changes else {}
    _assign(entries, edits)
    return bool(edits)


def _assign(entries: MutableMapping[str, str], edits: Mapping[str, str | None]) -> None:
    for key, value in edits.items():
        if value is not None:
            entries[key] = value
        elif key in entries:
            del entries[key]


def _edit_env(envs: MutableSequence[api_pb2.KeyValue], changes: TextEntries) -> bool:
    places: dict[str, list[int]] = {name: [] for name in changes}
    for index, variable in enumerate(envs):
        found = places.get(variable.key)
        if found is not None:
            found.append(index)
    changed = False
    gone: list[int] = []
    for name, value in changes.items():
        if isinstance(value, Clear):
            gone += places[name]
        else:
            changed |= _set_variable(envs, places[name], name, value.encode())
    _remove(envs, gone)
    return changed or bool(gone)


def _set_variable(
    envs: MutableSequence[api_pb2.KeyValue], places: Sequence[int], name: str, value: bytes
) -> bool:
    """The last variable of a name is the one that counts. Source: runc, which appends in order."""
    if not places:
        envs.add(key=name, value=value)  # type: ignore[attr-defined]
        return True
    if envs[places[-1]].value == value:
        return False
    envs[places[-1]].value = value
    return True


def _remove(items: MutableSequence[Any], places: Iterable[int]) -> None:
    gone = frozenset(places)
    if len(gone) <= MAX_SINGLE_REMOVALS:
        for place in sorted(gone, reverse=True):
            del items[place]
        return
    # Each removal moves all that follows.
    kept = [item for place, item in enumerate(items) if place not in gone]
    del items[:]
    items.extend(kept)
