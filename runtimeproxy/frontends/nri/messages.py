"""NRI's messages: the records and views that follow from them, and the changes of policies in replies.

An absent value is never written as zero: a reply has the fields that policies set, and no others. What a
message cannot say is left out, and returned by name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal

from cri_api.nri.v1alpha1 import api_pb2
from runtimeproxy.fields.tables import RESOURCE_FIELDS
from runtimeproxy.hooks.changes import (
    Clear,
    ContainerChange,
    DeviceSpec,
    MountSpec,
    ResourceChange,
    TextEntries,
    plain_path,
)
from runtimeproxy.hooks.fields import written_value
from runtimeproxy.hooks.views import Resources
from runtimeproxy.node.cpu_claims import claims_among, claims_in_env
from runtimeproxy.pods.records import MOST_ADDRESSES, ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.resources import NO_RESOURCES, compact, frozen, kept_annotations, read_entries
from runtimeproxy.units import UNLIMITED

OF_THE_RUNTIME: Final = ("io.kubernetes.cri.", "io.kubernetes.cri-o.", "io.cri-containerd.", "io.containerd.")
"""Labels and annotations that the runtime adds to those of the kubelet. Source: containerd
internal/cri/annotations, internal/cri/labels; CRI-O pkg/annotations."""
RESTART_COUNT: Final = "io.kubernetes.container.restartCount"
"""The kubelet's annotation with a container's attempt, which NRI's messages lack. Source: Kubernetes
pkg/kubelet/kuberuntime/labels.go."""
REMOVED: Final = "-"
"""Before the name of an environment variable or annotation that is to be taken away. Source: NRI
pkg/api/adjustment.go, MarkForRemoval."""
_STAYS: Final = "a reply to the runtime cannot take it away"
_MODES: Final = {"r": 0o444, "w": 0o222}

_LIFECYCLES: Final = {
    api_pb2.CONTAINER_CREATED: Lifecycle.CREATED,
    api_pb2.CONTAINER_PAUSED: Lifecycle.RUNNING,
    api_pb2.CONTAINER_RUNNING: Lifecycle.RUNNING,
    api_pb2.CONTAINER_STOPPED: Lifecycle.STOPPED,
}


# --- from messages -----------------------------------------------------------------------------------------


def pod_record(message: api_pb2.PodSandbox, now_s: float, priority: int | None = None) -> PodRecord:
    """A sandbox that the runtime tells of."""
    linux = message.linux
    return PodRecord(
        id=message.id,
        name=message.name,
        namespace=message.namespace,
        uid=message.uid,
        labels=compact(_of_the_kubelet(message.labels)),
        annotations=kept_annotations(_of_the_kubelet(message.annotations)),
        runtime_handler=message.runtime_handler,
        cgroup_parent=linux.cgroup_parent,
        # Without any it may be in the node's network: the runtime is asked.
        addresses=tuple(message.ips[:MOST_ADDRESSES]) or None,
        overhead=read_resources(linux.pod_overhead),
        requested=read_resources(linux.pod_resources),
        booked=read_resources(linux.pod_resources),
        priority=priority,
        created_s=now_s,
    )


def container_record(
    message: api_pb2.Container, now_s: float, known_claims: Collection[str] = ()
) -> ContainerRecord:
    """A container with the values of its specification: in force, or asked for if it is not made yet.

    `known_claims`: the DRA claims on CPUs of this node, as in `Node.claimed_cpus`.
    """
    resources = specified_resources(message)
    attempt = message.annotations.get(RESTART_COUNT, "")
    return ContainerRecord(
        id=message.id,
        pod_id=message.pod_sandbox_id,
        name=message.name,
        attempt=int(attempt) if attempt.isascii() and attempt.isdigit() and len(attempt) < 10 else 0,
        labels=compact(_of_the_kubelet(message.labels)),
        annotations=kept_annotations(_of_the_kubelet(message.annotations)),
        cpu_claims=_claims(message, known_claims),
        requested=resources,
        booked=resources,
        state=_LIFECYCLES.get(message.state, Lifecycle.CREATED),
        created_s=message.created_at / 1e9 if message.created_at > 0 else now_s,
    )


def _claims(message: api_pb2.Container, known: Collection[str]) -> tuple[str, ...]:
    # containerd before 2.3 tells no devices, only what they have put into the environment.
    found = claims_among(each.name for each in message.CDI_devices)
    return found or (claims_in_env(read_env(message.env), known) if known else ())


def specified_resources(message: api_pb2.Container) -> Resources:
    """The resources of a container's specification."""
    linux = message.linux
    score = linux.oom_score_adj.value if linux.HasField("oom_score_adj") else None
    return read_resources(linux.resources, score)


