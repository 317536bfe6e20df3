"""What hook servers are sent: views as messages of `runtime.v1alpha1`. All functions are pure."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from cri_api.koordinator.v1alpha1 import api_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message

    from runtimeproxy.hooks.views import ContainerView, PodView, Resources

_PIECE: Final = 1_000
"""Entries of a map that are copied at a time, which takes about a millisecond."""


def pod_request(pod: PodView) -> api_pb2.PodSandboxHookRequest:
    """Return what a hook of the pod is sent; resources that say nothing are absent."""
    maps = {"labels": pod.labels, "annotations": pod.annotations}
    long = _long(maps)
    request = api_pb2.PodSandboxHookRequest(
        pod_meta=_pod_metadata(pod),
        runtime_handler=pod.runtime_handler,
        cgroup_parent=pod.cgroup_parent,
        overhead=_present(pod.overhead),
        resources=_present(pod.resources),
        **maps,
    )
    _fill(request, long)
    return request


def container_request(container: ContainerView) -> api_pb2.ContainerResourceHookRequest:
    """Return what a hook of the container is sent.

    `container_resources` are the accumulated ones with earlier policies' changes, and always present:
    koordlet writes into the message that it was sent.
    """
    pod = container.pod
    maps = {
        "container_annotations": container.annotations,
        "pod_annotations": pod.annotations,
        "pod_labels": pod.labels,
        "container_envs": shown_env(container.env),
    }
    long = _long(maps)
    request = api_pb2.ContainerResourceHookRequest(
        pod_meta=_pod_metadata(pod),
        container_meta=api_pb2.ContainerMetadata(
            name=container.name, attempt=container.attempt, id=container.id
        ),
        container_resources=resources_message(container.current),
        pod_resources=_present(pod.resources),
        pod_cgroup_parent=pod.cgroup_parent,
        **maps,
    )
    _fill(request, long)
    return request


def resources_message(resources: Resources) -> api_pb2.LinuxContainerResources:
    """Return resources as a message: what has no value is 0 or empty there."""
    return api_pb2.LinuxContainerResources(
        cpu_period=resources.cpu_period_us or 0,
        cpu_quota=resources.cpu_quota_us or 0,
        cpu_shares=resources.cpu_shares or 0,
        memory_limit_in_bytes=resources.memory_limit_bytes or 0,
        memory_swap_limit_in_bytes=resources.memory_swap_limit_bytes or 0,
        oom_score_adj=resources.oom_score_adj or 0,
        cpuset_cpus=resources.cpuset_cpus or "",
        cpuset_mems=resources.cpuset_mems or "",
        hugepage_limits=[
            api_pb2.HugepageLimit(page_size=page_size, limit=limit_bytes)
            for page_size, limit_bytes in resources.hugepage_limits_bytes
        ],
        unified=resources.unified,
    )


def shown_env(env: Mapping[str, bytes]) -> dict[str, str]:
    """Return the environment as text; variables that are not UTF-8 cannot be carried and are left out."""
    shown: dict[str, str] = {}
    for name, value in env.items():
        try:
            shown[name] = value.decode()
        except UnicodeDecodeError:
            continue
    return shown


def _long(maps: dict[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    """Take the long ones out of some maps, and return them."""
    return {name: maps.pop(name) for name in tuple(maps) if len(maps[name]) > _PIECE}


def _fill(request: Message, maps: Mapping[str, Mapping[str, str]]) -> None:
    """Copy long maps into a message in pieces, between which other threads have their turn."""
    for name, values in maps.items():
        entries = getattr(request, name)
        items = iter(values.items())
        while piece := dict(islice(items, _PIECE)):
            entries.update(piece)


def _present(resources: Resources) -> api_pb2.LinuxContainerResources | None:
    message = resources_message(resources)
    return message if message.ByteSize() else None


def _pod_metadata(pod: PodView) -> api_pb2.PodSandboxMetadata:
    return api_pb2.PodSandboxMetadata(
        name=pod.name, uid=pod.uid, namespace=pod.namespace, attempt=pod.attempt
    )
