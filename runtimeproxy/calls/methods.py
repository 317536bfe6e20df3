"""The ten intercepted calls: their paths, and the hooks around each. Cheap to import: no protobuf."""

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
    before: tuple[Hook, ...]
    """The hooks that may run before the runtime sees the call."""
    after: tuple[Hook, ...]
    """The hooks that run once the call has succeeded."""
    is_end: bool = False
    """Whether it stops or removes something: such a call waits for others only a second."""


_RESTORE_BEFORE: Final = (Hook.PRE_RUN_POD_SANDBOX, Hook.PRE_CREATE_CONTAINER)
_RESTORE_AFTER: Final = (Hook.POST_RUN_POD_SANDBOX, Hook.POST_CREATE_CONTAINER, Hook.POST_START_CONTAINER)


def _method(kind: CallKind, hook: str, *, is_end: bool = False) -> Method:
    return Method(kind, (Hook(f"pre_{hook}"),), (Hook(f"post_{hook}"),), is_end)


METHODS: Final = (
    _method(CallKind.RUN_POD_SANDBOX, "run_pod_sandbox"),
    _method(CallKind.CREATE_CONTAINER, "create_container"),
    _method(CallKind.START_CONTAINER, "start_container"),
    _method(CallKind.UPDATE_CONTAINER_RESOURCES, "update_container_resources"),
    _method(CallKind.UPDATE_POD_SANDBOX_RESOURCES, "update_pod_sandbox_resources"),
    _method(CallKind.STOP_CONTAINER, "stop_container", is_end=True),
    _method(CallKind.STOP_POD_SANDBOX, "stop_pod_sandbox", is_end=True),
    _method(CallKind.REMOVE_CONTAINER, "remove_container", is_end=True),
    _method(CallKind.REMOVE_POD_SANDBOX, "remove_pod_sandbox", is_end=True),
    Method(CallKind.RESTORE_POD, _RESTORE_BEFORE, _RESTORE_AFTER),
)

SERVICES: Final = ("runtime.v1.RuntimeService", "runtime.v1alpha2.RuntimeService")
"""The services whose calls are intercepted; their messages have the same shapes on the wire."""

BY_PATH: Final[Mapping[str, Method]] = MappingProxyType(
    {f"/{service}/{method.kind}": method for service in SERVICES for method in METHODS}
)
"""Intercepted calls by `:path`."""
