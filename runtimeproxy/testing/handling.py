"""One call of the fake runtime: recorded, obstructed as its behaviour says, carried out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from runtimeproxy.testing.behaviours import Behaviour
from runtimeproxy.testing.failures import CallError
from runtimeproxy.testing.records import RecordedCall

_NO_DEADLINE_S = 1e9
"""What gRPC reports as left of a call without a deadline is far above this."""


@dataclass(frozen=True)
class Method:
    """One method of the CRI.

    Attributes:
        name: Name of the method.
        request_type: Class of the request message.
        answer: Method of a servicer; gives a message or, if streaming, an iterator of messages.
        streaming: Whether the answer is a stream.
    """

    name: str
    request_type: type[Message]
    answer: Callable[[Any, grpc.ServicerContext], Any]
    streaming: bool


@dataclass(frozen=True)
class Handling:
    """How one call is handled.

    Attributes:
        method: The method called.
        path: Path as the client sent it.
        behaviour: What the test wants.
        carry_out: Gives the serialized answer of a unary call.
        opened: Told of the call before anything is done.
        closed: Told of the call once it is over.
    """

    method: Method
    path: str
    behaviour: Behaviour
    carry_out: Callable[[Method, bytes, grpc.ServicerContext], bytes]
    opened: Callable[[RecordedCall], None]
    closed: Callable[[RecordedCall], None]

    def unary(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        """Answers a call with one message."""
        call = self._begin(raw, context)
        response = self._response(raw, call, context)
        call.answered = True
        return response

    def early(self, _: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Answers a call with one message before its request has come."""
        return self.unary(b"", context)

    def stream(self, raw: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answers a call with a stream."""
        call = self._begin(raw, context)
        if not self.behaviour.after:
            self._obstruct(call, context)
        request = self.method.request_type.FromString(raw)
        for message in self.method.answer(request, context):
            yield message.SerializeToString()
        if self.behaviour.after:
            self._obstruct(call, context)
        call.answered = True

    def _begin(self, raw: bytes, context: grpc.ServicerContext) -> RecordedCall:
        left_s = context.time_remaining()
        call = RecordedCall(
            method=self.method.name,
            path=self.path,
            raw=raw,
            metadata=tuple((entry[0], entry[1]) for entry in context.invocation_metadata()),
            deadline_s=left_s if left_s < _NO_DEADLINE_S else None,
            request_type=self.method.request_type,
        )
        if not context.add_callback(lambda: self._end(call)):
            self._end(call)
        self.opened(call)
        self._decorate(context)
        return call

    def _end(self, call: RecordedCall) -> None:
        call.end()
        self.closed(call)

    def _decorate(self, context: grpc.ServicerContext) -> None:
        if self.behaviour.gzip:
            context.set_compression(grpc.Compression.Gzip)
        if self.behaviour.initial_metadata:
            context.send_initial_metadata(self.behaviour.initial_metadata)
        if self.behaviour.trailing_metadata:
            context.set_trailing_metadata(self.behaviour.trailing_metadata)

    def _response(self, raw: bytes, call: RecordedCall, context: grpc.ServicerContext) -> bytes:
        if not self.behaviour.after:
            self._obstruct(call, context)
        response = self.behaviour.response
        if response is None:
            response = self.carry_out(self.method, raw, context)
        if self.behaviour.after:
            self._obstruct(call, context)
        return response if isinstance(response, bytes) else response.SerializeToString()

    def _obstruct(self, call: RecordedCall, context: grpc.ServicerContext) -> None:
        if self.behaviour.delay_s:
            call.resumed.wait(self.behaviour.delay_s)
        if self.behaviour.hang:
            call.resumed.wait()
        if call.ended.is_set():
            CallError("CANCELLED", "the call ended before it was carried out").abort(context)
        if self.behaviour.error is not None:
            call.answered = True
            self.behaviour.error.abort(context)
