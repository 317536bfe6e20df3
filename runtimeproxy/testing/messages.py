"""The state of the fake runtime as messages of the CRI: lists, statuses, verbose info, usage and metrics."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from google.protobuf.message import Message

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.fields.tables import CRI_FIELDS
from runtimeproxy.testing.cgroups import CgroupDriver, spec_path
from runtimeproxy.testing.state import (
    FakeContainer,
    Image,
    RuntimeState,
    Sandbox,
    image_of,
    normalized,
)


def image_id(container: FakeContainer) -> str:
    """Id of the image of a container; the reference itself where it is an id."""
    reference = container.config.image.image
    return reference if reference.startswith("sha256:") else image_of(reference).id


def sandbox_entry(sandbox: Sandbox) -> api_pb2.PodSandbox:
    """A sandbox as lists show it."""
    return api_pb2.PodSandbox(
        id=sandbox.id,
        metadata=sandbox.config.metadata,
        state=sandbox_state(sandbox),
        created_at=sandbox.created_at_ns,
        labels=sandbox.config.labels,
        annotations=sandbox.config.annotations,
        runtime_handler=sandbox.runtime_handler,
    )


def sandbox_state(sandbox: Sandbox) -> api_pb2.PodSandboxState.ValueType:
    """Whether a sandbox is ready."""
    return api_pb2.SANDBOX_READY if sandbox.ready else api_pb2.SANDBOX_NOTREADY


def sandbox_status(sandbox: Sandbox) -> api_pb2.PodSandboxStatus:
    """A sandbox as its status shows it."""
    status = api_pb2.PodSandboxStatus(
        id=sandbox.id,
        metadata=sandbox.config.metadata,
        state=sandbox_state(sandbox),
        created_at=sandbox.created_at_ns,
        network=_network_status(sandbox.ips),
        labels=sandbox.config.labels,
        annotations=sandbox.config.annotations,
        runtime_handler=sandbox.runtime_handler,
    )
    context = sandbox.config.linux.security_context
    status.linux.namespaces.options.CopyFrom(context.namespace_options)
    return status


def _network_status(ips: Sequence[str]) -> api_pb2.PodSandboxNetworkStatus:
    # Source: containerd, toCRISandboxStatus: the other addresses stand beside the main one.
    first, others = (ips[0], ips[1:]) if ips else ("", ())
    return api_pb2.PodSandboxNetworkStatus(ip=first, additional_ips=[api_pb2.PodIP(ip=ip) for ip in others])


def container_entry(container: FakeContainer) -> api_pb2.Container:
    """A container as lists show it."""
    return api_pb2.Container(
        id=container.id,
        pod_sandbox_id=container.sandbox_id,
        metadata=container.config.metadata,
        image=container.config.image,
        image_ref=image_id(container),
        state=container.state,
        created_at=container.created_at_ns,
        labels=container.config.labels,
        annotations=container.config.annotations,
        image_id=image_id(container),
    )


def container_status(container: FakeContainer) -> api_pb2.ContainerStatus:
    """A container as its status shows it, with its resources as applied."""
    config, folder = container.config, container.sandbox_config.log_directory
    status = api_pb2.ContainerStatus(
        id=container.id,
        metadata=config.metadata,
        state=container.state,
        created_at=container.created_at_ns,
        started_at=container.started_at_ns,
        finished_at=container.finished_at_ns,
        exit_code=container.exit_code,
        image=config.image,
        image_ref=image_of(config.image.image).digest,
        reason=container.reason,
        labels=config.labels,
        annotations=config.annotations,
        mounts=config.mounts,
        log_path=f"{folder}/{config.log_path}" if folder and config.log_path else "",
        image_id=image_id(container),
        stop_signal=config.stop_signal,
    )
    status.resources.linux.CopyFrom(container.resources)
    status.user.linux.SetInParent()
    return status


def image_entry(image: Image) -> api_pb2.Image:
    """An image as lists and its status show it."""
    return api_pb2.Image(
        id=image.id,
        repo_tags=[] if "@" in image.tag else [image.tag],
        repo_digests=[image.digest],
        size=image.size_bytes,
        spec=api_pb2.ImageSpec(image=image.id),
    )


def list_sandboxes(state: RuntimeState, wanted: api_pb2.PodSandboxFilter) -> Iterator[api_pb2.PodSandbox]:
    """Sandboxes that match all conditions of the filter."""
    with state.lock:
        for sandbox in _matching(state.sandboxes, wanted):
            if not wanted.HasField("state") or wanted.state.state == sandbox_state(sandbox):
                yield sandbox_entry(sandbox)


def list_containers(state: RuntimeState, wanted: api_pb2.ContainerFilter) -> Iterator[api_pb2.Container]:
    """Containers that match all conditions of the filter."""
    with state.lock:
        for container in _matching(state.containers, wanted):
            if (
                not wanted.HasField("state") or wanted.state.state == container.state
            ) and container.sandbox_id.startswith(wanted.pod_sandbox_id):
                yield container_entry(container)


def list_images(state: RuntimeState, wanted: api_pb2.ImageFilter) -> Iterator[api_pb2.Image]:
    """Images, or the one that the filter names."""
    with state.lock:
        name = wanted.image.image
        for image in state.images:
            if not name or normalized(name) in {image.id, image.tag, image.digest}:
                yield image_entry(image)


def _matching(entries: Mapping[str, _Entry], wanted: _Filter) -> Iterator[_Entry]:
    """Sandboxes or containers whose id has the prefix and which have the labels of a filter."""
    for entry in entries.values():
        labels = entry.config.labels
        has_labels = all(labels.get(key) == value for key, value in wanted.label_selector.items())
        if has_labels and entry.id.startswith(wanted.id):
            yield entry


Document = dict[str, Any]

_Entry = TypeVar("_Entry", Sandbox, FakeContainer)
_Filter: TypeAlias = (
    api_pb2.PodSandboxFilter
    | api_pb2.ContainerFilter
    | api_pb2.ContainerStatsFilter
    | api_pb2.PodSandboxStatsFilter
)

RUNTIME_TYPE = "io.containerd.runc.v2"
"""Runtime type of the default handler."""

SANDBOX_CPU_SHARES = 2
"""Shares of the sandbox container itself. Source: containerd, defaultSandboxCPUshares."""


def container_info(container: FakeContainer, driver: CgroupDriver) -> dict[str, str]:
    """The ``info`` map of a container's verbose status, in the form of containerd.

    Source: containerd 1.6 to 2.2, ``toCRISandboxInfo`` and ``toCRIContainerInfo`` of the CRI plugin: one
    JSON document under the key ``info`` with the CRI configuration (Go field tags: names as in the .proto
    file, numbers as numbers, empty fields left out) and the OCI specification.
    """
    own = {"sandboxID": container.sandbox_id, "removing": False}
    spec = {
        "process": _process(container.config, container.resources),
        "annotations": {
            "io.kubernetes.cri.container-name": container.config.metadata.name,
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.sandbox-id": container.sandbox_id,
        },
    }
    parent = container.sandbox_config.linux.cgroup_parent
    return _info(container, parent, driver, own, spec, spec_resources(container.resources))


def sandbox_info(sandbox: Sandbox, driver: CgroupDriver) -> dict[str, str]:
    """The ``info`` map of a sandbox's verbose status; see ``container_info``."""
    own = {
        "processStatus": "running" if sandbox.ready else "deleted",
        "netNamespaceClosed": not sandbox.ready,
        "image": "registry.k8s.io/pause:3.10",
        "runtimeHandler": sandbox.runtime_handler,
    }
    spec = {
        "process": {"args": ["/pause"], "oomScoreAdj": -998},
        "annotations": {
            "io.kubernetes.cri.container-type": "sandbox",
            "io.kubernetes.cri.sandbox-id": sandbox.id,
        },
    }
    resources = {"cpu": {"shares": SANDBOX_CPU_SHARES}}
    return _info(sandbox, sandbox.config.linux.cgroup_parent, driver, own, spec, resources)


