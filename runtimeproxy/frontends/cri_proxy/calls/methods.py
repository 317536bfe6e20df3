"""The ten intercepted calls: their paths, and the hooks around each; the names of all others.

Cheap to import: no protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from runtimeproxy.hooks.policy import Hook


class CallKind(StrEnum):
    """An intercepted call, by its name in the CRI."""

    RUN_POD_SANDBOX = "RunPodSandbox"
    CREATE_CONTAINER = "CreateContainer"
    START_CONTAINER = "StartContainer"
    UPDATE_CONTAINER_RESOURCES = "UpdateContainerResources"
    UPDATE_POD_SANDBOX_RESOURCES = "UpdatePodSandboxResources"
    STOP_CONTAINER = "StopContainer"
    STOP_POD_SANDBOX = "StopPodSandbox"
    REMOVE_CONTAINER = "RemoveContainer"
    REMOVE_POD_SANDBOX = "RemovePodSandbox"
    RESTORE_POD = "RestorePod"


class Method(NamedTuple):
    """One intercepted call."""

    kind: CallKind
    module: str
    """Has the class of that name, beside this module."""
    before: tuple[Hook, ...]
    """The hooks that may run before the runtime sees the call."""
    after: tuple[Hook, ...] = ()
    """The hooks that run once the call has succeeded."""
    is_end: bool = False
    """Whether it stops or removes something: such a call waits for others only a second."""


METHODS: Final = (
    Method(CallKind.RUN_POD_SANDBOX, "run_pod_sandbox", (Hook.PRE_RUN_POD_SANDBOX,)),
    Method(CallKind.CREATE_CONTAINER, "create_container", (Hook.PRE_CREATE_CONTAINER,)),
    Method(
        CallKind.START_CONTAINER,
        "start_container",
        (Hook.PRE_START_CONTAINER,),
        (Hook.POST_START_CONTAINER,),
    ),
    Method(CallKind.UPDATE_CONTAINER_RESOURCES, "update_resources", (Hook.PRE_UPDATE_CONTAINER_RESOURCES,)),
    Method(
        CallKind.UPDATE_POD_SANDBOX_RESOURCES, "update_resources", (Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES,)
    ),
    Method(CallKind.STOP_CONTAINER, "end_calls", (), (Hook.POST_STOP_CONTAINER,), is_end=True),
    Method(CallKind.STOP_POD_SANDBOX, "end_calls", (), (Hook.POST_STOP_POD_SANDBOX,), is_end=True),
    Method(CallKind.REMOVE_CONTAINER, "end_calls", (), (Hook.POST_REMOVE_CONTAINER,), is_end=True),
    Method(CallKind.REMOVE_POD_SANDBOX, "end_calls", (), (Hook.POST_REMOVE_CONTAINER,), is_end=True),
    Method(
        CallKind.RESTORE_POD,
        "restore_pod",
        (Hook.PRE_RUN_POD_SANDBOX, Hook.PRE_CREATE_CONTAINER),
        (Hook.POST_START_CONTAINER,),
    ),
)

SERVICES: Final = ("runtime.v1.RuntimeService", "runtime.v1alpha2.RuntimeService")
"""The services whose calls are intercepted; their messages have the same shapes on the wire."""

BY_PATH: Final[Mapping[str, Method]] = MappingProxyType(
    {f"/{service}/{method.kind}": method for service in SERVICES for method in METHODS}
)
"""Intercepted calls by `:path`."""

METHODS_OF: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "RuntimeService": (
            "Version",
            "RunPodSandbox",
            "StopPodSandbox",
            "RemovePodSandbox",
            "PodSandboxStatus",
            "ListPodSandbox",
            "StreamPodSandboxes",
            "CreateContainer",
            "StartContainer",
            "StopContainer",
            "RemoveContainer",
            "ListContainers",
            "StreamContainers",
            "ContainerStatus",
            "UpdateContainerResources",
            "ReopenContainerLog",
            "ExecSync",
            "Exec",
            "Attach",
            "PortForward",
            "ContainerStats",
            "ListContainerStats",
            "StreamContainerStats",
            "PodSandboxStats",
            "ListPodSandboxStats",
            "StreamPodSandboxStats",
            "UpdateRuntimeConfig",
            "Status",
            "CheckpointContainer",
            "CheckpointPod",
            "RestorePod",
            "GetContainerEvents",
            "ListMetricDescriptors",
            "ListPodSandboxMetrics",
            "StreamPodSandboxMetrics",
            "RuntimeConfig",
            "UpdatePodSandboxResources",
        ),
        "ImageService": (
            "ListImages",
            "StreamImages",
            "ImageStatus",
            "PullImage",
            "RemoveImage",
            "ImageFsInfo",
        ),
    }
)
"""All methods of the CRI by service. Source: runtime/v1/api.proto."""

NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        f"/runtime.{version}.{service}/{name}": name
        for version in ("v1", "v1alpha2")
        for service, names in METHODS_OF.items()
        for name in names
    }
)
"""Methods by `:path`, for metrics."""
