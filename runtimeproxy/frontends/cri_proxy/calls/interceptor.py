"""The relay's `Interceptor`: serves from the start, also while the policies and the CRI's messages load.

Cheap to import: no protobuf, no policies. A call that arrives before they are loaded waits here, and only
here; `CallInterceptor.start` opens all waiting calls in the order of their arrival.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeAlias

from runtimeproxy.errors import MESSAGE_PREFIX, StatusCode
from runtimeproxy.frontends.cri_proxy.calls.methods import BY_PATH
from runtimeproxy.frontends.cri_proxy.interception import (
    DEFAULT_MAX_MESSAGE_BYTES,
    CallHandler,
    CallHead,
    Outcome,
    Reply,
)
from runtimeproxy.hooks.policy import FailurePolicy
from runtimeproxy.logs import FailureLog

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.core.services import CoreServices
    from runtimeproxy.frontends.cri_proxy.calls.long_work import LongWork
    from runtimeproxy.frontends.cri_proxy.calls.methods import CallKind
    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.hooks.policy import Hook
    from runtimeproxy.pods.lookup import Lookups

OpenCall: TypeAlias = Callable[[CallHead, Reply], CallHandler]

NOT_LOADED: Final = "the policies are not loaded yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """How intercepted calls are treated.

    Attributes:
        budget_s: Longest time that a call is held; a quarter of its deadline, if that is less.
        end_wait_s: How long Stop and Remove wait for other calls and hooks of their pod.
        on_unparsable: Whether a request that cannot be parsed is forwarded as it came or refused.
        on_failure: Whether a call is forwarded as it came or refused if the proxy itself fails: policies that
            are not loaded in time, an error in its own code.
        max_message_bytes: Longest request, decompressed.
    """

    budget_s: float
    end_wait_s: float = 1.0
    on_unparsable: FailurePolicy = FailurePolicy.IGNORE
    on_failure: FailurePolicy = FailurePolicy.IGNORE
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES

    @classmethod
    def of(cls, settings: Settings) -> Self:
        hooks = settings.hooks
        return cls(
            budget_s=hooks.budget_s,
            on_unparsable=FailurePolicy.FAIL if hooks.on_unparsable == "refuse" else FailurePolicy.IGNORE,
            on_failure=FailurePolicy.FAIL if hooks.on_failure == "refuse" else FailurePolicy.IGNORE,
            max_message_bytes=settings.proxy.max_message_bytes,
        )

    def hold_s(self, head: CallHead) -> float:
        """How long a call may be held from now on."""
        budget_s = self.budget_s if head.timeout_s is None else min(self.budget_s, head.timeout_s / 4)
        return max(0.0, budget_s - head.waited_s)


class CallRecording(Protocol):
    """One call of a recording. Its methods take notes, and never wait."""

    def on_decision(self, hook: Hook, decision: Decision) -> None:
        """The policies have decided on one question of the call."""

    def on_decided(self) -> None:
        """The call goes to the runtime now, or is refused."""

    def on_response(self, outcome: Outcome, frame: bytes) -> None:
        """The runtime has answered."""


class CallRecorder(Protocol):
    """Records calls."""

    @property
    def started_s(self) -> float:
        """When the recording began, in seconds since the epoch."""

    @property
    def calls(self) -> int:
        """How many calls have been recorded."""

    def begin(self, kind: CallKind, frame: bytes, encoding: str) -> CallRecording:
        """A request has arrived."""


@dataclass(slots=True, kw_only=True)
class CallServices:
    """What intercepted calls share. Used in the event loop's thread.

    Attributes:
        core: What acts on events.
        lookups: Asks the runtime for single records.
        long_work: Worker threads for long requests.
        recorder: Records calls; None, as mostly, if nothing is recorded.
        changed: How many calls were forwarded with a changed request.
    """

    settings: CallSettings
    core: CoreServices
    lookups: Lookups
    long_work: LongWork
    recorder: CallRecorder | None = None
    changed: int = 0


class CallInterceptor:
    """Intercepts the ten calls that policies may change.

    Args:
        settings: How long calls wait for `start`, and whether they are forwarded or refused after that.
        on_unseen: Called for each call that was forwarded before `start` and did not fail.

    Attributes:
        bypass: While it is set, new calls pass without policies; the records are then only as new as the last
            comparison with the runtime.
        waiting: Calls that wait for `start`, in the order of their arrival.
        failures: Logs calls for which `start` came too late, once per interval.
        late: How many these were, by kind of call.
    """

    def __init__(self, settings: CallSettings, on_unseen: Callable[[], None] | None = None) -> None:
        self.settings = settings
        self.bypass = False
        self.on_unseen = on_unseen
        self.failures = FailureLog()
        self.late: Counter[str] = Counter()
        self._open_call: OpenCall | None = None
        self.waiting: dict[_WaitingCall, None] = {}

    def intercepts(self, path: str) -> bool:
        return path in BY_PATH and not self.bypass

    def open(self, head: CallHead, reply: Reply) -> CallHandler:
        return (
            self._open_call(head, reply) if self._open_call is not None else _WaitingCall(self, head, reply)
        )

    def start(self, open_call: OpenCall) -> None:
        """Everything is loaded: opens the waiting calls and all later ones with this."""
        self._open_call = open_call
        # The decision on one call may end others, with their connection.
        while self.waiting:
            next(iter(self.waiting)).open(open_call)


class _WaitingCall:
    """A call that waits for `CallInterceptor.start`, then forwards to its handler."""

    __slots__ = ("_handler", "_head", "_interceptor", "_message", "_reply", "_since_s", "_timer")

    def __init__(self, interceptor: CallInterceptor, head: CallHead, reply: Reply) -> None:
        self._interceptor = interceptor
        self._head = head
        self._reply = reply
        self._message: bytes | None = None
        self._since_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._handler: CallHandler | None = None
        interceptor.waiting[self] = None

    def on_message(self, data: bytes) -> None:
        """Keeps the request, for a bounded time."""
        if self._handler is not None:
            self._handler.on_message(data)
            return
        self._message = data
        settings, loop = self._interceptor.settings, asyncio.get_running_loop()
        wait_s = settings.hold_s(self._head)
        if BY_PATH[self._head.path].is_end:
            wait_s = min(wait_s, settings.end_wait_s)
        self._since_s = loop.time()
        self._timer = loop.call_later(wait_s, self._give_up)

    def on_cancelled(self) -> None:
        self._stop_waiting()
        if self._handler is not None:
            self._handler.on_cancelled()

    def on_response(self, outcome: Outcome, data: bytes) -> None:
        # A call that was forwarded without a handler has no record.
        if self._handler is not None:
            self._handler.on_response(outcome, data)
        elif outcome is not Outcome.FAILED and self._interceptor.on_unseen is not None:
            self._interceptor.on_unseen()

    def open(self, open_call: OpenCall) -> None:
        """Gives the call, and the request if it has come, to its handler."""
        message, head = self._message, self._head
        self._stop_waiting()
        if message is not None:
            head = replace(head, waited_s=asyncio.get_running_loop().time() - self._since_s)
        self._handler = open_call(head, self._reply)
        if message is not None:
            self._handler.on_message(message)

    def _give_up(self) -> None:
        self._stop_waiting()
        kind = BY_PATH[self._head.path].kind
        self._interceptor.late[kind] += 1
        self._interceptor.failures.report(kind, NOT_LOADED, NOT_LOADED)
        if self._interceptor.settings.on_failure is FailurePolicy.FAIL:
            self._reply.refuse(StatusCode.UNAVAILABLE, MESSAGE_PREFIX + NOT_LOADED)
        else:
            self._reply.forward(None)

    def _stop_waiting(self) -> None:
        self._interceptor.waiting.pop(self, None)
        self._message = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