def read_resources(message: api_pb2.LinuxResources, oom_score_adj: int | None = None) -> Resources:
    """The values that a message gives.

    A limit of memory and swap that is the memory limit is the runtime's default, and no value.
    """
    if oom_score_adj is None and not message.ByteSize():
        return NO_RESOURCES
    values: dict[str, Any] = {"oom_score_adj": oom_score_adj or None}
    for name, (group, leaf) in _PLACES.items():
        values[name] = _given(getattr(message, group), leaf)
    for name in CLASSES:
        values[name] = _given(message, name)
    if values["memory_swap_limit_bytes"] == values["memory_limit_bytes"]:
        values["memory_swap_limit_bytes"] = None
    return Resources(
        **values,
        hugepage_limits_bytes=tuple((page.page_size, page.limit) for page in message.hugepage_limits),
        unified=frozen(read_entries(message.unified)),
    )


def read_env(entries: Iterable[bytes]) -> Mapping[str, bytes]:
    """The last value of each variable; one whose name is not UTF-8 has no place in it."""
    variables = (entry.partition(b"=") for entry in entries)
    return {name.decode(): value for name, _, value in variables if _is_text(name)}


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _given(message: Any, leaf: str) -> int | str | None:  # noqa: ANN401 - one of NRI's groups
    """A value of a group.

    Zero is none, present or not: runtimes hand on the kubelet's numbers, and the CRI has no presence.
    Source: containerd internal/cri/nri, fromCRILinuxResources.
    """
    value = getattr(message, leaf)
    found: int | str = value if isinstance(value, int | str) else value.value
    return found or None


def _of_the_kubelet(entries: Mapping[str, str]) -> Mapping[str, str]:
    return {key: entries[key] for key in entries if not key.startswith(OF_THE_RUNTIME)}


_PLACES: Final[Mapping[str, tuple[str, str]]] = {
    name: field.oci for name, field in RESOURCE_FIELDS.items() if field.oci
}
"""Group and name in LinuxResources, whose groups are those of the OCI specification."""
CLASSES: Final[tuple[Literal["rdt_class"], Literal["blockio_class"]]] = ("rdt_class", "blockio_class")
"""The resources that are in no group."""


# --- into replies ------------------------------------------------------------------------------------------


