"""One intercepted call, from its request to its response.

Its way, top-down: `on_message` parses the request, `_decide` finds the records, `_ask` has the policies run,
whose decision `_apply` puts into the request, `_on_all_decided` forwards it, `on_response` updates the
records. A step that has to wait for something does so in a task, and the way goes on from there.
"""

from __future__ import annotations

import asyncio
import traceback
from contextlib import suppress
from enum import Enum
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import DecodeError

from cri_api.parsing import TooManyPartsError, parse
from runtimeproxy.core.events import write_before
from runtimeproxy.errors import MESSAGE_PREFIX, RefusalError, RuntimeProxyError, StatusCode
from runtimeproxy.frontends.cri_proxy.calls.cri_call import check_room, kept_bytes
from runtimeproxy.frontends.cri_proxy.calls.grpc_framing import (
    COMPRESSED,
    Decompressor,
    MessageTooLargeError,
    UnreadableMessageError,
    frame_message,
    open_response,
    payload,
)
from runtimeproxy.frontends.cri_proxy.calls.methods import BY_PATH, METHODS
from runtimeproxy.frontends.cri_proxy.calls.post_hooks import settle, start_post_hooks, start_works
from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.hooks import CgroupChange, FailurePolicy
from runtimeproxy.hooks.audit import Origin
from runtimeproxy.hooks.traceparent import trace_id_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from runtimeproxy.cgroups.writer import WriteResult
    from runtimeproxy.core.questions import Question
    from runtimeproxy.core.services import Work
    from runtimeproxy.frontends.cri_proxy.calls.call_trace import CallTrace
    from runtimeproxy.frontends.cri_proxy.calls.cri_call import CriCall
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallRecording, CallServices
    from runtimeproxy.frontends.cri_proxy.calls.long_work import Check
    from runtimeproxy.frontends.cri_proxy.calls.methods import CallKind, Method
    from runtimeproxy.frontends.cri_proxy.interception import CallHead, Reply
    from runtimeproxy.hooks.chain import Chain, ChainRun
    from runtimeproxy.hooks.changes import Change
    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.hooks.fields import View
    from runtimeproxy.hooks.loaded import LoadedPolicy

ResultT = TypeVar("ResultT")


def _call_type(method: Method) -> type[CriCall]:
    found: type[CriCall] = getattr(import_module(f"{__package__}.{method.module}"), method.kind)
    return found


CALL_TYPES: Final[Mapping[CallKind, type[CriCall]]] = MappingProxyType(
    {method.kind: _call_type(method) for method in METHODS}
)

PARSE_IN_LOOP_BYTES: Final = 64 * 1024
"""Longer requests, and all compressed ones, are parsed in a worker thread."""

MAX_PARTS_BYTES: Final = 4 * 1024 * 1024
"""Longest request that is parsed, without single long texts and unknown fields: annotations, variables and
mounts become objects of the interpreter, one by one. A pod's annotations have at most 256 KiB. Source:
Kubernetes, TotalAnnotationSizeLimitB."""

MOST_MEMORY_PER_BYTE: Final = 64
"""Labels and annotations take at most so many times their bytes of a request: a short entry's two texts and
place in a table."""

PREPARATION_GRACE_S: Final = 0.25
"""How long the record of a long request may take to make when the call's time is spent."""

MAX_REFUSAL_CHARS: Final = 1000
"""Longest text of a refusal; the rest is cut off."""


class NoDecisionError(RuntimeProxyError):
    """The proxy itself cannot decide; the text says why."""


_WITHOUT_QUOTES: Final = (MessageTooLargeError, NoDecisionError, TooManyPartsError, UnreadableMessageError)
_FORESEEN: Final = (*_WITHOUT_QUOTES, DecodeError)


class Edits(Enum):
    """How far the edits of the present decision are."""

    NONE = "none"
    BEGUN = "begun"
    """A thread makes them, or an exception ended that."""
    DONE = "done"


_NO_QUESTIONS: Final[Iterator[Question]] = iter(())


