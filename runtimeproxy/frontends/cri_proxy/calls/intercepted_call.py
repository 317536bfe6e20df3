"""One intercepted call, from its request to its response.

The way of most calls, top-down: `on_message` parses the request, `_decide` finds the records and policies,
the policies run in a worker thread and end there with `_apply`, `_on_decided` forwards or refuses,
`on_response` updates the records. A call that has to wait for something does the same in a task
(`_decide_in_task`).
"""

from __future__ import annotations

import asyncio
import time
import traceback
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from google.protobuf.message import DecodeError

from cri_api.parsing import TooManyPartsError, parse
from runtimeproxy.errors import MESSAGE_PREFIX, RuntimeProxyError, StatusCode
from runtimeproxy.frontends.cri_proxy.calls.create_container import CreateContainer
from runtimeproxy.frontends.cri_proxy.calls.cri_call import check_room, kept_bytes, next_question
from runtimeproxy.frontends.cri_proxy.calls.end_calls import (
    RemoveContainer,
    RemovePodSandbox,
    StopContainer,
    StopPodSandbox,
)
from runtimeproxy.frontends.cri_proxy.calls.grpc_framing import (
    COMPRESSED,
    Decompressor,
    MessageTooLargeError,
    UnreadableMessageError,
    frame_message,
    open_response,
    payload,
)
from runtimeproxy.frontends.cri_proxy.calls.methods import BY_PATH, CallKind
from runtimeproxy.frontends.cri_proxy.calls.post_hooks import (
    audit_late_writes,
    has_writes,
    reapply_resized,
    settle,
    start_post_hooks,
    write_decision,
)
from runtimeproxy.frontends.cri_proxy.calls.restore_pod import RestorePod
from runtimeproxy.frontends.cri_proxy.calls.run_pod_sandbox import RunPodSandbox
from runtimeproxy.frontends.cri_proxy.calls.start_container import StartContainer
from runtimeproxy.frontends.cri_proxy.calls.update_resources import (
    UpdateContainerResources,
    UpdatePodSandboxResources,
)
from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.hooks import CgroupChange, FailurePolicy
from runtimeproxy.hooks.audit import Origin, Subject, Written
from runtimeproxy.hooks.fields import plain_cgroup_values
from runtimeproxy.hooks.traceparent import trace_id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from runtimeproxy.frontends.cri_proxy.calls.call_trace import CallTrace
    from runtimeproxy.frontends.cri_proxy.calls.cri_call import CriCall, Question, Questions
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallRecording, CallServices
    from runtimeproxy.frontends.cri_proxy.calls.long_work import Check
    from runtimeproxy.frontends.cri_proxy.interception import CallHead, Reply
    from runtimeproxy.hooks.chain import ChainRun
    from runtimeproxy.hooks.decision import Decision, Refusal
    from runtimeproxy.hooks.fields import View
    from runtimeproxy.hooks.loaded import LoadedPolicy

ResultT = TypeVar("ResultT")
Decisions: TypeAlias = "list[tuple[Question, Decision]]"

