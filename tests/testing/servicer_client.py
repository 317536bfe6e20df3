"""A client that calls the fake runtime by request messages."""

from typing import Any

import grpc
from google.protobuf.message import Message

from cri_api.runtime.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing import FakeRuntime, RuntimeState

METHODS = {
    method.input_type.name: method.name
    for service in api_pb2.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
TIMEOUT_S = 30.0


class Client:
    """Calls methods by the types of their requests."""

    def __init__(self, runtime: FakeRuntime, channel: grpc.Channel) -> None:
        self.state: RuntimeState = runtime.state
        self._stubs = (api_pb2_grpc.RuntimeServiceStub(channel), api_pb2_grpc.ImageServiceStub(channel))

    def call(self, request: Message) -> tuple[Any, grpc.StatusCode, str]:
        """Answer, code and message of the call that the request belongs to."""
        call = self._method(request).future(request, timeout=TIMEOUT_S)
        code = call.code()
        return call.result() if code is grpc.StatusCode.OK else None, code, call.details()

    def ok(self, request: Message) -> Any:
        """Answer of a call that succeeds."""
        return self._method(request)(request, timeout=TIMEOUT_S)

    def stream(self, request: Message, count: int) -> list[Any]:
        """The answers of a streaming call, which are ``count``."""
        responses = list(self._method(request)(request, timeout=TIMEOUT_S))
        assert len(responses) == count
        return responses

    def _method(self, request: Message) -> Any:
        name = METHODS[request.DESCRIPTOR.name]
        return next(getattr(stub, name) for stub in self._stubs if hasattr(stub, name))
