"""Calls of the fake runtime on raw messages: found by path, recorded, delayed or failed, carried out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import grpc
from google.protobuf.message import Message

from cri_api.runtime import v1, v1alpha2
from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.behaviours import NORMAL, Behaviour, Behaviours, CallError, checked_name
from runtimeproxy.testing.services import FakeImageService, FakeRuntimeService

METHOD_NAMES = frozenset(
    method.name for service in api_pb2.DESCRIPTOR.services_by_name.values() for method in service.methods
)
"""Names of all methods of the CRI."""


@dataclass
class RecordedCall:
    """One call.

    Attributes:
        method: Name of the method, such as ``CreateContainer``.
        path: Path as the client sent it; distinguishes ``runtime.v1`` and ``runtime.v1alpha2``.
        raw: Request message as bytes; empty where the fake answered before the message.
        metadata: Request headers that gRPC shows to a server.
        deadline_s: Seconds left when the call arrived; ``None`` without a deadline.
        at_s: Time of arrival, of the monotonic clock.
        answered: Whether the fake has answered, be it with an error.
        ended: Set when the call is over for gRPC: its status was sent, or it was cancelled.
        resumed: Set to end a delay or hang.
    """

    method: str
    path: str
    raw: bytes
    metadata: tuple[tuple[str, str | bytes], ...]
    deadline_s: float | None
    request_type: type[Message] = field(repr=False)
    at_s: float = field(default_factory=time.monotonic)
    answered: bool = False
    ended: threading.Event = field(default_factory=threading.Event, repr=False)
    resumed: threading.Event = field(default_factory=threading.Event, repr=False)

    @cached_property
    def message(self) -> Any:  # noqa: ANN401 - a class of its own for each method
        """The request as a message of ``api_pb2``."""
        return self.request_type.FromString(self.raw)

    @property
    def cancelled(self) -> bool:
        """Whether the call ended before the fake answered: cancelled, or past its deadline."""
        return self.ended.is_set() and not self.answered


class RecordedCalls:
    """Calls in the order of arrival, safe to read while calls come in."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._calls: list[RecordedCall] = []

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[RecordedCall]:
        return iter(list(self._calls))

    def __getitem__(self, index: int) -> RecordedCall:
        return self._calls[index]

    @property
    def methods(self) -> list[str]:
        """Names of the methods in the order of arrival."""
        return [call.method for call in self]

    def of(self, method: str) -> list[RecordedCall]:
        """Calls of one method; ValueError if the CRI has no such method."""
        checked_name(method, METHOD_NAMES, "method")
        return [call for call in self if call.method == method]

    def add(self, call: RecordedCall) -> None:
        """Adds a call."""
        with self._arrived:
            self._calls.append(call)
            self._arrived.notify_all()

    def clear(self) -> None:
        """Forgets all calls."""
        with self._arrived:
            self._calls.clear()

    def wait(self, method: str, count: int = 1, timeout_s: float = 30.0) -> list[RecordedCall]:
        """Waits until ``count`` calls of a method have arrived and returns all of them.

        Raises:
            TimeoutError: They have not within the time.
            ValueError: The CRI has no such method.
        """
        checked_name(method, METHOD_NAMES, "method")
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.of(method)) >= count, timeout_s):
                raise TimeoutError(f"{len(self.of(method))} of {count} calls of {method}")
            return self.of(method)


_NO_DEADLINE_S = 1e9
"""gRPC reports far more than this as left of a call without a deadline."""

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
"""Methods of ``runtime.v1alpha2``. Source: what containerd 1.6.20 answers there (tests/e2e)."""


@dataclass(frozen=True)
class CriMethod:
    """One method of the CRI.

    Attributes:
        name: Name of the method.
        request_type: Class of the request message.
        answer: Method of a service: from the request to the response or, if streaming, from the request and
            its context to the responses. Raises ``CallError``.
        streaming: Whether the answer is a stream.
    """

    name: str
    request_type: type[Message]
    answer: Callable[..., Any]
    streaming: bool