class InterceptedCall:
    """The `CallHandler` of one call.

    Its methods run in the event loop's thread, but for those that say so, and raise nothing.
    """

    __slots__ = (
        "_call",
        "_chain",
        "_core",
        "_edits",
        "_head",
        "_is_begun",
        "_is_changed",
        "_is_unseen",
        "_method",
        "_question",
        "_questions",
        "_recorded",
        "_reply",
        "_run",
        "_services",
        "_size_bytes",
        "_task",
        "_trace",
        "_turn",
        "_turn_key",
        "_unapplied",
        "_until_s",
    )

    def __init__(
        self, services: CallServices, head: CallHead, reply: Reply, trace: CallTrace | None = None
    ) -> None:
        self._services = services
        self._core = services.core
        self._trace = trace
        self._head = head
        self._reply = reply
        self._method = BY_PATH[head.path]
        # None before the request is parsed, and when the response needs no attention.
        self._call: CriCall | None = None
        # What is kept of it until the answer.
        self._size_bytes = 0
        # When the call has to be decided, by the loop's clock.
        self._until_s = 0.0
        self._turn_key = ""
        self._turn: asyncio.Future[None] | None = None
        # While it is decided: all its policies are those of one time.
        self._chain: Chain | None = None
        # Those that are not asked yet, and the one that was asked last.
        self._questions: Iterator[Question] = _NO_QUESTIONS
        self._question: Question | None = None
        # The work in progress, to be cancelled with the call.
        self._run: ChainRun | None = None
        self._task: asyncio.Task[None] | None = None
        # Whether `chain.begin` has returned.
        self._is_begun = False
        # Of the question; set in the thread that applies the decision.
        self._edits = Edits.NONE
        # Whether the request differs from what the client has sent.
        self._is_changed = False
        # The changes for which there was no thread.
        self._unapplied: list[tuple[Question, Change]] = []
        # Whether the call was forwarded without a record of it.
        self._is_unseen = False
        # None if nothing is recorded, or the call cannot be decided.
        self._recorded: CallRecording | None = None

    # --- the request ---------------------------------------------------------------------------------------

    def on_message(self, data: bytes) -> None:
        """Parses the request; a short one at once."""
        services = self._services
        self._until_s = asyncio.get_running_loop().time() + services.settings.hold_s(self._head)
        if services.recorder is not None:
            self._recorded = services.recorder.begin(self._method.kind, data, self._head.encoding)
        try:
            if len(data) > PARSE_IN_LOOP_BYTES or data.startswith(COMPRESSED):
                self._task = self._core.spawn(self._parse_long(data))
                return
            body = bytes(payload(data, services.settings.max_message_bytes))
            self._size_bytes = len(body)
            call_type = CALL_TYPES[self._method.kind]
            request = call_type.request_type.FromString(body)
            if MOST_MEMORY_PER_BYTE * len(body) > self._core.store.room_bytes:
                check_room(request, self._core.store.room_bytes)
            self._decide(call_type(services, request))
        except Exception as error:  # noqa: BLE001 - the relay's loop must survive any bug in here
            self._fail(error)

    async def _parse_long(self, data: bytes) -> None:
        try:
            async with asyncio.timeout_at(self._until_s):
                call = await self._parse_in_worker(data)
            self._task = None
            self._decide(call)
        except TimeoutError:
            self._fail(NoDecisionError("the request could not be read in time"))
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the call gets an answer
            # These hold the whole request, in a circle with the result of the worker thread.
            traceback.clear_frames(error.__traceback__)
            self._fail(error)

    async def _parse_in_worker(self, data: bytes) -> CriCall:
        """Parses a long or compressed request, in slices."""
        services, connection = self._services, self._head.connection
        call_type, max_bytes = CALL_TYPES[self._method.kind], services.settings.max_message_bytes
        message = Decompressor(data, self._head.encoding, max_bytes)

        def parse_message(check: Check) -> CriCall:
            message.run(check)
            body = message.take()
            request = parse(call_type.request_type, body, max_parts_bytes=MAX_PARTS_BYTES, on_piece=check)
            self._size_bytes = kept_bytes(request)
            check_room(request, self._core.store.room_bytes)
            return call_type(services, request)

        if message.is_compressed:
            await services.long_work.run(connection, partial(message.run, slices=1))
        if not message.is_done:
            await self._reserve(max_bytes)
        size_bytes = max_bytes if message.is_compressed else len(data)
        call = await services.long_work.run(connection, parse_message, size_bytes)
        if message.size_bytes > len(data):
            self._reply.reserve(message.size_bytes, _ignore)
        call.is_long = True
        return call

    async def _reserve(self, size_bytes: int) -> None:
        """Waits for room for this much memory beside the request's own."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_granted() -> None:
            if not granted.done():
                granted.set_result(None)

        self._reply.reserve(size_bytes, on_granted)
        await granted

    async def _in_worker(self, work: Callable[[], ResultT]) -> ResultT:
        return await self._services.long_work.run(self._head.connection, lambda check: work())

    @property
    def call(self) -> CriCall | None:
        # None before the request is parsed, and once it is refused, cancelled or answered.
        return self._call

    # --- the decision --------------------------------------------------------------------------------------

    def _decide(self, call: CriCall) -> None:
        """Asks policies about the call; in a task if it has to wait for something first."""
        core, hooks, method = self._core, self._core.chain.hooks, self._method
        self._call = call
        if self._trace is None:
            call.origin = Origin(method.kind, partial(_trace_id, self._head))
        else:
            call.origin = self._trace.origin
            self._trace.name(call)
        is_asked = not hooks.isdisjoint(method.before)
        is_known = call.find_records() or not (is_asked or not hooks.isdisjoint(method.after))
        self._turn_key = call.turn_key
        if is_known and core.order.is_idle(call.turn_key, call.pod_key):
            self._begin(call)
        else:
            self._enter()
            self._in_task(self._wait_and_begin, call)

    def _enter(self) -> None:
        # From now on the next calls with this key wait for their turn.
        if self._turn is None:
            self._turn = self._core.order.enter(self._turn_key)

    def _in_task(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        self._task = self._core.spawn(self._guarded(work, *arguments))

    async def _guarded(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        try:
            await work(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the call gets an answer
            self._fail(error)

    async def _wait_and_begin(self, call: CriCall) -> None:
        """Waits for earlier calls, for missing records, and for the pod's post hooks."""
        services, method, loop = self._services, self._method, asyncio.get_running_loop()
        until_s = self._until_s
        if method.is_end:
            until_s = min(until_s, loop.time() + services.settings.end_wait_s)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                if self._turn is not None:
                    await self._turn
        has_hooks = not self._core.chain.hooks.isdisjoint((*method.before, *method.after))
        if not call.find_records() and has_hooks:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until_s):
                    await call.fetch_records()
            call.find_records()
        await self._core.order.wait_for_post_hooks(call.pod_key, until_s)
        self._begin(call)

    def _begin(self, call: CriCall) -> None:
        self._is_changed = call.correct()
        self._chain = self._core.chain
        if not self._chain.hooks.isdisjoint(self._method.before):
            self._questions = iter(call.before())
        self._ask(call)

    def _ask(self, call: CriCall) -> None:
        """Asks the remaining questions, as far as that takes no time; then the call goes on."""
        chain = self._chain or self._core.chain
        for question in self._questions:
            policies = chain.policies_for(question.hook, question.pod)
            if not policies:
                question.on_decided(None)
                continue
            self._question = question
            if call.is_long:
                self._enter()
                self._in_task(self._ask_in_task, call, chain, question, policies)
                return
            if not self._run_policies(call, chain, question, policies, question.make_view()):
                return
        self._on_all_decided(call)

    async def _ask_in_task(
        self, call: CriCall, chain: Chain, question: Question, policies: Sequence[LoadedPolicy]
    ) -> None:
        """The same for a long request, of which even the view takes long to make."""
        try:
            async with asyncio.timeout_at(self._until_s):
                view = await self._in_worker(question.make_view)
        except TimeoutError:
            raise NoDecisionError("the request could not be made ready for policies in time") from None
        if self._run_policies(call, chain, question, policies, view):
            self._ask(call)

    def _run_policies(
        self, call: CriCall, chain: Chain, question: Question, policies: Sequence[LoadedPolicy], view: View
    ) -> bool:
        """Returns whether they have decided already, and the call goes on."""
        self._is_begun = False
        run = chain.begin(
            question.hook,
            view,
            policies,
            self._on_decided,
            budget_s=max(0.0, self._until_s - asyncio.get_running_loop().time()),
            apply=self._apply,
            has_writes=question.has_writes,
            is_short=not call.is_long,
            origin=call.origin,
        )
        self._is_begun = True
        if run.is_over:
            return self._call is not None
        self._enter()
        self._run = run
        return False

    def _apply(self, decision: Decision) -> Mapping[str, WriteResult]:
        """Applies a decision: edits the request, then writes cgroup values; the last step of its chain run.

        Runs in the worker thread of the policies, or in the loop's thread if the request is short and there
        are no cgroup values to write.

        Returns:
            The results of the writes by parameter.
        """
        question, change = self._question, decision.change
        if self._call is None or question is None or change is None:
            return {}
        self._edits = Edits.BEGUN
        self._is_changed |= question.edit(change)
        self._edits = Edits.DONE
        if not (isinstance(change, CgroupChange) and change.cgroup):
            return {}
        return write_before(self._core.ledger, decision, question.cgroup, is_deferred=question.is_deferred)

    def _on_decided(self, decision: Decision) -> None:
        """A question is decided, and the decision is applied unless there was no thread for it."""
        self._run = None
        call, question = self._call, self._question
        if call is None or question is None:
            return
        try:
            if self._recorded is not None:
                self._recorded.on_decision(question.hook, decision)
            if decision.refusal is not None:
                self._refuse(decision.refusal.code, decision.refusal.text)
                return
            if self._edits is Edits.BEGUN:
                self._fail(NoDecisionError("the changes of the policies cannot be put into the request"))
                return
            if decision.change is not None and self._edits is Edits.NONE:
                self._unapplied.append((question, decision.change))
            self._edits = Edits.NONE
            question.on_decided(decision)
            if self._is_begun:
                self._ask(call)
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the call gets an answer
            self._fail(error)

    def _on_all_decided(self, call: CriCall) -> None:
        """Forwards the call, once the work is done that the runtime's answer depends on."""
        self._is_changed |= call.adjust()
        works = call.preparations(self._until_s)
        if works or call.is_long or self._unapplied:
            self._enter()
            self._in_task(self._make_ready, call, works)
        else:
            self._forward(call, self._edited_frame(call))

    async def _make_ready(self, call: CriCall, works: Sequence[Work]) -> None:
        for question, change in self._unapplied:
            run = asyncio.get_running_loop().run_in_executor
            self._is_changed |= await run(self._core.executor, question.edit, change)
            self._is_changed |= call.adjust()
        try:
            for work in works:
                await work()
        except RefusalError as error:
            if self._call is not None:
                self._refuse(error.code, error.text)
            return
        frame = await self._in_worker(partial(self._edited_frame, call)) if call.is_long else None
        if call.is_long:
            await self._prepare_long(call)
        else:
            frame = self._edited_frame(call)
        if self._call is not None:
            self._forward(call, frame)
        elif self._is_unseen:
            self._reply.forward(frame)
            self._services.changed += frame is not None
            self._end_decision()

    def _edited_frame(self, call: CriCall) -> bytes | None:
        return frame_message(call.request.SerializeToString()) if self._is_changed else None

    # --- the answer ----------------------------------------------------------------------------------------

    def _forward(self, call: CriCall, frame: bytes | None) -> None:
        call.on_sent()
        if not self._reply.keep(self._size_bytes):
            self._forget(call)
        self._reply.forward(frame)
        if frame is not None:
            self._services.changed += 1
        if self._recorded is not None:
            self._recorded.on_decided()
        # Not before the message is written, and then the response need not wait for it.
        if not call.is_long:
            asyncio.get_running_loop().call_soon(self._prepare)
        self._end_decision()

    def _prepare(self) -> None:
        # While the runtime works.
        try:
            if self._call is not None:
                self._call.prepare()
        except Exception as error:  # noqa: BLE001 - it is tried again when the response is there
            self._report(error)

    def _forget(self, call: CriCall) -> None:
        """Keeps nothing of the call, for want of memory: the runtime is asked once it has answered."""
        call.on_end()
        self._call = None
        self._is_unseen = True
        self._core.problems.counts[self._method.kind, "no_memory"] += 1
        self._report(NoDecisionError("the record has no room beside those of other calls"))

    async def _prepare_long(self, call: CriCall) -> None:
        """Makes the record of a long request before it is sent, for the response must not wait for that."""
        until_s = max(self._until_s, asyncio.get_running_loop().time() + PREPARATION_GRACE_S)
        try:
            async with asyncio.timeout_at(until_s):
                await self._in_worker(call.prepare)
        except TimeoutError:
            # The decision holds; the records are compared with the runtime once it has answered.
            self._call = None
            self._is_unseen = True
            self._report(NoDecisionError("the record could not be made in time"))
            return
        call.release()

    def _refuse(self, code: StatusCode, text: str) -> None:
        call, self._call = self._call, None
        if code is StatusCode.NOT_FOUND:
            # The kubelet would take it for a successful stop or remove.
            code = StatusCode.FAILED_PRECONDITION
        self._reply.refuse(code, MESSAGE_PREFIX + text[:MAX_REFUSAL_CHARS])
        if self._recorded is not None:
            self._recorded.on_decided()
        self._end_decision()
        if call is not None:
            self._end_unsent(call)

    def _fail(self, error: Exception) -> None:
        """The proxy cannot decide on the call: the settings say whether it is forwarded or refused."""
        settings = self._services.settings
        self._call = self._recorded = None
        self._end_decision()
        self._report(error)
        policy, code, text = settings.on_failure, StatusCode.INTERNAL, "an error in the proxy"
        problem = "internal_error"
        if isinstance(error, MessageTooLargeError):
            policy, code, text = FailurePolicy.FAIL, StatusCode.RESOURCE_EXHAUSTED, str(error)
            problem = "too_large"
        elif isinstance(error, UnreadableMessageError | DecodeError):
            policy, code = settings.on_unparsable, StatusCode.INVALID_ARGUMENT
            text, problem = "the request cannot be read", "unreadable"
        elif isinstance(error, NoDecisionError):
            code, text, problem = StatusCode.UNAVAILABLE, str(error), "not_in_time"
        self._core.problems.counts[self._method.kind, problem] += 1
        if policy is FailurePolicy.FAIL:
            self._refuse(code, text)
        else:
            self._is_unseen = True
            self._reply.forward(None)

    # --- the end -------------------------------------------------------------------------------------------

    def on_cancelled(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            # A runtime without the method ends the call before it has the message.
            self._end_unsent(call)
        if self._task is not None:
            self._task.cancel()
        if self._run is not None:
            self._run.cancel()
            self._run = None
        # A task that never ran cannot do it.
        self._end_decision()

    def _end_unsent(self, call: CriCall) -> None:
        # The kubelet may have written to cgroups before it made the call.
        if works := call.on_end():
            start_works(self._core, self._method, call, works)
        if call.on_cancelled():
            self._core.inventory.confirm_all()

    def on_response(self, outcome: Outcome, data: bytes) -> None:
        """Updates the records before the response goes to the client, and starts the post hooks."""
        services, method = self._services, self._method
        call, self._call = self._call, None
        if self._recorded is not None:
            self._recorded.on_response(outcome, data)
        if call is None:
            if self._is_unseen and outcome is not Outcome.FAILED:
                self._core.inventory.confirm_all()
            return
        try:
            if works := call.on_end():
                start_works(self._core, method, call, works)
            if outcome is Outcome.SUCCEEDED and (after := _recorded(call, data)) is not None:
                if after or not self._core.chain.hooks.isdisjoint(method.after):
                    start_post_hooks(services, method, call, after)
            elif outcome is not Outcome.FAILED:
                self._core.spawn(settle(services, method, call))
            elif works := call.on_failure():
                start_works(self._core, method, call, works)
        except Exception as error:  # noqa: BLE001 - the response must reach the client whatever happens here
            self._report(error)

    def _end_decision(self) -> None:
        """Lets the next call of the container be decided; may be called again."""
        if self._turn is not None:
            self._core.order.leave(self._turn_key, self._turn)
        # These keep the whole request, and more, and the runtime may take long.
        self._chain = None
        self._questions, self._question, self._unapplied = _NO_QUESTIONS, None, []

    def _report(self, error: Exception) -> None:
        """Logs an error, once per cause; the text of an unforeseen one may quote the request."""
        cause = type(error).__name__
        text = str(error) if isinstance(error, _WITHOUT_QUOTES) else cause
        if not isinstance(error, _FORESEEN):
            self._core.problems.internal_errors += 1
        self._core.problems.failures.report(self._method.kind, cause, text)


def _recorded(call: CriCall, data: bytes) -> Sequence[Work] | None:
    """Brings the records up to date; None if the response cannot be read."""
    with suppress(UnreadableMessageError, MessageTooLargeError, DecodeError):
        return call.on_success(open_response(data))
    return None


def _trace_id(head: CallHead) -> str:
    return trace_id_of(head.traceparent)


def _ignore() -> None:
    return
