"""From a call's path to the servicers, on raw messages.

Answers of long lists are remembered. Calls of which nothing is noted take a short way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import grpc

from cri_api.runtime import v1, v1alpha2
from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.behaviours import NORMAL, Behaviours
from runtimeproxy.testing.failures import CallError
from runtimeproxy.testing.handling import Handling, Method
from runtimeproxy.testing.image_service import FakeImageService
from runtimeproxy.testing.records import RecordedCall, RecordedCalls
from runtimeproxy.testing.runtime_service import FakeRuntimeService

_CACHED = frozenset({"ListContainers", "ListPodSandbox", "ListImages"})
"""Methods whose answer depends on the request and the state's generation only."""

_CACHE_SIZE = 64

V1ALPHA2_METHODS = frozenset(
    {
        *("Version", "Status", "UpdateRuntimeConfig"),
        *("RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "PodSandboxStatus", "ListPodSandbox"),
        *("CreateContainer", "StartContainer", "StopContainer", "RemoveContainer", "ListContainers"),
        *("ContainerStatus", "UpdateContainerResources", "ReopenContainerLog"),
        *("ExecSync", "Exec", "Attach", "PortForward"),
        *("ContainerStats", "ListContainerStats", "PodSandboxStats", "ListPodSandboxStats"),
        *("ListImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo"),
    }
)
"""What ``runtime.v1alpha2`` has. Source: what containerd 1.6.20 answers there (tests/e2e)."""


class CallDispatch(grpc.GenericRpcHandler):
    """Serves ``runtime.v1`` and ``runtime.v1alpha2``.

    Attributes:
        behaviours: Asked for each call.
        recorded: Gets each call; ``None`` records nothing.
    """

    def __init__(
        self,
        runtime: FakeRuntimeService,
        images: FakeImageService,
        recorded: RecordedCalls | None,
        *,
        v1alpha2: bool = True,
    ) -> None:
        self.behaviours = Behaviours()
        self.recorded = recorded
        self._state = runtime.state
        self._serves_v1alpha2 = v1alpha2
        self._methods = methods_by_path(runtime, images)
        self._cache: dict[tuple[str, bytes], tuple[int, bytes]] = {}
        # What is noted of a call costs as much as its answer.
        self._unnoted: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            path: grpc.unary_unary_rpc_method_handler(partial(self._carry_out, method))
            for path, method in self._methods.items()
            if not method.streaming
        }
        self._lock = threading.Lock()
        self._open: dict[int, RecordedCall] = {}

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a call; ``None``, and so UNIMPLEMENTED, for what the CRI does not have."""
        path = handler_call_details.method
        v1_path = v1alpha2.v1_path(path)
        is_old = v1_path != path
        if is_old and not self._serves_v1alpha2:
            return _unimplemented(f"unknown service {path.split('/')[1]}")
        method = self._methods.get(v1_path)
        if method is None:
            return None
        if is_old and method.name not in V1ALPHA2_METHODS:
            return _unimplemented(f"unknown method {method.name} for service {path.split('/')[1]}")
        if is_old and method.name == "Version":
            method = replace(method, answer=_old_version(method.answer))
        behaviour = self.behaviours.take(method.name)
        if behaviour is NORMAL and self.recorded is None and v1_path in self._unnoted and not is_old:
            return self._unnoted[v1_path]
        handling = Handling(method, path, behaviour, self._carry_out, self._opened, self._closed)
        if method.streaming:
            return grpc.unary_stream_rpc_method_handler(handling.stream)
        if behaviour.before_message:
            return grpc.stream_unary_rpc_method_handler(handling.early)
        return grpc.unary_unary_rpc_method_handler(handling.unary)

    def release(self, method: str | None = None) -> None:
        """Lets the calls of a method (``None``: of all) that hang or are delayed go on."""
        with self._lock:
            for call in self._open.values():
                if method in {None, call.method}:
                    call.resumed.set()

    def _opened(self, call: RecordedCall) -> None:
        with self._lock:
            if not call.ended.is_set():
                self._open[id(call)] = call
        if self.recorded is not None:
            self.recorded.add(call)

    def _closed(self, call: RecordedCall) -> None:
        with self._lock:
            self._open.pop(id(call), None)

    def _carry_out(self, method: Method, raw: bytes, context: grpc.ServicerContext) -> bytes:
        if method.name not in _CACHED:
            return _serialized(method, raw, context)
        generation = self._state.generation
        remembered = self._cache.get((method.name, raw))
        if remembered is not None and remembered[0] == generation:
            return remembered[1]
        answer = _serialized(method, raw, context)
        if len(self._cache) >= _CACHE_SIZE:
            self._cache.clear()
        self._cache[method.name, raw] = (generation, answer)
        return answer


def methods_by_path(runtime: FakeRuntimeService, images: FakeImageService) -> dict[str, Method]:
    """All methods of the CRI by their path in ``runtime.v1``."""
    servicers = {v1.RUNTIME_SERVICE: runtime, v1.IMAGE_SERVICE: images}
    return {
        f"/{service.full_name}/{method.name}": Method(
            method.name,
            getattr(api_pb2, method.input_type.name),
            getattr(servicers[service.full_name], method.name),
            method.server_streaming,
        )
        for service in api_pb2.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def _unimplemented(message: str) -> grpc.RpcMethodHandler[Any, Any]:
    """Ends a call as servers in Go end what they do not know."""

    def end(_: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        CallError("UNIMPLEMENTED", message).abort(context)

    return grpc.stream_unary_rpc_method_handler(end)


def _old_version(answer: Callable[..., Any]) -> Callable[..., Any]:
    def old(request: api_pb2.VersionRequest, context: grpc.ServicerContext) -> api_pb2.VersionResponse:
        response: api_pb2.VersionResponse = answer(request, context)
        response.runtime_api_version = "v1alpha2"
        return response

    return old


def _serialized(method: Method, raw: bytes, context: grpc.ServicerContext) -> bytes:
    answer: bytes = method.answer(method.request_type.FromString(raw), context).SerializeToString()
    return answer