def _info(
    entry: FakeContainer | Sandbox,
    parent: str,
    driver: CgroupDriver,
    own: Document,
    spec: Document,
    resources: Document,
) -> dict[str, str]:
    linux = {"resources": resources, "cgroupsPath": spec_path(parent, entry.id, driver)}
    document = {
        **own,
        "pid": entry.pid,
        "snapshotKey": entry.id,
        "snapshotter": "overlayfs",
        "runtimeType": RUNTIME_TYPE,
        "runtimeOptions": {"systemd_cgroup": driver is CgroupDriver.SYSTEMD},
        "config": plain(entry.config),
        "runtimeSpec": {"ociVersion": "1.2.0", **spec, "linux": linux},
    }
    return {"info": json.dumps(document)}


def spec_resources(resources: api_pb2.LinuxContainerResources) -> Document:
    """``linux.resources`` of an OCI specification; what is not set is left out."""
    found: defaultdict[str, dict[str, object]] = defaultdict(dict)
    for field in CRI_FIELDS.values():
        if field.oci is not None:
            found[field.oci[0]][field.oci[1]] = getattr(resources, field.cri)
    parts = {name: _non_empty(**values) for name, values in found.items()}
    pages = [{"pageSize": page.page_size, "limit": page.limit} for page in resources.hugepage_limits]
    return _non_empty(**parts, hugepageLimits=pages, unified=dict(resources.unified))


