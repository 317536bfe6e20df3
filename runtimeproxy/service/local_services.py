"""gRPC health, reflection and the API on the kubelet's socket.

Health is that of the runtime; reflection describes the CRI and the API, so that grpcurl works without a proto
file.
Importing protobuf takes long, so this module is imported in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.errors import StatusCode
from runtimeproxy.http2.server import Budget, GrpcServer, ServedMethod, ServerCall
from runtimeproxy.logs import FailureLog
from runtimeproxy.service.api.handlers import Context, api_methods, methods
from runtimeproxy.service.api.loading import SMALL_BYTES

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor

    from runtimeproxy.service.api.loading import Load

SERVICES: Final = ("", "runtime.v1.RuntimeService", "runtime.v1.ImageService")
"""Names that can be checked; the empty one is the whole daemon."""
SERVING: Final = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN: Final = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
WATCH_INTERVAL_S: Final = 1.0
"""Between two checks of the watches. Source: the kubelet's own Status interval is 5 s."""
HEALTH: Final[Any] = health_pb2.DESCRIPTOR.services_by_name["Health"]
"""Types of the library and of protobuf differ."""
_NO_API: Final[Mapping[str, Load]] = MappingProxyType({})
V1: Final = "grpc.reflection.v1.ServerReflection"
"""Has the same messages as v1alpha under another name. Source: grpc/reflection/v1/reflection.proto."""
V1ALPHA: Final = "grpc.reflection.v1alpha.ServerReflection"


def make_server(
    probe: Callable[[], Awaitable[bool]],
    stopping: asyncio.Event,
    api: Mapping[str, Load] = _NO_API,
    budget: Budget | None = None,
) -> GrpcServer:
    """A server of health, reflection and the API.

    Args:
        probe: asks the runtime something cheap; returns whether it answered in time. Never raises.
        stopping: set when the daemon drains: from then on nothing is serving.
        api: what loads each service of the API, by full name.
        budget: of all such servers together; None for one of its own.
    """
    failures, health = FailureLog(), RuntimeHealth(probe, stopping)

    async def load() -> RuntimeHealth:
        return health

    names = [method.name for method in HEALTH.methods]
    served = methods(HEALTH.full_name, names, load, lambda: HEALTH, failures)
    reflection = Reflection(tuple(api), failures)
    for name in (V1, V1ALPHA):
        served[f"/{name}/ServerReflectionInfo"] = ServedMethod(reflection.reflect, SMALL_BYTES)
    for service, load_api in api.items():
        served |= api_methods(service, load_api, failures)
    return GrpcServer(served, budget or Budget(), failures)


class RuntimeHealth:
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
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """Whether a service is serving now; NOT_FOUND for unknown names."""
        if request.service not in SERVICES:
            await context.abort(StatusCode.NOT_FOUND, "unknown service")
        return health_pb2.HealthCheckResponse(status=await self._status())

    async def Watch(  # noqa: N802  # the method's name in the service
        self, request: health_pb2.HealthCheckRequest, _context: Context
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
    return (*cri, HEALTH.full_name, *api, V1ALPHA)


class Reflection:
    """Describes services: which there are, and the files of their messages.

    Args:
        api: full names of the services of the API.
    """

    def __init__(self, api: Sequence[str], failures: FailureLog) -> None:
        self._api = api
        self._failures = failures

    async def reflect(self, call: ServerCall) -> None:
        """Answers one request after the other."""
        if self._api:
            importlib.import_module("cri_api.runtimeproxy.v1.api_pb2")  # takes some milliseconds, once
        while (data := await call.message()) is not None:
            try:
                request = reflection_pb2.ServerReflectionRequest.FromString(data)
            except DecodeError:
                text = "a request of ServerReflectionInfo cannot be read"
                self._failures.report("own services", text, text)
                await call.abort(StatusCode.INVALID_ARGUMENT, "the request cannot be read")
            await call.send(self.response(request).SerializeToString())

    def response(
        self, request: reflection_pb2.ServerReflectionRequest
    ) -> reflection_pb2.ServerReflectionResponse:
        response = self._found(request)
        response.valid_host = request.host
        response.original_request.CopyFrom(request)
        return response

    def _found(
        self, request: reflection_pb2.ServerReflectionRequest
    ) -> reflection_pb2.ServerReflectionResponse:
        """Source: grpc/reflection/v1alpha/reflection.proto."""
        pool = descriptor_pool.Default()
        try:
            match request.WhichOneof("message_request"):
                case "list_services":
                    names = map(_service, reflected_services(self._api))
                    listed = reflection_pb2.ListServiceResponse(service=names)
                    return reflection_pb2.ServerReflectionResponse(list_services_response=listed)
                case "file_by_filename":
                    return _file_response(pool.FindFileByName(request.file_by_filename))
                case "file_containing_symbol":
                    return _file_response(pool.FindFileContainingSymbol(request.file_containing_symbol))
                case "file_containing_extension":
                    wanted = request.file_containing_extension
                    message = pool.FindMessageTypeByName(wanted.containing_type)
                    found: Any = pool.FindExtensionByNumber(message, wanted.extension_number)
                    return _file_response(found.file)
                case "all_extension_numbers_of_type":
                    message = pool.FindMessageTypeByName(request.all_extension_numbers_of_type)
                    numbers = reflection_pb2.ExtensionNumberResponse(
                        base_type_name=message.full_name,
                        extension_number=sorted(each.number for each in pool.FindAllExtensions(message)),
                    )
                    return reflection_pb2.ServerReflectionResponse(all_extension_numbers_response=numbers)
        except KeyError:
            return _error(StatusCode.NOT_FOUND)
        return _error(StatusCode.INVALID_ARGUMENT)


def _service(name: str) -> reflection_pb2.ServiceResponse:
    return reflection_pb2.ServiceResponse(name=name)


def _error(code: StatusCode) -> reflection_pb2.ServerReflectionResponse:
    error = reflection_pb2.ErrorResponse(error_code=code, error_message=code.name)
    return reflection_pb2.ServerReflectionResponse(error_response=error)


def _file_response(file: FileDescriptor) -> reflection_pb2.ServerReflectionResponse:
    """A file and all that it imports, with the JSON names of fields.

    Generated code leaves these names out, and clients print them.
    """
    files: dict[str, bytes] = {}
    left = [file]
    while left:
        each = left.pop()
        if each.name not in files:
            files[each.name] = _with_json_names(each.serialized_pb)
            left += each.dependencies
    described = reflection_pb2.FileDescriptorResponse(file_descriptor_proto=files.values())
    return reflection_pb2.ServerReflectionResponse(file_descriptor_response=described)


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
