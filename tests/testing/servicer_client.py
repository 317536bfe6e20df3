"""A client of the servicers on grpcio-testing's server."""

from typing import Any

import grpc
import grpc_testing
from google.protobuf.message import Message

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import RuntimeState
from runtimeproxy.testing.events import EventBroadcast
from runtimeproxy.testing.image_service import FakeImageService
from runtimeproxy.testing.runtime_service import FakeRuntimeService

SERVICES = api_pb2.DESCRIPTOR.services_by_name
METHODS = [method for service in SERVICES.values() for method in service.methods]


class Client:
    """Calls the servicers by the names of the methods."""

    def __init__(self, state: RuntimeState) -> None:
        self.state = state
        servicers = {
            SERVICES["RuntimeService"]: FakeRuntimeService(state, EventBroadcast(state)),
            SERVICES["ImageService"]: FakeImageService(state),
        }
        self._server = grpc_testing.server_from_dictionary(servicers, grpc_testing.strict_real_time())

    def call(self, request: Message) -> tuple[Any, grpc.StatusCode, str]:
        """Answer, code and message of the call that the request belongs to."""
        rpc = self._server.invoke_unary_unary(self._method(request), (), request, None)
        response, _, code, details = rpc.termination()
        return response, code, details

    def ok(self, request: Message) -> Any:
        """Answer of a call that succeeds."""
        response, code, details = self.call(request)
        assert code is grpc.StatusCode.OK, details
        return response

    def stream(self, request: Message, count: int) -> list[Any]:
        """The answers of a streaming call, which are ``count``."""
        rpc = self._server.invoke_unary_stream(self._method(request), (), request, None)
        responses = [rpc.take_response() for _ in range(count)]
        _, code, details = rpc.termination()
        assert code is grpc.StatusCode.OK, details
        return responses

    def _method(self, request: Message) -> Any:
        return next(method for method in METHODS if method.input_type.name == request.DESCRIPTOR.name)
