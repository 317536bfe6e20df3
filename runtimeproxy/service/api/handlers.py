"""Joins servicers to the daemon's own gRPC server. Imports protobuf, so not for the event loop's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeAlias

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from runtimeproxy.errors import StatusCode
from runtimeproxy.http2.server import ServedMethod, ServerCall
from runtimeproxy.service.api.loading import METHODS, MOST_BYTES, MOST_CALLS, SMALL_BYTES

if TYPE_CHECKING:
    from google.protobuf.descriptor import ServiceDescriptor
    from google.protobuf.message import Message

    from runtimeproxy.logs import FailureLog
    from runtimeproxy.service.api.loading import Load

Context: TypeAlias = ServerCall
"""What a servicer sees of a call: `abort` ends it."""


def api_methods(service: str, load: Load, failures: FailureLog) -> dict[str, ServedMethod]:
    """The methods of a service of the API by path; its messages are imported at its first call."""

    def descriptor() -> ServiceDescriptor:
        from cri_api.runtimeproxy.v1 import api_pb2

        return api_pb2.DESCRIPTOR.services_by_name[service.rpartition(".")[2]]

    return methods(service, METHODS[service], load, descriptor, failures)


def methods(
    service: str,
    names: Iterable[str],
    load: Load,
    descriptor: Callable[[], ServiceDescriptor],
    failures: FailureLog,
) -> dict[str, ServedMethod]:
    """The methods of a service by path.

    `service`: its full name. `descriptor`: returns that of the service, once the servicer is loaded.
    `failures`: logs requests that cannot be read.
    """
    found = {}
    for name in names:
        calls = _Calls(name, load, descriptor, failures)
        most_bytes = MOST_BYTES.get(name, SMALL_BYTES)
        found[f"/{service}/{name}"] = ServedMethod(calls.answer, most_bytes, calls.refusal)
    return found


class _Calls:
    """The calls of one method on one socket: some at a time, others are refused.

    Each socket has a number of its own: clients of the kubelet's do not keep those of the admin socket out.
    Only calls whose request has come count.
    """

    def __init__(
        self, name: str, load: Load, descriptor: Callable[[], ServiceDescriptor], failures: FailureLog
    ) -> None:
        self._name = name
        self._load = load
        self._descriptor = descriptor
        self._failures = failures
        self._count = 0

    def refusal(self) -> str:
        """Why no other call is taken; empty if one is."""
        if self._count < MOST_CALLS.get(self._name, self._count + 1):
            return ""
        return f"{self._count} calls of {self._name} are under way already; call again"

    async def answer(self, call: ServerCall) -> None:
        if refusal := self.refusal():
            # Others may have come while this one's request did.
            await call.abort(StatusCode.RESOURCE_EXHAUSTED, refusal)
        self._count += 1
        try:
            servicer = await self._load()
            method = self._descriptor().methods_by_name[self._name]
            request = await self._request(GetMessageClass(method.input_type), call)
            if not method.server_streaming:
                await call.send(_bytes_of(await getattr(servicer, self._name)(request, call)))
                return
            # Closed at once when the client is gone, so that nothing is gathered for it.
            async with aclosing(getattr(servicer, self._name)(request, call)) as responses:
                async for response in responses:
                    await call.send(response.SerializeToString())
        finally:
            self._count -= 1

    async def _request(self, message: type[Message], call: ServerCall) -> Any:  # noqa: ANN401 - a message
        try:
            return message.FromString(await call.message() or b"")
        except DecodeError:
            text = f"a request of {self._name} cannot be read"
            self._failures.report("own services", text, text)
            await call.abort(StatusCode.INVALID_ARGUMENT, "the request cannot be read")


def _bytes_of(response: Message | bytes) -> bytes:
    # Long responses are serialized where they are made.
    return response if isinstance(response, bytes) else response.SerializeToString()