CALL_TYPES: Final[Mapping[CallKind, type[CriCall]]] = MappingProxyType(
    {
        CallKind.RUN_POD_SANDBOX: RunPodSandbox,
        CallKind.CREATE_CONTAINER: CreateContainer,
        CallKind.START_CONTAINER: StartContainer,
        CallKind.UPDATE_CONTAINER_RESOURCES: UpdateContainerResources,
        CallKind.UPDATE_POD_SANDBOX_RESOURCES: UpdatePodSandboxResources,
        CallKind.STOP_CONTAINER: StopContainer,
        CallKind.STOP_POD_SANDBOX: StopPodSandbox,
        CallKind.REMOVE_CONTAINER: RemoveContainer,
        CallKind.REMOVE_POD_SANDBOX: RemovePodSandbox,
        CallKind.RESTORE_POD: RestorePod,
    }
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


class Edited(NamedTuple):
    """A request after the edits of policies: one object from the worker thread to the loop's."""

    frame: bytes | None
    """None if nothing differs from the request as it came."""
    is_complete: bool = True


_EDITING: Final = Edited(None, is_complete=False)
"""A thread edits the request, or an exception ended that."""


class InterceptedCall:
    """The `CallHandler` of one call.

    Its methods run in the event loop's thread, but for those that say so, and raise nothing.
    """

    __slots__ = (
        "_call",
        "_edited",
        "_head",
        "_is_corrected",
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
        "_until_s",
    )

    def __init__(
        self, services: CallServices, head: CallHead, reply: Reply, trace: CallTrace | None = None
    ) -> None:
        self._services = services
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
        self._questions: Questions | None = None
        self._question: Question | None = None
        # The work in progress, to be cancelled with the call.
        self._run: ChainRun | None = None
        self._task: asyncio.Task[None] | None = None
        # Whether the request was edited before policies run.
        self._is_corrected = False
        # Set in the worker thread, once for each state; None before any edit.
        self._edited: Edited | None = None
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
                self._task = services.spawn(self._parse_long(data))
                return
            body = bytes(payload(data, services.settings.max_message_bytes))
            self._size_bytes = len(body)
            call_type = CALL_TYPES[self._method.kind]
            request = call_type.request_type.FromString(body)
            if MOST_MEMORY_PER_BYTE * len(body) > services.store.room_bytes:
                check_room(request, services.store.room_bytes)
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
            check_room(request, services.store.room_bytes)
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

    # --- the decision --------------------------------------------------------------------------------------

    def _decide(self, call: CriCall) -> None:
        """Forwards the call if no policy matches, else runs them; in a task if it has to wait."""
        services, chain, method = self._services, self._services.chain, self._method
        self._call = call
        if self._trace is None:
            call.origin = Origin(method.kind, trace_id_of(self._head.traceparent))
        else:
            call.origin = self._trace.origin
            self._trace.name(call)
        has_hooks = not chain.hooks.isdisjoint(method.before)
        is_known = call.find_records() or not (has_hooks or not chain.hooks.isdisjoint(method.after))
        self._turn_key = call.turn_key
        must_wait = not (is_known and services.order.is_idle(call.turn_key, call.pod_key))
        has_work = call.is_long or call.room_cgroup or call.sets_quota or call.owns_cpus
        if must_wait or has_work or (has_hooks and not call.has_one_question):
            self._turn = services.order.enter(self._turn_key)
            self._task = services.spawn(self._decide_in_task(call))
            return
        self._is_corrected = call.correct()
        if has_hooks:
            self._questions = call.questions()
            self._question = next(self._questions, None)
        question = self._question
        policies: Sequence[LoadedPolicy] = ()
        if question is not None:
            policies = chain.policies_for(question.hook, question.pod)
        if question is None or not policies:
            if call.ride(None):
                self._add_edits(call)
            self._forward(call, self._edited_frame(call))
            return
        self._turn = services.order.enter(self._turn_key)
        left_s = max(0.0, self._until_s - asyncio.get_running_loop().time())
        run = chain.begin(
            question.hook,
            question.make_view(),
            policies,
            self._on_decided,
            budget_s=left_s,
            apply=self._apply,
            has_writes=self._has_writes,
            origin=call.origin,
        )
        # Without a worker thread it is over already.
        self._run = None if run.is_over else run

    def _apply(self, decision: Decision) -> Mapping[str, Written]:
        """Applies the decision on a call's only question; the last step of its chain run.

        Edits the request, then writes cgroup values. Runs in the worker thread of the policies, or in the
        loop's thread if the request is short and there are no cgroup values.

        Returns:
            The results of the writes by parameter; the edited request is handed over in `_edited`.
        """
        call, question, change = self._call, self._question, decision.change
        if call is None or question is None or change is None:
            return {}
        self._edited = _EDITING
        is_changed = question.edit(change) or self._is_corrected
        self._edited = Edited(frame_message(call.request.SerializeToString()) if is_changed else None)
        has_values = isinstance(change, CgroupChange) and change.cgroup
        return write_decision(self._services.ledger, question, decision) if has_values else {}

    def _has_writes(self, decision: Decision) -> bool:
        """Whether `_apply` writes files."""
        question = self._question
        return question is not None and has_writes(question, decision)

    def _on_decided(self, decision: Decision) -> None:
        """The only question of a call is decided, and applied unless there was no thread for it."""
        self._run = None
        call, question, questions = self._call, self._question, self._questions
        if self._recorded is not None and question is not None:
            self._recorded.on_decision(question.hook, decision)
        try:
            if decision.refusal is not None:
                self._refuse(decision.refusal.code, decision.refusal.text)
            elif call is not None and question is not None and questions is not None:
                next_question(questions, decision)
                if call.ride(decision):
                    self._add_edits(call)
                if decision.change is not None and self._edited is None:
                    self._task = self._services.spawn(self._decide_in_task(call, [(question, decision)]))
                    return
                self._forward(call, self._edited_frame(call))
            self._end_decision()
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the call gets an answer
            self._fail(error)

    def _add_edits(self, call: CriCall) -> None:
        """Takes the edits of `ride` along; there are few, so they are made in the loop's thread."""
        self._is_corrected = True
        if self._edited is not None and self._edited.is_complete:
            self._edited = Edited(frame_message(call.request.SerializeToString()))

    def _edited_frame(self, call: CriCall) -> bytes | None:
        """The frame to forward when the edits are made; None for the request as it came."""
        if self._edited is None:
            return frame_message(call.request.SerializeToString()) if self._is_corrected else None
        if not self._edited.is_complete:
            raise NoDecisionError("the changes of the policies cannot be put into the request")
        return self._edited.frame

    async def _decide_in_task(self, call: CriCall, decisions: Decisions | None = None) -> None:
        """Decides on a call that has to wait; with `decisions`, only edits it and forwards it."""
        try:
            if decisions is None:
                decisions = []
                await self._wait(call)
                refusal = await self._run_all_policies(call, decisions)
                if refusal is not None:
                    self._refuse(refusal.code, refusal.text)
                    return
            if self._edited is None and (decisions or self._is_corrected):
                run, executor = asyncio.get_running_loop().run_in_executor, self._services.executor
                await run(executor, self._edit_all, call, decisions)
                if not call.has_one_question:
                    self._audit(call.origin, decisions, await run(executor, self._write_all, decisions))
            frame = self._edited_frame(call)
            await self._make_ready(call)
            if call.is_long:
                await self._prepare_long(call)
            if self._call is not None:
                self._forward(call, frame)
            elif self._is_unseen:
                self._reply.forward(frame)
                self._services.changed += frame is not None
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the call gets an answer
            self._fail(error)
        finally:
            self._end_decision()

    async def _wait(self, call: CriCall) -> None:
        """Waits for earlier calls, for missing records, and for the pod's post hooks."""
        services, method, loop = self._services, self._method, asyncio.get_running_loop()
        until_s = self._until_s
        if method.is_end:
            until_s = min(until_s, loop.time() + services.settings.end_wait_s)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                if self._turn is not None:
                    await self._turn
        has_hooks = not services.chain.hooks.isdisjoint((*method.before, *method.after))
        if not call.find_records() and has_hooks:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until_s):
                    await call.fetch_records()
            call.find_records()
        await services.order.wait_for_post_hooks(call.pod_key, until_s)
        self._is_corrected = call.correct()

    async def _run_all_policies(self, call: CriCall, decisions: Decisions) -> Refusal | None:
        """Runs the policies for each question; returns the first refusal."""
        chain, loop = self._services.chain, asyncio.get_running_loop()
        questions = call.questions()
        question = next(questions, None)
        decision: Decision | None = None
        while question is not None:
            decision = None
            policies = chain.policies_for(question.hook, question.pod)
            if policies:
                self._question = question
                decision = await chain.decide(
                    question.hook,
                    await self._view(call, question),
                    policies,
                    budget_s=max(0.0, self._until_s - loop.time()),
                    apply=self._apply if call.has_one_question else _postpone,
                    has_writes=self._has_writes if call.has_one_question else _writes_nothing,
                    is_short=not call.is_long,
                    origin=call.origin,
                )
                if self._recorded is not None:
                    self._recorded.on_decision(question.hook, decision)
                if decision.refusal is not None:
                    return decision.refusal
                if decision.change is not None:
                    decisions.append((question, decision))
            question = next_question(questions, decision)
        if call.ride(decision):
            self._add_edits(call)
        return None

    async def _view(self, call: CriCall, question: Question) -> View:
        if not call.is_long:
            return question.make_view()
        try:
            async with asyncio.timeout_at(self._until_s):
                return await self._in_worker(question.make_view)
        except TimeoutError:
            raise NoDecisionError("the request could not be made ready for policies in time") from None

    def _edit_all(self, call: CriCall, decisions: Decisions) -> None:
        """In a worker thread: the edits of all decisions."""
        is_changed = self._is_corrected
        for question, decision in decisions:
            if decision.change is not None:
                is_changed = question.edit(decision.change) or is_changed
        self._edited = Edited(frame_message(call.request.SerializeToString()) if is_changed else None)

    async def _make_ready(self, call: CriCall) -> None:
        """Writes what the kernel would otherwise refuse the request for, and frees the pod's own CPUs."""
        run, services = asyncio.get_running_loop().run_in_executor, self._services
        if call.owns_cpus and services.allocations is not None:
            try:
                async with asyncio.timeout_at(self._until_s):
                    await call.take_cpus(services.allocations)
            except TimeoutError:
                text = "other pods have not left its CPUs in time"
                services.problems[self._method.kind, "cpus_not_left"] += 1
                services.failures.report(self._method.kind, text, text)
            except Exception as error:  # noqa: BLE001 - that others keep its CPUs stops no pod
                self._report(error)
        if call.room_cgroup:
            await run(services.executor, services.ledger.make_room, call.room_cgroup, call.room())
        if call.sets_quota:
            # No quota may be below the burst, whether or not policies have an answer now.
            await run(services.executor, self._lower_bursts, call.new_quotas_us())

    def _lower_bursts(self, quotas_us: Mapping[str, int]) -> None:
        """In a worker thread: before the quotas of these cgroups are lowered."""
        for cgroup, quota_us in quotas_us.items():
            self._services.ledger.before_update(cgroup, quota_us)

    def _write_all(self, decisions: Decisions) -> list[Mapping[str, Written]]:
        """In a worker thread: writes the cgroup values of all decisions; returns the results of each."""
        return [write_decision(self._services.ledger, *each) for each in decisions]

    def _audit(
        self, origin: Origin, decisions: Decisions, all_written: Sequence[Mapping[str, Written]]
    ) -> None:
        """Makes the audit entries that `_postpone` put off."""
        for (question, decision), written in zip(decisions, all_written, strict=True):
            subject = Subject(question.hook, decision.merged.start, time.time(), origin=origin)
            audit_late_writes(self._services.chain, subject, decision.owners, written)

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

    def _prepare(self) -> None:
        """Makes the record of a short request while the runtime works."""
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
        self._services.problems[self._method.kind, "no_memory"] += 1
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
        if call is not None:
            reapply_resized(self._services, self._method, call)

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
            policy, code = settings.on_unreadable, StatusCode.INVALID_ARGUMENT
            text, problem = "the request cannot be read", "unreadable"
        elif isinstance(error, NoDecisionError):
            code, text, problem = StatusCode.UNAVAILABLE, str(error), "not_in_time"
        self._services.problems[self._method.kind, problem] += 1
        if policy is FailurePolicy.FAIL:
            self._refuse(code, text)
        else:
            self._is_unseen = True
            self._reply.forward(None)

    # --- the end -------------------------------------------------------------------------------------------

    def on_cancelled(self) -> None:
        """Stops all work for the call."""
        call, self._call = self._call, None
        if call is not None:
            call.on_end()
            # A runtime without the method ends the call before it has the message.
            reapply_resized(self._services, self._method, call)
            if call.on_cancelled():
                self._services.on_unsettled()
        if self._task is not None:
            self._task.cancel()
        if self._run is not None:
            self._run.cancel()
            self._run = None
        # A task that never ran cannot do it.
        self._end_decision()

    def on_response(self, outcome: Outcome, data: bytes) -> None:
        """Updates the records before the response goes to the client, and starts the post hooks."""
        services, method = self._services, self._method
        call, self._call = self._call, None
        if self._recorded is not None:
            self._recorded.on_response(outcome, data)
        if call is None:
            if self._is_unseen and outcome is not Outcome.FAILED:
                services.on_unsettled()
            return
        call.on_end()
        if call.resized_cgroup:
            reapply_resized(services, method, call)
        if outcome is Outcome.FAILED:
            self._on_failed(call)
            return
        try:
            is_recorded = False
            if outcome is Outcome.SUCCEEDED:
                with suppress(UnreadableMessageError, MessageTooLargeError, DecodeError):
                    call.on_success(open_response(data))
                    is_recorded = True
            if not is_recorded:
                services.spawn(settle(services, method, call))
                return
            has_hooks = not services.chain.hooks.isdisjoint(method.after)
            if has_hooks or call.due_writes or call.disturbed_cgroup:
                start_post_hooks(services, method, call)
        except Exception as error:  # noqa: BLE001 - the response must reach the client whatever happens here
            self._report(error)

    def _on_failed(self, call: CriCall) -> None:
        try:
            call.on_failure()
            if call.due_writes:
                start_post_hooks(self._services, self._method, call)
        except Exception as error:  # noqa: BLE001 - the response must reach the client whatever happens here
            self._report(error)

    def _end_decision(self) -> None:
        """Lets the next call of the container be decided; may be called again."""
        if self._turn is not None:
            self._services.order.leave(self._turn_key, self._turn)
        # These keep the whole request, and the runtime may take long.
        self._questions = self._question = self._edited = None

    def _report(self, error: Exception) -> None:
        """Logs an error, once per cause; the text of an unforeseen one may quote the request."""
        cause = type(error).__name__
        text = str(error) if isinstance(error, _WITHOUT_QUOTES) else cause
        if not isinstance(error, _FORESEEN):
            self._services.internal_errors += 1
        self._services.failures.report(self._method.kind, cause, text)


def _postpone(decision: Decision) -> Mapping[str, Written]:
    """Writes nothing: the values of a call with several questions are written when all are decided."""
    values = plain_cgroup_values(decision.change) if decision.change is not None else {}
    return dict.fromkeys(values, Written(is_pending=True))


def _writes_nothing(_: Decision) -> bool:
    return False


def _ignore() -> None:
    return
