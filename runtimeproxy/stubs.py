"""The methods of a gRPC service as functions, for tasks and for threads, over the daemon's own client.

Generated stubs have the types of these functions; at run time they would need the gRPC library, whose core
ends the process at some GOAWAYs (`runtimeproxy/http2/client.py`). All raise `RpcError`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from cri_api.parsing import TooManyPartsError, parse
from runtimeproxy.errors import StatusCode
from runtimeproxy.http2.client import GrpcClient, RpcError, Server, UnusableError, request_block

if TYPE_CHECKING:
    from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
    from google.protobuf.message import Message

MAX_ANSWER_BYTES: Final = 48 * 1024 * 1024
"""Of one answer of the daemon, which is trusted: recorded calls have up to 16 MiB, written out in base64."""

_ResultT = TypeVar("_ResultT")


def async_stub(client: GrpcClient, service: ServiceDescriptor) -> Any:  # noqa: ANN401 - as the generated one
    """Returns an object with the methods of a service, for tasks of the client's loop.

    A method takes a request and `timeout=` in seconds. It returns an awaitable answer, or an asynchronous
    iterator of answers.
    """
    return _Stub(service, lambda method: _AsyncMethod(client, method).function)


class BlockingClient:
    """Calls the methods of one server from any thread.

    The connection has a thread of its own, so that the server's PINGs are answered while nobody calls.

    Args:
        server: its address; a text is the path of a socket.
        max_answer_bytes: of one answer.
        max_fields: of a long answer itself, such as the entries of its lists; None for any number.
        reconnects: see `GrpcClient`.
    """

    def __init__(
        self,
        server: str | Server,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        *,
        max_fields: int | None = None,
        reconnects: bool = True,
    ) -> None:
        self._max_fields = max_fields
        self._client = GrpcClient(server, max_answer_bytes, reconnects=reconnects)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="grpc-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stub(self, service: ServiceDescriptor) -> Any:  # noqa: ANN401 - as the generated one
        """Returns an object with the methods of a service.

        A method takes a request and `timeout=` in seconds. It returns an answer, or an iterator of answers.
        """
        return _Stub(service, self._function)

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()
            runner.run(self._end())

    async def _end(self) -> None:
        self._client.abort()

    def _function(self, method: MethodDescriptor) -> Callable[..., Any]:
        calls = _AsyncMethod(self._client, method, self._max_fields)

        def unary(request: Message, timeout: float | None = None) -> Message:
            return calls.parsed(self._wait(calls.ask(request, timeout)))

        def streaming(request: Message, timeout: float | None = None) -> Iterator[Message]:
            answers = self._wait(calls.begin(request, timeout))
            try:
                while (data := self._wait(answers.next())) is not None:
                    yield calls.parsed(data)
            finally:
                # Closed already when the iterator outlives the client.
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(answers.cancel)

        return streaming if method.server_streaming else unary

    def _wait(self, work: Coroutine[Any, Any, _ResultT]) -> _ResultT:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Stub:
    def __init__(
        self, service: ServiceDescriptor, function: Callable[[MethodDescriptor], Callable[..., Any]]
    ) -> None:
        for method in service.methods:
            setattr(self, method.name, function(method))


class _AsyncMethod:
    """Calls of one method, in the loop's thread. `function`: as the generated stub has it."""

    def __init__(self, client: GrpcClient, method: MethodDescriptor, max_fields: int | None = None) -> None:
        self._client = client
        self._max_fields = max_fields
        path = f"/{method.containing_service.full_name}/{method.name}"
        self._block = request_block(path, client.server)
        self._answer: type[Message] = GetMessageClass(method.output_type)
        self.function: Callable[..., Any] = self._streaming if method.server_streaming else self._unary

    async def _unary(self, request: Message, timeout: float | None = None) -> Message:  # noqa: ASYNC109
        return self.parsed(await self.ask(request, timeout))

    async def _streaming(
        self,
        request: Message,
        timeout: float | None = None,  # noqa: ASYNC109 - as the generated stub has it
    ) -> AsyncIterator[Message]:
        answers = await self.begin(request, timeout)
        try:
            while (data := await answers.next()) is not None:
                yield self.parsed(data)
        finally:
            answers.cancel()

    async def ask(self, request: Message, timeout_s: float | None) -> bytes:
        outcome = await self._client.unary(self._block, request.SerializeToString(), timeout_s)
        if isinstance(outcome, RpcError):
            raise outcome
        return outcome

    async def begin(self, request: Message, timeout_s: float | None) -> _Answers:
        return _Answers(self._client, self._block, request.SerializeToString(), timeout_s)

    def parsed(self, data: bytes) -> Message:
        try:
            return parse(self._answer, data, max_fields=self._max_fields)
        except TooManyPartsError:
            text = f"the answer has more than {self._max_fields} fields"
            raise UnusableError(StatusCode.RESOURCE_EXHAUSTED, text) from None
        except DecodeError:
            text = f"the answer is no {self._answer.DESCRIPTOR.full_name}"
            raise UnusableError(StatusCode.INTERNAL, text) from None


class _Answers:
    """The answers of a call, until they are taken. Used in the loop's thread."""

    def __init__(self, client: GrpcClient, block: bytes, request: bytes, timeout_s: float | None) -> None:
        self._messages: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._outcome: bytes | RpcError | None = None
        self._call = client.call(block, request, timeout_s, self._end, self._put)

    async def next(self) -> bytes | None:
        """The next answer; None after the last."""
        while not self._messages and self._outcome is None:
            self._wake.clear()
            await self._wake.wait()
        if self._messages:
            message = self._messages.popleft()
            self._call.credit(message)
            return message
        if isinstance(self._outcome, RpcError):
            raise self._outcome
        return None

    def cancel(self) -> None:
        self._call.cancel()

    def _put(self, message: bytes) -> None:
        self._messages.append(message)
        self._wake.set()

    def _end(self, outcome: bytes | RpcError) -> None:
        self._outcome = outcome
        self._wake.set()