class Adjustment:
    """The reply to CreateContainer, as changes are put into it.

    An entry that is there already is taken away first: the runtime refuses that two plugins set one, but not
    that one replaces the other's. It does not tell which plugin an entry is of. Source: NRI
    pkg/adaptation/result.go.

    Args:
        requested: The values of the container's specification.
        has_swap_limit: Whether that has a limit of memory and swap.
        present: The container as the runtime describes it, with what other plugins have set before.

    Attributes:
        message: The reply.
        left_out: The fields that cannot be put into it, with why.
        set_fields: Their names with the values set, for a comparison with the kernel's.
        by_file: The resources that files get in place of the message.
        moved: Those of them that a change has had.
    """

    def __init__(
        self, requested: Resources, has_swap_limit: bool, present: api_pb2.Container | None = None
    ) -> None:
        self.message = api_pb2.ContainerAdjustment()
        self.left_out: dict[str, str] = {}
        self.set_fields: dict[str, int | str] = {}
        self.by_file: Collection[str] = ()
        self.moved: set[str] = set()
        self._requested = requested
        self._has_swap_limit = has_swap_limit
        self._present = present if present is not None else api_pb2.Container()

    @property
    def is_empty(self) -> bool:
        return not self.message.ByteSize()

    def put(self, change: ContainerChange) -> None:
        """Puts a change in; later calls overrule earlier ones."""
        for key, text in change.annotations.items():
            if isinstance(text, Clear) or key in self._present.annotations:
                self.message.annotations[REMOVED + key] = ""
            if not isinstance(text, Clear):
                self.message.annotations[key] = text
        if change.env:
            self._put_env(change.env)
        for mount in change.mounts:
            self._put_mount(mount)
        for device in change.devices:
            self._put_device(device)
        for cdi_device in change.cdi_devices:
            self.message.CDI_devices.add(name=cdi_device)
        if change.resources is not None:
            self.put_resources(change.resources)

    def _put_env(self, variables: TextEntries) -> None:
        there = read_env(self._present.env)
        for name, text in variables.items():
            if isinstance(text, Clear) or name in there:
                self.message.env.add(key=REMOVED + name)
            if not isinstance(text, Clear):
                self.message.env.add(key=name, value=text.encode())

    def _put_mount(self, wanted: MountSpec) -> None:
        """Puts a mount in, in place of others of its path."""
        path = plain_path(wanted.container_path)
        there = [each for each in self._present.mounts if plain_path(each.destination) == path]
        if len(there) == 1 and _is_mount(there[0], wanted):
            # A value that is there already needs no owner among the runtime's plugins.
            return
        for each in there:
            self.message.mounts.add(destination=REMOVED + each.destination)
        self.message.mounts.append(_mount(wanted))

    def put_resources(self, change: ResourceChange) -> None:
        for name in RESOURCE_FIELDS:
            wanted = getattr(change, name)
            if wanted is not None:
                self._put_value(name, wanted)
        for key, text in change.unified.items():
            if not isinstance(text, Clear):
                self.message.linux.resources.unified[key] = text
            elif key in self._requested.unified:
                self.left_out[f"resources.unified[{key}]"] = _STAYS
        if "memory_limit_bytes" in self.set_fields and "memory_swap_limit_bytes" not in self.set_fields:
            self._follow_memory_limit(int(self.set_fields["memory_limit_bytes"]))

    def _put_value(self, name: str, wanted: int | str | Clear) -> None:
        # A value to be taken away becomes the neutral one: a reply cannot say that there is none.
        field, value = RESOURCE_FIELDS[name], written_value(name, wanted, update=True)
        present = getattr(self._requested, name)
        if value == "" or (isinstance(wanted, Clear) and field.neutral is None):
            if present is not None:
                self.left_out[f"resources.{name}"] = _STAYS
            return
        if present is not None and name not in self.set_fields and field.is_same(value, present):
            # A value that is there already needs no owner among the runtime's plugins.
            return
        if name in self.by_file:
            self.moved.add(name)
            return
        if name == "oom_score_adj":
            self.message.linux.oom_score_adj.value = int(value)
        else:
            set_value(self.message.linux.resources, name, value)
        self.set_fields[name] = value

    def _follow_memory_limit(self, limit_bytes: int) -> None:
        """Sets the limit of memory and swap, which runc refuses below that of memory.

        Source: runc libcontainer/cgroups/fs/memory.go, setMemoryAndSwap; containerd, which makes the first
        the second by default.
        """
        asked_bytes = self._requested.memory_swap_limit_bytes
        if asked_bytes is not None:
            if UNLIMITED in (asked_bytes, limit_bytes):
                limit_bytes = UNLIMITED
            else:
                limit_bytes = max(limit_bytes, asked_bytes)
        if self._has_swap_limit:
            set_value(self.message.linux.resources, "memory_swap_limit_bytes", limit_bytes)

    def _put_device(self, device: DeviceSpec) -> None:
        """Puts a device in, in place of others of its path."""
        asked = sum(_MODES.get(each, 0) for each in device.permissions)
        try:
            wanted = _numbered_device(device, asked) if device.numbers else _found_device(device, asked)
        except OSError as error:
            why = f": {error.strerror}" if error.errno else f" {error}"
            self.left_out[f"devices[{device.container_path}]"] = f"{device.host_path}{why}"
            return
        there = [each for each in self._present.linux.devices if each.path == wanted.path]
        if len(there) == 1 and _is_device(there[0], wanted):
            # What is there already needs no owner among the runtime's plugins.
            return
        if there:
            self.message.linux.devices.add(path=REMOVED + wanted.path)
        self.message.linux.devices.append(wanted)


