"""gRPC health, reflection and the API on the kubelet's socket.

Health is that of the runtime; reflection describes the CRI and the API, so that grpcurl works without a proto
file.
Importing grpc takes long, so this module is imported in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.service.api.handlers import handlers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from grpc.aio import ServicerContext

    from runtimeproxy.service.api.loading import Load

SERVICES: Final = ("", "runtime.v1.RuntimeService", "runtime.v1.ImageService")
"""Names that can be checked; the empty one is the whole daemon."""
SERVING: Final = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN: Final = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
WATCH_INTERVAL_S: Final = 1.0
"""Between two checks of the watches. Source: the kubelet's own Status interval is 5 s."""
MOST_STREAMS: Final = 256
"""Calls of one connection at a time; more wait in the client. Each costs some 16 KiB."""
_NO_API: Final[Mapping[str, Load]] = MappingProxyType({})
V1: Final = "grpc.reflection.v1.ServerReflection"
"""Has the same messages as v1alpha under another name. Source: grpc/reflection/v1/reflection.proto."""
V1ALPHA: Final = "grpc.reflection.v1alpha.ServerReflection"


def make_server(
    socket_path: str,
    probe: Callable[[], Awaitable[bool]],
    stopping: asyncio.Event,
    api: Mapping[str, Load] = _NO_API,
) -> grpc.aio.Server:
    """A server of health, reflection and the API on a socket, to be started.

    Args:
        socket_path: where it listens.
        probe: asks the runtime something cheap; returns whether it answered in time. Never raises.
        stopping: set when the daemon drains: from then on nothing is serving.
        api: what loads each service of the API, by full name.
    """
    server = grpc.aio.server(options=[("grpc.max_concurrent_streams", MOST_STREAMS)])
    health_pb2_grpc.add_HealthServicer_to_server(RuntimeHealth(probe, stopping), server)
    add_reflection(server, tuple(api))
    server.add_generic_rpc_handlers(tuple(handlers(service, load) for service, load in api.items()))
    server.add_insecure_port(f"unix:{socket_path}")
    return server


class RuntimeHealth(health_pb2_grpc.HealthServicer):
    """The runtime's health, by a call to it at each check, and by one call a second for all watches.

    See `make_server`.
    """

    def __init__(self, probe: Callable[[], Awaitable[bool]], stopping: asyncio.Event) -> None:
        self._probe = probe
        self._stopping = stopping
        self._watches = 0
        self._polling: asyncio.Task[None] | None = None
        self._latest: int | None = None
        self._changed = asyncio.Event()

    async def Check(  # noqa: N802  # the method's name in the service
        self,
        request: health_pb2.HealthCheckRequest,
        context: ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse],
    ) -> health_pb2.HealthCheckResponse:
        """Whether a service is serving now; NOT_FOUND for unknown names."""
        if request.service not in SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return health_pb2.HealthCheckResponse(status=await self._status())

    async def Watch(  # noqa: N802  # the method's name in the service
        self,
        request: health_pb2.HealthCheckRequest,
        context: ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse],
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Sends the status now and whenever it changes."""
        last: int | None = None
        self._begin_watch()
        try:
            while last != NOT_SERVING or not self._stopping.is_set():
                changed = self._changed
                status = self._latest if request.service in SERVICES else SERVICE_UNKNOWN
                if self._stopping.is_set():
                    status = NOT_SERVING
                if status in (None, last):
                    await changed.wait()
                else:
                    yield health_pb2.HealthCheckResponse(status=status)
                    last = status
        finally:
            self._end_watch()

    def _begin_watch(self) -> None:
        self._watches += 1
        if self._watches == 1:
            self._polling = asyncio.get_running_loop().create_task(self._poll())

    def _end_watch(self) -> None:
        self._watches -= 1
        if not self._watches and self._polling is not None:
            self._polling.cancel()
            self._polling = self._latest = None

    async def _poll(self) -> None:
        """Checks for all watches, and wakes them when the status changes or the daemon drains."""
        while not self._stopping.is_set():
            status = await self._status()
            if status != self._latest:
                self._latest = status
                self._wake()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH_INTERVAL_S):
                    await self._stopping.wait()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _status(self) -> int:
        if not self._stopping.is_set() and await self._probe():
            return SERVING
        return NOT_SERVING


def reflected_services(api: Sequence[str] = ()) -> tuple[str, ...]:
    """Full names of the services in the reflection's list, with those of the API."""
    cri = [service.full_name for service in api_pb2.DESCRIPTOR.services_by_name.values()]
    own = [service.full_name for service in health_pb2.DESCRIPTOR.services_by_name.values()]
    return (*cri, *own, *api, V1ALPHA)


def add_reflection(server: grpc.aio.Server, api: Sequence[str] = ()) -> None:
    """Serves reflection under both versions of its name."""
    # The library's types call an asynchronous generator a coroutine.
    servicer: Any = reflection.aio.ReflectionServicer(reflected_services(api))

    async def reflect(requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - the library's
        if api:
            importlib.import_module("cri_api.runtimeproxy.v1.api_pb2")  # takes some milliseconds, once
        async for response in servicer.ServerReflectionInfo(requests, context):
            yield response

    handler = grpc.stream_stream_rpc_method_handler(
        reflect,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=_serialized,
    )
    server.add_generic_rpc_handlers(
        tuple(
            grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})
            for name in (V1, V1ALPHA)
        )
    )


def _serialized(response: reflection_pb2.ServerReflectionResponse) -> bytes:
    """The response with the JSON names of fields, which generated code leaves out and clients print."""
    files = response.file_descriptor_response.file_descriptor_proto
    for index, data in enumerate(files):
        files[index] = _with_json_names(data)
    return response.SerializeToString()


@lru_cache(maxsize=16)
def _with_json_names(data: bytes) -> bytes:
    file = FileDescriptorProto.FromString(data)
    _add_json_names(file.message_type)
    return file.SerializeToString()


def _add_json_names(messages: Iterable[DescriptorProto]) -> None:
    for message in messages:
        _add_json_names(message.nested_type)
        for field in message.field:
            if not field.json_name:
                field.json_name = json_name(field.name)


def json_name(name: str) -> str:
    """The name of a field in JSON. Source: protobuf, language guide, JSON mapping (lowerCamelCase)."""
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)
