"""The state of the fake runtime as messages of NRI, and what plugins' replies make of them.

Source: github.com/containerd/containerd/v2 v2.4.2, internal/cri/nri/nri_api_linux.go, and
github.com/containerd/nri v0.12.5, pkg/adaptation/result.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import Message

from cri_api.nri.v1alpha1 import api_pb2 as nri
from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.behaviours import CallError
from runtimeproxy.testing.cgroups import CgroupDriver, spec_path
from runtimeproxy.testing.state import FakeContainer, Sandbox

_STATES: Final = {
    api_pb2.CONTAINER_CREATED: nri.CONTAINER_CREATED,
    api_pb2.CONTAINER_RUNNING: nri.CONTAINER_RUNNING,
    api_pb2.CONTAINER_EXITED: nri.CONTAINER_STOPPED,
}

_KEYS: Final = {
    "mounts": "destination",
    "devices": "path",
    "rlimits": "type",
    "namespaces": "type",
    "hugepage_limits": "page_size",
    "CDI_devices": "name",
    "env": "key",
}
"""The entries of these lists have owners one by one: by what."""

_ACCUMULATED: Final = "hooks"
"""Hooks of all plugins are run."""

FIELDS: Final[Mapping[str, nri.Field.ValueType]] = {
    "annotations": nri.Annotations,
    "mounts": nri.Mounts,
    "linux.devices": nri.Devices,
    "CDI_devices": nri.CdiDevices,
    "env": nri.Env,
    "args": nri.Args,
    "rlimits": nri.Rlimits,
    "linux.resources.memory.limit": nri.MemLimit,
    "linux.resources.memory.reservation": nri.MemReservation,
    "linux.resources.memory.swap": nri.MemSwapLimit,
    "linux.resources.memory.kernel": nri.MemKernelLimit,
    "linux.resources.memory.kernel_tcp": nri.MemTCPLimit,
    "linux.resources.memory.swappiness": nri.MemSwappiness,
    "linux.resources.memory.disable_oom_killer": nri.MemDisableOomKiller,
    "linux.resources.memory.use_hierarchy": nri.MemUseHierarchy,
    "linux.resources.cpu.shares": nri.CPUShares,
    "linux.resources.cpu.quota": nri.CPUQuota,
    "linux.resources.cpu.period": nri.CPUPeriod,
    "linux.resources.cpu.realtime_runtime": nri.CPURealtimeRuntime,
    "linux.resources.cpu.realtime_period": nri.CPURealtimePeriod,
    "linux.resources.cpu.cpus": nri.CPUSetCPUs,
    "linux.resources.cpu.mems": nri.CPUSetMems,
    "linux.resources.pids.limit": nri.PidsLimit,
    "linux.resources.hugepage_limits": nri.HugepageLimits,
    "linux.resources.blockio_class": nri.BlockioClass,
    "linux.resources.rdt_class": nri.RdtClass,
    "linux.resources.unified": nri.CgroupsUnified,
    "linux.cgroups_path": nri.CgroupsPath,
    "linux.oom_score_adj": nri.OomScoreAdj,
    "linux.io_priority": nri.IoPriority,
    "linux.seccomp_policy": nri.SeccompPolicy,
    "linux.namespaces": nri.Namespace,
    "linux.sysctl": nri.Sysctl,
    "linux.net_devices": nri.LinuxNetDevices,
    "linux.scheduler": nri.LinuxSched,
    "linux.rdt.clos_id": nri.RdtClosID,
    "linux.rdt.schemata": nri.RdtSchemata,
    "linux.rdt.enable_monitoring": nri.RdtEnableMonitoring,
    "linux.memory_policy": nri.MemoryPolicy,
}
"""The fields of a `ContainerAdjustment` that have an owner, by their place in it."""


def pod_message(sandbox: Sandbox, driver: CgroupDriver) -> nri.PodSandbox:
    """A sandbox as plugins see it."""
    metadata, linux = sandbox.config.metadata, sandbox.config.linux
    return nri.PodSandbox(
        id=sandbox.id,
        name=metadata.name,
        uid=metadata.uid,
        namespace=metadata.namespace,
        labels=sandbox.config.labels,
        annotations=sandbox.config.annotations,
        runtime_handler=sandbox.runtime_handler,
        linux=nri.LinuxPodSandbox(
            pod_overhead=pod_resources(linux.overhead) if linux.HasField("overhead") else None,
            pod_resources=pod_resources(linux.resources) if linux.HasField("resources") else None,
            cgroup_parent=linux.cgroup_parent,
            cgroups_path=spec_path(linux.cgroup_parent, sandbox.id, driver),
        ),
        pid=sandbox.pid,
        ips=sandbox.ips,
    )


def new_container_message(container: FakeContainer, driver: CgroupDriver) -> nri.Container:
    """A container that is about to be created, as plugins see it."""
    config = container.config
    message = nri.Container(
        id=container.id,
        pod_sandbox_id=container.sandbox_id,
        name=config.metadata.name,
        labels=config.labels,
        annotations=config.annotations,
        args=[each.encode() for each in (*config.command, *config.args)],
        env=[b"%s=%s" % (each.key.encode(), each.value) for each in config.envs],
        mounts=[_mount(each) for each in config.mounts],
        CDI_devices=[nri.CDIDevice(name=each.name) for each in config.CDI_devices],
        linux=nri.LinuxContainer(
            resources=created_resources(container.resources),
            oom_score_adj=nri.OptionalInt(value=container.resources.oom_score_adj),
            cgroups_path=spec_path(container.sandbox_config.linux.cgroup_parent, container.id, driver),
        ),
    )
    for device in config.devices:
        message.linux.devices.add(path=device.container_path, type="c")
    return message


def set_state(message: nri.Container, container: FakeContainer) -> None:
    """Puts what changes by itself into a container's message."""
    message.state = _STATES.get(container.state, nri.CONTAINER_UNKNOWN)
    message.pid = container.pid
    message.created_at = container.created_at_ns
    message.started_at = container.started_at_ns
    message.finished_at = container.finished_at_ns
    message.exit_code = container.exit_code
    message.status_reason = container.reason


