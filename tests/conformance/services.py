"""Services beside the CRI on the fake runtime's socket: real gRPC methods on bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc

ECHO = "/conformance.Bytes/Echo"
"""Unary: gives the request back."""
CONVERSE = "/conformance.Bytes/Converse"
"""Bidirectional: gives each message back at once, and `over` at the end of the requests."""
COUNT = "/conformance.Bytes/Count"
"""Server stream: the request `COUNT SIZE` gives so many messages of so many bytes, each with its number."""
FUTURE_METHOD = "/runtime.v1.RuntimeService/MethodOfALaterRelease"
"""Unary: a method that this release of the CRI does not know; gives the request back."""
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

BACKEND_HEALTH = b"\x08\x02\xf2\x3f\x07backend"
"""NOT_SERVING, which the daemon never says of a living runtime, and an unknown field."""

OVER = b"over"


def _echo(request: bytes, context: grpc.ServicerContext) -> bytes:
    return request


def _converse(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    yield from requests
    yield OVER


def _count(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    count, size = map(int, request.split())
    for number in range(count):
        yield numbered(number, size)


def numbered(number: int, size: int) -> bytes:
    """The message of `COUNT` with this number."""
    return number.to_bytes(8, "big").ljust(size, b"x")


def _health(request: bytes, context: grpc.ServicerContext) -> bytes:
    return BACKEND_HEALTH


class BytesServices(grpc.GenericRpcHandler):
    """Serves the paths above."""

    def __init__(self) -> None:
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            ECHO: grpc.unary_unary_rpc_method_handler(_echo),
            FUTURE_METHOD: grpc.unary_unary_rpc_method_handler(_echo),
            CONVERSE: grpc.stream_stream_rpc_method_handler(_converse),
            COUNT: grpc.unary_stream_rpc_method_handler(_count),
            HEALTH_CHECK: grpc.unary_unary_rpc_method_handler(_health),
        }

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._handlers.get(handler_call_details.method)
