"""All held calls by kind. Imports protobuf and the CRI's messages: load it where they are needed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from runtimeproxy.calls.create_container import CreateContainer
from runtimeproxy.calls.cri_call import Operation
from runtimeproxy.calls.methods import CallKind
from runtimeproxy.calls.remove import RemoveContainer, RemovePodSandbox
from runtimeproxy.calls.restore_pod import RestorePod
from runtimeproxy.calls.run_pod_sandbox import RunPodSandbox
from runtimeproxy.calls.start_container import StartContainer
from runtimeproxy.calls.stop import StopContainer, StopPodSandbox
from runtimeproxy.calls.update_container import UpdateContainerResources
from runtimeproxy.calls.update_pod import UpdatePodSandboxResources

OPERATIONS: Final[Mapping[CallKind, type[Operation]]] = MappingProxyType(
    {
        CallKind.RUN_POD_SANDBOX: RunPodSandbox,
        CallKind.CREATE_CONTAINER: CreateContainer,
        CallKind.START_CONTAINER: StartContainer,
        CallKind.UPDATE_CONTAINER_RESOURCES: UpdateContainerResources,
        CallKind.UPDATE_POD_SANDBOX_RESOURCES: UpdatePodSandboxResources,
        CallKind.STOP_CONTAINER: StopContainer,
        CallKind.STOP_POD_SANDBOX: StopPodSandbox,
        CallKind.REMOVE_CONTAINER: RemoveContainer,
        CallKind.REMOVE_POD_SANDBOX: RemovePodSandbox,
        CallKind.RESTORE_POD: RestorePod,
    }
)
"""The class of each kind of call."""
