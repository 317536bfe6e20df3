"""One hook server as one policy of the chain. Used in the event loop's thread."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from google.protobuf.message import DecodeError

from cri_api.parsing import TooManyPartsError
from runtimeproxy.errors import RefusalError, RuntimeProxyError, StatusCode
from runtimeproxy.hooks.loaded import MAX_PRIORITY, Cancellable, LoadedPolicy, OnResponse
from runtimeproxy.hooks.policy import FailurePolicy, Hook, Policy
from runtimeproxy.hooks.remote.protocol import EXCHANGES, NO_SUCH_METHOD, Exchange
from runtimeproxy.hooks.selector import PodSelector, PodTraits
from runtimeproxy.hooks.views import ContainerView, PodView
from runtimeproxy.http2.client import (
    AnsweredError,
    CallError,
    LateError,
    UnaryClient,
    UnreachableError,
    UnusableError,
    request_block,
)

if TYPE_CHECKING:
    from runtimeproxy.hooks.changes import CgroupChange
    from runtimeproxy.hooks.remote.registrations import Registration

FAILURES_TO_OPEN: Final = 3
PROBE_INTERVAL_S: Final = 0.5
"""Between two probes."""


class Breaker:
    """Counts failures in a row: open means that the server is skipped.

    Attributes:
        is_open: whether the server is skipped.
        opened: when it opened last, by its clock, and why.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures = 0
        self.opened = (0.0, "")
        self.is_open = False

    def failed(self, cause: str) -> bool:
        """Count a failure; returns whether it opened the breaker."""
        self._failures += 1
        if self.is_open or self._failures < FAILURES_TO_OPEN:
            return False
        self.opened = self._clock(), cause
        self.is_open = True
        return True

    def answered(self) -> float | None:
        """Note that the server answered; returns for how long it was skipped if this closed the breaker."""
        self._failures = 0
        if not self.is_open:
            return None
        self.is_open = False
        return max(self._clock() - self.opened[0], 0.0)


class Prober:
    """Asks a server again and again, from `start` to `stop`.

    Args:
        probe: asks once, with a deadline in seconds, and calls back when that is over.
        deadlines_s: each is asked with by itself: with a short one it shows soon that the server is back, a
            long one lets a slow server answer.
    """

    def __init__(
        self, probe: Callable[[float, Callable[[], None]], None], deadlines_s: frozenset[float]
    ) -> None:
        self._probe = probe
        self._deadlines_s = deadlines_s
        self._timers: dict[float, asyncio.TimerHandle] = {}
        self._is_closed = False

    @property
    def is_running(self) -> bool:
        """Whether it asks just now."""
        return bool(self._timers)

    def start(self) -> None:
        """Begin, unless it has begun or is closed."""
        if not (self._timers or self._is_closed):
            for deadline_s in self._deadlines_s:
                self._wait(deadline_s)

    def stop(self) -> None:
        """End; what a probe under way finds out still counts."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def close(self) -> None:
        """End for good."""
        self._is_closed = True
        self.stop()

    def _wait(self, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[deadline_s] = loop.call_later(PROBE_INTERVAL_S, self._ask, deadline_s)

    def _ask(self, deadline_s: float) -> None:
        self._probe(deadline_s, partial(self._asked, deadline_s, self._timers[deadline_s]))

    def _asked(self, deadline_s: float, timer: asyncio.TimerHandle) -> None:
        # Another timer, or none, is there if it has been stopped meanwhile.
        if self._timers.get(deadline_s) is timer:
            self._wait(deadline_s)


logger = logging.getLogger(__name__)

REFUSAL_PREFIX: Final = "hook server err: "
"""Stands before a hook server's text. Source: Koordinator pkg/runtimeproxy/server/cri/criserver.go."""
PRIORITY: Final = MAX_PRIORITY + 1
"""After all policies of this process."""
ENOUGH_S: Final = 0.5
"""A server that has not answered in this time has failed, even if its own timeout is longer."""
MAX_ENTRIES: Final = 1_000
"""Of maps that one answer may change: each is merged and audited. Koordlet's hooks change about ten."""
SHORT_PROBE_S: Final = 2.0
"""Deadline of probes: with the interval between them, a server is back in use within 3 s."""

_MAX_TEXT_LENGTH: Final = 1_024
"""How much of a server's error text goes on: a status message has to fit into one header block."""
_ON_LOOP_BYTES: Final = 64 * 1024
"""Longer answers, and those to longer questions, are read in a worker thread."""
_MIN_SECRET_LENGTH: Final = 8
"""Values of variables that are as short as `true` or `8080` are no secret, and occur in any text."""


class SkippedError(RuntimeProxyError):
    """The server is not asked because it has not answered lately."""


_TRANSPORT_CODES: Final = frozenset(
    {StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED}
)
"""An answered status of these says no more than that something on the way to the hooks failed."""

_Note: TypeAlias = Callable[..., object]
"""Calls a function in the loop's thread."""


