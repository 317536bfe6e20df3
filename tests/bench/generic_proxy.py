"""The usual way to write a proxy in Python: grpc.aio with handlers that pass message bytes on undecoded.

A proxy that knows no schema cannot know which methods are unary, so each is forwarded as a stream both ways.
With `--unary` those that the CRI answers with one message are forwarded as unary calls, which costs a third
less: the best that grpc.aio can do if the methods are known, and cuts off what it does not know.
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

    def __init__(self, channel: grpc.aio.Channel, *, knows_unary: bool) -> None:
        self.channel: Any = channel
        self.knows_unary = knows_unary
        self.handlers: dict[str, _Handler] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> _Handler:
        method = handler_call_details.method
        handler = self.handlers.get(method)
        if handler is None:
            make = self._unary if self.knows_unary and not streams(method) else self._streaming
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
        upstream = self.channel.stream_stream(method)

        async def forward(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            try:
                async for message in _called(upstream, requests, context):
                    yield message
            except grpc.aio.AioRpcError as error:
                await _refuse(error, context)

        return grpc.stream_stream_rpc_method_handler(_erased(forward))


def _erased(forward: Callable[..., Any]) -> Any:
    """The same function; the stubs know grpc's synchronous handlers only."""
    return forward


def _called(upstream: Any, request: bytes | AsyncIterator[bytes], context: Any) -> Any:
    metadata = tuple(
        (key, value)
        for key, value in context.invocation_metadata()
        if not key.startswith((":", "grpc-")) and key != "user-agent"
    )
    return upstream(request, timeout=context.time_remaining(), metadata=metadata)


async def _refuse(error: grpc.aio.AioRpcError, context: Any) -> None:
    await context.abort(error.code(), error.details() or "", error.trailing_metadata() or ())


async def serve(listen: str, upstream: str, *, knows_unary: bool) -> None:
    """Forwards the calls on `listen` to `upstream`, until it is killed."""
    async with grpc.aio.insecure_channel(f"unix:{upstream}", options=_UNLIMITED) as channel:
        server = grpc.aio.server(options=_UNLIMITED)
        server.add_generic_rpc_handlers((Forwarder(channel, knows_unary=knows_unary),))
        server.add_insecure_port(f"unix:{listen}")
        await server.start()
        await server.wait_for_termination()


def main() -> None:
    """Command line: `--listen PATH --upstream PATH [--unary]`."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.generic_proxy", description=__doc__)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--unary", action="store_true", help="forward unary methods as unary calls")
    options = parser.parse_args()
    uvloop.run(serve(options.listen, options.upstream, knows_unary=options.unary))


if __name__ == "__main__":
    main()
