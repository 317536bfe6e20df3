"""gRPC reflection of the CRI, so that grpcurl works on the kubelet's socket without a proto file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from cri_api.runtime.v1 import api_pb2

if TYPE_CHECKING:
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
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        tuple(
            grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})
            for name in (V1, V1ALPHA)
        )
    )