def set_value(message: api_pb2.LinuxResources, name: str, value: int | str) -> None:
    """Sets one resource by its name in `Resources`."""
    if name in CLASSES:
        getattr(message, name).value = value
        return
    group, leaf = _PLACES[name]
    found = getattr(message, group)
    if isinstance(value, str) or isinstance(getattr(found, leaf), int):
        setattr(found, leaf, value)
    else:
        getattr(found, leaf).value = value


def container_update(
    container_id: str, values: Mapping[str, int | str], entries: Mapping[str, str]
) -> api_pb2.ContainerUpdate:
    """A change of a running container; `entries`: those of `unified`.

    Another plugin that sets the same field costs the change, not the kubelet's update.
    """
    update = api_pb2.ContainerUpdate(container_id=container_id, ignore_failure=True)
    for name, value in values.items():
        if name in _PLACES or name in CLASSES:
            set_value(update.linux.resources, name, value)
    for key, text in entries.items():
        update.linux.resources.unified[key] = text
    return update


def _numbered_device(device: DeviceSpec, mode: int) -> api_pb2.LinuxDevice:
    """Source: Koordinator pkg/koordlet/runtimehooks/hooks/rdma/rdma.go: every user may open it."""
    major, minor = device.numbers or (0, 0)
    made = api_pb2.LinuxDevice(path=device.container_path, type="c", major=major, minor=minor)
    made.file_mode.value = mode
    return made


def _found_device(device: DeviceSpec, mode: int) -> api_pb2.LinuxDevice:
    """A device by its node on the host.

    Source: NRI pkg/api/device.go, AccessString: the permissions follow from the mode.

    Raises:
        OSError: There is none.
    """
    found = os.stat(device.host_path)  # noqa: PTH116
    if not (stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)):
        raise OSError("is no device")
    made = api_pb2.LinuxDevice(
        path=device.container_path,
        type="c" if stat.S_ISCHR(found.st_mode) else "b",
        major=os.major(found.st_rdev),
        minor=os.minor(found.st_rdev),
    )
    made.file_mode.value = stat.S_IMODE(found.st_mode) & mode
    made.uid.value, made.gid.value = found.st_uid, found.st_gid
    return made


def _is_device(found: api_pb2.LinuxDevice, wanted: api_pb2.LinuxDevice) -> bool:
    """Whether a device does for the wanted one."""
    return (found.type, found.major, found.minor) == (wanted.type, wanted.major, wanted.minor)


def _mount(mount: MountSpec) -> api_pb2.Mount:
    access = "ro" if mount.readonly else "rw"
    options = ["rbind", "rprivate", access]
    return api_pb2.Mount(
        destination=mount.container_path, type="bind", source=mount.host_path, options=options
    )


def _is_mount(found: api_pb2.Mount, wanted: MountSpec) -> bool:
    """Whether a mount does for the wanted one: koordlet's plugin mounts HAMi's library writable."""
    is_same_place = found.type in ("bind", "") and found.source == wanted.host_path
    return is_same_place and (wanted.readonly or "ro" not in found.options)
