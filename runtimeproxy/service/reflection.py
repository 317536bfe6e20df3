"""gRPC reflection of the CRI, so that grpcurl works on the kubelet's socket without a proto file."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import grpc
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from cri_api.runtime.v1 import api_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    import grpc.aio

V1: Final = "grpc.reflection.v1.ServerReflection"
"""Has the same messages as v1alpha under another name. Source: grpc/reflection/v1/reflection.proto."""
V1ALPHA: Final = "grpc.reflection.v1alpha.ServerReflection"


def reflected_services() -> tuple[str, ...]:
    """Full names of the services that reflection lists."""
    cri = [service.full_name for service in api_pb2.DESCRIPTOR.services_by_name.values()]
    own = [service.full_name for service in health_pb2.DESCRIPTOR.services_by_name.values()]
    return (*cri, *own, V1ALPHA)


def add_to(server: grpc.aio.Server) -> None:
    """Serves reflection, in both versions of its name."""
    servicer = reflection.aio.ReflectionServicer(reflected_services())
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
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
    """The answer with the JSON names of fields, which generated code leaves out and clients print."""
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
