"""One held call, from its request to its answer."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from runtimeproxy.calls.deciding import Deciding, NoDecisionError, Readiness, Verdict
from runtimeproxy.calls.desk import INTERNAL_ERROR
from runtimeproxy.calls.grpc_framing import (
    MessageTooLargeError,
    Opening,
    UnreadableMessageError,
    is_compressed,
    open_frame,
    open_response,
)
from runtimeproxy.calls.post_hooks import follow_up, renew_resized, settle
from runtimeproxy.errors import MESSAGE_PREFIX, StatusCode
from runtimeproxy.hooks import FailurePolicy
from runtimeproxy.interception import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from runtimeproxy.calls.call_order import Turn
    from runtimeproxy.calls.cri_call import Operation
    from runtimeproxy.calls.desk import Desk, Operations
    from runtimeproxy.calls.long_work import Check
    from runtimeproxy.calls.methods import Method
    from runtimeproxy.hooks.chain import ChainRun
    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.interception import CallHead, Reply

ResultT = TypeVar("ResultT")

READ_ON_LOOP_BYTES: Final = 64 * 1024
"""Longer requests, and all compressed ones, are read in a worker thread."""

MAX_PARTS_BYTES: Final = 4 * 1024 * 1024
"""Longest request that is read, without single long texts and unknown fields: annotations, variables and
mounts become objects of the interpreter, one by one. A pod's annotations have at most 256 KiB. Source:
Kubernetes, TotalAnnotationSizeLimitB."""

PREPARATION_GRACE_S: Final = 0.25
"""How long the record of a long request may take to make when the call's time is spent."""

REFUSAL_CHARS: Final = 1000
"""Longest text of a refusal; what is over it is cut."""

COUNTS: Final = {
    "DecodeError": ("unreadable", False),
    "TooManyPartsError": ("unreadable", True),
    "UnreadableMessageError": ("unreadable", True),
    "MessageTooLargeError": ("too_large", True),
    "NoDecisionError": ("undecided", True),
}
"""Foreseen errors by name: what they are counted as, and whether their text may be logged."""


