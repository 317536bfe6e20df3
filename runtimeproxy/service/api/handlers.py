"""The handlers of the API's services on a gRPC server. Imports grpc, so not for the event loop's thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from runtimeproxy.service.api.loading import METHODS, MOST_BYTES, MOST_CALLS, STREAMS

if TYPE_CHECKING:
    from grpc.aio import ServicerContext

    from runtimeproxy.service.api.loading import Load

    Context = ServicerContext[bytes, bytes]

logger = logging.getLogger(__name__)

REQUEST_S: Final = 10.0
"""How long the message of such a call may take to come."""
INTERNAL: Final = "an error in the daemon; its log has it"


def handlers(service: str, load: Load) -> grpc.GenericRpcHandler:
    """The handlers of a service whose messages are imported at its first call."""
    methods: dict[str, Any] = {}
    for name in METHODS[service]:
        stream, unary = partial(_stream, load, service, name), partial(_unary, load, service, name)
        if name in MOST_CALLS:
            admission = _Admission(name)
            # On the wire its request is one message; so that is read when the handler reads it.
            methods[name] = (
                grpc.stream_stream_rpc_method_handler(partial(admission.stream, stream))
                if name in STREAMS
                else grpc.stream_unary_rpc_method_handler(partial(admission.unary, unary))
            )
        elif name in STREAMS:
            methods[name] = grpc.unary_stream_rpc_method_handler(stream)
        else:
            methods[name] = grpc.unary_unary_rpc_method_handler(unary)
    return grpc.method_handlers_generic_handler(service, methods)


class _Admission:
    """Calls of one method on one socket: some at a time; others are refused before their messages are read.

    Each socket has a number of its own: clients of the kubelet's do not keep those of the admin socket out.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls = 0

    async def unary(
        self,
        handle: Callable[[bytes, Context], Awaitable[bytes]],
        messages: AsyncIterator[bytes],
        context: Context,
    ) -> bytes:
        async with self._admitted(messages, context) as data:
            return await handle(data, context)

    async def stream(
        self,
        handle: Callable[[bytes, Context], AsyncGenerator[bytes, None]],
        messages: AsyncIterator[bytes],
        context: Context,
    ) -> AsyncGenerator[bytes, None]:
        async with self._admitted(messages, context) as data, aclosing(handle(data, context)) as responses:
            async for response in responses:
                yield response

    @asynccontextmanager
    async def _admitted(self, messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """Admits a call, and reads its request."""
        if self._calls >= MOST_CALLS[self._name]:
            text = f"{self._calls} calls of {self._name} are under way already; call again"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._calls += 1
        try:
            try:
                async with asyncio.timeout(REQUEST_S):
                    data = await anext(messages, b"")
            except TimeoutError:
                text = f"the request did not come within {REQUEST_S:g} s"
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, text)
            yield data
        finally:
            self._calls -= 1


async def _unary(load: Load, service: str, name: str, data: bytes, context: Context) -> bytes:
    try:
        servicer = await load()
        request = await _parsed(service, name, data, context)
        response = await getattr(servicer, name)(request, context)
    except grpc.aio.AbortError:
        raise
    except Exception:  # a bug costs this call
        logger.exception("%s of the API failed", name)
        await context.abort(grpc.StatusCode.INTERNAL, INTERNAL)
    return _bytes_of(response)


async def _stream(
    load: Load, service: str, name: str, data: bytes, context: Context
) -> AsyncGenerator[bytes, None]:
    try:
        servicer = await load()
        request = await _parsed(service, name, data, context)
        async for response in getattr(servicer, name)(request, context):
            yield _bytes_of(response)
    except grpc.aio.AbortError:
        raise
    except Exception:
        logger.exception("%s of the API failed", name)
        await context.abort(grpc.StatusCode.INTERNAL, INTERNAL)


async def _parsed(service: str, name: str, data: bytes, context: Context) -> Any:  # noqa: ANN401 - a message
    from cri_api.runtimeproxy.v1 import api_pb2

    if len(data) > MOST_BYTES.get(name, len(data)):
        text = f"the request has {len(data)} bytes, at most {MOST_BYTES[name]} are possible"
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
    method = api_pb2.DESCRIPTOR.services_by_name[service.rpartition(".")[2]].methods_by_name[name]
    try:
        return getattr(api_pb2, method.input_type.name).FromString(data)
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request cannot be read")


def _bytes_of(message: Any) -> bytes:  # noqa: ANN401 - a message
    data: bytes = message.SerializeToString()
    return data