@dataclass(frozen=True, slots=True)
class _Question:
    """What a server is asked; a `RemoteRequest`."""

    server: HookServer
    hook: Hook
    view: PodView | ContainerView
    exchange: Exchange
    message: Any
    data: bytes
    """The message's bytes."""

    def send(self, timeout_s: float, on_response: OnResponse, /) -> Cancellable:
        return self.server.ask(self, timeout_s, on_response)


_BLOCKS: Final = {hook: request_block(exchange.method) for hook, exchange in EXCHANGES.items()}
"""Header blocks of the hooks' methods."""
_LIFE_SIGN: Final = request_block(NO_SUCH_METHOD)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reachable(PodSelector):
    """Every pod, as long as the breaker is closed: an open one then costs a call nothing."""

    breaker: Breaker

    def matches(self, pod: PodTraits) -> bool:
        """Return whether the server is asked about anything just now."""
        return not self.breaker.is_open


class HookServer:
    """A registered hook server: its connection, its breaker and the policy that stands for it.

    Args:
        registration: what its file says.
        short_probe_s: the deadline of probes that soon find a server that is back; those of slow servers have
            the server's own.
    """

    def __init__(self, registration: Registration, short_probe_s: float = SHORT_PROBE_S) -> None:
        self.registration = registration
        self._client = UnaryClient(registration.endpoint)
        self._breaker = Breaker(time.time)
        deadlines_s = frozenset({registration.timeout_s, min(registration.timeout_s, short_probe_s)})
        self._prober = Prober(self._probe, deadlines_s)
        self._failed: _Question | None = None

    @property
    def trouble(self) -> str:
        """Since when and why the server is skipped; empty while it is in use."""
        if not self._breaker.is_open:
            return ""
        opened_s, cause = self._breaker.opened
        since = datetime.fromtimestamp(opened_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"not asked since {since}: {cause}"

    @property
    def is_strict(self) -> bool:
        """Whether a call is refused when the server cannot be asked."""
        return self.registration.failure_policy is FailurePolicy.FAIL

    def loaded(self) -> LoadedPolicy:
        """Return the server as a policy of the chain."""
        registration = self.registration
        concern = PodSelector() if self.is_strict else _Reachable(breaker=self._breaker)
        policy = type("HookServerPolicy", (Policy,), {"name": registration.name, "concern": concern})
        return LoadedPolicy(
            selector=concern,
            name=registration.name,
            origin=registration.endpoint,
            policy=policy(),
            priority=PRIORITY,
            timeout_s=registration.timeout_s,
            failure_policy=registration.failure_policy,
            remote_hooks=MappingProxyType(
                {hook: partial(self._question, hook) for hook in registration.hooks}
            ),
        )

    def close(self) -> None:
        """Let go of the server; calls under way come to their end."""
        self._prober.close()
        self._client.close()
        self._failed = None

    def ask(self, question: _Question, timeout_s: float, on_response: OnResponse) -> Cancellable:
        """Ask the server, unless it is skipped."""
        if self._breaker.is_open:
            skipped = partial(_raise, self._skipped(question.hook)) if self.is_strict else _nothing
            return asyncio.get_running_loop().call_soon(on_response, skipped, False)
        done = partial(self._done, question, timeout_s, on_response)
        return self._client.call(_BLOCKS[question.hook], question.data, timeout_s, done)

    def _question(self, hook: Hook, view: PodView | ContainerView) -> _Question:
        exchange = EXCHANGES[hook]
        message = exchange.request(view)
        return _Question(self, hook, view, exchange, message, message.SerializeToString())

    def _done(
        self, question: _Question, timeout_s: float, on_response: OnResponse, outcome: bytes | CallError
    ) -> None:
        # A short answer is compared with all that was shown.
        answer_bytes = len(outcome) if isinstance(outcome, bytes) else 0
        is_long = max(len(question.data), answer_bytes) > _ON_LOOP_BYTES
        note = partial(_in_loop, asyncio.get_running_loop())
        on_response(partial(self._read, question, timeout_s, outcome, note), is_long)

    def _read(
        self, question: _Question, timeout_s: float, outcome: bytes | CallError, note: _Note, _: object
    ) -> CgroupChange | None:
        """Read what came, in whatever thread, and note in the loop's what that says about the server."""
        exchange = question.exchange
        try:
            answer = _parsed(exchange, outcome, timeout_s)
        except CallError as error:
            failure = _to_be_told(error, question.view)
            was_cut_short = timeout_s < min(self.registration.timeout_s, ENOUGH_S)
            if isinstance(failure, AnsweredError):
                note(self._note_answer)
            elif not (isinstance(failure, LateError) and was_cut_short):
                note(self._note_failure, question, failure)
            raise self._raised(question.hook, failure) from None
        note(self._note_answer)
        if exchange.change is None:
            return None
        change = exchange.change(question.message, answer, self.registration.answers)
        count = 0 if change is None else _entry_count(change)
        if count > MAX_ENTRIES:
            text = f"the answer changes {count} entries, at most {MAX_ENTRIES} are taken"
            raise self._raised(question.hook, UnusableError(StatusCode.RESOURCE_EXHAUSTED, text))
        return change

    def _skipped(self, hook: Hook) -> Exception:
        trouble = self.trouble or "not asked just now"
        if _is_refusable(hook):
            return RefusalError(f"{REFUSAL_PREFIX}{trouble}", StatusCode.UNAVAILABLE)
        return SkippedError(trouble)

    def _note_answer(self) -> None:
        self._failed = None
        skipped_s = self._breaker.answered()
        if skipped_s is not None:
            self._prober.stop()
            name = self.registration.name
            logger.info(
                "hook server %s answers again after %.1f s",
                name,
                skipped_s,
                extra={"server": name, "skipped_s": round(skipped_s, 1)},
            )

    def _note_failure(self, question: _Question, error: CallError) -> None:
        # A long one is not kept, for it would be sent twice a second.
        if _is_refusable(question.hook) and len(question.data) <= _ON_LOOP_BYTES:
            self._failed = question
        if self._breaker.failed(str(error)):
            self._prober.start()
            name = self.registration.name
            logger.warning(
                "hook server %s is skipped until it answers again: %s",
                name,
                error,
                extra={"server": name, "cause": str(error)},
            )

    def _probe(self, deadline_s: float, over: Callable[[], None]) -> None:
        """Repeat what failed last; the answer counts for nothing but that there is one."""
        question = self._failed
        # A post hook is not repeated, so any answer will do.
        exchange = question.exchange if question is not None else None

        def done(outcome: bytes | CallError) -> None:
            # A long answer is believed unread.
            is_long = isinstance(outcome, bytes) and len(outcome) > _ON_LOOP_BYTES
            with suppress(UnreachableError, LateError, UnusableError):
                with suppress(AnsweredError):
                    _parsed(None if is_long else exchange, outcome, deadline_s)
                self._note_answer()
            over()

        if question is None:
            self._client.call(_LIFE_SIGN, b"", deadline_s, done)
        else:
            self._client.call(_BLOCKS[question.hook], question.data, deadline_s, done)

    def _raised(self, hook: Hook, error: CallError) -> RuntimeProxyError:
        """Return what the chain gets of a failure."""
        if not self.is_strict or not _is_refusable(hook):
            return error
        code = error.code if isinstance(error, AnsweredError) else StatusCode.UNAVAILABLE
        return RefusalError(f"{REFUSAL_PREFIX}{error.text}", code)


def _in_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
    """Call a function in the loop's thread: at once, if this is that."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        loop.call_soon_threadsafe(function, *arguments)
    else:
        function(*arguments)


def _raise(error: Exception, _: object) -> None:
    raise error


def _nothing(_: object) -> None:
    """The answer of a server that is not asked."""


def _parsed(exchange: Exchange | None, outcome: bytes | CallError, timeout_s: float) -> object:
    """Return the answer's message; None if it has no effect, for then it need not be read.

    Raises:
        CallError: there is no answer; the type says whose failure that is.
    """
    if isinstance(outcome, CallError):
        if isinstance(outcome, AnsweredError) and outcome.code in _TRANSPORT_CODES:
            if outcome.code is StatusCode.DEADLINE_EXCEEDED:
                # Both ends have the deadline, and the server's own text says no more than that.
                raise LateError(outcome.code, f"no answer within {timeout_s:g} s")
            raise UnreachableError(outcome.code, outcome.text)
        raise outcome
    if exchange is None or exchange.change is None:
        return None
    try:
        answer: object = exchange.response(outcome)
    except TooManyPartsError:
        text = f"the answer to {exchange.method} has too many annotations, variables and the like"
        raise UnusableError(StatusCode.RESOURCE_EXHAUSTED, text) from None
    except DecodeError:
        text = f"the answer to {exchange.method} cannot be decoded"
        raise UnusableError(StatusCode.INTERNAL, text) from None
    return answer


def _entry_count(change: CgroupChange) -> int:
    """Return how many entries of maps a change sets."""
    resources = getattr(change, "resources", None)
    count = len(resources.unified) if resources is not None else 0
    return count + sum(len(getattr(change, name, ())) for name in ("labels", "annotations", "env"))


def _is_refusable(hook: Hook) -> bool:
    return hook.startswith("pre_")


def _to_be_told(error: CallError, view: PodView | ContainerView) -> CallError:
    """Return the error for logs and events: without environment values, which it may quote, and cut.

    Values of several lines are looked for by line, for texts that quote them often escape their ends.
    """
    values = view.env.values() if isinstance(view, ContainerView) else ()
    lines = {line for value in values for line in value.decode(errors="replace").splitlines()}
    text = error.text
    # The longest first: what is left of one of which another is a part would be told.
    for secret in sorted((line for line in lines if len(line) >= _MIN_SECRET_LENGTH), key=len, reverse=True):
        text = text.replace(secret, "***")
    return type(error)(error.code, text[:_MAX_TEXT_LENGTH])
