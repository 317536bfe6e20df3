"""Changes applied to request messages: in place, field by field, and only where something really differs.

Nothing is ever rebuilt: order, duplicates and unknown fields of everything else stay as they are, and no
empty message comes to be where the kubelet sent none. Each function returns whether it changed the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from runtimeproxy.calls.field_presence import assign_entries, assign_scalars, entry_edits, scalar_edits
from runtimeproxy.hooks.changes import Clear, ContainerChange, PodChange, ResourceChange, TextEntries
from runtimeproxy.hooks.views import Resources
from runtimeproxy.pods.resources import read_resources

if TYPE_CHECKING:
    from collections.abc import MutableMapping, MutableSequence

    from cri_api.runtime.v1 import api_pb2


MOST_SINGLE_REMOVALS: Final = 16
"""So many variables are removed one by one; a request may hold one name a hundred thousand times."""


def edit_pod(config: api_pb2.PodSandboxConfig, change: PodChange) -> bool:
    """Changes the configuration of a sandbox that is to be created."""
    changed = _edit_entries(config.labels, change.labels)
    changed |= _edit_entries(config.annotations, change.annotations)
    changed |= edit_cgroup_parent(config, change.cgroup_parent)
    if change.resources is not None:
        sent = read_resources(config.linux.resources)
        changed |= _edit_resources(config.linux.resources, change.resources, sent)
    return changed


def edit_cgroup_parent(config: api_pb2.PodSandboxConfig, parent: str | None) -> bool:
    """Names another cgroup parent; None leaves it alone."""
    if not parent or config.linux.cgroup_parent == parent:
        return False
    config.linux.cgroup_parent = parent
    return True


def edit_container(config: api_pb2.ContainerConfig, change: ContainerChange, sent: Resources) -> bool:
    """Changes the configuration of a container to be created; `sent` are its resources as they came."""
    changed = _edit_entries(config.annotations, change.annotations)
    changed |= _edit_env(config.envs, change.env)
    changed |= _add_mounts(config, change)
    changed |= _add_devices(config, change)
    if change.resources is not None:
        changed |= _edit_resources(config.linux.resources, change.resources, sent)
    return changed


def edit_container_update(
    request: api_pb2.UpdateContainerResourcesRequest, change: ContainerChange, in_force: Resources | None
) -> bool:
    """Changes an update of a running container; see `edit_update` for `in_force`."""
    changed = _edit_entries(request.annotations, change.annotations)
    if change.resources is not None:
        changed |= edit_update(request.linux, change.resources, in_force)
    return changed


def edit_update(
    message: api_pb2.LinuxContainerResources, change: ResourceChange, in_force: Resources | None
) -> bool:
    """Changes the resources of an update.

    Args:
        message: The resources that the update sends; absent ones come to be only if a value is set.
        change: What policies want.
        in_force: What the runtime has; such a value is not sent again unless the kubelet sends the field.
            None if it is not known: every wanted value is sent.
    """
    sent = read_resources(message)
    scalars = scalar_edits(change, in_force, sent, update=True)
    entries = entry_edits(change.unified, sent.unified, in_force.unified if in_force is not None else None)
    assign_scalars(message, scalars)
    if entries:
        assign_entries(message.unified, entries)
    return bool(scalars or entries)


def _edit_resources(
    message: api_pb2.LinuxContainerResources, change: ResourceChange, sent: Resources
) -> bool:
    scalars = scalar_edits(change, None, sent, update=False)
    entries = entry_edits(change.unified, sent.unified)
    assign_scalars(message, scalars)
    if entries:
        assign_entries(message.unified, entries)
    return bool(scalars or entries)


def _edit_entries(entries: MutableMapping[str, str], changes: TextEntries) -> bool:
    if not changes:
        return False
    edits = entry_edits(changes, entries)
    assign_entries(entries, edits)
    return bool(edits)


def _edit_env(envs: MutableSequence[api_pb2.KeyValue], changes: TextEntries) -> bool:
    if not changes:
        return False
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


def _remove(items: MutableSequence[api_pb2.KeyValue], places: Sequence[int]) -> None:
    if len(places) <= MOST_SINGLE_REMOVALS:
        for place in sorted(places, reverse=True):
            del items[place]
        return
    # Each removal moves all that follows.
    gone = frozenset(places)
    kept = [item for place, item in enumerate(items) if place not in gone]
    del items[:]
    items.extend(kept)


def _add_mounts(config: api_pb2.ContainerConfig, change: ContainerChange) -> bool:
    for mount in change.mounts:
        config.mounts.add(
            container_path=mount.container_path, host_path=mount.host_path, readonly=mount.readonly
        )
    return bool(change.mounts)


def _add_devices(config: api_pb2.ContainerConfig, change: ContainerChange) -> bool:
    for device in change.devices:
        config.devices.add(
            container_path=device.container_path, host_path=device.host_path, permissions=device.permissions
        )
    return bool(change.devices)
