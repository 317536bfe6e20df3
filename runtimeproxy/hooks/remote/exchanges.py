"""The hooks of the protocol: each one's method, its messages, and what its answer means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from cri_api.koordinator.v1alpha1 import HOOK_SERVICE, api_pb2
from runtimeproxy.hooks.changes import CgroupChange
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.remote import answers, wire
from runtimeproxy.hooks.remote.registration import Answers
from runtimeproxy.parsing import parse


@dataclass(frozen=True, slots=True)
class Exchange:
    """One hook's question and answer; the types of the messages go with the hook's view."""

    method: str
    """The path of the RPC."""
    request: Callable[[Any], Any]
    """Makes the request of a view."""
    response: Callable[[bytes], Any]
    """Parses the answer."""
    change: Callable[[Any, Any, Answers], CgroupChange | None] | None = None
    """Reads the answer to a request; None: it has no effect."""


MAX_PARTS_BYTES: Final = 4 * 1024 * 1024
"""Of an answer's annotations, variables and the like: as much as of a call, all of which it may repeat."""

_POD_RESPONSE: Final = partial(parse, api_pb2.PodSandboxHookResponse, max_parts_bytes=MAX_PARTS_BYTES)
_CONTAINER_RESPONSE: Final = partial(
    parse, api_pb2.ContainerResourceHookResponse, max_parts_bytes=MAX_PARTS_BYTES
)

NO_SUCH_METHOD: Final = f"/{HOOK_SERVICE}/Probe"
"""The path of an RPC that no server has: whoever answers it lives."""


def _pod(method: str, change: Callable[[Any, Any, Answers], CgroupChange | None] | None = None) -> Exchange:
    return Exchange(f"/{HOOK_SERVICE}/{method}", wire.pod_request, _POD_RESPONSE, change)


def _container(
    method: str, change: Callable[[Any, Any, Answers], CgroupChange | None] | None = None
) -> Exchange:
    return Exchange(f"/{HOOK_SERVICE}/{method}", wire.container_request, _CONTAINER_RESPONSE, change)


EXCHANGES: Final[Mapping[Hook, Exchange]] = {
    Hook.PRE_RUN_POD_SANDBOX: _pod("PreRunPodSandboxHook", answers.pod_change),
    Hook.POST_STOP_POD_SANDBOX: _pod("PostStopPodSandboxHook"),
    Hook.PRE_CREATE_CONTAINER: _container("PreCreateContainerHook", answers.container_change),
    Hook.PRE_START_CONTAINER: _container("PreStartContainerHook", answers.start_change),
    Hook.POST_START_CONTAINER: _container("PostStartContainerHook"),
    Hook.PRE_UPDATE_CONTAINER_RESOURCES: _container(
        "PreUpdateContainerResourcesHook", answers.container_change
    ),
    Hook.POST_STOP_CONTAINER: _container("PostStopContainerHook"),
}
"""Source: Koordinator apis/runtime/v1alpha1/api.proto (koord-runtime-proxy spec 3.4)."""
