"""Usage and metrics of the fake runtime: figures that follow from ids, limits and the clock."""

from __future__ import annotations

from collections.abc import Iterator

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.entries import Container, Sandbox, matches_labels
from runtimeproxy.testing.state import RuntimeState

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


def container_stats(container: Container, now_ns: int) -> api_pb2.ContainerStats:
    """Usage of a container; a container that does not run uses nothing."""
    stats = api_pb2.ContainerStats()
    stats.attributes.id = container.id
    stats.attributes.metadata.CopyFrom(container.config.metadata)
    stats.attributes.labels.update(container.config.labels)
    stats.attributes.annotations.update(container.config.annotations)
    stats.cpu.CopyFrom(_cpu(container, now_ns))
    stats.memory.CopyFrom(_memory(container, now_ns))
    stats.swap.timestamp = now_ns
    layer = stats.writable_layer
    layer.timestamp = now_ns
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
    if sandbox.ip:
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
        for container in state.containers.values():
            if (
                container.state == api_pb2.CONTAINER_RUNNING
                and container.id.startswith(wanted.id)
                and container.sandbox_id.startswith(wanted.pod_sandbox_id)
                and matches_labels(container.config.labels, wanted.label_selector)
            ):
                yield container_stats(container, state.clock_ns())


def list_sandbox_stats(
    state: RuntimeState, wanted: api_pb2.PodSandboxStatsFilter
) -> Iterator[api_pb2.PodSandboxStats]:
    """Usage of the ready sandboxes that match all conditions of the filter."""
    with state.lock:
        for sandbox in state.sandboxes.values():
            if (
                sandbox.ready
                and sandbox.id.startswith(wanted.id)
                and matches_labels(sandbox.config.labels, wanted.label_selector)
            ):
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


def _cpu(container: Container, now_ns: int) -> api_pb2.CpuUsage:
    """A tenth of a core since the start."""
    end_ns = container.finished_at_ns or now_ns
    used_ns = (end_ns - container.started_at_ns) // 10 if container.started_at_ns else 0
    return api_pb2.CpuUsage(
        timestamp=now_ns,
        usage_core_nano_seconds=api_pb2.UInt64Value(value=max(used_ns, 0)),
        usage_nano_cores=api_pb2.UInt64Value(value=100_000_000 if container.pid else 0),
    )


def _memory(container: Container, now_ns: int) -> api_pb2.MemoryUsage:
    """A quarter of the limit, or 16 MiB without one."""
    limit_bytes = max(container.resources.memory_limit_in_bytes, 0)
    used_bytes = (limit_bytes // 4 or 16 * MIB) if container.pid else 0
    usage = api_pb2.MemoryUsage(
        timestamp=now_ns,
        working_set_bytes=api_pb2.UInt64Value(value=used_bytes),
        usage_bytes=api_pb2.UInt64Value(value=used_bytes),
        rss_bytes=api_pb2.UInt64Value(value=used_bytes // 2),
        page_faults=api_pb2.UInt64Value(value=1000),
        major_page_faults=api_pb2.UInt64Value(value=0),
    )
    if limit_bytes:
        usage.available_bytes.value = limit_bytes - used_bytes
    return usage