def pod_resources(resources: api_pb2.LinuxContainerResources) -> nri.LinuxResources:
    """Resources of a pod, or of an update, for plugins: as containerd's, with zeros for what is not set."""
    found = created_resources(resources)
    found.cpu.shares.value = resources.cpu_shares
    found.cpu.quota.value = resources.cpu_quota
    found.cpu.period.value = resources.cpu_period
    found.memory.limit.value = resources.memory_limit_in_bytes
    for each in (found.cpu.shares, found.cpu.quota, found.cpu.period, found.memory.limit):
        each.SetInParent()
    return found


def created_resources(resources: api_pb2.LinuxContainerResources) -> nri.LinuxResources:
    """Resources of a container's OCI specification, which has only what is set."""
    found = nri.LinuxResources(
        hugepage_limits=[
            nri.HugepageLimit(page_size=each.page_size, limit=each.limit)
            for each in resources.hugepage_limits
        ],
        unified=resources.unified,
    )
    found.cpu.cpus, found.cpu.mems = resources.cpuset_cpus, resources.cpuset_mems
    if resources.cpu_shares:
        found.cpu.shares.value = resources.cpu_shares
    if resources.cpu_quota:
        found.cpu.quota.value = resources.cpu_quota
    if resources.cpu_period:
        found.cpu.period.value = resources.cpu_period
    if resources.memory_limit_in_bytes:
        found.memory.limit.value = resources.memory_limit_in_bytes
    if resources.memory_swap_limit_in_bytes:
        found.memory.swap.value = resources.memory_swap_limit_in_bytes
    return found


def cri_resources(resources: nri.LinuxResources) -> api_pb2.LinuxContainerResources:
    """What is left of resources in an update: all that the CRI has, but swap and OOM score."""
    return api_pb2.LinuxContainerResources(
        cpu_shares=resources.cpu.shares.value,
        cpu_quota=resources.cpu.quota.value,
        cpu_period=resources.cpu.period.value,
        cpuset_cpus=resources.cpu.cpus,
        cpuset_mems=resources.cpu.mems,
        memory_limit_in_bytes=resources.memory.limit.value,
        hugepage_limits=[
            api_pb2.HugepageLimit(page_size=each.page_size, limit=each.limit)
            for each in resources.hugepage_limits
        ],
        unified=resources.unified,
    )


def spec_resources(linux: nri.LinuxContainer) -> api_pb2.LinuxContainerResources:
    """Resources of a new container's specification, as far as the CRI has them."""
    found = cri_resources(linux.resources)
    found.memory_swap_limit_in_bytes = linux.resources.memory.swap.value
    found.oom_score_adj = linux.oom_score_adj.value
    return found