class CallDispatch(grpc.GenericRpcHandler):
    """Serves ``runtime.v1`` and ``runtime.v1alpha2``.

    Attributes:
        behaviours: Looked up for each call.
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
        self._methods = _methods_by_path(runtime, images)
        self._cache: dict[tuple[str, bytes], tuple[int, bytes]] = {}
        # Recording a call costs as much as answering it; with record=False these handlers skip that.
        self._unrecorded: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            path: grpc.unary_unary_rpc_method_handler(partial(self.carry_out, method))
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
        is_v1alpha2 = v1_path != path
        if is_v1alpha2 and not self._serves_v1alpha2:
            return _unimplemented(f"unknown service {path.split('/')[1]}")
        method = self._methods.get(v1_path)
        if method is None:
            return None
        if is_v1alpha2 and method.name not in V1ALPHA2_METHODS:
            return _unimplemented(f"unknown method {method.name} for service {path.split('/')[1]}")
        if is_v1alpha2 and method.name == "Version":
            method = replace(method, answer=partial(_v1alpha2_version, method.answer))
        behaviour = self.behaviours.take(method.name)
        if behaviour is NORMAL and self.recorded is None and v1_path in self._unrecorded and not is_v1alpha2:
            return self._unrecorded[v1_path]
        handler = _RecordedHandler(self, method, path, behaviour)
        if method.streaming:
            return grpc.unary_stream_rpc_method_handler(handler.stream)
        if behaviour.before_message:
            return grpc.stream_unary_rpc_method_handler(handler.before_message)
        return grpc.unary_unary_rpc_method_handler(handler.unary)

    def carry_out(self, method: CriMethod, raw: bytes, context: grpc.ServicerContext) -> bytes:
        """The serialized answer of a unary call; long lists are remembered until the state changes."""
        generation = self._state.generation
        cached = self._cache.get((method.name, raw))
        if cached is not None and cached[0] == generation:
            return cached[1]
        try:
            message = method.answer(method.request_type.FromString(raw))
        except CallError as error:
            error.abort(context)
        answer: bytes = message.SerializeToString()
        if method.name in _CACHED:
            if len(self._cache) >= _CACHE_SIZE:
                self._cache.clear()
            self._cache[method.name, raw] = (generation, answer)
        return answer

    def release(self, method: str | None = None) -> None:
        """Lets the calls of a method (``None``: of all) that hang or are delayed go on."""
        with self._lock:
            for call in self._open.values():
                if method in {None, call.method}:
                    call.resumed.set()

    def on_open(self, call: RecordedCall) -> None:
        """Records a call that has arrived."""
        with self._lock:
            if not call.ended.is_set():
                self._open[id(call)] = call
        if self.recorded is not None:
            self.recorded.add(call)

    def on_end(self, call: RecordedCall) -> None:
        """Notes that a call is over."""
        call.ended.set()
        call.resumed.set()
        with self._lock:
            self._open.pop(id(call), None)


@dataclass(frozen=True)
class _RecordedHandler:
    """Handles one call: records it, delays or fails it as its behaviour says, carries it out."""

    dispatch: CallDispatch
    method: CriMethod
    path: str
    behaviour: Behaviour

    def unary(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        call = self._open(raw, context)
        if not self.behaviour.after:
            self._obstruct(call, context)
        response = self.behaviour.response
        if response is None:
            response = self.dispatch.carry_out(self.method, raw, context)
        if self.behaviour.after:
            self._obstruct(call, context)
        call.answered = True
        return response if isinstance(response, bytes) else response.SerializeToString()

    def before_message(self, _: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        return self.unary(b"", context)

    def stream(self, raw: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        call = self._open(raw, context)
        if not self.behaviour.after:
            self._obstruct(call, context)
        try:
            for message in self.method.answer(self.method.request_type.FromString(raw), context):
                yield message.SerializeToString()
        except CallError as error:
            error.abort(context)
        if self.behaviour.after:
            self._obstruct(call, context)
        call.answered = True

    def _open(self, raw: bytes, context: grpc.ServicerContext) -> RecordedCall:
        left_s = context.time_remaining()
        call = RecordedCall(
            method=self.method.name,
            path=self.path,
            raw=raw,
            metadata=tuple((entry[0], entry[1]) for entry in context.invocation_metadata()),
            deadline_s=left_s if left_s < _NO_DEADLINE_S else None,
            request_type=self.method.request_type,
        )
        if not context.add_callback(lambda: self.dispatch.on_end(call)):
            self.dispatch.on_end(call)
        self.dispatch.on_open(call)
        if self.behaviour.gzip:
            context.set_compression(grpc.Compression.Gzip)
        if self.behaviour.initial_metadata:
            context.send_initial_metadata(self.behaviour.initial_metadata)
        if self.behaviour.trailing_metadata:
            context.set_trailing_metadata(self.behaviour.trailing_metadata)
        return call

    def _obstruct(self, call: RecordedCall, context: grpc.ServicerContext) -> None:
        if self.behaviour.delay_s:
            call.resumed.wait(self.behaviour.delay_s)
        if self.behaviour.hang:
            call.resumed.wait()
        if call.ended.is_set():
            CallError("CANCELLED", "the call ended before it was carried out").abort(context)
        if self.behaviour.error is not None:
            call.answered = True
            self.behaviour.error.abort(context)


def _methods_by_path(runtime: FakeRuntimeService, images: FakeImageService) -> dict[str, CriMethod]:
    """All methods of the CRI by their path in ``runtime.v1``."""
    services = {v1.RUNTIME_SERVICE: runtime, v1.IMAGE_SERVICE: images}
    return {
        f"/{service.full_name}/{method.name}": CriMethod(
            method.name,
            getattr(api_pb2, method.input_type.name),
            getattr(services[service.full_name], method.name),
            method.server_streaming,
        )
        for service in api_pb2.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def _unimplemented(message: str) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler that refuses a call as servers in Go refuse an unknown one."""

    def refuse(_: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        CallError("UNIMPLEMENTED", message).abort(context)

    return grpc.stream_unary_rpc_method_handler(refuse)


def _v1alpha2_version(
    answer: Callable[..., api_pb2.VersionResponse], request: api_pb2.VersionRequest
) -> api_pb2.VersionResponse:
    response = answer(request)
    response.runtime_api_version = "v1alpha2"
    return response
