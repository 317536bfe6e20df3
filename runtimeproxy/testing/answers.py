"""Entries of the state as messages of the CRI."""

from __future__ import annotations

from collections.abc import Iterator

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.entries import Container, Sandbox, matches_labels
from runtimeproxy.testing.images import Image, image_of, normalized
from runtimeproxy.testing.state import RuntimeState


def image_id(container: Container) -> str:
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
        network=api_pb2.PodSandboxNetworkStatus(ip=sandbox.ip),
        labels=sandbox.config.labels,
        annotations=sandbox.config.annotations,
        runtime_handler=sandbox.runtime_handler,
    )
    context = sandbox.config.linux.security_context
    status.linux.namespaces.options.CopyFrom(context.namespace_options)
    return status


def container_entry(container: Container) -> api_pb2.Container:
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


def container_status(container: Container) -> api_pb2.ContainerStatus:
    """A container as its status shows it, with its resources as applied."""
    config = container.config
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
        log_path=_log_path(container),
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
        for sandbox in state.sandboxes.values():
            if (
                sandbox.id.startswith(wanted.id)
                and (not wanted.HasField("state") or wanted.state.state == sandbox_state(sandbox))
                and matches_labels(sandbox.config.labels, wanted.label_selector)
            ):
                yield sandbox_entry(sandbox)


def list_containers(state: RuntimeState, wanted: api_pb2.ContainerFilter) -> Iterator[api_pb2.Container]:
    """Containers that match all conditions of the filter."""
    with state.lock:
        for container in state.containers.values():
            if (
                container.id.startswith(wanted.id)
                and (not wanted.HasField("state") or wanted.state.state == container.state)
                and container.sandbox_id.startswith(wanted.pod_sandbox_id)
                and matches_labels(container.config.labels, wanted.label_selector)
            ):
                yield container_entry(container)


def list_images(state: RuntimeState, wanted: api_pb2.ImageFilter) -> Iterator[api_pb2.Image]:
    """Images, or the one that the filter names."""
    with state.lock:
        name = wanted.image.image
        for image in state.images:
            if not name or normalized(name) in {image.id, image.tag, image.digest}:
                yield image_entry(image)


def _log_path(container: Container) -> str:
    folder, path = container.sandbox_config.log_directory, container.config.log_path
    return f"{folder}/{path}" if folder and path else ""