def more_files(resources: nri.LinuxResources) -> dict[str, str]:
    """What runc writes to files of version 2 beside what the CRI has; `unified` goes before it."""
    found = {}
    if resources.memory.HasField("reservation"):
        found["memory.low"] = str(resources.memory.reservation.value)
    if resources.HasField("pids"):
        found["pids.max"] = str(resources.pids.limit) if resources.pids.limit > 0 else "max"
    return {file: value for file, value in found.items() if file not in resources.unified}


def adjust(container: nri.Container, change: nri.ContainerAdjustment) -> None:
    """Applies an adjustment to a container's message."""
    for variable in change.env:
        name = variable.key.removeprefix("-").encode() + b"="
        kept = [each for each in container.env if not each.startswith(name)]
        added = [] if variable.key.startswith("-") else [name + variable.value]
        container.env[:] = kept + added
    rest = nri.ContainerAdjustment()
    rest.CopyFrom(change)
    rest.ClearField("env")
    if rest.args and not rest.args[0]:
        # Says that those of another plugin are replaced, too.
        del rest.args[0]
    merge(container, rest)


def merge(into: Message, change: Message) -> None:
    """Applies what is set in one message to another one that has fields of the same names."""
    for field, value in change.ListFields():
        name, own = field.name, into.DESCRIPTOR.fields_by_name.get(field.name)
        if own is None:
            continue
        target = getattr(into, name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _merge_map(target, value)
        elif field.is_repeated and name in _KEYS:
            _merge_list(target, value, _KEYS[name])
        elif field.is_repeated:
            del target[:]
            target.extend(value)
        elif field.message_type is None:
            setattr(into, name, value)
        elif list(field.message_type.fields_by_name) == ["value"]:
            target.CopyFrom(value)
        else:
            merge(target, value)


def set_fields(change: Message, place: str = "") -> Iterator[tuple[str, str]]:
    """Gives the place of each field that is set, and the key where it is one entry of many.

    A key begins with "-" where an entry is to be removed.
    """
    for field, value in change.ListFields():
        path = f"{place}{field.name}"
        if path == _ACCUMULATED:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            yield from ((path, key) for key in value)
        elif field.is_repeated and field.name in _KEYS:
            yield from ((path, getattr(each, _KEYS[field.name])) for each in value)
        elif path in FIELDS or field.message_type is None:
            yield path, ""
        else:
            yield from set_fields(value, f"{path}.")


class Owners:
    """Which plugin has set which field of one container."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, str], str] = {}

    def claim(self, change: Message, plugin: str, place: str = "") -> None:
        """Takes the fields that are set in a change.

        Raises:
            CallError: Another plugin has one of them.
        """
        claimed = list(set_fields(change, place))
        for path, key in claimed:
            if key.startswith("-"):
                self._owners.pop((path, key[1:]), None)
        for path, key in claimed:
            if path not in FIELDS or key.startswith("-"):
                continue
            owner = self._owners.setdefault((path, key), plugin)
            if owner != plugin:
                name = nri.Field.Name(FIELDS[path])
                text = f'plugins "{plugin}" and "{owner}" both tried to set {name} {key}'
                raise CallError("UNKNOWN", text)

    def message(self) -> nri.FieldOwners:
        """The owners as validators see them."""
        found = nri.FieldOwners()
        for (path, key), plugin in self._owners.items():
            if key:
                found.compound[FIELDS[path]].owners[key] = plugin
            else:
                found.simple[FIELDS[path]] = plugin
        return found


def _mount(mount: api_pb2.Mount) -> nri.Mount:
    options = ["rbind", "ro" if mount.readonly else "rw"]
    return nri.Mount(destination=mount.container_path, type="bind", source=mount.host_path, options=options)


def _merge_map(target: Any, change: Mapping[str, Any]) -> None:  # noqa: ANN401 - a map of protobuf
    for key in change:
        target.pop(key.removeprefix("-"), None)
    for key, value in change.items():
        if not key.startswith("-"):
            if isinstance(value, Message):
                target[key].CopyFrom(value)
            else:
                target[key] = value


def _merge_list(target: Any, change: Sequence[Any], key: str) -> None:  # noqa: ANN401 - a list of protobuf
    replaced = {getattr(each, key).removeprefix("-") for each in change}
    kept = [each for each in target if getattr(each, key) not in replaced]
    added = [each for each in change if not getattr(each, key).startswith("-")]
    # They live in the list that is emptied.
    copies = [type(each).FromString(each.SerializeToString()) for each in (*kept, *added)]
    del target[:]
    target.extend(copies)