def plain(message: Message) -> Document:
    """A message as Go's JSON encoder shows it: names of the .proto file, empty fields left out."""
    return {field.name: _plain_value(value) for field, value in message.ListFields()}


def _process(config: api_pb2.ContainerConfig, resources: api_pb2.LinuxContainerResources) -> Document:
    variables = [f"{env.key}={env.value.decode(errors='replace')}" for env in config.envs]
    return _non_empty(
        args=[*config.command, *config.args],
        env=variables,
        cwd=config.working_dir or "/",
        oomScoreAdj=resources.oom_score_adj,
    )


def _plain_value(value: object) -> object:
    if isinstance(value, Message):
        return plain(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain_value(item) for item in value]
    return value


def _non_empty(**values: object) -> Document:
    return {name: value for name, value in values.items() if value}


MIB = 1024 * 1024
"""Bytes of a mebibyte."""

CPU_METRIC = "container_cpu_usage_seconds_total"
"""Name of the CPU counter."""

MEMORY_METRIC = "container_memory_working_set_bytes"
"""Name of the memory gauge."""

METRIC_DESCRIPTORS = (
    api_pb2.MetricDescriptor(
        name=CPU_METRIC, help="Cumulative cpu time consumed in seconds.", label_keys=["id", "name"]
    ),
    api_pb2.MetricDescriptor(
        name=MEMORY_METRIC, help="Current working set in bytes.", label_keys=["id", "name"]
    ),
)
"""All metrics, in the order in which they are reported."""