class HeldCall:
    """The `CallHandler` of one call; every method runs in the event loop's thread and raises nothing."""

    __slots__ = (
        "_asked",
        "_desk",
        "_head",
        "_is_unseen",
        "_method",
        "_operation",
        "_reply",
        "_task",
        "_turn",
        "_until_s",
    )

    def __init__(self, desk: Desk, method: Method, head: CallHead, reply: Reply) -> None:
        """Takes what the request's headers say, and where the answer goes."""
        self._desk = desk
        self._method = method
        self._head = head
        self._reply = reply
        self._operation: Operation | None = None
        self._task: asyncio.Task[None] | None = None
        self._asked: ChainRun | None = None
        self._turn: Turn | None = None
        self._until_s = 0.0
        self._is_unseen = False

    def message(self, data: bytes) -> None:
        """Reads the request; answers at once if nothing is to be decided."""
        hold_s = self._desk.settings.hold_s(self._head.timeout_s) - self._head.waited_s
        self._until_s = asyncio.get_running_loop().time() + max(0.0, hold_s)
        try:
            operations = self._desk.operations
            if operations is None or len(data) > READ_ON_LOOP_BYTES or is_compressed(data):
                self._task = self._desk.spawn(self._read_later(data))
            else:
                self._understood(self._read(operations, data))
        except Exception as error:  # noqa: BLE001 - the relay's loop must survive any bug in here
            self._failed(error)

    def cancelled(self) -> None:
        """Stops all work for the call."""
        operation, self._operation = self._operation, None
        if operation is not None:
            operation.over()
            # A runtime that lacks the method ends the call before it has the message.
            renew_resized(self._desk, self._method, operation)
        if self._task is not None:
            self._task.cancel()
        if self._asked is not None:
            self._asked.cancel()
            self._asked = None
        if self._turn is not None:
            # A task that never ran has no chance to do it.
            self._turn.leave()

    def responded(self, outcome: Outcome, data: bytes) -> None:
        """Brings the records up to date, before the answer goes to the client, and starts what follows."""
        operation, self._operation = self._operation, None
        if operation is not None:
            operation.over()
            renew_resized(self._desk, self._method, operation)
        if outcome is Outcome.FAILED:
            return
        if operation is None:
            if self._is_unseen:
                self._desk.unsettled()
            return
        try:
            if outcome is Outcome.SUCCEEDED and self._succeeded(operation, data):
                follow_up(self._desk, self._method, operation)
            else:
                self._desk.spawn(settle(self._desk, self._method, operation))
        except Exception as error:  # noqa: BLE001 - the answer must reach the client whatever happens here
            self._report(error)

    def _read(self, operations: Operations, data: bytes) -> Operation:
        """The call of a short request that is not compressed."""
        kind = operations[self._method.kind]
        body = open_frame(data, self._head.encoding, self._desk.settings.max_message_bytes)
        return kind(self._desk.context, kind.request_type.FromString(body))

    async def _read_later(self, data: bytes) -> None:
        try:
            async with asyncio.timeout_at(self._until_s):
                operations = await self._desk.load()
                if len(data) > READ_ON_LOOP_BYTES or is_compressed(data):
                    operation = await self._read_elsewhere(operations, data)
                else:
                    operation = self._read(operations, data)
            self._task = None
            self._understood(operation)
        except TimeoutError:
            self._failed(NoDecisionError("the request could not be read in time"))
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the call gets an answer
            self._failed(error)

    async def _read_elsewhere(self, operations: Operations, data: bytes) -> Operation:
        """The call of a long or compressed request."""
        kind, context, max_bytes = (
            operations[self._method.kind],
            self._desk.context,
            self._desk.settings.max_message_bytes,
        )
        opening = Opening(data, self._head.encoding, max_bytes)

        def read(check: Check) -> Operation:
            from cri_api.parsing import parse

            opening.open_rest(check)
            body = opening.take()
            request = parse(kind.request_type, body, max_parts_bytes=MAX_PARTS_BYTES, on_piece=check)
            return kind(context, request)

        run, connection = self._desk.long_work.run, self._head.connection
        if opening.is_compressed:
            await run(connection, opening.open_first)
        if not opening.is_done:
            await self._reserved(max_bytes)
        operation = await run(connection, read, len(data))
        if opening.size_bytes > len(data):
            self._reply.reserve(opening.size_bytes, _nothing)
        operation.elsewhere = self._elsewhere
        return operation

    async def _elsewhere(self, work: Callable[[], ResultT]) -> ResultT:
        return await self._desk.long_work.run(self._head.connection, lambda check: work())

    async def _reserved(self, size_bytes: int) -> None:
        """Waits until there is room for this much memory beside the request's own."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def grant() -> None:
            if not granted.done():
                granted.set_result(None)

        self._reply.reserve(size_bytes, grant)
        await granted

    def _understood(self, operation: Operation) -> None:
        self._operation = operation
        deciding = Deciding(self._desk, self._method, operation, self._until_s)
        readiness = deciding.readiness()
        if readiness is Readiness.NEEDLESS and operation.elsewhere is None:
            self._forward(operation, None)
            return
        self._turn = turn = self._desk.lanes.take_turn(operation.turn_key)
        if readiness is Readiness.ASKS and operation.elsewhere is None:
            call = deciding.ask(partial(self._decided, deciding, turn))
            self._asked = None if call.is_over else call
        else:
            self._task = self._desk.spawn(self._conclude(partial(deciding.verdict, turn), turn))

    def _decided(self, deciding: Deciding, turn: Turn, decision: Decision) -> None:
        """The policies have decided on the one question of this call."""
        self._asked = None
        try:
            verdict = deciding.verdict_on(decision)
            if verdict is None:
                self._task = self._desk.spawn(self._conclude(deciding.edited, turn))
                return
            self._answer(verdict)
            turn.leave()
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the call gets an answer
            self._failed(error)

    async def _conclude(self, verdict: Callable[[], Awaitable[Verdict]], turn: Turn) -> None:
        try:
            result = await verdict()
            if result.refusal is None and self._operation is not None:
                await self._prepare_long(self._operation)
            self._answer(result)
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the call gets an answer
            self._failed(error)
        finally:
            turn.leave()

    def _answer(self, verdict: Verdict) -> None:
        if verdict.refusal is not None:
            self._refuse(verdict.refusal.code, verdict.refusal.text)
        elif self._operation is not None:
            self._forward(self._operation, verdict.frame)
        elif self._is_unseen:
            self._reply.forward(verdict.frame)

    def _forward(self, operation: Operation, frame: bytes | None) -> None:
        operation.sent()
        self._reply.forward(frame)
        # Not before the message is written; and then the answer need not wait for it.
        if operation.elsewhere is None:
            asyncio.get_running_loop().call_soon(self._prepare)

    async def _prepare_long(self, operation: Operation) -> None:
        """Makes the record of a long request before that is sent, for the answer must not wait for it."""
        preparation = operation.preparation()
        if operation.elsewhere is None or preparation is None:
            return
        now_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(max(self._until_s, now_s + PREPARATION_GRACE_S)):
                await operation.elsewhere(preparation)
        except TimeoutError:
            # What was decided counts; the records are compared with the runtime once it has answered.
            self._operation = None
            self._is_unseen = True
            self._report(NoDecisionError("the record could not be made in time"))
            return
        operation.release()

    def _prepare(self) -> None:
        if self._operation is None:
            return
        try:
            preparation = self._operation.preparation()
            if preparation is not None:
                preparation()
        except Exception as error:  # noqa: BLE001 - it will be tried again when the answer is there
            self._report(error)

    def _succeeded(self, operation: Operation, data: bytes) -> bool:
        """Whether the answer could be read; the records are up to date then."""
        from google.protobuf.message import DecodeError

        try:
            operation.succeeded(open_response(data))
        except (UnreadableMessageError, MessageTooLargeError, DecodeError):
            return False
        return True

    def _failed(self, error: Exception) -> None:
        """The proxy cannot decide about the call: the settings say what becomes of it."""
        from google.protobuf.message import DecodeError

        settings = self._desk.settings
        self._operation = None
        if self._turn is not None:
            self._turn.leave()
        self._report(error)
        if isinstance(error, MessageTooLargeError):
            self._refuse(StatusCode.RESOURCE_EXHAUSTED, str(error))
        elif isinstance(error, UnreadableMessageError | DecodeError):
            self._forward_or_refuse(
                settings.on_unreadable, StatusCode.INVALID_ARGUMENT, "the request cannot be read"
            )
        elif isinstance(error, NoDecisionError):
            self._forward_or_refuse(settings.on_failure, StatusCode.UNAVAILABLE, str(error))
        else:
            self._forward_or_refuse(settings.on_failure, StatusCode.INTERNAL, "an error in the proxy")

    def _forward_or_refuse(self, policy: FailurePolicy, code: StatusCode, text: str) -> None:
        if policy is FailurePolicy.FAIL:
            self._refuse(code, text)
        else:
            self._is_unseen = True
            self._reply.forward(None)

    def _refuse(self, code: StatusCode, text: str) -> None:
        """Ends the call; NotFound would tell the kubelet that there is nothing to stop or remove."""
        operation, self._operation = self._operation, None
        code = StatusCode.FAILED_PRECONDITION if code is StatusCode.NOT_FOUND else code
        self._desk.counts["refused"] += 1
        self._reply.refuse(code, MESSAGE_PREFIX + text[:REFUSAL_CHARS])
        if operation is not None:
            renew_resized(self._desk, self._method, operation)

    def _report(self, error: Exception) -> None:
        """One line per cause; the text of an unforeseen error may hold parts of the request."""
        cause = type(error).__name__
        count, is_expected = COUNTS.get(cause, (INTERNAL_ERROR, False))
        self._desk.counts[count] += 1
        self._desk.failures.report(self._method.kind, cause, str(error) if is_expected else cause)


def _nothing() -> None:
    return
