"""The usual way to write a proxy in Python: grpc.aio with handlers that pass message bytes on undecoded.

Unary calls, which is nearly all of the CRI, are forwarded as unary: grpc.aio takes twice as long to forward
them as streams, and the reference is to be a good one.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import uvloop

if TYPE_CHECKING:
    _Handler = grpc.RpcMethodHandler[bytes, bytes]

_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def streams(method: str) -> bool:
    """Whether the CRI's method `/service/name` answers with a stream."""
    return method.rpartition("/")[2].startswith(("GetContainerEvents", "Stream"))


class Forwarder(grpc.GenericRpcHandler):
    """Answers every method by calling the same one upstream."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel: Any = channel
        self.handlers: dict[str, _Handler] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> _Handler:
        method = handler_call_details.method
        handler = self.handlers.get(method)
        if handler is None:
            make = self._streaming if streams(method) else self._unary
            handler = self.handlers[method] = make(method)
        return handler

    def _unary(self, method: str) -> _Handler:
        upstream = self.channel.unary_unary(method)

        async def forward(request: bytes, context: Any) -> bytes:
            try:
                answer: bytes = await _called(upstream, request, context)
            except grpc.aio.AioRpcError as error:
                await _refuse(error, context)
                return b""
            return answer

        return grpc.unary_unary_rpc_method_handler(_erased(forward))

    def _streaming(self, method: str) -> _Handler:
        upstream = self.channel.unary_stream(method)

        async def forward(request: bytes, context: Any) -> AsyncIterator[bytes]:
            try:
                async for message in _called(upstream, request, context):
                    yield message
            except grpc.aio.AioRpcError as error:
                await _refuse(error, context)

        return grpc.unary_stream_rpc_method_handler(_erased(forward))


def _erased(forward: Callable[..., Any]) -> Any:
    """The same function; the stubs know grpc's synchronous handlers only."""
    return forward


def _called(upstream: Any, request: bytes, context: Any) -> Any:
    metadata = tuple(
        (key, value)
        for key, value in context.invocation_metadata()
        if not key.startswith((":", "grpc-")) and key != "user-agent"
    )
    return upstream(request, timeout=context.time_remaining(), metadata=metadata)


async def _refuse(error: grpc.aio.AioRpcError, context: Any) -> None:
    await context.abort(error.code(), error.details() or "", error.trailing_metadata() or ())


async def serve(listen: str, upstream: str) -> None:
    """Forwards the calls on `listen` to `upstream`, until it is killed."""
    async with grpc.aio.insecure_channel(f"unix:{upstream}", options=_UNLIMITED) as channel:
        server = grpc.aio.server(options=_UNLIMITED)
        server.add_generic_rpc_handlers((Forwarder(channel),))
        server.add_insecure_port(f"unix:{listen}")
        await server.start()
        await server.wait_for_termination()


def main() -> None:
    """Command line: `--listen PATH --upstream PATH`."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.generic_proxy", description=__doc__)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--upstream", required=True)
    options = parser.parse_args()
    uvloop.run(serve(options.listen, options.upstream))


if __name__ == "__main__":
    main()