def container_stats(container: FakeContainer, now_ns: int) -> api_pb2.ContainerStats:
    """Usage of a container; a container that does not run uses nothing."""
    stats = api_pb2.ContainerStats()
    stats.attributes.id = container.id
    stats.attributes.metadata.CopyFrom(container.config.metadata)
    stats.attributes.labels.update(container.config.labels)
    stats.attributes.annotations.update(container.config.annotations)
    cpu, memory, layer = stats.cpu, stats.memory, stats.writable_layer
    cpu.timestamp = memory.timestamp = stats.swap.timestamp = layer.timestamp = now_ns
    # A tenth of a core since the start.
    used_ns = (container.finished_at_ns or now_ns) - container.started_at_ns if container.started_at_ns else 0
    cpu.usage_core_nano_seconds.value = max(used_ns // 10, 0)
    cpu.usage_nano_cores.value = 100_000_000 if container.pid else 0
    # A quarter of the limit, or 16 MiB without one.
    limit_bytes = max(container.resources.memory_limit_in_bytes, 0)
    used_bytes = (limit_bytes // 4 or 16 * MIB) if container.pid else 0
    memory.working_set_bytes.value = memory.usage_bytes.value = used_bytes
    memory.rss_bytes.value = used_bytes // 2
    memory.page_faults.value = 1000
    memory.major_page_faults.value = 0
    if limit_bytes:
        memory.available_bytes.value = limit_bytes - used_bytes
    layer.fs_id.mountpoint = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs"
    layer.used_bytes.value = 24576
    layer.inodes_used.value = 7
    return stats


def sandbox_stats(state: RuntimeState, sandbox: Sandbox) -> api_pb2.PodSandboxStats:
    """Usage of a sandbox: the sum over its containers, and each of them."""
    now_ns = state.clock_ns()
    stats = api_pb2.PodSandboxStats()
    stats.attributes.id = sandbox.id
    stats.attributes.metadata.CopyFrom(sandbox.config.metadata)
    stats.attributes.labels.update(sandbox.config.labels)
    stats.attributes.annotations.update(sandbox.config.annotations)
    containers = [container_stats(entry, now_ns) for entry in state.containers_of(sandbox.id)]
    linux = stats.linux
    linux.containers.extend(containers)
    linux.cpu.timestamp = linux.memory.timestamp = linux.process.timestamp = now_ns
    linux.process.process_count.value = len(containers) + 1
    for each in containers:
        linux.cpu.usage_core_nano_seconds.value += each.cpu.usage_core_nano_seconds.value
        linux.cpu.usage_nano_cores.value += each.cpu.usage_nano_cores.value
        linux.memory.working_set_bytes.value += each.memory.working_set_bytes.value
        linux.memory.usage_bytes.value += each.memory.usage_bytes.value
    if sandbox.ips:
        linux.network.timestamp = now_ns
        linux.network.default_interface.name = "eth0"
        linux.network.default_interface.rx_bytes.value = 1024
        linux.network.default_interface.tx_bytes.value = 1024
    return stats


def list_container_stats(
    state: RuntimeState, wanted: api_pb2.ContainerStatsFilter
) -> Iterator[api_pb2.ContainerStats]:
    """Usage of the running containers that match all conditions of the filter."""
    with state.lock:
        for container in _matching(state.containers, wanted):
            is_running = container.state == api_pb2.CONTAINER_RUNNING
            if is_running and container.sandbox_id.startswith(wanted.pod_sandbox_id):
                yield container_stats(container, state.clock_ns())


def list_sandbox_stats(
    state: RuntimeState, wanted: api_pb2.PodSandboxStatsFilter
) -> Iterator[api_pb2.PodSandboxStats]:
    """Usage of the ready sandboxes that match all conditions of the filter."""
    with state.lock:
        for sandbox in _matching(state.sandboxes, wanted):
            if sandbox.ready:
                yield sandbox_stats(state, sandbox)


def list_metrics(state: RuntimeState) -> Iterator[api_pb2.PodSandboxMetrics]:
    """Metrics of all ready sandboxes."""
    for stats in list_sandbox_stats(state, api_pb2.PodSandboxStatsFilter()):
        yield api_pb2.PodSandboxMetrics(
            pod_sandbox_id=stats.attributes.id,
            container_metrics=[_metrics(each) for each in stats.linux.containers],
        )


def _metrics(stats: api_pb2.ContainerStats) -> api_pb2.ContainerMetrics:
    labels = [stats.attributes.id, stats.attributes.metadata.name]
    metrics = api_pb2.ContainerMetrics(container_id=stats.attributes.id)
    seconds = stats.cpu.usage_core_nano_seconds.value // 1_000_000_000
    working_set_bytes = stats.memory.working_set_bytes.value
    for name, kind, value in (
        (CPU_METRIC, api_pb2.COUNTER, seconds),
        (MEMORY_METRIC, api_pb2.GAUGE, working_set_bytes),
    ):
        metrics.metrics.add(
            name=name,
            timestamp=stats.cpu.timestamp,
            metric_type=kind,
            label_values=labels,
            value=api_pb2.UInt64Value(value=value),
        )
    return metrics
